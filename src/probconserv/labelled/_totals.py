"""The totals of a law: numbers, variables, or what the field starts with and gains."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr
from dask.base import compute

from .._errors import InputError
from . import _units
from ._blocks import sizes, totals
from ._coordinates import cell_methods
from ._graph import Array, BlockRows, LawRows, NamedRows
from ._law import INITIAL, Given, Law, array, check_numbers, find, listed, match, nearest
from ._rates import Flow, Rate, rate_of
from ._time import Time, decoded, least_to_most, place, time_of
from ._weights import REGION, Points

Part = Callable[[xr.Variable], xr.Variable]  # takes a part of an array


class Totals:
    """b and its noise, for the rows of one law."""

    def __init__(self, dataset: xr.Dataset, law: Law, points: Points, member: str | None) -> None:
        self.dataset, self.law, self.points, self.member = dataset, law, points, member
        self.argument = "total" if law.average is None else "average"
        self.remarks: list[str] = []  # for the report: what was found, assumed or converted
        self.rates = [(rate, 1.0, "inflow") for rate in listed(law.inflow)]
        self.rates += [(rate, -1.0, "outflow") for rate in listed(law.outflow)]

    def value(self) -> xr.Variable:
        """b, with some of the axes of the rows, and that of members if each has its own."""
        gained: Any = self._gained(self.time) if self.time and self.rates else 0.0
        value = self._start * self.sizes + gained - self.fixed
        bad = ~np.isfinite(value.values)
        if bad.any():
            raise InputError(
                f"`{self.argument}` of {self.law.label} is missing or infinite"
                f"{self._first(value.dims, bad)}. Every row needs one."
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
        total, size = self._sum(wide.where(there), cells)
        self._check_fixed(size)
        return total * factor

    def _check_fixed(self, size: xr.Variable) -> None:
        """Refuse gaps in what is held fixed, where the law counts: size is what has none."""
        whole = self._cell_sizes()
        short = (whole - size) > 1e-9 * whole
        if short.values.any():
            held, at = ", ".join(self.law.held) or "`fixed`", self._first(short.dims, short.values)
            raise InputError(
                f"{held}: held fixed by {self.law.label}, and missing at points where "
                f"{self.points.first.name} counts{at and f',{at}'}. Fill it, or leave the points "
                "out with `where`."
            )

    def _first(self, dims: Iterable[Hashable], wrong: Array) -> str:
        """Where the first of them is, in words."""
        at = place(self.points.coords, dict(zip(dims, np.argwhere(wrong)[0], strict=True)))
        return f" at {at}" if at else ""

    def noise(self) -> xr.Variable:
        """The standard deviation of b."""
        noise = self._of_rows(self.law.noise, "noise", [*self.points.rows]) * self.sizes
        if not (noise.values >= 0).all() or not np.isfinite(noise.values).all():
            raise InputError(
                "`noise` is a standard deviation, finite and not negative; 0 asks for an exact "
                "total."
            )
        if (noise.values > 0).any():
            said = f"{self.argument} known to within its noise, {least_to_most(noise.values)}"
            self.remarks.append(said)
        return noise

    @cached_property
    def sizes(self) -> Any:
        """What an average is multiplied by: the cell sizes of a row that are not missing."""
        if self.law.average is None:
            return xr.Variable((), 1.0)
        return self._cell_sizes()

    def _cell_sizes(self, part: Part = lambda whole: whole) -> xr.Variable:
        field = part(self.points.first.variable)
        if self.member in field.dims:  # a point that one member lacks is missing in all
            field = field.isel({self.member: 0}).where(field.notnull().all(self.member))
        return self._sum(field, part(self.points.cells))[1]

    @cached_property
    def time(self) -> Time | None:
        """Which dimension is time, with a remark; None where that is not needed and not clear."""
        needed = self._is_initial or bool(self.rates)
        try:
            time = time_of(self.points.first, self.law.time, self.law.dims)
        except InputError:
            if needed or self.law.time is not None:
                raise
            return None
        if needed and time.dim not in self.points.rows:
            what = f"`{self.argument}` is {INITIAL!r}" if self._is_initial else "there are rates"
            raise InputError(
                f"{what}, but {self.law.label} is summed over {time.dim!r}, its time. Give it as a "
                "number or a variable, without `inflow` and `outflow`."
            )
        if time.dim in self.points.rows:
            first = f"; {self.argument} of {time.first}" if self._is_initial else ""
            self.remarks.append(f"time: {time}{first}")
        return time

    @property
    def _is_initial(self) -> bool:
        given = getattr(self.law, self.argument)
        return isinstance(given, str) and given == INITIAL

    @property
    def is_one(self) -> bool:
        """Whether one total, with what is gained, holds at all times."""
        if self.rates or self.law.average is not None:
            return bool(self.rates)
        return self._is_initial or self.time is None or self.time.dim not in self._start.dims

    @cached_property
    def _start(self) -> xr.Variable:
        """The total or average that is given, or that of the earliest time."""
        argument, time = self.argument, self.time
        if time is None or not self._is_initial:
            members = [self.member] if self.member else []
            return self._of_rows(
                getattr(self.law, argument), argument, [*self.points.rows, *members]
            )
        found, size = self._summed(time.at_start)
        found = found + time.at_start(self.fixed)
        empty = size == 0
        if empty.values.any() and (empty & (self._summed()[1] > 0)).values.any():
            raise InputError(
                f"`{argument}` is {INITIAL!r}, but {self.law.label} has no data at the first "
                f"{time.dim!r} where it has some later. Give it as a number or a variable."
            )
        if self.law.average is None:
            return found
        cells = self._cell_sizes(time.at_start)
        return found / cells.where(cells > 0, 1.0)

    def _summed(self, part: Part = lambda whole: whole) -> tuple[Any, Any]:
        """The rows of a part of the field, and the cell sizes times |factors| that are in them."""
        found, size = xr.Variable((), 0.0), xr.Variable((), 0.0)
        for name, field in self.points.fields.items():
            here, weights = part(field.variable), part(self.points.weights[name])
            if self.member in here.dims:  # a point that one member lacks is missing in all
                here = here.where(here.notnull().all(self.member))
            total, its = self._sum(here, weights)
            found, size = found + total, size + its
        return found, size

    def _sum(self, field: xr.Variable, weights: xr.Variable) -> tuple[xr.Variable, xr.Variable]:
        """The rows of a field and their sizes, computed now."""
        rows = tuple(str(d) for d in (*self.points.rows, self.member) if d in field.dims)
        rest = tuple(str(dim) for dim in field.dims if dim not in rows)
        regions = self.points.regions
        count = 1 if regions is None else self.points.rows[REGION]
        named = NamedRows((LawRows(weights, regions, 0, count),), count, True, rows, rest)
        (both,) = compute(named.summed(_total_and_size, [field], 2 * count))
        total, size = np.split(both, 2, axis=-1)
        if regions is None:
            return xr.Variable(rows, total[..., 0]), xr.Variable(rows, size[..., 0])
        return xr.Variable((*rows, REGION), total), xr.Variable((*rows, REGION), size)

    def _gained(self, time: Time) -> xr.Variable:
        """What came in less what went out since the earliest time."""
        if time.dim in self._start.dims:
            raise InputError(
                f"`inflow` and `outflow` change the total of the first time, but `total` of "
                f"{self.law.label} has an entry for each {time.dim!r}."
            )
        for name, field in self.points.fields.items():
            methods = {method for method, _ in cell_methods(field, "time", time.dim)} - {"point"}
            said = f"taken as its value at {time.dim}"
            self.remarks += [f"{name}: a time {method}, {said}" for method in sorted(methods)]
        self.remarks += [time.mean_lengths] if time.mean_lengths else []
        gained: Any = xr.Variable(time.dim, np.zeros(len(time.ends)))
        rates = [self._rate(given, argument, time) for given, _, argument in self.rates]
        if len(time.ends) == 1:
            return gained
        flows = [Flow(rate, time, self.points, self.member) for rate in rates]
        (found,) = compute([flow.lazy() for flow in flows])
        for flow, values, (_, sign, _) in zip(flows, found, self.rates, strict=True):
            gained = gained + sign * flow.rate.factor * flow.gained(values)
            self.remarks += [said for said in flow.remarks(values) if said not in self.remarks]
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
        unit = self.points.mean_unit if on_grid else self.points.unit
        expected = unit if rate.method == "sum" else _units.per(unit, time.unit)
        self.remarks += [rate.remark] if rate.remark else []
        return replace(rate, factor=self._factor(argument, found, expected, "the gain"))

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
