"""Step 2 for a dataset: sums, solve and update of every system, lazily where data are lazy."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
from dask.base import compute

from .._errors import InfeasibleError
from .._sums import Ensemble, MeanAndStd, check_usable, is_hard, solve_rows
from .._values import span
from . import _blocks as blocks
from ._blocks import Kind, by_index, quiet
from ._encoding import is_packed, packed_range, unpacked_after_packing
from ._graph import STEPS, SUMS, Array, BlockRows, Shapes, blockwise, pack, packed_size, unpack
from ._plan import Places, Plan

ROWS, MEMBERS = "rows of the laws", "members of the totals"  # axes that no dataset has
SETTLING = 2  # times that exact rows are settled at most
COUNTS = ("invalid", "invalid_before", "outside", "outside_before", "far")  # see `_after`
LARGEST = ("change", "in_std", "below", "below_before")  # changes, also in std; minus the least
NO_BOUNDS = (-np.inf, np.inf)
LIMIT = 100  # sums at most; it takes about six
ROUNDING = 1e-14  # of a row's terms
REACH = 1e-12  # of a row's terms: a total so little out of reach is taken as the end of it
HUGE = 1e200  # lambda that moves every point to its bound
View = Callable[[Array], Array]  # what a reader of the output will see of its values


@dataclass(frozen=True, eq=False)
class Bounds:
    """The least and the most that a value may be, as the file can hold it.

    A value u that the update gave becomes clip(u - lambda d g, low, high), with one lambda for each
    row so that its total stays; d says how far a point may move, see `MeanAndStd`, or is the
    variance of the members. With independent points this is the most likely field within the
    bounds. The total falls with lambda, straight between places where a point gets stuck, so
    Newton's method ends at the root after a few sums over all points.
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
    for name, arrays in plan.arrays.items():
        points = plan.rows[name].points
        for array in arrays:
            if array.chunks and any(
                len(array.chunksizes[dim]) > 1 for dim in points if dim in array.dims
            ):
                return False
    return True


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
    call = partial(
        _packed, function=function, kind=plan.kind, shapes=shapes, places=Places.of(plan)
    )
    value, noise = plan.value(), plan.noise()
    sizes = [plan.sizes[dim] for dim in plan.index]
    numbers = np.arange(prod(sizes)).reshape(sizes)
    if not isinstance(sums[0], da.Array):
        return call(*sums, value, noise, numbers)
    tail = (MEMBERS, ROWS) if plan.member is not None else (ROWS,)
    pairs = [(each, (*plan.index, f"{SUMS} {number}")) for number, each in enumerate(sums)]
    pairs += [(value, (*plan.index, *tail)), (noise, (*plan.index, ROWS)), (numbers, plan.index)]
    new = {STEPS: packed_size(shapes)}
    return blockwise(call, (*plan.index, STEPS), pairs, float, new_axes=new)


def _packed(
    *arrays: Array,
    function: Callable[..., dict[str, Array]],
    kind: Kind,
    shapes: Shapes,
    places: Places,
) -> Array:
    """numbers, the last of the arrays, says which indices these are."""
    lead = arrays[0].shape[:-1]
    sums, *rest, numbers = (a.reshape(prod(lead), *a.shape[len(lead) :]) for a in arrays)
    with places.named(numbers):
        found = function(kind, unpack(kind.sums, sums), *rest)
    return pack(shapes, found).reshape(*lead, -1)


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
    *_, rows, steps = block
    if not _hard(kind, steps):
        return np.zeros((len(steps), packed_size(kind.after)))
    found = {"total": by_index(blocks.totals(_moved(*block, kind=kind), rows)[0])}
    if isinstance(kind, MeanAndStd) and not kind.disjoint:
        (mean, std), white = block[:2], _parts(kind, steps)[0]["white"]
        sums = blocks.white_sums(kind, mean, std, rows, white)
        found |= dict(zip(("white", "white_common"), sums, strict=True))
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
    """What is done with the values of a variable after the update, and looked at.

    valid: the ends of its valid range. stored: rounds a block to what the file will hold. view:
    what a reader will see of the values.
    """

    valid: tuple[float, float] = NO_BOUNDS
    stored: Callable[[Array, BlockRows], Array] | None = None
    view: View | None = None


Sights = dict[str, dict[str, Any]]


def second_pass(
    plan: Plan, steps: Any, watches: Mapping[str, Watch] | None = None
) -> tuple[dict[str, tuple[xr.Variable, ...]], Sights]:
    """The moved arrays of every variable, in the order of their axes in the dataset.

    With watches also what `seen_after` takes: of each variable the sums and the largest entries of
    what `_after` says of its blocks.
    """
    found, seen, kind = {}, {}, plan.kind
    calls: dict[str, Any] = dict.fromkeys(plan.arrays, partial(_moved, kind=kind))
    more: list[Array] = []
    if plan.is_bounded:
        whole = one_pass(plan)
        calls = _bounded_by(plan, held if whole else clipped)
        more = [plan.numbers if whole else _tilts(plan, steps)]
    for name, arrays in plan.arrays.items():
        rows, call, dtype = plan.rows[name], calls[name], arrays[0].dtype
        if watches is None:
            new = [rows.moved(call, arrays, dtype, steps, *more)]
        else:
            size = prod(kind.sums["total"])
            look = partial(_after, kind=kind, bounds=plan.bounds, watch=watches[name])
            both = partial(_watched, move=call, look=look, count=len(arrays), dtype=dtype)
            moved, parts = rows.moved_and_summed(
                both, arrays, dtype, size + len(COUNTS) + len(LARGEST), steps, *more
            )
            new = [moved]
            seen[name] = {"sums": rows.total(parts), "most": parts.max(axis=rows.of_points)}
        if isinstance(kind, MeanAndStd) and arrays[1].dims:  # one number is no variable
            mean, std = arrays
            wide = std.set_dims(dict(mean.sizes)), mean
            new.append(rows.moved(partial(_std, kind=kind), wide, std.dtype, steps))
        named = (xr.Variable(rows.all, data).transpose(*arrays[0].dims) for data in new)
        found[name] = tuple(named)
    return found, seen


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


def _tilts(plan: Plan, steps: Array) -> Array:  # (*index, K) or (*index, N K)
    """lambda of every row that holds its values within bounds; all blocks are read now."""
    size = prod(plan.kind.sums["total"])

    def sums(calls: dict[str, Any], columns: int, *tilt: Array) -> Any:
        each = plan.arrays.items()
        found = (plan.rows[n].summed(calls[n], a, columns * size, steps, *tilt) for n, a in each)
        return compute(sum(found))[0]

    seen, lines = sums(_bounded_by(plan, survey), 7), _bounded_by(plan, line)
    bounds = next(iter(lines.values())).keywords["bounds"]
    return tilts(lambda tilt: sums(lines, 2, tilt), seen, plan.numbers, bounds)


def _bounded_by(plan: Plan, function: Callable[..., Array]) -> dict[str, Any]:
    """The function for the blocks of every variable, with its bounds."""
    return {
        name: partial(
            _bounded,
            function=function,
            kind=plan.kind,
            bounds=Bounds.of(plan, arrays[0]),
        )
        for name, arrays in plan.arrays.items()
    }


@blocks.quiet
def _bounded(*block: Any, function: Callable[..., Array], kind: Kind, bounds: Bounds) -> Array:
    """A function of the moved values of a block and of how far each may move."""
    count = 1 if isinstance(kind, Ensemble) else 2
    *arrays, rows, steps = block[: count + 2]
    new, d = _moved(*arrays, rows, steps, kind=kind), blocks.freedom(kind, *arrays, rows)
    return function(new, d, rows, *block[count + 2 :], bounds)


def _moved(*block: Any, kind: Kind) -> Array:
    *given, steps = block
    return blocks.moved(kind, *given, *_parts(kind, steps))


def _std(std: Array, mean: Array, rows: BlockRows, steps: Array, *, kind: MeanAndStd) -> Array:
    first, *more = _parts(kind, steps)
    return blocks.updated_std(kind, std, mean, rows, first, more[-1] if more else first)


def _watched(
    *block: Any,
    move: Callable[..., Array],
    look: Callable[..., tuple[Array, Array]],
    count: int,
    dtype: Any,
) -> tuple[Array, Array]:
    """The moved values of a block as they will be stored, and what is to be said of them.

    count: of the arrays that come first in the block, before G.
    """
    return look(move(*block).astype(dtype, copy=False), *block[: count + 1])


def _after(
    new: Array,
    old: Array,
    *std_and_rows: Any,
    kind: Kind,
    bounds: tuple[float, float],
    watch: Watch,
) -> tuple[Array, Array]:
    """The values to be stored, and their totals and what `COUNTS` and `LARGEST` name.

    Invalid values are those pushed out of the valid range, and before, those that had been there;
    values outside are out of the bounds that were asked for; far is a move of many std; below is
    how far the least value lies below 0.
    """
    rounding, rows = float(np.finfo(new.dtype).eps), std_and_rows[-1]
    stored = new if watch.stored is None else watch.stored(new, rows).astype(new.dtype)
    new = whole = stored if watch.view is None else watch.view(stored)
    if isinstance(kind, Ensemble) and np.isnan(new).any():  # what one lacks counts in none
        whole = np.where(np.isnan(new).any(0), np.nan, new)
    total = by_index(blocks.totals(whole, rows)[0])
    invalid = [_outside(new, watch.valid, 8 * rounding), _outside(old, watch.valid)]
    counts = [invalid[0] & ~invalid[1], invalid[1], *(_outside(u, bounds) for u in (new, old))]
    largest, relative, far = blocks.changes(kind, new, old, *std_and_rows, rounding=rounding)
    least = [-np.fmin.reduce(by_index(u), axis=1, initial=np.inf) for u in (new, old)]
    more = [*(by_index(each).sum(-1) for each in counts), far, largest, relative, *least]
    return stored, np.concatenate([total, np.stack(more, axis=1)], axis=1)


def _outside(u: Array, ends: tuple[float, float], slack: float = 0.0) -> Array:
    """slack: of the ends, as a share; a value on one of them may move by rounding."""
    if ends == NO_BOUNDS:
        return np.zeros((u.shape[-2], 1), bool)
    low, high = map(np.float64, ends)  # not rounded to the type of u
    if slack:
        low, high = low - slack * abs(low), high + slack * abs(high)
    return (u < low) | (u > high)


def lazy(plans: Sequence[Plan]) -> bool:
    """Whether some array is dask's, so that nothing large may be computed unasked."""
    fields = (arrays for plan in plans for arrays in plan.arrays.values())
    return any(isinstance(array.data, da.Array) for arrays in fields for array in arrays)
