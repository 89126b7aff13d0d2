"""Labelled data into files: in one pass, complete or not at all."""

import errno
import itertools
import os
import shutil
import signal
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, cast

import dask.array as da
import netCDF4
import numpy as np
import numpy.typing as npt
import xarray as xr
from xarray.backends import NetCDF4DataStore
from xarray.backends.netCDF4_ import NETCDF4_PYTHON_LOCK as LOCK  # the one that reading takes

from ..support.complete_files import sole_writer
from ..support.errors import InputError, ProbConservError
from ._encoding import ROUNDS, Format, encoded, in_full, is_lazy, output_format, prepared
from ._graph import compute
from ._read import (
    CHANGED,
    INHERITED,
    READ,
    STORED,
    ZARR,
    groups,
    kind,
    last_change,
    stored_as,
)

NETCDF = (".nc", ".nc4", ".cdf")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors of a disk
PAUSE, PATIENCE = 0.05, 200  # seconds until a request to end is looked at again; how often
UNSAVED = 1 << 28  # bytes that wait for the disk at most
WAITS = (0.0, 0.2, 1.0, 4.0)  # seconds before what is left of a run is removed, again and again

Finish = Callable[[Any], dict[str, str]]
Lazy = Mapping[Hashable, da.Array]
# of a store that is begun: what a variable is written to, by its name, and what sets attributes
Begun = tuple[Callable[[str], Any], Callable[[Mapping[str, str]], None]]


def check_output(path: str | PathLike[str], overwrite: bool, inputs: Iterable[str] = ()) -> Path:
    """The full path of an output that may be written; every reason against it is an error."""
    where = Path(path).resolve()
    is_zarr, folder = where.suffix == ".zarr", where.parent
    if not is_zarr and where.suffix not in NETCDF:
        raise InputError(
            f"`path` {where.name!r} must end in {', '.join(NETCDF)} (NetCDF) or .zarr (Zarr)."
        )
    for given in (Path(each).resolve() for each in inputs):
        same = where.exists() and given.exists() and where.samefile(given)
        if same or where in (given, *given.parents) or given in where.parents:
            raise InputError(
                f"`path` {where} is the input {given}, which is never changed, or they lie one "
                "inside the other. Choose another place."
            )
    if where.exists() and not overwrite:
        raise InputError(
            f"`path` {where} exists. Use `overwrite=True` to replace it, or choose another name."
        )
    known = (where / name for name in ZARR)
    is_store = where.is_dir() and (any(map(Path.exists, known)) or not any(where.iterdir()))
    if where.exists() and not (is_store if is_zarr else where.is_file()):
        raise InputError(
            f"`path` {where} exists and is not a {'Zarr store' if is_zarr else 'file'}, so it is "
            "not replaced even with `overwrite=True`. Choose another name."
        )
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):  # none is made
        why = "is not writable" if folder.is_dir() else "is no folder"
        why = why if folder.exists() else "does not exist"
        raise InputError(
            f"`path` lies in {folder}, which {why}. Check its spelling, make it first, or choose "
            "another folder."
        )
    return where


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """A request to end (SIGTERM) is met as Ctrl-C is: what was begun is removed.

    It waits while the library is at work: an error between taking its lock and leaving it would
    leave the lock taken, and the run would never end.
    """
    waits = itertools.count()

    def end(number: int, frame: object) -> None:
        if cast(Any, LOCK).locked() and next(waits) < PATIENCE:
            threading.Timer(PAUSE, os.kill, (os.getpid(), number)).start()
        else:
            raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():  # only it may set handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """A place to write to, which takes the name `path` at the end, or vanishes.

    What had that name before stays until then.
    """
    stage = path.with_name(f".{path.name}.part")
    part, old = stage / path.name, stage / "old"
    with ended_by_sigterm(), sole_writer(stage):
        if old.exists() and not path.exists():  # a run was killed when it was about to replace it
            os.replace(old, path)
        for left in stage.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        try:
            yield part
            if part.is_file():
                with part.open("rb+") as file:
                    os.fsync(file.fileno())
            _replace(part, path, old)
        except BaseException:
            for wait in WAITS:  # a worker that was still writing may make it anew
                time.sleep(wait)
                if not stage.exists():
                    break
                shutil.rmtree(stage, ignore_errors=True)
            raise
        shutil.rmtree(stage)


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


def write(
    dataset: xr.Dataset,
    path: str | PathLike[str],
    overwrite: bool = False,
    also: Any = None,
    finish: Finish = lambda results: {},
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
    format the output takes over; otherwise it is NetCDF 4 or Zarr 3. What is not new is copied
    from it byte for byte, where the format is the same. group: where in the file the dataset is.
    """
    model = None if like is None else Path(like).resolve()
    held = [dataset.encoding, *(v.encoding for v in dataset.variables.values())]
    inputs = {encoding["source"] for encoding in held if "source" in encoding}
    where = check_output(path, overwrite, inputs | ({str(model)} if model else set()))
    format = output_format(where, model, dataset)
    source = _to_copy(model, format, dataset)
    known = dataset.encoding.get(INHERITED, ()) if source is None else dataset.variables
    lazily = {n: v.data.name for n, v in dataset.variables.items() if is_lazy(v)}
    new = [name for name, key in lazily.items() if not key.startswith(READ)]
    moved = dataset.assign({name: in_full(dataset.variables[name]) for name in new})
    ready = prepared(moved.drop_vars([name for name in known if name not in new]), format)
    lazy = {n: encoded(str(n), v) for n, v in ready.variables.items() if is_lazy(v)}
    with _errors_of_writing(where, source), staged(where) as part, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # texts in Zarr 3, and NaN where packing checks anyway
        store = _zarr if format.zarr else _netcdf
        with store(ready, part, format, source, group.strip("/")) as (target, describe):
            if source is not None and last_change(source) != dataset.encoding[CHANGED]:
                raise InputError(
                    f"`source` {source} was changed while it was read. Nothing was written: run it "
                    "again once it is complete."
                )
            results = _run(lazy, {name: target(str(name)) for name in lazy}, also)
            describe(finish(results))
        return results


def _to_copy(model: Path | None, format: Format, dataset: xr.Dataset) -> Path | None:
    """The file that the output is a copy of, new values aside; None to write it from scratch."""
    if model is None:
        return None
    same_kind = (kind(model) == "zarr") == (format.zarr is not None)
    has_groups, stored = groups(model), dataset.encoding.get(STORED, {})
    now = {name: stored_as(variable) for name, variable in dataset.variables.items()}
    changed = [name for name in stored if now.get(name) != stored[name]]
    if has_groups and not same_kind:
        raise InputError(
            f"`path`: {model} has groups, which are kept only from NetCDF to NetCDF and from "
            f"Zarr to Zarr. Choose a name that ends in {'.nc' if format.zarr else '.zarr'}."
        )
    if has_groups and changed:
        raise InputError(
            f"`path`: {changed[0]} would change its type or shape, which is not possible in a file "
            "with groups. Take the group out first (`ncks -G : -g GROUP`), or leave `unpack` and "
            "`dtype` out."
        )
    return model if same_kind and stored and not changed else None


@contextmanager
def _errors_of_writing(path: Path, source: Path | None) -> Iterator[None]:
    """Whatever the disk or a library refuses becomes an error that names the output.

    Or the source, if the output is a copy of it and it is damaged where nobody looked before.
    """
    try:
        yield
    except ProbConservError:
        raise
    except (OSError, RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        room = f"{shutil.disk_usage(path.parent).free / 1e9:.3g} GB are free"
        copied = source is not None and (
            f" Else {source}, of which it is a copy, is damaged where only writing meets it: write "
            "that one anew (`nccopy`), or download it again."
        )
        raise InputError(
            f"`path` {path} cannot be written: {error}. Nothing of it was kept. Is there room on "
            f"the disk ({room}), and can the format hold these values?{copied or ''}"
        ) from error


@contextmanager
def _zarr(
    dataset: xr.Dataset, part: Path, format: Format, source: Path | None, group: str
) -> Iterator[Begun]:
    """A Zarr store with the definitions and what is in memory.

    source: a store whose other contents it takes over.
    """
    import zarr

    if source is not None:
        new = {source / group / str(name) for name in dataset.variables}
        walk = os.walk(source, followlinks=True)
        for folder, inside, files in walk:  # not copytree, which keeps who may write
            here = Path(folder)
            inside[:] = [name for name in inside if here / name not in new]
            place = part / here.relative_to(source)
            place.mkdir()
            for name in files:
                shutil.copyfile(here / name, place / name)
    how: Any = {"mode": "w" if source is None else "a", "zarr_format": format.zarr}
    dataset.to_zarr(part, compute=False, consolidated=False, group=group or None, **how)
    begun = zarr.open_group(part, mode="r+", path=group or None, use_consolidated=False)
    yield (lambda name: ZarrArray(part / group / name, part.parent)), begun.attrs.update
    for level in dict.fromkeys([group, ""]):
        version: Any = format.zarr
        zarr.consolidate_metadata(part, path=level or None, zarr_format=version)


@contextmanager
def _netcdf(
    dataset: xr.Dataset, part: Path, format: Format, source: Path | None, group: str
) -> Iterator[Begun]:
    """The same as a NetCDF file, which only this process may write to."""
    how: Any = {"mode": "w"}
    unlimited = format.unlimited
    if source is not None:
        shutil.copyfile(source, part)
        with netCDF4.Dataset(part, "r+") as file:
            there = (file[group] if group else file).variables
            moved = [there[str(name)] for name in dataset.variables if name in there]
            for variable, key in [(v, key) for v in moved for key in v.ncattrs()]:
                if ROUNDS.match(key):  # see `in_full`
                    variable.delncattr(key)
            dataset = dataset.drop_vars([variable.name for variable in moved])
        unlimited = ()
        how = {"mode": "a", "group": group}
    # not `to_netcdf`, which imports distributed (0.6 s) to ask where dask computes
    store = NetCDF4DataStore.open(str(part), format=format.netcdf, lock=LOCK, **how)
    try:
        dataset.dump_to_store(store, unlimited_dims=unlimited)
    finally:
        store.close()
    with NetcdfFile(part, group) as file:
        yield partial(NetcdfVariable, file), file.describe


def _run(lazy: Lazy, targets: Mapping[Hashable, Any], also: Any) -> Any:
    """Computes and writes all blocks, and `also`, in one go.

    Variables that are cut alike are tied, block by block: what they share is then not held for
    long. Otherwise dask may write all of one variable first, and keep what the others need of it.
    """
    alike: dict[Any, list[da.Array]] = {}
    for name, data in lazy.items():
        stored = da.store([data], [targets[name]], lock=False, compute=False)
        alike.setdefault(data.chunks, []).append(stored)
    ties = []
    for stored in alike.values():
        blocks = stored[0].numblocks
        one = np.ones((1,) * len(blocks), bool)
        ones = tuple((1,) * count for count in blocks)
        ties.append(da.map_blocks(lambda *_, one=one: one, *stored, chunks=ones, meta=one))
    return compute((ties, also))[1]


class ZarrArray:
    """A Zarr array; blocks that share no chunk can be written at the same time, or twice."""

    def __init__(self, path: Path, stage: Path) -> None:
        self.path, self.stage = path, stage

    def __setitem__(self, where: tuple[slice, ...], block: npt.NDArray[Any]) -> None:
        import zarr

        if not self.stage.exists():
            raise InputError(
                f"{self.stage} is not there: the run was ended before this block was written."
            )
        zarr.open_array(self.path, mode="r+")[where] = block


class NetcdfFile(AbstractContextManager["NetcdfFile"]):
    """A NetCDF file whose variables are defined, open for writing by threads of this process."""

    def __init__(self, path: Path, group: str = "") -> None:
        with LOCK:
            self.file: Any = netCDF4.Dataset(path, "r+")
            self.group: Any = self.file[group] if group else self.file
            self.group.set_auto_maskandscale(False)
            self.group.set_auto_chartostring(False)
            for variable in self.group.variables.values():
                filters = variable.filters()  # None for NetCDF 3
                if filters and not any(filters.values()) and variable.chunking() != "contiguous":
                    variable.set_var_chunk_cache(1, 1, 0.0)  # blocks need not go through a cache
        self.unsaved = 0
        self.handle, self.saver = os.open(path, os.O_RDONLY), ThreadPoolExecutor(1)

    def describe(self, attributes: Mapping[str, str]) -> None:
        with LOCK:
            self.group.setncatts(attributes)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with LOCK, suppress(*([] if kind is None else [Exception])):
            self.file.close()
        self.saver.shutdown(cancel_futures=True)
        os.close(self.handle)


class NetcdfVariable:
    def __init__(self, file: NetcdfFile, name: str) -> None:
        self.file, self.name = file, name

    def __dask_tokenize__(self) -> str:
        return uuid.uuid4().hex

    def __setitem__(self, where: tuple[slice, ...], block: npt.NDArray[Any]) -> None:
        """Writes a block; now and then the disk is told to take what is there, beside the work."""
        file = self.file
        with LOCK:
            if not file.file.isopen():  # a thread that went on after an error or Ctrl-C
                raise InputError("the run was ended before this block was written.")
            file.group.variables[self.name][where or ...] = block
            file.unsaved += block.nbytes
            if file.unsaved > UNSAVED:
                file.unsaved = 0
                file.saver.submit(os.fsync, file.handle)
