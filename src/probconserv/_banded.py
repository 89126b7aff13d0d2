"""Symmetric matrices of five diagonals: solves, determinant, and the same diagonals of the inverse.

Rows come first in every array, (K, *lead). `Loop` is S = L D L^T, one row after the other for all
matrices of a batch at once: its work is linear in the number of rows. `Small` is for few small
matrices, as dense ones, in few steps.
"""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn.functional import pad

from ._blocks import root_of
from ._checks import concrete
from ._tree import Node

SMALL = 400_000  # entries of dense matrices up to which no loop along rows is worth its steps


class Pentadiagonal(Node, ABC):
    """S from its diagonal and its first two off-diagonals."""

    @property
    @abstractmethod
    def pivots(self) -> Tensor:  # (K, *lead)
        """The variance of each row given those before it, 0 for rows that are dropped."""

    @property
    def log_det(self) -> Tensor:
        return torch.where(self.pivots == 0, 1.0, self.pivots).log().sum(0)

    def square(self, r: Tensor) -> Tensor:
        """r^T S^-1 r."""
        return self.whiten(r).square().sum(0)

    @abstractmethod
    def whiten(self, r: Tensor) -> Tensor:  # (K, *more, *lead)
        """W r with W^T W = S^-1: independent of unit variance when r ~ N(0, S)."""

    @abstractmethod
    def solve(self, r: Tensor) -> Tensor:  # (K, *more, *lead)
        """S^-1 r."""

    @abstractmethod
    def explained(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """The diagonal of G^T S^-1 G, (M, *lead), for rows a, b, c at points k, k + 1, k + 2."""


def factored(main: Tensor, first: Tensor, second: Tensor, floor: Tensor) -> Pentadiagonal:
    """first[j] is S_{j, j+1}, second[j] is S_{j, j+2}. A pivot not above `floor` counts as 0."""
    if concrete(main, first) and main.numel() * len(main) <= SMALL:
        small = Small(main, first, second)
        if small.works and bool((small.pivots > floor).all()):
            return small
    return Loop(main, first, second, floor)


class Small(Pentadiagonal):
    """As dense matrices, (*lead, K, K); no row is dropped."""

    def __init__(self, main: Tensor, first: Tensor, second: Tensor) -> None:
        matrix = main.movedim(0, -1).diag_embed()
        for k, x in ((1, first), (2, second)):
            matrix.diagonal(k, -2, -1).copy_(x.movedim(0, -1))
            matrix.diagonal(-k, -2, -1).copy_(x.movedim(0, -1))
        self.root, failed = torch.linalg.cholesky_ex(matrix)
        self.works = not bool(failed.any())

    @property
    def pivots(self) -> Tensor:
        return self.root.diagonal(dim1=-2, dim2=-1).square().movedim(-1, 0)

    def whiten(self, r: Tensor) -> Tensor:
        found = torch.linalg.solve_triangular(self.root, self._columns(r), upper=False)
        return found.movedim((-2, -1), (0, 1)).reshape(r.shape)

    def solve(self, r: Tensor) -> Tensor:
        found = torch.cholesky_solve(self._columns(r), self.root)
        return found.movedim((-2, -1), (0, 1)).reshape(r.shape)

    def _columns(self, r: Tensor) -> Tensor:  # (*lead, K, N)
        lead = self.root.shape[:-2]
        more = math.prod(r.shape[1 : r.ndim - len(lead)])
        return r.reshape(len(r), more, *lead).movedim((0, 1), (-2, -1))

    def explained(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        rows = self.root.new_zeros(len(a), len(a) + 2)  # G
        for k, x in enumerate((a, b, c)):
            rows.diagonal(k).copy_(x)
        white = torch.linalg.solve_triangular(self.root, rows, upper=False)
        return white.square().sum(-2).movedim(-1, 0)


class Loop(Pentadiagonal):
    """Row after row. `near` and `far` are -L_{k, k-1} and -L_{k, k-2}."""

    stacked = ("near", "far", "inverses")

    def __init__(self, main: Tensor, first: Tensor, second: Tensor, floor: Tensor) -> None:
        zero = torch.zeros_like(main[0])
        never, minus = zero + math.inf, zero - 1
        firsts, seconds = (zero, *first.unbind()), (zero, zero, *second.unbind())
        inverses, near, far = [zero, zero], [], []  # the inverses with a minus
        between = zero  # S_{k, k-1} without what row k - 2 explains
        rows = zip(main.unbind(), floor.expand(main.shape).unbind(), strict=True)
        for k, (pivot, least) in enumerate(rows):
            far.append(seconds[k] * inverses[k])
            between = torch.addcmul(firsts[k], far[k], between)
            near.append(between * inverses[k + 1])
            pivot = torch.addcmul(pivot, near[k], between)
            pivot = torch.addcmul(pivot, far[k], seconds[k])
            inverses.append(minus / torch.where(pivot > least, pivot, never))
        self.near, self.far = torch.stack(near), torch.stack(far)
        self.inverses = -torch.stack(inverses[2:])

    @property
    def pivots(self) -> Tensor:
        keep = self.inverses > 0
        return torch.where(keep, 1 / torch.where(keep, self.inverses, 1.0), 0.0)

    def whiten(self, r: Tensor) -> Tensor:
        y = torch.stack(self._forward(r))
        return y * wide(root_of(self.inverses), y.ndim)

    def square(self, r: Tensor) -> Tensor:
        y = torch.stack(self._forward(r))
        return (y.square() * wide(self.inverses, y.ndim)).sum(0)

    def solve(self, r: Tensor) -> Tensor:
        z, near, far = self._forward(r), self.near.unbind(), self.far.unbind()
        for k, inverse in reversed([*enumerate(self.inverses.unbind())]):
            z[k] = z[k] * inverse
            if k + 1 < len(z):
                z[k] = torch.addcmul(z[k], near[k + 1], z[k + 1])
            if k + 2 < len(z):
                z[k] = torch.addcmul(z[k], far[k + 2], z[k + 2])
        return torch.stack(z)

    def _forward(self, r: Tensor) -> list[Tensor]:
        y, near, far = [*r.unbind()], self.near.unbind(), self.far.unbind()
        for k in range(1, len(y)):
            y[k] = torch.addcmul(y[k], near[k], y[k - 1])
            if k > 1:
                y[k] = torch.addcmul(y[k], far[k], y[k - 2])
        return y

    def explained(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        z0, z1, z2 = self._inverse()
        a, b, c = (x.reshape(-1, *[1] * (z0.ndim - 1)) for x in (a, b, c))
        total = spread(z0, a.square(), b.square(), c.square())
        total[1:-2].addcmul_(2 * b[:-1] * a[1:], z1)
        total[2:-1].addcmul_(2 * c[:-1] * b[1:], z1)
        total[2:-2].addcmul_(2 * c[:-2] * a[2:], z2)
        return total

    def _inverse(self) -> tuple[Tensor, Tensor, Tensor]:
        """S^-1 at the places of its five diagonals."""
        count, zero = len(self.near), torch.zeros_like(self.near[0])
        near, far = (*self.near.unbind(), zero), (*self.far.unbind(), zero, zero)
        z0, z1, z2 = [*self.inverses.unbind(), zero, zero], [zero] * (count + 1), [zero] * count
        for k in reversed(range(count)):
            e1, e2 = near[k + 1], far[k + 2]
            z2[k] = torch.addcmul(e1 * z1[k + 1], e2, z0[k + 2])
            z1[k] = torch.addcmul(e1 * z0[k + 1], e2, z1[k + 1])
            z0[k] = torch.addcmul(torch.addcmul(z0[k], e1, z1[k]), e2, z2[k])
        main, first, second = (torch.stack(z) for z in (z0[:count], z1[:count], z2))
        return main, first[: count - 1], second[: max(count - 2, 0)]


def spread(v: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Row k goes to points k, k + 1 and k + 2, by a, b and c."""
    total = pad(a * v, [0, 0] * (v.ndim - 1) + [0, 2])
    total[1:-1].addcmul_(b, v)
    total[2:].addcmul_(c, v)
    return total


def wide(x: Tensor, ndim: int) -> Tensor:
    """(K, *lead) with axes of size 1 after the first, to go with (K, *more, *lead)."""
    return x[(slice(None), *[None] * (ndim - x.ndim))]
