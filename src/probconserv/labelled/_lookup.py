"""What a law names, found in a dataset: arrays without coordinates, which were compared before."""

from collections.abc import Hashable, Iterable, Sequence
from difflib import get_close_matches
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from .._errors import InputError
from ._time import decoded

Given = float | str | xr.DataArray  # a number, a name in the dataset, or an array


def find(dataset: xr.Dataset, name: str, argument: str) -> xr.DataArray:
    """The variable or coordinate of that name."""
    if not isinstance(name, str) or name not in dataset.variables:
        known = [*dataset.variables, *(["initial"] if argument in ("total", "average") else [])]
        way = nearest(name, known)
        if str(name).endswith((".nc", ".nc4", ".cdf", ".zarr")):
            way = f"A variable in a file is {name}:VARIABLE."
        elif ":" in str(name):
            way = (
                "FILE:VARIABLE is for `enforce_file`, `check_file` and the command line, with a "
                "FILE that ends in .nc, .nc4, .cdf or .zarr."
            )
        raise InputError(f"`{argument}`: no variable {name!r} here. {way}")
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
    """Refuse axes that `like` does not have and coordinates that differ from its own.

    The coordinates of the axes are compared, and latitudes and longitudes of each cell where both
    have them, by the rule of `same_places`.
    """
    own = [dim for dim in found.dims if dim not in extra]
    for dim in own:
        if dim not in like.dims:
            raise InputError(
                f"`{argument}` has a dimension {dim!r}, which `{like.name}` has not. "
                f"{nearest(dim, like.dims)}"
            )
        if found.sizes[dim] != like.sizes[dim]:
            raise InputError(
                f"`{argument}` has {found.sizes[dim]} entries along {dim!r}, `{like.name}` has "
                f"{like.sizes[dim]}.{_difference(found, like, dim)}"
            )
    angles = [name for name in found.coords if name not in own and _is_angle(found[name])]
    for name in (*own, *angles):
        if difference := _difference(found, like, name):
            word = "along" if name in own else "in"
            raise InputError(f"`{argument}` and `{like.name}` differ {word} {name!r}.{difference}")


def _is_angle(coordinate: xr.DataArray) -> bool:
    text = f"{coordinate.name} {coordinate.attrs.get('units')}".lower()
    return coordinate.ndim > 0 and any(word in text for word in ("lat", "lon", "degree"))


def same_places(ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which entries of two coordinates are equal, up to the rounding with which files store them.

    Numbers may differ by 2^-23 of the largest (float32 holds no more), or by 1e-4 of the smallest
    step (where they are in no order: the usual step) where that is more, and never by more than a
    quarter of it. On a grid of 1 degree that is 1e-4 degrees, on one of 0.1 degrees 4e-5. Whole
    numbers, dates and text are equal or not.
    """
    kinds = {ours.dtype.kind, theirs.dtype.kind}
    if not kinds <= set("iuf"):
        pairs = zip(ours.flat, theirs.flat, strict=True)
        return np.fromiter((bool(a == b) for a, b in pairs), bool).reshape(ours.shape)
    if "f" not in kinds:
        return np.asarray(ours == theirs)
    theirs = theirs.astype(np.float64)
    steps = [np.diff(theirs, axis=axis) for axis in range(theirs.ndim)]
    if theirs.ndim == 1 and len(set(np.sign(steps[0]))) == 1:
        step = np.abs(steps[0]).min()
    else:
        step = max((np.nanmedian(np.abs(each)) for each in steps if each.size), default=0.0)
    slack = 2.0**-23 * np.nanmax(np.abs(theirs), initial=0.0)
    slack = min(max(slack, 1e-4 * step), step / 4) if step > 0 else slack
    return np.isclose(ours, theirs, rtol=0, atol=slack, equal_nan=True)


def _difference(found: xr.DataArray, like: xr.DataArray, name: Hashable) -> str:
    """The first entry of a coordinate that differs, in words; empty where none does."""
    if name not in found.coords or name not in like.coords:
        return ""
    one, other = (decoded(each)[name].variable for each in (found, like))
    if set(one.dims) != set(other.dims) or one.equals(other):
        return ""
    ours, theirs = one.values, other.transpose(*one.dims).values
    shared = min(len(ours), len(theirs))
    differ = np.argwhere(~same_places(ours[:shared], theirs[:shared]))
    if not differ.size and len(ours) == len(theirs):
        return ""
    if _same_circle(ours, theirs, _is_angle(like[name])):
        ends = [f"{values.min():g} to {values.max():g}" for values in (ours, theirs)]
        return (
            f" The longitudes are the same but run from {ends[0]} and from {ends[1]}: shift one of "
            f"them, as in data.assign_coords({name}=data.{name} % 360).sortby({str(name)!r})."
        )
    first = tuple(map(int, differ[0])) if differ.size else (shared,)
    there = [_entry(values, first) for values in (ours, theirs)]
    number = first[0] if len(first) == 1 else first
    return f" The first entry that differs is number {number}: {there[0]} instead of {there[1]}."


def _same_circle(ours: npt.NDArray[Any], theirs: npt.NDArray[Any], angles: bool) -> bool:
    """Whether they are the same longitudes, counted from elsewhere."""
    numbers = angles and {ours.dtype.kind, theirs.dtype.kind} <= set("iuf")
    if not numbers or ours.shape != theirs.shape or abs(float(ours.min()) - theirs.min()) < 1:
        return False
    one, other = (np.sort(np.round(x % 360, 3) % 360, axis=None) for x in (ours, theirs))
    return bool(np.array_equal(one, other))


def _entry(values: Any, number: tuple[int, ...]) -> str:
    return str(values[number]) if number[0] < len(values) else "nothing"
