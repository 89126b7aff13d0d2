"""Gaussian fields u(t, x): mean, variance, covariance times something, a sample.

Axes are `(*batch, T, M)`: the last `event_dims` axes are correlated, all before them independent.
`event_dims` is 0 for a `Diagonal` field, 1 where each time stands by itself, 2 where time and
space are joint; with two axes of space (..., T, X, Y) it is 2 and 3.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from numbers import Real
from statistics import NormalDist
from typing import Self

import torch
from torch import Tensor

from . import _checks as check
from ._blocks import blocks, combine, qr_of_1_over, root_of, take, unblocks
from ._checks import ArrayLike
from ._errors import DegenerateError, InputError
from ._once import once

MAKE_IT = "Compute it in float64, or add a small variance to its diagonal."
SQUARE_IT = "Standard deviations must be squared first: variances are stored here."


class Field(ABC):
    """A Gaussian field: what Step 1 gives and what `condition` returns.

    Tensors are not copied, NumPy arrays are; results are computed when they are first read.
    """

    event_dims: int
    eps: float = torch.finfo(torch.float64).eps  # relative rounding of the numbers it was made of
    mean: Tensor  # (*batch, T, M)
    variance: Tensor  # (*batch, T, M), of each point by itself

    @abstractmethod
    def covariance_times(self, v: Tensor) -> Tensor:  # (*more, *shape) -> (*more, *shape)
        """The covariance applied to `v`, over the event axes of each independent part."""

    @abstractmethod
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """`n` joint draws, on a new axis 0."""

    @abstractmethod
    def log_prob(self, u: ArrayLike) -> Tensor:
        """Log of the joint density at `u`, one value per independent part (the batch axes)."""

    @abstractmethod
    def _map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same field with every tensor of it changed."""

    def _with_mean(self, mean: Tensor) -> "Field":
        """The same field about another mean."""
        raise InputError(
            f"`project` takes a field before `condition`, not a {type(self).__name__}."
        )

    def _take(self, index: Tensor) -> "Field":
        """The same field with axis 0 replaced by the entries that `index` (n, *batch) picks."""
        raise NotImplementedError  # a mixture: it is never a component

    @property
    def shape(self) -> torch.Size:
        return self.mean.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.mean.dtype

    @property
    def device(self) -> torch.device:
        return self.mean.device

    @property
    def std(self) -> Tensor:
        """Standard deviation of each point."""
        return self.variance.sqrt()

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        """Ends of the central interval that holds each point with probability `level`."""
        half = self.std * NormalDist().inv_cdf((1 + check_level(level)) / 2)
        return self.mean - half, self.mean + half

    def covariance(self) -> Tensor:
        """The dense covariance over the event axes, `(*batch, *event, *event)`; large.

        A `Diagonal` field gives the matrix over its last axis.
        """
        dims = max(self.event_dims, 1)
        event = self.shape[-dims:]
        size = math.prod(event)
        basis = torch.eye(size, dtype=self.dtype, device=self.device)
        basis = basis.reshape(size, *[1] * (self.mean.ndim - dims), *event).expand(
            size, *self.shape
        )
        rows = blocks(self.covariance_times(basis), self.shape, dims)
        return rows.reshape(*self.shape[:-dims], *event, *event)

    def marginal_log_prob(self, u: ArrayLike) -> Tensor:
        """Log density of each point by itself; its mean is the LL of the paper's tables."""
        u = self._values(u)
        if check.concrete(self.variance) and bool((self.variance == 0).any()):
            raise DegenerateError(
                "some points have zero variance, so their density is not finite. Score the others, "
                "or condition with `noise` > 0."
            )
        return -0.5 * ((u - self.mean) ** 2 / self.variance + (2 * math.pi * self.variance).log())

    def to(self, device: torch.device | str) -> Self:
        """The same field on another device."""
        return self._map(lambda t: t.to(device))

    def _values(self, u: ArrayLike) -> Tensor:
        u = check.tensor("u", u, like=self.mean, of="mean")
        check.broadcasts("u", u, self.shape, "the field")
        return u.expand(self.shape)

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"{kind}(shape={tuple(self.shape)}, event_dims={self.event_dims}, {self.dtype})"


class Diagonal(Field):
    """A field of independent points, u ~ N(mean, variance): what most networks give.

    mean: (*batch, T, M). variance: the same shape, or one that broadcasts to it.

    >>> Diagonal([[0.0, 1.0]], [[1.0, 4.0]]).std
    tensor([[1., 2.]], dtype=torch.float64)
    """

    event_dims = 0

    def __init__(self, mean: ArrayLike, variance: ArrayLike) -> None:
        self.mean = check.tensor("mean", mean)
        self.variance = _variance("variance", variance, self.mean)

    def covariance_times(self, v: Tensor) -> Tensor:
        return self.variance * v

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        return torch.addcmul(self.mean, self.std, normals(n, self.mean, generator))

    def log_prob(self, u: ArrayLike) -> Tensor:
        """As `marginal_log_prob`: every point is a part of its own. Sum over axes as needed."""
        return self.marginal_log_prob(u)

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Diagonal":
        return Diagonal._unchecked(change(self.mean), change(self.variance))

    def _with_mean(self, mean: Tensor) -> "Diagonal":
        return Diagonal._unchecked(mean, self.variance)

    def _take(self, index: Tensor) -> "Diagonal":
        return Diagonal._unchecked(take(self.mean, index), take(self.variance, index))

    @classmethod
    def _unchecked(cls, mean: Tensor, variance: Tensor) -> "Diagonal":
        field = cls.__new__(cls)
        field.mean, field.variance = mean, variance
        return field


class LowRank(Field):
    """A field moved by a few shared directions, u = mean + sum_k factor_k z_k + sqrt(variance) eps.

    Ensembles, MC dropout and latent samples give such fields, see `from_samples`.

    mean: (*batch, T, M). factor: (rank, *batch, T, M). variance: of the independent rest,
    broadcast to the mean. event_dims: how many last axes share each z.

    >>> LowRank([0.0, 0.0], factor=[[1.0, 1.0]], variance=0.5).covariance()
    tensor([[1.5000, 1.0000],
            [1.0000, 1.5000]], dtype=torch.float64)
    """

    def __init__(
        self, mean: ArrayLike, factor: ArrayLike, variance: ArrayLike = 0.0, event_dims: int = 1
    ) -> None:
        self.mean = check.tensor("mean", mean)
        self.event_dims = check.event_dims(event_dims, self.mean.ndim)
        self.factor = check.tensor("factor", factor, like=self.mean, of="mean")
        if self.factor.shape[1:] != self.mean.shape:
            raise InputError(
                f"`factor` must have shape (rank, *mean.shape), that is (rank, "
                f"{', '.join(map(str, self.mean.shape))}); got {tuple(self.factor.shape)}. "
                "The rank axis comes first."
            )
        self.residual = Diagonal._unchecked(self.mean, _variance("variance", variance, self.mean))

    @classmethod
    def from_samples(
        cls, samples: ArrayLike, variance: ArrayLike = 0.0, event_dims: int = 1
    ) -> "LowRank":
        """The field with the mean and the covariance of samples, plus `variance` at each point.

        samples: (S, *batch, T, M): members or draws on axis 0, at least two. variance: what the
        samples leave out, for example the average of the predicted variances; (*batch, T, M).
        """
        samples = check.tensor("samples", samples)
        if samples.ndim < 2 or samples.shape[0] < 2:
            raise InputError(
                "`samples` must have at least two samples on axis 0 and the field on the axes "
                f"after it, got shape {tuple(samples.shape)}."
            )
        mean = samples.mean(0)
        factor = (samples - mean) / math.sqrt(samples.shape[0] - 1)
        return cls(mean, factor, variance, event_dims)

    @property
    def variance(self) -> Tensor:  # type: ignore[override]
        return self.residual.variance + (self.factor**2).sum(0)

    def covariance_times(self, v: Tensor) -> Tensor:
        v = v.expand(torch.broadcast_shapes(v.shape, self.shape))
        factor = blocks(self.factor, self.shape, self.event_dims)
        inner = blocks(v, self.shape, self.event_dims) @ factor.mT
        return self.residual.covariance_times(v) + combine(inner, factor, v.shape)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        lead = self.shape[: -self.event_dims]
        z = normals(n, self.mean.new_empty(*lead, self.factor.shape[0]), generator)
        factor = blocks(self.factor, self.shape, self.event_dims)
        shared = combine(z.movedim(0, -2), factor, (n, *self.shape))
        return shared + self.residual.sample(n, generator)

    def log_prob(self, u: ArrayLike) -> Tensor:
        if check.concrete(self.mean) and bool((self.residual.variance == 0).any()):
            raise DegenerateError(
                "the field has points with no variance of their own, so it has no joint density "
                "here. Give `variance` > 0, or use `marginal_log_prob`."
            )
        whiten = self.residual.std
        factor = blocks(self.factor / whiten, self.shape, self.event_dims)
        rest = blocks(((self._values(u) - self.mean) / whiten)[None], self.shape, self.event_dims)
        root, basis = qr_of_1_over(factor.mT)
        z = torch.linalg.solve_triangular(root.mT, (rest @ basis).mT, upper=True).mT
        square = (rest - z @ factor).square().sum((-1, -2)) + z.square().sum((-1, -2))
        log_det = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        log_det = log_det + (2 * math.pi * self.residual.variance).log().flatten(
            -self.event_dims
        ).sum(-1)
        return -0.5 * (square + log_det)

    def _map(self, change: Callable[[Tensor], Tensor]) -> "LowRank":
        rest = self.residual._map(change)
        return self._unchecked(rest, change(self.factor), self.event_dims)

    def _with_mean(self, mean: Tensor) -> "LowRank":
        return self._unchecked(self.residual._with_mean(mean), self.factor, self.event_dims)

    def _take(self, index: Tensor) -> "LowRank":
        factor = take(self.factor.movedim(0, -1), index).movedim(-1, 0)
        return self._unchecked(self.residual._take(index), factor, self.event_dims)

    @classmethod
    def _unchecked(cls, residual: Diagonal, factor: Tensor, event_dims: int) -> "LowRank":
        field = cls.__new__(cls)
        field.mean, field.residual = residual.mean, residual
        field.factor, field.event_dims = factor, event_dims
        return field


class Dense(Field):
    """A field with a full covariance, u ~ N(mean, covariance): Gaussian processes.

    mean: (*batch, T, M). covariance: (*batch, *event, *event) where event are the last
    `event_dims` axes of the mean; (*batch, T, M, M) for 1, (*batch, T, M, T, M) for 2.
    """

    def __init__(self, mean: ArrayLike, covariance: ArrayLike, event_dims: int = 1) -> None:
        self.mean = check.tensor("mean", mean)
        self.event_dims = check.event_dims(event_dims, self.mean.ndim)
        matrix = check.tensor("covariance", covariance, like=self.mean, of="mean")
        wanted = (*self.shape, *self.shape[-event_dims:])
        if matrix.shape != wanted:
            raise InputError(
                f"`covariance` must have shape {wanted} for a mean of shape {tuple(self.shape)} "
                f"with event_dims={event_dims}; got {tuple(matrix.shape)}. Reshape or expand it."
            )
        size = math.prod(self.shape[-event_dims:])
        self._matrix = matrix.reshape(*self.shape[:-event_dims], size, size)
        self._rounding = _rounding(self.dtype)
        if check.concrete(matrix):
            flat = self._matrix.detach()
            if not torch.allclose(flat, flat.mT, rtol=1e-5, atol=1e-6 * float(flat.abs().max())):
                raise InputError(
                    "`covariance` must be symmetric; use (c + c.mT) / 2 if it nearly is."
                )
            check.finite(
                "covariance", flat.diagonal(dim1=-2, dim2=-1), 0, "Its diagonal is a variance."
            )

    @property
    def variance(self) -> Tensor:  # type: ignore[override]
        return self._matrix.diagonal(dim1=-2, dim2=-1).reshape(self.shape)

    def covariance(self) -> Tensor:
        return self._matrix.reshape(*self.shape, *self.shape[-self.event_dims :])

    def covariance_times(self, v: Tensor) -> Tensor:
        v = v.expand(torch.broadcast_shapes(v.shape, self.shape))
        rows = blocks(v, self.shape, self.event_dims)
        return unblocks(rows @ self._matrix, v.shape)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        z = normals(n, self.mean, generator)
        rows = blocks(z, self.shape, self.event_dims) @ self._root.mT
        return self.mean + unblocks(rows, z.shape)

    def log_prob(self, u: ArrayLike) -> Tensor:
        root, info = torch.linalg.cholesky_ex(self._matrix)
        if check.concrete(info) and bool(info.any()):
            raise DegenerateError(
                "the covariance is singular, so the field has no joint density. "
                "Use `marginal_log_prob`."
            )
        rest = blocks((self._values(u) - self.mean)[None], self.shape, self.event_dims)
        white = torch.linalg.solve_triangular(root, rest.mT, upper=False)
        log_det = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        size = rest.shape[-1]
        return -0.5 * ((white**2).sum((-1, -2)) + log_det + size * math.log(2 * math.pi))

    def check_variance(self, variance: Tensor) -> None:
        """Variances left by a constraint are negative by rounding at most."""
        least = -self._rounding * float(self.variance.detach().max())
        if check.concrete(variance) and bool((variance < least).any()):
            raise InputError(
                "`covariance` is not positive semidefinite: a constraint leaves the variance "
                f"{variance.min():.3g}. {MAKE_IT}"
            )

    @once
    def _root(self) -> Tensor:
        """A with A A^T = covariance, made once; also for a covariance that is only semidefinite."""
        root, info = torch.linalg.cholesky_ex(self._matrix)
        lost = self._matrix.shape[-1] * torch.finfo(self.dtype).eps  # no more than rounding
        largest = self._matrix.diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True)
        pivots = root.diagonal(dim1=-2, dim2=-1).square()
        if not bool(info.any()) and bool((pivots > lost * largest).all()):
            return root
        values, vectors = torch.linalg.eigh(self._matrix)
        largest = values[..., -1:].clamp_min(0)
        if bool((values[..., :1] < -self._rounding * largest).any()):
            raise InputError(
                "`covariance` is not positive semidefinite: its smallest eigenvalue is "
                f"{values.min():.3g}, its largest {values.max():.3g}. {MAKE_IT}"
            )
        values = torch.where(values > lost * largest, values, 0.0)
        return vectors * root_of(values)[..., None, :]

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Dense":
        return self._like(change(self.mean), change(self._matrix))

    def _with_mean(self, mean: Tensor) -> "Dense":
        return self._like(mean, self._matrix)

    def _take(self, index: Tensor) -> "Dense":
        return self._like(take(self.mean, index), take(self._matrix, index))

    def _like(self, mean: Tensor, matrix: Tensor) -> "Dense":
        field = Dense.__new__(Dense)
        field.mean, field._matrix, field.event_dims = mean, matrix, self.event_dims
        field._rounding = self._rounding
        return field

    @property
    def differentiable(self) -> bool:
        return self._matrix.requires_grad


def _rounding(dtype: torch.dtype) -> float:
    """How far below 0, relative to the largest, an eigenvalue may be: the input was rounded."""
    return max(1e-10, 100 * torch.finfo(dtype).eps)


def check_level(level: float, name: str = "level") -> float:
    if not isinstance(level, Real) or not 0 < level < 1:
        raise InputError(f"`{name}` must lie between 0 and 1, for example 0.9; got {level!r}.")
    return level


def normals(n: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """`n` standard normal tensors of the shape of `like`, on a new axis 0."""
    shape = (check.samples(n), *like.shape)
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)


def _variance(name: str, variance: ArrayLike, mean: Tensor) -> Tensor:
    t = check.as_tensor(name, variance, like=mean, of="mean")
    check.finite(name, t, 0, SQUARE_IT)
    check.broadcasts(name, t, mean.shape, "the mean")
    return t.expand(mean.shape)
