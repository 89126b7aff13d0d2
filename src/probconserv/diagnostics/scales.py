"""Standard deviations times a number: what held-out functions say of each of several."""

import math
from typing import Any

import torch
from torch import Tensor

from ..conditioning.draws import FieldDraws
from ..fields.dense import Dense
from ..fields.gaussian import Diagonal, Field
from ..fields.low_rank import LowRank
from ..fields.state import State, rebuilt
from ..support.errors import InputError
from .held_out import HeldOut, Part
from .inflate import scaled
from .metrics import crps

SCALES = tuple(2.0 ** (k / 4) for k in range(-12, 17))  # of standard deviations


def calibrated(given: Field | State, data: HeldOut) -> Field | State:
    """The standard deviations of each function times what the CRPS of the others asks for."""
    parts = []
    for field, part in data.beside(given):
        if not isinstance(field, Diagonal | LowRank | Dense):
            raise InputError(
                "`calibrated` takes Diagonal, LowRank, Ensemble and Dense fields; got "
                f"{field.noun}."
            )
        found: Any = scored_with(field, part, "CRPS", SCALES)
        others = found.sum(1, keepdim=True) - found
        factor = found.new_tensor(SCALES)[others.argmin(0)]
        parts.append(scaled(field, factor.square()))
    return rebuilt(given, tuple(parts))


def scored_with(field: Field, part: Part, goal: str, scales: tuple[float, ...]) -> Tensor:
    """Of each function with each scale, (scales, n); lower is better."""
    counts = part.counts.flatten(1)

    def average(x: Tensor) -> Tensor:
        return torch.where(counts, x.double().flatten(1), 0.0).sum(1) / counts.sum(1)

    u = part.truth.double()
    away = u - field.mean.double()
    if goal == "RMSE":
        return average(away.square()).sqrt().expand(len(scales), -1)
    if isinstance(field, FieldDraws):  # another scale would be another solve
        if goal == "LL":
            raise InputError("`score`: draws within inequalities have no density; use CRPS.")
        return average(field.crps(u)).expand(len(scales), -1)
    std = field.std.double()
    moves, each = std > 0, []
    held = ~moves & counts.view_as(moves)  # at a value: no density is finite there
    without = torch.where(held.flatten(1).any(1), math.inf, 0.0)
    for scale in scales:
        wide = scale * std
        z = away / torch.where(moves, wide, 1.0)
        if goal == "CRPS":
            each.append(average(torch.where(moves, wide * crps(z), away.abs())))
        else:
            density = z.square() / 2 + torch.where(moves, wide, 1.0).log()
            each.append(average(density) + math.log(2 * math.pi) / 2 + without)
    return torch.stack(each)
