"""Symmetric matrices of five diagonals: solves, determinant, and the same diagonals of the inverse.

Cyclic reduction: rows are taken in pairs, so that the matrix is block tridiagonal with 2 x 2
blocks; every other pair is eliminated at once, which leaves half as many, and so on. The work is
linear in the number of rows, the number of steps logarithmic.
"""

from collections.abc import Callable

import torch
from torch import Tensor


class Pentadiagonal:
    """S from its diagonal and its first two off-diagonals, each (*lead, K).

    first[..., j] is S_{j, j+1}, second[..., j] is S_{j, j+2}. A pivot not above `floor` (*lead, K)
    counts as zero: its row is `dropped`.
    """

    def __init__(self, main: Tensor, first: Tensor, second: Tensor, floor: Tensor) -> None:
        self.shape = main.shape
        (a, c), (b, d), (e, f) = self._pairs(main, 1.0), self._pairs(first), self._pairs(second)
        zero = torch.zeros_like(e)
        near = torch.stack([torch.stack([a, b]), torch.stack([b, c])])
        far = torch.stack([torch.stack([e, zero]), torch.stack([d, f])])
        self.top = _Level(near, far, self._pairs(floor))
        self.dropped = self._rows(self.top.dropped())
        self.log_det = self.top.log_det()

    def whiten(self, r: Tensor) -> Tensor:  # (*more, *lead, K)
        """W r with W^T W = S^-1: independent of unit variance when r ~ N(0, S)."""
        return self._each(self.top.whiten, r)

    def solve(self, r: Tensor) -> Tensor:  # (*more, *lead, K)
        """S^-1 r."""
        return self._each(self.top.solve, r)

    def inverse_diagonals(self) -> tuple[Tensor, Tensor, Tensor]:
        """S^-1 at the places of main, first and second."""
        near, far = self.top.inverse_blocks()
        main = torch.stack([near[0, 0], near[1, 1]])
        first, second = torch.stack([near[0, 1], far[1, 0]]), torch.stack([far[0, 0], far[1, 1]])
        rows = self.shape[-1]
        z0, z1, z2 = (self._rows(z) for z in (main, first, second))
        return z0, z1[..., : rows - 1], z2[..., : max(rows - 2, 0)]

    def _each(self, work: Callable[[Tensor], Tensor], r: Tensor) -> Tensor:
        stacked = r.expand(torch.broadcast_shapes(r.shape, self.shape)).reshape(-1, *self.shape)
        return self._rows(work(self._pairs(stacked.movedim(0, -2)))).movedim(-2, 0).reshape(r.shape)

    def _pairs(self, x: Tensor, fill: float = 0.0) -> Tensor:
        """Rows on the last axis, (..., K), as pairs (2, P, ...) with P a power of 2."""
        count = 2 << max((self.shape[-1] - 1).bit_length() - 1, 0)
        x = x.movedim(-1, 0)
        x = torch.cat([x, x.new_full((count - x.shape[0], *x.shape[1:]), fill)])
        return x.reshape(count // 2, 2, *x.shape[1:]).movedim(1, 0)

    def _rows(self, x: Tensor) -> Tensor:
        return x.movedim(0, 1).flatten(0, 1)[: self.shape[-1]].movedim(0, -1)


class _Level:
    """Pairs of rows, P of them: `near` S_{i, i} and `far` S_{i, i+1}, both (2, 2, P, *lead).

    The odd pairs are eliminated here, the even ones at the next level; the last has one pair.
    """

    def __init__(self, near: Tensor, far: Tensor, floor: Tensor) -> None:
        self.next: _Level | None = None
        if near.shape[2] == 1:
            self.pivots = _Pivots(near, floor)
            return
        self.pivots = _Pivots(near[:, :, 1::2], floor[:, 1::2])
        left, right = far[:, :, 0::2].transpose(0, 1), far[:, :, 1::2]  # to the even neighbours
        self.left, self.right = _mm(self.pivots.inverse, left), _mm(self.pivots.inverse, right)
        kept = near[:, :, 0::2] - _mm(left.transpose(0, 1), self.left)
        kept = kept - _from_before(_mm(right.transpose(0, 1), self.right), 2)
        self.next = _Level(kept, -_mm(left.transpose(0, 1), self.right), floor[:, 0::2])

    def solve(self, r: Tensor) -> Tensor:  # (2, P, *lead, N)
        if self.next is None:
            return _mv(self.pivots.inverse, r)
        even = self.next.solve(self._reduce(r))
        odd = _mv(self.pivots.inverse, r[:, 1::2]) - _mv(self.left, even)
        return _interleave(even, odd - _mv(self.right, _from_after(even, 1)), 1)

    def whiten(self, r: Tensor) -> Tensor:  # (2, P, *lead, N)
        if self.next is None:
            return _mv(self.pivots.root, r)
        odd = _mv(self.pivots.root, r[:, 1::2])
        return _interleave(self.next.whiten(self._reduce(r)), odd, 1)

    def _reduce(self, r: Tensor) -> Tensor:
        odd = r[:, 1::2]
        kept = r[:, 0::2] - _mv(self.left.transpose(0, 1), odd)
        return kept - _from_before(_mv(self.right.transpose(0, 1), odd), 1)

    def inverse_blocks(self) -> tuple[Tensor, Tensor]:
        """The blocks of S^-1 at the places of near and far."""
        if self.next is None:
            return self.pivots.inverse, torch.zeros_like(self.pivots.inverse)
        even, across = self.next.inverse_blocks()
        after = _from_after(even, 2)
        left = -_mm(self.left, even) - _mm(self.right, across.transpose(0, 1))
        right = -_mm(self.left, across) - _mm(self.right, after)
        odd = self.pivots.inverse - _mm(left, self.left.transpose(0, 1))
        odd = odd - _mm(right, self.right.transpose(0, 1))
        return _interleave(even, odd, 2), _interleave(left.transpose(0, 1), right, 2)

    def dropped(self) -> Tensor:
        if self.next is None:
            return self.pivots.dropped
        return _interleave(self.next.dropped(), self.pivots.dropped, 1)

    def log_det(self) -> Tensor:
        own = self.pivots.log_det
        return own if self.next is None else own + self.next.log_det()


class _Pivots:
    """2 x 2 blocks (2, 2, P, *lead) inverted by L D L^T, each pivot not above its floor dropped."""

    def __init__(self, block: Tensor, floor: Tensor) -> None:
        a, b, c = block[0, 0], block[0, 1], block[1, 1]
        keep_a = a > floor[0]
        first = torch.where(keep_a, 1 / torch.where(keep_a, a, 1.0), 0.0)
        slope = -b * first
        rest = c + slope * b
        keep_c = rest > floor[1]
        second = torch.where(keep_c, 1 / torch.where(keep_c, rest, 1.0), 0.0)
        both, cross = torch.stack([first, second]), slope * second
        self.dropped = torch.stack([~keep_a, ~keep_c])
        self.log_det = -torch.where(self.dropped, 1.0, both).log().sum((0, 1))
        corner = first + slope * cross
        self.inverse = torch.stack([torch.stack([corner, cross]), torch.stack([cross, second])])
        self._parts = both, slope

    @property
    def root(self) -> Tensor:
        """W with W^T W = inverse."""
        (first, second), slope = self._parts[0].sqrt(), self._parts[1]
        zero = torch.zeros_like(first)
        return torch.stack([torch.stack([first, zero]), torch.stack([slope * second, second])])


def _mm(a: Tensor, b: Tensor) -> Tensor:  # (2, 2, ...), (2, 2, ...) -> (2, 2, ...)
    return torch.addcmul(a[:, :1] * b[:1], a[:, 1:], b[1:])


def _mv(a: Tensor, r: Tensor) -> Tensor:  # (2, 2, *lead), (2, *lead, N) -> (2, *lead, N)
    a = a[..., None]
    return torch.addcmul(a[:, 0] * r[0], a[:, 1], r[1])


def _from_before(x: Tensor, axis: int) -> Tensor:
    """Each entry from the place before it, 0 at the first."""
    zero = torch.zeros_like(x.narrow(axis, 0, 1))
    return torch.cat([zero, x.narrow(axis, 0, x.shape[axis] - 1)], axis)


def _from_after(x: Tensor, axis: int) -> Tensor:
    """Each entry from the place after it, 0 at the last."""
    zero = torch.zeros_like(x.narrow(axis, 0, 1))
    return torch.cat([x.narrow(axis, 1, x.shape[axis] - 1), zero], axis)


def _interleave(even: Tensor, odd: Tensor, axis: int) -> Tensor:
    return torch.stack([even, odd], axis + 1).flatten(axis, axis + 1)
