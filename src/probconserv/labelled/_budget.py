"""One law's budget: the totals that it states beside those that the field has."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from .._errors import InputError, ProbConservError
from .._sums import check_usable
from ._graph import unpack
from ._law import INITIAL, Law, listed
from ._plan import Plan, Ready
from ._rows import Array
from ._time import shown, time_of

if TYPE_CHECKING:
    from .._causes import Rows

Axis = tuple[str, Any, int]  # its name, its coordinate if it has one, its size
FIGURES = ("total", "field", "gap", "relative", "closes")  # of a total, in a table
SAME = 1e-9  # of the sum of cell sizes: so much may it change by rounding
TOLERANCE = 1e-6  # of the sum of |u| times cell sizes: a budget closes that is off by no more


@dataclass(frozen=True, eq=False)
class Budget:
    """The totals of one law, an entry for every row; `before` and `after` also for every member.

    Attributes
    ----------
    name : str
        Of the law.
    variables : tuple of str
        What is summed.
    over : tuple of str
        The dimensions that are summed over.
    unit : str
        Of the totals, if it is known.
    measure : str
        Where the cell sizes come from.
    time : str
        Which of the axes is time, if one is.
    total : DataArray
        As the law states it.
    noise : DataArray
        The standard deviation of `total`.
    before : DataArray
        What the field has.
    after : DataArray
        What the updated field has; None while that is not computed.
    terms : DataArray
        The sum of ``|u|`` times cell sizes.
    size : DataArray
        The sum of cell sizes, over points that are not missing.
    spread : DataArray
        The standard deviation of the field's total if its points move together.
    independent : DataArray
        The same if they are independent.
    present : DataArray
        As `size`, where it should be the same at all times; else None.
    marks : int
        Values that look like marks for missing ones.
    remarks : tuple of str
        What was found, assumed or converted on the way.
    is_average : bool
        Whether the rows are means: sums divided by cell sizes.
    """

    name: str
    variables: tuple[str, ...]
    over: tuple[str, ...]
    unit: str | None
    measure: str  # where the cell sizes come from
    time: str | None  # which of the axes is time
    total: xr.DataArray  # as the law states it
    noise: xr.DataArray
    before: xr.DataArray  # of the field
    after: xr.DataArray | None  # of the updated field; None while that is not computed
    terms: xr.DataArray  # the sum of |u| times cell sizes
    size: xr.DataArray  # the sum of cell sizes, over points that are not missing
    spread: xr.DataArray  # standard deviation of the field's total if its points move together
    independent: xr.DataArray  # and if they are independent
    present: xr.DataArray | None = None  # as `size`, where it should be the same at all times
    marks: int = 0  # values that look like marks for missing ones
    remarks: tuple[str, ...] = ()  # what was found, assumed or converted on the way
    is_average: bool = False  # whether the rows are means: sums divided by cell sizes

    def gap(self, after: bool = False) -> xr.DataArray:
        """Field - total, for every row and member; 0 for rows without data.

        Parameters
        ----------
        after : bool
            True for the updated field.

        Returns
        -------
        DataArray
            In the units of the total.
        """
        has = self.after if after else self.before
        assert has is not None
        return (has - self.total).where(self.size > 0, 0.0)

    def imbalance(self, after: bool = False) -> xr.DataArray:
        """How far each row is off: ``|field - total|`` over the sum of ``|u|``.

        Over ``|total|`` where that is larger. Of an ensemble the worst member's.

        Parameters
        ----------
        after : bool
            True for the updated field.

        Returns
        -------
        DataArray
            One number for each row.
        """
        off = abs(self.gap(after)) / self._scale
        return off.max([dim for dim in off.dims if dim not in self.terms.dims])

    def closes(self, tolerance: float = TOLERANCE, after: bool = False) -> bool:
        """Whether every total is met, up to the tolerance and three times the noise.

        Parameters
        ----------
        tolerance : float
            Of `imbalance`.
        after : bool
            True for the updated field.

        Returns
        -------
        bool
            True if no row is off by more.
        """
        return bool((self.imbalance(after) <= tolerance + 3 * self.noise / self._scale).all())

    def table(self, tolerance: float = TOLERANCE) -> list[dict[str, Any]]:
        """The rows of a table: of every total (and member) its place and figures.

        The figures are total, field, gap, relative and closes, after the update if there is one.
        """
        after = self.after is not None
        gap = self.gap(after)
        relative = abs(gap) / self._scale
        closes = relative <= tolerance + 3 * self.noise / self._scale
        field = (gap + self.total).where(self.size > 0)
        columns = [_column(each, gap) for each in (self.total, field, gap, relative, closes)]
        places = product(*(_labels(gap, dim) for dim in gap.dims))
        names = ["law", *map(str, gap.dims), *FIGURES]
        rows = zip(places, zip(*columns, strict=True), strict=True)
        return [
            dict(zip(names, (self.name, *place, *values), strict=True)) for place, values in rows
        ]

    @property
    def _scale(self) -> xr.DataArray:
        size = self.terms.where(self.terms > abs(self.total), abs(self.total))
        return size.where(size > 0, 1.0)

    @property
    def z(self) -> xr.DataArray:
        """Field - total in standard deviations, those of points that move together."""
        return self._mean(self.gap()) / (self.spread**2 + self.noise**2) ** 0.5

    @property
    def warnings(self) -> list[str]:
        """What is implausible before the update."""
        found = [self._changes(), self._marks()]
        if self._knows_std and bool((rows := self._rows(self.spread)).wrong.any()):
            found.insert(0, self._beyond(rows))
        return [f"{self.name}: {text}" for text in found if text]

    def _beyond(self, rows: "Rows") -> str:
        return (
            f"{int(rows.wrong.sum())} of {rows.wrong.numel()} {self._kind}s are more than 5 "
            "standard deviations off, whatever the correlations"
        )

    def _changes(self) -> str:
        """Of points that are missing at some times and there at others."""
        if self.present is None:
            return ""
        whole = self.present.max(self.time)
        gone = (1 - self.present / whole).where(self.present > 0, 0.0)  # NaN where nothing ever is
        most, where = worst(gone.fillna(0.0))
        if most <= SAME:
            return ""
        return (
            f"points are missing at some times and there at others, {100 * most:.3g} % of the "
            f"whole at {where}; what is left is given the total of the whole. Give a total for "
            "each time, or fill the gaps"
        )

    def _marks(self) -> str:
        if not self.marks:
            return ""
        return (
            f"{self.marks} values look like marks for missing ones (1e+20 and the like), which the "
            "file does not declare. Declare them as _FillValue"
        )

    @property
    def verdict(self) -> str:
        """Whether the totals are plausible for a field with this uncertainty, and if not why."""
        if not self._knows_std:
            return f"without `std` or members nothing says whether the {self._kind}s are plausible"
        rows = self._rows(self.spread)
        wrong = int(rows.wrong.sum())
        if not wrong:
            return self._plausible()
        kind = self._kind
        causes = [c.said_of(f"the {kind}", "the field") for c in rows.causes() if c.kind != "rows"]
        why = "; or ".join(causes) or f"the {kind}s are wrong (by no factor, shift or constant)"
        return f"{self._beyond(rows)}: the standard deviations are too small, or {why}"

    @property
    def _knows_std(self) -> bool:
        return bool((self.spread > 0).any()) or bool((self.noise > 0).any())

    @property
    def _kind(self) -> str:
        return "average" if self.is_average else "total"

    def _plausible(self) -> str:
        """What the totals take to be plausible: errors that go together, if they are far off."""
        said = f"the {self._kind}s are plausible for a field with these standard deviations"
        wrong = self._rows(self.independent).wrong
        if not bool(wrong.any()):
            return said
        less = "points are independent" if self._is_single else "the members' totals tell all"
        return (
            f"{said} only if its errors go together: {int(wrong.sum())} of {wrong.numel()} are "
            f"more than 5 standard deviations off if {less}"
        )

    @property
    def _is_single(self) -> bool:
        """Whether this is a mean, not an ensemble."""
        return set(self.before.dims) == set(self.terms.dims)

    def _rows(self, spread: xr.DataArray) -> "Rows":
        from ._solve import rows

        dims = sorted(self.terms.dims, key=lambda dim: dim == self.time)  # time last
        here = self._mean(self.before).transpose(*dims)

        def wide(array: xr.DataArray) -> Array:
            return np.array(array.broadcast_like(here).transpose(*dims).values, dtype=float)

        std = np.hypot(wide(spread), wide(self.noise))
        slack = TOLERANCE * wide(self._mean(self._scale))
        value = wide(self._mean(self.total.where(self.size > 0, self.before)))
        timed = self.time is not None and bool((value != value[..., :1]).any())
        return rows(wide(here), value, std, slack, timed)

    def _mean(self, array: xr.DataArray) -> xr.DataArray:
        """Over members, if the array has them."""
        return array.mean([dim for dim in array.dims if dim not in self.terms.dims])


@dataclass(frozen=True, eq=False)
class Places:
    """The names of the indices and the rows of a system, for messages."""

    index: tuple[Axis, ...]
    laws: tuple[tuple[int, tuple[Axis, ...]], ...]  # the first row of each, and its own axes

    @classmethod
    def of(cls, plan: Plan) -> "Places":
        def axes(ready: Ready, dims: tuple[str, ...]) -> tuple[Axis, ...]:
            coords, sizes = ready.points.coords, {**plan.sizes, **ready.points.rows}
            return tuple((d, coords[d].values if d in coords else None, sizes[d]) for d in dims)

        laws = tuple((ready.first, axes(ready, ready.inner)) for ready in plan.laws)
        return cls(axes(plan.laws[0], plan.index), laws)

    @contextmanager
    def named(self, numbers: Any = None) -> Iterator[None]:
        """Errors that are raised inside say where; numbers: of the indices that are looked at."""
        try:
            yield
        except ProbConservError as error:
            if error.place is None:
                raise
            index, row = error.place
            index = index if numbers is None else int(np.ravel(numbers)[index])
            first, inner = [each for each in self.laws if each[0] <= row][-1]
            inside = (row - first) % max(1, prod(size for *_, size in inner))  # of any member
            found = [*_at(self.index, index), *_at(inner, inside)]
            where = f" Look at {', '.join(found)}." if found else ""
            raise type(error)(f"{error}{where}") from None


def _at(axes: tuple[Axis, ...], number: int) -> list[str]:
    """The entry of that number, counted over all axes."""
    at = np.unravel_index(number, [size for *_, size in axes])
    return [f"{dim} {_shown(labels, int(i))}" for (dim, labels, _), i in zip(axes, at, strict=True)]


def budgets(plan: Plan, sums: Array, after: Array | None) -> list[Budget]:
    """The budgets of a system, from what its passes summed, (*index, C)."""
    parts = unpack(plan.kind.sums, sums)
    with Places.of(plan).named():
        check_usable(parts)
    for ready in plan.laws:
        if not parts["size"][..., ready.own].any():
            raise InputError(
                f"no point of {ready.law.label} counts: all are missing, or have no weight by "
                "`where`, `regions`, a factor or cell sizes of 0."
            )
    if plan.member is None:
        gram = parts["gram"]
        many = gram.ndim > len(plan.index) + 1
        parts["independent"] = np.einsum("...kk->...k", gram) if many else gram
    else:
        parts["independent"] = parts["total"].var(-2, ddof=1)
    return [_budget(plan, ready, parts, after) for ready in plan.laws]


def _budget(plan: Plan, ready: Ready, parts: Mapping[str, Array], after: Array | None) -> Budget:
    def rows(values: Array) -> xr.DataArray:
        """(*index, N, K) or (*index, K) -> the rows of the law, by their names."""
        lead = values.shape[: len(plan.index)]
        member = () if values.ndim == len(lead) + 1 else (plan.member,)
        inner = [ready.points.rows[dim] for dim in ready.inner]
        mine = values[..., ready.own].reshape((*values.shape[:-1], *inner))
        found = xr.DataArray(mine, dims=(*plan.index, *member, *ready.inner))
        return _labelled(found, ready)

    law, points = ready.law, ready.points
    fixed = _labelled(xr.DataArray(ready.fixed), ready)
    shape = {dim: points.rows[dim] for dim in points.rows}
    time = _time(points.first, law, shape)
    stated = law.average is not None or not (isinstance(law.total, str) and law.total == INITIAL)
    rates = listed(law.inflow) or listed(law.outflow)
    given = time is None or (stated and time in ready.value.dims and not rates)
    vary = any(time in weights.dims for weights in points.weights.values())
    if after is not None and plan.member is not None:
        after = after.reshape(*after.shape[:-1], -1, len(plan.kind.laws))
    budget = Budget(
        name=law.label,
        variables=tuple(law.factors),
        over=law.dims,
        unit=points.unit,
        measure=points.measure,
        time=time,
        total=_wide(ready.value + ready.fixed, shape, ready),
        noise=_wide(ready.noise, shape, ready),
        before=rows(parts["total"]) + fixed,
        after=None if after is None else rows(after) + fixed,
        terms=rows(parts["terms"]),
        size=rows(parts["size"]),
        spread=rows(parts["spread"]),
        independent=rows(np.sqrt(parts["independent"])),
        present=None if given else rows(parts["count" if vary else "size"]),
        marks=int(parts["marks"].sum()),
        remarks=ready.remarks,
    )
    return budget if law.average is None else _averaged(budget, ready, shape)


def _averaged(budget: Budget, ready: Ready, shape: Mapping[str, int]) -> Budget:
    """The budget of an average: all that is summed, divided by the cell sizes."""
    sizes = _wide(ready.sizes.where(ready.sizes > 0, 1.0), shape, ready)
    summed = ("total", "noise", "before", "terms", "size", "spread", "independent")
    means = {name: getattr(budget, name) / sizes for name in summed}
    after = None if budget.after is None else budget.after / sizes
    unit = ready.points.mean_unit
    return replace(budget, unit=unit, is_average=True, after=after, **means)


def _wide(given: xr.Variable, shape: Mapping[str, int], ready: Ready) -> xr.DataArray:
    wide = given.set_dims({**shape, **{d: n for d, n in given.sizes.items() if d not in shape}})
    return _labelled(xr.DataArray(wide.data, dims=wide.dims), ready)


def _labelled(found: xr.DataArray, ready: Ready) -> xr.DataArray:
    coords = {name: c.variable for name, c in ready.points.coords.items() if name in found.dims}
    return found.assign_coords(coords)


def _time(field: xr.DataArray, law: Law, shape: Mapping[str, int]) -> str | None:
    try:
        time = time_of(field, law.time, law.dims).dim
    except InputError:
        return None
    return time if time in shape else None


def worst(array: xr.DataArray) -> tuple[float, str]:
    """The largest entry and where it is, in words."""
    if not array.ndim:
        return float(array), ""
    at = np.unravel_index(int(np.argmax(array.values)), array.shape)
    axes = [(d, array[d].values if d in array.coords else None) for d in array.dims]
    names = [f"{dim} {_shown(labels, int(i))}" for (dim, labels), i in zip(axes, at, strict=True)]
    return float(array[tuple(at)]), ", ".join(names)


def _column(array: xr.DataArray, like: xr.DataArray) -> list[Any]:
    """The entries one after the other, None for missing ones."""
    wide = array.broadcast_like(like).transpose(*like.dims)
    return [None if each != each else each for each in wide.values.ravel().tolist()]


def _labels(array: xr.DataArray, dim: Any) -> list[Any]:
    """The coordinate as numbers and texts; numbers from 0 where there is none."""
    if dim not in array.coords:
        return list(range(array.sizes[dim]))
    values = array[dim].values
    if values.dtype.kind == "m":
        return (values / np.timedelta64(1, "s")).tolist()
    if values.dtype.kind == "M":
        return np.datetime_as_string(values, "s").tolist()
    return [each.isoformat() if hasattr(each, "isoformat") else each for each in values.tolist()]


def _shown(labels: Any, number: int) -> str:
    """The label of that number, if there are any."""
    if labels is None:
        return f"number {number}"
    return shown(labels[number])
