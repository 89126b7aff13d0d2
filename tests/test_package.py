"""The wheel, unpacked far from the checkout: what it has, and what it says of the rest."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from commands import called

from probconserv.experiments.paper import EXPERIMENTS
from probconserv.models import _load
from probconserv.models._load import TRAINED, shipped
from probconserv.support import extras as _extras

ROOT = Path(__file__).parents[1]
MODULES = {
    "probconserv.figures": "matplotlib",
    "probconserv.experiments.paper._report": "jinja2",
    "probconserv.files": "xarray",
}
IN_THE_WHEEL = {f"{name}-{model}-modern" for name in EXPERIMENTS for model in ("anp", "emulator")}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the unpacked wheel; it is built from a copy, where no old build can help."""
    source, made, site = (tmp_path_factory.mktemp(name) for name in ("source", "made", "site"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    skip = shutil.ignore_patterns("*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", source / "src", ignore=skip)
    code = f"from setuptools.build_meta import build_wheel; build_wheel({str(made)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)
    (wheel,) = made.glob("*.whl")
    assert wheel.stat().st_size < 25e6
    zipfile.ZipFile(wheel).extractall(site)
    return site


def python(site, *arguments):
    """Python with the unpacked wheel before all else, run in a folder beside it."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=site.parent, env=environment, capture_output=True, text=True)


def files(folder):
    """Names of the files below a folder, but for those that Python compiles."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path for path in found if "__pycache__" not in path.parts}


def test_the_wheel_has_every_file_of_the_package(site):
    assert files(site / "probconserv") == files(ROOT / "src" / "probconserv")
    weights = site / "probconserv" / "models" / "weights"
    assert {path.stem for path in weights.glob("*.safetensors")} == IN_THE_WHEEL


def test_a_checkout_has_every_network_that_load_can_be_asked_for():
    kinds = [f"{model}-{recipe}" for model, recipes in TRAINED.items() for recipe in recipes]
    assert shipped().keys() == {f"{name}-{kind}" for name in EXPERIMENTS for kind in kinds}


@pytest.fixture(scope="module")
def told(site, tmp_path_factory):
    """What one process says that has the wheel before all else, a list of lines for each part."""
    out = tmp_path_factory.mktemp("tables")
    code = f"""
import importlib, sys
import probconserv as pc, probconserv.training
others = {{"scipy", "matplotlib", "rich", "cyclopts", "gpytorch", "pde", "xarray", "dask"}}
print(others & set(sys.modules))
for module, needed in {MODULES}.items():
    sys.modules[needed] = None
    try:
        importlib.import_module(module)
    except ImportError as error:
        print(error)
print("END")
print(pc.__file__)
print(*(pc.models.load("stefan", model=model).card["model"] for model in ("anp", "emulator")))
for kind in [("anp", "paper"), ("softc", "modern"), ("softc", "paper")]:
    try:
        pc.models.load("stefan", *kind)
    except pc.errors.InputError as error:
        print(error)
print("END", flush=True)
from probconserv.__main__ import main
few = "--n 2 --samples 2 --no-figures --device cpu --out"
sys.argv[1:] = ["reproduce", "stefan", *few.split(), {str(out)!r}]
main()
"""
    done = python(site, "-c", code)
    assert done.returncode == 0, done.stderr
    return [part.strip().splitlines() for part in done.stdout.split("END\n")]


def test_what_the_wheel_has_loads_and_the_rest_says_where_it_is(site, told):
    place, loaded, *refused = told[1]
    assert Path(place).is_relative_to(site)
    assert loaded == "anp emulator"
    asked = [re.search(r"`model` (\w+) and `recipe` (\w+);", line).groups() for line in refused]
    assert asked == [("anp", "paper"), ("softc", "modern"), ("softc", "paper")]
    for line in refused:
        assert "there are: stefan-anp-modern, stefan-emulator-modern." in line
        assert "pip install --editable ." in line


@pytest.mark.parametrize(
    ("command", "argument"),
    [
        ("reproduce stefan --recipe paper", "`recipe` paper"),
        ("ablate stefan --networks modern --networks paper", "`networks` has paper"),
    ],
)
def test_a_command_without_its_weights_is_refused_before_any_work(
    site, tmp_path, command, argument, monkeypatch
):
    weights = site / "probconserv" / "models" / "weights"
    monkeypatch.setattr(_load, "_folders", lambda: [weights])
    failed = called(*command.split(), "--out", tmp_path / "out")
    assert failed.returncode == 2
    assert failed.stderr.startswith("probconserv: ")
    assert argument in failed.stderr
    assert "pip install --editable ." in failed.stderr
    assert "Traceback" not in failed.stderr
    assert not (tmp_path / "out").exists()


def test_tables_without_softc_say_where_its_weights_are(told):
    said = " ".join(" ".join(told[2]).split())
    assert "Stefan, u_star = 0.6: no weights for SoftC-ANP." in said
    assert said.count("pip install --editable .") == 1


@pytest.mark.parametrize("extra", ["gp", "plots", "cli", "files"])
def test_a_missing_extra_is_named_by_its_packages(extra, monkeypatch):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    said = _extras.missing("name", extra)
    assert said.startswith("no name here; pip install ")
    for package in project["optional-dependencies"][extra]:
        assert f"'{package}'" in said

    def not_installed(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(_extras, "requires", not_installed)
    assert f"pip install '.[{extra}]' in a checkout" in _extras.missing("name", extra)


def test_modules_without_their_extra_name_it_and_the_library_needs_none(told):
    """In a process of its own, where nothing is imported yet; GPU machines are often bare."""
    imported, figures, report, labelled = told[0]
    assert imported == "set()"
    assert "no matplotlib here; pip install 'matplotlib" in figures
    assert "no jinja2 here; pip install 'matplotlib" in report
    assert "labelled data need xarray, which is not here; pip install 'probconserv[files]'" in (
        labelled
    )
