"""The rooms and the order of imports that docs/develop/modules.md states, and the size of files."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "probconserv"


def stated_order():
    """The files of the page from the top down, as paths below the package."""
    block = (ROOT / "docs" / "develop" / "modules.md").read_text().split("```")[1]
    folders, files = [], []
    for indent, name in re.findall(r"^( +)(\w+(?:\.py|/)) ", block, re.MULTILINE):
        del folders[len(indent) // 2 - 1 :]
        if name.endswith("/"):
            folders.append(name)
        else:
            files.append("".join(folders) + name)
    return files


def imported(path):
    """The files of the package that a file imports when it is imported itself."""
    inside, tree = path.relative_to(PACKAGE).parts[:-1], ast.parse(path.read_text())
    tree.body = [n for n in tree.body if not isinstance(n, ast.If)]  # `if TYPE_CHECKING`
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            home = PACKAGE.joinpath(*inside[: len(inside) - node.level + 1])
            home = home.joinpath(*(node.module or "").split("."))
            names = [alias.name for alias in node.names] if home.is_dir() else []
            for target in [home / name for name in names] or [home]:
                file = target.with_suffix(".py")
                if file.exists():
                    yield str(file.relative_to(PACKAGE))
                elif home / "__init__.py" != PACKAGE / "__init__.py":
                    folder = target if target.is_dir() else home
                    yield f"{folder.relative_to(PACKAGE)}/"


def last_place(name, order):
    """Where a file stands; of a folder, whose names come from several files, the last of these."""
    if name.endswith("/"):
        return max(i for i, file in enumerate(order) if file.startswith(name))
    return order.index(name)


def own_files():
    return [p for p in PACKAGE.rglob("*.py") if p.name not in ("__init__.py", "__main__.py")]


def test_every_file_has_its_place_on_the_page():
    here = sorted(str(p.relative_to(PACKAGE)) for p in own_files())
    assert sorted(stated_order()) == here


def test_no_file_imports_one_below_it():
    order = stated_order()
    wrong = [
        (name, used)
        for name in order
        for used in imported(PACKAGE / name)
        if last_place(used, order) > order.index(name)
    ]
    assert not wrong


def test_every_folder_at_the_top_is_a_room_and_no_private_file_lies_beside_them():
    assert [p.name for p in PACKAGE.glob("_*.py") if not p.name.startswith("__")] == []
    folders = {p.name for p in PACKAGE.iterdir() if (p / "__init__.py").exists()}
    assert folders == {file.split("/")[0] for file in stated_order() if "/" in file}


def lines_of_code(path):
    """The lines of a file that are not part of a docstring."""
    text = path.read_text()
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    said = [node.body[0] for node in nodes if ast.get_docstring(node) is not None]
    return len(text.splitlines()) - sum(d.end_lineno - d.lineno + 1 for d in said)


def test_no_file_has_more_than_400_lines_beside_docstrings():
    assert not [path.name for path in PACKAGE.rglob("*.py") if lines_of_code(path) > 400]


def test_files_have_their_small_numbers_in_one_place():
    sources = [*(PACKAGE / "files").glob("*.py"), PACKAGE / "cli" / "files.py"]
    numbers = [
        (path.name, node.value)
        for path in sources
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, float)
    ]
    assert len(numbers) > 50
    assert not [number for number in numbers if 0 < abs(number[1]) < 1e-3]
