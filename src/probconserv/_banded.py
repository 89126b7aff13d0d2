"""Symmetric matrices of five diagonals: L D L^T, solves, and the same diagonals of the inverse.

One Python loop along the rows, all leading axes at once. Lists hold one tensor per row; the zero
tensors around them stand for what lies outside the matrix.
"""

import torch
from torch import Tensor


class Pentadiagonal:
    """S = L D L^T from its diagonal and its first two off-diagonals, each (..., K).

    first[..., j] is S_{j, j+1}, second[..., j] is S_{j, j+2}. A pivot that keeps no more than
    `share` of its diagonal entry (plus `tiny`) counts as zero: its row is `dropped`.
    """

    def __init__(
        self, main: Tensor, first: Tensor, second: Tensor, share: float, tiny: float
    ) -> None:
        zero = torch.zeros_like(main[..., 0])
        firsts = [zero, *first.unbind(-1)]
        seconds = [zero, zero, *second.unbind(-1)]
        inverse, lower1, lower2, dropped, pivots = [zero, zero], [zero], [], [], []
        for j, entry in enumerate(main.unbind(-1)):
            two = seconds[j]
            one = firsts[j] - two * lower1[-1]
            l1, l2 = one * inverse[-1], two * inverse[-2]
            pivot = entry - l1 * one - l2 * two
            lost = pivot <= share * entry + tiny
            pivots.append(torch.where(lost, 1.0, pivot))
            inverse.append(torch.where(lost, 0.0, 1 / pivots[-1]))
            lower1.append(l1)
            lower2.append(l2)
            dropped.append(lost)
        self.inverse = inverse[2:]  # of D
        self.lower1 = [*lower1[1:], zero]  # L_{j, j-1}
        self.lower2 = [*lower2, zero, zero]  # L_{j, j-2}
        self.dropped = torch.stack(dropped, -1)
        self.log_det = torch.stack(pivots, -1).log().sum(-1)

    def whiten(self, r: Tensor) -> Tensor:
        """D^-1/2 L^-1 r."""
        return torch.stack(
            [x * d.sqrt() for x, d in zip(self._forward(r), self.inverse, strict=True)], -1
        )

    def solve(self, r: Tensor) -> Tensor:
        """S^-1 r."""
        zero = torch.zeros_like(r[..., 0])
        out = [x * d for x, d in zip(self._forward(r), self.inverse, strict=True)] + [zero, zero]
        for j in range(r.shape[-1] - 1, -1, -1):
            x = torch.addcmul(out[j], self.lower1[j + 1], out[j + 1], value=-1)
            out[j] = torch.addcmul(x, self.lower2[j + 2], out[j + 2], value=-1)
        return torch.stack(out[:-2], -1)

    def inverse_diagonals(self) -> tuple[Tensor, Tensor, Tensor]:
        """The three diagonals of S^-1 at the places of main, first and second (Takahashi)."""
        rows, zero = len(self.inverse), torch.zeros_like(self.inverse[0])
        main, first, second = ([zero] * (rows + 2) for _ in range(3))
        for j in range(rows - 1, -1, -1):
            l1, l2 = self.lower1[j + 1], self.lower2[j + 2]
            first[j] = -l1 * main[j + 1] - l2 * first[j + 1]
            second[j] = -l1 * first[j + 1] - l2 * main[j + 2]
            main[j] = self.inverse[j] - l1 * first[j] - l2 * second[j]
        z0, z1, z2 = (torch.stack(z[:rows], -1) for z in (main, first, second))
        return z0, z1[..., : rows - 1], z2[..., : max(rows - 2, 0)]

    def _forward(self, r: Tensor) -> list[Tensor]:
        """L^-1 r."""
        zero = torch.zeros_like(r[..., 0])
        out = [zero, zero]
        for j, x in enumerate(r.unbind(-1)):
            x = torch.addcmul(x, self.lower1[j], out[-1], value=-1)
            out.append(torch.addcmul(x, self.lower2[j], out[-2], value=-1))
        return out[2:]
