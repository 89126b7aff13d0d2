"""The one family of exceptions: catch `ProbConservError` to catch them all. And one warning."""

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

FAR = 10.0  # standard deviations that no law should move a point by
# what could steer a terminal, or turn the order of its letters; not tabs and ends of lines
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""The text with control characters escaped, as names and units in a file may hold some.

    >>> print(printable("K\x1b[31m"))
    K\x1b[31m
    """
    return CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


class ProbConservError(ValueError):
    """Anything this library refuses to do; the message says why and what to do instead."""

    _place: tuple[int, int] | None = None  # index and row that are wrong; `Places` says it in words

    def __str__(self) -> str:
        return printable(super().__str__())


class InputError(ProbConservError):
    """An argument breaks a rule: its shape, dtype, device or values."""


class InfeasibleError(ProbConservError):
    """The field cannot satisfy a law exactly, or laws contradict each other."""


class DegenerateError(ProbConservError):
    """A field was asked for its density and has none: some direction has no variance."""


class ImplausibleError(ProbConservError):
    """`strict` refused to enforce the laws: what they ask is implausible.

    Attributes
    ----------
    report : Report
        The report of `files.enforce`.
    """

    report: Any = None


class ImplausibleWarning(UserWarning):
    """A law moves a field too far or leaves one component of many, or a network has to guess.

    Or totals, units and fields contradict each other, or draws did not get to the laws.
    """


def warn_implausible(text: str) -> None:
    """The warning, at the line outside this library that led to it."""
    depth = 1
    while _package_at(depth + 1) in ("probconserv", "torch"):
        depth += 1
    warnings.warn(printable(text), ImplausibleWarning, stacklevel=depth + 1)


def _package_at(depth: int) -> str:
    """The package of a caller, so many calls above this one."""
    return str(sys._getframe(depth).f_globals.get("__name__", "")).split(".")[0]


@contextmanager
def surprises_expected() -> Iterator[None]:
    """No such warning: where networks are trained or compared, being wrong is part of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImplausibleWarning)
        yield
