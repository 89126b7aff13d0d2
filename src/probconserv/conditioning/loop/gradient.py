"""The gradient of the nearest field: that of one step at it, with what is active held.

    u = mean + Sigma x,   J u = value - noise force,   u = bound where active

A small change of any of these changes u as the linear solve with the active set says, whose factor
is the one that is there.
"""

import torch
from torch import Tensor

from ...support.gradients import as_if, first_only
from .given import Given
from .programme import Programme

FIRST_ONLY = "fields within inequalities have first derivatives only: leave out `create_graph`."


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
    return as_if(u, first_only(found, FIRST_ONLY))
