"""Checks of what a problem is asked for."""

import math

import torch
from torch import Tensor

from ..support.checks import broadcast_shapes, concrete
from ..support.errors import InputError


def strictly_between(name: str, x: Tensor, low: float, high: float) -> None:
    if not concrete(x):
        return
    outside = ~((x > low) & (x < high))
    if outside.any():
        rule = f"> {low:g}" if high == math.inf else f"strictly between {low:g} and {high:g}"
        raise InputError(f"`{name}` must be {rule}; got {float(x[outside][0]):.6g}.")


def inside(name: str, x: Tensor, low: float, high: float, what: str) -> None:
    """low <= x <= high, up to the rounding of a computed grid."""
    if not (x.numel() and concrete(x)):
        return
    slack = 8 * torch.finfo(x.dtype).eps * max(abs(low), abs(high))
    for end in x.detach().aminmax():
        if not low - slack <= end <= high + slack:
            raise InputError(
                f"`{name}` must lie inside {what}, from {low:g} to {high:g}; got {end:.6g}."
            )


def broadcast(name: str, x: Tensor, other_name: str, other: Tensor) -> None:
    try:
        broadcast_shapes(x.shape, other.shape)
    except RuntimeError:
        raise InputError(
            f"`{name}` of shape {tuple(x.shape)} does not broadcast with `{other_name}` of shape "
            f"{tuple(other.shape)}."
        ) from None


def spans(name: str, x: Tensor, low: float, high: float, what: str) -> None:
    """x goes from low to high, up to rounding."""
    slack = 8 * torch.finfo(x.dtype).eps * max(abs(low), abs(high))
    if concrete(x) and not (abs(x[0] - low) <= slack and abs(x[-1] - high) <= slack):
        raise InputError(
            f"`{name}` must span {what}, from {low:g} to {high:g}; it goes from {float(x[0]):.6g} "
            f"to {float(x[-1]):.6g}."
        )
