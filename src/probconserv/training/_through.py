"""Training through Step 2: a network judged by what its predictions are once they conserve."""

from dataclasses import replace

import torch
from torch import Tensor

from ..conditioning.condition import condition
from ..data import Functions
from ..fields.gaussian import Diagonal
from ..fields.mixture import Mixture
from ..laws.sums import integral
from ..models.anp import AttentiveNeuralProcess
from ..support.random_address import normal, uniform
from ._losses import LOSSES
from ._recipes import Recipe, Score

TIMES, LATENT = 7, 8  # seeds of the times and of z, beside those of `data` and of `_points`


def through_loss(
    network: AttentiveNeuralProcess,
    functions: Functions,
    t: Tensor,  # (n, T)
    x: Tensor,  # (M,), over the whole domain
    noise: Tensor,  # (S, n, latent)
    name: Score,
) -> Tensor:
    """Minus the mean LL ("ll") or the mean CRPS ("crps") of the truth after Step 2.

    Components u_z for S draws of z ~ p(z | context), on whole rows u(t, x); each given that its
    integral is the function's total(t); the truth is scored by the normal with the total mean and
    variance of their mixture. noise: standard normal, for z; times and places are float64.
    """
    problem = functions.equation.to(torch.float64)
    total = problem[:, None]._total(t).expand(t.shape)
    law = integral(x, total, noise=torch.zeros_like(total))  # a number would come from the host
    field = Mixture(condition(_components(network, functions, t, x, noise), law)).gaussian()
    truth = problem[:, None, None]._solution(t[..., None], x)
    return LOSSES[name](truth, field.mean, field.std).mean().to(functions.context.u)


@torch.no_grad()
def constrained_score(
    network: AttentiveNeuralProcess, functions: Functions, recipe: Recipe
) -> float:
    """The LL, or the CRPS, after Step 2 on rows of held-out functions that are always the same."""
    name = recipe.through
    assert name is not None
    with network.mode(training=False):
        rows = random_rows(network, functions, replace(recipe, batch=len(functions)))
        value = float(through_loss(network, functions, *rows, name))
    return -value if name == "ll" else value


def random_rows(
    network: AttentiveNeuralProcess, functions: Functions, recipe: Recipe, *address: int | Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The t, x and noise of `through_loss` for a whole batch, random as the address says."""
    device, (start, end) = functions.device, functions.equation.time_range
    t = start + (end - start) * uniform((TIMES, *address), (recipe.batch, recipe.rows), device)
    x = functions.equation.grid(points=recipe.points, device=device)[1]
    shape = recipe.samples, recipe.batch, network.sizes["latent"]
    return t, x, normal((LATENT, *address), shape, device)


def _components(
    network: AttentiveNeuralProcess, functions: Functions, t: Tensor, x: Tensor, noise: Tensor
) -> Diagonal:  # (S, n, T, M)
    u = functions.context.u
    known = torch.stack([functions.context.t, functions.context.x], dim=-1)
    asked = torch.stack(torch.broadcast_tensors(t[..., None], x), dim=-1)  # (n, T, M, 2)
    z = network.latent(known, u).sample(noise.to(u))
    moments = network.decode(network.common(known, u, asked.flatten(1, 2).to(u)), z)
    mean, std = (each.double().unflatten(-1, asked.shape[1:3]) for each in moments)
    return Diagonal._unchecked(mean, std**2)
