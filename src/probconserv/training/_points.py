"""What trains networks that read points: the ANP, SoftC-ANP and the emulator."""

from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

import torch
from torch import Tensor

from ..data import Functions, Grids, Layout, Points, Shuffled, Stream, draw
from ..data._functions import normal, uniform
from ..models._predictor import Predictor
from ..models.anp import AttentiveNeuralProcess
from ..models.emulator import Emulator
from ._losses import (
    constrained_score,
    emulator_loss,
    loss,
    random_rows,
    share_from_context,
    through_loss,
    validation_ll,
)
from ._machine import mean_of_team
from ._recipes import Recipe
from ._source import Source

Batches: TypeAlias = Callable[[Tensor], Functions]
AnyPredictor = TypeVar("AnyPredictor", bound=Predictor)
NOISE, PLACES = 6, 11  # seeds of z and of points on a grid, beside those of `data`


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
