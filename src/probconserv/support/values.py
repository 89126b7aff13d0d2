"""Checks of arguments that are no tensors, without torch; see `checks.py` for the others."""

import difflib
import math
import os
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from .errors import InputError

EARTH = 6_371_229.0  # metres: the radius of the globe, as weather models have it


def name(argument: str, given: Any) -> str:
    """The name of a field or a law."""
    if not isinstance(given, str):
        raise InputError(f"`{argument}` must be a name, such as 'u'; got {given!r:.60}.")
    return given


def unravelled(number: int, shape: Sequence[int]) -> list[int]:
    """The index of an entry, by its number in an array of `shape`.

    `torch.unravel_index` does the same, but it imports sympy, which takes seconds.

    >>> unravelled(7, (2, 5))
    [1, 2]
    """
    found: list[int] = []
    for size in reversed(shape):
        number, rest = divmod(int(number), size)
        found.append(rest)
    return found[::-1]


def span(low: float, high: float, digits: int = 6) -> str:
    """From the one to the other, in words; either may be infinite.

    >>> span(0, 2), span(0, math.inf), span(-math.inf, 2)
    ('from 0 to 2', '0 or more', '2 or less')
    """
    least, most = f"{low:.{digits}g}", f"{high:.{digits}g}"
    if math.isinf(low):
        return "of any size" if math.isinf(high) else f"{most} or less"
    return f"{least} or more" if math.isinf(high) else f"from {least} to {most}"


def choice(name: str, given: str, choices: Iterable[str]) -> None:
    options = list(choices)
    if not isinstance(given, str) or given not in options:
        near = difflib.get_close_matches(str(given), options, n=1)
        raise InputError(
            f"`{name}` must be one of {', '.join(options)}; got {given!r}."
            + (f" Did you mean {near[0]!r}?" if near else "")
        )


def is_whole(n: Any) -> bool:
    """A truth value is none: `True` would be taken as 1."""
    return isinstance(n, Integral) and not isinstance(n, bool)


def event_dims(given: int, ndim: int, least: int = 1) -> int:
    if not is_whole(given) or not least <= given <= ndim:
        raise InputError(
            f"`event_dims` must be a whole number from {least} to {ndim}, the number of axes of "
            f"the field; got {given!r}. 1 = each time by itself, 2 = time and space jointly."
        )
    return int(given)


def samples(n: int, name: str = "n") -> int:
    if not is_whole(n) or n < 1:
        raise InputError(f"`{name}` must be a positive whole number, got {n!r}.")
    return int(n)


def whole(name: str, n: int) -> int:
    if not is_whole(n):
        raise InputError(f"`{name}` must be a whole number, got {n!r}.")
    if not -(1 << 63) <= n < 1 << 63:
        raise InputError(f"`{name}` must fit into 64 bits, got {n}.")
    return int(n)


def shape(name: str, given: Sequence[int]) -> tuple[int, ...]:
    """The sizes of some axes."""
    listed = tuple(given) if isinstance(given, Sequence) else None
    if listed is None or not all(is_whole(n) and n >= 0 for n in listed):
        raise InputError(f"`{name}` must be the sizes of axes, such as (3, 5); got {given!r:.60}.")
    return tuple(map(int, listed))


def path(name: str, given: str | Path) -> Path:
    if not isinstance(given, str | os.PathLike):
        raise InputError(f"`{name}` must be the name of a file, got {type(given).__name__}.")
    return Path(given)


def between(name: str, x: Any, low: float, high: float) -> float:
    if type(x).__module__ == "numpy" and x.shape == ():
        x = x.item()
    if not isinstance(x, Real) or isinstance(x, bool) or not low <= float(x) <= high:
        limits = f"lie between {low:g} and {high:g}"
        rule = "be a number" if (low, high) == (-math.inf, math.inf) else limits
        hint = ", which is no plain number" if hasattr(x, "shape") else ""
        raise InputError(f"`{name}` must {rule}, got {x!r}{hint}.")
    return float(x)


def positive(name: str, x: float) -> float:
    if not isinstance(x, Real) or isinstance(x, bool) or not 0 < x < math.inf:
        raise InputError(f"`{name}` must be a positive finite number, got {x!r}.")
    return float(x)


def _is_index(i: Any) -> bool:
    if isinstance(i, slice):
        ends = i.start, i.stop, i.step
        return all(isinstance(e, int | None) for e in ends) and (i.step is None or i.step > 0)
    return is_whole(i)


def index(given: Any, shape: Sequence[int], free: int) -> tuple[int | slice, ...]:
    """An index into the first `free` axes of a field of `shape`."""
    listed = given if isinstance(given, tuple) else (given,)
    kinds = all(map(_is_index, listed))
    if not kinds or len(listed) > free:
        raise InputError(
            f"`index` must be whole numbers and slices with steps above 0, for the first {free} "
            f"axes of a field of shape {tuple(shape)}, those that are independent; got {given!r}."
        )
    for i, size in zip(listed, shape, strict=False):
        if not isinstance(i, slice) and not -size <= int(i) < size:
            raise InputError(f"`index` {i} is out of range for an axis of {size} entries.")
    return tuple(i if isinstance(i, slice) else int(i) for i in listed)
