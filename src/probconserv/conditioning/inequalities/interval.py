"""Normal distributions cut to an interval: cumulants and quantiles, however far out it lies.

Everything is measured from the mode c, the point of [low, high] nearest to the mean. With
t = (u - c) / std and k = (c - mean) / std the density is exp(-t^2 / 2 - k t), and k t >= 0: nothing
overflows, and no two large numbers are subtracted.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...support.checks import any_of

NODES, WEIGHTS = map(torch.from_numpy, np.polynomial.legendre.leggauss(32))  # on [-1, 1]
POWERS = torch.stack([NODES**k for k in range(5)])
NEGLIGIBLE = 32.0  # where the density is below exp(-32) of its mode it is left out
CHUNK = 1 << 16  # points at a time, each with its 32 nodes: 16 MiB
FAR = 30.0  # standard deviations from the mean, beyond which tails come from the scaled erfc
NARROW = 1e-6  # standard deviations, below which the density is as good as exponential


class Cumulants(NamedTuple):
    """Mean, variance, third and fourth cumulant, each of the shape of the points."""

    mean: Tensor
    variance: Tensor
    third: Tensor
    fourth: Tensor


def cumulants(mean: Tensor, variance: Tensor, low: Tensor, high: Tensor) -> Cumulants:
    """Of normal distributions cut to [low, high], by Gauss-Legendre quadrature.

    32 nodes on the part of the interval that holds all but 1e-14 of the mass: errors are 1e-10 of
    the scale in mean and variance, 1e-8 in the fourth cumulant, in any tail and for any width.
    variance > 0; low = high is a fixed point.
    """
    mean, variance, low, high = torch.broadcast_tensors(mean, variance, low, high)
    if mean.numel() <= CHUNK:
        return _cumulants(mean, variance, low, high)
    flat = [x.reshape(-1).split(CHUNK) for x in (mean, variance, low, high)]
    parts = [_cumulants(*part) for part in zip(*flat, strict=True)]
    return Cumulants(*(torch.cat(x).reshape(mean.shape) for x in zip(*parts, strict=True)))


def _cumulants(mean: Tensor, variance: Tensor, low: Tensor, high: Tensor) -> Cumulants:
    std, mode = variance.sqrt(), mean.clamp(low, high)
    k = (mode - mean) / std
    root = (k.square() + 2 * NEGLIGIBLE).sqrt()
    down, up = (2 * NEGLIGIBLE / (root + (side * k).clamp(min=0)) for side in (-1, 1))
    start = (low - mode).maximum(-std * down) / std  # not an infinite bound over std: gradients
    end = (high - mode).minimum(std * up) / std
    middle, half = (start + end) / 2, (end - start) / 2  # t = middle + half z, z from -1 to 1
    bend = torch.stack([half * (middle + k), half.square() / 2], -1)
    density = (-bend @ POWERS[1:3].to(mean)).exp()  # but for a factor
    z0, z1, z2, z3, z4 = (density @ (WEIGHTS * POWERS).mT.to(mean)).unbind(-1)
    z1, z2, z3, z4 = z1 / z0, z2 / z0, z3 / z0, z4 / z0
    second = z2 - z1.square()
    third = z3 - z1 * (3 * second + z1.square())
    fourth = z4 - z1 * (4 * z3 - z1 * (6 * z2 - 3 * z1.square())) - 3 * second.square()
    scale = std * half
    center = (mode + std * (middle + half * z1)).clamp(low, high)
    return Cumulants(center, scale**2 * second, scale**3 * third, scale**4 * fourth)


def quantile(p: Tensor, mean: Tensor, variance: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The value that a normal distribution cut to [low, high] stays below with probability p."""
    std = variance.sqrt()
    a, b = (low - mean) / std, (high - mean) / std
    left = a + b < 0  # mirrored, so that small probabilities are those of the right tail
    a, b = torch.where(left, -b, a), torch.where(left, -a, b)
    p = torch.where(left, 1 - p, p)
    above = _above(a)
    x = -torch.special.ndtri(above - p * (above - _above(b)))
    u = mean + torch.where(left, -x, x) * std
    hard = (a > FAR) | (b - a < NARROW)
    if any_of(hard):
        step = std * _from_the_bound(p, a, b)
        u = torch.where(hard, torch.where(left, high - step, low + step), u)
    return u.clamp(low, high)


def _above(x: Tensor) -> Tensor:
    """The probability above x. torch.special.ndtr loses the digits of a tail."""
    return torch.erfc(x / math.sqrt(2)) / 2


def _from_the_bound(p: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """t = x - a for the quantile x of a standard normal on [a, b], where a > 30 or b = a nearly."""
    width = b - a
    k = a.clamp(min=NARROW)
    exponential = -torch.log1p(p * torch.expm1(-k * width)) / k
    t = torch.where(k * width < 1e-3, exponential, _in_the_tail(p, k, width))
    return t.clamp(min=0).minimum(width)


def _in_the_tail(p: Tensor, k: Tensor, width: Tensor) -> Tensor:
    """First as if the density were (k + t) exp(-k t - t^2 / 2), which is nearly so for a large k;

    then two Newton steps for the logarithm of the probability above.
    """
    depth = width * (width / 2 + k)
    w = -torch.log1p(p * torch.expm1(-depth))
    t = 2 * w / (k + (k.square() + 2 * w).sqrt())
    target = ((1 - p) * _mills(k) + p * (-depth).exp() * _mills(k + width)).log()
    for _ in range(2):
        mills = _mills(k + t)
        t = t + mills * (mills.log() - t * (t / 2 + k) - target)
    return t


def _mills(x: Tensor) -> Tensor:
    """The probability above x over the density at x, of the standard normal."""
    return math.sqrt(math.pi / 2) * torch.special.erfcx(x / math.sqrt(2))
