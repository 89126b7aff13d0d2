"""Ensembles of small periodic networks that predict the next state; none conserves by construction.

All M members are one module. Every array inside is (M, channels, batch, *space), so a convolution
or a sum over modes is one matrix product for each member.
"""

import itertools
import math

import torch
from torch import Tensor, nn

ARCHITECTURES = ("resnet", "fno")


def uniform(members: int, *shape: int, fan_in: int, seeds: list[int]) -> nn.Parameter:
    """Weights within 1 / sqrt(fan_in), from a seed for each member."""
    parts = []
    for i in range(members):
        generator = torch.Generator().manual_seed(seeds[i])
        seeds[i] = int(torch.randint(2**31, (), generator=generator))  # for the next layer
        parts.append(2 * torch.rand(shape, generator=generator) - 1)
    return nn.Parameter(torch.stack(parts) / math.sqrt(fan_in))


class Convolution(nn.Module):
    """A periodic convolution of odd width `size`, or of each point by itself (size 1)."""

    def __init__(self, inputs: int, outputs: int, dims: int, size: int, seeds: list[int]):
        super().__init__()
        taps = inputs * size**dims
        self.dims, self.size = dims, size
        self.weight = uniform(len(seeds), outputs, taps, fan_in=taps, seeds=seeds)
        self.bias = uniform(len(seeds), outputs, 1, fan_in=taps, seeds=seeds)

    def neighbours(self, u: Tensor) -> Tensor:  # (M, taps * inputs, batch, *space)
        half, space = self.size // 2, tuple(range(-self.dims, 0))
        for axis in space:
            head, tail = u.narrow(axis, 0, half), u.narrow(axis, u.shape[axis] - half, half)
            u = torch.cat([tail, u, head], axis)
        width = [u.shape[axis] - 2 * half for axis in space]
        parts = []
        for shift in itertools.product(range(self.size), repeat=self.dims):
            part = u
            for axis, begin, length in zip(space, shift, width, strict=True):
                part = part.narrow(axis, begin, length)
            parts.append(part)
        return torch.cat(parts, 1)

    def forward(self, u: Tensor) -> Tensor:
        u = self.neighbours(u) if self.size > 1 else u
        out = torch.baddbmm(self.bias, self.weight, u.flatten(2))
        return out.unflatten(2, u.shape[2:])


class ResNet(nn.Module):
    """Blocks u + conv(gelu(conv(gelu(u)))) between a convolution up and one down."""

    def __init__(self, channels: int, dims: int, seeds: list[int], width: int, blocks: int):
        super().__init__()
        self.up = Convolution(channels, width, dims, 3, seeds)
        self.blocks = nn.ModuleList(
            nn.ModuleList(Convolution(width, width, dims, 3, seeds) for _ in range(2))
            for _ in range(blocks)
        )
        self.down = Convolution(width, channels, dims, 1, seeds)

    def forward(self, u: Tensor) -> Tensor:
        u, gelu = self.up(u), nn.functional.gelu
        for first, second in self.blocks:
            u = u + second(gelu(first(gelu(u))))
        return self.down(u)


def fourier(points: int, dims: int, modes: int) -> tuple[Tensor, Tensor]:
    """Real Fourier analysis (2, points^dims, K) and synthesis (2, K, points^dims).

    One of each pair k, -k with all |k_i| < modes: cosines, then sines.
    """
    waves = itertools.product(range(-modes + 1, modes), repeat=dims)
    half = torch.tensor([k for k in waves if k >= (0,) * dims], dtype=torch.float64)  # (K, dims)
    axes = [torch.arange(points, dtype=torch.float64)] * dims
    x = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, dims)
    angle = 2 * torch.pi / points * x @ half.T
    analysis = torch.stack([angle.cos(), -angle.sin()]) / points**dims
    twice = torch.where((half == 0).all(1), 1.0, 2.0)[:, None]
    synthesis = torch.stack([angle.cos().T, -angle.sin().T]) * twice
    return analysis.float(), synthesis.float()


class Spectral(nn.Module):
    """Complex weights on the low modes of a Fourier series."""

    def __init__(self, width: int, count: int, seeds: list[int]):
        super().__init__()
        shape = (count, width, width)
        self.real = uniform(len(seeds), *shape, fan_in=width, seeds=seeds)
        self.imaginary = uniform(len(seeds), *shape, fan_in=width, seeds=seeds)

    def forward(self, u: Tensor, analysis: Tensor, synthesis: Tensor) -> Tensor:
        real, imaginary = (torch.einsum("mibx,xk->mkib", u, part) for part in analysis)
        top = self.real @ real - self.imaginary @ imaginary
        low = self.real @ imaginary + self.imaginary @ real
        out = torch.einsum("mkob,kx->mobx", top, synthesis[0])
        return out + torch.einsum("mkob,kx->mobx", low, synthesis[1])


class FNO(nn.Module):
    """Fourier neural operator: gelu(spectral(u) + pointwise(u)), without positions as inputs."""

    def __init__(
        self,
        channels: int,
        dims: int,
        seeds: list[int],
        points: int,
        width: int,
        blocks: int,
        modes: int,
    ):
        super().__init__()
        analysis, synthesis = fourier(points, dims, modes)
        self.register_buffer("analysis", analysis, persistent=False)
        self.register_buffer("synthesis", synthesis, persistent=False)
        self.up = Convolution(channels, width, 1, 1, seeds)
        count = synthesis.shape[1]
        self.spectral = nn.ModuleList(Spectral(width, count, seeds) for _ in range(blocks))
        self.points = nn.ModuleList(Convolution(width, width, 1, 1, seeds) for _ in range(blocks))
        self.down = Convolution(width, channels, 1, 1, seeds)

    def forward(self, u: Tensor) -> Tensor:
        space = u.shape[3:]
        u = self.up(u.flatten(3))
        for i, (spectral, points) in enumerate(zip(self.spectral, self.points, strict=True)):
            u = spectral(u, self.analysis, self.synthesis) + points(u)
            u = nn.functional.gelu(u) if i + 1 < len(self.points) else u
        return self.down(u).unflatten(-1, space)


class Emulator(nn.Module):
    """One step u -> u + scale * network((u - mean) / std): (M, batch, channels, *space) each.

    scale: standard deviation of what a step adds in training.
    """

    def __init__(self, network: nn.Module, channels: int, dims: int):
        super().__init__()
        self.network = network
        for name in ("mean", "std", "scale"):
            self.register_buffer(name, torch.ones(channels, 1, *(1,) * dims))

    def normalise(self, train: Tensor) -> None:  # (n, times, channels, *space)
        def column(per_channel: Tensor) -> Tensor:
            return per_channel.reshape(self.mean.shape)

        axes = (0, 1, *range(3, train.ndim))
        self.mean = column(train.mean(axes))
        self.std = column(train.std(axes))
        self.scale = column(train.diff(dim=1).square().mean(axes).sqrt())

    def forward(self, u: Tensor) -> Tensor:
        u = u.transpose(1, 2)
        after = u + self.scale * self.network((u - self.mean) / self.std)
        return after.transpose(1, 2)


def ensemble(
    architecture: str, channels: int, dims: int, points: int, members: int = 5, seed: int = 0
) -> Emulator:
    """An untrained ensemble of 20 to 60 thousand parameters for each member."""
    seeds = [1000 * seed + 1 + member for member in range(members)]
    if architecture == "resnet":
        width, blocks = (26, 7) if dims == 1 else (20, 6)
        network = ResNet(channels, dims, seeds, width, blocks)
    elif architecture == "fno":
        width, modes = (18, 16) if dims == 1 else (10, 6)
        network = FNO(channels, dims, seeds, points, width, 4, modes)
    else:
        raise ValueError(f"`architecture` must be one of {ARCHITECTURES}, got {architecture!r}.")
    return Emulator(network, channels, dims)
