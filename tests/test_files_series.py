"""A series written file by file: the report is that of the whole, and what fails is said."""

import numpy as np
import pytest
import xarray as xr
from air import CLOUDS, air
from commands import called

from probconserv import InputError, ProbConservError
from probconserv.files import Law, check_file, dry_air, enforce, enforce_file, moisture

pytestmark = pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")


def cut(dataset, folder, every=1):
    """Its times in files t0.nc, t1.nc, ... and a folder for the output."""
    for number, start in enumerate(range(0, dataset.sizes["time"], every)):
        part = dataset.isel(time=slice(start, start + every))
        part.to_netcdf(folder / f"t{number}.nc")
    (folder / "out").mkdir()
    return f"{folder}/t*.nc"


def field(missing=False):
    """Four days on three cells; at the last day one is missing."""
    u = np.random.default_rng(0).uniform(1, 2, (4, 3))
    u[3, 1] = np.nan if missing else u[3, 1]
    rate = ("time", np.full(4, 1e-6), {"cell_methods": "time: point", "units": "s-1"})
    days = np.array(["2000-01-01", "2000-01-02", "2000-01-03", "2000-01-04"], "datetime64[ns]")
    return xr.Dataset({"u": (("time", "x"), u), "rate": rate}, {"time": days, "x": [0.0, 1.0, 2.0]})


@pytest.mark.parametrize("inflow", [(), "rate"])
def test_files_in_a_folder_are_told_of_the_earliest_time_and_of_rates(tmp_path, inflow):
    files, law = cut(field(), tmp_path), Law("u", "x", measure=1.0, inflow=inflow)
    whole = enforce_file(files, tmp_path / "all.nc", law, std=1.0)
    each = enforce_file(files, tmp_path / "out", law, std=1.0)
    assert each.budgets[0].remarks == whole.budgets[0].remarks
    assert any("total of the earliest, 2000-01-01" in text for text in each.budgets[0].remarks)
    with xr.open_dataset(tmp_path / "out" / "t2.nc") as part:
        assert "total of the earliest, 2000-01-01" in str(part.probconserv.report["laws"])


@pytest.mark.parametrize("inflow", [(), "rate"])
def test_a_mask_that_changes_from_file_to_file_is_implausible(tmp_path, inflow):
    files, law = cut(field(missing=True), tmp_path), Law("u", "x", measure=1.0, inflow=inflow)
    whole = enforce_file(files, tmp_path / "all.nc", law, std=1.0)
    each = enforce_file(files, tmp_path / "out", law, std=1.0)
    assert each.warnings == whole.warnings
    assert "33.3 % of the whole at time 2000-01-04" in each.warnings[0]


def test_laws_of_the_air_are_enforced_file_by_file(tmp_path):
    dataset = air(**CLOUDS)
    files = cut(dataset, tmp_path)
    for law, std, name in ((moisture, 1e-3, "q"), (dry_air, 100.0, "ps")):
        whole = enforce(dataset, law, std=std)
        enforce_file(files, tmp_path / "out", law, std=std, overwrite=True)
        for number in range(3):
            with xr.open_dataset(tmp_path / "out" / f"t{number}.nc") as new:
                np.testing.assert_allclose(new[name][0], whole[name][number], rtol=1e-12)


def test_a_series_that_fails_on_the_way_says_what_is_finished(tmp_path):
    dataset = field()
    files = cut(dataset, tmp_path)
    wanted = xr.DataArray([4.5, 4.5, 1e6, 4.5], {"time": dataset.time})
    said = r"t2.nc: .*\(2 of 4 files are finished and stay in .*out\.\)"
    with pytest.raises(ProbConservError, match=said):
        enforce_file(
            files, tmp_path / "out", Law("u", "x", wanted, measure=1.0), std=1.0, maximum=9
        )
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["t0.nc", "t1.nc"]


def test_each_file_keeps_its_own_packing_and_the_report_is_that_of_the_whole(tmp_path):
    dataset, law = field(), Law("u", "x", 4.5, measure=1.0)
    for number in range(4):
        packed = {"dtype": "i2", "scale_factor": 10.0 ** -(2 + number % 2), "_FillValue": -9}
        dataset.isel(time=[number]).to_netcdf(tmp_path / f"t{number}.nc", encoding={"u": packed})
    (tmp_path / "out").mkdir()
    files, how = f"{tmp_path}/t*.nc", {"how": "uniform", "minimum": 0.0, "change": True}
    each = enforce_file(files, tmp_path / "out", law, **how)
    whole = enforce_file(files, tmp_path / "all.nc", law, unpack=True, **how)
    for number in range(4):
        with xr.open_dataset(tmp_path / "out" / f"t{number}.nc") as part:
            assert part.u.encoding["scale_factor"] == pytest.approx(10.0 ** -(2 + number % 2))
    np.testing.assert_allclose(each.budgets[0].after, 4.5, atol=0.01)
    np.testing.assert_allclose(each.change["u"], whole.change["u"], atol=0.01)


def test_members_that_are_tied_in_time_cannot_be_written_file_by_file(tmp_path):
    members = xr.DataArray([0.0, 0.1, 0.3, 0.2, 0.5], dims="member")
    files = cut(field().assign(u=field().u + members * field().x), tmp_path)
    with pytest.raises(InputError, match=r"`target`: u ties all files together along 'time'"):
        enforce_file(
            files, tmp_path / "out", Law("u", "x", measure=1.0), member="member", jointly="time"
        )


def test_several_files_with_groups_are_refused(tmp_path):
    for number in range(2):
        path = tmp_path / f"t{number}.nc"
        field().isel(time=[number]).to_netcdf(path, group="day")
    law = Law("u", "x", measure=1.0)
    with pytest.raises(InputError, match=r"`source` .*t0.nc has groups.*one file at a time"):
        check_file(f"{tmp_path}/t*.nc", law, group="day")


def test_a_folder_of_netcdf_files_is_told_to_name_them(tmp_path):
    cut(field(), tmp_path)
    said = called("check", tmp_path, "--mean", "u", "--over", "x")
    assert said.returncode == 2
    assert f"It holds NetCDF files: give them as {tmp_path}/*.nc" in said.stderr
