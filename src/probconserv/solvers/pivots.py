"""Rows of which all others are made: pivots of G_u, what laws read of points of infinite variance.

Elimination in units, powers of two, in which each row and each point has a largest coefficient of
about 1. A coefficient that is less than 1e-11 of the terms it is the sum of is rounding, and 0.
Exact rows come first: noisy ones are pivots where they say nothing.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..fields.blocks import eye_like
from ..support.tolerances import FIXED, INDEPENDENT


class Pivots(NamedTuple):
    """Pivots of each part, and what they are good for."""

    pivots: Tensor  # (*lead, K)
    made_of: Tensor  # C, (*lead, K, K)
    inverse: Tensor  # of A, (*lead, points, K)
    undetermined: Tensor  # (*lead, points)
    log_det: Tensor  # of 1 + C C^T, (*lead)


def found_from(rows: Tensor, exact: Tensor, open_: Tensor) -> Pivots:
    """rows: G_u of the points that are unmeasured in some part, (*lead, K, points)."""
    lead, (count, points) = rows.shape[:-2], rows.shape[-2:]
    parts = lead.numel()
    rows, exact = rows.reshape(parts, count, points), exact.reshape(parts, count)
    some = open_.reshape(parts, -1)
    at = some.any(0)
    some = some[:, at]
    pivots, made_of = torch.zeros_like(exact), rows.new_zeros(parts, count, count)
    inverse, left = rows.new_zeros(parts, points, count), torch.zeros_like(some)
    log_det = rows.new_zeros(parts)
    arrays = [x.detach().cpu().numpy() for x in (rows, exact, some)]
    alike: dict[tuple[bytes, ...], list[int]] = {}
    for number in range(parts):
        alike.setdefault(tuple(x[number].tobytes() for x in arrays), []).append(number)
    for numbers in alike.values():
        g, free, own = (x[numbers[0]] for x in arrays)
        chosen = _pivots(g[:, own], free)
        here, j, p, q, row_units, units, open_ = (
            torch.as_tensor(x, device=rows.device) for x in (numbers, own.nonzero()[0], *chosen)
        )
        left[here[:, None], j] = open_
        if not len(p):
            continue
        pivots[here[:, None], p] = True
        g = (rows[here if rows.requires_grad else here[:1]][..., j] * row_units[:, None]) * units
        basis, upper = torch.linalg.qr(g[:, p].mT)
        back = torch.linalg.solve_triangular(upper, basis.mT, upper=True).mT
        one = eye_like(g[:, p])
        for _ in range(2):  # so that small entries have all their digits
            back = back + back @ (one - g[:, p] @ back)
        most = back.detach().abs().amax((-2, -1), keepdim=True)
        back = torch.where(back.abs() <= FIXED * most, 0.0, back)  # what is left of zeros
        c = g[:, q] @ back
        c = c + (g[:, q] - c @ g[:, p]) @ back
        terms = (g[:, q].abs() + c.abs() @ g[:, p].abs()) @ back.abs()
        c = torch.where(c.abs() <= INDEPENDENT * terms, 0.0, c)
        c = c * row_units[p] / row_units[q][:, None]
        made_of[here[:, None, None], q[:, None], p] = c
        inverse[here[:, None, None], j[:, None], p] = units[:, None] * back * row_units[p]
        upper = torch.linalg.qr(torch.cat([c, one.expand(len(c), -1, -1)], -2)).R
        log_det[here] = 2 * upper.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
    return Pivots(
        pivots.reshape(*lead, count),
        made_of.reshape(*lead, count, count),
        inverse.reshape(*lead, points, count),
        left.reshape(*lead, points),
        log_det.reshape(lead),
    )


class Chosen(NamedTuple):
    """Rows that give all others, and units, powers of two, in which coefficients are about 1."""

    pivots: NDArray[Any]
    others: NDArray[Any]
    row_units: NDArray[Any]
    units: NDArray[Any]  # of points
    undetermined: NDArray[Any]


def _pivots(g: NDArray[Any], exact: NDArray[Any]) -> Chosen:
    """By elimination with the largest pivot first, exact rows before the others."""
    row_units = _units(abs(g).max(1, initial=0.0))
    g = g * row_units[:, None]
    units = _units(abs(g).max(0, initial=0.0))
    a = g * units
    size, most = abs(a), abs(a).max(1, initial=0.0)
    rows: list[int] = []
    columns: list[int] = []
    for some in (exact, ~exact):
        left = some & (most > 0)
        while left.any():
            i = int(np.where(left, most, 0.0).argmax())
            j = int(abs(a[i]).argmax())
            rows.append(i)
            columns.append(j)
            below = np.setdiff1d(a[:, j].nonzero()[0], rows)
            _take_off(a, size, i, j, below)
            most[below] = abs(a[below]).max(1)
            most[i] = 0.0
            left = some & (most > 0)
    others = np.setdiff1d(np.arange(len(a)), rows)
    open_ = _open(a, size, rows, columns)
    return Chosen(np.array(rows, dtype=int), others, row_units, units, open_)


def _take_off(a: NDArray[Any], size: NDArray[Any], i: int, j: int, rows: NDArray[Any]) -> None:
    """Row i, of other rows so that they do not read point j; what is only rounding is 0."""
    at = np.ix_(rows, a[i].nonzero()[0])
    step = np.outer(a[rows, j] / a[i, j], a[i, at[1][0]])
    left, terms = a[at] - step, size[at] + abs(step)
    a[at], size[at] = np.where(abs(left) <= INDEPENDENT * terms, 0.0, left), terms
    a[rows, j] = 0.0


def _open(a: NDArray[Any], size: NDArray[Any], rows: list[int], columns: list[int]) -> NDArray[Any]:
    """Points that the rows do not determine: some other point is free to move them."""
    open_ = np.ones(a.shape[1], dtype=bool)
    if len(rows) < a.shape[1]:
        for number in reversed(range(len(rows))):  # backwards: a pivot is read by its row alone
            above = [i for i in rows[:number] if a[i, columns[number]]]
            _take_off(a, size, rows[number], columns[number], np.array(above, dtype=int))
    free = np.setdiff1d(np.arange(a.shape[1]), columns)
    open_[columns] = (a[rows][:, free] != 0).any(1)
    return open_


def _units(sizes: NDArray[Any]) -> NDArray[Any]:
    """What to multiply with, so that sizes are about 1; 1 where there is nothing."""
    return np.where(sizes > 0, np.ldexp(1.0, -np.frexp(sizes)[1]), 1.0)
