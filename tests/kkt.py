"""Whether a field is the nearest one within inequalities: by its optimality conditions alone."""

import numpy as np
from scipy.optimize import nnls


def distance_from_optimal(u, y, covariance, rows=None, inequalities=None, least=None):
    """How far P (u - y) is from a sum of rows and of active inequalities with weights >= 0.

    P is the inverse of `covariance`. rows: (K, N), exact. inequalities u >= least: (m, N), (m,).
    The result is a share of the size of P (u - y) + 1, in standard deviations.
    """
    std = np.sqrt(np.diag(covariance))
    rows = np.zeros((0, len(u))) if rows is None else rows
    active = np.abs(inequalities @ u - least) <= 1e-9 * (1 + np.abs(least))
    pull = np.linalg.solve(covariance, u - y) * std
    made_of = np.concatenate([rows, -rows, inequalities[active]]).T * std[:, None]
    made_of = made_of / np.maximum(np.linalg.norm(made_of, axis=0), 1e-300)
    left = nnls(made_of, pull, maxiter=10_000)[1] if made_of.size else np.linalg.norm(pull)
    return left / (1 + np.linalg.norm(pull))


def bounds(n, low=None, high=None):
    """Inequalities and least values, as `distance_from_optimal` takes them."""
    rows, least = [np.zeros((0, n))], [np.zeros(0)]
    if low is not None:
        rows, least = [*rows, np.eye(n)], [*least, np.broadcast_to(low, n)]
    if high is not None:
        rows, least = [*rows, -np.eye(n)], [*least, -np.broadcast_to(high, n)]
    return np.concatenate(rows), np.concatenate(least)


def rising(n, sign=1):
    return sign * np.diff(np.eye(n), axis=0), np.zeros(n - 1)


def everything(post):
    """All draws, their mean and the point, as one array."""
    return np.concatenate([post.draws, post.mean[None], post.point[None]])
