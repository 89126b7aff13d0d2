"""What a message proposes, taken as it is written, leads to the right numbers."""

import re
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from air import AREA, GRID, air

from probconserv.errors import InputError
from probconserv.files import FileLaw, check, describe, moisture, totals

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
        check(d, FileLaw("vapour", dims[1:], **law))
    found = asked(d, FileLaw("vapour", dims[1:], **law, assume_units=proposed(error.value)))
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
    law = FileLaw("PW", ("south_north", "west_east"), inflow="QFX", measure=1)
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
        check(d, FileLaw("PW", ("south_north", "west_east"), inflow="QFX", measure=1))


def plain(names, angles=((), ()), mapping=None):
    """A field on the whole globe, of which nothing says so but names and attributes."""
    lat, lon = np.linspace(-75, 75, 6), np.linspace(0, 315, 8)
    attrs = {"grid_mapping": mapping} if mapping else {}
    u = np.random.default_rng(0).uniform(1, 2, (6, 8))
    said = [dict(each) for each in angles]
    coords = {name: (name, x, a) for name, x, a in zip(names, (lat, lon), said, strict=True)}
    return xr.Dataset({"u": (names, u, attrs)}, coords)


@pytest.mark.parametrize(
    "d",
    [
        plain(("y", "x")),
        plain(("y", "x"), mapping="crs").isel(y=slice(1, 4)),
        plain(("j", "i"), ([("long_name", "Latitude")], [("long_name", "Longitude")])),
        plain(("nlat", "nlon")).isel(nlon=slice(3)),
        plain(("lat", "lon"), ([("units", "degrees north")], [("units", "degrees east")])),
        plain(("lat", "lon"), ([("units", "1")], [("units", "none")])),
        plain(("y", "x"), ([("standard_name", "latitude"), ("units", "degN")], [("axis", "X")])),
    ],
    ids=["globe", "lost mapping", "long names", "names", "words", "numbers", "standard name"],
)
def test_angles_without_a_unit_are_not_weighed_as_lengths(d):
    law = FileLaw("u", tuple(map(str, d.u.dims)), total=0.0)
    with pytest.raises(InputError, match=r"has .*, and .* if it is a length, 'm'") as error:
        check(d, law)
    found = totals(d, replace(law, assume_units=proposed(error.value)))
    y, x = (d[name].values for name in d.u.dims)
    ends = np.clip([y - 15, y + 15], -90, 90)
    zones = np.diff(np.sin(np.radians(ends)), axis=0)[0] * np.radians(x[1] - x[0]) * 6371229.0**2
    np.testing.assert_allclose(found, (d.u.values * zones[:, None]).sum(), rtol=1e-12)


def test_radians_without_a_unit_are_asked_about():
    d = plain(("lat", "lon"))
    expected = totals(d, FileLaw("u", ("lat", "lon"), total=0.0))
    d = d.assign_coords({name: np.radians(d[name].values) for name in d.coords})
    with pytest.raises(InputError, match=r"'lat' has no units.*in radians") as error:
        check(d, FileLaw("u", ("lat", "lon"), total=0.0))
    found = totals(d, FileLaw("u", ("lat", "lon"), total=0.0, assume_units=proposed(error.value)))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("named", [True, False])
def test_numbers_with_fractions_beside_places_of_cells_are_no_lengths(named):
    d = plain(("y", "x")).assign_coords(y=np.arange(1.0, 7), x=np.arange(1.0, 9))
    y, x = np.meshgrid(np.linspace(-75, 75, 6), np.linspace(0, 315, 8), indexing="ij")
    d["nav_lat"] = (("y", "x"), y, {"units": "degrees_north"})
    d["nav_lon"] = (("y", "x"), x, {"units": "degrees_east"})
    d = d.set_coords(["nav_lat", "nav_lon"]) if named else d
    with pytest.raises(InputError, match=r"'nav_lat' and 'nav_lon' .*mesh_mask.nc:e1t\*e2t"):
        check(d, FileLaw("u", ("y", "x"), total=0.0))


def test_the_fake_latitudes_of_a_cubed_sphere_are_nominal():
    fake = [("units", "degrees_north"), ("long_name", "Fake Latitude for GrADS Compatibility")]
    d = plain(("Ydim", "Xdim"), (fake, [("units", "degrees_east")]))
    with pytest.raises(InputError, match="'Ydim' is a nominal latitude"):
        check(d, FileLaw("u", ("Ydim", "Xdim"), total=0.0))


def test_lengths_without_a_unit_stay_lengths():
    d = plain(("y", "x")).assign_coords(y=np.arange(6.0), x=np.arange(8.0))
    np.testing.assert_allclose(totals(d, FileLaw("u", ("y", "x"), total=0.0)), d.u.values.sum())


def test_the_inverse_of_an_area_is_refused():
    d = plain(("eta_rho", "xi_rho")).drop_vars(["eta_rho", "xi_rho"])
    d["pm"] = d["pn"] = d.u.assign_attrs(units="meter-1")
    law = FileLaw("u", ("eta_rho", "xi_rho"), total=0.0, measure="pm*pn")
    with pytest.raises(InputError, match=r"is in 'meter-2', the inverse of a size"):
        check(d, law)
    found = totals(d, replace(law, measure="1/(pm*pn)"))
    np.testing.assert_allclose(found, (1 / d.u.values).sum(), rtol=1e-12)


def test_the_first_variable_that_is_proposed_is_no_flux_and_no_part_of_a_mesh():
    d = plain(("lat", "lon"))
    d["flux"], d["tp_6h"] = d.u.assign_attrs(units="kg m-2 s-1"), d.u
    d["mesh"] = ((), 0, {"cf_role": "mesh_topology", "face_node_connectivity": "faces"})
    d["faces"] = d.u
    found = describe(d[["flux", "tp_6h", "u", "mesh", "faces"]])
    assert found.cells[0].variables[0] == "u"
    assert "faces" in found.others


def test_variables_of_cam_are_known_by_their_names():
    d = air()
    expected = totals(d, moisture(d))
    for name in ("q", "T", "ps"):
        del d[name].attrs["standard_name"]
    d.lev.attrs["formula_terms"] = "ap: ap b: b ps: PS"
    d.lev_bnds.attrs["formula_terms"] = "ap: ap_bnds b: b_bnds ps: PS"
    d = d.rename(q="Q", ps="PS")
    np.testing.assert_allclose(totals(d, moisture(d)), expected, rtol=1e-14)


def test_rain_since_the_start_of_a_run_of_wrf_is_pointed_to_running(tmp_path):
    wrf(tmp_path / "wrf.nc")
    with xr.open_dataset(tmp_path / "wrf.nc") as d:
        said = {"units": "kg m-2", "description": "ACCUMULATED TOTAL GRID SCALE PRECIPITATION"}
        d["RAINNC"] = d.QFX.cumsum("Time").assign_attrs(said)
        law = FileLaw("PW", ("south_north", "west_east"), outflow="RAINNC", measure=1)
        with pytest.raises(InputError, match=r"assume_method={'RAINNC': 'running'}` \(sum:end: "):
            check(d, law)
        lost = (d.RAINNC - d.RAINNC[0]).sum(d.PW.dims[1:]).values
        found = asked(d, replace(law, assume_method={"RAINNC": "running"}))
        np.testing.assert_allclose(found, float(d.PW[0].sum()) - lost, rtol=1e-12)


def test_a_running_total_may_have_latitudes_at_every_time(tmp_path):
    wrf(tmp_path / "wrf.nc")
    with xr.open_dataset(tmp_path / "wrf.nc") as d:
        y, x = np.meshgrid([40.0, 41.0], np.arange(4.0), indexing="ij")
        places = {"XLAT": (y, "degree_north"), "XLONG": (x, "degree_east")}
        for name, (at, unit) in places.items():
            d = d.assign_coords({name: (d.PW.dims, np.stack([at] * 3), {"units": unit})})
        law = FileLaw("PW", ("south_north", "west_east"), outflow="rain", measure=1)
        law = replace(law, assume_method={"rain": "running"})
        d["rain"] = d.QFX.cumsum("Time").assign_attrs(units="kg m-2")
        lost = (d.rain - d.rain[0]).sum(d.PW.dims[1:]).values
        np.testing.assert_allclose(asked(d, law), float(d.PW[0].sum()) - lost, rtol=1e-12)
        other = d.rain.assign_coords(XLAT=d.XLAT + 1.0)
        with pytest.raises(InputError, match="differ in 'XLAT'"):
            check(d.drop_vars("rain"), replace(law, outflow=other))
