"""Stacks of fields as batches of matrices; what is seen of the numbers that move a field.

An array is (*more, *lead, *event), a stack of fields of `shape` = (*lead, *event). Its blocks are
(*lead, N, E): one matrix per independent part, ready for batched products.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..support.slices import may_overwrite
from ..support.tree import Node


def blocks(x: Tensor, shape: Sequence[int], event_dims: int) -> Tensor:
    lead, event = shape[: len(shape) - event_dims], shape[len(shape) - event_dims :]
    more = math.prod(x.shape[: x.ndim - len(shape)])  # not -1, which an empty batch leaves open
    return x.reshape(more, *lead, math.prod(event)).movedim(0, -2)


def unblocks(rows: Tensor, shape: Sequence[int]) -> Tensor:
    """The inverse of `blocks`; shape includes the axes (*more)."""
    return rows.movedim(-2, 0).reshape(shape)


def same_once(x: Tensor, stop: int, start: int = 0) -> Tensor:
    """With size 1 along those of some axes along which it repeats itself in memory."""
    for axis in range(start, stop):
        if x.stride(axis) == 0 and x.shape[axis] > 1:
            x = x.narrow(axis, 0, 1)
    return x


def eye_like(rows: Tensor) -> Tensor:  # (..., K, E) -> (K, K)
    return torch.eye(rows.shape[-2], dtype=rows.dtype, device=rows.device)


def root_of(x: Tensor) -> Tensor:
    """The square root, with gradient 0 instead of infinity at 0."""
    if may_overwrite(x):
        return x.clamp_min(0).sqrt_()
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1.0).sqrt(), 0.0)


class LatentPosterior(Node):
    """z ~ N(0, I) seen with unit noise, r = W^T z + e.

    With [I; W] = Q R (or [I; W^T], the smaller), I + W^T W is R^T R without squaring W.
    """

    def __init__(self, seen: Tensor) -> None:
        """seen: W, (*lead, R, K)."""
        rank, count = seen.shape[-2:]
        self.seen, self.by_rows = seen, count <= rank
        self.root, self.basis = _on_identity(seen if self.by_rows else seen.mT)

    def mean(self, r: Tensor) -> Tensor:  # (*lead, N, K) to (*lead, N, R)
        """The mean of z given r, W (I + W^T W)^-1 r."""
        solve = torch.linalg.solve_triangular
        if self.by_rows:
            return (self.basis @ solve(self.root, r.mT, upper=False)).mT
        return solve(self.root.mT, (r @ self.basis).mT, upper=True).mT

    def square(self, r: Tensor) -> Tensor:  # (*lead, N, K) to (*lead)
        """r^T (I + W^T W)^-1 r, of all N together."""
        z = self.mean(r)
        return (r - z @ self.seen).square().sum((-1, -2)) + z.square().sum((-1, -2))

    @property
    def log_det(self) -> Tensor:  # (*lead)
        """log det(I + W^T W)."""
        return 2 * self.root.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def left(self, directions: Tensor) -> Tensor:  # (*lead, R, E)
        """V^T F, where V V^T is the covariance of z given r."""
        solve = torch.linalg.solve_triangular
        if self.by_rows:  # the square root of a Kalman update: V = I - W R^-1 (R^T + I)^-1 W^T
            upper = (self.root + eye_like(self.root)).mT
            return directions - self.seen @ solve(upper, self.basis.mT @ directions, upper=True)
        # V = R^-1, as a matrix first: one product with the directions
        return solve(self.root, eye_like(self.root), upper=False) @ directions


def _on_identity(rows: Tensor) -> tuple[Tensor, Tensor]:
    """L with L L^T = I + A^T A, and A L^-T, for A (..., K, E): QR of [A; I] does not square A.

    The largest rows come first, so that their rounding does not reach the small ones.
    """
    eye = eye_like(rows.mT).expand(*rows.shape[:-2], -1, -1)
    order = rows.detach().abs().sum(-1).argsort(dim=-1, descending=True)[..., None]
    falling = rows.gather(-2, order.expand(rows.shape))
    q, upper = torch.linalg.qr(torch.cat([falling, eye], -2))
    sign = upper.diagonal(dim1=-2, dim2=-1).sign()
    basis = q[..., : rows.shape[-2], :].gather(-2, order.argsort(dim=-2).expand(rows.shape))
    return (upper * sign[..., :, None]).mT, basis * sign[..., None, :]
