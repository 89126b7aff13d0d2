"""The most probable state that closes the budgets: Newton's method on a multiplier for each law.

The squares of all changes over their variances, each times the area of its cell, have the smallest
sum that the laws allow. Then every point moves by its variance times what the laws gain by it,
times the multipliers, as far as its bounds allow; the area of its cell cancels.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ._columns import Columns, Move, content
from ._levels import Layers


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
    shares: Tensor  # (2, 3), of a kilogram of vapour and of a kelvin in each law
    rain: Tensor  # (3,) 1 for the law of water
    least: Tensor  # (3,) totals below these are not told from rounding


@dataclass(frozen=True, eq=False)
class Point:
    """Where Newton's method stands."""

    multipliers: Tensor  # (batch, 3)
    slopes: Tensor  # (batch, 3, N), what columns gain by a rise of the surface pressure
    pressure: Tensor  # (batch, N)
    rain: Tensor
    worths: Tensor  # (batch, 2), of a kilogram of vapour and of a kelvin, by the multipliers

    @property
    def move(self) -> Move:
        vapour, heat = self.worths[:, :, None, None].unbind(1)
        return Move(self.pressure, vapour, heat)


@dataclass(frozen=True, eq=False)
class Sums:
    """What totals are made of, around the surface pressure that was: see `prepared`."""

    asked: Tensor  # (batch, 3), of the corrections: what the laws ask for less what is there
    slopes: Tensor  # (batch, 3, N), what laws gain by a rise of the pressure
    gains: Tensor  # (batch, 2), what they gain by the multipliers of vapour and heat
    rows: Tensor  # (batch, 5, N), slopes and how those gains rise
    bends: Tensor  # (batch, 2, N), their second derivatives, halved


def prepared(columns: Columns, pressure: Tensor, goal: Goal) -> Sums:
    """Powers of the surface pressure as powers of its change."""
    p = pressure[:, None]
    powers = torch.stack(
        [x.expand(len(p), 3, p.shape[-1]) for x in (columns.vapour_gain, columns.heat_gain)], 1
    )
    half = torch.addcmul(powers[:, :, 1], powers[:, :, 2], p)  # (batch, 2, N)
    gain = powers[:, :, 0] + p * (powers[:, :, 1] + half)
    slopes = columns.held[:, :, 1]
    asked = goal.target - content(columns.held, pressure) @ goal.weights
    rows = torch.cat([slopes, 2 * half], 1)
    return Sums(asked, slopes, gain @ goal.weights, rows, powers[:, :, 2])


def newton(
    columns: Columns,
    layers: Layers,
    surface: Surface,
    goal: Goal,
    point: Point | None,
    steps: int,
) -> Point:
    """The point after so many steps of Newton's method; the first starts from no correction.

    The last one takes the matrix of the one before, which hardly differs.
    """
    sums = prepared(columns, surface.pressure, goal)
    multipliers = torch.zeros_like(goal.target) if point is None else point.multipliers
    slopes = sums.slopes if point is None else point.slopes
    for number in range(steps):
        at = _bounded(layers, surface, multipliers, slopes)
        residual, gains = _missing(sums, surface, goal, multipliers, at)
        if number < steps - 1:
            matrix, slopes = _matrix(sums, surface, goal, multipliers, at, gains)
            inverse = _inverse(matrix)
        multipliers = multipliers + (inverse @ residual[..., None])[..., 0]
    at = _bounded(layers, surface, multipliers, slopes)
    pressure = surface.pressure + at.change
    return Point(multipliers, slopes, pressure, at.rain, multipliers @ goal.shares.mT)


@dataclass(frozen=True, eq=False)
class Bounded:
    """The change of surface pressure and the precipitation within their bounds, (batch, N)."""

    change: Tensor
    rain: Tensor
    free: Tensor | None  # where these are free to move
    wet: Tensor


def _bounded(layers: Layers, surface: Surface, multipliers: Tensor, slopes: Tensor) -> Bounded:
    change, free = surface.pressure_variance * (multipliers[:, None] @ slopes)[:, 0], None
    if layers.low is not None and layers.high is not None:
        wanted = change
        change = change.clamp(layers.low - surface.pressure, layers.high - surface.pressure)
        free = change == wanted
    by = surface.duration * multipliers[:, 1:2]
    rain = torch.addcmul(surface.rain, surface.rain_variance, by)
    return Bounded(change, rain.clamp_min(0.0), free, rain >= 0)


def _missing(
    sums: Sums, surface: Surface, goal: Goal, multipliers: Tensor, at: Bounded
) -> tuple[Tensor, Tensor]:
    """What is missing at these multipliers, (batch, 3), and what vapour and heat gain."""
    worths = multipliers @ goal.shares.mT  # (batch, 2)
    weighted = at.change * goal.weights
    linear = (sums.rows @ weighted[..., None])[..., 0]  # (batch, 5)
    bent = (sums.bends @ (at.change * weighted)[..., None])[..., 0]
    gains = sums.gains + linear[:, 3:] + bent
    fallen = (surface.duration * (at.rain @ goal.weights))[:, None]
    found = torch.addmm(linear[:, :3], worths * gains, goal.shares)
    missing = torch.addcmul(sums.asked - found, fallen, goal.rain, value=-1)
    return missing * goal.active, gains


def _matrix(
    sums: Sums, surface: Surface, goal: Goal, multipliers: Tensor, at: Bounded, gains: Tensor
) -> tuple[Tensor, Tensor]:
    """How the laws rise with the multipliers, (batch, 3, 3), and with pressure, (batch, 3, N)."""
    worths = multipliers @ goal.shares.mT
    rise = torch.addcmul(sums.rows[:, 3:], sums.bends, at.change[:, None], value=2.0)
    slopes = torch.baddbmm(sums.slopes, goal.shares.mT * worths[:, None] / 2, rise)
    variance = surface.pressure_variance * goal.weights
    variance = variance if at.free is None else variance * at.free
    matrix = (slopes * variance[:, None]) @ slopes.mT
    matrix = matrix + goal.shares.mT @ (gains[..., None] * goal.shares)
    wet = surface.duration**2 * ((surface.rain_variance * at.wet) @ goal.weights)
    matrix = matrix + wet[:, None, None] * torch.diag(goal.rain)
    return matrix * goal.active[:, None] * goal.active, slopes


def _inverse(matrix: Tensor) -> Tensor:  # (batch, 3, 3)
    """By the cross products of the columns of the scaled matrix.

    A law that nothing can move, or that is not asked for, has a multiplier of no effect.
    """
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    matrix = matrix + torch.diag_embed((diagonal == 0).to(matrix.dtype))
    scale = matrix.diagonal(dim1=-2, dim2=-1).rsqrt()
    scales = scale[:, None] * scale[:, :, None]
    scaled = matrix * scales
    crossed = scaled.roll(-1, -2).cross(scaled.roll(-2, -2), dim=-1)
    volume = (scaled[:, :1] * crossed[:, :1]).sum(-1, keepdim=True)
    return crossed * (scales / volume)
