"""Values that are stored as integers, value = scale_factor * integer + add_offset."""

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import xarray as xr

from .._errors import InputError

Array = npt.NDArray[Any]
Labelled = TypeVar("Labelled", xr.Variable, xr.DataArray)
PACKING = ("scale_factor", "add_offset", "dtype", "_FillValue", "missing_value", "_Unsigned")
LIMITS = ("valid_min", "valid_max", "valid_range")


def is_packed(variable: xr.Variable | xr.DataArray) -> bool:
    """Whether its floating-point values will be stored as integers."""
    stored = variable.encoding.get("dtype", variable.dtype)
    return variable.dtype.kind == "f" and stored is not str and np.dtype(stored).kind in "iu"


def unpacked_after_packing(array: Array, encoding: Mapping[str, Any]) -> Array:
    """What a reader will see of the values: rounded to the integers that they are stored as."""
    with np.errstate(invalid="ignore"):  # misfits
        packed = xr.conventions.encode_cf_variable(_variable(array, encoding, PACKING))
    return np.asarray(xr.conventions.decode_cf_variable("values", packed).values)


def misfits(array: Array, encoding: Mapping[str, Any]) -> npt.NDArray[np.bool_]:
    """Where a value has no integer to be stored as.

    It is out of the range of the integers, would become the one that stands for missing, or is
    missing while none stands for that.
    """
    low, high = _integers(encoding)
    only_scaled = _variable(array, encoding, ("scale_factor", "add_offset"))
    scaled = xr.conventions.encode_cf_variable(only_scaled).values
    stored = np.rint(scaled.astype(np.float64))
    missing = np.isnan(array)
    fills = _fills(encoding)
    bad = (stored < low) | (stored >= high + 1.0)  # high itself may round up, as 2^63 - 1 does
    for fill in fills:
        bad |= stored == fill
    return np.where(missing, not fills, bad)


def packed_range(encoding: Mapping[str, Any]) -> tuple[float, float]:
    """The smallest and the largest value that the integers can stand for."""
    scale, offset = (float(encoding.get(key, of)) for key, of in _NEUTRAL.items())
    low, high = sorted(scale * end + offset for end in _integers(encoding))
    return low, high


def valid_limits(variable: xr.DataArray) -> tuple[float, float] | None:
    """Between which its values are valid, as its attributes say; None if they do not.

    Limits of packed integers speak of these, unless they are floats.
    """
    attrs = variable.attrs
    if not set(LIMITS) & set(attrs):
        return None
    ends = np.ravel(attrs.get("valid_range", (-np.inf, np.inf)))
    try:
        given = [
            np.asarray(attrs.get("valid_min", ends[0])),
            np.asarray(attrs.get("valid_max", ends[-1])),
        ]
        low, high = (float(each) for each in given)
    except (ValueError, TypeError):
        return None
    if is_packed(variable) and all(each.dtype.kind in "iu" for each in given):
        scale, offset = (float(variable.encoding.get(key, of)) for key, of in _NEUTRAL.items())
        low, high = sorted((scale * low + offset, scale * high + offset))
    return low, high


def check_fits(name: str, array: Array, encoding: Mapping[str, Any]) -> None:
    """Refuses values that packing would change beyond rounding; xarray lets them wrap around."""
    bad = misfits(array, encoding)
    if bad.any():
        refuse_misfits(name, int(bad.sum()), array[bad], encoding)


def refuse_misfits(name: str, count: int, values: Array, encoding: Mapping[str, Any]) -> None:
    """Raises the error for `count` values of the variable, of which `values` are some."""
    low, high = packed_range(encoding)
    seen = values[~np.isnan(values)]
    given = f"from {seen.min():.6g} to {seen.max():.6g}" if seen.size else "missing"
    raise InputError(
        f"`{name}` is packed into {np.dtype(encoding['dtype'])}, which holds {low:.6g} to "
        f"{high:.6g}{_reserved(encoding)}; {count} of its values do not fit, {given}. Use "
        "`unpack=True` to write floating-point numbers."
    )


def without_packing(variable: Labelled) -> Labelled:
    """A copy that is stored as the floating-point numbers it holds, missing values as NaN."""
    packing = variable.encoding
    copy = variable.copy(deep=False)
    copy.encoding = {key: value for key, value in packing.items() if key not in PACKING}
    copy.encoding |= {"dtype": variable.dtype, "_FillValue": variable.dtype.type(np.nan)}
    scale, offset = (packing.get(key, of) for key, of in _NEUTRAL.items())
    for key in set(LIMITS) & set(copy.attrs):  # they speak of the stored integers
        copy.attrs[key] = (np.asarray(copy.attrs[key]) * scale + offset).astype(variable.dtype)
    return copy


_NEUTRAL = {"scale_factor": 1.0, "add_offset": 0.0}


def _variable(array: Array, encoding: Mapping[str, Any], keys: tuple[str, ...]) -> xr.Variable:
    dims = [f"axis{i}" for i in range(array.ndim)]
    return xr.Variable(dims, array, encoding={k: encoding[k] for k in keys if k in encoding})


def _integers(encoding: Mapping[str, Any]) -> tuple[int, int]:
    info = np.iinfo(_dtype(encoding))
    return int(info.min), int(info.max)


def _dtype(encoding: Mapping[str, Any]) -> np.dtype[Any]:
    """The integers as they count: some files store unsigned ones under a signed type."""
    dtype = np.dtype(encoding["dtype"])
    unsigned = {"true": "u", "false": "i"}.get(str(encoding.get("_Unsigned")).lower(), dtype.kind)
    return np.dtype(f"{unsigned}{dtype.itemsize}")


def _fills(encoding: Mapping[str, Any]) -> list[int]:
    """The integers that stand for missing."""
    given = [encoding.get(key) for key in ("_FillValue", "missing_value")]
    fills = [fill for some in given if some is not None for fill in np.atleast_1d(some)]
    return [int(np.int64(fill).astype(_dtype(encoding))) for fill in fills if np.isfinite(fill)]


def _reserved(encoding: Mapping[str, Any]) -> str:
    fills = _fills(encoding)
    return f" ({', '.join(map(str, fills))} stored means missing)" if fills else ""
