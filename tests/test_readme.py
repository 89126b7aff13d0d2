"""Every Python block of a page runs, in order, in one namespace."""

import re
from pathlib import Path

import pytest
import torch

README = Path(__file__).parents[1] / "README.md"
MODELS = README.parent / "docs" / "models.md"
METHOD = README.parent / "docs" / "method.md"
FILES = README.parent / "docs" / "files.md"
CELLS = README.parent / "docs" / "cells.md"
NONLINEAR = README.parent / "docs" / "nonlinear.md"
SOLVER = README.parent / "docs" / "finite_volumes.md"


def run(page):
    """How many blocks there are, and the names that they leave."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    names: dict = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)
    return len(blocks), names


def test_the_code_in_the_readme_runs_and_conserves(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    count, names = run(README)
    law, post = names["law"], names["post"]
    assert count == 6
    assert 0 < float(names["noise"]) < 2e-3  # a jump of 0.6 in a cell of 0.005
    assert names["near"].shape == (1, 201)
    assert names["melt"].residual(names["fields"]["conserving"]).abs().max() < 1e-12
    assert (tmp_path / "profiles.svg").stat().st_size > 1000
    assert names["melt"].residual(names["field"]).abs().max() < 1e-12
    assert law.residual(names["mean"]).abs().max() > 1e-3
    for field in (post, names["hard"], names["joint"], names["paper"], names["exact"]):
        assert law.residual(field).abs().max() < 1e-12
    assert names["draws"].shape == (500, 10, 101)
    assert names["its_law"].residual(names["run"].u).abs().max() < 1e-12
    assert float(names["front"]) == pytest.approx(0.2351, abs=5e-5)
    printed = capsys.readouterr().out
    assert "dtype=torch.float64" in printed
    assert "b agrees with the prior" in printed
    assert "| conserving | **" in printed


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")  # toy networks are far off
def test_every_model_of_the_page_on_models_conserves():
    count, names = run(MODELS)
    fields = {name: field for name, field in names.items() if name.endswith("_field")}
    assert (count, len(fields)) == (8, 7)
    for field in fields.values():
        assert field.shape == (3, 201)
        assert names["law"].residual(field).abs().max() < 1e-12
    assert torch.equal(names["stacked"].factor, names["prior"].factor)


def test_the_page_on_the_method_says_what_comes_out(capsys):
    count, names = run(METHOD)
    assert count == 2
    assert names["learned"].shape == names["law"].noise.shape == (11,)
    off = names["law"].residual(names["post"].mean).abs()
    assert (off < names["law"].noise)[1:].all()  # at the first time the network is sure and wrong
    (cause,) = names["found"].causes
    assert (cause.kind, cause.amount) == ("factor", pytest.approx(2.54, abs=0.15))
    assert "times what the prior says, check its units.\n| row | G mu" in capsys.readouterr().out


def test_the_page_on_files_closes_its_budget(capsys):
    count, names = run(FILES)
    assert count == 1
    assert names["report"].closes()
    assert not names["check"](names["forecast"], names["law"]).closes()
    assert "now: closes; off by at most" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")  # random numbers are far off
def test_the_page_on_cells_balances_each_of_them():
    count, names = run(CELLS)
    assert count == 1
    assert names["law"].residual(names["post"]).abs().max() < 1e-12
    assert torch.equal(names["post"]["u"].mean[0], names["now"][0])


def test_links_lead_somewhere():
    for page in (README, *README.parent.glob("docs/*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_page_on_a_solver_moves_its_pulse():
    count, names = run(SOLVER)
    assert count == 1
    at = names["middle"][names["post"].mean[-1].argmax()]
    assert float(at) == pytest.approx(0.3 + 0.4, abs=0.005)


def test_the_page_on_laws_that_are_not_linear_keeps_them():
    count, names = run(NONLINEAR)
    assert count == 1
    assert names["energy"].residual(names["post"].point).abs().max() < 1e-12
    assert names["mass"].residual(names["post"]["h"]).abs().max() < 1e-12
    assert names["draws"].draws.min() >= 0
    assert names["total"].residual(names["draws"].mean).abs().max() < 1e-12
