"""Files that appear under their name only when they are complete."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import InputError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]


def check_folder(argument: str, path: Path) -> None:
    """Refuses a file in a folder that is not there: it may be a spelling mistake."""
    if not path.parent.is_dir():
        raise InputError(f"`{argument}`: there is no folder {path.parent}. Make it first.")


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


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Nobody else who asks gets to write into the folder until this is left, by a kill too."""
    folder.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise InputError(
            f"another process is writing into {folder}. Wait for it, or use another folder."
        ) from None
    try:
        yield
    finally:
        os.close(handle)
