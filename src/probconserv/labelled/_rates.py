"""Rates in time: what comes in between the times of a field, by the `cell_methods` of each rate.

Densities on the grid are summed where the field counts.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import xarray as xr

from .._errors import InputError
from ._blocks import quiet, sizes
from ._coordinates import cell_methods, half_way, setting
from ._graph import Array, BlockRows, LawRows, NamedRows
from ._time import Time, place, tells_time, times_along
from ._weights import REGION, Points

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


MEMBER = "members of a rate"  # an axis that no dataset has


@dataclass(frozen=True, eq=False)
class Flow:
    """A rate, its course in time and the points of a law."""

    rate: Rate
    time: Time
    points: Points
    member: str | None

    @cached_property
    def course(self) -> Course:
        return self.rate.course(self.time)

    def lazy(self) -> Any:
        """What is to be computed: (*index, sums) of a density, else the rate itself."""
        if not self._on_grid:
            return self._entries.data
        arrays = [self._near(self.points.first.variable), self._entries]
        size = (self._members + 1) * self._rows.count + 1
        return self._rows.summed(_where_there, arrays, size)

    def gained(self, found: Array) -> xr.Variable:
        """The integral up to each time of the field, from what was computed."""
        if not self._on_grid:
            flow = xr.Variable(self._entries.dims, np.asarray(found, float))
            if (bad := np.argwhere(~np.isfinite(flow.values))).size:
                self._refuse(dict(zip(flow.dims, bad[0], strict=True)))
            return self.course.gained(flow, self.time.dim)
        index, count = self._rows.index, self._rows.count
        if (bad := np.argwhere(found[..., -1] > 0)).size:
            self._refuse_on_grid(dict(zip(index, bad[0], strict=True)))
        shape = (*found.shape[:-1], self._members, count)
        own = self.member if self.member in self.rate.array.dims else MEMBER
        totals = found[..., : self._members * count].reshape(shape)
        flow = xr.Variable((*index, own, REGION), totals)
        flow = flow.isel({MEMBER: 0}, missing_dims="ignore")
        flow = flow.isel({REGION: 0}) if self.points.regions is None else flow
        return self.course.gained(flow, self.time.dim)

    def remarks(self, found: Array) -> Iterator[str]:
        """Where a density counts, if that is not plain."""
        if not self._on_grid:
            return
        first, *others = self.points.fields
        if others:
            yield f"rates on the grid count where {first} does"
        axis = self._rows.index.index(self.time.dim)
        size = found[..., -1 - self._rows.count : -1]
        if np.ptp(size, axis=axis).max() > 1e-9 * size.max():
            yield f"points of {first} change in time; rates count where it is at the nearer time"

    @property
    def _on_grid(self) -> bool:
        own = {self.rate.dim, self.member, REGION, *self.points.rows}
        return any(dim not in own for dim in self.rate.array.dims)

    @property
    def _members(self) -> int:
        return int(self.rate.array.sizes.get(self.member, 1))

    @cached_property
    def _entries(self) -> xr.Variable:
        """The entries of the rate that count, along the time of the field."""
        variable, dim = self.rate.array.variable, self.time.dim
        if self.rate.dim is None:
            if self._on_grid:
                return variable
            return variable.set_dims({dim: len(self.time.ends), **variable.sizes})
        taken = _taken(variable, self.rate.dim, self.course.entries)
        return xr.Variable([dim if d == self.rate.dim else d for d in taken.dims], taken.data)

    def _near(self, variable: xr.Variable) -> xr.Variable:
        """The field or its cells at the entries of the rate: the times that are nearer."""
        if self.time.dim not in variable.dims:
            return variable
        return _taken(variable, self.time.dim, self._nearest)

    @cached_property
    def _nearest(self) -> Array:
        times = self.rate.times
        if times is None or np.array_equal(
            self.time.seconds(times, self.rate.name), self.time.ends
        ):
            return self.course.entries
        order = np.argsort(self.time.ends)
        half_way = (self.time.ends[order][1:] + self.time.ends[order][:-1]) / 2
        return order[np.searchsorted(half_way, self.course.moments)]

    @cached_property
    def _rows(self) -> NamedRows:
        """Sums over the cells where the law counts points."""
        points, weights = self.points, next(iter(self.points.weights.values()))
        cells = points.cells * (weights != 0)
        count = 1 if points.regions is None else points.rows[REGION]
        part = LawRows(self._near(cells), points.regions, 0, count)
        dims = points.first.dims
        index = tuple(dim for dim in points.rows if dim in dims)
        rest = tuple(str(dim) for dim in dims if dim not in index and dim != self.member)
        member = self.member if self.member in dims else None
        return NamedRows((part,), count, True, index, rest, member)

    def _refuse_on_grid(self, at: dict[str, Any]) -> NoReturn:
        """An error that names one of the missing rates of a row."""

        def here(variable: xr.Variable) -> xr.Variable:
            return variable.isel({dim: i for dim, i in at.items() if dim in variable.dims})

        there = here(self._near(self.points.first.variable)).notnull()
        if self.member in there.dims:
            there = there.all(self.member)
        rate = here(self._entries)
        wrong = there & (here(self._rows.laws[0].weights) != 0) & ~np.isfinite(rate)
        place = np.argwhere(wrong.values)[0]
        self._refuse(at | dict(zip(wrong.dims, place, strict=True)))

    def _refuse(self, at: dict[Any, Any]) -> NoReturn:
        coords: dict[Any, xr.DataArray] = dict(self.points.first.coords) | dict(self.points.coords)
        if self.rate.times is not None:
            coords[self.time.dim] = self.rate.times[self.course.entries]
        elif self.time.dim in at:
            del at[self.time.dim]
        said = place(coords, at)
        raise InputError(
            f"`{self.rate.name}` is missing or infinite{' at ' * bool(said)}{said}, "
            f"where {self.points.first.name} counts. Fill it, or leave the point out with `where`."
        )


def _taken(variable: xr.Variable, dim: str, entries: Array) -> xr.Variable:
    """Some entries, as a slice where that does."""
    start, stop = int(entries[0]), int(entries[0]) + len(entries)
    straight = np.array_equal(entries, np.arange(start, stop))
    return variable.isel({dim: slice(start, stop) if straight else entries})


@quiet
def _where_there(field: Array, rate: Array, rows: BlockRows) -> Array:
    """Sums of a rate where the field is there, sizes of these points, number of missing rates."""
    points = field.reshape(-1, *field.shape[-2:])[0]
    total = rows.apply(np.broadcast_to(rate, (*rate.shape[:-2], *points.shape)))
    missing, lost = None, np.zeros((len(points), 1))
    if not (np.isfinite(field.sum()) and np.isfinite(total).all()):
        missing = np.isnan(field.sum(0) if field.ndim == 3 else field)  # in one member or in all
        missing = missing if rows.left_out is None else missing | rows.left_out
        total = rows.apply(np.where(missing | ~np.isfinite(rate), 0.0, rate))
        wrong = ~np.isfinite(rate.sum(0) if rate.ndim == 3 else rate)
        lost = (wrong & ~missing).sum(-1, keepdims=True)
    if total.ndim == 3:  # each member has its own
        total = np.moveaxis(total, 0, 1).reshape(len(points), -1)
    return np.concatenate([total, sizes(rows, missing, points), lost], 1)
