"""Which dimension of a file is time, and what it starts with."""

import cftime
import numpy as np
import pytest
import xarray as xr

from probconserv import files
from probconserv.errors import InputError
from probconserv.files import FileLaw, check, enforce

pytestmark = pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")

DAYS = np.array(["2000-01-01", "2000-01-02", "2000-01-04"], "datetime64[ns]")
HOURS = (np.array([0, 6, 12, 18]) * np.timedelta64(1, "h")).astype("timedelta64[ns]")
PERIOD, REFERENCE = (
    {"standard_name": "forecast_period"},
    {"standard_name": "forecast_reference_time"},
)
LAW = FileLaw("u", "x", measure=1.0)


def made(*dims, seed=0, **coords):
    """u over the dimensions, x last, with coordinates (dim, values, attributes)."""
    sizes = {"x": 5} | {c[0]: len(c[1]) for c in coords.values() if isinstance(c[0], str)}
    values = np.random.default_rng(seed).normal(5, 1, [sizes[d] for d in (*dims, "x")])
    return xr.Dataset({"u": ((*dims, "x"), values)}, coords)


def forecast(reference=REFERENCE, period=PERIOD, step=HOURS, **more):
    return made("time", "step", time=("time", DAYS, reference), step=("step", step, period), **more)


def time_remark(dataset, law=LAW):
    (budget,) = check(dataset, law).budgets
    (remark,) = [r for r in budget.remarks if r.startswith("time: ")]
    return remark


def sums(dataset):
    return dataset.u.sum("x").values


@pytest.mark.parametrize(
    ("step", "period"),
    [(HOURS, PERIOD), ([0, 6, 12, 18], PERIOD | {"units": "hours"})],
    ids=["durations", "hours"],
)
def test_each_reference_time_of_a_forecast_keeps_what_it_starts_with(step, period):
    d = forecast(step=step, period=period)
    np.testing.assert_allclose(
        sums(enforce(d, LAW, std=1.0)), sums(d)[:, :1] + np.zeros(4), rtol=1e-13
    )
    assert time_remark(d).startswith(
        "time: step (forecast_period), each time a run of its own; total of the earliest, 0"
    )


def test_forecast_periods_without_names_are_time_if_a_valid_time_is_there():
    valid = (("time", "step"), DAYS[:, None] + HOURS, {})
    assert check(forecast({}, {}, valid_time=valid), LAW).budgets[0].time == "step"
    named = {"standard_name": "time"}
    assert check(forecast(named, PERIOD, valid_time=valid), LAW).budgets[0].time == "step"


@pytest.mark.parametrize(("reference", "period"), [({}, {}), ({"axis": "T"}, PERIOD)])
def test_two_dimensions_that_may_be_time_ask_for_time(reference, period):
    d = forecast(reference, period)
    with pytest.raises(InputError, match=r"is time: .*step.*\? Give its name as `time`"):
        check(d, LAW)
    assert check(d, FileLaw("u", "x", 9.0, measure=1.0)).budgets[0].remarks == ()
    assert check(d, FileLaw("u", "x", measure=1.0, time="time")).budgets[0].time == "time"
    assert check(d, FileLaw("u", ("x", "step"), measure=1.0)).budgets[0].time == "time"


def test_dates_beside_a_dimension_that_is_only_called_time_ask_for_time():
    d = made("start", "time", start=("start", DAYS), time=("time", [0.0, 1.0, 2.0, 3.0]))
    with pytest.raises(InputError, match=r"is time: start or time\? Give its name as `time`"):
        check(d, LAW)


def test_a_forecast_of_one_reference_time_runs_along_its_steps():
    valid = ("step", DAYS[0] + HOURS, {"standard_name": "time"})
    d = forecast(valid_time=(("step"), *valid[1:])).isel(time=0)
    assert time_remark(d).startswith("time: step (forecast_period); total of the earliest, 0 h")
    analyses = forecast().isel(step=0)
    assert time_remark(analyses).startswith("time: time (forecast_reference_time); total")


def test_members_with_reference_times_of_their_own_are_not_time():
    late = ("number", DAYS, REFERENCE)
    d = made("number", "time", number=("number", [0, 1, 2]), time=("time", DAYS), start=late)
    out = enforce(d, LAW, member="number")
    np.testing.assert_allclose(sums(out), sums(d)[:, :1] + np.zeros(3), rtol=1e-12)


@pytest.mark.parametrize(
    "coordinate",
    [
        ([3.0, 5.0, 4.0], {"axis": "T"}),
        ([3.0, 5.0, 4.0], {"standard_name": "time"}),
        ([3.0, 5.0, 4.0], {"units": "days since 2000-01-01"}),
        ([3.0, 5.0, 4.0], {"units": "hours"}),
        (DAYS[[0, 2, 1]], {}),
        ([cftime.Datetime360Day(2000, 2, day) for day in (28, 30, 29)], {}),
    ],
    ids=["axis", "standard_name", "since", "hours", "dates", "cftime"],
)
def test_time_is_found_whatever_it_is_called(coordinate):
    d = made("lev", "n", lev=("lev", [1.0, 2.0], {"units": "m"}), n=("n", *coordinate))
    assert check(d, LAW).budgets[0].time == "n"


@pytest.mark.parametrize("order", [[2, 0, 1], [2, 1, 0]])
@pytest.mark.parametrize("times", [DAYS, np.array([1.0, 2.0, 4.0])], ids=["dates", "numbers"])
def test_the_initial_total_is_that_of_the_earliest_time(times, order):
    d = made("time", time=("time", times)).isel(time=order)
    first = order.index(0)
    np.testing.assert_allclose(sums(enforce(d, LAW, std=1.0)), sums(d)[first], rtol=1e-13)
    assert time_remark(d).endswith(f"{'2000-01-01' if times is DAYS else 1} (entry {first})")


def test_two_entries_at_the_earliest_time_are_told():
    d = made("time", time=("time", [4.0, 1.0, 1.0]))
    np.testing.assert_allclose(sums(enforce(d, LAW, std=1.0)), sums(d)[1], rtol=1e-13)
    assert time_remark(d).endswith("the earliest, 1 (entry 1, the first of 2 at that time)")


def test_a_missing_time_has_no_earliest():
    d = made("time", time=("time", [1.0, np.nan, 0.0]))
    with pytest.raises(InputError, match="'time' is time and has entries that are missing"):
        check(d, LAW)


@pytest.mark.parametrize("calendar", ["standard", "noleap", "360_day"])
def test_times_that_were_not_decoded_are_the_same_times(calendar):
    attrs = {"units": "days since 2000-02-28", "calendar": calendar, "bounds": "time_bnds"}
    d = made("time", time=("time", [0.0, 2.0, 3.5], attrs))
    d["time_bnds"] = ("time", "n"), [[-1.0, 0.0], [0.0, 2.0], [2.0, 3.5]]
    mean = {"cell_methods": "time: mean", "units": "s-1"}
    d["rate"] = xr.DataArray([9.0, 1.0, 2.0], dims="time", attrs=mean)
    law = FileLaw("u", "x", inflow="rate", measure=1.0)
    raw, read = check(d, law).budgets[0], check(xr.decode_cf(d), law).budgets[0]
    assert raw.remarks == read.remarks
    np.testing.assert_allclose(raw.total, read.total, rtol=1e-13)
    np.testing.assert_allclose(raw.total, sums(d)[0] + 86400 * np.array([0, 2, 5]), rtol=1e-13)
    bare = xr.decode_cf(d)["rate"].drop_attrs(deep=False).assign_attrs(units="s-1")
    given = FileLaw("u", "x", inflow=bare, measure=1.0)
    assert np.isfinite(check(d, given).budgets[0].total).all()
    lengths = [files.cell_measure(each, "u", "time") for each in (d, xr.decode_cf(d))]
    np.testing.assert_allclose(*lengths)
    assert [each.units for each in lengths] == ["s", "s"]
    assert d.time.dtype == float  # the input stays as it was
    assert enforce(d, law, std=1.0).time.dtype == float


@pytest.mark.parametrize("unit", ["day as %Y%m%d.%f", "months since 2000-01-01", "years_and_days"])
def test_units_that_cannot_be_decoded_are_no_clock_for_rates(unit):
    attrs = {"units": unit, "standard_name": "time"}
    d = made("time", time=("time", [20000103.0, 20000101.0, 20000102.0], attrs))
    assert "(entry 1)" in time_remark(d)
    with pytest.raises(InputError, match=f"the units '{unit}' of 'time' cannot be decoded"):
        check(d, FileLaw("u", "x", inflow=1.0, measure=1.0))


def test_the_clock_runs_in_seconds_where_times_have_a_unit():
    d = made("time", time=("time", [0, 6, 12], {"units": "hours"}))
    one = {"inflow": 1.0, "measure": 1.0, "assume_units": {"inflow": "s-1"}}
    total = check(d, FileLaw("u", "x", 0.0, **one)).budgets[0].total
    np.testing.assert_allclose(total, [0.0, 21600.0, 43200.0])
    counted = d.assign_coords(time=[0, 6, 12])
    total = check(counted, FileLaw("u", "x", 0.0, inflow=1.0, measure=1.0)).budgets[0].total
    np.testing.assert_allclose(total, [0.0, 6.0, 12.0])


def test_a_time_that_no_dimension_has_is_refused_also_where_it_is_not_used():
    with pytest.raises(InputError, match=r"`time` must be one of time, x; got 'tim'\. Did you"):
        check(made("time", time=("time", DAYS)), FileLaw("u", "x", 9.0, measure=1.0, time="tim"))


def test_an_array_may_bring_times_that_are_decoded_or_not():
    d = made("time", time=("time", [0.0, 2.0, 3.5], {"units": "days since 2000-02-28"}))
    read = xr.decode_cf(d)
    for dataset, other in ((d, read), (read, d), (d, d)):
        law = FileLaw("u", "x", where=other.u > 0, measure=1.0)
        assert np.isfinite(check(dataset, law, std=abs(other.u)).budgets[0].total).all()
