"""`dtype` chooses what is written; of float16 the report says that it has too few digits."""

import numpy as np
import pytest
import xarray as xr
from commands import called

from probconserv.errors import InputError
from probconserv.files import FileLaw, enforce, enforce_file

SPACE = ("lat", "lon")
LAW = FileLaw("u", SPACE, measure="area")
ASKED = ("--mean", "u", "--over", "lat", "lon", "--measure", "area", "--how", "uniform")


def made(dtype="f2", shape=(3, 24, 40)):
    rng = np.random.default_rng(0)
    u = (rng.normal(5, 1, shape[1:]) + rng.normal(0, 0.1, shape)).astype(dtype)
    area = np.cos(np.linspace(-1.4, 1.4, shape[1]))[:, None] * np.ones(shape[2])
    data = {"u": (("time", *SPACE), u), "s": (("time", *SPACE), np.ones(shape, dtype))}
    return xr.Dataset(data | {"area": (SPACE, area)}, {"time": np.arange(float(shape[0]))})


def off(new, old):
    """How far the totals are from that of the first time, relative to the sum of |u|."""
    sums = (new.u.astype(float) * old.area).sum(SPACE)
    first = (old.u[0].astype(float) * old.area).sum()
    return float((abs(sums - first) / first).max())


def test_float16_cannot_close_which_is_said_with_the_way_out(tmp_path):
    d = made()
    d.to_zarr(tmp_path / "in.zarr", consolidated=False)
    done = called("enforce", tmp_path / "in.zarr", *ASKED, "-o", tmp_path / "out.zarr")
    assert done.returncode == 1
    assert "u is float16: rounding to it opens the budget again" in done.stdout
    assert "`--dtype 'float32'`" in done.stdout
    done = called(
        *("enforce", tmp_path / "in.zarr", *ASKED, "-o", tmp_path / "b.zarr"),
        *("--dtype", "float32"),
    )
    assert (done.returncode, "is float16" in done.stdout) == (0, False)
    with xr.open_zarr(tmp_path / "b.zarr") as out:
        assert (out.u.dtype, out.s.dtype) == (np.float32, np.float16)


def test_netcdf_has_no_float16_and_dtype_is_the_way_out(tmp_path):
    d = made()
    d.to_zarr(tmp_path / "in.zarr", consolidated=False)
    done = called("enforce", tmp_path / "in.zarr", *ASKED, "-o", tmp_path / "out.nc")
    assert done.returncode == 2
    assert "NetCDF has no float16, which `s` is. `--dtype 'float32'`" in done.stderr
    enforce_file(tmp_path / "in.zarr", tmp_path / "out.nc", LAW, std="s", dtype="float32")
    with xr.open_dataset(tmp_path / "out.nc") as out:
        assert (out.u.dtype, out.s.dtype) == (np.float32, np.float32)
        assert off(out, d) < 1e-7


@pytest.mark.parametrize("kind", ["nc", "zarr"])
@pytest.mark.parametrize(("before", "after"), [("f4", "float64"), ("f8", "float32")])
def test_the_type_is_that_of_moved_variables_in_files_of_both_kinds(tmp_path, kind, before, after):
    d = made(before)
    d["u"][1, 0, 0] = np.nan
    d["area"][0, 0] = 0.0
    d["other"] = d.u.copy()
    source = tmp_path / f"in.{kind}"
    if kind == "nc":
        d.to_netcdf(source, encoding={"u": {"_FillValue": 1e20}})
    else:
        d.to_zarr(source, consolidated=False)
    enforce_file(source, tmp_path / f"out.{kind}", LAW, how="uniform", dtype=after)
    with xr.open_dataset(tmp_path / f"out.{kind}", engine=None if kind == "nc" else kind) as out:
        assert (out.u.dtype, out.other.dtype) == (np.dtype(after), np.dtype(before))
        assert np.isnan(out.u[1, 0, 0])
        assert int(out.u.isnull().sum()) == 1
        assert off(out.fillna(0.0), d.fillna(0.0)) < (1e-14 if after == "float64" else 1e-7)


def test_packed_integers_need_unpack_beside_dtype(tmp_path):
    d = made("f8").round(2)
    packed = {"u": {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -999}}
    d.to_netcdf(tmp_path / "in.nc", encoding=packed)
    given = ("enforce", tmp_path / "in.nc", *ASKED, "-o", tmp_path / "out.nc", "--dtype", "float64")
    refused = called(*given)
    assert refused.returncode == 2
    assert "`--dtype` is for floats, and `u` is packed into int16. Add `--unpack`" in refused.stderr
    done = called(*given, "--unpack")
    assert (done.returncode, "packed into" in done.stdout) == (0, False)
    with xr.open_dataset(tmp_path / "out.nc") as out:
        assert out.u.dtype == out.u.encoding["dtype"] == np.float64
        assert off(out, d) < 1e-12


def test_no_type_of_fewer_digits_than_float32_is_chosen():
    with pytest.raises(InputError, match="`dtype` must be one of float32, float64"):
        enforce(made("f4"), LAW, how="uniform", dtype="float16")


def test_a_dataset_in_memory_takes_the_type_too_and_stays_as_it_was():
    d = made("f4")
    d.u.encoding["dtype"] = np.dtype("f4")
    new = d.probconserv.enforce(LAW, how="uniform", dtype="float64")
    assert (new.u.dtype, d.u.dtype) == (np.float64, np.float32)
    assert new.u.encoding["dtype"] == np.float64  # else it would be rounded when it is written
    assert off(new, d) < 1e-14


def test_files_of_a_series_are_written_in_that_type(tmp_path):
    d = made("f4", (4, 24, 40))
    for n in range(2):
        d.isel(time=slice(2 * n, 2 * n + 2)).to_netcdf(tmp_path / f"run_{n}.nc")
    law = FileLaw("u", SPACE, measure=d.area)
    how = {"how": "uniform", "dtype": "float64"}
    enforce_file(f"{tmp_path}/run_*.nc", tmp_path / "out.nc", law, **how)
    with xr.open_dataset(tmp_path / "out.nc") as out:
        assert out.u.dtype == np.float64
