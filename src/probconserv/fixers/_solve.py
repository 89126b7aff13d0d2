"""The most probable state that closes the budgets: a multiplier for each law, by Newton's method.

The squares of all changes over their variances, each times the area of its cell, have the smallest
sum that the laws allow. Then every point moves by its variance times what the laws gain by it,
times the multipliers, as far as its bounds allow; the area of its cell cancels.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ._columns import Block, Columns
from ._layers import SHARES

LEAST = (1.0, 1e-3, 1.0)  # kg m-2 and J m-2: totals below these are not told from rounding


@dataclass(frozen=True, eq=False)
class Laws:
    """Which laws hold, and constants of all three."""

    active: Tensor  # (3,) 1 for laws that hold, 0 for others
    pairs: Tensor  # (3, 3), of these
    products: Tensor  # (3, 9), of the shares of vapour, heat and precipitation in pairs of laws
    rain: Tensor  # (3,) 1 for the law of water
    least: Tensor  # (3,)
    identity: Tensor  # (3, 3)

    @classmethod
    def of(cls, active: Tensor) -> "Laws":
        new = active.new_tensor
        rain = new([0.0, 1.0, 0.0])
        shares = torch.stack([*new(SHARES[:2]), rain])
        products = (shares[:, None] * shares[..., None]).flatten(1)
        identity = torch.eye(3, dtype=active.dtype, device=active.device)
        return cls(active, active * active[:, None], products, rain, new(LEAST), identity)


def matrix(block: Block, at: Columns, laws: Laws, duration: float) -> Tensor:
    """How the laws rise with the multipliers, (batch, 3, 3); what is at its bound does not move."""
    layers, variance, slopes = block.layers, dict(block.variance), at.held[:, 1]
    if at is not block.start:
        if layers.low is not None and layers.high is not None:
            free = (layers.low < at.pressure) & (at.pressure < layers.high)
            variance["surface_pressure"] = variance["surface_pressure"] * free
        for name, x in (("specific_humidity", at.vapour), ("precipitation", at.rain)):
            variance[name] = variance[name] * (x > 0)
    weighted = slopes * (variance["surface_pressure"] * block.weights)[:, None]
    found = (slopes[:, None] * weighted[:, :, None]).sum(-1)  # faster than a product on a GPU
    gains = [layers.gain(variance[n], at.pressure) for n in ("specific_humidity", "temperature")]
    gains.append((duration**2 * variance["precipitation"]).expand_as(gains[0]))
    gain = torch.stack(gains, 1) @ block.weights
    return torch.addmm(found.flatten(1), gain, laws.products).unflatten(1, (3, 3))


def inverse(matrix: Tensor, laws: Laws) -> Tensor:  # (batch, 3, 3)
    """By the cross products of the columns.

    A law that nothing can move, or that is not asked for, has a multiplier of no effect.
    """
    matrix = matrix * laws.pairs
    matrix = matrix + laws.identity * (matrix == 0)
    crossed = matrix.roll(-1, -2).cross(matrix.roll(-2, -2), dim=-1)
    return crossed / (matrix[:, :1] * crossed[:, :1]).sum(-1, keepdim=True)
