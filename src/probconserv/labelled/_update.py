"""Step 2 for a dataset: sums, solve and update of every system, lazily where data are lazy."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import dask.array as da
import numpy as np
import torch
import xarray as xr
from dask.base import compute
from torch import Tensor

from .._sums import Ensemble, MeanAndStd, is_hard
from . import _blocks as blocks
from ._blocks import Array, BlockRows, Kind
from ._graph import STEPS, SUMS, Shapes, as_tensors, blockwise, pack, packed_size, unpack
from ._plan import Plan

ROWS, MEMBERS = "rows of the laws", "members of the totals"  # axes that no dataset has
SETTLING = 2  # times that exact rows are settled at most
View = Callable[[Array], Array]  # what a reader of the output will see of its values


def first_pass(plan: Plan) -> Any:  # (*index, C)
    """The sums over all points of a system."""
    return _summed(plan, partial(_statistics, kind=plan.kind), packed_size(plan.kind.sums))


def _statistics(*block: Any, kind: Kind) -> Array:
    return pack(kind.sums, blocks.statistics(kind, *block))


def _summed(plan: Plan, call: Callable[..., Array], size: int, *steps: Any) -> Any:
    """The sums of all variables of a system."""
    each = plan.arrays.items()
    first, *others = (plan.rows(name).summed(call, arrays, size, *steps) for name, arrays in each)
    return sum(others, start=first)


def one_pass(plan: Plan) -> bool:
    """Whether every block holds all points of its indices, so that it need not be read twice."""
    for name, arrays in plan.arrays.items():
        points = plan.rows(name).points
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
    call, size = partial(_sums_after, kind=kind), prod(kind.sums["total"])
    steps = _of_sums(plan, kind.solve, kind.steps, sums)
    for _ in range(0 if kind.is_easy else SETTLING):
        if not isinstance(steps, da.Array) and not _hard(kind, steps):
            break
        totals = _summed(plan, call, size, steps)
        if not isinstance(steps, da.Array):
            (totals,) = compute(totals)
        more = _of_sums(plan, kind.settle, kind.moves, sums, totals)
        steps = np.concatenate([steps, more], -1)
    return steps


def _of_sums(
    plan: Plan, function: Callable[..., dict[str, Tensor]], shapes: Shapes, *sums: Any
) -> Any:  # (*index, C)
    """The function of sums, b and noise at every index, now or lazily."""
    call = partial(_packed, function=function, given=plan.kind.sums, shapes=shapes)
    value, noise = plan.value(), plan.noise()
    if not isinstance(sums[0], da.Array):
        return call(*sums, value, noise)
    tail = (MEMBERS, ROWS) if plan.member is not None else (ROWS,)
    pairs = [(each, (*plan.index, f"{SUMS} {number}")) for number, each in enumerate(sums)]
    pairs += [(value, (*plan.index, *tail)), (noise, (*plan.index, ROWS))]
    new = {STEPS: packed_size(shapes)}
    return blockwise(call, (*plan.index, STEPS), pairs, float, new_axes=new)


def _packed(
    *arrays: Array, function: Callable[..., dict[str, Tensor]], given: Shapes, shapes: Shapes
) -> Array:
    lead = arrays[0].shape[:-1]
    sums, *rest = (a.reshape(prod(lead), *a.shape[len(lead) :]) for a in arrays)
    found = function(as_tensors(unpack(given, sums)), *map(torch.tensor, rest))
    return pack(shapes, {name: x.numpy() for name, x in found.items()}).reshape(*lead, -1)


def _sums_after(*block: Any, kind: Kind) -> Array:
    """The totals after the update, where rows are nearly dependent; else 0."""
    *_, rows, steps = block
    if not _hard(kind, steps):
        return np.zeros((len(steps), prod(kind.sums["total"])))
    return _by_index(blocks.totals(_moved(*block, kind=kind), rows)[0])


def _hard(kind: Kind, steps: Array) -> bool:
    return bool(is_hard(torch.tensor(_parts(kind, steps)[0]["least"])).any())


def _parts(kind: Kind, steps: Array) -> list[dict[str, Array]]:
    """The steps of the solve, and the moves that settle rows."""
    first, each = packed_size(kind.steps), packed_size(kind.moves)
    more = range(first, steps.shape[-1], each)
    return [
        unpack(kind.steps, steps[..., :first]),
        *(unpack(kind.moves, steps[..., start : start + each]) for start in more),
    ]


def second_pass(plan: Plan, steps: Any) -> dict[str, tuple[xr.Variable, ...]]:
    """The moved arrays of every variable, lazy, in the order of their axes in the dataset."""
    found = {}
    for name, arrays in plan.arrays.items():
        rows, new = plan.rows(name), []
        for update, used, dtype in _updates(plan.kind, arrays):
            data = rows.moved(partial(update, kind=plan.kind), used, steps, dtype)
            new.append(xr.Variable(rows.all, data).transpose(*arrays[0].dims))
        found[name] = tuple(new)
    return found


def _updates(
    kind: Kind, arrays: tuple[xr.Variable, ...]
) -> list[tuple[Callable[..., Array], tuple[xr.Variable, ...], Any]]:
    """The functions that update a block, what each works on, and the dtype of what it gives."""
    if isinstance(kind, Ensemble):
        return [(_moved, arrays, arrays[0].dtype)]
    mean, std = arrays
    updates: list[Any] = [(_moved, arrays, mean.dtype)]
    if std.dims:  # one number for all points is no variable of the dataset
        updates.append((_std, (std.set_dims(dict(mean.sizes)), mean), std.dtype))
    return updates


def _moved(*block: Any, kind: Kind) -> Array:
    *given, steps = block
    return blocks.moved(kind, *given, *_parts(kind, steps))


def _std(std: Array, mean: Array, rows: BlockRows, steps: Array, *, kind: MeanAndStd) -> Array:
    return blocks.updated_std(kind, std, mean, rows, _parts(kind, steps)[0])


def outcome(
    plan: Plan,
    found: Mapping[str, tuple[xr.Variable, ...]],
    minimum: float | None,
    views: Mapping[str, View],
) -> tuple[dict[str, tuple[xr.Variable, ...]], tuple[Any, dict[str, Any], dict[str, Any]]]:
    """The moved arrays again, and what is to be said of them.

    That is their totals, (*index, K) or (*index, N K), and for each variable how many values were
    pushed below `minimum` and the largest change. It is these arrays that should be written, so
    that each block is summed before it is let go.
    """
    size = prod(plan.kind.sums["total"])
    totals: list[Any] = []
    below: dict[str, Any] = {}
    largest: dict[str, Any] = {}
    watched = dict(found)
    for name, arrays in plan.arrays.items():
        rows, (new, *others) = plan.rows(name), found[name]
        call = partial(_after, minimum=minimum, view=views.get(name), dtype=new.dtype)
        parts = rows.partials(call, [new, arrays[0]], size + 2)
        blocks = rows.after(new.transpose(*rows.all).data, parts)
        watched[name] = (xr.Variable(rows.all, blocks).transpose(*new.dims), *others)
        sums = rows.total(parts)
        totals.append(sums[..., :size])
        below[name], largest[name] = sums[..., size].sum(), parts[..., size + 1].max()
    return watched, (sum(totals[1:], start=totals[0]), below, largest)


def _after(
    new: Array,
    old: Array,
    rows: BlockRows,
    *,
    minimum: float | None,
    view: View | None,
    dtype: Any,
) -> Array:
    new = new if view is None else view(new.astype(dtype))
    total = _by_index(blocks.totals(new, rows)[0])
    below = np.zeros((len(total), 1))
    if minimum is not None:
        below[:, 0] = _by_index((new < minimum) & ~(old < minimum)).sum(-1)
    with np.errstate(invalid="ignore"):  # points that do not count may be infinite
        change = _by_index(new - old)
    up = np.fmax.reduce(change, axis=1, initial=0.0)  # leaves out what is missing
    down = np.fmin.reduce(change, axis=1, initial=0.0)
    largest = np.maximum(up, -down)[:, None]
    return np.concatenate([total, below, largest], axis=1)


def _by_index(x: Array) -> Array:  # (I, P) or (N, I, P) to (I, ...)
    return x if x.ndim == 2 else np.moveaxis(x, 0, 1).reshape(x.shape[1], -1)


def lazy(plans: Sequence[Plan]) -> bool:
    """Whether some array is dask's, so that nothing large may be computed unasked."""
    fields = (arrays for plan in plans for arrays in plan.arrays.values())
    return any(isinstance(array.data, da.Array) for arrays in fields for array in arrays)
