"""How variables are stored: formats, chunks, and values packed into integers."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod
from pathlib import Path
from typing import Any

import dask.array as da
import netCDF4
import numpy as np
import numpy.typing as npt
import xarray as xr

from ..support.errors import InputError
from ..support.values import choice
from ._graph import BlockRows
from ._read import BLOCK, errors_of, kind

CODECS = ("compressors", "filters", "serializer", "fill_value", "shards")
NAMES = {"NETCDF3_64BIT_OFFSET": "NETCDF3_64BIT", "NETCDF3_64BIT_DATA": "NETCDF4"}
NUMBERS = "biufc"
Array = npt.NDArray[Any]
PACKING = ("scale_factor", "add_offset", "dtype", "_FillValue", "missing_value", "_Unsigned")
TRIES = 20  # values that close the last part of a total, one by one
WHOLE = 2.0**53  # from here on float64 does not hold every whole number
TYPES = ("float32", "float64")
FILLS = ("_FillValue", "missing_value")
LIMITS = ("valid_min", "valid_max", "valid_range")
NO_BOUNDS = (-np.inf, np.inf)
ROUNDS = re.compile("least_significant_digit|_Quantize")  # attributes that libraries obey
ROUNDING = ("astype", "bitround", "delta", "fixedscaleoffset", "quantize")  # filters of Zarr


@dataclass(frozen=True)
class Format:
    """The file format of an output: Zarr 2 or 3, or NetCDF and its dialect."""

    zarr: int | None = None
    netcdf: str = "NETCDF4"
    unlimited: tuple[str, ...] = ()


def output_format(path: Path, like: Path | None, dataset: xr.Dataset) -> Format:
    """By the name of the output; NetCDF 4 and Zarr 3, or the kind that `like` has."""
    unlimited = set(dataset.encoding.get("unlimited_dims", ()))
    version, dialect = 3, "NETCDF4"
    if like is not None and kind(like) == "zarr":
        import zarr

        with errors_of(like):
            version = zarr.open_group(like, mode="r").metadata.zarr_format
    elif like is not None:
        with errors_of(like), netCDF4.Dataset(like) as file:
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
    for variable in changed.values():
        if "coordinates" not in variable.attrs:
            variable.encoding.setdefault("coordinates", None)  # or xarray would add some
    for name, variable in changed.items():
        narrow = format.netcdf != "NETCDF4" and variable.dtype == np.int64  # xarray checks these
        packing = Packing.of(variable)
        if not is_lazy(variable):
            if packing is not None:
                packing.fitting(variable.values, str(name))
        elif variable.dtype.kind not in NUMBERS or narrow:
            changed[name] = variable.compute()
        elif format.zarr:
            changed[name] = aligned(variable)
    for name, each in changed.items() if not format.zarr else ():
        if each.dtype.kind == "f" and np.dtype(each.encoding.get("dtype", each.dtype)) == "f2":
            raise InputError(
                f"`path`: NetCDF has no float16, which `{name}` is. `dtype='float32'` writes it as "
                "that, without loss; Zarr (.zarr) has float16."
            )
    copy = dataset.assign(changed)
    for name in dataset.indexes:
        copy[name].encoding = _encoding(dataset[name].variable, format)
    return copy


def in_full(variable: xr.Variable) -> xr.Variable:
    """The variable, stored with all its digits: rounded ones would not keep a total.

    Files that are kept small by few digits have them rounded whenever a value is written.
    """
    attrs = {key: value for key, value in variable.attrs.items() if not ROUNDS.match(key)}
    encoding = {key: value for key, value in variable.encoding.items() if not ROUNDS.match(key)}
    if np.dtype(encoding.get("dtype", variable.dtype)).kind == "f" and encoding.get("filters"):
        encoding["filters"] = [each for each in encoding["filters"] if not _rounds(each)]
    return xr.Variable(variable.dims, variable._data, attrs, encoding)


def _rounds(codec: Any) -> bool:
    name = getattr(codec, "codec_name", None) or getattr(codec, "codec_id", "")
    return str(name).removeprefix("numcodecs.") in ROUNDING


def aligned(variable: xr.Variable) -> xr.Variable:
    """The lazy variable in blocks of whole Zarr chunks: no two blocks write to the same chunk."""
    encoding, data = variable.encoding, variable.data
    largest = tuple(max(1, *sizes) for sizes in data.chunks)
    unit = encoding.get("shards") or encoding.get("chunks")
    before = variable.dtype.itemsize * prod(largest)  # bytes; whole chunks may make it four times
    after = 0 if unit is None else variable.dtype.itemsize * prod(_rounded(largest, unit))
    if unit is None or after > 4 * max(before, BLOCK):
        encoding = {k: v for k, v in encoding.items() if k not in ("shards", "chunks")}
        unit = encoding["chunks"] = largest
    pairs = zip(data.chunks, unit, strict=True)
    if any(size % u for sizes, u in pairs for size in sizes[:-1]):
        data = data.rechunk(_rounded(largest, unit))
    return xr.Variable(variable.dims, data, variable.attrs, encoding)


def _rounded(sizes: tuple[int, ...], unit: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(ceil(size / u) * u for size, u in zip(sizes, unit, strict=True))


def encoded(name: str, variable: xr.Variable) -> da.Array:
    """The lazy numbers that go into the file; packed values that do not fit are an error there."""
    packing = Packing.of(variable)
    if packing is not None:
        data = variable.data.map_blocks(packing.fitting, variable=name, meta=variable.data._meta)
        variable = xr.Variable(variable.dims, data, variable.attrs, variable.encoding)
    stored = xr.conventions.encode_cf_variable(variable, name=name).data
    assert isinstance(stored, da.Array)
    return stored


def is_lazy(variable: xr.Variable) -> bool:
    return isinstance(variable._data, da.Array)


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


@dataclass(frozen=True, eq=False)
class Packing:
    """Values stored as integers: value = scale * integer + offset."""

    encoding: Mapping[str, Any]  # of xarray

    @classmethod
    def of(cls, variable: xr.Variable | xr.DataArray) -> "Packing | None":
        """How floating-point values will be stored as integers; None if they will not."""
        stored = variable.encoding.get("dtype", variable.dtype)
        if variable.dtype.kind != "f" or stored is str or np.dtype(stored).kind not in "iu":
            return None
        return cls({key: variable.encoding[key] for key in PACKING if key in variable.encoding})

    @property
    def scale(self) -> float:
        return float(self.encoding.get("scale_factor", 1.0))

    @property
    def offset(self) -> float:
        return float(self.encoding.get("add_offset", 0.0))

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The integers as they count: some files store unsigned ones under a signed type."""
        dtype, said = np.dtype(self.encoding["dtype"]), str(self.encoding.get("_Unsigned")).lower()
        return np.dtype(f"{ {'true': 'u', 'false': 'i'}.get(said, dtype.kind) }{dtype.itemsize}")

    @cached_property
    def fills(self) -> list[int]:
        """The integers that stand for missing."""
        given = [self.encoding.get(key) for key in ("_FillValue", "missing_value")]
        fills = [fill for some in given if some is not None for fill in np.atleast_1d(some)]
        return sorted({int(self.as_counted(fill)) for fill in fills if np.isfinite(fill)})

    def as_counted(self, integer: Any) -> Any:
        """A stored integer, which may lack its sign or have one too many, as it counts."""
        return np.int64(integer).astype(self.dtype)

    def values(self, *integers: Any) -> tuple[float, float]:
        """What two integers stand for, the smaller value first."""
        low, high = sorted(self.scale * float(each) + self.offset for each in integers)
        return low, high

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest value that the integers can stand for."""
        return self.values(np.iinfo(self.dtype).min, np.iinfo(self.dtype).max)

    def seen(self, array: Array) -> Array:
        """What a reader will see of the values: rounded to the integers that they are stored as."""
        with np.errstate(invalid="ignore"):  # misfits
            packed = xr.conventions.encode_cf_variable(_variable(array, self.encoding))
        return np.asarray(xr.conventions.decode_cf_variable("values", packed).values)

    def misfits(self, array: Array) -> npt.NDArray[np.bool_]:
        """Where a value has no integer to be stored as.

        It is out of the range of the integers, would become the one that stands for missing, or is
        missing while none stands for that.
        """
        scaling = {k: self.encoding[k] for k in PACKING[:2] if k in self.encoding}
        scaled = xr.conventions.encode_cf_variable(_variable(array, scaling)).values
        stored, info = np.rint(scaled.astype(np.float64)), np.iinfo(self.dtype)
        bad = (stored < info.min) | (stored >= info.max + 1.0)  # 2^63 - 1 itself would round up
        return np.where(np.isnan(array), not self.fills, bad | np.isin(stored, self.fills))

    def fitting(self, block: Array, variable: str) -> Array:
        """The values; refuses those that packing would change beyond rounding, or wrap around."""
        exact = self.dtype.itemsize < 8 or {*PACKING[:2]} & set(self.encoding)
        if not exact and (np.abs(block) >= WHOLE).any():
            raise InputError(
                f"`{variable}` holds whole numbers beyond 2^53 with a mark for missing ones, which "
                f"would not be kept exactly. Take it out first: ncks -x -v {variable} IN.nc OUT.nc"
            )
        bad = self.misfits(block)
        if not bad.any():
            return block
        low, high = self.range
        seen, fills = block[bad & ~np.isnan(block)], ", ".join(map(str, self.fills))
        given = f"from {seen.min():.6g} to {seen.max():.6g}" if seen.size else "missing"
        raise InputError(
            f"`{variable}` is packed into {np.dtype(self.encoding['dtype'])}, which holds "
            f"{low:.6g} to {high:.6g}{f' ({fills} stored means missing)' if fills else ''}; "
            f"{int(bad.sum())} of its values do not fit, {given}. Use `unpack=True` to write "
            "floating-point numbers."
        )

    def rounded(self, block: Array, rows: BlockRows, bounds: tuple[float, float]) -> Array:
        """A block (N, I, P) on the values that its integers stand for, with the same totals."""
        exact = (block.astype(float) - self.offset) / self.scale
        info, ends = (
            np.iinfo(self.dtype),
            sorted((end - self.offset) / self.scale for end in bounds),
        )

        def allowed(whole: Array) -> Array:
            fits = (whole >= max(info.min, ends[0])) & (whole <= min(info.max, ends[1]))
            return fits & ~np.isin(whole, self.fills)  # those do not stand for a value

        found = closing(exact, rows, allowed)
        return found * self.scale + self.offset


def closing(exact: Array, rows: BlockRows, allowed: Callable[[Array], Array]) -> Array:
    """Whole numbers for those of a block (N, I, P), with their totals.

    That is the nearest ones, except for the few that must go the other way for the total of
    their row to close: those that lie nearest to the middle. The total is then off by at most half
    a step of a small cell. Rows may not share points.
    """
    found = np.rint(exact)
    for member, index in np.ndindex(found.shape[:-1]):
        for law in rows.laws:
            weights = law.weights[index if len(law.weights) > 1 else 0]
            for points in _by_row(law.labels, len(weights)):
                at = (member, index, points)
                found[at] = _closed(exact[at], found[at], weights[points], allowed)
    return found


def _closed(exact: Array, held: Array, weights: Array, allowed: Callable[[Array], Array]) -> Array:
    """The numbers of one row, some of them one up or down, so that its exact sum stays."""
    off = exact - held
    free = weights != 0
    missing = float(np.dot(weights[free], off[free]))  # what rounding took from the total
    if not missing:
        return held
    step = np.sign(missing * weights)
    other = held + step
    size, free = np.abs(weights * step), free & allowed(other)
    if not free.any():
        return held
    count = min(int(free.sum()), 16 + int(4 * abs(missing) / size[free].mean()))
    gain = np.where(free, off * step, -np.inf)  # the nearer to the middle, the less it costs
    near = np.argpartition(-gain, count - 1)[:count]
    near = near[np.argsort(-gain[near])]
    some = near[: int(np.searchsorted(np.cumsum(size[near]), abs(missing), side="right"))]
    found = held.copy()
    found[some] = other[some]
    left, rest = abs(missing) - size[some].sum(), np.setdiff1d(near, some)
    for _ in range(min(TRIES, len(rest))):
        best = rest[np.argmin(np.abs(left - size[rest]))]
        if abs(left - size[best]) >= abs(left):
            break
        found[best] = other[best]
        left, rest = left - size[best], rest[rest != best]
    return found


def _by_row(labels: Array | None, count: int) -> list[Any]:
    """The points of each row."""
    if labels is None:
        return [slice(0, count)]
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)


def _variable(array: Array, encoding: Mapping[str, Any]) -> xr.Variable:
    return xr.Variable([f"axis{i}" for i in range(array.ndim)], array, encoding=dict(encoding))


def valid_limits(variable: xr.Variable | xr.DataArray) -> tuple[float, float]:
    """Between which its values are valid, as its attributes say.

    Limits of packed integers speak of these, unless they are floats.
    """
    attrs = variable.attrs
    ends = np.ravel(attrs.get("valid_range", NO_BOUNDS))
    pairs = (("valid_min", ends[0]), ("valid_max", ends[-1]))
    try:
        given = [np.asarray(attrs.get(key, end)) for key, end in pairs]
        low, high = (float(each) for each in given)
    except (ValueError, TypeError):
        return NO_BOUNDS
    packing = Packing.of(variable)
    if packing is not None and all(each.dtype.kind in "iu" or np.isinf(each) for each in given):
        return packing.values(*(x if np.isinf(x) else packing.as_counted(x) for x in given))
    return low, high


def without_packing(variable: xr.DataArray) -> xr.DataArray:
    """A copy that is stored as the floating-point numbers it holds, missing values as NaN."""
    copy, packing = variable.copy(deep=False), Packing.of(variable)
    if packing is None:
        return copy
    copy.encoding = {k: v for k, v in variable.encoding.items() if k not in PACKING}
    copy.encoding |= {"dtype": variable.dtype, "_FillValue": variable.dtype.type(np.nan)}
    for key in set(LIMITS) & set(copy.attrs):  # they speak of the stored integers
        limits = np.asarray(copy.attrs[key]) * packing.scale + packing.offset
        copy.attrs[key] = limits.astype(variable.dtype)
    return copy


def next_held(variable: xr.Variable, bound: float, towards: float) -> float:
    """The first number from the bound on that the file can hold."""
    packing, step = Packing.of(variable), float(np.spacing(np.abs(variable.dtype.type(bound))))
    if packing is not None:
        low, high = packing.range
        if not low <= bound <= high:
            return bound
        step = abs(packing.scale)
    tried = np.array([bound, bound + towards * step], variable.dtype)
    first, second = map(float, tried if packing is None else packing.seen(tried))
    return first if np.isinf(bound) or (first - bound) * towards >= 0 else second


def outside(u: Array, ends: tuple[float, float], slack: float = 0.0) -> Array:
    """Which values are. slack: of the ends, as a share; a value on one may move by rounding."""
    if ends == NO_BOUNDS:
        return np.zeros((*u.shape[:-1], 1), bool)
    low, high = map(np.float64, ends)  # not rounded to the type of u
    if slack:
        low, high = low - slack * abs(low), high + slack * abs(high)
    return (u < low) | (u > high)


def typed(dataset: xr.Dataset, names: Iterable[str], dtype: str | None) -> xr.Dataset:
    """The dataset with these variables in that type, as they are written."""
    if dtype is None:
        return dataset
    choice("dtype", dtype, TYPES)
    to, changed = np.dtype(dtype), {}
    for name in sorted({*names} & dataset.variables.keys()):
        v = dataset.variables[name]
        if Packing.of(v) is not None:
            raise InputError(
                f"`dtype` is for floats, and `{name}` is packed into "
                f"{np.dtype(v.encoding['dtype'])}. Add `unpack=True`; of a dataset in memory, drop "
                "its encoding first (`drop_encoding()`)."
            )
        if v.dtype != to or np.dtype(v.encoding.get("dtype", v.dtype)) != to:
            encoding = {k: e for k, e in v.encoding.items() if k not in (*FILLS, "fill_value")}
            if any(v.encoding.get(key) is not None for key in FILLS):  # missing ones as NaN
                encoding["_FillValue"] = to.type(np.nan)
            data = v.data.astype(to)
            changed[name] = xr.Variable(v.dims, data, v.attrs, encoding | {"dtype": to})
    out = dataset.assign(changed)
    out.encoding = dataset.encoding
    return out
