"""Why b differs from what a prior expects of G u: one number that explains all rows, or a few rows.

Medians find the numbers, so that a few wrong rows do not pass for one. All is arithmetic of tensors
until `Comparison.causes` looks at the result, so that it can be traced.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

LIMIT = 5.0  # standard deviations; the networks of this library reach 4.3 with the right b
NEARLY_AS_GOOD = (
    1.5  # causes that leave up to so many times the misfit of the best are named as well
)
ENOUGH = 3  # rows that one number must explain
FEW = 0.25  # of the rows: so many wrong ones may be single mistakes


class Cause(NamedTuple):
    """What would make b right."""

    kind: str  # factor, shift, offset or rows
    amount: float  # b is so many times what the prior says, rows late, too large, rows wrong
    misfit: float  # the root mean square of z that it leaves

    def __str__(self) -> str:
        return self.in_words("b", "the prior")

    def in_words(self, b: str, prior: str) -> str:
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


class Candidate(NamedTuple):
    """What may make b right, as numbers of no axes."""

    kind: str
    amount: Tensor
    misfit: Tensor
    holds: Tensor  # whether it leaves no row wrong


@dataclass(frozen=True, eq=False)
class Comparison:
    """What a prior expects of each row, beside b."""

    total: Tensor  # G mu, (*batch, T) like all
    value: Tensor  # b
    std: Tensor  # of G u - b
    slack: Tensor  # what rounding can do
    timed: bool  # whether the last axis is time

    @classmethod
    def of(cls, total: Any, value: Any, std: Any, slack: Any, timed: bool) -> "Comparison":
        """The same from arrays."""
        tensor = torch.tensor
        return cls(tensor(total), tensor(value), tensor(std), tensor(slack), timed)

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
        held = [one for one in self.candidates() if bool(one.holds)]
        found = [Cause(one.kind, float(one.amount), float(one.misfit)) for one in held]
        found.sort(key=lambda cause: cause.misfit)
        return tuple(cause for cause in found if cause.misfit <= NEARLY_AS_GOOD * found[0].misfit)

    def candidates(self) -> list[Candidate]:
        """One of each kind that there are rows enough for."""
        if self.value.numel() < ENOUGH:
            return [self._few()]
        shift = [self._shift()] if self.timed and self.value.shape[-1] >= 4 else []
        return [self._few(), self._factor(), *shift, self._offset()]

    def _few(self) -> Candidate:
        wrong, rows = self.wrong.sum(), self.wrong.numel()
        square = torch.where(self.wrong, 0.0, self.z(self.std).square()).sum() / (rows - wrong)
        holds = (wrong <= max(1, FEW * rows)) & (wrong < rows)
        return Candidate("rows", wrong, square.sqrt(), holds)

    def _factor(self) -> Candidate:
        there = self.value != 0
        ratio = torch.where(there, self.total / torch.where(there, self.value, 1.0), torch.inf)
        ratio = _weighted_median(ratio.flatten(), self.value.abs().flatten())
        found = replace(self, value=ratio * self.value)._explained("factor", 1 / ratio)
        large = (ratio * self.value).abs() > LIMIT * self.std  # else any small factor would do
        return found._replace(holds=found.holds & large.any() & (there.sum() >= ENOUGH))

    def _offset(self) -> Candidate:
        excess = (self.value - self.total).flatten().median(0).values
        return replace(self, value=self.value - excess)._explained("offset", excess)

    def _shift(self) -> Candidate:
        """The best one; it must not just leave out the wrong rows of b, at an end."""
        times = self.value.shape[-1]
        either = [k for i in range(1, times // 4 + 1) for k in (i, -i)]
        shifts = torch.tensor(either, device=self.value.device)
        place = torch.arange(times, device=shifts.device) + shifts[:, None]  # of the row of b
        there = (place >= 0) & (place < times)
        place = place.clamp(0, times - 1)
        total, std, slack = (t[..., None, :] for t in (self.total, self.std, self.slack))
        moved = Comparison(total, self.value[..., place], std, slack, True)  # (*batch, shifts, T)
        axes = (*range(self.value.ndim - 1), -1)
        wrong = (moved.wrong & there).sum(axes)
        removed = (self.wrong[..., place] & there).sum(axes)
        square = torch.where(there, moved.z(moved.std).square(), 0.0).sum(axes)
        count = there.expand(moved.value.shape).sum(axes)
        holds = (wrong == 0) & (removed > 0)
        misfit, best = torch.where(holds, (square / count).sqrt(), torch.inf).min(0)
        return Candidate("shift", shifts[best], misfit, holds.any())

    def _explained(self, kind: str, amount: Tensor) -> Candidate:
        misfit = self.z(self.std).square().mean().sqrt()
        return Candidate(kind, amount, misfit, ~self.wrong.any())


def _weighted_median(x: Tensor, weights: Tensor) -> Tensor:
    x, order = x.sort()
    heights = weights[order].cumsum(0)
    middle = (heights < heights[-1:] / 2).sum(0, keepdim=True).clamp_max(len(x) - 1)
    return x[middle][0]
