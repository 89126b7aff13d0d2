"""Data that is not read here, addresses and stores of other kinds, and the Python that opens it."""

import json
import re
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ..support.errors import InputError

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/|[A-Za-z0-9+.-]+::")  # not C:/, a disk
THEN = (
    "and then `dataset.probconserv.enforce(...)` or `.check(...)`, as `files.enforce` and "
    "`check`; `.drop_encoding().to_zarr(...)` writes what comes back"
)
ICECHUNK = ("refs", "snapshots", "manifests")
ZIP_LINE = "xr.open_zarr(zarr.storage.ZipStore({!r}, mode='r'))"
ICECHUNK_LINE = (
    "xr.open_zarr(icechunk.Repository.open(icechunk.local_filesystem_storage({!r}))"
    ".readonly_session('main').store, consolidated=False)"
)


def line(given: str) -> str:
    """The line of Python that opens a URL; empty for what is no URL."""
    if not URL.match(given):
        return ""
    if "/dodsC/" in given or "/opendap/" in given.lower():
        return f"dataset = xr.open_dataset({given!r}, chunks={{}})"
    if re.search(r"\.(nc4?|cdf|hdf5?|h5)$", given):
        local = given if given.startswith("simplecache::") else f"simplecache::{given}"
        return f"dataset = xr.open_dataset(fsspec.open_local({local!r}), chunks={{}})"
    return f"dataset = xr.open_zarr({given!r})"


def here(given: str, argument: str) -> str:
    """The path of what is given, also as file://; any other URL is refused with a way out."""
    if given.startswith("file://") and not Path(given).exists():
        return unquote(urlsplit(given).path)
    if (way := line(given)) and not Path(given).exists():
        raise InputError(
            f"`{argument}` {given} is a URL, and only files and folders that this machine sees are "
            f"read and written here. Copy it first, or in Python: `{way}` (with fsspec and what it "
            f"needs for this kind of address, such as s3fs, gcsfs or aiohttp), {THEN}."
        )
    return given


def check_target(given: str) -> None:
    """Refuses a URL as an output."""
    if URL.match(given):
        if given.startswith("file:"):
            raise InputError(f"`target` {given} must be a path: leave out file://.")
        given = re.sub(":/(?!/)", "://", given)  # as a path the second is lost
        raise InputError(
            f"`target` {given} is a URL, and only files and folders that this machine sees are "
            "written here. Write it here and copy it, or in Python: "
            f"`files.enforce(dataset, ...).to_zarr({given!r})`."
        )


def opened_otherwise(path: Path, start: bytes) -> str:
    """What lies there and the line of Python that opens it, in words; empty for other things.

    start: the first bytes of a file.
    """
    if path.is_dir() and all((path / name).is_dir() for name in ICECHUNK):
        return _said("an icechunk store", ICECHUNK_LINE.format(str(path)))
    if path.is_dir() and _is_references(path):
        return _said("references of kerchunk", _referred(path))
    if start.startswith(b"PK\x03\x04"):
        return _said("a zip archive", ZIP_LINE.format(str(path)))
    if start.lstrip().startswith(b"{"):
        return _said("JSON, perhaps references of kerchunk", _referred(path))
    return ""


def _referred(path: Path) -> str:
    how = f"storage_options={{'fo': {str(path)!r}}}, consolidated=False"
    return f"xr.open_zarr('reference://', {how})"


def _is_references(path: Path) -> bool:
    """References in Parquet look like a Zarr 2 store all of whose values are missing."""
    if (path / ".zgroup").exists():
        return False
    with suppress(OSError, ValueError):
        return "record_size" in json.loads((path / ".zmetadata").read_text())
    return False


def _said(what: str, way: str) -> str:
    return (
        f"it is {what}. Unpack or copy it to a Zarr folder, or in Python: `dataset = {way}`, {THEN}"
    )
