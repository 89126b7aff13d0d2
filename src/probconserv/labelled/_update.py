"""Step 2 for a dataset: sums, solve and update of every system, lazily where data are lazy."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
from dask.base import compute

from .._sums import Ensemble, MeanAndStd, check_usable, is_hard, solve_rows
from . import _blocks as blocks
from ._blocks import Kind, by_index, quiet
from ._bounds import Bounds
from ._encoding import Packing
from ._graph import STEPS, SUMS, Array, Shapes, blockwise, pack, packed_size, unpack
from ._plan import Plan

ROWS, MEMBERS = "rows of the laws", "members of the totals"  # axes that no dataset has
SETTLING = 2  # times that exact rows are settled at most
COUNTS = ("invalid", "invalid_before", "outside", "outside_before", "far")  # see `Watch`
LARGEST = ("change", "in_std", "below", "below_before")  # changes, also in std; minus the least
NO_BOUNDS = (-np.inf, np.inf)


def first_pass(plan: Plan) -> Any:  # (*index, C)
    """The sums over all points of a system."""
    return _summed(plan, partial(_statistics, kind=plan.kind), packed_size(plan.kind.sums))


def _statistics(*block: Any, kind: Kind) -> Array:
    return pack(kind.sums, blocks.statistics(kind, *block))


def _summed(plan: Plan, call: Callable[..., Array], size: int, *steps: Any) -> Any:
    """The sums of all variables of a system."""
    each = plan.arrays.items()
    first, *others = (plan.rows[name].summed(call, arrays, size, *steps) for name, arrays in each)
    return sum(others, start=first)


def one_pass(plan: Plan) -> bool:
    """Whether every block holds all points of its indices, so that it need not be read twice."""
    if plan.is_bounded and len(plan.arrays) > 1:
        return False
    return not any(
        len(array.chunksizes[dim]) > 1
        for name, arrays in plan.arrays.items()
        for array in arrays
        for dim in plan.rows[name].points
        if dim in array.chunksizes
    )


def solve(plan: Plan, sums: Any) -> Any:  # (*index, C)
    """What the update needs, from sums that are computed or lazy.

    Nearly dependent rows are settled: the totals after the update are summed, and what exact rows
    miss is moved as well. Where sums are lazy nobody knows yet whether that is needed.
    """
    kind = plan.kind
    call, size = partial(_sums_after, kind=kind), packed_size(kind.after)
    steps = _of_sums(plan, _solved, kind.steps, sums)
    for _ in range(0 if kind.is_easy else SETTLING):
        if not isinstance(steps, da.Array) and not _hard(kind, steps):
            break
        totals = _summed(plan, call, size, steps)
        if not isinstance(steps, da.Array):
            (totals,) = compute(totals)
        more = _of_sums(plan, _settled, kind.moves, sums, totals)
        steps = np.concatenate([steps, more], -1)
    return steps


def _of_sums(
    plan: Plan, function: Callable[..., dict[str, Array]], shapes: Shapes, *sums: Any
) -> Any:  # (*index, C)
    """The function of sums, b and noise at every index, now or lazily."""

    def call(*arrays: Array) -> Array:
        lead = arrays[0].shape[:-1]
        first, *rest, numbers = (a.reshape(prod(lead), *a.shape[len(lead) :]) for a in arrays)
        with places.named(numbers):
            found = function(kind, unpack(kind.sums, first), *rest)
        return pack(shapes, found).reshape(*lead, -1)

    kind, places, index = plan.kind, plan.places, plan.index
    given = plan.value(), plan.noise(), plan.numbers[..., 0]
    if not isinstance(sums[0], da.Array):
        return call(*sums, *given)
    tail = (MEMBERS, ROWS) if plan.member is not None else (ROWS,)
    names = [(*index, f"{SUMS} {number}") for number in range(len(sums))]
    names += [(*index, *tail), (*index, ROWS), index]
    pairs = list(zip((*sums, *given), names, strict=True))
    new = {STEPS: packed_size(shapes)}
    return blockwise(call, (*index, STEPS), pairs, float, new_axes=new)


def _solved(kind: Kind, sums: dict[str, Array], *given: Array) -> dict[str, Array]:
    check_usable(sums)
    if isinstance(kind, MeanAndStd) and kind.is_rowwise:
        return solve_rows(kind, sums, *given)
    from .._sums_solve import solved

    return solved(kind, sums, *given)


def _settled(kind: Kind, sums: dict[str, Array], after: Array, *given: Array) -> dict[str, Array]:
    from .._sums_solve import settled

    return settled(kind, sums, unpack(kind.after, after), *given)


def _sums_after(*block: Any, kind: Kind) -> Array:
    """The sums that `settle` takes, where rows are nearly dependent; else 0."""
    *arrays, rows, steps = block
    if not _hard(kind, steps):
        return np.zeros((len(steps), packed_size(kind.after)))
    parts = _parts(kind, steps)
    new = blocks.moved(kind, *arrays, rows, *parts)
    found = {"total": by_index(blocks.totals(new, rows)[0])}
    if isinstance(kind, MeanAndStd) and not kind.disjoint:
        found |= blocks.white_sums(kind, *arrays, rows, parts[0]["white"])
    return pack(kind.after, found)


def _hard(kind: Kind, steps: Array) -> bool:
    return bool(is_hard(_parts(kind, steps)[0]["least"]).any())


def _parts(kind: Kind, steps: Array) -> list[dict[str, Array]]:
    """The steps of the solve, and the moves that settle rows."""
    first, each = packed_size(kind.steps), packed_size(kind.moves)
    more = range(first, steps.shape[-1], each)
    return [
        unpack(kind.steps, steps[..., :first]),
        *(unpack(kind.moves, steps[..., start : start + each]) for start in more),
    ]


@dataclass(frozen=True, eq=False)
class Watch:
    """What a variable may be, and how it is stored.

    The figures are what `COUNTS` and `LARGEST` name: values pushed out of the valid range and those
    that had been there; values out of the bounds that were asked for, now and before; moves of many
    std; the largest change, also in std; how far the least value lies below 0, now and before.
    """

    valid: tuple[float, float] = NO_BOUNDS  # as the file says
    packing: Packing | None = None  # of a variable that is stored as integers
    rounds: bool = False  # whether packed values are rounded so that totals stay

    def figures(
        self, kind: Kind, asked: tuple[float, float], new: Array, old: Array, *std_and_rows: Any
    ) -> Array:
        """The totals of a block as a reader will see it, and its figures."""
        rounding, rows = float(np.finfo(new.dtype).eps), std_and_rows[-1]
        new = whole = new if self.packing is None else self.packing.seen(new)
        if isinstance(kind, Ensemble) and np.isnan(new).any():  # what one lacks counts in none
            whole = np.where(np.isnan(new).any(0), np.nan, new)
        total = by_index(blocks.totals(whole, rows)[0])
        invalid, before = _outside(new, self.valid, 8 * rounding), _outside(old, self.valid)
        counts = [invalid & ~before, before, _outside(new, asked), _outside(old, asked)]
        largest, relative, far = blocks.changes(kind, new, old, *std_and_rows, rounding=rounding)
        least = [-np.fmin.reduce(by_index(u), axis=1, initial=np.inf) for u in (new, old)]
        more = [*(by_index(each).sum(-1) for each in counts), far, largest, relative, *least]
        return np.concatenate([total, np.stack(more, axis=1)], axis=1)


def _outside(u: Array, ends: tuple[float, float], slack: float = 0.0) -> Array:
    """slack: of the ends, as a share; a value on one of them may move by rounding."""
    if ends == NO_BOUNDS:
        return np.zeros((u.shape[-2], 1), bool)
    low, high = map(np.float64, ends)  # not rounded to the type of u
    if slack:
        low, high = low - slack * abs(low), high + slack * abs(high)
    return (u < low) | (u > high)


@dataclass(frozen=True, eq=False)
class _Update:
    """The update of a block: its new values, their std if it has a std, the figures if watched."""

    kind: Kind
    bounds: Bounds | None
    asked: tuple[float, float]
    dtypes: Sequence[Any]
    watch: Watch | None

    @quiet
    def __call__(self, *block: Any) -> tuple[Array, ...]:
        count = 1 if isinstance(self.kind, Ensemble) else 2
        given, (steps, *more) = block[: count + 1], block[count + 1 :]
        rows, parts = given[-1], _parts(self.kind, steps)
        new = blocks.moved(self.kind, *given, *parts)
        if self.bounds is not None:
            new = self.bounds.within(new, blocks.freedom(self.kind, *given), rows, *more)
        new = new.astype(self.dtypes[0], copy=False)
        found = [new]
        if len(self.dtypes) == 2:
            assert isinstance(self.kind, MeanAndStd)
            found.append(blocks.updated_std(self.kind, *given, *parts))
        if self.watch is not None:
            if self.watch.packing is not None and self.watch.rounds:
                rounded = self.watch.packing.rounded(new, rows, self.asked)
                found[0] = new = rounded.astype(new.dtype)
            found.append(self.watch.figures(self.kind, self.asked, new, *given))
        return tuple(found)


Sights = dict[str, dict[str, Any]]


def second_pass(
    plan: Plan, steps: Any, watches: Mapping[str, Watch] | None = None
) -> tuple[dict[str, tuple[xr.Variable, ...]], Sights]:
    """The moved arrays of every variable, in the order of their axes in the dataset.

    With watches also what `seen_after` takes: of each variable the sums and the largest entries of
    the figures of its blocks.
    """
    found, seen = {}, {}
    whole, more = one_pass(plan), []
    if plan.is_bounded:
        more = [plan.numbers if whole else _tilts(plan, steps)]
    for name, arrays in plan.arrays.items():
        rows, watch = plan.rows[name], None if watches is None else watches[name]
        bounds = Bounds.of(plan, arrays[0], whole) if plan.is_bounded else None
        dtypes = [array.dtype for array in arrays if array.dims]  # one number is no variable
        size = 0 if watch is None else _total_size(plan) + len(COUNTS) + len(LARGEST)
        call = _Update(plan.kind, bounds, plan.bounds, dtypes, watch)
        new = rows.mapped(call, arrays, dtypes, size, steps, *more)
        if watch is not None:
            figures = new.pop()
            axes = rows.of_points
            seen[name] = {"sums": figures.sum(axis=axes), "most": figures.max(axis=axes)}
        named = (xr.Variable(rows.all, data).transpose(*arrays[0].dims) for data in new)
        found[name] = tuple(named)
    return found, seen


def _total_size(plan: Plan) -> int:
    return prod(plan.kind.sums["total"])


def seen_after(plan: Plan, seen: Sights) -> tuple[Array, Sights]:
    """The totals of a system, (*index, K) or (*index, N K), and how each variable moved, (*index).

    That is what `COUNTS` and `LARGEST` name, and what else was seen of it.
    """
    size = _total_size(plan)
    total = sum(each["sums"][..., :size] for each in seen.values())
    moves = {}
    for name, each in seen.items():
        counts, largest = (np.moveaxis(each[key], -1, 0)[size:] for key in ("sums", "most"))
        figures = dict(zip(COUNTS, counts, strict=False))
        figures |= dict(zip(LARGEST, largest[len(COUNTS) :], strict=True))
        moves[name] = figures | {key: each[key] for key in each.keys() - {"sums", "most"}}
    return total, moves


def _tilts(plan: Plan, steps: Array) -> Array:  # (*index, K) or (*index, N K)
    """lambda of every row that holds its values within bounds; all blocks are read now."""
    bounds = {name: Bounds.of(plan, arrays[0]) for name, arrays in plan.arrays.items()}

    def sums(function: Callable[..., Array], columns: int, *tilt: Array) -> Any:
        found: Any = 0.0
        for name, arrays in plan.arrays.items():
            call = partial(_bounded, function=partial(function, bounds[name]), kind=plan.kind)
            size = columns * _total_size(plan)
            found = found + plan.rows[name].summed(call, arrays, size, steps, *tilt)
        return compute(found)[0]

    seen = sums(Bounds.survey, 7)
    first = next(iter(bounds.values()))
    return first.tilts(lambda tilt: sums(Bounds.line, 2, tilt), seen, plan.numbers)


@quiet
def _bounded(*block: Any, function: Callable[..., Array], kind: Kind) -> Array:
    """A function of the moved values of a block and of how far each may move."""
    count = 1 if isinstance(kind, Ensemble) else 2
    given, (steps, *tilt) = block[: count + 1], block[count + 1 :]
    new = blocks.moved(kind, *given, *_parts(kind, steps))
    return function(new, blocks.freedom(kind, *given), given[-1], *tilt)


def lazy(plans: Sequence[Plan]) -> bool:
    """Whether some array is dask's, so that nothing large may be computed unasked."""
    fields = (arrays for plan in plans for arrays in plan.arrays.values())
    return any(isinstance(array.data, da.Array) for arrays in fields for array in arrays)
