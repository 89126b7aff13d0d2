"""Why no field is given back: what is said of linear laws and inequalities that none obeys."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...support.tolerances import CONVERGED, EASY
from ...support.values import span, unravelled
from .programme import BEYOND, Nearest, Programme

WAYS = (
    "Ways out: correct the value, loosen `bounds`, `monotone` or limits, or give the law `noise`."
)
OFF = "the exact laws are off by {worst:.2g} of their terms within the inequalities. " + WAYS
FIRST = 4  # rows that are named
FIXED = (
    "`bounds`, `monotone` or limits: points without variance, or what exact laws fix, break an "
    "inequality by {most:.3g} and cannot be moved. Ways out: correct their values, give them "
    "variance, or give the laws `noise`."
)


def refusal(
    problem: Programme,
    found: Nearest,
    part: int,
    ends: tuple[Tensor, Tensor],
    names: Sequence[str],
) -> str:
    """Why a part of the problem has no field. ends: low and high of its points. names: of the last
    rows, those of laws."""
    if text := out_of_reach(problem, part, ends, names):
        return text
    variance = problem.prior.variances
    pull = (found.force[part] * variance[part if len(variance) > 1 else 0].sqrt()).abs()
    rows = pull[len(pull) - len(names) :]
    large = [i for i in rows.argsort(descending=True).tolist() if rows[i] > EASY * pull.max()]
    said = ", ".join(names[i] for i in large[:FIRST])
    which = f" (those that pull most: {said})" if said else ""
    distance = float(found.distance[part])
    if distance > BEYOND:
        return (
            f"no field obeys the laws, `bounds`, `monotone` and limits together{which}: it would "
            f"be more than {BEYOND:.0e} standard deviations away, or the directions of this "
            f"field are too few. {WAYS}"
        )
    return (
        f"the nearest field within the inequalities was not found after {int(found.solves[part])} "
        f"linear solves{which}; it is at least {distance:.3g} standard deviations away. {WAYS}"
    )


def out_of_reach(
    problem: Programme, part: int, ends: tuple[Tensor, Tensor], names: Sequence[str]
) -> str:
    """A row of a law that no field within bounds obeys, in words, or nothing."""
    value, precision, low, high = (
        t[part if len(t) > 1 else 0]
        for t in (problem.value, problem.precision, problem.low, problem.high)
    )
    first, own = len(value) - len(names), [end[None] for end in ends]
    rows = problem.prior.some(torch.tensor([part], device=value.device)).rows
    last, exact = slice(rows.count - len(names), None), precision[first:].isinf()
    low, high = (torch.where(exact, value[first:], end[first:]) for end in (low, high))
    least, most = (x[0, last] for x in rows.span(*own))
    far = [torch.where(end.isfinite(), end.abs(), 0.0) for end in own]
    sizes = [rows.sizes(torch.maximum(*far))[0, last]]
    sizes += [x.abs().nan_to_num(posinf=0.0) for x in (low, high)]
    near = CONVERGED * torch.stack(sizes).amax(0)
    wrong = (low > most + near) | (high < least - near)
    if not bool(wrong.any()):
        return ""
    i = int(wrong.int().argmax())
    lower, upper = float(low[i]), float(high[i])
    said = f"{lower:.10g}" if lower == upper else span(lower, upper, digits=10)
    reach = span(float(least[i]), float(most[i]), digits=10)
    return f"{names[i]} is {said}, but within the inequalities it can only be {reach}. {WAYS}"


@dataclass(frozen=True)
class Names:
    """What errors call the parts of a problem."""

    noun: str
    sizes: Sequence[int]  # of the axes that number parts; of draws the first is that of draws

    def __call__(self, part: int) -> str:
        index = unravelled(part, self.sizes)
        if self.noun == "solution":
            return f"solution {index[0] if len(index) == 1 else index or 0}"
        return f"{self.noun} {index[0]}" + f" of solution {index[1:]}" * (len(index) > 1)
