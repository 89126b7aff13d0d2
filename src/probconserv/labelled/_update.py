"""Step 2 for a system: statistics, solve and update, in one pass over its blocks or in several.

What the solve takes are sums over all points. Where a block has all points of its indices these are
sums over the block: it is read, solved and updated at once. Else all blocks are summed first, and
read again for the update. `_solve` is the same function for both; only `total` differs.
"""

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr

from .._sums import is_hard, solved
from ._blocks import NO_BOUNDS, BlockWork, Bounds
from ._encoding import Packing, next_held, valid_limits
from ._graph import Made, Sums, added
from ._plan import Plan

SETTLING = 2  # times that exact rows are settled at most

Total = Callable[[str, Sums], Sums]  # the sums of a pass over all points, by its name; steps


def _solve(plan: Plan, total: Total, sums: Sums, given: Sums, bounds: Bounds | None) -> Sums:
    """What the update needs: the steps of the solve, and lambda that holds values within bounds.

    Nearly dependent rows are settled: the totals after the update are summed, and what exact rows
    miss is moved as well. given: b, its noise and the numbers of the indices.
    """
    value, noise, numbers = (given[name] for name in ("value", "noise", "numbers"))
    with plan.places.named(numbers):
        steps = solved(plan.kind, sums, value, noise)
        for _ in range(SETTLING):
            if not is_hard(steps["least"]).any():
                break
            from .._sums_solve import settled  # needs torch

            steps = settled(plan.kind, steps, sums, total("after", steps), value, noise)
    if bounds is not None:
        seen = total("survey", steps)
        steps["tilt"] = bounds.tilts(
            lambda tilt: total("line", steps | {"tilt": tilt}), seen, numbers
        )
    return steps


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


def first_pass(plan: Plan) -> dict[str, Any]:
    """The sums over all points of every variable, now or lazily."""
    return _pass(plan, {name: _block_work(plan, name) for name in plan.arrays}, "statistics", {})


def _pass(
    plan: Plan, works: Mapping[str, BlockWork], method: str, steps: Sums
) -> dict[str, Any]:  # (*index, ...) of each
    found = {}
    for name, work in works.items():
        call = partial(_only_sums, work, method)
        _, found[name] = plan.rows[name].mapped(call, plan.arrays[name], steps=steps)
    return found


def _only_sums(work: BlockWork, method: str, *block_and_steps: Any) -> Made:
    return (), work.sums(method, *block_and_steps)


def _block_work(plan: Plan, name: str, watched: bool = False, stored: bool = False) -> BlockWork:
    arrays, bounds = plan.arrays[name], None
    if plan.is_bounded:
        low, high = (next_held(arrays[0], *end) for end in zip(plan.bounds, (1, -1), strict=True))
        bounds = Bounds(low, high, plan.laws[0].law.label, plan.places)
    return BlockWork(
        plan.kind,
        bounds,
        plan.bounds,
        [array.dtype for array in arrays if array.dims],  # one number is no variable
        valid_limits(arrays[0]) or NO_BOUNDS,
        Packing.of(arrays[0]),
        watched,
        stored and plan.kind.disjoint,
    )


def _at_once(plan: Plan, work: BlockWork, *block_and_given: Any) -> Made:
    """A block with all points of its indices: what `updated` makes, with the statistics."""
    *block, given = block_and_given
    sums = work.sums("statistics", *block, {})
    steps = _solve(
        plan, lambda method, steps: work.sums(method, *block, steps), sums, given, work.bounds
    )
    new, figures = work.updated(*block, steps)
    return new, {**sums, **figures}


def update(
    plan: Plan, watched: bool, stored: bool, compute: Callable[[Any], Any]
) -> tuple[dict[str, tuple[xr.Variable, ...]], dict[str, Any], dict[str, Any]]:
    """Of every variable the new arrays, the sums before, and the figures if they are watched.

    compute: for sums that are needed on the way, if one pass is not enough.
    """
    works = {name: _block_work(plan, name, watched, stored) for name in plan.arrays}
    numbers = np.arange(prod(plan.lengths)).reshape(plan.lengths)
    steps: Any = {"value": plan.value(), "noise": plan.noise(), "numbers": numbers}
    sums: dict[str, Any] = {}
    at_once = watched and is_whole(plan)
    if not at_once:
        sums = compute(first_pass(plan))

        def total(method: str, steps: Sums) -> Sums:
            found = compute(_pass(plan, works, method, plan.shaped(steps)))
            return plan.flat(added(list(found.values())))

        first, *_ = works.values()
        together = plan.flat(added(list(sums.values())))
        steps = plan.shaped(_solve(plan, total, together, plan.flat(steps), first.bounds))
    new, figures = {}, {}
    for name, work in works.items():
        rows, arrays = plan.rows[name], plan.arrays[name]
        call = partial(_at_once, plan, work) if at_once else work.updated
        found, figures[name] = rows.mapped(call, arrays, work.dtypes, steps)
        named = (xr.Variable(rows.all, data).transpose(*arrays[0].dims) for data in found)
        new[name] = tuple(named)
    return new, figures if at_once else sums, figures
