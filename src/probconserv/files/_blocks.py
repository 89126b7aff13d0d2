"""A block of points: its sums, its update, its figures. Step 2 point by point, see `sums.py`.

A block has P points at I indices (times, say) that no law ties together, (N, I, P): N members, or
one, the mean. All is NumPy, which takes one thread: those of torch and of BLAS would fight with the
threads that work on other blocks.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..conditioning.sums import (
    MOVES,
    Ensemble,
    Kind,
    MeanAndStd,
    check_usable,
    is_hard,
    solved_rows,
)
from ..support.errors import FAR, InfeasibleError
from ..support.rowwise import root_of_falling
from ..support.tolerances import REACH, ROUNDED
from ..support.values import span
from ._encoding import Packing, outside
from ._graph import Array, BlockRows, Made, Sums, quiet
from ._verdict import marks, own_moments

HUGE = 1e200  # lambda that moves every point to its bound
SETTLING = 2  # times that exact rows are settled at most

NO_STD = np.zeros((1, 1))  # of members

Total = Callable[[str, Sums], Sums]  # the sums of a pass over all points, by its name; steps


@dataclass(frozen=True, eq=False)
class FileBlock:
    """The points of a block that count; all others are 0 here, and in G.

    Those are missing in some member, or in no row of a law.
    """

    kind: Any  # that of the system; None where only rows are summed
    given: tuple[Array, Array]  # u and std as they were
    u: Array  # (N, I, P)
    std: Array  # (1 or I, P), or (1, 1) for one number and for members
    rows: BlockRows
    out: Array | None  # (1 or I, P): the others; None if there are none
    lacking: Array  # (I): how many points some members have and others do not
    stated: BlockRows  # the rows with the points that are missing

    @classmethod
    @quiet
    def of(cls, kind: Kind | None, rows: BlockRows, u: Array, std: Array = NO_STD) -> "FileBlock":
        given = u, std
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
        return cls(kind, given, u, std.astype(float, copy=False), rows, out, lacking, stated)

    @cached_property
    def d(self) -> Array:  # (1 or I, P)
        """How far each point may move by itself; of members, their variance."""
        if isinstance(self.kind, Ensemble):
            return np.asarray(self.u.var(0, ddof=1, dtype=float))
        given = np.abs(self.u[0]) if self.kind.how == "proportional" else np.square(self.std)
        return given if self.rows.freedom is None else given * self.rows.freedom

    @property
    def even(self) -> float | None:
        """std^2, if d is that times the freedom of every point, which blocks share."""
        is_mean = isinstance(self.kind, MeanAndStd) and self.kind.how != "proportional"
        known = is_mean and self.std.size == 1 and self.rows.freedom is not None
        return float(self.std.item() ** 2) if known else None

    def filled(self, new: Array, old: Array) -> Array:
        """The new values, with the old ones at the points that do not count."""
        return new if self.out is None else np.where(self.out, old, new)

    def total(self, values: Array) -> Array:  # (N, I, P) to (I, N, K)
        """G times values."""
        return np.moveaxis(self.rows.apply(_zeroed(values, self.out)), 0, 1)


def _zeroed(values: Array, out: Array | None) -> Array:
    return values if out is None else np.where(out, values.dtype.type(0), values)


def _largest(x: Array) -> Array:  # (N, I, P) to (I)
    """0 if none is larger; missing values are left out."""
    return np.asarray(np.fmax.reduce(x, axis=-1, initial=0.0).max(0))


def _count(x: Array) -> Array:  # (N, I, P) to (I)
    return np.asarray(x.sum((0, -1)))


@quiet
def statistics(block: FileBlock) -> dict[str, Array]:
    """The sums that the solve takes: G mu, G F^T, G D G^T; and what the report tells."""
    kind, rows, u, std, mean = block.kind, block.rows, block.u, block.std, block.u[0]
    if isinstance(kind, Ensemble):
        mean, std = u.mean(0, dtype=float), np.sqrt(block.d)
    total, size, even = rows.apply(u), rows.sizes.whole, block.even
    plain = rows.sizes is rows and mean.min(initial=0.0) >= 0
    spread = _summed(rows.sizes, std)
    common = spread if rows.sizes is rows else _summed(rows, std)
    if isinstance(kind, MeanAndStd):
        spread, own = spread * kind.knows_std, common * kind.knows_std
        common = np.zeros((len(own), kind.variables, rows.count))
        common[:, rows.variable] = own
    found = {
        "total": np.moveaxis(total, 0, 1),
        "terms": total.mean(0) if plain else rows.sizes.apply(np.abs(mean)),
        "size": size,
        "count": rows.points,
        "stated": block.stated.points,
        "gram": rows.gram(block.d) if even is None else even * rows.gram_of_freedom,
        "spread": spread,
        "common": common,
        "negative": (std.min(-1) < 0).astype(float),
        "marks": marks(mean),
        "lacking": block.lacking,
    }
    if isinstance(kind, MeanAndStd) and (not kind.knows_std or (std.size == 1 and not std.any())):
        found |= own_moments(rows, mean)  # no point has a std: the field speaks of itself
    return {name: np.broadcast_to(x, (u.shape[1], *x.shape[1:])) for name, x in found.items()}


def _summed(rows: BlockRows, std: Array) -> Array:  # (1 or I, K)
    return rows.whole * std if std.size == 1 else rows.apply(std)


@quiet
def moved(block: FileBlock, steps: Sums) -> Array:  # (N, I, P)
    """The mean or the members of a block after the update, by all moves of the steps."""
    if isinstance(block.kind, Ensemble):
        return _moved_members(block, steps)
    new, rho, even = block.u[0].astype(float), block.kind.correlation, block.even
    for move in range(steps["along"].shape[1]):
        along = (1 - rho) * steps["along"][:, move]
        if even is None:
            shift = block.rows.adjoint(along)
            shift *= block.d
        else:
            shift = block.rows.freed.adjoint(even * along)
        new += shift
        if rho:
            new += rho**0.5 * block.std * steps["latent"][:, move, block.rows.variable, None]
    return new[None]


def _moved_members(block: FileBlock, steps: Sums) -> Array:
    x, variance = block.u.astype(float, copy=False), block.d
    deviation, new, std = x - x.mean(0), x, np.sqrt(variance)
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
def sums_after(block: FileBlock, steps: Sums) -> dict[str, Array]:
    """The totals after the update; `white` are `gram` and `common` with L^-1 G in place of G."""
    kind, rows, found = block.kind, block.rows, {"total": block.total(moved(block, steps))}
    if isinstance(kind, Ensemble) or kind.disjoint:
        return found
    g = np.stack([rows.adjoint(one) for one in np.moveaxis(steps["white"], 1, 0)], 1)  # (I, K, P)
    common = np.zeros((len(g), kind.variables, rows.count))
    common[:, rows.variable] = (g * block.std[:, None]).sum(-1)
    white = np.matmul(g * block.d[:, None], np.swapaxes(g, 1, 2))
    return found | {"white": white, "white_common": common}


@quiet
def updated_std(block: FileBlock, steps: Sums) -> Array:
    """The standard deviation of a block after the update.

    L^-1 has all digits where rows are nearly dependent and were settled.
    """
    least, lost = steps["least"], _lost
    if not block.kind.disjoint and is_hard(least).any():
        least, lost = 16 * np.sqrt(ROUNDED * least), _lost_to_white
    taken = lost(block, steps)
    left = np.subtract(1, taken, out=taken)
    left[left <= least[:, None]] = 0.0
    left *= np.square(block.std)
    return np.sqrt(left, out=left)


def _lost(block: FileBlock, steps: Sums) -> Array:
    """Of the variance of every point, the share that the laws take."""
    rows, rho = block.rows, block.kind.correlation
    lost = rows.quadratic(steps["inverse"])
    lost *= np.square(block.std)
    if rho:
        mixed = rows.adjoint(steps["mixed"][:, rows.variable])
        lost *= (1 - rho) ** 2
        lost += 2 * rho**0.5 * (1 - rho) * block.std * mixed
        lost += rho * steps["lost"][:, rows.variable, None]
    return lost


def _lost_to_white(block: FileBlock, steps: Sums) -> Array:
    """The same as a sum of squares, in which nothing cancels: one for each row of L^-1 G."""
    rows, rho, lost = block.rows, block.kind.correlation, np.zeros(block.u.shape[1:])
    for row, common in enumerate(np.moveaxis(steps["white_common"][:, rows.variable], -1, 0)):
        along = (1 - rho) * block.std * rows.adjoint(steps["white"][:, row])
        lost += np.square(along + rho**0.5 * common[:, None])
    return lost


@quiet
def changes(block: FileBlock, new: Array, rounding: float) -> dict[str, Array]:
    """The largest change, the largest in the value's own std, and how many changed by far, (I).

    The std of members is their spread at each point. Where none is known, those changed by far that
    a proportional correction turned round.
    """
    kind, (old, _) = block.kind, block.given
    change = _zeroed(np.abs(new - old), block.out)
    largest = _largest(change)
    most = far = np.zeros_like(largest)
    if isinstance(kind, MeanAndStd) and not kind.knows_std:
        far = _count(new * old < 0) if kind.how == "proportional" else far
        return {"change": largest, "in_std": most, "far": far}
    relative = np.divide(change, np.sqrt(block.d), out=change)
    most = _largest(relative)
    if (most > FAR).any():  # it may be rounding, whatever the std
        relative[np.abs(new - old) <= 8 * rounding * np.abs(old)] = 0.0
        most, far = _largest(relative), _count(relative > FAR)
    return {"change": largest, "in_std": most, "far": far}


@dataclass(frozen=True, eq=False)
class ValueBounds:
    """Holds values within bounds while totals stay.

    A value u that the update gave becomes clip(u - d g mu, low, high), with one mu for each row so
    that its total stays, (I, N, K); d says how far a point may move. With independent points this
    is the most likely field within the bounds. `root_of_falling` takes a few sums over all points.
    """

    low: float
    high: float
    law: str
    noise: str = ""  # how a message names that way out, if it is one

    def clipped(self, new: Array, block: FileBlock, mu: Array) -> Array:
        """The values of a block."""
        fall = block.rows.adjoint(np.moveaxis(mu, 1, 0)) * block.d
        return np.clip(new - fall, self.low, self.high)

    def line(self, new: Array, block: FileBlock, mu: Array) -> dict[str, Array]:
        """The totals that a block has within the bounds, and how fast they fall with mu."""
        u = self.clipped(new, block, mu)
        slope = block.rows.squared.apply(np.where((u > self.low) & (u < self.high), block.d, 0.0))
        return {"value": block.total(u), "slope": np.moveaxis(slope, 0, 1)}

    def survey(self, new: Array, block: FileBlock) -> dict[str, Array]:
        """The totals of a block, their terms, the least and the most that they can be, how fast
        they fall if all points are free, and the line where mu is 0."""
        total = block.total(new)
        far = (self.clipped(new, block, np.full_like(total, end)) for end in (HUGE, -HUGE))
        least, most = map(block.total, far)
        terms = np.moveaxis(block.rows.sizes.apply(np.abs(new)), 0, 1)
        free = np.broadcast_to(block.rows.squared.apply(block.d)[:, None], total.shape)
        found = {"total": total, "terms": terms, "least": least, "most": most, "free": free}
        return found | self.line(new, block, np.zeros_like(total))

    @quiet
    def root(self, line: Callable[[Array], Sums], seen: Sums) -> Array:
        """mu of every row, from the sums of `line` and `survey` over all points."""
        total, least, most = seen["total"], seen["least"], seen["most"]
        size = seen["terms"] + np.abs(total)
        self._check_reach(total, least, most, REACH * size)
        sums = FallingSums(line, seen, np.clip(total, least, most), size)
        return np.asarray(root_of_falling(sums, np.zeros_like(total)))

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
class FallingSums:
    """Totals within bounds, as sums over all points that fall in mu."""

    line: Callable[[Array], Sums]
    seen: Sums  # where mu is 0
    total: Array  # what they must be
    size: Array

    def at(self, mu: Array) -> tuple[Array, Array]:
        now = self.line(mu) if mu.any() else self.seen
        return now["value"] - self.total, now["slope"]

    def scale(self) -> Array:
        return self.size

    def farther(self, mu: Array, off: Array, number: int) -> Array:
        steep = self.seen["free"] / 2.0**number  # all are stuck
        return np.asarray(mu + off / np.where(steep > 0, steep, 1.0))

    def taken(self, index: Array) -> None:
        return None  # a pass is over all points


@dataclass(frozen=True, eq=False)
class BlockWork:
    """What is done with the blocks of one variable.

    What the solve takes are sums over all points. Where a block has all points of its indices these
    are sums over the block: it is read, solved and updated at once.
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

    def run(self, method: str, *given: Any) -> Made:
        """One pass over a block: that of a method of `sums`, "update", or "all" of them.

        given: its arrays, its rows and the steps, which are what the solve found; before it, b, its
        noise and the numbers of the indices.
        """
        *arrays, rows, steps = given
        block = FileBlock.of(self.kind, rows, *arrays)
        if method == "update":
            return self._updated(block, steps)
        if method != "all":
            return (), self.sums(method, block, steps)
        sums = self.sums("statistics", block, {})
        found = self.solved(lambda name, these: self.sums(name, block, these), sums, steps)
        new, figures = self._updated(block, found)
        return new, {**sums, **figures}

    @quiet
    def sums(self, method: str, block: FileBlock, steps: Sums) -> dict[str, Array]:
        """Those of one pass over the blocks: statistics, after, survey or line."""
        if method == "statistics":
            before = {"invalid_before": _count(outside(block.given[0], self.valid))}
            return statistics(block) | before
        if method == "after":
            return sums_after(block, steps)
        assert self.bounds is not None
        new = moved(block, steps)
        if method == "survey":
            return self.bounds.survey(new, block)
        return self.bounds.line(new, block, steps["mu"])

    def solved(self, total: Total, sums: Sums, given: Sums) -> Sums:
        """What the update needs: the steps of the solve, and mu that holds values within bounds.

        Nearly dependent rows are settled: the totals after the update are summed, and what exact
        rows miss is moved as well.
        """
        known = given["value"], given["noise"]
        with self.places.named(given["numbers"]):
            check_usable(sums)
            if isinstance(self.kind, MeanAndStd) and self.kind.is_rowwise:
                steps = solved_rows(self.kind, sums, *known)
            else:
                from ..conditioning import sums_solve  # needs torch

                steps = sums_solve.solved(self.kind, sums, *known)
                for _ in range(SETTLING if len(self.kind.laws) > 1 else 0):
                    if is_hard(steps["least"]).any():
                        after = total("after", steps)
                        steps = sums_solve.settled(self.kind, steps, sums, after, *known)
            if self.bounds is not None:

                def line(mu: Array) -> Sums:
                    return total("line", {**steps, "mu": mu})

                steps["mu"] = self.bounds.root(line, total("survey", steps))
        return steps

    @quiet
    def _updated(self, block: FileBlock, steps: Sums) -> Made:
        """The new values, their std if it is an array; the figures if they are watched."""
        new, (u, std) = moved(block, steps), block.given
        if self.bounds is not None:
            new = self.bounds.clipped(new, block, steps["mu"])
        new = new.astype(self.dtypes[0], copy=False)
        if self.packing is not None and self.rounds:
            new = self.packing.rounded(new, block.rows, self.asked).astype(new.dtype)
        found = [block.filled(new, u)]
        if len(self.dtypes) == 2:
            found.append(block.filled(updated_std(block, steps), std))
        return found, self._figures(found[0], block) if self.watched else {}

    def _figures(self, new: Array, block: FileBlock) -> dict[str, Array]:
        """The totals of a block as a reader will see it, counts, and the largest of each index.

        Counted are values pushed out of the valid range and those that had been there, values out
        of the bounds that were asked for, now and before, and moves of many std. The largest are
        changes, also in std, and how far values lie below 0, now and before.
        """
        rounding, here, (old, _) = float(np.finfo(new.dtype).eps), new, block.given
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
            **changes(block, new, rounding),
        }
