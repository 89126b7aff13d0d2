"""The gradient of `rows.py`: sums of each row again, and one more move.

With S = sum d g^2 + sigma^2, lambda = r / S, m and v the gradients of the mean and of the variance,

    A = sum m d g / S,  B = sum v (d g)^2 / S^2,  C = A lambda + B

the gradient of u is m - g A, of d it is v (1 - 2 d g^2 / S) - m g lambda + g^2 C, of b it is A, and
of sigma^2 it is C.
"""

import triton
import triton.language as tl

from .rows import part_of, points, row_of


@triton.jit
def _read(m, v, d, g, place, i, inside, n, d_rows, g_rows, HAS: tl.constexpr):
    """m, v, d and g at some points; HAS: 1 where m is there, 2 where v is, 3 both."""
    d_i = points(d, place % d_rows * n + i, inside)
    m_i, v_i = 0 * d_i, 0 * d_i
    if HAS % 2 == 1:
        m_i = points(m, place * n + i, inside)
    if HAS >= 2:
        v_i = points(v, place * n + i, inside)
    return m_i, v_i, d_i, points(g, place % g_rows * n + i, inside)


@triton.jit
def _store(of_u, of_d, at, inside, m, v, d, g, multiplier, inverse, a, c):
    of_v = v * (1 - 2 * d * g * g * inverse) - m * g * multiplier + g * g * c
    tl.store(of_u + at, (m - g * a).to(of_u.dtype.element_ty), mask=inside)
    tl.store(of_d + at, of_v.to(of_d.dtype.element_ty), mask=inside)


@triton.jit
def short_gradients(
    m, v, d, g, found, of_u, of_d, of_row, n, rows, d_rows, g_rows,
    HAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """All of it for a row of up to BLOCK points."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    inside = i < n
    m_i, v_i, d_i, g_i = _read(
        m, v, d, g, row, i, inside, n, d_rows, g_rows, HAS
    )  # fmt: skip
    multiplier, inverse = tl.load(found + row), tl.load(found + rows + row)
    a = tl.sum(m_i * d_i * g_i) * inverse
    c = a * multiplier + tl.sum(v_i * d_i * g_i * d_i * g_i) * inverse * inverse
    _store(of_u, of_d, row * n + i, inside, m_i, v_i, d_i, g_i, multiplier, inverse, a, c)
    tl.store(of_row + row, a)
    tl.store(of_row + rows + row, c)


@triton.jit
def gradient_sums(
    m, v, d, g, order, starts, sums, n, d_rows, g_rows,
    HAS: tl.constexpr, LISTED: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A S and B S^2 of each part of a row."""
    place, part, region = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    begin, end = row_of(starts, region, n, LISTED)
    begin, end = part_of(begin, end, part, SPLIT)
    a, b = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    for start in range(begin, end, BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = i < end
        if LISTED:
            i = tl.load(order + i, mask=inside, other=0).to(tl.int64)
        m_i, v_i, d_i, g_i = _read(
            m, v, d, g, place, i, inside, n, d_rows, g_rows, HAS
        )  # fmt: skip
        a += m_i * d_i * g_i
        b += v_i * d_i * g_i * d_i * g_i
    at = sums + (place * tl.num_programs(2) + region) * 2 * SPLIT + part
    tl.store(at, tl.sum(a))
    tl.store(at + SPLIT, tl.sum(b))


@triton.jit
def gradient_moves(
    m, v, d, g, label, found, of_row, of_u, of_d, n, rows, d_rows, g_rows,
    HAS: tl.constexpr, LISTED: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradients at each point."""
    place, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    begin, end = part_of(tl.zeros((), tl.int64), n, part, SPLIT)
    for start in range(begin, end, BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = i < end
        m_i, v_i, d_i, g_i = _read(
            m, v, d, g, place, i, inside, n, d_rows, g_rows, HAS
        )  # fmt: skip
        k = place * (rows // tl.num_programs(0))
        if LISTED:
            k += tl.load(label + i, mask=inside, other=0)
        multiplier, inverse = tl.load(found + k), tl.load(found + rows + k)
        a, c = tl.load(of_row + k), tl.load(of_row + rows + k)
        _store(of_u, of_d, place * n + i, inside, m_i, v_i, d_i, g_i, multiplier, inverse, a, c)
