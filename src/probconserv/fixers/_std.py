"""How wrong a step may be: the standard deviation of each variable, given, of members, or usual."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import _checks as check
from .._checks import ArrayLike
from .._errors import InputError
from ._levels import USUAL, Levels

MOVED = ("surface_pressure", "temperature", "specific_humidity", "precipitation")
ON_LEVELS = ("temperature", "specific_humidity")

# The usual errors. Corrections depend on their ratios alone.
PRESSURE = 100.0  # Pa
TEMPERATURE = 1.0  # K up to STRATOSPHERE, 1 more for each tenth of that pressure, 2 at most
STRATOSPHERE = 1e4  # Pa
HUMIDITY_SHARE, HUMIDITY_FLOOR = 0.1, 1e-5  # of itself; kg/kg at the surface, falling as pressure^3
RAIN_SHARE, RAIN_FLOOR = 0.5, 1e-7  # of itself; kg m-2 s-1, 0.01 mm a day
LEAST_SPREAD = 0.01  # of the usual error: no spread of members counts as less


@dataclass(frozen=True, eq=False)
class Error:
    """A standard deviation: share of the value, + floor."""

    share: float
    floor: Tensor  # (batch or 1, N or 1), on levels (batch or 1, K or 1, N or 1), float64

    def variance(self, value: Tensor) -> Tensor:
        """For values that are not negative where there is a share; in the dtype of the value."""
        if not self.share:
            return self.floor.square()
        return torch.add(self.floor.to(value.dtype), value, alpha=self.share).square()

    def of(self, members: slice, columns: slice = slice(None)) -> "Error":
        floor = self.floor if len(self.floor) == 1 else self.floor[members]
        return Error(self.share, floor if floor.shape[-1] == 1 else floor[..., columns])


def usual(levels: Levels, device: torch.device) -> dict[str, Error]:
    """The errors of variables of which nothing is said."""
    p = levels.nominal.to(device)
    rise = (STRATOSPHERE / p).log10().clamp(0.0, 1.0)
    at_levels = {
        "temperature": TEMPERATURE + rise,
        "specific_humidity": HUMIDITY_FLOOR * (p / USUAL) ** 3,
    }
    shares = {"specific_humidity": HUMIDITY_SHARE, "precipitation": RAIN_SHARE}
    floors = {"surface_pressure": p.new_full((1, 1), PRESSURE)}
    floors |= {name: floor[None, :, None] for name, floor in at_levels.items()}
    floors["precipitation"] = p.new_full((1, 1), RAIN_FLOOR)
    return {name: Error(shares.get(name, 0.0), floors[name]) for name in MOVED}


def given(
    std: Mapping[str, ArrayLike] | None, count: int, grid: tuple[int, ...], device: torch.device
) -> dict[str, Error]:
    """Errors by the name of their variable, from numbers and arrays."""
    found = {}
    if not isinstance(std or {}, Mapping):
        raise InputError(f"`std` must be a dictionary by variable; got {type(std).__name__}.")
    for name, value in (std or {}).items():
        check.choice("std", name, MOVED)
        t = check.wide(f"std[{name!r}]", value, 0.0, "A standard deviation is not negative.")
        found[name] = Error(0.0, _laid(name, t.to(device), count, grid))
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
    state: Mapping[str, Tensor], members: int, weights: Tensor, least: Mapping[str, Error]
) -> dict[str, Error]:
    """The spread of members, which are consecutive entries of the batch.

    Few members estimate a variance badly. So variances are drawn to their mean over the level, by
    the share of their differences that is chance: 2 s^4 / (n + 1) at each point.
    """
    found = {}
    for name, value in state.items():
        groups = value.unflatten(0, (-1, members))
        points = groups.double().var(1)  # (groups, [K,] N)
        mean = points @ weights
        centred = points - mean[..., None]
        differ = centred.square() @ weights
        chance = points.square() @ weights * (2 / (members + 1))
        kept = ((differ - chance) / differ.clamp_min(1e-300)).clamp(0.0, 1.0)
        std = torch.addcmul(mean[..., None], kept[..., None], centred).sqrt()
        usual_std = least[name].variance(groups.double().mean(1).clamp_min(0.0)).sqrt()
        std = torch.maximum(std, LEAST_SPREAD * usual_std)
        found[name] = Error(0.0, std.repeat_interleave(members, 0))
    return found
