"""The most probable fields of many parts: by steps, from near by, or on kinks; and what is said of
those that do not get there."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...support.errors import ProbConservError
from ..recentred import GRADIENTS, learning, until_they_stay
from .gauss_newton import PART, Failure, along_the_way, most_probable, with_gradient
from .kinks import across_kinks, kinked_with_gradient
from .linearised import NonlinearProblem
from .refused import Names

STAGES = (4, 16)  # on the way to draws that do not get to the laws at once
SOON = 20  # steps, after which kinks are looked for
AT_ONCE = 1 << 24  # numbers of Jacobians that are held together


def in_chunks(
    problem: NonlinearProblem, start: Sequence[Tensor] | None = None
) -> tuple[Tensor, Tensor, dict[int, Failure]]:  # (P, N), (P,)
    """The most probable fields, as many parts at a time as there is room for; which of them lie on
    kinks of the laws, and which failed.

    start: fields that obey the laws, with the mean and the values that they belong to.
    """
    size = problem.mean.shape[1] * (sum(problem.counts) if problem.is_dense else 1)
    parts = torch.arange(len(problem.mean), device=problem.mean.device)
    found, failed, on = [], dict[int, Failure](), torch.zeros_like(parts, dtype=torch.bool)
    for each in parts.split(max(1, AT_ONCE // max(1, size))):
        some = problem if len(each) == len(parts) else problem.some(each)
        near = None if start is None else start[0][each]
        u, wrong = most_probable(some, near, SOON)
        if wrong:
            at = torch.tensor(sorted(wrong), device=parts.device)
            own = None if near is None else near[at]
            u[at], on[each[at]], left = _with_patience(some.some(at), own)
            wrong = {int(at[i]): failure for i, failure in left.items()}
        for stages in STAGES:
            if wrong and start is not None:
                at = torch.tensor(sorted(wrong), device=parts.device)
                near, mean, value = (x[each[at]] for x in start)
                u[at], left = along_the_way(some.some(at), mean, value, near, stages)
                wrong = {int(at[i]): failure for i, failure in left.items()}
        failed |= {int(each[i]): failure for i, failure in wrong.items()}
        found.append(u)
    return torch.cat(found) if len(found) != 1 else found[0], on, failed


def _with_patience(
    problem: NonlinearProblem, near: Tensor | None
) -> tuple[Tensor, Tensor, dict[int, Failure]]:  # (P, N), (P,)
    """As `in_chunks`, of parts that take many steps, or that end on kinks."""
    across = across_kinks(problem)
    left = (~across.solved).nonzero()[:, 0]
    if not len(left):
        return across.u, across.solved, {}
    u, wrong = most_probable(problem.some(left), near if near is None else near[left])
    found = across.u.index_copy(0, left, u)
    return found, across.solved, {int(left[i]): failure for i, failure in wrong.items()}


def places_across(problem: NonlinearProblem, u: Tensor, kinked: Tensor) -> Tensor:  # (P, C, N)
    """Places of the other slopes that hold where a part is on kinks; its own u elsewhere."""
    if not bool(kinked.any()):
        return u[:, None][:, :0]
    places = across_kinks(problem.some(kinked.nonzero()[:, 0])).places
    found = u[:, None].repeat(1, places.shape[1], 1)
    found[kinked] = places
    return found


def gradient_of(problem: NonlinearProblem, u: Tensor, kinked: Tensor) -> Tensor:
    """u with its gradient; kinked: parts that lie on kinks."""
    if not bool(kinked.any()):
        return with_gradient(problem, u)
    smooth, on = ((kinked == each).nonzero()[:, 0] for each in (False, True))
    some = problem.some(on)
    found = u.index_copy(0, on, kinked_with_gradient(some, across_kinks(some)))
    if not len(smooth):
        return found
    return found.index_copy(0, smooth, with_gradient(problem.some(smooth), u[smooth]))


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
) -> tuple[Tensor, Tensor, dict[int, Failure]]:
    """As `in_chunks`, with unmeasured points about where they stay."""

    def solve(mean: Tensor) -> tuple[Any, Tensor, Tensor]:
        problem.mean = mean
        found = in_chunks(problem, start)
        return found, torch.where(found[0].isfinite(), found[0], mean), problem.variance

    (u, kinked, wrong), _ = until_they_stay(solve, problem.mean, open_)
    return u, kinked, wrong


def learned(
    problem: NonlinearProblem, u: Tensor, kinked: Tensor, last: Tensor, open_: Tensor
) -> Tensor:
    """u with its gradient; last: about where unmeasured points stay."""
    before = problem.mean
    problem.mean = learning(before, last, open_)
    for _ in range(GRADIENTS if bool(open_.any()) else 1):
        u = gradient_of(problem, u.detach(), kinked)
        problem.mean = torch.where(open_, u, before)
    return u
