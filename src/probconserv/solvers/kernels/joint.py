"""Independent points given a few rows that read the same points: sums, and the move.

With W the weights (rows, points) of a place, the sums are W u and W D W^T. A point moves by
d W^T lambda, and loses the squares of L^-1 W d, where L L^T = W D W^T + sigma^2.
"""

import triton
import triton.language as tl

from .rows import part_of, points


@triton.jit
def _weights(g, place, i, inside, n, rows, g_rows, WIDE: tl.constexpr):  # (rows, points)
    k = tl.arange(0, WIDE).to(tl.int64)[:, None]
    at = (k * g_rows + place % g_rows) * n + i[None, :]
    return points(g, at, (k < rows) & inside[None, :])


@triton.jit
def joint_sums(
    u, d, g, sums, n, rows, d_rows, g_rows,
    WIDE: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """W u and W D W^T of each part of a place."""
    place, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    begin, end = part_of(tl.zeros((), tl.int64), n, part, SPLIT)
    total, gram = tl.zeros((WIDE, BLOCK), tl.float64), tl.zeros((WIDE, WIDE, BLOCK), tl.float64)
    for start in range(begin, end, BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = i < end
        x = points(u, place * n + i, inside)
        v = points(d, place % d_rows * n + i, inside)
        w = _weights(g, place, i, inside, n, rows, g_rows, WIDE)
        total += w * (x + tl.where(v >= 0, 0 * v, float("nan")))[None, :]
        gram += w[:, None, :] * (w * v[None, :])[None, :, :]
    k = tl.arange(0, WIDE)
    at = sums + (place * SPLIT + part) * WIDE * (WIDE + 1)
    tl.store(at + k, tl.sum(total, 1))
    tl.store(at + WIDE + k[:, None] * WIDE + k[None, :], tl.sum(gram, 2))


@triton.jit
def joint_moves(
    u, d, g, multipliers, white, new_u, new_d, after, n, rows, d_rows, g_rows,
    WIDE: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Each point moved. Of each part: W u and |W u| as stored; the largest move of a point beside
    its variance, squared; and the largest share of its variance that a point loses.

    white: L^-1 of each place.
    """
    place, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    begin, end = part_of(tl.zeros((), tl.int64), n, part, SPLIT)
    k = tl.arange(0, WIDE)
    by = tl.load(multipliers + place * rows + k, mask=k < rows, other=0.0)
    pairs = (k < rows)[:, None] & (k < rows)[None, :]
    root = tl.load(white + (place * rows + k[:, None]) * rows + k[None, :], mask=pairs, other=0.0)
    total, terms = tl.zeros((WIDE, BLOCK), tl.float64), tl.zeros((WIDE, BLOCK), tl.float64)
    far, most = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    for start in range(begin, end, BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = i < end
        x = points(u, place * n + i, inside)
        v = points(d, place % d_rows * n + i, inside)
        w = _weights(g, place, i, inside, n, rows, g_rows, WIDE)
        along = tl.sum(w * by[:, None], 0)
        seen = tl.sum(root[:, :, None] * w[None, :, :], 1)
        lost = v * tl.sum(seen * seen, 0)
        stored = (x - v * along).to(new_u.dtype.element_ty)
        tl.store(new_u + place * n + i, stored, mask=inside)
        tl.store(new_d + place * n + i, (v * (1 - lost)).to(new_d.dtype.element_ty), mask=inside)
        term = w * stored.to(tl.float64)[None, :]
        total += term
        terms += tl.abs(term)
        far, most = tl.maximum(far, v * along * along), tl.maximum(most, lost)
    at = after + (place * SPLIT + part) * (2 * WIDE + 2)
    tl.store(at + k, tl.sum(total, 1))
    tl.store(at + WIDE + k, tl.sum(terms, 1))
    tl.store(at + 2 * WIDE, tl.max(far))
    tl.store(at + 2 * WIDE + 1, tl.max(most))
