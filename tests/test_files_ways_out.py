"""What a message proposes, taken as it is written, leads to the right numbers."""

import re

import numpy as np
import pytest
import xarray as xr
from air import AREA, GRID, air

from probconserv import InputError
from probconserv.files import Law, check, moisture

LAT, LON = np.array([-60.0, 0.0, 60.0]), np.arange(0.0, 360, 90)
HOURS = np.array(["2000-01-01T00", "2000-01-01T06", "2000-01-01T12"], "datetime64[ns]")


def asked(dataset, law):
    """The totals that a law asks for."""
    return [row["total"] for row in check(dataset, law).rows()]


def proposed(error):
    """The units that a message says."""
    entries = re.findall(r"assume_units=({.*?})`", str(error))
    return {k: v for each in entries for k, v in re.findall(r"'([^']+)': '([^']+)'", each)}


@pytest.mark.parametrize(("unit", "of_kg"), [("m", 1e3), ("mm", 1.0), ("cm", 10.0)])
def test_the_unit_that_is_proposed_for_a_depth_of_water_is_its_own(unit, of_kg):
    rain, column = np.random.default_rng(0).uniform(1, 2, (2, 3, 3, 4))
    dims, coords = ("time", "lat", "lon"), {"time": HOURS, "lat": LAT, "lon": LON}
    rates = {"rain": (dims, rain / of_kg, {"units": unit})}
    d = xr.Dataset({"vapour": (dims, column, {"units": "kg m-2"})} | rates, coords)
    law = {"outflow": "rain", "assume_method": {"rain": "sum:end"}}
    with pytest.raises(InputError) as error:
        check(d, Law("vapour", dims[1:], **law))
    found = asked(d, Law("vapour", dims[1:], **law, assume_units=proposed(error.value)))
    lost = np.cumsum([0, *(rain * AREA).sum((1, 2))[1:]])
    np.testing.assert_allclose(found, (column[0] * AREA).sum() - lost, rtol=1e-12)


@pytest.mark.parametrize(("unit", "of_kg"), [("m s-1", 1e3), ("mm/hour", 1 / 3600)])
def test_the_unit_that_is_proposed_for_a_rate_of_rain_is_its_own(unit, of_kg):
    d = air(pr=(1e-5, 4e-5, "kg m-2 s-1", "", GRID))
    expected = asked(d, moisture(d, outflow="pr"))
    d["pr"] = (d.pr / of_kg).assign_attrs(units=unit)
    with pytest.raises(InputError, match="if it is water") as error:
        moisture(d, outflow="pr")
    law = moisture(d, proposed(error.value), outflow="pr")
    np.testing.assert_allclose(asked(d, law), expected, rtol=1e-12)


def test_what_lacks_in_several_fluxes_of_the_air_is_said_at_once():
    d = air(rain=(1e-5, 4e-5, "m s-1", "", GRID), dew=(1e-5, 4e-5, "", "", GRID))
    with pytest.raises(InputError) as error:
        moisture(d, inflow="dew", outflow="rain")
    assert proposed(error.value) == {"dew": "kg m-2 s-1", "rain": "1e3 kg m-2 s-1"}


def wrf(path):
    """Wrf writes dates beside its times."""
    dims, rng = ("Time", "south_north", "west_east"), np.random.default_rng(0)
    water, rain = rng.uniform(10, 20, (3, 2, 4)), rng.uniform(0, 1, (3, 2, 4))
    minutes = {"units": "minutes since 2000-01-01 00:00:00"}
    fields = {"PW": (dims, water, {"units": "kg m-2"}), "QFX": (dims, rain, {"units": "kg/m2/h"})}
    d = xr.Dataset(fields, {"XTIME": ("Time", [0.0, 60, 180], minutes)})
    d.to_netcdf(path)
    return water.sum((1, 2)), rain.sum((1, 2))


def test_rates_find_the_dates_beside_a_time_without_a_coordinate(tmp_path):
    water, rain = wrf(tmp_path / "wrf.nc")
    law = Law("PW", ("south_north", "west_east"), inflow="QFX", measure=1)
    with xr.open_dataset(tmp_path / "wrf.nc") as d:
        gained = np.array([0, (rain[0] + rain[1]) / 2, (rain[0] + rain[1]) / 2 + rain[1] + rain[2]])
        np.testing.assert_allclose(asked(d, law), water[0] + gained, rtol=1e-12)
        assert "time: Time (by its name, dates of XTIME); total of the earliest, 2000" in str(
            check(d, law)
        )


def test_times_that_nothing_tells_are_an_error_with_the_way_out(tmp_path):
    wrf(tmp_path / "wrf.nc")
    d = xr.open_dataset(tmp_path / "wrf.nc").drop_vars("XTIME")
    with pytest.raises(InputError, match=r"'Time' has no coordinate. Write one: ds.assign_coords"):
        check(d, Law("PW", ("south_north", "west_east"), inflow="QFX", measure=1))
