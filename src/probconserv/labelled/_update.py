"""Step 2 for a system: statistics, solve and update, in one pass over its blocks or in several.

What the solve takes are sums over all points. Where a block has all points of its indices these are
sums over the block: it is read, solved and updated at once. Else all blocks are summed first, and
read again for the update. `solve` is the same function for both; only `total` differs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr

from .._sums import Ensemble, MeanAndStd, check_usable, is_hard, solve_rows
from . import _blocks as blocks
from ._blocks import Bounds, Kind, by_index, quiet
from ._encoding import Packing, next_held, valid_limits
from ._graph import Array, pack, packed_size, unpack
from ._plan import Places, Plan

SETTLING = 2  # times that exact rows are settled at most
COUNTS = ("invalid", "invalid_before", "outside", "outside_before", "far")  # see `_figures`
LARGEST = ("change", "in_std", "below", "below_before")  # changes, also in std; minus the least
NO_BOUNDS = (-np.inf, np.inf)

Total = Callable[..., Array]  # of the name of a method of `BlockWork`, and of what it takes


def _outside(u: Array, ends: tuple[float, float], slack: float = 0.0) -> Array:
    """slack: of the ends, as a share; a value on one of them may move by rounding."""
    if ends == NO_BOUNDS:
        return np.zeros((u.shape[-2], 1), bool)
    low, high = map(np.float64, ends)  # not rounded to the type of u
    if slack:
        low, high = low - slack * abs(low), high + slack * abs(high)
    return (u < low) | (u > high)


@dataclass(frozen=True, eq=False)
class BlockWork:
    """What is done with the blocks of one variable.

    A block is mean and std, or members, and G. Steps are what `solve` found, at its indices.
    """

    kind: Kind
    places: Places
    bounds: Bounds | None
    asked: tuple[float, float]  # the bounds as they were asked for
    dtypes: Sequence[Any]  # of the mean or the members, and of std if that is an array
    valid: tuple[float, float]  # as the file says
    packing: Packing | None  # of a variable that is stored as integers
    watched: bool  # whether the figures of the new values are wanted
    rounds: bool  # whether packed values are rounded so that totals stay

    def size(self, method: str) -> int:
        """How many sums a method returns for each index."""
        totals = prod(self.kind.sums["total"])
        return {
            "statistics": packed_size(self.kind.sums),
            "after": packed_size(self.kind.after),
            "survey": 7 * totals,
            "line": 2 * totals,
            "figures": totals + len(COUNTS) + len(LARGEST),
        }[method]

    def statistics(self, *block: Any) -> Array:
        return pack(self.kind.sums, blocks.statistics(self.kind, *block))

    def after(self, *block_and_steps: Any) -> Array:
        """The sums that `settle` takes."""
        block, steps = self._split(block_and_steps)
        parts = _parts(self.kind, steps)
        new = blocks.moved(self.kind, *block, *parts)
        found = {"total": by_index(blocks.totals(new, block[-1])[0])}
        if isinstance(self.kind, MeanAndStd) and not self.kind.disjoint:
            mean, std, rows = block
            found |= blocks.white_sums(self.kind, mean, std, rows, parts[0]["white"])
        return pack(self.kind.after, found)

    def survey(self, *block_and_steps: Any) -> Array:
        return self._bounded(Bounds.survey, *block_and_steps)

    def line(self, *block_and_steps: Any) -> Array:
        return self._bounded(Bounds.line, *block_and_steps)

    @quiet
    def _bounded(self, method: Callable[..., Array], *block_and_steps: Any) -> Array:
        block, steps, *tilt = self._split(block_and_steps)
        new = blocks.moved(self.kind, *block, *_parts(self.kind, steps))
        return method(self.bounds, new, blocks.freedom(self.kind, *block), block[-1], *tilt)

    def _split(self, given: Any) -> Any:
        """The block, and what comes with it."""
        count = 2 if isinstance(self.kind, Ensemble) else 3
        return given[:count], *given[count:]

    @quiet
    def updated(self, *block_and_steps: Any) -> tuple[Array, ...]:
        """The new values, their std if it is an array, the figures if they are watched."""
        block, steps, *tilt = self._split(block_and_steps)
        parts = _parts(self.kind, steps)
        new = blocks.moved(self.kind, *block, *parts)
        if self.bounds is not None:
            free = blocks.freedom(self.kind, *block)
            new = self.bounds.clipped(new, free, block[-1], *tilt)
        new = new.astype(self.dtypes[0], copy=False)
        if self.packing is not None and self.rounds:
            new = self.packing.rounded(new, block[-1], self.asked).astype(new.dtype)
        found = [new]
        if len(self.dtypes) == 2:
            assert isinstance(self.kind, MeanAndStd)
            found.append(blocks.updated_std(self.kind, *block, *parts))
        if self.watched:
            found.append(self._figures(new, *block))
        return tuple(found)

    def _figures(self, new: Array, *block: Any) -> Array:
        """The totals of a block as a reader will see it, and what `COUNTS` and `LARGEST` name.

        These are values pushed out of the valid range and those that had been there; values out of
        the bounds that were asked for, now and before; moves of many std; the largest change, also
        in std; how far the least value lies below 0, now and before.
        """
        rounding, old = float(np.finfo(new.dtype).eps), block[0]
        new = whole = new if self.packing is None else self.packing.seen(new)
        if isinstance(self.kind, Ensemble) and np.isnan(new).any():  # what one lacks is in none
            whole = np.where(np.isnan(new).any(0), np.nan, new)
        total = by_index(blocks.totals(whole, block[-1])[0])
        invalid, before = _outside(new, self.valid, 8 * rounding), _outside(old, self.valid)
        counts = [invalid & ~before, before, *(_outside(u, self.asked) for u in (new, old))]
        largest, relative, far = blocks.changes(self.kind, new, *block, rounding=rounding)
        least = [-np.fmin.reduce(by_index(u), axis=1, initial=np.inf) for u in (new, old)]
        more = [*(by_index(each).sum(-1) for each in counts), far, largest, relative, *least]
        return np.concatenate([total, np.stack(more, axis=1)], axis=1)

    def at_once(self, *block_and_given: Any) -> tuple[Array, ...]:
        """As `updated`, of a block with all points of its indices; with statistics before figures.

        given: b, its noise and the numbers of the indices.
        """
        block, *given = self._split(block_and_given)

        def total(method: str, *steps: Array) -> Array:
            found: Array = getattr(self, method)(*block, *steps)
            return found

        sums = self.statistics(*block)
        *new, figures = self.updated(*block, *solve(self, total, sums, *given))
        return *new, np.concatenate([sums, figures], axis=1)


def solve(
    work: BlockWork, total: Total, sums: Array, value: Array, noise: Array, numbers: Array
) -> list[Array]:  # (I, C) each
    """What the update needs: the steps of the solve, and lambda that holds values within bounds.

    Nearly dependent rows are settled: the totals after the update are summed, and what exact rows
    miss is moved as well. total: sums over all points that a method of `work` makes.
    """
    kind = work.kind
    parts = unpack(kind.sums, sums)
    if isinstance(kind, Ensemble):
        value = value.reshape(len(value), -1, len(kind.laws))
    with work.places.named(numbers):
        steps = pack(kind.steps, _solved(kind, parts, value, noise))
        for _ in range(0 if kind.is_easy else SETTLING):
            if not is_hard(_parts(kind, steps)[0]["least"]).any():
                break
            from .._sums_solve import settled

            after = unpack(kind.after, total("after", steps))
            more = pack(kind.moves, settled(kind, parts, after, value, noise))
            steps = np.concatenate([steps, more], axis=1)
    if work.bounds is None:
        return [steps]
    seen = total("survey", steps)
    return [steps, work.bounds.tilts(lambda tilt: total("line", steps, tilt), seen, numbers)]


def _solved(kind: Kind, sums: dict[str, Array], *given: Array) -> dict[str, Array]:
    check_usable(sums)
    if isinstance(kind, MeanAndStd) and kind.is_rowwise:
        return solve_rows(kind, sums, *given)
    from .._sums_solve import solved

    return solved(kind, sums, *given)


def _parts(kind: Kind, steps: Array) -> list[dict[str, Array]]:
    """The steps of the solve, and the moves that settle rows."""
    first, each = packed_size(kind.steps), packed_size(kind.moves)
    more = range(first, steps.shape[-1], each)
    return [
        unpack(kind.steps, steps[..., :first]),
        *(unpack(kind.moves, steps[..., start : start + each]) for start in more),
    ]


def is_whole(plan: Plan) -> bool:
    """Whether every block holds all points of its indices, so that it need not be read twice."""
    (arrays, *others), (rows, *_) = plan.arrays.values(), plan.rows.values()
    weights = (each for law in rows.laws for each in (law.weights, law.labels) if each is not None)
    cut = (each.chunksizes.get(dim, ()) for each in (*arrays, *weights) for dim in rows.points)
    return not others and all(len(sizes) < 2 for sizes in cut)


def is_lazy(plan: Plan) -> bool:
    """Whether some array is dask's, so that nothing large may be computed unasked."""
    return any(
        isinstance(each.data, da.Array) for arrays in plan.arrays.values() for each in arrays
    )


def first_pass(plan: Plan) -> Any:  # (*index, C)
    """The sums over all points of a system, now or lazily."""
    return _summed(plan, {name: _block_work(plan, name) for name in plan.arrays}, "statistics")


def _block_work(plan: Plan, name: str, watched: bool = False, stored: bool = False) -> BlockWork:
    arrays, bounds = plan.arrays[name], None
    if plan.is_bounded:
        low, high = (next_held(arrays[0], *end) for end in zip(plan.bounds, (1, -1), strict=True))
        bounds = Bounds(low, high, plan.laws[0].law.label, plan.places)
    return BlockWork(
        plan.kind,
        plan.places,
        bounds,
        plan.bounds,
        [array.dtype for array in arrays if array.dims],  # one number is no variable
        valid_limits(arrays[0]) or NO_BOUNDS,
        Packing.of(arrays[0]),
        watched,
        stored and plan.kind.disjoint,
    )


def _summed(plan: Plan, works: Mapping[str, BlockWork], method: str, *steps: Array) -> Any:
    """The sums of all variables of a system."""
    first, *others = (
        plan.rows[name].summed(getattr(work, method), plan.arrays[name], work.size(method), *steps)
        for name, work in works.items()
    )
    return sum(others, start=first)


Sights = dict[str, dict[str, Any]]


def update(
    plan: Plan, watched: bool, stored: bool, compute: Callable[[Any], Any]
) -> tuple[dict[str, tuple[xr.Variable, ...]], Any, Sights]:
    """The new arrays of every variable, the sums before, and what was seen if they are watched.

    compute: for sums that are needed on the way, if one pass is not enough.
    """
    at_once = watched and is_whole(plan)
    works = {name: _block_work(plan, name, watched, stored) for name in plan.arrays}
    shape = [plan.sizes[dim] for dim in plan.index]
    given = [plan.value().reshape(*shape, -1), plan.noise(), plan.numbers]
    sums: Any = None
    if not at_once:
        sums = compute(first_pass(plan))

        def total(method: str, *steps: Array) -> Array:
            found: Array = compute(
                _summed(plan, works, method, *(x.reshape(*shape, -1) for x in steps))
            )
            return found.reshape(prod(shape), -1)

        first = next(iter(works.values()))
        flat: Any = (x.reshape(prod(shape), -1) for x in (sums, *given))
        given = [x.reshape(*shape, -1) for x in solve(first, total, *flat)]
    found, seen = {}, {}
    for name, work in works.items():
        rows, arrays = plan.rows[name], plan.arrays[name]
        size = work.size("statistics") * at_once + work.size("figures") * watched
        call = work.at_once if at_once else work.updated
        new = rows.mapped(call, arrays, work.dtypes, size, *given)
        if watched:
            figures, start = new.pop(), work.size("statistics") * at_once
            added, most = figures.sum(axis=rows.of_points), figures.max(axis=rows.of_points)
            sums = added[..., :start] if at_once else sums
            seen[name] = {"sums": added[..., start:], "most": most[..., start:]}
        named = (xr.Variable(rows.all, data).transpose(*arrays[0].dims) for data in new)
        found[name] = tuple(named)
    return found, sums, seen


def seen_after(plan: Plan, seen: Sights) -> tuple[Array, Sights]:
    """The totals of a system, (*index, K) or (*index, N K), and how each variable moved, (*index).

    That is what `COUNTS` and `LARGEST` name, and what else was seen of it.
    """
    size = prod(plan.kind.sums["total"])
    total = sum(each["sums"][..., :size] for each in seen.values())
    moves = {}
    for name, each in seen.items():
        counts, largest = (np.moveaxis(each[key], -1, 0)[size:] for key in ("sums", "most"))
        figures = dict(zip(COUNTS, counts, strict=False))
        figures |= dict(zip(LARGEST, largest[len(COUNTS) :], strict=True))
        moves[name] = figures | {key: each[key] for key in each.keys() - {"sums", "most"}}
    return total, moves
