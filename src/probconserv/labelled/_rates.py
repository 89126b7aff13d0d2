"""Rates in time: what comes in between the times of a field, by the `cell_methods` of each rate."""

from dataclasses import dataclass, replace

import numpy as np
import xarray as xr

from .._errors import InputError
from ._coordinates import cell_methods, half_way, setting
from ._time import Array, Time, tells_time, times_along

SLACK = 1e-6  # of the shortest cell: bounds that miss each other by less meet


@dataclass(frozen=True, eq=False)
class Course:
    """What a rate has in each piece of time: a mixture of two of its entries, times a length."""

    entries: Array  # of the rate that count, in the order of time
    moments: Array  # when they are, on the clock of the field
    before: Array  # (pieces) number of an entry
    after: Array  # (pieces)
    share: Array  # (pieces) of the later of the two
    lengths: Array  # (pieces)
    passed: Array  # (times of the field) number of pieces that are over by then

    def gained(self, rate: xr.Variable, dim: str) -> xr.Variable:
        """The integral of a rate, whose entries along `dim` are ours, up to each time."""
        values = rate.transpose(dim, ...).values
        shape = (-1, *[1] * (values.ndim - 1))
        share, lengths = self.share.reshape(shape), self.lengths.reshape(shape)
        pieces = lengths * ((1 - share) * values[self.before] + share * values[self.after])
        whole = np.concatenate([np.zeros((1, *values.shape[1:])), np.cumsum(pieces, axis=0)])
        dims = (dim, *(d for d in rate.dims if d != dim))
        return xr.Variable(dims, whole[self.passed])


@dataclass(frozen=True, eq=False)
class Rate:
    """A rate and its times."""

    name: str  # in messages
    array: xr.DataArray
    dim: str | None  # its time; None if it is constant
    times: xr.DataArray | None
    method: str | None  # point, mean or sum; None if nothing says
    bounds: xr.DataArray | None
    remark: str  # on how it is integrated; empty where there is nothing to say
    factor: float = 1.0  # to the units of the law

    def course(self, time: Time) -> Course:
        """Its course between the times of the field, two or more."""
        if self.times is None:
            return _by_cells(self.name, time, _half_way(time.ends))
        times = time.seconds(self.times, self.name)
        if self.method in (None, "point"):
            return _by_points(self.name, time, times)
        if self.bounds is not None:
            cells = np.sort(time.seconds(self.bounds, self.name, self.times), axis=-1)
        else:
            cells = _half_way(times) if self.method == "mean" else _since_previous(times)
        course = _by_cells(self.name, time, cells)
        if self.method == "mean":
            return course
        widths = (cells[:, 1] - cells[:, 0])[course.entries][course.before]
        return replace(course, lengths=course.lengths / widths)


def rate_of(
    dataset: xr.Dataset, array: xr.DataArray, argument: str, time: Time, field: xr.DataArray
) -> Rate:
    """A rate with what its attributes say about time."""
    name = f"{argument} {array.name}" if array.name else argument
    dim = _own_time(array, time, field)
    if dim is None:
        if _method(array, name, time.dim) == "sum":
            raise InputError(
                f"`{name}` is an amount (time: sum) without times. Give it {time.dim!r}, or a rate."
            )
        return Rate(name, array, None, None, None, None, "")
    if not array.sizes[dim]:
        raise InputError(f"`{name}` is empty: it has no entries along {dim!r}.")
    times = times_along(array, dim)
    times = time.coordinate if times is None else times
    assert times is not None
    method = _method(array, name, dim, str(times.attrs.get("standard_name", dim)))
    bounds, lacking = _bounds(dataset, times, name) if method in ("mean", "sum") else (None, "")
    said = {
        None: "no cell_methods; taken as point values, linear between times",
        "point": "point values, linear between times",
        "mean": f"means, taken over cells half way between times ({lacking})",
        "sum": f"amounts, taken since the time before ({lacking})",
    }[method]
    if bounds is not None:
        said = f"{'means' if method == 'mean' else 'amounts'} within the bounds {bounds.name}"
    return Rate(name, array, dim, times, method, bounds, f"{name}: {said}")


def _own_time(array: xr.DataArray, time: Time, field: xr.DataArray) -> str | None:
    """Its time: that of the field, or another that the field does not have."""
    if time.dim in array.dims:
        return time.dim
    others = [str(dim) for dim in array.dims if dim not in field.dims]
    return next((d for d in others if d in array.coords and tells_time(array[d])), None)


def _method(array: xr.DataArray, name: str, *dims: str) -> str | None:
    """What a rate is in time: point, mean or sum; None if nothing says."""
    found = cell_methods(array, "time", *dims)
    step = array.attrs.get("GRIB_stepType", "instant")
    if not found and step != "instant":
        raise InputError(
            f"`{name}` has GRIB_stepType {step!r}, which does not say since when. Take differences "
            "and give it `cell_methods`, 'time: sum' for amounts since the time before."
        )
    if not found:
        return None
    *others, (method, qualifier) = found
    if others or qualifier:
        raise InputError(
            f"`{name}` is a climatology ({setting(array, 'cell_methods')}), which does not follow "
            "the times of the field. Give a rate for each time."
        )
    if method not in ("point", "mean", "sum"):
        raise InputError(
            f"`{name}` has cell_methods 'time: {method}'; over time only point values, means and "
            "sums add up. Give such a rate, or correct its `cell_methods`."
        )
    return method


def _bounds(dataset: xr.Dataset, times: xr.DataArray, name: str) -> tuple[xr.DataArray | None, str]:
    """The bounds of its times (n, 2); else None and why."""
    if setting(times, "climatology"):
        raise InputError(
            f"`{name}`: the times {times.name!r} are those of a climatology, which does not follow "
            "the times of the field. Give a rate for each time."
        )
    label = setting(times, "bounds")
    known = times.name in dataset.variables and dataset[times.name].variable.equals(times.variable)
    if not label or not known or label not in dataset.variables:
        return None, f"its bounds {label} are not there" if label else "no bounds"
    found = dataset[label].transpose(*times.dims, ..., missing_dims="ignore")
    if found.dims[0] != times.dims[0] or found.shape != (times.size, 2):
        raise InputError(
            f"`{name}`: the bounds {label!r} of {times.name!r} must hold two times for each of its "
            f"entries, got {dict(found.sizes)}."
        )
    return found, ""


def _half_way(times: Array) -> Array:  # (n) -> (n, 2)
    order = np.argsort(times)
    cells = np.empty((len(times), 2))
    cells[order] = half_way(times[order]) if len(times) > 1 else times[:, None]
    return cells


def _since_previous(times: Array) -> Array:  # (n) -> (n, 2)
    order = np.argsort(times)
    cells = np.stack([times, times], axis=-1)
    cells[order[1:], 0] = times[order[:-1]]
    return cells


def _by_points(name: str, time: Time, times: Array) -> Course:
    """Linear between times."""
    order = np.argsort(times)
    x, ends, start, stop = times[order], time.ends, time.ends.min(), time.ends.max()
    slack = SLACK * np.diff(x).min(initial=stop - start)
    if slack <= 0:
        raise InputError(f"`{name}` has two entries for the same time. Drop one.")
    _refuse_gaps(name, time, np.array([start, x[-1]]), np.array([x[0], stop]), slack)
    used = slice(max(0, np.searchsorted(x, start, "right") - 1), np.searchsorted(x, stop) + 1)
    x, entries = x[used], order[used]
    moments = np.unique(np.concatenate([x.clip(start, stop), ends]))
    middle = (moments[1:] + moments[:-1]) / 2
    before = (np.searchsorted(x, middle, "right") - 1).clip(0, len(x) - 2)
    share = (middle - x[before]) / (x[before + 1] - x[before])
    passed = np.searchsorted(moments, ends)
    return Course(entries, x, before, before + 1, share, np.diff(moments), passed)


def _by_cells(name: str, time: Time, cells: Array) -> Course:
    """Constant within cells, which must fill the time between the first and the last end."""
    ends, start, stop = time.ends, time.ends.min(), time.ends.max()
    widths = cells[:, 1] - cells[:, 0]
    slack = SLACK * widths[widths > 0].min(initial=stop - start)
    used = (widths > 0) & (cells[:, 1] > start + slack) & (cells[:, 0] < stop - slack)
    entries = np.flatnonzero(used)[np.argsort(cells[used, 0])]
    x, y = cells[entries].T
    for i in np.flatnonzero(y[:-1] - x[1:] > slack)[:1]:
        raise InputError(
            f"`{name}`: its time bounds overlap from {time.at(x[i + 1])} to {time.at(y[i])}. Take "
            "differences, so that each time is in one of them."
        )
    _refuse_gaps(name, time, np.append(start, y), np.append(x, stop), slack)
    moments = np.unique(np.concatenate([[start], x[1:], ends]))
    cell = (np.searchsorted(x, (moments[1:] + moments[:-1]) / 2, "right") - 1).clip(0)
    passed = np.searchsorted(moments, ends)
    return Course(entries, (x + y) / 2, cell, cell, np.zeros(len(cell)), np.diff(moments), passed)


def _refuse_gaps(name: str, time: Time, starts: Array, stops: Array, slack: float) -> None:
    for i in np.flatnonzero(stops - starts > slack)[:1]:
        raise InputError(
            f"`{name}` says nothing about the time from {time.at(starts[i])} to "
            f"{time.at(stops[i])}, between times of the field. Give it for all of that time."
        )
