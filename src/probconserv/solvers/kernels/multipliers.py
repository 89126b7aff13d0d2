"""Multipliers of the laws of air, by what programmes of `columns.py` found: one for each member.

A member has a row of 48 numbers: what the laws ask for 0:3 and the rain 3 as it was, the inverse of
the responses 4:13, the multipliers 13:16, what they leave missing 16:19; of the state that is
written what is missing 19:22, its rain 22, changes 23:27, the largest move 27, largest of p and -p
28:30, and what is missing as a share of the totals 30, before 31. Then 19:29 of columns as they
were 32:42, the vapour that comes in 42, and the totals that are asked for 43:46.
"""

import triton
import triton.language as tl

from .columns import most

CHUNK = tl.constexpr(128)  # parts that are added up at a time


@triton.jit
def _added(parts, m, P):
    """The sum and the largest of each number of all parts."""
    i = tl.arange(0, 32)
    total, top = tl.zeros((32,), tl.float64), tl.zeros((32,), tl.float64) - float("inf")
    for start in range(0, P, CHUNK):
        part = start + tl.arange(0, CHUNK)
        inside = (part < P)[:, None] & (i < 32)[None, :]
        x = tl.load(parts + (m * P + part[:, None]) * 32 + i[None, :], mask=inside, other=0.0)
        total += tl.sum(x, 0)
        here = most(tl.where(inside, x, -float("inf")), 0)
        top = tl.where((top != top) | (here != here), float("nan"), tl.maximum(top, here))
    return total, top


@triton.jit
def _pick(x, i: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, 32) == i, x, 0.0))


@triton.jit
def _top(x, i: tl.constexpr):
    return most(tl.where(tl.arange(0, 32) == i, x, -float("inf")), 0)


@triton.jit
def _store3(x, a, b, c):
    tl.store(x, a)
    tl.store(x + 1, b)
    tl.store(x + 2, c)


@triton.jit
def _missing(asked, total, numbers):
    """Of each law, by contents of air, vapour, heat and rain."""
    air, vapour, heat = _pick(total, 0), _pick(total, 1), _pick(total, 2)
    dry = tl.load(asked) - (air - vapour)
    water = tl.load(asked + 1) - (vapour + _pick(total, 3))
    energy = tl.load(numbers + 2) * vapour + tl.load(numbers + 3) * heat
    return dry, water, tl.load(asked + 2) - energy


@triton.jit
def _share(dry, water, energy, asked, least):
    """The largest as a share of the totals; NaN where one is."""
    a = tl.abs(dry) / tl.maximum(tl.abs(tl.load(asked)), tl.load(least))
    b = tl.abs(water) / tl.maximum(tl.abs(tl.load(asked + 1)), tl.load(least + 1))
    c = tl.abs(energy) / tl.maximum(tl.abs(tl.load(asked + 2)), tl.load(least + 2))
    return tl.maximum(a, tl.maximum(b, c)) + 0 * (a + b + c)


@triton.jit
def first(parts, base, carry, gain, active, constants, rows, P, K):
    """A step of Newton's method, and what masses at the pressure that results take from it."""
    m = tl.program_id(0).to(tl.int64)
    total, top = _added(parts, m, P)
    row, numbers, at = rows + m * 48, constants + 7 * K, m * 3
    base, carry, gain = base + at, carry + at, gain + at
    x = tl.load(base) + tl.load(carry) + tl.load(gain)
    y = tl.load(base + 1) + tl.load(carry + 1) + tl.load(gain + 1)
    z = tl.load(base + 2) + tl.load(carry + 2) + tl.load(gain + 2)
    _store3(row + 43, x, y, z)
    tl.store(row + 42, tl.load(gain + 1))
    latent, capacity = tl.load(numbers + 2), tl.load(numbers + 3)
    vapour = _pick(total, 1)
    dry, water = x - (_pick(total, 0) - vapour), y - (vapour + _pick(total, 3))
    energy = z - (latent * vapour + capacity * _pick(total, 2))
    _store3(row, dry, water, energy)
    _store3(row + 16, dry, water, energy)
    tl.store(row + 3, _pick(total, 3))
    tl.store(row + 32, _pick(total, 19))
    tl.store(row + 33, _pick(total, 20))
    for i in tl.static_range(8):
        tl.store(row + 34 + i, _top(top, 21 + i))
    air, air_q, air_t = _pick(total, 4), _pick(total, 5), _pick(total, 6)
    q, q_t = _pick(total, 7) + _pick(total, 11), _pick(total, 8)
    t = _pick(total, 9) + _pick(total, 12)
    has_x, has_y, has_z = tl.load(active), tl.load(active + 1), tl.load(active + 2)
    a, d = (air - 2 * air_q + q) * has_x, (q + _pick(total, 10)) * has_y
    f = (latent * latent * q + 2 * latent * capacity * q_t + capacity * capacity * t) * has_z
    b = (air_q - q) * has_x * has_y
    c = (latent * (air_q - q) + capacity * (air_t - q_t)) * has_x * has_z
    e = (latent * q + capacity * q_t) * has_y * has_z
    a, d = tl.where(a == 0, 1.0, a), tl.where(d == 0, 1.0, d)  # without effect
    f = tl.where(f == 0, 1.0, f)
    over = 1 / (a * (d * f - e * e) + b * (c * e - b * f) + c * (b * e - c * d))
    xx, yy, zz = (d * f - e * e) * over, (a * f - c * c) * over, (a * d - b * b) * over
    xy, xz, yz = (c * e - b * f) * over, (b * e - c * d) * over, (b * c - a * e) * over
    xx, yy, zz = xx * has_x, yy * has_y, zz * has_z
    xy, xz, yz = xy * has_x * has_y, xz * has_x * has_z, yz * has_y * has_z
    _store3(row + 4, xx, xy, xz)
    _store3(row + 7, xy, yy, yz)
    _store3(row + 10, xz, yz, zz)
    by_x, by_y = xx * dry + xy * water + xz * energy, xy * dry + yy * water + yz * energy
    by_z = xz * dry + yz * water + zz * energy
    wet, warm = by_y - by_x + latent * by_z, capacity * by_z
    rise_q = by_x * _pick(total, 13) + wet * _pick(total, 14) + warm * _pick(total, 15)
    rise_t = by_x * _pick(total, 16) + wet * _pick(total, 17) + warm * _pick(total, 18)
    wet, warm = wet * rise_q, warm * rise_t  # of vapour and heat, beyond
    dry, water, energy = dry + wet, water - wet, energy - latent * wet - capacity * warm
    by_x, by_y = xx * dry + xy * water + xz * energy, xy * dry + yy * water + yz * energy
    _store3(row + 13, by_x, by_y, xz * dry + yz * water + zz * energy)


@triton.jit
def following(parts, constants, rows, P, K):
    m = tl.program_id(0).to(tl.int64)
    total, _ = _added(parts, m, P)
    row = rows + m * 48
    dry, water, energy = _missing(row + 43, total, constants + 7 * K)
    _store3(row + 16, dry, water, energy)
    for i in tl.static_range(3):
        by = row + 4 + 3 * i
        more = tl.load(by) * dry + tl.load(by + 1) * water + tl.load(by + 2) * energy
        tl.store(row + 13 + i, tl.load(row + 13 + i) + more)


@triton.jit
def last(parts, base, carry, gain, least, constants, rows, budget, P, K):
    """What comes of it, and the running totals with what their sum lost in rounding."""
    m = tl.program_id(0).to(tl.int64)
    total, top = _added(parts, m, P)
    row, asked = rows + m * 48, rows + m * 48 + 43
    dry, water, energy = _missing(asked, total, constants + 7 * K)
    _store3(row + 19, dry, water, energy)
    for i in tl.static_range(5):  # rain and changes
        tl.store(row + 22 + i, _pick(total, 3 + i))
    for i in tl.static_range(3):
        tl.store(row + 27 + i, _top(top, 8 + i))
    tl.store(row + 30, _share(dry, water, energy, asked, least))
    dry, water, energy = tl.load(row + 16), tl.load(row + 17), tl.load(row + 18)
    tl.store(row + 31, _share(dry, water, energy, asked, least))
    i = tl.arange(0, 4)
    is_law = i < 3
    start = tl.load(base + m * 3 + i, mask=is_law, other=0.0)
    change = tl.load(gain + m * 3 + i, mask=is_law, other=0.0)
    change = tl.where(i == 1, change - _pick(total, 3), change)
    found = start + change
    lost = change - (found - start)
    old = tl.load(carry + m * 3 + i, mask=is_law, other=0.0)
    tl.store(budget + m * 3 + i, found, mask=is_law)
    tl.store(budget + (tl.num_programs(0) + m) * 3 + i, old + lost, mask=is_law)
