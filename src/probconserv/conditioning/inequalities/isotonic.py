"""Independent points that rise along lines, within bounds that are level there, given one sum.

As in `clipped.py`, with isotonic regression in place of y - d g mu:

    u = clip(iso(y - d g mu; weights 1 / d), low, high)   with   sum g_i u_i = t + s mu

Isotonic regression is piecewise constant: each block has the weighted mean of its points. SciPy
finds the blocks, of many lines in one call: each line is scaled to the range from 0 to 1, which
leaves its blocks as they are, and lifted above the one before, so that no block reaches from one to
the next. A point of no variance has all the weight of its block: those before it have it as an
upper bound, those after as a lower one.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .clipped import Clipped

FIRM = 2.0**66  # times the largest other weight of a line: the weight of a fixed point
LIGHT = 1e-270  # times the largest weight: the least


@dataclass
class Rising(Clipped):
    """As `Clipped`, with values that rise along lines."""

    at_once: ClassVar[int] = 64  # lines in one call: a lift rounds to 2^-46 of the range of a line
    lines: Sequence[tuple[int, int]] = field(kw_only=True)  # so many points, in lines of so many

    def __post_init__(self) -> None:
        super().__post_init__()
        shape, size = self.y.shape, self.y.shape[-1]
        self._sizes = np.concatenate([np.full(n // each, each) for n, each in self.lines])
        self._first = np.cumsum(self._sizes) - self._sizes
        d = self.variance.numpy().reshape(-1, size)
        least = np.minimum.reduceat(np.where(d > 0, d, np.inf), self._first, 1)
        share = (self._wide(least) / np.where(d > 0, d, 1.0)).clip(LIGHT) / FIRM
        weight = torch.from_numpy(np.where(d > 0, share, 1.0)).reshape(self.variance.shape)
        self._weight = weight.expand(shape).numpy().ravel()
        self._move = (weight * self.move).expand(shape).numpy().ravel()
        self._begins = (np.arange(0, self.y.numel(), size)[:, None] + self._first).ravel()

    def _wide(self, x: NDArray[Any]) -> NDArray[Any]:
        """Numbers of lines, at all their points."""
        return np.repeat(x, self._sizes, 1)

    def values(self, mu: Tensor) -> Tensor:
        v = self.moved(mu).numpy().reshape(-1, self.y.shape[-1])
        starts = self._blocks(v)
        total, mean, fall = (
            np.add.reduceat(x, starts) for x in (self._weight, self._weight * v.ravel(), self._move)
        )
        fall[total > 0.5] = 0.0  # a fixed point holds its block
        sizes = np.diff(starts, append=v.size)
        self._v, self.fall = (
            torch.from_numpy(np.repeat(x / total, sizes)).view_as(self.y) for x in (mean, fall)
        )
        self._u = self.held(self._v)
        return self._u

    def _blocks(self, v: NDArray[Any]) -> NDArray[Any]:
        """Where blocks start, of many lines in one call."""
        from scipy.optimize import isotonic_regression

        lifted, ends = self._lifted(v).ravel(), [*self._begins[:: self.at_once], v.size]
        found = [
            start + isotonic_regression(lifted[start:end], weights=self._weight[start:end]).blocks
            for start, end in itertools.pairwise(ends)
        ]
        return np.concatenate([each[:-1] for each in found])

    def _lifted(self, v: NDArray[Any]) -> NDArray[Any]:
        """Each line from 0 to 1, above the one before."""
        low, high = (end.reduceat(v, self._first, 1) for end in (np.minimum, np.maximum))
        scale = 1 / np.where(high > low, high - low, 1.0)
        lift = 2.0 * (np.arange(low.size) % self.at_once).reshape(low.shape)
        return (v - self._wide(low)) * self._wide(scale) + self._wide(lift)

    def nearer(self, mu: Tensor) -> "RisingLineByLine":
        found = super().nearer(mu)
        return RisingLineByLine(**{each.name: getattr(found, each.name) for each in fields(found)})

    def held(self, u: Tensor) -> Tensor:
        pieces = super().held(u).split([n for n, _ in self.lines], -1)
        pairs = zip(pieces, (each for _, each in self.lines), strict=True)
        lines = [x.unflatten(-1, (-1, each)).numpy() for x, each in pairs]
        return torch.cat(
            [torch.from_numpy(np.maximum.accumulate(x, -1)).flatten(-2) for x in lines], -1
        )


class RisingLineByLine(Rising):
    """The same, one line after the other: slower, and to the last digit at any scale."""

    at_once = 1

    def _lifted(self, v: NDArray[Any]) -> NDArray[Any]:
        return v
