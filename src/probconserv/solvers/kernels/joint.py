"""Independent points given a few rows that read the same points: sums, and the move.

With W the weights (rows, points) of a place, the sums are W u and W D W^T. A point moves by
d W^T lambda, and loses the squares of L^-1 W d, where L L^T = W D W^T + sigma^2. A programme takes
one block of points, whose weights it reads again for each row: they stay near.
"""

import triton
import triton.language as tl

from .rows import points


@triton.jit
def joint_sums(u, d, g, sums, n, blocks, rows, d_rows, g_rows, BLOCK: tl.constexpr):
    """Of each block of a place W u, (rows,), and the lower half of W D W^T, (rows, rows)."""
    number = tl.program_id(0).to(tl.int64)
    place, block = number // blocks, number % blocks
    i = block * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    x, v = points(u, place * n + i, inside), points(d, place % d_rows * n + i, inside)
    x += tl.where(v >= 0, 0 * v, float("nan"))
    own, step = place % g_rows * n + i, (tl.zeros((), tl.int64) + n) * g_rows
    at = sums + number * rows * (rows + 1)
    for j in range(rows):
        w = points(g, j * step + own, inside)
        tl.store(at + j, tl.sum(w * x))
        w = w * v
        for k in range(j + 1):
            tl.store(at + (j + 1) * rows + k, tl.sum(w * points(g, k * step + own, inside)))


@triton.jit
def joint_moves(
    u, d, g, by, white, new_u, new_d, after, n, blocks, rows, d_rows, g_rows, BLOCK: tl.constexpr
):  # fmt: skip
    """Each point moved. Of each block: W u and |W u| as stored; the largest move of a point beside
    its variance, squared; and the largest share of its variance that a point loses.

    by: lambda of each place. white: L^-1.
    """
    number = tl.program_id(0).to(tl.int64)
    place, block = number // blocks, number % blocks
    i = block * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    x, v = points(u, place * n + i, inside), points(d, place % d_rows * n + i, inside)
    own, step = place % g_rows * n + i, (tl.zeros((), tl.int64) + n) * g_rows
    along, lost = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    for j in range(rows):
        along += points(g, j * step + own, inside) * tl.load(by + place * rows + j)
        seen = tl.zeros((BLOCK,), tl.float64)
        for k in range(j + 1):
            root = tl.load(white + (place * rows + j) * rows + k)
            seen += root * points(g, k * step + own, inside)
        lost += seen * seen
    lost = lost * v
    stored = (x - v * along).to(new_u.dtype.element_ty)
    tl.store(new_u + place * n + i, stored, mask=inside)
    tl.store(new_d + place * n + i, (v * (1 - lost)).to(new_d.dtype.element_ty), mask=inside)
    at = after + number * (2 * rows + 2)
    stored = tl.where(inside, stored.to(tl.float64), 0.0)
    for j in range(rows):
        term = points(g, j * step + own, inside) * stored
        tl.store(at + j, tl.sum(term))
        tl.store(at + rows + j, tl.sum(tl.abs(term)))
    tl.store(at + 2 * rows, tl.max(v * along * along))
    tl.store(at + 2 * rows + 1, tl.max(lost))
