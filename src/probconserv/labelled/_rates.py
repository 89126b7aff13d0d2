"""Rates in time: what comes in between the times of a field, by the `cell_methods` of each rate."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from .._errors import InputError
from .._sphere import half_way
from ._coordinates import cell_methods, setting
from ._time import Array, Time, tells_time, times_along

SLACK = 1e-6  # of the shortest cell: bounds that miss each other by less meet
REMARKS = {  # how a rate of each kind is integrated, without and with bounds
    None: "no cell_methods; taken as point values, linear between times",
    "point": "point values, linear between times",
    "mean": "means, taken over cells half way between times ({lacking})",
    "sum": "amounts, taken since the time before ({lacking})",
    "mean in bounds": "means within the bounds {bounds}",
    "sum in bounds": "amounts within the bounds {bounds}",
}


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
    method: str | None  # point, mean or sum; None if nothing says
    bounds: xr.DataArray | None = None
    remarks: tuple[str, ...] = ()  # on how it is integrated

    def course(self, time: Time) -> Course:
        """Its course between the times of the field, two or more."""
        times = time.seconds(self.times, self.name)
        order = np.argsort(times)
        x = times[order]
        if self.method in (None, "point"):
            return self._between_points(time, x, order)
        if self.bounds is not None:
            cells = np.sort(time.seconds(self.bounds, self.name), axis=-1)
            order = np.argsort(cells[:, 0])
            return self._in_cells(time, cells[order], order)
        since_previous = np.stack([np.append(x[:1], x[:-1]), x], axis=-1)
        by_sum = self.method == "sum" or len(x) == 1
        return self._in_cells(time, since_previous if by_sum else half_way(x), order)

    def _between_points(self, time: Time, x: Array, order: Array) -> Course:
        start, stop = time.ends.min(), time.ends.max()
        slack = SLACK * np.diff(x).min(initial=stop - start)
        if slack <= 0:
            raise InputError(f"`{self.name}` has two entries for the same time. Drop one.")
        self._refuse_gaps(time, [start, x[-1]], [x[0], stop], slack)
        used = slice(max(0, np.searchsorted(x, start, "right") - 1), np.searchsorted(x, stop) + 1)
        return Course(order[used], x[used])

    def _in_cells(self, time: Time, cells: Array, order: Array) -> Course:
        """Constant within cells, which must fill the time between the first and the last end."""
        start, stop = time.ends.min(), time.ends.max()
        widths = cells[:, 1] - cells[:, 0]
        slack = SLACK * widths[widths > 0].min(initial=stop - start)
        used = (widths > 0) & (cells[:, 1] > start + slack) & (cells[:, 0] < stop - slack)
        x, y = cells[used].T
        for i in np.flatnonzero(y[:-1] - x[1:] > slack)[:1]:
            raise InputError(
                f"`{self.name}`: its time bounds overlap from {time.at(x[i + 1])} to "
                f"{time.at(y[i])}. Take differences, so that each time is in one of them."
            )
        self._refuse_gaps(time, [start, *y], [*x, stop], slack)
        edges = np.array([start, *x[1:], stop])
        amounts_in = y - x if self.method == "sum" else 1.0
        return Course(order[used], (x + y) / 2, edges, amounts_in)

    def _refuse_gaps(self, time: Time, starts: Any, stops: Any, slack: float) -> None:
        for i in np.flatnonzero(np.subtract(stops, starts) > slack)[:1]:
            raise InputError(
                f"`{self.name}` says nothing about the time from {time.at(starts[i])} to "
                f"{time.at(stops[i])}, between times of the field. Give it for all of that time."
            )


def rate_of(
    dataset: xr.Dataset, array: xr.DataArray, argument: str, time: Time, field: xr.DataArray
) -> Rate:
    """A rate with what its attributes say about time."""
    name = f"{argument} {array.name}" if array.name else argument
    dim = _own_time(array, time, field)
    if dim is None:  # constant: at each time of the field, as long as that is the nearest
        if _method(array, name, time.dim) == "sum":
            raise InputError(f"`{name}` is an amount (time: sum) without times. Give a rate.")
        wide = array.expand_dims({time.dim: len(time.ends)})
        return Rate(name, wide, time.dim, time.coordinate, "mean")
    if not array.sizes[dim]:
        raise InputError(f"`{name}` is empty: it has no entries along {dim!r}.")
    times = times_along(array, dim, time.coordinate)
    method = _method(array, name, dim, str(times.attrs.get("standard_name", dim)))
    bounds, lacking = _bounds(dataset, times, name) if method in ("mean", "sum") else (None, "")
    said = REMARKS[method if bounds is None else f"{method} in bounds"]
    said = said.format(lacking=lacking, bounds="" if bounds is None else bounds.name)
    return Rate(name, array, dim, times, method, bounds, (f"{name}: {said}",))


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
            "and say 'time: sum' in `cell_methods`."
        )
    if not found:
        return None
    *others, (method, qualifier) = found
    if others or qualifier:
        raise _climatology(name, setting(array, "cell_methods"))
    if method not in ("point", "mean", "sum"):
        raise InputError(
            f"`{name}` has cell_methods 'time: {method}'; over time only point values, means and "
            "sums add up. Give such a rate, or correct its `cell_methods`."
        )
    return method


def _climatology(name: str, why: str) -> InputError:
    return InputError(
        f"`{name}` is a climatology ({why}), which does not follow the times of the field. Give a "
        "rate for each time."
    )


def _bounds(dataset: xr.Dataset, times: xr.DataArray, name: str) -> tuple[xr.DataArray | None, str]:
    """The bounds of its times (n, 2); else None and why."""
    if setting(times, "climatology"):
        raise _climatology(name, f"{times.name} has climatology bounds")
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
    return found.assign_attrs(units=times.attrs.get("units", "")), ""
