from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
from stores import small

from probconserv.errors import InputError
from probconserv.files import FileLaw, enforce_file
from probconserv.files._encoding import Packing, without_packing
from probconserv.files._read import read

TENTHS: dict[str, Any] = {"dtype": "i2", "scale_factor": 0.1, "add_offset": 5.0, "_FillValue": -99}
BYTES: dict[str, Any] = {"dtype": "u1", "scale_factor": 0.5, "_FillValue": 255}
PLAIN: dict[str, Any] = {"dtype": "i4", "_FillValue": -1}


@pytest.mark.parametrize("encoding", [TENTHS, BYTES, PLAIN])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_reader_sees_what_was_foretold(
    tmp_path: Path, encoding: dict[str, Any], dtype: type
) -> None:
    values = np.random.default_rng(3).uniform(0, 90, (6, 7)).astype(dtype)
    values[2, 3] = np.nan
    foretold = Packing(encoding).seen(values)
    xr.Dataset({"u": (("y", "x"), values)}).to_netcdf(
        tmp_path / "a.nc", engine="netcdf4", encoding={"u": encoding}
    )
    with read(tmp_path / "a.nc") as back:
        np.testing.assert_array_equal(back["u"].values, foretold)
    scale = encoding.get("scale_factor", 1.0)
    np.testing.assert_allclose(foretold, values, atol=0.501 * scale)
    assert np.isnan(foretold).sum() == 1


def test_values_out_of_range_or_on_the_missing_value_do_not_fit() -> None:
    inside = np.array([5.0, 3281.7, -3271.8, np.nan, -4.9 + 0.1])
    outside = np.array([3281.76, -3271.86, np.inf, -np.inf, -4.9])  # -4.9 packs to -99
    assert not Packing(TENTHS).misfits(inside).any()
    assert Packing(TENTHS).misfits(outside).all()


def test_missing_values_fit_only_where_something_stands_for_them() -> None:
    missing = np.array([np.nan])
    assert not Packing(TENTHS).misfits(missing).any()
    assert Packing({"dtype": "i2", "scale_factor": 0.1}).misfits(missing).all()


@pytest.mark.parametrize("dtype", ["i4", "i8"])
def test_the_largest_integers_are_compared_exactly(dtype: str) -> None:
    over = np.array([2.0 ** (8 * np.dtype(dtype).itemsize - 1)], np.float32)
    packing = Packing({"dtype": dtype})
    assert packing.misfits(over).all()
    assert packing.misfits(over.astype(np.float64)).all()
    assert not packing.misfits(np.nextafter(over, np.float32(0))).any()


def test_unsigned_values_under_a_signed_type_use_their_whole_range(tmp_path: Path) -> None:
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("x", 3)
        variable = file.createVariable("u", "i1", ("x",), fill_value=-1)
        variable.set_auto_maskandscale(False)
        variable._Unsigned, variable.scale_factor = "true", 0.5
        variable[:] = np.array([200, 3, 255], np.uint8).view(np.int8)
    with read(tmp_path / "a.nc") as dataset:
        values, packing = dataset["u"].values, Packing.of(dataset["u"])
    np.testing.assert_array_equal(values, [100.0, 1.5, np.nan])
    np.testing.assert_array_equal(packing.seen(values), values)
    np.testing.assert_array_equal(
        packing.misfits(np.array([127.0, 127.5, 128.0, -0.5])), [False, True, True, True]
    )


def test_an_overflow_is_an_error_with_the_range_and_the_way_out() -> None:
    with pytest.raises(
        InputError,
        match=r"`u` is packed into int16, which holds -3271.8 to 3281.7 \(-99 stored means "
        r"missing\); 2 of its values do not fit, from -9000 to 4000\. Use `unpack=True`",
    ):
        Packing(TENTHS).fitting(np.array([4000.0, 0.0, -9000.0]), "u")
    with pytest.raises(InputError, match="1 of its values do not fit, missing"):
        Packing({"dtype": "i2"}).fitting(np.array([np.nan]), "u")


def test_the_range_of_a_negative_scale_is_in_order() -> None:
    assert Packing({"dtype": "i1", "scale_factor": -2.0}).range == (-254.0, 256.0)


def test_only_floats_stored_as_integers_are_packed() -> None:
    dataset = small()
    assert Packing.of(dataset["p"])
    assert not Packing.of(dataset["u"])
    assert not Packing.of(xr.DataArray(np.arange(3)))
    text = xr.DataArray(["a"])
    text.encoding["dtype"] = str
    assert not Packing.of(text)


def test_a_copy_without_packing_is_stored_as_floats(tmp_path: Path) -> None:
    packed = small()["p"].assign_attrs(valid_range=np.array([-320, 320], np.int16))
    packed.encoding |= {"zlib": True}
    before = dict(packed.encoding)
    plain = without_packing(packed)
    plain.to_netcdf(tmp_path / "a.nc", engine="netcdf4")
    with netCDF4.Dataset(tmp_path / "a.nc") as file:
        assert file["p"].dtype == np.float64
        assert file["p"].filters()["zlib"]
        assert "scale_factor" not in file["p"].ncattrs()
        np.testing.assert_allclose(file["p"].valid_range, [-5.0, 5.0])
        np.testing.assert_array_equal(file["p"][:].filled(np.nan), packed.values)
    assert packed.encoding == before
    assert packed.attrs["valid_range"].dtype == np.int16


def test_whole_numbers_that_floats_do_not_hold_are_kept_or_refused(tmp_path: Path) -> None:
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("x", 2)
        file.createVariable("u", "f8", ("x",))[:] = [1.0, 2.0]
        file.createVariable("cell", "i8", ("x",), fill_value=-1)[:] = [2**62 + 1, -1]
    law = FileLaw("u", "x", total=3.5, measure=1.0)
    enforce_file(tmp_path / "a.nc", tmp_path / "b.nc", law, how="uniform")
    with netCDF4.Dataset(tmp_path / "b.nc") as file:
        assert file["cell"][0] == 2**62 + 1
    with pytest.raises(InputError, match=r"`cell` holds whole numbers beyond 2\^53"):
        enforce_file(tmp_path / "a.nc", tmp_path / "b.zarr", law, how="uniform")
