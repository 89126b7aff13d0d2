"""Runs of `reproduce`: what is kept, reported and refused; and what stands beside its tables."""

import json

import numpy as np
import pytest
import torch

import probconserv as pc
from probconserv.data import draw
from probconserv.experiments.paper import (
    EXPERIMENTS,
    METHODS,
    Cell,
    remarks,
    reproduce,
    sweep,
    write,
)
from probconserv.experiments.paper import _reproduce as paper_reproduce
from probconserv.experiments.paper._experiments import PROTOCOLS
from probconserv.models._trained import read
from probconserv.models._trained import write as checkpoint
from probconserv.problems import Stefan
from probconserv.support.complete_files import sole_writer

FEW = {"n": 2, "samples": 2}
QUICK = FEW | {"figures": False}


def records_of(cells):
    return [record for cell in cells for record in cell.records]


def test_the_row_of_one_time_is_that_of_the_whole_grid():
    """Constraints are separable over time for diagonal fields, so tables need one row only."""
    t, x = Stefan.grid(times=5, points=21)
    rng = torch.Generator().manual_seed(0)
    mean, variance = torch.rand(2, 4, 5, 21, generator=rng, dtype=torch.float64)
    total = Stefan(0.6).total(t)
    for name, method in METHODS.items():
        whole = method.update(pc.Diagonal(mean, variance), pc.integral(x, total), x)
        law = pc.integral(x, total[3:4])
        row = method.update(pc.Diagonal(mean[:, 3:4], variance[:, 3:4]), law, x)
        torch.testing.assert_close(row.mean, whole.mean[:, 3:4], rtol=1e-10, atol=1e-12, msg=name)
        torch.testing.assert_close(row.variance, whole.variance[:, 3:4], rtol=1e-10, atol=1e-12)


def test_finished_cells_are_reused_until_asked_not_to(tmp_path, monkeypatch):
    begun = []

    def computed(experiment, value, networks, plan):
        begun.append(value)
        return Cell(experiment, value, plan, [{"samples": plan.samples}])

    def again(**options):
        begun.clear()
        return records_of(reproduce(["stefan"], **{"out": tmp_path} | QUICK | options))

    monkeypatch.setattr(paper_reproduce, "tables", computed)
    records = again()
    assert begun == [0.6, 0.5]
    assert again() == records
    assert begun == []
    cell = tmp_path / "cells" / "stefan-0.6-modern-ours.safetensors"
    cell.write_bytes(cell.read_bytes()[:100])  # torn
    assert again() == records
    assert begun == [0.6]
    assert again(samples=6) == [{"samples": 6}] * 2
    assert begun == [0.6, 0.5]
    again()
    curves, notes = read(cell)
    notes["made_by"]["cards"]["anp"]["seed"] = 7  # other weights
    checkpoint(cell, curves, notes)
    assert again() == records
    assert begun == [0.6]
    assert again(fresh=True) == records
    assert begun == [0.6, 0.5]


def test_what_is_begun_is_reported(monkeypatch):
    begun = []
    monkeypatch.setattr(paper_reproduce, "tables", lambda *of: Cell(*of[:2], of[3], []))
    reproduce(["stefan", "burgers", "stefan"], report=begun.append, **QUICK)
    assert begun[0] == "stefan 0.6, 1 of 4"
    assert begun[-1] == "burgers 3, 4 of 4"


def test_tables_alone_do_not_serve_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(paper_reproduce, "tables", lambda *of: Cell(*of[:2], of[3], []))
    monkeypatch.setattr(
        paper_reproduce, "whole", lambda *of: Cell(*of[:2], of[3], [{"figures": True}])
    )
    assert records_of(reproduce(["stefan"], tmp_path, **QUICK)) == []
    assert len(records_of(reproduce(["stefan"], tmp_path, **FEW))) == 2


def test_the_published_protocol_has_dropout_on_and_n_minus_one(tmp_path):
    network = pc.models.load("stefan", recipe="paper")
    context = tuple(draw(Stefan(0.6), "test", 2, (10, 10)).context)
    protocol, x = PROTOCOLS["paper"], Stefan.grid(points=11)[1]
    parts = protocol.predict(network)(context, ([0.05], x), 4, torch.Generator().manual_seed(0))
    plain = network.predict(context, ([0.05], x), 4, torch.Generator().manual_seed(0))
    assert not torch.allclose(parts.mean, plain.mean, atol=1e-3)
    mixed = protocol.mix(parts)
    expected = parts.variance.mean(0).numpy() + parts.mean.numpy().var(0, ddof=1)
    np.testing.assert_allclose(mixed.variance, expected)
    sure = protocol.mix(pc.Diagonal(parts.mean, parts.variance * 0 + 1e-12))
    floored = 1e-8 + parts.mean.numpy().var(0, ddof=1)
    np.testing.assert_allclose(sure.variance, floored, rtol=1e-12)


def test_nothing_is_not_written(tmp_path):
    with pytest.raises(pc.errors.InputError, match="`cells` must hold at least one cell"):
        write([], tmp_path)


def test_the_sweep_of_penalties_stands_beside_its_problem_and_protocol(tmp_path):
    assert {r["penalty"] for r in sweep()} >= {0.0, 0.01, 0.1, 1.0, 10.0}
    assert {r["method"] for r in sweep() if r["penalty"]} == {"SoftC-ANP"}
    assert {r["method"] for r in sweep() if not r["penalty"]} == {"ANP"}
    write(reproduce(["pme"], protocol="paper", recipe="paper", **QUICK), tmp_path)
    beside = json.loads((tmp_path / "results.json").read_text())["sweep"]
    assert beside == [r for r in sweep() if r["protocol"] == "paper"]
    assert {r["parameter"] for r in beside} == {1.0, 3.0, 6.0}


def test_remarks_say_where_the_update_lowers_ll_and_what_is_missing():
    record = {"problem": "diffusion", "parameter": 1.0}
    scores = {"LL_se": 0.2, "MSE": 1.0, "MSE_se": 0.1}
    records = [
        record | scores | {"method": "ANP", "LL": 3.0},
        record | scores | {"method": "ProbConserv-ANP", "LL": 2.9},
    ]
    said = " ".join(remarks(records))
    assert "Diffusion, k = 1: the LL of ProbConserv-ANP, 2.900, is below that of the ANP" in said
    assert "no weights for SoftC-ANP, HardC-ANP" in said
    assert "beside the paper: the published solutions were taken at wrong times" in said


def test_remarks_say_where_the_order_is_not_that_of_the_paper():
    """At Stefan 0.6 the paper has ProbConserv-ANP (1.89e-3) before HardC-ANP and the ANP."""
    record = {"problem": "stefan", "parameter": 0.6, "LL": 3.5, "LL_se": 0.5}
    scores = {"ANP": (1.0, 0.1), "HardC-ANP": (2.5, 0.1), "ProbConserv-ANP": (2.0, 0.2)}
    cell = [
        record | {"method": name, "MSE": mean, "MSE_se": error}
        for name, (mean, error) in scores.items()
    ]
    said = [remark for remark in remarks(cell) if "MSE" in remark]
    assert said == [
        "Stefan, u_star = 0.6, MSE: the paper has HardC-ANP ahead of ANP; here it is behind.",
        "Stefan, u_star = 0.6, MSE: the paper has ProbConserv-ANP ahead of ANP; here it is behind.",
    ]
    cell[0]["MSE_se"] = 2.0  # nothing is certain then
    assert not [remark for remark in remarks(cell) if "MSE" in remark]


def test_the_published_numbers_are_those_of_the_paper():
    assert EXPERIMENTS["stefan"].paper(0.6, "ProbConserv-ANP")["MSE"] == [0.00189, 1e-05]
    assert EXPERIMENTS["pme"].paper(6.0, "ANP")["LL"] == [3.81, 0.01]
    assert EXPERIMENTS["burgers"].paper(1.0, "ANP") == {}
    for name, experiment in EXPERIMENTS.items():
        low, high = experiment.problem.time_range
        assert low < experiment.time < high
        assert all(EXPERIMENTS[name].problem(value) is not None for value in experiment.values)


def test_one_run_at_a_time_writes_into_a_folder(tmp_path):
    with (
        sole_writer(tmp_path),
        pytest.raises(pc.errors.InputError, match="another process is writing into"),
    ):
        reproduce(["stefan"], tmp_path, **QUICK)


def test_what_does_not_exist_is_refused():
    for options, message in (
        ({"problems": ["stefen"]}, r"`problems` must be one of .* Did you mean 'stefan'"),
        ({"protocol": "theirs"}, "`protocol` must be one of ours, paper"),
        ({"recipe": "best"}, "`recipe` must be one of paper, modern"),
        ({"n": 1}, "`n` must be at least 2"),
        ({"samples": 0}, "`samples` must be a positive whole number"),
        ({"device": "gpu"}, "`device` must be one of auto, cpu, cuda"),
    ):
        with pytest.raises(ValueError, match=message):
            reproduce(**options)
