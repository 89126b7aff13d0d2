"""Labelled data from files, lazily: NetCDF 3 and 4, and Zarr 2 and 3."""

import re
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from math import ceil, prod
from os import PathLike
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr

from .._errors import InputError, ProbConservError
from .._values import choice
from ._survey import Stored, groups, kind, survey

BLOCK = 24 * 2**20  # bytes that a block has at most, where the stored chunks allow it
SMALL = 8 * 2**20  # bytes up to which a coordinate is kept in memory
MOST_BLOCKS = 1_000_000
ONE_WAY = re.compile("(months?|years?) since ")  # xarray decodes them, and cannot encode them
NUMBERS = "biufcmM"


READ = "read-"  # how dask calls what lies in a file
INHERITED = "inherited"  # in the encoding of a dataset: names that groups around it hold


def read(
    path: str | PathLike[str],
    chunks: Mapping[str, int] | None = None,
    group: str = "",
    whole: Iterable[str] = (),
) -> xr.Dataset:
    """The dataset in a NetCDF file or a Zarr folder, its values read block by block when needed.

    Missing values are NaN, packed values are unpacked, and how they were stored stays in each
    variable's `encoding`. Times that cannot be decoded stay numbers. Close it with `.close()`, or
    open it in a `with` statement.

    chunks: how many entries a block has along some dimensions, -1 for all of them; rounded up to
    whole stored chunks. Without it, blocks are whole stored chunks of about 24 MB together.
    group: the one to read, "a/b" for b inside a; what the groups around it hold on its dimensions
    is seen in it too. whole: dimensions that blocks do not cut, where they are.
    """
    where, group = Path(path).resolve(), group.strip("/")
    with errors_of(where), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        levels = _levels(where, group)
        stored = {s.name: s for level in levels for s in survey(where, level)}
        _check_chunks(chunks or {}, stored)
        wanted = dict.fromkeys(whole, -1) | dict(chunks or {})
        shapes = {name: block_shape(s, wanted) for name, s in stored.items()}
        _check_count(where, stored, shapes)
        *around, opened = [_open(where, level) for level in levels]
        if not opened.variables:
            inside, place = (
                ", ".join(groups(where)),
                f"in group {group}" if group else "at its root",
            )
            raise InputError(
                f"`path` {where} holds no variables {place}."
                + (f" It has groups: give `group`, one of {inside}." if inside else "")
            )
        seen = _inherited(opened, around)
        dataset = _lazy(opened.assign_coords(seen), where, shapes)
    dataset.encoding = {**opened.encoding, INHERITED: tuple(seen)}
    dataset.set_close(partial(_close, (opened, *around)))
    return dataset


def _close(opened: Iterable[xr.Dataset]) -> None:
    for each in opened:
        each.close()


def _levels(path: Path, group: str) -> list[str]:
    """The root, the groups around the group, and itself."""
    if group and not groups(path):
        raise InputError(f"`group` is {group!r}, but {path} has no groups. Leave it out.")
    if group:
        choice("group", group, groups(path))
    parts = group.split("/") if group else []
    return ["/".join(parts[:depth]) for depth in range(len(parts) + 1)]


def _inherited(inner: xr.Dataset, around: list[xr.Dataset]) -> dict[Any, xr.Variable]:
    """What the groups around one hold on its dimensions; the nearest counts."""
    return {
        name: variable
        for outer in around
        for name, variable in outer.variables.items()
        if name not in inner.variables
        and all(inner.sizes.get(dim) == size for dim, size in variable.sizes.items())
    }


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
            f"`path` {path} cannot be read{what}: {reason}. It may be damaged or cut off: copy or "
            "download it again."
        ) from error


def block_shape(stored: Stored, chunks: Mapping[str, int]) -> tuple[int, ...]:
    """How many entries a block has along each dimension: whole stored chunks, the last axes first.

    A variable that lies in one piece is cut along its leading dimensions.
    """
    unit = [min(c, n) or 1 for c, n in zip(_unit(stored), stored.shape, strict=True)]
    shape = list(unit)
    for axis, dim in enumerate(stored.dims):
        if dim in chunks:
            wanted = stored.shape[axis] if chunks[dim] == -1 else chunks[dim]
            shape[axis] = ceil(wanted / unit[axis]) * unit[axis]
    itemsize = max(stored.itemsize, 4)  # of the unpacked values
    for axis in reversed(range(len(shape))):
        if not (axis < len(stored.dims) and stored.dims[axis] in chunks):
            times = BLOCK // (itemsize * prod(shape))
            shape[axis] = min(shape[axis] * max(1, times), max(1, stored.shape[axis]))
    return tuple(max(1, min(c, n)) for c, n in zip(shape, stored.shape, strict=True))


def _unit(stored: Stored) -> tuple[int, ...]:
    return stored.chunks or (1,) * len(stored.shape)


def _check_chunks(chunks: Mapping[str, int], stored: Mapping[str, Stored]) -> None:
    dims = sorted({dim for s in stored.values() for dim in s.dims})
    for dim, size in chunks.items():
        choice("chunks", dim, dims)
        if not isinstance(size, int | np.integer) or (size < 1 and size != -1):
            raise InputError(
                f"`chunks` must give a positive whole number for {dim!r}, or -1 for all entries; "
                f"got {size!r}."
            )


def _check_count(
    path: Path, stored: Mapping[str, Stored], shapes: dict[str, tuple[int, ...]]
) -> None:
    count = sum(
        prod(ceil(n / c) for n, c in zip(s.shape, shapes[name], strict=True))
        for name, s in stored.items()
    )
    if count > MOST_BLOCKS:
        raise InputError(
            f"`path` {path} would be read in {count:,} blocks, more than the {MOST_BLOCKS:,} that "
            "can be kept track of. Give larger `chunks`, or is the file damaged?"
        )


def _open(path: Path, group: str) -> xr.Dataset:
    """The store as xarray reads it; times that it cannot decode, or encode again, as numbers."""
    engine = "zarr" if kind(path) == "zarr" else "netcdf4"
    options: dict[str, Any] = {"cache": False, "decode_timedelta": False, "chunks": None}
    options |= {"group": group} if group else {}
    try:
        found = xr.open_dataset(path, engine=engine, **options)
        if not any(ONE_WAY.match(str(v.encoding.get("units"))) for v in found.variables.values()):
            return found
        found.close()
    except (ValueError, OverflowError, TypeError):
        pass
    return xr.open_dataset(path, engine=engine, decode_times=False, **options)


def _lazy(opened: xr.Dataset, path: Path, shapes: dict[str, tuple[int, ...]]) -> xr.Dataset:
    """The same dataset with its data as dask arrays, small coordinates and texts in memory."""
    run = uuid.uuid4().hex
    changed: dict[str, xr.Variable] = {}
    for name, variable in opened.variables.items():
        if name in opened.indexes:
            continue
        if variable.dtype.kind not in NUMBERS or (
            name in opened.coords and variable.nbytes <= SMALL
        ):
            changed[str(name)] = variable.load()
        else:
            shape = shapes[str(name)][: variable.ndim]
            changed[str(name)] = _as_blocks(
                variable, _Guarded(variable, path, str(name)), shape, run
            )
    return opened.assign(changed)


def _as_blocks(
    variable: xr.Variable, values: "_Guarded", shape: tuple[int, ...], run: str
) -> xr.Variable:
    blocks = da.from_array(
        values,
        chunks=shape,
        name=f"{READ}{values.name}-{run}",
        meta=np.empty((0,) * variable.ndim, variable.dtype),
        inline_array=True,
    )
    return xr.Variable(variable.dims, blocks, variable.attrs, variable.encoding)


class _Guarded:
    """The stored values of a variable, whose reading fails with an error that names the file."""

    def __init__(self, variable: xr.Variable, path: Path, name: str) -> None:
        self.variable, self.path, self.name = variable, path, name
        self.shape, self.dtype, self.ndim = variable.shape, variable.dtype, variable.ndim

    def __getitem__(self, where: tuple[slice, ...]) -> npt.NDArray[Any]:
        with errors_of(self.path, f" at {self.name}{_text(where)}"):
            return np.asarray(self.variable[where].values)


def _text(where: tuple[Any, ...]) -> str:
    ends = (f"{at.start}:{at.stop}" if isinstance(at, slice) else str(at) for at in where)
    return f"[{', '.join(ends)}]"
