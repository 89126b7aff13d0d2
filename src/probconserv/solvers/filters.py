"""The variance along a chain of times, from what the past and what the future say.

Rows of slot k read the points x_k and, where they reach to the next time, x_{k+1}. Given x_k, past
and future are independent. What the past leaves of x_k is a covariance P; rows that read x_k alone
take from it first, then those that link it to x_{k+1}, with all that lies beyond as their noise M.
Each step adds two squares,

    (I - K g) P (I - K g)^T + K M K^T,    K = P g^T (g P g^T + M)^-1,

so that the variance is right relative to itself, however little is left.
"""

import torch
from torch import Tensor

from ..support.tolerances import TINY
from .factor import Factor


class Slot:
    """Some rows of one slot: how they read points, and their noise."""

    def __init__(
        self, some: Tensor, noise: Tensor, before: Tensor, own: Tensor, old: Tensor, alone: Tensor
    ) -> None:
        """some: which rows, by number."""
        self.some = some
        self.noise, self.before = noise[..., some], before[..., some]
        self.own, self.old, self.alone = own[..., some, :], old[..., some, :], alone[..., some, :]

    def of(self, matrix: Tensor) -> Tensor:
        """Of a matrix between all rows of the slot the part of these."""
        return matrix[..., self.some, :][..., self.some]

    def taken(self, cov: Tensor, g: Tensor, other: Tensor | float) -> tuple[Tensor, Tensor]:
        """I - K g, and K M K^T, for points of covariance `cov` read with g beside noise M."""
        cross, noise = cov @ g.mT, other + self.noise.diag_embed()
        gain = Factor(g @ cross + noise, self.before, self.noise).solve(cross)
        eye = torch.eye(g.shape[-1], dtype=g.dtype, device=g.device)
        return eye - gain @ g, gain @ noise @ gain.mT

    def left(self, cov: Tensor, g: Tensor, other: Tensor | float) -> Tensor:
        if not len(self.some):
            return cov
        a, b = self.taken(cov, g, other)
        return a @ cov @ a.mT + b

    def variance(self, cov: Tensor, g: Tensor, other: Tensor) -> Tensor:
        if not len(self.some):
            return cov.diagonal(dim1=-2, dim2=-1)
        a, b = self.taken(cov, g, other)
        return ((a @ cov) * a).sum(-1) + b.diagonal(dim1=-2, dim2=-1)


def smoothed(
    noise: Tensor,  # (*lead, slots, m)
    before: Tensor,  # the same: the variance of each row without laws
    own: Tensor,  # (*lead, slots + 1, m, P): coefficients of x_k in slot k
    old: Tensor,  # the same: of x_k in slot k - 1
    variance: Tensor,  # (*lead, slots + 1, P): of x_k
    alone: Tensor,  # (*lead, slots, m, Q): coefficients of points that no other slot reads
    free: Tensor,  # (*lead, slots, Q): their variance
) -> tuple[Tensor, Tensor]:
    """The variance that is left of x_k, and of the points that one slot reads."""
    count, cov = noise.shape[-2], variance.diag_embed()
    linked = _anywhere(old[..., 1:, :, :].bool().any(-1) | alone.bool().any(-1))  # (slots, m)
    there = _anywhere(before > TINY)
    slots = []
    for k in range(count):
        read = own[..., k, :, :], old[..., k + 1, :, :], alone[..., k, :, :]
        rows = noise[..., k, :], before[..., k, :], *read
        kinds = there[k] & ~linked[k], there[k] & linked[k]
        slots.append([Slot(some.nonzero()[:, 0], *rows) for some in kinds])
    aside = alone * free[..., None, :] @ alone.mT
    past, seen = cov[..., 0, :, :], []  # of x_k, before and after the rows that read it alone
    for k, (single, link) in enumerate(slots):
        seen.append(single.left(past, single.own, 0.0))
        other = link.of(aside[..., k, :, :]) + link.own @ seen[k] @ link.own.mT
        past = link.left(cov[..., k + 1, :, :], link.old, other)
    carried, apart = [past.diagonal(dim1=-2, dim2=-1)], []
    future = cov[..., count, :, :]  # of x_{k+1} given the slots after k
    for k, (single, link) in reversed(list(enumerate(slots))):
        ahead = link.old @ future @ link.old.mT
        other = link.of(aside[..., k, :, :]) + ahead
        carried.append(link.variance(seen[k], link.own, other))
        beside = link.own @ seen[k] @ link.own.mT + ahead
        apart.append(link.variance(free[..., k, :].diag_embed(), link.alone, beside))
        future = single.left(cov[..., k, :, :], single.own, 0.0)
        future = link.left(future, link.own, other)
    return torch.stack(carried[::-1], -2), torch.stack(apart[::-1], -2)


def _anywhere(x: Tensor) -> Tensor:  # (*lead, slots, m) -> (slots, m)
    return x.flatten(0, -3).any(0) if x.ndim > 2 else x
