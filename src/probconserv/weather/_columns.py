"""Columns of air: what they are before and after a correction, and what they hold."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ._layers import Layers
from ._std import Error, part


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

    def held(self, layers: Layers, vapour: Tensor, temperature: Tensor) -> Tensor:
        """What columns of this humidity and temperature hold: see `Layers.held`."""
        return layers.held(vapour, (temperature, self.water, self.energy))


@dataclass(frozen=True, eq=False)
class Columns:
    """Columns at some point of the solve."""

    pressure: Tensor  # (batch, N)
    rain: Tensor
    vapour: Tensor  # (batch, K, N)
    temperature: Tensor
    held: Tensor  # (batch, 2, 3, N), constant and slope of what they hold

    def content(self, duration: float) -> Tensor:
        """What they hold of each law, (batch, 3, N), with the precipitation of the step."""
        found = content(self.held, self.pressure)
        found[:, 1].add_(self.rain, alpha=duration)
        return found


def content(held: Tensor, pressure: Tensor) -> Tensor:
    """What columns hold of each law at a surface pressure (batch, N): (batch, 3, N)."""
    return torch.addcmul(held[:, 0], held[:, 1], pressure.double()[:, None])


@dataclass(frozen=True, eq=False)
class Block:
    """A part of the columns of a state, without negative values, and its variances."""

    columns: slice | None  # None stands for all
    air: Air
    layers: Layers
    weights: Tensor  # (N,) shares of the sphere
    rain: Tensor  # (batch, N), in the dtype of the state
    start: Columns
    variance: Mapping[str, Tensor]

    @classmethod
    def of(
        cls,
        columns: slice | None,
        air: Air,
        layers: Layers,
        weights: Tensor,
        rain: Tensor,
        errors: Mapping[str, Error],
    ) -> "Block":
        start = {
            "surface_pressure": air.pressure.double(),
            "precipitation": rain.double().clamp_min(0.0),
            "specific_humidity": air.vapour.clamp_min(0.0),
            "temperature": air.temperature,
        }
        pressure, fallen, vapour, temperature = start.values()
        held = air.held(layers, vapour, temperature)
        variance = {name: errors[name].variance(x) for name, x in start.items()}
        at = Columns(pressure, fallen, vapour, temperature, held)
        return cls(columns, air, layers, weights, rain, at, variance)

    def moved(
        self,
        near: Tensor,
        multipliers: Tensor,
        duration: float,
        out: tuple[Tensor, Tensor] | None,
    ) -> Columns:
        """Every point moved by its variance times what the laws gain by it, within its bounds.

        `near` is about the surface pressure that results, (batch, N), for the masses.
        """
        start, variance, layers = self.start, self.variance, self.layers
        near = near.to(self.air.pressure.dtype)
        wetter, warmer = (multipliers @ layers.shares[:2].mT)[:, :, None, None].unbind(1)
        wet, warm = out or (None, None)
        wetted = layers.raised(start.vapour, variance["specific_humidity"], near, wetter, wet)
        vapour = torch.clamp_min(wetted, 0.0, out=wet)
        temperature = layers.raised(start.temperature, variance["temperature"], near, warmer, warm)
        held = self.air.held(layers, vapour, temperature)
        fall = duration * multipliers[:, 1:2]
        rain = torch.addcmul(start.rain, variance["precipitation"], fall).clamp_min(0.0)
        pressure = self.pressure(held, multipliers).to(self.air.pressure.dtype)
        return Columns(pressure, rain.to(self.rain.dtype), vapour, temperature, held)

    def furthest(self, at: Columns, multipliers: Tensor) -> Tensor:  # (batch,)
        """The square of the largest move of a point beside its variance, or a little more.

        On levels it is that of the widest point of each level, at the highest surface pressure.
        """
        pressure, (constant, slope) = at.pressure.detach().double(), self.layers.moving
        if slope.shape[-1] == 1:
            pressure = pressure.amax(-1, keepdim=True)
        mass = torch.addcmul(constant, slope, pressure[:, None]).amax(-1)  # (batch, K)
        by = multipliers.detach() @ self.layers.shares[:2].mT  # (batch, 2)
        found = []
        for i, name in enumerate(("specific_humidity", "temperature")):
            widest = self.variance[name].detach().amax(-1).double()
            found.append((widest * (mass * by[:, i : i + 1]).square()).amax(-1))
        pairs = {"surface_pressure": (at.pressure, self.start.pressure)}
        pairs["precipitation"] = at.rain, self.start.rain
        for name, (new, old) in pairs.items():
            square = (new.detach() - old.detach()).square() / self.variance[name].detach()
            found.append(square.nan_to_num(0.0, posinf=0.0).amax(-1).double())
        return torch.stack(found).amax(0)

    def pressure(self, held: Tensor, multipliers: Tensor) -> Tensor:
        """The surface pressure, (batch, N), by what its rise brings to columns that hold this."""
        rise = (multipliers[:, None] @ held[:, 1])[:, 0]
        found = torch.addcmul(self.start.pressure, self.variance["surface_pressure"], rise)
        if self.layers.low is not None and self.layers.high is not None:
            found = found.clamp(self.layers.low, self.layers.high)
        return found
