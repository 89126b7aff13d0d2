"""Laws that share variables, as one system: its rows, and what every point adds to them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from numbers import Real
from typing import Any

import numpy as np
import xarray as xr

from .._errors import InputError, ProbConservError
from .._sums import Ensemble, MeanAndStd
from ._blocks import Kind
from ._graph import Array, NamedPart, NamedRows
from ._law import Law, Recipe, array, assumed, nearest
from ._time import place
from ._totals import Totals
from ._units import Conversion, conversion
from ._weights import REGION, Points, points

HOW = {
    "uniform": "the same amount for every point of a sum",
    "proportional": "the same share of its size for every value of a sum",
    "variance": "by how uncertain each point is: it needs `std`, a variable or a number",
    "members": "as the members of an ensemble differ: it needs `member`, their dimension",
}
ONE_BY_ONE = "enforce one after the other, then check"


@dataclass(frozen=True, eq=False)
class Ready:
    """A law with its points, its totals and its place among the rows of the system."""

    law: Law
    points: Points
    value: xr.Variable
    noise: xr.Variable
    sizes: xr.Variable  # of an average: the cell sizes that it was multiplied by; else 1
    inner: tuple[str, ...]  # axes of its rows that are not indices of the system
    first: int
    fixed: xr.Variable  # what counts beside the variables; not in `value`
    time: str | None  # which of the axes of its rows is time
    one_total: bool  # whether one total, with what is gained, holds at all times
    remarks: tuple[str, ...] = ()  # for the report

    @property
    def rows(self) -> int:
        return prod(self.points.rows[dim] for dim in self.inner)

    @property
    def own(self) -> slice:
        return slice(self.first, self.first + self.rows)

    def part(self, name: str, unit: float | None) -> NamedPart:
        labels: xr.Variable | None = None
        for dim in self.inner:
            size = self.points.rows[dim]
            codes = xr.Variable(dim, np.arange(size))
            if dim == REGION and self.points.regions is not None:
                codes = self.points.regions
            labels = codes if labels is None else labels * size + codes
        return NamedPart(self.points.weights[name], labels, self.first, self.rows, unit)


@dataclass(frozen=True, eq=False)
class Plan:
    """One system: variables that laws tie together."""

    kind: Kind
    laws: tuple[Ready, ...]
    arrays: Mapping[str, tuple[xr.Variable, ...]]  # of each variable: mean and std, or members
    index: tuple[str, ...]  # axes along which the system falls apart
    sizes: Mapping[str, int]  # of all axes
    member: str | None
    bounds: tuple[float, float]  # of all values
    converted: Mapping[str, Conversion]  # of each `std`, from its unit to that of the mean

    @property
    def is_bounded(self) -> bool:
        return math.isfinite(self.bounds[0]) or math.isfinite(self.bounds[1])

    @property
    def numbers(self) -> Array:  # (*index, 1)
        """Of the indices."""
        sizes = [self.sizes[dim] for dim in self.index]
        return np.arange(prod(sizes)).reshape(*sizes, 1)

    @cached_property
    def rows(self) -> dict[str, NamedRows]:
        """G on each variable."""
        return {name: self._rows(name) for name in self.arrays}

    def _rows(self, name: str) -> NamedRows:
        laws = [ready for ready in self.laws if name in ready.points.weights]
        parts = (ready.part(name, self._unit(name, ready.points.weights[name])) for ready in laws)
        dims = self.arrays[name][0].dims
        rest = tuple(str(d) for d in dims if d not in self.index and d != self.member)
        kind, number = self.kind, list(self.arrays).index(name)
        return NamedRows(
            tuple(parts), len(kind.laws), kind.disjoint, self.index, rest, self.member, number
        )

    def _unit(self, name: str, weights: xr.Variable) -> float | None:
        """The mean weight of the points that count at the first index, if one number is the std."""
        if isinstance(self.kind, Ensemble) or self.arrays[name][1].dims:
            return None
        sizes = np.abs(weights.isel({dim: 0 for dim in self.index if dim in weights.dims}).values)
        return float(sizes[sizes > 0].mean()) if (sizes > 0).any() else None

    def value(self) -> Array:  # (*index, K), or (*index, N or 1, K) for members
        return self._side_by_side("value", self.member is not None)

    def noise(self) -> Array:  # (*index, K)
        return self._side_by_side("noise", False)

    def _side_by_side(self, which: str, members: bool) -> Array:
        parts: list[Array] = []
        for ready in self.laws:
            given: xr.Variable = getattr(ready, which)
            tail = {dim: ready.points.rows[dim] for dim in ready.inner}
            lead = {dim: self.sizes[dim] for dim in self.index}
            if members:
                assert self.member is not None
                own = any(self.member in ready.value.dims for ready in self.laws)
                lead[self.member] = self.sizes[self.member] if own else 1
            wide = given.set_dims({**lead, **tail}).transpose(*lead, *tail)
            parts.append(wide.values.reshape(*lead.values(), ready.rows))
        return np.concatenate(parts, axis=-1)


@dataclass(frozen=True, eq=False)
class Places:
    """The names of the indices and the rows of a system, for messages."""

    index: Mapping[str, int]  # sizes
    laws: tuple[tuple[int, Mapping[str, int], Mapping[str, xr.Variable]], ...]
    # of each: its first row, the sizes of its own axes, its coordinates

    @classmethod
    def of(cls, plan: Plan) -> "Places":
        def own(ready: Ready) -> tuple[int, Mapping[str, int], Mapping[str, xr.Variable]]:
            sizes = {dim: ready.points.rows[dim] for dim in ready.inner}
            return ready.first, sizes, {d: c.variable for d, c in ready.points.coords.items()}

        return cls({dim: plan.sizes[dim] for dim in plan.index}, tuple(map(own, plan.laws)))

    @contextmanager
    def named(self, numbers: Any = None) -> Iterator[None]:
        """Errors that are raised inside say where; numbers: of the indices that are looked at."""
        try:
            yield
        except ProbConservError as error:
            if error._place is None:
                raise
            index, row = error._place
            index = index if numbers is None else int(np.ravel(numbers)[index])
            first, inner, coords = [each for each in self.laws if each[0] <= row][-1]
            inside = (row - first) % max(1, prod(inner.values()))  # of any member
            where = place(coords, entry(self.index, index) | entry(inner, inside))
            where = f" Look at {where}." if where else ""
            raise type(error)(f"{error}{where}") from None


def entry(sizes: Mapping[str, int], number: int) -> dict[str, Any]:
    """The entry of that number, counted over all axes."""
    return dict(zip(sizes, np.unravel_index(number, list(sizes.values())), strict=True))


@dataclass(frozen=True)
class Spread:
    """How a correction is spread over the points, by what is known of them, and within bounds."""

    std: Any = None
    member: str | None = None
    correlation: float = 0.0
    shrinkage: float | None = None
    jointly: tuple[str, ...] = ()
    how: str | None = None
    minimum: float | None = None
    maximum: float | None = None

    def __post_init__(self) -> None:
        self._check_numbers()
        given = {"variance": self.std, "members": self.member}
        fits = [how for how, each in given.items() if each is not None]
        if len(fits) == 2:
            raise InputError("`std` and `member` are two ways to spread a correction: give one.")
        if self.how not in (None, *HOW):
            raise InputError(f"`how` is {self.how!r}. {nearest(self.how, HOW)}")
        if self.how in given and not fits:
            raise InputError(f"`how` {self.how!r} is {HOW[self.how]}.")
        if self.how is not None and fits and self.how not in fits:
            name = "member" if self.std is None else "std"
            raise InputError(f"`how` {self.how!r} takes no `{name}`: leave one of the two out.")
        if self.correlation and self.std is None:
            raise InputError(
                "`correlation` is for `std`; an ensemble has its own, see `shrinkage`."
            )

    def _check_numbers(self) -> None:
        for name in ("correlation", "shrinkage", "minimum", "maximum"):
            value: Any = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, Real) or value != value:
                raise InputError(f"`{name}` must be a number, got {value!r}.")
            if name in ("correlation", "shrinkage") and not 0 <= float(value) <= 1:
                raise InputError(f"`{name}` must lie between 0 and 1, got {value!r}.")
        low, high = self.bounds
        if not low < high:
            raise InputError(f"`minimum` must be below `maximum`, got {low:g} and {high:g}.")

    @property
    def bounds(self) -> tuple[float, float]:
        low, high = self.minimum, self.maximum
        return -math.inf if low is None else float(low), math.inf if high is None else float(high)


def plans(dataset: xr.Dataset, laws: Sequence[Law | Recipe], spread: Spread) -> list[Plan]:
    """The systems that the laws make, each as small as can be."""
    named = _checked(dataset, laws)
    dataset = assumed(dataset, named)
    ready = [(law, points(dataset, law, spread.member)) for law in named]
    groups: list[list[int]] = []
    for number, law in enumerate(named):
        near = [g for g in groups if any(set(named[i].factors) & set(law.factors) for i in g)]
        joined = [i for g in near for i in g]
        groups = [g for g in groups if g not in near] + [[*joined, number]]
    return [_plan(dataset, [ready[i] for i in sorted(group)], spread) for group in groups]


def _checked(dataset: xr.Dataset, laws: Sequence[Law | Recipe]) -> list[Law]:
    """The laws, those that recipes make among them, with a remark on what others move."""
    if not laws:
        raise InputError("at least one law is needed.")
    made = [law(dataset) if callable(law) else law for law in laws]
    for law in made:
        if not isinstance(law, Law):
            raise InputError(f"laws are made by `Law(...)`; got {type(law).__name__}.")
    return [replace(law, remarks=(*law.remarks, *_disturbed(law, made))) for law in made]


def _disturbed(law: Law, laws: Sequence[Law]) -> list[str]:
    return [
        f"{other.label} moves {name}, which this law holds fixed: {ONE_BY_ONE}"
        for other in laws
        for name in other.factors
        if name in law.held
    ]


def _plan(dataset: xr.Dataset, group: list[tuple[Law, Points]], spread: Spread) -> Plan:
    fields = {name: field for _, p in group for name, field in p.fields.items()}
    tied = {dim for law, _ in group for dim in law.dims} | set(spread.jointly) | {spread.member}
    first, *others = fields.values()
    index = tuple(str(d) for d in first.dims if d not in tied and all(d in o.dims for o in others))
    ready, row = [], 0
    for law, its in group:
        totals = Totals(dataset, law, its, spread.member)
        inner = tuple(dim for dim in its.rows if dim not in index)
        value, noise = totals.value(), totals.noise()
        remarks = (*law.remarks, *its.remarks, *totals.remarks)
        time = totals.time.dim if totals.time and totals.time.dim in its.rows else None
        more = totals.sizes, inner, row, totals.fixed, time, totals.is_one, remarks
        ready.append(Ready(law, its, value, noise, *more))
        row += ready[-1].rows
    sizes = {str(d): n for field in fields.values() for d, n in field.sizes.items()}
    names = tuple(each.law.label for each in ready for _ in range(each.rows))
    kind, arrays, converted = _kind(dataset, fields, names, len(ready) == 1, spread)
    said = (remark for each in converted.values() for remark in each.remarks)
    ready[0] = replace(ready[0], remarks=(*ready[0].remarks, *said))
    plan = Plan(kind, tuple(ready), arrays, index, sizes, spread.member, spread.bounds, converted)
    labels = ", ".join(law.label for law, _ in group)
    if plan.is_bounded and len(group) > 1:
        raise InputError(
            f"`minimum` and `maximum` go with one law for each variable, but {labels} share some. "
            "Leave the bounds out, or enforce one law after the other."
        )
    if spread.how in ("uniform", "proportional") and plan.noise().any():
        raise InputError(
            f"`noise` of {labels} weighs the total against the spread of the field, and `how` "
            f"{spread.how!r} knows no spread. Give `std`, or leave `noise` out."
        )
    return plan


def _kind(
    dataset: xr.Dataset,
    fields: Mapping[str, xr.DataArray],
    rows: tuple[str, ...],
    single: bool,
    spread: Spread,
) -> tuple[Kind, dict[str, tuple[xr.Variable, ...]], dict[str, Conversion]]:
    rounding = max(float(np.finfo(field.dtype).eps) for field in fields.values())
    if spread.member is None:
        stds = {name: _std(dataset, field, spread) for name, field in fields.items()}
        arrays: dict[str, tuple[xr.Variable, ...]] = {
            name: (field.variable, stds[name][0]) for name, field in fields.items()
        }
        converted = {name: conversion for name, (_, conversion) in stds.items()}
        how: Any = spread.how or "variance"
        kind = MeanAndStd(rows, single, spread.correlation, rounding, how, len(fields))
        return kind, arrays, converted
    for name, field in fields.items():
        if spread.member not in field.dims:
            raise InputError(f"`{name}` has no dimension {spread.member!r} for its members.")
    members = fields[next(iter(fields))].sizes[spread.member]
    if members < 2:
        raise InputError(f"an ensemble needs two members or more; {spread.member!r} has {members}.")
    return (
        Ensemble(rows, single, members, spread.shrinkage, rounding),
        {name: (field.variable,) for name, field in fields.items()},
        {},
    )


def _std(
    dataset: xr.Dataset, field: xr.DataArray, spread: Spread
) -> tuple[xr.Variable, Conversion]:
    """The standard deviations in the unit of the field, and how they came there."""
    std = spread.std.get(field.name) if isinstance(spread.std, Mapping) else spread.std
    std = 1.0 if spread.how in ("uniform", "proportional") else std
    if std is None:
        ways = "; ".join(f"{how}, {meaning}" for how, meaning in HOW.items())
        raise InputError(f"how should `{field.name}` be moved? Give `how`: {ways}.")
    found = array(dataset, std, "std", field)
    if found.dims and found.dtype.kind != "f":
        raise InputError(f"`std` of `{field.name}` holds {found.dtype}, not floats. Convert it.")
    if not isinstance(std, str | xr.DataArray):
        return found.variable, Conversion()
    name = "std" if found.name is None else f"std {found.name}"
    units = found.attrs.get("units"), field.attrs.get("units")
    how = conversion(name, *units, str(field.name), same_zero=False)
    return found.variable if how.factor == 1 else found.variable * how.factor, how
