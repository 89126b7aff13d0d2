"""How variables are stored: what an output keeps of its input, and blocks that fit its chunks."""

from collections.abc import Hashable
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from typing import Any

import dask.array as da
import netCDF4
import numpy as np
import xarray as xr
import zarr

from .._errors import InputError
from ._packing import check_fits, is_packed
from ._read import BLOCK, errors_of
from ._survey import kind

CODECS = ("compressors", "filters", "serializer", "fill_value", "shards")
NAMES = {"NETCDF3_64BIT_OFFSET": "NETCDF3_64BIT", "NETCDF3_64BIT_DATA": "NETCDF4"}
NUMBERS = "biufc"


@dataclass(frozen=True)
class Format:
    """The file format of an output: Zarr 2 or 3, or NetCDF and its dialect."""

    zarr: int | None = None
    netcdf: str = "NETCDF4"
    unlimited: tuple[str, ...] = ()


def output_format(path: Path, like: str | Path | None, dataset: xr.Dataset) -> Format:
    """By the name of the output; NetCDF 4 and Zarr 3, or the kind that `like` has."""
    model = None if like is None else Path(like).resolve()
    found = "" if model is None else kind(model)
    unlimited = set(dataset.encoding.get("unlimited_dims", ()))
    version, dialect = 3, "NETCDF4"
    if model is not None and found == "zarr":
        with errors_of(model):
            version = zarr.open_group(model, mode="r").metadata.zarr_format
    elif model is not None:
        with errors_of(model), netCDF4.Dataset(model) as file:
            dialect = NAMES.get(file.data_model, file.data_model)
            unlimited |= {name for name, dim in file.dimensions.items() if dim.isunlimited()}
    if path.suffix == ".zarr":
        return Format(zarr=version)
    return Format(netcdf=dialect, unlimited=tuple(str(d) for d in dataset.dims if d in unlimited))


def prepared(dataset: xr.Dataset, format: Format) -> xr.Dataset:
    """The dataset as it will be stored: the encoding that the format knows, texts in memory."""
    changed = {
        name: xr.Variable(v.dims, v._data, v.attrs, _encoding(v, format))
        for name, v in dataset.variables.items()
        if name not in dataset.indexes
    }
    for name in set(changed) & _auxiliary(dataset):
        changed[name].encoding.setdefault("coordinates", None)  # or xarray would add some
    for name, variable in changed.items():
        if format.netcdf != "NETCDF4" and variable.dtype == np.int64:
            changed[name] = variable = _narrow(str(name), variable)
        if not is_lazy(variable):
            _check_in_memory(str(name), variable)
        elif variable.dtype.kind not in NUMBERS:
            changed[name] = variable.compute()
        elif format.zarr:
            changed[name] = aligned(variable)
    copy = dataset.assign(changed)
    for name in dataset.indexes:
        copy[name].encoding = _encoding(dataset[name].variable, format)
    return copy


def aligned(variable: xr.Variable) -> xr.Variable:
    """The lazy variable in blocks of whole Zarr chunks: no two blocks write to the same chunk."""
    encoding = variable.encoding
    largest = tuple(max(1, *sizes) for sizes in variable.data.chunks)
    unit = encoding.get("shards") or encoding.get("chunks")
    if unit is None or not _affordable(unit, largest, variable.dtype.itemsize):
        encoding = {k: v for k, v in encoding.items() if k not in ("shards", "chunks")}
        unit = encoding["chunks"] = largest
    data = variable.data
    if not all(_whole(sizes, u) for sizes, u in zip(data.chunks, unit, strict=True)):
        data = data.rechunk(_rounded(largest, unit))
    return xr.Variable(variable.dims, data, variable.attrs, encoding)


def encoded(name: str, variable: xr.Variable) -> da.Array:
    """The lazy numbers that go into the file; packed values that do not fit are an error there."""
    if is_packed(variable):
        keep = dict(variable.encoding)
        data = variable.data.map_blocks(
            _checked, variable=name, encoding=keep, meta=variable.data._meta
        )
        variable = xr.Variable(variable.dims, data, variable.attrs, keep)
    stored = xr.conventions.encode_cf_variable(variable, name=name).data
    assert isinstance(stored, da.Array)
    return stored


def is_lazy(variable: xr.Variable) -> bool:
    return isinstance(variable._data, da.Array)


def _narrow(name: str, variable: xr.Variable) -> xr.Variable:
    """With 32-bit integers: NetCDF 3 has no others."""
    if is_lazy(variable):
        meta = np.empty((0,) * variable.ndim, np.int32)
        data = variable.data.map_blocks(_as_int32, variable=name, meta=meta)
    else:
        data = _as_int32(variable.values, name)
    encoding = {key: value for key, value in variable.encoding.items() if key != "dtype"}
    return xr.Variable(variable.dims, data, variable.attrs, encoding)


def _as_int32(block: Any, variable: str) -> Any:
    cast = block.astype(np.int32)
    if not np.array_equal(cast, block):
        raise InputError(
            f"`{variable}` has integers that do not fit into 32 bits, the most that this NetCDF "
            "format knows. Write NetCDF 4 (leave `like` out) or Zarr."
        )
    return cast


def _checked(block: Any, variable: str, encoding: dict[str, Any]) -> Any:
    check_fits(variable, block, encoding)
    return block


def _check_in_memory(name: str, variable: xr.Variable) -> None:
    if is_packed(variable):
        check_fits(name, variable.values, variable.encoding)


def _auxiliary(dataset: xr.Dataset) -> set[Hashable]:
    """Bounds and grid mappings: they belong to others and have no coordinates of their own."""
    variables = dataset.variables.items()
    bounds = {v.attrs.get("bounds", v.encoding.get("bounds")) for _, v in variables}
    return bounds | {name for name, v in variables if "grid_mapping_name" in v.attrs}


def _encoding(variable: xr.Variable, format: Format) -> dict[str, Any]:
    encoding = dict(variable.encoding)
    if "_FillValue" not in variable.attrs:
        encoding.setdefault("_FillValue", None)  # or xarray would add one
    if encoding.get("_FillValue") is not None and "missing_value" in encoding:
        one, other = encoding["_FillValue"], encoding["missing_value"]
        if not np.array_equal(np.atleast_1d(one), np.atleast_1d(other), equal_nan=True):
            del encoding["missing_value"]  # missing values are written as _FillValue
    if len(encoding.get("chunks") or variable.dims) != variable.ndim:
        del encoding["chunks"]
    if not (format.zarr and "chunks" in encoding and _version(encoding) == format.zarr):
        encoding = {key: value for key, value in encoding.items() if key not in CODECS}
    return encoding


def _version(encoding: dict[str, Any]) -> int:
    """The Zarr format that a variable was read from: only 3 has a serializer."""
    return 3 if "serializer" in encoding else 2


def _affordable(unit: tuple[int, ...], largest: tuple[int, ...], itemsize: int) -> bool:
    """Whether blocks of whole chunks stay about as large as the blocks that there are."""
    before, after = (itemsize * prod(shape) for shape in (largest, _rounded(largest, unit)))
    return after <= 4 * max(before, BLOCK)


def _rounded(sizes: tuple[int, ...], unit: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(ceil(size / u) * u for size, u in zip(sizes, unit, strict=True))


def _whole(sizes: tuple[int, ...], unit: int) -> bool:
    return all(size % unit == 0 for size in sizes[:-1])
