"""The most probable state that closes the budgets: a multiplier for each law, by Newton's method.

The squares of all changes over their variances, each times the area of its cell, have the smallest
sum that the laws allow. Then every point moves by its variance times what the laws gain by it,
times the multipliers, as far as its bounds allow; the area of its cell cancels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from ._columns import Block, Columns
from ._layers import SHARES

LEAST = (1.0, 1e-3, 1.0)  # kg m-2 and J m-2


@dataclass(frozen=True, eq=False)
class Laws:
    """Which laws hold, and constants of all three."""

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
        rain = new([0.0, 1.0, 0.0])
        shares = new(SHARES[:2])
        products = (shares[:, None] * shares[..., None]).flatten(1)
        identity = torch.eye(3, dtype=active.dtype, device=active.device)
        pairs, least = active * active[:, None], new(LEAST) / active
        return cls(pairs, shares, products, rain, least, identity)


@dataclass(frozen=True, eq=False)
class Response:
    """How the laws rise with the multipliers, in a block of columns."""

    weights: Tensor
    fixed: Tensor  # (batch, 3, 3), by surface pressure and precipitation
    powers: Tensor  # (batch, 2, 3, N), by vapour and heat, as powers of the surface pressure

    @classmethod
    def of(cls, block: Block, at: Columns, duration: float) -> "Response":
        """What is at its bound does not move."""
        layers, w, variance, slopes = (
            block.layers,
            block.weights,
            dict(block.variance),
            at.held[:, 1],
        )
        if at is not block.start:
            if layers.low is not None and layers.high is not None:
                free = (layers.low < at.pressure) & (at.pressure < layers.high)
                variance["surface_pressure"] = variance["surface_pressure"] * free
            for name, x in (("specific_humidity", at.vapour), ("precipitation", at.rain)):
                variance[name] = variance[name] * (x > 0)
        weighted = slopes * (variance["surface_pressure"] * w)[:, None]
        fixed = (slopes[:, None] * weighted[:, :, None]).sum(-1)  # a GPU is slow at the product
        rain = variance["precipitation"].expand_as(at.rain) @ w
        fixed[:, 1, 1].add_(rain, alpha=duration**2)
        shape = (len(slopes), 3, slopes.shape[-1])
        names = ("specific_humidity", "temperature")
        powers = torch.stack([layers.powers(variance[n]).expand(shape) for n in names], 1)
        return cls(w, fixed, powers)

    def gains(self, pressure: Tensor) -> Tensor:
        """By vapour and heat, (batch, 2), at a surface pressure."""
        p = pressure.double()[:, None]
        constant, linear, square = self.powers.unbind(2)
        return torch.addcmul(constant, torch.addcmul(linear, square, p), p) @ self.weights


@dataclass(frozen=True, eq=False)
class Solver:
    """A step of Newton's method, from what is missing to the multipliers."""

    responses: Sequence[Response]
    laws: Laws
    gains: Tensor  # (batch, 2), of all blocks
    inverse: Tensor  # (batch, 3, 3)

    @classmethod
    def of(
        cls, blocks: Sequence[Block], columns: Sequence[Columns], laws: Laws, duration: float
    ) -> "Solver":
        pairs = zip(blocks, columns, strict=True)
        found = [Response.of(each, at, duration) for each, at in pairs]
        fixed = reduce(torch.add, [each.fixed for each in found])
        gains = _gains(found, [at.pressure for at in columns])
        matrix = torch.addmm(fixed.flatten(1), gains, laws.products).unflatten(1, (3, 3))
        return cls(found, laws, gains, _inverse(matrix, laws))

    def step(self, missing: Tensor) -> Tensor:
        return self.inverse.bmm(missing[..., None])[..., 0]

    def bent(self, step: Tensor, pressures: Sequence[Tensor]) -> Tensor:
        """What a step leaves missing, (batch, 3), as masses change with the pressure."""
        shares = self.laws.shares
        return (step @ shares.mT * (self.gains - _gains(self.responses, pressures))) @ shares


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
