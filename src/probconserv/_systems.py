"""The small system S = G Sigma G^T + sigma^2 of a field and a constraint, by its structure.

Every system answers the same questions: `gain` (Sigma G^T S^-1 r), `remaining` (the variance less
the diagonal of Sigma G^T S^-1 G Sigma), `whiten` (L^-1 r with S = L L^T) and `log_density` of
r ~ N(0, S). Rows that other rows, or a lack of variance, decide already are `dropped`: they move
nothing, and `condition` checks that they hold all the same.
"""

import math
from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from ._banded import Pentadiagonal
from ._blocks import blocks, combine, eye_like, root_of_1_plus
from ._checks import concrete
from ._once import once
from ._operators import Rows, Stencil, Weights

DEPENDENT = 1e-12  # a row that keeps less than this share of its variance is decided already
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


class System(ABC):
    event_dims: int  # the last axes of the field that one small system spans
    before: Tensor  # like apply(u): the variance of each row under the field without constraints
    dropped: Tensor  # like apply(u): rows that are decided already
    log_det: Tensor  # (*lead), over the rows that are kept

    @abstractmethod
    def gain(self, r: Tensor) -> Tensor: ...

    @abstractmethod
    def remaining(self, variance: Tensor) -> Tensor: ...

    @abstractmethod
    def whiten(self, r: Tensor) -> Tensor: ...

    def shift(self, u: Tensor, r: Tensor) -> Tensor:
        """u - gain(r)."""
        return u - self.gain(r)

    def shift_own(self, u: Tensor, r: Tensor) -> Tensor:
        """u - gain(r), for a `u` that nobody else holds: its memory may be used."""
        return self.shift(u, r)

    def log_density(self, r: Tensor) -> Tensor:  # like apply(u) -> (*lead)
        terms = self.whiten(r) ** 2 + LOG_2PI * (~self.dropped).double()
        return -0.5 * (_sum_rows(terms, self.log_det) + self.log_det)


class OneRow(System):
    """One row for each independent part of the field: S is a number; linear time, elementwise."""

    def __init__(self, prior: Prior, rows: Rows, root: Prior) -> None:
        operator = rows.operator
        assert isinstance(operator, Weights)
        self.event_dims = operator.dims
        cross = prior.covariance_times(operator.row())  # Sigma G^T
        variance = operator.apply(cross) + rows.noise_variance
        if prior is root:
            self.before, self.dropped = variance, variance <= TINY
        else:
            at_root = operator.apply(root.covariance_times(operator.row()))
            self.before = at_root + rows.noise_variance
            self.dropped = variance <= DEPENDENT * self.before + TINY
        safe = torch.where(self.dropped, 1.0, variance)
        self.inverse_root = torch.where(self.dropped, 0.0, safe.rsqrt())
        multiply = cross.mul_ if _free(cross, self.inverse_root) else cross.mul
        self.cross_root = multiply(self._wide(self.inverse_root))  # Sigma G^T S^-1/2
        self.log_det = safe.log()

    def gain(self, r: Tensor) -> Tensor:
        return self.cross_root * self._wide(r * self.inverse_root)

    def shift(self, u: Tensor, r: Tensor) -> Tensor:
        return torch.addcmul(u, self.cross_root, self._wide(r * self.inverse_root), value=-1)

    def shift_own(self, u: Tensor, r: Tensor) -> Tensor:
        if not _free(u, r, self.cross_root):
            return self.shift(u, r)
        return u.addcmul_(self.cross_root, self._wide(r * self.inverse_root), value=-1)

    def remaining(self, variance: Tensor) -> Tensor:
        return _no_less_than_0(torch.addcmul(variance, self.cross_root, self.cross_root, value=-1))

    def whiten(self, r: Tensor) -> Tensor:
        return r * self.inverse_root

    def _wide(self, r: Tensor) -> Tensor:
        return r[(..., *[None] * self.event_dims)]


class SecondDifferences(System):
    """Second differences of independent points: S has five diagonals, linear time."""

    event_dims = 1

    def __init__(self, prior: Prior, rows: Rows) -> None:
        operator = rows.operator
        assert isinstance(operator, Stencil)
        self.operator, self.variance = operator, prior.variance
        a, b, c = operator.a, -(operator.a + operator.c), operator.c
        v0, v1, v2 = (prior.variance[..., i : i + len(a)] for i in range(3))
        main = a**2 * v0 + b**2 * v1 + c**2 * v2
        first = b[:-1] * a[1:] * v1[..., :-1] + c[:-1] * b[1:] * v2[..., :-1]
        second = c[:-2] * a[2:] * v2[..., :-2]
        if operator.present is not None:
            main, first, second = (x * operator.present for x in (main, first, second))
        self.before = main + rows.noise_variance
        self.matrix = Pentadiagonal(self.before, first, second, DEPENDENT * self.before + TINY)
        self.dropped, self.log_det = self.matrix.dropped, self.matrix.log_det

    def gain(self, r: Tensor) -> Tensor:
        return self.variance * self.operator.adjoint(self.matrix.solve(r))

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
        if self.operator.present is not None:
            total = total * self.operator.present
        return _no_less_than_0(torch.addcmul(variance, variance**2, total, value=-1))


class Block(System):
    """Any rows on any field: S is a dense (K, K) matrix for each independent part."""

    def __init__(self, prior: Prior, rows: Rows, root: Prior) -> None:
        operator, shape = rows.operator, prior.shape
        self.event_dims = max(prior.event_dims, operator.dims)
        self.lead = shape[: len(shape) - self.event_dims]
        self.shape = shape
        places = shape[: len(shape) - operator.dims]
        per_place = (operator.row_count,) if operator.row_axes else ()
        self.row_shape = (*places, *per_place)
        count = math.prod(self.row_shape[len(self.lead) :])
        unit = torch.eye(count, dtype=torch.float64, device=prior.variance.device)
        unit = unit.reshape(count, *[1] * len(self.lead), *self.row_shape[len(self.lead) :])
        unit = operator.adjoint(unit.expand(count, *self.row_shape))
        cross = prior.covariance_times(unit)  # Sigma G^T, rows on axis 0
        noise = self._flat(rows.noise_variance.expand(self.row_shape))[..., 0, :]
        matrix = self._flat(operator.apply(cross)) + noise.diag_embed()
        before = matrix.diagonal(dim1=-2, dim2=-1)
        if prior is not root:
            at_root = self._flat(operator.apply(root.covariance_times(unit)))
            before = at_root.diagonal(dim1=-2, dim2=-1) + noise
        self.cross = blocks(cross, shape, self.event_dims)  # (*lead, K, E)
        self._factor(matrix, before)

    def _factor(self, matrix: Tensor, before: Tensor) -> None:
        empty = before <= TINY
        self.scale = torch.where(empty, 0.0, torch.where(empty, 1.0, before).rsqrt())
        matrix = matrix * self.scale[..., None, :] * self.scale[..., :, None]
        keep = _independent(matrix.detach())
        self.scale = self.scale * keep
        matrix = matrix * (keep[..., None, :] & keep[..., :, None]) + (~keep).double().diag_embed()
        self.root = torch.linalg.cholesky(matrix)
        self.dropped = (~keep).reshape(self.row_shape)
        self.before = before.reshape(self.row_shape)
        kept_scale = torch.where(keep, self.scale, 1.0)
        pivots = self.root.diagonal(dim1=-2, dim2=-1)
        self.log_det = 2 * (pivots.log() - kept_scale.log()).sum(-1)

    def gain(self, r: Tensor) -> Tensor:
        weights = torch.cholesky_solve((self._flat(r) * self.scale[..., None, :]).mT, self.root).mT
        more = r.shape[: r.ndim - len(self.row_shape)]
        return combine(weights * self.scale[..., None, :], self.cross, (*more, *self.shape))

    def whiten(self, r: Tensor) -> Tensor:
        rows = (self._flat(r) * self.scale[..., None, :]).mT
        white = torch.linalg.solve_triangular(self.root, rows, upper=False).mT
        return white.movedim(-2, 0).reshape(r.shape)

    def remaining(self, variance: Tensor) -> Tensor:
        rows = self.cross * self.scale[..., :, None]
        white = torch.linalg.solve_triangular(self.root, rows, upper=False)
        return _no_less_than_0(variance - white.square().sum(-2).reshape(self.shape))

    def _flat(self, r: Tensor) -> Tensor:  # (*more, *row_shape) -> (*lead, N, K)
        return blocks(r, self.row_shape, len(self.row_shape) - len(self.lead))


class Latent(System):
    """A low-rank field: its z by a system no larger than rank or rows, the rest given z by `rest`.

    u = mean + F^T z + e. Given z the rest e is conditioned by its own system; H = G F and `rest`
    whiten the residual, which then has unit noise as an observation of z.
    """

    def __init__(self, factor: Tensor, event_dims: int, rest: System, rows: Rows) -> None:
        self.event_dims, self.rest, self.shape = event_dims, rest, factor.shape[1:]
        self.factor = blocks(factor, self.shape, event_dims)  # (*lead, rank, E)
        self.seen = rows.operator.apply(factor)  # H = G F, (rank, *row_shape)
        self.row_shape = self.seen.shape[1:]
        self.lead = self.shape[: len(self.shape) - event_dims]
        self.white = self._flat(rest.whiten(self.seen))  # (*lead, rank, K)
        rank, count = self.white.shape[-2:]
        self.by_rows = count <= rank
        self.root = root_of_1_plus(self.white.mT if self.by_rows else self.white)
        self.before = rest.before + self.seen.square().sum(0)
        self.dropped = rest.dropped
        own = 2 * self.root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        self.log_det = own + _sum_rows(rest.log_det, own)

    def gain(self, r: Tensor) -> Tensor:
        z = self._latent(self._flat(self.rest.whiten(r)))
        more = r.shape[: r.ndim - len(self.row_shape)]
        known = combine(z, self._flat(self.seen), r.shape)
        return combine(z, self.factor, (*more, *self.shape)) + self.rest.gain(r - known)

    def _latent(self, white: Tensor) -> Tensor:  # (*lead, N, K) -> (*lead, N, rank)
        if self.by_rows:
            return torch.cholesky_solve(white.mT, self.root).mT @ self.white.mT
        return torch.cholesky_solve(self.white @ white.mT, self.root).mT

    @once
    def new_factor(self) -> Tensor:  # (rank, *shape)
        """V^T (F - gain of H), where V V^T is the covariance of z after the constraint."""
        rank = self.factor.shape[-2]
        moved = self.factor - blocks(self.rest.gain(self.seen), self.shape, self.event_dims)
        if self.by_rows:  # the square root of a Kalman update: V = I - W L^-T (L + I)^-1 W^T
            solve = torch.linalg.solve_triangular
            inner = solve(self.root, self.white.mT @ moved, upper=False)
            inner = solve((self.root + eye_like(self.root)).mT, inner, upper=True)
            moved = moved - self.white @ inner
        else:
            moved = (
                torch.linalg.solve_triangular(self.root, eye_like(self.root), upper=False) @ moved
            )
        return moved.movedim(-2, 0).reshape(rank, *self.shape)

    def remaining(self, variance: Tensor) -> Tensor:
        return self.rest.remaining(variance) + self.new_factor.square().sum(0)

    def whiten(self, r: Tensor) -> Tensor:
        raise NotImplementedError("the rows of a low-rank field are whitened by `rest`")

    def log_density(self, r: Tensor) -> Tensor:
        white = self._flat(self.rest.whiten(r))
        z = self._latent(white)
        square = ((white - z @ self.white).square().sum(-1) + z.square().sum(-1))[..., 0]
        count = _sum_rows(LOG_2PI * (~self.dropped).double(), self.log_det)
        return -0.5 * (square + self.log_det + count)

    def _flat(self, r: Tensor) -> Tensor:
        return blocks(r, self.row_shape, len(self.row_shape) - len(self.lead))


def _free(*tensors: Tensor) -> bool:
    """Whether the first can be overwritten with a product of the others: no gradients, no vmap."""
    return concrete(*tensors) and not any(t.requires_grad for t in tensors)


def _no_less_than_0(variance: Tensor) -> Tensor:
    """Takes off the rounding where a constraint leaves nothing; in place, `variance` is fresh."""
    return variance.clamp_min_(0)


def _sum_rows(x: Tensor, like: Tensor) -> Tensor:
    """x summed over the axes that come after those of `like`."""
    return x.flatten(like.ndim).sum(-1) if x.ndim > like.ndim else x


def _independent(matrix: Tensor) -> Tensor:  # (..., K, K) -> (..., K)
    """Which rows of a semidefinite matrix (diagonal at most 1) to keep: none follows from the rest.

    Cholesky as it stands where that works, with the largest pivot first where it does not.
    """
    root, info = torch.linalg.cholesky_ex(matrix)
    pivots = root.diagonal(dim1=-2, dim2=-1).square()
    if not bool(info.any()) and bool((pivots > DEPENDENT).all()):
        return torch.ones_like(pivots, dtype=torch.bool)
    count = matrix.shape[-1]
    left = matrix.diagonal(dim1=-2, dim2=-1).clone()
    keep = torch.zeros_like(left, dtype=torch.bool)
    columns = torch.zeros_like(matrix)
    for k in range(count):
        pivot, place = left.max(-1, keepdim=True)
        good = pivot > DEPENDENT
        if not bool(good.any()):
            break
        keep.scatter_(-1, place, keep.gather(-1, place) | good)
        at = place[..., None].expand(*matrix.shape[:-1], 1)
        column = matrix.gather(-1, at)[..., 0]
        known = columns.gather(-2, place[..., None].expand(*place.shape[:-1], 1, count))
        column = column - (columns * known).sum(-1)
        column = torch.where(good, column / torch.where(good, pivot, 1.0).sqrt(), 0.0)
        columns[..., k] = column
        left = (left - column.square()).scatter(-1, place, -1.0)
    return keep
