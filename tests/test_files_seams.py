"""Where parts of the work on files meet: copies of cells, laws of the air, printed commands."""

import json
import shlex

import numpy as np
import pytest
import xarray as xr
from commands import called

from probconserv.errors import InputError
from probconserv.files import FileLaw, cell_measure, check, describe_file, moisture

TIMES = np.datetime64("2000-01-01", "ns") + np.arange(3) * np.timedelta64(6, "h")
LAT, LON = np.meshgrid(np.linspace(-60, 60, 5), np.arange(15.0, 360, 30), indexing="ij")
SIDE = {"units": "m"}


def wrapped(values):
    """With the first two columns again at the end, as NEMO has them."""
    return np.concatenate([values, values[..., :2]], -1)


def air():
    """Humidity on a grid with halo columns; fluxes per area; the lengths of cells."""
    rng = np.random.default_rng(1)
    q = rng.uniform(0.001, 0.02, (3, 2, *LAT.shape))
    ps = rng.uniform(98e3, 103e3, (3, *LAT.shape))
    flux = rng.uniform(1e-5, 1e-4, (3, *LAT.shape))
    flat, rate = ("time", "y", "x"), {"units": "kg m-2 s-1", "cell_methods": "time: mean"}
    return xr.Dataset(
        {
            "q": (("time", "lev", "y", "x"), wrapped(q), {"units": "kg kg-1"}),
            "ps": (flat, wrapped(ps), {"units": "Pa"}),
            "rain": (flat, wrapped(flux), rate),
            "e1": (("y", "x"), wrapped(1e5 * np.cos(np.deg2rad(LAT))), SIDE),
            "e2": (("y", "x"), wrapped(np.full(LAT.shape, 2e5)), SIDE),
        },
        {
            "time": TIMES,
            "lev": ("lev", [500.0, 850.0], {"units": "hPa", "positive": "down"}),
            "nav_lat": (("y", "x"), wrapped(LAT), {"units": "degrees_north"}),
            "nav_lon": (("y", "x"), wrapped(LON), {"units": "degrees_east"}),
        },
    )


def without_halo(dataset):
    return dataset.isel(x=slice(0, -2))


@pytest.mark.parametrize("outflow", [(), "rain"])
def test_halo_columns_count_once_in_a_law_of_the_air_too(outflow):
    def law(dataset):
        return moisture(dataset, measure="e1*e2", outflow=outflow)

    whole, core = check(air(), law), check(without_halo(air()), law)
    for row, alone in zip(whole.rows(), core.rows(), strict=True):
        assert row["field"] == pytest.approx(alone["field"], rel=1e-12)
        assert row["total"] == pytest.approx(alone["total"], rel=1e-12)


def test_weights_that_are_made_here_count_copies_once_when_they_are_given():
    d = air()
    weights = cell_measure(d, "ps", ("y", "x"), "e1*e2")
    row = check(d, FileLaw("ps", ("y", "x"), measure=weights)).rows()[0]
    core = without_halo(d)
    assert row["field"] == pytest.approx(float((core.ps[0] * core.e1 * core.e2).sum()), rel=1e-12)


def test_halo_columns_that_differ_at_the_last_time_alone_do_not_count():
    d = air()
    d["ps"][0] = 1e5  # a start that is the same everywhere
    d["ps"][1:, :, -2:] = 1.0
    core = without_halo(d)
    rows = check(d, FileLaw("ps", ("y", "x"), measure="e1*e2")).rows()
    expected = (core.ps * core.e1 * core.e2).sum(("y", "x")).values
    np.testing.assert_allclose([row["field"] for row in rows], expected, rtol=1e-12)


def test_a_law_of_the_air_takes_arithmetic_of_another_file(tmp_path):
    d = air()
    d.to_netcdf(tmp_path / "air.nc")
    d[["e1", "e2"]].to_netcdf(tmp_path / "mesh.nc")
    law = ["check", tmp_path / "air.nc", "--law", "moisture", "--format", "json", "--measure"]
    there, here = called(*law, f"{tmp_path}/mesh.nc:e1*e2"), called(*law, "e1*e2")
    assert json.loads(there.stdout)["rows"] == json.loads(here.stdout)["rows"]


@pytest.mark.parametrize("measure", [1, "e1*e2"])
def test_a_measure_that_is_no_area_is_named_in_a_law_of_the_air(measure):
    d = air()
    del d.e1.attrs["units"]
    with pytest.raises(InputError, match=r"`measure` must give areas for `moisture`.*assume_units"):
        check(d, lambda each: moisture(each, measure=measure))


def surfaces(folder, name="two.nc"):
    """A file with variables on two grids."""
    grid = {"time": TIMES, "lat": [-45.0, 0.0, 45.0], "lon": [0.0, 120.0, 240.0]}
    grid |= {"y": ("y", [-60.0, 60.0], {"units": "degrees_north"})}
    u, z = np.random.default_rng(0).normal(9, 1, (3, 3, 3)), np.full((3, 2, 3), 2.0)
    fields = {"u": (("time", "lat", "lon"), u), "z": (("time", "y", "lon"), z)}
    xr.Dataset(fields, grid).to_netcdf(folder / name)
    return name


@pytest.mark.parametrize("name", ["two.nc", "-two.nc"])
def test_all_printed_commands_run_one_after_the_other(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    words = [
        shlex.split(line) for line in describe_file(f"./{surfaces(tmp_path, name)}").commands()
    ]
    assert len(words) == 4
    for _, command, *rest in words:
        assert called(command, *rest).returncode != 2


def test_the_list_is_json_that_others_read(tmp_path):
    said = called("check", tmp_path / surfaces(tmp_path), "--format", "json").stdout
    found = json.loads(said, parse_constant=pytest.fail)
    assert found["variables"][0]["missing"] is None


def test_time_is_not_among_the_dimensions_of_wrf_that_are_summed_over(tmp_path):
    flat = ("Time", "south_north", "west_east")
    lat, lon = np.meshgrid([40.0, 41.0], [5.0, 6.0, 7.0], indexing="ij")
    angles = {"XLAT": (lat, "degree_north"), "XLONG": (lon, "degree_east")}
    coords = {key: (flat, np.stack([x, x]), {"units": unit}) for key, (x, unit) in angles.items()}
    fields = {
        "T2": (flat, np.full((2, 2, 3), 280.0), {"units": "K"}),
        "MAPFAC_M": (flat, np.ones((2, 2, 3))),
    }
    wrf = xr.Dataset(fields, coords, {"MAP_PROJ": 1, "DX": 9e3, "DY": 9e3})
    wrf.to_netcdf(tmp_path / "wrf.nc")
    line = describe_file(tmp_path / "wrf.nc").commands()[0]
    assert "--over south_north west_east" in line
    assert called(*shlex.split(line)[1:]).returncode == 0


def test_an_empty_file_is_called_empty(tmp_path):
    (tmp_path / "u.nc").touch()
    with pytest.raises(InputError, match="is empty"):
        describe_file(tmp_path / "u.nc")


def test_an_output_is_a_path_without_file_before_it(tmp_path):
    words = ["enforce", tmp_path / surfaces(tmp_path), "--mean", "u", "--over", "lat", "lon"]
    done = called(*words, "--how", "uniform", "-o", "file:///out.nc")
    assert done.returncode == 2
    assert "leave out file://" in done.stderr


def test_a_metric_before_the_fields_in_a_file_does_not_hide_their_areas(tmp_path):
    flat = ("Time", "south_north", "west_east")
    ones = np.ones((2, *LAT.shape))
    angles = {"XLAT": (flat, LAT * ones, {"units": "degrees_north"})}
    angles |= {"XLONG": (flat, LON * ones, {"units": "degrees_east"})}
    fields = {"MAPFAC_M": (flat, ones, {"units": ""}), "T2": (flat, 280 * ones, {"units": "K"})}
    attrs = {"DX": 9000.0, "DY": 9000.0, "MAP_PROJ": 1}
    xr.Dataset(fields, angles, attrs).to_netcdf(tmp_path / "wrf.nc")
    said = called("check", tmp_path / "wrf.nc", columns=999).stdout
    assert "--mean T2 --over south_north west_east --measure 'DX*DY/MAPFAC_M**2'" in said
    assert "--mean MAPFAC_M" not in said


def ocean():
    """A field of NEMO with halo columns, without latitudes and longitudes; a fifth is land."""
    d = air()[["ps", "e1", "e2"]].rename(ps="sst", e1="e1t", e2="e2t")
    d["sst"] = d.sst.where(wrapped(LAT != 0), 0.0)
    return d.drop_vars(["nav_lat", "nav_lon"])


def weighed(dataset):
    return str(check(dataset, FileLaw("sst", ("y", "x"), measure="e1t*e2t")))


def test_halo_columns_whose_places_are_not_known_are_said_to_count_twice():
    assert "the last two entries along x have the values of the first two" in weighed(ocean())
    assert "entries along" not in weighed(without_halo(ocean()))
    placed = ocean().assign_coords(nav_lat=air().nav_lat, nav_lon=air().nav_lon)
    assert "entries along" not in weighed(placed)
    assert "what comes twice counts once" in weighed(placed)


def test_zeros_of_an_ocean_model_that_may_be_land_are_said():
    assert "20 % of the values are 0 and none is missing: if that is land" in weighed(ocean())
    masked = ocean()
    assert "none is missing" not in weighed(masked.assign(sst=masked.sst.where(masked.sst > 0)))
    plain = masked.rename(e1t="a", e2t="b")
    assert "none is missing" not in str(check(plain, FileLaw("sst", ("y", "x"), measure="a*b")))
