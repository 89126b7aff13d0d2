"""Names of other projects that our docstrings use, as inventories for intersphinx: no network.

`inventories.txt` has a block for each project: its name and address, then a line for each of its
names with their kind and the page below that address; `$` stands for the name itself.
"""

import zlib
from pathlib import Path


def written(source: Path, folder: Path) -> dict[str, tuple[str, str]]:
    """The value of `intersphinx_mapping`; the inventories are left in that folder."""
    folder.mkdir(parents=True, exist_ok=True)
    mapping = {}
    for block in source.read_text().strip().split("\n\n"):
        (project, address), *names = [line.split() for line in block.splitlines()]
        path = folder / f"{project}.inv"
        path.write_bytes(_inventory(project, names))
        mapping[project] = (address, str(path))
    return mapping


def _inventory(project: str, names: list[list[str]]) -> bytes:
    head = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
    head += "# The remainder of this file is compressed using zlib.\n"
    lines = "".join(f"{name} {kind} 1 {page.replace('$', name)} -\n" for name, kind, page in names)
    return head.encode() + zlib.compress(lines.encode())
