"""Random numbers that are a function of their address: the same on every device, in any order.

SplitMix64 by counter: number i of a key is mix(key + (i + 1) G). Nothing is kept between calls, so
a batch can be made anywhere, alone, compiled or inside a CUDA graph.
"""

import torch
from torch import Tensor


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


GAMMA = _signed(0x9E3779B97F4A7C15)
INVERSE = _signed(pow(0x9E3779B97F4A7C15, -1, 1 << 64))
FIRST, SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def uniform(
    address: tuple[int | Tensor, ...], shape: tuple[int, ...], device: torch.device | str
) -> Tensor:
    """Numbers in [0, 1), float64, on the device; other addresses give unrelated numbers."""
    key = torch.zeros((), dtype=torch.int64, device=device)
    for word in address:
        key = _mix(key + GAMMA) ^ word
    return _logical_shift(words(_mix(key), shape), 11).double() * 2.0**-53


def normal(
    address: tuple[int | Tensor, ...], shape: tuple[int, ...], device: torch.device | str
) -> Tensor:
    """Standard normal numbers, float64, by Box and Muller's formula."""
    first, second = uniform(address, (2, *shape), device)
    return (-2 * (1 - first).log()).sqrt() * (2 * torch.pi * second).cos()


def words(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """64 random bits each, as signed integers."""
    counter = torch.arange(1, 1 + torch.Size(shape).numel(), device=key.device)
    # key + counter * GAMMA, in an order that Inductor does not fold into one index too large for it
    return _mix((key * INVERSE + counter) * GAMMA).reshape(shape)


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _logical_shift(z, 30)) * FIRST
    z = (z ^ _logical_shift(z, 27)) * SECOND
    return z ^ _logical_shift(z, 31)


def _logical_shift(z: Tensor, by: int) -> Tensor:
    return (z >> by) & ((1 << (64 - by)) - 1)
