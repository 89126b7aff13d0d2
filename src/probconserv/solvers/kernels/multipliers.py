"""Multipliers of the laws of air, by what programmes of `columns.py` found: one for each member.

A member has a row of 32 numbers: what the laws ask for 0:3 and the rain 3 as it was, the inverse of
the responses 4:13, the multipliers 13:16, what they leave missing 16:19; of the state that is
written what is missing 19:22, its rain 22, changes 23:27, the largest move 27, the highest and the
negative of the lowest pressure 28:30, and what is missing as a share of the totals 30, before 31.
"""

import triton
import triton.language as tl

CHUNK = tl.constexpr(128)  # parts that are added up at a time


@triton.jit
def _added(parts, P, WIDTH: tl.constexpr):
    """The sum and the largest of each number of all parts."""
    i = tl.arange(0, 16)
    total = tl.zeros((16,), tl.float64)
    most = tl.zeros((16,), tl.float64) - float("inf")
    for start in range(0, P, CHUNK):
        row = start + tl.arange(0, CHUNK)
        inside = (row < P)[:, None] & (i < WIDTH)[None, :]
        x = tl.load(parts + row[:, None] * WIDTH + i[None, :], mask=inside, other=0.0)
        total += tl.sum(x, 0)
        most = tl.maximum(most, tl.max(tl.where(inside, x, -float("inf")), 0))
    return total, most


@triton.jit
def _pick(x, i: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, 16) == i, x, 0.0))


@triton.jit
def _missing(total, target, shares):
    """Of each law, by contents of air, vapour, heat and rain."""
    air, vapour, heat = _pick(total, 0), _pick(total, 1), _pick(total, 2)
    latent, capacity = tl.load(shares + 5), tl.load(shares + 8)
    dry = tl.load(target) - (air - vapour)
    water = tl.load(target + 1) - (vapour + _pick(total, 3))
    return dry, water, tl.load(target + 2) - (latent * vapour + capacity * heat)


@triton.jit
def _store3(x, a, b, c):
    tl.store(x, a)
    tl.store(x + 1, b)
    tl.store(x + 2, c)


@triton.jit
def _share(dry, water, energy, target, least):
    """The largest as a share of the totals; NaN where one is."""
    a = tl.abs(dry) / tl.maximum(tl.abs(tl.load(target)), tl.load(least))
    b = tl.abs(water) / tl.maximum(tl.abs(tl.load(target + 1)), tl.load(least + 1))
    c = tl.abs(energy) / tl.maximum(tl.abs(tl.load(target + 2)), tl.load(least + 2))
    return tl.maximum(a, tl.maximum(b, c)) + 0 * (a + b + c)


@triton.jit
def first_multipliers(parts, rows, target, active, shares, P):
    m = tl.program_id(0).to(tl.int64)
    total, _ = _added(parts + m * P * 13, P, 13)
    row = rows + m * 32
    dry, water, energy = _missing(total, target + m * 3, shares)
    _store3(row, dry, water, energy)
    tl.store(row + 3, _pick(total, 3))
    latent, capacity = tl.load(shares + 5), tl.load(shares + 8)
    air, air_q, air_t = _pick(total, 4), _pick(total, 5), _pick(total, 6)
    q, q_t = _pick(total, 7) + _pick(total, 11), _pick(total, 8)
    t = _pick(total, 9) + _pick(total, 12)
    has_dry, has_water, has_energy = tl.load(active), tl.load(active + 1), tl.load(active + 2)
    a = (air - 2 * air_q + q) * has_dry
    b = (air_q - q) * has_dry * has_water
    c = (latent * (air_q - q) + capacity * (air_t - q_t)) * has_dry * has_energy
    d = (q + _pick(total, 10)) * has_water
    e = (latent * q + capacity * q_t) * has_water * has_energy
    f = latent * latent * q + 2 * latent * capacity * q_t + capacity * capacity * t
    f = f * has_energy
    a, d = tl.where(a == 0, 1.0, a), tl.where(d == 0, 1.0, d)  # without effect
    f = tl.where(f == 0, 1.0, f)
    ad, ae, af = d * f - e * e, c * e - b * f, b * e - c * d
    over = 1 / (a * ad + b * ae + c * af)
    bf, cf, df = a * f - c * c, b * c - a * e, a * d - b * b
    dw, de, we = has_dry * has_water, has_dry * has_energy, has_water * has_energy
    _store3(row + 4, ad * over * has_dry, ae * over * dw, af * over * de)
    _store3(row + 7, ae * over * dw, bf * over * has_water, cf * over * we)
    _store3(row + 10, af * over * de, cf * over * we, df * over * has_energy)
    dry, water, energy = dry * over * has_dry, water * over * has_water, energy * over * has_energy
    tl.store(row + 13, (ad * dry + ae * water + af * energy) * has_dry)
    tl.store(row + 14, (ae * dry + bf * water + cf * energy) * has_water)
    tl.store(row + 15, (af * dry + cf * water + df * energy) * has_energy)


@triton.jit
def next_multipliers(parts, rows, target, shares, P):
    m = tl.program_id(0).to(tl.int64)
    total, _ = _added(parts + m * P * 11, P, 11)
    dry, water, energy = _missing(total, target + m * 3, shares)
    row = rows + m * 32
    _store3(row + 16, dry, water, energy)
    for i in tl.static_range(3):
        by = row + 4 + 3 * i
        more = tl.load(by) * dry + tl.load(by + 1) * water + tl.load(by + 2) * energy
        tl.store(row + 13 + i, tl.load(row + 13 + i) + more)


@triton.jit
def last_numbers(parts, rows, target, least, shares, P):
    m = tl.program_id(0).to(tl.int64)
    total, most = _added(parts + m * P * 11, P, 11)
    row, target = rows + m * 32, target + m * 3
    dry, water, energy = _missing(total, target, shares)
    _store3(row + 19, dry, water, energy)
    for i in tl.static_range(5):  # rain and changes
        tl.store(row + 22 + i, _pick(total, 3 + i))
    for i in tl.static_range(3):
        tl.store(row + 27 + i, tl.max(tl.where(tl.arange(0, 16) == 8 + i, most, -float("inf"))))
    tl.store(row + 30, _share(dry, water, energy, target, least))
    before = tl.load(row + 16), tl.load(row + 17), tl.load(row + 18)
    tl.store(row + 31, _share(before[0], before[1], before[2], target, least))
