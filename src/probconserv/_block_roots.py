"""Totals within bounds of a field that is read block by block.

For each row the root lambda of

    F(lambda) = sum_j g_j clip(y_j - lambda d_j g_j, low_j, high_j) = b

F never rises, and is straight between the breakpoints (y - high) / (d g) and (y - low) / (d g). A
read pass adds up, for each row, the line that F is in a window about a centre, and keeps the points
with a breakpoint in the window, which is narrowed when they are more than `capacity`. A root in the
window is found from the kept points; one outside gives the next bracket and the next centre. The
first centre is 0: most fields move little, and need one pass.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ._block_points import Array, Block, Flags, Points, Rows, Scales, Sum, by_row, points_of
from ._errors import InfeasibleError, InputError

CAPACITY = 1 << 20  # points kept at a time, each of 64 bytes
REACH = 1e-12  # of a row's terms: a total so little outside what can be reached is taken as its end
ROUNDING = 1e-14  # of a row's terms
LOST = 1e-13  # of a row's terms: more than that lost to a centre far from the root, and it is moved
LIMIT = 200  # passes; halving a bracket of floating-point numbers takes 64


@dataclass(frozen=True)
class Roots:
    """lambda of each row, and how it was found.

    Attributes
    ----------
    passes
        How often the blocks were read.
    least, most
        The reachable totals of each row, (R,).
    """

    passes: int
    least: Array
    most: Array
    _tilt: Array  # lambda in scaled units
    _scales: "Scales"

    @property
    def tilt(self) -> Array:
        """lambda of each row, (R,)."""
        with np.errstate(over="ignore"):
            return self._tilt / self._scales.weights * (self._scales.mean / self._scales.variance)

    def apply(self, block: Block) -> Array:  # (P,)
        """The points of a block after the move: clip(y - lambda d g, low, high)."""
        scales = self._scales
        g, d = block.weights / scales.weights, block.variance / scales.variance
        with np.errstate(over="ignore"):
            moved = block.mean / scales.mean - self._tilt[block.labels] * (d * g)
            return np.clip(moved * scales.mean, block.low, block.high)


def bounded_roots(
    read: Callable[[], Iterator[Block]], totals: Array, capacity: int = CAPACITY
) -> Roots:
    """lambda of each row such that the field, moved and held within its bounds, has the totals.

    They are met to 1e-12 of the terms of each row.

    Parameters
    ----------
    read
        Reads the field once: the same points in each call, in any blocks.
    totals
        b of each row, (R,).
    capacity
        How many points to hold at a time, besides two blocks and a few numbers for each row.

    Raises
    ------
    InfeasibleError
        A total that no field within the bounds has, with those that can be reached.
    """
    totals = np.atleast_1d(np.asarray(totals, dtype=np.float64))
    if totals.ndim != 1 or not np.isfinite(totals).all():
        raise InputError("`totals` must be finite numbers, one for each row.")
    if capacity < 1:
        raise InputError(f"`capacity` must be a positive number of points, got {capacity}.")
    with np.errstate(all="ignore"):  # infinite bounds and far breakpoints are as they should be
        return _found(read, totals, capacity)


def _found(read: Callable[[], Iterator[Block]], totals: Array, capacity: int) -> Roots:
    search = _Search(len(totals), Scales())
    surveyed = False
    for passes in range(1, LIMIT + 1):
        window = _Window(search, capacity)
        for block in read():
            points = points_of(block, search.scales, len(totals))
            if not surveyed:
                search.survey(block, points)
            window.add(points)
        if not surveyed and not search.scales.fit(search.largest):
            search = _Search(len(totals), Scales(*map(_power_of_two, search.largest)))
            continue
        if not surveyed:
            search.limit(totals)
            surveyed = True
        search.advance(window)
        if not search.active.any():
            least, most = map(search.scales.total, (search.least.sum, search.most.sum))
            return Roots(passes, least, most, search.tilt, search.scales)
    raise RuntimeError(f"no root after {LIMIT} passes: the blocks differ from pass to pass.")


class _Window:
    """What one pass gathers: F between `left` and `right` of each row.

    F(lambda) = value - slope (lambda - centre) + the terms of the kept points.
    """

    def __init__(self, search: "_Search", capacity: int) -> None:
        self.centre, self.left, self.right = search.centre, search.left.copy(), search.right.copy()
        self.capacity, self.active = capacity, search.active
        self.value, self.slope = Sum(len(self.centre)), Sum(len(self.centre))
        self.kept: Points | None = None

    def add(self, points: Points) -> None:
        if not self.active.all():
            points = points[self.active[points.row]]
        points = self._settle(points)
        self.kept = points if self.kept is None else self.kept.join(points)
        if len(self.kept) > self.capacity:
            self.kept = self._pruned(self.kept)

    def _settle(self, points: Points) -> Points:
        """Adds up the points that are straight in the window; returns the others."""
        inside = points.inside(self.left, self.right)
        terms, slopes = points.terms(self.centre), points.slopes(self.centre, self.centre)
        self.value.add(np.where(inside, 0.0, terms), points.row)
        self.slope.add(np.where(inside, 0.0, slopes), points.row)
        return points[inside]

    def _pruned(self, points: Points) -> Points:
        """The points nearest to the centre. The window ends before the next one."""
        centre, row = self.centre[points.row], points.row
        sides = points.start, points.stop
        within = [(x > self.left[row]) & (x < self.right[row]) for x in sides]
        gaps = [np.where(w, np.abs(x - centre), np.inf) for w, x in zip(within, sides, strict=True)]
        drop = _all_but_smallest(np.minimum(*gaps), row, max(self.capacity // self.active.sum(), 1))
        for w, x in zip(within, sides, strict=True):
            below, above = (drop[w[drop] & side[drop]] for side in (x <= centre, x >= centre))
            np.maximum.at(self.left, row[below], x[below])
            np.minimum.at(self.right, row[above], x[above])
        return self._settle(points)

    def at(self, tilt: Array) -> Array:
        """F."""
        line = self.value.sum - self.slope.sum * (tilt - self.centre)
        if self.kept is None:
            return line
        return line + by_row(self.kept.terms(tilt), self.kept.row, len(tilt))

    def steepness(self, left: Array, right: Array) -> Array:
        """-dF / d lambda between two ends with no breakpoint between them."""
        if self.kept is None:
            return self.slope.sum
        slopes = self.kept.slopes(left, right)
        return self.slope.sum + by_row(slopes, self.kept.row, len(left))

    def segment(self, totals: Array) -> tuple[Array, Array]:
        """The neighbouring breakpoints, or ends of the window, that have the root between them.

        -inf or inf where it lies beyond the first or the last of them.
        """
        found, start, count = self._marks()
        low, high = np.zeros_like(count), count.copy()
        while (low < high).any():
            middle = (low + high) // 2
            place = np.minimum(start + middle, len(found) - 1)
            tilt = np.where(low < high, found[place], self.centre)
            past = self.at(tilt) <= totals
            high = np.where((low < high) & past, middle, high)
            low = np.where((low < high) & ~past, middle + 1, low)
        padded = np.concatenate([found, [np.nan]])
        left = np.where(low > 0, padded[start + low - 1], -np.inf)
        return left, np.where(low < count, padded[start + low], np.inf)

    def _marks(self) -> tuple[Array, Rows, Rows]:
        """All breakpoints and finite ends of each row in order, where each row starts, how many."""
        rows = np.arange(len(self.centre))
        marks, row = [self.left, self.right], [rows, rows]
        if self.kept is not None:
            own = self.kept.row
            for x in (self.kept.start, self.kept.stop):
                within = (x > self.left[own]) & (x < self.right[own])
                marks.append(x[within])
                row.append(own[within])
        mark, label = np.concatenate(marks), np.concatenate(row)
        usable = np.isfinite(mark) & self.active[label]
        mark, label = mark[usable], label[usable]
        order = np.lexsort((mark, label))
        count = np.bincount(label, minlength=len(rows))
        return np.append(mark[order], 0.0), np.cumsum(count) - count, count


class _Search:
    """The bracket of each row's root, from pass to pass."""

    def __init__(self, rows: int, scales: Scales) -> None:
        self.scales, self.largest = scales, np.zeros(3)  # of mean, variance and weights
        self.left, self.right = np.full(rows, -np.inf), np.full(rows, np.inf)
        self.centre, self.tilt = np.zeros(rows), np.zeros(rows)
        self.active = np.ones(rows, dtype=bool)
        self.least, self.most, self.size = Sum(rows), Sum(rows), Sum(rows)
        self.first, self.last = np.full(rows, np.inf), np.full(rows, -np.inf)  # breakpoints
        self.totals, self.missed = np.zeros(rows), np.full(rows, np.inf)

    def survey(self, block: Block, points: Points) -> None:
        """What the field can reach, the size of its terms, and its outermost breakpoints."""
        given = block.mean, block.variance, block.weights
        largest = [np.max(np.abs(x), initial=0.0) for x in given]
        self.largest = np.maximum(self.largest, largest)
        rises = points.step > 0
        top = points.weight * np.where(rises, points.high, points.low)
        bottom = points.weight * np.where(rises, points.low, points.high)
        self.most.add(np.where(points.weight == 0, 0.0, top), points.row)
        self.least.add(np.where(points.weight == 0, 0.0, bottom), points.row)
        self.size.add(np.abs(points.terms(self.centre)), points.row)
        for x in (points.start, points.stop):
            seen = np.isfinite(x)
            np.minimum.at(self.first, points.row[seen], x[seen])
            np.maximum.at(self.last, points.row[seen], x[seen])

    def limit(self, totals: Array) -> None:
        """Checks what is asked for. Totals at an end of the reach have their root at once."""
        self.totals = totals / self.scales.weights / self.scales.mean
        least, most, size = self.least.sum, self.most.sum, self.size.sum + np.abs(self.totals)
        _check_reach(totals, *map(self.scales.total, (least, most, REACH * size)))
        moves = np.isfinite(self.first)
        first, last = (np.where(moves, x, 0.0) for x in (self.first, self.last))
        past = 4 * np.finfo(float).eps  # of a breakpoint: beyond it for certain
        first, last = first - past * np.abs(first), last + past * np.abs(last)
        for end, mark in ((most, np.minimum(first, 0.0)), (least, np.maximum(last, 0.0))):
            there = self.active & (np.abs(self.totals - end) <= ROUNDING * size)
            self.tilt = np.where(there, mark, self.tilt)
            self.active = self.active & ~there
        self.totals = np.clip(self.totals, least, most)
        self.left = np.where(np.isfinite(most) & moves, self.first, self.left)
        self.right = np.where(np.isfinite(least) & moves, self.last, self.right)

    def advance(self, window: _Window) -> None:
        """Takes the roots that lie in the window; a bracket and a centre for the others."""
        window.active = self.active
        size = self.size.sum + np.abs(self.totals)
        left, right = window.segment(self.totals)
        tilt = self._solve(window, left, right)
        missed = window.at(tilt) - self.totals
        hold = np.abs(missed) <= ROUNDING * size
        before = self.active & (right == window.left) & (window.left > self.left) & ~hold
        after = self.active & (left == window.right) & (window.right < self.right) & ~hold
        lost = np.abs(window.slope.sum * (tilt - window.centre)) * np.finfo(float).eps
        inside = self.active & ~before & ~after
        near = inside & (lost <= LOST * size)
        self.tilt = np.where(near, tilt, self.tilt)
        self.centre = np.where(inside & ~near, tilt, self.centre)
        self.active = self.active & ~near
        self.right = np.where(before, window.left, self.right)
        self.left = np.where(after, window.right, self.left)
        steep = window.steepness(tilt, tilt)
        guess = tilt + missed / steep
        self._recentre(before | after, tilt, guess, np.abs(missed) < self.missed / 4)
        self.missed = np.minimum(self.missed, np.abs(missed))

    def _recentre(self, moved: Flags, mark: Array, guess: Array, trusted: Flags) -> None:
        """The next centre: where F would meet the total if it went on straight, as long as that
        helps; else the middle of the bracket. Where that holds no number the mark is the root."""
        first, last = (np.where(moved, x, 0.0) for x in (self.first, self.last))
        a = np.maximum(self.left, first - np.where(first == 0, 1.0, np.abs(first)))
        b = np.minimum(self.right, last + np.where(last == 0, 1.0, np.abs(last)))
        middle = _middle(a, b)
        fit, fine = (((self.left < x) & (x < self.right)) for x in (guess, middle))
        newton = fit & (trusted | ~fine)
        self.centre = np.where(moved, np.where(newton, guess, middle), self.centre)
        done = moved & ~fit & ~fine
        self.tilt, self.active = np.where(done, mark, self.tilt), self.active & ~done

    def _solve(self, window: _Window, left: Array, right: Array) -> Array:
        """The root of the straight F between two ends; what rounding leaves is taken off twice."""
        nearest = np.where(np.abs(left) < np.abs(right), left, right)
        tilt = np.where(np.isfinite(nearest), nearest, window.centre)
        steep = window.steepness(left, right)
        usable = self.active & (steep > 0)
        left, right = np.maximum(left, window.left), np.minimum(right, window.right)
        for _ in range(3):
            missed = np.where(usable, window.at(tilt) - self.totals, 0.0)
            tilt = np.clip(tilt + missed / np.where(usable, steep, 1.0), left, right)
        return tilt


def _all_but_smallest(x: Array, row: Rows, count: int) -> Rows:
    """The places of all but the `count` smallest of each row; rows are sorted."""
    if row[0] == row[-1]:
        return np.argpartition(x, count)[count:] if count < len(x) else np.empty(0, np.intp)
    rank = np.arange(len(row)) - np.searchsorted(row, row)
    return np.lexsort((x, row))[rank >= count]


def _power_of_two(largest: float) -> float:
    """Near a number; to divide by it loses no digit."""
    return float(np.ldexp(1.0, int(np.frexp(largest)[1]))) if 0 < largest < np.inf else 1.0


def _middle(left: Array, right: Array) -> Array:
    """As many floating-point numbers on either side: in orders of magnitude, not in distance."""
    ends = []
    for x in (left, right):
        bits = x.view(np.int64)
        ends.append(np.where(bits >= 0, bits, np.iinfo(np.int64).min - bits))
    rank = ends[0] // 2 + ends[1] // 2
    bits = np.where(rank >= 0, rank, np.iinfo(np.int64).min - rank)
    return bits.view(np.float64)


def _check_reach(totals: Array, least: Array, most: Array, slack: Array) -> None:
    wrong = (totals < least - slack) | (totals > most + slack)
    if wrong.any():
        i = int(np.argmax(wrong))
        raise InfeasibleError(
            f"{int(wrong.sum())} of {len(totals)} totals cannot be met within the bounds. The "
            f"first is {totals[i]:.6g}, of row {i}, and fields within the bounds have totals from "
            f"{least[i]:.6g} to {most[i]:.6g}. Ways out: wider bounds, another total, or noise for "
            "the law."
        )
