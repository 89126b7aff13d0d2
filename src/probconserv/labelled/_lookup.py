"""What a law names, found in a dataset: arrays without coordinates, which were compared before."""

from collections.abc import Hashable, Iterable, Sequence
from difflib import get_close_matches
from numbers import Real
from typing import Any

import numpy as np
import xarray as xr

from .._errors import InputError
from ._time import decoded

Given = float | str | xr.DataArray  # a number, a name in the dataset, or an array


def find(dataset: xr.Dataset, name: str, argument: str) -> xr.DataArray:
    """The variable or coordinate of that name."""
    if not isinstance(name, str) or name not in dataset.variables:
        raise InputError(
            f"`{argument}`: no variable {name!r} here. {nearest(name, dataset.variables)}"
        )
    return dataset[name]


def nearest(name: object, names: Iterable[Hashable]) -> str:
    """The choices, the likely one first, as the end of a message."""
    known = [str(each) for each in names]
    close = get_close_matches(str(name), known, 1)
    close = close or [each for each in known if name and each.startswith(str(name))]
    return f"Did you mean {close[0]!r}?" if close else f"There are: {', '.join(known) or 'none'}."


def array(dataset: xr.Dataset, given: Given, argument: str, like: xr.DataArray) -> xr.DataArray:
    """A number, or an array whose axes and coordinates are among those of `like`."""
    if isinstance(given, bool) or not isinstance(given, str | xr.DataArray | Real | np.ndarray):
        raise InputError(
            f"`{argument}` must be a number, a name in the dataset or a DataArray; got {given!r}."
        )
    if isinstance(given, Real | np.ndarray):
        if np.ndim(given):
            raise InputError(
                f"`{argument}` is an array without names. Give a DataArray with the dimensions of "
                "its axes."
            )
        if not np.isfinite(given):
            raise InputError(f"`{argument}` must be finite, got {given}.")
        return xr.DataArray(float(given))
    found = placed(dataset, given, argument, like)
    check_numbers(found, argument)
    return found


def placed(
    dataset: xr.Dataset, given: str | xr.DataArray, argument: str, like: xr.DataArray
) -> xr.DataArray:
    """An array of anything, whose axes and coordinates are among those of `like`."""
    if not isinstance(given, str | xr.DataArray):
        raise InputError(
            f"`{argument}` must be a name in the dataset or a DataArray; got {given!r}."
        )
    found = find(dataset, given, argument) if isinstance(given, str) else given
    match(found, like, argument)
    return found


def check_numbers(found: xr.DataArray, argument: str) -> None:
    if found.dtype.kind not in "biuf":
        raise InputError(f"`{argument}` must hold real numbers, got {found.dtype}. Convert it.")


def match(
    found: xr.DataArray, like: xr.DataArray, argument: str, extra: Sequence[str] = ()
) -> None:
    """Refuse axes that `like` does not have and coordinates that differ from its own."""
    for dim in found.dims:
        if dim in extra:
            continue
        if dim not in like.dims:
            raise InputError(
                f"`{argument}` has a dimension {dim!r}, which `{like.name}` has not. "
                f"{nearest(dim, like.dims)}"
            )
        if found.sizes[dim] != like.sizes[dim]:
            raise InputError(
                f"`{argument}` has {found.sizes[dim]} entries along {dim!r}, `{like.name}` has "
                f"{like.sizes[dim]}.{_first_difference(found, like, dim)}"
            )
        if difference := _first_difference(found, like, dim):
            raise InputError(f"`{argument}` and `{like.name}` differ along {dim!r}.{difference}")


def _first_difference(one: xr.DataArray, other: xr.DataArray, dim: Hashable) -> str:
    if dim not in one.indexes or dim not in other.indexes:
        return ""
    if one.indexes[dim].equals(other.indexes[dim]):
        return ""
    one, other = decoded(one), decoded(other)
    ours, theirs = one[dim].values, other[dim].values
    if np.float32 in (ours.dtype, theirs.dtype) and ours.dtype.kind == theirs.dtype.kind:
        ours, theirs = ours.astype(np.float32), theirs.astype(np.float32)
    shared = min(len(ours), len(theirs))
    differ = np.flatnonzero([a != b for a, b in zip(ours, theirs, strict=False)])
    if not differ.size and len(ours) == len(theirs):
        return ""
    first = int(differ[0]) if differ.size else shared
    there = [_entry(values, first) for values in (ours, theirs)]
    return f" The first entry that differs is number {first}: {there[0]} instead of {there[1]}."


def _entry(values: Any, number: int) -> str:
    return str(values[number]) if number < len(values) else "nothing"
