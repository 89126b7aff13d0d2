"""Values rounded to what a file can hold so that totals stay: packed integers, float16."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..support.errors import InputError
from ._graph import Array, BlockRows

TRIES = 20  # values that close the last part of a total, one by one
HALF = np.dtype(np.float16)

Bools = npt.NDArray[np.bool_]
Neighbour = Callable[[Array, Array], Array]  # of held numbers, upwards or downwards (1, -1)


def closing(
    exact: Array,
    held: Array,
    rows: BlockRows,
    neighbour: Neighbour,
    allowed: Callable[[Array], Bools],
) -> Array:
    """Numbers that can be held for those of a block (N, I, P), with the totals of the exact ones.

    That is the nearest ones, `held`, except for the few that must go the other way for the total of
    their row to close: those that lie nearest to the middle. The total is then off by at most half
    a step of a small cell. Rows may not share points.
    """
    found = held.copy()
    for member, index in np.ndindex(held.shape[:-1]):
        for law in rows.laws:
            weights = law.weights[index if len(law.weights) > 1 else 0]
            for points in _by_row(law.labels, len(weights)):
                at = (member, index, points)
                found[at] = _closed(exact[at], held[at], weights[points], neighbour, allowed)
    return found


def _closed(
    exact: Array,
    held: Array,
    weights: Array,
    neighbour: Neighbour,
    allowed: Callable[[Array], Bools],
) -> Array:
    """The numbers of one row, some of them one up or down, so that its exact sum stays."""
    off = exact - held
    free = weights != 0
    missing = float(np.dot(weights[free], off[free]))  # what rounding took from the total
    if not missing:
        return held
    step = np.sign(missing * weights)
    other = neighbour(held, step)
    width = np.abs(other - held)
    size, free = np.abs(weights) * width, free & allowed(other)
    if not free.any():
        return held
    count = min(int(free.sum()), 16 + int(4 * abs(missing) / size[free].mean()))
    share = np.divide(off * step, width, out=np.zeros_like(off), where=width > 0)
    gain = np.where(free, share, -np.inf)  # the nearer to the middle, the less it costs
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


def as_half(block: Array, rows: BlockRows, bounds: tuple[float, float], closes: bool) -> Array:
    """A block (N, I, P) in float16; closes: with the same totals, for rows that share no points."""
    held = block.astype(HALF)
    if np.isinf(held).any():
        most = float(np.finfo(HALF).max)
        raise InputError(
            f"`dtype`: float16 holds values up to {most:g}, and the update leads to "
            f"{np.abs(block).max():.6g}. Write `dtype='float32'`."
        )
    if not closes:
        return held

    def neighbour(values: Array, step: Array) -> Array:
        end = np.where(step > 0, HALF.type(np.inf), HALF.type(-np.inf))
        return np.nextafter(values.astype(HALF), end).astype(float)

    def allowed(values: Array) -> Bools:
        return np.asarray((values >= bounds[0]) & (values <= bounds[1]) & np.isfinite(values))

    return closing(block, held.astype(float), rows, neighbour, allowed).astype(HALF)


def half_note(name: str, off: float, closes: bool) -> str:
    """What the report says of a variable in float16, whose totals are off by that share."""
    if closes:
        return f"{name} is float16, which has 3 digits: rounded so that totals hold to {off:.1e}"
    return (
        f"{name} is float16: rounding to it opens the budget again, to {off:.1e}. Write it with "
        "`dtype='float32'` to keep it closed"
    )
