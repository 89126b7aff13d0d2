"""Where an output grows until it is complete: hidden beside its name, gone if anything fails."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .._errors import InputError
from .._files import sole_writer
from ._survey import ZARR

NETCDF = (".nc", ".nc4", ".cdf")


def check_output(path: str | os.PathLike[str], overwrite: bool, inputs: Iterable[str] = ()) -> Path:
    """The full path of an output that may be written; every reason against it is an error."""
    where = Path(path).resolve()
    if where.suffix not in (*NETCDF, ".zarr"):
        raise InputError(
            f"`path` {where.name!r} must end in {', '.join(NETCDF)} (NetCDF) or .zarr (Zarr); "
            "for several files it may be an existing folder."
        )
    for given in inputs:
        _check_apart(where, Path(given).resolve())
    if where.exists():
        _check_replaceable(where, overwrite)
    _check_folder(where.parent)
    return where


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """A request to end (SIGTERM) is met as Ctrl-C is: what was begun is removed."""
    if threading.current_thread() is not threading.main_thread():  # only it may set handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """A place to write to, which takes the name `path` at the end, or vanishes.

    What had that name before stays until then.
    """
    stage = path.with_name(f".{path.name}.part")
    with ended_by_sigterm(), sole_writer(stage):
        _clear(stage, path)
        part = stage / path.name
        try:
            yield part
            _flush(part)
            _replace(part, path, stage / "old")
        except BaseException:
            _vanish(stage)
            raise
        shutil.rmtree(stage)


def _check_apart(path: Path, given: Path) -> None:
    if path == given or (path.exists() and given.exists() and path.samefile(given)):
        raise InputError(
            f"`path` {path} is the input, which is never changed. Choose another name."
        )
    if path in given.parents or given in path.parents:
        raise InputError(
            f"`path` {path} and the input {given} lie one inside the other. Choose another place."
        )


def _check_replaceable(path: Path, overwrite: bool) -> None:
    if not overwrite:
        raise InputError(
            f"`path` {path} exists. Use `overwrite=True` to replace it, or choose another name."
        )
    store = path.is_dir() and (
        any((path / name).exists() for name in ZARR) or not any(path.iterdir())
    )
    if not (store if path.suffix == ".zarr" else path.is_file()):
        raise InputError(
            f"`path` {path} exists and is not a "
            f"{'Zarr store' if path.suffix == '.zarr' else 'file'}, so it is not replaced even "
            "with `overwrite=True`. Choose another name."
        )


def _check_folder(folder: Path) -> None:
    """The folder is there and can be written to; one that is misspelt is not made."""
    if not folder.exists():
        there = next(f for f in folder.parents if f.exists())
        raise InputError(
            f"`path` lies in {folder}, which does not exist; the nearest folder that does is "
            f"{there}. Check its spelling, or make it first."
        )
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(
            f"`path` lies in {folder}, where nothing can be written: it is "
            f"{'not writable' if folder.is_dir() else 'no folder'}. Choose another folder."
        )


def _clear(stage: Path, path: Path) -> None:
    """Removes what a killed run left; an output that it was about to replace comes back first."""
    if (stage / "old").exists() and not path.exists():
        os.replace(stage / "old", path)
    for left in stage.iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()


def _flush(part: Path) -> None:
    if part.is_file():
        with part.open("rb+") as file:
            os.fsync(file.fileno())


def _replace(part: Path, path: Path, old: Path) -> None:
    """Puts `part` in the place of `path`; a folder needs two steps, and the first can be undone."""
    if not path.is_dir():
        os.replace(part, path)
        return
    os.replace(path, old)
    try:
        os.replace(part, path)
    except BaseException:
        os.replace(old, path)
        raise


def _vanish(stage: Path) -> None:
    """Removes the folder, again if a worker that was still writing has made it anew."""
    for wait in (0.0, 0.2, 1.0, 4.0):
        time.sleep(wait)
        if not stage.exists():
            return
        shutil.rmtree(stage, ignore_errors=True)
