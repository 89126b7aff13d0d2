import csv
import json

import numpy as np
import pytest
import torch
from scipy import stats

import probconserv as pc
from probconserv.data import draw
from probconserv.paper import EXPERIMENTS, METHODS, bold, remarks, reproduce, write
from probconserv.paper._methods import PROTOCOLS
from probconserv.problems import Stefan

FEW = {"n": 3, "samples": 5}


@pytest.fixture(scope="module")
def stefan(tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    return out, reproduce(["stefan"], out, **FEW)


def test_every_method_has_a_record_and_the_conserving_ones_conserve(stefan):
    _, records = stefan
    assert [(r["parameter"], r["method"]) for r in records] == [
        (value, method) for value in (0.6, 0.5) for method in METHODS
    ]
    for record in records:
        conserves = record["method"].startswith(("HardC", "ProbConserv"))
        assert (abs(record["CE"]) < 1e-12) == conserves
        assert (record["protocol"], record["recipe"], record["n"]) == ("ours", "modern", 3)


def test_a_record_is_what_scipy_says_of_the_prediction(stefan):
    """The ANP's numbers, from the components alone."""
    _, records = stefan
    x = Stefan.grid()[1]
    context = tuple(draw(Stefan(0.6), "test", 3, (10, 10)).context)
    generator = torch.Generator().manual_seed(0)
    parts = pc.load("stefan").predict(context, ([0.05], x), 5, generator)
    mean = parts.mean.numpy().mean(0)
    variance = parts.variance.numpy().mean(0) + parts.mean.numpy().var(0)
    u = Stefan(0.6).solution(0.05, x).numpy()
    ll = stats.norm(mean, np.sqrt(variance)).logpdf(u).mean((1, 2))
    assert records[0]["LL"] == pytest.approx(ll.mean())
    assert records[0]["LL_se"] == pytest.approx(stats.sem(ll))
    ce = np.trapezoid(mean[:, 0], x.numpy()) - float(Stefan(0.6).total(0.05))
    assert records[0]["CE"] == pytest.approx(ce.mean())


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


def test_finished_cells_are_reused_until_asked_not_to(stefan, monkeypatch):
    out, records = stefan
    begun = []
    assert reproduce(["stefan"], out, report=begun.append, **FEW) == records
    assert begun == []
    (cell,) = out.glob("cells/stefan-0.6-*.json")
    cell.write_text(cell.read_text()[:100])  # torn
    assert reproduce(["stefan"], out, report=begun.append, **FEW) == records
    assert begun == ["stefan-0.6-modern-ours-3-5"]
    content = json.loads(cell.read_text())
    content["cards"]["anp"]["seed"] = 7  # made by other weights
    cell.write_text(json.dumps(content))
    assert reproduce(["stefan"], out, report=begun.append, **FEW) == records
    assert len(begun) == 2
    assert reproduce(["stefan"], out, fresh=True, report=begun.append, **FEW) == records
    assert len(begun) == 4


def test_the_published_protocol_has_dropout_on_and_n_minus_one(tmp_path):
    network = pc.load("stefan", recipe="paper")
    context = tuple(draw(Stefan(0.6), "test", 2, (10, 10)).context)
    protocol, x = PROTOCOLS["paper"], Stefan.grid(points=11)[1]
    parts = protocol.predict(network)(context, ([0.05], x), 4, torch.Generator().manual_seed(0))
    plain = network.predict(context, ([0.05], x), 4, torch.Generator().manual_seed(0))
    assert not torch.allclose(parts.mean, plain.mean, atol=1e-3)
    mixed = protocol.mix(parts)
    expected = parts.variance.mean(0).numpy() + parts.mean.numpy().var(0, ddof=1)
    np.testing.assert_allclose(mixed.variance, expected)


def test_files_hold_the_records(stefan, tmp_path):
    _, records = stefan
    write(records, tmp_path)
    content = json.loads((tmp_path / "results.json").read_text())
    assert content == {"schema": 1, "records": records}
    rows = list(csv.DictReader((tmp_path / "results.csv").read_text().splitlines()))
    assert [float(row["MSE"]) for row in rows] == [record["MSE"] for record in records]
    latex = (tmp_path / "results.tex").read_text().splitlines()
    assert sum(line.endswith(r" \\") for line in latex) == len(records)
    assert "$3.53$ & $0.00538$" in latex[2]


def test_bold_is_within_a_standard_error_of_the_best():
    cell = [
        {"CE": 1e-3, "LL": 3.0, "LL_se": 0.3, "MSE": 2.0, "MSE_se": 1.0},
        {"CE": 1e-17, "LL": 3.2, "LL_se": 0.1, "MSE": 1.0, "MSE_se": 0.5},
        {"CE": -1e-9, "LL": 3.15, "LL_se": 9.0, "MSE": 1.4, "MSE_se": 0.1},
    ]
    assert [bold(r, cell, "CE") for r in cell] == [False, True, False]
    assert [bold(r, cell, "LL") for r in cell] == [False, True, True]
    assert [bold(r, cell, "MSE") for r in cell] == [False, True, True]


def test_remarks_say_where_the_update_lowers_ll_and_what_is_missing():
    record = {"problem": "diffusion", "parameter": 1.0}
    records = [
        record | {"method": "ANP", "LL": 3.0},
        record | {"method": "ProbConserv-ANP", "LL": 2.9},
    ]
    said = " ".join(remarks(records))
    assert "diffusion 1: the LL of ProbConserv-ANP, 2.900, is below that of the ANP, 3.000" in said
    assert "no weights for SoftC-ANP, HardC-ANP" in said
    assert "beside the paper: the published solutions were taken at wrong times" in said


def test_the_published_numbers_are_those_of_the_paper():
    assert EXPERIMENTS["stefan"].paper(0.6, "ProbConserv-ANP")["MSE"] == [0.00189, 1e-05]
    assert EXPERIMENTS["pme"].paper(6.0, "ANP")["LL"] == [3.81, 0.01]
    assert EXPERIMENTS["burgers"].paper(1.0, "ANP") == {}
    for name, experiment in EXPERIMENTS.items():
        low, high = experiment.problem.time_range
        assert low < experiment.time < high
        assert all(EXPERIMENTS[name].problem(value) is not None for value in experiment.values)


def test_what_does_not_exist_is_refused():
    for options, message in (
        ({"problems": ["stefen"]}, r"`problems` must be one of .* Did you mean 'stefan'"),
        ({"protocol": "theirs"}, "`protocol` must be one of ours, paper"),
        ({"recipe": "best"}, "`recipe` must be one of paper, modern"),
        ({"n": 1}, "`n` must be at least 2"),
        ({"samples": 0}, "`samples` must be a positive whole number"),
    ):
        with pytest.raises(ValueError, match=message):
            reproduce(**options)
