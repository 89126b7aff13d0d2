"""The most probable state that closes the budgets: Newton's method on a multiplier for each law.

The squares of all changes over their variances, each times the area of its cell, have the smallest
sum that the laws allow. Then every point moves by its variance times what the laws gain by it,
times the multipliers, as far as its bounds allow; the area of its cell cancels.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .._air import HEAT_CAPACITY, VAPORIZATION
from ._columns import Columns, Move, content
from ._levels import Layers

STEPS = 4  # of Newton's method between two looks at the state


@dataclass(frozen=True, eq=False)
class Surface:
    """Surface pressure and precipitation before the correction, with their variances, float64."""

    pressure: Tensor  # (batch, N)
    pressure_variance: Tensor  # (batch or 1, N or 1)
    rain: Tensor
    rain_variance: Tensor
    duration: float  # s, of the step


@dataclass(frozen=True, eq=False)
class Goal:
    """The totals that are asked for."""

    weights: Tensor  # (N,) shares of the sphere
    target: Tensor  # (batch, 3); that of water has the precipitation of the step in it
    active: Tensor  # (3,) 1 for laws that hold, 0 for others


@dataclass(frozen=True, eq=False)
class Point:
    """Where Newton's method stands."""

    multipliers: Tensor  # (batch, 3)
    slopes: Tensor  # (batch, 3, N), what columns gain by a rise of the surface pressure
    pressure: Tensor  # (batch, N)
    rain: Tensor

    @property
    def move(self) -> Move:
        vapour, heat = worth(self.multipliers)
        return Move(self.pressure, vapour[:, None, None], heat[:, None, None])


def worth(multipliers: Tensor) -> tuple[Tensor, Tensor]:
    """Of a kilogram of vapour, and of a kilogram of air that is one kelvin warmer: (batch,)."""
    dry, water, energy = multipliers.unbind(-1)
    return water - dry + VAPORIZATION * energy, HEAT_CAPACITY * energy


def newton(
    columns: Columns, layers: Layers, surface: Surface, goal: Goal, point: Point | None
) -> Point:
    """The point after some steps of Newton's method; the first starts from no correction."""
    held = columns.held
    multipliers = held.new_zeros(len(held), 3) if point is None else point.multipliers
    slopes = held[:, :, 1] if point is None else point.slopes
    for _ in range(STEPS):
        residual, matrix, slopes = _linearised(columns, layers, surface, goal, multipliers, slopes)
        multipliers = multipliers + _solved(matrix, residual)
    pressure, rain, _free, _wet = _bounded(layers, surface, multipliers, slopes)
    return Point(multipliers, slopes, pressure, rain)


def _bounded(
    layers: Layers, surface: Surface, multipliers: Tensor, slopes: Tensor
) -> tuple[Tensor, Tensor, Tensor | float, Tensor]:
    """Surface pressure and precipitation, and where they are free to move."""
    rise = (multipliers[:, None] @ slopes)[:, 0]
    pressure, free = torch.addcmul(surface.pressure, surface.pressure_variance, rise), 1.0
    if layers.low is not None and layers.high is not None:
        bounded = pressure.clamp(layers.low, layers.high)
        pressure, free = bounded, (bounded == pressure).to(pressure.dtype)
    by = surface.duration * multipliers[:, 1:2]
    rain = torch.addcmul(surface.rain, surface.rain_variance, by)
    return pressure, rain.clamp_min(0.0), free, rain >= 0


def _linearised(
    columns: Columns,
    layers: Layers,
    surface: Surface,
    goal: Goal,
    multipliers: Tensor,
    slopes: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """What is missing at these multipliers (batch, 3), how it falls with them, and slopes."""
    pressure, rain, free, wet = _bounded(layers, surface, multipliers, slopes)
    vapour, heat = worth(multipliers)
    by_vapour = _gained(columns.vapour_gain, pressure)  # (batch, 2, N)
    by_heat = _gained(columns.heat_gain, pressure)
    shares = multipliers.new_tensor([-1.0, 1.0, VAPORIZATION])  # of vapour in each law
    held = columns.held + (shares * vapour[:, None])[..., None, None] * by_vapour[:, None]
    energy = held[:, 2] + (HEAT_CAPACITY * heat)[:, None, None] * by_heat
    held = torch.cat([held[:, :2], energy[:, None]], 1)
    w, seconds = goal.weights, surface.duration
    found = content(held, pressure) @ w
    fallen = seconds * (rain @ w)
    fallen_gain = seconds**2 * ((surface.rain_variance * wet).expand_as(rain) @ w)
    slopes = held[:, :, 1]
    weighted = slopes * (surface.pressure_variance * free * w)[:, None]
    matrix = weighted @ slopes.mT
    matrix = matrix + _total(by_vapour, pressure, w)[:, None, None] * (shares[:, None] * shares)
    own = torch.stack([0 * fallen, fallen_gain, HEAT_CAPACITY**2 * _total(by_heat, pressure, w)], -1)
    matrix = matrix + torch.diag_embed(own)
    rows = torch.stack([0 * fallen, fallen, 0 * fallen], -1)
    residual = (goal.target - found - rows) * goal.active
    matrix = matrix * goal.active[:, None] * goal.active
    return residual, matrix, slopes


def _gained(powers: Tensor, pressure: Tensor) -> Tensor:
    """What a unit of the multiplier adds to a column, as powers of the pressure: (batch, 2, N)."""
    return torch.addcmul(powers[:, :2], powers[:, 1:], pressure[:, None])


def _total(gained: Tensor, pressure: Tensor, weights: Tensor) -> Tensor:
    return torch.addcmul(gained[:, 0], gained[:, 1], pressure) @ weights


def _solved(matrix: Tensor, residual: Tensor) -> Tensor:
    """matrix^-1 residual, (batch, 3), by the cross products of the columns of the scaled matrix.

    A law that nothing can move, or that is not asked for, has a multiplier of no effect.
    """
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    matrix = matrix + torch.diag_embed((diagonal == 0).to(matrix.dtype))
    scale = matrix.diagonal(dim1=-2, dim2=-1).rsqrt()
    a, b, c = (matrix * scale[:, None] * scale[:, :, None]).unbind(-2)
    crossed = torch.stack([b.cross(c, dim=-1), c.cross(a, dim=-1), a.cross(b, dim=-1)], -2)
    volume = (a * crossed[:, 0]).sum(-1, keepdim=True)
    return scale * (crossed @ (scale * residual)[..., None])[..., 0] / volume
