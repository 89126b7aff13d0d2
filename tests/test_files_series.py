"""Files that are one series: masks that change, groups, folders."""

import numpy as np
import pytest
import xarray as xr
from commands import called

from probconserv.errors import InputError
from probconserv.files import FileLaw, check_file, enforce_file

pytestmark = pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")


def cut(dataset, folder, every=1):
    """Its times in files t0.nc, t1.nc, ..."""
    for number, start in enumerate(range(0, dataset.sizes["time"], every)):
        part = dataset.isel(time=slice(start, start + every))
        part.to_netcdf(folder / f"t{number}.nc")
    return f"{folder}/t*.nc"


def field(missing=False):
    """Four days on three cells; at the last day one is missing."""
    u = np.random.default_rng(0).uniform(1, 2, (4, 3))
    u[3, 1] = np.nan if missing else u[3, 1]
    rate = ("time", np.full(4, 1e-6), {"cell_methods": "time: point", "units": "s-1"})
    days = np.array(["2000-01-01", "2000-01-02", "2000-01-03", "2000-01-04"], "datetime64[ns]")
    return xr.Dataset({"u": (("time", "x"), u), "rate": rate}, {"time": days, "x": [0.0, 1.0, 2.0]})


@pytest.mark.parametrize("inflow", [(), "rate"])
def test_a_mask_that_changes_from_file_to_file_is_implausible(tmp_path, inflow):
    files, law = cut(field(missing=True), tmp_path), FileLaw("u", "x", measure=1.0, inflow=inflow)
    whole = enforce_file(files, tmp_path / "all.nc", law, std=1.0)
    assert "33.3 % of the whole at time 2000-01-04" in whole.warnings[0]


def test_several_files_with_groups_are_refused(tmp_path):
    for number in range(2):
        path = tmp_path / f"t{number}.nc"
        field().isel(time=[number]).to_netcdf(path, group="day")
    law = FileLaw("u", "x", measure=1.0)
    with pytest.raises(InputError, match=r"`source` .*t0.nc has groups.*one file at a time"):
        check_file(f"{tmp_path}/t*.nc", law, group="day")


def test_a_folder_of_netcdf_files_is_told_to_name_them(tmp_path):
    cut(field(), tmp_path)
    said = called("check", tmp_path, "--mean", "u", "--over", "x")
    assert said.returncode == 2
    assert f"It holds NetCDF files: give them as {tmp_path}/*.nc" in said.stderr
