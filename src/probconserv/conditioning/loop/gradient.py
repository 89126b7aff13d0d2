"""The gradient of the nearest field: that of one step at it, with what is active held.

    u = mean + Sigma x,   J u = value - noise force,   u = bound where active

A small change of any of these changes u as the linear solve with the active set says, whose factor
is the one that is there.
"""

from typing import Any

import torch
from torch import Tensor

from ...support.errors import DegenerateError
from .given import Given
from .programme import Programme


class Once(torch.autograd.Function):
    """Its input, with first derivatives only."""

    @staticmethod
    def forward(ctx: Any, u: Tensor) -> Tensor:
        return u.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise DegenerateError(
                "fields within inequalities have first derivatives only: leave out `create_graph`."
            )
        return g


def nearest_with_gradient(problem: Programme, u: Tensor, active: Tensor, force: Tensor) -> Tensor:
    """`u`, the nearest fields of the problem, with their gradient."""
    prior = problem.prior.detached()
    with torch.no_grad():
        w = torch.where(active != 0, torch.inf, problem.precision)
        given, at = Given(prior, w), prior.read(u)
    start = problem.mean + problem.prior.times(problem.prior.pushed(force))
    target = torch.where(
        active > 0, problem.low, torch.where(active < 0, problem.high, problem.value)
    )
    target = target - problem.noise * force - problem.prior.read(u) + at
    target = torch.where(given.said > 0, target, 0.0)
    found, _ = given.once(start, target)
    moved: Tensor = Once.apply(found)  # type: ignore[no-untyped-call]
    return u + (moved - moved.detach())
