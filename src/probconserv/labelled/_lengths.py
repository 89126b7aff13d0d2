"""Weights of cells from coordinates: lengths along one dimension, areas of a mesh on a sphere."""

from dataclasses import dataclass

import numpy as np
import xarray as xr

from .._errors import InputError
from . import _sphere as sphere
from ._coordinates import (
    LATITUDE,
    LONGITUDE,
    WAY_OUT,
    Angle,
    Array,
    along,
    angle,
    bounds_of,
    coordinates_of,
    counts,
    degrees,
    interval_bounds,
    missing_bounds,
    numbers,
    units,
)
from ._time import is_decoded

BLOCK = 1 << 19  # cells whose corners are in memory at once


@dataclass(frozen=True)
class Factor:
    """Weights that are multiplied with others; `where` says which coordinates they come from."""

    weights: xr.DataArray
    units: str | None
    where: str
    angle: Angle | None = None


ALONE = {
    LATITUDE: "areas of the zones of latitude per metre of the equator",
    LONGITUDE: "arcs of longitude along the equator",
}


def describe(factors: list[Factor], radius: float) -> str:
    """One sentence for a report: what the weights are and where they come from."""
    texts = [factor.where for factor in factors if factor.angle is None]
    angles = {factor.angle: factor.where for factor in factors if factor.angle}
    if angles:
        what = "cell areas" if len(angles) == 2 else ALONE[next(iter(angles))]
        where = [angles[kind] for kind in (LATITUDE, LONGITUDE) if kind in angles]
        where[1:] = [text.removeprefix(f"{where[0].split(' of ')[0]} of ") for text in where[1:]]
        on = f"on a sphere of {radius / 1000:.0f} km"
        texts.insert(0, f"{what} from {' and '.join(where)}, {on}")
    return "; times ".join(texts)


def from_coordinates(
    dataset: xr.Dataset, variable: str, over: list[str], radius: float
) -> list[Factor]:
    """The factors whose product is the weight of each cell in a sum over the dimensions."""
    coordinates = coordinates_of(dataset, variable)
    mesh = mesh_of(coordinates, over)
    factors = []
    if mesh and all(bounds_of(dataset, c) is not None for c in mesh):
        factors.append(_mesh_areas(dataset, *mesh, radius))
        over = [dim for dim in over if dim not in mesh[0].dims]
    for dim in over:
        coordinate = along(dim, coordinates)
        if mesh and dim in mesh[0].dims:
            _stands_without(dataset, mesh, coordinate)
        if coordinate is None:
            raise InputError(
                f"the dimension {dim!r} of {variable!r} has no coordinate to find the sizes of "
                f"its cells from. {WAY_OUT}"
            )
        _more_than_a_count(coordinate, coordinates)
        factors.append(_lengths(dataset, coordinate, radius))
    return factors


def _more_than_a_count(own: xr.DataArray, coordinates: list[xr.DataArray]) -> None:
    """Level numbers beside heights: the heights are meant, and which ones must be said."""
    others = [c for c in coordinates if c.dims == own.dims and not counts(c) and units(c)]
    if counts(own) and others:
        raise InputError(
            f"{own.name!r} only numbers the cells along its dimension. Choose the coordinate that "
            f"has their sizes, {' or '.join(str(c.name) for c in others)}, with "
            f"dataset.swap_dims, or give the weights as `measure`; `measure=1` means plain sums."
        )


def mesh_of(
    coordinates: list[xr.DataArray], over: list[str]
) -> tuple[xr.DataArray, xr.DataArray] | None:
    """Latitudes and longitudes that share their dimensions: a curvilinear or unstructured grid."""
    pairs = [(a, b) for a in coordinates for b in coordinates if set(a.dims) == set(b.dims)]
    for lat, lon in pairs:
        if angle(lat) is LATITUDE and angle(lon) is LONGITUDE and set(lat.dims) & set(over):
            own = along(str(lat.dims[0]), coordinates) if lat.ndim == 1 else None
            if own is None or angle(own) or counts(own):  # else a path: along it, in its unit
                return lat, lon
    return None


def _stands_without(
    dataset: xr.Dataset, mesh: tuple[xr.DataArray, xr.DataArray], own: xr.DataArray | None
) -> None:
    """A dimension of a mesh without bounds needs a coordinate that gives true sizes."""
    lat, lon = mesh
    if own is not None and not counts(own) and own.ndim < lat.ndim and not _nominal(own, mesh):
        return
    remark = missing_bounds(dataset, lat) or missing_bounds(dataset, lon)
    raise InputError(
        f"{lat.name!r} and {lon.name!r} lie on {lat.dims} and have no bounds, so that the areas "
        f"of the cells are not known{remark}. Add their corners as bounds, or give the areas as "
        "`measure`; `measure=1` means plain sums."
    )


def _nominal(own: xr.DataArray, mesh: tuple[xr.DataArray, xr.DataArray]) -> bool:
    """Whether an angle along one dimension is not the one of the cells, as on a tripolar grid."""
    kind = angle(own)
    if kind is None or "grid_" in str(own.attrs.get("standard_name")):
        return False
    true = mesh[0] if kind is LATITUDE else mesh[1]
    off = degrees(true.values, units(true)) - degrees(
        own.broadcast_like(true).transpose(*true.dims).values, units(own)
    )
    return bool((np.abs((off + 180) % 360 - 180) > 1e-3).any())


def _mesh_areas(dataset: xr.Dataset, lat: xr.DataArray, lon: xr.DataArray, radius: float) -> Factor:
    north = bounds_of(dataset, lat)
    east = bounds_of(dataset, lon)
    assert north is not None
    assert east is not None
    east = east.transpose(*lat.dims, ...)
    if not north.shape[-1] == east.shape[-1] >= 3:
        raise InputError(
            f"the bounds of {lat.name!r} and {lon.name!r} must hold the same corners, three or "
            f"more for each cell, got {north.shape[-1]} and {east.shape[-1]}. {WAY_OUT}"
        )
    areas = _in_blocks(north, east, units(lat), units(lon))
    unknown = int(np.isnan(areas).sum())
    remark = f" ({unknown} cells without corners count as 0)" if unknown else ""
    where = (
        f"cell areas from the bounds of {lat.name} and {lon.name}, corners joined by great "
        f"circles on a sphere of {radius / 1000:.0f} km{remark}"
    )
    weights = xr.DataArray(radius**2 * np.nan_to_num(areas), dims=lat.dims)
    return Factor(weights, "m2", where)


def _in_blocks(north: xr.DataArray, east: xr.DataArray, lat_unit: str, lon_unit: str) -> Array:
    """Areas on the unit sphere, some rows at a time."""
    dim, shape = north.dims[0], north.shape[:-1]
    rows = max(1, BLOCK * shape[0] // max(1, int(np.prod(shape))))
    areas = np.empty(shape)
    for start in range(0, shape[0], rows):
        block = {dim: slice(start, start + rows)}
        lat = degrees(north.isel(block).values, lat_unit)
        _on_sphere(north, lat)
        lon = degrees(east.isel(block).values, lon_unit)
        lon = np.where(np.isfinite(lon), lon, np.nan)
        areas[start : start + rows] = sphere.polygon_areas(lat, lon)
    return areas


def _on_sphere(coordinate: xr.DataArray, latitude: Array, slack: float = 1e-3) -> None:
    beyond = np.abs(latitude) > 90 + slack
    if beyond.any():
        raise InputError(
            f"{coordinate.name!r} must hold latitudes from -90 to 90 degrees, got "
            f"{latitude[beyond][0]:.6g}. Correct its values or its `units`, or give the weights "
            "of the cells as `measure`."
        )


def _lengths(dataset: xr.Dataset, coordinate: xr.DataArray, radius: float) -> Factor:
    kind = angle(coordinate)
    bounds = interval_bounds(dataset, coordinate)
    where = f"the {'centres' if bounds is None else 'bounds'} of {coordinate.name}"
    where += missing_bounds(dataset, coordinate)
    if kind is None:
        cells, unit = _plain(coordinate, bounds), _length_unit(coordinate)
        plane = str(coordinate.attrs.get("standard_name", "")).startswith("projection_")
        what = "lengths in the plane of the projection" if plane else "lengths"
        return Factor(xr.DataArray(cells, dims=coordinate.dims), unit, f"{what} from {where}")
    cells = _zones(coordinate, bounds) if kind is LATITUDE else _arcs(coordinate, bounds)
    return Factor(xr.DataArray(radius * cells, dims=coordinate.dims), "m", where, kind)


def _length_unit(coordinate: xr.DataArray) -> str | None:
    return "s" if is_decoded(coordinate) else units(coordinate) or None


def _plain(coordinate: xr.DataArray, bounds: xr.DataArray | None) -> Array:
    if bounds is not None:
        return np.abs(np.diff(numbers(bounds, coordinate), axis=-1))[:, 0]
    centres = numbers(coordinate, coordinate)
    _monotonic(coordinate, centres)
    return np.abs(np.diff(sphere.half_way(centres), axis=-1))[:, 0]


def _zones(coordinate: xr.DataArray, bounds: xr.DataArray | None) -> Array:
    unit = units(coordinate)
    centres = degrees(numbers(coordinate, coordinate), unit)
    _on_sphere(coordinate, centres)
    if bounds is not None:
        ends = degrees(numbers(bounds, coordinate), unit)
        _on_sphere(bounds, ends, slack=10)  # some files let the last cell reach beyond the pole
        return sphere.zone_heights(ends)
    _monotonic(coordinate, centres)
    return sphere.zone_heights(sphere.latitude_bounds(centres))


def _arcs(coordinate: xr.DataArray, bounds: xr.DataArray | None) -> Array:
    unit = units(coordinate)
    centres = degrees(numbers(coordinate, coordinate), unit)
    if bounds is not None:
        ends = degrees(numbers(bounds, coordinate), unit)
    else:
        centres = np.unwrap(centres, period=360)
        _monotonic(coordinate, centres)
        ends = sphere.longitude_bounds(centres)
    arcs = sphere.arcs(ends, centres)
    if arcs.sum() > 2 * np.pi * (1 + 1e-5):
        raise InputError(
            f"the cells of {coordinate.name!r} cover {np.degrees(arcs.sum()):.6g} degrees of "
            "longitude, more than the circle. Drop the longitude that is there twice, or give the "
            "weights of the cells as `measure`."
        )
    return arcs


def _monotonic(coordinate: xr.DataArray, centres: Array) -> None:
    if centres.size < 2:
        raise InputError(
            f"{coordinate.name!r} has {centres.size} entry and no bounds, so that the size of its "
            f"cell is not known. Add its bounds. {WAY_OUT}"
        )
    steps = np.diff(centres)
    wrong = np.flatnonzero(steps * np.sign(steps[0]) <= 0)
    if wrong.size:
        i = int(wrong[0])
        raise InputError(
            f"{coordinate.name!r} must increase or decrease throughout; entry {i} is "
            f"{coordinate.values[i]} and entry {i + 1} is {coordinate.values[i + 1]}. Sort it and "
            "drop what is there twice, or give the weights of the cells as `measure`."
        )


def split_angles(dataset: xr.Dataset, variable: str, given: set[str], rest: list[str]) -> list[str]:
    """The dimensions of `rest` whose cells form areas with those that a measure already has."""
    coordinates = coordinates_of(dataset, variable)
    mesh = mesh_of(coordinates, rest)
    if mesh and given & set(mesh[0].dims):
        return [dim for dim in rest if dim in mesh[0].dims]
    kinds = {dim: _kind(dim, coordinates) for dim in (*given, *rest)}
    if not any(kinds[dim] for dim in given):
        return []
    return [dim for dim in rest if kinds[dim]]


def _kind(dim: str, coordinates: list[xr.DataArray]) -> Angle | None:
    coordinate = along(dim, coordinates)
    return None if coordinate is None else angle(coordinate)
