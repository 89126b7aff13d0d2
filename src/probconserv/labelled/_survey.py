"""What a store says it holds, looked at before any value is read or any memory taken."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path

import netCDF4
import numpy as np
import zarr

from .._errors import InputError
from ._netcdf3 import check_header
from ._probe import check_opens

HDF5 = b"\x89HDF\r\n\x1a\n"
ZARR = ("zarr.json", ".zgroup", ".zmetadata")
OTHERS = {
    b"GRIB": "a GRIB file",
    b"\x0e\x03\x13\x01": "an HDF4 file",
    b"II*\x00": "a TIFF file",
    b"MM\x00*": "a TIFF file",
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "a gzip file",
}
LARGEST_CHUNK = 4 * 2**30
LARGEST_INDEX = 2**30
SUSPICIOUS = 16 * 2**30  # bytes from which a store must have something to show for them
DENSEST = 2000  # bytes of values that one byte of a file can hold, compressed


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

    @property
    def is_index(self) -> bool:
        return self.dims == (self.name,)


def kind(path: Path) -> str:
    """netcdf3, netcdf4 or zarr, by what lies there; the name does not count."""
    if not path.exists():
        raise InputError(f"`path` {path} does not exist. Check its spelling and the folder.")
    if path.is_dir():
        if not any((path / name).exists() for name in ZARR):
            raise InputError(
                f"`path` {path} is a folder, but no Zarr store: none of {', '.join(ZARR)} is in "
                "it. Give the folder of the store itself, or a NetCDF file."
            )
        return "zarr"
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise InputError(f"`path` {path} cannot be read: {error.strerror}.") from None
    if start[:4] in (b"CDF\x01", b"CDF\x02", b"CDF\x05"):
        return "netcdf3"
    if start == HDF5:
        return "netcdf4"
    what = next((text for magic, text in OTHERS.items() if start.startswith(magic)), "")
    raise InputError(
        f"`path` {path} is neither NetCDF nor a Zarr folder: "
        + (f"it is {what}" if what else f"it starts with {start!r}")
        + ". Convert it to NetCDF, unpack it, or download it again."
    )


def survey(path: Path) -> list[Stored]:
    """The variables of the store, after every check that needs no values."""
    found = kind(path)
    if found == "netcdf3":
        check_header(path)
    elif found == "netcdf4":
        _check_length(path)
        check_opens(path)
    stored = list(_zarr(path) if found == "zarr" else _netcdf(path))
    for variable in stored:
        _check_size(path, variable)
    _check_substance(path, sum(variable.nbytes for variable in stored))
    return stored


def _netcdf(path: Path) -> Iterator[Stored]:
    with netCDF4.Dataset(path) as file:
        for name, variable in file.variables.items():
            chunks = variable.chunking()
            yield Stored(
                name,
                variable.dimensions,
                tuple(int(n) for n in variable.shape),
                getattr(variable.dtype, "itemsize", 8),
                tuple(int(n) for n in chunks) if isinstance(chunks, list) else None,
            )


def _zarr(path: Path) -> Iterator[Stored]:
    for name, array in zarr.open_group(path, mode="r").arrays():
        dims = array.attrs.get("_ARRAY_DIMENSIONS", getattr(array.metadata, "dimension_names", ()))
        unit = array.shards or array.chunks
        itemsize = np.dtype(array.dtype).itemsize or 8
        yield Stored(name, tuple(dims or ()), array.shape, itemsize, unit)  # type: ignore[arg-type]


def _check_length(path: Path) -> None:
    """Refuses an HDF5 file that is shorter than its first block says."""
    with path.open("rb") as file:
        head = file.read(64)
    version = head[8] if len(head) > 16 else 99
    start, width = (24 + 4 * version, head[13]) if version < 2 else (12, head[9])
    at = start + 2 * width
    if version > 3 or width not in (2, 4, 8) or len(head) < at + width:
        raise InputError(
            f"`path` {path} starts like NetCDF 4, but its first block is damaged or cut off. "
            "Copy or download it again."
        )
    promised, size = int.from_bytes(head[at : at + width], "little"), path.stat().st_size
    if promised > size:
        raise InputError(
            f"`path` {path} is cut off: it says that it has {promised:,} bytes and the file has "
            f"{size:,}. Copy or download it again."
        )


def _check_size(path: Path, variable: Stored) -> None:
    if variable.is_index and variable.nbytes > LARGEST_INDEX:
        raise InputError(
            f"`path` {path} gives its dimension {variable.name!r} a coordinate of "
            f"{variable.shape[0]:,} values, too many to label anything. Is the file damaged? "
            "Otherwise drop that coordinate."
        )
    chunk = variable.itemsize * prod(variable.chunks or ())
    if chunk > LARGEST_CHUNK:
        raise InputError(
            f"`path` {path} stores {variable.name!r} in chunks of {chunk:,} bytes each, and one "
            f"must fit into memory: at most {LARGEST_CHUNK:,}. Is the file damaged? Otherwise "
            "store it again in smaller chunks."
        )


def _check_substance(path: Path, promised: int) -> None:
    """Refuses a store that claims far more values than its bytes can hold."""
    needed = ceil(promised / DENSEST)
    if promised <= SUSPICIOUS:
        return
    there = 0
    for file in path.rglob("*") if path.is_dir() else [path]:
        there += file.stat().st_size if file.is_file() else 0
        if there >= needed:
            return
    raise InputError(
        f"`path` {path} says that it holds {promised:,} bytes of values, but only {there:,} bytes "
        "are there. Its dimensions are damaged, or most of it was never written."
    )
