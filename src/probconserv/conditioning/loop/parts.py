"""The most probable fields of many parts: by steps, or from near by; and what is said of those that
do not get there."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...support.errors import ProbConservError
from ..recentred import GRADIENTS, learning, until_they_stay
from .gauss_newton import PART, Failure, along_the_way, most_probable, with_gradient
from .linearised import NonlinearProblem
from .refused import Names

STAGES = (4, 16)  # on the way to draws that do not get to the laws at once
AT_ONCE = 1 << 24  # numbers of Jacobians that are held together


def in_chunks(
    problem: NonlinearProblem, start: Sequence[Tensor] | None = None
) -> tuple[Tensor, dict[int, Failure]]:  # (P, N)
    """The most probable fields, as many parts at a time as there is room for; and which failed.

    start: fields that obey the laws, with the mean and the values that they belong to.
    """
    size = problem.mean.shape[1] * (sum(problem.counts) if problem.is_dense else 1)
    parts = torch.arange(len(problem.mean), device=problem.mean.device)
    found, failed = [], dict[int, Failure]()
    for each in parts.split(max(1, AT_ONCE // max(1, size))):
        some = problem if len(each) == len(parts) else problem.some(each)
        u, wrong = most_probable(some, None if start is None else start[0][each])
        for stages in STAGES:
            if wrong and start is not None:
                at = torch.tensor(sorted(wrong), device=parts.device)
                near, mean, value = (x[each[at]] for x in start)
                u[at], left = along_the_way(some.some(at), mean, value, near, stages)
                wrong = {int(at[i]): failure for i, failure in left.items()}
        failed |= {int(each[i]): failure for i, failure in wrong.items()}
        found.append(u)
    return torch.cat(found) if len(found) != 1 else found[0], failed


def refused(failed: dict[int, Failure], names: Names) -> ProbConservError:
    kind, text = failed[first := min(failed)]
    said = text.replace(PART, names(first))
    others = len(failed) - 1
    if others:
        count = math.prod(names.sizes)
        said += f" {others} other{'s' * (others > 1)} of {count} did not get there either."
    if names.noun == "draw":
        said += " `point`, `variance` and `interval` need no draws."
    return kind(said)


def stayed(
    problem: NonlinearProblem, start: Sequence[Tensor], open_: Tensor
) -> tuple[Tensor, dict[int, Failure]]:
    """As `in_chunks`, with unmeasured points about where they stay."""

    def solve(mean: Tensor) -> tuple[Any, Tensor, Tensor]:
        problem.mean = mean
        found = in_chunks(problem, start)
        return found, torch.where(found[0].isfinite(), found[0], mean), problem.variance

    (u, wrong), _ = until_they_stay(solve, problem.mean, open_)
    return u, wrong


def learned(problem: NonlinearProblem, u: Tensor, last: Tensor, open_: Tensor) -> Tensor:
    """u with its gradient; last: about where unmeasured points stay."""
    before = problem.mean
    problem.mean = learning(before, last, open_)
    for _ in range(GRADIENTS if bool(open_.any()) else 1):
        u = with_gradient(problem, u.detach())
        problem.mean = torch.where(open_, u, before)
    return u
