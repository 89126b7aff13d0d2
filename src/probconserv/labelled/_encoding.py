"""How variables are stored: formats, chunks, and values packed into integers.

Packed values are integers, value = scale_factor * integer + add_offset. Updated ones are rounded to
the nearest, except for the few that must go the other way for the total of their row to close:
those that lie nearest to the middle.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from typing import Any, TypeVar

import dask.array as da
import netCDF4
import numpy as np
import numpy.typing as npt
import xarray as xr

from .._errors import InputError
from ._graph import BlockRows
from ._read import BLOCK, errors_of
from ._survey import kind

CODECS = ("compressors", "filters", "serializer", "fill_value", "shards")
NAMES = {"NETCDF3_64BIT_OFFSET": "NETCDF3_64BIT", "NETCDF3_64BIT_DATA": "NETCDF4"}
NUMBERS = "biufc"
Array = npt.NDArray[Any]
Labelled = TypeVar("Labelled", xr.Variable, xr.DataArray)
PACKING = ("scale_factor", "add_offset", "dtype", "_FillValue", "missing_value", "_Unsigned")
TRIES = 20  # values that close the last part of a total, one by one
LIMITS = ("valid_min", "valid_max", "valid_range")


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
        import zarr

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
            if is_packed(variable):
                fitting(variable.values, str(name), variable.encoding)
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
    before = variable.dtype.itemsize * prod(largest)  # bytes; whole chunks may make it four times
    after = 0 if unit is None else variable.dtype.itemsize * prod(_rounded(largest, unit))
    if unit is None or after > 4 * max(before, BLOCK):
        encoding = {k: v for k, v in encoding.items() if k not in ("shards", "chunks")}
        unit = encoding["chunks"] = largest
    data = variable.data
    pairs = zip(data.chunks, unit, strict=True)
    if any(size % u for sizes, u in pairs for size in sizes[:-1]):
        data = data.rechunk(_rounded(largest, unit))
    return xr.Variable(variable.dims, data, variable.attrs, encoding)


def encoded(name: str, variable: xr.Variable) -> da.Array:
    """The lazy numbers that go into the file; packed values that do not fit are an error there."""
    if is_packed(variable):
        keep = dict(variable.encoding)
        data = variable.data.map_blocks(
            fitting, variable=name, encoding=keep, meta=variable.data._meta
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
    version = 3 if "serializer" in encoding else 2  # of Zarr, where it was read from that
    texts = variable.dtype.kind not in NUMBERS  # their codecs are those of another type of text
    if texts or not (format.zarr and "chunks" in encoding and version == format.zarr):
        encoding = {key: value for key, value in encoding.items() if key not in CODECS}
    return encoding


def _rounded(sizes: tuple[int, ...], unit: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(ceil(size / u) * u for size, u in zip(sizes, unit, strict=True))


def is_packed(variable: xr.Variable | xr.DataArray) -> bool:
    """Whether its floating-point values will be stored as integers."""
    stored = variable.encoding.get("dtype", variable.dtype)
    return variable.dtype.kind == "f" and stored is not str and np.dtype(stored).kind in "iu"


def unpacked_after_packing(array: Array, encoding: Mapping[str, Any]) -> Array:
    """What a reader will see of the values: rounded to the integers that they are stored as."""
    with np.errstate(invalid="ignore"):  # misfits
        packed = xr.conventions.encode_cf_variable(_variable(array, encoding, PACKING))
    return np.asarray(xr.conventions.decode_cf_variable("values", packed).values)


def scale_and_offset(encoding: Mapping[str, Any]) -> tuple[float, float]:
    return float(encoding.get("scale_factor", 1.0)), float(encoding.get("add_offset", 0.0))


def misfits(array: Array, encoding: Mapping[str, Any]) -> npt.NDArray[np.bool_]:
    """Where a value has no integer to be stored as.

    It is out of the range of the integers, would become the one that stands for missing, or is
    missing while none stands for that.
    """
    low, high = integers(encoding)
    only_scaled = _variable(array, encoding, ("scale_factor", "add_offset"))
    scaled = xr.conventions.encode_cf_variable(only_scaled).values
    stored, fills = np.rint(scaled.astype(np.float64)), fill_integers(encoding)
    bad = (stored < low) | (stored >= high + 1.0)  # high itself may round up, as 2^63 - 1 does
    return np.where(np.isnan(array), not fills, bad | np.isin(stored, fills))


def packed_range(encoding: Mapping[str, Any]) -> tuple[float, float]:
    """The smallest and the largest value that the integers can stand for."""
    scale, offset = scale_and_offset(encoding)
    low, high = sorted(scale * end + offset for end in integers(encoding))
    return low, high


def valid_limits(variable: xr.DataArray) -> tuple[float, float] | None:
    """Between which its values are valid, as its attributes say; None if they do not.

    Limits of packed integers speak of these, unless they are floats.
    """
    attrs = variable.attrs
    if not set(LIMITS) & set(attrs):
        return None
    ends = np.ravel(attrs.get("valid_range", (-np.inf, np.inf)))
    pairs = (("valid_min", ends[0]), ("valid_max", ends[-1]))
    try:
        given = [np.asarray(attrs.get(key, end)) for key, end in pairs]
        low, high = (float(each) for each in given)
    except (ValueError, TypeError):
        return None
    if is_packed(variable) and all(each.dtype.kind in "iu" for each in given):
        scale, offset = scale_and_offset(variable.encoding)
        low, high = sorted((scale * low + offset, scale * high + offset))
    return low, high


def fitting(block: Array, variable: str, encoding: Mapping[str, Any]) -> Array:
    """The values; refuses those that packing would change beyond rounding, or wrap around."""
    bad = misfits(block, encoding)
    if not bad.any():
        return block
    low, high = packed_range(encoding)
    seen, fills = block[bad & ~np.isnan(block)], ", ".join(map(str, fill_integers(encoding)))
    given = f"from {seen.min():.6g} to {seen.max():.6g}" if seen.size else "missing"
    raise InputError(
        f"`{variable}` is packed into {np.dtype(encoding['dtype'])}, which holds {low:.6g} to "
        f"{high:.6g}{f' ({fills} stored means missing)' if fills else ''}; {int(bad.sum())} of its "
        f"values do not fit, {given}. Use `unpack=True` to write floating-point numbers."
    )


def without_packing(variable: Labelled) -> Labelled:
    """A copy that is stored as the floating-point numbers it holds, missing values as NaN."""
    packing = variable.encoding
    copy = variable.copy(deep=False)
    copy.encoding = {key: value for key, value in packing.items() if key not in PACKING}
    copy.encoding |= {"dtype": variable.dtype, "_FillValue": variable.dtype.type(np.nan)}
    scale, offset = scale_and_offset(packing)
    for key in set(LIMITS) & set(copy.attrs):  # they speak of the stored integers
        copy.attrs[key] = (np.asarray(copy.attrs[key]) * scale + offset).astype(variable.dtype)
    return copy


def _variable(array: Array, encoding: Mapping[str, Any], keys: tuple[str, ...]) -> xr.Variable:
    dims = [f"axis{i}" for i in range(array.ndim)]
    return xr.Variable(dims, array, encoding={k: encoding[k] for k in keys if k in encoding})


def integers(encoding: Mapping[str, Any]) -> tuple[int, int]:
    """The smallest and the largest that packing knows."""
    info = np.iinfo(_dtype(encoding))
    return int(info.min), int(info.max)


def _dtype(encoding: Mapping[str, Any]) -> np.dtype[Any]:
    """The integers as they count: some files store unsigned ones under a signed type."""
    dtype = np.dtype(encoding["dtype"])
    unsigned = {"true": "u", "false": "i"}.get(str(encoding.get("_Unsigned")).lower(), dtype.kind)
    return np.dtype(f"{unsigned}{dtype.itemsize}")


def fill_integers(encoding: Mapping[str, Any]) -> list[int]:
    """The integers that stand for missing."""
    given = [encoding.get(key) for key in ("_FillValue", "missing_value")]
    fills = [fill for some in given if some is not None for fill in np.atleast_1d(some)]
    return [int(np.int64(fill).astype(_dtype(encoding))) for fill in fills if np.isfinite(fill)]


def rounded(
    block: Array, rows: BlockRows, *, packing: Mapping[str, Any], bounds: tuple[float, float]
) -> Array:
    """A block (I, P) or (N, I, P) on the values that its integers stand for.

    The total of each of its rows is off by at most half a quantum of a small cell. Rows may not
    share points.
    """
    scale, offset = scale_and_offset(packing)
    exact = (block.astype(float) - offset) / scale
    whole = np.rint(exact)
    ends = sorted((end - offset) / scale for end in bounds)
    for member in np.ndindex(block.shape[:-2]):
        for index in range(block.shape[-2]):
            for part in rows.parts:
                weights = part.weights if part.weights.ndim == 1 else part.weights[index]
                for points in _by_row(part.labels, len(weights)):
                    at = (*member, index, points)
                    whole[at] = _closed(exact[at], whole[at], weights[points], packing, ends)
    return whole * scale + offset


def _by_row(labels: Array | None, count: int) -> list[Any]:
    """The points of each row."""
    if labels is None:
        return [slice(0, count)]
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)


def _closed(
    exact: Array, whole: Array, weights: Array, packing: Mapping[str, Any], ends: list[float]
) -> Array:
    """The integers of one row, some of them one up or down, so that the sum of the exact stays."""
    off = exact - whole
    free = np.isfinite(off) & (weights != 0) & np.isfinite(weights)
    missing = float(np.dot(weights[free], off[free]))  # what rounding took from the total
    if not missing:
        return whole
    step, size = np.sign(missing * weights), np.abs(weights)
    (low, high), other = integers(packing), whole + step
    free &= (other >= max(low, ends[0])) & (other <= min(high, ends[1]))
    free &= ~np.isin(other, fill_integers(packing))  # that does not stand for a value
    if not free.any():
        return whole
    count = min(int(free.sum()), 16 + int(4 * abs(missing) / size[free].mean()))
    gain = np.where(free, off * step, -np.inf)  # the nearer to the middle, the less it costs
    near = np.argpartition(-gain, count - 1)[:count]
    near = near[np.argsort(-gain[near])]
    some = near[: int(np.searchsorted(np.cumsum(size[near]), abs(missing), side="right"))]
    whole = whole.copy()
    whole[some] += step[some]
    left, rest = abs(missing) - size[some].sum(), np.setdiff1d(near, some)
    for _ in range(min(TRIES, len(rest))):
        best = rest[np.argmin(np.abs(left - size[rest]))]
        if abs(left - size[best]) >= abs(left):
            break
        whole[best] += step[best]
        left, rest = left - size[best], rest[rest != best]
    return whole
