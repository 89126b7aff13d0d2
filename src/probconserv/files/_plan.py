"""Laws that share variables, as one system: its rows, and what every point adds to them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import xarray as xr

from ..conditioning.sums import Ensemble, Kind, MeanAndStd
from ..support.errors import InputError, ProbConservError
from ..support.values import between
from ._attributes import conversion, place
from ._graph import Array, LawRows, NamedRows
from ._law import FileLaw, array, assumed, listed, nearest
from ._points import REGION, FilePoints, points
from ._totals import Totals

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

    law: FileLaw
    points: FilePoints
    totals: Totals
    index: tuple[str, ...]  # axes along which the system falls apart
    first: int
    remarks: tuple[str, ...]  # for the report

    @cached_property
    def sizes_inside(self) -> dict[str, int]:
        """Of the axes of its rows that are not indices of the system."""
        return {dim: n for dim, n in self.points.rows.items() if dim not in self.index}

    @cached_property
    def rows(self) -> int:
        return prod(self.sizes_inside.values())

    @cached_property
    def own(self) -> slice:
        return slice(self.first, self.first + self.rows)

    def part(self, name: str, unit: float | None) -> LawRows:
        labels: xr.Variable | None = None
        for dim, size in self.sizes_inside.items():
            codes = xr.Variable(dim, np.arange(size))
            if dim == REGION and self.points.regions is not None:
                codes = self.points.regions
            labels = codes if labels is None else labels * size + codes
        return LawRows(self.points.weights[name], labels, self.first, self.rows, unit)


@dataclass(frozen=True, eq=False)
class Std:
    """The standard deviations of a variable."""

    values: xr.Variable  # in the unit of the variable
    given: xr.DataArray | None = None  # as they were, if they are not in the dataset
    place: str = ""  # the name under which they stand after the update
    factor: float = 1.0  # from the unit as they were
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class FilePlan:
    """One system: variables that laws tie together."""

    kind: Kind
    laws: tuple[Ready, ...]
    arrays: Mapping[str, tuple[xr.Variable, ...]]  # of each variable: mean and std, or members
    index: tuple[str, ...]  # axes along which the system falls apart
    sizes: Mapping[str, int]  # of all axes
    member: str | None
    bounds: tuple[float, float]  # of all values
    stds: Mapping[str, Std]

    @property
    def is_bounded(self) -> bool:
        return math.isfinite(self.bounds[0]) or math.isfinite(self.bounds[1])

    @cached_property
    def places(self) -> "Places":
        laws = [(ready.first, ready.sizes_inside, ready.points.names) for ready in self.laws]
        return Places(dict(zip(self.index, self.lengths, strict=True)), laws)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Of the indices."""
        return tuple(map(self.sizes.__getitem__, self.index))

    def flat(self, parts: Mapping[str, Array]) -> dict[str, Array]:
        """With one axis for all indices: (*index, ...) to (I, ...)."""
        count, own = prod(self.lengths), len(self.index)
        return {name: x.reshape(count, *x.shape[own:]) for name, x in parts.items()}

    def shaped(self, parts: Mapping[str, Array]) -> dict[str, Array]:
        """With an axis for each index: (I, ...) to (*index, ...)."""
        return {name: x.reshape((*self.lengths, *x.shape[1:])) for name, x in parts.items()}

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
        """The mean weight of the points that count, if one number is the std.

        At the first index, if some count there; else at all.
        """
        if isinstance(self.kind, Ensemble) or self.arrays[name][1].dims:
            return None
        first = weights.isel({dim: 0 for dim in self.index if dim in weights.dims})
        for some in (first, weights):
            sizes = np.abs(some.values)
            if (sizes > 0).any():
                return float(sizes[sizes > 0].mean())
        return 1.0

    def side_by_side(self, which: str) -> Array:  # (*index, 1 or N, K)
        """The value or the noise of all rows."""
        parts = []
        each = [getattr(ready.totals, which) for ready in self.laws]
        many = next((str(self.member) for own in each if self.member in own.dims), "one")
        lead = dict(zip(self.index, self.lengths, strict=True)) | {many: self.sizes.get(many, 1)}
        for ready, own in zip(self.laws, each, strict=True):
            wide = own.set_dims({**lead, **ready.sizes_inside}).transpose(
                *lead, *ready.sizes_inside
            )
            parts.append(wide.values.reshape(*lead.values(), ready.rows))
        return np.concatenate(parts, axis=-1)


@dataclass(frozen=True, eq=False)
class Places:
    """The names of the indices and the rows of a system, for messages."""

    index: Mapping[str, int]  # sizes
    laws: Sequence[tuple[int, Mapping[str, int], Mapping[str, xr.Variable]]]
    # of each: its first row, the sizes of its own axes, its coordinates

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


def worst(array: xr.DataArray) -> tuple[float, str]:
    """The largest entry and where it is, in words."""
    if not array.ndim:
        return float(array), ""
    sizes = {str(dim): size for dim, size in array.sizes.items()}
    at = entry(sizes, int(np.argmax(array.values)))
    return float(array[at]), place(array.coords, at)


@dataclass(frozen=True)
class FileSpread:
    """How a correction is spread over the points, by what is known of them, and within bounds."""

    std: Any = None
    member: str | None = None
    correlation: float = 0.0
    shrinkage: float | None = None
    jointly: str | Sequence[str] = ()
    how: str | None = None
    minimum: float | None = None
    maximum: float | None = None

    def __post_init__(self) -> None:
        for name in ("correlation", "shrinkage", "minimum", "maximum"):
            ends = (0.0, 1.0) if name in ("correlation", "shrinkage") else (-math.inf, math.inf)
            if getattr(self, name) is not None:
                between(name, getattr(self, name), *ends)
        low, high = self.bounds
        if not low < high:
            raise InputError(f"`minimum` must be below `maximum`, got {low:g} and {high:g}.")
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
        for name in ("shrinkage", "jointly"):
            if self.member is None and getattr(self, name) not in (None, "", (), []):
                raise InputError(f"`{name}` is for an ensemble: give its dimension as `member`.")
        if self.correlation and self.std is None:
            raise InputError(
                "`correlation` is for `std`; an ensemble has its own, see `shrinkage`."
            )

    @property
    def tied(self) -> list[str]:
        """Dimensions beside those of laws that an ensemble's update couples."""
        return listed(self.jointly)

    @property
    def knows_std(self) -> bool:
        """Whether points differ in how uncertain they are."""
        return self.how not in ("uniform", "proportional")

    @property
    def bounds(self) -> tuple[float, float]:
        low, high = self.minimum, self.maximum
        return -math.inf if low is None else float(low), math.inf if high is None else float(high)


def plans(dataset: xr.Dataset, laws: Sequence[FileLaw], spread: FileSpread) -> list[FilePlan]:
    """The systems that the laws make, each as small as can be."""
    for argument, dims in (("member", [spread.member]), ("jointly", spread.tied)):
        for dim in dims:
            if dim is not None and dim not in dataset.dims:
                way = nearest(dim, dataset.dims)
                raise InputError(f"`{argument}`: no dimension {dim!r} here. {way}")
    named = _checked(laws)
    dataset = assumed(dataset, named)
    ready = [(law, points(dataset, law, spread.member)) for law in named]
    groups: list[list[int]] = []
    for number, law in enumerate(named):
        near = [g for g in groups if any(set(named[i].factors) & set(law.factors) for i in g)]
        joined = [i for g in near for i in g]
        groups = [g for g in groups if g not in near] + [[*joined, number]]
    names = {name for law in named for name in law.factors}
    for name in spread.std if isinstance(spread.std, Mapping) else ():
        if name not in names:
            raise InputError(
                f"`std` is given for {name!r}, which no law moves. {nearest(name, names)}"
            )
    found = [_plan(dataset, [ready[i] for i in sorted(g)], spread, names) for g in groups]
    taken = {name: name for name in names}
    for name, std in ((name, std) for plan in found for name, std in plan.stds.items()):
        if std.values.dims and std.place in taken:
            raise InputError(
                f"`std` of `{name}` is {std.place!r}, which cannot hold what the update makes of "
                f"`{taken[std.place]}` as well. Give every variable its own, "
                f"`std={{'{name}': ..., ...}}`."
            )
        taken[std.place] = name
    return found


def _checked(laws: Sequence[FileLaw]) -> list[FileLaw]:
    """The laws, with a remark on what others move."""
    if not laws:
        raise InputError("at least one law is needed.")
    for law in laws:
        if not isinstance(law, FileLaw):
            raise InputError(f"laws are made by `FileLaw(...)`; got {type(law).__name__}.")
    moved = [(other.label, name) for other in laws for name in other.factors]
    said = "{} moves {}, which this law holds fixed: " + ONE_BY_ONE
    return [
        replace(law, remarks=(*law.remarks, *(said.format(*m) for m in moved if m[1] in law.held)))
        for law in laws
    ]


def _plan(
    dataset: xr.Dataset,
    group: list[tuple[FileLaw, FilePoints]],
    spread: FileSpread,
    names: set[str],
) -> FilePlan:
    fields = {name: field for _, p in group for name, field in p.fields.items()}
    tied = {dim for law, _ in group for dim in law.dims} | {*spread.tied, spread.member}
    first, *others = fields.values()
    index = tuple(str(d) for d in first.dims if d not in tied and all(d in o.dims for o in others))
    ready, row = [], 0
    for law, its in group:
        totals = Totals(dataset, law, its, spread.member)
        remarks = (*law.remarks, *its.remarks, *totals.remarks)
        ready.append(Ready(law, its, totals, index, row, remarks))
        row += ready[-1].rows
    sizes = {str(d): n for field in fields.values() for d, n in field.sizes.items()}
    rows = tuple(each.law.label for each in ready for _ in range(each.rows))
    stds: dict[str, Std] = {}
    if spread.member is None:
        stds = {name: _std(dataset, field, spread, names) for name, field in fields.items()}
        arrays: dict[str, tuple[xr.Variable, ...]] = {
            name: (field.variable, stds[name].values) for name, field in fields.items()
        }
    else:
        arrays = {name: (field.variable,) for name, field in fields.items()}
    kind = _kind(fields, rows, len(ready) == 1, spread)
    said = (remark for std in stds.values() for remark in std.remarks)
    ready[0] = replace(ready[0], remarks=(*ready[0].remarks, *said))
    plan = FilePlan(kind, tuple(ready), arrays, index, sizes, spread.member, spread.bounds, stds)
    labels = ", ".join(law.label for law, _ in group)
    if plan.is_bounded and len(group) > 1:
        raise InputError(
            f"`minimum` and `maximum` go with one law for each variable, but {labels} share some. "
            "Leave the bounds out, or enforce one law after the other."
        )
    if not spread.knows_std and plan.side_by_side("noise").any():
        raise InputError(
            f"`noise` of {labels} weighs the total against the spread of the field, and `how` "
            f"{spread.how!r} knows no spread. Give `std`, or leave `noise` out."
        )
    return plan


def _kind(
    fields: Mapping[str, xr.DataArray], rows: tuple[str, ...], single: bool, spread: FileSpread
) -> Kind:
    rounding = max(float(np.finfo(field.dtype).eps) for field in fields.values())
    if spread.member is None:
        how: Any = spread.how or "variance"
        return MeanAndStd(rows, single, spread.correlation, rounding, how, len(fields))
    for name, field in fields.items():
        if spread.member not in field.dims:
            raise InputError(f"`{name}` has no dimension {spread.member!r} for its members.")
        members = field.sizes[spread.member]
    if members < 2:
        raise InputError(f"an ensemble needs two members or more; {spread.member!r} has {members}.")
    return Ensemble(rows, single, members, spread.shrinkage, rounding)


def _std(dataset: xr.Dataset, field: xr.DataArray, spread: FileSpread, names: set[str]) -> Std:
    """names: of all variables that laws move, whose place is taken."""
    std = spread.std.get(field.name) if isinstance(spread.std, Mapping) else spread.std
    std = std if spread.knows_std else 1.0
    if std is None:
        ways = "; ".join(f"{how}, {meaning}" for how, meaning in HOW.items())
        raise InputError(f"how should `{field.name}` be moved? Give `how`: {ways}.")
    found = array(dataset, std, "std", field)
    if found.dims and found.dtype.kind != "f":
        raise InputError(f"`std` of `{field.name}` holds {found.dtype}, not floats. Convert it.")
    if not isinstance(std, str | xr.DataArray):
        return Std(found.variable)
    name = "std" if found.name is None else f"std {found.name}"
    units = found.attrs.get("units"), field.attrs.get("units")
    how = conversion(name, *units, str(field.name), same_zero=False)
    values = found.variable if how.factor == 1 else found.variable * how.factor
    own = isinstance(std, str) or (found.name is not None and found.name not in names)
    place = str(found.name) if own else f"{field.name}_std"
    given = None if isinstance(std, str) else found
    return Std(values, given, place, how.factor, how.remarks)
