"""Why no field obeys exact laws within inequalities: which row is out of reach, and its range.

Linear programmes on the points of one part. They run only once an error is certain.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...support.values import span

MET = 1e-9  # of its terms: a row that misses by less is met
RANK = 1e-12  # of the largest: variances of directions that count
WAYS = "Ways out: correct the value, loosen `bounds` or `monotone`, or give the law `noise`."


class Part(NamedTuple):
    """Points u of a part, and what holds of them."""

    mean: Any  # before the laws, (N,)
    covariance: Any  # before the laws, (N, N)
    rows: Any  # exact ones, G, (K, N)
    value: Any  # b, (K,)
    low: Any  # (N,)
    high: Any
    pairs: Sequence[Any]  # (i, j) with u_j >= u_i
    names: Sequence[str]  # of the rows


def unreachable(part: Part) -> str | None:
    """The row that is furthest out of reach, in words; None where it is not found."""
    space = _Reachable(part)
    size = np.abs(part.value) + np.abs(part.rows) @ (
        np.abs(part.mean) + np.sqrt(np.diag(part.covariance))
    )
    missing = space.missing(part.rows, part.value, size)
    if missing is None:
        return NONE_WITHIN
    if not len(missing) or missing.max() <= MET:
        return None
    worst = int(missing.argmax())
    others = missing <= MET
    value, g = part.value[worst], part.rows[worst]
    near = MET * size[worst]
    for also, some in (("", []), (" and beside the other exact laws", others)):
        ends = space.range(g, part.rows[some], part.value[some])
        if ends is not None and not ends[0] - near <= value <= ends[1] + near:
            return (
                f"{part.names[worst]} is {value:.10g}, but within the inequalities{also} it can "
                f"only be {span(*ends, digits=10)}{space.few}. {WAYS}"
            )
    return None


NONE_WITHIN = (
    "`bounds`, `monotone`: no field of this prior lies within them, whatever the laws: points "
    "without variance are outside, or the directions of the field are too few. Ways out: give "
    "points variance, correct their values, or loosen `bounds` or `monotone`."
)


class _Reachable:
    """Where points may be, without the laws."""

    def __init__(self, part: Part) -> None:
        from scipy.sparse import coo_array

        std = np.sqrt(np.diag(part.covariance))
        self.count, fixed = len(std), std == 0
        low, high = (np.where(fixed, part.mean, end) for end in (part.low, part.high))
        self.bounds = np.stack([low, np.maximum(low, high)], 1)
        moves = np.flatnonzero(~fixed)
        unit = part.covariance[np.ix_(moves, moves)] / np.outer(std[moves], std[moves])
        sizes, vectors = np.linalg.eigh(unit)
        across = vectors[:, sizes <= RANK * sizes.max(initial=0.0)].T
        self.across = np.zeros((len(across), self.count))
        self.across[:, moves] = across / std[moves]
        self.along = self.across @ part.mean
        self.few = " along the directions of this field" if len(across) else ""
        i, j = np.concatenate([np.zeros((2, 0), int), *part.pairs], 1)
        entries, at = np.repeat([1.0, -1.0], len(i)), np.tile(np.arange(len(i)), 2)
        self.falls = coo_array((entries, (at, np.r_[i, j])), shape=(len(i), self.count))

    def missing(self, rows: Any, value: Any, size: Any) -> Any:
        """By how much of its terms each row misses, the sum of all being the least; None if no
        point is there."""
        size = np.where(size > 0, size, 1.0)
        count = len(rows)
        cost = np.r_[np.zeros(self.count), np.ones(2 * count)]
        slack = np.hstack([rows / size[:, None], np.eye(count), -np.eye(count)])
        found = self._solved(cost, slack, value / size)
        return None if found is None else found[self.count :].reshape(2, count).sum(0)

    def range(self, g: Any, rows: Any, value: Any) -> tuple[float, float] | None:
        """The least and the most of g u."""
        ends = []
        for sign in (1.0, -1.0):
            found = self._solved(sign * g, rows, value)
            if found is None:
                return None
            ends.append(-sign * np.inf if np.isscalar(found) else float(g @ found))
        return ends[0], ends[1]

    def _solved(self, cost: Any, rows: Any, value: Any) -> Any:
        """The best point; None if there is none; a number if the best is infinite."""
        from scipy.optimize import linprog
        from scipy.sparse import hstack

        more = len(cost) - self.count
        across = np.hstack([self.across, np.zeros((len(self.across), more))])
        bounds = np.concatenate([self.bounds, np.tile([0.0, np.inf], (more, 1))])
        found = linprog(
            cost / max(np.abs(cost).max(initial=0.0), 1e-300),
            A_ub=hstack([self.falls, np.zeros((self.falls.shape[0], more))]),
            b_ub=np.zeros(self.falls.shape[0]),
            A_eq=np.concatenate([rows, across]),
            b_eq=np.concatenate([value, self.along]),
            bounds=bounds,
        )
        return found.x if found.status == 0 else np.inf if found.status == 3 else None
