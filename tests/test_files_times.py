"""Amounts, means and running totals in the layouts of ERA5 and WeatherBench2, against NumPy."""

from functools import partial

import numpy as np
import pytest
import xarray as xr
from commands import called

from probconserv.errors import InputError
from probconserv.files import FileLaw, check, moisture

pytestmark = pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")

START = np.datetime64("2020-01-01", "ns")
HOUR = np.timedelta64(3_600_000_000_000, "ns")
LAT, LON = np.array([60.0, 0.0, -60.0]), np.arange(0.0, 360, 90)
HEIGHTS = np.diff(np.sin(np.radians([-90.0, -30, 30, 90])))
AREA = np.repeat(HEIGHTS[:, None], 4, 1) * np.pi / 2 * 6371229.0**2
SPACE = ("latitude", "longitude")


def grib(name, kind, unit, number=0):
    return {
        "GRIB_paramId": number,
        "GRIB_shortName": name,
        "GRIB_stepType": kind,
        "GRIB_units": unit,
        "units": unit,
        "standard_name": "unknown",
    }


def era5(hours=(0, 1, 2, 3), seed=0):
    """What the Climate Data Store writes since 2024: valid_time, number, expver, GRIB's words."""
    rng, n = np.random.default_rng(seed), len(hours)

    def made(low, high):
        return ("valid_time", *SPACE), rng.uniform(low, high, (n, 3, 4))

    coords = {
        "valid_time": ("valid_time", START + np.array(hours) * HOUR, {"standard_name": "time"}),
        "latitude": ("latitude", LAT, {"units": "degrees_north"}),
        "longitude": ("longitude", LON, {"units": "degrees_east"}),
        "number": 0,
        "expver": ("valid_time", ["0001"] * n),
    }
    variables = {
        "tcwv": (*made(10, 20), grib("tcwv", "instant", "kg m**-2")),
        "tp": (*made(0, 1e-3), grib("tp", "accum", "m", 228)),
        "e": (*made(-1e-3, 0), grib("e", "accum", "m of water equivalent", 182)),
        "avg_tprate": (*made(0, 1e-4), grib("avg_tprate", "avg", "kg m**-2 s**-1", 235055)),
        "avg_ie": (*made(-1e-4, 0), grib("avg_ie", "avg", "kg m**-2 s**-1", 235043)),
        "rate": (*made(0, 1e-4), grib("rate", "instant", "kg m**-2 s**-1")),
    }
    return xr.Dataset(variables, coords, {"GRIB_centre": "ecmf", "Conventions": "CF-1.7"})


def summed(dataset, name):
    return (dataset[name].values * AREA).sum((-2, -1))


def law(**how):
    return FileLaw("tcwv", SPACE, **how)


def budget(dataset, **how):
    return check(dataset, law(**how)).budgets[0]


def gain(dataset, **how):
    return budget(dataset, total=0.0, **how).total


def test_hourly_amounts_and_mean_rates_of_era5_are_of_the_hour_that_ends_at_the_time():
    d = era5()
    lost = 1000 * (summed(d, "tp") + summed(d, "e"))
    found = budget(d, total=0.0, outflow=("tp", "e"))
    np.testing.assert_allclose(found.total, -np.cumsum([0, *lost[1:]]), rtol=1e-12)
    said = "amounts of the 1 h that end at each time (GRIB_stepType accum, ERA5)"
    assert f"outflow tp: {said}" in found.remarks
    rate = 3600 * (summed(d, "avg_tprate") + summed(d, "avg_ie"))
    means = budget(d, total=0.0, outflow=("avg_tprate", "avg_ie"))
    np.testing.assert_allclose(means.total, -np.cumsum([0, *rate[1:]]), rtol=1e-12)
    assert any("means of the 1 h that end at each time" in each for each in means.remarks)


def test_a_closed_budget_of_era5_closes_from_the_command_line(tmp_path):
    d = era5()
    for i in range(1, 4):
        d.tcwv[i] = d.tcwv[i - 1] - 1000 * (d.tp[i] + d.e[i]).values
    d.to_netcdf(tmp_path / "era5.nc")
    words = ("--mean", "tcwv", "--over", "latitude", "longitude", "--outflow", "tp", "e")
    done = called("check", tmp_path / "era5.nc", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 m of water" in done.stdout or "1e3 kg m-2" in done.stdout


def test_instant_values_of_grib_are_point_values():
    d = era5([0, 1, 3])
    r = summed(d, "rate")
    wanted = 3600 * np.array([0, (r[0] + r[1]) / 2, (r[0] + r[1]) / 2 + r[1] + r[2]])
    np.testing.assert_allclose(gain(d, inflow="rate"), wanted, rtol=1e-12)


@pytest.mark.parametrize("name", ["tp", "avg_tprate"])
def test_hours_of_era5_that_are_left_out_are_refused_with_the_way_out(name):
    d = era5([0, 6, 12])
    with pytest.raises(InputError, match=rf"`outflow {name}`.*leave out.*1 h .*`assume_method="):
        gain(d, outflow=name)
    kind, by = ("sum", 1000) if name == "tp" else ("mean", 6 * 3600)
    found = gain(d, outflow=name, assume_method={name: f"{kind}:end"})
    np.testing.assert_allclose(found, -np.cumsum([0, *by * summed(d, name)[1:]]), rtol=1e-12)


def test_amounts_of_the_ensemble_of_era5_are_of_three_hours():
    d = era5([0, 3, 6])
    both = xr.concat([d, era5([0, 3, 6], seed=1)], "number", data_vars=["tcwv", "tp"])
    found = gain(both, outflow="tp").transpose("number", ...)
    wanted = [-np.cumsum([0, *each[1:]]) for each in 1000 * summed(both, "tp")]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_a_mean_of_grib_without_an_interval_is_of_the_time_before_and_how_to_say_otherwise():
    d = era5([0, 6, 18]).drop_vars("expver")
    found = budget(d, total=0.0, inflow="avg_tprate")
    r = 3600 * summed(d, "avg_tprate")
    np.testing.assert_allclose(found.total, np.cumsum([0, 6 * r[1], 12 * r[2]]), rtol=1e-12)
    said = "means, taken since the time before (GRIB_stepType avg; "
    way = "`assume_method={'avg_tprate': 'mean:middle'}` says otherwise)"
    assert f"inflow avg_tprate: {said}{way}" in found.remarks


def test_means_are_known_by_the_names_of_era5():
    d = era5([0, 6, 18]).drop_vars("expver")
    d["mean_rate"] = d.avg_tprate.drop_attrs()
    d.mean_rate.attrs = {"units": "kg m-2 s-1", "long_name": "Mean total precipitation rate"}
    wanted = gain(d, inflow="avg_tprate")
    np.testing.assert_allclose(gain(d, inflow="mean_rate"), wanted, rtol=1e-12)
    d["mtpr"] = d.mean_rate.assign_attrs(long_name="")
    np.testing.assert_allclose(gain(d, inflow="mtpr"), wanted, rtol=1e-12)


@pytest.mark.parametrize(
    ("method", "cells"),
    [
        ("mean:end", [[0, 0], [0, 6], [6, 18], [18, 24]]),
        ("mean:start", [[0, 6], [6, 18], [18, 24], [24, 24]]),
        ("mean:middle", [[-3, 3], [3, 12], [12, 21], [21, 27]]),
        ("mean", [[-3, 3], [3, 12], [12, 21], [21, 27]]),
    ],
)
def test_the_interval_of_a_mean_can_be_stated(method, cells):
    hours = [0, 6, 18, 24]
    d = era5(hours)
    r = 3600 * summed(d, "rate")
    shares = [[max(0, min(b, h) - max(a, 0)) for a, b in cells] for h in hours]
    found = gain(d, inflow="rate", assume_method={"rate": method})
    np.testing.assert_allclose(found, np.array(shares) @ r, rtol=1e-12)


@pytest.mark.parametrize(("method", "first"), [("sum", 1), ("sum:end", 1), ("sum:start", 0)])
def test_amounts_end_or_begin_at_the_time_whatever_the_order(method, first):
    d = era5([0, 6, 18]).isel(valid_time=[2, 0, 1])
    d.tp.attrs = {"units": "kg m-2"}
    amounts = summed(d, "tp")[[1, 2, 0]]
    found = gain(d, inflow="tp", assume_method={"tp": method})
    steps = np.cumsum([0, *amounts[first : first + 2]])
    np.testing.assert_allclose(found, steps[[2, 0, 1]], rtol=1e-12)


def test_what_is_stated_counts_before_cell_methods_and_bounds():
    d = era5([0, 6, 18])
    d.rate.attrs["cell_methods"] = "time: point"
    d["bounds"] = ("valid_time", "n"), START + np.array([[0, 6], [6, 18], [18, 24]]) * HOUR
    d.valid_time.attrs["bounds"] = "bounds"
    r = 3600 * summed(d, "rate")
    ends = gain(d, inflow="rate", assume_method={"rate": "mean:end"})
    np.testing.assert_allclose(ends, np.cumsum([0, 6 * r[1], 12 * r[2]]), rtol=1e-12)
    within = gain(d, inflow="rate", assume_method={"rate": "mean"})
    np.testing.assert_allclose(within, np.cumsum([0, 6 * r[0], 12 * r[1]]), rtol=1e-12)


def forecast(steps=(0, 6, 18), seed=0):
    """What cfgrib makes of a forecast: time, step, and totals since its start."""
    d = era5([0, 24], seed).drop_vars("expver").rename(valid_time="time")
    steps = np.array(steps) * HOUR
    d = d.expand_dims(step=len(steps), axis=1).copy(deep=True)
    rng = np.random.default_rng(seed)
    for name in ("tcwv", "tp"):
        grown = rng.uniform(0, 1e-3, d[name].shape).cumsum(1)
        d[name] = d[name].dims, grown, d[name].attrs
    d["step"] = "step", steps, {"standard_name": "forecast_period"}
    d.time.attrs["standard_name"] = "forecast_reference_time"
    return d.drop_vars(["e", "avg_tprate", "avg_ie", "rate"])


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
@pytest.mark.parametrize("lazy", [False, True])
def test_amounts_along_the_steps_of_a_forecast_are_totals_since_its_start(order, lazy):
    d = forecast().isel(step=order)
    totals = summed(d, "tp")
    d.tp.attrs["units"] = "kg m-2"
    found = budget(d.chunk(step=1, time=1) if lazy else d, total=0.0, outflow="tp")
    first = order.index(0)
    wanted = totals[:, [first]] - totals
    np.testing.assert_allclose(found.total.transpose("time", "step"), wanted, rtol=1e-9, atol=1e-3)
    assert any("a total since the start of the run" in each for each in found.remarks)


def test_a_running_total_of_rain_that_falls_is_refused():
    d = forecast((1, 2, 3))
    d["tp"] = (
        d.tp.dims,
        d.tp.values[:, ::-1] * [[[[1]], [[3]], [[2]]]],
        d.tp.attrs | {"units": "kg m-2"},
    )
    with pytest.raises(InputError, match=r"`outflow tp` both rises and falls.*'sum:end'"):
        gain(d, outflow="tp")
    amounts = summed(d, "tp")
    found = gain(d, outflow="tp", assume_method={"tp": "sum:end"}).transpose("time", "step")
    np.testing.assert_allclose(found[:, 1:], -np.cumsum(amounts[:, 1:], axis=1), rtol=1e-12)


def test_a_running_total_can_be_stated():
    d = era5([0, 6, 18])
    d["total"] = ("valid_time", [5.0, 7.0, 11.0], {"units": "kg"})
    with pytest.raises(InputError, match=r"`inflow total` is in 'kg', an amount.*'sum:end'"):
        gain(d, inflow="total")
    found = gain(d, inflow="total", assume_method={"total": "running"})
    np.testing.assert_allclose(found, [0, 2, 6])


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"expver": None}, "GRIB_stepType 'accum', which does not say since when.*'sum:end'"),
        ({"centre": "kwbc"}, "GRIB_stepType 'accum', which does not say since when"),
        ({"kind": "max"}, "GRIB_stepType 'max', which is not known here"),
        ({"land": 0.1}, "has the grid of ERA5-Land, which counts from 00 UTC of each day"),
    ],
)
def test_amounts_of_which_nothing_tells_the_interval_are_refused(change, rule):
    d = era5()
    d = d.drop_vars("expver") if "expver" in change else d
    d.attrs["GRIB_centre"] = change.get("centre", "ecmf")
    d.tp.attrs["GRIB_stepType"] = change.get("kind", "accum")
    d = d.assign_coords(longitude=np.arange(4) * 0.1) if "land" in change else d
    with pytest.raises(InputError, match=f"`outflow tp` .*{rule}"):
        gain(d, outflow="tp")


def test_an_amount_in_place_of_a_rate_is_pointed_to_sum_and_a_rate_to_mean():
    d = era5().drop_vars("expver")
    d.tp.attrs, d.rate.attrs = {"units": "kg m-2"}, {"units": "kg m-2 s-1"}
    with pytest.raises(
        InputError, match=r"`outflow tp` is in 'kg m-2', an amount.*'tp': 'sum:end'"
    ):
        gain(d, outflow="tp")
    d.tp.attrs = {"units": "m"}
    with pytest.raises(
        InputError, match=r"'sum:end'.*As water it is in `assume_units=.*1e3 kg m-2"
    ):
        gain(d, outflow="tp")
    with pytest.raises(InputError, match=r"As water it is in `assume_units="):
        gain(d, outflow="tp", assume_method={"tp": "sum"})
    with pytest.raises(InputError, match=r"`inflow rate` is in .*, a rate, .*'rate': 'mean'"):
        gain(d, inflow="rate", assume_method={"rate": "sum"})
    units = {"tp": "1e3 kg m-2"}
    found = gain(d, outflow="tp", assume_units=units, assume_method={"tp": "sum"})
    np.testing.assert_allclose(found, -np.cumsum([0, *1000 * summed(d, "tp")[1:]]), rtol=1e-12)


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ("tp=sum", r"`assume_method` must be methods by name"),
        ({"tp": "sums"}, r"`assume_method` of `tp` must be one of point, mean, .*; got 'sums'"),
        ({"rain": "sum"}, r"`assume_method`: 'rain' is no rate of tcwv. There are: tp"),
    ],
)
def test_methods_that_are_not_known_or_of_no_rate_are_refused(given, rule):
    with pytest.raises(InputError, match=rule):
        gain(era5(), outflow="tp", assume_method=given)


def test_means_and_amounts_of_files_of_grib_to_netcdf_can_be_stated(tmp_path):
    """The layout before 2024: packed shorts, hours since 1900, no word of GRIB."""
    d = era5([0, 1, 2, 3]).drop_vars(["expver", "number"]).rename(valid_time="time")
    d = d[["tcwv", "tp"]]
    d.attrs, d.tp.attrs = {"history": "grib_to_netcdf-2.16.0"}, {"units": "m"}
    d.tcwv.attrs = {"units": "kg m**-2"}
    how = {"dtype": "i2", "add_offset": 0.0005, "scale_factor": 1e-7, "_FillValue": -32767}
    clock = {"units": "hours since 1900-01-01 00:00:00.0", "dtype": "i4"}
    d.to_netcdf(tmp_path / "old.nc", encoding={"tp": how, "time": clock})
    words = ("check", tmp_path / "old.nc", "--mean", "tcwv", "--over", *SPACE, "--outflow", "tp")
    first = called(*words, columns=999)
    assert "--assume-method tp='sum:end'" in first.stderr
    assert "--assume-units tp='1e3 kg m-2'" in first.stderr
    said = ("--assume-method", "tp=sum:end", "--assume-units", "tp=1e3 kg m-2", "--format", "csv")
    done = called(*words, *said)
    stored = xr.open_dataset(tmp_path / "old.nc")
    wanted = summed(d, "tcwv")[0] - np.cumsum([0, *1000 * summed(stored, "tp")[1:]])
    totals = [float(line.split(",")[2]) for line in done.stdout.splitlines()[1:]]
    np.testing.assert_allclose(totals, wanted, rtol=1e-9)
    laws = tmp_path / "laws.toml"
    laws.write_text(
        '[[law]]\nvariables = "tcwv"\nover = ["latitude", "longitude"]\noutflow = "tp"\n'
        'assume_method = {tp = "sum:end"}\nassume_units = {tp = "1e3 kg m-2"}\n'
    )
    from_file = called("check", tmp_path / "old.nc", "--laws", laws, "--format", "csv")
    assert from_file.stdout == done.stdout


def weatherbench(unit=None):
    """Forecasts without attributes: dates of the start, hours ahead, levels in hPa."""
    rng = np.random.default_rng(3)
    dims = ("time", "prediction_timedelta", "level", *SPACE[::-1])
    flat = tuple(dim for dim in dims if dim != "level")
    coords = {
        "time": START + np.array([0, 12]) * HOUR,
        "prediction_timedelta": ("prediction_timedelta", np.array([6, 12, 18]) * HOUR),
        "level": [100, 500, 1000],
        "longitude": LON,
        "latitude": LAT[::-1],
    }
    low, high = {"t": 0.0, "q": 1e-3, "p": 9.7e4}, {"t": 1e-3, "q": 1e-2, "p": 1.02e5}
    made = {
        key: rng.uniform(low[key], high[key], (2, 3, *([3] if key == "q" else []), 4, 3))
        for key in low
    }
    return xr.Dataset(
        {
            "specific_humidity": (dims, made["q"]),
            "surface_pressure": (flat, made["p"]),
            "total_precipitation_6hr": (flat, made["t"]),
        },
        coords,
    )


def water(d):
    """kg of vapour, (time, prediction_timedelta), cells half way between levels."""
    ps = d.surface_pressure.values[:, :, None]
    edges = np.array([0.0, 3e4, 7.5e4, np.inf])[:, None, None]
    dp = np.diff(np.minimum(edges, ps), axis=2)
    return (d.specific_humidity.values * dp / 9.80665 * AREA.T).sum((2, 3, 4))


UNITS = {"level": "hPa", "specific_humidity": "kg kg-1", "surface_pressure": "Pa"}
RAIN = {"total_precipitation_6hr": "1e3 kg m-2"}


@pytest.mark.parametrize("ending", ["nc", "zarr"])
@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_messages_lead_to_moisture_of_weatherbench_in_two_tries(tmp_path, ending):
    d, path = weatherbench(), tmp_path / f"in.{ending}"
    d.to_netcdf(path) if ending == "nc" else d.to_zarr(path)
    words = ("check", path, "--law", "moisture", "--outflow", "total_precipitation_6hr")
    first = called(*words, columns=999)
    units = [f"{name}='{unit}'" for name, unit in (UNITS | RAIN).items()]
    assert f"`--assume-units {' '.join(units)}`" in first.stderr
    said = called(
        *words, "--assume-units", *(each.replace("'", "") for each in units), "--format", "csv"
    )
    rain = 1000 * (d.total_precipitation_6hr.values * AREA.T).sum((2, 3))
    wanted = water(d)[:, :1] - np.cumsum(rain, axis=1) + rain[:, :1]
    totals = [float(line.split(",")[3]) for line in said.stdout.splitlines()[1:]]
    np.testing.assert_allclose(totals, wanted.ravel(), rtol=1e-9)


def test_levels_below_ground_at_some_times_are_not_missing_points():
    d = weatherbench()
    d.surface_pressure[0, 0], d.surface_pressure[1:] = 6e4, 1e5  # the lowest layer begins at 7.5e4
    law = partial(moisture, assume_units=UNITS)
    assert "points are missing" not in " ".join(check(d, law).warnings)
    d.specific_humidity[0, 1, 0, 0, 0] = np.nan
    assert "points are missing at some times" in " ".join(check(d, law).warnings)


def test_time_goes_with_laws_of_the_air_everywhere(tmp_path):
    d = weatherbench().rename(prediction_timedelta="step")
    d.to_netcdf(tmp_path / "in.nc")
    units = [f"{name}={unit}" for name, unit in UNITS.items()]
    words = ("check", tmp_path / "in.nc", "--law", "moisture", "--assume-units", *units)
    asked = called(*words)
    assert "is time: time or step? Give its name as `--time`" in " ".join(asked.stderr.split())
    done = called(*words, "--time", "step", "--format", "csv")
    totals = [float(line.split(",")[3]) for line in done.stdout.splitlines()[1:]]
    np.testing.assert_allclose(totals, np.repeat(water(d)[:, 0], 3), rtol=1e-12)
    table = ", ".join(f'{name} = "{unit}"' for name, unit in UNITS.items())
    text = f'[[law]]\nrecipe = "moisture"\ntime = "step"\nassume_units = {{{table}}}\n'
    (tmp_path / "laws.toml").write_text(text)
    again = called("check", tmp_path / "in.nc", "--laws", tmp_path / "laws.toml", "--format", "csv")
    assert again.stdout == done.stdout
    found = check(d, moisture(d, UNITS, time="step")).budgets[0].total
    np.testing.assert_allclose(found, np.repeat(water(d)[:, :1], 3, 1), rtol=1e-12)


def test_lead_times_of_weatherbench_are_time_also_without_units():
    d = weatherbench().assign_coords(prediction_timedelta=[6, 12, 18])
    found = check(d, moisture(d, UNITS)).budgets[0]
    assert found.time == "prediction_timedelta"
    assert any("each time a run of its own" in each for each in found.remarks)


def test_areas_and_the_radius_go_with_laws_of_the_air(tmp_path):
    d = weatherbench()
    areas = xr.DataArray(AREA.T / 2, dims=("longitude", "latitude"), attrs={"units": "m2"})
    half = check(d, moisture(d, UNITS, measure=areas)).budgets[0].total
    np.testing.assert_allclose(half, np.repeat(water(d)[:, :1], 3, 1) / 2, rtol=1e-12)
    d.to_netcdf(tmp_path / "in.nc")
    areas.rename("area").to_netcdf(tmp_path / "areas.nc")
    units = [f"{name}={unit}" for name, unit in UNITS.items()]
    words = ("check", tmp_path / "in.nc", "--law", "moisture", "--format", "csv")
    words = (*words, "--assume-units", *units)
    done = called(*words, "--measure", f"{tmp_path}/areas.nc:area")
    totals = [float(line.split(",")[3]) for line in done.stdout.splitlines()[1:]]
    np.testing.assert_allclose(totals, half.values.ravel(), rtol=1e-12)
    small = called(*words, "--radius", str(6371229 / 2))
    totals = [float(line.split(",")[3]) for line in small.stdout.splitlines()[1:]]
    np.testing.assert_allclose(totals, half.values.ravel() / 2, rtol=1e-12)


def test_fluxes_of_a_law_of_the_air_are_those_of_one_and_of_its_kind(tmp_path):
    d = weatherbench()
    with pytest.raises(InputError, match=r"'1e3 kg m-2'"):
        moisture(d, UNITS, outflow="total_precipitation_6hr")
    d.to_netcdf(tmp_path / "in.nc")
    words = ("check", tmp_path / "in.nc", "--outflow", "total_precipitation_6hr", "--law")
    assert "go with one `--law`" in called(*words, "moisture", "energy", columns=999).stderr
    assert "`--law` replaces `--outflow`" in called(*words, "dry-air", columns=999).stderr
    with pytest.raises(InputError, match=r"`inflow` .*no variable 'evap'|`inflow`: no variable"):
        moisture(d, UNITS, inflow="evap")


def test_options_that_do_not_go_with_laws_of_the_air_are_said_to(tmp_path):
    d = weatherbench().isel(prediction_timedelta=[0, 1])
    d.specific_humidity[:, 0] = np.nan
    d.to_netcdf(tmp_path / "in.nc")
    units = [f"{name}={unit}" for name, unit in UNITS.items()]
    words = ("check", tmp_path / "in.nc", "--law", "moisture", "--assume-units", *units)
    text = called(*words, columns=999).stderr
    assert "`--total` is 'initial', but moisture has no data at the first" in text
    assert "`--total` goes with `--mean` and `--over`, not with `--law`" in text
