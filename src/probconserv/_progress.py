"""A progress bar on long work, where there is a terminal to show it and rich to draw it."""

import sys
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

Item = TypeVar("Item")


def track(items: Iterable[Item], text: str) -> Iterator[Item]:
    """The items, with a bar on stderr; silent in scripts, notebooks without rich, and pipes."""
    if not (sys.stderr.isatty() and isinstance(items, Sized) and len(items) > 1):
        return iter(items)
    try:
        from rich.console import Console
        from rich.progress import track as bar
    except ModuleNotFoundError:
        return iter(items)
    return iter(bar(items, text, console=Console(stderr=True), transient=True))
