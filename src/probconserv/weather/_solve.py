"""The most probable state that closes the budgets: a multiplier for each law, by Newton's method.

The squares of all changes over their variances, each times the area of its cell, have the smallest
sum that the laws allow. Then every point moves by its variance times what the laws gain by it,
times the multipliers, as far as its bounds allow; the area of its cell cancels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from ._grid import SHARES, Layers, Line
from ._split import Split
from ._std import Error, part

LEAST = (1.0, 1e-3, 1.0)  # kg m-2 and J m-2
RAIN = (0.0, 1.0, 0.0)  # of precipitation in each law


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

    def counted(self, layers: Layers) -> dict[int, Line]:
        """What columns hold of air, other water and other energy, by the row of their shares."""
        constant, slope = layers.air
        found = {0: (constant.expand(1, 1), slope.expand(1, 1))}
        for row, field in ((3, self.water), (4, self.energy)):
            if field is not None:
                found[row] = layers.held(field.expand(self.vapour.shape))
        return found


@dataclass(frozen=True, eq=False)
class Columns:
    """Columns at some point of the solve."""

    pressure: Tensor  # (batch, N)
    rain: Tensor
    vapour: Tensor  # (batch, K, N)
    temperature: Tensor
    held: Mapping[int, Line]  # of air, vapour, heat, other water and energy: rows of the shares

    def slopes(self, shares: Tensor) -> Tensor:
        """What a rise of the surface pressure brings to each law, (batch, 3, N)."""
        found = self.held[0][1][..., None] * shares[0][:, None]
        for row in [row for row in self.held if row > 0]:
            found = torch.addcmul(found, self.held[row][1][:, None], shares[row][:, None])
        return found


def totals(held: Mapping[int, Line], pressure: Tensor, weights: Tensor, shares: Tensor) -> Tensor:
    """What all columns hold of each law at a surface pressure (batch, N): (batch, 3)."""
    p = pressure.double()
    amounts = torch.stack(
        [torch.addcmul(line[0], line[1], p) @ weights for line in held.values()], -1
    )
    rows = shares[:3] if len(held) == 3 else torch.stack([shares[row] for row in held])
    return of_rows(amounts, rows.mT)


def of_rows(x: Tensor, rows: Tensor) -> Tensor:
    """x @ rows.mT, (batch, rows) of few numbers, so that a compiler makes no call of it."""
    return (x[:, None] * rows).sum(-1) if torch.compiler.is_compiling() else x @ rows.mT


@dataclass(frozen=True, eq=False)
class Block:
    """A part of the columns of a state, without negative values, and its variances."""

    columns: slice | None  # None stands for all
    air: Air
    layers: Layers
    weights: Tensor  # (N,) shares of the sphere
    rain: Tensor  # (batch, N), in the dtype of the state
    counted: Mapping[int, Line]
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
        counted = air.counted(layers)
        held = {**counted, 1: layers.held(vapour), 2: layers.held(temperature)}
        variance = {name: errors[name].variance(x) for name, x in start.items()}
        at = Columns(pressure, fallen, vapour, temperature, held)
        return cls(columns, air, layers, weights, rain, counted, at, variance)

    def totals(self, at: Columns, duration: float) -> Tensor:
        """Of each law, (batch, 3), with the precipitation of the step."""
        found = totals(at.held, at.pressure, self.weights, self.layers.shares)
        found[:, 1].add_(at.rain.double() @ self.weights, alpha=duration)
        return found

    def moved(
        self, near: Tensor, multipliers: Tensor, duration: float, out: tuple[Tensor, Tensor] | None
    ) -> Columns:
        """Every point moved by its variance times what the laws gain by it, within its bounds.

        `near` is about the surface pressure that results, (batch, N), for the masses.
        """
        start, variance, layers = self.start, self.variance, self.layers
        near = near.to(self.air.pressure.dtype)
        wetter, warmer = of_rows(multipliers, layers.shares[1:3])[:, :, None, None].unbind(1)
        wet, warm = out or (None, None)
        wetted = layers.raised(start.vapour, variance["specific_humidity"], near, wetter, wet)
        vapour = torch.clamp_min(wetted, 0.0, out=wet)
        temperature = layers.raised(start.temperature, variance["temperature"], near, warmer, warm)
        held = {**self.counted, 1: layers.held(vapour), 2: layers.held(temperature)}
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
        by = of_rows(multipliers.detach(), self.layers.shares[1:3])  # (batch, 2)
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

    def pressure(self, held: Mapping[int, Line], multipliers: Tensor) -> Tensor:
        """The surface pressure, (batch, N), by what its rise brings to columns that hold this."""
        by = of_rows(multipliers, self.layers.shares)  # (batch, 5)
        rise = held[0][1] * by[:, :1]
        for row in [row for row in held if row > 0]:
            rise = torch.addcmul(rise, held[row][1], by[:, row : row + 1])
        found = torch.addcmul(self.start.pressure, self.variance["surface_pressure"], rise)
        if self.layers.low is not None and self.layers.high is not None:
            found = found.clamp(self.layers.low, self.layers.high)
        return found


@dataclass(frozen=True, eq=False)
class Laws:
    """Which laws hold, and constants of all three."""

    active: Tensor  # (3,), 1 for a law that holds, else 0
    pairs: Tensor  # (3, 3), 1 for two laws that hold, else 0
    shares: Tensor  # (2, 3), of vapour and heat in each law
    products: Tensor  # (2, 9), of these in pairs of laws
    rain: Tensor  # (3,) 1 for the law of water
    least: Tensor  # (3,), totals below these are not told from rounding
    identity: Tensor  # (3, 3)

    @classmethod
    def of(cls, active: Tensor) -> "Laws":
        """By 1 for each law that holds, and 0; what others miss does not count."""
        new = active.new_tensor
        rain = new(RAIN)
        shares = new(SHARES[:2])
        products = (shares[:, None] * shares[..., None]).flatten(1)
        identity = torch.eye(3, dtype=active.dtype, device=active.device)
        pairs, least = active * active[:, None], new(LEAST) / active
        return cls(active, pairs, shares, products, rain, least, identity)


@dataclass(frozen=True, eq=False)
class Response:
    """How the laws rise with the multipliers, in a block of columns."""

    weights: Tensor
    fixed: Tensor  # (batch, 3, 3), by surface pressure and precipitation
    powers: Sequence[tuple[Tensor, ...]]  # by vapour and heat, as powers of the surface pressure

    @classmethod
    def of(cls, block: Block, at: Columns, duration: float) -> "Response":
        """What is at its bound does not move."""
        layers, w, variance = block.layers, block.weights, dict(block.variance)
        if at is not block.start:
            if layers.low is not None and layers.high is not None:
                free = (layers.low < at.pressure) & (at.pressure < layers.high)
                variance["surface_pressure"] = variance["surface_pressure"] * free
            for name, x in (("specific_humidity", at.vapour), ("precipitation", at.rain)):
                variance[name] = variance[name] * (x > 0)
        slopes = at.slopes(layers.shares)
        weighted = slopes * (variance["surface_pressure"] * w)[:, None]
        fixed = (slopes[:, None] * weighted[:, :, None]).sum(-1)  # a GPU is slow at the product
        rain = variance["precipitation"].expand_as(at.rain) @ w
        fixed[:, 1, 1].add_(rain, alpha=duration**2)
        powers = [layers.powers(variance[n]) for n in ("specific_humidity", "temperature")]
        return cls(w, fixed, powers)

    def gains(self, pressure: Tensor) -> Tensor:
        """By vapour and heat, (batch, 2), at a surface pressure."""
        p, found = pressure.double(), []
        for constant, linear, square in self.powers:
            gain = torch.addcmul(constant, torch.addcmul(linear, square, p), p)
            found.append(gain @ self.weights)
        return torch.stack(found, -1)


@dataclass(frozen=True, eq=False)
class Solver:
    """A step of Newton's method, from what is missing to the multipliers."""

    responses: Sequence[Response]
    laws: Laws
    split: Split
    gains: Tensor  # (batch, 2), of all blocks
    inverse: Tensor  # (batch, 3, 3)

    @classmethod
    def of(
        cls,
        blocks: Sequence[Block],
        columns: Sequence[Columns],
        laws: Laws,
        duration: float,
        split: Split,
    ) -> "Solver":
        pairs = zip(blocks, columns, strict=True)
        found = [Response.of(each, at, duration) for each, at in pairs]
        fixed = split.total(reduce(torch.add, [each.fixed for each in found]))
        gains = split.total(_gains(found, [at.pressure for at in columns]))
        matrix = fixed + of_rows(gains, laws.products.mT).unflatten(1, (3, 3))
        return cls(found, laws, split, gains, _inverse(matrix, laws))

    def step(self, missing: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return (self.inverse * missing[:, None]).sum(-1)
        return self.inverse.bmm(missing[..., None])[..., 0]

    def bent(self, step: Tensor, pressures: Sequence[Tensor]) -> Tensor:
        """What a step leaves missing, (batch, 3), as masses change with the pressure."""
        shares = self.laws.shares
        lost = self.gains - self.split.total(_gains(self.responses, pressures))
        return of_rows(of_rows(step, shares) * lost, shares.mT)


def _gains(responses: Sequence[Response], pressures: Sequence[Tensor]) -> Tensor:
    pairs = zip(responses, pressures, strict=True)
    return reduce(torch.add, [each.gains(pressure) for each, pressure in pairs])


def _inverse(matrix: Tensor, laws: Laws) -> Tensor:  # (batch, 3, 3)
    """By the cross products of the columns.

    The multiplier of a law that is not asked for is 0, of one that nothing can move without effect.
    """
    matrix = matrix * laws.pairs
    matrix = matrix + laws.identity * (matrix == 0)
    crossed = matrix.roll(-1, -2).cross(matrix.roll(-2, -2), dim=-1)
    return crossed * (laws.pairs / (matrix[:, :1] * crossed[:, :1]).sum(-1, keepdim=True))
