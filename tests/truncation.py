"""Two ways to the moments of normal points within bounds given their sum that share nothing with
`probconserv.conditioning.inequalities.truncated`: Fourier transforms, and Hamiltonian Monte Carlo
with reflections."""

import numpy as np
from scipy.optimize import brentq


def by_fourier(mean, variance, low, high, weights, value, frequencies=400, reach=12.0, nodes=400):
    """Means and variances given the sum, from the characteristic functions of the points.

    E[u_i^k; sum = b] is the integral over w of exp(-i w b) E[u_i^k exp(i w g_i u_i)] times the
    characteristic functions of all other terms. The points are tilted first, so that b is likely.
    """
    mean, std, low, high, g = map(np.asarray, (mean, np.sqrt(variance), low, high, weights))
    mode = np.clip(mean, low, high)
    a, b = np.maximum(low, mode - 14 * std), np.minimum(high, mode + 14 * std)
    z, w = np.polynomial.legendre.leggauss(nodes)
    u = ((a + b)[:, None] + (b - a)[:, None] * z) / 2  # (M, nodes)

    def masses(tilt):
        log = -((u - mean[:, None]) ** 2) / 2 / std[:, None] ** 2 + tilt * g[:, None] * u
        mass = w * np.exp(log - log.max(1, keepdims=True))
        return mass / mass.sum(1, keepdims=True)

    spread = np.sqrt((g**2 * std**2).sum())
    ends = -100 / spread, 100 / spread
    mass = masses(brentq(lambda tilt: g @ (masses(tilt) * u).sum(1) - value, *ends))
    m = (mass * u).sum(1)
    u = u - m[:, None]
    spread = np.sqrt(g**2 @ (mass * u**2).sum(1))
    total = np.zeros((3, len(g)))
    for omega in np.linspace(0, reach / spread, frequencies):
        wave = mass * np.exp(1j * omega * g[:, None] * u)
        parts = np.stack([(wave * u**k).sum(1) for k in range(3)])  # (3, M)
        rest = np.prod(parts[0]) / parts[0]
        total += (0.5 if omega == 0 else 1.0) * (parts * rest).real
    first, second = total[1] / total[0], total[2] / total[0]
    return m + first, second - first**2


def by_reflections(mean, variance, low, high, weights, value, start, draws, rng, time=np.pi / 2):
    """Chains of exact Hamiltonian Monte Carlo on the plane of the sum (Pakman, Paninski, 2014).

    In units of each point's standard deviation and on the plane orthogonal to the weights, a
    particle moves along ellipses about the conditional mean, exactly, and is reflected at bounds.
    start: (chains, M), within the bounds and on the plane. Returns (draws, chains, M).
    """
    std = np.sqrt(variance)
    normal = weights * std / np.linalg.norm(weights * std)
    centre = mean / std
    centre = centre - normal * (normal @ centre - value / np.linalg.norm(weights * std))
    floor, ceiling = low / std - centre, high / std - centre
    x, kept = start / std - centre, []
    for _ in range(draws):
        v = rng.standard_normal(x.shape)
        v -= (v @ normal)[:, None] * normal
        x = np.stack(
            [_trajectory(p, q, floor, ceiling, normal, time) for p, q in zip(x, v, strict=True)]
        )
        kept.append((x + centre) * std)
    return np.stack(kept)


def _trajectory(x, v, floor, ceiling, normal, left):
    last = -1
    while True:
        t, i = _first_hit(x, v, floor, ceiling, last)
        if t >= left:
            return x * np.cos(left) + v * np.sin(left)
        x, v = x * np.cos(t) + v * np.sin(t), v * np.cos(t) - x * np.sin(t)
        wall = -normal[i] * normal  # the bound's direction within the plane
        wall[i] += 1
        v = v - 2 * (v @ wall) / (wall @ wall) * wall
        left, last = left - t, i


def _first_hit(x, v, floor, ceiling, last):
    """When, and at which point, x cos t + v sin t first leaves its bounds."""
    size, phase = np.hypot(x, v), np.arctan2(v, x)
    with np.errstate(invalid="ignore", divide="ignore"):
        down = phase + np.arccos(np.where(floor > -size, floor, np.nan) / size)
        up = phase - np.arccos(np.where(ceiling < size, ceiling, np.nan) / size)
    hits = np.stack([down, up]) % (2 * np.pi)
    if last >= 0:  # the bound it has just left: only a full turn brings it back at once
        hits[:, last] = np.where(hits[:, last] < 1e-9, np.nan, hits[:, last])
        hits[:, last] = np.where(hits[:, last] > 2 * np.pi - 1e-9, np.nan, hits[:, last])
    hits = np.nan_to_num(hits, nan=np.inf)
    when = hits.min(0)
    return when.min(), int(when.argmin())
