"""Values within bounds that keep their totals: what the update pushed out is taken from the rest.

A value u that the update gave becomes clip(u - lambda d g, low, high), with one lambda for each row
so that its total stays; d says how far a point may move, see `MeanAndStd`, or is the variance of
the members. With independent points this is the most likely field within the bounds.
"""

from dataclasses import dataclass

import numpy as np
import xarray as xr

from .._block_roots import Block, bounded_roots
from ._blocks import Array, BlockRows
from ._budget import worst
from ._packing import is_packed, packed_range, unpacked_after_packing


@dataclass(frozen=True, eq=False)
class Bounds:
    """The least and the most that a value may be, as the file can hold it."""

    low: float
    high: float
    places: xr.DataArray  # named after the law: the number of each row, by its coordinates

    @classmethod
    def of(cls, variable: xr.Variable, low: float, high: float, places: xr.DataArray) -> "Bounds":
        """For the floats or the packed integers that a variable is stored as."""
        return cls(_next_held(variable, low, 1.0), _next_held(variable, high, -1.0), places)

    def row(self, number: int) -> str:
        """In words."""
        at = worst(self.places == number)[1]
        return f"{self.places.name}{f' at {at}' if at else ''}"

    def outside(self, u: Array) -> Array:
        return (u < self.low) | (u > self.high)


def _next_held(variable: xr.Variable, bound: float, towards: float) -> float:
    """The first number from the bound on that the file can hold."""
    packed, step = is_packed(variable), float(np.spacing(np.abs(variable.dtype.type(bound))))
    if packed:
        step = abs(float(variable.encoding.get("scale_factor", 1.0)))
        low, high = packed_range(variable.encoding)
        if not low <= bound <= high:
            return bound
    tried = np.array([bound, bound + towards * step], variable.dtype)
    seen = unpacked_after_packing(tried, variable.encoding) if packed else tried
    first, second = map(float, seen)
    return first if np.isinf(bound) or (first - bound) * towards >= 0 else second


def held(new: Array, d: Array, rows: BlockRows, numbers: Array, bounds: Bounds) -> Array:
    """The values of a block that has all points of its rows, within the bounds.

    new: after the update, (I, P) or (N, I, P), changed in place. numbers: of the indices, (I, 1).
    """
    there, block = points(new, d, rows, numbers, bounds)
    labels = np.asarray(block.labels)
    broken = np.unique(labels[bounds.outside(block.mean)])
    if not len(broken):
        return new
    here = np.isin(labels, broken)
    own = np.searchsorted(broken, labels[here])
    some = Block(
        *(x[here] for x in (block.mean, block.variance, block.weights)),
        bounds.low,
        bounds.high,
        own,
    )
    totals = np.bincount(own, some.weights * some.mean)
    roots = bounded_roots(lambda: iter([some]), totals, name=lambda i: bounds.row(int(broken[i])))
    new.flat[np.flatnonzero(there)[here]] = roots.apply(some)
    return new


def points(
    new: Array, d: Array, rows: BlockRows, numbers: Array, bounds: Bounds
) -> tuple[Array, Block]:
    """Which values of a block count, and these with their rows."""
    (part,) = rows.parts
    weights, d = np.broadcast_to(part.weights, new.shape), np.broadcast_to(d, new.shape)
    first = numbers.astype(int)
    if new.ndim == 3:
        first = first * len(new) + np.arange(len(new))[:, None, None]
    labels = first * part.rows + (0 if part.labels is None else part.labels)
    labels = np.broadcast_to(labels, new.shape)
    there = (weights != 0) & ~np.isnan(new)
    arrays = (x[there] for x in (new, d, weights))
    return there, Block(*arrays, bounds.low, bounds.high, labels[there])


def clipped(new: Array, d: Array, rows: BlockRows, tilt: Array, bounds: Bounds) -> Array:
    """The values of a block, from lambda of every row, (I, K) or (N, I, K)."""
    moved = np.clip(new - rows.adjoint(tilt) * d, bounds.low, bounds.high)
    return moved if rows.left_out is None else np.where(rows.left_out, new, moved)
