import csv
import json

import numpy as np
import pytest
import torch
from commands import called
from scipy import stats

import probconserv as pc
from probconserv._files import sole_writer
from probconserv.data import draw
from probconserv.models._checkpoints import read
from probconserv.models._checkpoints import write as checkpoint
from probconserv.paper import EXPERIMENTS, METHODS, Cell, remarks, reproduce, sweep, write
from probconserv.paper import _figures as paper_figures
from probconserv.paper import _reproduce as paper_reproduce
from probconserv.paper._methods import PROTOCOLS
from probconserv.problems import Stefan

FEW = {"n": 3, "samples": 10}
QUICK = FEW | {"figures": False}


@pytest.fixture(scope="module")
def stefan(tmp_path_factory):
    """Both Stefan cells with all that figures need, and the folder that keeps them."""
    out = tmp_path_factory.mktemp("out")
    return out, reproduce(["stefan"], out, **FEW)


@pytest.fixture(scope="module")
def printed(stefan):
    """What the command prints that draws and writes these cells."""
    done = called("reproduce", "stefan", "--n", 3, "--samples", 10, "--out", stefan[0])
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def components():
    """Of the first Stefan cell, in NumPy: x, weights of the integral, means and variances."""
    context = tuple(draw(Stefan(0.6), "test", 3, (10, 10)).context)
    generator, x = torch.Generator().manual_seed(0), Stefan.grid()[1]
    parts = pc.load("stefan").predict(context, ([0.05], x), 10, generator)
    g = np.gradient(x.numpy())
    g[[0, -1]] /= 2
    return x.numpy(), g, parts.mean[:, :, 0].numpy(), parts.variance[:, :, 0].numpy()


def records_of(cells):
    return [record for cell in cells for record in cell.records]


def test_every_method_has_a_record_and_the_conserving_ones_conserve(stefan):
    records = records_of(stefan[1])
    assert [(r["parameter"], r["method"]) for r in records] == [
        (value, method) for value in (0.6, 0.5) for method in METHODS
    ]
    for record in records:
        conserves = record["method"].startswith(("HardC", "ProbConserv"))
        assert (abs(record["CE"]) < 1e-12) == conserves
        assert (record["protocol"], record["recipe"], record["n"]) == ("ours", "modern", 3)


def test_a_record_is_what_scipy_says_of_the_prediction(stefan, components):
    """The ANP's numbers, from the components alone."""
    record = stefan[1][0].records[0]
    x, g, mean, variance = components
    std = np.sqrt(variance.mean(0) + mean.var(0))
    ll = stats.norm(mean.mean(0), std).logpdf(Stefan(0.6).solution(0.05, x).numpy()).mean(-1)
    assert record["LL"] == pytest.approx(ll.mean())
    assert record["LL_se"] == pytest.approx(stats.sem(ll))
    ce = mean.mean(0) @ g - float(Stefan(0.6).total(0.05))
    assert record["CE"] == pytest.approx(ce.mean())


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


def test_a_kept_cell_draws_the_same_figures(stefan, tmp_path):
    """In particular the methods stand in the same order."""
    out, cells = stefan
    kept = reproduce(["stefan"], out, report=pytest.fail, **FEW)
    for one, other in zip(cells, kept, strict=True):
        assert (one.records, one.fronts) == (other.records, other.fronts)
        assert list(one.of_methods("mean")) == list(other.of_methods("mean")) == list(METHODS)
        assert one.curves.keys() == other.curves.keys()
        torch.testing.assert_close(one.curves, other.curves, rtol=0, atol=0, equal_nan=True)


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


def test_profiles_are_those_of_the_first_function(stefan, components):
    """By dense formulas, from the components alone."""
    curves = stefan[1][0].curves
    _, g, mean, variance = components
    off = mean @ g - float(Stefan(0.6).total(0.05))
    by_hand = {
        "ANP": (mean, variance),
        "HardC-ANP": (mean - off[..., None] * g / (g @ g), variance),
        "ProbConserv-ANP": updated(mean, variance, g, off, noise=0.0),
    }
    for name, (means, variances) in by_hand.items():
        total = variances.mean(0) + means.var(0)
        np.testing.assert_allclose(curves[f"mean/{name}"], means.mean(0)[0], atol=1e-12)
        if name != "HardC-ANP":  # whose variances are another story
            np.testing.assert_allclose(curves[f"variance/{name}"], total[0], rtol=1e-7)


def test_the_sweep_of_precisions_by_hand(stefan, components):
    curves = stefan[1][0].curves
    x, g, mean, variance = components
    b, u = float(Stefan(0.6).total(0.05)), Stefan(0.6).solution(0.05, x).numpy()
    for i, precision in enumerate(curves["precision"].tolist()):
        means, variances = updated(mean, variance, g, mean @ g - b, noise=precision**-0.5)
        std = np.sqrt(variances.mean(0) + means.var(0))
        scores = {
            "CE": (means.mean(0) @ g - b) ** 2,
            "LL": stats.norm(means.mean(0), std).logpdf(u).mean(-1),
            "MSE": ((means.mean(0) - u) ** 2).mean(-1),
        }
        for name, each in scores.items():
            value, error = curves[f"precision/{name}"][:, i].tolist()
            assert value == pytest.approx(each.mean(), rel=1e-6, abs=1e-20)
            assert error == pytest.approx(stats.sem(each), rel=1e-6, abs=1e-20)


def updated(mean, variance, g, off, noise):
    """Step 2 for independent points and one integral."""
    moved = variance * g
    gain = moved / ((moved * g).sum(-1) + noise**2)[..., None]
    return mean - off[..., None] * gain, variance - gain * moved


def test_mse_over_time_is_that_of_three_functions_and_two_samples(stefan):
    curves, (t, x) = stefan[1][0].curves, Stefan.grid(times=41)
    test, u = draw(Stefan(0.6), "test", 3, (10, 10)), Stefan(0.6).on_grid(t, x)
    errors = []
    for i in range(3):
        context = tuple(values[i : i + 1] for values in test.context)
        generator = torch.Generator().manual_seed(0)
        mean = pc.load("stefan").predict(context, (t, x), 2, generator).mean.mean(0)[0]
        errors.append(((mean - u) ** 2).mean(-1))
        if i == 0:
            torch.testing.assert_close(curves["mean over time/ANP"], mean)
    torch.testing.assert_close(curves["MSE over time/ANP"], torch.stack(errors).mean(0))


def test_fronts_are_pooled_over_functions(stefan, components):
    """Of the ANP exactly: the chance of each point to be the first at or below 0."""
    curves = stefan[1][0].curves
    x, _, mean, variance = components
    below = stats.norm(mean, np.sqrt(variance)).cdf(0)
    above_before = np.concatenate([np.ones_like(below[..., :1]), 1 - below[..., :-1]], -1)
    first = below * above_before.cumprod(-1)
    positions, chances = (curves[f"point/{part}/ANP"] for part in ("positions", "probabilities"))
    assert float(chances.sum()) == pytest.approx(1)
    for i in (40, 46, 50):
        found = float(chances[(positions - x[i]).abs() < 1e-9].sum())
        assert found == pytest.approx(first.mean((0, 1))[i], rel=1e-6)


def test_a_run_gives_the_same_numbers_again(stefan):
    again = reproduce(["stefan"], **QUICK)
    assert records_of(again) == records_of(stefan[1])


def test_figures_show_the_curves_of_their_cell(stefan):
    cell = stefan[1][0]
    shown = {kind: (caption, figure) for kind, caption, figure in paper_figures._figures(cell)}
    for i, name in enumerate(METHODS):
        mean = cell.curves[f"mean/{name}"]
        np.testing.assert_allclose(shown["profiles"][1].axes[i].lines[1].get_ydata(), mean)
        error = mean - cell.curves["truth"]
        np.testing.assert_allclose(shown["errors"][1].axes[i].lines[1].get_ydata(), error)
        mse = shown["mse"][1].axes[0].lines[i].get_ydata()
        np.testing.assert_allclose(mse, cell.curves[f"MSE over time/{name}"])
        for rule in ("point", "crossing"):
            bars = shown[f"front-{rule}"][1].axes[i].patches[0].get_data()
            assert 0.8 < bars.values.sum() < 1.0 + 1e-9
    assert "over 3 test functions, from 2 latent samples" in shown["mse"][0]
    for axes, name in zip(shown["precision"][1].axes, ("CE", "LL", "MSE"), strict=True):
        expected = cell.curves[f"precision/{name}"][0, :-1]
        np.testing.assert_allclose(axes.lines[0].get_ydata(), expected)
        assert axes.get_ylabel().startswith(name)


def test_over_time_the_conserving_methods_conserve(stefan):
    _, (cell, _) = stefan
    law = pc.integral(cell.curves["x"], cell.curves["total"])
    torch.testing.assert_close(cell.curves["total"], Stefan(0.6).total(cell.curves["t"]))
    for name, mean in cell.of_methods("mean over time").items():
        assert (law.residual(mean).abs().max() < 1e-12) == name.startswith(("Hard", "Prob"))
    for name, mse in cell.of_methods("MSE over time").items():
        assert mse.shape == (41,), name
        assert (mse > 0).all()


def test_fronts_have_a_record_for_each_method_and_rule(stefan):
    _, (cell, _) = stefan
    assert [(r["method"], r["rule"]) for r in cell.fronts] == [
        (method, rule) for method in METHODS for rule in ("point", "crossing")
    ]
    for record in cell.fronts:
        assert record["true"] == pytest.approx(0.2351, abs=1e-4)
        assert abs(record["mean"] - record["true"]) < 0.05
        assert 0 < record["std"] < 0.05
        assert 0 <= record["none"] < 0.5
        assert record["level"] == pytest.approx(0.0 if record["rule"] == "point" else 0.3)


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
    sure = protocol.mix(pc.Diagonal(parts.mean, parts.variance * 0 + 1e-12))
    floored = 1e-8 + parts.mean.numpy().var(0, ddof=1)
    np.testing.assert_allclose(sure.variance, floored, rtol=1e-12)


def test_a_table_in_80_columns(printed):
    rows = [line for line in printed.splitlines() if line.startswith("ProbConserv-ANP  ")]
    assert len(rows) == 2
    assert {"3.56", "1.89e-03"} < set(rows[0].split())
    assert "…" not in printed


def test_files_hold_the_records(stefan, printed):
    out, cells = stefan
    records = records_of(cells)
    content = json.loads((out / "results.json").read_text())
    fronts = [record for cell in cells for record in cell.fronts]
    assert content == {"schema": 1, "records": records, "fronts": fronts, "sweep": []}
    rows = list(csv.DictReader((out / "results.csv").read_text().splitlines()))
    assert [float(row["MSE"]) for row in rows] == [record["MSE"] for record in records]
    latex = (out / "results.tex").read_text().splitlines()
    assert sum(line.endswith(r" \\") for line in latex) == len(records)
    assert latex[2].startswith("ANP & $-5.7")
    assert r"& $3.530 \, (0.000)$ &" in latex[2]
    assert latex[2].endswith(r"& $5.380 \, (0.010) \times 10^{-3}$ \\")
    assert latex[5].startswith(r"ProbConserv-ANP & $\mathbf{0}$ & $0$ &")
    names = {path.name for path in (out / "figures").iterdir()}
    kinds = ("profiles", "errors", "mass", "mse", "precision", "front-point", "front-crossing")
    assert names == {
        f"stefan-{value}-modern-ours-{kind}.{ending}"
        for value in ("0.6", "0.5")
        for kind in kinds
        for ending in ("png", "svg")
    } | {f"overview-modern-ours.{ending}" for ending in ("png", "svg")}
    svg = (out / "figures" / "stefan-0.5-modern-ours-mass.svg").read_text()
    assert (
        "Stefan, u* = 0.5; protocol ours, weights modern" in svg
    )  # as a comment beside the shapes
    page = (out / "report.html").read_text()
    assert page.count("<figure") == len(names) / 2


def test_tables_alone_are_written_without_figures(stefan, tmp_path):
    cells = reproduce(["stefan"], stefan[0], report=pytest.fail, **QUICK)  # kept with curves
    written = write(cells, tmp_path)
    assert [path.name for path in written] == ["results.json", "results.csv", "results.tex"]
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in written}


def test_nothing_is_not_written(tmp_path):
    with pytest.raises(pc.InputError, match="`cells` must hold at least one cell"):
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
        pytest.raises(pc.InputError, match="another process is writing into"),
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
