"""Sums over columns on a GPU by the kernels of `solvers/kernels/columns.py`, where they can."""

import importlib.util
from functools import cache

import torch
from torch import Tensor

from ..support import checks as check

TILE, NARROW = 512, 16  # values of a field, and least columns, that a programme works on
LANE = 128  # of these for each warp


@cache
def has_triton(device: int) -> bool:
    """Whether Triton is there, as it is with torch for Linux and CUDA, and knows this GPU."""
    known = torch.cuda.get_device_capability(device) >= (7, 0)
    return known and importlib.util.find_spec("triton") is not None


def is_there(x: Tensor) -> bool:
    """Whether `x` is on the GPU that is used now, and Triton is there."""
    if not x.is_cuda or x.device.index != torch.cuda.current_device():
        return False
    return has_triton(x.device.index)


def has_kernels(*fields: Tensor) -> bool:
    """Whether kernels take these: values that can be looked at, without gradients to keep."""
    if not check.concrete(*fields) or not is_there(fields[0]):
        return False
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in fields))


def tiled(levels: int, columns: int) -> tuple[dict[str, int], int]:
    """How a programme cuts its tile, and how many tiles there are."""
    padded = 1 << max(levels - 1, 0).bit_length()
    block = max(NARROW, TILE // padded)
    warps = min(max(4, padded * block // LANE), 16)
    return {"LEVELS": padded, "BLOCK": block, "num_warps": warps}, -(-columns // block)


def level_squares(new: Tensor, old: Tensor, weights: Tensor) -> Tensor:
    """Means of the squares of the change and of the new values of each level, (2, batch, K)."""
    from ..solvers.kernels import columns

    new, old = new.contiguous(), old.contiguous()
    batch, levels, size = new.shape
    tile, parts = tiled(levels, size)
    sums = weights.new_empty(batch, parts, 2, levels)
    columns.level_squares[(parts, batch)](new, old, weights, sums, levels, size, **tile)
    return sums.sum(1).movedim(1, 0)
