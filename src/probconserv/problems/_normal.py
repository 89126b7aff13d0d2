"""The standard normal distribution, with all digits in both tails."""

import math

import torch
from torch import Tensor


def density(z: Tensor) -> Tensor:
    return (-(z**2) / 2).exp() / math.sqrt(2 * math.pi)


def between(a: Tensor, b: Tensor) -> Tensor:
    """The probability of a < z < b. On the right the mirror image is taken: no 1 - small."""
    right = a > 0
    low, high = torch.where(right, -b, a), torch.where(right, -a, b)
    return ((-high / math.sqrt(2)).erfc() - (-low / math.sqrt(2)).erfc()) / 2
