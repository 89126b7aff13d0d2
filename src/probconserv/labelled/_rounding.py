"""Rounding of packed values that keeps the totals of laws.

Values that are stored as integers are rounded to the nearest one, except for the few that must go
the other way for the total of their row to close: those that lie nearest to the middle.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from ._encoding import fill_integers, integers, scale_and_offset
from ._plan import Plan
from ._rows import Array, BlockRows

TRIES = 20  # values that close the last part of a total, one by one


def rounded(
    plan: Plan, found: Mapping[str, tuple[xr.Variable, ...]], packing: Mapping[str, Any]
) -> dict[str, tuple[xr.Variable, ...]]:
    """The moved arrays, with packed variables as their integers will stand for them.

    The total of each row within each block is off by at most half a quantum of a small cell. Rows
    that share points are left to the nearest integers.
    """
    new = dict(found)
    for name in packing.keys() & found.keys() if plan.kind.disjoint else ():
        rows, (moved, *others) = plan.rows[name], found[name]
        call = partial(_rounded_block, packing=packing[name], bounds=plan.bounds)
        data = rows.moved(call, [moved], moved.dtype)
        new[name] = (xr.Variable(rows.all, data).transpose(*moved.dims), *others)
    return new


def _rounded_block(
    block: Array, rows: BlockRows, *, packing: Mapping[str, Any], bounds: tuple[float, float]
) -> Array:
    """A block (I, P) or (N, I, P) on the values that its integers stand for."""
    scale, offset = scale_and_offset(packing)
    exact = (block.astype(float) - offset) / scale
    whole = np.rint(exact)
    ends = sorted((end - offset) / scale for end in bounds)
    for member in np.ndindex(block.shape[:-2]):
        for index in range(block.shape[-2]):
            for part in rows.parts:
                weights = part.weights if part.weights.ndim == 1 else part.weights[index]
                for points in _by_row(part.labels, len(weights)):
                    at = (*member, index, points)
                    whole[at] = _closed(exact[at], whole[at], weights[points], packing, ends)
    return whole * scale + offset


def _by_row(labels: Array | None, count: int) -> list[Any]:
    """The points of each row."""
    if labels is None:
        return [slice(0, count)]
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)


def _closed(
    exact: Array, whole: Array, weights: Array, packing: Mapping[str, Any], ends: list[float]
) -> Array:
    """The integers of one row, some of them one up or down, so that the sum of the exact stays."""
    off = exact - whole
    free = np.isfinite(off) & (weights != 0) & np.isfinite(weights)
    missing = float(np.dot(weights[free], off[free]))  # what rounding took from the total
    if not missing:
        return whole
    step, size = np.sign(missing * weights), np.abs(weights)
    (low, high), other = integers(packing), whole + step
    free &= (other >= max(low, ends[0])) & (other <= min(high, ends[1]))
    free &= ~np.isin(other, fill_integers(packing))  # that does not stand for a value
    if not free.any():
        return whole
    count = min(int(free.sum()), 16 + int(4 * abs(missing) / size[free].mean()))
    gain = np.where(free, off * step, -np.inf)  # the nearer to the middle, the less it costs
    near = np.argpartition(-gain, count - 1)[:count]
    near = near[np.argsort(-gain[near])]
    some = near[: int(np.searchsorted(np.cumsum(size[near]), abs(missing), side="right"))]
    whole = whole.copy()
    whole[some] += step[some]
    left, rest = abs(missing) - size[some].sum(), np.setdiff1d(near, some)
    for _ in range(min(TRIES, len(rest))):
        best = rest[np.argmin(np.abs(left - size[rest]))]
        if abs(left - size[best]) >= abs(left):
            break
        whole[best] += step[best]
        left, rest = left - size[best], rest[rest != best]
    return whole
