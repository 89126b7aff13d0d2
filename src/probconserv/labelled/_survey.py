"""What a store says it holds, looked at before any value is read or any memory taken."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import netCDF4
import numpy as np
from xarray.backends.netCDF4_ import NETCDF4_PYTHON_LOCK as LOCK

from .._errors import InputError

ZARR = ("zarr.json", ".zgroup", ".zmetadata")
FORMATS = {
    b"CDF\x01": "netcdf3",
    b"CDF\x02": "netcdf3",
    b"CDF\x05": "netcdf3",
    b"\x89HDF\r\n\x1a\n": "netcdf4",
}
OTHERS = {
    b"GRIB": "a GRIB file",
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "a gzip file",
}
LARGEST_CHUNK = 4 * 2**30
LARGEST_INDEX = 2**30
SUSPICIOUS = 16 * 2**30  # bytes from which a store must have something to show for them
DENSEST = 2000  # bytes of values that one byte of a file can hold, compressed
PATIENCE = 30.0  # seconds for a file to open
NETCDF3_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 4, 6: 8, 7: 1, 8: 2, 9: 4, 10: 8, 11: 8}  # of a type
AGAIN = "Copy or download it again."


@dataclass(frozen=True)
class Stored:
    """One variable as it lies in a store."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    itemsize: int
    chunks: tuple[int, ...] | None  # none where it lies in one piece

    @property
    def nbytes(self) -> int:
        return self.itemsize * prod(self.shape)


def kind(path: Path) -> str:
    """netcdf3, netcdf4 or zarr, by what lies there; the name does not count."""
    if not path.exists():
        raise InputError(f"`path` {path} does not exist. Check its spelling and the folder.")
    if path.is_dir():
        if any((path / name).exists() for name in ZARR):
            return "zarr"
        files = any(path.glob("*.nc"))
        raise InputError(
            f"`path` {path} is a folder, but no Zarr store: none of {', '.join(ZARR)} is in it. "
            + (f"It holds NetCDF files: give them as {path}/*.nc, or " if files else "Give ")
            + "one file or the folder of a store."
        )
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise InputError(f"`path` {path} cannot be read: {error.strerror}.") from None
    for magic, found in FORMATS.items():
        if start.startswith(magic):
            return found
    others = (f"it is {what}" for magic, what in OTHERS.items() if start.startswith(magic))
    raise InputError(
        f"`path` {path} is neither NetCDF nor a Zarr folder: "
        f"{next(others, f'it starts with {start!r}')}. Convert it to NetCDF, unpack it, or "
        "download it again."
    )


def survey(path: Path, group: str = "") -> list[Stored]:
    """The variables of a group of the store, after every check that needs no values."""
    found = kind(path)
    if found == "netcdf3":
        _check_end(path)
    elif found == "netcdf4":
        check_opens(path)
    stored = list(_zarr(path, group) if found == "zarr" else _netcdf(path, group))
    for variable in stored:
        _check_size(path, variable)
    _check_substance(path, sum(variable.nbytes for variable in stored))
    return stored


def groups(path: Path) -> list[str]:
    """The groups of a store, "a/b" for one inside another; those that hold variables or not."""
    if kind(path) == "zarr":
        import zarr  # takes a quarter of a second, which NetCDF need not wait for

        members = zarr.open_group(path, mode="r").members(max_depth=None)
        return [name for name, member in members if isinstance(member, zarr.Group)]
    with netCDF4.Dataset(path) as file:
        return list(_groups_below(file))


def _groups_below(group: netCDF4.Dataset) -> Iterator[str]:
    for inner in group.groups.values():
        yield inner.path.strip("/")
        yield from _groups_below(inner)


def _netcdf(path: Path, group: str) -> Iterator[Stored]:
    with netCDF4.Dataset(path) as file:
        for name, variable in (file[group] if group else file).variables.items():
            chunks = variable.chunking()
            yield Stored(
                name,
                variable.dimensions,
                tuple(int(n) for n in variable.shape),
                getattr(variable.dtype, "itemsize", 8),
                tuple(int(n) for n in chunks) if isinstance(chunks, list) else None,
            )


def _zarr(path: Path, group: str) -> Iterator[Stored]:
    import zarr

    for name, array in zarr.open_group(path, mode="r", path=group or None).arrays():
        dims = array.attrs.get("_ARRAY_DIMENSIONS", getattr(array.metadata, "dimension_names", ()))
        unit = array.shards or array.chunks
        itemsize = np.dtype(array.dtype).itemsize or 8
        yield Stored(name, tuple(dims or ()), array.shape, itemsize, unit)  # type: ignore[arg-type]


def check_opens(path: Path, patience: float = PATIENCE) -> None:
    """Refuses a NetCDF file whose opening does not end, or ends the process.

    A child process opens it first: the library may crash over a damaged file, or hang.
    """
    if not hasattr(os, "fork"):  # Windows
        return
    with LOCK:  # so that the child finds the library idle
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, patience)  # its end, also inside the library
        _open_and_leave(path)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        slow = os.WTERMSIG(status) == signal.SIGALRM
        what = f"does not end within {patience:g} s" if slow else "crashes its library"
        raise InputError(f"`path` {path} is damaged: opening it {what}. {AGAIN}")


def _open_and_leave(path: Path) -> None:
    """Ends the child; an error is for the parent to find."""
    try:
        netCDF4.Dataset(path).close()
    finally:
        os._exit(0)


def _check_end(path: Path) -> None:
    """Refuses a NetCDF 3 file whose end is missing: its library reads that as 0."""
    size = path.stat().st_size
    with path.open("rb") as file:
        try:
            promised = _Header(file, size).end()
        except (IndexError, KeyError, OverflowError):
            raise InputError(
                f"`path` {path} has a NetCDF 3 header that is cut off or damaged. {AGAIN}"
            ) from None
    if promised > size:
        raise InputError(
            f"`path` {path} is cut off: its header promises {promised:,} bytes and the file has "
            f"{size:,}. {AGAIN}"
        )


class _Header:
    """The header of a NetCDF 3 file, read on; what makes no sense is an IndexError or KeyError."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.size = file, size
        version = file.read(4)[3]
        self.width = 8 if version == 5 else 4  # bytes of a count
        self.offset = 4 if version == 1 else 8  # bytes of a position in the file

    def end(self) -> int:
        """Where the last value of all variables ends."""
        records = self._count()
        if records == 2 ** (8 * self.width) - 1:  # never filled in
            records = 0
        lengths = self._list(self._dimension)
        self._list(self._attribute)
        variables = self._list(lambda: self._variable(lengths))
        sizes = [size for size, _, many in variables if many]
        # a variable that is alone in its records is not padded
        stride = sizes[0] if len(sizes) == 1 else sum(map(_padded, sizes))
        ends = [self.file.tell()]
        for size, begin, many in variables:
            if records or not many:
                ends.append(begin + size + (stride * (records - 1) if many else 0))
        return max(ends)

    def _list(self, entry: Callable[[], Any]) -> list[Any]:
        tag, count = self._count(4), self._count()
        if tag > 12 or count > self.size:
            raise IndexError
        return [entry() for _ in range(count)]

    def _dimension(self) -> int:
        self._skip(self._count())
        return self._count()

    def _attribute(self) -> None:
        self._skip(self._count())
        size = NETCDF3_SIZES[self._count(4)]
        self._skip(size * self._count())

    def _variable(self, lengths: list[int]) -> tuple[int, int, bool]:
        """Its bytes, where it begins, and whether it has records (the bytes are then of one)."""
        self._skip(self._count())
        rank = self._count()
        shape = [lengths[self._count()] for _ in range(min(rank, self.size))]
        self._list(self._attribute)
        size = NETCDF3_SIZES[self._count(4)]
        self._count()  # the size it claims, which overflows in valid files
        many = bool(shape) and shape[0] == 0
        return size * prod(shape[many:]), self._count(self.offset), many

    def _count(self, width: int = 0) -> int:
        width = width or self.width
        read = self.file.read(width)
        if len(read) < width:
            raise IndexError
        return int.from_bytes(read, "big")

    def _skip(self, count: int) -> None:
        self.file.seek(_padded(count), 1)


def _padded(size: int) -> int:
    return -(-size // 4) * 4


def _check_size(path: Path, variable: Stored) -> None:
    if variable.dims == (variable.name,) and variable.nbytes > LARGEST_INDEX:
        raise InputError(
            f"`path` {path} gives its dimension {variable.name!r} a coordinate of "
            f"{variable.shape[0]:,} values, too many to label anything. Drop that coordinate."
        )
    chunk = variable.itemsize * prod(variable.chunks or ())
    if chunk > LARGEST_CHUNK:
        raise InputError(
            f"`path` {path} stores {variable.name!r} in chunks of {chunk:,} bytes each, and one "
            f"must fit into memory: at most {LARGEST_CHUNK:,}. Store it again in smaller chunks."
        )


def _check_substance(path: Path, promised: int) -> None:
    """Refuses a store that claims far more values than its bytes can hold."""
    if promised <= SUSPICIOUS:
        return
    there = 0
    for file in path.rglob("*") if path.is_dir() else [path]:
        there += file.stat().st_size if file.is_file() else 0
        if there * DENSEST >= promised:
            return
    raise InputError(
        f"`path` {path} says that it holds {promised:,} bytes of values, but only {there:,} bytes "
        "are there. Its dimensions are damaged, or most of it was never written."
    )
