"""Values found without gradients: with those of another way there, or with words in their place."""

from typing import Any

import torch
from torch import Tensor

from .errors import DegenerateError


def as_if(value: Tensor, source: Tensor) -> Tensor:
    """`value`, with the gradient of `source`."""
    if not (torch.is_grad_enabled() and source.requires_grad):
        return value
    found: Tensor = AsIf.apply(source, value.detach())  # type: ignore[no-untyped-call]
    return found


def without(value: Tensor, source: Tensor, words: str) -> Tensor:
    """`value`, found from `source` without a gradient; who asks for one gets `words`."""
    if not (torch.is_grad_enabled() and source.requires_grad):
        return value
    found: Tensor = Without.apply(source, value.detach(), words)  # type: ignore[no-untyped-call]
    return found


class AsIf(torch.autograd.Function):
    """The second, with the gradient of the first."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g, None


class Without(torch.autograd.Function):
    """The second, which has no gradient."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, value: Tensor, words: str) -> Tensor:
        ctx.words = words
        return value.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, None, None]:
        raise DegenerateError(ctx.words)
