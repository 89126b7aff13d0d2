"""Two ways to the moments of normal points within bounds given their sum that share nothing with
`probconserv._truncated`: Fourier transforms, and Hamiltonian Monte Carlo with reflections."""

import numpy as np
from scipy.optimize import brentq
from scipy.stats import truncnorm


def by_fourier(mean, variance, low, high, weights, value, frequencies=400, reach=12.0, nodes=400):
    """Means and variances given the sum, from the characteristic functions of the points.

    E[u_i^k; sum = b] is the integral over w of exp(-i w b) E[u_i^k exp(i w g_i u_i)] times the
    characteristic functions of all other terms. The points are tilted first, so that b is likely.
    """
    mean, std = np.asarray(mean), np.sqrt(np.asarray(variance))
    low, high, g = np.asarray(low), np.asarray(high), np.asarray(weights)

    def tilted(tilt):
        centre = mean + tilt * std**2 * g
        return truncnorm((low - centre) / std, (high - centre) / std, centre, std)

    spread = np.sqrt((g**2 * std**2).sum())
    tilt = brentq(lambda t: (g * tilted(t).mean()).sum() - value, -1e3 / spread, 1e3 / spread)
    own = tilted(tilt)
    m, s = own.mean(), own.std()
    a, b = np.maximum(low, m - 14 * s), np.minimum(high, m + 14 * s)
    z, w = np.polynomial.legendre.leggauss(nodes)
    u = (a + b)[:, None] / 2 + (b - a)[:, None] / 2 * z  # (M, nodes)
    density = w * own.pdf(u.T).T
    density /= density.sum(1, keepdims=True)
    u = u - m[:, None]
    spread = np.sqrt((g**2 * s**2).sum())
    total = np.zeros((3, len(g)))
    for omega in np.linspace(0, reach / spread, frequencies):
        wave = density * np.exp(1j * omega * g[:, None] * u)
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
