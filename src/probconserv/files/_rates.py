"""Rates: what they bring between the times of a field.

They are point values, means, amounts or running totals, as `_methods` finds.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import xarray as xr

from ..support.errors import InputError
from ..support.sphere import half_way
from ..support.tolerances import SINGLE
from ._attributes import Array, setting
from ._methods import CellMethod, method_of
from ._time import BOUNDS, Time, is_lead, tells_time, times_along


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
    if said.hours is not None:
        return np.stack([x - 3600 * said.hours, x], axis=-1)
    if said.place == "start":
        return np.stack([x, np.append(x[1:], x[-1:])], axis=-1)
    centred = said.place == "middle" or (said.place is None and said.kind == "mean")
    if centred and len(x) > 1:
        return half_way(x)
    return np.stack([np.append(x[:1], x[:-1]), x], axis=-1)  # since the entry before


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
