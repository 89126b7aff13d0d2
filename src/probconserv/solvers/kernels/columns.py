"""Columns of air: what the budgets need of them, their move, and what is recorded of it.

A programme takes all K levels of some columns. Fields are read and written in their own type, sums
are in float64: one number of each for a programme, which are added up afterwards. With a + b p the
mass of a layer, a' + b' p that by which it moves, v the variances:

    contents   air, vapour, heat and rain
    responses  v of the pressure times products of (air, sum b q, sum b T), v of rain, sum v m m'
"""

import triton
import triton.language as tl


@triton.jit
def _levels(x, at, inside):
    return tl.load(x + at, mask=inside, other=0.0).to(tl.float64)


@triton.jit
def _variance(first, at, second, too, inside, x, KIND: tl.constexpr):
    """KIND: 0 known, 1 first * x, 2 (first + second * x)^2."""
    found = _levels(first, at, inside)
    if KIND == 1:
        found = found * x
    if KIND == 2:
        found = found + _levels(second, too, inside) * x
        found = found * found
    return found


@triton.jit
def _sum(x, w):
    return tl.sum(tl.sum(x, 0) * w)


@triton.jit
def _line(lines, k, levels, K):
    """Constant and slope of each level, (levels, 1)."""
    constant = tl.load(lines + k, mask=levels, other=0.0)
    slope = tl.load(lines + K + k, mask=levels, other=0.0)
    return constant[:, None], slope[:, None]


@triton.jit
def level_squares(new, old, w, sums, K, N, LEVELS: tl.constexpr, BLOCK: tl.constexpr):
    """Of each level, weighted: the squares of the change, and of the new values."""
    m, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    n, k = part * BLOCK + tl.arange(0, BLOCK), tl.arange(0, LEVELS)
    inside = (k < K)[:, None] & (n < N)[None, :]
    at = (m * K + k[:, None]) * N + n[None, :]
    weight = tl.load(w + n, mask=n < N, other=0.0)[None, :]
    x = _levels(new, at, inside)
    change = x - _levels(old, at, inside)
    sums += (m * tl.num_programs(0) + part) * 2 * K
    tl.store(sums + k, tl.sum(change * change * weight, 1), mask=k < K)
    tl.store(sums + K + k, tl.sum(x * x * weight, 1), mask=k < K)


@triton.jit
def _record(changed, i, column, sums, m, n, N, here, weight):
    tl.store(changed + (m * 4 + i) * N + n, column, mask=here)
    tl.store(sums + 4 + i, tl.sum(column * weight))


@triton.jit
def column_sums(
    q, t, p, r, w, lines, moving, air, duration, q1, q2, t1, p1, r1,
    qm, qk, qn, sm, sk, sn, tm, tk, ts, pm, pn, rm, rn, rows, shares,
    new_q, new_t, new_p, new_r, sums, part_of_air, profiles, changed, K, N,
    Q: tl.constexpr, R: tl.constexpr, DO: tl.constexpr, LEVELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """DO: 0 contents and responses of columns; 1 contents once moved; 2 likewise, and writes them;
    3 likewise, and what they change by: profiles, and the mean of each column.

    Q and R are the kinds of variance of vapour and rain; rows as in `multipliers.py`.
    """
    m, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    n, k = part * BLOCK + tl.arange(0, BLOCK), tl.arange(0, LEVELS)
    here, levels = n < N, k < K
    inside = levels[:, None] & here[None, :]
    at, row = (m * K + k[:, None]) * N + n[None, :], m * N + n
    weight = tl.load(w + n, mask=here, other=0.0)
    dt = tl.load(duration)
    x_q, x_t = tl.maximum(_levels(q, at, inside), 0.0), _levels(t, at, inside)
    x_p, x_r = _levels(p, row, here), tl.maximum(_levels(r, row, here), 0.0)
    at_q = m * qm + k[:, None] * qk + n[None, :] * qn
    v_q = _variance(q1, at_q, q2, m * sm + k[:, None] * sk + n[None, :] * sn, inside, x_q, Q)
    v_t = _levels(t1, m * tm + k[:, None] * tk + n[None, :] * ts, inside)
    v_p = _levels(p1, m * pm + n * pn, here)
    at_r = m * rm + n * rn
    v_r = _variance(r1, at_r, r1, at_r, here, x_r, R)
    a, b = _line(lines, k, levels, K)
    by_a, by_b = _line(moving, k, levels, K)
    air_a, air_b = tl.load(air), tl.load(air + 1)
    s_q, s_t = tl.sum(b * x_q, 0), tl.sum(b * x_t, 0)
    if DO == 0:
        sums += (m * tl.num_programs(0) + part) * 13
        mass = (a + b * x_p[None, :]) * (by_a + by_b * x_p[None, :])
        v = v_p * weight
        tl.store(sums + 4, tl.sum(v * air_b * air_b))
        tl.store(sums + 5, tl.sum(v * air_b * s_q))
        tl.store(sums + 6, tl.sum(v * air_b * s_t))
        tl.store(sums + 7, tl.sum(v * s_q * s_q))
        tl.store(sums + 8, tl.sum(v * s_q * s_t))
        tl.store(sums + 9, tl.sum(v * s_t * s_t))
        tl.store(sums + 10, tl.sum(v_r * weight) * dt * dt)
        tl.store(sums + 11, _sum(v_q * mass, weight))
        tl.store(sums + 12, _sum(v_t * mass, weight))
    else:
        sums += (m * tl.num_programs(0) + part) * 11
        by = rows + m * 32 + 13
        dry, wet, heat = tl.load(by), tl.load(by + 1), tl.load(by + 2)
        fall = dt * wet
        wet = wet - dry + heat * tl.load(shares + 5)
        warm = heat * tl.load(shares + 8)
        start_q, start_t, start_p, start_r = x_q, x_t, x_p, x_r
        for _ in tl.static_range(2):  # masses at the pressure that results
            near = start_p + v_p * (air_b * dry + s_q * wet + s_t * warm)
            by = by_a + by_b * near[None, :]
            x_q = tl.maximum(start_q + v_q * by * wet, 0.0).to(new_q.dtype.element_ty)
            x_t = (start_t + v_t * by * warm).to(new_t.dtype.element_ty)
            x_q, x_t = x_q.to(tl.float64), x_t.to(tl.float64)
            s_q, s_t = tl.sum(b * x_q, 0), tl.sum(b * x_t, 0)
        rise = air_b * dry + s_q * wet + s_t * warm
        x_p = (start_p + v_p * rise).to(new_p.dtype.element_ty)
        x_r = tl.maximum(start_r + v_r * fall, 0.0).to(new_r.dtype.element_ty)
        if DO >= 2:
            tl.store(new_q + at, x_q.to(new_q.dtype.element_ty), mask=inside)
            tl.store(new_t + at, x_t.to(new_t.dtype.element_ty), mask=inside)
            tl.store(new_p + row, x_p, mask=here)
            tl.store(new_r + row, x_r, mask=here)
        x_p, x_r = x_p.to(tl.float64), x_r.to(tl.float64)
        if DO == 3:
            share = tl.load(part_of_air + k, mask=levels, other=0.0)[:, None]
            change_q = tl.where(inside, x_q - _levels(q, at, inside), 0.0)
            change_t = tl.where(inside, x_t - start_t, 0.0)
            profile = profiles + (m * tl.num_programs(0) + part) * 2 * K + k
            tl.store(profile, tl.sum(change_t * weight[None, :], 1), mask=levels)
            tl.store(profile + K, tl.sum(change_q * weight[None, :], 1), mask=levels)
            _record(changed, 0, x_p - start_p, sums, m, n, N, here, weight)
            _record(changed, 1, tl.sum(change_t * share, 0), sums, m, n, N, here, weight)
            _record(changed, 2, tl.sum(change_q * share, 0), sums, m, n, N, here, weight)
            change_r = x_r - _levels(r, row, here)
            _record(changed, 3, change_r, sums, m, n, N, here, weight)
        least = tl.where(here, x_p, float("inf"))
        far_q, far_t = by * wet, by * warm
        far = tl.maximum(tl.max(v_q * far_q * far_q), tl.max(v_t * far_t * far_t))
        far_p, far_r = x_p - start_p, x_r - start_r
        far_p = far_p * far_p / tl.where(v_p > 0, v_p, float("inf"))
        far_r = far_r * far_r / tl.where(v_r > 0, v_r, float("inf"))
        far = tl.maximum(far, tl.maximum(tl.max(far_p), tl.max(far_r)))
        tl.store(sums + 8, far)
        tl.store(sums + 9, tl.max(tl.where(here, x_p, -float("inf"))))
        tl.store(sums + 10, tl.max(-least))
    s_p = x_p[None, :]
    tl.store(sums, tl.sum((air_a + air_b * x_p) * weight))
    tl.store(sums + 1, _sum((a + b * s_p) * x_q, weight))
    tl.store(sums + 2, _sum((a + b * s_p) * x_t, weight))
    tl.store(sums + 3, tl.sum(x_r * weight) * dt)
