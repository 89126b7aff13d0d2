"""Independent points and rows that share no point: sums of each row, the solve, the move.

Values are read and written in the type of the field; sums and the solve are float64. A row is a
place, or a region of a place, whose points are listed one region after the other in `order`.
Short rows are read once; long ones in parts, once for the sums and once for the move. What is
looked at, of each row: the largest move of a point, squared, beside its variance; what the row
misses once stored, as a share of its terms, NaN where something is not finite or a variance is
negative; and the share that one point has of S.
"""

import triton
import triton.language as tl

from ...support.tolerances import FIXED as _FIXED
from ...support.tolerances import TINY as _TINY
from ..stages import CARE as _CARE

CARE, FIXED, TINY = tl.constexpr(_CARE), tl.constexpr(_FIXED), tl.constexpr(_TINY)


@triton.jit
def _solved(own, noise, r):
    """The multiplier and the inverse of rows, 0 where nothing can move them."""
    total = own + noise
    inverse = tl.where((total > TINY) | (noise > 0), 1 / tl.maximum(total, TINY), 0.0)
    return r * inverse, inverse


@triton.jit
def _left(d, w, inverse, share):
    """The variance that is left; share: of the others in a row in which one point has the most."""
    lost = d * w * w * inverse
    return d * tl.where(lost > 1 - CARE, share, 1 - lost)


@triton.jit
def _share(rest, noise, inverse):
    share = (rest + noise) * inverse
    return tl.where((noise == 0) & (share < FIXED), 0.0, share)


@triton.jit
def points(x, at, inside):
    return tl.load(x + at, mask=inside, other=0.0).to(tl.float64)


@triton.jit
def part_of(begin, end, part, SPLIT: tl.constexpr):
    """Where one of SPLIT parts begins and ends."""
    per = tl.cdiv(end - begin, SPLIT)
    return begin + part * per, tl.minimum(begin + (part + 1) * per, end)


@triton.jit
def row_of(starts, region, n, LISTED: tl.constexpr):
    """Where a row begins and ends: a region in the list of points, or all of a place."""
    begin, end = tl.zeros((), tl.int64), tl.zeros((), tl.int64) + n
    if LISTED:
        begin, end = tl.load(starts + region), tl.load(starts + region + 1)
    return begin, end


@triton.jit
def short_rows(
    u, d, g, b, sigma2, new_u, new_d, found, n, bs, ss, d_rows, g_rows,
    ROUNDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """All of it for a row of up to BLOCK points. found: lambda, 1 / S and what is looked at."""
    row, rows = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    i = tl.arange(0, BLOCK)
    inside = i < n
    x = points(u, row * n + i, inside)
    v = points(d, row % d_rows * n + i, inside)
    w = points(g, row % g_rows * n + i, inside)
    value, noise = tl.load(b + row * bs), tl.load(sigma2 + row * ss)
    e = v * w * w
    most = tl.max(e)
    multiplier, inverse = _solved(tl.sum(e), noise, tl.sum(x * w) - value)
    share = most * 0
    if most * inverse > 1 - CARE:  # of the others alone: no difference of like numbers
        share = _share(tl.sum(tl.where(e * inverse > 1 - CARE, 0.0, e)), noise, inverse)
    moved = (x - v * w * multiplier).to(new_u.dtype.element_ty)
    left = _left(v, w, inverse, share)
    tl.store(new_u + row * n + i, moved, mask=inside)
    tl.store(new_d + row * n + i, left.to(new_d.dtype.element_ty), mask=inside)
    stored = moved.to(tl.float64) * w
    missed = tl.abs(tl.sum(stored + tl.where(v >= 0, 0 * left, float("nan"))) - value)
    size = tl.abs(value)
    if missed > ROUNDED * size:
        size += tl.sum(tl.abs(stored))
    tl.store(found + row, multiplier)
    tl.store(found + rows + row, inverse)
    tl.store(found + 2 * rows + row, multiplier * multiplier * most)
    missed = missed / tl.where(size > 0, size, 1.0)
    tl.store(found + 3 * rows + row, tl.where(noise == 0, missed, 0 * missed))
    tl.store(found + 4 * rows + row, most * inverse)


@triton.jit
def row_sums(
    u, d, g, order, starts, sums, n, d_rows, g_rows,
    LISTED: tl.constexpr, SPREAD: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of each part of a row: G u; of d g^2 the sum of all but the largest, and the largest.

    Without SPREAD: G u and |G u|, of what was stored.
    """
    place, part, region = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    begin, end = row_of(starts, region, n, LISTED)
    begin, end = part_of(begin, end, part, SPLIT)
    total, rest = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    most = tl.zeros((BLOCK,), tl.float64)
    for start in range(begin, end, BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = i < end
        if LISTED:
            i = tl.load(order + i, mask=inside, other=0).to(tl.int64)
        x = points(u, place * n + i, inside)
        w = points(g, place % g_rows * n + i, inside)
        total += x * w
        if SPREAD:
            v = points(d, place % d_rows * n + i, inside)
            total += tl.where(v >= 0, 0 * v, float("nan"))
            e = v * w * w
            rest += tl.minimum(most, e)  # in each lane all but its largest
            most = tl.maximum(most, e)
        else:
            rest += tl.abs(x * w)
    at = sums + (place * tl.num_programs(2) + region) * 3 * SPLIT + part
    tl.store(at, tl.sum(total))
    if SPREAD:
        rest += tl.where(tl.arange(0, BLOCK) == tl.argmax(most, 0), 0.0, most)
        tl.store(at + 2 * SPLIT, tl.max(most))
    tl.store(at + SPLIT, tl.sum(rest))


@triton.jit
def solve_rows(sums, b, sigma2, found, share, bs, ss, SPLIT: tl.constexpr):
    """The multiplier, the inverse, the share of the others, and the largest move of each row."""
    row, rows = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    parts = tl.arange(0, SPLIT)
    at = sums + row * 3 * SPLIT + parts
    noise = tl.load(sigma2 + row * ss)
    total, rest, most = tl.sum(tl.load(at)), tl.load(at + SPLIT), tl.load(at + 2 * SPLIT)
    first = tl.argmax(most, 0)
    others = tl.sum(rest) + tl.sum(tl.where(parts == first, 0.0, most))
    largest = tl.max(most)
    multiplier, inverse = _solved(others + largest, noise, total - tl.load(b + row * bs))
    tl.store(found + row, multiplier)
    tl.store(found + rows + row, inverse)
    tl.store(found + 2 * rows + row, multiplier * multiplier * largest)
    tl.store(found + 4 * rows + row, largest * inverse)
    tl.store(share + row, _share(others, noise, inverse))


@triton.jit
def move_rows(
    u, d, g, label, found, share, new_u, new_d, after, n, rows, d_rows, g_rows,
    LISTED: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Each point by its multiplier; and what the rows that are not listed add up to as stored."""
    place, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    begin, end = part_of(tl.zeros((), tl.int64), n, part, SPLIT)
    total, terms = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    row = place * (rows // tl.num_programs(0))
    multiplier, inverse = tl.load(found + row), tl.load(found + rows + row)
    others = tl.load(share + row)
    for start in range(begin, end, BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = i < end
        x = points(u, place * n + i, inside)
        v = points(d, place % d_rows * n + i, inside)
        w = points(g, place % g_rows * n + i, inside)
        if LISTED:
            own = row + tl.load(label + i, mask=inside, other=0)
            stored = (x - v * w * tl.load(found + own)).to(new_u.dtype.element_ty)
            left = _left(v, w, tl.load(found + rows + own), tl.load(share + own))
        else:
            stored = (x - v * w * multiplier).to(new_u.dtype.element_ty)
            left = _left(v, w, inverse, others)
            term = stored.to(tl.float64) * w  # 0 outside, where w is
            total += term
            terms += tl.abs(term)
        tl.store(new_u + place * n + i, stored, mask=inside)
        tl.store(new_d + place * n + i, left.to(new_d.dtype.element_ty), mask=inside)
    if not LISTED:
        tl.store(after + place * 3 * SPLIT + part, tl.sum(total))
        tl.store(after + place * 3 * SPLIT + SPLIT + part, tl.sum(terms))


@triton.jit
def missed_rows(after, b, sigma2, found, bs, ss, SPLIT: tl.constexpr):
    """What each row misses as it was stored, as a share of its terms."""
    row, rows = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    at = after + row * 3 * SPLIT + tl.arange(0, SPLIT)
    value = tl.load(b + row * bs)
    total, size = tl.sum(tl.load(at)), tl.sum(tl.load(at + SPLIT)) + tl.abs(value)
    missed = tl.abs(total - value) / tl.where(size > 0, size, 1.0)
    tl.store(found + 3 * rows + row, tl.where(tl.load(sigma2 + row * ss) == 0, missed, 0 * missed))
