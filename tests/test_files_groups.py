"""Files with groups: one is worked on, the others are kept as they are."""

import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr

from probconserv.errors import InputError
from probconserv.files import FileLaw, check_file, enforce_file
from probconserv.files._read import read

pytestmark = pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")

LAW = FileLaw("u", "x", total=7.0, measure="area")


@pytest.fixture
def grouped(tmp_path):
    """A root with dimensions and areas, two groups with a field each, one inside another."""
    path = tmp_path / "in.nc"
    with netCDF4.Dataset(path, "w") as file:
        file.title = "grouped"
        file.createDimension("x", 3)
        file.createVariable("x", "f8", ("x",))[:] = [0.0, 1.0, 2.0]
        file.createVariable("area", "f8", ("x",))[:] = [1.0, 2.0, 1.0]
        for name, values in (("day1", [1.0, 2.0, 3.0]), ("day1/night", [4.0, 5.0, 6.0])):
            group = file.createGroup(name)
            group.createDimension("n", 2)
            group.createVariable("u", "f4", ("x",), zlib=True)[:] = values
            group.createVariable("text", str, ("n",))[:] = np.array(["a", "b"], object)
            group.note = name
    return path


def contents(path):
    """Every variable of every group of a NetCDF file, raw."""
    found = {}
    with netCDF4.Dataset(path) as file:
        for group in (file, file["day1"], file["day1/night"]):
            for name, variable in group.variables.items():
                variable.set_auto_maskandscale(False)
                found[f"{group.path}:{name}"] = np.array(variable[:])
    return found


def test_one_group_is_read_with_the_coordinates_of_those_around_it(grouped):
    with read(grouped, group="day1/night") as dataset:
        np.testing.assert_array_equal(dataset["u"], [4.0, 5.0, 6.0])
        np.testing.assert_array_equal(dataset["x"], [0.0, 1.0, 2.0])
        assert "area" in dataset.coords


@pytest.mark.parametrize(("group", "total"), [("day1", 8.0), ("/day1/night", 20.0)])
def test_a_law_is_about_the_group_that_is_named(grouped, group, total):
    assert float(check_file(grouped, LAW, group=group).budgets[0].before) == total


def test_all_other_groups_are_kept_bit_for_bit(grouped, tmp_path):
    before = contents(grouped)
    report = enforce_file(grouped, tmp_path / "out.nc", LAW, std=1.0, group="day1")
    after = contents(tmp_path / "out.nc")
    assert report.closes(after=True)
    assert after.keys() == before.keys()
    assert after["/day1:u"] @ after["/:area"] == pytest.approx(7.0)
    for name in before.keys() - {"/day1:u"}:
        np.testing.assert_array_equal(after[name], before[name])
    with netCDF4.Dataset(tmp_path / "out.nc") as file:
        assert "probconserv_report" in file["day1"].ncattrs()
        assert file["day1"]["u"].filters()["zlib"]
        assert list(file["day1"].dimensions) == ["n"]


def test_a_law_on_the_root_keeps_the_groups_and_new_standard_deviations_join_it(tmp_path):
    path = tmp_path / "in.nc"
    root = xr.Dataset({"u": ("x", np.array([1.0, 2.0])), "area": ("x", np.ones(2))})
    root.to_netcdf(path)
    xr.Dataset({"v": ("y", np.arange(3.0))}).to_netcdf(path, mode="a", group="other")
    spread = xr.DataArray([0.1, 0.2], dims="x", name="spread")
    enforce_file(path, tmp_path / "out.nc", LAW, std=spread)
    with xr.open_dataset(tmp_path / "out.nc") as out:
        assert float(out["u"].sum()) == pytest.approx(7.0)
        assert out["spread"].shape == (2,)
    with xr.open_dataset(tmp_path / "out.nc", group="other") as kept:
        np.testing.assert_array_equal(kept["v"], [0.0, 1.0, 2.0])


@pytest.mark.parametrize("format", [2, 3])
def test_the_groups_of_a_zarr_store_are_kept(tmp_path, format):
    path = tmp_path / "in.zarr"
    for group, value in (("a", 1.0), ("a/b", 2.0)):
        field = {"u": ("x", np.full(4, value)), "area": ("x", np.ones(4))}
        xr.Dataset(field).to_zarr(
            path, group=group, mode="a", zarr_format=format, consolidated=format == 2
        )
    report = enforce_file(path, tmp_path / "out.zarr", LAW, std=1.0, group="a/b")
    out = zarr.open_group(tmp_path / "out.zarr", mode="r")
    assert report.closes(after=True)
    np.testing.assert_allclose(out["a/b/u"][:], 7 / 4)
    np.testing.assert_array_equal(out["a/u"][:], np.ones(4))
    assert "probconserv_report" in out["a/b"].attrs


def test_a_file_without_variables_at_its_root_names_its_groups(grouped, tmp_path):
    path = tmp_path / "deep.nc"
    xr.Dataset({"u": ("x", np.ones(2))}).to_netcdf(path, group="deep")
    with pytest.raises(InputError, match=r"no variables at its root.*`group`, one of deep"):
        check_file(path, LAW)
    with pytest.raises(InputError, match=r"`group` must be one of day1, day1/night; got 'day2'"):
        check_file(grouped, LAW, group="day2")


def test_groups_do_not_change_their_format(grouped, tmp_path):
    with pytest.raises(InputError, match=r"has groups, which are kept only from NetCDF to NetCDF"):
        enforce_file(grouped, tmp_path / "out.zarr", LAW, std=1.0, group="day1")


def test_packed_values_in_a_group_cannot_be_unpacked(tmp_path):
    path = tmp_path / "in.nc"
    field = xr.Dataset({"u": ("x", np.array([1.0, 2.0])), "area": ("x", np.ones(2))})
    packed = {"u": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}}
    field.to_netcdf(path, group="g", encoding=packed)
    with pytest.raises(InputError, match=r"`path`: u would change its type or shape.*`unpack`"):
        enforce_file(path, tmp_path / "out.nc", LAW, std=1.0, group="g", unpack=True)


def test_a_std_in_a_group_that_would_gain_an_axis_is_refused(tmp_path):
    field = xr.Dataset({"u": (("t", "x"), np.ones((3, 2))), "s": ("x", [0.1, 0.2])})
    field.to_netcdf(tmp_path / "in.nc", group="g")
    law = FileLaw("u", "x", total=xr.DataArray([1.0, 2.0, 3.0], dims="t"), measure=1.0)
    with pytest.raises(InputError, match="`path`: s would change its type or shape"):
        enforce_file(tmp_path / "in.nc", tmp_path / "out.nc", law, std="s", group="g")


def test_a_moved_variable_that_is_a_coordinate_of_another_is_written(
    tmp_path,
):
    field = xr.Dataset({"u": ("x", [1.0, 2.0]), "v": ("x", [5.0, 6.0], {"coordinates": "u"})})
    field.to_netcdf(tmp_path / "in.nc")
    xr.Dataset({"z": 1.0}).to_netcdf(tmp_path / "in.nc", group="other", mode="a")
    law = FileLaw("u", "x", total=7.0, measure=1.0)
    enforce_file(tmp_path / "in.nc", tmp_path / "out.nc", law, how="uniform")
    with netCDF4.Dataset(tmp_path / "out.nc") as file:
        np.testing.assert_allclose(file["u"][:], [3.0, 4.0])


def test_other_groups_are_kept_beside_an_unlimited_dimension(tmp_path):
    with netCDF4.Dataset(tmp_path / "u.nc", "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", 4)
        file.createVariable("u", "f8", ("time", "x"))[:] = np.arange(12.0).reshape(3, 4)
        file.createGroup("other").createVariable("z", "f4", ("time",))[:] = 1.0
    law = FileLaw("u", "x", total=6.0, measure=1.0)
    enforce_file(tmp_path / "u.nc", tmp_path / "out.nc", law, how="uniform")
    with netCDF4.Dataset(tmp_path / "out.nc") as file:
        np.testing.assert_allclose(file["u"][:].sum(1), 6.0)
        assert file.dimensions["time"].isunlimited()
        assert file["other/z"][:].tolist() == [1, 1, 1]


def test_times_in_months_are_written_as_they_were_read(tmp_path):
    with netCDF4.Dataset(tmp_path / "u.nc", "w") as file:
        file.createDimension("time", 3)
        file.createDimension("x", 4)
        time = file.createVariable("time", "f8", ("time",))
        time.units, time.calendar, time[:] = "months since 2000-01-01", "360_day", [0, 1, 2]
        file.createVariable("u", "f8", ("time", "x"))[:] = np.arange(12.0).reshape(3, 4)
    law = FileLaw("u", "x", measure=1.0)
    enforce_file(tmp_path / "u.nc", tmp_path / "out.nc", law, how="uniform")
    with netCDF4.Dataset(tmp_path / "out.nc") as file:
        assert file["time"].units == "months since 2000-01-01"
        assert file["time"][:].tolist() == [0, 1, 2]
        np.testing.assert_allclose(file["u"][:].sum(1), 6.0)
