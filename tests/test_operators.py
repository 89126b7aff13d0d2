"""The benchmark of neural operators: its cases, its methods, its files."""

import csv
import json
from itertools import pairwise

import pytest
import torch
from commands import called

import probconserv as pc
from probconserv.experiments.operators import (
    CASES,
    METHODS,
    benchmark,
    load_ensemble,
    summaries,
    train_ensembles,
    write,
)
from probconserv.models import FNO


@pytest.fixture(scope="module")
def cells():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("probconserv.experiments.operators._benchmark.HELD_OUT", 20)
        return benchmark(["stefan"], n=4, where=["in", "far"])


def test_ranges_of_a_case_share_no_parameter():
    for case in CASES.values():
        ranges = sorted(case.ranges.values())
        assert all(a[1] <= b[0] for a, b in pairwise(ranges))
        for where, (low, high) in case.ranges.items():
            problem, grids = case.functions(where, "test", 5)
            parameter = getattr(problem, case.problem.parameter)
            assert ((low <= parameter) & (parameter <= high)).all()
            assert grids.targets.shape == (5, 20, 100)


def test_splits_share_no_function():
    sets = [CASES["pme"].functions("in", split, 50)[1].inputs for split in ("train", "validation")]
    assert not torch.isin(sets[0], sets[1]).any()


def test_totals_are_right_after_the_front_has_left():
    """Stefan's front leaves the domain before t = 1 where u* is low; the integral ends at x = 1."""
    _, grids = CASES["stefan"].functions("far", "test", 5)
    fine = CASES["stefan"].functions("far", "test", 5)[0]
    x = torch.linspace(0, 1, 20_001, dtype=torch.float64)
    u = fine.on_grid(grids.axes[0][1:], x)
    torch.testing.assert_close(
        grids.totals[:, 1:], torch.trapezoid(u, x, dim=-1), atol=5e-5, rtol=0
    )


def test_outside_the_law_and_the_shape_help(cells):
    far = {record["method"]: record for record in cells[1].records}
    assert far["law and shape"]["MSE"] < far["no law"]["MSE"] < far["paper's update"]["MSE"]
    assert far["law and shape"]["CRPS"] < far["no law"]["published_CRPS"] / 2


def test_intervals_of_90_percent_hold_about_as_much_inside_and_far_outside(cells):
    for cell in cells:
        found = {record["method"]: record["coverage_90"] for record in cell.records}
        assert 0.8 < found["law and shape"] < 0.97


def test_b_contradicts_a_single_network_outside_and_not_inside(cells):
    assert [cell.records[0]["alarms_of_one"] for cell in cells] == [0, 1]


def test_exact_methods_conserve(cells):
    for cell in cells:
        errors = {record["method"]: record["CE"] for record in cell.records}
        assert errors["paper's update"] < 1e-14
        assert errors["no law"] > 1e-6


def test_a_run_leaves_results_pictures_and_a_page(cells, tmp_path):
    written = write(cells, tmp_path)
    assert {path.name for path in written} == {path.name for path in tmp_path.iterdir()}
    records = json.loads((tmp_path / "results.json").read_text())["records"]
    assert len(records) == 2 * len(METHODS)
    rows = list(csv.DictReader((tmp_path / "results.csv").read_text().splitlines()))
    assert float(rows[0]["CRPS"]) == pytest.approx(records[0]["CRPS"], rel=1e-4)
    page = (tmp_path / "report.html").read_text()
    assert "Stefan, far: 0.5..0.55" in page
    assert f"{1e3 * records[0]['CRPS']:.3g}" in page


def test_several_seeds_are_averaged():
    record = dict.fromkeys(("low", "high", "functions", "alarms", "alarms_of_one"), 1.0)
    scores = dict.fromkeys(("MSE", "energy", "NLL", "coverage_90", "n_MeRCI", "CE"), 0.0)
    same = record | scores | {"case": "pme", "where": "in", "method": "law", "published_CRPS": 3.0}
    (row,) = summaries([same | {"CRPS": 1.0}, same | {"CRPS": 3.0}])
    assert (row["CRPS"], row["CRPS_se"], row["seeds"]) == (2.0, 1.0, 2)


def test_ensembles_are_trained_again(tmp_path, monkeypatch):
    monkeypatch.setattr("probconserv.experiments.operators._cases.HELD_OUT", 3)
    paths = train_ensembles("heat", tmp_path, seeds=2, device="cpu", steps=2)
    assert [path.name for path in paths] == ["heat-0.safetensors", "heat-1.safetensors"]
    first, second = (load_ensemble("heat", seed, tmp_path) for seed in range(2))
    assert isinstance(first, FNO)
    assert first.sizes == second.sizes == load_ensemble("heat").sizes
    assert not torch.equal(first.lift.weight, second.lift.weight)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in paths}


def test_the_command_prints_a_table_and_writes_files(tmp_path, monkeypatch):
    monkeypatch.setattr("probconserv.experiments.operators._benchmark.HELD_OUT", 20)
    ran = called("operators", "heat", "--n", "2", "--no-figures", "--out", str(tmp_path))
    assert ran.returncode == 0
    assert "heat 5..6" in ran.stdout
    assert (tmp_path / "results.csv").exists()
    refused = called("operators", "heet", "--out", str(tmp_path))
    assert "Did you mean 'heat'" in refused.stderr
    assert "--networks" in called("operators", "heat", "--train").stderr
    (tmp_path / "file").touch()
    monkeypatch.setattr("probconserv.experiments.operators.benchmark", None)  # known before
    assert "File exists" in called("operators", "heat", "--out", tmp_path / "file").stderr


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(pc.errors.InputError, match="`seed` 1: there is no heat-1"):
        load_ensemble("heat", 1)
    with pytest.raises(pc.errors.InputError, match="`where` must be one of"):
        benchmark(["heat"], where=["farther"])
    with pytest.raises(pc.errors.InputError, match="`cells` must hold at least one cell"):
        write([], tmp_path)
