"""Columns of air: what the budgets need of them, and their move.

A programme takes all K levels of some columns. Fields are read and written in their own type, sums
are in float64: 32 numbers for a programme, which `multipliers.py` adds up. With a + b p the mass of
a layer, a' + b' p that by which it moves, and v the variances, the first 29 of columns are

    0:4    contents: air, vapour, heat, rain
    4:13   v of the pressure times products of (air, sum b q, sum b T); v of rain; sum v m m'
    13:19  how the two last rise with the pressure, times v of that and (air, sum b q, sum b T)
    19:21  vapour of the first and of the last level
    21:29  largest of -p, p, -T, T, -q, q, -r, r

and once moved 0:4, means of what is changed 4:8, the largest move 8, 9:11 of p and -p. Constants
are a, b, a', b', shares of the air, and of errors that go by the change the floor of vapour and
the least of temperature, (7, K); then a, b of the air, latent heat, heat capacity, the least of
the pressure, the scale of rain, the seconds of a step, and the least size and share of vapour.
"""

import triton
import triton.language as tl


@triton.jit
def _load(x, at, inside):
    return tl.load(x + at, mask=inside, other=0.0).to(tl.float64)


@triton.jit
def _at_least(x, y):
    return tl.where(x < y, y, x)  # NaN stays


@triton.jit
def most(x, axis: tl.constexpr):
    """The largest; NaN where one is."""
    is_bad = tl.max((x != x).to(tl.int32), axis) > 0
    return tl.where(is_bad, float("nan"), tl.max(tl.where(x == x, x, -float("inf")), axis))


@triton.jit
def _ends(sums, x, inside):
    flat = tl.ravel(tl.where(inside, -x, -float("inf")))
    tl.store(sums, most(flat, 0))
    tl.store(sums + 1, most(tl.ravel(tl.where(inside, x, -float("inf"))), 0))


@triton.jit
def _known(x, m, at, size, inside, KIND: tl.constexpr):
    """A variance that is the same for all members (KIND 1) or not."""
    return _load(x, at if KIND == 1 else m * size + at, inside)


@triton.jit
def change_sums(
    q, t, p, old_q, old_t, old_p, w, parts, K, N, LEVELS: tl.constexpr, BLOCK: tl.constexpr
):
    """Weighted squares: of the changes of T and q and of q, by level, and of the change of p."""
    m, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    n, k = part * BLOCK + tl.arange(0, BLOCK), tl.arange(0, LEVELS)
    here, levels = n < N, k < K
    inside, at = levels[:, None] & here[None, :], (m * K + k[:, None]) * N + n[None, :]
    weight = _load(w, n, here)
    x = _load(q, at, inside)
    change_q, change_t = (
        x - _load(old_q, at, inside),
        _load(t, at, inside) - _load(old_t, at, inside),
    )
    change_p = _load(p, m * N + n, here) - _load(old_p, m * N + n, here)
    parts += (m * tl.num_programs(0) + part) * (3 * K + 1)
    tl.store(parts + k, tl.sum(change_t * change_t * weight[None, :], 1), mask=levels)
    tl.store(parts + K + k, tl.sum(change_q * change_q * weight[None, :], 1), mask=levels)
    tl.store(parts + 2 * K + k, tl.sum(x * x * weight[None, :], 1), mask=levels)
    tl.store(parts + 3 * K, tl.sum(change_p * change_p * weight))


@triton.jit
def columns(
    q, t, p, r, w, constants, squares, of_q, of_t, of_p, of_r, rows, parts, profiles, maps,
    new_q, new_t, new_p, new_r, K, N, Q: tl.constexpr, T: tl.constexpr, P: tl.constexpr,
    R: tl.constexpr, DO: tl.constexpr, LEVELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """DO: 0 as they are; 1 once moved; 2 likewise, and writes them; 3 and what they change by.

    Q, T, P, R: 0 errors by the change, and of rain in proportion to it; 1, 2 known variances; 3 a
    scale of rain for each member.
    """
    m, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    n, k = part * BLOCK + tl.arange(0, BLOCK), tl.arange(0, LEVELS)
    here, levels = n < N, k < K
    inside, own, row = levels[:, None] & here[None, :], k[:, None] * N + n[None, :], m * N + n
    at, each = m * K * N + own, levels[:, None]
    weight, line = _load(w, n, here), k[:, None]
    a, b = _load(constants, line, each), _load(constants, K + line, each)
    by_a, by_b = _load(constants, 2 * K + line, each), _load(constants, 3 * K + line, each)
    numbers = constants + 7 * K
    air_a, air_b, dt = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 6)
    squares += m * (3 * K + 1)
    raw_q, start_t = _load(q, at, inside), _load(t, at, inside)
    start_p, raw_r = _load(p, row, here), _load(r, row, here)
    start_q, start_r = tl.maximum(raw_q, 0.0), tl.maximum(raw_r, 0.0)
    if Q == 0:
        size = _at_least(_load(squares, 2 * K + line, each), tl.load(numbers + 7))
        share = _at_least(_load(squares, K + line, each) / size, tl.load(numbers + 8))
        floor = _load(constants, 5 * K + line, each)
        v_q = floor + tl.sqrt(tl.where(share > 1, 1.0, share)) * start_q
        v_q = tl.where(inside, v_q * v_q, 0.0)
    else:
        v_q = _known(of_q, m, own, K * N, inside, Q)
    if T == 0:
        v_t = _at_least(_load(squares, line, each), _load(constants, 6 * K + line, each))
    else:
        v_t = _known(of_t, m, own, K * N, inside, T)
    if P == 0:
        change = start_p - _load(of_p, row, here)
        v_p = (tl.load(squares + 3 * K) + change * change) / 2
        v_p = tl.where(here, _at_least(v_p, tl.load(numbers + 4)), 0.0)
    else:
        v_p = _known(of_p, m, n, N, here, P)
    if R == 0:
        v_r = tl.load(numbers + 5) * start_r
    elif R == 3:
        v_r = tl.load(of_r + m) * start_r
    else:
        v_r = _known(of_r, m, n, N, here, R)
    s_q, s_t = tl.sum(b * start_q, 0), tl.sum(b * start_t, 0)
    x_q, x_t, x_p, x_r = start_q, start_t, start_p, start_r
    parts += (m * tl.num_programs(0) + part) * 32
    if DO == 0:
        mass, by, v = a + b * x_p[None, :], by_a + by_b * x_p[None, :], v_p * weight
        rise = b * by + mass * by_b
        rise_q, rise_t = tl.sum(v_q * rise, 0), tl.sum(v_t * rise, 0)
        tl.store(parts + 4, tl.sum(v * air_b * air_b))
        tl.store(parts + 5, tl.sum(v * air_b * s_q))
        tl.store(parts + 6, tl.sum(v * air_b * s_t))
        tl.store(parts + 7, tl.sum(v * s_q * s_q))
        tl.store(parts + 8, tl.sum(v * s_q * s_t))
        tl.store(parts + 9, tl.sum(v * s_t * s_t))
        tl.store(parts + 10, tl.sum(v_r * weight) * dt * dt)
        tl.store(parts + 11, tl.sum(tl.sum(v_q * mass * by, 0) * weight))
        tl.store(parts + 12, tl.sum(tl.sum(v_t * mass * by, 0) * weight))
        tl.store(parts + 13, tl.sum(v * air_b * rise_q))
        tl.store(parts + 14, tl.sum(v * s_q * rise_q))
        tl.store(parts + 15, tl.sum(v * s_t * rise_q))
        tl.store(parts + 16, tl.sum(v * air_b * rise_t))
        tl.store(parts + 17, tl.sum(v * s_q * rise_t))
        tl.store(parts + 18, tl.sum(v * s_t * rise_t))
        tl.store(parts + 19, tl.sum(tl.where(line == 0, raw_q, 0.0)) / N)
        tl.store(parts + 20, tl.sum(tl.where(line == K - 1, raw_q, 0.0)) / N)
        _ends(parts + 21, x_p, here)
        _ends(parts + 23, x_t, inside)
        _ends(parts + 25, raw_q, inside)
        _ends(parts + 27, raw_r, here)
    else:
        of_laws = rows + m * 48 + 13
        dry, wet, heat = tl.load(of_laws), tl.load(of_laws + 1), tl.load(of_laws + 2)
        fall, warm = dt * wet, heat * tl.load(numbers + 3)
        wet = wet - dry + heat * tl.load(numbers + 2)
        for _ in tl.static_range(2):  # masses at the pressure that results
            near = start_p + v_p * (air_b * dry + s_q * wet + s_t * warm)
            by = by_a + by_b * near[None, :]
            x_q = tl.maximum(start_q + v_q * by * wet, 0.0).to(new_q.dtype.element_ty)
            x_t = (start_t + v_t * by * warm).to(new_t.dtype.element_ty)
            x_q, x_t = x_q.to(tl.float64), x_t.to(tl.float64)
            s_q, s_t = tl.sum(b * x_q, 0), tl.sum(b * x_t, 0)
        x_p = start_p + v_p * (air_b * dry + s_q * wet + s_t * warm)
        x_p = x_p.to(new_p.dtype.element_ty).to(tl.float64)
        x_r = tl.maximum(start_r + v_r * fall, 0.0).to(new_r.dtype.element_ty).to(tl.float64)
        if DO >= 2:
            tl.store(new_q + at, x_q.to(new_q.dtype.element_ty), mask=inside)
            tl.store(new_t + at, x_t.to(new_t.dtype.element_ty), mask=inside)
            tl.store(new_p + row, x_p.to(new_p.dtype.element_ty), mask=here)
            tl.store(new_r + row, x_r.to(new_r.dtype.element_ty), mask=here)
        if DO == 3:
            share = _load(constants, 4 * K + line, each)
            change_q, change_t = x_q - raw_q, tl.where(inside, x_t - start_t, 0.0)
            profile = profiles + (m * tl.num_programs(0) + part) * 2 * K + k
            own_part = weight[None, :] / tl.num_programs(1)
            tl.store(profile, tl.sum(change_t * own_part, 1), mask=levels)
            tl.store(profile + K, tl.sum(change_q * own_part, 1), mask=levels)
            _record(maps, parts, 0, x_p - start_p, m, n, N, here, weight)
            _record(maps, parts, 1, tl.sum(change_t * share, 0), m, n, N, here, weight)
            _record(maps, parts, 2, tl.sum(change_q * share, 0), m, n, N, here, weight)
            _record(maps, parts, 3, x_r - raw_r, m, n, N, here, weight)
        far_q, far_t, far_p, far_r = by * wet, by * warm, x_p - start_p, x_r - start_r
        far = tl.maximum(
            tl.max(v_q * far_q * far_q), tl.max(tl.where(inside, v_t * far_t * far_t, 0.0))
        )
        far = tl.maximum(far, tl.max(far_p * far_p / tl.where(v_p > 0, v_p, float("inf"))))
        far = tl.maximum(far, tl.max(far_r * far_r / tl.where(v_r > 0, v_r, float("inf"))))
        tl.store(parts + 8, far)
        _ends(parts + 9, -x_p, here)
    tl.store(parts, tl.sum((air_a + air_b * x_p) * weight))
    tl.store(parts + 1, tl.sum(tl.sum((a + b * x_p[None, :]) * x_q, 0) * weight))
    tl.store(parts + 2, tl.sum(tl.sum((a + b * x_p[None, :]) * x_t, 0) * weight))
    tl.store(parts + 3, tl.sum(x_r * weight) * dt)


@triton.jit
def _record(maps, parts, i: tl.constexpr, change, m, n, N, here, weight):
    tl.store(maps + (m * 4 + i) * N + n, change / tl.num_programs(1), mask=here)
    tl.store(parts + 4 + i, tl.sum(change * weight))
