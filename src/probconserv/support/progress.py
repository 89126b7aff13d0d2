"""A progress bar on long work, where there is a terminal to show it and rich to draw it."""

import sys
import time
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


class Ticker:
    """A line on stderr that changes, once work has taken a few seconds; silent without a terminal.

    Used with `with`, which wipes the line at the end.
    """

    def __init__(self, after: float = 3.0) -> None:
        self.next, self.shown = time.monotonic() + after, False

    def say(self, text: str) -> None:
        if sys.stderr.isatty() and time.monotonic() > self.next:
            self.next, self.shown = time.monotonic() + 0.5, True
            print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> "Ticker":
        return self

    def __exit__(self, *error: object) -> None:
        if self.shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
