"""What trains networks that give whole fields on a grid: the FNO, and guests."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..conditioning.condition import condition
from ..conditioning.draws import FieldDraws
from ..conditioning.posterior import FieldPosterior
from ..data import Grids, Shuffled
from ..data._functions import uniform
from ..data._grids import spread_of
from ..fields.gaussian import Diagonal
from ..laws.sums import weighted_sum
from ..support.errors import InputError
from ._points import LOSSES
from ._recipes import Recipe, Score
from ._source import Source

TIMES = 12  # the seed of times, beside those of the other files
AT_ONCE = 20  # functions, where they are judged


class FieldTask:
    """Batches, loss and scores of a network from inputs and coordinates to mean and std.

    These are (members, n, fields, *grid); members are trained as if each were alone. A network
    without std is judged by its absolute error, the CRPS of a point.
    """

    def __init__(
        self,
        network: nn.Module,
        source: Source,
        recipe: Recipe,
        seed: int,
        share: slice,
        device: torch.device,
    ) -> None:
        self.network, self.recipe, self.seed, self.share = network, recipe, seed, share
        learned, held_out = source.require_grids()
        self.held_out = held_out.to(device)
        self.axes = [axis.to(device) for axis in learned.axes]
        self.weights = learned.weights.to(device)
        self.batches = source.stream or Shuffled(learned.to(device), recipe.batch, seed)
        spread = [spread_of(field) for field in learned.fields.unbind(1)]
        self.spread = torch.tensor(spread, dtype=torch.float32, device=device)
        sizes: dict[str, Any] = getattr(network, "sizes", {})
        self.heads = sizes.get("heads", 1)
        self.traced = recipe.through is None or learned.law is None  # laws may look at values
        self.part = _part(network, recipe, learned) if self.traced else None

    def loss(self, step: Tensor) -> Tensor:
        whole, axes, recipe = self.batches(step), self.axes, self.recipe
        batch = whole[self.share]
        if self.part is not None:
            axis, index = self.part[0], self._index(len(whole), step)[self.share]
            batch = _take(batch, axis, index)
            axes = [a[index] if i == axis else a for i, a in enumerate(axes)]
        name = recipe.through or recipe.loss or "crps"
        values = self._values(batch, axes, name, recipe.through is not None)
        if name == "crps":
            values = values / self.spread.reshape(-1, *[1] * len(axes))
        each = values.flatten(1).mean(1)  # (members x heads,)
        value = each.unflatten(0, (-1, self.heads)).mean(1).sum()
        if self.heads > 1 and recipe.apart:
            alike: Tensor = self.network.apart()  # type: ignore[operator]
            value = value + recipe.apart * (len(each) // self.heads) * alike
        return value.float()

    def _index(self, n: int, step: Tensor) -> Tensor:  # (n, times)
        """Which times each function is asked at."""
        assert self.part is not None
        axis, count = self.part
        size, device = len(self.axes[axis]), self.axes[axis].device
        order = uniform((TIMES, self.seed, step), (n, size), device).argsort(dim=1)
        return order[:, :count].sort(dim=1).values

    def _values(self, batch: Grids, axes: list[Tensor], name: Score, through: bool) -> Tensor:
        """The loss at every point, before Step 2 or after it, (members, n, fields, *grid)."""
        truth = batch.fields
        mean, std = self.network(batch.inputs.float(), [a.float() for a in axes])
        _check_shapes(mean, std, truth)
        if through:
            return self._after(mean, std, batch, name)
        truth = truth.float()
        return (mean - truth).abs() if std is None else LOSSES[name](truth, mean, std)

    def _after(self, mean: Tensor, std: Tensor, batch: Grids, name: Score) -> Tensor:
        """The loss at every point after Step 2; with inequalities that of draws."""
        field, truth = self._conditioned(mean, std, batch), batch.fields.double()
        if isinstance(field, FieldDraws):
            return field.crps(truth.reshape(field.shape[1:])).reshape(mean.shape)
        given, std = (t.reshape(mean.shape) for t in (field.mean, field.std))
        free = std > 0  # laws may fix points
        values = LOSSES[name](truth, given, torch.where(free, std, 1.0))
        return torch.where(free, values, (truth - given).abs() if name == "crps" else 0.0)

    def _conditioned(self, mean: Tensor, std: Tensor, batch: Grids) -> FieldPosterior | FieldDraws:
        field = Diagonal._unchecked(mean.double(), std.double() ** 2)
        if batch.law is not None:
            as_targets = (len(mean), *batch.targets.shape)
            field = field._map(lambda t: t.reshape(as_targets))
            draws = max(2, self.recipe.samples)
            return condition(field, *batch.laws, draws=draws)
        assert batch.totals is not None
        totals = batch.totals.double().reshape(batch.fields.shape[:-1])
        noise = torch.full_like(totals, self.recipe.noise)
        return condition(field, weighted_sum(self.weights, totals, noise=noise))

    @torch.no_grad()
    def scores(self) -> dict[str, float]:
        """On the held-out functions, the mean over members; the last is of what is trained."""
        network = self.network
        before = network.training
        network.eval()
        sums: dict[str, float] = {}
        try:
            for i in range(0, len(self.held_out), AT_ONCE):
                some = self.held_out[i : i + AT_ONCE]
                for key, name, after in self._judges():
                    value = float(self._values(some, self.axes, name, after).double().mean())
                    sums[key] = sums.get(key, 0.0) + value * len(some) / len(self.held_out)
        finally:
            network.train(before)
        return {key: -value if key.endswith("ll") else value for key, value in sums.items()}

    @torch.no_grad()
    def reading(self) -> float:
        """By the mean over members, on at most `AT_ONCE` of the held-out functions."""
        some = self.held_out[:AT_ONCE]
        axes = [a.float() for a in self.axes]
        own = some.inputs.float()
        errors = [
            (self.network(inputs, axes)[0].mean(0) - some.fields).square().mean()
            for inputs in (own, own.roll(len(own) // 2, 0))  # neighbours may be alike
        ]
        return float(1 - errors[0] / errors[1]) if len(some) > 1 else math.nan

    def _judges(self) -> list[tuple[str, Score, bool]]:
        names: list[Score] = ["crps", "ll"] if self.recipe.loss == "ll" else ["ll", "crps"]
        if not getattr(self.network, "sizes", {}).get("variance", True):
            names = ["crps"]
        judges = [(f"validation_{name}", name, False) for name in names]
        through = self.recipe.through
        return judges + ([(f"constrained_{through}", through, True)] if through else [])


def _check_shapes(mean: Tensor, std: Tensor | None, truth: Tensor) -> None:
    """A guest's mean without an axis would be compared with the truths of other functions."""
    if mean.shape[1:] != truth.shape or (std is not None and std.shape != mean.shape):
        found = [tuple(a.shape) for a in (mean, std) if a is not None]
        raise InputError(
            f"`model` must give mean and std of shape (members, *{tuple(truth.shape)}) each: "
            f"members, functions, fields and grid; got {found}."
        )


def _part(network: nn.Module, recipe: Recipe, grids: Grids) -> tuple[int, int] | None:
    """Which axis a step takes a part of, and how many of it; nothing for all of every axis."""
    every: list[int] = getattr(network, "pointwise", [])
    pointwise = [axis for axis in every if axis < len(grids.shape) - 1]  # totals are over the last
    if recipe.times is None or not pointwise or recipe.times >= grids.shape[pointwise[0]]:
        return None
    return pointwise[0], recipe.times


def _take(batch: Grids, axis: int, index: Tensor) -> Grids:
    """The functions at some points of an axis, other ones for each; its coordinates are left."""

    def some(values: Tensor) -> Tensor:
        place = values.ndim - len(batch.shape) + axis + (values is batch.totals)
        free = batch.law is not None and values is batch.totals
        if free or (values is batch.inputs and values.ndim == 2) or values.shape[place] == 1:
            return values
        shape = [len(values), *[1] * (values.ndim - 1)]
        shape[place] = -1
        return torch.take_along_dim(values, index.reshape(shape), place)

    return batch._changed(some, batch.coordinates)
