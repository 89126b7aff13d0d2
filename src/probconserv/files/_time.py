"""Time: which dimension of a field it is, and its clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr

from ..support.errors import InputError
from ..support.values import choice
from ._attributes import (
    NO_LENGTH,
    Array,
    holds_dates,
    is_decoded,
    scale,
    seconds,
    shown,
    units,
)

PERIOD, REFERENCE = "forecast_period", "forecast_reference_time"
BY_CF, BY_AXIS, BY_NAME = "standard_name time", "axis T", "by its name"
DATES, DURATIONS, NUMBERS = "dates", "durations", "numbers"
NO_TIMES = "no coordinate"  # in place of times that nothing tells
LEADS = ("prediction_timedelta", "lead_time", "leadtime", PERIOD)  # names of forecast periods
RATES_NEED = "`inflow` and `outflow` need"
CLARITY = {PERIOD: 0, BY_CF: 0, BY_AXIS: 0, DATES: 1, DURATIONS: 1, BY_NAME: 1, REFERENCE: 2}
BOUNDS = "bounds of times"  # in the encoding of times from another file: what lies beside them


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
    def earliest(self) -> int | None:
        """The entry with the earliest time; None where nothing tells the times."""
        times = self.coordinate
        if times.dtype.kind not in "iuf" and not is_decoded(times):
            return None
        if times.isnull().any():
            raise InputError(f"{self.dim!r} is time and has entries that are missing. Drop them.")
        return int(np.argmin(times.values))

    @property
    def first(self) -> str:
        """The earliest entry, in words."""
        values, entry = self.coordinate.values, self.earliest
        if entry is None:
            return "entry 0"
        unit = "" if is_decoded(self.coordinate) else units(self.coordinate)
        count = int((values == values[entry]).sum())
        which = f" (entry {entry})" if entry else ""
        if count > 1:
            which = f" (entry {entry}, the first of {count} at that time)"
        return f"the earliest, {shown(values[entry])} {unit}".rstrip() + which

    def at_start(self, variable: xr.Variable) -> xr.Variable:
        """A variable at the earliest time."""
        return variable.isel({self.dim: self.earliest or 0}, missing_dims="ignore")

    @property
    def unit(self) -> str | None:
        """Of `seconds`: None for times that are numbers without a unit."""
        return None if _clock(self.coordinate)[0] == NUMBERS else "s"

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
        if holds_dates(times):
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
    starts = (REFERENCE, DATES) if is_lead(like, dim) else (REFERENCE,)
    others = [d for d in marks if d != dim and d not in summed]
    runs = tuple(d for d in others if {*starts} & {*marks[d]})
    how = "as given" if given is not None else marks[dim][0]
    words = xr.DataArray(np.full(like.sizes[dim], NO_TIMES), dims=dim, name=dim)
    times = times_along(like, dim, words)
    how += f", dates of {times.name}" if how == BY_NAME and times.name != dim else ""
    return Time(dim, how, times, runs)


def _likely(like: xr.DataArray, marks: Mapping[str, Sequence[str]]) -> list[str]:
    """The dimensions with the clearest marks, without those at which runs start.

    Runs start along a dimension if a coordinate has the date of every pair of it and a length.
    """
    ranks = {dim: min(CLARITY[mark] for mark in its) for dim, its in marks.items() if its}
    found = [dim for dim, rank in ranks.items() if rank == min(ranks.values())]
    lengths = {dim for dim in found if {PERIOD, DURATIONS} & set(marks[dim])}
    dates = [set(c.dims) for c in like.coords.values() if _mark(c) in (BY_CF, DATES)]
    starts = [dims - lengths for dims in dates if dims & lengths]
    return [dim for dim in found if not any(dim in dims for dims in starts)]


def _marks(like: xr.DataArray, dim: str) -> list[str]:
    """What says that a dimension is time; coordinates beside its own only by CF attributes."""
    along = [c for c in like.coords.values() if c.dims == (dim,)]
    found = [(_mark(c), c.name == dim) for c in sorted(along, key=lambda c: c.name != dim)]
    marks = [mark for mark, own in found if mark and (own or mark not in (DATES, DURATIONS))]
    return marks or ([BY_NAME] if dim.lower() in ("time", "t") else [])


def _mark(coordinate: xr.DataArray) -> str | None:
    """What says that a coordinate is time: the first that holds."""
    name = coordinate.attrs.get("standard_name")
    facts = {
        PERIOD: name == PERIOD or (not name and coordinate.name in LEADS),
        REFERENCE: name == REFERENCE,
        BY_CF: name == "time",
        BY_AXIS: coordinate.attrs.get("axis") == "T",
        DATES: holds_dates(coordinate) or " since " in units(coordinate),
        DURATIONS: coordinate.dtype.kind == "m" or (not name and scale(coordinate, "s")),
    }
    return next((mark for mark, holds in facts.items() if holds), None)


def tells_time(coordinate: xr.DataArray) -> bool:
    return _mark(coordinate) is not None


def is_lead(array: xr.DataArray, dim: str) -> bool:
    """Whether a dimension counts from the start of a forecast."""
    return dim in array.dims and bool({PERIOD, DURATIONS} & {*_marks(array, dim)})


def times_along(like: xr.DataArray, dim: str, default: xr.DataArray) -> xr.DataArray:
    """The coordinate that tells the times: its own, or one beside it; else the default.

    Beside a dimension without a coordinate that may be the only dates along it: XTIME of WRF.
    """
    own = like[dim] if dim in like.coords else default
    if tells_time(own):
        return own
    along: dict[str | None, list[xr.DataArray]] = {BY_CF: [], DATES: []}
    for c in like.coords.values():
        if c.dims == (dim,) and (mark := _mark(c)) in along:
            along[mark].append(c)
    dates = along[DATES] if dim not in like.coords and len(along[DATES]) == 1 else []
    return next(iter([*along[BY_CF], *dates]), own)


def _clock(times: xr.DataArray) -> tuple[str, float]:
    """How it counts time, dates, durations or numbers without a unit, and seconds in its unit."""
    if is_decoded(times):
        return DATES if holds_dates(times) else DURATIONS, 1.0
    if times.dtype.kind not in "iuf":
        held = f"holds {str(times.values.flat[0])!r}"
        if times.values.flat[0] == NO_TIMES:
            held = f"has no coordinate. Write one: ds.assign_coords({times.name}=DATES).to_netcdf()"
        raise InputError(f"{RATES_NEED} dates or numbers as times; {times.name!r} {held}.")
    unit = units(times)
    if unit in ("", "1"):
        return NUMBERS, 1.0
    found = scale(times, "s")
    if found is None or " since " in unit:
        why = "differ in length" if NO_LENGTH.match(unit) else "cannot be decoded"
        raise InputError(
            f"{RATES_NEED} a clock, but the units {unit!r} of {times.name!r} {why}. "
            "Write units such as 'days since 2000-01-01' (`cdo -r copy` does so) or 'hours'."
        )
    return DURATIONS, found
