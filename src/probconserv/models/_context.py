"""What every model of scattered observations reads: contexts and grids."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError

Context: TypeAlias = Sequence[ArrayLike]  # (t, x, u): coordinates and values, (n, N) or (N,) each


def read_context(
    context: Context | list[Context], inputs: int, like: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Coordinates (n, N, inputs), values (n, N), and where points are missing (n, N)."""
    if isinstance(context, list) and not all(isinstance(c, tuple) and c for c in context):
        raise InputError(
            "`context` as a list must hold one tuple (t, x, u) for each function; for one set "
            "of arrays give a tuple."
        )
    if not isinstance(context, list | tuple | Tensor | np.ndarray):
        raise InputError(
            "`context` must be a tuple of arrays (t, x, u), such as the `context` of functions of "
            f"`probconserv.data`; got {type(context).__name__}."
        )
    if not len(context):
        raise InputError("`context` must hold at least one function.")
    sets = [_stacked(one, like) for one in (context if isinstance(context, list) else [context])]
    for one in sets:
        if one.shape[-1] != inputs + 1:
            raise InputError(
                f"`context` must hold {inputs} coordinates and the values, "
                f"{inputs + 1} arrays in all; got {one.shape[-1]}."
            )
    if not isinstance(context, list):
        every = sets[0] if sets[0].ndim == 3 else sets[0][None]
        return every[..., :-1], every[..., -1], None
    padded = nn.utils.rnn.pad_sequence(sets, batch_first=True)
    counts = torch.tensor([len(one) for one in sets], device=like.device)
    mask = torch.arange(padded.shape[1], device=like.device) >= counts[:, None]
    return padded[..., :-1], padded[..., -1], mask


def read_grid(
    grid: Sequence[ArrayLike], inputs: int, like: Tensor
) -> tuple[Tensor, tuple[int, ...]]:
    """The points of a grid, (T * M, inputs), and its shape."""
    axes = grid if isinstance(grid, list | tuple | Tensor | np.ndarray) else None
    if axes is None or len(axes) != inputs:
        raise InputError(
            f"`grid` must have one axis for each of the {inputs} coordinates, got "
            f"{type(grid).__name__ if axes is None else len(axes)}."
        )
    axes = [check.tensor(f"grid[{i}]", axis).to(like) for i, axis in enumerate(grid)]
    for i, axis in enumerate(axes):
        if axis.ndim != 1 or not len(axis):
            raise InputError(f"`grid[{i}]` must be one axis, got shape {tuple(axis.shape)}.")
    mesh = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
    return mesh.flatten(0, -2), tuple(mesh.shape[:-1])


def alone(context: Context | list[Context]) -> bool:
    """Whether it is one function, whose field has no axis n."""
    return not isinstance(context, list) and check.as_tensor("context", context[-1]).ndim == 1


def _stacked(context: Context, like: Tensor) -> Tensor:
    """One context as (n, N, inputs + 1) or (N, inputs + 1), converted to the model's kind."""
    arrays = [check.tensor(f"context[{i}]", a).to(like) for i, a in enumerate(context)]
    shapes = {tuple(a.shape) for a in arrays}
    if len(shapes) != 1 or arrays[0].ndim not in (1, 2) or not arrays[0].numel():
        raise InputError(
            "`context` must hold arrays of one shape, (n, N) or (N,), with at least one point; got "
            f"shapes {', '.join(map(str, sorted(shapes))) or 'of nothing'}."
        )
    for i, array in enumerate(arrays):
        check.finite(f"context[{i}]", array)  # in the model's kind, where large numbers are not
    return torch.stack(arrays, dim=-1)
