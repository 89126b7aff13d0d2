"""S = G Sigma G^T + sigma^2 of many rows, factored; what follows from other rows is left out.

S is scaled by what each row's variance was before any law. Exact rows are taken first, the largest
pivot at each step; an exact row of which next to nothing is left given the others is `dropped`: it
moves nothing, and the audit of the final mean sees to it that it holds. A row with noise is never
dropped: whatever the others say, its own noise is left.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..fields.blocks import root_of
from ..support.checks import concrete
from ..support.tolerances import DEPENDENT, EASY, TINY
from ..support.tree import Node

LOG_2PI = math.log(2 * math.pi)
ROUNDS = 1e6  # standard deviations: the rounding of a value that is smaller does not show


class Factor(Node):
    """The factor of one matrix (*lead, K, K) for each independent part.

    `pivots` are the variances of the rows given those that were taken before them.
    """

    def __init__(
        self, matrix: Tensor, before: Tensor, noise: Tensor, value: Tensor | None = None
    ) -> None:
        """matrix: S. before: variance of each row without laws, (*lead, K). noise: sigma^2.

        value: b. Of exact rows that say the same, those of small values are less rounded.
        """
        usable = before > TINY
        scale = torch.where(usable, torch.where(usable, before, 1.0).rsqrt(), 0.0)
        scaled = matrix * scale[..., None, :] * scale[..., :, None]
        self.exact, self.keep = (noise == 0) & usable, usable
        self.order: Tensor | None = None  # of the rows in the factor, if not their own
        self.root = _plain_root(scaled)
        if self.root is None:
            floor = noise * scale.square()
            size = torch.zeros_like(scale) if value is None else value.detach().abs() * scale
            self.order, self.root, keep = pivoted(scaled, floor, self.exact, size)
            self.keep = keep & usable
        self.scale = torch.where(self.keep, scale, 0.0)
        kept, own = (self._sorted(x[..., None, :])[..., 0, :] for x in (self.keep, scale))
        sizes = self.root.diagonal(dim1=-2, dim2=-1) / torch.where(kept, own, 1.0)
        self.log_det = 2 * torch.where(kept, sizes, 1.0).log().sum(-1)
        pivots = torch.where(kept, sizes, 0.0).square()
        self.pivots = self.in_rows(pivots[..., None, :])[..., 0, :]

    @property
    def inverse(self) -> Tensor:  # (*lead, K, K)
        """S^-1 in units in which S has a diagonal of 1, in the order of the factor."""
        return torch.cholesky_inverse(self.root)

    def unscaled(self, inverse: Tensor) -> Tensor:  # (*lead, K, K)
        """S^-1, 0 at the rows that are dropped."""
        if self.order is not None:
            back = self.order.argsort(-1)
            inverse = inverse.gather(-1, back[..., None, :].expand(inverse.shape))
            inverse = inverse.gather(-2, back[..., None].expand(inverse.shape))
        return inverse * self.scale[..., None, :] * self.scale[..., None]

    def whiten(self, r: Tensor) -> Tensor:  # (*lead, N, K) -> (*lead, N, K)
        """L^-1 r with S = L L^T: independent of unit variance when r ~ N(0, S)."""
        r = self._sorted(r * self.scale[..., None, :])
        return torch.linalg.solve_triangular(self.root, r.mT, upper=False).mT

    def solve(self, r: Tensor) -> Tensor:  # (*lead, N, K) -> (*lead, N, K)
        """S^-1 r, 0 at the rows that are dropped."""
        r = self._sorted(r * self.scale[..., None, :])
        return self._unsorted(torch.cholesky_solve(r.mT, self.root).mT)

    def solve_exact(self, r: Tensor) -> Tensor:  # (*lead, N, K) -> (*lead, N, K)
        """The same for exact rows alone, where r is 0 at the others."""
        if self.order is None:
            return self.solve(r)
        return self.back(self.whiten(r) * self._sorted(self.exact[..., None, :]))

    def back(self, white: Tensor) -> Tensor:  # (*lead, N, K) -> (*lead, N, K)
        """L^-T of it."""
        return self._unsorted(torch.linalg.solve_triangular(self.root.mT, white.mT, upper=True).mT)

    def in_rows(self, white: Tensor) -> Tensor:
        """What `whiten` gives, in the order of the rows."""
        if self.order is None:
            return white
        return white.gather(-1, self.order.argsort(-1)[..., None, :].expand(white.shape))

    def _unsorted(self, found: Tensor) -> Tensor:
        return self.in_rows(found) * self.scale[..., None, :]

    def _sorted(self, r: Tensor) -> Tensor:  # (*lead, N, K)
        """In the order of the factor."""
        if self.order is None:
            return r
        return r.gather(-1, self.order[..., None, :].expand(r.shape))


def _plain_root(scaled: Tensor) -> Any:
    """The factor of rows that can be taken as they come; None where some may follow from others."""
    if not concrete(scaled):
        return None
    root, info = torch.linalg.cholesky_ex(scaled)
    pivots = root.diagonal(dim1=-2, dim2=-1).square()
    return root if not bool(info.any()) and bool((pivots > EASY).all()) else None


def pivoted(
    matrix: Tensor, floor: Tensor, exact: Tensor, size: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Cholesky by rows in the order that is returned, with the factor and the rows to keep.

    matrix: (*lead, K, K), semidefinite with a diagonal of about 1. floor: what is left of each row
    at least. size: of a row's value; where pivots are the same, the smallest is taken first. No
    step depends on the data, so that it compiles.
    """
    size = size.clamp_min(ROUNDS)
    count = matrix.shape[-1]
    if concrete(matrix) and count >= math.prod(matrix.shape[:-2]):  # else the loop is shorter
        found = _by_lapack(matrix, floor, exact, size)
        if found is not None:
            return found
    least = DEPENDENT * exact.to(matrix.dtype)
    numbers = torch.arange(count, device=matrix.device)
    done = torch.zeros_like(exact)
    keep, columns, order = done, [], []
    for _ in range(count):
        left = torch.maximum(matrix.diagonal(dim1=-2, dim2=-1), floor)
        open_ = ~done & (left > least)
        first = open_ & exact
        open_ = torch.where(first.any(-1, keepdim=True), first, open_)
        largest = torch.where(open_, left, 0.0).amax(-1, keepdim=True)
        good = open_.any(-1, keepdim=True)
        choice = torch.where(good, open_ & (left >= (1 - EASY) * largest), ~done)
        sized = torch.where(choice, size, torch.inf)
        choice = choice & (sized <= sized.amin(-1, keepdim=True))
        place = choice.to(torch.uint8).argmax(-1, keepdim=True)  # the first of them
        here = numbers == place
        pivot = torch.where(good, left.gather(-1, place), 1.0)
        column = matrix.gather(-1, place[..., None].expand(*place.shape[:-1], count, 1))[..., 0]
        column = torch.where(here, pivot, torch.where(done, 0.0, column))
        column = torch.where(good, column / pivot.sqrt(), here.to(column.dtype))
        inner = torch.where(good, column, 0.0)
        matrix = matrix - inner[..., :, None] * inner[..., None, :]
        done, keep = done | here, keep | (here & good)
        columns.append(column)
        order.append(place)
    rows = torch.cat(order, -1)
    root = torch.stack(columns, -1)
    root = root.gather(-2, rows[..., None].expand(root.shape)).tril()
    eye = torch.eye(count, dtype=root.dtype, device=root.device)
    return rows, torch.where(keep.gather(-1, rows)[..., None], root, eye), keep


def _by_lapack(
    matrix: Tensor, floor: Tensor, exact: Tensor, size: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """The same of many rows, part by part; None if it cannot be done with gradients."""
    count = matrix.shape[-1]
    flat = [x.detach().cpu().reshape(-1, count) for x in (floor, exact, size)]
    flat = [matrix.detach().cpu().reshape(-1, count, count), *flat]
    each = [_one_by_lapack(*(x.numpy() for x in part)) for part in zip(*flat, strict=True)]
    rows, root, keep = (torch.from_numpy(np.stack(x)) for x in zip(*each, strict=True))
    rows, root, keep = (x.to(matrix.device) for x in (rows, root, keep))
    rows, root, keep = (x.reshape(*matrix.shape[:-2], *x.shape[1:]) for x in (rows, root, keep))
    if matrix.requires_grad:
        some = matrix.gather(-2, rows[..., None].expand(matrix.shape))
        some = some.gather(-1, rows[..., None, :].expand(matrix.shape))
        kept = keep.gather(-1, rows)
        some = torch.where(kept[..., None] & kept[..., None, :], some, 0.0)
        root, info = torch.linalg.cholesky_ex(some + (~kept).double().diag_embed())
        if bool(info.any()):
            return None
    return rows, root, keep


def _one_by_lapack(matrix: Any, floor: Any, exact: Any, size: Any) -> tuple[Any, Any, Any]:
    usable = matrix.diagonal() > 0
    first, rest = np.flatnonzero(exact & usable), np.flatnonzero(~exact & usable)
    first = first[np.argsort(size[first], kind="stable")]  # of two that say the same
    head, order, rank = _semidefinite(matrix[np.ix_(first, first)], DEPENDENT)
    first, dropped = np.split(first[order], [rank])
    dropped = np.concatenate([dropped, np.flatnonzero(~usable)])
    head, across = head[:rank, :rank], matrix[np.ix_(first, rest)]
    across = torch.linalg.solve_triangular(*map(torch.from_numpy, (head, across)), upper=False)
    across = across.numpy().T
    left = matrix[np.ix_(rest, rest)] - across @ across.T
    np.fill_diagonal(left, np.maximum(left.diagonal(), floor[rest]))
    tail, order, own = _semidefinite(left, -1.0)
    rest, across = rest[order], across[order]
    left = left.diagonal()[order] - np.square(tail[:, :own]).sum(-1)
    tail[own:, own:] = np.diag(np.sqrt(np.maximum(left, floor[rest]))[own:])  # noise is left
    root, both = np.eye(len(matrix)), rank + len(rest)
    root[:rank, :rank], root[rank:both, rank:both] = head, tail
    root[rank:both, :rank] = across
    keep = np.ones(len(matrix), bool)
    keep[dropped] = False
    return np.concatenate([first, rest, dropped]), root, keep


def _semidefinite(matrix: Any, least: float) -> tuple[Any, Any, int]:
    """L, the order of the rows in it, and how many have pivots above `least`."""
    if not len(matrix) or matrix.diagonal().max() <= least:  # LAPACK takes any first pivot
        return np.eye(len(matrix)), np.arange(len(matrix)), 0
    from scipy.linalg import lapack  # a tenth of a second, so not for everybody

    root, order, rank, _ = lapack.dpstrf(matrix, tol=least, lower=1)
    return np.tril(root), order - 1, rank


def multipliers(
    matrix: Tensor, factor: Factor, noise: Tensor, r: Tensor, solve: Callable[[Tensor], Tensor]
) -> Tensor:  # (*lead, N, K)
    """lambda of every member of an ensemble, from their residuals r, (*lead, N, K).

    A member is moved by its own residual, u - Sigma G^T lambda. The mean of the members has
    lambda = S^-1 r, the deviations from it lambda = V^-1 (V + W)^-1 r with V V = S and
    W W = sigma^2, so that without shrinkage the members have the mean and the covariance of the
    posterior without any random draw. Where all laws are exact W is 0 and both are the same.

    matrix: S, (*lead, K, K). noise: sigma^2, (*lead, K). solve: S^-1 of residuals.
    """
    if not bool((noise > 0).any()):
        return solve(r)
    mean = r.mean(-2, keepdim=True)
    return solve(mean) + _reduced(matrix, factor, noise, r - mean)


def _reduced(matrix: Tensor, factor: Factor, noise: Tensor, r: Tensor) -> Tensor:
    """V^-1 (V + W)^-1 r in the units in which S has a diagonal of 1, 0 at rows that are dropped."""
    scale = factor.scale
    scaled = matrix * scale[..., None, :] * scale[..., :, None]
    values, vectors = torch.linalg.eigh(scaled + (~factor.keep).double().diag_embed())
    sizes = values.clamp_min(DEPENDENT).sqrt()[..., None, :]
    both = (vectors * sizes) @ vectors.mT + (root_of(noise) * scale).diag_embed()
    root = torch.linalg.cholesky(both)
    found = torch.cholesky_solve((r * scale[..., None, :]).mT, root).mT
    return ((found @ vectors) / sizes) @ vectors.mT * scale[..., None, :]
