"""How wrong a step may be: standard deviations given, of members, or by what the step changes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError
from ._grid import USUAL, Levels
from ._split import WHOLE, Split

MOVED = ("surface_pressure", "temperature", "specific_humidity", "precipitation")
ON_LEVELS = ("temperature", "specific_humidity")
CHANGED = ("surface_pressure", *ON_LEVELS)  # what a step changes; precipitation is new in each

# Usual errors of weather models: what counts as little beside them.
PRESSURE = 100.0  # Pa
TEMPERATURE, ALOFT = (1.0, 2e4), (0.25, 1e3)  # K, and the Pa below and above which it holds
HUMIDITY_SHARE, HUMIDITY_FLOOR = 0.1, 1e-5  # of itself; kg/kg at the surface, falling as pressure^3
LEAST_SHARE = 1e-4  # of humidity itself: no change of a step counts as less
TINY = 1e-30  # (kg/kg)^2: a level without vapour
RAIN = 2.5e-5  # kg m-2 s-1 of which, times the precipitation, the root is its error
LEAST = 0.01  # of the usual error: no spread of members and no change of a step counts as less


@dataclass(frozen=True, eq=False)
class Error:
    """A variance that is known, or scale * value, or (floor + share * value)^2.

    Tensors are (batch or 1, N or 1), on levels (batch or 1, K or 1, N or 1), in float64.
    """

    known: Tensor | None = None
    scale: Tensor | None = None
    floor: Tensor | None = None
    share: Tensor | None = None

    def variance(self, value: Tensor) -> Tensor:
        """In the dtype of the value, which is not negative, where it differs between columns."""
        dtype = value.dtype
        if self.known is not None:
            return self.known if self.known.shape[-1] == 1 else self.known.to(dtype)
        if self.scale is not None:
            return self.scale.to(dtype) * value
        assert self.floor is not None
        assert self.share is not None
        return torch.addcmul(self.floor.to(dtype), self.share.to(dtype), value).square()

    def of(self, members: slice, columns: slice = slice(None)) -> "Error":
        return Error(*(part(x, members, columns) for x in self.tensors))

    def here(self, split: Split) -> "Error":
        return Error(*(x if x is None else split.cut(x) for x in self.tensors))

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        return self.known, self.scale, self.floor, self.share


Errors: TypeAlias = Mapping[str, Error]


def part(x: Tensor | None, members: slice, columns: slice) -> Tensor | None:
    """Of a tensor (batch or 1, ..., N or 1)."""
    if x is None:
        return None
    x = x if len(x) == 1 else x[members]
    return x if x.shape[-1] == 1 else x[..., columns]


def usual(levels: Levels) -> dict[str, Error]:
    """Errors of weather models, by their order of magnitude."""
    p = levels.nominal
    (low, below), (high, above) = TEMPERATURE, ALOFT
    height = ((below / p).log() / math.log(below / above)).clamp(0.0, 1.0)
    one = p.new_ones(1, 1)
    moist = HUMIDITY_FLOOR * (p / USUAL) ** 3
    return {
        "surface_pressure": Error(PRESSURE**2 * one),
        "temperature": Error((low + (high - low) * height).square()[None, :, None]),
        "specific_humidity": Error(floor=moist[None, :, None], share=HUMIDITY_SHARE * one[None]),
        "precipitation": Error(scale=RAIN * one),
    }


def smallest(errors: Errors) -> dict[str, Error]:
    """The least that counts as an error of a change, beside usual ones."""
    known = {name: e.known for name, e in errors.items() if e.known is not None}
    return {**errors, **{name: Error(LEAST**2 * x) for name, x in known.items()}}


def of_change(
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    weights: Tensor,
    least: Errors,
    split: Split = WHOLE,
) -> dict[str, Error]:
    """In proportion to what a step changes: where nothing moves, a model errs little.

    Temperature has the root mean square of the change of its level, humidity that as a share of
    itself. Surface pressure has half of its variance from the change of the cell itself.
    """
    found = {}
    for name, old in before.items():
        new = after[name]
        change = (new - old).square()
        weights = weights.to(change.dtype)
        level = split.total(change @ weights)[..., None]  # (batch, [K,] 1)
        if name == "specific_humidity":
            size = split.total(new.square() @ weights.to(new.dtype))[..., None].clamp_min(TINY)
            share = (level / size).clamp(LEAST_SHARE**2, 1.0).sqrt()
            found[name] = Error(floor=least[name].floor, share=share)
            continue
        if name == "surface_pressure":
            level = torch.lerp(level, change, 0.5)
        smallest_known = least[name].known
        assert smallest_known is not None
        found[name] = Error(torch.maximum(level, smallest_known))
    return found


def by_variable(what: str, given: Any) -> dict[str, Any]:
    """A dictionary of its own; empty where nothing is given."""
    if given is not None and not isinstance(given, Mapping):
        raise InputError(f"`{what}` must be a dictionary by variable; got {type(given).__name__}.")
    return dict(given or {})


def given(
    std: Mapping[str, ArrayLike] | None, count: int, grid: tuple[int, ...], device: torch.device
) -> dict[str, Error]:
    """Errors by the name of their variable, from numbers and arrays."""
    found = {}
    for name, value in by_variable("std", std).items():
        check.choice("std", name, MOVED)
        t = check.wide(f"std[{name!r}]", value, 0.0, "A standard deviation is not negative.")
        found[name] = Error(_laid(name, t.to(device), count, grid).square())
    return found


def _laid(name: str, t: Tensor, count: int, grid: tuple[int, ...]) -> Tensor:
    """A standard deviation with the axes (batch, [K,] N), each of which may be 1."""
    own = (count, *grid) if name in ON_LEVELS else grid
    if t.ndim == 0:
        return t.reshape((1,) * (3 if name in ON_LEVELS else 2))
    shape = tuple(t.shape)
    if name in ON_LEVELS and shape == (count,):
        return t[None, :, None]
    if name in ON_LEVELS and shape == grid:
        return t.reshape(1, 1, -1)
    if shape == own or shape[1:] == own:
        return t.reshape(-1, *own[: len(own) - len(grid)], grid_size(grid))
    raise InputError(
        f"`std[{name!r}]` has the shape {shape}; it must be a number, or have the axes "
        + (f"({count},), {grid}, " if name in ON_LEVELS else "")
        + f"{own} or (batch, *{own})."
    )


def grid_size(grid: tuple[int, ...]) -> int:
    return int(torch.Size(grid).numel())


def of_members(
    state: Mapping[str, Tensor],
    members: int,
    weights: Tensor,
    least: Mapping[str, Error],
    split: Split = WHOLE,
) -> dict[str, Error]:
    """The spread of members, which are consecutive entries of the batch.

    Few members estimate a variance badly. So variances are drawn to their mean over the level, by
    the share of their differences that is chance: 2 s^4 / (n + 1) at each point.
    """
    found = {}
    for name, value in state.items():
        groups = value.unflatten(0, (-1, members)).double()
        points = groups.var(1)  # (groups, [K,] N)
        mean = split.total(points @ weights)
        if name == "precipitation":  # a factor: dry places stay dry
            amount = split.total(groups.mean(1).clamp_min(0.0) @ weights)
            scale = torch.where(amount > 0, mean / amount, RAIN)[:, None]
            scale = scale.clamp_min(LEAST**2 * RAIN).repeat_interleave(members, 0)
            found[name] = Error(scale=scale)
            continue
        centred = points - mean[..., None]
        differ = split.total(centred.square() @ weights)
        chance = split.total(points.square() @ weights) * (2 / (members + 1))
        kept = ((differ - chance) / differ.clamp_min(1e-300)).clamp(0.0, 1.0)
        drawn = torch.addcmul(mean[..., None], kept[..., None], centred)
        least_of = LEAST**2 * least[name].variance(groups.mean(1).clamp_min(0.0))
        found[name] = Error(torch.maximum(drawn, least_of).repeat_interleave(members, 0))
    return found
