"""The order of imports that docs/develop/modules.md states, and the size of files."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "probconserv"


def stated_order():
    """The modules of the page, from the top down; a folder stands for all of its files."""
    page = (ROOT / "docs" / "develop" / "modules.md").read_text()
    block = page.split("```")[1]
    return re.findall(r"^  ([a-z_]+(?:\.py|/))", block, re.MULTILINE)


def imported(path):
    """The first names below the package that a file imports when it is imported itself."""
    inside, tree = len(path.relative_to(PACKAGE).parts) - 1, ast.parse(path.read_text())
    tree.body = [n for n in tree.body if not isinstance(n, ast.If)]  # `if TYPE_CHECKING`
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == inside + 1:
            yield from [node.module] if node.module else [alias.name for alias in node.names]


def place(name, order):
    first = name.split(".")[0]
    return order.index(f"{first}.py" if f"{first}.py" in order else f"{first}/")


def test_every_module_has_its_place_on_the_page():
    here = {p.name for p in PACKAGE.glob("*.py")} - {"__init__.py", "__main__.py"}
    here |= {f"{p.name}/" for p in PACKAGE.iterdir() if (p / "__init__.py").exists()}
    assert set(stated_order()) == here


def test_no_module_imports_one_below_it():
    order, wrong = stated_order(), []
    for number, name in enumerate(order):
        files = (PACKAGE / name).rglob("*.py") if name.endswith("/") else [PACKAGE / name]
        for path in files:
            used = [m for m in imported(path) if m != "__version__"]
            wrong += [(path.name, m) for m in used if place(m, order) > number]
    assert not wrong


def lines_of_code(path):
    """The lines of a file that are not part of a docstring."""
    text = path.read_text()
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    said = [node.body[0] for node in nodes if ast.get_docstring(node) is not None]
    return len(text.splitlines()) - sum(d.end_lineno - d.lineno + 1 for d in said)


def test_no_file_has_more_than_400_lines_beside_docstrings():
    assert not [path.name for path in PACKAGE.rglob("*.py") if lines_of_code(path) > 400]
