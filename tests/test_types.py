"""The package as type checkers of its users read it: mypy --strict, and Pyright by basedpyright."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typed_page

from probconserv.training import Recipe
from probconserv.training._recipes import Changes

PAGE = Path(typed_page.__file__)
CACHE = PAGE.parents[1] / ".mypy_cache" / "users"
HEAD = """
import probconserv as pc
from probconserv import data, problems, training
from probconserv.experiments import paper
from probconserv.models import AttentiveNeuralProcess

x = [0.0, 0.5, 1.0]
law = pc.integral(x, 1.0)
prior = pc.Diagonal([[1.0, 1.0, 1.0]], 0.1)
post = pc.condition(prior, law)
"""
WRONG = """
pc.integral(x, 1.0, rule="trapezoidal")
pc.diagnostics.quadrature_noise(prior, x, rule="simpsons")
pc.condition(prior, 1.0)
pc.condition(prior, [law])
pc.diagnose(prior, "integral")
pc.inflate(prior, law.value)
pc.Diagonal({"mean": 1.0}, 1.0)
pc.Diagonal(None, 1.0)
pc.Mixture([prior, prior])
pc.Ensemble(members=prior)
pc.condition(pc.State(u=prior), law).mean
pc.condition(pc.Mixture(prior), law).log_evidence
pc.Mesh(x=None)
pc.Mesh(x=x, periodic=1)
pc.Mesh(x=x).gradient(post)
post.samples(3)
post.sample("3")
number: float = post.mean
network: AttentiveNeuralProcess = pc.models.load("pme", "emulator")
pc.models.load("stefan", model="gp")
pc.models.load("stefan", recipe="old")
data.draw(problems.Stefan, "training")
problems.Stefan()
problems.Stefan(u_star=None)
problems.Stefan(0.6).u_star = 0.5
training.train("pme", "out", model="cnn")
training.train("pme", "out", through="mse")
training.train("pme", "out", stpes=10)
paper.reproduce(protocol="theirs")
paper.ablate(networks=["anp"])
"""


def mypy(folder: Path) -> set[tuple[str, int]]:
    """File and line of every error."""
    words = ["--strict", "--config-file=", f"--cache-dir={CACHE}", "--output=json", str(folder)]
    lines = [json.loads(line) for line in run("mypy", *words, cwd=folder).splitlines()]
    return {(Path(e["file"]).name, e["line"]) for e in lines if e["severity"] == "error"}


def pyright(folder: Path) -> set[tuple[str, int]]:
    """File and line of every error."""
    pytest.importorskip("basedpyright")
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    words = ["--project", str(folder), "--pythonpath", sys.executable, "--outputjson"]
    found = json.loads(run("basedpyright", *words, cwd=folder))["generalDiagnostics"]
    errors = [e for e in found if e["severity"] == "error"]
    return {(Path(e["file"]).name, e["range"]["start"]["line"] + 1) for e in errors}


def run(module: str, *words: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *words], cwd=cwd, capture_output=True, text=True
    )
    assert done.returncode in (0, 1), done.stderr + done.stdout
    return done.stdout


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_right_lines_have_no_error_and_every_wrong_one_has(checker, tmp_path):
    shutil.copy(PAGE, tmp_path)
    head, wrong = HEAD.strip().splitlines(), WRONG.strip().splitlines()
    (tmp_path / "wrong.py").write_text("\n".join([*head, *wrong]) + "\n")
    found = checker(tmp_path)
    assert sorted(line for name, line in found if name == PAGE.name) == []
    caught = {line - len(head) - 1 for name, line in found if name == "wrong.py"}
    assert [line for i, line in enumerate(wrong) if i not in caught] == []
    assert [head[i] for i in caught if i < 0] == []


@pytest.mark.draws_freely("as a user does")
def test_the_page_runs(tmp_path):
    typed_page.main(tmp_path)


def test_every_entry_of_a_recipe_can_be_changed():
    entries = {field.name: field.type for field in dataclasses.fields(Recipe)}
    assert dict(Changes.__annotations__) == entries
