"""The totals of a law: numbers, variables, or what the field starts with and gains."""

from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr
from dask.base import compute

from .._errors import InputError
from . import _units
from ._blocks import Array, BlockRows, sizes, totals
from ._flows import Flow
from ._graph import NamedPart, NamedRows
from ._law import INITIAL, Law, listed
from ._lookup import Given, array, check_numbers, find, match, nearest
from ._rates import Rate, distinct_times, rate_of, time_methods
from ._time import Time, decoded, shown, time_of
from ._weights import REGION, Points


class Totals:
    """b and its noise, for the rows of one law."""

    def __init__(self, dataset: xr.Dataset, law: Law, points: Points, member: str | None) -> None:
        self.dataset, self.law, self.points, self.member = dataset, law, points, member
        self.remarks: list[str] = []  # for the report: what was found, assumed or converted
        self.rates = [(rate, 1.0, "inflow") for rate in listed(law.inflow)]
        self.rates += [(rate, -1.0, "outflow") for rate in listed(law.outflow)]

    def value(self) -> xr.Variable:
        """b, with some of the axes of the rows, and that of members if each has its own."""
        time = self._time()
        value = self._start(time)
        if time is not None and self.rates:
            value = value + self._gained(time, value)
        bad = ~np.isfinite(value.values)
        if bad.any():
            first = zip(value.dims, np.argwhere(bad)[0], strict=True)
            at = ", ".join(f"{dim} number {number}" for dim, number in first)
            raise InputError(
                f"`total` of {self.law.label} is missing or infinite{f' at {at}' if at else ''}. "
                "Every row needs a total."
            )
        return value

    def noise(self) -> xr.Variable:
        """The standard deviation of b."""
        noise = self._of_rows(self.law.noise, "noise", [*self.points.rows])
        if not (noise.values >= 0).all() or not np.isfinite(noise.values).all():
            raise InputError(
                "`noise` is a standard deviation, finite and not negative; 0 asks for an exact "
                "total."
            )
        return noise

    def _time(self) -> Time | None:
        """Which dimension is time, with a remark; None where that is not needed and not clear."""
        needed = self._is_initial or bool(self.rates)
        try:
            time = time_of(self.points.first, self.law.time, self.law.dims)
        except InputError:
            if needed or self.law.time is not None:
                raise
            return None
        if needed or time.dim in self.points.rows:
            self.remarks.append(f"time: {time}")
        return time

    @property
    def _is_initial(self) -> bool:
        return isinstance(self.law.total, str) and self.law.total == INITIAL

    def _start(self, time: Time | None) -> xr.Variable:
        if time is None or not self._is_initial:
            members = [self.member] if self.member else []
            return self._of_rows(self.law.total, "total", [*self.points.rows, *members])
        if time.dim not in self.points.rows:
            raise InputError(
                f"`total` is {INITIAL!r}, but {self.law.label} is summed over {time.dim!r}, its "
                "time. Give the total as a number or a variable."
            )
        entry = time.earliest
        found, size = self._summed(lambda variable: _at(variable, time.dim, entry))
        empty = size == 0
        if empty.values.any() and (empty & (self._summed(lambda v: v)[1] > 0)).values.any():
            raise InputError(
                f"`total` is {INITIAL!r}, but {self.law.label} has no data at the first "
                f"{time.dim!r} where it has some later. Give the total as a number or a variable."
            )
        when = "" if time.coordinate is None else f", {shown(time.coordinate.values[entry])}"
        number = f" (entry {entry})" if entry else ""
        self.remarks[-1] += f"; total of the earliest{when}{number}"
        return found

    def _summed(self, part: Callable[[xr.Variable], xr.Variable]) -> tuple[Any, Any]:
        """The rows of a part of the field, and the cell sizes times |factors| that are in them."""
        found: Any = 0.0
        size: Any = 0.0
        for name, field in self.points.fields.items():
            here, weights = part(field.variable), part(self.points.weights[name])
            if self.member in here.dims:  # a point that one member lacks is missing in all
                here = here.where(here.notnull().all(self.member))
            total, its = self._sum(here, weights)
            found, size = found + total, size + its
        return found, size

    def _sum(self, field: xr.Variable, weights: xr.Variable) -> tuple[xr.Variable, xr.Variable]:
        """The rows of a field and their sizes, computed now."""
        rows = [dim for dim in (*self.points.rows, self.member) if dim in field.dims]
        regions = None if self.points.regions is None else self.points.rows[REGION]
        rest = tuple(str(dim) for dim in field.dims if dim not in rows)
        count = regions or 1
        part = NamedPart(weights, self.points.regions, 0, count)
        named = NamedRows((part,), count, True, tuple(str(dim) for dim in rows), rest)
        (both,) = compute(named.summed(_total_and_size, [field], 2 * count))
        total, size = np.split(both, 2, axis=-1)
        if regions is None:
            return xr.Variable(rows, total[..., 0]), xr.Variable(rows, size[..., 0])
        return xr.Variable((*rows, REGION), total), xr.Variable((*rows, REGION), size)

    def _gained(self, time: Time, start: xr.Variable) -> xr.Variable:
        """What came in less what went out since the earliest time."""
        if time.dim in start.dims:
            raise InputError(
                f"`inflow` and `outflow` change the total of the first time, but `total` of "
                f"{self.law.label} has an entry for each {time.dim!r}."
            )
        if time.dim not in self.points.rows:
            raise InputError(
                f"`inflow` and `outflow` change the total in time, but {self.law.label} is summed "
                f"over {time.dim!r}, its time. Add them to the total."
            )
        ends = distinct_times(time)
        for name, field in self.points.fields.items():
            for method, _ in time_methods(field, time.dim):
                if method != "point":
                    self.remarks.append(
                        f"{name}: a time {method}, taken as its value at {time.dim}"
                    )
        rates = [self._rate(given, argument, time) for given, _, argument in self.rates]
        gained: Any = xr.Variable(time.dim, np.zeros(len(ends)))
        if len(ends) == 1:
            return gained
        courses = [rate.course(time, ends) for rate in rates]
        flows = [
            Flow(rate, course, time, ends, self.points, self.law, self.member)
            for rate, course in zip(rates, courses, strict=True)
        ]
        (found,) = compute([flow.lazy() for flow in flows])
        for flow, values, (_, sign, _) in zip(flows, found, self.rates, strict=True):
            gained = gained + sign * flow.gained(values)
        where = [r for flow, v in zip(flows, found, strict=True) for r in flow.remarks(v)]
        self.remarks += dict.fromkeys(where)
        return gained

    def _rate(self, given: Given, argument: str, time: Time) -> Rate:
        """A rate, its axes and units compared with those of the field."""
        first = self.points.first
        found = find(self.dataset, given, argument) if isinstance(given, str) else given
        if not isinstance(found, xr.DataArray):
            found = array(self.dataset, found, argument, first)
        found = self._by_region(decoded(found), argument)
        rate = rate_of(self.dataset, found, argument, time, first)
        on_grid = any(dim in self.law.dims for dim in found.dims)
        apart = [] if self.law.regions is None or on_grid else [REGION]
        apart += [rate.dim] if rate.dim and rate.times is not time.coordinate else []
        one = {dim: 0 for dim in apart if dim in found.dims}
        array(self.dataset, found.isel(one, drop=True), argument, first)
        self._check_unit(rate, "1" if rate.method == "sum" else time.unit, on_grid)
        self.remarks += [rate.remark] if rate.remark else []
        return rate

    def _check_unit(self, rate: Rate, during: str | None, on_grid: bool) -> None:
        """A rate times time, and times the cells if it is a density, has the unit of the total."""
        cells: str | None = "1"
        expected = self.points.unit
        if on_grid:
            cells = self.points.cells.attrs.get("units")
            if cells is None and next(iter(self.law.factors.values())) == 1.0:
                cells, expected = "1", self.points.first.attrs.get("units")
        gain = _units.product(rate.array.attrs.get("units"), during, cells)
        said = rate.name if rate.method == "sum" else f"{rate.name} times time"
        _units.check_same(said, gain, _units.of_change(expected), self.law.label)

    def _of_rows(self, given: Given, argument: str, known: list[str]) -> xr.Variable:
        """A number, or an array with some of the axes that are known."""
        found = find(self.dataset, given, argument) if isinstance(given, str) else given
        if not isinstance(found, xr.DataArray):
            return array(self.dataset, found, argument, self.points.first).variable
        _units.check_same(argument, found.attrs.get("units"), self.points.unit, self.law.label)
        found = self._by_region(found, argument)
        for dim in found.dims:
            if dim not in known:
                raise InputError(
                    f"`{argument}` has a dimension {dim!r}, which the totals of {self.law.label} "
                    f"have not. {nearest(dim, known)}"
                )
        match(
            found,
            self.points.first,
            argument,
            extra=[REGION] if self.law.regions is not None else [],
        )
        check_numbers(found, argument)
        return found.variable.astype(float).compute()  # not read again from an open file

    def _by_region(self, found: xr.DataArray, argument: str) -> xr.DataArray:
        """With the axis of regions called REGION and in our order."""
        regions = self.law.regions
        name = regions if isinstance(regions, str) else getattr(regions, "name", None)
        name = name if name in found.dims else REGION
        if regions is None or name not in found.dims:
            return found
        ours = self.points.coords[REGION].values
        if name not in found.indexes:
            raise InputError(
                f"`{argument}`: its axis {name!r} needs a coordinate, the numbers of the regions."
            )
        if not found.indexes[name].is_unique:
            raise InputError(f"`{argument}` has two entries for a region of {name!r}.")
        lacking = sorted(set(ours.tolist()) - set(found[name].values.tolist()))
        if lacking:
            raise InputError(f"`{argument}` has no entry for region {lacking[0]} of {name!r}.")
        return found.sel({name: ours}).rename({name: REGION})


def _total_and_size(values: Array, rows: BlockRows) -> Array:
    total, values, missing = totals(values, rows)
    return np.concatenate([total, sizes(rows, missing, values)], 1)


def _at(variable: xr.Variable, dim: str, entry: int) -> xr.Variable:
    return variable.isel({dim: entry}) if dim in variable.dims else variable
