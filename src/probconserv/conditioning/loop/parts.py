"""The most probable fields, some parts at a time: steps, kinks, and draws between."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .gauss_newton import Failure, along_the_way, most_probable, with_gradient
from .kinks import across_kinks, kinked_with_gradient
from .linearised import NonlinearProblem

AT_ONCE = 1 << 24  # numbers of Jacobians that are held together
SOON = 20  # steps, after which kinks are looked for
STAGES = (4, 16)  # on the way to draws that do not get to the laws at once


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


def places_of(problem: NonlinearProblem, u: Tensor, kinked: Tensor) -> Tensor:  # (P, C, N)
    """Places of the other slopes that hold where a part is on kinks; its own u elsewhere."""
    if not bool(kinked.any()):
        return u[:, None][:, :0]
    places = across_kinks(problem.some(kinked.nonzero()[:, 0])).places
    found = u[:, None].repeat(1, places.shape[1], 1)
    found[kinked] = places
    return found


def gradients_of(problem: NonlinearProblem, u: Tensor, kinked: Tensor) -> Tensor:
    if not bool(kinked.any()):
        return with_gradient(problem, u)
    smooth, on = ((kinked == each).nonzero()[:, 0] for each in (False, True))
    some = problem.some(on)
    found = u.index_copy(0, on, kinked_with_gradient(some, across_kinks(some)))
    if not len(smooth):
        return found
    return found.index_copy(0, smooth, with_gradient(problem.some(smooth), u[smooth]))
