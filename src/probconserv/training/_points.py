"""What trains networks that read points: losses before Step 2 or through it, and what judges."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeAlias, TypeVar

import torch
from torch import Tensor

from ..conditioning.condition import condition
from ..data import Functions, Grids, Layout, Points, Shuffled, Stream, draw
from ..data._functions import normal, uniform
from ..diagnostics.metrics import crps
from ..fields.gaussian import Diagonal
from ..fields.mixture import Mixture
from ..laws.sums import integral
from ..models._network import log_normal
from ..models._predictor import Predictor
from ..models.anp import AttentiveNeuralProcess
from ..models.emulator import Emulator
from ._machine import mean_of_team
from ._recipes import Recipe, Score
from ._source import Source

Mean: TypeAlias = Callable[[Tensor], Tensor]


def loss(
    network: AttentiveNeuralProcess,
    functions: Functions,
    noise: Tensor,
    penalty: float = 0.0,
    power: Tensor | float = 0.0,
    mean_of: Mean = torch.mean,
) -> Tensor:
    """The negative evidence lower bound, and for SoftC-ANP `penalty` times ``||F mu_z||^2``.

    Both are averaged over functions. The bound is summed over targets; ``||.||^2`` is the mean of
    the squared residual of the equation over them, an estimate of its mean over space and time.

    Parameters
    ----------
    network : AttentiveNeuralProcess
        What is trained.
    functions : Functions
        A batch of n.
    noise : Tensor, shape (n, latent)
        Standard normal numbers, for z.
    penalty : float
        lambda; 0 is the ANP.
    power : Tensor or float
        Log densities are weighed by their own variance to this power.
    mean_of : callable
        The mean of the weights, by which they are divided; of a team, that of all its processes.

    Returns
    -------
    Tensor
        One number, with a gradient.
    """
    (known, u), (asked, answer) = _coordinates(functions.context), _coordinates(functions.target)
    prior = network.latent(known, u)
    both = network.latent(torch.cat([known, asked], dim=1), torch.cat([u, answer], dim=1))
    z = both.sample(noise)
    value = both.divergence(prior)
    if penalty:
        order = functions.equation.order
        mean, std, *derivatives = network.derivatives(known, u, asked, z, order)
        value = value + penalty * (_residual(functions, mean, derivatives) ** 2).mean(-1)
    else:
        mean, std = network.decode(network.common(known, u, asked), z)
    density = log_normal(answer, mean, std) * _weights(std, power, mean_of)
    return (value - density.sum(-1)).mean()


def emulator_loss(network: Emulator, functions: Functions) -> Tensor:
    """The negative log density at the targets, each times its std; averaged over functions.

    In the density by itself an error counts as 1 / std^2, so that fronts, where std is large, are
    left as they are. Here it counts as 1 / std (the beta-NLL of Seitzer et al., 2022, beta = 1/2).
    """
    density, std = _given_parameters(network, functions)
    return -(density * std.detach()).sum(-1).mean()


def _given_parameters(network: Emulator, functions: Functions) -> tuple[Tensor, Tensor]:
    """The log density at the targets and its std, given the parameters; (n, N) each."""
    (known, u), (asked, answer) = _coordinates(functions.context), _coordinates(functions.target)
    z = network.given(known, u, functions.parameters)
    mean, std = network.decode(network.common(known, u, asked), z[0])
    return log_normal(answer, mean, std), std


def _residual(functions: Functions, mean: Tensor, derivatives: list[Tensor]) -> Tensor:
    u_t, u_x, u_xx = [*derivatives, torch.zeros_like(mean)][:3]
    return functions.equation[:, None]._residual(mean, u_t, u_x, u_xx)  # one parameter to a row


@torch.no_grad()
def validation_ll(network: Predictor, functions: Functions, samples: int = 32) -> float:
    """The paper's LL at the targets: of the normal with the moments of `samples` draws of z.

    An emulator is judged with the parameter known, as it is trained.

    Parameters
    ----------
    network : AttentiveNeuralProcess or Emulator
        What is judged.
    functions : Functions
        Those held out.
    samples : int
        How many draws of z.

    Returns
    -------
    float
        The average over targets and functions.
    """
    mean, std = _components(network, functions, samples)
    total = (std**2).mean(0) + mean.var(0, correction=0)
    return float(log_normal(functions.target.u, mean.mean(0), total.sqrt()).mean())


@torch.no_grad()
def share_from_context(network: Predictor, functions: Functions, samples: int = 32) -> float:
    """How much of the error at the targets goes when a function's own context is read.

    ``1 - MSE / MSE from the contexts of other functions``: 0 for a network that predicts the same
    whatever it is shown, 1 for one that is always right.

    Parameters
    ----------
    network : AttentiveNeuralProcess or Emulator
        What is judged; an emulator is told the parameter, or that of another function.
    functions : Functions
        Those held out.
    samples : int
        How many draws of z.

    Returns
    -------
    float
        NaN for a single function, which has no other.
    """
    n = len(functions)
    other = functions[torch.arange(n).roll(n // 2)]  # neighbours may be alike
    swapped = Functions(other.problem, other.context, functions.target, other.numbers)
    own, others = (
        (_components(network, seen, samples)[0].mean(0) - functions.target.u).square().mean()
        for seen in (functions, swapped)
    )
    return float(1 - own / others) if n > 1 else math.nan


def _components(network: Predictor, functions: Functions, samples: int) -> tuple[Tensor, Tensor]:
    """Mean and std at the targets for each draw of z, (samples, n, N)."""
    (known, u), (asked, _) = _coordinates(functions.context), _coordinates(functions.target)
    with network.mode(training=False):
        z = network.given(known, u, functions.parameters, samples)
        return network.decode(network.common(known, u, asked), z)


def _coordinates(points: Points) -> tuple[Tensor, Tensor]:
    """(t, x) and u of points, (n, N, 2) and (n, N)."""
    return torch.stack([points.t, points.x], dim=-1), points.u


def negative_log_density(u: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return -log_normal(u, mean, std)


def normal_crps(u: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return std * crps((u - mean) / std)


def _weights(std: Tensor, power: Tensor | float, mean_of: Mean) -> Tensor:
    """The variance to a power, of mean 1 over a batch; no gradient goes through them."""
    weights = std.detach() ** (2 * power)
    return weights / mean_of(weights)


LOSSES: dict[Score, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "ll": negative_log_density,
    "crps": normal_crps,
}


NOISE, TIMES, LATENT, PLACES = 6, 7, 8, 11  # seeds beside those of `data`


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
    field = Mixture(condition(_on_rows(network, functions, t, x, noise), law)).gaussian()
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


def _on_rows(
    network: AttentiveNeuralProcess, functions: Functions, t: Tensor, x: Tensor, noise: Tensor
) -> Diagonal:  # (S, n, T, M)
    u = functions.context.u
    known = torch.stack([functions.context.t, functions.context.x], dim=-1)
    asked = torch.stack(torch.broadcast_tensors(t[..., None], x), dim=-1)  # (n, T, M, 2)
    z = network.latent(known, u).sample(noise.to(u))
    moments = network.decode(network.common(known, u, asked.flatten(1, 2).to(u)), z)
    mean, std = (each.double().unflatten(-1, asked.shape[1:3]) for each in moments)
    return Diagonal._unchecked(mean, std**2)


Batches: TypeAlias = Callable[[Tensor], Functions]
AnyPredictor = TypeVar("AnyPredictor", bound=Predictor)


class PointTask(Generic[AnyPredictor]):
    """Batches and scores of a network that reads points; a subclass has its loss."""

    def __init__(
        self,
        network: AnyPredictor,
        source: Source,
        recipe: Recipe,
        seed: int,
        share: slice,
        device: torch.device,
    ) -> None:
        self.network, self.recipe, self.seed, self.share = network, recipe, seed, share
        self.batches, held_out = _batches(source, recipe, seed, device)
        self.validation = held_out.to(torch.float32).to(device)

    def scores(self) -> dict[str, float]:
        return {"validation_ll": validation_ll(self.network, self.validation)}

    def reading(self) -> float:
        return share_from_context(self.network, self.validation)


class EmulatorTask(PointTask[Emulator]):
    """An emulator is given the numbers that tell functions apart."""

    def loss(self, step: Tensor) -> Tensor:
        return emulator_loss(self.network, self.batches(step)[self.share])


class ANPTask(PointTask[AttentiveNeuralProcess]):
    """The evidence lower bound, SoftC's penalty with it, or the score after Step 2."""

    def loss(self, step: Tensor) -> Tensor:
        functions = self.batches(step)[self.share]
        network, recipe = self.network, self.recipe
        if recipe.through is not None:
            t, x, noise = random_rows(network, functions, recipe, self.seed, step)
            rows = t[self.share], x, noise[:, self.share]
            return through_loss(network, functions, *rows, recipe.through)
        shape = recipe.batch, network.sizes["latent"]
        noise = normal((NOISE, self.seed, step), shape, functions.device).to(functions.context.u)
        power = recipe.power(step).to(noise)
        mean_of = mean_of_team if self.share.step > 1 else torch.mean
        return loss(network, functions, noise[self.share], recipe.penalty, power, mean_of)

    def scores(self) -> dict[str, float]:
        scores = super().scores()
        if self.recipe.through is not None:
            score = constrained_score(self.network, self.validation, self.recipe)
            scores[f"constrained_{self.recipe.through}"] = score
        return scores


def _batches(
    source: Source, recipe: Recipe, seed: int, device: torch.device
) -> tuple[Batches, Functions]:
    """Batches to learn from, and functions to judge by."""
    layouts, problem = (recipe.context, recipe.target), source.equation
    if problem is None:
        learned, judged = source.require_grids()
        held_out = points_of(judged, recipe.context, 100, (PLACES, -1))
        chosen = source.stream or Shuffled(learned.to(device), recipe.batch, seed)
        return lambda step: points_of(chosen(step), *layouts, (PLACES, seed, step)), held_out
    held_out = draw(problem, "validation", recipe.validation, recipe.context, 100)
    if recipe.functions is None:
        near = recipe.near or 0.0
        return Stream(problem, recipe.batch, *layouts, seed, device, near=near), held_out
    fixed = draw(problem, "train", recipe.functions, *layouts, seed)
    return Shuffled(fixed.to(torch.float32).to(device), recipe.batch, seed), held_out


def points_of(
    grids: Grids, context: Layout, target: Layout, address: tuple[int | Tensor, ...]
) -> Functions:
    """Random points of a grid (t, x) as context and target, float32; none twice in either."""
    known, asked = (
        _points(grids, layout, (*address, i)) for i, layout in enumerate((context, target))
    )
    numbers = grids.inputs.float() if grids.inputs.ndim == 2 else None
    return Functions(None, known, asked, numbers)


def _points(grids: Grids, layout: Layout, address: tuple[int | Tensor, ...]) -> Points:
    n, (times, places), device = len(grids), grids.shape, grids.device
    t, x = grids.axes
    if isinstance(layout, tuple):
        rows = _some(n, times, layout[0], (*address, 0), device)
        columns = _some(n, places, layout[1], (*address, 1), device)
        index = (rows[:, :, None] * places + columns[:, None, :]).flatten(1)
    else:
        index = _some(n, times * places, layout, (*address, 0), device)
    u = grids.fields[:, 0].flatten(1).gather(1, index)
    return Points(t[index // places].float(), x[index % places].float(), u.float())


def _some(
    n: int, of: int, count: int, address: tuple[int | Tensor, ...], device: torch.device
) -> Tensor:  # (n, count)
    """Numbers from 0 to of - 1, `count` different ones for each function, sorted."""
    order = uniform(address, (n, of), device).argsort(dim=1)
    return order[:, :count].sort(dim=1).values
