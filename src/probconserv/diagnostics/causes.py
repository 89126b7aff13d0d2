"""Why b differs from what a prior expects of G u: one number that explains all rows, or a few rows.

Medians find the numbers, so that a few wrong rows do not pass for one. All is arithmetic of arrays
or tensors until `Comparison.causes` looks at the result, so that it can be traced. Fewer than
`ENOUGH` rows are explained by many numbers: there only factors between common units are tried.

A diagnosis raises a false alarm in about a share `LEVEL` of cases, over all of its rows. Rows by
themselves take the quantile of the normal distribution at `LEVEL` divided by their number
(Bonferroni). N members estimate the variance that they are judged by: theirs is the quantile of
Student's t with N - 1 degrees of freedom. Rows of one part are judged jointly as well, by the
quantiles of chi squared or of Hotelling's T squared; each of the two tests has half of the level.
"""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..support.arrays import constant, functions_of

if TYPE_CHECKING:
    from torch import Tensor

LEVEL = 0.005
FULL = 5.0  # standard deviations if all points err together; 1 right b of networks in 160 is beyond
NEARLY_AS_GOOD = 1.5  # times the misfit of the best: causes that leave no more are named as well
ENOUGH = 3  # rows that one number must explain
FEW = 0.25  # of the rows: so many wrong ones may be single mistakes
CLEAR = 2.0  # standard deviations of the prior's totals from 0: of less, no factor can be told
ALIKE = 0.05  # a factor so near to one between units is named as that
LARGE = 10.0  # the least factor that one number may tell
UNITS = {
    2.54: "inches and cm",
    3.281: "metres and feet",
    3.6: "m/s and km/h",
    10.0: "cm and mm",
    24.0: "days and hours",
    60.0: "minutes and seconds",
    100.0: "m and cm, hPa and Pa, per cent",
    365.25: "years and days",
    1e3: "kg and g, km and m",
    3600.0: "hours and seconds",
    86400.0: "days and seconds",
    1e6: "t and g, square km and square m",
    31557600.0: "years and seconds",
    1e9: "Mt and kg, cubic km and cubic m",
    1e12: "Gt and kg",
    1e15: "Gt and g",
}


class Cause(NamedTuple):
    """What would make b right."""

    kind: str  # factor, shift, offset or rows
    amount: float  # b is so many times what the prior says, rows late, too large, rows wrong
    misfit: float  # the root mean square of z that it leaves

    def __str__(self) -> str:
        return self.in_words("b", "the prior")

    def in_words(self, b: str, prior: str) -> str:
        """The cause, with these names for b and for what is compared with it."""
        size = in_digits(abs(self.amount))
        if self.kind == "factor":
            return wrong_by(b, self.amount, prior)
        if self.kind == "shift":
            late, sign = ("late", "+") if self.amount > 0 else ("early", "-")
            rows = "row" if size == "1" else "rows"
            where = f"row i of {prior} fits row i {sign} {size} of {b}"
            return f"{b} comes about {size} {rows} too {late} ({where}), check its times"
        if self.kind == "offset":
            return f"{b} is about {size} too {'large' if self.amount > 0 else 'small'} in every row"
        return f"rows of {b} that are wrong by themselves: {size}"


class Candidate(NamedTuple):
    """What may make b right, as numbers of no axes."""

    kind: str
    amount: Any
    misfit: Any
    holds: Any  # whether it leaves no row wrong


@dataclass(frozen=True, eq=False)
class Comparison:
    """What a prior expects of each row, beside b."""

    total: Any  # G mu, (*batch, T) like all
    value: Any  # b
    std: Any  # of G u - b
    slack: Any  # what rounding can do
    timed: bool  # whether the last axis is time
    limit: Any = FULL  # standard deviations beyond which a row is wrong

    @property
    def rows(self) -> int:
        return math.prod(self.value.shape)

    @property
    def wrong(self) -> Any:
        """Beyond the limit."""
        return abs(self.total - self.value) > self.limit * self.std + self.slack

    @property
    def z(self) -> Any:
        """G mu - b in standard deviations; 0 where it is rounding."""
        miss = self.total - self.value
        far = abs(miss) > self.slack
        where = functions_of(miss).where
        return where(far, miss / where(far, self.std, 1.0), 0.0)

    @property
    def misfit(self) -> Any:
        """The root mean square of z."""
        return (self.z**2).mean() ** 0.5

    def causes(self, gain: float = 1.0) -> tuple[Cause, ...]:
        """Those that leave no row wrong and the misfit `gain` times smaller, the best first."""
        if self.rows < ENOUGH:
            return tuple(self._unit_factors())
        held = [one for one in self.candidates() if bool(one.holds)]
        found = [Cause(one.kind, float(one.amount), float(one.misfit)) for one in held]
        found.sort(key=lambda cause: cause.misfit)
        most = float(self.misfit) / gain
        return tuple(c for c in found if c.misfit <= min(most, NEARLY_AS_GOOD * found[0].misfit))

    def candidates(self) -> list[Candidate]:
        """One of each kind that there are rows enough for."""
        shift = [self._shift()] if self.timed and self.value.shape[-1] >= 4 else []
        return [self._few(), self._factor(), *shift, self._offset()]

    def _unit_factors(self) -> list[Cause]:
        """Factors between units that are near the one that there is, and leave no row wrong."""
        ratio = float(self._ratio)  # of the prior's totals to b
        if not bool(self._tells_a_factor) or not 0 < ratio < math.inf:
            return []
        either = [f for known in UNITS if known >= LARGE for f in (known, 1 / known)]
        near = [f for f in either if abs(math.log(f * ratio)) <= math.log(2)]
        each = [(f, self._multiplied(1 / f)) for f in near]
        return [Cause("factor", f, float(one.misfit)) for f, one in each if not one.wrong.any()]

    def _few(self) -> Candidate:
        wrong, rows = self.wrong.sum(), self.rows
        where = functions_of(self.value).where
        square = where(self.wrong, 0.0, self.z**2).sum() / (rows - wrong).clip(1)
        holds = (wrong > 0) & (wrong <= max(1, FEW * rows)) & (wrong < rows)
        return Candidate("rows", wrong, square**0.5, holds)

    def _factor(self) -> Candidate:
        ratio = self._ratio
        found = self._multiplied(ratio)._explained("factor", ratio**-1.0)
        enough = (self.value != 0).sum() >= ENOUGH
        return found._replace(holds=found.holds & self._tells_a_factor & enough)

    @property
    def _ratio(self) -> Any:
        """What b must be multiplied with."""
        there, where = self.value != 0, functions_of(self.value).where
        ratio = where(there, self.total / where(there, self.value, 1.0), math.inf)
        return _weighted_median(ratio.reshape(-1), abs(self.value).reshape(-1))

    @property
    def _tells_a_factor(self) -> Any:
        """Whether the prior's totals are clearly not 0: else any small factor would do."""
        return self._multiplied(0.0).misfit > CLEAR

    def _multiplied(self, factor: Any) -> "Comparison":
        """With another b, and less rounding where it is smaller."""
        value, size = factor * self.value, abs(self.slack * factor)
        return replace(self, value=value, slack=functions_of(value).minimum(self.slack, size))

    def _offset(self) -> Candidate:
        excess = (self.value - self.total).reshape(-1)
        excess = excess[excess.argsort()[(self.rows - 1) // 2 :]][0]
        return replace(self, value=self.value - excess)._explained("offset", excess)

    def _shift(self) -> Candidate:
        """The best one; it must not just leave out the wrong rows of b, at an end."""
        of, times = functions_of(self.value), self.value.shape[-1]
        shifts = [k for i in range(1, times // 4 + 1) for k in (i, -i)]
        place = np.arange(times) + np.array(shifts)[:, None]  # of the row of b
        there = constant((place >= 0) & (place < times), self.value)
        place = constant(place.clip(0, times - 1), self.value)
        limit = self.limit * of.ones_like(self.std)
        each = (t[..., None, :] for t in (self.total, self.std, self.slack, limit))
        total, std, slack, limit = each
        moved = Comparison(total, self.value[..., place], std, slack, True, limit)
        axes = (*range(self.value.ndim - 1), -1)  # of (*batch, shifts, T)
        wrong = (moved.wrong & there).sum(axes)
        removed = (self.wrong[..., place] & there).sum(axes)
        square = of.where(there, moved.z**2, 0.0).sum(axes)
        count = of.broadcast_to(there, moved.value.shape).sum(axes)
        holds = (wrong == 0) & ((removed > 0) | ~self.wrong.any())
        misfits = of.where(holds, (square / count) ** 0.5, math.inf)
        best = misfits.argmin(0)[None]
        amount = constant(shifts, self.value)[best][0]
        return Candidate("shift", amount, misfits[best][0], holds.any())

    def _explained(self, kind: str, amount: Any) -> Candidate:
        return Candidate(kind, amount, self.misfit, ~self.wrong.any())


def _weighted_median(x: Any, weights: Any) -> Any:
    order = x.argsort()
    heights = weights[order].cumsum(0)
    middle = (heights < heights[-1] / 2).sum(0)[None].clip(0, len(x) - 1)
    return x[order][middle][0]


def row_limit(rows: int, members: int | None, estimated: Any, level: float) -> Any:
    """In standard deviations, for each row; of arrays or tensors.

    estimated: the share of a row's variance that members estimate. The rest is known. The squares
    of the two quantiles, weighed by these shares, keep the level wherever it was simulated.
    """
    from scipy.special import ndtri, stdtrit  # a tenth of a second, so not for everybody

    tail = level / max(2 * rows, 1)
    normal = float(ndtri(tail) ** 2)
    student = normal if members is None else float(stdtrit(members - 1, tail) ** 2)
    return (normal + (student - normal) * estimated) ** 0.5


def joint_limit(rank: "Tensor", members: int | None, level: float) -> "Tensor":
    """Of the Mahalanobis square of each part, by the rank of its rows.

    Infinite where the rows are too many for the members.
    """
    from scipy.special import chdtri, fdtri

    k, tail = rank.numpy(force=True), level / max(rank.numel(), 1)
    if members is None:
        limit = chdtri(np.maximum(k, 1), tail)
    else:
        left = np.maximum(members - k, 1)
        limit = k * (members - 1) / left * fdtri(np.maximum(k, 1), left, 1 - tail)
        limit = np.where(k < members - 1, limit, np.inf)
    return rank.new_tensor(np.where(k > 0, limit, np.inf), dtype=rank.double().dtype)


def in_digits(size: float) -> str:
    """Three digits, without an exponent."""
    return f"{float(f'{size:.3g}'):g}"


def in_times(factor: float) -> str:
    """As a part of a sentence: "1/1000 of", "60 times"."""
    sign, size = "-" if factor < 0 else "", abs(factor)
    return f"{sign}{in_digits(size)} times" if size >= 0.1 else f"{sign}1/{in_digits(1 / size)} of"


def units_of(factor: float, alike: float = ALIKE) -> str:
    """Units that differ by a factor or its inverse; nothing if no common ones do."""
    size = max(abs(factor), 1 / abs(factor)) if factor else math.inf
    near = min(UNITS, key=lambda known: abs(math.log(known / size)))
    return UNITS[near] if abs(near / size - 1) <= alike else ""


def wrong_by(b: str, factor: float, prior: str, alike: float = ALIKE) -> str:
    """A factor between two things in words, with the units that differ by it."""
    units = units_of(factor, alike)
    said = f"{b} is about {in_times(factor)} what {prior} says, check its units"
    return f"{said} ({units})" if units else said
