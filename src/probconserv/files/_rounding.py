"""Values rounded to the integers that a file packs them into so that totals stay."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ._graph import Array, BlockRows

TRIES = 20  # values that close the last part of a total, one by one

Bools = npt.NDArray[np.bool_]


def closing(exact: Array, rows: BlockRows, allowed: Callable[[Array], Bools]) -> Array:
    """Whole numbers for those of a block (N, I, P), with their totals.

    That is the nearest ones, except for the few that must go the other way for the total of
    their row to close: those that lie nearest to the middle. The total is then off by at most half
    a step of a small cell. Rows may not share points.
    """
    found = np.rint(exact)
    for member, index in np.ndindex(found.shape[:-1]):
        for law in rows.laws:
            weights = law.weights[index if len(law.weights) > 1 else 0]
            for points in _by_row(law.labels, len(weights)):
                at = (member, index, points)
                found[at] = _closed(exact[at], found[at], weights[points], allowed)
    return found


def _closed(exact: Array, held: Array, weights: Array, allowed: Callable[[Array], Bools]) -> Array:
    """The numbers of one row, some of them one up or down, so that its exact sum stays."""
    off = exact - held
    free = weights != 0
    missing = float(np.dot(weights[free], off[free]))  # what rounding took from the total
    if not missing:
        return held
    step = np.sign(missing * weights)
    other = held + step
    size, free = np.abs(weights * step), free & allowed(other)
    if not free.any():
        return held
    count = min(int(free.sum()), 16 + int(4 * abs(missing) / size[free].mean()))
    gain = np.where(free, off * step, -np.inf)  # the nearer to the middle, the less it costs
    near = np.argpartition(-gain, count - 1)[:count]
    near = near[np.argsort(-gain[near])]
    some = near[: int(np.searchsorted(np.cumsum(size[near]), abs(missing), side="right"))]
    found = held.copy()
    found[some] = other[some]
    left, rest = abs(missing) - size[some].sum(), np.setdiff1d(near, some)
    for _ in range(min(TRIES, len(rest))):
        best = rest[np.argmin(np.abs(left - size[rest]))]
        if abs(left - size[best]) >= abs(left):
            break
        found[best] = other[best]
        left, rest = left - size[best], rest[rest != best]
    return found


def _by_row(labels: Array | None, count: int) -> list[Any]:
    """The points of each row."""
    if labels is None:
        return [slice(0, count)]
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
