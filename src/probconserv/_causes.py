"""Why b differs from what a prior expects of G u: one number that explains all rows, or a few rows.

Medians find the numbers, so that a few wrong rows do not pass for one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

LIMIT = 5.0  # standard deviations; the networks of this library reach 4.3 with the right b
ALIKE = 1.5  # causes that leave up to so many times the misfit of the best are named as well
ENOUGH = 3  # rows that one number must explain
FEW = 0.25  # of the rows: so many wrong ones may be single mistakes


class Cause(NamedTuple):
    """What would make b right."""

    kind: str  # factor, shift, offset or rows
    amount: float  # b is so many times what the prior says, rows late, too large, rows wrong
    misfit: float  # the root mean square of z that it leaves

    def __str__(self) -> str:
        return self.said_of("b", "the prior")

    def said_of(self, b: str, prior: str) -> str:
        """The cause, with these names for b and for what is compared with it."""
        size = f"{float(f'{abs(self.amount):.3g}'):g}"  # three digits, without an exponent
        if self.kind == "factor":
            sign = "-" if self.amount < 0 else ""
            return f"{b} is about {sign}{size} times what {prior} says, check its units"
        if self.kind == "shift":
            late, sign = ("late", "+") if self.amount > 0 else ("early", "-")
            rows = "row" if size == "1" else "rows"
            where = f"row i of {prior} fits row i {sign} {size} of {b}"
            return f"{b} comes about {size} {rows} too {late} ({where}), check its times"
        if self.kind == "offset":
            return f"{b} is about {size} too {'large' if self.amount > 0 else 'small'} in every row"
        return f"rows of {b} that are wrong by themselves: {size}"


@dataclass(frozen=True, eq=False)
class Rows:
    """What a prior expects of each row, beside b."""

    total: Tensor  # G mu, (*batch, T) like all
    value: Tensor  # b
    std: Tensor  # of G u - b
    slack: Tensor  # what rounding can do
    timed: bool  # whether the last axis is time

    @property
    def wrong(self) -> Tensor:
        """Beyond `LIMIT`."""
        return (self.total - self.value).abs() > LIMIT * self.std + self.slack

    def z(self, std: Tensor) -> Tensor:
        """G mu - b in standard deviations; 0 where it is rounding."""
        miss = self.total - self.value
        return torch.where(miss.abs() > self.slack, miss / std, 0.0)

    def causes(self) -> tuple[Cause, ...]:
        """Those that leave no row wrong, the best first."""
        found = [*self._few()]
        if self.value.numel() >= ENOUGH:
            found += [*self._factor(), *self._shift(), *self._offset()]
        found.sort(key=lambda cause: cause.misfit)
        return tuple(cause for cause in found if cause.misfit <= ALIKE * found[0].misfit)

    def _few(self) -> Iterator[Cause]:
        wrong, rows = int(self.wrong.sum()), self.wrong.numel()
        if wrong <= max(1, FEW * rows) and wrong < rows:
            yield Cause("rows", wrong, _root_mean_square(self.z(self.std)[~self.wrong]))

    def _factor(self) -> Iterator[Cause]:
        there = self.value != 0
        if int(there.sum()) < ENOUGH:
            return
        ratio = _weighted_median(self.total[there] / self.value[there], self.value[there].abs())
        scaled = self._with(ratio * self.value)
        if bool((scaled.value.abs() > LIMIT * self.std).any()):  # else any small factor would do
            yield from scaled._explained("factor", 1 / ratio)

    def _offset(self) -> Iterator[Cause]:
        excess = float((self.value - self.total).median())
        yield from self._with(self.value - excess)._explained("offset", excess)

    def _shift(self) -> Iterator[Cause]:
        """The best one; it must not just leave out the wrong rows of b, at an end."""
        times = self.value.shape[-1] if self.timed else 0
        shifts: list[Cause] = []
        for k in range(1, times // 4 + 1):
            early, late = slice(None, times - k), slice(k, None)
            for prior, b, amount in ((early, late, k), (late, early, -k)):
                if bool(self.wrong[..., b].any()):
                    moved = self._at(prior)._with(self.value[..., b])
                    shifts += moved._explained("shift", amount)
        yield from sorted(shifts, key=lambda c: c.misfit)[:1]

    def _explained(self, kind: str, amount: float) -> Iterator[Cause]:
        if not bool(self.wrong.any()):
            yield Cause(kind, amount, _root_mean_square(self.z(self.std)))

    def _with(self, value: Tensor) -> "Rows":
        return Rows(self.total, value, self.std, self.slack, self.timed)

    def _at(self, times: slice) -> "Rows":
        total, value, std, slack = (
            t[..., times] for t in (self.total, self.value, self.std, self.slack)
        )
        return Rows(total, value, std, slack, self.timed)


def _root_mean_square(z: Tensor) -> float:
    return float(z.square().mean().sqrt())


def _weighted_median(x: Tensor, weights: Tensor) -> float:
    order = x.argsort()
    heights = weights[order].cumsum(0)
    return float(x[order][int((heights < heights[-1] / 2).sum())])
