"""What a report says of a budget is true, in the words of the field that it is about."""

from itertools import pairwise

import numpy as np
import pytest
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from test_labelled import SPACE, made

from probconserv import ImplausibleWarning
from probconserv.figures import budget
from probconserv.files import FileLaw, check, enforce, totals

PLAUSIBLE = "the totals are plausible for a field with these standard deviations"


def grid(mean, times=3, points=400):
    time = np.datetime64("2001-01-01", "ns") + np.arange(times) * np.timedelta64(1, "D")
    heat = (("time", "x"), np.full((times, points), mean))
    return xr.Dataset({"heat": heat, "ice": heat}, {"time": time, "x": np.arange(points)})


def said(total, mean=5.0, variables="heat", **how):
    law = FileLaw(variables, "x", total=total, measure=1.0)
    return str(check(grid(mean), law, **how))


def test_the_imbalance_is_a_part_of_the_sum_of_the_field():
    assert "off by at most 2.0e-02 of the sum of |heat|" in said(400 * 4.9)
    assert "40 in total, 0.1 on average" in said(400 * 4.9)


def test_the_imbalance_of_a_field_of_zeros_is_a_part_of_its_total():
    assert "off by at most 1.0e+00" in said(7.0, mean=0.0)


def test_variables_in_different_units_have_no_average():
    text = said(400 * 5.0, variables={"heat": 2.0, "ice": -0.5})
    assert "of the sum of |heat| + |ice| (time 2001-01-01), 1e+03 in total\n" in text


@pytest.mark.parametrize(
    ("off", "ending"), [(0.1, ""), (0.6, " only if points share their errors")]
)
def test_the_verdict_says_when_only_correlated_errors_can_explain_the_totals(off, ending):
    line = said(400 * (5.0 + off), std=1.0).splitlines()[-1]  # 2 and 12 of 1 / sqrt(400)
    assert line.startswith(f"  {PLAUSIBLE}{ending}")
    numbers = "12.0 standard deviations if points are independent, by up to 0.6 if all points err"
    assert line.endswith(f"{numbers} together" if ending else "deviations")


def test_the_verdict_on_an_ensemble_compares_with_the_totals_of_its_members():
    rng = np.random.default_rng(3)
    field = 5.0 + xr.DataArray(rng.normal(size=(9, 3, 400)), dims=("member", "time", "x"))
    law = FileLaw("heat", "x", total=400 * 5.6, measure=1.0)
    text = str(check(field.to_dataset(name="heat"), law, member="member"))
    assert f"{PLAUSIBLE} only if points share their errors: 3 of 3" in text
    assert "standard deviations if the 9 members tell all" in text


@pytest.mark.parametrize(
    ("off", "answer"), [(0.1, "agrees"), (0.6, "agrees if shared"), (6.0, "does not agree")]
)
def test_a_report_has_the_answer_that_diagnose_would_give(off, answer):
    law = FileLaw("heat", "x", total=400 * (5.0 + off), measure=1.0)
    assert check(grid(5.0), law, std=1.0).summary()["laws"][0]["answer"] == answer
    assert check(grid(5.0), law).budgets[0].answer is None


@pytest.mark.parametrize(("count", "answer"), [(4, "agrees"), (40, "agrees if shared")])
def test_the_fewer_members_there_are_the_further_a_total_may_be_off(count, answer):
    rows = np.linspace(-1, 1, count)[:, None] * [1.0, -0.9]  # totals spread less than points
    rows /= rows.sum(1).std(ddof=1) * np.sqrt(1 + 1 / count)
    field = xr.DataArray(rows[:, None], dims=("member", "time", "x")).to_dataset(name="heat")
    law = FileLaw("heat", "x", total=4.0, measure=1.0)
    assert check(field, law, member="member").budgets[0].answer == answer


def test_dates_in_a_picture_do_not_overlap():
    law = FileLaw("heat", "x", total=400 * 4.9, measure=1.0)
    figure = budget(check(grid(5.0, times=60), law))
    FigureCanvasAgg(figure)
    figure.canvas.draw()
    labels = [text for text in figure.axes[0].get_xticklabels() if text.get_text()]
    boxes = [label.get_window_extent() for label in labels]
    assert len(boxes) > 2
    assert all(a.x1 < b.x0 for a, b in pairwise(boxes))


def test_the_report_says_how_far_values_moved():
    d = xr.Dataset({"u": ("x", [1.0, 2.0, np.nan, 4.0]), "s": ("x", [0.1, 0.2, 0.3, 0.3])})
    out = enforce(d, FileLaw("u", "x", total=10.0, measure=1.0), std="s")
    most = float(abs(out.u - d.u).max())
    assert most == pytest.approx(3 * 0.09 / 0.14)
    assert out.probconserv.report["largest_change"] == {"u": pytest.approx(most)}


def test_totals_are_what_the_field_has():
    d = made()
    law = FileLaw("u", SPACE, measure="volume")
    found = totals(d, law)
    np.testing.assert_allclose(found, (d.u * d.volume).sum(SPACE), rtol=1e-12)
    assert found.name == "total"
    np.testing.assert_array_equal(d.probconserv.totals(law), found)


def test_the_accessor_does_what_the_functions_do():
    d, law = made(), FileLaw("u", SPACE, total=200.0, measure="volume")
    out = d.probconserv.enforce(law, std="s")
    np.testing.assert_array_equal(out.u, enforce(d, law, std="s").u)
    assert out.probconserv.check(law).closes()
    assert out.probconserv.report["laws"][0]["closed_after"]
    assert d.probconserv.report is None


def test_a_dimension_that_looks_like_an_ensemble_is_noted():
    d = made().rename(time="realization")
    law = FileLaw("u", SPACE, total=200.0, measure="volume")
    assert "'realization' looks like an ensemble" in str(check(d, law, std="s"))
    assert "looks like" not in str(check(made(), law, std="s"))


def test_the_report_sees_packed_values_as_a_reader_will():
    d = made()
    d["u"].encoding = {"dtype": "int16", "scale_factor": 0.01, "_FillValue": -32768}
    out = enforce(d, FileLaw("u", SPACE, total=200.0, measure="volume"), std="s")
    report = out.probconserv.report
    assert not report["laws"][0]["closed_after"]
    assert "u is packed into integers" in report["notes"][0]


def test_members_that_differ_by_noise_are_taken_for_independent_points():
    noise = np.random.default_rng(4).normal(0, 0.5, (10, 3, 2000))
    d = xr.Dataset({"u": (("member", "time", "x"), 5 + noise)})
    law = FileLaw("u", "x", total=2000 * 5.6, measure=1.0, time="time")
    with pytest.warns(ImplausibleWarning, match="what so few say"):
        wild = enforce(d, law, member="member", shrinkage=0.1)
    calm = enforce(d, law, member="member")
    assert calm.probconserv.report["warnings"] == []
    assert float(abs(calm.u - d.u).max()) < 3 < 25 < float(abs(wild.u - d.u).max())
    np.testing.assert_allclose(calm.u.sum("x"), 11200.0)


def test_members_that_differ_as_wholes_are_shrunk_by_their_number_alone():
    rng = np.random.default_rng(5)
    shared = rng.normal(0, 1, (10, 3, 1)) + rng.normal(0, 0.1, (10, 3, 2000))
    d = xr.Dataset({"u": (("member", "time", "x"), 5 + shared)})
    law = FileLaw("u", "x", total=2000 * 5.6, measure=1.0, time="time")
    out = enforce(d, law, member="member")
    method = "ensemble of 10, shrinkage 0.64 towards a correlation of 0.984 to 0.991"
    assert out.probconserv.report["method"] == method
    np.testing.assert_allclose(out.u.mean("x"), 5.6)
    assert float(abs(out.u - 5.6).max()) < 1.0
