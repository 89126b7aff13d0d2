"""Sums over the levels of each column: all that the solve reads of a state.

The mass of a layer is constant + slope * surface pressure. So what a column holds, before and after
a correction, is a polynomial of the surface pressure and of the multipliers. Its coefficients are
sums over levels, which are taken once for each step.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .._air import HEAT_CAPACITY, VAPORIZATION
from ._levels import Layers
from ._std import Error, part, taken

LAWS = ("dry_air", "water", "energy")


@dataclass(frozen=True, eq=False)
class Air:
    """A state with the axes of its grid as one; other water and energy are counted, not moved."""

    pressure: Tensor  # (batch, N) Pa
    temperature: Tensor  # (batch, K, N) K
    vapour: Tensor  # (batch, K, N) kg/kg
    water: Tensor | None = None  # (batch, K, N) kg/kg
    energy: Tensor | None = None  # (batch or 1, K or 1, N) J/kg

    def of(self, members: slice, columns: slice = slice(None)) -> "Air":
        every = (self.pressure, self.temperature, self.vapour, self.water, self.energy)
        return Air(*(part(x, members, columns) for x in every))  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Move:
    """How far points move: by the multiplier times their variance times the mass of their layer."""

    pressure: Tensor  # (batch, N), after the correction
    vapour: Tensor  # (batch, 1, 1), multipliers
    heat: Tensor

    def at(self, columns: slice | None) -> "Move":
        return Move(taken(self.pressure, columns), self.vapour, self.heat)


@dataclass(frozen=True, eq=False)
class Columns:
    """What each column holds, as powers of its surface pressure."""

    held: Tensor  # (batch, 3 laws, 2 powers, N) kg m-2 and J m-2
    vapour_gain: Tensor  # (batch or 1, 3 powers, N or 1), the variance times the mass squared
    heat_gain: Tensor


@dataclass(frozen=True, eq=False)
class Prior:
    """What is moved on levels: humidity, which is not negative, and temperature; variances."""

    vapour: Tensor  # (batch, K, N)
    temperature: Tensor
    wetter: Tensor  # (batch or 1, K or 1, N or 1)
    warmer: Tensor


def prior(air: Air, errors: Mapping[str, Error]) -> Prior:
    q, t = air.vapour.clamp_min(0.0), air.temperature
    return Prior(q, t, errors["specific_humidity"].variance(q), errors["temperature"].variance(t))


def sums(air: Air, layers: Layers, known: Prior, move: Move | None) -> Columns:
    """The sums of a state; points that would become negative by `move` are held at 0."""
    q, variance = known.vapour, known.wetter
    if move is not None:
        free = _raised(q, variance, layers, move.pressure, move.vapour) >= 0
        q, variance = q * free, variance * free
    found = held(air, layers, q, known.temperature)
    return Columns(found, _second(layers, variance), _second(layers, known.warmer))


def held(air: Air, layers: Layers, vapour: Tensor, temperature: Tensor) -> Tensor:
    """What columns of this humidity and temperature hold of each law, as powers of the pressure."""
    mass = _first(layers, torch.ones_like(layers.constant))
    moist = _first(layers, vapour)
    energy = HEAT_CAPACITY * _first(layers, temperature) + VAPORIZATION * moist
    water = moist if air.water is None else moist + _first(layers, air.water)
    if air.energy is not None:
        energy = energy + _first(layers, air.energy)
    return torch.stack([mass - water, water, energy], 1)


def content(held: Tensor, pressure: Tensor) -> Tensor:
    """What columns hold of each law at a surface pressure (batch, N): (batch, 3, N)."""
    return torch.addcmul(held[:, :, 0], held[:, :, 1], pressure[:, None])


def moved(
    known: Prior, layers: Layers, move: Move, out: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Humidity and temperature after the correction, in `out` if that is given."""
    wet, warm = out or (None, None)
    raised = _raised(known.vapour, known.wetter, layers, move.pressure, move.vapour)
    warmed = _raised(known.temperature, known.warmer, layers, move.pressure, move.heat, warm)
    return torch.clamp_min(raised, 0.0, out=wet), warmed


def _raised(
    values: Tensor,
    variance: Tensor,
    layers: Layers,
    p: Tensor,
    by: Tensor,
    out: Tensor | None = None,
) -> Tensor:
    """values + variance * mass * by; in the dtype of the values."""
    dtype = values.dtype
    if variance.shape[-1] == 1:  # the same in all columns: the product is as small
        variance, by = (variance.double() * by).to(dtype), by.new_ones(())
    mass = torch.addcmul(
        (layers.constant * by).to(dtype), (layers.slope * by).to(dtype), p.to(dtype).unsqueeze(-2)
    )
    return torch.addcmul(values, variance.to(dtype), mass, out=out)


def _first(layers: Layers, field: Tensor) -> Tensor:
    """Sums of the field times the mass of layers, (batch, 2, N): constant and slope."""
    if field.shape[-2] != layers.constant.shape[-2]:  # the same at all levels
        return field * _first(layers, torch.ones_like(layers.constant))
    return _weighted((layers.constant, layers.slope), field.double())


def _second(layers: Layers, field: Tensor) -> Tensor:
    """Sums of the field times the mass squared, (batch, 3, N): its coefficients but for the 2."""
    a, b = layers.constant, layers.slope
    field = field.expand(*field.shape[:-2], a.shape[-2], -1)
    return _weighted((a.square(), a * b, b.square()), field)


def _weighted(weights: tuple[Tensor, ...], field: Tensor) -> Tensor:
    if weights[0].ndim == 2:  # the same in all columns: (K, 1)
        return (torch.cat(weights, -1).mT.to(field.dtype) @ field).double()
    return torch.stack([(w * field).sum(-2) for w in weights], -2)
