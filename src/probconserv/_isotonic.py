"""Independent points that rise along an axis, within constant bounds, given one sum.

As in `_clipped.py`, with isotonic regression in place of y - d g mu:

    u = clip(iso(y - d g mu; weights 1 / d), low, high)   with   sum g_i u_i = t + s mu

Isotonic regression is piecewise constant: each block has the weighted mean of its points. SciPy
finds the blocks, of many lines in one call: each line is lifted above the one before, so that no
block reaches from one to the next. Points of no variance end a line; the points before them have
them as an upper bound, those after as a lower one.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ._clipped import Clipped, taken_fields


def implied(low: Tensor, high: Tensor, fixed: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds of values that rise along the last axis, where some are fixed."""
    below = torch.where(fixed, value, -torch.inf).cummax(-1).values
    above = torch.where(fixed, value, torch.inf).flip(-1).cummin(-1).values.flip(-1)
    low, high = torch.maximum(low, below), torch.minimum(high, above)
    return torch.where(fixed, value, low), torch.where(fixed, value, high)


@dataclass
class Rising(Clipped):
    """As `Clipped`, with values that rise along lines of `length` points each."""

    weight: Tensor | None = None  # 1 / d, (k, 1, E); 0 at points that are fixed
    length: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.weight is not None
        assert self.low is not None
        assert self.high is not None
        shape = self.y.shape
        weight = self.weight.expand(shape)
        fixed = (weight == 0).numpy().reshape(-1, self.length)
        first = np.zeros_like(fixed)  # the first point of each line, also after a fixed point
        first[:, 0] = True
        first[:, 1:] |= fixed[:, :-1]
        first |= fixed
        self._lines = np.cumsum(first.ravel()).astype(float)
        self._weight = np.where(fixed, 1.0, weight.numpy().reshape(fixed.shape)).ravel()
        self._g = self.weights.expand(shape).numpy().ravel()
        self._low, self._high = (t.expand(shape).numpy().ravel() for t in (self.low, self.high))
        self._sums = np.arange(0, self.y.numel(), shape[-1])  # where each of the k n rows starts

    def values(self, mu: Tensor) -> Tensor:
        torch.addcmul(self.y, self.move, mu, value=-1, out=self._v)
        v = self._v.numpy().ravel()
        self._starts = starts = self._blocks(v)
        sizes = np.diff(starts, append=len(v))
        means = np.add.reduceat(self._weight * v, starts) / np.add.reduceat(self._weight, starts)
        self._free = (means > self._low[starts]) & (means < self._high[starts])
        u = np.repeat(means, sizes).reshape(self.y.shape)
        return self._held(torch.from_numpy(u))

    def _blocks(self, v: NDArray[Any]) -> NDArray[Any]:
        """Where blocks start, of all lines in one call."""
        from scipy.optimize import isotonic_regression

        apart = 2 * (v.max() - v.min()) + 1e-300
        found: NDArray[Any] = isotonic_regression(
            v + apart * self._lines, weights=self._weight
        ).blocks
        return found[:-1]

    def _held(self, u: Tensor) -> Tensor:
        """Exactly within the limits."""
        u = torch.clamp(u, self.low, self.high)
        lines = u.reshape(-1, self.length)
        self._u = lines.cummax(-1).values.reshape(u.shape)
        return self._u

    def at(self, mu: Tensor) -> tuple[Tensor, Tensor]:
        off = self.total(self.values(mu), self.weights) - self.noise * mu - self.target
        return off, self._slope()[0] + self.noise

    def _slope(self) -> tuple[Tensor, Tensor]:
        """How fast sums fall in mu, (k, n, 1), and how fast points do, (k, n, E)."""
        starts = self._starts
        g = np.add.reduceat(self._g, starts)
        fall = np.where(self._free, g / np.add.reduceat(self._weight, starts), 0.0)
        rows = np.add.reduceat(g * fall, np.searchsorted(starts, self._sums))
        each = np.repeat(fall, np.diff(starts, append=len(self._g)))
        return torch.from_numpy(rows).reshape(self.target.shape), torch.from_numpy(each).reshape(
            self.y.shape
        )

    def taken(self, index: Tensor) -> Self:
        return type(self)(**taken_fields(self, index))

    def finished(self, mu: Tensor) -> tuple[Tensor, Tensor]:
        u = self.values(mu)
        slope, fall = self._slope()
        slope = slope + self.noise
        for _ in range(3):
            off = self.total(u, self.weights) - self.noise * mu - self.target
            step = torch.where(slope > 0, off / slope, 0.0)
            u, mu = self._held(u - fall * step), mu + step
        u, _ = self.measured(u, mu)
        u = self._held(u)
        return u, self._miss(u, mu)


class RisingLineByLine(Rising):
    """The same, one line after the other: slower, and to the last digit at any scale."""

    def _blocks(self, v: NDArray[Any]) -> NDArray[Any]:
        from scipy.optimize import isotonic_regression

        first = np.flatnonzero(np.diff(self._lines, prepend=0.0))
        found = []
        for start, end in zip(first, [*first[1:], len(v)], strict=True):
            line = isotonic_regression(v[start:end], weights=self._weight[start:end])
            found.append(start + line.blocks[:-1])
        return np.concatenate(found)
