"""Laws that share variables, as one system: its rows, and what every point adds to them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import xarray as xr

from .._errors import InputError
from .._sums import Ensemble, MeanAndStd
from ._blocks import Array, Kind
from ._graph import NamedPart, NamedRows
from ._law import Law, Recipe
from ._lookup import array
from ._totals import Totals
from ._units import Conversion, assumed, conversion_of_difference
from ._weights import REGION, Points, points


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
    remarks: tuple[str, ...] = ()  # for the report

    @property
    def rows(self) -> int:
        return prod(self.points.rows[dim] for dim in self.inner)

    @property
    def own(self) -> slice:
        return slice(self.first, self.first + self.rows)

    def part(self, name: str) -> NamedPart:
        labels: xr.Variable | None = None
        for dim in self.inner:
            size = self.points.rows[dim]
            codes = xr.Variable(dim, np.arange(size))
            if dim == REGION and self.points.regions is not None:
                codes = self.points.regions
            labels = codes if labels is None else labels * size + codes
        return NamedPart(self.points.weights[name], labels, self.first, self.rows)


@dataclass(frozen=True, eq=False)
class Plan:
    """One system: variables that laws tie together."""

    kind: Kind
    laws: tuple[Ready, ...]
    arrays: Mapping[str, tuple[xr.Variable, ...]]  # of each variable: mean and std, or members
    index: tuple[str, ...]  # axes along which the system falls apart
    sizes: Mapping[str, int]  # of all axes
    member: str | None
    converted: Mapping[str, Conversion]  # of each `std`, from its unit to that of the mean

    def rows(self, name: str) -> NamedRows:
        """G on one variable."""
        parts = (ready.part(name) for ready in self.laws if name in ready.points.weights)
        dims = self.arrays[name][0].dims
        rest = tuple(str(d) for d in dims if d not in self.index and d != self.member)
        kind = self.kind
        return NamedRows(tuple(parts), len(kind.laws), kind.disjoint, self.index, rest, self.member)

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
                lead[self.member] = self.sizes[self.member] if self._own_totals else 1
            wide = given.set_dims({**lead, **tail}).transpose(*lead, *tail)
            parts.append(wide.values.reshape(*lead.values(), ready.rows))
        return np.concatenate(parts, axis=-1)

    @property
    def _own_totals(self) -> bool:
        return any(self.member in ready.value.dims for ready in self.laws)


@dataclass(frozen=True)
class Spread:
    """How uncertain the field is: `std` of each variable, or an ensemble along `member`."""

    std: Any = None
    member: str | None = None
    correlation: float = 0.0
    shrinkage: float | None = None
    jointly: tuple[str, ...] = ()


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
        f"{other.label} moves {name}, which this law holds fixed: enforce it again afterwards"
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
        ready.append(Ready(law, its, value, noise, totals.sizes, inner, row, totals.fixed, remarks))
        row += ready[-1].rows
    sizes = {str(d): n for field in fields.values() for d, n in field.sizes.items()}
    names = tuple(each.law.label for each in ready for _ in range(each.rows))
    kind, arrays, converted = _kind(dataset, fields, names, len(ready) == 1, spread)
    said = (remark for each in converted.values() for remark in each.remarks)
    ready[0] = replace(ready[0], remarks=(*ready[0].remarks, *said))
    return Plan(kind, tuple(ready), arrays, index, sizes, spread.member, converted)


def _kind(
    dataset: xr.Dataset,
    fields: Mapping[str, xr.DataArray],
    rows: tuple[str, ...],
    single: bool,
    spread: Spread,
) -> tuple[Kind, dict[str, tuple[xr.Variable, ...]], dict[str, Conversion]]:
    rounding = max(float(np.finfo(field.dtype).eps) for field in fields.values())
    if spread.member is None:
        stds = {name: _std(dataset, field, spread.std) for name, field in fields.items()}
        arrays: dict[str, tuple[xr.Variable, ...]] = {
            name: (field.variable, stds[name][0]) for name, field in fields.items()
        }
        converted = {name: conversion for name, (_, conversion) in stds.items()}
        return MeanAndStd(rows, single, spread.correlation, rounding), arrays, converted
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


def _std(dataset: xr.Dataset, field: xr.DataArray, given: Any) -> tuple[xr.Variable, Conversion]:
    """The standard deviations in the unit of the field, and how they came there."""
    std = given.get(field.name) if isinstance(given, Mapping) else given
    if std is None:
        raise InputError(
            f"how uncertain is `{field.name}`? Give `std`, a variable or a number (with 1 and "
            "`correlation=1` all points are moved alike), or `member` for an ensemble."
        )
    found = array(dataset, std, "std", field)
    if found.dims and found.dtype.kind != "f":
        raise InputError(f"`std` of `{field.name}` holds {found.dtype}, not floats. Convert it.")
    if not isinstance(std, str | xr.DataArray):
        return found.variable, Conversion()
    name = "std" if found.name is None else f"std {found.name}"
    units = found.attrs.get("units"), field.attrs.get("units")
    how = conversion_of_difference(name, *units, str(field.name))
    return found.variable if how.factor == 1 else found.variable * how.factor, how
