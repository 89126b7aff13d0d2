"""Time: which dimension of a field it is, and how long it is between entries."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import xarray as xr

from .._errors import InputError
from .._values import choice
from ._units import MEAN_LENGTHS, seconds_in

Array = npt.NDArray[Any]
Labelled = TypeVar("Labelled", xr.Dataset, xr.DataArray)

PERIOD, REFERENCE = "forecast_period", "forecast_reference_time"
BY_CF, BY_AXIS, BY_NAME = "standard_name time", "axis T", "by its name"
DATES, DURATIONS, NUMBERS = "dates", "durations", "numbers"
RATES_NEED = "`inflow` and `outflow` need"
LENGTHS = {PERIOD, DURATIONS}
FROM_CLEAR_TO_VAGUE = ({PERIOD, BY_CF, BY_AXIS}, {DATES, DURATIONS, BY_NAME}, {REFERENCE})


@dataclass(frozen=True, eq=False)
class Time:
    """The dimension of a field that is time."""

    dim: str
    how: str  # it was found
    coordinate: xr.DataArray  # its times; words if nothing tells them
    runs: tuple[str, ...] = ()  # dimensions of forecasts that each start anew

    def __str__(self) -> str:
        runs = f", each {' and '.join(self.runs)} a run of its own" if self.runs else ""
        return f"{self.dim} ({self.how}){runs}"

    @cached_property
    def _ordered(self) -> Array | None:
        """The times, if they have an order."""
        times = self.coordinate
        if times.dtype.kind not in "iuf" and not is_decoded(times):
            return None
        if times.isnull().any():
            raise InputError(f"{self.dim!r} is time and has entries that are missing. Drop them.")
        return times.values

    @property
    def earliest(self) -> int:
        """The entry with the earliest time; 0 where nothing tells the times."""
        return 0 if self._ordered is None else int(np.argmin(self._ordered))

    @property
    def first(self) -> str:
        """The earliest entry, in words."""
        values, entry = self._ordered, self.earliest
        if values is None:
            return "entry 0"
        unit = "" if is_decoded(self.coordinate) else _unit(self.coordinate)
        count = int((values == values[entry]).sum())
        which = f" (entry {entry})" if entry else ""
        if count > 1:
            which = f" (entry {entry}, the first of {count} at that time)"
        return f"the earliest, {shown(values[entry])} {unit}".rstrip() + which

    def at_start(self, variable: xr.Variable) -> xr.Variable:
        """A variable at the earliest time."""
        return variable.isel({self.dim: self.earliest}, missing_dims="ignore")

    @property
    def unit(self) -> str | None:
        """Of `seconds`: None for times that are numbers without a unit."""
        return None if _clock(self.coordinate)[0] == NUMBERS else "s"

    @property
    def mean_lengths(self) -> list[str]:
        """A remark where times are in units that differ in length."""
        unit = _unit(self.coordinate)
        if is_decoded(self.coordinate) or not MEAN_LENGTHS.match(unit):
            return []
        days = _clock(self.coordinate)[1] / 86400
        return [f"{unit} of {self.dim} are mean ones, of {days:.6g} days"]

    def seconds(self, times: xr.DataArray, argument: str) -> Array:
        """Times in seconds, on the clock of the field; as they are if they have no unit."""
        (ours, _), (theirs, factor) = _clock(self.coordinate), _clock(times)
        if ours != theirs:
            raise InputError(
                f"`{argument}`: its {times.name!r} must hold {ours} as {self.dim!r} of the field; "
                f"got {times.dtype}. Give both in the same way."
            )
        found = seconds(times, self.coordinate.values[0], factor)
        if not np.isfinite(found).all():
            raise InputError(f"`{argument}`: {times.name!r} has times that are missing. Drop them.")
        return found

    @cached_property
    def ends(self) -> Array:
        """The times of the field on its clock, in the order of the file; no two are the same."""
        found = self.seconds(self.coordinate, "time")
        moments, counts = np.unique(found, return_counts=True)
        if (counts > 1).any():
            twice = self.at(moments[counts > 1][0])
            raise InputError(f"{RATES_NEED} times that differ; {self.dim!r} has {twice} twice.")
        return found

    def nearest(self, moments: Array) -> Array:
        """The entry of the field whose time is the nearest to each moment."""
        order = np.argsort(self.ends)
        in_order = self.ends[order]
        return order[np.searchsorted((in_order[1:] + in_order[:-1]) / 2, moments)]

    def at(self, moment: float) -> str:
        """A moment of the clock as the field would write it."""
        times = self.coordinate
        if _holds_dates(times):
            later: Any = timedelta(seconds=float(moment))
            later = np.timedelta64(later) if times.dtype.kind == "M" else later
            return shown(times.values[0] + later)
        return f"{moment / 3600:g} h" if is_decoded(times) else shown(moment / _clock(times)[1])


def time_of(like: xr.DataArray, given: str | None = None, summed: Sequence[str] = ()) -> Time:
    """The dimension that is time: the given one, else by CF attributes, dates, units or names.

    Of those that are as likely, one that is not `summed` over. Where a forecast has reference
    times beside forecast periods, time is the period.
    """
    marks = {str(dim): _marks(like, str(dim)) for dim in like.dims}
    if given is not None:
        choice("time", given, marks)
    found = _likely(like, marks) if given is None else [given]
    if len(found) > 1:
        found = [dim for dim in found if dim not in summed] or found
    if len(found) != 1:
        why = f": {' or '.join(found)}" if found else ""
        raise InputError(
            f"which of the dimensions of `{like.name}`, {', '.join(marks)}, is time{why}? "
            "Give its name as `time`."
        )
    (dim,) = found
    runs = tuple(d for d in marks if d != dim and REFERENCE in marks[d] and d not in summed)
    how = "as given" if given is not None else marks[dim][0]
    words = xr.DataArray(np.full(like.sizes[dim], "no coordinate"), dims=dim, name=dim)
    return Time(dim, how, times_along(like, dim, words), runs)


def _likely(like: xr.DataArray, marks: Mapping[str, Sequence[str]]) -> list[str]:
    """The dimensions with the clearest marks, without those at which runs start.

    Runs start along a dimension if a coordinate has the date of every pair of it and a length.
    """
    dates = [set(c.dims) for c in like.coords.values() if _mark(c) in (BY_CF, DATES)]
    for clear in FROM_CLEAR_TO_VAGUE:
        found = [dim for dim, its in marks.items() if clear & set(its)]
        lengths = [dim for dim in found if clear & LENGTHS & set(marks[dim])]
        others = [dim for dim in found if dim not in lengths]
        pairs = {dim: [{dim, length} for length in lengths] for dim in others}
        starts = [d for d in others if any(pair <= dims for dims in dates for pair in pairs[d])]
        if found:
            return [dim for dim in found if dim not in starts]
    return []


def _marks(like: xr.DataArray, dim: str) -> list[str]:
    """What says that a dimension is time; coordinates beside its own only by CF attributes."""
    own = _mark(like[dim]) if dim in like.coords else None
    beside = [_mark(c) for c in like.coords.values() if c.dims == (dim,) and c.name != dim]
    found = [own, *(mark for mark in beside if mark not in (DATES, DURATIONS))]
    by_name = [BY_NAME] if dim.lower() in ("time", "t") else []
    return [mark for mark in found if mark is not None] or by_name


def _mark(coordinate: xr.DataArray) -> str | None:
    """What says that a coordinate is time: the first that holds."""
    name, unit = coordinate.attrs.get("standard_name"), _unit(coordinate)
    facts = {
        PERIOD: name == PERIOD,
        REFERENCE: name == REFERENCE,
        BY_CF: name == "time",
        BY_AXIS: coordinate.attrs.get("axis") == "T",
        DATES: _holds_dates(coordinate) or " since " in unit,
        DURATIONS: coordinate.dtype.kind == "m" or (not name and seconds_in(unit)),
    }
    return next((mark for mark, holds in facts.items() if holds), None)


def tells_time(coordinate: xr.DataArray) -> bool:
    return _mark(coordinate) is not None


def times_along(like: xr.DataArray, dim: str, default: xr.DataArray) -> xr.DataArray:
    """The coordinate that tells the times: its own, or one beside it; else the default."""
    own = like[dim] if dim in like.coords else default
    if tells_time(own):
        return own
    beside = (c for c in like.coords.values() if c.dims == (dim,) and _mark(c) == BY_CF)
    return next(beside, own)


def is_decoded(times: xr.DataArray) -> bool:
    """Whether it holds dates or durations, not numbers."""
    return times.dtype.kind == "m" or _holds_dates(times)


def _holds_dates(times: xr.DataArray) -> bool:
    if times.dtype.kind != "O":
        return times.dtype.kind == "M"
    return times.size > 0 and hasattr(times.values.flat[0], "calendar")  # of cftime


def _clock(times: xr.DataArray) -> tuple[str, float]:
    """How it counts time, dates, durations or numbers without a unit, and seconds in its unit."""
    if is_decoded(times):
        return DATES if _holds_dates(times) else DURATIONS, 1.0
    if times.dtype.kind not in "iuf":
        held = f"{times.name!r} holds {str(times.values.flat[0])!r}"
        raise InputError(f"{RATES_NEED} dates or numbers as times; {held}.")
    unit = _unit(times)
    if unit in ("", "1"):
        return NUMBERS, 1.0
    found = seconds_in(unit)
    if found is None:
        raise InputError(
            f"{RATES_NEED} a clock, but the units {unit!r} of {times.name!r} cannot be decoded. "
            "Write units such as 'days since 2000-01-01' (`cdo -r copy` does so) or 'hours'."
        )
    return DURATIONS, found


def seconds(times: xr.DataArray, start: Any, factor: float = 1.0) -> Array:
    """Dates as seconds since `start`, durations as seconds, numbers times a factor."""
    values = times.values
    if values.dtype.kind in "iuf":
        return np.asarray(values * factor, float)
    try:
        passed = values - start if _holds_dates(times) else values
        passed = passed.astype("timedelta64[us]") if passed.dtype.kind == "O" else passed
        return np.asarray(passed / np.timedelta64(1, "s"), float)
    except (TypeError, ValueError):
        raise InputError(
            f"`time`: the dates of {times.name!r} are of another calendar than those of the field, "
            "or missing. Convert them with `convert_calendar` of xarray."
        ) from None


def decoded(data: Labelled) -> Labelled:
    """The same with dates for coordinates, and bounds of them, such as "days since 2000-01-01".

    Units that xarray cannot decode are left as they are.
    """
    within = data.variables if isinstance(data, xr.Dataset) else data.coords
    found: dict[Any, xr.Variable] = {}
    for name, coordinate in data.coords.items():
        if coordinate.dtype.kind in "iuf" and " since " in _unit(coordinate):
            bounds = coordinate.attrs.get("bounds")
            both = {each: within[each] for each in (name, bounds) if each in within}
            with suppress(ValueError, OverflowError, TypeError):
                dates = xr.decode_cf(
                    xr.Dataset({each: (v.dims, v.data, v.attrs) for each, v in both.items()}),
                    mask_and_scale=False,
                    decode_coords=False,
                    decode_timedelta=False,
                )
                found |= dates.load().variables
    if not found:
        return data
    return data.assign(found) if isinstance(data, xr.Dataset) else data.assign_coords(found)


def _unit(array: xr.DataArray) -> str:
    return str(array.attrs.get("units", "")).strip()


def shown(value: Any) -> str:
    """A time, or another entry of a coordinate, in words."""
    if isinstance(value, np.timedelta64):
        return f"{value / np.timedelta64(1, 'h'):g} h"
    if isinstance(value, float | np.floating):
        return f"{value:g}"
    if isinstance(value, np.datetime64) or hasattr(value, "calendar"):
        return re.sub(r"([T ]00:00:00)?(\.0+)?$", "", str(value))
    return str(value)


def place(coords: Mapping[Any, Any], at: Mapping[Any, Any]) -> str:
    """Entries of dimensions in words, by their coordinates where there are some."""
    return ", ".join(
        f"{dim} {shown(coords[dim].values[int(i)]) if dim in coords else f'number {i}'}"
        for dim, i in at.items()
    )


def least_to_most(values: Array) -> str:
    """From the smallest to the largest, in words; one number if they are the same."""
    return " to ".join(dict.fromkeys(f"{end:.3g}" for end in (values.min(), values.max())))
