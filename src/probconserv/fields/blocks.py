"""Stacks of fields as batches of matrices.

An array is (*more, *lead, *event), a stack of fields of `shape` = (*lead, *event). Its blocks are
(*lead, N, E): one matrix per independent part, ready for batched products.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..support.slices import may_overwrite


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
