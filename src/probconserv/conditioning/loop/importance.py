"""Draws with weights: together the field given laws that are not linear, and not only near it.

Draws that are moved to the nearest field that obeys are not p(u | f(u) = b) where laws curve. That
is the prior on the surface f(u) + e = b, with noise e ~ N(0, sigma^2), over the root of
det(J Sigma J^T + sigma^2). The surface is charted from the plane that touches it at the point: a
draw t of the Gaussian about the point is led to it along normals that stay as they are there,

    u = point + t + Sigma J0^T c,    e = e0 + t_e + sigma^2 c,    f(u) + e = b

    log weight = -1/2 (c - l)^T S0 (c - l) - log det M,    M = J(u) Sigma J0^T + sigma^2

l: the multipliers at the point, S0: M there. What faces away from the point (det M < 0), or is not
met, has weight 0.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ...fields.covariances import Fields
from ...fields.gaussian import Normals
from ...support.compiling import uncompiled
from ...support.errors import InfeasibleError, InputError, warn_implausible
from ...support.tolerances import HOLDS
from .linearised import MOST_DENSE, DenseStep, NonlinearProblem
from .reading import product
from .solved import NonlinearSolved

STEPS, SHORTEST = 60, 2.0**-20  # of Newton's method; share of a step
SHARE = 10  # fewer of the draws than one in so many still count: a warning


class Weighted(NamedTuple):
    """Draws with weights, given laws that are not linear.

    Attributes
    ----------
    draws : Tensor, shape (n, ..., T, M), or a dict of these by name
        Each obeys the laws, but those of weight 0.
    log_weights : Tensor, shape (n, ...)
        Of each independent part; the weights add up to 1 over axis 0.
    effective_sample_size : Tensor, shape (...)
        How many draws still count: 1 / sum of squared weights.
    """

    draws: Tensor | dict[str, Tensor]
    log_weights: Tensor
    effective_sample_size: Tensor


@uncompiled
@torch.no_grad()
def weighted(solved: NonlinearSolved, normals: Normals) -> tuple[Fields, Tensor, Tensor]:
    """Draws, log weights, (n, *lead), and the effective sample size, (*lead)."""
    if solved.low:
        raise InputError(
            "`weighted`: draws within inequalities have no weights, as a draw on a bound has no "
            "density. Use `sample`, and see how far off it is in the docs on inequalities."
        )
    at_point = _at_point(solved)
    y, noise = solved._unmoved(normals)
    sizes = y[0].shape[: y[0].ndim - solved.dims[0]]
    every = torch.arange(sizes.numel(), device=y[0].device)
    found, weights = y[0].new_empty(len(every), at_point.u.shape[-1]), y[0].new_empty(len(every))
    for problem, numbers in solved._chunks(y, noise, every):
        some = at_point.some(numbers % len(at_point.u))
        found[numbers], weights[numbers] = some.moved(problem)
    weights = weights.reshape(sizes)
    if bool((weights.amax(0) == -torch.inf).any()):
        raise InfeasibleError(
            "`weighted`: no draw gets to the laws along their slopes at the point: they are bent "
            "too much beside the variance. Ways out: more draws, `noise`, or less variance."
        )
    weights = weights - weights.logsumexp(0)
    left = 1 / (2 * weights).exp().sum(0)
    if float(left.min()) < len(weights) / SHARE:
        warn_implausible(
            f"the weights leave {float(left.min()):.3g} of {len(weights)} draws (1 / sum of "
            "squared weights): the laws are bent much beside the variance, and results hang on few "
            "draws. Ways out: more draws, `noise`, or less variance."
        )
    return solved._as_fields(found, y), weights, left


class AtPoint(NamedTuple):
    """What the chart is made of, for each of P parts."""

    u: Tensor  # the point, (P, N)
    mean: Tensor  # of the prior, (P, N)
    value: Tensor  # b, (P, K)
    misses: Tensor  # f(point) - b, (P, K)
    multiplier: Tensor  # l, (P, K)
    rows: Tensor  # J0, (P, K, N)
    across: Tensor  # J0 Sigma, (P, K, N)
    matrix: Tensor  # S0, (P, K, K)
    inverse: Tensor  # S0^-1, (P, K, K); 0 at rows that follow from others
    keep: Tensor  # the other rows, (P, K)

    def some(self, index: Tensor) -> "AtPoint":
        return AtPoint(*(t[index] for t in self))

    def moved(self, problem: NonlinearProblem) -> tuple[Tensor, Tensor]:  # (P, N), (P,)
        """Draws of the prior and the noise, which `problem` has, as draws of the chart; weights."""
        x, e = problem.mean - self.mean, self.value - problem.value
        pull = product(self.inverse, product(self.rows, x) + e)
        start = self.u + x - product(self.across.mT, pull)
        rest = -problem.noise * pull - self.misses

        def at(c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            u = start + product(self.across.mT, c)
            step = DenseStep(problem, problem.look(u))
            # misses hold - e already, as the value has the draw of the noise in it
            left = step.look.misses + rest + problem.noise * c
            matrix = step.rows @ self.across.mT + problem.noise.diag_embed()
            both = self.keep[..., None] & self.keep[..., None, :]
            matrix = torch.where(both, matrix, (~self.keep).to(matrix.dtype).diag_embed())
            return left, matrix, step.terms()

        c = _root(at, torch.zeros_like(problem.value), self.keep)
        left, matrix, terms = at(c)
        away = c - self.multiplier
        size, positive = _log_det(matrix)
        weight = -0.5 * (away * product(self.matrix, away)).sum(-1) - size
        arrived = (left.abs() <= HOLDS * terms).all(-1) & positive
        u = start + product(self.across.mT, c)
        return u, torch.where(arrived & weight.isfinite(), weight, -torch.inf)


def _at_point(solved: NonlinearSolved) -> AtPoint:
    problem = solved._problem(solved.before)
    if not problem.is_dense:
        raise InputError(
            f"`weighted` takes up to {MOST_DENSE} rows in a part; these laws have "
            f"{sum(problem.counts)}. Use `sample`."
        )
    u = solved._problem(solved.mean).mean
    step = DenseStep(problem, problem.look(u))
    keep = step.factor.keep
    eye = torch.eye(keep.shape[-1], dtype=u.dtype, device=u.device).expand(*keep.shape, -1)
    matrix = torch.where(
        keep[..., None] & keep[..., None, :], step.gram + problem.noise.diag_embed(), 0.0
    )
    return AtPoint(
        u,
        problem.mean,
        problem.value,
        step.look.misses,
        step.multiplier(HOLDS),
        step.rows,
        problem.times(step.rows),
        matrix,
        step.factor.solve(eye),
        keep,
    )


def _root(
    at: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]], c: Tensor, keep: Tensor
) -> Tensor:  # (P, K)
    """c at which nothing is left of the rows, by Newton's method with steps that are halved."""
    left, matrix, terms = at(c)
    share = torch.ones_like(c[:, 0])
    for _ in range(STEPS):
        step = -_solved(matrix, left * keep)
        new = c + share[:, None] * step
        found = at(new)
        better = _size(found[0] / found[2], keep) < _size(left / terms, keep)
        if not bool((better | (share >= SHORTEST)).any()):
            break
        c, left, terms = (
            torch.where(better[:, None], x, y)
            for x, y in zip((new, found[0], found[2]), (c, left, terms), strict=True)
        )
        matrix = torch.where(better[:, None, None], found[1], matrix)
        share = torch.where(better, (2 * share).clamp_max(1), share / 2)
        if bool((better.logical_not() & (_size(left / terms, keep) <= HOLDS / 8)).all()):
            break
    return c


def _size(left: Tensor, keep: Tensor) -> Tensor:  # (P,)
    return (left * keep).abs().amax(-1)


def _solved(matrix: Tensor, r: Tensor) -> Tensor:  # (P, K)
    q, triangle = torch.linalg.qr(matrix)
    return torch.linalg.solve_triangular(triangle, q.mT @ r[..., None], upper=True)[..., 0]


def _log_det(matrix: Tensor) -> tuple[Tensor, Tensor]:  # (P,)
    """log |det|, and whether it is positive."""
    triangle, reflected = torch.geqrf(matrix)
    own = triangle.diagonal(dim1=-2, dim2=-1)
    turns = (own < 0).sum(-1) + (reflected != 0).sum(-1)
    return own.abs().log().sum(-1), turns % 2 == 0
