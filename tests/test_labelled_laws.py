"""Totals, regions, levels, rates, factors, units and masks of laws on a dataset."""

import cftime
import numpy as np
import pytest
import xarray as xr
from exact import posterior
from oracle import kalman

from probconserv.errors import InfeasibleError
from probconserv.files import FileLaw, check, enforce

SPACE = ("lat", "lon")
DAYS = np.array(["2001-01-01", "2001-01-02", "2001-01-04"], "datetime64[ns]")


def made(seed=0, **coords):
    rng = np.random.default_rng(seed)
    dims, shape = ("time", "lev", *SPACE), (3, 2, 4, 5)
    return xr.Dataset(
        {
            "u": (dims, rng.normal(2, 1, shape)),
            "v": (dims, rng.normal(-1, 1, shape)),
            "s": (dims, rng.uniform(0.2, 1.5, shape)),
            "r": (dims, rng.uniform(0.2, 1.5, shape)),
            "area": (SPACE, rng.uniform(1, 2, shape[2:])),
            "basin": ("lat", [7.0, 3.0, 7.0, np.nan]),
        },
        {"time": [0.0, 1.0, 3.0], "lev": [10.0, 20.0]} | coords,
    )


def law(**how):
    return FileLaw(**({"variables": "u", "over": SPACE, "measure": "area"} | how))


def sums(dataset, name="u", over=SPACE):
    return (dataset[name] * dataset.area).sum(over)


def stated(dataset, **how):
    """The totals of a law, by their names."""
    return check(dataset, law(**how)).budgets[0].total


def test_a_total_is_a_number_a_name_or_an_array_over_some_of_the_rows():
    d = made()
    d["given"] = ("lev", [40.0, 50.0])
    array = xr.DataArray([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dims=("lev", "time"))
    for total, wanted in ((60, xr.DataArray(60.0)), ("given", d.given), (array, array)):
        found, wanted = xr.broadcast(sums(enforce(d, law(total=total), std="s")), wanted)
        np.testing.assert_allclose(found, wanted.transpose(*found.dims), rtol=1e-12)


def test_an_array_of_numpy_without_axes_is_a_number():
    fixed = enforce(made(), law(total=np.array(7.0)), std="s")
    np.testing.assert_allclose(sums(fixed), 7.0, rtol=1e-12)


def test_the_initial_total_is_that_of_every_level():
    d = made()
    np.testing.assert_allclose(stated(d), 0 * sums(d) + sums(d).isel(time=0))
    out = enforce(d, law(), std="s")
    np.testing.assert_allclose(sums(out), 0 * sums(d) + sums(d).isel(time=0), rtol=1e-12)
    np.testing.assert_allclose(out.u[0], d.u[0], rtol=1e-12)


def test_initial_totals_of_regions_and_of_two_variables():
    d = made()
    found = stated(d, variables={"u": 1.0, "v": -2.0}, regions="basin", total="initial")
    both = ((d.u - 2 * d.v) * d.area).isel(time=0)
    for basin in (3, 7):
        wanted = both.where(d.basin == basin).sum(SPACE)
        np.testing.assert_allclose(found.sel(region=basin).transpose("time", "lev")[2], wanted)


def test_totals_of_regions_go_by_their_labels_and_points_of_no_region_stay():
    d = made()
    total = xr.DataArray([70.0, 30.0, 9.0], {"basin": [7, 3, 5]}, "basin")
    out = enforce(d, law(total=total, regions="basin"), std="s")
    for basin in (3, 7):
        found = (out.u * out.area).where(out.basin == basin).sum(SPACE)
        np.testing.assert_allclose(found, float(total.sel(basin=basin)), rtol=1e-12)
    np.testing.assert_array_equal(out.u[:, :, 3], d.u[:, :, 3])
    np.testing.assert_array_equal(out.s[:, :, 3], d.s[:, :, 3])


def test_regions_can_be_words_and_their_axis_may_be_called_region():
    d = made()
    words = xr.DataArray(np.array(["b", "a", None, "b"], object), dims="lat", name="where")
    total = xr.DataArray([[1.0, 2.0]] * 3, {"region": ["b", "a"]}, ("time", "region"))
    out = enforce(d, law(total=total, regions=words), std="s")
    np.testing.assert_allclose((out.u * d.area)[:, :, [0, 3]].sum(SPACE), 1.0, rtol=1e-11)
    np.testing.assert_allclose((out.u * d.area)[:, :, 1].sum("lon"), 2.0, rtol=1e-11)


@pytest.mark.parametrize("name", ["region", "rows", "steps", "members"])
def test_dimensions_may_have_any_name(name):
    d = made().rename(lev=name)
    for lazy in (d, d.chunk(lat=2)):
        out = enforce(lazy, law(), law(over=(name, *SPACE), measure=1.0, total=80.0), std="s")
        np.testing.assert_allclose(out.u.sum((name, *SPACE)), 80.0, rtol=1e-9)
        np.testing.assert_allclose(sums(out)[1], sums(d)[0], rtol=1e-9)


RATE = [2.0, 4.0, 6.0]  # linear between times: 3 in the first step, 5 in each of the others


@pytest.mark.parametrize(
    ("times", "second"),
    [
        ([0.0, 1.0, 3.0], 1.0),
        (DAYS, 86400.0),
        (
            [cftime.DatetimeNoLeap(2001, 2, day) for day in (27, 28)]
            + [cftime.DatetimeNoLeap(2001, 3, 2)],
            86400.0,
        ),
        (np.array([0, 1, 3], "timedelta64[D]").astype("timedelta64[ns]"), 86400.0),
    ],
    ids=["numbers", "dates", "cftime", "durations"],
)
def test_rates_in_time_add_up_by_the_trapezoidal_rule(times, second):
    d = made(time=("time", times))
    per = {"units": "s-1"}  # of no account where times have no unit
    inflow = xr.DataArray(RATE, dims="time", attrs=per)
    gained = np.array([0.0, 3.0, 13.0]) * second
    start = sums(d).isel(time=0)
    out = [xr.DataArray(each, attrs=per) for each in (1.0, 0.5)]
    found = stated(d, inflow=inflow, outflow=out, time="time")
    lost = 1.5 * np.array([0.0, 1.0, 3.0]) * second
    np.testing.assert_allclose(found, start.values + (gained - lost)[:, None], rtol=1e-12)
    fixed = stated(d, total=5.0, inflow=[inflow, inflow], time="time").transpose("time", "lev")
    np.testing.assert_allclose(fixed, 5 + 2 * gained[:, None] + np.zeros(2), rtol=1e-12)


def test_rates_on_the_grid_are_densities():
    d = made()
    source = xr.DataArray(np.random.default_rng(3).normal(size=(3, 4)), dims=("time", "lat"))
    rate = (source * d.area).sum(SPACE).values
    steps = [0.0, *np.cumsum((rate[1:] + rate[:-1]) / 2 * np.diff(d.time))]
    wanted = sums(d).isel(time=0).values + np.array(steps)[:, None]
    np.testing.assert_allclose(stated(d, inflow=source), wanted, rtol=1e-12)
    closed = enforce(d, law(inflow=source), std="s")
    np.testing.assert_allclose(sums(closed), wanted, rtol=1e-12)
    parts = stated(d, inflow=source, regions="basin").transpose("time", "lev", "region")
    for number, basin in enumerate((3, 7)):
        rate = (source * d.area).where(d.basin == basin).sum(SPACE).values
        first = sums(d.where(d.basin == basin)).isel(time=0)
        step = (rate[1] + rate[0]) / 2
        np.testing.assert_allclose(parts[1, :, number], first + step, rtol=1e-12)


def test_a_constant_density_with_cells_that_change():
    d = made()
    cells = xr.DataArray(np.random.default_rng(3).uniform(1, 2, (3, 4, 5)), dims=("time", *SPACE))
    found = stated(d, measure=cells, total=0.0, inflow=xr.DataArray(np.ones(4), dims="lat"))
    rate = cells.sum(SPACE).values
    np.testing.assert_allclose(found.isel(lev=0)[1], (rate[0] + rate[1]) / 2, rtol=1e-12)


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_mass_and_energy_are_two_laws_over_two_variables(correlation):
    d = made()
    heat = xr.DataArray([2.0, 3.0], {"lev": d.lev}, "lev")
    over = ("lev", *SPACE)
    laws = [
        law(variables={"u": 1.0, "v": 1.0}, over=over, total=55.0, measure=1.0, name="mass"),
        law(variables={"u": heat, "v": -1.5}, over=over, total=20.0, measure=1.0, name="energy"),
    ]
    out = enforce(d, *laws, std={"u": "s", "v": "r"}, correlation=correlation)
    second = np.concatenate([np.repeat([2.0, 3.0], 20), np.full(40, -1.5)])
    G = np.stack([np.ones(80), second])
    for t in range(3):
        mean, std, found, spread = (
            np.concatenate([each[name].values[t].ravel() for name in names])
            for each, names in ((d, "uv"), (d, "sr"), (out, "uv"), (out, "sr"))
        )
        alike = np.kron(np.eye(2), np.ones((40, 40)))  # the errors of u and v are independent
        sigma = correlation * alike * np.outer(std, std) + (1 - correlation) * np.diag(std**2)
        new, covariance = kalman(mean, sigma, G, [55.0, 20.0])
        np.testing.assert_allclose(found, new, rtol=0, atol=1e-10)
        np.testing.assert_allclose(spread, np.diag(covariance) ** 0.5, rtol=0, atol=1e-9)


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
def test_missing_values_stay_missing_and_out_of_the_integral_at_each_time():
    d = made()
    gaps = d.u > 2.5
    d["u"] = d.u.where(~gaps)
    out = enforce(d, law(total=30.0), std="s", correlation=0.3)
    np.testing.assert_array_equal(out.u.isnull(), gaps)
    np.testing.assert_array_equal(out.s.where(gaps), d.s.where(gaps))
    np.testing.assert_allclose(sums(out), 30.0, rtol=1e-12)
    t, level = 1, 1
    here = ~gaps.values[t, level].ravel()
    std = d.s.values[t, level].ravel()[here]
    sigma = 0.3 * np.outer(std, std) + 0.7 * np.diag(std**2)
    G = d.area.values.ravel()[None, here]
    mean, covariance = kalman(d.u.values[t, level].ravel()[here], sigma, G, [30.0])
    np.testing.assert_allclose(out.u.values[t, level].ravel()[here], mean, atol=1e-10)
    variance = np.diag(covariance)
    np.testing.assert_allclose(out.s.values[t, level].ravel()[here] ** 2, variance, atol=1e-10)


@pytest.mark.parametrize("total", [12.0, "initial"])
def test_rows_without_data_are_left_alone(total):
    d = made()
    d["u"] = d.u.where(d.lev > 10)
    out = enforce(d, law(total=total), std="s")
    assert out.u[:, 0].isnull().all()
    wanted = 12.0 if total == 12.0 else float(sums(d)[0, 1])
    np.testing.assert_allclose(sums(out)[:, 1], wanted, rtol=1e-12)
    report = check(d, law(total=total), std="s")
    assert "6 totals, 3 without data" in str(report)
    assert "the totals are plausible" in str(report)
    (budget,) = report.budgets
    np.testing.assert_array_equal(budget.gap().sel(lev=10), 0.0)


@pytest.mark.parametrize("where", ["land", "array"])
def test_points_that_do_not_count_stay_bit_for_bit_whatever_they_hold(where):
    d = made()
    d["land"] = ("lat", [1.0, np.nan, 1.0, 0.0])
    d["u"][:, :, 1, 0], d["s"][:, :, 3, 2], d["u"][0, 0, 3, 4] = np.inf, np.nan, np.nan
    d["s"][:, :, 1, 1] = np.inf
    given = "land" if where == "land" else d.land == 1
    out = enforce(d, law(total=12.0, where=given), std="s", correlation=0.2)
    for name in "us":
        np.testing.assert_array_equal(out[name][:, :, [1, 3]], d[name][:, :, [1, 3]])
    np.testing.assert_allclose((out.u * out.area)[:, :, [0, 2]].sum(SPACE), 12.0, rtol=1e-12)


def test_a_field_that_cannot_move_must_hold_already():
    d = made()
    with pytest.raises(InfeasibleError, match=r"6 totals cannot be met, the first of `heat`, by "):
        enforce(d, law(total=12.0, name="heat"), std=0.0)
    out = enforce(d, law(total=sums(d)), std=0.0)
    np.testing.assert_array_equal(out.u, d.u)


def test_laws_that_contradict_each_other_are_refused():
    with pytest.raises(InfeasibleError, match="laws contradict each other"):
        enforce(made(), law(total=12.0), law(total=13.0), std="s")


def test_units_of_the_total_are_those_of_the_field_times_the_cells():
    d = made()
    d["u"].attrs["units"], d["area"].attrs["units"] = "kg m-2", "m2"
    d["total"] = xr.DataArray(5.0, attrs={"units": "kg"})
    assert check(d, law(total="total")).budgets[0].unit == "kg"
    d["v"].attrs["units"] = "g m-2"  # a factor of 0.001 may have a unit, so none is compared
    assert check(d, law(variables={"u": 1.0, "v": 0.001}, total=1.0)).budgets[0].unit == "kg"


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
@pytest.mark.parametrize("first", [0, 1])
def test_weights_that_vary_in_time_may_come_in_any_law(first):
    u = np.random.default_rng(0).normal(3, 1, (3, 5))
    field = xr.Dataset({"u": (("time", "x"), u), "f": ("time", [1.0, 2.0, 0.5])})
    field["s"] = xr.ones_like(field["u"])
    laws = [FileLaw("u", "x", measure=1, total=15.0, noise=1.0, name="plain")]
    laws.append(FileLaw({"u": "f"}, "x", measure=1, total=20.0, noise=1.0, name="weighted"))
    found = enforce(field, laws[first], laws[1 - first], std="s")
    for time, factor in enumerate([1.0, 2.0, 0.5]):
        g = np.stack([np.ones(5), np.full(5, factor)])
        mean, _ = kalman(u[time], np.eye(5), g, np.array([15.0, 20.0]), 1.0)
        np.testing.assert_allclose(found["u"].values[time], mean)


@pytest.mark.parametrize("blocks", [None, 2, -1], ids=["memory", "cut", "whole"])
@pytest.mark.parametrize("correlation", [0.0, 0.3])
@pytest.mark.parametrize("apart", [1e-4, 1e-6])
def test_std_keeps_its_digits_where_laws_are_nearly_the_same(apart, correlation, blocks):
    rng = np.random.default_rng(3)
    mean, std, g = rng.normal(size=(2, 5)), rng.uniform(0.5, 2, (2, 5)), rng.uniform(1, 2, 5)
    rows = np.stack([g, g + apart * rng.normal(size=5), rng.uniform(1, 2, 5)])
    data = xr.Dataset({"u": (("t", "x"), mean), "s": (("t", "x"), std), "g": (("k", "x"), rows)})
    data, b = data.chunk({"x": blocks}) if blocks else data, rows @ (mean[0] + 0.1 * std[0])
    laws = [FileLaw("u", "x", b[k], measure=xr.DataArray(rows[k], dims="x")) for k in range(3)]
    out = enforce(data, *laws, std="s", correlation=correlation)
    for t in range(2):
        own, shared = (1 - correlation) * std[t] ** 2, correlation**0.5 * std[t : t + 1]
        want = posterior(mean[t], rows, b, variance=own, factor=shared)
        np.testing.assert_allclose(out.s[t].values ** 2, want.variance, rtol=1e-6)
        np.testing.assert_allclose(out.u[t], want.mean, rtol=1e-7, atol=1e-8)
