"""Symmetric matrices of five diagonals: solves, determinant, and the same diagonals of the inverse.

S = L D L^T, one row after the other, for all matrices of a batch at once: the rows come first, so
that every step works on whole arrays. The work is linear in the number of rows.
"""

import torch
from torch import Tensor

from ._tree import Node


class Pentadiagonal(Node):
    """S from its diagonal and its first two off-diagonals, each (*lead, K).

    first[..., j] is S_{j, j+1}, second[..., j] is S_{j, j+2}. A pivot not above `floor` (*lead, K)
    counts as zero: its row is `dropped`.
    """

    stacked = ("near", "far", "inverses")

    def __init__(self, main: Tensor, first: Tensor, second: Tensor, floor: Tensor) -> None:
        main, first, second, floor = (t.movedim(-1, 0) for t in (main, first, second, floor))
        zero = torch.zeros_like(main[0])
        pivots: list[Tensor] = []
        inverses: list[Tensor] = []
        near: list[Tensor] = []
        far: list[Tensor] = []
        for k in range(len(main)):
            e2 = second[k - 2] * inverses[k - 2] if k > 1 else zero
            between = first[k - 1] if k > 0 else zero
            if k > 1:
                between = torch.addcmul(between, e2 * pivots[k - 2], near[k - 1], value=-1)
            e1 = between * inverses[k - 1] if k > 0 else zero
            pivot = main[k]
            if k > 0:
                pivot = torch.addcmul(pivot, e1, between, value=-1)
            if k > 1:
                pivot = torch.addcmul(pivot, e2, second[k - 2], value=-1)
            keep = pivot > floor[k]
            pivots.append(torch.where(keep, pivot, 0.0))
            inverses.append(torch.where(keep, 1 / torch.where(keep, pivot, 1.0), 0.0))
            near.append(e1)
            far.append(e2)
        self.near, self.far = torch.stack(near), torch.stack(far)  # L_{k, k-1}, L_{k, k-2}
        self.inverses, self.pivots = torch.stack(inverses), torch.stack(pivots, -1)
        self.dropped = (self.inverses == 0).movedim(0, -1)
        self.log_det = -torch.where(self.inverses == 0, 1.0, self.inverses).log().sum(0)

    def whiten(self, r: Tensor) -> Tensor:  # (*more, *lead, K)
        """W r with W^T W = S^-1: independent of unit variance when r ~ N(0, S)."""
        half = torch.stack(self._forward(r), -1)
        return half * self.inverses.sqrt().movedim(0, -1)

    def solve(self, r: Tensor) -> Tensor:  # (*more, *lead, K)
        """S^-1 r."""
        y, count = self._forward(r), len(self.near)
        near, far, inverses = self.near.unbind(), self.far.unbind(), self.inverses.unbind()
        z = [*y]
        for k in reversed(range(count)):
            z[k] = y[k] * inverses[k]
            if k + 1 < count:
                z[k] = torch.addcmul(z[k], near[k + 1], z[k + 1], value=-1)
            if k + 2 < count:
                z[k] = torch.addcmul(z[k], far[k + 2], z[k + 2], value=-1)
        return torch.stack(z, -1)

    def _forward(self, r: Tensor) -> list[Tensor]:
        y = list(r.movedim(-1, 0).contiguous().unbind(0))
        near, far = self.near.unbind(), self.far.unbind()
        for k in range(1, len(y)):
            y[k] = torch.addcmul(y[k], near[k], y[k - 1], value=-1)
            if k > 1:
                y[k] = torch.addcmul(y[k], far[k], y[k - 2], value=-1)
        return y

    def inverse_diagonals(self) -> tuple[Tensor, Tensor, Tensor]:
        """S^-1 at the places of main, first and second."""
        count = len(self.near)
        zero = torch.zeros_like(self.inverses[0])
        z0, z1, z2 = [zero] * (count + 2), [zero] * (count + 1), [zero] * count
        near, far = [*self.near.unbind(), zero, zero], [*self.far.unbind(), zero, zero]
        for k in reversed(range(count)):
            e1, e2 = near[k + 1], far[k + 2]
            z2[k] = -torch.addcmul(e1 * z1[k + 1], e2, z0[k + 2])
            z1[k] = -torch.addcmul(e1 * z0[k + 1], e2, z1[k + 1])
            z0[k] = torch.addcmul(
                torch.addcmul(self.inverses[k], e1, z1[k], value=-1), e2, z2[k], value=-1
            )

        def together(z: list[Tensor]) -> Tensor:
            return torch.stack(z, -1) if z else zero[..., None][..., :0]

        return together(z0[:count]), together(z1[: count - 1]), together(z2[: max(count - 2, 0)])
