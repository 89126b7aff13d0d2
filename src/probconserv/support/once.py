"""A property that is computed once.

`functools.cached_property` takes a lock in Python 3.11, and `torch.compile` stops at locks. It
would also keep, for later callers who want gradients, a value that was first read under `no_grad`;
the owner says with `differentiable` whether that could happen.
"""

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

import torch

Value = TypeVar("Value")


class once(Generic[Value]):
    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self.compute, self.__doc__ = compute, compute.__doc__
        self.name = compute.__name__

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self, owner: object, kind: type) -> Value: ...
    def __get__(self, owner: Any, kind: type) -> Any:
        if owner is None:
            return self
        value = self.compute(owner)
        if torch.is_grad_enabled() or not owner.differentiable:
            object.__setattr__(owner, self.name, value)  # it now hides this one; also when frozen
        return value
