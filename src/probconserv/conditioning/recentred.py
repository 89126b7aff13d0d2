"""Points that nobody measured, in the loop: of finite variance, about where they were last.

The steps that meet inequalities, and laws that are not linear, take finite variances. So each
round finds, with u_m what was measured, and u_u what was not,

    u = argmin  1/2 |u_m - mean|^2 + 1/2 sum over unmeasured points of (u_u - last)^2 / D

within laws and inequalities, and `last` is set to u_u, until it stays there. Then the last sum
pulls at nothing: u is what infinite variances give, and no approximation (the proximal point
method). D is `WIDER` times the variance that laws leave; each round is so much closer.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..fields.covariances import Correlated, Fields, Independent
from ..laws.law import Rows
from ..support.errors import DegenerateError, InfeasibleError
from ..support.tolerances import STAYS
from .unmeasured import Eliminated, finite, widest

WIDER = 1e5  # times the variance that laws leave
ROUNDS = 30
UNSURE = 1e6  # standard deviations of a point over its size, or over what it had on the way
GRADIENTS = 3  # rounds that gradients go through: they miss no more than a share of WIDER^-3
Found = TypeVar("Found")


class StandIn(NamedTuple):
    """Fields of which some points have infinite variance, with finite ones in their place."""

    root: Any  # the covariance
    open: Fields  # booleans: where the variance was infinite
    undetermined: Fields  # the same, where laws leave it so


def stand_in(rows: Sequence[Rows], root: Independent | Correlated) -> StandIn:
    """rows: laws; of those with one side nothing is asked."""
    infinite = tuple(v == torch.inf for v in root.variance)
    if not any(bool(at.any()) for at in infinite):
        return StandIn(root, infinite, tuple(map(torch.zeros_like, infinite)))
    with torch.no_grad():
        laws = tuple(each for each in rows if not each.side)
        if not laws:
            return StandIn(widest(root, WIDER), infinite, infinite)
        way = Eliminated(laws, root)
        shapes = root.shapes
        wide = tuple((WIDER * v).expand(n) for v, n in zip(way.breadth, shapes, strict=True))
        left = tuple(x.expand(n) for x, n in zip(way.undetermined, shapes, strict=True))
    return StandIn(finite(root, wide), infinite, left)


def loosened(limits: Rows, undetermined: Fields) -> Rows:
    """Rows at a limit, without those that read points that no law determines."""
    reads = limits.entrywise(1).apply(tuple(at.double() for at in undetermined)) > 0
    present = (~reads).double() * (1.0 if limits.present is None else limits.present)
    value = limits.value * present
    return Rows(limits.label, limits.maps, value, torch.zeros_like(value), present, True)


def check_draws(undetermined: Fields) -> None:
    """Points that no law determines have no draws."""
    if count := sum(int(at.sum()) for at in undetermined):
        raise DegenerateError(
            f"`field`: no law determines {count} of its points of infinite variance, so it has "
            "no draws within inequalities or given laws that are not linear. Ways out: "
            "`draws=0` gives the most probable field, and `undetermined` says where they are; laws "
            "that read them; or a finite variance."
        )


def until_they_stay(
    solve: Callable[[Tensor], tuple[Found, Tensor, Tensor]], mean: Tensor, open_: Tensor
) -> tuple[Found, Tensor]:
    """What `solve` finds, and the mean about which unmeasured points stay.

    solve: from means to what it finds, the fields u, and the variances of unmeasured points that
    laws leave, (P or 1, N) each.
    """
    least: Tensor | None = None
    for _ in range(ROUNDS):
        found, u, variance = solve(mean)
        away, std = torch.where(open_, (u - mean).abs(), 0.0), variance.sqrt()
        least = std if least is None else torch.minimum(least, std)
        if bool((open_ & (std > UNSURE * torch.maximum(u.abs(), least))).any()):
            break
        if bool((away <= STAYS * std).all()):
            return found, mean
        mean = torch.where(open_, u, mean)
    raise InfeasibleError(
        "points of infinite variance do not settle: they still move by "
        f"{float(away.max()):.3g}, and are known to {float(std[open_.expand_as(std)].max()):.3g}. "
        "Laws let them grow without end, or hardly determine them. Ways out: a finite variance, "
        "bounds, or a mean near where they should be."
    )


def learning(problem_mean: Tensor, last: Tensor, open_: Tensor) -> Tensor:
    """`last` at unmeasured points, with the gradient of their means."""
    return torch.where(open_, last + (problem_mean - problem_mean.detach()), problem_mean)
