"""The small system S = G Sigma G^T + sigma^2 of a field and a constraint, by its structure.

Every system answers the same questions: `gain` (Sigma G^T S^-1 r), `remaining` (the variance less
the diagonal of Sigma G^T S^-1 G Sigma) and `log_density` of r ~ N(0, S); most can also `whiten`
(L^-1 r with S = L L^T). Rows that other rows, or a lack of variance, decide already are `dropped`:
they move nothing, and `Given.check` sees to it that they hold all the same.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from ._banded import Pentadiagonal
from ._blocks import blocks, combine, eye_like, qr_of_1_over
from ._checks import concrete
from ._fields import Field
from ._once import once
from ._operators import Rows, Stencil, Weights

DEPENDENT = 1e-14  # a row that keeps less than this share of its variance is decided already
TINY = 1e-290  # below this a variance has no usable inverse
LOG_2PI = math.log(2 * math.pi)


class Prior(Protocol):
    """What a system asks of the field before it."""

    @property
    def event_dims(self) -> int: ...
    @property
    def shape(self) -> torch.Size: ...
    @property
    def variance(self) -> Tensor: ...
    def covariance_times(self, v: Tensor) -> Tensor: ...


def row_variance(root: Field, rows: Rows, at_root: Tensor) -> Tensor:
    """The variance of each row without constraints, to compare what is left with; no gradient.

    Where rows cancel in a correlated field (members that all conserve, say) what is left may be the
    rounding of the input, so no less counts than what its rounding could leave.
    """
    before = (at_root + rows.noise_variance).detach()
    if not root.event_dims:
        return before
    terms = rows.operator.magnitude((root.mean.abs() + root.std).detach())
    return before + (16 * root.eps * terms).square() / DEPENDENT


class System(ABC):
    event_dims: int  # the last axes of the field that one small system spans
    variance: Tensor  # like apply(u): the diagonal of S
    decided: Tensor  # like apply(u): rows of which next to nothing is left
    dropped: Tensor  # like apply(u): rows that take no part, the decided ones without noise
    log_det: Tensor  # (*lead), over the rows that are kept

    @abstractmethod
    def gain(self, r: Tensor) -> Tensor: ...

    @abstractmethod
    def remaining(self, variance: Tensor) -> Tensor: ...

    @abstractmethod
    def log_density(self, r: Tensor) -> Tensor: ...  # like apply(u) -> (*lead)

    def shift(self, u: Tensor, r: Tensor) -> Tensor:
        """u - gain(r)."""
        return u - self.gain(r)

    def shift_own(self, u: Tensor, r: Tensor) -> Tensor:
        """u - gain(r), for a `u` that nobody else holds: its memory may be used."""
        return self.shift(u, r)


class Whitening(System):
    """A system with a factor of its own, S = L L^T."""

    @abstractmethod
    def whiten(self, r: Tensor) -> Tensor: ...

    def log_density(self, r: Tensor) -> Tensor:
        terms = self.whiten(r).square() + LOG_2PI * (~self.dropped).double()
        return -0.5 * (_sum_rows(terms, self.log_det) + self.log_det)


class OneRow(Whitening):
    """One row for each independent part of the field: S is a number; linear time, elementwise."""

    def __init__(self, prior: Prior, rows: Rows, root: Field) -> None:
        operator = rows.operator
        assert isinstance(operator, Weights)
        self.event_dims = operator.dims
        cross = prior.covariance_times(operator.row())  # Sigma G^T
        seen = operator.apply(cross)
        self.variance = seen + rows.noise_variance
        if prior is not root:
            seen = operator.apply(root.covariance_times(operator.row()))
        before = row_variance(root, rows, seen)
        self.decided = (self.variance <= DEPENDENT * before) | (self.variance <= TINY)
        self.dropped = self.decided & (rows.noise_variance == 0)
        safe = torch.where(self.dropped, 1.0, self.variance)
        self.inverse_root = torch.where(self.dropped, 0.0, safe.rsqrt())
        self.cross_root = cross * self._wide(self.inverse_root)  # Sigma G^T S^-1/2
        self.log_det = safe.log()
        self.known = (rows.noise_variance == 0) if operator.dims == 0 else None

    def gain(self, r: Tensor) -> Tensor:
        return self.cross_root * self._wide(r * self.inverse_root)

    def shift(self, u: Tensor, r: Tensor) -> Tensor:
        return torch.addcmul(u, self.cross_root, self._wide(r * self.inverse_root), value=-1)

    def shift_own(self, u: Tensor, r: Tensor) -> Tensor:
        if not concrete(u, r, self.cross_root) or u.requires_grad or self.cross_root.requires_grad:
            return self.shift(u, r)
        return u.addcmul_(self.cross_root, self._wide(r * self.inverse_root), value=-1)

    def remaining(self, variance: Tensor) -> Tensor:
        left = torch.addcmul(variance, self.cross_root, self.cross_root, value=-1)
        return left if self.known is None else torch.where(self.known, 0.0, left)

    def whiten(self, r: Tensor) -> Tensor:
        return r * self.inverse_root

    def _wide(self, r: Tensor) -> Tensor:
        return r[(..., *[None] * self.event_dims)]


class SecondDifferences(Whitening):
    """Second differences of independent points: S has five diagonals, linear time."""

    event_dims = 1

    def __init__(self, prior: Prior, rows: Rows, root: Field) -> None:
        operator = rows.operator
        assert isinstance(operator, Stencil)
        self.operator, self.field_variance = operator, prior.variance
        a, b, c = operator.a, -(operator.a + operator.c), operator.c

        def at(step: int, variance: Tensor) -> Tensor:
            return variance[..., step : step + len(a)]

        def diagonal(variance: Tensor) -> Tensor:
            v0, v1, v2 = (at(step, variance) for step in range(3))
            return a**2 * v0 + b**2 * v1 + c**2 * v2 + rows.noise_variance  # of S

        v1, v2 = at(1, prior.variance), at(2, prior.variance)
        first = b[:-1] * a[1:] * v1[..., :-1] + c[:-1] * b[1:] * v2[..., :-1]
        second = c[:-2] * a[2:] * v2[..., :-2]
        self.variance = diagonal(prior.variance)
        least = DEPENDENT * diagonal(root.variance)
        floor = torch.where(rows.noise_variance == 0, least, 0.0) + TINY
        self.matrix = Pentadiagonal(self.variance, first, second, floor)
        self.dropped, self.log_det = self.matrix.dropped, self.matrix.log_det
        self.decided = self.dropped | (self.variance <= least)

    def gain(self, r: Tensor) -> Tensor:
        return self.field_variance * self.operator.adjoint(self.matrix.solve(r))

    def whiten(self, r: Tensor) -> Tensor:
        return self.matrix.whiten(r)

    def remaining(self, variance: Tensor) -> Tensor:
        a, b, c = self.operator.a, -(self.operator.a + self.operator.c), self.operator.c
        z0, z1, z2 = self.matrix.inverse_diagonals()
        points = len(a) + 2

        def at(start: int, x: Tensor) -> Tensor:  # entries of rows, as entries of points
            return pad(x, (start, points - start - x.shape[-1]))

        total = at(0, a**2 * z0) + at(1, b**2 * z0) + at(2, c**2 * z0)
        total = total + 2 * (at(1, b[:-1] * a[1:] * z1) + at(2, c[:-1] * b[1:] * z1))
        total = total + 2 * at(2, c[:-2] * a[2:] * z2)
        return torch.addcmul(variance, variance**2, total, value=-1)


class Block(Whitening):
    """Any rows on any field: S is a dense (K, K) matrix for each independent part."""

    def __init__(self, prior: Prior, rows: Rows, root: Field) -> None:
        operator, self.shape = rows.operator, prior.shape
        self.event_dims = max(prior.event_dims, operator.dims)
        self.lead = self.shape[: len(self.shape) - self.event_dims]
        self.row_shape = operator.row_shape(self.shape)
        self.rows_of_all = math.prod(self.row_shape[len(self.lead) :])
        there = operator.there(prior.variance).reshape(-1, self.rows_of_all)
        self.index = there.any(0).nonzero()[:, 0]  # of the rows that are there
        unit = torch.eye(len(self.index), dtype=torch.float64, device=there.device)
        unit = unit.new_zeros(len(unit), self.rows_of_all).index_copy(1, self.index, unit)
        unit = unit.reshape(-1, *[1] * len(self.lead), *self.row_shape[len(self.lead) :])
        unit = operator.adjoint(unit.expand(-1, *self.row_shape))
        cross = prior.covariance_times(unit)  # Sigma G^T, rows on axis 0
        noise = self._flat(rows.noise_variance.expand(self.row_shape))[..., 0, :]
        matrix = self._flat(operator.apply(cross)) + noise.diag_embed()
        self.cross = blocks(cross, self.shape, self.event_dims)  # (*lead, K, E)
        self.variance = self._diagonal(matrix)
        at_root = matrix - noise.diag_embed()
        if prior is not root:
            at_root = self._flat(operator.apply(root.covariance_times(unit)))
        before = row_variance(root, rows, self._diagonal(at_root))
        self.decided = self.variance <= DEPENDENT * before
        self._factor(matrix, self._flat(before)[..., 0, :], noise == 0)

    def _diagonal(self, matrix: Tensor) -> Tensor:  # (*lead, K, K) -> row_shape
        return self._unflat(matrix.diagonal(dim1=-2, dim2=-1)[..., None, :], self.row_shape)

    def _factor(self, matrix: Tensor, before: Tensor, exact: Tensor) -> None:
        empty = before <= TINY
        scale = torch.where(empty, 0.0, torch.where(empty, 1.0, before).rsqrt())
        matrix = matrix * scale[..., None, :] * scale[..., :, None]
        keep, self.root = _factor_independent(matrix, torch.where(exact, DEPENDENT, 1e-16))
        self.scale = scale * keep
        pivots, kept_scale = self.root.diagonal(dim1=-2, dim2=-1), torch.where(keep, scale, 1.0)
        self.log_det = 2 * (pivots.log() - kept_scale.log()).sum(-1)
        self.dropped = self._unflat(keep[..., None, :].double(), self.row_shape) == 0

    def gain(self, r: Tensor) -> Tensor:
        weights = torch.cholesky_solve((self._flat(r) * self.scale[..., None, :]).mT, self.root).mT
        more = r.shape[: r.ndim - len(self.row_shape)]
        return combine(weights * self.scale[..., None, :], self.cross, (*more, *self.shape))

    def whiten(self, r: Tensor) -> Tensor:
        rows = (self._flat(r) * self.scale[..., None, :]).mT
        white = torch.linalg.solve_triangular(self.root, rows, upper=False).mT
        return self._unflat(white, r.shape)

    def remaining(self, variance: Tensor) -> Tensor:
        rows = self.cross * self.scale[..., :, None]
        white = torch.linalg.solve_triangular(self.root, rows, upper=False)
        return variance - white.square().sum(-2).reshape(self.shape)

    def _flat(self, r: Tensor) -> Tensor:  # (*more, *row_shape) -> (*lead, N, K)
        rows = blocks(r, self.row_shape, len(self.row_shape) - len(self.lead))
        return rows.index_select(-1, self.index)

    def _unflat(self, rows: Tensor, shape: Sequence[int]) -> Tensor:  # the way back, 0 elsewhere
        full = rows.new_zeros(*rows.shape[:-1], self.rows_of_all)
        return full.index_copy(-1, self.index, rows).movedim(-2, 0).reshape(shape)


class Latent(System):
    """A low-rank field: its z by a system no larger than rank or rows, the rest given z by `rest`.

    u = mean + F^T z + e. Given z the rest e is conditioned by its own system. Whitened by `rest`,
    the residual is an observation of z with unit noise through W = whitened H, H = G F. With
    [I; W] = Q R (or [I; W^T], the smaller), I + W^T W is R^T R without squaring W.
    """

    def __init__(self, factor: Tensor, seen: Tensor, event_dims: int, rest: Whitening) -> None:
        self.event_dims, self.rest, self.shape = event_dims, rest, factor.shape[1:]
        self.factor = blocks(factor, self.shape, event_dims)  # (*lead, rank, E)
        self.seen, self.row_shape = seen, seen.shape[1:]  # H, (rank, *row_shape)
        self.lead = self.shape[: len(self.shape) - event_dims]
        self.white = self._flat(rest.whiten(self.seen))  # W, (*lead, rank, K)
        rank, count = self.white.shape[-2:]
        self.by_rows = count <= rank
        self.root, self.basis = qr_of_1_over(self.white if self.by_rows else self.white.mT)
        self.variance = rest.variance + self.seen.square().sum(0)
        self.dropped, self.decided = rest.dropped, rest.decided
        own = 2 * self.root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        self.log_det = own + _sum_rows(rest.log_det, own)

    @property
    def differentiable(self) -> bool:
        return self.white.requires_grad or self.factor.requires_grad

    def gain(self, r: Tensor) -> Tensor:
        z = self._latent(self._flat(self.rest.whiten(r)))
        more = r.shape[: r.ndim - len(self.row_shape)]
        known = combine(z, self._flat(self.seen), r.shape)
        return combine(z, self.factor, (*more, *self.shape)) + self.rest.gain(r - known)

    def _latent(self, white: Tensor) -> Tensor:  # (*lead, N, K) -> (*lead, N, rank)
        """The mean of z given whitened residuals, W (I + W^T W)^-1 r."""
        solve = torch.linalg.solve_triangular
        if self.by_rows:
            return (self.basis @ solve(self.root, white.mT, upper=False)).mT
        return solve(self.root.mT, (white @ self.basis).mT, upper=True).mT

    @once
    def new_factor(self) -> Tensor:  # (rank, *shape)
        """V^T (F - gain of H), where V V^T is the covariance of z after the constraint."""
        solve = torch.linalg.solve_triangular
        moved = self.factor - blocks(self.rest.gain(self.seen), self.shape, self.event_dims)
        if self.by_rows:  # the square root of a Kalman update: V = I - W R^-1 (R^T + I)^-1 W^T
            upper = (self.root + eye_like(self.root)).mT
            moved = moved - self.white @ solve(upper, self.basis.mT @ moved, upper=True)
        else:  # V = R^-1, as a matrix first: one product with the factor
            moved = solve(self.root, eye_like(self.root), upper=False) @ moved
        return moved.movedim(-2, 0).reshape(-1, *self.shape)

    def remaining(self, variance: Tensor) -> Tensor:
        return self.rest.remaining(variance) + self.new_factor.square().sum(0)

    def log_density(self, r: Tensor) -> Tensor:
        white = self._flat(self.rest.whiten(r))
        z = self._latent(white)
        square = ((white - z @ self.white).square().sum(-1) + z.square().sum(-1))[..., 0]
        count = _sum_rows(LOG_2PI * (~self.dropped).double(), self.log_det)
        return -0.5 * (square + self.log_det + count)

    def _flat(self, r: Tensor) -> Tensor:
        return blocks(r, self.row_shape, len(self.row_shape) - len(self.lead))


def _sum_rows(x: Tensor, like: Tensor) -> Tensor:
    """x summed over the axes that come after those of `like`."""
    return x.flatten(like.ndim).sum(-1) if x.ndim > like.ndim else x


def _factor_independent(matrix: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
    """The rows to keep (..., K) and the Cholesky factor (..., K, K) with the others struck out.

    matrix: semidefinite with a diagonal of at most 1. least: pivots (..., K) that count as 0.
    """
    root, info = torch.linalg.cholesky_ex(matrix)
    pivots = root.diagonal(dim1=-2, dim2=-1).square()
    if not bool(info.any()) and bool((pivots > least).all()):
        return torch.ones_like(pivots, dtype=torch.bool), root
    for growth in (1, 10, 100, 1000):  # a pivot just above `least` can still leave rounding only
        keep = _independent(matrix.detach(), growth * least)
        both = keep[..., None, :] & keep[..., :, None]
        root, info = torch.linalg.cholesky_ex(matrix * both + (~keep).double().diag_embed())
        if not bool(info.any()):
            break
    return keep, root


def _independent(matrix: Tensor, least: Tensor) -> Tensor:  # (..., K, K), (..., K) -> (..., K)
    """Which rows to keep so that none follows from the rest: Cholesky, largest pivot first.

    Among equal pivots the first row is taken, so that components of a mixture drop the same rows.
    """
    count = matrix.shape[-1]
    left = matrix.diagonal(dim1=-2, dim2=-1).clone()
    keep = torch.zeros_like(left, dtype=torch.bool)
    columns = torch.zeros_like(matrix)
    for k in range(count):
        open_ = left > least
        if not bool(open_.any()):
            break
        largest = (left * open_).amax(-1, keepdim=True)
        place = (open_ & (left >= (1 - 1e-6) * largest)).to(torch.uint8).argmax(-1, keepdim=True)
        good, pivot = open_.gather(-1, place), left.gather(-1, place)
        keep.scatter_(-1, place, keep.gather(-1, place) | good)
        column = matrix.gather(-1, place[..., None].expand(*matrix.shape[:-1], 1))[..., 0]
        known = columns.gather(-2, place[..., None].expand(*place.shape[:-1], 1, count))
        column = column - (columns * known).sum(-1)
        columns[..., k] = torch.where(good, column / torch.where(good, pivot, 1.0).sqrt(), 0.0)
        left = left - columns[..., k].square()
        left = torch.where(good, left.scatter(-1, place, -1.0), left)
    return keep
