"""Work that `torch.compile` leaves out."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch

Work = TypeVar("Work", bound=Callable[..., Any])


def uncompiled(work: Work) -> Work:
    """`torch.compile` stops at such work, which looks at values, and goes on after it."""

    @wraps(work)
    def whole(*args: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            outside: Any = torch.compiler.disable(work)
            return outside(*args)
        return work(*args)

    return cast(Work, whole)
