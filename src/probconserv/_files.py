"""Files that appear under their name only when they are complete."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def complete(path: Path) -> Iterator[Path]:
    """A place to write to, in the same folder; it takes the name `path` at the end, or vanishes.

    The file keeps the permissions that the user's umask gives, whatever writes it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        part.touch()
        mode = part.stat().st_mode
        yield part
        part.chmod(mode)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
