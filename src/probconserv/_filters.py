"""The variance along a chain of times, from what the past and what the future say.

Rows of slot k read the points x_k and, where they reach to the next time, x_{k+1}. Given x_k, past
and future are independent, and each adds information J to 1 / D: the variance that is left is the
diagonal of (1/D + J_past + J_future)^-1. Only positive numbers are added, so that it is right
relative to itself, however little is left.
"""

import torch
from torch import Tensor

from ._blocks import root_of
from ._checks import concrete

FIRM = 1e-10  # least pivot of a scaled matrix that is inverted


def smoothed(
    noise: Tensor,  # (*lead, slots, m)
    own: Tensor,  # (*lead, slots + 1, m, P): coefficients of x_k in slot k
    old: Tensor,  # the same: of x_k in slot k - 1
    variance: Tensor,  # (*lead, slots + 1, P)
    alone: Tensor,  # (*lead, slots, m, Q): coefficients of points that no other slot reads
    free: Tensor,  # (*lead, slots, Q): their variance
) -> tuple[Tensor, Tensor] | None:
    """The variance left at both kinds of points; None where a part of the rows is singular."""
    slots = noise.shape[-2]
    missing = (noise == 0) & ~(own[..., :slots, :, :].bool().any(-1) | alone.bool().any(-1))
    base = (noise + missing.double()).diag_embed()
    whole = base + alone * free[..., None, :] @ alone.mT
    stds = root_of(variance)
    past = [torch.zeros_like(stds[..., 0, :, None] * stds[..., 0, None, :])]
    before, after = [], []
    for k in range(slots):
        before.append(_between(own[..., k, :, :], stds[..., k, :], past[k]))
        seen = _information(whole[..., k, :, :] + before[k], old[..., k + 1, :, :])
        if seen is None:
            return None
        past.append(seen)
    future = [torch.zeros_like(past[0])]
    for k in reversed(range(slots)):
        after.append(_between(old[..., k + 1, :, :], stds[..., k + 1, :], future[-1]))
        seen = _information(whole[..., k, :, :] + after[-1], own[..., k, :, :])
        if seen is None:
            return None
        future.append(seen)
    both = torch.stack(past, -3) + torch.stack(future[::-1], -3)
    carried = _root(stds, both).square().sum(-2)
    rest = base + torch.stack(before, -3) + torch.stack(after[::-1], -3)
    seen = _information(rest, alone)
    if seen is None:
        return None
    return carried, _root(root_of(free), seen).square().sum(-2)


def _root(std: Tensor, information: Tensor) -> Tensor:
    """A with A^T A = (1/D + J)^-1, where D = std^2."""
    inner = std[..., :, None] * information * std[..., None, :]
    eye = torch.eye(inner.shape[-1], dtype=inner.dtype, device=inner.device)
    root = torch.linalg.cholesky(inner + eye)
    return torch.linalg.solve_triangular(root, std.diag_embed(), upper=False)


def _between(coefficients: Tensor, std: Tensor, information: Tensor) -> Tensor:
    """What points with a variance and information about them add to S."""
    moved = _root(std, information) @ coefficients.mT
    return moved.mT @ moved


def _information(matrix: Tensor, coefficients: Tensor) -> Tensor | None:
    """g^T S^-1 g; None where S is all but singular."""
    if not concrete(matrix):
        return None
    scale = matrix.diagonal(dim1=-2, dim2=-1).rsqrt()
    root, wrong = torch.linalg.cholesky_ex(matrix * scale[..., None] * scale[..., None, :])
    pivots = root.diagonal(dim1=-2, dim2=-1).square()
    if bool(wrong.any()) or not bool((pivots > FIRM).all()):
        return None
    white = torch.linalg.solve_triangular(root, scale[..., None] * coefficients, upper=False)
    return white.mT @ white
