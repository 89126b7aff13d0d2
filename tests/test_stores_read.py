import pickle
import struct
from pathlib import Path

import dask.array as da
import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr
from stores import FORMATS, small, store

from probconserv.errors import InputError
from probconserv.files import _read
from probconserv.files._attributes import decoded
from probconserv.files._read import errors_of, read


@pytest.mark.parametrize("format", FORMATS)
def test_a_store_is_read_as_xarray_reads_it_but_for_times(tmp_path: Path, format: str) -> None:
    path = store(tmp_path, format)
    engine = "zarr" if "zarr" in format else "netcdf4"
    options = {"decode_times": False} | ({"consolidated": False} if engine == "zarr" else {})
    with read(path) as ours, xr.open_dataset(path, engine=engine, **options) as theirs:
        xr.testing.assert_identical(ours.load(), theirs.load())
        for name in ours.variables:
            both = (map(str, each[name].encoding.items()) for each in (ours, theirs))
            assert len(set(map(frozenset, both))) == 1  # as texts: NaN is not NaN


@pytest.mark.parametrize("format", FORMATS)
def test_data_are_lazy_and_what_labels_them_is_in_memory(tmp_path: Path, format: str) -> None:
    with read(store(tmp_path, format)) as dataset:
        assert all(isinstance(v.data, da.Array) for v in dataset.data_vars.values())
        assert not any(isinstance(v.data, da.Array) for v in dataset.coords.values())


def test_missing_values_are_nan_and_packing_stays_in_the_encoding(tmp_path: Path) -> None:
    with read(store(tmp_path, "netcdf4")) as dataset:
        assert np.isnan(dataset["p"].values).sum() == 1
        assert dataset["p"].encoding["dtype"] == np.int16
        assert dataset["p"].encoding["scale_factor"] == 1 / 64
        assert dataset["p"].encoding["_FillValue"] == -9999


def test_a_closed_dataset_can_be_pickled_and_read_elsewhere(tmp_path: Path) -> None:
    with read(store(tmp_path, "netcdf4")) as dataset:
        copy = pickle.loads(pickle.dumps(dataset))
    xr.testing.assert_identical(decoded(copy)["u"].load(), small()["u"])


def test_times_that_make_no_sense_stay_numbers(tmp_path: Path) -> None:
    wrong = small().drop_vars("t").assign_coords(t=("t", np.arange(6.0), {"units": "days since x"}))
    with read(store(tmp_path, "netcdf4", wrong)) as dataset:
        np.testing.assert_array_equal(dataset["t"], np.arange(6.0))
        assert dataset["t"].attrs["units"] == "days since x"


def test_durations_stay_numbers(tmp_path: Path) -> None:
    with read(
        store(tmp_path, "netcdf4", small().assign(u=small()["u"].assign_attrs(units="s")))
    ) as d:
        assert d["u"].dtype == np.float32


@pytest.mark.parametrize(
    ("shape", "stored", "chunks", "expected"),
    [
        ((100, 1000, 1000), None, {}, (6, 1000, 1000)),  # 24 MB of float32
        ((4, 20_000, 10_000), None, {}, (1, 629, 10_000)),
        ((100, 1000, 1000), (1, 300, 400), {}, (6, 1000, 1000)),  # whole chunks, clipped
        ((100, 1000, 1000), (64, 1000, 1000), {}, (64, 1000, 1000)),  # never part of a chunk
        ((100, 30, 40), (7, 30, 40), {"t": 10}, (14, 30, 40)),
        ((100, 30, 40), (7, 30, 40), {"t": -1, "x": 5}, (100, 30, 40)),
        ((0, 30, 40), None, {}, (1, 30, 40)),
    ],
)
def test_blocks_are_whole_stored_chunks_of_bounded_size(
    shape: tuple[int, ...],
    stored: tuple[int, ...] | None,
    chunks: dict[str, int],
    expected: tuple[int, ...],
) -> None:
    values = np.broadcast_to(np.float32(0), shape)
    variable = xr.Variable(("t", "y", "x"), values, encoding={"chunksizes": stored})
    assert _read.block_shape(variable, chunks) == expected


def test_blocks_are_as_large_as_asked_for(tmp_path: Path) -> None:
    with read(store(tmp_path, "netcdf4"), chunks={"t": 3}) as dataset:
        assert dataset["u"].chunks == ((4, 2), (5,), (4,))  # stored in twos
        assert dataset["p"].chunks[0] in ((3, 3), (6,))


def test_chunks_must_be_dimensions_and_positive(tmp_path: Path) -> None:
    path = store(tmp_path, "netcdf4")
    with pytest.raises(
        InputError, match=r"`chunks` must be one of t, .*got 'tt'\. Did you mean 't'"
    ):
        read(path, {"tt": 3})
    with pytest.raises(InputError, match=r"`chunks` must give a positive .* for 't', .*got 0"):
        read(path, {"t": 0})


def test_what_is_not_a_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.nc").write_text("lat,lon\n")
    (tmp_path / "field.grib").write_bytes(b"GRIB\x00\x00\x00\x02")
    with pytest.raises(InputError, match=r"`path` .*none\.nc does not exist\. Check its spelling"):
        read(tmp_path / "none.nc")
    with pytest.raises(InputError, match=r"is a folder, but no Zarr store: none of zarr\.json"):
        read(tmp_path / "empty")
    with pytest.raises(
        InputError, match=r"neither NetCDF nor a Zarr folder: it starts with b'lat,"
    ):
        read(tmp_path / "text.nc")
    with pytest.raises(InputError, match=r"neither NetCDF nor a Zarr folder: it is a GRIB file"):
        read(tmp_path / "field.grib")


@pytest.mark.parametrize("format", ["netcdf4", "netcdf3"])
@pytest.mark.parametrize("part", [0.0, 0.003, 0.05, 0.5, 0.97])
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, format: str, part: float) -> None:
    path = store(tmp_path, format, small().isel(x=[0, 1] * 2000))  # the header is the smaller part
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(InputError, match=r"cut off|damaged|is empty|starts with b'CDF'"):
        read(path)


@pytest.mark.parametrize("format", ["NETCDF3_CLASSIC", "NETCDF3_64BIT", "NETCDF3_64BIT_DATA"])
@pytest.mark.parametrize("records", [False, True])
def test_every_whole_netcdf_3_file_passes_and_one_without_much_of_it_does_not(
    tmp_path: Path, format: str, records: bool
) -> None:
    path = tmp_path / "a.nc"
    with netCDF4.Dataset(path, "w", format=format) as file:
        file.createDimension("t", None if records else 3)
        file.createDimension("x", 500)
        file.createVariable("b", "i1", ("t", "x"))[:] = np.ones((3, 500))
        if format != "NETCDF3_CLASSIC":  # one alone is not padded
            file.createVariable("s", "i2", ("t",))[:] = np.ones(3)
        file.title = "odd"
    with read(path) as dataset:
        np.testing.assert_array_equal(dataset["b"], np.ones((3, 500)))
    path.write_bytes(path.read_bytes()[:1400])
    with pytest.raises(InputError, match="cut off"):
        read(path)


def test_a_netcdf_3_header_with_absurd_dimensions_is_refused(tmp_path: Path) -> None:
    path = store(tmp_path, "netcdf3", small()[["u"]].drop_vars(["t", "x", "station"]))
    raw = path.read_bytes()
    at = raw.index(b"\x00\x00\x00\x01x\x00\x00\x00") + 8
    path.write_bytes(raw[:at] + struct.pack(">i", 2**31 - 1) + raw[at + 4 :])
    with pytest.raises(InputError, match="cut off or damaged"):
        read(path)


def test_a_store_that_claims_more_than_it_can_hold_is_refused(tmp_path: Path) -> None:
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("x", 10**12)
        file.createVariable("u", "f4", ("x",), zlib=True, chunksizes=(10**6,))
    zarr.create_group(tmp_path / "a.zarr").create_array(
        "u", shape=(10**12,), chunks=(10**6,), dtype="f4", dimension_names=["x"]
    )
    for name in ("a.nc", "a.zarr"):
        with pytest.raises(InputError, match=r"holds 4,000,000,000,000 bytes of values, but only"):
            read(tmp_path / name)


def test_a_store_without_variables_is_refused(tmp_path: Path) -> None:
    netCDF4.Dataset(tmp_path / "a.nc", "w").close()
    with pytest.raises(InputError, match="holds no variables at its root"):
        read(tmp_path / "a.nc")


@pytest.mark.parametrize("format", ["zarr2", "zarr3"])
def test_zarr_metadata_that_make_no_sense_are_refused(tmp_path: Path, format: str) -> None:
    path = store(tmp_path, format)
    metadata = path / "u" / ("zarr.json" if format == "zarr3" else ".zarray")
    for text in ("{", "[]", metadata.read_text().replace("6", '"six"', 1)):
        metadata.write_text(text)
        with pytest.raises(InputError, match=r"`path` .*zarr\d?\.zarr cannot be read"):
            read(path)


@pytest.mark.parametrize("format", ["netcdf4", "zarr2", "zarr3"])
def test_a_damaged_chunk_is_an_error_that_names_the_file_and_the_place(
    tmp_path: Path, format: str
) -> None:
    path = _with_a_damaged_chunk(tmp_path, format)
    with (
        read(path, {"t": 2}) as dataset,
        pytest.raises(
            InputError, match=rf"`path` .*{path.name} cannot be read at u\[2:4, 0:5, 0:4\]"
        ),
    ):
        dataset["u"].compute()


def _with_a_damaged_chunk(folder: Path, format: str) -> Path:
    """A store whose second chunk of u is spoilt."""
    if format != "netcdf4":
        path = store(folder, format)
        chunk = path / "u" / ("c/1/0/0" if format == "zarr3" else "1.0.0")
        chunk.write_bytes(b"\x00" * 10)
        return path
    path = folder / "a.nc"
    checked = {"u": {"chunksizes": (2, 5, 4), "fletcher32": True}}
    small().to_netcdf(path, engine="netcdf4", encoding=checked)
    raw = path.read_bytes()
    at = raw.index(small()["u"].values[2:4].tobytes())
    path.write_bytes(raw[:at] + b"\x00" + raw[at + 1 :])
    return path


def test_errors_of_names_the_file_and_lets_our_own_pass() -> None:
    with (
        pytest.raises(InputError, match=r"`path` a\.nc cannot be read: no such chunk\. It may be"),
        errors_of("a.nc"),
    ):
        raise RuntimeError("no such chunk\nand more")
    with pytest.raises(InputError, match=r"^mine$"), errors_of("a.nc"):
        raise InputError("mine")
