"""What `probconserv check FILE` says of a file without a law, and that its commands run."""

import json
import shlex

import netCDF4
import numpy as np
import pytest
import xarray as xr
from commands import called

from probconserv.errors import InputError
from probconserv.files import _describe, describe, describe_file

pytestmark = pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
DAYS = {"units": "days since 2000-01-01"}
GRID = {
    "time": ("time", np.arange(4.0), DAYS),
    "lat": ("lat", np.linspace(-75, 75, 6), {"units": "degrees_north"}),
    "lon": ("lon", np.arange(8) * 45.0, {"units": "degrees_east"}),
}
MAP = ("time", "lat", "lon")


def values(*shape):
    return np.random.default_rng(2).normal(280.0, 1.0, shape)


def surface():
    fields = {"tas": (MAP, values(4, 6, 8), {"units": "K", "long_name": "air temperature"})}
    fields["tas_std"] = (MAP, np.full((4, 6, 8), 5.0), {"units": "K"})
    fields["land"] = (("lat", "lon"), np.ones((6, 8), "i2"))
    return xr.Dataset(fields, GRID)


def air():
    levels = {"plev": ("plev", [1e5, 5e4, 1e4], {"units": "Pa"})}
    names = {"hus": "specific_humidity", "ta": "air_temperature"}
    units = {"hus": "kg kg-1", "ta": "K"}
    dims, numbers = ("time", "plev", "lat", "lon"), values(4, 3, 6, 8)
    fields = {
        name: (dims, numbers, {"standard_name": said, "units": units[name]})
        for name, said in names.items()
    }
    fields["hus"] = (dims, numbers / 1e5, fields["hus"][2])
    return xr.Dataset(fields, GRID | levels)


def ensemble():
    return xr.Dataset({"pr": (("member", *MAP), values(5, 4, 6, 8))}, GRID)


def without_time():
    return xr.Dataset({"the depth": ("x", values(8))}, {"x": np.arange(8.0)})


def unnamed_steps():
    plain = xr.Dataset({"u": (("n", "lat", "lon"), values(4, 6, 8))}, GRID)
    return plain.drop_vars("time")


def ocean():
    """A curvilinear grid without corners."""
    lon, lat = np.meshgrid(np.arange(8.0) * 20, np.linspace(-60, 60, 6))
    places = {"nav_lat": (("y", "x"), lat), "nav_lon": (("y", "x"), lon)}
    fields = {"sst": (("time", "y", "x"), values(4, 6, 8), {"coordinates": "nav_lat nav_lon"})}
    return xr.Dataset(fields | places, {"time": GRID["time"]})


def told(folder, dataset, *options, name="in.nc"):
    dataset.to_netcdf(folder / name)
    done = called("check", folder / name, *options)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def commands(text):
    return [line for line in text.splitlines() if line.startswith("probconserv ")]


def test_variables_time_and_weights_are_listed(tmp_path):
    said = told(tmp_path, surface())
    assert (
        "tas (time 4, lat 6, lon 8) in K, float64, missing values nan, "
        "standard deviation tas_std - air temperature\n"
    ) in said
    assert "others: land\n" in said
    assert "time: time (dates), 4 entries, 2000-01-01 to 2000-01-04\n" in said
    assert "weights in a sum over lat, lon: cell areas from the centres of lat and lon, on" in said


def test_the_weights_are_those_of_the_report(tmp_path):
    said = told(tmp_path, surface())
    report = called("check", tmp_path / "in.nc", "--mean", "tas", "--over", "lat", "lon").stdout
    (line,) = [line for line in report.splitlines() if line.startswith("  weights: ")]
    assert line.removeprefix("  weights: ") in said


@pytest.mark.parametrize("made", [surface, air, ensemble, without_time, unnamed_steps])
def test_the_commands_run_as_they_are_printed(tmp_path, monkeypatch, made):
    monkeypatch.chdir(tmp_path)
    made().to_netcdf("it's a run.nc")
    lines = commands(called("check", "it's a run.nc").stdout)
    assert lines
    for line in lines:
        done = called(*shlex.split(line)[1:])
        assert done.returncode in (0, 1, 3), (line, done.stderr)
        (tmp_path / "it's a run_fixed.nc").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("made", "options"),
    [
        (surface, "--mean tas --over lat lon --std tas_std"),
        (air, "--mean hus --over plev lat lon"),
        (air, "--law moisture"),
        (ensemble, "--mean pr --over lat lon --member member"),
        (without_time, "--mean 'the depth' --over x --total 0"),
        (unnamed_steps, "--mean u --over lat lon --time n"),
    ],
)
def test_the_commands_have_what_the_file_has(tmp_path, made, options):
    path = tmp_path / "in.nc"
    assert f"probconserv check {path} {options}" in commands(told(tmp_path, made()))


def test_laws_of_the_air_say_what_they_would_do_and_what_lacks(tmp_path):
    said = told(tmp_path, air())
    assert "law moisture: moves hus" in said
    assert "no law dry-air: `dry-air` moves the surface pressure, and no variable is" in said
    assert "no law energy: `energy` needs a variable with the standard_name air_temp" in told(
        tmp_path, surface(), name="b.nc"
    )


def test_where_areas_are_not_known_the_way_out_is_said(tmp_path):
    said = told(tmp_path, ocean())
    assert "no weights: 'nav_lat' and 'nav_lon' lie on ('y', 'x') and have no bounds" in said
    assert "give `--measure 'mesh_mask.nc:e1t*e2t'`" in said
    assert not commands(said)


def test_a_measure_that_the_error_proposes_is_tried_and_taken(monkeypatch):
    def asking(dataset, name, over, given=None):
        if given is None:
            raise InputError("no areas: give `measure='nothing'` or `measure='area'`.")
        return _measure(dataset, name, over, given)

    _measure = _describe.cell_measure
    monkeypatch.setattr(_describe, "cell_measure", asking)
    found = describe(ocean().assign(area=(("y", "x"), np.ones((6, 8)))))
    assert found.cells[0].measure == "area"
    assert found.cells[0].over == ("y", "x")


def test_the_same_as_json(tmp_path):
    found = json.loads(told(tmp_path, surface(), "--format", "json"))
    assert found["variables"][0]["sizes"] == {"time": 4, "lat": 6, "lon": 8}
    assert found["cells"][0]["over"] == ["lat", "lon"]
    assert [shlex.split(line)[1] for line in found["commands"]] == ["check", "enforce"]
    done = called("check", tmp_path / "in.nc", "--format", "csv")
    assert "`--format csv` is for totals" in done.stderr


def test_groups_are_listed_where_the_root_is_empty(tmp_path):
    path = tmp_path / "in.nc"
    netCDF4.Dataset(path, "w").close()
    surface().to_netcdf(path, group="run/day1", mode="a")
    done = called("check", path)
    assert done.returncode == 0
    assert "groups, one of which `--group` chooses: run, run/day1" in done.stdout
    assert f"probconserv check {path} --group run/day1" in commands(done.stdout)
    inside = commands(called("check", path, "--group", "run/day1").stdout)
    assert all(line.split("--group ")[1].split()[0] == "run/day1" for line in inside)


def test_several_files_are_one_series(tmp_path):
    surface().isel(time=slice(2)).to_netcdf(tmp_path / "a1.nc")
    surface().isel(time=slice(2, 4)).to_netcdf(tmp_path / "a2.nc")
    said = called("check", str(tmp_path / "a*.nc")).stdout
    assert "time: time (dates), 4 entries, 2000-01-01 to 2000-01-04\n" in said
    assert "-o series_fixed.nc" in said


def test_values_of_large_variables_are_not_read(monkeypatch):
    monkeypatch.setattr(_describe, "SMALL", 100)

    def fail(block):
        raise AssertionError("it was read")

    full = air()
    lazy = full.assign(
        {n: v.copy(data=v.chunk().data.map_blocks(fail, meta=v.data)) for n, v in full.items()}
    )
    found = describe(lazy)
    assert found.cells[0].over == ("plev", "lat", "lon")
    assert "moisture" in found.laws


def test_what_cannot_be_read_is_said_in_words(tmp_path):
    (tmp_path / "in.nc").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(9))
    done = called("check", tmp_path / "in.nc")
    assert done.returncode == 2
    assert "may be damaged" in done.stderr
    with pytest.raises(InputError, match="does not exist"):
        describe_file(tmp_path / "no.nc")


def test_a_law_that_is_not_complete_points_to_the_list(tmp_path):
    for words in (("check", "in.nc", "--mean", "u"), ("enforce", "in.nc", "-o", "out.nc")):
        assert "`probconserv check FILE` alone lists what a file holds" in called(*words).stderr
    assert "probconserv check IN.nc" in called("check", "--help").stdout


def test_members_that_are_counted_and_numbered_levels_are_told_apart():
    coords = GRID | {
        "number": ("number", [1, 2], {"standard_name": "realization"}),
        "hybrid": ("hybrid", [1, 2, 3], {"standard_name": "model_level_number"}),
    }
    field = (("number", "time", "hybrid", "lat", "lon"), values(2, 4, 3, 6, 8))
    (cells,) = describe(xr.Dataset({"t": field}, coords)).cells
    assert cells.members == "number"
    assert cells.levels == ("hybrid, 3 entries, 1 to 3",)
    assert cells.over == ("lat", "lon")
    assert "a total for each hybrid" in cells.weights


def test_a_variable_without_entries_is_no_choice():
    assert describe(surface().isel(time=slice(0))).cells == ()


def test_units_that_lack_for_a_law_of_the_air_are_proposed(tmp_path):
    bare = air().drop_attrs().assign(time=air().time).assign_coords(plev=[1000, 500, 100])
    said = told(tmp_path, bare.rename(plev="level"))
    assert "no law moisture: `moisture` needs" in said
    assert "; say units with `--assume-units level='hPa' hus='kg kg-1'" in said


def test_fluxes_are_named_with_what_they_are_in_time(tmp_path):
    dataset = surface()
    for name in ("tp", "e"):
        dataset[name] = dataset.tas.assign_attrs(GRIB_stepType="accum", units="m")
    said = told(tmp_path, dataset.assign_attrs(title="ERA5"))
    assert "  fluxes: tp, e (GRIB_stepType accum, ERA5), for `--inflow` and `--outflow`" in said
    assert "ERA5 counts downward: evaporation is negative, an `--outflow` as rain" in said
    assert "  fluxes:" not in told(tmp_path, surface(), name="b.nc")


def test_time_of_mpas_is_no_place_and_its_areas_are_proposed(tmp_path):
    fields = {"u": (("Time", "nCells"), values(3, 8)), "areaCell": ("nCells", values(8))}
    said = told(tmp_path, xr.Dataset(fields))
    assert "  horizontal: nCells\n" in said
    assert f"check {tmp_path / 'in.nc'} --mean u --over nCells --measure areaCell" in said


def test_what_does_not_change_in_time_is_not_proposed_beside_what_does(tmp_path):
    ground = (("lat", "lon"), values(6, 8), {"units": "m"})
    said = told(tmp_path, surface().assign(orography=ground))
    assert "on the same cells: orography" in said
    assert "--total 0" not in said
    assert "say units with" not in said


def test_amounts_along_a_forecast_are_named_as_running_totals(tmp_path):
    steps = {"step": ("step", np.arange(3.0), {"standard_name": "forecast_period", "units": "h"})}
    rain = values(3, 6, 8), {"GRIB_stepType": "accum"}
    dataset = xr.Dataset({"tp": (("step", "lat", "lon"), *rain)}, GRID | steps)
    assert "fluxes: tp (GRIB_stepType accum along a forecast)" in told(tmp_path, dataset)


def test_rows_of_an_image_that_are_called_height_are_no_levels():
    image = ocean().drop_vars("time").isel(time=0).rename(y="height", x="width")
    image.sst.attrs["coordinates"] = "nav_lat nav_lon"
    (cells,) = describe(image).cells
    assert (cells.horizontal, cells.levels) == (("height", "width"), ())
    (cells,) = describe(image.assign(sst=image.sst.expand_dims("depth"))).cells
    assert cells.levels == ("depth (no coordinate)",)
