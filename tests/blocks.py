"""The pages of the docs: their Python blocks, run in order in one namespace; the built site."""

import contextlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(p for p in DOCS.rglob("*.md") if "play" not in p.relative_to(DOCS).parts[:-1])
SITE = ROOT / "build" / "site"
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


def run(page, fewer=("", "")):
    """The names that the blocks leave; what they write is in a folder that is gone afterwards.

    `fewer` is a part of the page that makes it slow, and what to put there instead.
    """
    path, names = ROOT / page, {"__name__": "page"}
    assert fewer[0] in path.read_text()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for block in PYTHON.findall(path.read_text()):
            code = block.replace(*fewer) if fewer[0] else block
            exec(compile(code, str(path), "exec"), names)
    return names


def built():
    """The folder of the site; `make docs` has built it, or it is built here."""
    if not (SITE / "index.html").exists():
        words = ["-q", "-W", "--keep-going", "-n", "-d", "build/doctrees", "docs", "build/site"]
        subprocess.run([sys.executable, "-m", "sphinx", *words], cwd=ROOT, check=True)
    return SITE
