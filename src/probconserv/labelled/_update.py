"""Step 2 for a dataset: the two passes of every system, lazily, and what they make of it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr

from ._graph import MEMBERS, ROWS, STEPS, SUMS, after, as_blocks, moved, partials, summed, total
from ._passes import Members, Moments
from ._plan import Plan
from ._terms import Array, Terms, seen_totals

View = Callable[[Array], Array]  # what a reader of the output will see of its values


def first_pass(plan: Plan) -> Any:  # (*index, C)
    """The sums over all points of a system."""
    size = plan.kind.sums.size
    parts = [
        summed(plan.kind.summed, arrays, plan.pieces(name), plan.axes(name), size)
        for name, arrays in plan.arrays.items()
    ]
    return sum(parts[1:], start=parts[0])


def one_pass(plan: Plan) -> bool:
    """Whether every block holds all points of its indices, so that it need not be read twice."""
    for name, arrays in plan.arrays.items():
        axes = plan.axes(name)
        for array in arrays:
            if not isinstance(array.data, da.Array):
                continue
            blocks = dict(zip(array.dims, array.data.numblocks, strict=True))
            if any(blocks.get(dim, 1) > 1 for dim in axes.points):
                return False
    return True


def solve(plan: Plan, sums: Any) -> Any:  # (*index, C)
    """What the second pass needs, from sums that are computed or lazy."""
    value, noise = plan.value(), plan.noise()
    if isinstance(sums, da.Array):
        return _solve_lazily(plan, sums, value, noise)
    return _solved(sums, value, noise, kind=plan.kind)


def _solve_lazily(plan: Plan, sums: da.Array, value: Array, noise: Array) -> da.Array:
    tail = (MEMBERS, ROWS) if plan.member is not None else (ROWS,)
    return da.blockwise(
        partial(_solved, kind=plan.kind),
        (*plan.index, STEPS),
        sums,
        (*plan.index, SUMS),
        as_blocks(value),
        (*plan.index, *tail),
        as_blocks(noise),
        (*plan.index, ROWS),
        new_axes={STEPS: plan.kind.steps.size},
        dtype=float,
        meta=np.empty((0,) * (len(plan.index) + 1)),
        concatenate=True,
    )


def _solved(sums: Array, value: Array, noise: Array, *, kind: Any) -> Array:
    lead = sums.shape[:-1]
    flat = [a.reshape(prod(lead), *a.shape[len(lead) :]) for a in (sums, value, noise)]
    return kind.solved(*flat).reshape(*lead, -1)


def second_pass(plan: Plan, steps: Any) -> dict[str, tuple[xr.Variable, ...]]:
    """The moved arrays of every variable, lazy, in the order of their axes in the dataset."""
    found = {}
    for name, arrays in plan.arrays.items():
        first, pieces, axes = arrays[0], plan.pieces(name), plan.axes(name)
        moves = _moves(plan.kind, arrays)
        found[name] = tuple(
            xr.Variable(axes.all, moved(move, used, pieces, axes, steps, dtype)).transpose(
                *first.dims
            )
            for move, used, dtype in moves
        )
    return found


def _moves(
    kind: Moments | Members, arrays: tuple[xr.Variable, ...]
) -> list[tuple[Callable[..., Array], tuple[xr.Variable, ...], Any]]:
    """The functions of the second pass, what each works on, and the dtype of what it gives."""
    if isinstance(kind, Members):
        return [(kind.each, arrays, arrays[0].dtype)]
    mean, std = arrays
    moves: list[Any] = [(kind.mean, arrays, mean.dtype)]
    if std.dims:  # one number for all points is no variable of the dataset
        moves.append((kind.std, (std.set_dims(dict(mean.sizes)), mean), std.dtype))
    return moves


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
    rows = len(plan.kind.laws)
    size = rows * (plan.kind.members if plan.member is not None else 1)  # type: ignore[union-attr]
    totals: list[Any] = []
    below: dict[str, Any] = {}
    largest: dict[str, Any] = {}
    watched = dict(found)
    for name, arrays in plan.arrays.items():
        axes, (new, *others) = plan.axes(name), found[name]
        call = partial(_after, rows=rows, minimum=minimum, view=views.get(name))
        parts = partials(call, [new, arrays[0]], plan.pieces(name), axes, size + 2)
        blocks = after(new.transpose(*axes.all).data, parts, axes)
        watched[name] = (xr.Variable(axes.all, blocks).transpose(*new.dims), *others)
        sums = total(parts, axes)
        totals.append(sums[..., :size])
        below[name], largest[name] = sums[..., size].sum(), parts[..., size + 1].max()
    return watched, (sum(totals[1:], start=totals[0]), below, largest)


def _after(
    new: Array, old: Array, terms: Terms, *, rows: int, minimum: float | None, view: View | None
) -> Array:
    new = new if view is None else view(new)
    each = [new] if new.ndim == 2 else np.moveaxis(new, -1, 0)
    parts = [seen_totals(one, terms, rows)[0] for one in each]
    below = np.zeros((len(new), 1))
    if minimum is not None:
        low = (new < minimum) & ~(old < minimum)
        below[:, 0] = low.reshape(len(low), -1).sum(-1)
    with np.errstate(invalid="ignore"):  # points that do not count may be infinite
        change = np.abs(new - old).reshape(len(new), -1)
    largest = np.fmax.reduce(change, axis=1, initial=0.0)[:, None]  # leaves out what is missing
    return np.concatenate([*parts, below, largest], axis=1)


def lazy(plans: Sequence[Plan]) -> bool:
    """Whether some array is dask's, so that nothing large may be computed unasked."""
    return any(
        isinstance(array.data, da.Array)
        for plan in plans
        for arrays in plan.arrays.values()
        for array in arrays
    )
