"""Several files: areas, masks and totals from elsewhere, and a series over many files."""

import netCDF4
import numpy as np
import pytest
import xarray as xr

from probconserv.cli.main import app
from probconserv.errors import InputError
from probconserv.files import FileLaw, check_file, enforce, enforce_file

AREA = np.array([1.0, 2.0, 1.0])


@pytest.fixture
def series():
    """Six times on three cells."""
    u = np.random.default_rng(0).uniform(1, 2, (6, 3))
    time = ("time", np.arange(6.0), {"units": "days since 2000-01-01"})
    field = xr.Dataset({"u": (("time", "x"), u), "area": ("x", AREA)}, {"x": [0.0, 1.0, 2.0]})
    return xr.decode_cf(field.assign_coords(time=time))


@pytest.fixture
def folder(series, tmp_path):
    """The series in three files, the latest first by name."""
    for name, times in (("c", slice(0, 2)), ("b", slice(2, 3)), ("a", slice(3, 6))):
        series.isel(time=times).to_netcdf(tmp_path / f"run_{name}.nc")
    return tmp_path


def test_areas_masks_totals_and_std_are_found_in_other_files(series, tmp_path):
    series[["u"]].to_netcdf(tmp_path / "in.nc")
    series[["area"]].to_netcdf(tmp_path / "areas.nc", group="grid")
    other = xr.Dataset({"land": ("x", [1, 0, 1]), "b": ("time", np.arange(6.0)), "s": series["u"]})
    other.assign_coords(series.coords).to_zarr(tmp_path / "other.zarr", consolidated=False)
    at = f"{tmp_path}/other.zarr"
    law = FileLaw("u", "x", f"{at}:b", measure=f"{tmp_path}/areas.nc:grid/area", where=f"{at}:land")
    enforce_file(tmp_path / "in.nc", tmp_path / "out.nc", law, std=f"{at}:s")
    with xr.open_dataset(tmp_path / "out.nc") as out:
        np.testing.assert_allclose(out["u"].values[:, [0, 2]].sum(1), np.arange(6.0), atol=1e-12)
        np.testing.assert_array_equal(out["u"][:, 1], series["u"][:, 1])
        assert (out["s"].values[:, 0] < series["u"].values[:, 0]).all()


def test_a_name_that_the_other_file_has_not_is_an_error(series, tmp_path):
    series.to_netcdf(tmp_path / "in.nc")
    law = FileLaw("u", "x", 1.0, measure=f"{tmp_path}/in.nc:aera")
    with pytest.raises(InputError, match=r"in\.nc:aera`: no variable 'aera'.*Did you mean 'area'"):
        check_file(tmp_path / "in.nc", law)


def test_other_coordinates_than_those_of_the_field_are_refused(series, tmp_path):
    series.to_netcdf(tmp_path / "in.nc")
    series.assign_coords(x=[0.0, 1.0, 2.5]).to_netcdf(tmp_path / "other.nc")
    with pytest.raises(InputError, match="differ along 'x'"):
        check_file(tmp_path / "in.nc", FileLaw("u", "x", 1.0, measure=f"{tmp_path}/other.nc:area"))


def test_many_files_become_one_with_the_first_total_of_all(series, folder):
    law = FileLaw("u", "x", measure="area")
    report = enforce_file(f"{folder}/run_*.nc", folder / "all.nc", law, std=1.0)
    with xr.open_dataset(folder / "all.nc") as out:
        expected = enforce(series, law, std=1.0)
        np.testing.assert_allclose(out["u"], expected["u"])
        np.testing.assert_array_equal(out["time"], series["time"])
        np.testing.assert_allclose(out["u"].values @ AREA, series["u"].values[0] @ AREA)
    assert report.budgets[0].before.shape == (6,)


def test_files_that_overlap_or_do_not_follow_are_refused(series, folder):
    law = FileLaw("u", "x", 1.0, measure="area")
    series.isel(time=slice(1, 3)).to_netcdf(folder / "run_d.nc")
    with pytest.raises(InputError, match=r"`source`.*overlap: time 2000-01-02 is there twice"):
        check_file([folder / "run_c.nc", folder / "run_d.nc"], law)
    with pytest.raises(InputError, match=r"`source`: files of a series follow one another"):
        check_file([folder / "run_c.nc", folder / "run_c.nc"], law)
    other = series.isel(time=slice(2, 3)).assign(area=("x", [1.0, 1.0, 1.0]))
    other.to_netcdf(folder / "run_e.nc")
    with pytest.raises(
        InputError, match=r"`source`.* the same elsewhere\. These are not: .*'area'"
    ):
        check_file([folder / "run_c.nc", folder / "run_e.nc"], law)


def test_the_command_takes_many_files_and_names_in_others(folder, capsys):
    area = f"{folder}/run_a.nc:area"
    options = ["--mean", "u", "--std", "1", "--over", "x", "--measure", area]
    sources = [str(p) for p in sorted(folder.glob("run_*.nc"))]
    app(["enforce", *sources, *options, "-o", str(folder / "all.nc")], result_action="return_value")
    assert "6 totals" in capsys.readouterr().out
    assert (folder / "all.nc").exists()


def test_units_that_change_from_file_to_file_are_refused(folder):
    with xr.open_dataset(folder / "run_b.nc") as given:
        other = given.load()
    other["u"].attrs["units"] = "g m-2"
    other.to_netcdf(folder / "run_b.nc")
    with pytest.raises(InputError, match=r"`units` of 'u' is 'g m-2' in run_b.nc"):
        check_file(sorted(folder.glob("run_*.nc")), FileLaw("u", "x", measure="area"))


@pytest.mark.parametrize(
    ("law", "message"),
    [
        ({"measure": "areas.nc"}, r"`measure`: no variable .* FILE:VARIABLE"),
        ({"total": "intial"}, r"`total`: no variable .* Did you mean 'initial'"),
    ],
)
def test_names_that_are_nearly_right_are_told_the_way(series, tmp_path, law, message):
    series.to_netcdf(tmp_path / "in.nc")
    with pytest.raises(InputError, match=message):
        check_file(tmp_path / "in.nc", FileLaw("u", "x", **{"measure": "area", **law}))


def test_a_group_of_a_file_without_groups_is_refused(series, tmp_path):
    series.to_netcdf(tmp_path / "in.nc")
    with pytest.raises(InputError, match=r"`group` is 'day1', but .* has no groups"):
        check_file(tmp_path / "in.nc", FileLaw("u", "x", measure="area"), group="day1")


def test_files_that_are_packed_differently_lose_nothing_in_one_file(series, folder):
    """As ERA5 is packed, with a scale for each file."""
    packed = {name: 280 + np.arange(18.0).reshape(6, 3) / 1000 for name in ("u", "t")}
    whole = series.assign({name: (("time", "x"), values) for name, values in packed.items()})
    for name, times, scale in (("a", slice(0, 3), 0.5), ("b", slice(3, 6), 0.001)):
        how = {"dtype": "i2", "scale_factor": scale, "add_offset": 280.0, "_FillValue": -9}
        part = whole.isel(time=times)
        part.to_netcdf(folder / f"p_{name}.nc", encoding={"u": how, "t": how})
    enforce_file(
        f"{folder}/p_*.nc", folder / "all.nc", FileLaw("u", "x", measure=1.0), how="uniform"
    )
    with xr.open_dataset(folder / "all.nc") as out:
        np.testing.assert_allclose(out["t"][3:], packed["t"][3:], atol=1e-9)
        np.testing.assert_allclose(out["u"].sum("x"), 840.0, rtol=1e-14)


def test_wide_numbers_in_a_later_file_are_not_cut(series, folder):
    for name, times, n in (("a", slice(0, 3), np.int8(3)), ("b", slice(3, 6), np.int32(300))):
        part = series.isel(time=times).assign(n=("time", np.repeat(n, 3)))
        part.to_netcdf(folder / f"p_{name}.nc")
    enforce_file(
        f"{folder}/p_*.nc", folder / "all.nc", FileLaw("u", "x", measure=1.0), how="uniform"
    )
    with xr.open_dataset(folder / "all.nc") as out:
        assert out["n"].values[3:].tolist() == [300, 300, 300]


def test_times_of_different_files_count_from_the_first_in_one_file(folder):
    for number, start in enumerate(("2000-01-01", "2000-01-03")):
        times = ("time", np.arange(2, dtype="f4"), {"units": f"days since {start} 00:00:0.0"})
        part = xr.Dataset({"u": (("time", "x"), np.ones((2, 3)))}, {"time": times})
        part.to_netcdf(folder / f"part_{number}.nc")
    law = FileLaw("u", "x", total=4.0, measure=1.0)
    enforce_file(folder / "part_*.nc", folder / "all.nc", law, how="uniform")
    with netCDF4.Dataset(folder / "all.nc") as file:
        assert file["time"].units.startswith("days since 2000-01-01")
        assert file["time"].dtype == np.float32
        np.testing.assert_array_equal(file["time"][:], [0, 1, 2, 3])


def test_times_that_count_from_different_months_are_refused(series, folder):
    for name, times, unit in (("a", slice(0, 3), "2000-01"), ("b", slice(3, 6), "1999-06")):
        months = ("time", np.arange(6.0)[times], {"units": f"months since {unit}-01"})
        series.isel(time=times).assign_coords(time=months).to_netcdf(folder / f"p_{name}.nc")
    with pytest.raises(InputError, match="`units` of 'time' is 'months since 1999-06-01' in p_b"):
        check_file(f"{folder}/p_*.nc", FileLaw("u", "x", measure="area"))


def test_what_differs_between_files_is_named_in_plain_words(series, folder, monkeypatch):
    monkeypatch.chdir(folder)
    series.isel(time=[3]).assign_coords(x=[0.0, 1.0, 2.1]).to_netcdf("other.nc")
    series[["u"]].isel(time=[3]).to_netcdf("less.nc")
    for file, text in (
        ("other.nc", r"These differ along time and x\.|These differ along x and time\."),
        ("less.nc", "`source`: 'area' is in run_c.nc and not in less.nc"),
        ("run_c.nc", "These differ along no coordinate"),
        ("none.nc", f"{folder}/none.nc does not exist"),
    ):
        with pytest.raises(InputError, match=text):
            check_file(["run_c.nc", file], FileLaw("u", "x", measure="area"))
