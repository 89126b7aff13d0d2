"""Members of an ensemble given one row for each part: sums of all members, and the move.

With f_s = (m_s - mean) / sqrt(N - 1), v = sum f_s^2 and the covariance of `shrinkage.py`, a point
is moved by c times a multiplier, where

    c = Sigma G^T = (1 - a) sum_s f_s H_s + a k sqrt(v) h + a (1 - k) v g

H_s and h are the sums of g f_s and of g sqrt(v), and k is the correlation. Members lie (members,
parts, points). Sums of each member are those of `row_sums`.
"""

import triton
import triton.language as tl

from ...support.tolerances import HALF_THE_DIGITS as _HALF
from .rows import part_of, points

HALF = tl.constexpr(_HALF)


@triton.jit
def _mean(m, at, inside, step, members):
    total = points(m, at, inside)
    for s in range(1, members):
        total += points(m, at + s * step, inside)
    return total / members


@triton.jit
def _spread(v, mean, rounding):
    """v, 0 where it is no more than rounding."""
    return tl.where(v > rounding * rounding * mean * mean, v, 0.0)


@triton.jit
def spread_sums(
    m, g, sums, n, members, g_rows, rounding, SPLIT: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Of each part: g^2 v and g sqrt(v), as they are and without rounding; |g mean|."""
    part, parts, split = tl.program_id(0).to(tl.int64), tl.num_programs(0), tl.program_id(1)
    begin, end = part_of(tl.zeros((), tl.int64), n, split, SPLIT)
    zero, step = tl.zeros((BLOCK,), tl.float64), parts.to(tl.int64) * n
    own, std, own_0, std_0, size = zero, zero, zero, zero, zero
    for start in range(begin, end, BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = i < end
        mean = _mean(m, part * n + i, inside, step, members)
        v_0 = tl.zeros((BLOCK,), tl.float64)
        for s in range(members):
            f = points(m, s * step + part * n + i, inside) - mean
            v_0 += f * f
        v_0 = v_0 / (members - 1)
        v, w = _spread(v_0, mean, rounding), points(g, part % g_rows * n + i, inside)
        own_0 += w * w * v_0
        std_0 += w * tl.sqrt(v_0)
        own += w * w * v
        std += w * tl.sqrt(v)
        size += tl.abs(w * mean)
    at = sums + part * 5 * SPLIT + split
    tl.store(at, tl.sum(own_0))
    tl.store(at + SPLIT, tl.sum(std_0))
    tl.store(at + 2 * SPLIT, tl.sum(own))
    tl.store(at + 3 * SPLIT, tl.sum(std))
    tl.store(at + 4 * SPLIT, tl.sum(size))


@triton.jit
def solve_members(
    totals, sums, b, sigma2, known, by, each, look, members, bs, ss, rounding,
    GIVEN: tl.constexpr, WIDE: tl.constexpr, MANY: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """What members are moved by, and the share and the correlation as `shrinkage.mix` has them.

    totals: of parts of each member, (members, parts, 3, MANY). by: (1 - a) H_s, then a k h and
    a (1 - k), and what moves the mean. known: two numbers of `mix`, and a where it is given.
    """
    part, parts = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    s, k = tl.arange(0, WIDE), tl.arange(0, MANY)
    at = totals + ((s.to(tl.int64) * parts + part) * 3 * MANY)[:, None] + k[None, :]
    total = tl.sum(tl.load(at, mask=(s < members)[:, None], other=0.0), 1)
    value, noise = tl.load(b + part * bs), tl.load(sigma2 + part * ss)
    centre = tl.sum(total) / members
    free = (members - 1).to(tl.float64)
    h = tl.where(s < members, total - centre, 0.0) / tl.sqrt(free)
    spread, i = tl.sum(h * h), tl.arange(0, SPLIT)
    row = sums + part * 5 * SPLIT + i
    alone, std = tl.sum(tl.load(row)), tl.sum(tl.load(row + SPLIT))
    own, common = tl.sum(tl.load(row + 2 * SPLIT)), tl.sum(tl.load(row + 3 * SPLIT))
    size = tl.sum(tl.load(row + 4 * SPLIT))
    share, together = tl.load(known + 2), alone * 0
    if not GIVEN:
        there = alone > 0
        less, safe = std * std - alone, tl.where(there, alone, 1.0)
        several = less > HALF * alone
        more = tl.where(several, (spread - alone) / tl.where(several, less, 1.0), 0.0)
        chance = 2 * tl.sqrt(2 / free)
        sure = tl.minimum(tl.maximum(less / (chance * safe), 0.0), 1.0)
        together = tl.where(there, tl.minimum(tl.maximum(more, 0.0), 1.0) * sure, 0.0)
        above = (1 + chance) * alone / tl.where(spread > 0, spread, safe)
        found = tl.minimum(tl.minimum(above, spread / (safe * tl.load(known))), 1.0)
        share = tl.where(there, tl.maximum(found, tl.load(known + 1)), 0.0)
        share = tl.minimum(tl.maximum(share, 1 / members), 1.0)
    k_h = share * together * common
    seen = (1 - share) * spread + k_h * common + share * (1 - together) * own + noise
    sure_of = 100 * rounding * size * rounding * size  # less may be rounding: for the engine
    inverse = tl.where(seen > sure_of, 1 / seen, float("nan"))
    tl.store(by + part * (members + 3) + s, (1 - share) * h, mask=s < members)
    tl.store(by + part * (members + 3) + members, k_h)
    tl.store(by + part * (members + 3) + members + 1, share * (1 - together))
    tl.store(by + part * (members + 3) + members + 2, (centre - value) * inverse)
    tl.store(each + part * members + s, (total - value) * inverse, mask=s < members)
    tl.store(look + part, (centre - value) * (centre - value) * inverse)
    tl.store(look + parts + part, size + tl.abs(value))


@triton.jit
def move_members(
    m, g, by, each, new, after, n, members, g_rows, rounding,
    EACH: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The mean, and what its rows add up to as stored; or with EACH all members."""
    part, parts, split = tl.program_id(0).to(tl.int64), tl.num_programs(0), tl.program_id(1)
    begin, end = part_of(tl.zeros((), tl.int64), n, split, SPLIT)
    own, step = by + part * (members + 3), parts.to(tl.int64) * n
    k, a, multiplier = (
        tl.load(own + members),
        tl.load(own + members + 1),
        tl.load(own + members + 2),
    )
    total, scale = tl.zeros((BLOCK,), tl.float64), 1 / tl.sqrt((members - 1).to(tl.float64))
    for start in range(begin, end, BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = i < end
        at = part * n + i
        mean = _mean(m, at, inside, step, members)
        v, c = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
        for s in range(members):
            f = (points(m, at + s * step, inside) - mean) * scale
            v += f * f
            c += f * tl.load(own + s)
        v, w = _spread(v, mean, rounding), points(g, part % g_rows * n + i, inside)
        c += k * tl.sqrt(v) + a * v * w
        if EACH:
            for s in range(members):
                moved = points(m, at + s * step, inside) - c * tl.load(each + part * members + s)
                tl.store(new + at + s * step, moved.to(new.dtype.element_ty), mask=inside)
        else:
            stored = (mean - c * multiplier).to(new.dtype.element_ty)
            tl.store(new + at, stored, mask=inside)
            total += stored.to(tl.float64) * w
    if not EACH:
        tl.store(after + part * SPLIT + split, tl.sum(total))
