"""Labelled data into files: in one pass, complete or not at all."""

import os
import shutil
import signal
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise, product
from os import PathLike
from pathlib import Path
from typing import Any

import dask.array as da
import netCDF4
import numpy as np
import numpy.typing as npt
import xarray as xr
from xarray.backends import NetCDF4DataStore
from xarray.backends.netCDF4_ import NETCDF4_PYTHON_LOCK as LOCK  # the one that reading takes

from .._errors import InputError, ProbConservError
from .._files import sole_writer
from . import _cluster
from ._encoding import Format, aligned, encoded, is_lazy, output_format, prepared
from ._read import INHERITED, READ
from ._survey import ZARR, groups, kind

NETCDF = (".nc", ".nc4", ".cdf")
UNSAVED = 1 << 28  # bytes that wait for the disk at most


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


Finish = Callable[[Any], dict[str, str]]
Lazy = Mapping[Hashable, da.Array]


@dataclass(frozen=True)
class _Output:
    part: Path  # where it grows
    format: Format
    source: Path | None  # a file with groups, whose other contents it takes over
    group: str


def write(
    dataset: xr.Dataset,
    path: str | PathLike[str],
    overwrite: bool = False,
    also: Any = None,
    finish: Finish | None = None,
    like: str | PathLike[str] | None = None,
    group: str = "",
) -> Any:
    """What `also` came to; the dataset is then in the file under its name, or nothing is.

    Every block is computed once, for the file and for `also`, and then let go. Where a block of
    the dataset depends on all blocks of something (a total over time, say), compute that first:
    otherwise everything stays in memory until it is known.

    path: ends in .nc, .nc4 or .cdf for NetCDF, in .zarr for Zarr. overwrite: replace what is
    there, once the new one is complete. also: small dask collections, in any nest of dicts and
    lists. finish: given what they came to, returns attributes for the file. like: a file whose
    format the output takes over; otherwise it is NetCDF 4 or Zarr 3. group: where in the file
    the dataset belongs. Other groups, and what else is in this one, come from `like` as they are.
    """
    held = [dataset.encoding, *(v.encoding for v in dataset.variables.values())]
    inputs = {encoding["source"] for encoding in held if "source" in encoding}
    where = check_output(path, overwrite, inputs | ({str(like)} if like is not None else set()))
    format = output_format(where, None if like is None else Path(like), dataset)
    dataset = dataset.drop_vars(
        [name for name in dataset.encoding.get(INHERITED, ()) if not _is_changed(dataset, name)]
    )
    source = None if like is None or not groups(Path(like)) else Path(like).resolve()
    if source is not None:
        if (kind(source) == "zarr") != (format.zarr is not None):
            raise InputError(
                f"`path`: {source} has groups, which are kept only from NetCDF to NetCDF and from "
                f"Zarr to Zarr. Choose a name that ends in {'.nc' if format.zarr else '.zarr'}."
            )
        dataset = dataset.drop_vars([n for n in dataset.variables if not _is_changed(dataset, n)])
    ready = prepared(dataset, format)
    with _errors_of_writing(where), staged(where) as part, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # texts in Zarr 3, and NaN where packing checks anyway
        store = _into_zarr if format.zarr else _into_netcdf
        return store(ready, _Output(part, format, source, group.strip("/")), also, finish)


@contextmanager
def _errors_of_writing(path: Path) -> Iterator[None]:
    """Whatever the disk or a library refuses becomes an error that names the output."""
    try:
        yield
    except ProbConservError:
        raise
    except (OSError, RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        raise InputError(
            f"`path` {path} cannot be written: {error}. Nothing of it was kept. Is there room on "
            "the disk, and can the format hold these values?"
        ) from error


def _is_changed(dataset: xr.Dataset, name: Hashable) -> bool:
    """Whether the variable is no longer what was read."""
    variable = dataset.variables[name]
    return is_lazy(variable) and not variable.data.name.startswith(READ)


def _into_zarr(dataset: xr.Dataset, out: _Output, also: Any, finish: Finish | None) -> Any:
    import zarr

    part, format, source, group = out.part, out.format, out.source, out.group
    if source is not None:
        new = {str(source / group / str(name)) for name in dataset.variables}
        shutil.copytree(
            source, part, ignore=lambda at, names: [n for n in names if f"{at}/{n}" in new]
        )
    how: Any = {"mode": "w" if source is None else "a", "group": group or None}
    dataset.to_zarr(part, compute=False, consolidated=False, zarr_format=format.zarr, **how)
    lazy = _lazy(dataset)
    targets = {name: ZarrArray(part / group / str(name), part.parent) for name in lazy}
    results = _run(lazy, targets, also)
    for left in [] if _cluster.in_process() else part.rglob("*.partial"):
        left.unlink()  # of a worker that was killed
    written = zarr.open_group(part, mode="r+", path=group or None, use_consolidated=False)
    written.attrs.update(finish(results) if finish else {})
    for level in dict.fromkeys([group, ""]):
        zarr.consolidate_metadata(
            part, path=level or None, zarr_format=2 if format.zarr == 2 else 3
        )
    return results


def _into_netcdf(dataset: xr.Dataset, out: _Output, also: Any, finish: Finish | None) -> Any:
    part, format, source, group = out.part, out.format, out.source, out.group
    new, unlimited = dataset, format.unlimited
    how: Any = {"mode": "w"}
    if source is not None:
        shutil.copyfile(source, part)
        new, unlimited = _not_in(part, group, dataset), ()  # its dimensions are there
        how = {"mode": "a", "group": group}
    # not `to_netcdf`, which imports distributed (0.6 s) to ask where dask computes
    store = NetCDF4DataStore.open(str(part), format=format.netcdf, lock=LOCK, **how)
    try:  # only the definitions and what is in memory
        new.dump_to_store(store, unlimited_dims=unlimited)
    finally:
        store.close()
    lazy = _lazy(dataset)
    with NetcdfFile(part, group) as file:
        targets = {name: NetcdfVariable(file, str(name)) for name in lazy}
        if _cluster.in_process():
            results = _run(lazy, targets, also)
        else:
            results = _run_apart(lazy, targets, also, part.with_suffix(".blocks"))
        attributes = finish(results) if finish else {}
        with LOCK:
            file.group.setncatts(attributes)
    return results


def _not_in(path: Path, group: str, dataset: xr.Dataset) -> xr.Dataset:
    """The variables of the dataset that the group of the file has not yet."""
    with netCDF4.Dataset(path) as file:
        there = (file[group] if group else file).variables
        for name in set(there) & set(dataset.variables):
            kept, wanted = there[name].dtype, dataset[name].encoding.get("dtype", there[name].dtype)
            if kept != wanted:
                raise InputError(
                    f"`unpack`: {name} would change from {kept} to {wanted}, which is not possible "
                    "in a file with groups. Take the group out first (`ncks -G : -g GROUP`)."
                )
        return dataset.drop_vars(set(there) & set(dataset.variables))


def _lazy(dataset: xr.Dataset) -> dict[Hashable, da.Array]:
    """The dask arrays of the numbers that are still to be written."""
    return {
        name: encoded(str(name), variable)
        for name, variable in dataset.variables.items()
        if is_lazy(variable)
    }


def _run(lazy: Lazy, targets: Mapping[Hashable, Any], also: Any) -> Any:
    """Computes and writes all blocks, and `also`, in one go.

    Variables that are cut alike are tied, block by block: what they share is then not held for
    long. Otherwise dask may write all of one variable first, and keep what the others need of it.
    """
    alike: dict[Any, list[da.Array]] = {}
    for name, data in lazy.items():
        stored = da.store([data], [targets[name]], lock=False, compute=False)
        alike.setdefault(data.numblocks, []).append(stored)
    ties = [_tied(each) for each in alike.values()]
    return _cluster.compute((ties, also), "writing")[1]


def _tied(stored: list[da.Array]) -> da.Array:
    """One element for each block of the arrays, which is there when all of them are written."""
    shape = stored[0].numblocks
    one = np.ones((1,) * len(shape), bool)
    chunks = tuple((1,) * count for count in shape)
    indices = [each for array in stored for each in (array, range(len(shape)))]
    return da.blockwise(
        lambda *_: one,
        range(len(shape)),
        *indices,
        adjust_chunks=dict(enumerate(chunks)),
        align_arrays=False,
        meta=np.empty((0,) * len(shape), bool),
    )


def _run_apart(lazy: Lazy, targets: Mapping[Hashable, Any], also: Any, folder: Path) -> Any:
    """As `_run`, through a Zarr store: only this process may write to a NetCDF file."""
    import zarr

    whole = {name: aligned(xr.Variable(range(a.ndim), a)).data for name, a in lazy.items()}
    between: dict[Hashable, ZarrArray] = {}
    for name, data in whole.items():
        array = folder / str(name)
        zarr.create_array(array, shape=data.shape, dtype=data.dtype, chunks=data.chunksize)
        between[name] = ZarrArray(array, folder.parent)
    results = _run(whole, between, also)
    for name, data in whole.items():
        held = zarr.open_array(folder / str(name), mode="r")
        ends = [np.cumsum([0, *sizes]).tolist() for sizes in data.chunks]
        for where in product(*([slice(a, b) for a, b in pairwise(end)] for end in ends)):
            targets[name][where] = np.asarray(held[where])
    shutil.rmtree(folder, ignore_errors=True)
    return results


class ZarrArray:
    """A Zarr array; blocks that share no chunk can be written at the same time, or twice."""

    def __init__(self, path: Path, stage: Path) -> None:
        self.path, self.stage = path, stage

    def __setitem__(self, where: tuple[slice, ...], block: npt.NDArray[Any]) -> None:
        import zarr

        if not self.stage.exists():
            raise InputError(
                f"{self.stage} is not there: the run was ended, or this worker does not see the "
                "folder of the output. Use a folder that all workers share."
            )
        zarr.open_array(self.path, mode="r+")[where] = block


class NetcdfFile:
    """A NetCDF file whose variables are defined, open for writing by threads of this process."""

    def __init__(self, path: Path, group: str = "") -> None:
        with LOCK:
            self.file: Any = netCDF4.Dataset(path, "r+")
            self.group: Any = self.file[group] if group else self.file
            self.group.set_auto_maskandscale(False)
            self.group.set_auto_chartostring(False)
            for variable in self.group.variables.values():
                if _is_plain(variable):  # blocks go to the disk, not through a cache
                    variable.set_var_chunk_cache(1, 1, 0.0)
        self.closed, self.unsaved = False, 0
        self.handle, self.saver = os.open(path, os.O_RDONLY), ThreadPoolExecutor(1)

    def put(self, name: str, where: Any, block: npt.NDArray[Any]) -> None:
        """Writes a block; now and then the disk is told to take what is there, beside the work."""
        self.group.variables[name][where] = block
        self.unsaved += block.nbytes
        if self.unsaved > UNSAVED:
            self.unsaved = 0
            self.saver.submit(os.fsync, self.handle)

    def __enter__(self) -> "NetcdfFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with LOCK, suppress(*([] if kind is None else [Exception])):
            self.closed = True
            self.file.close()
        self.saver.shutdown(cancel_futures=True)
        os.close(self.handle)


class NetcdfVariable:
    def __init__(self, file: NetcdfFile, name: str) -> None:
        self.file, self.name = file, name

    def __dask_tokenize__(self) -> str:
        return uuid.uuid4().hex

    def __setitem__(self, where: tuple[slice, ...], block: npt.NDArray[Any]) -> None:
        with LOCK:
            if self.file.closed:  # a thread that went on after an error or Ctrl-C
                raise InputError("the run was ended before this block was written.")
            self.file.put(self.name, where or ..., block)


def _is_plain(variable: Any) -> bool:
    """Whether its chunks are stored without any filter."""
    filters = variable.filters()
    return filters is not None and not any(filters.values()) and variable.chunking() != "contiguous"
