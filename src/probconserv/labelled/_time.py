"""Time: which dimension of a field it is, and how long it is between entries."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import xarray as xr

from .._errors import InputError
from .._values import choice

Array = npt.NDArray[Any]
Labelled = TypeVar("Labelled", xr.Dataset, xr.DataArray)

MEAN_LENGTHS = re.compile("(months?|years?|yr)$")
PERIOD, REFERENCE = "forecast_period", "forecast_reference_time"
BY_NAME, BY_AXIS, DATES, DURATIONS = "standard_name time", "axis T", "dates", "durations"


@dataclass(frozen=True, eq=False)
class Time:
    """The dimension of a field that is time."""

    dim: str
    how: str  # it was found
    coordinate: xr.DataArray | None  # its times; None if nothing tells them
    runs: tuple[str, ...] = ()  # dimensions of forecasts that each start anew

    def __str__(self) -> str:
        runs = f", each {' and '.join(self.runs)} a run of its own" if self.runs else ""
        return f"{self.dim} ({self.how}){runs}"

    @property
    def _has_order(self) -> bool:
        times = self.coordinate
        return times is not None and (times.dtype.kind in "iufmM" or of_cftime(times))

    @cached_property
    def earliest(self) -> int:
        """The entry with the earliest time; 0 where nothing tells the times."""
        if self.coordinate is None or not self._has_order:
            return 0
        if self.coordinate.isnull().any():
            raise InputError(f"{self.dim!r} is time and has entries that are missing. Drop them.")
        return int(np.argmin(self.coordinate.values))

    @property
    def first(self) -> str:
        """The earliest entry, in words."""
        if self.coordinate is None or not self._has_order:
            return "entry 0"
        unit = _unit(self.coordinate) if self.coordinate.dtype.kind in "iuf" else ""
        values, entry = self.coordinate.values, self.earliest
        when, count = f"{shown(values[entry])} {unit}".strip(), int((values == values[entry]).sum())
        many = f"entry {entry}, the first of {count} at that time" if count > 1 else ""
        which = many or (f"entry {entry}" if entry else "")
        return f"the earliest, {when}" + (f" ({which})" if which else "")

    def at_start(self, variable: xr.Variable) -> xr.Variable:
        """A variable at the earliest time."""
        return variable.isel({self.dim: self.earliest}, missing_dims="ignore")

    @property
    def unit(self) -> str | None:
        """Of `seconds`: None for times that are numbers without a unit."""
        counted = self.coordinate is not None and kind(self.coordinate) == "numbers"
        return None if counted else "s"

    @property
    def mean_lengths(self) -> str:
        """A remark where times are in units that differ in length; empty for others."""
        unit = "" if self.coordinate is None else _unit(self.coordinate)
        if self.coordinate is None or not MEAN_LENGTHS.match(unit) or is_decoded(self.coordinate):
            return ""
        return f"{unit} of {self.dim} are mean ones, of {_factor(self.coordinate) / 86400:.6g} days"

    def seconds(
        self, times: xr.DataArray, argument: str, unit_of: xr.DataArray | None = None
    ) -> Array:
        """Times in seconds, on the clock of the field; as they are if they have no unit.

        unit_of: the coordinate whose bounds these are, which has the unit of both.
        """
        assert self.coordinate is not None
        unit_of = times if unit_of is None else unit_of
        ours, theirs = kind(self.coordinate), kind(unit_of)
        if ours != theirs or is_decoded(times) != is_decoded(unit_of):
            raise InputError(
                f"`{argument}`: its {times.name!r} must hold {ours} as {self.dim!r} of the field; "
                f"got {times.dtype}. Give both in the same way."
            )
        found = seconds(times, self.coordinate.values[0], _factor(unit_of))
        if not np.isfinite(found).all():
            raise InputError(f"`{argument}`: {times.name!r} has times that are missing. Drop them.")
        return found

    @cached_property
    def ends(self) -> Array:
        """The times of the field on its clock, in the order of the file; no two are the same."""
        if self.coordinate is None:
            raise InputError(
                f"`inflow` and `outflow` need the times: {self.dim!r} has no coordinate."
            )
        found = self.seconds(self.coordinate, "time")
        for i in np.flatnonzero(np.diff(np.sort(found)) == 0)[:1]:
            raise InputError(
                f"`inflow` and `outflow` need times that differ; {self.dim!r} has "
                f"{self.at(np.sort(found)[i])} twice. Drop one."
            )
        return found

    def at(self, moment: float) -> str:
        """A moment of the clock as the field would write it."""
        assert self.coordinate is not None
        if kind(self.coordinate) == DATES:
            later: Any = timedelta(seconds=float(moment))
            later = later if of_cftime(self.coordinate) else np.timedelta64(later)
            return shown(self.coordinate.values[0] + later)
        if self.coordinate.dtype.kind == "m":
            return f"{moment / 3600:g} h"
        return shown(moment / _factor(self.coordinate))


def time_of(like: xr.DataArray, given: str | None = None, summed: Sequence[str] = ()) -> Time:
    """The dimension that is time: the given one, else by CF attributes, dates, units or names.

    Of those that are as likely, one that is not `summed` over. Where a forecast has reference
    times beside forecast periods, time is the period.
    """
    marks = {str(dim): tuple(_marks(like, str(dim))) for dim in like.dims}
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
    how = "as given" if given is not None else (marks[dim] or ("by its name",))[0]
    return Time(dim, how, times_along(like, dim), runs)


def _likely(like: xr.DataArray, marks: dict[str, tuple[str, ...]]) -> list[str]:
    def marked(*wanted: str) -> list[str]:
        return [dim for dim, its in marks.items() if set(its) & set(wanted)]

    period, named, dates = marked(PERIOD), marked(BY_NAME, BY_AXIS), marked(DATES)
    lengths = marked(DURATIONS)
    if period:
        return period + [d for d in named if d not in period and not _valid(like, period[0], d)]
    if named:
        return named
    if dates and lengths and all(_valid(like, lengths[0], d) for d in dates):
        return lengths
    if dates:
        return dates + lengths
    bare = [dim for dim, its in marks.items() if not its and dim.lower() in ("time", "t")]
    return lengths + bare or marked(REFERENCE)


def _valid(like: xr.DataArray, *dims: str) -> bool:
    """Whether a coordinate has the time of every pair of entries: one of them is no time."""
    return any(
        set(dims) <= set(c.dims) and _mark(c) in (BY_NAME, DATES) for c in like.coords.values()
    )


def _marks(like: xr.DataArray, dim: str) -> Iterator[str]:
    """What says that a dimension is time; coordinates beside its own only by CF attributes."""
    own = _mark(like[dim]) if dim in like.coords else None
    if own is not None:
        yield own
    for coordinate in like.coords.values():
        if coordinate.dims == (dim,) and coordinate.name != dim:
            mark = _mark(coordinate)
            if mark not in (None, DATES, DURATIONS):
                yield str(mark)


def _mark(coordinate: xr.DataArray) -> str | None:
    """What says that a coordinate is time."""
    name = coordinate.attrs.get("standard_name")
    if name in (PERIOD, REFERENCE):
        return str(name)
    if name == "time":
        return BY_NAME
    if coordinate.attrs.get("axis") == "T":
        return BY_AXIS
    if coordinate.dtype.kind == "M" or of_cftime(coordinate) or " since " in _unit(coordinate):
        return DATES
    if coordinate.dtype.kind == "m" or (not name and seconds_in(_unit(coordinate))):
        return DURATIONS
    return None


def tells_time(coordinate: xr.DataArray) -> bool:
    return _mark(coordinate) is not None


def times_along(like: xr.DataArray, dim: str) -> xr.DataArray | None:
    own = like[dim] if dim in like.coords else None
    if own is not None and tells_time(own):
        return own
    beside = [c for c in like.coords.values() if c.dims == (dim,) and _mark(c) == BY_NAME]
    return beside[0] if beside else own


def is_decoded(times: xr.DataArray) -> bool:
    """Whether it holds dates or durations, not numbers."""
    return times.dtype.kind in "mM" or of_cftime(times)


def of_cftime(times: xr.DataArray) -> bool:
    """Whether it holds dates of cftime."""
    return times.dtype.kind == "O" and times.size > 0 and hasattr(times.values.flat[0], "calendar")


def kind(times: xr.DataArray) -> str:
    """How it counts time: dates, durations, or numbers without a unit."""
    if times.dtype.kind == "M" or of_cftime(times):
        return DATES
    if times.dtype.kind not in "iufm":
        raise InputError(
            f"`inflow` and `outflow` need times that are dates or numbers; {times.name!r} holds "
            f"{times.dtype}."
        )
    return DURATIONS if times.dtype.kind == "m" or _unit(times) not in ("", "1") else "numbers"


@cache
def seconds_in(unit: str) -> float | None:
    """Seconds in a unit of time; None for any other."""
    import cf_units

    try:
        with cf_units.suppress_errors():
            known = cf_units.Unit(unit)
    except ValueError:
        return None
    fixed = known.is_convertible("s") and not known.is_time_reference()
    return float(known.convert(1.0, "s")) if fixed else None


def _factor(times: xr.DataArray) -> float:
    """Seconds in the unit of times that are numbers."""
    unit = _unit(times)
    if times.dtype.kind not in "iuf" or unit in ("", "1"):
        return 1.0
    found = seconds_in(unit)
    if found is None:
        raise InputError(
            f"`inflow` and `outflow` need the time between entries, but the units {unit!r} of "
            f"{times.name!r} cannot be decoded. Write units such as 'days since 2000-01-01' (`cdo "
            "-r copy` does so) or 'hours'."
        )
    return found


def seconds(times: xr.DataArray, start: Any, factor: float = 1.0) -> Array:
    """Dates as seconds since `start`, durations as seconds, numbers times a factor."""
    values = times.values
    if values.dtype.kind in "iufm":
        length = np.timedelta64(1, "s") if values.dtype.kind == "m" else 1.0
        return np.where(times.isnull(), np.nan, values / length * factor)
    try:
        if values.dtype.kind == "M":
            return np.where(np.isnat(values), np.nan, (values - start) / np.timedelta64(1, "s"))
        return np.vectorize(lambda date: (date - start).total_seconds(), otypes=[float])(values)
    except (TypeError, ValueError):
        raise InputError(
            f"`time`: the dates of {times.name!r} are of another calendar than those of the "
            "field, or missing. Convert them with `convert_calendar` of xarray."
        ) from None


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


def decoded(data: Labelled) -> Labelled:
    """The same with dates for coordinates, and bounds of them, such as "days since 2000-01-01".

    Units that xarray cannot decode are left as they are.
    """
    found: dict[Any, xr.Variable] = {}
    within: Mapping[Any, xr.Variable] = data.variables if isinstance(data, xr.Dataset) else {}
    for name, coordinate in data.coords.items():
        if coordinate.dtype.kind in "iuf" and " since " in _unit(coordinate):
            both = {name: coordinate.variable}
            bounds = coordinate.attrs.get("bounds") or coordinate.encoding.get("bounds")
            if bounds in within:
                own = within[bounds]
                both[bounds] = xr.Variable(own.dims, own.data, coordinate.attrs | own.attrs)
            found |= _as_dates(both)
    if not found:
        return data
    if isinstance(data, xr.DataArray):
        return data.assign_coords(found)
    return data.assign(found)


def _as_dates(variables: dict[Any, xr.Variable]) -> dict[Any, xr.Variable]:
    try:
        return {
            name: xr.conventions.decode_cf_variable(
                name, variable, mask_and_scale=False, decode_timedelta=False
            ).load()
            for name, variable in variables.items()
        }
    except (ValueError, OverflowError, TypeError):
        return {}
