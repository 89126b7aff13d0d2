"""Failures of stores that are hard to bring about: what is said of them."""

import numpy as np
import pytest
import xarray as xr

from probconserv.errors import InputError
from probconserv.files import cell_measure
from probconserv.files._read import read
from probconserv.files._write import NetcdfFile, NetcdfVariable, ZarrArray


def test_the_first_bytes_of_netcdf_4_alone_are_no_file(tmp_path):
    (tmp_path / "in.nc").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(4))
    with pytest.raises(InputError, match="may be damaged or cut off"):
        read(tmp_path / "in.nc")


def test_blocks_that_come_after_the_end_of_a_run_are_refused(tmp_path):
    late = ZarrArray(tmp_path / "gone" / "u", tmp_path / "gone")
    with pytest.raises(InputError, match="is not there: the run was ended before"):
        late[(slice(0, 3),)] = np.zeros(3)
    xr.Dataset({"u": ("x", np.zeros(3))}).to_netcdf(tmp_path / "out.nc")
    with NetcdfFile(tmp_path / "out.nc") as file:
        variable = NetcdfVariable(file, "u")
    with pytest.raises(InputError, match="the run was ended before this block was written"):
        variable[(slice(0, 3),)] = np.ones(3)


def test_a_coordinate_of_text_has_no_lengths():
    dataset = xr.Dataset({"u": ("x", np.zeros(3))}, {"x": ["a", "b", "c"]})
    with pytest.raises(InputError, match="'x' must hold numbers or dates"):
        cell_measure(dataset, "u", ("x",))
