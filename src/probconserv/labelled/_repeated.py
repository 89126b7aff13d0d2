"""Cells that a file holds twice: halo columns, folded rows, a cyclic point."""

from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from ._coordinates import LONGITUDE, Grid, angle, degrees
from ._positions import positions

Array = npt.NDArray[Any]
COPIES = 4  # a corner of a folded and cyclic grid; more share the place of a fill value
NEAR = 1e-5  # degrees: what float32 resolves
POLE = 90 - 1e-4  # beyond it, cells around the pole may share their centre


def counted_once(
    grid: Grid, over: tuple[str, ...], weights: xr.DataArray
) -> tuple[xr.DataArray, str]:
    """The weights where each place counts once, and a remark on the cells that come twice.

    Copies that hold the same value share the weight, so that they move alike; others have none.
    """
    places = _places(grid, over)
    if places is None or not set(places.dims) <= set(weights.dims):
        return weights, ""
    middle = set(grid.area_dims([str(dim) for dim in grid.data.dims]))
    dims = places.dims

    def one(array: xr.DataArray) -> Array:
        """At one entry of all other dimensions."""
        at = {d: array.sizes[d] // 2 * (d in middle) for d in array.dims if d not in dims}
        return np.asarray(array.isel(at).transpose(*dims).values.ravel())

    keys = places.values.ravel()
    counted = np.flatnonzero((keys >= 0) & (one(weights) > 0))
    ordered = np.sort(keys[counted])
    if not (ordered[1:] == ordered[:-1]).any():
        return weights, ""
    share, copies = _shares(keys[counted], one(grid.data)[counted])
    if not copies:
        return weights, ""
    factor = np.ones(keys.size)
    factor[counted] = share
    by = xr.DataArray(factor.reshape(places.shape), dims=dims)
    said = f"; {copies} {'cells have' if copies > 1 else 'cell has'} the centre of another one"
    return (weights * by).transpose(*weights.dims), f"{said}: what comes twice counts once"


def _shares(keys: Array, values: Array) -> tuple[Array, int]:
    """The part of its weight with which each cell counts, and how many are copies of another."""
    order = np.lexsort((np.isnan(values), keys))  # the first of each place has a value, if one has
    _, starts, sizes = np.unique(keys[order], return_index=True, return_counts=True)
    first, size = np.repeat(order[starts], sizes), np.repeat(sizes, sizes)
    same = (values[order] == values[first]) | np.isnan(values[first])
    group = np.repeat(np.arange(len(sizes)), sizes)
    share = same / np.bincount(group, same)[group]
    few = size <= COPIES
    found = np.ones(len(keys))
    found[order[few]] = share[few]
    return found, int((sizes[(sizes > 1) & (sizes <= COPIES)] - 1).sum())


def _places(grid: Grid, over: tuple[str, ...]) -> xr.DataArray | None:
    """A whole number for the place of each cell, -1 where it is not known."""
    mesh = positions(grid, map(str, grid.data.dims))
    if mesh is None:
        for dim in over:
            axis = grid.along(dim)
            if axis is not None and axis.ndim == 1 and angle(axis) == LONGITUDE:
                lat = xr.zeros_like(axis, dtype=float).assign_attrs(units="degrees_north")
                return _numbers(lat, axis)
        return None
    lat, lon = mesh[0], mesh[1].transpose(*mesh[0].dims)
    if not set(lat.dims) & set(over):
        return None
    found = _numbers(lat, lon)
    for dim in lat.dims:
        if found is not None and dim not in over:  # cells of another sum are no copies
            codes = np.unique(found.values, return_inverse=True)[1].reshape(found.shape)
            number = xr.DataArray(np.arange(lat.sizes[dim]), dims=dim)
            found = found.where(found < 0, found.copy(data=codes) * lat.sizes[dim] + number)
    return found


def _numbers(lat: xr.DataArray, lon: xr.DataArray) -> xr.DataArray | None:
    """Places as whole numbers; None where cells lie closer than their coordinates tell."""
    y, x = degrees(lat.values, lat), degrees(lon.values, lon)
    known = np.isfinite(y) & np.isfinite(x) & (np.abs(y) < POLE) & (np.abs(x) < 1e4)
    step = _step(np.where(known, y, np.nan), np.where(known, x, np.nan))
    if not step > 0:
        return None
    near = max(min(NEAR, step / 100), 1e-7)
    around = round(360 / near)
    y, x = np.where(known, y, 0), np.where(known, x, 0)
    rows, columns = (np.round(each / near).astype(np.int64) for each in (y + 90, x))
    return xr.DataArray(np.where(known, rows * around + columns % around, -1), dims=lat.dims)


def _step(y: Array, x: Array) -> float:
    """The usual distance of neighbours, of about a hundred thousand of them."""
    found = []
    for axis in range(y.ndim):
        some = [
            slice(None) if i == axis else slice(None, None, n // 300 + 1)
            for i, n in enumerate(y.shape)
        ]
        steps = np.abs(np.diff(y[tuple(some)], axis=axis)) + np.abs(
            np.diff(x[tuple(some)], axis=axis)
        )
        steps = steps[np.isfinite(steps)]
        found += [float(np.median(steps))] if steps.size else []
    return min(found, default=0.0)
