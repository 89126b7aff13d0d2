"""Labelled data from files, lazily: NetCDF and Zarr, looked at before any value is read.

Addresses and stores of other kinds are refused with the Python that opens them.
"""

import json
import re
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from math import ceil, prod
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import dask.array as da
import netCDF4
import numpy as np
import numpy.typing as npt
import xarray as xr

from ..support.errors import InputError, ProbConservError
from ..support.values import choice

ZARR = ("zarr.json", ".zgroup", ".zmetadata")
ICECHUNK = ("refs", "snapshots", "manifests")
KINDS = ("netcdf3", "netcdf4", "zarr")
STARTS = {  # the first bytes of files
    b"CDF\x01": "netcdf3",
    b"CDF\x02": "netcdf3",
    b"CDF\x05": "netcdf3",
    b"\x89HDF\r\n\x1a\n": "netcdf4",
    b"GRIB": "is a GRIB file",
    b"\x1f\x8b": "is a gzip file",
    b"PK\x03\x04": "is a zip archive",
    b"{": "holds references of kerchunk",
}
OPENED = {  # by xarray, in Python
    "is a zip archive": "xr.open_zarr(zarr.storage.ZipStore({!r}, mode='r'))",
    "holds references of kerchunk": (
        "xr.open_zarr('reference://', storage_options={{'fo': {!r}}}, consolidated=False)"
    ),
    "is an icechunk store": (
        "xr.open_zarr(icechunk.Repository.open(icechunk.local_filesystem_storage({!r}))"
        ".readonly_session('main').store, consolidated=False)"
    ),
}
THEN = (
    "and then `dataset.probconserv.enforce(...)` or `.check(...)`, as `files.enforce` and "
    "`check`; `.drop_encoding().to_zarr(...)` writes what comes back"
)
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/|[A-Za-z0-9+.-]+::")  # not C:/, a disk
BLOCK = 24 * 2**20  # bytes that a block has at most, where the stored chunks allow it
SMALL = 8 * 2**20  # bytes up to which a coordinate is kept in memory
SUSPICIOUS = 16 * 2**30  # bytes from which a store must have something to show for them
DENSEST = 2000  # bytes of values that one byte of a file can hold, compressed
NUMBERS = "biufcmM"
READ = "read-"  # how dask calls what lies in a file
INHERITED = "inherited"  # in the encoding of a dataset: names that groups around it hold
STORED = "stored"  # the same: shape and type of what this group holds
OUTER = "outer"  # the same: attributes of the groups around it
CHANGED = "changed"  # the same: when the file was last changed
AGAIN = "Copy or download it again."


class Bare(InputError):
    """A file or a group holds no variables."""


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


def _no_url(argument: str, given: str, way: str) -> InputError:
    return InputError(
        f"`{argument}` {given} is a URL, and only files and folders that this machine sees are "
        f"read and written here. Copy it, or in Python: {way}."
    )


def here(given: str, argument: str) -> str:
    """The path of what is given, also as file://; any other URL is refused with a way out."""
    if given.startswith("file://") and not Path(given).exists():
        return unquote(urlsplit(given).path)
    if (way := line(given)) and not Path(given).exists():
        needs = "with fsspec and what it needs for this kind of address, such as s3fs or aiohttp"
        raise _no_url(argument, given, f"`{way}` ({needs}), {THEN}")
    return given


def check_target(given: str) -> None:
    """Refuses a URL as an output."""
    if given.startswith("file:"):
        raise InputError(f"`target` {given} must be a path: leave out file://.")
    if URL.match(given):
        given = re.sub(":/(?!/)", "://", given)  # as a path the second is lost
        raise _no_url("target", given, f"`files.enforce(dataset, ...).to_zarr({given!r})`")


def kind(path: Path) -> str:
    """One of KINDS, by what lies there; the name does not count."""
    if not path.exists():
        raise InputError(f"`path` {path} does not exist. Check its spelling and the folder.")
    if (what := _folder(path) if path.is_dir() else _file(path)) in KINDS:
        return what
    way = "Convert it to NetCDF, unpack it, or download it again."
    if what in OPENED:
        opened = OPENED[what].format(str(path))
        way = f"Unpack or copy it to a Zarr folder, or in Python: `dataset = {opened}`, {THEN}."
    raise InputError(f"`path` {path} is neither NetCDF nor a Zarr folder: it {what}. {way}")


def _folder(path: Path) -> str:
    """What a folder holds. References in Parquet look like a Zarr 2 store without values."""
    if all((path / name).is_dir() for name in ICECHUNK):
        return "is an icechunk store"
    with suppress(OSError, ValueError):
        told = json.loads((path / ".zmetadata").read_text())
        if "record_size" in told and not (path / ".zgroup").exists():
            return "holds references of kerchunk"
    if any((path / name).exists() for name in ZARR):
        return "zarr"
    files = any(path.glob("*.nc"))
    raise InputError(
        f"`path` {path} is a folder, but no Zarr store: none of {', '.join(ZARR)} is in it. "
        + (f"It holds NetCDF files: give them as {path}/*.nc, or " if files else "Give ")
        + "one file or the folder of a store."
    )


def _file(path: Path) -> str:
    """What a file is, by its first bytes."""
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise InputError(f"`path` {path} cannot be read: {error.strerror}.") from None
    if not start:
        raise InputError(f"`path` {path} is empty. {AGAIN}")
    known = (what for first, what in STARTS.items() if start.lstrip().startswith(first))
    return next(known, f"starts with {start!r}")


def groups(path: Path) -> list[str]:
    """The groups of a store, "a/b" for one inside another; those that hold variables or not."""
    if kind(path) == "zarr":
        import zarr  # takes a quarter of a second, which NetCDF need not wait for

        members = zarr.open_group(path, mode="r").members(max_depth=None)
        return [name for name, member in members if isinstance(member, zarr.Group)]
    with netCDF4.Dataset(path) as file:
        found = list(file.groups.values())
        for group in found:  # which grows on the way
            found += group.groups.values()
        return [group.path.strip("/") for group in found]


def read(
    path: str | PathLike[str],
    chunks: Mapping[str, int] | None = None,
    group: str = "",
    whole: Iterable[str] = (),
) -> xr.Dataset:
    """The dataset in a NetCDF file or a Zarr folder, its values read block by block when needed.

    Missing values are NaN, packed values are unpacked, and how they were stored stays in each
    variable's `encoding`. Times are the numbers that are stored. Close it with `.close()`, or
    open it in a `with` statement.

    chunks: how many entries a block has along some dimensions, -1 for all of them; rounded up to
    whole stored chunks. Without it, blocks are whole stored chunks of about 24 MB together.
    group: the one to read, "a/b" for b inside a; what the groups around it hold on its dimensions
    is seen in it too. whole: dimensions that blocks do not cut, where they are.
    """
    where, group = Path(path).resolve(), group.strip("/")
    with errors_of(where), warnings.catch_warnings(), ExitStack() as opened:
        warnings.simplefilter("ignore")
        changed = last_change(where)
        *around, inner = [_open(where, level, opened) for level in _levels(where, group)]
        if not inner.variables:
            inside, place = groups(where), f"in group {group}" if group else "at its root"
            way = " It is empty, cut off or damaged."
            way = f" It has groups: give `group`, one of {', '.join(inside)}." if inside else way
            raise Bare(f"`path` {where} holds no variables {place}.{way}")
        seen = {  # what the groups around it hold on its dimensions; the nearest counts
            name: variable
            for outer in around
            for name, variable in outer.variables.items()
            if name not in inner.variables
            and all(inner.sizes.get(dim) == size for dim, size in variable.sizes.items())
        }
        dataset = _lazy(inner.assign_coords(seen), where, chunks or {}, whole)
        stored = {name: stored_as(variable) for name, variable in inner.variables.items()}
        dataset.encoding = {**inner.encoding, INHERITED: tuple(seen), STORED: stored}
        dataset.encoding[OUTER] = {k: v for outer in around for k, v in outer.attrs.items()}
        dataset.encoding[CHANGED] = changed
        dataset.set_close(opened.pop_all().close)
    return dataset


@contextmanager
def errors_of(path: str | PathLike[str], what: str = "") -> Iterator[None]:
    """Whatever fails inside becomes an error that names the file."""
    try:
        yield
    except ProbConservError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"`path` {path} cannot be read{what}: {reason}. It may be damaged or cut off. {AGAIN}"
        ) from error


def _levels(path: Path, group: str) -> list[str]:
    """The root, the groups around the group, and itself."""
    if not group:
        return [""]
    inside = groups(path)
    if not inside:
        raise InputError(f"`group` is {group!r}, but {path} has no groups. Leave it out.")
    choice("group", group, inside)
    parts = group.split("/")
    return ["/".join(parts[:depth]) for depth in range(len(parts) + 1)]


def _open(path: Path, group: str, opened: ExitStack) -> xr.Dataset:
    """A group as xarray reads it, with times as the numbers that are stored; see `decoded`."""
    plain: dict[str, Any] = {"decode_cf": False, "create_default_indexes": False, "cache": False}
    engine = "zarr" if kind(path) == "zarr" else "netcdf4"
    if engine == "zarr":
        _check_definitions(path, group)
    stored = xr.open_dataset(path, engine=engine, group=group or None, chunks=None, **plain)
    opened.enter_context(stored)
    _check_sizes(path, stored)
    return xr.decode_cf(stored, decode_times=False, decode_timedelta=False)


def _lazy(
    opened: xr.Dataset, path: Path, chunks: Mapping[str, int], whole: Iterable[str]
) -> xr.Dataset:
    """The same dataset with its data as dask arrays, small coordinates and texts in memory."""
    for dim, size in chunks.items():
        choice("chunks", dim, sorted(map(str, opened.dims)))
        if not isinstance(size, int | np.integer) or (size < 1 and size != -1):
            raise InputError(
                f"`chunks` must give a positive whole number for {dim!r}, or -1 for all entries; "
                f"got {size!r}."
            )
    run, wanted = uuid.uuid4().hex, dict.fromkeys(whole, -1) | dict(chunks)
    changed: dict[str, xr.Variable] = {}
    for name, variable in ((str(n), v) for n, v in opened.variables.items()):
        label = name in opened.coords and variable.nbytes <= SMALL
        if name in opened.indexes:
            continue
        if label or variable.dtype.kind not in NUMBERS:
            changed[name] = variable.load()
            continue
        blocks = da.from_array(
            _Guarded(variable, path, name),
            chunks=block_shape(variable, wanted),
            name=f"{READ}{name}-{run}",
            meta=np.empty((0,) * variable.ndim, variable.dtype),
            inline_array=True,
        )
        changed[name] = xr.Variable(variable.dims, blocks, variable.attrs, variable.encoding)
    return opened.assign(changed)


def last_change(path: Path) -> int:
    """In nanoseconds; of a Zarr store, that of its metadata and of the folders of its arrays."""
    return max(
        (each.stat().st_mtime_ns for each in (path, *path.glob("*")) if each.exists()), default=0
    )


def stored_as(variable: xr.Variable) -> tuple[tuple[int, ...], str]:
    """The shape, and the type that its numbers have in a file."""
    return variable.shape, str(variable.encoding.get("dtype", variable.dtype))


def block_shape(variable: xr.Variable, chunks: Mapping[str, int]) -> tuple[int, ...]:
    """How many entries a block has along each dimension: whole stored chunks, the last axes first.

    A variable that lies in one piece is cut along its leading dimensions.
    """
    known = (variable.encoding.get(key) for key in ("shards", "chunks", "chunksizes"))
    chunk = next(filter(None, known), (1,) * variable.ndim)
    shape = [max(1, min(c, n)) for c, n in zip(chunk, variable.shape, strict=True)]
    for axis, dim in enumerate(variable.dims):
        if dim in chunks:
            wanted = variable.shape[axis] if chunks[str(dim)] == -1 else chunks[str(dim)]
            shape[axis] *= ceil(wanted / shape[axis])
    stored = np.dtype(variable.encoding.get("dtype", variable.dtype))
    itemsize = max(stored.itemsize, 4)  # of the unpacked values
    for axis in reversed(range(len(shape))):
        if variable.dims[axis] not in chunks:
            shape[axis] *= max(1, BLOCK // (itemsize * prod(shape)))
        shape[axis] = max(1, min(shape[axis], variable.shape[axis]))
    return tuple(shape)


class _Guarded:
    """The stored values of a variable, whose reading fails with an error that names the file."""

    def __init__(self, variable: xr.Variable, path: Path, name: str) -> None:
        self.variable, self.path, self.name = variable, path, name
        self.shape, self.dtype, self.ndim = variable.shape, variable.dtype, variable.ndim

    def __getitem__(self, where: tuple[slice, ...]) -> npt.NDArray[Any]:
        ends = (f"{at.start}:{at.stop}" if isinstance(at, slice) else str(at) for at in where)
        with errors_of(self.path, f" at {self.name}[{', '.join(ends)}]"):
            return np.asarray(self.variable[where].values)


def _check_sizes(path: Path, stored: xr.Dataset) -> None:
    """Refuses more values than the bytes of the store can hold.

    NetCDF 3 holds them as they are; its library reads those that are missing at its end as 0.
    """
    plain = kind(path) == "netcdf3"
    promised = sum(each.size * (each.dtype.itemsize or 8) for each in stored.variables.values())
    if promised <= SUSPICIOUS and not plain:
        return
    files = path.rglob("*") if path.is_dir() else [path]
    there = sum(file.stat().st_size for file in files)
    if there * (1 if plain else DENSEST) >= promised:
        return
    raise InputError(
        f"`path` {path} says that it holds {promised:,} bytes of values, but only {there:,} bytes "
        "are there. It is cut off or damaged, or most of it was never written. " + AGAIN
    )


def _check_definitions(store: Path, group: str) -> None:
    """Reads each definition of a Zarr store, of which consolidated ones are copies, or names it."""
    import zarr

    listed = zarr.open_group(store, mode="r", path=group).array_keys()
    each = zarr.open_group(store, mode="r", path=group, use_consolidated=False)
    for name in listed:
        with errors_of(store, f" at {name}"):
            each[name]
