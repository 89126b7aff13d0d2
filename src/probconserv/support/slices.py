"""Large arrays on a CPU, slice by slice: what stands between two steps stays in the cache."""

from collections.abc import Callable

import torch
from torch import Tensor

from .checks import concrete

IN_CACHE = 1 << 18  # numbers of a slice, 2 MB: half as many and twice as many were no faster


def may_overwrite(*arrays: Tensor) -> bool:
    """Whether results may be written in place: nothing is traced, and no gradient is needed."""
    if not concrete(*arrays):
        return False
    return not (torch.is_grad_enabled() and any(t.requires_grad for t in arrays))


def is_large(*arrays: Tensor) -> bool:
    """Whether slices pay: not on a GPU, and not where values are traced or gradients are needed."""
    first = arrays[0]
    if torch.compiler.is_compiling():  # a look at the size would tie a program to it
        return False
    return first.numel() >= 2 * IN_CACHE and not first.is_cuda and may_overwrite(*arrays)


def by_slices(
    work: Callable[..., Tensor], *arrays: Tensor, whole: int = 0, last: tuple[int, ...] = ()
) -> Tensor:
    """work(*arrays, out), where `work` takes all but the last `whole` axes of the first one by one.

    The other arrays broadcast to the first. `out` is where the result goes; None: to a new tensor.
    last: the axes of the result instead of the whole ones.
    """
    if not is_large(*arrays):
        return work(*arrays, None)
    first = arrays[0]
    sizes = first.shape[: first.ndim - whole]
    if max(sizes, default=1) == 1:
        return work(*arrays, None)
    axis = next(i for i, size in enumerate(sizes) if size > 1)
    found = first.new_empty(*sizes, *last)
    step = max(1, IN_CACHE * sizes[axis] // first.numel())
    for start in range(0, sizes[axis], step):
        parts = (_part(t, axis - first.ndim, start, step) for t in arrays)
        work(*parts, _part(found, axis - found.ndim, start, step))
    return found


def _part(t: Tensor, axis: int, start: int, step: int) -> Tensor:
    """axis: counted from the end."""
    if t.ndim < -axis or t.shape[axis] == 1:
        return t
    return t.narrow(axis, start, min(step, t.shape[axis] - start))
