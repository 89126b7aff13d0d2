"""A Gaussian field with a full covariance."""

import math

import torch
from torch import Tensor

from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import DegenerateError, InputError
from ..support.tolerances import FOLLOWS, SINGLE
from ..support.tree import once
from .blocks import blocks, root_of, unblocks
from .gaussian import UNMEASURED, Field, Normals

ROUNDING = 16 * torch.finfo(torch.float64).eps  # of eigenvalues, for each point
MAKE_IT = "Compute it in float64, or add a small variance to its diagonal."


class Dense(Field):
    """A field with a full covariance, u ~ N(mean, covariance), as Gaussian processes give.

    Parameters
    ----------
    mean : array, shape (..., T, M)
        The mean.
    covariance : array, shape ``(*batch, *event, *event)``
        event are the last `event_dims` axes of the mean: (..., T, M, M) for 1, (..., T, M, T, M)
        for 2. Symmetric, with no negative eigenvalue. The axes of batch, and of time with 1, may be
        left out or have size 1: then all entries share one covariance, which is kept and factored
        once.
    event_dims : int
        How many last axes are correlated.

    Raises
    ------
    InputError
        If `covariance` is not symmetric or its shape does not fit.

    Examples
    --------
    >>> Dense([0.0, 0.0], [[1.0, 0.5], [0.5, 4.0]]).variance
    tensor([1., 4.], dtype=torch.float64)
    >>> Dense([[0.0, 0.0]] * 3, [[1.0, 0.5], [0.5, 4.0]]).covariance().shape
    torch.Size([3, 2, 2])
    """

    def __init__(self, mean: ArrayLike, covariance: ArrayLike, event_dims: int = 1) -> None:
        given = check.plain("mean", mean), check.plain("covariance", covariance)
        self.mean, matrix = check.alike(mean=given[0], covariance=given[1])
        check.finite("mean", self.mean)
        try:
            check.finite("covariance", matrix)
        except InputError as error:
            raise InputError(f"{error} An infinite variance {UNMEASURED}") from None
        self.event_dims = check.event_dims(event_dims, self.mean.ndim)
        lead, event = self.shape[:-event_dims], self.shape[-event_dims:]
        count = max(matrix.ndim - 2 * event_dims, 0)
        own, last = matrix.shape[:count], matrix.shape[count:]
        if last != (*event, *event) or not check.fits(own, lead):
            raise InputError(
                f"`covariance` must have shape {(*lead, *event, *event)}, or {(*event, *event)} if "
                f"all entries share it, for a mean of shape {tuple(self.shape)} with event_dims="
                f"{event_dims}; got {tuple(matrix.shape)}. Reshape it."
            )
        size = math.prod(event)
        self._matrix = matrix.reshape(*[1] * (len(lead) - count), *own, size, size)
        if check.concrete(matrix) and matrix.numel():
            flat = self._matrix.detach()
            slack = SINGLE * float(flat.abs().max())
            if not torch.allclose(flat, flat.mT, rtol=10 * SINGLE, atol=slack):
                text = "`covariance` must be symmetric; use (c + c.mT) / 2 if it nearly is."
                raise InputError(text)
            own_variance = flat.diagonal(dim1=-2, dim2=-1)
            check.finite("covariance", own_variance, 0, "Its diagonal is a variance.")

    @property
    def variance(self) -> Tensor:  # type: ignore[override]
        """The variance of each point."""
        return self._over_event(self._matrix.diagonal(dim1=-2, dim2=-1), 1).expand(self.shape)

    def covariance(self) -> Tensor:
        event = self.shape[-self.event_dims :]
        return self._over_event(self._matrix, 2).expand(*self.shape, *event)

    def _over_event(self, x: Tensor, times: int) -> Tensor:
        """The last axes of a covariance, or of its diagonal, as those of the field."""
        return x.reshape(*x.shape[: x.ndim - times], *self.shape[-self.event_dims :] * times)

    def covariance_times(self, v: ArrayLike) -> Tensor:
        v = self._factor_of(v)
        rows = blocks(v, self.shape, self.event_dims)
        return unblocks(rows @ self._matrix, v.shape)

    def _draw(self, normals: Normals) -> Tensor:
        z = normals(*self.shape)
        rows = blocks(z, self.shape, self.event_dims) @ self._root.mT
        return self.mean + unblocks(rows, z.shape)

    def log_prob(self, u: ArrayLike) -> Tensor:
        root = self._cholesky
        if root is None:
            raise DegenerateError(
                "the covariance is singular, so the field has no joint density. "
                "Use `marginal_log_prob`."
            )
        rest = blocks((self._values(u) - self.mean)[None], self.shape, self.event_dims)
        white = torch.linalg.solve_triangular(root, rest.mT.double(), upper=False)
        log_det = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        size = rest.shape[-1]
        found = -0.5 * ((white**2).sum((-1, -2)) + log_det + size * math.log(2 * math.pi))
        return found.to(self.dtype)

    @once
    def _cholesky(self) -> Tensor | None:
        """Its factor in float64; None if it is singular."""
        root, info = torch.linalg.cholesky_ex(self._matrix.double())
        if check.concrete(info) and (bool(info.any()) or self._is_singular(root.detach())):
            return None
        return root

    def _is_singular(self, root: Tensor) -> bool:
        """Whether some direction has no variance, by more than rounding."""
        matrix = self._matrix.double().detach()
        pivots, std = root.diagonal(dim1=-2, dim2=-1), matrix.diagonal(dim1=-2, dim2=-1).sqrt()
        if bool((pivots > 1e-3 * std).all()):
            return False
        least = torch.linalg.eigvalsh(matrix / std[..., None] / std[..., None, :])[..., 0]
        return not bool((least > ROUNDING * root.shape[-1]).all())

    @once
    def _root(self) -> Tensor:
        """A with A A^T = covariance, in float64; also for one that is only semidefinite."""
        if self._cholesky is not None:
            return self._cholesky
        matrix = self._matrix.double()
        std = root_of(matrix.diagonal(dim1=-2, dim2=-1))
        scale = torch.where(std > 0, 1 / torch.where(std > 0, std, 1.0), 0.0)
        values, vectors = torch.linalg.eigh(matrix * scale[..., None] * scale[..., None, :])
        rounding = max(FOLLOWS, 100 * torch.finfo(self.dtype).eps)
        if bool((values < -rounding * values.shape[-1]).any()):
            raise InputError(
                "`covariance` is not positive semidefinite: scaled to a diagonal of 1, its "
                f"smallest eigenvalue is {values.min():.3g}, its largest {values.max():.3g}. "
                f"{MAKE_IT}"
            )
        lost = values <= ROUNDING * matrix.shape[-1]
        root = vectors * root_of(torch.where(lost, 0.0, values))[..., None, :]
        return root * std[..., None]

    @property
    def differentiable(self) -> bool:
        """Whether the covariance has gradients."""
        return self._matrix.requires_grad
