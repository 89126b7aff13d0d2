"""Stacks of fields as batches of matrices.

An array is (*more, *lead, *event), a stack of fields of `shape` = (*lead, *event). Its blocks are
(*lead, N, E): one matrix per independent part, ready for batched products.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ._slices import plain


def blocks(x: Tensor, shape: Sequence[int], event_dims: int) -> Tensor:
    lead, event = shape[: len(shape) - event_dims], shape[len(shape) - event_dims :]
    more = math.prod(x.shape[: x.ndim - len(shape)])  # not -1, which an empty batch leaves open
    return x.reshape(more, *lead, math.prod(event)).movedim(0, -2)


def unblocks(rows: Tensor, shape: Sequence[int]) -> Tensor:
    """The inverse of `blocks`; shape includes the axes (*more)."""
    return rows.movedim(-2, 0).reshape(shape)


def combine(weights: Tensor, basis: Tensor, shape: Sequence[int]) -> Tensor:
    """Sums of basis blocks (*lead, K, E) with weights (*lead, N, K), as an array of `shape`."""
    return unblocks(weights @ basis, shape)


def eye_like(rows: Tensor) -> Tensor:  # (..., K, E) -> (K, K)
    return torch.eye(rows.shape[-2], dtype=rows.dtype, device=rows.device)


def qr_of_1_over(rows: Tensor) -> tuple[Tensor, Tensor]:
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


def root_of(x: Tensor) -> Tensor:
    """The square root, with gradient 0 instead of infinity at 0."""
    if plain(x):
        return x.clamp_min(0).sqrt_()
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1.0).sqrt(), 0.0)
