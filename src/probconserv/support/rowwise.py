"""Rows that do not see each other, so that each has a number: for arrays and for tensors.

S is a number for each row, and so is what moves values within bounds,

    u_i = clip(y_i - d_i g_i mu, low_i, high_i)   with   sum g_i u_i = t + s mu

whose left side falls in mu, piece by piece a straight line: Newton's method, kept inside a bracket,
ends.
"""

import math
from typing import Any, Protocol

import numpy as np

from .arrays import functions_of
from .tolerances import GRAIN, MET, TINY

MOST = 200  # steps; Newton takes about five, halving a bracket about sixty


def solved_by_row(own: Any, noise: Any, floor: Any = TINY) -> tuple[Any, Any]:
    """S and S^-1, a number for each row; S^-1 is 0 of rows that nothing can move.

    own: G Sigma G^T. noise: sigma^2; None for exact rows, of which S must exceed the floor.
    """
    seen = own if noise is None else own + noise
    keep = seen > floor if noise is None else (seen > floor) | (noise > 0)
    return seen, keep / seen.clip(TINY)


def sums_by_label(x: Any, labels: Any, rows: int) -> Any:  # (..., P) to (..., rows)
    """The sum of each row; labels: the row of each point, (P,)."""
    if not isinstance(x, np.ndarray):
        return x.new_zeros(*x.shape[:-1], rows).index_add(-1, labels, x)
    found = [np.bincount(labels, each, rows) for each in x.reshape(-1, x.shape[-1])]
    return np.stack(found).reshape(*x.shape[:-1], rows)


class Falling(Protocol):
    """Sums that fall in mu, one for each row of k n systems; all are (k, n, R)."""

    def at(self, mu: Any) -> tuple[Any, Any]:
        """How far sums are off, and how fast they fall in mu."""

    def scale(self) -> Any:
        """The size of the terms of each sum, once it was looked at."""

    def farther(self, mu: Any, off: Any, number: int) -> Any:
        """Beyond mu, where no bracket is known yet; number: of the step."""

    def taken(self, index: Any) -> "Falling | None":
        """Some of the systems, as (len(index), 1); None if only all can be looked at."""


def root_of_falling(problem: Falling, mu: Any, low: Any = None, high: Any = None) -> Any:
    """mu where the sums are 0: Newton's method in a bracket; what is left over goes on alone."""
    of = functions_of(mu)
    low = of.full_like(mu, -math.inf) if low is None else low
    high = of.full_like(mu, math.inf) if high is None else high
    size = None
    for number in range(MOST):
        off, slope = problem.at(mu)
        size = problem.scale() if size is None else size
        low, high = of.where(off > 0, mu, low), of.where(off < 0, mu, high)
        step, between = mu + off / slope, of.isfinite(low) & of.isfinite(high)
        same = abs(step - mu) <= GRAIN * abs(mu)
        done = (abs(off) <= MET * size) | same | (high - low <= GRAIN * abs(mu))
        outside = ~((step > low) & (step < high)) & ~done
        if number % 4 == 3:
            outside = outside | (~done & between)
        if bool(outside.any()):
            inside = of.where(between, (low + high) / 2, problem.farther(mu, off, number))
            step = of.where(outside, inside, step)
        done = done | (step == mu)
        mu = of.where(done, mu, step)
        rest = of.argwhere((~done).any(-1).reshape(-1))[:, 0]
        if not len(rest):
            break
        if 4 * len(rest) <= math.prod(mu.shape[:2]) and (some := problem.taken(rest)) is not None:
            mu, low, high = (x.reshape(-1, x.shape[-1]) for x in (mu, low, high))
            found = root_of_falling(some, *(x[rest][:, None] for x in (mu, low, high)))
            return mu.index_copy(0, rest, found[:, 0]).reshape(off.shape)
    return mu
