"""One law's budget: the totals that it states beside those that the field has."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from .._errors import InputError, ProbConservError
from .._sums import Ensemble, check_usable
from ._graph import unpack
from ._plan import Plan, Ready
from ._rows import Array
from ._time import place

if TYPE_CHECKING:
    from .._causes import Rows

FIGURES = ("total", "field", "gap", "relative", "closes")  # of a total, in a table
SAME = 1e-9  # of the sum of cell sizes: so much may it change by rounding
ZERO = 273.15  # of degC in K
TOLERANCE = 1e-6  # of the sum of |u| times cell sizes: a budget closes that is off by no more


@dataclass(frozen=True, eq=False)
class Budget:
    """The totals of one law, an entry for every row; `before` and `after` also for every member.

    Attributes
    ----------
    name : str
        The name of the law.
    variables : tuple of str
        What is summed.
    over : tuple of str
        The dimensions that are summed over.
    unit : str
        The unit of the totals, if it is known.
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
    assumed : DataArray
        The same with the correlation of the update, or as the members' totals spread.
    present : DataArray
        How much data there is at each time: as `size`, or the number of points where cell sizes
        change.
    one_total : bool
        Whether one total holds at all times, so that all of them should have all points.
    marks : int
        Values that look like marks for missing ones.
    remarks : tuple of str
        What was found, assumed or converted on the way.
    correlation : float
        The correlation of the errors of any two points.
    is_average : bool
        Whether the rows are means: sums divided by cell sizes.
    """

    name: str
    variables: tuple[str, ...]
    over: tuple[str, ...]
    unit: str | None
    measure: str
    time: str | None
    total: xr.DataArray
    noise: xr.DataArray
    before: xr.DataArray
    after: xr.DataArray | None
    terms: xr.DataArray
    size: xr.DataArray
    spread: xr.DataArray
    assumed: xr.DataArray
    present: xr.DataArray
    one_total: bool
    marks: int = 0
    remarks: tuple[str, ...] = ()
    correlation: float = 0.0
    is_average: bool = False

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

        Where ``|total|`` is larger, it is divided by that. For an ensemble it is that of the worst
        member.

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
            The largest `imbalance` that counts as closed.
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
        total = self.total.where(self.size > 0) if self.is_average else self.total
        columns = [_column(each, gap) for each in (total, field, gap, relative, closes)]
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
    def warnings(self) -> list[str]:
        """What is implausible before the update."""
        found = [self._changes(), self._marks(), self._zero()]
        if self.knows_std and bool((rows := self._rows(self.spread)).wrong.any()):
            found.insert(0, self._beyond(rows))
        return [f"{self.name}: {text}" for text in found if text]

    def _beyond(self, rows: "Rows") -> str:
        return (
            f"{int(rows.wrong.sum())} of {rows.wrong.numel()} {self._kind}s are more than 5 "
            "standard deviations off, whatever the correlations"
        )

    def _changes(self) -> str:
        """Of points that are missing at some times and there at others."""
        if self.time is None or not self.one_total:
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

    def _zero(self) -> str:
        """Of an average that is off by about the 273.15 between degC and K."""
        celsius = re.fullmatch("(deg(ree)?s?_?)?c(elsius)?", str(self.unit).lower())
        off, other = abs(self.gap()), "K" if celsius else "degC"
        known = self.is_average and (celsius or self.unit == "K")
        if not known or not bool((abs(off - ZERO) < 60).any()):
            return ""
        return f"the average asked for is {float(off.max()):.3g} {self.unit} off: is it in {other}?"

    @property
    def verdict(self) -> str:
        """Whether the totals are plausible for a field with this uncertainty, and if not why."""
        if not self.knows_std:
            return f"no `std` or members: nothing says whether the {self._kind}s are plausible"
        rows = self._rows(self.spread)
        wrong = int(rows.wrong.sum())
        if not wrong:
            return self._plausible()
        kind = self._kind
        causes = [c.said_of(f"the {kind}", "the field") for c in rows.causes() if c.kind != "rows"]
        why = "; or ".join(causes) or f"the {kind}s are wrong (by no factor, shift or constant)"
        return f"{self._beyond(rows)}: the standard deviations are too small, or {why}"

    @property
    def knows_std(self) -> bool:
        """Whether the field or the total comes with standard deviations or members."""
        return bool((self.spread > 0).any()) or bool((self.noise > 0).any())

    @property
    def _kind(self) -> str:
        return "average" if self.is_average else "total"

    def _plausible(self) -> str:
        """What the totals take to be plausible: errors that go together, if they are far off."""
        said = f"the {self._kind}s are plausible for a field with these standard deviations"
        wrong, rho = self._rows(self.assumed).wrong, self.correlation
        if not bool(wrong.any()):
            return f"{said} and a correlation of {rho:g}" if rho else said
        single = set(self.before.dims) == set(self.terms.dims)  # not an ensemble
        less = "points are independent" if single else "the members' totals tell all"
        less, more = (f"their correlation is {rho:g}", "more ") if rho else (less, "")
        return (
            f"{said} only if its errors go together {more}".rstrip()
            + f": {int(wrong.sum())} of {wrong.numel()} are more than 5 standard deviations off if "
            + less
        )

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
            where = place(coords, _at(self.index, index) | _at(inner, inside))
            where = f" Look at {where}." if where else ""
            raise type(error)(f"{error}{where}") from None


def _at(sizes: Mapping[str, int], number: int) -> dict[str, Any]:
    """The entry of that number, counted over all axes."""
    return dict(zip(sizes, np.unravel_index(number, list(sizes.values())), strict=True))


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
    if isinstance(plan.kind, Ensemble):
        parts["assumed"] = parts["total"].var(-2, ddof=1)
    else:
        gram, rho = parts["gram"], plan.kind.correlation
        many = gram.ndim > len(plan.index) + 1
        alone = np.einsum("...kk->...k", gram) if many else gram
        parts["assumed"] = (1 - rho) * alone + rho * (parts["common"] ** 2).sum(-2)
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
    vary = any(ready.time in weights.dims for weights in points.weights.values())
    if after is not None and plan.member is not None:
        after = after.reshape(*after.shape[:-1], -1, len(plan.kind.laws))
    budget = Budget(
        name=law.label,
        variables=tuple(law.factors),
        over=law.dims,
        unit=points.unit,
        measure=points.measure,
        time=ready.time,
        total=_wide(ready.value + ready.fixed, shape, ready),
        noise=_wide(ready.noise, shape, ready),
        before=rows(parts["total"]) + fixed,
        after=None if after is None else rows(after) + fixed,
        terms=rows(parts["terms"]),
        size=rows(parts["size"]),
        spread=rows(parts["spread"]),
        assumed=rows(np.sqrt(parts["assumed"])),
        correlation=getattr(plan.kind, "correlation", 0.0),
        present=rows(parts["count" if vary else "size"]),
        one_total=ready.one_total,
        marks=int(parts["marks"].sum()),
        remarks=ready.remarks,
    )
    return budget if law.average is None else _averaged(budget, ready, shape)


def _averaged(budget: Budget, ready: Ready, shape: Mapping[str, int]) -> Budget:
    """The budget of an average: all that is summed, divided by the cell sizes."""
    sizes = _wide(ready.sizes.where(ready.sizes > 0, 1.0), shape, ready)
    summed = ("total", "noise", "before", "terms", "size", "spread", "assumed")
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


def worst(array: xr.DataArray) -> tuple[float, str]:
    """The largest entry and where it is, in words."""
    if not array.ndim:
        return float(array), ""
    sizes = {str(dim): size for dim, size in array.sizes.items()}
    at = _at(sizes, int(np.argmax(array.values)))
    return float(array[at]), place(array.coords, at)


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
