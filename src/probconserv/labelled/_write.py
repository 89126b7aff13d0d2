"""Labelled data into files: in one pass, complete or not at all."""

import shutil
import uuid
import warnings
from collections.abc import Callable, Hashable, Mapping
from itertools import pairwise, product
from os import PathLike
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.threaded
import numpy as np
import numpy.typing as npt
import xarray as xr
import zarr

from . import _cluster
from ._encoding import Format, aligned, encoded, is_lazy, output_format, prepared
from ._stage import check_output, staged
from ._targets import NetcdfFile, Target, ZarrArray, errors_of_writing

Finish = Callable[[Any], Mapping[str, Any]]


def write(
    dataset: xr.Dataset,
    path: str | PathLike[str],
    overwrite: bool = False,
    also: Any = None,
    finish: Finish | None = None,
    like: str | PathLike[str] | None = None,
) -> Any:
    """What `also` came to; the dataset is then in the file under its name, or nothing is.

    Every block is computed once, for the file and for `also`, and then let go. Where a block of
    the dataset depends on all blocks of something (a total over time, say), compute that first:
    otherwise everything stays in memory until it is known.

    path: ends in .nc, .nc4 or .cdf for NetCDF, in .zarr for Zarr. overwrite: replace what is
    there, once the new one is complete. also: small dask collections, in any nest of dicts and
    lists. finish: given what they came to, returns attributes for the file. like: a file whose
    format the output takes over; otherwise it is NetCDF 4 or Zarr 3.
    """
    inputs = sources(dataset) | ({str(like)} if like is not None else set())
    where = check_output(path, overwrite, inputs)
    format = output_format(where, None if like is None else Path(like), dataset)
    ready = prepared(dataset, format)
    with errors_of_writing(where), staged(where) as part, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # texts in Zarr 3, and NaN where packing checks anyway
        store = _into_zarr if format.zarr else _into_netcdf
        return store(ready, part, format, also, finish)


def sources(dataset: xr.Dataset) -> set[str]:
    """The files that the dataset was read from."""
    held = [dataset.encoding, *(v.encoding for v in dataset.variables.values())]
    return {encoding["source"] for encoding in held if "source" in encoding}


def _into_zarr(
    dataset: xr.Dataset, part: Path, format: Format, also: Any, finish: Finish | None
) -> Any:
    dataset.to_zarr(part, mode="w", compute=False, consolidated=False, zarr_format=format.zarr)
    lazy = _lazy(dataset)
    targets = {name: ZarrArray(part / str(name), part.parent) for name in lazy}
    results = _run(lazy, targets, also)
    for left in [] if _cluster.in_process() else part.rglob("*.partial"):
        left.unlink()  # of a worker that was killed
    zarr.open_group(part, mode="r+", use_consolidated=False).attrs.update(_attrs(finish, results))
    zarr.consolidate_metadata(part, zarr_format=2 if format.zarr == 2 else 3)
    return results


def _into_netcdf(
    dataset: xr.Dataset, part: Path, format: Format, also: Any, finish: Finish | None
) -> Any:
    with dask.config.set(scheduler=dask.threaded.get):
        # only the definitions and what is in memory; the file closes with what comes back
        dataset.to_netcdf(  # type: ignore[call-overload]
            part,
            engine="netcdf4",
            format=format.netcdf,
            unlimited_dims=format.unlimited,
            compute=False,
        )
    lazy = _lazy(dataset)
    with NetcdfFile(part) as file:
        targets = {name: file.variable(str(name)) for name in lazy}
        if _cluster.in_process():
            results = _run(lazy, targets, also)
        else:
            results = _run_apart(lazy, targets, also, part.with_suffix(".blocks"))
        file.set_attributes(_attrs(finish, results))
    return results


def _lazy(dataset: xr.Dataset) -> dict[Hashable, da.Array]:
    """The dask arrays of the numbers that are still to be written."""
    return {
        name: encoded(str(name), variable)
        for name, variable in dataset.variables.items()
        if is_lazy(variable)
    }


def _run(lazy: Mapping[Hashable, da.Array], targets: Mapping[Hashable, Target], also: Any) -> Any:
    """Computes and writes all blocks, and `also`, in one go."""
    writes = [_writes(data, targets[name], str(name)) for name, data in lazy.items()]
    return _cluster.compute((_tied(writes), also), "writing")[1]


def _tied(writes: list[da.Array]) -> list[da.Array]:
    """Blocks of variables that are cut alike, together: what they share is then not held for long.

    Otherwise dask may write all of one variable first, and keep what the others need of it.
    """
    alike: dict[tuple[int, ...], list[da.Array]] = {}
    for each in writes:
        alike.setdefault(each.shape, []).append(each)
    return [
        da.map_blocks(_all, *each, dtype=bool) if len(each) > 1 else each[0]
        for each in alike.values()
    ]


def _all(*written: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    return np.logical_and.reduce(written)


def _run_apart(
    lazy: Mapping[Hashable, da.Array], targets: Mapping[Hashable, Target], also: Any, folder: Path
) -> Any:
    """As `_run`, through a Zarr store: only this process may write to a NetCDF file."""
    whole = {name: aligned(xr.Variable(range(a.ndim), a)).data for name, a in lazy.items()}
    between: dict[Hashable, Target] = {}
    for name, data in whole.items():
        array = folder / str(name)
        zarr.create_array(array, shape=data.shape, dtype=data.dtype, chunks=data.chunksize)
        between[name] = ZarrArray(array, folder.parent)
    results = _run(whole, between, also)
    for name, data in whole.items():
        held = zarr.open_array(folder / str(name), mode="r")
        for where in _regions(data.chunks):
            targets[name].write(where, np.asarray(held[where]))
    shutil.rmtree(folder, ignore_errors=True)
    return results


def _writes(data: da.Array, target: Target, name: str) -> da.Array:
    """One element for each block, whose computation writes the block."""
    starts = tuple(tuple(int(s) for s in np.cumsum([0, *sizes])) for sizes in data.chunks)
    return da.map_blocks(
        _put,
        data,
        target=target,
        starts=starts,
        name=f"write-{name}-{uuid.uuid4().hex}",
        chunks=tuple((1,) * len(sizes) for sizes in data.chunks),
        meta=np.empty((0,) * data.ndim, bool),
    )


def _put(
    block: npt.NDArray[Any],
    target: Target,
    starts: tuple[tuple[int, ...], ...],
    block_id: tuple[int, ...],
) -> npt.NDArray[np.bool_]:
    where = tuple(slice(s[i], s[i + 1]) for s, i in zip(starts, block_id, strict=True))
    target.write(where, block)
    return np.ones((1,) * block.ndim, bool)


def _regions(chunks: tuple[tuple[int, ...], ...]) -> Any:
    ends = [np.cumsum([0, *sizes]) for sizes in chunks]
    return product(*([slice(int(a), int(b)) for a, b in pairwise(end)] for end in ends))


def _attrs(finish: Finish | None, results: Any) -> dict[str, Any]:
    given = {} if finish is None else finish(results)
    return {key: _plain(value) for key, value in given.items()}


def _plain(value: Any) -> Any:
    """A value that both formats take: text, numbers, and lists of them."""
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    return int(value) if isinstance(value, bool) else value
