"""Layers: sums over the levels of each column, which is all that the laws read of a state.

The mass of a layer is constant + slope * surface pressure, and so is what a column holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..air.constants import HEAT_CAPACITY, VAPORIZATION

LAWS = ("dry_air", "water", "energy")
SHARES = (  # in each law
    (-1.0, 1.0, VAPORIZATION),  # of a kilogram of vapour
    (0.0, 0.0, HEAT_CAPACITY),  # of a kilogram that is a kelvin warmer
    (-1.0, 1.0, 0.0),  # of a kilogram of other water
    (0.0, 0.0, 1.0),  # of other energy, J
)


@dataclass(frozen=True, eq=False)
class Layers:
    """The masses of the layers of columns, kg m-2, as lines in the surface pressure."""

    lines: Tensor  # (2, K, 1), constant and slope; (2, batch, K, N) where each column has its own
    moving: Tensor  # (2, 1 or batch, K, 1 or N), by the air of levels: thickness does not count
    air: Tensor  # (2, 1), constant and slope of the mass of a column
    shares: Tensor  # (4, 3), `SHARES`
    low: Tensor | None = None  # (batch, N), surface pressures between which the lines hold
    high: Tensor | None = None
    first: Tensor | None = None  # (4, 6, K), lines times shares, where all columns have the same
    second: Tensor | None = None  # (3, K), the products of both lines as powers of the pressure

    def at(self, columns: slice) -> "Layers":
        if self.low is None or self.high is None:
            return self
        every = (self.lines, self.moving, self.low, self.high)
        lines, moving, low, high = (x[..., columns] for x in every)
        return Layers(lines, moving, self.air, self.shares, low, high)

    def mass(self, pressure: Tensor) -> Tensor:
        """Of each layer, (batch, K, N)."""
        return torch.addcmul(self.lines[0], self.lines[1], pressure.unsqueeze(-2))

    def held(self, vapour: Tensor, others: Sequence[Tensor | None]) -> Tensor:
        """What columns hold of each law: constant and slope, (batch, 2, 3, N), float64.

        The fields are in the order of `SHARES`; others than vapour, (batch, K, N), may have axes
        of 1.
        """
        found = self._added(None, 0, vapour.double())
        for number, field in enumerate(others, 1):
            if field is not None:
                found = self._added(found, number, field.double().expand(vapour.shape))
        found = found.unflatten(1, (2, 3))
        found[:, :, 0].add_(self.air)
        return found

    def _added(self, found: Tensor | None, number: int, field: Tensor) -> Tensor:
        if self.first is None:
            sums = (self.lines * field).sum(-2).movedim(0, 1)  # (batch, 2, N)
            own = (sums[:, :, None] * self.shares[number][:, None]).flatten(1, 2)
            return own if found is None else found + own
        weights = self.first[number].expand(len(field), -1, -1)
        return weights.bmm(field) if found is None else found.baddbmm_(weights, field)

    def powers(self, variance: Tensor) -> Tensor:
        """Sums of variance * mass * mass as powers of the pressure, (batch or 1, 3, N or 1)."""
        variance = variance.expand(-1, self.lines.shape[-2], -1)
        if self.second is not None:
            return self.second.to(variance.dtype) @ variance
        (a, b), (by_a, by_b) = self.lines, self.moving
        return torch.stack([(x * variance).sum(-2) for x in (a * by_a, 2 * a * by_b, b * by_b)], 1)

    def raised(
        self,
        values: Tensor,
        variance: Tensor,
        pressure: Tensor,
        by: Tensor,
        out: Tensor | None = None,
    ) -> Tensor:
        """values + variance * mass * by, in the dtype of the values."""
        dtype, even = values.dtype, variance.shape[-1] == 1
        constant, slope = (self.moving * (by * variance if even else by)).to(dtype)
        mass = torch.addcmul(constant, slope, pressure.to(dtype).unsqueeze(-2))
        if even:
            return torch.add(values, mass, out=out)
        return torch.addcmul(values, variance, mass, out=out)
