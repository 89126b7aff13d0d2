"""The Python blocks of a page, run in order in one namespace."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(p for p in DOCS.rglob("*.md") if "play" not in p.relative_to(DOCS).parts[:-1])
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


def run(page):
    """The names that the blocks leave."""
    path, names = ROOT / page, {"__name__": "page"}
    for block in PYTHON.findall(path.read_text()):
        exec(compile(block, str(path), "exec"), names)
    return names
