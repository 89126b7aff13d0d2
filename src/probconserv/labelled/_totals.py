"""The totals of a law: numbers, variables, or what the field starts with and gains."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr
from dask.base import compute

from .._errors import InputError
from . import _units
from ._blocks import Array, BlockRows, sizes, totals
from ._graph import NamedPart, NamedRows
from ._law import INITIAL, Law, listed
from ._lookup import Given, array, check_numbers, elapsed, find, match, nearest, time_of
from ._weights import REGION, Points


class Totals:
    """b and its noise, for the rows of one law."""

    def __init__(self, dataset: xr.Dataset, law: Law, points: Points, member: str | None) -> None:
        self.dataset, self.law, self.points, self.member = dataset, law, points, member
        self.argument = "total" if law.average is None else "average"
        self.remarks: list[str] = []  # for the report: what was found, assumed or converted

    def value(self) -> xr.Variable:
        """b, with some of the axes of the rows, and that of members if each has its own."""
        start = self._start()
        rates = [(rate, 1.0, "inflow") for rate in listed(self.law.inflow)]
        rates += [(rate, -1.0, "outflow") for rate in listed(self.law.outflow)]
        gained: Any = self._gained(rates, start) if rates else 0.0
        value = start * self.sizes + gained - self.fixed
        bad = ~np.isfinite(value.values)
        if bad.any():
            first = zip(value.dims, np.argwhere(bad)[0], strict=True)
            at = ", ".join(f"{dim} number {number}" for dim, number in first)
            raise InputError(
                f"`{self.argument}` of {self.law.label} is missing or infinite"
                f"{f' at {at}' if at else ''}. Every row needs one."
            )
        return value

    @cached_property
    def fixed(self) -> xr.Variable:
        """What counts beside the variables, summed where the first of them is not missing."""
        first, cells = self.points.first, self.points.cells
        found = array(self.dataset, self.law.fixed, "fixed", first)
        if not found.dims and found == 0:
            return found.variable
        factor = self._factor("fixed", found, self.points.mean_unit)
        summed = {dim: first.sizes[dim] for dim in self.law.dims if dim in first.dims}
        wide = found.variable.set_dims({**cells.sizes, **summed, **found.sizes})
        there = first.variable.notnull()
        there = there.all(self.member) if self.member in there.dims else there
        return self._sum(wide.where(there), cells)[0] * factor

    def noise(self) -> xr.Variable:
        """The standard deviation of b."""
        noise = self._of_rows(self.law.noise, "noise", [*self.points.rows]) * self.sizes
        if not (noise.values >= 0).all() or not np.isfinite(noise.values).all():
            raise InputError(
                "`noise` is a standard deviation, finite and not negative; 0 asks for an exact "
                "total."
            )
        return noise

    @cached_property
    def sizes(self) -> Any:
        """What an average is multiplied by: the cell sizes of a row that are not missing."""
        if self.law.average is None:
            return xr.Variable((), 1.0)
        return self._cell_sizes(lambda variable: variable)

    def _cell_sizes(self, part: Callable[[xr.Variable], xr.Variable]) -> xr.Variable:
        field = part(self.points.first.variable)
        if self.member in field.dims:  # a point that one member lacks is missing in all
            field = field.isel({self.member: 0}).where(field.notnull().all(self.member))
        return self._sum(field, part(self.points.cells))[1]

    def _start(self) -> xr.Variable:
        """The total or average that is given, or that of the first time."""
        argument = self.argument
        given = getattr(self.law, argument)
        if not isinstance(given, str) or given != INITIAL:
            members = [self.member] if self.member else []
            return self._of_rows(given, argument, [*self.points.rows, *members])
        time = time_of(self.points.first, self.law.time)
        if time not in self.points.rows:
            raise InputError(
                f"`{argument}` is {INITIAL!r}, but {self.law.label} is summed over {time!r}, its "
                "time. Give it as a number or a variable."
            )
        found, size = self._summed(lambda variable: _at_start(variable, time))
        found = found + _at_start(self.fixed, time)
        empty = size == 0
        if empty.values.any() and (empty & (self._summed(lambda v: v)[1] > 0)).values.any():
            raise InputError(
                f"`{argument}` is {INITIAL!r}, but {self.law.label} has no data at the first "
                f"{time!r} where it has some later. Give it as a number or a variable."
            )
        if self.law.average is None:
            return found
        cells = self._cell_sizes(lambda variable: _at_start(variable, time))
        return found / cells.where(cells > 0, 1.0)

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

    def _gained(self, rates: list[tuple[Given, float, str]], start: xr.Variable) -> xr.Variable:
        """What came in less what went out since the first time; rates are linear between times."""
        first = self.points.first
        time = time_of(first, self.law.time)
        if time in start.dims:
            raise InputError(
                f"`inflow` and `outflow` change the total of the first time, but `total` of "
                f"{self.law.label} has an entry for each {time!r}."
            )
        if time not in first.coords:
            raise InputError(f"`inflow` and `outflow` need the times: {time!r} has no coordinate.")
        t, unit = elapsed(first[time])
        if not (np.diff(t) > 0).all():
            raise InputError(f"`inflow` and `outflow` need times that increase along {time!r}.")
        net: Any = xr.Variable(time, np.zeros(len(t)))
        for given, sign, argument in rates:
            net = net + sign * self._rate(given, argument, unit)
        steps = (net.isel({time: slice(1, None)}) + net.isel({time: slice(-1)})) / 2
        gained = (steps * xr.Variable(time, np.diff(t))).cumsum(time, skipna=False)
        return gained.pad({time: (1, 0)}, constant_values=0.0)

    def _rate(self, given: Given, argument: str, time: str | None) -> xr.Variable:
        """One rate, summed over the cells if it is a density."""
        rate = array(self.dataset, given, argument, self.points.first)
        on_grid = any(dim in self.law.dims for dim in rate.dims)
        unit = self.points.mean_unit if on_grid else self.points.unit
        factor = self._factor(argument, rate, _units.per(unit, time), "the gain")
        if not on_grid:
            return rate.variable.astype(float).compute() * factor
        field = self.points.first
        summed = {dim: field.sizes[dim] for dim in self.law.dims if dim in field.dims}
        cells = self.points.cells
        density = rate.variable.set_dims({**cells.sizes, **summed, **rate.sizes})
        return self._sum(density, cells)[0] * factor

    def _factor(
        self, argument: str, given: xr.DataArray, expected: str | None, what: str = "that"
    ) -> float:
        """From the unit of what is given to the one expected."""
        name = argument if given.name is None else f"{argument} {given.name}"
        convert = _units.conversion_of_difference
        if argument in ("total", "average"):
            convert = _units.conversion
        found = convert(name, given.attrs.get("units"), expected, f"{what} of {self.law.label}")
        self.remarks += found.remarks
        return found.factor

    def _of_rows(self, given: Given, argument: str, known: list[str]) -> xr.Variable:
        """A number, or an array with some of the axes that are known."""
        found = find(self.dataset, given, argument) if isinstance(given, str) else given
        if not isinstance(found, xr.DataArray):
            return array(self.dataset, found, argument, self.points.first).variable
        unit = self.points.unit if self.law.average is None else self.points.mean_unit
        factor = self._factor(argument, found, unit)
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
        return found.variable.astype(float).compute() * factor  # not read again from an open file

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


def _at_start(variable: xr.Variable, time: str) -> xr.Variable:
    return variable.isel({time: 0}) if time in variable.dims else variable
