"""Small objects kept as JSON, complete or not at all; what is none of ours is refused."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from .complete_files import check_folder, complete
from .errors import InputError
from .values import path as as_path

Made = TypeVar("Made")


def keep(path: str | Path, kind: str, words: Mapping[str, Any]) -> None:
    """Writes `words` under the name of their kind."""
    place = as_path("path", path)
    check_folder("path", place)
    text = json.dumps({"format": f"probconserv {kind} 1", **words}, allow_nan=False)
    with complete(place) as part:
        part.write_text(text + "\n")


def kept(path: str | Path, kind: str, made: Callable[[dict[str, Any]], Made]) -> Made:
    """What `made` makes of the words of a file of that kind."""
    place = as_path("path", path)
    try:
        words = json.loads(place.read_text())
        if words.pop("format") != f"probconserv {kind} 1":
            raise ValueError("another format")
        return made(words)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"`path`: {place} holds no {kind} that `save` kept: {error}.") from None
