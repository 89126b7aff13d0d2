"""Every check of an argument, and its message."""

import difflib
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ._errors import InputError

ArrayLike: TypeAlias = (
    Any  # a float tensor, a NumPy float array, a (nested) list of floats, or a number
)


def concrete(*tensors: Tensor) -> bool:
    """Whether values can be looked at: not while compiling, nor inside `torch.func` transforms."""
    if torch.compiler.is_compiling():
        return False
    return not any(torch._C._functorch.is_functorch_wrapped_tensor(t) for t in tensors)


def tensor(name: str, x: ArrayLike, like: Tensor | None = None, of: str = "") -> Tensor:
    """`x` as a finite floating-point tensor with the dtype and device of `like`, named `of`.

    A bare number takes them over; anything else must have them.
    """
    t = as_tensor(name, x, like, of)
    finite(name, t)
    return t


def as_tensor(name: str, x: ArrayLike, like: Tensor | None = None, of: str = "") -> Tensor:
    if isinstance(x, bool | int | float):
        number = torch.tensor(float(x), dtype=torch.float64)
        return number if like is None else number.to(like)
    if not isinstance(x, Tensor):
        x = _from_numpy(name, x)
    if not x.is_floating_point():
        raise InputError(
            f"`{name}` must hold floating-point numbers, got {x.dtype}. Convert it, "
            "for example with .double() or .astype(float)."
        )
    if like is not None:
        same_kind(name, x, f"`{of}`", like)
    return x


def _from_numpy(name: str, x: ArrayLike) -> Tensor:
    try:
        return torch.from_numpy(np.array(x))  # a copy: buffers of prediction loops get reused
    except (TypeError, ValueError) as error:
        raise InputError(
            f"`{name}` must be a tensor, an array or numbers, got {type(x).__name__}: {error}"
        ) from None


def same_kind(name: str, x: Tensor, other_name: str, other: Tensor) -> None:
    if x.dtype != other.dtype:
        raise InputError(
            f"`{name}` is {x.dtype} but {other_name} is {other.dtype}. Convert one of them: "
            "nothing is cast in silence."
        )
    same_device(name, x.device, other_name, other.device)


def same_device(name: str, device: torch.device, other_name: str, other: torch.device) -> None:
    if device != other:
        raise InputError(
            f"`{name}` is on {device} but {other_name} is on {other}. "
            "Move one of them with .to(device)."
        )


def finite(name: str, x: Tensor, least: float = -np.inf, hint: str = "") -> None:
    """`x` is finite and nowhere below `least`; one pass over the data where all is well."""
    if not (x.numel() and concrete(x)):
        return
    x = x.detach()
    if least == -np.inf and np.isfinite(float(x.sum())):  # cheaper; a sum may overflow, see below
        return
    low, high = (float(end) for end in x.aminmax())
    if not (np.isfinite(low) and np.isfinite(high)):
        bad = int((~x.isfinite()).sum())
        raise InputError(
            f"`{name}` must be finite; {bad} of its {x.numel()} values are NaN or infinite. "
            "Leave those points out, or fill them and give them no weight with `mask`."
        )
    if low < least:
        raise InputError(f"`{name}` must be >= {least:g}; its smallest value is {low:.6g}. {hint}")


def strictly_between(name: str, x: Tensor, low: float, high: float) -> None:
    if not concrete(x):
        return
    outside = ~((x > low) & (x < high))
    if outside.any():
        rule = f"> {low:g}" if high == np.inf else f"strictly between {low:g} and {high:g}"
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


def increasing(name: str, x: Tensor, least: int = 2) -> None:
    if x.ndim != 1 or x.shape[0] < least:
        raise InputError(
            f"`{name}` must be one axis of at least {least} points, got shape {tuple(x.shape)}."
        )
    if concrete(x):
        falls = (x.detach().diff() <= 0).nonzero()
        if len(falls):
            i = int(falls[0])
            raise InputError(
                f"`{name}` must increase strictly; entry {i} is {x[i]:.6g} and entry {i + 1} is "
                f"{x[i + 1]:.6g}. Sort the points (and the field with them) and drop duplicates."
            )


def broadcasts(name: str, x: Tensor, shape: Sequence[int], what: str) -> None:
    """`x` broadcasts to `shape` and does not enlarge it."""
    for axis in range(1, x.ndim + 1):
        size = shape[-axis] if axis <= len(shape) else 0
        if axis > len(shape) or x.shape[-axis] not in (1, size):
            raise InputError(
                f"`{name}` of shape {tuple(x.shape)} does not fit {what} of shape {tuple(shape)}: "
                f"axis {-axis} has {x.shape[-axis]} entries and should have "
                + (f"{size}." if size else f"no counterpart; expand {what} first.")
            )


def broadcast(name: str, x: Tensor, other_name: str, other: Tensor) -> None:
    try:
        torch.broadcast_shapes(x.shape, other.shape)
    except RuntimeError:
        raise InputError(
            f"`{name}` of shape {tuple(x.shape)} does not broadcast with `{other_name}` of shape "
            f"{tuple(other.shape)}."
        ) from None


def choice(name: str, given: str, choices: Iterable[str]) -> None:
    options = list(choices)
    if given not in options:
        near = difflib.get_close_matches(str(given), options, n=1)
        raise InputError(
            f"`{name}` must be one of {', '.join(options)}; got {given!r}."
            + (f" Did you mean {near[0]!r}?" if near else "")
        )


def event_dims(given: int, ndim: int, least: int = 1) -> int:
    if not isinstance(given, Integral) or not least <= given <= ndim:
        raise InputError(
            f"`event_dims` must be a whole number from {least} to {ndim}, the number of axes of "
            f"the field; got {given!r}. 1 = each time by itself, 2 = time and space jointly."
        )
    return int(given)


def samples(n: int, name: str = "n") -> int:
    if not isinstance(n, Integral) or n < 1:
        raise InputError(f"`{name}` must be a positive whole number, got {n!r}.")
    return int(n)


def whole(name: str, n: int) -> int:
    if not isinstance(n, Integral):
        raise InputError(f"`{name}` must be a whole number, got {n!r}.")
    if not -(1 << 63) <= n < 1 << 63:
        raise InputError(f"`{name}` must fit into 64 bits, got {n}.")
    return int(n)


def equal(name: str, given: object, expected: object, of: str, hint: str = "") -> None:
    if given != expected:
        raise InputError(f"`{name}` is {given!r} but {of} has {expected!r}. {hint}".rstrip())


def device(name: str, index: int = 0) -> torch.device:
    """auto is a GPU where there is one; index: of the GPU, where `name` has none."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    choice("device", name.split(":")[0], ["auto", "cpu", "cuda"])
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise InputError("`device` is cuda, but torch finds no GPU here. Use auto or cpu.")
    return torch.device("cuda", index) if name == "cuda" else torch.device(name)
