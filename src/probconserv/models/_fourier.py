"""The lowest frequencies of functions on a grid, in real arithmetic.

So few frequencies are kept that a product with a matrix of sines and cosines is faster than a fast
Fourier transform, and is compiled with what is around it.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

Matrices = list[tuple[Tensor, Tensor]]  # for each axis, to frequencies and back


class Transforms:
    """Discrete Fourier transforms along the last axes.

    Of the last axis the frequencies 0 to m - 1 are kept, of the others -(m - 1) to m - 1: the rest
    of a real function follows from these. A frequency is a pair, real part and imaginary part.
    """

    def __init__(self, modes: Sequence[int]) -> None:
        self.modes = tuple(modes)
        self.size = math.prod([*(2 * m - 1 for m in self.modes[:-1]), self.modes[-1]])

    def matrices(self, shape: Sequence[int], like: Tensor) -> Matrices:
        """Those of a grid: (2 n, 2 k) there and (2 k, 2 n) back; n for 2 n of the last axis."""
        found = []
        for i, (n, m) in enumerate(zip(shape, self.modes, strict=True)):
            last = i == len(self.modes) - 1
            k = torch.arange(0 if last else 1 - m, m, device=like.device)
            angle = (torch.arange(n, device=like.device)[:, None] * k % n).to(like)
            angle = angle * (2 * math.pi / n)
            cos, sin = angle.cos(), angle.sin()  # (n, k)
            if last:
                weight = torch.where(k == 0, 1.0, 2.0).to(like) / n
                there = torch.stack([cos, -sin], dim=-1).flatten(1)
                back = torch.stack([cos * weight, -sin * weight], dim=-1).flatten(1).mT
            else:
                there = _rotations(cos, -sin)
                back = _rotations(cos.mT, sin.mT) / n
            found.append((there, back))
        return found

    def there(self, h: Tensor, matrices: Matrices) -> Tensor:
        """(K, n, C, *shape) to (K, n, C, size, 2)."""
        axes = len(matrices)
        h = (h @ matrices[-1][0]).unflatten(-1, (-1, 2))
        for i in reversed(range(axes - 1)):
            h = h.movedim(3 + i, -2)  # beside its pairs
            h = (h.flatten(-2) @ matrices[i][0]).unflatten(-1, (-1, 2))
        return h.flatten(3, -2)

    def back(self, h: Tensor, matrices: Matrices) -> Tensor:
        """(K, n, C, size, 2) to (K, n, C, *shape)."""
        axes = len(matrices)
        counts = [self.modes[-1], *(2 * m - 1 for m in reversed(self.modes[:-1]))]
        h = h.unflatten(3, counts)
        for i in range(axes - 1):
            h = (h.flatten(-2) @ matrices[i][1]).unflatten(-1, (-1, 2)).movedim(-2, 3 + i)
        return h.flatten(-2) @ matrices[-1][1]


class MixChannels(nn.Module):
    """A mix of the channels at each point, one for each network: (K or 1, n, C, *shape)."""

    def __init__(self, networks: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(networks, outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(networks, outputs).uniform_(-bound, bound))

    def forward(self, h: Tensor) -> Tensor:
        mixed = self.weight[:, None] @ h.flatten(3) + self.bias[:, None, :, None]
        return mixed.unflatten(3, h.shape[3:])


class MixModes(nn.Module):
    """A mix of the channels of each frequency, one for each network: (K, n, C, size, 2)."""

    def __init__(self, networks: int, size: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(networks, size, width, width, 2) / width)

    def forward(self, h: Tensor) -> Tensor:
        real, imaginary = self.weight.unbind(-1)  # (K, size, in, out)
        weight = torch.cat(
            [torch.cat([real, imaginary], dim=-1), torch.cat([-imaginary, real], dim=-1)], dim=-2
        )
        h = h.permute(0, 3, 1, 4, 2).flatten(-2)  # (K, size, n, 2 C)
        return (h @ weight).unflatten(-1, (2, -1)).permute(0, 2, 4, 1, 3)


def _rotations(cos: Tensor, sin: Tensor) -> Tensor:
    """Of pairs by angles: (n, k) each to (2 n, 2 k)."""
    pairs = torch.stack(
        [torch.stack([cos, sin], dim=-1), torch.stack([-sin, cos], dim=-1)], dim=1
    )  # (n, 2, k, 2)
    return pairs.flatten(2).flatten(0, 1)
