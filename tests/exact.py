"""Step 2 in fixed-point numbers of 400 binary places: dense, slow, one row after the other.

Floats become integers without rounding. Points and rows are first scaled by powers of 2 to a spread
of about 1, so that all of them have digits to spare.
"""

import math
from dataclasses import dataclass

import numpy as np

PLACES = 400
ONE = 1 << PLACES
DEPENDENT = 1e-26  # of the square of its terms: an exact row with less left follows from others
EPS = 2.0**-52


@dataclass
class Posterior:
    """A part of a field given its rows; mean and variance (n,) are rounded to float64 once."""

    mean: np.ndarray
    variance: np.ndarray
    log_evidence: float  # of the rows that do not follow from others
    condition: float  # of S scaled to a unit diagonal, and of the sums on that diagonal
    redundant: int  # exact rows that follow from others
    miss: float  # of those, |G u - b| relative to the terms |G| |u| + |b|
    doubt: float  # what rounding G mu - b to float64 may do to the evidence
    shift: float  # the same for the mean, in standard deviations of the points


def posterior(mean, G, b, noise=0.0, variance=0.0, factor=None, covariance=None):
    """u ~ N(mean, Sigma) given G u = b up to `noise`, a standard deviation for each row.

    Sigma is diag(variance) + factor^T factor + covariance.
    """
    mean, G, b = (np.asarray(x, float) for x in (mean, G, b))
    noise = np.broadcast_to(np.asarray(noise, float), b.shape)
    std, sigma_in = spread_of(mean, variance, factor, covariance)
    point = power_of_2(np.where(std > 0, std, np.abs(mean)))
    row = power_of_2(np.hypot(np.abs(G) @ std, noise))
    sigma = sigma_in(point)
    g, u, value = fixed(G * point / row[:, None]), fixed(mean / point), fixed(b / row)
    cross = times(sigma, g.T)
    S = times(g, cross) + np.diag(fixed(noise / row) ** 2 >> PLACES)
    start, sums = rounded(S), rounded(times(abs(g), abs(u)) + abs(value))
    u, v, steps = eliminate(u, np.diagonal(sigma), cross, S, times(g, u) - value, noise == 0)
    kept = [k for k, _, _ in steps]
    square = sum(r * r / (pivot << PLACES) for _, pivot, r in steps)
    logs = sum(math.log(2 * math.pi * pivot) - PLACES * math.log(2) for _, pivot, _ in steps)
    condition = condition_of(start[np.ix_(kept, kept)])
    lost = EPS * float((sums[kept] / np.sqrt(np.diagonal(start)[kept])).max(initial=0.0))
    rest = sorted({*range(len(b))} - {*kept})
    miss, size = abs(times(g, u) - value)[rest], (times(abs(g), abs(u)) + abs(value))[rest]
    return Posterior(
        mean=rounded(u) * point,
        variance=rounded(v) * point * point,
        log_evidence=-(square + logs) / 2 - float(np.log(row[kept]).sum()),
        condition=condition,
        redundant=len(rest),
        miss=max((m / s for m, s in zip(miss, size, strict=True) if s), default=0.0),
        doubt=lost * condition * (lost + math.sqrt(square)),
        shift=lost * math.sqrt(condition),
    )


def spread_of(mean, variance, factor, covariance):
    """The standard deviations as floats, and Sigma in units of the points."""
    variance = np.broadcast_to(np.asarray(variance, float), mean.shape)
    factor = np.zeros((0, len(mean))) if factor is None else np.asarray(factor, float)
    dense = np.zeros((len(mean), len(mean))) if covariance is None else np.asarray(covariance)

    def sigma(unit):
        shared = fixed(factor / unit)
        own = np.diag(fixed(variance / unit / unit)) + fixed(dense / unit[:, None] / unit)
        return times(shared.T, shared) + own

    return np.sqrt(variance + np.square(factor).sum(0) + np.diagonal(dense)), sigma


def eliminate(u, v, cross, S, r, exact):
    """Mean and variance given every row in turn: exact ones first, the one that varies most first.

    Also the rows taken, each with the variance and the residual that it had then.
    """
    steps, rest = [], list(range(len(r)))
    for kind in (True, False):
        while some := [i for i in rest if exact[i] == kind]:
            k = max(some, key=lambda i: S[i, i])
            pivot = S[k, k]
            if pivot <= DEPENDENT * ONE:
                rest = [i for i in rest if i not in some]
                break
            steps.append((k, pivot, r[k]))
            rest.remove(k)
            u = u - cross[:, k] * r[k] // pivot
            v = v - cross[:, k] ** 2 // pivot
            along = S[rest, k]
            r[rest] -= along * r[k] // pivot
            cross[:, rest] -= np.outer(cross[:, k], along) // pivot
            S[np.ix_(rest, rest)] -= np.outer(along, along) // pivot
    return u, v, steps


def condition_of(S):
    """Of S scaled to a unit diagonal; no less than the cancellation of terms up to 1 on it."""
    if not len(S):
        return 1.0
    std = np.sqrt(np.diagonal(S))
    values = np.linalg.eigvalsh(S / std / std[:, None])
    return max(float(values[-1] / max(values[0], EPS)), 1 / float(std.min()) ** 2)


def power_of_2(x):
    """The one just above each number; 1 for 0."""
    return np.where(x > 0, np.ldexp(1.0, np.frexp(x)[1]), 1.0)


def fixed(x):
    """Floats as integers, in units of 2^-PLACES."""
    fraction, exponent = np.frexp(x)
    digits = np.ldexp(fraction, 53).astype(np.int64).astype(object)
    shift = (exponent.astype(np.int64) + PLACES - 53).astype(object)
    return (digits << np.maximum(shift, 0)) >> np.maximum(-shift, 0)


def times(a, b):
    return (a @ b) >> PLACES


def rounded(x):
    """The way back, to float64."""
    return np.array([number / ONE for number in x.flat], float).reshape(x.shape)
