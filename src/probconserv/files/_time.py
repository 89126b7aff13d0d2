"""Time: which dimension of a field it is, its clock, and what rates bring between its entries.

Rates are point values, means, amounts or running totals, as `_methods` finds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr

from ..support.errors import InputError
from ..support.sphere import half_way
from ..support.tolerances import SINGLE
from ..support.values import choice
from ._attributes import (
    NO_LENGTH,
    Array,
    holds_dates,
    is_decoded,
    scale,
    seconds,
    setting,
    shown,
    units,
)
from ._methods import CellMethod, method_of

PERIOD, REFERENCE = "forecast_period", "forecast_reference_time"
BY_CF, BY_AXIS, BY_NAME = "standard_name time", "axis T", "by its name"
TIMES = ("time", "t")  # names of dimensions
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
    return marks or ([BY_NAME] if dim.lower() in TIMES else [])


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
    beside = [(c, _mark(c)) for c in like.coords.values() if c.dims == (dim,)]
    dates = [c for c, mark in beside if mark == DATES and dim not in like.coords]
    told = [c for c, mark in beside if mark == BY_CF] + (dates if len(dates) == 1 else [])
    return own if tells_time(own) or not told else told[0]


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


@dataclass(frozen=True, eq=False)
class Course:
    """A rate in time: some of its entries, each constant in a cell, or linear between them."""

    entries: Array  # of the rate that count, in the order of time
    moments: Array  # when these are, on the clock of the field: the middle of a cell
    edges: Array | None = None  # of the cells, one more than entries; None: linear
    widths: Array | float = 1.0  # of cells that hold amounts

    def gained(self, rate: xr.Variable, time: Time) -> xr.Variable:
        """The integral from the earliest time to each, of a rate whose entries are ours."""
        from scipy.interpolate import PPoly  # takes a while, which others need not wait for

        values = rate.transpose(..., time.dim).values / self.widths
        if self.edges is None:
            slopes = np.diff(values) / np.diff(self.moments)
            pieces, starts = np.stack([slopes, values[..., :-1]]), self.moments
        else:
            pieces, starts = values[None], self.edges
        integral = PPoly(np.moveaxis(pieces, -1, 1), starts).antiderivative()
        dims = (time.dim, *(dim for dim in rate.dims if dim != time.dim))
        return xr.Variable(dims, integral(time.ends) - integral(time.ends.min()))


@dataclass(frozen=True, eq=False)
class Rate:
    """A rate and what its attributes say about time."""

    name: str  # in messages
    array: xr.DataArray
    dim: str  # its time
    times: xr.DataArray
    said: CellMethod  # what it is in time
    bounds: xr.DataArray | None = None
    remarks: tuple[str, ...] = ()  # on how it is integrated

    @property
    def method(self) -> str | None:
        """Point, mean or sum; None if nothing says. Differences of a running total are sums."""
        return "sum" if self.said.is_amount else self.said.kind

    @property
    def is_linear(self) -> bool:
        return self.method in (None, "point")

    def course(self, time: Time) -> Course:
        """Its course between the times of the field, two or more, all of which it must cover."""
        start, stop = time.ends.min(), time.ends.max()
        cells, order = self._cells(time)
        widths = cells[:, 1] - cells[:, 0]
        if self.is_linear and not widths.all():
            raise InputError(f"`{self.name}` has two entries for the same time. Drop one.")
        slack = SINGLE * widths[widths > 0].min(initial=stop - start)
        used = (widths > 0) & (cells[:, 1] > start + slack) & (cells[:, 0] < stop - slack)
        x, y = cells[used].T
        apart = np.array([*x, stop]) - np.array([start, *y])
        apart[[0, -1]] = apart[[0, -1]].clip(0)  # before the field and after it
        for i in np.flatnonzero(np.abs(apart) > slack)[:1]:
            what = "leave out the time" if apart[i] > 0 else "overlap"
            first, last = sorted([[*x, stop][i], [start, *y][i]])
            raise InputError(
                f"`{self.name}`: its times or their bounds {what} from {time.at(first)} to "
                f"{time.at(last)}. Each time between those of the field must be in one of them."
                f"{self._shorter}"
            )
        if self.is_linear:  # the entries at both ends of every cell
            at_ends = np.append(used, False) | np.insert(used, 0, False)
            return Course(order[at_ends], np.append(x, y[-1]))
        amounts_in = y - x if self.method == "sum" else 1.0
        return Course(order[used], (x + y) / 2, np.array([start, *x[1:], stop]), amounts_in)

    def _cells(self, time: Time) -> tuple[Array, Array]:  # (n, 2), (n,)
        """The cells of time, one after the other, and the order of the entries by that.

        A rate that is linear has cells between its entries, one less than these.
        """
        times = time.seconds(self.times, self.name)
        order = np.argsort(times)
        x = times[order]
        if self.is_linear:
            return np.stack([x[:-1], x[1:]], axis=-1), order
        if self.bounds is not None:
            cells = np.sort(time.seconds(self.bounds, self.name), axis=-1)
            order = np.argsort(cells[:, 0])
            return cells[order], order
        return _intervals(x, self.said), order

    @property
    def _shorter(self) -> str:
        """The way out where intervals of known length leave time out."""
        if self.said.hours is None:
            return ""
        long, what = f"{self.said.hours:g} h that end at each time", self.array.name
        return (
            f" It counts the {long} ({self.said.why}): bring all of these, or say, as in "
            f"`assume_method={{'{what}': '{self.method}:end'}}`, that it holds since the time "
            "before."
        )


def _intervals(x: Array, said: CellMethod) -> Array:  # (n,) to (n, 2)
    """The cells of means and amounts without bounds, of times in order."""
    centred = said.place == "middle" or (said.place is None and said.kind == "mean")
    if said.hours is not None:
        return np.stack([x - 3600 * said.hours, x], axis=-1)
    if centred and len(x) > 1:
        return half_way(x)
    before, after = np.append(x[:1], x[:-1]), np.append(x[1:], x[-1:])
    return np.stack([x, after] if said.place == "start" else [before, x], axis=-1)


def rate_of(
    dataset: xr.Dataset,
    array: xr.DataArray,
    argument: str,
    time: Time,
    field: xr.DataArray,
    stated: Mapping[str, str],
) -> Rate:
    """A rate with what its attributes, or methods stated by name, say about time."""
    name = f"{argument} {array.name}" if array.name else argument
    dim = _own_time(array, time, field)
    said = method_in(dataset, array, name, dim or time.dim, stated)
    if dim is None:  # constant: at each time of the field, as long as that is the nearest
        if said.is_amount:
            raise InputError(f"`{name}` is an amount (time: sum) without times. Give a rate.")
        wide = array.expand_dims({time.dim: len(time.ends)})
        return Rate(name, wide, time.dim, time.coordinate, CellMethod("mean"))
    if not array.sizes[dim]:
        raise InputError(f"`{name}` is empty: it has no entries along {dim!r}.")
    times = times_along(array, dim, time.coordinate)
    if said.kind == "running":
        return _differences(array, name, dim, times, said, time)
    bounds, lacking = _bounds(dataset, times, name) if said.place is None else (None, "")
    remark = f"{name}: {_in_words(array, said, bounds, lacking)}"
    return Rate(name, array, dim, times, said, bounds, (remark,))


def method_in(
    dataset: xr.Dataset, array: xr.DataArray, name: str, dim: str, stated: Mapping[str, str]
) -> CellMethod:
    """What a rate is along its time."""
    called = (str(array[dim].attrs.get("standard_name", dim)),) if dim in array.coords else ()
    return method_of(dataset, array, name, (dim, *called), is_lead(array, dim), stated)


def _differences(
    array: xr.DataArray, name: str, dim: str, times: xr.DataArray, said: CellMethod, time: Time
) -> Rate:
    """A running total as the amounts between its entries."""
    order = np.argsort(time.seconds(times, name))
    later, before = ({dim: order[part]} for part in (slice(1, None), slice(None, -1)))
    moved = array.isel(later).variable - array.isel(before).variable
    amounts = array.isel(later).copy(data=moved.transpose(*array.dims).data)
    edges = [times.isel(each).variable for each in (before, later)]
    cells = xr.Variable.concat(edges, "ends").transpose(dim, "ends")
    bounds = xr.DataArray(cells, dims=cells.dims, name=times.name, attrs=times.attrs)
    remark = f"{name}: a total since the start of the run, its differences counted ({said.why})"
    return Rate(name, amounts, dim, times.isel(later), said, bounds, (remark,))


def _in_words(
    array: xr.DataArray, said: CellMethod, bounds: xr.DataArray | None, lacking: str
) -> str:
    """What a rate is taken as, and how to say otherwise where that was assumed."""
    why = f" ({said.why})" if said.why else ""
    if said.kind in (None, "point"):
        words = "point values, linear between times"
        return f"{words}{why}" if said.kind else f"no cell_methods; taken as {words}"
    what = "means" if said.kind == "mean" else "amounts"
    if bounds is not None:
        return f"{what} within the bounds {bounds.name}"
    place = said.place or ("middle" if said.kind == "mean" else "end")
    if said.hours is not None:
        return f"{what} of the {said.hours:g} h that end at each time{why}"
    cells = {
        "end": "since the time before",
        "start": "until the time after",
        "middle": "over cells half way between times",
    }[place]
    other = "end" if place == "middle" else "middle" if said.kind == "mean" else "start"
    if said.why == "as stated" and said.place:
        return f"{what} {cells} (as stated)"
    otherwise = f"`assume_method={{'{array.name}': '{said.kind}:{other}'}}` says otherwise"
    return f"{what}, taken {cells} ({said.why or lacking}; {otherwise})"


def _own_time(array: xr.DataArray, time: Time, field: xr.DataArray) -> str | None:
    """Its time: that of the field, or another that the field does not have."""
    if time.dim in array.dims:
        return time.dim
    others = [str(dim) for dim in array.dims if dim not in field.dims]
    return next((d for d in others if d in array.coords and tells_time(array[d])), None)


def _bounds(dataset: xr.Dataset, times: xr.DataArray, name: str) -> tuple[xr.DataArray | None, str]:
    """The bounds of its times (n, 2); else None and why."""
    if setting(times, "climatology"):
        raise InputError(f"`{name}` is a climatology by {times.name}. Give a rate for each time.")
    label = setting(times, "bounds")
    known = times.name in dataset.variables and dataset[times.name].variable.equals(times.variable)
    found = times.encoding.get(BOUNDS, dataset.get(label) if known else None)
    if not label or found is None:
        return None, f"its bounds {label} are not there" if label else "no bounds"
    found = found.transpose(*times.dims, ..., missing_dims="ignore")
    if found.dims[0] != times.dims[0] or found.shape != (times.size, 2):
        raise InputError(
            f"`{name}`: the bounds {label!r} of {times.name!r} must hold two times for each of its "
            f"entries, got {dict(found.sizes)}."
        )
    return found.assign_attrs(units=times.attrs.get("units", "")), ""
