"""Whether the totals of a budget are plausible for a field with its standard deviations."""

import math
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from ..diagnostics.causes import FULL, LEVEL, Comparison, row_limit
from ..support.errors import FAR
from ..support.tolerances import CLOSES
from ._blocks import quiet
from ._graph import Array
from ._guard import Guard

if TYPE_CHECKING:
    from ._report import Budget


class Verdict:
    """What the standard deviations say of the totals of a budget."""

    def __init__(self, budget: "Budget") -> None:
        self.budget = budget
        self.kind = "average" if budget.is_average else "total"

    @property
    def answer(self) -> str | None:
        """In the words of `Diagnosis.answer`; None where nothing is known.

        What members do not explain may be shared errors here, as for independent points.
        """
        if not self.budget.knows_std:
            return "does not agree" if any(self.beyond()) else None
        if self.together.wrong.any():
            return "does not agree"
        return "agrees if shared" if self.stated.wrong.any() else "agrees"

    @property
    @quiet
    def text(self) -> str:
        """The answer in words."""
        if not self.budget.knows_std:
            return self._beside_itself()
        for beyond in self.beyond():
            causes = (c for c in self.together.causes() if c.kind != "rows")
            said = "; or ".join(c.in_words(f"the {self.kind}", "the field") for c in causes)
            why = said or f"the {self.kind}s are wrong (by no factor, shift or constant)"
            return f"{beyond}: the standard deviations are too small, or {why}"
        return self._plausible()

    def beyond(self) -> Iterator[str]:
        """Of totals that the standard deviations do not allow, whatever the correlations."""
        if not self.budget.knows_std:
            yield from [self.guard.reason] if self.guard and self.guard.reason else []
        elif self.answer == "does not agree":
            wrong = self.together.wrong
            yield (
                f"{int(wrong.sum())} of {wrong.size} {self.kind}s are more than 5 "
                "standard deviations off, whatever the correlations"
            )

    def _beside_itself(self) -> str:
        """What a field without standard deviations says of the totals."""
        if self.guard is None:
            return f"no `std` or members: nothing says whether the {self.kind}s are plausible"
        for beyond in self.beyond():
            return beyond
        return (
            f"no `std` or members; the {self.kind}s move the field by at most "
            f"{self.guard.most:.2g} of its own standard deviation over points and times"
        )

    def _plausible(self) -> str:
        """What the totals take to be plausible: errors that are shared, if they are far off."""
        said = f"the {self.kind}s are plausible for a field with these standard deviations"
        wrong, rho, members = self.stated.wrong, self.budget.correlation, self.budget.members
        if self.answer == "agrees":
            return f"{said} and a correlation of {rho:g}" if rho else said
        less = f"the {members} members tell all" if members > 1 else "points are independent"
        less, more = (f"their correlation is {rho:g}", "more of ") if rho else (less, "")
        own, full = (float(np.abs(rows.z).max()) for rows in (self.stated, self.together))
        return (
            f"{said} only if points share {more}their errors: {int(wrong.sum())} of "
            f"{wrong.size} are off by up to {own:.1f} standard deviations if {less}, by up to "
            f"{full:.1f} if all points err together"
        )

    @cached_property
    def guard(self) -> Guard | None:
        """What the field says of itself."""
        return Guard.of(self.budget, self.kind, not self.budget.is_celsius)

    @cached_property
    def together(self) -> Comparison:
        """The totals beside what the field has, if its points err together."""
        return self._rows(self.budget.spread, FULL)

    @cached_property
    def stated(self) -> Comparison:
        """The same with the correlation of the update, or as the members' totals spread."""
        found, one = self.budget, self.budget.members == 1
        variance, noise = found.assumed**2, found.noise**2
        share = (variance / (variance + noise).where(variance > 0, 1.0)).max()
        members = None if one else found.members
        limit = row_limit(found.terms.size, members, float(share), LEVEL)  # members estimate it
        return self._rows(found.assumed, min(limit, FAR))

    def _rows(self, spread: xr.DataArray, limit: float) -> Comparison:
        """What `_causes` says of the totals, with that std of the field."""
        budget = self.budget
        here = self._mean(budget.before)
        dims = sorted(budget.terms.dims, key=lambda dim: dim == budget.time)  # time last
        sizes = {dim: here.sizes[dim] for dim in dims}

        def wide(array: xr.DataArray) -> Array:
            return np.array(array.variable.set_dims(sizes).transpose(*dims).values, dtype=float)

        of_mean = 1 / budget.members if budget.members > 1 else 0.0
        std = np.hypot(math.sqrt(1 + of_mean) * wide(spread), wide(budget.noise))
        slack = CLOSES * wide(self._mean(budget._scale))
        value = wide(self._mean(budget.total.where(budget.size > 0, budget.before)))
        timed = budget.time is not None and bool((value != value[..., :1]).any())
        return Comparison(wide(here), value, std, slack, timed, limit)

    def _mean(self, array: xr.DataArray) -> xr.DataArray:
        """Over members, if the array has them."""
        return array.mean([dim for dim in array.dims if dim not in self.budget.terms.dims])
