import threading
import weakref
from pathlib import Path
from typing import Any, Literal

import dask
import dask.array as da
import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr
from numcodecs import BitRound, Delta, FixedScaleOffset, Quantize
from stores import FORMATS, small, store

from probconserv.errors import InputError
from probconserv.files import FileLaw, enforce_file
from probconserv.files._attributes import decoded
from probconserv.files._encoding import aligned, without_packing
from probconserv.files._read import read
from probconserv.files._write import write


def test_what_no_law_moves_is_copied_as_it_is(tmp_path: Path) -> None:
    with netCDF4.Dataset(tmp_path / "in.nc", "w") as file:
        for name, size in {"time": 2, "x": 3, "two": 2, "unused": 4}.items():
            file.createDimension(name, size)
        time = file.createVariable("time", "f4", ("time",))
        time.setncatts({"units": "days since 1850-1-1 00:00:0.0", "bounds": "time_bnds"})
        time[:] = [0.5, 1.5]
        bounds = file.createVariable("time_bnds", "f4", ("time", "two"))
        bounds.units = time.units  # xarray would drop it
        bounds[:] = [[0, 1], [1, 2]]
        file.createVariable("u", "f4", ("time", "x"))[:] = [[1, 2, 3], [2, 3, 3]]
        flag = file.createVariable("flag", "i1", ("x",))
        flag.setncattr("_Unsigned", "true")
        flag[:] = [-1, 0, 1]
        land = file.createVariable("land", "f4", ("x",), fill_value=1e20)
        land.missing_value = np.float32(-9999)
        land[:] = [-9999, 1e20, 1]
        pair = file.createCompoundType(np.dtype([("a", "f4"), ("b", "i4")]), "pair")
        file.createVariable("pairs", pair, ("x",))
    law = FileLaw("u", "x", measure=1.0)
    enforce_file(tmp_path / "in.nc", tmp_path / "out.nc", law, how="uniform")
    with netCDF4.Dataset(tmp_path / "in.nc") as old, netCDF4.Dataset(tmp_path / "out.nc") as new:
        np.testing.assert_allclose(new["u"][:].sum(-1), 6.0)
        assert list(new.variables) == list(old.variables)
        assert list(new.dimensions) == list(old.dimensions)
        for name in old.variables.keys() - {"u"}:
            for file in (old, new):
                file[name].set_auto_maskandscale(False)
            assert old[name].__dict__ == new[name].__dict__
            assert old[name][:].tobytes() == new[name][:].tobytes()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_what_was_read_is_written_and_read_again(tmp_path: Path, format: str, suffix: str) -> None:
    path = store(tmp_path, format)
    with read(path) as dataset:
        write(dataset, tmp_path / f"out{suffix}")
        with read(tmp_path / f"out{suffix}") as back:
            xr.testing.assert_identical(back.load(), dataset.load())
            assert back["u"].dtype == np.float32
            assert back["p"].encoding["dtype"] == np.int16
            assert back["p"].encoding["scale_factor"] == 1 / 64
            assert back["p"].encoding["_FillValue"] == -9999
    assert [p.name for p in tmp_path.glob(".*")] == []


@pytest.mark.parametrize("format", ["netcdf4", "netcdf3"])
def test_a_netcdf_file_like_the_input_holds_the_same_bytes(tmp_path: Path, format: str) -> None:
    path = store(tmp_path, format)
    with read(path) as dataset:
        write(dataset, tmp_path / "out.nc", like=path)
    with netCDF4.Dataset(path) as one, netCDF4.Dataset(tmp_path / "out.nc") as other:
        for file in (one, other):
            file.set_auto_maskandscale(False)
        assert other.data_model == one.data_model
        assert other.dimensions["t"].isunlimited()
        for name, variable in one.variables.items():
            copy = other[name]
            assert (copy.dtype, copy.dimensions) == (variable.dtype, variable.dimensions)
            assert (copy.chunking(), copy.filters()) == (variable.chunking(), variable.filters())
            assert set(copy.ncattrs()) == set(variable.ncattrs())
            np.testing.assert_array_equal(copy[:], variable[:])


@pytest.mark.parametrize("format", ["zarr2", "zarr3"])
def test_a_zarr_store_like_the_input_keeps_its_format_chunks_and_codecs(
    tmp_path: Path, format: str
) -> None:
    path = store(tmp_path, format)
    with read(path) as dataset:
        write(dataset, tmp_path / "out.zarr", like=path)
    one, other = (zarr.open_group(p, mode="r") for p in (path, tmp_path / "out.zarr"))
    assert other.metadata.zarr_format == one.metadata.zarr_format == int(format[-1])
    for name in ("u", "p"):
        assert other[name].chunks == one[name].chunks
        assert other[name].compressors == one[name].compressors
        np.testing.assert_array_equal(other[name][:], one[name][:])


def test_chunks_that_share_a_block_are_kept_as_shards(tmp_path: Path) -> None:
    shards = {"u": {"chunks": (1, 5, 2), "shards": (2, 5, 4)}}
    small()[["u"]].drop_vars("station").to_zarr(
        tmp_path / "a.zarr", encoding=shards, consolidated=False
    )
    with read(tmp_path / "a.zarr", {"t": 1}) as dataset:
        assert dataset["u"].chunks[0] == (2, 2, 2)
        write(dataset, tmp_path / "b.zarr")
    copy = zarr.open_group(tmp_path / "b.zarr", mode="r")["u"]
    assert (copy.shards, copy.chunks) == ((2, 5, 4), (1, 5, 2))


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_a_dataset_in_memory_and_one_without_dimensions_are_written(
    tmp_path: Path, suffix: str
) -> None:
    dataset = small().drop_vars("station").assign(n=3, lazy=((), da.from_array(np.array(2.5))))
    write(dataset, tmp_path / f"a{suffix}")
    with read(tmp_path / f"a{suffix}") as back:
        xr.testing.assert_identical(decoded(back).load(), dataset.load())


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_each_block_is_computed_once_for_the_file_and_for_what_goes_beside(
    tmp_path: Path, suffix: str
) -> None:
    seen: list[int] = []
    blocks = da.arange(40.0, chunks=4).map_blocks(lambda b: seen.append(int(b[0])) or b)
    seen.clear()  # dask tries it on nothing
    dataset = xr.Dataset({"u": ("x", blocks), "twice": ("x", 2 * blocks)})
    also = {"sums": {"u": blocks.sum(), "squares": (blocks**2).sum()}, "n": [3]}

    def finish(results: dict[str, Any]) -> dict[str, str]:
        return {"total": f"{results['sums']['u']:g}"}

    with dask.config.set(scheduler="threads", num_workers=2):
        results = write(dataset, tmp_path / f"a{suffix}", also=also, finish=finish)
    assert sorted(seen) == list(range(0, 40, 4))
    assert results == {"sums": {"u": 780.0, "squares": 20540.0}, "n": [3]}
    with read(tmp_path / f"a{suffix}") as back:
        np.testing.assert_array_equal(back["twice"], 2 * np.arange(40.0))
        assert back.attrs["total"] == "780"


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_few_blocks_are_in_memory_at_a_time(tmp_path: Path, suffix: str) -> None:
    alive, most, lock = 0, 0, threading.Lock()

    def gone() -> None:
        nonlocal alive
        with lock:
            alive -= 1

    def made(block: Any) -> Any:
        nonlocal alive, most
        block = np.array(block + 1.0)
        with lock:
            alive += 1
            most = max(most, alive)
        weakref.finalize(block, gone)
        return block

    blocks = da.zeros((80, 50), chunks=(1, 50)).map_blocks(made, meta=np.empty((0, 0)))
    also = {"total": blocks.sum(), "by_row": blocks.sum(axis=1)}
    with dask.config.set(scheduler="threads", num_workers=2):
        write(xr.Dataset({"u": (("t", "x"), blocks)}), tmp_path / f"a{suffix}", also=also)
    assert 1 <= most <= 8
    assert alive == 0


@pytest.mark.parametrize("sizes", [(5, 5, 2), (1, 9, 2), (12,), (4, 4, 4)])
def test_no_two_blocks_write_to_the_same_zarr_chunk(sizes: tuple[int, ...]) -> None:
    data = da.zeros((12, 3), chunks=(sizes, (2, 1)))
    one = aligned(xr.Variable(("t", "x"), data, encoding={"chunks": (4, 2)}))
    assert all(size % 4 == 0 for size in one.data.chunks[0][:-1])
    assert one.encoding["chunks"] == (4, 2)
    free = aligned(xr.Variable(("t", "x"), data))
    assert all(size == free.encoding["chunks"][0] for size in free.data.chunks[0][:-1])


def test_zarr_chunks_that_would_make_blocks_too_large_are_given_up() -> None:
    data = da.zeros((4000, 2000, 2000), chunks=(1, 2000, 2000))
    across = aligned(xr.Variable(("t", "y", "x"), data, encoding={"chunks": (4000, 10, 10)}))
    assert across.encoding["chunks"] == across.data.chunksize == (1, 2000, 2000)


def test_a_float_without_a_fill_value_does_not_gain_one(tmp_path: Path) -> None:
    field = xr.Dataset({"u": ("x", da.from_array(np.array([0.0, 1.0, np.nan]), chunks=2))})
    write(field, tmp_path / "a.nc")
    with netCDF4.Dataset(tmp_path / "a.nc") as file:
        assert file["u"].ncattrs() == []


def test_two_different_missing_values_become_the_first(tmp_path: Path) -> None:
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("x", 3)
        variable = file.createVariable("u", "f4", ("x",), fill_value=-1.0)
        variable.missing_value = np.float32(-2.0)
        variable[:] = np.array([1.0, -1.0, -2.0])
    with read(tmp_path / "a.nc") as dataset:
        write(dataset, tmp_path / "b.nc")
    with read(tmp_path / "b.nc") as back:
        np.testing.assert_array_equal(back["u"], [1.0, np.nan, np.nan])


def test_bounds_and_grid_mappings_gain_no_coordinates(tmp_path: Path) -> None:
    dataset = xr.Dataset(
        {"x_bnds": (("x", "v"), np.ones((3, 2))), "crs": ((), 0, {"grid_mapping_name": "none"})},
        {"x": ("x", np.arange(3.0), {"bounds": "x_bnds"}), "height": 2.0},
    )
    write(dataset, tmp_path / "a.nc")
    with netCDF4.Dataset(tmp_path / "a.nc") as file:
        assert "coordinates" not in file["x_bnds"].ncattrs() + file["crs"].ncattrs()


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_values_that_packing_would_wrap_around_are_refused(
    tmp_path: Path, lazy: bool, suffix: str
) -> None:
    dataset = small()[["p"]]
    dataset["p"].values[3, 1] = 600.0
    dataset = dataset.chunk(t=2) if lazy else dataset
    with pytest.raises(InputError, match=r"`p` is packed into int16, .*1 of its values do not fit"):
        write(dataset, tmp_path / f"a{suffix}")
    assert list(tmp_path.iterdir()) == []
    floats = without_packing(dataset["p"])
    write(dataset.assign(p=floats), tmp_path / f"a{suffix}")
    with read(tmp_path / f"a{suffix}") as back:
        xr.testing.assert_identical(decoded(back).load(), dataset.load())


@pytest.mark.parametrize("lazy", [False, True])
def test_integers_too_large_for_netcdf_3_are_refused(tmp_path: Path, lazy: bool) -> None:
    like = store(tmp_path, "netcdf3")
    dataset = xr.Dataset({"n": ("x", np.array([1, 2**31 - 1]))})
    dataset = dataset.chunk(x=1) if lazy else dataset
    write(dataset, tmp_path / "out.nc", like=like)
    with read(tmp_path / "out.nc") as back:
        xr.testing.assert_equal(back.load(), dataset)
    with pytest.raises(InputError, match=r"`path` .* cannot be written: .*safely cast"):
        write(dataset + 1, tmp_path / "out.nc", like=like, overwrite=True)


@pytest.mark.parametrize("version", [2, 3])
def test_texts_in_a_zarr_store_are_kept(tmp_path: Path, version: Literal[2, 3]) -> None:
    texts = np.array(["a", "bcd", "", "é"], dtype=object)
    data = xr.Dataset({"u": (("x", "y"), np.ones((4, 3))), "name": ("x", texts)})
    data.to_zarr(tmp_path / "in.zarr", zarr_format=version, consolidated=False)
    with read(tmp_path / "in.zarr") as found:
        write(found, tmp_path / "out.zarr", like=tmp_path / "in.zarr")
    with read(tmp_path / "out.zarr") as found:
        assert found["name"].values.tolist() == ["a", "bcd", "", "é"]


def test_no_variable_is_given_coordinates_that_it_did_not_name(tmp_path: Path) -> None:
    names = {"u": "height", "v": None, "height": None}
    values = {name: ("x", [1.0, 2.0]) for name in ("u", "v")} | {"height": ((), 2.0)}
    made = xr.Dataset(values)
    made["u"].attrs["coordinates"] = "height"
    made.to_netcdf(tmp_path / "a.nc")
    with read(tmp_path / "a.nc") as dataset:
        write(dataset, tmp_path / "b.nc", like=tmp_path / "a.nc")
    with netCDF4.Dataset(tmp_path / "b.nc") as file:
        assert {n: getattr(v, "coordinates", None) for n, v in file.variables.items()} == names
        assert "coordinates" not in file.ncattrs()


def test_times_counted_from_long_ago_keep_their_numbers(tmp_path: Path) -> None:
    """Without a calendar; xarray would count them in another one."""
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("time", 2)
        file.createVariable("time", "f8", ("time",))[:] = [700000.0, 700001.25]
        file["time"].units = "days since 1-1-1"
    with read(tmp_path / "a.nc") as dataset:
        write(dataset, tmp_path / "b.nc", like=tmp_path / "a.nc")
    with netCDF4.Dataset(tmp_path / "b.nc") as file:
        assert file["time"][:].tolist() == [700000.0, 700001.25]
        assert file["time"].ncattrs() == ["units"]


@pytest.mark.parametrize("rounding", [{"least_significant_digit": 1}, {"significant_digits": 2}])
@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_values_that_netcdf_stores_with_few_digits_keep_their_total_once_moved(
    tmp_path: Path, rounding: dict[str, int], suffix: str
) -> None:
    values = np.random.default_rng(0).gamma(2.0, 3.0, (2, 3, 40))
    with netCDF4.Dataset(tmp_path / "in.nc", "w") as file:
        for name, size in {"time": 3, "x": 40}.items():
            file.createDimension(name, size)
        for name, its in zip(("u", "other"), values, strict=True):
            file.createVariable(name, "f4", ("time", "x"), zlib=True, **rounding)[:] = its
    law, out = FileLaw("u", "x", measure=1.0, time="time"), tmp_path / f"out{suffix}"
    enforce_file(tmp_path / "in.nc", out, law, how="uniform")
    with read(tmp_path / "in.nc") as before, read(out) as after:
        sums = after["u"].astype(np.longdouble).sum("x")
        np.testing.assert_allclose(sums, before["u"].astype(np.longdouble).sum("x")[0], rtol=1e-7)
        assert after["u"].attrs == {}  # it has more digits now
        xr.testing.assert_identical(after["other"], before["other"])


@pytest.mark.parametrize(
    "filter", [BitRound(5), Delta("f4"), FixedScaleOffset(0, 10, "f4", "i2"), Quantize(0, "f4")]
)
def test_values_that_zarr_stores_with_few_digits_keep_their_total_once_moved(
    tmp_path: Path, filter: Any
) -> None:
    values = np.random.default_rng(0).gamma(2.0, 3.0, (3, 40)).astype(np.float32)
    xr.Dataset({"u": (("time", "x"), values)}).to_zarr(
        tmp_path / "in.zarr", zarr_format=2, encoding={"u": {"filters": [filter]}}
    )
    law = FileLaw("u", "x", measure=1.0, time="time")
    enforce_file(tmp_path / "in.zarr", tmp_path / "out.zarr", law, how="uniform")
    before, after = (xr.open_zarr(tmp_path / f"{name}.zarr")["u"] for name in ("in", "out"))
    sums = after.astype(np.longdouble).sum("x")
    np.testing.assert_allclose(sums, before.astype(np.longdouble).sum("x")[0], rtol=1e-7)


def test_a_zarr_store_with_links_in_it_is_copied_whole(tmp_path: Path) -> None:
    values = np.arange(12.0).reshape(3, 4)
    data = xr.Dataset({"u": (("time", "x"), values % 4), "v": (("time", "x"), values)})
    data.to_zarr(tmp_path / "in.zarr", zarr_format=2)
    (tmp_path / "in.zarr" / "v").rename(tmp_path / "elsewhere")
    (tmp_path / "in.zarr" / "v").symlink_to(tmp_path / "elsewhere")
    law = FileLaw("u", "x", measure=1.0, time="time")
    enforce_file(tmp_path / "in.zarr", tmp_path / "out.zarr", law, how="uniform")
    np.testing.assert_array_equal(xr.open_zarr(tmp_path / "out.zarr")["v"], values)
