"""How large the package is: lines of code and files, room by room.

A line counts if it is neither blank nor part of a docstring; comments count. `cli/files.py` belongs
to files, `air` to weather.

    python benchmarks/size.py
"""

import ast
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "probconserv"
CORE = "support", "fields", "meshes", "laws", "solvers", "conditioning", "diagnostics"
PARTS = dict.fromkeys(CORE, "core") | {"files": "files", "weather": "weather", "air": "weather"}


def lines_of_code(path: Path) -> int:
    """Of one file, without blank lines and docstrings."""
    text = path.read_text()
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    said = [node.body[0] for node in nodes if ast.get_docstring(node) is not None]
    inside = {i for d in said for i in range(d.lineno, (d.end_lineno or 0) + 1)}
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(line.strip()) and i not in inside for i, line in lines)


def main() -> None:
    """Prints rooms, parts and the sum."""
    rooms: Counter[tuple[str, str]] = Counter()
    files: Counter[tuple[str, str]] = Counter()
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE)
        room = place.parts[0] if len(place.parts) > 1 else "top"
        part = "files" if str(place) == "cli/files.py" else PARTS.get(room, "rest")
        rooms[part, room] += lines_of_code(path)
        files[part, room] += 1
    for part in ("core", "files", "weather", "rest"):
        mine = [key for key in rooms if key[0] == part]
        for key in sorted(mine, key=lambda key: -rooms[key]):
            print(f"  {key[1]:14}{rooms[key]:7,}{files[key]:5}")
        print(f"{part:16}{sum(rooms[k] for k in mine):7,}{sum(files[k] for k in mine):5}")
    print(f"{'all':16}{rooms.total():7,}{files.total():5}")


if __name__ == "__main__":
    main()
