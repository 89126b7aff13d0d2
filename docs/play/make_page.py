"""Builds the playing page: `python docs/play/make_page.py build/play`, a folder of static files.

The page also runs when its file is opened without a server. There a browser reads scripts and
nothing else, so every part is a script: `assets/NAME.js` holds the bytes, compressed, as text.
"""

import argparse
import base64
import gzip
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LIBRARY = ROOT / "src" / "probconserv"
CACHE = ROOT / "build" / "play-parts"  # what takes long: graphs and packages
PAGE = ("index.html", "style.css", "engine.js", "plots.js", "words.js", "views.js", "page.js")
EQUATIONS = ("stefan", "pme", "advection")
NO_PACKAGES = 3  # exit status: the page is fine, but what it is built with cannot be had


class NoPackagesError(Exception):
    """npm, or a package that it fetches, is not there."""


def build(out: Path, equations: Iterable[str] = EQUATIONS) -> None:
    """Writes the page and its parts, with the networks of these equations."""
    shutil.rmtree(out, ignore_errors=True)
    (out / "assets").mkdir(parents=True)
    for name in PAGE:
        shutil.copy(HERE / name, out)
    for name, data in _parts(tuple(equations)):
        (out / "assets" / f"{name}.js").write_text(packed(name, data), encoding="ascii")


def packed(name: str, data: bytes) -> str:
    """A script that hands the compressed bytes to the page."""
    text = base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()
    return f'probconserv.unpack("{name}", "{text}");\n'


def _parts(equations: tuple[str, ...]) -> Iterable[tuple[str, bytes]]:
    import graphs  # torch takes seconds
    from facts import facts_of

    library = package("onnxruntime-web") / "dist"
    yield "runtime", (library / "ort-wasm-simd-threaded.wasm").read_bytes()
    yield "ort", (library / "ort.wasm.bundle.min.mjs").read_bytes()
    yield "worker", (HERE / "worker.js").read_bytes()
    yield "facts", json.dumps(facts_of(equations)).encode()
    yield "step2", cached("step2", graphs.step2_graph)
    for name in equations:
        yield name, cached(name, lambda name=name: graphs.network_graph(name))


def cached(name: str, make: Callable[[], bytes]) -> bytes:
    """What `make` returns, kept until the library or a weight changes."""
    sources = [*LIBRARY.rglob("*.py"), HERE / "graphs.py"]
    sources += (LIBRARY / "models" / "weights").glob(f"{name}-anp-*")
    digest = hashlib.sha256()
    for path in sorted(sources):
        digest.update(path.read_bytes())
    kept = CACHE / f"{name}-{digest.hexdigest()[:16]}.onnx"
    if not kept.exists():
        for old in CACHE.glob(f"{name}-*.onnx"):
            old.unlink()
        CACHE.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(make())
    return kept.read_bytes()


def package(name: str) -> Path:
    """A package of npm, of the version and with the checksum in package-lock.json."""
    lock = (HERE / "package-lock.json").read_bytes()
    folder = CACHE / f"npm-{hashlib.sha256(lock).hexdigest()[:16]}"
    if not (folder / "ready").exists():
        if shutil.which("npm") is None:
            raise NoPackagesError("The page is built with npm, which comes with Node.js.")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for part in ("package.json", "package-lock.json"):
            shutil.copy(HERE / part, folder)
        quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
        if subprocess.run(["npm", "ci", *quiet], cwd=folder).returncode:
            raise NoPackagesError("npm could not fetch the packages of the page.")
        (folder / "ready").touch()
    return folder / "node_modules" / name


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    try:
        build(parser.parse_args().out)
    except NoPackagesError as error:
        print(error, file=sys.stderr)
        sys.exit(NO_PACKAGES)
