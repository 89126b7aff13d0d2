"""Points of a field that is read block by block: checked, scaled, and added up by rows."""

from dataclasses import dataclass, fields
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ._errors import InputError

Array: TypeAlias = NDArray[np.float64]
Rows: TypeAlias = NDArray[np.intp]
Flags: TypeAlias = NDArray[np.bool_]

USUAL = 128  # powers of two that numbers may be away from 1 and their cubes do no harm


@dataclass(frozen=True)
class Block:
    """Points of a field, each array (P,) or a number: mean, variance, weights g, bounds, rows.

    Missing points must be left out. labels: the row of each point, from 0.
    """

    mean: Array
    variance: Array
    weights: Array
    low: Array | float = -np.inf
    high: Array | float = np.inf
    labels: Rows | int = 0


@dataclass(frozen=True)
class Points:
    """Points sorted by row, in scaled units: u = mean - lambda step, held between low and high."""

    row: Rows
    mean: Array
    step: Array  # d g
    weight: Array
    low: Array
    high: Array
    start: Array  # the breakpoints: before `start` and after `stop` a point is at a bound
    stop: Array

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, index: Any) -> Self:
        return type(self)(*(getattr(self, f.name)[index] for f in fields(self)))

    def join(self, other: Self) -> Self:
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        both = type(self)(*(np.concatenate(pair) for pair in pairs))
        in_order = not len(self) or not len(other) or self.row[-1] <= other.row[0]
        return both if in_order else both[np.argsort(both.row, kind="stable")]

    def terms(self, tilt: Array) -> Array:
        """g u of each point, for the tilts of the rows."""
        moved = self.mean - tilt[self.row] * self.step
        return self.weight * np.clip(moved, self.low, self.high)

    def slopes(self, left: Array, right: Array) -> Array:
        """-d(g u) / d lambda of each point between two ends with no breakpoint between them."""
        free = (self.start <= left[self.row]) & (self.stop >= right[self.row])
        return np.where(free, self.weight * self.step, 0.0)

    def inside(self, left: Array, right: Array) -> Flags:
        """Which points have a breakpoint between the ends of their row."""
        a, b = left[self.row], right[self.row]
        return ((self.start > a) & (self.start < b)) | ((self.stop > a) & (self.stop < b))


@dataclass(frozen=True)
class Scales:
    """Powers of two by which numbers are divided that would under- or overflow when multiplied."""

    mean: float = 1.0
    variance: float = 1.0
    weights: float = 1.0

    def fit(self, largest: Array) -> bool:
        """Whether numbers as large as these need no others."""
        share = np.abs(np.log2(largest / (self.mean, self.variance, self.weights)))
        return bool(((share < USUAL) | (largest == 0)).all())

    def total(self, x: Array) -> Array:
        return x * self.mean * self.weights


def points_of(block: Block, scales: Scales, rows: int) -> Points:
    parts = (block.labels, block.mean, block.variance, block.weights, block.low, block.high)
    labels, mean, variance, weight, low, high = map(np.ravel, np.broadcast_arrays(*parts))
    _check(labels, mean, variance, weight, low, high, rows)
    if len(labels) and (labels[1:] < labels[:-1]).any():
        order = np.argsort(labels, kind="stable")
        sides = (x[order] for x in (labels, mean, variance, weight, low, high))
        labels, mean, variance, weight, low, high = sides
    weight = weight / scales.weights
    step = variance / scales.variance * weight
    mean, low, high = mean / scales.mean, low / scales.mean, high / scales.mean
    fixed = (step == 0) | (low == high)
    held = np.clip(mean, low, high)
    low, high = np.where(fixed, held, low), np.where(fixed, held, high)
    a, b = (mean - high) / step, (mean - low) / step
    start = np.where(fixed, -np.inf, np.minimum(a, b))
    stop = np.where(fixed, -np.inf, np.maximum(a, b))
    return Points(labels, mean, step, weight, low, high, start, stop)


def _check(
    labels: Rows, mean: Array, variance: Array, weight: Array, low: Array, high: Array, rows: int
) -> None:
    if not len(labels):
        return
    for name, x in (("mean", mean), ("variance", variance), ("weights", weight)):
        if not np.isfinite(x).all():
            raise InputError(f"`{name}` must be finite. Leave missing points out of the blocks.")
    if variance.min() < 0:
        raise InputError(f"`variance` must be >= 0; its smallest value is {variance.min():g}.")
    if not (low <= high).all():
        raise InputError("`low` must not be above `high`, nor missing; it is, at some points.")
    if labels.min() < 0 or labels.max() >= rows:
        raise InputError(f"`labels` must be from 0 to {rows - 1}, one for each of `totals`.")


class Sum:
    """A sum for each row over many blocks: pairwise within a block, compensated between them."""

    def __init__(self, rows: int) -> None:
        self._sum, self._rest = np.zeros(rows), np.zeros(rows)

    def add(self, terms: Array, row: Rows) -> None:
        """Terms sorted by row."""
        new = by_row(terms, row, len(self._sum))
        total = self._sum + new
        back = total - self._sum
        rest = (self._sum - (total - back)) + (new - back)
        self._rest += np.where(np.isfinite(total), rest, 0.0)
        self._sum = total

    @property
    def sum(self) -> Array:
        return self._sum + self._rest


def by_row(terms: Array, row: Rows, rows: int) -> Array:
    """Sums of terms that are sorted by row, pairwise: naive ones lose digits with the length."""
    found = np.zeros(rows)
    if len(row):
        starts = np.flatnonzero(np.diff(row, prepend=row[0] - 1))
        found[row[starts]] = np.add.reduceat(terms, starts)
    return found
