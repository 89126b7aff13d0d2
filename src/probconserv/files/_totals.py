"""The totals of a law: numbers, variables, or what the field starts with and gains."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr
from dask.base import compute

from ..support.errors import InputError
from ..support.tolerances import DOUBLE
from . import _attributes as attributes
from ._attributes import cell_methods, decoded, least_to_most, place
from ._blocks import FileBlock
from ._graph import Array, LawRows, Made, NamedRows, quiet
from ._law import INITIAL, FileLaw, Given, array, check_numbers, listed, match, nearest, taken
from ._methods import check_running, check_unit, in_mass
from ._points import REGION, FilePoints
from ._time import Course, Rate, Time, rate_of, time_of

FILL = "Fill it, or leave the point out with `where`."
Part = Callable[[xr.Variable], xr.Variable]  # takes a part of an array
Sums = tuple[xr.Variable, xr.Variable]  # of every row: the total, and the weights in it


@dataclass(frozen=True, eq=False)
class Density:
    """What counts in the rows of a law beside its variables, per cell size."""

    name: str
    values: xr.Variable
    seen: xr.Variable | None  # the field, whose gaps do not count; None: values are of whole rows
    cells: xr.Variable  # their sizes, 0 where nothing counts
    coords: Mapping[Any, xr.DataArray]

    def check(self, total: xr.Variable, field: object, way: str = FILL) -> None:
        """Refuse gaps: a row with one is infinite."""
        at = _first_gap(total)
        if at is None:
            return
        if self.seen is not None:
            at.pop(REGION, None)
            wrong = self.seen.notnull() & (self.cells != 0) & ~np.isfinite(self.values)
            wrong = wrong.isel(at, missing_dims="ignore")
            at |= dict(zip(wrong.dims, np.argwhere(wrong.values)[0], strict=True))
        raise InputError(
            f"`{self.name}` is missing or infinite{_where(self.coords, at)}, where {field} "
            f"counts. {way}"
        )


@dataclass(frozen=True, eq=False)
class Flow(Density):
    """A rate, at its entries that count, along the time of the field."""

    course: Course
    factor: float  # to the unit of the law, negative for what goes out


def _first_gap(values: xr.Variable) -> dict[Hashable, Any] | None:
    """The first entry that is missing or infinite."""
    bad = np.argwhere(~np.isfinite(values.values))
    return dict(zip(values.dims, bad[0], strict=True)) if bad.size else None


def _where(coords: Mapping[Any, xr.DataArray], at: Mapping[Hashable, Any]) -> str:
    return f" at {place(coords, at)}" if at else ""


class Totals:
    """b and its noise, for the rows of one law."""

    def __init__(
        self, dataset: xr.Dataset, law: FileLaw, points: FilePoints, member: str | None
    ) -> None:
        self.dataset, self.law, self.points, self.member = dataset, law, points, member
        self.argument = "total" if law.average is None else "average"
        self.given: Given = law.total if law.average is None else law.average
        self.is_initial = isinstance(self.given, str) and self.given == INITIAL
        self.remarks: list[str] = []  # for the report: what was found, assumed or converted
        self.gains: dict[str, xr.Variable] = {}  # of each rate, since the earliest time
        self.rates = [("inflow", rate, 1.0) for rate in listed(law.inflow)]
        self.rates += [("outflow", rate, -1.0) for rate in listed(law.outflow)]
        names = [str(getattr(rate, "name", rate)) for _, rate, _ in self.rates]
        for name in set(law.assume_method) - set(names):
            raise InputError(
                f"`assume_method`: {name!r} is no rate of {law.label}. {nearest(name, names)}"
            )
        self.value, self.noise = self._value(), self._noise()

    def _value(self) -> xr.Variable:
        """b, with some of the axes of the rows, and that of members if each has its own."""
        gained: Any = self._gained(self.time) if self.time and self.rates else 0.0
        value = self._start * self.sizes + gained - self.fixed
        at = _first_gap(value)
        if at is not None:
            raise InputError(
                f"`{self.argument}` of {self.law.label} is missing or infinite"
                f"{_where(self.points.coords, at)}. Every row needs one."
            )
        return value

    def _noise(self) -> xr.Variable:
        """The standard deviation of b."""
        noise = self._of_rows(self.law.noise, "noise", [*self.points.rows]) * self.sizes
        if not ((noise.values >= 0) & np.isfinite(noise.values)).all():
            raise InputError(
                "`noise` is a standard deviation, finite and not negative; 0 is exact."
            )
        if (noise.values > 0).any():
            said = f"{self.argument} known to within its noise, {least_to_most(noise.values)}"
            self.remarks.append(said)
        return noise

    @cached_property
    def fixed(self) -> xr.Variable:
        """What counts beside the variables, summed where the first of them is not missing."""
        found = array(self.dataset, self.law.fixed, "fixed", self.points.first)
        if not found.dims and found == 0:
            return found.variable
        factor = self._factor("fixed", found, self.points.mean_unit)
        name = f"fixed, made of {', '.join(self.law.held)}" if self.law.held else "fixed"
        held = Density(name, found.variable, self._seen, self.points.cells, self._coords)
        ((total, _),) = self._of_densities([held])
        way = "Fill it." if self.law.held else FILL  # a recipe takes no `where`
        held.check(total, self.points.first.name, way)
        return total * factor

    @cached_property
    def sizes(self) -> xr.Variable:
        """What an average is multiplied by: the cell sizes of a row that are not missing."""
        return xr.Variable((), 1.0) if self.law.average is None else self._cell_sizes()

    @cached_property
    def time(self) -> Time | None:
        """Which dimension is time, with a remark; None where that is not needed and not clear."""
        needed = self.is_initial or bool(self.rates)
        try:
            time = time_of(self.points.first, self.law.time, self.law.dims)
        except InputError:
            if needed or self.law.time is not None:
                raise
            return None
        if time.dim in self.points.rows:
            first = f"; {self.argument} of {time.first}" if self.is_initial else ""
            self.remarks.append(f"time: {time}{first}")
        elif needed:
            what = f"`{self.argument}` is {INITIAL!r}" if self.is_initial else "there are rates"
            raise InputError(
                f"{what}, but {self.law.label} is summed over {time.dim!r}, its time. Give it as a "
                "number or a variable, without `inflow` and `outflow`."
            )
        return time

    @property
    def time_of_rows(self) -> str | None:
        """Which of the axes of the rows is time."""
        return self.time.dim if self.time and self.time.dim in self.points.rows else None

    @property
    def is_one(self) -> bool:
        """Whether one total, with what is gained, holds at all times."""
        if self.rates or self.law.average is not None:
            return bool(self.rates)
        return self.is_initial or self.time is None or self.time.dim not in self._start.dims

    @cached_property
    def _start(self) -> xr.Variable:
        """The total or average that is given, or that of the earliest time."""
        time = self.time
        if time is None or not self.is_initial:
            members = [self.member] if self.member else []
            return self._of_rows(self.given, self.argument, [*self.points.rows, *members])
        found, size = self._summed(time.at_start)
        found = found + time.at_start(self.fixed)
        empty = size == 0
        if empty.any() and (empty & (self._summed()[1] > 0)).any():
            raise InputError(
                f"`{self.argument}` is {INITIAL!r}, but {self.law.label} has no data at the first "
                f"{time.dim!r} where it has some later. Give it as a number or a variable."
            )
        if self.law.average is None:
            return found
        cells = self._cell_sizes(time.at_start)
        return found / cells.where(cells > 0, 1.0)

    @cached_property
    def _seen(self) -> xr.Variable:
        """The first variable; a point that one member lacks is missing."""
        field = self.points.first.variable
        if self.member not in field.dims:
            return field
        return field.isel({self.member: 0}).where(field.notnull().all(self.member))

    def _cell_sizes(self, part: Part = lambda whole: whole) -> xr.Variable:
        ((_, size),) = self._sums((part(self._seen), part(self.points.cells)))
        return size

    def _summed(self, part: Part = lambda whole: whole) -> Sums:
        """The rows of a part of the field, and the cell sizes times |factors| that are in them."""
        found = []
        for name, field in self.points.fields.items():
            here = part(field.variable)
            if self.member in here.dims:  # a point that one member lacks is missing in all
                here = here.where(here.notnull().all(self.member))
            found.append((here, part(self.points.weights[name])))
        totals_, sizes_ = zip(*self._sums(*found), strict=True)
        return sum(totals_), sum(sizes_)

    def _sums(self, *given: tuple[xr.Variable, ...]) -> list[Sums]:
        """The rows of fields, and their sizes, in one pass over all.

        given: of each the field and its weights, and maybe a density that is summed in its place
        where the field is not missing.
        """
        regions, lazy = self.points.regions, []
        count = 1 if regions is None else self.points.rows[REGION]
        for field, weights, *density in given:
            for each in density:  # which may have an axis more, that of members
                field = field.set_dims({**field.sizes, **each.sizes})
            rows = tuple(str(d) for d in (*self.points.rows, self.member) if d in field.dims)
            rest = tuple(str(dim) for dim in field.dims if dim not in rows)
            named = NamedRows((LawRows(weights, regions, 0, count),), count, True, rows, rest)
            lazy.append((rows, named.mapped(_total_and_size, [field, *density])[1]))
        found = []
        for rows, sums in compute(lazy)[0]:
            dims = rows if regions is None else (*rows, REGION)
            both = (sums[key][..., 0 if regions is None else slice(None)] for key in sums)
            total, size = (xr.Variable(dims, each) for each in both)
            found.append((total, size))
        return found

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
        gained: Any = xr.Variable(time.dim, np.zeros(len(time.ends)))
        rates = [self._rate(*given, time) for given in self.rates]
        if len(time.ends) == 1:
            return gained
        flows = [self._flow(*rate, time) for rate in rates]
        found = self._of_densities(flows)
        for (rate, _), flow, (total, size) in zip(rates, flows, found, strict=True):
            flow.check(total, self.points.first.name)
            check_running(rate.name, rate.array, rate.said, total)
            gain = flow.factor * flow.course.gained(total, time)
            gained = gained + gain
            self.gains[flow.name] = self.gains.get(flow.name, 0.0) + gain
            where = [] if size is None else self._where_counted(size, time)
            self.remarks += [text for text in where if text not in self.remarks]
        return gained

    def _rate(self, argument: str, given: Given, sign: float, time: Time) -> tuple[Rate, float]:
        """A rate whose axes fit, and the factor to the unit of the law."""
        first = self.points.first
        found = self._by_region(decoded(taken(self.dataset, given, argument)), argument)
        stated = self.law.assume_units.get(str(found.name or argument))
        if stated and not attributes.words_of(found.attrs.get("units")):  # an array without units
            found = found.assign_attrs(units=stated)
        on_grid = self._is_on_grid(found)
        unit = self.points.mean_unit if on_grid else self.points.unit
        found = in_mass(self.dataset, found, unit)
        rate = rate_of(self.dataset, found, argument, time, first, self.law.assume_method)
        apart = [] if self.law.regions is None or on_grid else [REGION]
        apart += [rate.dim] if rate.times is not time.coordinate else []
        match(rate.array, first, argument, apart)
        check_numbers(found, argument)
        check_unit(rate.name, found, rate.said, unit, time.unit)
        expected = unit if rate.method == "sum" else attributes.per(unit, time.unit)
        self.remarks += rate.remarks
        per_time = rate.method != "sum" and time.unit is not None
        if attributes.words_of(found.attrs.get("units")) is None and (expected or per_time):
            key = found.name or argument
            raise InputError(
                f"`{rate.name}` has no units, and a rate needs them: is it per second, or per day? "
                f"Say it with `assume_units={{{key!r}: {expected or 's-1'!r}}}`."
            )
        if expected is None and per_time:
            of = f"the gain of {self.law.label}"
            how = attributes.per_second(rate.name, found.attrs["units"], of)
            self.remarks += how.remarks
            return rate, sign * how.factor
        return rate, sign * self._factor(argument, found, expected, "the gain")

    def _is_on_grid(self, found: xr.DataArray) -> bool:
        return any(dim in self.law.dims for dim in found.dims)

    def _flow(self, rate: Rate, factor: float, time: Time) -> Flow:
        course, cells, seen = rate.course(time), self.points.cells, None
        values = _entries(rate.array.variable, rate.dim, course.entries)
        values = xr.DataArray(values).rename({rate.dim: time.dim}).variable
        if self._is_on_grid(rate.array):
            cells = cells * (next(iter(self.points.weights.values())) != 0)
            same = np.array_equal(time.seconds(rate.times, rate.name), time.ends)
            near = course.entries if same else time.nearest(course.moments)
            seen, cells = (_entries(each, time.dim, near) for each in (self._seen, cells))
        coords = self._coords | {time.dim: rate.times[course.entries]}
        return Flow(rate.name, values, seen, cells, coords, course, factor)

    @property
    def _coords(self) -> dict[Any, xr.DataArray]:
        return dict(self.points.first.coords) | dict(self.points.coords)

    def _of_densities(
        self, densities: Sequence[Density]
    ) -> list[tuple[xr.Variable, xr.Variable | None]]:
        """The rows of densities, and the cell sizes in them."""
        on_grid = [(d.seen, d.cells, d.values) for d in densities if d.seen is not None]
        found = iter(self._sums(*on_grid))
        return [(d.values.compute(), None) if d.seen is None else next(found) for d in densities]

    def _where_counted(self, size: xr.Variable, time: Time) -> list[str]:
        """Where a density counts, if that is not plain; size: of the points that do."""
        first, *others = self.points.fields
        said = [f"rates on the grid count where {first} does"] if others else []
        if (size.max(time.dim) - size.min(time.dim)).max() > DOUBLE * size.max():
            said.append(
                f"points of {first} change in time; rates count where it is at the nearer time"
            )
        return said

    def _factor(
        self, argument: str, given: xr.DataArray, expected: str | None, what: str = "that"
    ) -> float:
        """From the unit of what is given to the one expected."""
        name = argument if given.name is None else f"{argument} {given.name}"
        unit, of = given.attrs.get("units"), f"{what} of {self.law.label}"
        has_zero = argument in ("total", "average")
        found = attributes.conversion(name, unit, expected, of, same_zero=has_zero)
        self.remarks += found.remarks
        return found.factor

    def _of_rows(self, given: Given, argument: str, known: list[str]) -> xr.Variable:
        """A number, or an array with some of the axes that are known."""
        found = taken(self.dataset, given, argument)
        if not isinstance(given, str | xr.DataArray):
            return found.variable
        unit = self.points.unit if self.law.average is None else self.points.mean_unit
        factor = self._factor(argument, found, unit)
        found = self._by_region(found, argument)
        for dim in found.dims:
            if dim not in known:
                raise InputError(
                    f"`{argument}` has a dimension {dim!r}, which the totals of {self.law.label} "
                    f"have not. {nearest(dim, known)}"
                )
        match(found, self.points.first, argument, [] if self.law.regions is None else [REGION])
        check_numbers(found, argument)
        return found.variable.astype(float).compute() * factor  # not read again from an open file

    def _by_region(self, found: xr.DataArray, argument: str) -> xr.DataArray:
        """With the axis of regions called REGION and in our order."""
        regions = self.law.regions
        name = regions if isinstance(regions, str) else getattr(regions, "name", None)
        name = name if name in found.dims else REGION
        if regions is None or name not in found.dims:
            return found
        ours, theirs = self.points.coords[REGION].values, found.indexes.get(name)
        if theirs is None or not theirs.is_unique or not set(ours) <= set(theirs):
            raise InputError(
                f"`{argument}`: its axis {name!r} needs a coordinate with each region once: "
                f"{', '.join(map(str, ours))}."
            )
        return found.sel({name: ours}).rename({name: REGION})


def _entries(variable: xr.Variable, dim: str, entries: Array) -> xr.Variable:
    """Some entries along a dimension, as a slice where that does."""
    start, stop = int(entries[0]), int(entries[0]) + len(entries)
    straight = np.array_equal(entries, np.arange(start, stop))
    where = slice(start, stop) if straight else entries
    return variable.isel({dim: where}, missing_dims="ignore")


@quiet
def _total_and_size(field: Array, *density_and_rows: Any) -> Made:
    """The rows of the field, or of a density where the field is not missing."""
    *density, rows, _ = density_and_rows
    block = FileBlock.of(None, rows, field)
    total = block.total(np.broadcast_to(density[0], field.shape) if density else field)[:, 0]
    return (), {"total": total, "size": np.broadcast_to(block.rows.sizes.whole, total.shape)}
