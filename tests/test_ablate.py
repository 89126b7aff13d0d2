import csv
import json

import pytest
import torch
from commands import called
from seeds import generator

import probconserv as pc
from probconserv.data import draw
from probconserv.experiments.paper import EXPERIMENTS, UPDATES, ablate, write_ablation
from probconserv.experiments.paper import _ablate as ablation
from probconserv.models import load
from probconserv.problems import Stefan

pytestmark = pytest.mark.filterwarnings(  # `ablate` expects it too
    "ignore::probconserv.ImplausibleWarning"
)
FEW = {"n": 3, "samples": 6, "times": 4, "device": "cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def records(folder):
    return ablate(["stefan"], folder, ["modern"], **FEW)


def components():
    x = torch.linspace(0, 1, 9, dtype=torch.float64)
    mean = torch.rand(5, 2, 3, 9, generator=torch.Generator().manual_seed(0)).double()
    return x, pc.Diagonal(mean, 0.02), pc.integral(x, torch.full((2, 3), 0.4).double())


@pytest.mark.parametrize("name", [name for name in UPDATES if name != "none"])
def test_every_update_conserves_where_the_law_is_exact(name):
    x, parts, law = components()
    field = UPDATES[name](parts, law, x)
    assert field.shape == (2, 3, 9)
    assert law.residual(field.mean).abs().max() < 1e-12


def test_joint_updates_carry_what_is_known_at_one_time_to_others():
    """The law holds at the first time alone; the others move only where times are joint."""
    x, parts, _ = components()
    law = pc.integral(x, torch.full((2, 1), 0.7).double(), times=[0])
    for name, moves in (
        ("ProbConserv", False),
        ("mixture, per time", False),
        ("low rank, per time", False),
        ("mixture, joint", True),
        ("low rank, joint", True),
    ):
        after = UPDATES[name](parts, law, x).mean[:, 1:]
        moved = (after - parts.mean.mean(0)[:, 1:]).abs().max()
        assert (moved > 1e-3) == moves


def test_there_is_a_record_for_every_update_and_noise(records):
    made = {(r["parameter"], r["update"], r["noise"]) for r in records}
    both = [name for name in UPDATES if name not in ("none", "HardC")]
    assert len(made) == len(records) == 2 * (2 * len(both) + 2)
    for record in records:
        exact = record["noise"] == "exact" and record["update"] != "none"
        assert (abs(record["CE"]) < 1e-12) == exact
        assert record["front_error"] >= 0


def test_a_record_is_the_score_at_the_evaluation_time(records):
    """The paper's update, by hand and at that time alone: diagonal components are separable."""
    test = draw(Stefan(0.6), "test", 3, (10, 10))
    x = Stefan.grid()[1]
    parts = load("stefan").predict(
        tuple(test.context), ([0.05], x), 6, torch.Generator().manual_seed(0)
    )
    law = pc.integral(x, Stefan(0.6).total([0.05]))
    field = pc.Mixture(pc.condition(parts, law))
    truth = Stefan(0.6).on_grid([0.05], x)
    scores = pc.evaluate(field, truth, law, generator=generator()).mean()
    record = next(r for r in records if r["update"] == "ProbConserv" and r["parameter"] == 0.6)
    for name in ("LL", "MSE", "CRPS", "coverage_90"):
        assert record[name] == pytest.approx(float(getattr(scores, name)), rel=1e-6)
    noisy = pc.integral(x, law.value, noise=pc.diagnostics.quadrature_noise(pc.Mixture(parts), x))
    scores = pc.evaluate(
        pc.Mixture(pc.condition(parts, noisy)), truth, law, generator=generator()
    ).mean()
    record = records[records.index(record) + 1]
    assert record["noise"] == "quadrature"
    assert record["MSE"] == pytest.approx(float(scores.MSE), rel=1e-6)
    assert record["CE"] == pytest.approx(float(scores.CE), rel=1e-6)


def test_chunks_of_functions_do_not_change_the_scores(records, monkeypatch):
    monkeypatch.setattr(ablation, "NUMBERS", 2 * 6 * 5 * 201)  # of two functions
    trial = ablation.Trial(n=3, samples=6, times=4)
    again = ablation.records(EXPERIMENTS["stefan"], 0.5, "modern", trial, torch.device("cpu"))
    whole = [record for record in records if record["parameter"] == 0.5]
    for one, other in zip(whole, again, strict=True):
        assert one["LL"] == pytest.approx(other["LL"], rel=0.05)  # each chunk draws anew
        assert one["n"] == other["n"]


def test_finished_cells_are_reused_by_the_same_trial_only(tmp_path, monkeypatch):
    calls = []

    def computed(experiment, value, network, trial, device):
        calls.append((experiment.name, value, network))
        return [{"update": "none"}]

    monkeypatch.setattr(ablation, "records", computed)
    options = {**FEW, "networks": ["modern", "paper"]}
    ablate(["burgers"], tmp_path, **options)
    assert len(calls) == 4
    ablate(["burgers"], tmp_path, **options)
    assert len(calls) == 4
    cells = tmp_path / "cells"
    for torn in (
        b"{",
        b"[]",
        b"\xff\xfe",
        (cells / "burgers-3-modern-test.safetensors").read_bytes(),
    ):
        (cells / "burgers-1-modern-test.safetensors").write_bytes(torn)
        ablate(["burgers"], tmp_path, **options)
    assert calls[4:] == 4 * [("burgers", 1.0, "modern")]
    del calls[5:]
    ablate(["burgers"], tmp_path, **{**options, "samples": 7})
    assert len(calls) == 9
    ablate(["burgers"], tmp_path, split="validation", **options)
    assert calls[9:] == [("burgers", None, "modern"), ("burgers", None, "paper")]


def test_records_are_written_as_json_and_csv(records, tmp_path):
    paths = write_ablation(records, tmp_path)
    assert [path.name for path in paths] == ["ablation.json", "ablation.csv"]
    assert json.loads(paths[0].read_text())["records"] == records
    with paths[1].open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["LL"]) for row in rows] == [record["LL"] for record in records]


def test_the_command_prints_what_is_kept_in_80_columns(records, folder):
    few = ("--n", 3, "--samples", 6, "--times", 4, "--device", "cpu")
    done = called("ablate", "stefan", "--networks", "modern", *few, "--out", folder)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].strip() == "stefan, 0.6, t = 0.05; network modern"
    assert max(len(line) for line in lines if str(folder) not in line) <= 80
    assert sum(line.startswith("ProbConserv (w/diff), with noise  ") for line in lines) == 2
    assert "…" not in done.stdout
    assert lines[-1] == str(folder / "ablation.csv")


def test_bad_input_is_refused(tmp_path):
    for options, message in (
        ({"problems": ["stephan"]}, "`problems` must be one of .*Did you mean 'stefan'"),
        ({"networks": ["best"]}, "`networks` must be one of paper, modern, emulator"),
        ({"split": "train"}, "`split` must be one of test, validation"),
        ({"n": 1}, "`n` must be at least 2, got 1"),
        ({"times": 1}, "`times` must be at least 2, got 1"),
    ):
        with pytest.raises(ValueError, match=message):
            ablate(**options)
    with pytest.raises(ValueError, match="`found` must hold at least one record"):
        write_ablation([], tmp_path)
