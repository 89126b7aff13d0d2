"""Rates in files: means, amounts and point values in time, where the field counts."""

import cftime
import numpy as np
import pytest
import xarray as xr

from probconserv.errors import InputError
from probconserv.files import FileLaw, check, check_file, enforce

START = np.datetime64("2000-02-27", "ns")
HOUR = np.timedelta64(3_600_000_000_000, "ns")
HOURS = np.array([0, 6, 18, 24])  # of the field
ENDS = np.array([[-6, 0], [0, 6], [6, 18], [18, 24]])  # bounds, times at their ends
SPACE = ("y", "x")
RATE = {"units": "s-1"}
MEAN, POINT = (RATE | {"cell_methods": f"area: mean time: {m}"} for m in ("mean", "point"))
SUM = {"cell_methods": "area: mean time: sum"}


def dates(hours):
    return START + np.asarray(hours) * HOUR


def made(hours=HOURS, bounds=ENDS, seed=0):
    """u and a rate e, per hour, on a small grid, with areas and basins."""
    rng, n = np.random.default_rng(seed), len(hours)
    d = xr.Dataset(
        {
            "u": (("time", *SPACE), rng.normal(50, 1, (n, 3, 2))),
            "e": (("time", *SPACE), rng.normal(0, 1, (n, 3, 2)) / 3600, RATE),
            "area": (SPACE, rng.uniform(1, 2, (3, 2))),
            "basin": (SPACE, [[1, 2], [1, 2], [2, 2]]),
        },
        {"time": dates(hours), "y": [10.0, 20.0, 30.0]},
    )
    if bounds is not None:
        d["time_bnds"] = (("time", "ends"), dates(bounds))
        d.time.attrs["bounds"] = "time_bnds"
    return d


def law(**how):
    usual = {"variables": "u", "total": 0.0, "inflow": "e", "measure": "area"}
    return FileLaw(over=SPACE, **(usual | how))


def gain(dataset, **how):
    return check(dataset, law(**how)).budgets[0].total


def remarks(dataset, **how):
    return check(dataset, law(**how)).budgets[0].remarks


def overlaps(values, bounds, hours):
    """The sum of values times the hours that their bounds share with the time since the first."""
    return [
        sum(
            v * max(0, min(stop, h) - max(start, min(hours)))
            for v, (start, stop) in zip(values, bounds, strict=True)
        )
        for h in hours
    ]


def flow(dataset, name="e"):
    """In total per hour."""
    return 3600 * (dataset[name] * dataset.area).sum(SPACE).values


@pytest.mark.parametrize(
    ("bounds", "hours"),
    [
        (ENDS, HOURS),
        (ENDS[[2, 0, 3, 1]], HOURS[[2, 0, 3, 1]]),  # shuffled
        (ENDS[::-1, ::-1], HOURS[::-1]),  # decreasing, bounds as well
        ([[-3, 3], [3, 10], [10, 23], [23, 30]], HOURS),  # times within
    ],
    ids=["ends", "shuffled", "decreasing", "within"],
)
def test_means_are_constant_within_their_bounds(bounds, hours):
    d = made(hours, bounds)
    d.e.attrs = MEAN
    wanted = overlaps(flow(d), np.sort(bounds), hours)
    np.testing.assert_allclose(gain(d), wanted, rtol=1e-12, atol=1e-12)
    assert "inflow e: means within the bounds time_bnds" in remarks(d)


def test_an_exactly_closed_budget_closes_and_stays():
    d = made()
    d.e.attrs = MEAN
    for i, hours in enumerate((6, 12, 6), start=1):
        d.u[i] = d.u[i - 1] + 3600 * hours * d.e[i].values
    closed = law(total="initial")
    assert check(d, closed).closes(1e-12)
    np.testing.assert_allclose(enforce(d, closed, std=1.0).u, d.u, rtol=1e-12)


def test_amounts_are_those_within_their_bounds():
    d = made(bounds=[[-3, 3], [3, 10], [10, 22], [22, 26]])
    widths = np.array([6, 7, 12, 4])
    d["e"] = d.e * 3600 * widths[:, None, None]
    d.e.attrs = SUM
    wanted = overlaps(
        flow(d) / 3600 / widths,
        d.time_bnds.values.astype("M8[h]").astype(int) - START.astype("M8[h]").astype(int),
        HOURS,
    )
    np.testing.assert_allclose(gain(d), wanted, rtol=1e-12)


def test_amounts_without_bounds_are_those_since_the_time_before():
    d = made(bounds=None).isel(time=[1, 3, 0, 2])
    d.e.attrs = SUM
    amounts = flow(d) / 3600
    by_time = np.cumsum([0, amounts[0], amounts[3], amounts[1]])  # of hours 0, 6, 18, 24
    np.testing.assert_allclose(gain(d), by_time[[1, 3, 0, 2]], rtol=1e-12, atol=1e-14)
    said = "inflow e: amounts, taken since the time before (no bounds; `assume_method="
    assert any(remark.startswith(said) for remark in remarks(d))


def test_amounts_have_the_unit_of_an_amount_and_rates_that_of_a_rate():
    d = made()
    d.u.attrs["units"], d.area.attrs["units"] = "kg m-2", "m2"
    pairs = ((SUM, "kg m-2", "kg m-2 s-1"), (MEAN, "kg m-2 s-1", "kg m-2"))
    for attrs, right, wrong in pairs:
        d.e.attrs = attrs | {"units": right}
        assert gain(d).notnull().all()
        d.e.attrs["units"] = wrong
        with pytest.raises(
            InputError, match=r"`inflow e` is in .*, an? (rate|amount), .*`assume_method"
        ):
            gain(d)


@pytest.mark.parametrize("attrs", [POINT, RATE])
def test_point_values_are_linear_between_times_and_what_was_assumed_is_said(attrs):
    d = made().isel(time=[3, 1, 0, 2])
    d.e.attrs = attrs
    rate = dict(zip(d.time.values, flow(d), strict=True))
    minutes = np.arange(0.5, 24 * 60) / 60  # midpoints, exact for lines that bend at full hours
    course = np.interp(minutes, HOURS, [rate[t] for t in dates(HOURS)]) / 60
    wanted = [course[minutes < hour].sum() for hour in HOURS[[3, 1, 0, 2]]]
    np.testing.assert_allclose(gain(d), wanted, rtol=1e-10, atol=1e-12)
    assumed = "no cell_methods; taken as point values" if attrs == RATE else "point values"
    assert f"inflow e: {assumed}, linear between times" in remarks(d)


def test_means_without_bounds_reach_half_way_between_times_and_say_so():
    d = made()
    d.e.attrs = MEAN
    lost = d.drop_vars("time_bnds")
    wanted = overlaps(flow(d), [[-3, 3], [3, 12], [12, 21], [21, 27]], HOURS)
    np.testing.assert_allclose(gain(lost), wanted, rtol=1e-12)
    said = "inflow e: means, taken over cells half way between times ("
    otherwise = "; `assume_method={'e': 'mean:end'}` says otherwise)"
    assert f"{said}its bounds time_bnds are not there{otherwise}" in remarks(lost)
    without = made(bounds=None).assign(e=lost.e.drop_vars("time"))
    assert f"{said}no bounds{otherwise}" in remarks(without)


def test_rates_of_several_kinds_add_up():
    d = made()
    kinds = {"a": MEAN, "b": SUM, "c": POINT, "d": RATE}
    for name, attrs in kinds.items():
        d[name] = d.e.assign_attrs(attrs) * len(kinds) if name == "b" else d.e.assign_attrs(attrs)
        d[name].attrs = attrs
    two = xr.DataArray(2.0, attrs=RATE)
    both = gain(d, inflow=("a", "b"), outflow=("c", two))
    parts = [gain(d, inflow=each) for each in ("a", "b", "c", two)]
    np.testing.assert_allclose(both, parts[0] + parts[1] - parts[2] - parts[3], rtol=1e-12)
    np.testing.assert_allclose(parts[3], 2.0 * 3600 * HOURS)


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ([[-6, 0], [0, 6], [7, 18], [18, 24]], "from 2000-02-27T06:00:00 to 2000-02-27T07:00:00"),
        ([[-6, 0], [0, 6], [5, 18], [18, 24]], "overlap from 2000-02-27T05:00:00 to 2000-02-27T06"),
        ([[0, 0], [0, 6], [0, 18], [0, 24]], "overlap from 2000-02-27 to 2000-02-27T06:00:00"),
        ([[-6, -2], [1, 6], [6, 18], [18, 24]], "from 2000-02-27 to 2000-02-27T01:00:00"),
        ([[-6, 0], [0, 6], [6, 18], [18, 23]], "from 2000-02-27T23:00:00 to 2000-02-28"),
    ],
)
def test_bounds_must_fill_the_time_between_the_first_and_the_last(bounds, text):
    d = made(bounds=bounds)
    for d.e.attrs in (MEAN, SUM):
        with pytest.raises(InputError, match=f"`inflow e`.*{text}"):
            gain(d)


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ((("time", "ends"), np.ones((4, 3))), "must hold two times for each"),
        ((("x", "ends"), np.ones((2, 2))), "must hold two times for each"),
        ((("time", "ends"), 1.0 * ENDS), "its 'time_bnds' must hold dates as 'time' of the field"),
        ((("time", "ends"), np.full((4, 2), np.datetime64("NaT", "ns"))), "are missing"),
    ],
)
def test_bounds_are_two_times_for_each_entry(bounds, text):
    d = made(bounds=None).assign(time_bnds=bounds)
    d.time.attrs["bounds"], d.e.attrs = "time_bnds", MEAN
    with pytest.raises(InputError, match=f"`inflow e`: .*{text}"):
        gain(d)


def test_rates_of_another_calendar_are_refused():
    d = made(bounds=None)
    other = d.e.convert_calendar("noleap", use_cftime=True)
    for field, rate in ((d, other), (d.convert_calendar("noleap", use_cftime=True), d.e)):
        with pytest.raises(InputError, match="`time`: the dates of 'time' are of another calendar"):
            gain(field, inflow=rate)
    with pytest.raises(InputError, match="its 'time' must hold dates as 'time' of the field"):
        gain(d, inflow=d.e.assign_coords(time=HOURS))


def test_gaps_outside_the_time_that_is_needed_do_not_matter():
    d = made(bounds=[[-9, -6], [0, 6], [6, 18], [18, 24]])
    d.e.attrs = MEAN
    d.e[0] = np.nan  # nor does what the rate was before the first time
    assert gain(d).notnull().all()


def test_means_may_have_times_of_their_own():
    d = made([0, 10, 24, 36])
    own = xr.Dataset(
        {"month": (("when", "ends"), dates([[-12, 12], [12, 24], [24, 48]]))},
        {"when": ("when", dates([0, 18, 36]), {"standard_name": "time", "bounds": "month"})},
    )
    values = np.random.default_rng(1).normal(size=(3, 3, 2)) / 3600
    own["e"] = (("when", *SPACE), values, MEAN)
    d = d.drop_vars("e").merge(own)
    wanted = overlaps(flow(d), [[-12, 12], [12, 24], [24, 48]], [0, 10, 24, 36])
    np.testing.assert_allclose(gain(d), wanted, rtol=1e-12, atol=1e-14)
    given = own.e.rename(when="time")  # an array cannot bring its bounds along
    half_way = overlaps(flow(d), [[-9, 9], [9, 27], [27, 45]], [0, 10, 24, 36])
    np.testing.assert_allclose(gain(d, inflow=given), half_way, rtol=1e-12, atol=1e-14)
    with pytest.raises(InputError, match="leave out the time from 2000-02-28T03"):
        gain(d, inflow=given.isel(time=slice(2)))


@pytest.mark.parametrize("hours", [HOURS, [24, 0, 6, 18]])
def test_rates_count_where_the_field_counts(hours):
    d = made(hours, bounds=None)
    sea = d.basin > 1
    d["u"] = d.u.where(sea)
    d["e"] = d.e.where(sea) if hours is HOURS else d.e
    own = d.assign(area=d.area.where(sea, 0.0), u=d.u.fillna(0.0), e=d.e.fillna(0.0))
    np.testing.assert_allclose(gain(d), gain(own), rtol=1e-12)
    lazy = gain(d.chunk(time=1, y=2))
    np.testing.assert_allclose(lazy, gain(own), rtol=1e-12)
    filled = d.assign(u=d.u.fillna(5.0), e=d.e.fillna(5.0))
    np.testing.assert_allclose(gain(filled, where=sea), gain(own), rtol=1e-12)
    parts = gain(filled, regions="basin").sel(region=2)
    np.testing.assert_allclose(parts, gain(own), rtol=1e-12)


def test_a_constant_density_counts_where_the_field_counts():
    d = made()
    d["u"] = d.u.where(d.basin > 1)
    constant = d.e.isel(time=0, drop=True)
    wanted = (constant * d.area).where(d.basin > 1).sum().item() * 3600 * HOURS
    np.testing.assert_allclose(gain(d, inflow=constant), wanted, rtol=1e-12)


@pytest.mark.parametrize("chunks", [None, {"time": 1, "y": 2}])
def test_a_missing_rate_where_the_field_counts_names_time_and_place(chunks):
    d = made()
    d.e[2, 1, 0] = np.nan
    d = d if chunks is None else d.chunk(chunks)
    text = "`inflow e` is missing or infinite at time 2000-02-27T18:00:00, y 20, x number 0"
    with pytest.raises(InputError, match=text):
        gain(d)
    assert gain(d.assign(u=d.u.where(d.e.notnull()))).notnull().all()
    assert gain(d, where=d.basin > 1).notnull().all()
    total = xr.DataArray([1.0, 2.0, np.inf, 3.0], dims="time", name="r", attrs=RATE)
    with pytest.raises(InputError, match="`outflow r` is missing or infinite at time 2000"):
        gain(d, outflow=total, inflow=())


def test_points_that_change_in_time_are_taken_at_the_nearer_time_and_it_is_said():
    d = made(bounds=None)
    d.u[2, 0] = np.nan
    rate = 3600 * (d.e * d.area).where(d.u.notnull()).sum(SPACE).values
    wanted = [0.0, *np.cumsum((rate[1:] + rate[:-1]) / 2 * np.diff(HOURS))]
    np.testing.assert_allclose(gain(d), wanted, rtol=1e-12)
    assert any("points of u change in time" in remark for remark in remarks(d))
    assert not any("change in time" in remark for remark in remarks(made()))


def test_a_mean_counts_where_the_field_is_at_the_time_nearest_to_its_middle():
    d = made([0, 10, 24], bounds=None)
    d.u[1, 2] = np.nan
    own = {"when": ("when", dates([12, 24]), {"standard_name": "time", "bounds": "ends"})}
    rate = xr.Dataset({"e": (("when", *SPACE), np.ones((2, 3, 2)) / 3600, MEAN)}, own)
    rate["ends"] = (("when", "n"), dates([[0, 12], [12, 24]]))
    found = gain(d.drop_vars("e").merge(rate))
    there = float(d.area[:2].sum()), float(d.area.sum())  # at 10 h, the nearest to 6; at 24 h
    np.testing.assert_allclose(found, [0, 10 * there[0], 12 * sum(there)], rtol=1e-12)


def test_a_member_that_lacks_a_point_takes_it_from_the_rates_of_all():
    d = made(bounds=None)
    d["u"] = d.u.expand_dims(member=3).copy()
    d.u[1, :, 2, 1] = np.nan
    without = d.copy(deep=True)
    without.area[2, 1] = 0.0
    found = check(d, law(), member="member").budgets[0].total
    wanted = check(without.assign(u=d.u.fillna(0.0)), law(), member="member").budgets[0].total
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    own = d.e.expand_dims(member=3) * xr.DataArray([1.0, 2.0, 3.0], dims="member")
    own.attrs = RATE
    each = check(d, law(inflow=own), member="member").budgets[0].total.transpose("member", "time")
    np.testing.assert_allclose(each, found.values * np.array([[1.0], [2.0], [3.0]]), rtol=1e-12)


def test_rates_of_regions_go_to_their_regions():
    d = made()
    rate = xr.DataArray([3.0, 4.0], {"basin": [2, 1]}, "basin", "river", RATE)
    found = gain(d, inflow=rate, regions="basin").transpose("region", "time")
    np.testing.assert_allclose(found, 3600 * HOURS * np.array([[4.0], [3.0]]))


def test_the_rates_of_a_forecast_run_along_its_steps():
    shape = (2, 4, 3, 2)
    rng = np.random.default_rng(0)
    names = {"time": "forecast_reference_time", "step": "forecast_period"}
    times = {"time": dates([0, 24]), "step": HOURS * HOUR}
    coords = {dim: (dim, times[dim], {"standard_name": name}) for dim, name in names.items()}
    d = xr.Dataset({"u": ((*names, *SPACE), rng.normal(size=shape))}, coords)
    d["e"] = (
        (*names, *SPACE),
        rng.normal(size=shape) / 3600,
        RATE | {"cell_methods": "step: mean"},
    )
    d["step_bnds"] = (("step", "n"), np.array([[0, 0], [0, 6], [6, 18], [18, 24]]) * HOUR)
    d.step.attrs["bounds"] = "step_bnds"
    found = gain(d, measure=1.0).transpose("time", "step")
    rate = 3600 * d.e.sum(SPACE).values[:, 1:]
    np.testing.assert_allclose(found[:, 1:], np.cumsum(rate * [6, 12, 6], axis=1), rtol=1e-12)


@pytest.mark.parametrize(
    ("attrs", "text"),
    [
        ({"cell_methods": "time: maximum"}, "cell_methods 'time: maximum'; over time only point"),
        (
            {"cell_methods": "time: mean within days time: mean over days"},
            "not those of a climatology",
        ),
        ({"cell_methods": "time: mean over years"}, "not those of a climatology"),
        ({"GRIB_stepType": "accum"}, "GRIB_stepType 'accum', which does not say since when"),
    ],
)
def test_what_does_not_add_up_over_time_is_refused(attrs, text):
    d = made()
    d.e.attrs = attrs
    with pytest.raises(InputError, match=f"`inflow e`.*{text}"):
        gain(d)


def test_the_bounds_of_a_climatology_and_amounts_without_times_are_refused():
    d = made()
    d.e.attrs = MEAN
    d.time.attrs = {"climatology": "time_bnds"}
    with pytest.raises(InputError, match=r"`inflow e` is a climatology by time"):
        gain(d)
    with pytest.raises(InputError, match=r"is an amount \(time: sum\) without times"):
        gain(d, inflow=d.e.isel(time=0, drop=True).assign_attrs(SUM))


def test_calendars_of_models_and_fields_that_are_means():
    noleap = [
        cftime.DatetimeNoLeap(2000, 2, 27),
        *(cftime.DatetimeNoLeap(2000, 3, d) for d in (1, 2)),
    ]
    d = made([0, 1, 2], bounds=None).assign_coords(time=noleap)
    d.u.attrs["cell_methods"] = "time: mean (interval: 1 hour)"
    np.testing.assert_allclose(
        gain(d, inflow=xr.DataArray(1.0, attrs=RATE)), [0.0, 2 * 86400, 3 * 86400]
    )
    assert any(remark.startswith("u: a time mean, taken as its value") for remark in remarks(d))


def test_one_time_gains_nothing():
    d = made().isel(time=[1])
    for d.e.attrs in (MEAN, SUM, POINT):
        np.testing.assert_array_equal(gain(d), [0.0])


def test_rates_are_densities_of_what_the_law_sums_not_of_the_field():
    d = made(bounds=None)
    d["heat"] = (SPACE, np.full((3, 2), 4.0e6), {"units": "J K-1 m-3"})
    d.heat[0, 0] = np.nan
    d.u.attrs["units"], d.area.attrs["units"], d.e.attrs["units"] = "K", "m3", "W m-3"
    total = check(d, law(variables={"u": "heat"})).budgets[0].total
    counted = d.assign(u=d.u.where(d.heat.notnull()))
    counted.u.attrs["units"] = "J m-3"
    np.testing.assert_allclose(total, gain(counted), rtol=1e-12)


def test_rates_of_a_law_that_is_summed_over_time_are_refused():
    with pytest.raises(InputError, match="is summed over 'time', its time"):
        check(made(), FileLaw("u", ("time", *SPACE), 5.0, inflow=1.0, measure=1.0))


@pytest.mark.parametrize("rates", [("e",), ("e", "f")])
def test_rates_on_the_grid_take_one_pass_more_over_the_field(rates):
    d, reads = made().assign(f=made(seed=1).e), []
    for name in ("u", "e", "f"):
        blocks = d[name].chunk(time=1, y=2).data
        counted = blocks.map_blocks(lambda x, name=name: (reads.append(name), x)[1], dtype=float)
        d[name] = d[name].copy(data=counted)
    reads.clear()
    check(d, law(inflow=rates))
    assert {name: reads.count(name) for name in ("u", *rates)} == {"u": 16} | dict.fromkeys(
        rates, 8
    )


def test_bounds_that_lie_in_the_file_of_the_rate_count(tmp_path):
    """The field has every second time, and no bounds."""
    d = made()
    d["e"].attrs |= MEAN
    d["time"].encoding["units"] = "hours since 2000-01-01"
    d.to_netcdf(tmp_path / "rate.nc")
    d[["u", "area"]].isel(time=[1, 3]).to_netcdf(tmp_path / "in.nc")
    report = check_file(tmp_path / "in.nc", law(inflow=f"{tmp_path}/rate.nc:e"))
    expected = 3600 * ((12 * d.e[2] + 6 * d.e[3]) * d.area).sum()
    np.testing.assert_allclose(report.budgets[0].total, [0.0, expected], rtol=1e-12)
    assert "inflow e: means within the bounds time_bnds" in report.budgets[0].remarks
