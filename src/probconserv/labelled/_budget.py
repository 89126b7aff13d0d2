"""One law's budget: the totals that it states beside those that the field has."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import xarray as xr

from .._causes import Rows
from .._errors import InputError
from .._sums import check_usable
from ._blocks import Array
from ._graph import as_tensors, unpack
from ._lookup import time_of
from ._plan import Plan, Ready

TOLERANCE = 1e-6  # of the sum of |u| times cell sizes: a budget closes that is off by no more


@dataclass(frozen=True, eq=False)
class Budget:
    """The totals of one law, an entry for every row; `before` and `after` also for every member."""

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
    remarks: tuple[str, ...] = ()  # what was found, assumed or converted on the way
    is_average: bool = False  # whether the rows are means: sums divided by cell sizes

    def gap(self, after: bool = False) -> xr.DataArray:
        """Field - total, for every row and member; 0 for rows without data."""
        has = self.after if after else self.before
        assert has is not None
        return (has - self.total).where(self.size > 0, 0.0)

    def imbalance(self, after: bool = False) -> xr.DataArray:
        """|field - total| over the sum of |u|, for every row; of an ensemble the worst member's.

        Over |total| where that is larger.
        """
        off = abs(self.gap(after)) / self._scale
        return off.max([dim for dim in off.dims if dim not in self.terms.dims])

    def closes(self, tolerance: float = TOLERANCE, after: bool = False) -> bool:
        """Whether every total is met, up to the tolerance and three times the noise."""
        return bool((self.imbalance(after) <= tolerance + 3 * self.noise / self._scale).all())

    @property
    def _scale(self) -> xr.DataArray:
        size = self.terms.where(self.terms > abs(self.total), abs(self.total))
        return size.where(size > 0, 1.0)

    @property
    def z(self) -> xr.DataArray:
        """Field - total in standard deviations, those of points that move together."""
        return self._mean(self.gap()) / (self.spread**2 + self.noise**2) ** 0.5

    @property
    def verdict(self) -> str:
        """Whether the totals are plausible for a field with this uncertainty, and if not why."""
        rows = self._rows(self.spread)
        wrong = int(rows.wrong.sum())
        if not bool((rows.std > 0).any()):
            return f"without `std` or members nothing says whether the {self._kind}s are plausible"
        if not wrong:
            return self._plausible()
        kind = self._kind
        causes = [c.said_of(f"the {kind}", "the field") for c in rows.causes() if c.kind != "rows"]
        why = "; or ".join(causes) or f"the {kind}s are wrong (by no factor, shift or constant)"
        return (
            f"{wrong} of {rows.wrong.numel()} {kind}s are more than 5 standard deviations off, "
            f"whatever the correlations: the standard deviations are too small, or {why}"
        )

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

    def _rows(self, spread: xr.DataArray) -> Rows:
        dims = sorted(self.terms.dims, key=lambda dim: dim == self.time)  # time last
        here = self._mean(self.before).transpose(*dims)

        def tensor(array: xr.DataArray) -> torch.Tensor:
            wide = array.broadcast_like(here).transpose(*dims)
            return torch.from_numpy(np.array(wide.values, dtype=float))

        std = (tensor(spread) ** 2 + tensor(self.noise) ** 2).sqrt()
        slack = TOLERANCE * tensor(self._mean(self._scale))
        value = tensor(self._mean(self.total.where(self.size > 0, self.before)))
        timed = self.time is not None and bool((value != value[..., :1]).any())
        return Rows(tensor(here), value, std, slack, timed)

    def _mean(self, array: xr.DataArray) -> xr.DataArray:
        """Over members, if the array has them."""
        return array.mean([dim for dim in array.dims if dim not in self.terms.dims])


def budgets(plan: Plan, sums: Array, after: Array | None) -> list[Budget]:
    """The budgets of a system, from what its passes summed, (*index, C)."""
    parts = unpack(plan.kind.sums, sums)
    check_usable(as_tensors(parts))
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
    if after is not None and plan.member is not None:
        after = after.reshape(*after.shape[:-1], -1, len(plan.kind.laws))
    budget = Budget(
        name=law.label,
        variables=tuple(law.factors),
        over=law.dims,
        unit=points.unit,
        measure=points.measure,
        time=_time(points.first, law.time, shape),
        total=_wide(ready.value + ready.fixed, shape, ready),
        noise=_wide(ready.noise, shape, ready),
        before=rows(parts["total"]) + fixed,
        after=None if after is None else rows(after) + fixed,
        terms=rows(parts["terms"]),
        size=rows(parts["size"]),
        spread=rows(parts["spread"]),
        independent=rows(np.sqrt(parts["independent"])),
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


def _time(field: xr.DataArray, given: str | None, shape: Mapping[str, int]) -> str | None:
    try:
        time = time_of(field, given)
    except InputError:
        return None
    return time if time in shape else None


def worst(array: xr.DataArray) -> tuple[float, str]:
    """The largest entry and where it is, in words."""
    if not array.ndim:
        return float(array), ""
    at = np.unravel_index(int(np.argmax(array.values)), array.shape)
    entry = array[tuple(at)]
    names = [f"{dim} {_shown(entry, dim, int(i))}" for dim, i in zip(array.dims, at, strict=True)]
    return float(entry), ", ".join(names)


def _shown(entry: xr.DataArray, dim: Any, number: int) -> str:
    if dim not in entry.coords:
        return f"number {number}"
    value = entry[dim].values.item() if entry[dim].dtype.kind != "M" else entry[dim].values
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).removesuffix("T00:00:00.000000000").removesuffix(" 00:00:00")
