"""The type in which moved variables are written."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from ..support.errors import InputError
from ..support.values import choice
from ._attributes import decoded
from ._encoding import Packing
from ._law import FileLaw, Recipe

TYPES = ("float16", "float32", "float64")
FILLS = ("_FillValue", "missing_value")

Typed = Callable[[xr.Dataset], xr.Dataset]


def typed(
    dataset: xr.Dataset,
    laws: Sequence[FileLaw | Recipe],
    std: Any,
    dtype: str | None,
    more: Iterable[str] = (),
) -> tuple[list[Any], Typed]:
    """The laws, made, and what gives datasets their moved variables in that type.

    Moved are those of the laws and their standard deviations. more: names of others.
    """
    if dtype is None:
        return list(laws), lambda each: each
    choice("dtype", dtype, TYPES)
    made = [law(decoded(dataset)) if callable(law) else law for law in laws]
    moved = [name for law in made if isinstance(law, FileLaw) for name in law.factors]
    stds = std.values() if isinstance(std, Mapping) else [std]
    names = {*moved, *(each for each in stds if isinstance(each, str)), *more}
    there = sorted(name for name in names if name in dataset.variables)
    for name in there:
        _check(dataset[name], dtype)
    return made, lambda each: _as_type(each, there, np.dtype(dtype))


def _check(array: xr.DataArray, dtype: str) -> None:
    if Packing.of(array) is not None:
        raise InputError(
            f"`dtype` is for floats, and `{array.name}` is packed into "
            f"{np.dtype(array.encoding['dtype'])}. Add `unpack=True`; of a dataset in memory, drop "
            "its encoding first (`drop_encoding()`)."
        )
    if dtype == "float16" and array.dtype != np.float16:
        raise InputError(
            f"`dtype` 'float16' is for variables that are float16 already; `{array.name}` is "
            f"{array.dtype}, and most of its digits would be lost. Choose 'float32'."
        )


def _as_type(dataset: xr.Dataset, names: Sequence[str], dtype: np.dtype[Any]) -> xr.Dataset:
    variables = {name: dataset.variables[name] for name in names}
    changed = {
        name: xr.Variable(v.dims, v.data.astype(dtype), v.attrs, _encoding(v.encoding, dtype))
        for name, v in variables.items()
        if v.dtype != dtype or np.dtype(v.encoding.get("dtype", v.dtype)) != dtype
    }
    out = dataset.assign(changed) if changed else dataset
    out.encoding = dataset.encoding
    return out


def _encoding(encoding: Mapping[str, Any], dtype: np.dtype[Any]) -> dict[str, Any]:
    """How it was stored, without what is of the other type; marks of missing values as NaN."""
    kept = {key: each for key, each in encoding.items() if key not in (*FILLS, "fill_value")}
    if any(encoding.get(key) is not None for key in FILLS):
        kept["_FillValue"] = dtype.type(np.nan)
    return kept | {"dtype": dtype}
