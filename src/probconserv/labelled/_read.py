"""Labelled data from files, lazily: NetCDF and Zarr, one file, or many that follow one another."""

import re
import uuid
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from glob import glob
from math import ceil, prod
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr

from .._errors import InputError, ProbConservError
from .._values import choice
from ._law import STORES, Law, find, nearest
from ._survey import Stored, groups, kind, survey
from ._time import shown

BLOCK = 24 * 2**20  # bytes that a block has at most, where the stored chunks allow it
SMALL = 8 * 2**20  # bytes up to which a coordinate is kept in memory
MOST_BLOCKS = 1_000_000
ONE_WAY = re.compile("(months?|years?) since ")  # xarray decodes them, and cannot encode them
NUMBERS = "biufcmM"
READ = "read-"  # how dask calls what lies in a file
INHERITED = "inherited"  # in the encoding of a dataset: names that groups around it hold

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]


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
    with errors_of(where), warnings.catch_warnings(), ExitStack() as opened:
        warnings.simplefilter("ignore")
        levels = _levels(where, group)
        stored = {s.name: s for level in levels for s in survey(where, level)}
        shapes = _block_shapes(where, stored, chunks or {}, whole)
        *around, inner = [opened.enter_context(_open(where, level)) for level in levels]
        if not inner.variables:
            inside, place = groups(where), f"in group {group}" if group else "at its root"
            way = f" It has groups: give `group`, one of {', '.join(inside)}." if inside else ""
            raise InputError(f"`path` {where} holds no variables {place}.{way}")
        seen = {  # what the groups around it hold on its dimensions; the nearest counts
            name: variable
            for outer in around
            for name, variable in outer.variables.items()
            if name not in inner.variables
            and all(inner.sizes.get(dim) == size for dim, size in variable.sizes.items())
        }
        dataset = _lazy(inner.assign_coords(seen), where, shapes)
        dataset.encoding = {**inner.encoding, INHERITED: tuple(seen)}
        dataset.set_close(opened.pop_all().close)
    return dataset


def _levels(path: Path, group: str) -> list[str]:
    """The root, the groups around the group, and itself."""
    if group and not groups(path):
        raise InputError(f"`group` is {group!r}, but {path} has no groups. Leave it out.")
    if group:
        choice("group", group, groups(path))
    parts = group.split("/") if group else []
    return ["/".join(parts[:depth]) for depth in range(len(parts) + 1)]


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


def _block_shapes(
    path: Path, stored: Mapping[str, Stored], chunks: Mapping[str, int], whole: Iterable[str]
) -> dict[str, tuple[int, ...]]:
    """How many entries the blocks of every variable have."""
    for dim, size in chunks.items():
        choice("chunks", dim, sorted({dim for s in stored.values() for dim in s.dims}))
        if not isinstance(size, int | np.integer) or (size < 1 and size != -1):
            raise InputError(
                f"`chunks` must give a positive whole number for {dim!r}, or -1 for all entries; "
                f"got {size!r}."
            )
    wanted = dict.fromkeys(whole, -1) | dict(chunks)
    shapes = {name: block_shape(s, wanted) for name, s in stored.items()}
    counts = (
        prod(ceil(n / c) for n, c in zip(s.shape, shapes[name], strict=True))
        for name, s in stored.items()
    )
    if (count := sum(counts)) > MOST_BLOCKS:
        raise InputError(
            f"`path` {path} would be read in {count:,} blocks, more than the {MOST_BLOCKS:,} that "
            "can be kept track of. Give larger `chunks`, or is the file damaged?"
        )
    return shapes


def block_shape(stored: Stored, chunks: Mapping[str, int]) -> tuple[int, ...]:
    """How many entries a block has along each dimension: whole stored chunks, the last axes first.

    A variable that lies in one piece is cut along its leading dimensions.
    """
    chunk = stored.chunks or (1,) * len(stored.shape)
    shape = [max(1, min(c, n)) for c, n in zip(chunk, stored.shape, strict=True)]
    for axis, dim in enumerate(stored.dims):
        if dim in chunks:
            wanted = stored.shape[axis] if chunks[dim] == -1 else chunks[dim]
            shape[axis] *= ceil(wanted / shape[axis])
    itemsize = max(stored.itemsize, 4)  # of the unpacked values
    for axis in reversed(range(len(shape))):
        if not (axis < len(stored.dims) and stored.dims[axis] in chunks):
            shape[axis] *= max(1, BLOCK // (itemsize * prod(shape)))
        shape[axis] = max(1, min(shape[axis], stored.shape[axis]))
    return tuple(shape)


def _open(path: Path, group: str) -> xr.Dataset:
    """The store as xarray reads it; times that it cannot decode, or encode again, as numbers."""
    options: dict[str, Any] = {"cache": False, "decode_timedelta": False, "chunks": None}
    options |= {"engine": "zarr" if kind(path) == "zarr" else "netcdf4", "group": group or None}
    try:
        found = xr.open_dataset(path, **options)
        if not any(ONE_WAY.match(str(v.encoding.get("units"))) for v in found.variables.values()):
            return found
        found.close()
    except (ValueError, OverflowError, TypeError):
        pass
    return xr.open_dataset(path, decode_times=False, **options)


def _lazy(opened: xr.Dataset, path: Path, shapes: Mapping[str, tuple[int, ...]]) -> xr.Dataset:
    """The same dataset with its data as dask arrays, small coordinates and texts in memory."""
    run = uuid.uuid4().hex
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
            chunks=shapes[name][: variable.ndim],
            name=f"{READ}{name}-{run}",
            meta=np.empty((0,) * variable.ndim, variable.dtype),
            inline_array=True,
        )
        changed[name] = xr.Variable(variable.dims, blocks, variable.attrs, variable.encoding)
    return opened.assign(changed)


class _Guarded:
    """The stored values of a variable, whose reading fails with an error that names the file."""

    def __init__(self, variable: xr.Variable, path: Path, name: str) -> None:
        self.variable, self.path, self.name = variable, path, name
        self.shape, self.dtype, self.ndim = variable.shape, variable.dtype, variable.ndim

    def __getitem__(self, where: tuple[slice, ...]) -> npt.NDArray[Any]:
        ends = (f"{at.start}:{at.stop}" if isinstance(at, slice) else str(at) for at in where)
        with errors_of(self.path, f" at {self.name}[{', '.join(ends)}]"):
            return np.asarray(self.variable[where].values)


def with_files(law: Any, opened: ExitStack) -> Any:
    """The law with a DataArray in place of every FILE:VARIABLE; files stay open with the stack."""
    if callable(law):
        return lambda dataset: with_files(law(dataset), opened)
    if not isinstance(law, Law):
        return law
    given = {f.name: getattr(law, f.name) for f in fields(law) if f.name not in ("name", "remarks")}
    return replace(law, **{key: from_file(each, key, opened) for key, each in given.items()})


def from_file(given: Any, argument: str, opened: ExitStack) -> Any:
    """What FILE:VARIABLE stands for, also within lists and mappings; anything else as it is."""
    if isinstance(given, Mapping):
        return {key: from_file(value, argument, opened) for key, value in given.items()}
    if isinstance(given, list | tuple):
        return [from_file(value, argument, opened) for value in given]
    path, _, name = given.rpartition(":") if isinstance(given, str) else ("", "", "")
    if not path.endswith(STORES):
        return given
    where = Path(path)
    if not where.exists():
        near = nearest(where.name, [each.name for each in where.parent.glob(f"*{where.suffix}")])
        raise InputError(f"`{argument}` is {given!r}, but there is no file {path}. {near}")
    group, _, name = name.rpartition("/")
    found = find(opened.enter_context(read(path, group=group)), name, f"{argument} {given}")
    return found.load() if found.nbytes <= SMALL else found


def paths_of(source: Paths) -> list[Path]:
    """The files that are meant; a name with * or ? stands for all that match it."""
    given = [source] if isinstance(source, str | PathLike) else list(source)
    found: list[str] = []
    for path in given:
        each = fspath(path)
        found += (not Path(each).exists() and sorted(glob(each))) or [each]
    return list(map(Path, found))


def outputs(paths: Sequence[Path], folder: Path) -> list[Path]:
    """A file of the same name in the folder for each."""
    name, count = Counter(path.name for path in paths).most_common(1)[0]
    if count > 1:
        raise InputError(f"`source` has two files called {name}, which cannot both be written.")
    return [folder / path.name for path in paths]


@dataclass(frozen=True, eq=False)
class Series:
    """Files that follow one another along a dimension; one alone has none."""

    paths: Sequence[Path]
    parts: Sequence[xr.Dataset]
    whole: xr.Dataset
    dim: str = ""

    @classmethod
    def opened(cls, paths: Sequence[Path], stack: ExitStack, group: str, **how: Any) -> "Series":
        """how: as in `read`. The files stay open with the stack."""
        for path in paths if len(paths) > 1 else ():
            if group or groups(path):
                raise InputError(
                    f"`source` {path} has groups, and several files with groups cannot be one "
                    "series. Take the group out of each first, or give one file at a time."
                )
        parts = [stack.enter_context(read(path, group=group, **how)) for path in paths]
        if len(parts) == 1:
            return cls(paths, parts, parts[0])
        _check_alike(paths, parts)
        return cls(paths, parts, *_combined(parts))

    def entries(self, part: xr.Dataset) -> slice:
        """Where the times of a file are in those of all."""
        start = self.whole.indexes[self.dim].get_loc(part.indexes[self.dim][0])
        return slice(start, start + part.sizes[self.dim])

    def part_of(self, work: Any, own: xr.Dataset) -> Any:
        """The work on one of the files, `own`, whose totals follow from the whole series."""
        for plan in work.plans:
            if self.dim not in plan.index:
                labels = ", ".join(ready.law.label for ready in plan.laws)
                raise InputError(
                    f"`target`: {labels} ties all files together along {self.dim!r}. Write one "
                    "file: a name that ends in .nc or .zarr."
                )
        plans = []
        for plan in _at(work.plans, self.dim, self.entries(own)):
            stored = {name: (own[name].variable, *std) for name, (_, *std) in plan.arrays.items()}
            plans.append(replace(plan, arrays=stored))
        return replace(work, dataset=own, plans=plans)

    def together(self, work: Any, found: Sequence[Any]) -> dict[str, Any]:
        """What the passes found in each file, as if they had gone over the whole series."""
        entries = [self.entries(part) for part in self.parts]
        ordered = [found[n] for n in np.argsort([each.start for each in entries])]
        axes = [plan.index.index(self.dim) for plan in work.plans]
        result: dict[str, Any] = {"change": {}}
        for key in ("sums", "after"):
            per_plan = zip(*(each[key] for each in ordered), strict=True)
            result[key] = [_side_by_side(*each) for each in zip(per_plan, axes, strict=True)]
        lengths = xr.DataArray([each.stop - each.start for each in entries], dims="files")
        for name in found[0]["change"]:
            changes = xr.concat([each["change"][name] for each in found], "files")
            result["change"][name] = changes.weighted(lengths).mean("files", keep_attrs=True)
        return result


def _side_by_side(parts: Sequence[Any], axis: int) -> Any:
    """Arrays one after the other, counts added up; also within mappings."""
    if isinstance(parts[0], Mapping):
        return {key: _side_by_side([each[key] for each in parts], axis) for key in parts[0]}
    return np.concatenate(parts, axis) if np.ndim(parts[0]) else sum(parts)


def _at(given: Any, dim: str, where: slice) -> Any:
    """What is given at some entries of a dimension, also within plans, mappings and sequences."""
    if isinstance(given, xr.Variable | xr.DataArray):
        return given.isel({dim: where}, missing_dims="ignore")
    if isinstance(given, Mapping):
        sizes = {dim: where.stop - where.start} if isinstance(given.get(dim), int) else {}
        return {key: _at(value, dim, where) for key, value in given.items()} | sizes
    if isinstance(given, list | tuple):
        return tuple(_at(value, dim, where) for value in given)
    if is_dataclass(given) and not isinstance(given, type):
        parts = {each.name: _at(getattr(given, each.name), dim, where) for each in fields(given)}
        return replace(given, **parts)
    return given


def _check_alike(paths: Sequence[Path], parts: Sequence[xr.Dataset]) -> None:
    """Refuse variables that mean something else in another file: they become one array."""
    for path, part in zip(paths[1:], parts[1:], strict=True):
        for name in part.data_vars.keys() & parts[0].data_vars.keys():
            for key in ("units", "cell_methods"):
                ours, theirs = (each[name].attrs.get(key) for each in (parts[0], part))
                if ours != theirs:
                    raise InputError(
                        f"`source`: `{key}` of {str(name)!r} is {theirs!r} in {path.name} and "
                        f"{ours!r} in {paths[0].name}. Make them the same, values and attributes."
                    )


def _combined(parts: Sequence[xr.Dataset]) -> tuple[xr.Dataset, str]:
    """All parts as one dataset, and the dimension along which they follow one another."""
    rule = "`source`: files of a series follow one another along one coordinate and are the same"
    same: Any = {"data_vars": "minimal", "coords": "minimal", "compat": "equals", "join": "exact"}
    try:
        whole: Any = xr.combine_by_coords(parts, combine_attrs="override", **same)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{rule} elsewhere. These are not: {error}") from error
    differ = [str(dim) for dim, n in whole.sizes.items() if n != parts[0].sizes.get(dim)]
    if len(differ) != 1:
        raise InputError(f"{rule} elsewhere. These differ along {' and '.join(differ)}.")
    (dim,) = differ
    twice = whole.indexes[dim].duplicated()
    if twice.any():
        when = shown(whole[dim].values[twice][0])
        raise InputError(f"{rule} elsewhere. These overlap: {dim} {when} is there twice.")
    whole.encoding = parts[0].encoding
    return whole, dim
