"""Cells that a file holds twice: halo columns, folded rows, a cyclic point."""

from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from ..support.tolerances import DOUBLE, STEP
from ..support.tolerances import LONGITUDE as NEAR
from ._conventions import LONGITUDE, angle
from ._grid import FileGrid, degrees

Array = npt.NDArray[Any]
COPIES = 4  # a corner of a folded and cyclic grid; more share the place of a fill value
ONCE = {"copies": "count once"}  # attribute of weights where this is done
POLE = 90 - STEP  # beyond it, cells around the pole may share their centre


def counted_once(
    grid: FileGrid, over: tuple[str, ...], weights: xr.DataArray
) -> tuple[xr.DataArray, str]:
    """The weights where each place counts once, and a remark on the cells that come twice.

    Copies that hold the same values, in the first entry of time and in the last, share the weight,
    so that they move alike; others have none.
    """
    places = _places(grid, over)
    if places is None or not set(places.dims) <= set(weights.dims):
        return weights, ""
    middle = set(grid.area_dims([str(dim) for dim in grid.data.dims]))
    dims = places.dims

    def one(array: xr.DataArray, end: int = 0) -> Array:
        """At one entry of all other dimensions: the first, or the last with -1."""
        others = [d for d in array.dims if d not in dims]
        at = {d: array.sizes[d] // 2 if d in middle else end for d in others}
        return np.asarray(array.isel(at).transpose(*dims).values.ravel())

    keys = places.values.ravel()
    counted = np.flatnonzero((keys >= 0) & (one(weights) > 0))
    values = np.stack([one(grid.data, end)[counted] for end in (0, -1)], axis=-1)
    share, copies = _shares(keys[counted], values)
    if not copies:
        return weights, ""
    factor = np.ones(keys.size)
    factor[counted] = share
    by = xr.DataArray(factor.reshape(places.shape), dims=dims)
    said = f"; {copies} {'cells have' if copies > 1 else 'cell has'} the centre of another one"
    return (weights * by).transpose(*weights.dims), f"{said}: what comes twice counts once"


def _shares(keys: Array, values: Array) -> tuple[Array, int]:
    """The part of its weight with which each cell counts, and how many are copies of another."""
    # the first of each place has the most values
    order = np.lexsort((np.isnan(values).sum(-1), keys))
    _, starts, sizes = np.unique(keys[order], return_index=True, return_counts=True)
    first, size = np.repeat(order[starts], sizes), np.repeat(sizes, sizes)
    same = ((values[order] == values[first]) | np.isnan(values[first])).all(-1)
    group = np.repeat(np.arange(len(sizes)), sizes)
    share = same / np.bincount(group, same)[group]
    few = size <= COPIES
    found = np.ones(len(keys))
    found[order[few]] = share[few]
    return found, int((sizes[(sizes > 1) & (sizes <= COPIES)] - 1).sum())


def _places(grid: FileGrid, over: tuple[str, ...]) -> xr.DataArray | None:
    """A number for each place, -1 where it is not known; None where no place comes twice."""
    mesh = grid.places
    if mesh is not None:
        lat, lon = mesh[0], mesh[1].transpose(*mesh[0].dims)
        return _numbers(lat, lon, over) if set(lat.dims) & set(over) else None
    for dim in over:
        axis = grid.along(dim)
        if axis is not None and axis.ndim == 1 and angle(axis) == LONGITUDE:
            equator = xr.zeros_like(axis).assign_attrs(units="degrees_north")
            return _numbers(equator, axis, over)
    return None


def _numbers(lat: xr.DataArray, lon: xr.DataArray, over: tuple[str, ...]) -> xr.DataArray | None:
    y, x = degrees(lat.values, lat), degrees(lon.values, lon)
    known = np.isfinite(y) & np.isfinite(x) & (np.abs(y) < POLE) & (np.abs(x) < 1e4)
    step = _step(np.where(known, y, np.nan), np.where(known, x, np.nan))
    if step < 4 * max(_spacing(lat, known), _spacing(lon, known)):
        return None  # cells lie closer than their coordinates tell
    near = min(NEAR, step / 100)
    x = np.where(known, x, 0) % 360
    x = np.where(x > 360 - near, x - 360, x)
    rows = [np.broadcast_to(i, y.shape)[known] for i in np.indices(y.shape, sparse=True)]
    apart = [row for row, dim in zip(rows, lat.dims, strict=True) if dim not in over]
    apart.append(np.round(y[known] / DOUBLE))
    order = np.lexsort((x[known], *apart))
    new = np.diff(x[known][order]) > near
    for key in apart:
        new |= np.diff(key[order]) != 0
    if new.all():
        return None
    found, numbers = np.full(y.shape, -1), np.empty(order.size, int)
    numbers[order] = np.concatenate([[0], np.cumsum(new)])
    found[known] = numbers
    return xr.DataArray(found, dims=lat.dims)


def _spacing(angles: xr.DataArray, known: Array) -> float:
    """The rounding of the largest value; none for whole numbers."""
    largest = np.abs(angles.values[known]).max(initial=0)
    return float(np.spacing(largest)) if angles.dtype.kind == "f" else 0.0


def _step(y: Array, x: Array) -> float:
    """The usual distance of neighbours, of about a hundred thousand of them."""
    medians = []
    for axis, length in enumerate(y.shape):
        some = tuple(
            slice(None, None, 1 if n == axis else size // 300 + 1) for n, size in enumerate(y.shape)
        )
        if length > 1:
            steps = np.abs(np.diff(y[some], axis=axis)) + np.abs(np.diff(x[some], axis=axis))
            steps = steps[np.isfinite(steps)]
            medians += [float(np.median(steps))] if steps.size else []
    return min(medians, default=0.0)
