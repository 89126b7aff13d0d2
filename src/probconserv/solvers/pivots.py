"""Rows of which all others are made: pivots of G_u, what laws read of points of infinite variance.

QR with column pivoting of G_u^T, in units, powers of two, in which each row and each point has a
largest coefficient of about 1. Exact rows come first: noisy ones are pivots where they say nothing.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..fields.blocks import eye_like

ROUNDING = 1e-11  # of its row's size: a coefficient, or a row, that is less is rounding
OPEN = 1e-8  # a point is open that moves by so much, in these units, while no row changes


class Found(NamedTuple):
    """Pivots of each part, and what they are good for."""

    pivots: Tensor  # (*lead, K)
    made_of: Tensor  # C, (*lead, K, K)
    inverse: Tensor  # of A, (*lead, points, K)
    undetermined: Tensor  # (*lead, points)
    log_det: Tensor  # of 1 + C C^T, (*lead)


def found_from(rows: Tensor, exact: Tensor, open_: Tensor) -> Found:
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
        c = g[:, q] @ back
        c = c + (g[:, q] - c @ g[:, p]) @ back
        c = torch.where(c.abs() <= ROUNDING, 0.0, c) * row_units[p] / row_units[q][:, None]
        made_of[here[:, None, None], q[:, None], p] = c
        inverse[here[:, None, None], j[:, None], p] = units[:, None] * back * row_units[p]
        upper = torch.linalg.qr(torch.cat([c, one.expand(len(c), -1, -1)], -2), mode="r").R
        log_det[here] = 2 * upper.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
    return Found(
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
    """By QR with column pivoting of G_u^T; exact rows first, so that they keep no noise."""
    row_units = _units(abs(g).max(1, initial=0.0))
    g = g * row_units[:, None]
    units = _units(abs(g).max(0, initial=0.0))
    g = g * units
    first, basis = _independent(g, exact.nonzero()[0])
    rest = g - (g @ basis) @ basis.T
    rest = rest - (rest @ basis) @ basis.T
    second, _ = _independent(rest, (~exact).nonzero()[0])
    pivots = np.concatenate([first, second])
    whole = np.linalg.qr(g[pivots].T, mode="complete")[0]
    open_ = (whole[:, len(pivots) :] ** 2).sum(1) > OPEN**2
    others = np.setdiff1d(np.arange(len(g)), pivots)
    return Chosen(pivots, others, row_units, units, open_)


def _independent(g: NDArray[Any], some: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Those of some rows that do not follow from the others, and a basis of what they read."""
    from scipy.linalg import qr  # a tenth of a second, so not for everybody

    if not len(some) or not g.shape[1]:
        return some[:0], g[:0].T
    basis, upper, order = qr(g[some].T, mode="economic", pivoting=True)
    rank = int((abs(upper.diagonal()) > ROUNDING).sum())
    return some[order[:rank]], basis[:, :rank]


def _units(sizes: NDArray[Any]) -> NDArray[Any]:
    """What to multiply with, so that sizes are about 1; 1 where there is nothing."""
    return np.where(sizes > 0, np.ldexp(1.0, -np.frexp(sizes)[1]), 1.0)
