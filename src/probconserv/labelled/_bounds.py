"""Values within bounds that keep their totals: what the update pushed out is taken from the rest.

A value u that the update gave becomes clip(u - lambda d g, low, high), with one lambda for each row
so that its total stays; d says how far a point may move, see `MeanAndStd`, or is the variance of
the members. With independent points this is the most likely field within the bounds. The total
falls with lambda, straight between places where a point gets stuck, so Newton's method ends at the
root after a few sums over all points.

Values that are stored as integers are rounded to the nearest one, except for the few that must go
the other way for the total of their row to close: those that lie nearest to the middle.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from .._errors import InfeasibleError
from .._values import span
from ._blocks import by_index, quiet
from ._budget import Places
from ._encoding import (
    fill_integers,
    integers,
    is_packed,
    packed_range,
    scale_and_offset,
    unpacked_after_packing,
)
from ._plan import Plan
from ._rows import Array, BlockRows

LIMIT = 100  # sums at most; it takes about six
ROUNDING = 1e-14  # of a row's terms
REACH = 1e-12  # of a row's terms: a total so little out of reach is taken as the end of it
HUGE = 1e200  # lambda that moves every point to its bound


@dataclass(frozen=True, eq=False)
class Bounds:
    """The least and the most that a value may be, as the file can hold it."""

    low: float
    high: float
    law: str
    places: Places

    @classmethod
    def of(cls, plan: Plan, variable: xr.Variable) -> "Bounds":
        """For the floats or the packed integers that a variable is stored as."""
        low, high = plan.bounds
        ends = _next_held(variable, low, 1.0), _next_held(variable, high, -1.0)
        return cls(*ends, plan.laws[0].law.label, Places.of(plan))


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


def clipped(new: Array, d: Array, rows: BlockRows, tilt: Array, bounds: Bounds) -> Array:
    """The values of a block, from lambda of every row, (I, K) or (I, N K)."""
    if new.ndim == 3:
        tilt = np.moveaxis(tilt.reshape(len(tilt), len(new), -1), 1, 0)
    moved = np.clip(new - rows.adjoint(tilt) * d, bounds.low, bounds.high)
    if rows.left_out is not None:
        moved = np.where(rows.left_out, new, moved)
    return np.where(np.isnan(moved), new, moved)


def line(new: Array, d: Array, rows: BlockRows, tilt: Array, bounds: Bounds) -> Array:
    """The totals that a block has within the bounds, and how fast they fall with lambda."""
    u = clipped(new, d, rows, tilt, bounds)
    free = np.where((u > bounds.low) & (u < bounds.high), d, 0.0)
    return np.concatenate([_total(rows, u), _total(rows.squared, free)], -1)


def survey(new: Array, d: Array, rows: BlockRows, bounds: Bounds) -> Array:
    """The totals of a block, their terms, the least and the most that they can be, how fast they
    fall if all points are free, and the line where lambda is 0."""
    total, terms = _total(rows, new), _total(rows.sizes, np.abs(new))
    far = (clipped(new, d, rows, np.full_like(total, end), bounds) for end in (HUGE, -HUGE))
    free = _total(rows.squared, np.where(np.isnan(new), 0.0, d))
    start = line(new, d, rows, np.zeros_like(total), bounds)
    return np.concatenate([total, terms, *(_total(rows, u) for u in far), free, start], -1)


def _total(rows: BlockRows, u: Array) -> Array:  # (I, K) or (I, N K)
    return by_index(rows.apply(np.where(np.isnan(u), 0.0, u)))


def held(new: Array, d: Array, rows: BlockRows, numbers: Array, bounds: Bounds) -> Array:
    """The values of a block that has all points of its rows; `numbers` of its indices, (I, 1)."""
    if not ((new < bounds.low) | (new > bounds.high)).any():
        return new
    seen = survey(new, d, rows, bounds)
    tilt = tilts(lambda t: line(new, d, rows, t, bounds), seen, numbers, bounds)
    return clipped(new, d, rows, tilt, bounds)


def _end(total: float) -> float:
    return total if abs(total) < HUGE else math.copysign(math.inf, total)


@quiet
def tilts(line: Callable[[Array], Array], seen: Array, numbers: Array, bounds: Bounds) -> Array:
    """lambda of every row, from the sums of `line` and `survey` over all points."""
    total, terms, least, most, full, value, slope = np.split(seen, 7, -1)
    size = terms + np.abs(total)
    wrong = (total < least - REACH * size) | (total > most + REACH * size)
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0])
        asked, low, high = (float(x[place]) for x in (total, least, most))
        error = InfeasibleError(
            f"{int(wrong.sum())} totals cannot be met within `minimum` and `maximum`. The first of "
            f"{bounds.law} is {asked:.6g}, and totals of fields within these bounds are "
            f"{span(_end(low), _end(high))}. Ways out: wider bounds, another total, `noise`."
        )
        error._place = 0, int(place[-1])
        with bounds.places.named(numbers[place[:-1]]):
            raise error
    total, tilt = np.clip(total, least, most), np.zeros_like(total)
    left, right = np.full_like(total, -np.inf), np.full_like(total, np.inf)
    for count in range(LIMIT):
        missed = np.where(np.abs(value - total) > ROUNDING * size, value - total, 0.0)
        if not missed.any():
            break
        left, right = np.where(missed > 0, tilt, left), np.where(missed < 0, tilt, right)
        steep = np.where(slope > 0, slope, full / 2.0**count)  # all stuck: ever farther
        guess = tilt + missed / np.where(steep > 0, steep, 1.0)
        middle = np.where(np.isfinite(left) & np.isfinite(right), (left + right) / 2, guess)
        tilt = np.where((guess > left) & (guess < right), guess, middle)
        value, slope = np.split(line(tilt), 2, -1)
    return tilt


TRIES = 20  # values that close the last part of a total, one by one


def rounded(
    block: Array, rows: BlockRows, *, packing: Mapping[str, Any], bounds: tuple[float, float]
) -> Array:
    """A block (I, P) or (N, I, P) on the values that its integers stand for.

    The total of each of its rows is off by at most half a quantum of a small cell. Rows may not
    share points.
    """
    scale, offset = scale_and_offset(packing)
    exact = (block.astype(float) - offset) / scale
    whole = np.rint(exact)
    ends = sorted((end - offset) / scale for end in bounds)
    for member in np.ndindex(block.shape[:-2]):
        for index in range(block.shape[-2]):
            for part in rows.parts:
                weights = part.weights if part.weights.ndim == 1 else part.weights[index]
                for points in _by_row(part.labels, len(weights)):
                    at = (*member, index, points)
                    whole[at] = _closed(exact[at], whole[at], weights[points], packing, ends)
    return whole * scale + offset


def _by_row(labels: Array | None, count: int) -> list[Any]:
    """The points of each row."""
    if labels is None:
        return [slice(0, count)]
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)


def _closed(
    exact: Array, whole: Array, weights: Array, packing: Mapping[str, Any], ends: list[float]
) -> Array:
    """The integers of one row, some of them one up or down, so that the sum of the exact stays."""
    off = exact - whole
    free = np.isfinite(off) & (weights != 0) & np.isfinite(weights)
    missing = float(np.dot(weights[free], off[free]))  # what rounding took from the total
    if not missing:
        return whole
    step, size = np.sign(missing * weights), np.abs(weights)
    (low, high), other = integers(packing), whole + step
    free &= (other >= max(low, ends[0])) & (other <= min(high, ends[1]))
    free &= ~np.isin(other, fill_integers(packing))  # that does not stand for a value
    if not free.any():
        return whole
    count = min(int(free.sum()), 16 + int(4 * abs(missing) / size[free].mean()))
    gain = np.where(free, off * step, -np.inf)  # the nearer to the middle, the less it costs
    near = np.argpartition(-gain, count - 1)[:count]
    near = near[np.argsort(-gain[near])]
    some = near[: int(np.searchsorted(np.cumsum(size[near]), abs(missing), side="right"))]
    whole = whole.copy()
    whole[some] += step[some]
    left, rest = abs(missing) - size[some].sum(), np.setdiff1d(near, some)
    for _ in range(min(TRIES, len(rest))):
        best = rest[np.argmin(np.abs(left - size[rest]))]
        if abs(left - size[best]) >= abs(left):
            break
        whole[best] += step[best]
        left, rest = left - size[best], rest[rest != best]
    return whole
