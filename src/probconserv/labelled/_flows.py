"""Rates on their way into the totals of a law: where the field counts, summed and integrated."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import xarray as xr

from .._errors import InputError
from ._blocks import quiet, sizes
from ._graph import NamedPart, NamedRows
from ._rates import Course, Rate
from ._rows import Array, BlockRows
from ._time import Time, place
from ._weights import REGION, Points

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
        part = NamedPart(self._near(cells), points.regions, 0, count)
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
        wrong = there & (here(self._rows.parts[0].weights) != 0) & ~np.isfinite(rate)
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
    total = rows.apply(rate)
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
