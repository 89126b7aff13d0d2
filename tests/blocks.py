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


def run(page):
    """The names that the blocks leave; what they write is in a folder that is gone afterwards."""
    path, names = ROOT / page, {"__name__": "page"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for block in PYTHON.findall(path.read_text()):
            exec(compile(block, str(path), "exec"), names)
    return names


def built():
    """The folder of the site; `make docs` has built it, or it is built here."""
    if not (SITE / "index.html").exists():
        words = ["-q", "-W", "--keep-going", "-n", "-d", "build/doctrees", "docs", "build/site"]
        subprocess.run([sys.executable, "-m", "sphinx", *words], cwd=ROOT, check=True)
    return SITE
