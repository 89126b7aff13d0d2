"""Values within bounds while totals stay.

A value u that the update gave becomes clip(u - lambda d g, low, high), with one lambda for each row
so that its total stays; d says how far a point may move, see `MeanAndStd`, or is the variance of
the members. With independent points this is the most likely field within the bounds. The total
falls with lambda, straight between places where a point gets stuck, so Newton's method ends at the
root after a few sums over all points.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import xarray as xr

from .._errors import InfeasibleError
from .._values import span
from ._blocks import by_index, quiet
from ._encoding import Packing
from ._graph import Array, BlockRows
from ._plan import Places, Plan

LIMIT = 100  # sums at most; it takes about six
ROUNDING = 1e-14  # of a row's terms
REACH = 1e-12  # of a row's terms: a total so little out of reach is taken as the end of it
HUGE = 1e200  # lambda that moves every point to its bound


@dataclass(frozen=True, eq=False)
class Bounds:
    """The least and the most that a value may be, as the file can hold it.

    Blocks are (I, P) or (N, I, P), their lambda is (I, K) or (I, N K).
    """

    low: float
    high: float
    law: str
    places: Places

    @classmethod
    def of(cls, plan: Plan, variable: xr.Variable) -> "Bounds":
        """For the floats or the packed integers that a variable is stored as."""
        low, high = plan.bounds
        ends = _next_held(variable, low, 1.0), _next_held(variable, high, -1.0)
        return cls(*ends, plan.laws[0].law.label, plan.places)

    def clipped(self, new: Array, d: Array, rows: BlockRows, tilt: Array) -> Array:
        """The values of a block."""
        if new.ndim == 3:
            tilt = np.moveaxis(tilt.reshape(len(tilt), len(new), -1), 1, 0)
        moved = np.clip(new - rows.adjoint(tilt) * d, self.low, self.high)
        if rows.left_out is not None:
            moved = np.where(rows.left_out, new, moved)
        return np.where(np.isnan(moved), new, moved)

    def line(self, new: Array, d: Array, rows: BlockRows, tilt: Array) -> Array:
        """The totals that a block has within the bounds, and how fast they fall with lambda."""
        u = self.clipped(new, d, rows, tilt)
        free = np.where((u > self.low) & (u < self.high), d, 0.0)
        return np.concatenate([_total(rows, u), _total(rows.squared, free)], -1)

    def survey(self, new: Array, d: Array, rows: BlockRows) -> Array:
        """The totals of a block, their terms, the least and the most that they can be, how fast
        they fall if all points are free, and the line where lambda is 0."""
        total, terms = _total(rows, new), _total(rows.sizes, np.abs(new))
        far = (self.clipped(new, d, rows, np.full_like(total, end)) for end in (HUGE, -HUGE))
        free = _total(rows.squared, np.where(np.isnan(new), 0.0, d))
        start = self.line(new, d, rows, np.zeros_like(total))
        return np.concatenate([total, terms, *(_total(rows, u) for u in far), free, start], -1)

    @quiet
    def tilts(self, line: Callable[[Array], Array], seen: Array, numbers: Array) -> Array:
        """lambda of every row, from the sums of `line` and `survey` over all points."""
        total, terms, least, most, full, value, slope = np.split(seen, 7, -1)
        size = terms + np.abs(total)
        self._check_reach(total, least, most, REACH * size, numbers)
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

    def _check_reach(
        self, total: Array, least: Array, most: Array, slack: Array, numbers: Array
    ) -> None:
        wrong = (total < least - slack) | (total > most + slack)
        if not wrong.any():
            return
        place = tuple(np.argwhere(wrong)[0])
        ends = (float(x[place]) for x in (least, most))
        reach = span(*(x if abs(x) < HUGE else math.copysign(math.inf, x) for x in ends))
        error = InfeasibleError(
            f"{int(wrong.sum())} totals cannot be met within `minimum` and `maximum`. The first of "
            f"{self.law} is {float(total[place]):.6g}, and totals of fields within these bounds "
            f"are {reach}. Ways out: wider bounds, another total, `noise`."
        )
        error._place = 0, int(place[-1])
        with self.places.named(numbers[place[:-1]]):
            raise error


def _total(rows: BlockRows, u: Array) -> Array:  # (I, K) or (I, N K)
    return by_index(rows.apply(np.where(np.isnan(u), 0.0, u)))


def _next_held(variable: xr.Variable, bound: float, towards: float) -> float:
    """The first number from the bound on that the file can hold."""
    packing, step = Packing.of(variable), float(np.spacing(np.abs(variable.dtype.type(bound))))
    if packing is not None:
        low, high = packing.range
        if not low <= bound <= high:
            return bound
        step = abs(packing.scale)
    tried = np.array([bound, bound + towards * step], variable.dtype)
    first, second = map(float, tried if packing is None else packing.seen(tried))
    return first if np.isinf(bound) or (first - bound) * towards >= 0 else second
