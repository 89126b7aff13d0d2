"""Independent points that rise along an axis, within constant bounds, given one sum.

As in `clipped.py`, with isotonic regression in place of y - d g mu:

    u = clip(iso(y - d g mu; weights 1 / d), low, high)   with   sum g_i u_i = t + s mu

Isotonic regression is piecewise constant: each block has the weighted mean of its points. SciPy
finds the blocks, of many lines in one call: each line is scaled to the range from 0 to 1, which
leaves its blocks as they are, and lifted above the one before, so that no block reaches from one to
the next. Lines whose digits do not survive the lift are done alone. Points of no variance end a
line; the points before them have them as an upper bound, those after as a lower one.
"""

import itertools
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .clipped import Clipped

AT_ONCE = 1024  # lines in one call
LOST = 2 * AT_ONCE * 2.0**-52  # of the range of a line: what the lift rounds
SEEN = 1e-6  # standard deviations: a line that the lift rounds by more is done alone
LIGHT = 1e-300  # of the largest weight of a line: least of a point


@dataclass
class Rising(Clipped):
    """As `Clipped`, with values that rise along lines of `length` points each."""

    polish: ClassVar[int] = 3
    weight: Tensor = field(kw_only=True)  # 1 / d, (k, 1, E); 0 at points that are fixed
    length: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.low is not None
        assert self.high is not None
        shape = self.y.shape
        weight = self.weight.expand(shape)
        fixed = (weight == 0).numpy().reshape(-1, self.length)
        first = np.zeros_like(fixed)  # the first point of each line, also after a fixed point
        first[:, 0] = True
        first[:, 1:] |= fixed[:, :-1]
        first |= fixed
        self._first = first.ravel()
        self._begins = np.flatnonzero(self._first)
        self._sizes = np.diff(self._begins, append=len(self._first))
        own = np.where(fixed, 1.0, weight.numpy().reshape(fixed.shape)).ravel()
        self._most = np.maximum.reduceat(own, self._begins)  # of each line
        self._weight = (own / self._wide(self._most)).clip(LIGHT)
        self._g = self.weights.expand(shape).numpy().ravel()
        self._low, self._high = (t.expand(shape).numpy().ravel() for t in (self.low, self.high))
        self._sums = np.arange(0, self.y.numel(), shape[-1])  # where each of the k n rows starts

    def values(self, mu: Tensor) -> Tensor:
        torch.addcmul(self.y, self.move, mu, value=-1, out=self._v)
        v = self._v.numpy().ravel()
        starts, means = self._merged(self._blocks(v), v)
        self._starts, sizes = starts, np.diff(starts, append=len(v))
        self._free = (means > self._low[starts]) & (means < self._high[starts])
        u = np.repeat(means, sizes).reshape(self.y.shape)
        return self._held(torch.from_numpy(u))

    def _merged(self, starts: NDArray[Any], v: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Blocks whose means rise along each line, and the means."""
        heavy = self._weight * v
        while True:
            means = np.add.reduceat(heavy, starts) / np.add.reduceat(self._weight, starts)
            falls = (means[1:] < means[:-1]) & ~self._first[starts[1:]]
            if not falls.any():
                return starts, means
            starts = starts[np.concatenate([[True], ~falls])]

    def _blocks(self, v: NDArray[Any]) -> NDArray[Any]:
        """Where blocks start, of many lines in one call."""
        from scipy.optimize import isotonic_regression

        begins = self._begins
        low, high = np.minimum.reduceat(v, begins), np.maximum.reduceat(v, begins)
        width = high - low
        alone = ~(LOST * width * np.sqrt(self._most) <= SEEN)
        scale = np.where(alone, 0.0, 1 / np.where(width > 0, width, 1.0))
        lift = 2.0 * (np.arange(len(begins)) % AT_ONCE)
        lifted = (v - self._wide(low)) * self._wide(scale) + self._wide(lift)
        ends = [*begins[::AT_ONCE], len(v)]
        found = [
            start + isotonic_regression(lifted[start:end], weights=self._weight[start:end]).blocks
            for start, end in itertools.pairwise(ends)
        ]
        starts = np.concatenate([each[:-1] for each in found])
        if not alone.any():
            return starts
        starts = starts[~alone[np.searchsorted(begins, starts, "right") - 1]]
        lines = [self._alone(v, i) for i in np.flatnonzero(alone).tolist()]
        return np.sort(np.concatenate([starts, *lines]))

    def _wide(self, x: NDArray[Any]) -> NDArray[Any]:
        """Numbers of lines, at all their points."""
        return np.repeat(x, self._sizes)

    def _alone(self, v: NDArray[Any], number: int) -> NDArray[Any]:
        """Where blocks of one line start."""
        from scipy.optimize import isotonic_regression

        start = self._begins[number]
        line = slice(start, start + self._sizes[number])
        found: NDArray[Any] = isotonic_regression(v[line], weights=self._weight[line]).blocks
        return start + found[:-1]

    def _held(self, u: Tensor) -> Tensor:
        lines = torch.clamp(u, self.low, self.high).reshape(-1, self.length)
        self._u = lines.cummax(-1).values.reshape(u.shape)
        return self._u

    def at(self, mu: Tensor) -> tuple[Tensor, Tensor]:
        u = self.values(mu)
        return self._off(u, mu), self._slopes()[0] + self.noise

    def _falls(self, u: Tensor) -> tuple[Tensor, Tensor]:
        rows, fall = self._slopes()
        each = np.repeat(fall, np.diff(self._starts, append=len(self._g)))
        return rows, torch.from_numpy(each).reshape(self.y.shape)

    def _slopes(self) -> tuple[Tensor, NDArray[Any]]:
        """How fast sums fall in mu, and blocks."""
        starts = self._starts
        g = np.add.reduceat(self._g, starts)
        most = self._most[np.searchsorted(self._begins, starts, "right") - 1]
        fall = np.where(self._free, g / np.add.reduceat(self._weight, starts) / most, 0.0)
        rows = np.add.reduceat(g * fall, np.searchsorted(starts, self._sums))
        return torch.from_numpy(rows).reshape(self.target.shape), fall

    def measured(self, u: Tensor, mu: Tensor) -> tuple[Tensor, Tensor]:
        u = self._held(super().measured(u, mu)[0])
        return u, self._miss(u, mu)


class RisingLineByLine(Rising):
    """The same, one line after the other: slower, and to the last digit at any scale."""

    def _blocks(self, v: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([self._alone(v, i) for i in range(len(self._begins))])
