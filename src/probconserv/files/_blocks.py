"""The sums of a block of points, and its update: Step 2 point by point, see `sums.py`.

A block has P points at I indices (times, say) that no law ties together, (N, I, P): N members, or
one, the mean. All is NumPy, which takes one thread: those of torch and of BLAS would fight with the
threads that work on other blocks.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..conditioning.sums import MOVES, Ensemble, MeanAndStd, is_hard
from ..support.errors import FAR, InfeasibleError
from ..support.tolerances import MET, REACH, ROUNDED, SINGLE
from ..support.values import span
from ._encoding import Packing, outside
from ._graph import Array, BlockRows, Made, Sums
from ._guard import own_moments
from ._rounding import HALF, as_half

Kind = MeanAndStd | Ensemble

# usual for values that are missing, with either sign; small ones may be values of a field
SMALL_MARKS = 999.0, 9999.0, 32767.0, 32768.0, 99999.0, 999999.0
MARKS = 1e15, 1e20, 9.999e20, 1e30, 9.99e33, 1e34, 1e35, 1e36, 9.96921e36, 1e37, 3.4028235e38
LIMIT = 100  # sums at most; it takes about six
HUGE = 1e200  # lambda that moves every point to its bound

NO_STD = np.zeros((1, 1))  # of members

# points that do not count may hold anything
quiet = np.errstate(invalid="ignore", over="ignore", divide="ignore")


@dataclass(frozen=True, eq=False)
class FileBlock:
    """The points of a block that count; all others are 0 here, and in G.

    Those are missing in some member, or in no row of a law.
    """

    u: Array  # (N, I, P)
    std: Array  # (1 or I, P), or (1, 1) for one number and for members
    rows: BlockRows
    out: Array | None  # (1 or I, P): the others; None if there are none
    lacking: Array  # (I): how many points some members have and others do not
    stated: BlockRows  # the rows with the points that are missing

    @classmethod
    @quiet
    def of(cls, rows: BlockRows, u: Array, std: Array = NO_STD) -> "FileBlock":
        out, lacking, stated = rows.left_out, np.zeros(u.shape[1]), rows
        if not np.isfinite(u.sum()):  # one NaN anywhere would show
            each = np.isnan(u)
            missing: Array = np.asarray(each.any(0))
            if len(u) > 1:
                some = missing & ~each.all(0)
                lacking = (some if out is None else some & ~out).sum(-1).astype(float)
            rows = rows.without(missing)
            out = missing if out is None else missing | out
        if out is not None:
            std = _zeroed(std, out) if std.shape[-1] == u.shape[-1] else std
            u = _zeroed(u, out)
        return cls(u, std.astype(float, copy=False), rows, out, lacking, stated)

    def filled(self, new: Array, old: Array) -> Array:
        """The new values, with the old ones at the points that do not count."""
        return new if self.out is None else np.where(self.out, old, new)

    def total(self, values: Array) -> Array:  # (N, I, P) to (I, N, K)
        """G times values."""
        return np.moveaxis(self.rows.apply(_zeroed(values, self.out)), 0, 1)


def _zeroed(values: Array, out: Array | None) -> Array:
    return values if out is None else np.where(out, values.dtype.type(0), values)


@quiet
def statistics(kind: Kind, block: FileBlock) -> dict[str, Array]:
    """The sums that the solve takes."""
    rows, u, std = block.rows, block.u, block.std
    total, size, mean, even = rows.apply(u), rows.sizes.whole, u[0], _is_even(kind, block)
    free: Any = None if even else freedom(kind, block)
    if isinstance(kind, Ensemble):
        mean, std = u.mean(0, dtype=float), np.sqrt(free)
    plain = rows.sizes is rows and mean.min(initial=0.0) >= 0
    terms = total.mean(0) if plain else rows.sizes.apply(np.abs(mean))
    spread = _summed(rows.sizes, std)
    common = spread if rows.sizes is rows else _summed(rows, std)
    if isinstance(kind, MeanAndStd):
        spread, own = spread * kind.knows_std, common * kind.knows_std
        common = np.zeros((len(own), kind.variables, rows.count))
        common[:, rows.variable] = own
    found = {
        "total": np.moveaxis(total, 0, 1),
        "terms": terms,
        "size": size,
        "count": rows.points,
        "stated": block.stated.points,
        "gram": std.item() ** 2 * rows.gram_of_freedom if even else rows.gram(free),
        "spread": spread,
        "common": common,
        "negative": (std.min(-1) < 0).astype(float),
        "marks": _marks(mean),
        "lacking": block.lacking,
    }
    if isinstance(kind, MeanAndStd) and _knows_none(kind, even, std):
        found |= own_moments(rows, mean)
    return {name: np.broadcast_to(x, (u.shape[1], *x.shape[1:])) for name, x in found.items()}


def _knows_none(kind: MeanAndStd, even: bool, std: Array) -> bool:
    """Whether no point has a standard deviation: what the field says of itself is then needed."""
    return not kind.knows_std or (even and not std.any())


def _summed(rows: BlockRows, std: Array) -> Array:  # (1 or I, K)
    return rows.whole * std if std.size == 1 else rows.apply(std)


def _marks(u: Array) -> Array:  # (I, P) to (I)
    """How many values look like a mark for missing ones: all others are ten times smaller."""
    found, largest = np.zeros(len(u)), np.maximum(u.max(-1), -u.min(-1))
    known = np.isclose(largest[:, None], (*SMALL_MARKS, *MARKS), rtol=SINGLE)
    for index in np.flatnonzero(known.any(-1)):
        size = np.abs(u[index])
        is_mark = size > largest[index] / 10
        same = (size[is_mark] == largest[index]).all()
        if same and not (is_mark.all() and known[index, : len(SMALL_MARKS)].any()):
            found[index] = is_mark.sum()
    return found


def _is_even(kind: Kind, block: FileBlock) -> bool:
    """Whether d is one number times the freedom of every point."""
    if isinstance(kind, Ensemble) or kind.how == "proportional":
        return False
    return block.std.size == 1 and block.rows.freedom is not None


def freedom(kind: Kind, block: FileBlock) -> Array:  # (I, P)
    """How far each point may move beside the others: d, or the variance of the members."""
    if isinstance(kind, Ensemble):
        return np.asarray(block.u.var(0, ddof=1, dtype=float))
    given = np.abs(block.u[0]) if kind.how == "proportional" else np.square(block.std)
    return given if block.rows.freedom is None else given * block.rows.freedom


@quiet
def moved(kind: Kind, block: FileBlock, steps: Sums) -> Array:  # (N, I, P)
    """The mean or the members of a block after the update, by all moves of the steps."""
    if isinstance(kind, Ensemble):
        return _moved_members(block, steps)
    new, rho = block.u[0].astype(float), kind.correlation
    even = _is_even(kind, block)
    g, d = (block.rows.freed, block.std**2) if even else (block.rows, freedom(kind, block))
    for move in range(steps["along"].shape[1]):
        shift = g.adjoint((1 - rho) * steps["along"][:, move])
        shift *= d
        new += shift
        if rho:
            new += rho**0.5 * block.std * steps["latent"][:, move, block.rows.variable, None]
    return new[None]


def _moved_members(block: FileBlock, steps: Sums) -> Array:
    x = block.u.astype(float, copy=False)
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
                own += rest * block.rows.adjoint(along[:, number])
        new = np.add(new, shift, out=shift)
    return new


@quiet
def sums_after(kind: Kind, block: FileBlock, steps: Sums) -> dict[str, Array]:
    """The totals after the update; `white` are `gram` and `common` with L^-1 G in place of G."""
    rows, found = block.rows, {"total": block.total(moved(kind, block, steps))}
    if isinstance(kind, Ensemble) or kind.disjoint:
        return found
    g = np.stack([rows.adjoint(one) for one in np.moveaxis(steps["white"], 1, 0)], 1)  # (I, K, P)
    common = np.zeros((len(g), kind.variables, rows.count))
    common[:, rows.variable] = (g * block.std[:, None]).sum(-1)
    white = np.matmul(g * freedom(kind, block)[:, None], np.swapaxes(g, 1, 2))
    return found | {"white": white, "white_common": common}


@quiet
def updated_std(kind: MeanAndStd, block: FileBlock, steps: Sums) -> Array:
    """The standard deviation of a block after the update.

    L^-1 has all digits where rows are nearly dependent and were settled.
    """
    least = steps["least"]
    if not kind.disjoint and is_hard(least).any():
        lost, least = _lost_to_white(kind, block, steps), 16 * np.sqrt(ROUNDED * least)
    else:
        lost = _lost(kind, block, steps)
    left = np.subtract(1, lost, out=lost)
    left[left <= least[:, None]] = 0.0
    left *= np.square(block.std)
    return np.sqrt(left, out=left)


def _lost(kind: MeanAndStd, block: FileBlock, steps: Sums) -> Array:
    """Of the variance of every point, the share that the laws take."""
    rows, rho = block.rows, kind.correlation
    lost = rows.quadratic(steps["inverse"])
    lost *= np.square(block.std)
    if rho:
        mixed = rows.adjoint(steps["mixed"][:, rows.variable])
        lost *= (1 - rho) ** 2
        lost += 2 * rho**0.5 * (1 - rho) * block.std * mixed
        lost += rho * steps["lost"][:, rows.variable, None]
    return lost


def _lost_to_white(kind: MeanAndStd, block: FileBlock, steps: Sums) -> Array:
    """The same as a sum of squares, in which nothing cancels: one for each row of L^-1 G."""
    rows, lost = block.rows, np.zeros(block.u.shape[1:])
    for row, common in enumerate(np.moveaxis(steps["white_common"][:, rows.variable], -1, 0)):
        along = (1 - kind.correlation) * block.std * rows.adjoint(steps["white"][:, row])
        lost += np.square(along + kind.correlation**0.5 * common[:, None])
    return lost


@quiet
def changes(
    kind: Kind, block: FileBlock, new: Array, old: Array, rounding: float
) -> dict[str, Array]:
    """The largest change, the largest in the value's own std, and how many changed by far, (I).

    The std of members is their spread at each point. Where none is known, those changed by far that
    a proportional correction turned round.
    """
    change = _zeroed(np.abs(new - old), block.out)
    largest = _largest(change)
    none = np.zeros_like(largest)
    if isinstance(kind, MeanAndStd) and not kind.knows_std:
        turned = _count(new * old < 0) if kind.how == "proportional" else none
        return {"change": largest, "in_std": none, "far": turned}
    each = isinstance(kind, MeanAndStd) and block.rows.freedom is None
    relative = np.divide(change, block.std if each else np.sqrt(freedom(kind, block)), out=change)
    most, far = _largest(relative), none
    if (most > FAR).any():  # it may be rounding, whatever the std
        relative[np.abs(new - old) <= 8 * rounding * np.abs(old)] = 0.0
        most, far = _largest(relative), _count(relative > FAR)
    return {"change": largest, "in_std": most, "far": far}


def _largest(x: Array) -> Array:  # (N, I, P) to (I)
    """0 if none is larger; missing values are left out."""
    return np.asarray(np.fmax.reduce(x, axis=-1, initial=0.0).max(0))


def _count(x: Array) -> Array:  # (N, I, P) to (I)
    return np.asarray(x.sum((0, -1)))


@dataclass(frozen=True, eq=False)
class ValueBounds:
    """Holds values within bounds while totals stay.

    A value u that the update gave becomes clip(u - lambda d g, low, high), with one lambda for each
    row so that its total stays, (I, N, K); d says how far a point may move. With independent points
    this is the most likely field within the bounds. The total falls with lambda, straight between
    places where a point gets stuck, so Newton's method ends at the root after a few sums over all
    points.
    """

    low: float
    high: float
    law: str
    noise: str = ""  # how a message names that way out, if it is one

    def clipped(self, new: Array, d: Array, block: FileBlock, tilt: Array) -> Array:
        """The values of a block."""
        return np.clip(new - block.rows.adjoint(np.moveaxis(tilt, 1, 0)) * d, self.low, self.high)

    def line(self, new: Array, d: Array, block: FileBlock, tilt: Array) -> dict[str, Array]:
        """The totals that a block has within the bounds, and how fast they fall with lambda."""
        u = self.clipped(new, d, block, tilt)
        slope = block.rows.squared.apply(np.where((u > self.low) & (u < self.high), d, 0.0))
        return {"value": block.total(u), "slope": np.moveaxis(slope, 0, 1)}

    def survey(self, new: Array, d: Array, block: FileBlock) -> dict[str, Array]:
        """The totals of a block, their terms, the least and the most that they can be, how fast
        they fall if all points are free, and the line where lambda is 0."""
        total = block.total(new)
        far = (self.clipped(new, d, block, np.full_like(total, end)) for end in (HUGE, -HUGE))
        least, most = map(block.total, far)
        terms = np.moveaxis(block.rows.sizes.apply(np.abs(new)), 0, 1)
        free = np.broadcast_to(block.rows.squared.apply(d)[:, None], total.shape)
        found = {"total": total, "terms": terms, "least": least, "most": most, "free": free}
        return found | self.line(new, d, block, np.zeros_like(total))

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
            missed = np.where(np.abs(missed) > MET * size, missed, 0.0)
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
            f"are {span(low, high)}. Ways out: wider bounds, another total{self.noise}."
        )
        error._place = int(place[0]), int(place[-1])
        raise error


@dataclass(frozen=True, eq=False)
class BlockWork:
    """What is done with the blocks of one variable.

    Steps are what the solve found, at the indices of a block.
    """

    kind: Kind
    places: Any  # `Places` of the system, for messages
    bounds: ValueBounds | None
    asked: tuple[float, float]  # the bounds as they were asked for
    dtypes: Sequence[Any]  # of the mean or the members, and of std if that is an array
    valid: tuple[float, float]  # as the file says
    packing: Packing | None  # of a variable that is stored as integers
    watched: bool  # whether the figures of the new values are wanted
    rounds: bool  # whether packed values are rounded so that totals stay

    @quiet
    def sums(self, method: str, block: FileBlock, steps: Sums, u: Array) -> dict[str, Array]:
        """Those of one pass over the blocks: statistics, after, survey or line.

        u: as it was, also at points that do not count.
        """
        if method == "statistics":
            before = {"invalid_before": _count(outside(u, self.valid))}
            return statistics(self.kind, block) | before
        if method == "after":
            return sums_after(self.kind, block, steps)
        assert self.bounds is not None
        given = moved(self.kind, block, steps), freedom(self.kind, block), block
        if method == "survey":
            return self.bounds.survey(*given)
        return self.bounds.line(*given, steps["tilt"])

    @quiet
    def updated(self, block: FileBlock, steps: Sums, u: Array, std: Array = NO_STD) -> Made:
        """The new values, their std if it is an array; the figures if they are watched.

        u, std: as they were, also at points that do not count.
        """
        new = moved(self.kind, block, steps)
        if self.bounds is not None:
            new = self.bounds.clipped(new, freedom(self.kind, block), block, steps["tilt"])
        if self.dtypes[0] == HALF:
            new = as_half(new, block.rows, self.asked, self.kind.disjoint)
        new = new.astype(self.dtypes[0], copy=False)
        if self.packing is not None and self.rounds:
            new = self.packing.rounded(new, block.rows, self.asked).astype(new.dtype)
        found = [block.filled(new, u)]
        if len(self.dtypes) == 2:
            assert isinstance(self.kind, MeanAndStd)
            found.append(block.filled(updated_std(self.kind, block, steps), std))
        return found, self._figures(found[0], u, block) if self.watched else {}

    def _figures(self, new: Array, old: Array, block: FileBlock) -> dict[str, Array]:
        """The totals of a block as a reader will see it, counts, and the largest of each index.

        Counted are values pushed out of the valid range and those that had been there, values out
        of the bounds that were asked for, now and before, and moves of many std. The largest are
        changes, also in std, and how far values lie below 0, now and before.
        """
        rounding, here = float(np.finfo(new.dtype).eps), new
        if self.packing is not None:
            new = self.packing.seen(new)
            here = np.nan_to_num(new, nan=0.0)  # what does not fit; writing it is refused
        invalid, before = outside(new, self.valid, 8 * rounding), outside(old, self.valid)
        return {
            "after": block.total(here),
            "invalid": _count(invalid & ~before),
            "outside": _count(outside(new, self.asked)),
            "outside_before": _count(outside(old, self.asked)),
            "below": _largest(-new),
            "below_before": _largest(-old),
            **changes(self.kind, block, new, old, rounding),
        }
