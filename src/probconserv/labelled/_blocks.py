"""The sums of a block of points, and its update: what Step 2 does point by point, see `_sums.py`.

Arrays of a block are (I, P): P points at I indices (times, say) that no law ties together; members
are (N, I, P). Points that are NaN count in no sum and stay NaN. All is NumPy, which takes one
thread: those of torch and of BLAS would fight with the threads that work on other blocks.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._errors import FAR, InfeasibleError
from .._sums import MOVES, ROUNDING, Ensemble, MeanAndStd, is_hard
from .._values import span
from ._encoding import Packing, outside
from ._graph import Array, BlockRows, Made, Sums

Kind = MeanAndStd | Ensemble

MARKS = (1e15, 1e20, 9.999e20, 1e30, 1e35, 1e36, 9.96921e36)  # usual for values that are missing
LARGE = 1e9  # on average: a field with such a mark at one of a million points is larger
LIMIT = 100  # sums at most; it takes about six
MISSED = 1e-14  # of a row's terms
REACH = 1e-12  # of a row's terms: a total so little out of reach is taken as the end of it
HUGE = 1e200  # lambda that moves every point to its bound

# points that do not count may hold anything
quiet = np.errstate(invalid="ignore", over="ignore", divide="ignore")


@quiet
def totals(u: Array, rows: BlockRows) -> tuple[Array, Array, Array | None]:
    """G u over the points that are not NaN, u with 0 elsewhere, and which points are missing."""
    total = rows.apply(u)
    if np.isfinite(total).all():  # one NaN anywhere would show, whatever its weight
        return total, u, None
    missing = _missing(u, rows)
    u = np.where(missing, 0.0, u)
    return rows.apply(u), u, missing


def _missing(u: Array, rows: BlockRows) -> Array:
    return np.isnan(u) if rows.left_out is None else np.isnan(u) | rows.left_out


def _in_all(kind: Kind, u: Array) -> Array:
    """With NaN in all members at the points that one of them lacks: these are in no sum."""
    lacks = isinstance(kind, Ensemble) and not _finite(u)
    return np.where(np.isnan(u).any(0), np.nan, u) if lacks else u


def weight_there(rows: BlockRows, missing: Array | None, count: int) -> Array:  # (I, K)
    """The sum of G over the points that are there, at that many indices."""
    found = rows.whole if missing is None else rows.apply((~missing).astype(float))
    return np.broadcast_to(found, (count, rows.count))


@quiet
def statistics(kind: Kind, *block: Any) -> dict[str, Array]:
    """The sums that the solve takes: of mean and std, or of members, and G."""
    found = _of_members(kind, *block) if isinstance(kind, Ensemble) else _of_moments(kind, *block)
    indices = block[0].shape[-2]
    return {name: np.broadcast_to(x, (indices, *x.shape[1:])) for name, x in found.items()}


def _of_moments(kind: MeanAndStd, mean: Array, std: Array, rows: BlockRows) -> dict[str, Array]:
    total, mean, missing = totals(mean, rows)
    std = std.astype(float, copy=False)
    if missing is not None:
        std = np.where(missing, 0.0, std)
    if rows.left_out is not None and not _finite(std):
        std = np.where(rows.left_out, 0.0, std)
    found = _about(mean, total, missing, rows)
    even = _is_even(kind, std, rows)
    gram = rows.gram_of_freedom if even else rows.gram(independent(kind, mean, std, rows))
    found["gram"] = std.item() ** 2 * gram if even else gram
    if kind.knows_std:
        found |= _together(np.broadcast_to(std, (len(std), mean.shape[-1])), rows)
    else:
        none = np.zeros((1, rows.count))
        found |= {"spread": none, "common": none, "negative": none[:, 0]}
    common = np.zeros((len(found["common"]), kind.variables, rows.count))
    common[:, rows.variable] = found["common"]
    return found | {"total": total, "common": common}


def _of_members(kind: Ensemble, x: Array, rows: BlockRows) -> dict[str, Array]:
    x = x.astype(float, copy=False)
    total, _, missing = totals(x, rows)
    lacking = None  # points that some members have and others do not
    if missing is not None:
        lacking = missing.any(0) & ~missing.all(0)
        missing = np.asarray(missing.any(0))  # a point that one member lacks is missing in all
        x = np.where(missing, 0.0, x)
        total = rows.apply(x)
    mean = x.mean(0)
    variance = np.square(x - mean).sum(0) / (kind.members - 1)
    found = _about(mean, total.mean(0), missing, rows) | _together(np.sqrt(variance), rows)
    found["lacking"] = np.zeros(len(mean)) if lacking is None else lacking.sum(-1).astype(float)
    return found | {"total": indices_first(total), "gram": rows.gram(variance)}


def _about(mean: Array, total: Array, missing: Array | None, rows: BlockRows) -> dict[str, Array]:
    """Sums of |g| and |g u| of every row; `mean` is 0 where missing."""
    size = weight_there(rows.sizes, missing, len(mean))
    positive = rows.sizes is rows and mean.min(initial=0.0) >= 0
    terms = total if positive else rows.sizes.apply(np.abs(mean))
    count = weight_there(rows.present, missing, len(mean))
    return {"size": size, "count": count, "terms": terms, "marks": _marks(mean, terms, size)}


def _marks(u: Array, terms: Array, size: Array) -> Array:  # (I)
    """How many values look like a mark for missing ones that the file does not declare."""
    if not (terms > LARGE * size).any():
        return np.zeros(len(u))
    found: Any = sum(np.isclose(np.abs(u), mark, rtol=1e-5) for mark in MARKS)
    return found.sum(-1).astype(float)


def _together(std: Array, rows: BlockRows) -> dict[str, Array]:
    """Sums of |g| std and g std; `std` is 0 where missing."""
    spread = rows.sizes.apply(std)
    common = spread if rows.sizes is rows else rows.apply(std)
    negative = (std.min(-1) < 0).astype(float)
    return {"spread": spread, "common": common, "negative": negative}


def independent(kind: MeanAndStd, mean: Array, std: Array, rows: BlockRows) -> Array:
    """d of every point, see `MeanAndStd`."""
    given = np.abs(mean) if kind.how == "proportional" else np.square(std)
    return given if rows.freedom is None else given * rows.freedom


def _is_even(kind: MeanAndStd, std: Array, rows: BlockRows) -> bool:
    """Whether d is one number times the freedom of every point."""
    return std.size == 1 and rows.freedom is not None and kind.how != "proportional"


def freedom(kind: Kind, *block: Any) -> Array:  # (I, P)
    """How far each point may move beside the others: d, or the variance of the members."""
    if isinstance(kind, MeanAndStd):
        return independent(kind, *block)
    return np.asarray(block[0].var(0, ddof=1, dtype=float))


@quiet
def moved(kind: Kind, *given: Any) -> Array:  # the block, and the steps
    """The mean or the members of a block after the update, by all moves of the steps."""
    return _moved_members(*given) if isinstance(kind, Ensemble) else _moved_mean(kind, *given)


def _moved_mean(kind: MeanAndStd, mean: Array, std: Array, rows: BlockRows, steps: Sums) -> Array:
    new, std = mean.astype(float), std.astype(float, copy=False)
    even = _is_even(kind, std, rows)
    g, d = (rows.freed, std**2) if even else (rows, independent(kind, mean, std, rows))
    for move in range(steps["along"].shape[1]):
        shift = g.adjoint((1 - kind.correlation) * steps["along"][:, move])
        shift *= d
        new += shift
        if kind.correlation:
            latent = steps["latent"][:, move, rows.variable, None]
            new += kind.correlation**0.5 * std * rows.counted * latent
    return _kept(new, mean, rows)


def _moved_members(x: Array, rows: BlockRows, steps: Sums) -> Array:
    x = x.astype(float, copy=False)
    deviation, new = x - x.mean(0), x
    variance = np.square(deviation).sum(0) / (len(x) - 1)
    std = np.sqrt(variance)
    for move in range(steps["along"].shape[1]):
        along, mixing, latent, free = (steps[name][:, move] for name in MOVES)
        # not einsum, which is slow here, nor one product for all indices, which would copy
        shift = np.empty_like(x)
        for index, own in enumerate(mixing):
            np.matmul(own.T, deviation[:, index], out=shift[:, index])
        if free.any() or latent.any():
            rest = variance * free[:, None]
            for number, own in enumerate(shift):
                own += std * latent[:, number, None]
                own += rest * rows.adjoint(along[:, number])
        shift *= rows.counted
        new = np.add(new, shift, out=shift)
    if not _finite(new):  # a point that one member lacks stays as it is in the others
        np.copyto(new, x, where=np.isnan(new))
    return _kept(new, x, rows)


@quiet
def sums_after(kind: Kind, *block_and_steps: Any) -> dict[str, Array]:
    """The totals after the update; `white` are `gram` and `common` with L^-1 G in place of G."""
    *block, rows, steps = block_and_steps
    total, *_ = totals(_in_all(kind, moved(kind, *block_and_steps)), rows)
    found = {"total": indices_first(total)}
    if isinstance(kind, Ensemble) or kind.disjoint:
        return found
    missing = _missing(block[0], rows)
    mean, std = (np.where(missing, 0.0, each) for each in block)
    g = np.stack([rows.adjoint(one) for one in np.moveaxis(steps["white"], 1, 0)], 1)  # (I, K, P)
    d = independent(kind, mean, std, rows)[:, None]
    common = np.zeros((len(mean), kind.variables, rows.count))
    common[:, rows.variable] = (g * std[:, None]).sum(-1)
    return found | {"white": np.matmul(g * d, np.swapaxes(g, 1, 2)), "white_common": common}


@quiet
def updated_std(kind: MeanAndStd, mean: Array, std: Array, rows: BlockRows, steps: Sums) -> Array:
    """The standard deviation of a block after the update; as it was where the mean is NaN.

    L^-1 has all digits where rows are nearly dependent and were settled.
    """
    std = std.astype(float, copy=False)
    least = steps["least"]
    if not rows.disjoint and is_hard(least).any():
        lost, least = _lost_to_white(kind, std, rows, steps), 16 * np.sqrt(ROUNDING * least)
    else:
        lost = _lost(kind, std, rows, steps)
    left = np.subtract(1, lost, out=lost)
    left[left <= least[:, None]] = 0.0
    left *= np.square(std)
    new = np.sqrt(left, out=left)
    if not _finite(mean):
        np.copyto(new, std, where=np.isnan(mean))
    return _kept(new, std, rows)


def _lost(kind: MeanAndStd, std: Array, rows: BlockRows, steps: Sums) -> Array:
    """Of the variance of every point, the share that the laws take."""
    lost = rows.quadratic(steps["inverse"])
    lost *= np.square(std)
    if kind.correlation:
        shared, rest = kind.correlation**0.5 * rows.counted, 1 - kind.correlation
        lost *= rest**2
        lost += 2 * shared * rest * std * rows.adjoint(steps["mixed"][:, rows.variable])
        lost += np.square(shared) * steps["lost"][:, rows.variable, None]
    return lost


def _lost_to_white(kind: MeanAndStd, std: Array, rows: BlockRows, steps: Sums) -> Array:
    """The same as a sum of squares, in which nothing cancels: one for each row of L^-1 G."""
    lost: Any = 0.0
    for row, common in enumerate(np.moveaxis(steps["white_common"][:, rows.variable], -1, 0)):
        along = (1 - kind.correlation) * std * rows.adjoint(steps["white"][:, row])
        lost = lost + np.square(along + kind.correlation**0.5 * rows.counted * common[:, None])
    return np.asarray(lost)


@quiet
def changes(kind: Kind, new: Array, *block: Any, rounding: float) -> dict[str, Array]:  # (I) each
    """The largest change, the largest in the value's own std, and how many changed by far.

    The std of members is their spread at each point. Where none is known, those changed by far that
    a proportional correction turned round.
    """
    old = block[0]
    change = np.abs(new - old)
    largest = _largest(change)
    if isinstance(kind, MeanAndStd) and not kind.knows_std:
        none = np.zeros_like(largest)
        turned = (new * old < 0).sum(-1) if kind.how == "proportional" else none
        return {"change": largest, "in_std": none, "far": turned}
    relative = np.divide(change, np.sqrt(freedom(kind, *block)), out=change)
    most, far = _largest(relative), np.zeros_like(largest)
    if (most > FAR).any():  # it may be rounding, whatever the std
        relative[np.abs(new - old) <= 8 * rounding * np.abs(old)] = 0.0
        most, far = _largest(relative), _count(relative > FAR)
    return {"change": largest, "in_std": most, "far": far}


def _largest(x: Array) -> Array:  # (..., I, P) to (I)
    """Missing values are left out."""
    found = np.fmax.reduce(x, axis=-1, initial=0.0)
    return found if found.ndim == 1 else found.max(0)


def _below(u: Array) -> Array:  # (..., I, P) to (I)
    """How far the least value lies below 0."""
    found = -np.fmin.reduce(u, axis=-1, initial=0.0)
    return np.asarray(found if found.ndim == 1 else found.max(0))


def _count(x: Array) -> Array:  # (I, P) or (N, I, P) to (I)
    return np.asarray(x.sum(-1) if x.ndim == 2 else x.sum((0, -1)))


def indices_first(total: Array) -> Array:  # (I, K), or (N, I, K) to (I, N, K)
    return total if total.ndim == 2 else np.moveaxis(total, 0, 1)


def _kept(new: Array, old: Array, rows: BlockRows) -> Array:
    """`new`, with the points that no law counts as they were, whatever their std."""
    if rows.left_out is not None and not _finite(new):  # else their move is 0
        np.copyto(new, old, where=rows.left_out)
    return new


def _finite(values: Array) -> bool:
    """Whether all are finite, by one sum; one that overflows says no as well."""
    return bool(np.isfinite(values.sum()))


@dataclass(frozen=True, eq=False)
class Bounds:
    """Holds values within bounds while totals stay.

    A value u that the update gave becomes clip(u - lambda d g, low, high), with one lambda for each
    row so that its total stays, (I, K) or (I, N, K); d says how far a point may move. With
    independent points this is the most likely field within the bounds. The total falls with lambda,
    straight between places where a point gets stuck, so Newton's method ends at the root after a
    few sums over all points.
    """

    low: float
    high: float
    law: str

    def clipped(self, new: Array, d: Array, rows: BlockRows, tilt: Array) -> Array:
        """The values of a block."""
        tilt = tilt if tilt.ndim == 2 else np.moveaxis(tilt, 1, 0)
        moved = np.clip(new - rows.adjoint(tilt) * d, self.low, self.high)
        if rows.left_out is not None:
            moved = np.where(rows.left_out, new, moved)
        return np.where(np.isnan(moved), new, moved)

    def line(self, new: Array, d: Array, rows: BlockRows, tilt: Array) -> dict[str, Array]:
        """The totals that a block has within the bounds, and how fast they fall with lambda."""
        u = self.clipped(new, d, rows, tilt)
        free = np.where((u > self.low) & (u < self.high), d, 0.0)
        return {"value": _total(rows, u), "slope": _total(rows.squared, free)}

    def survey(self, new: Array, d: Array, rows: BlockRows) -> dict[str, Array]:
        """The totals of a block, their terms, the least and the most that they can be, how fast
        they fall if all points are free, and the line where lambda is 0."""
        total, terms = _total(rows, new), _total(rows.sizes, np.abs(new))
        far = (self.clipped(new, d, rows, np.full_like(total, end)) for end in (HUGE, -HUGE))
        least, most = (_total(rows, u) for u in far)
        free = _total(rows.squared, np.where(np.isnan(new), 0.0, d))
        found = {"total": total, "terms": terms, "least": least, "most": most, "free": free}
        return found | self.line(new, d, rows, np.zeros_like(total))

    @quiet
    def tilts(self, line: Callable[[Array], Sums], seen: Sums) -> Array:
        """lambda of every row, from the sums of `line` and `survey` over all points."""
        total, least, most = seen["total"], seen["least"], seen["most"]
        size = seen["terms"] + np.abs(total)
        self._check_reach(total, least, most, REACH * size)
        total, tilt = np.clip(total, least, most), np.zeros_like(total)
        left, right = np.full_like(total, -np.inf), np.full_like(total, np.inf)
        now = seen
        for count in range(LIMIT):
            missed = now["value"] - total
            missed = np.where(np.abs(missed) > MISSED * size, missed, 0.0)
            if not missed.any():
                break
            left, right = np.where(missed > 0, tilt, left), np.where(missed < 0, tilt, right)
            slope = now["slope"]
            steep = np.where(slope > 0, slope, seen["free"] / 2.0**count)  # all stuck: ever farther
            guess = tilt + missed / np.where(steep > 0, steep, 1.0)
            middle = np.where(np.isfinite(left) & np.isfinite(right), (left + right) / 2, guess)
            tilt = np.where((guess > left) & (guess < right), guess, middle)
            now = line(tilt)
        return tilt

    def _check_reach(self, total: Array, least: Array, most: Array, slack: Array) -> None:
        wrong = (total < least - slack) | (total > most + slack)
        if not wrong.any():
            return
        place = tuple(np.argwhere(wrong)[0])
        ends = (float(x[place]) for x in (least, most))
        low, high = (x if abs(x) < HUGE else math.copysign(math.inf, x) for x in ends)
        error = InfeasibleError(
            f"{int(wrong.sum())} totals cannot be met within `minimum` and `maximum`. The first of "
            f"{self.law} is {float(total[place]):.6g}, and totals of fields within these bounds "
            f"are {span(low, high)}. Ways out: wider bounds, another total, `noise`."
        )
        error._place = int(place[0]), int(place[-1])
        raise error


def _total(rows: BlockRows, u: Array) -> Array:  # (I, K) or (I, N, K)
    return indices_first(rows.apply(np.where(np.isnan(u), 0.0, u)))


@dataclass(frozen=True, eq=False)
class BlockWork:
    """What is done with the blocks of one variable.

    A block is mean and std, or members, and G. Steps are what the solve found, at its indices.
    """

    kind: Kind
    places: Any  # `Places` of the system, for messages
    bounds: Bounds | None
    asked: tuple[float, float]  # the bounds as they were asked for
    dtypes: Sequence[Any]  # of the mean or the members, and of std if that is an array
    valid: tuple[float, float]  # as the file says
    packing: Packing | None  # of a variable that is stored as integers
    watched: bool  # whether the figures of the new values are wanted
    rounds: bool  # whether packed values are rounded so that totals stay

    @quiet
    def sums(self, method: str, *block_and_steps: Any) -> dict[str, Array]:
        """Those of one pass over the blocks: statistics, after, survey or line."""
        *block, steps = block_and_steps
        if method == "statistics":
            return statistics(self.kind, *block)
        if method == "after":
            return sums_after(self.kind, *block, steps)
        assert self.bounds is not None
        given = moved(self.kind, *block, steps), freedom(self.kind, *block), block[-1]
        if method == "survey":
            return self.bounds.survey(*given)
        return self.bounds.line(*given, steps["tilt"])

    @quiet
    def updated(self, *block_and_steps: Any) -> Made:
        """The new values, their std if it is an array; the figures if they are watched."""
        *block, steps = block_and_steps
        new = moved(self.kind, *block, steps)
        if self.bounds is not None:
            new = self.bounds.clipped(new, freedom(self.kind, *block), block[-1], steps["tilt"])
        new = new.astype(self.dtypes[0], copy=False)
        if self.packing is not None and self.rounds:
            new = self.packing.rounded(new, block[-1], self.asked).astype(new.dtype)
        found = [new]
        if len(self.dtypes) == 2:
            assert isinstance(self.kind, MeanAndStd)
            found.append(updated_std(self.kind, *block_and_steps))
        return found, self._figures(new, *block) if self.watched else {}

    def _figures(self, new: Array, *block: Any) -> dict[str, Array]:
        """The totals of a block as a reader will see it, counts, and the largest of each index.

        Counted are values pushed out of the valid range and those that had been there, values out
        of the bounds that were asked for, now and before, and moves of many std. The largest are
        changes, also in std, and how far values lie below 0, now and before.
        """
        rounding, old = float(np.finfo(new.dtype).eps), block[0]
        new = new if self.packing is None else self.packing.seen(new)
        invalid, before = outside(new, self.valid, 8 * rounding), outside(old, self.valid)
        return {
            "after": indices_first(totals(_in_all(self.kind, new), block[-1])[0]),
            "invalid": _count(invalid & ~before),
            "invalid_before": _count(before),
            "outside": _count(outside(new, self.asked)),
            "outside_before": _count(outside(old, self.asked)),
            "below": _below(new),
            "below_before": _below(old),
            **changes(self.kind, new, *block, rounding=rounding),
        }
