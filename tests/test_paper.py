"""The cells of the tables, computed: their records, curves, figures and files."""

import csv
import json
from itertools import islice

import numpy as np
import pytest
import torch
from commands import called
from scipy import stats

import probconserv as pc
from probconserv.data import draw
from probconserv.experiments.paper import METHODS, reproduce, write
from probconserv.experiments.paper import _figures as paper_figures
from probconserv.problems import Stefan

FEW = {"n": 3, "samples": 10}
QUICK = FEW | {"figures": False}
KINDS = {0.6: None, 0.5: 1}  # how many figures of each cell are drawn: they take a second each


@pytest.fixture(scope="module")
def stefan(tmp_path_factory):
    """Both Stefan cells with all that figures need, and the folder that keeps them."""
    out = tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("probconserv.experiments.paper._reproduce.DRAWS", 40)
        return out, reproduce(["stefan"], out, **FEW)


@pytest.fixture(scope="module")
def printed(stefan):
    """What the command prints that draws and writes these cells, with one figure of the second."""
    drawn = paper_figures._figures
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            paper_figures, "_figures", lambda cell: islice(drawn(cell), KINDS[cell.value])
        )
        empty = "<svg></svg>"  # the panels of a page are those of test_report.py
        patch.setattr(paper_figures, "panels", lambda figure, *_: [empty] * len(figure.axes))
        done = called("reproduce", "stefan", "--n", 3, "--samples", 10, "--out", stefan[0])
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def components():
    """Of the first Stefan cell, in NumPy: x, weights of the integral, means and variances."""
    context = tuple(draw(Stefan(0.6), "test", 3, (10, 10)).context)
    generator, x = torch.Generator().manual_seed(0), Stefan.grid()[1]
    parts = pc.models.load("stefan").predict(context, ([0.05], x), 10, generator)
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


def test_a_kept_cell_draws_the_same_figures(stefan, tmp_path):
    """In particular the methods stand in the same order."""
    out, cells = stefan
    kept = reproduce(["stefan"], out, report=pytest.fail, **FEW)
    for one, other in zip(cells, kept, strict=True):
        assert (one.records, one.fronts) == (other.records, other.fronts)
        assert list(one.of_methods("mean")) == list(other.of_methods("mean")) == list(METHODS)
        assert one.curves.keys() == other.curves.keys()
        torch.testing.assert_close(one.curves, other.curves, rtol=0, atol=0, equal_nan=True)


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
        mean = pc.models.load("stefan").predict(context, (t, x), 2, generator).mean.mean(0)[0]
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
    names = {path.name for path in (out / "figures").iterdir()}
    kinds = ("profiles", "errors", "mass", "mse", "precision", "front-point", "front-crossing")
    drawn = [f"stefan-0.6-modern-ours-{kind}" for kind in kinds]
    drawn += ["stefan-0.5-modern-ours-profiles", "overview-modern-ours"]
    assert names == {f"{name}.{ending}" for name in drawn for ending in ("png", "svg")}
    svg = (out / "figures" / "stefan-0.5-modern-ours-profiles.svg").read_text()
    assert "Stefan, u* = 0.5; protocol ours, weights modern" in svg  # beside the shapes
    page = (out / "report.html").read_text()
    assert page.count("<figure") == len(names) / 2


def test_tables_alone_are_written_without_figures(stefan, tmp_path):
    cells = reproduce(["stefan"], stefan[0], report=pytest.fail, **QUICK)  # kept with curves
    written = write(cells, tmp_path)
    assert [path.name for path in written] == ["results.json", "results.csv"]
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in written}
