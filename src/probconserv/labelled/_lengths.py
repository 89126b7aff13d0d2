"""Weights of cells from coordinates: lengths along one dimension, areas of a mesh on a sphere."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from .._errors import InputError
from . import _sphere as sphere
from ._coordinates import (
    LATITUDE,
    LONGITUDE,
    WAY_OUT,
    Array,
    Globe,
    along,
    angle,
    bounds_of,
    coordinates_of,
    counts,
    degrees,
    interval_bounds,
    is_axis,
    is_horizontal,
    is_numbered,
    is_time,
    mappings_of,
    missing_bounds,
    numbers,
    setting,
    units,
)

BLOCK = 1 << 19  # cells whose corners are in memory at once
AREAS = (
    "Give the areas of the cells as `measure`; `cdo gridarea IN.nc AREAS.nc` finds those of many "
    "grids, as --measure AREAS.nc:cell_area takes them."
)
EQUAL_AREA = {
    "albers_conical_equal_area",
    "lambert_azimuthal_equal_area",
    "lambert_cylindrical_equal_area",
    "sinusoidal",
}
ANGULAR = {"latitude_longitude", "rotated_latitude_longitude", "reduced_gaussian", "healpix"}


@dataclass(frozen=True)
class Factor:
    """Weights that are multiplied with others; `where` says which coordinates they come from."""

    weights: xr.DataArray
    units: str | None
    where: str
    angle: str | None = None


ALONE = {
    LATITUDE: "areas of the zones of latitude per metre of the equator",
    LONGITUDE: "arcs of longitude along the equator",
}


def describe(factors: list[Factor], globe: Globe) -> str:
    """One sentence for a report: what the weights are and where they come from."""
    texts = [factor.where for factor in factors if factor.angle is None]
    angles = {factor.angle: factor.where for factor in factors if factor.angle}
    if angles:
        what = "cell areas" if len(angles) == 2 else ALONE[next(iter(angles))]
        where = [angles[kind] for kind in (LATITUDE, LONGITUDE) if kind in angles]
        where[1:] = [text.removeprefix(f"{where[0].split(' of ')[0]} of ") for text in where[1:]]
        texts.insert(0, f"{what} from {' and '.join(where)}, {globe}")
    return "; times ".join(texts)


def from_coordinates(
    dataset: xr.Dataset, variable: str, over: list[str], globe: Globe
) -> list[Factor]:
    """The factors whose product is the weight of each cell in a sum over the dimensions."""
    data, coordinates = dataset[variable], coordinates_of(dataset, variable)
    mesh = mesh_of(coordinates, over)
    factors = []
    if mesh and all(bounds_of(dataset, c) is not None for c in mesh):
        factors.append(_mesh_areas(dataset, *mesh, globe))
    elif flat := [dim for dim in over if is_horizontal(dim, coordinates)]:
        factors += _equal_areas(dataset, data, flat, globe)
    over = [dim for dim in over if not any(dim in factor.weights.dims for factor in factors)]
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
        factors.append(_lengths(dataset, data, coordinate, globe))
    return factors


def _equal_areas(
    dataset: xr.Dataset, data: xr.DataArray, flat: list[str], globe: Globe
) -> list[Factor]:
    """The areas of HEALPix cells; none on other grids, but an error on the mesh of UGRID."""
    if topology := setting(data, "mesh"):
        raise InputError(
            f"{data.name!r} lies on the mesh {topology!r} (UGRID), whose cells have no areas here. "
            f"{AREAS}"
        )
    own = [dataset[dim].attrs for dim in flat if dim in dataset.coords]
    marks = [m.attrs for m in mappings_of(dataset, data)] + [data.attrs, dataset.attrs, *own]
    attrs = next((each for each in marks if _says_healpix(each)), None)
    if attrs is None:
        return []
    orders = [attrs[key] for key in ("refinement_level", "healpix_order", "level") if key in attrs]
    side = int(attrs.get("healpix_nside", 2 ** int(orders[0]) if orders else 0))
    dim = max(flat, key=lambda name: data.sizes[name])
    size = data.sizes[dim]
    count = 12 * side**2 or size
    if size > count or count != 12 * round((count / 12) ** 0.5) ** 2:
        raise InputError(
            f"{data.name!r} lies on HEALPix cells, but its {size} entries along {dim!r} are not "
            f"some of 12 nside^2 equal cells (nside {side or 'is not said'}). {AREAS}"
        )
    weights = xr.DataArray(np.full(size, 4 * np.pi * globe.radius**2 / count), dims=dim)
    return [Factor(weights, "m2", f"equal areas, a sphere over {count} HEALPix cells, {globe}")]


def _says_healpix(attrs: Mapping[str, Any]) -> bool:
    named = "healpix" in (attrs.get("grid_mapping_name"), attrs.get("grid_name"))
    return named or "healpix_nside" in attrs


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
        f"of the cells are not known{remark}. Add their corners as bounds. {AREAS}"
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


def _mesh_areas(dataset: xr.Dataset, lat: xr.DataArray, lon: xr.DataArray, globe: Globe) -> Factor:
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
        f"circles {globe}{remark}"
    )
    weights = xr.DataArray(globe.radius**2 * np.nan_to_num(areas), dims=lat.dims)
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


def _lengths(
    dataset: xr.Dataset, data: xr.DataArray, coordinate: xr.DataArray, globe: Globe
) -> Factor:
    kind = angle(coordinate)
    bounds = interval_bounds(dataset, coordinate)
    if bounds is None and is_numbered(coordinate):
        ones = xr.DataArray(np.ones(coordinate.size), dims=coordinate.dims)
        return Factor(ones, "1", f"1 for every {coordinate.name}, which is a number")
    where = f"the {'centres' if bounds is None else 'bounds'} of {coordinate.name}"
    where += missing_bounds(dataset, coordinate)
    if kind is None:
        what = _in_words(coordinate, mappings_of(dataset, data))
        cells, unit = _plain(coordinate, bounds), _length_unit(coordinate)
        return Factor(xr.DataArray(cells, dims=coordinate.dims), unit, f"{what} from {where}")
    cells = _zones(coordinate, bounds) if kind is LATITUDE else _arcs(coordinate, bounds)
    return Factor(xr.DataArray(globe.radius * cells, dims=coordinate.dims), "m", where, kind)


def _in_words(coordinate: xr.DataArray, mappings: list[xr.DataArray]) -> str:
    """What lengths along it are; an error on a map that does not keep areas."""
    names = {str(each.attrs.get("grid_mapping_name")) for each in mappings} - ANGULAR
    standard = str(coordinate.attrs.get("standard_name", ""))
    on_axis = is_axis(coordinate, "X", "Y") or str(coordinate.name).lower() in ("x", "y")
    if not (standard.startswith("projection_") or (names and on_axis)):
        return "lengths"
    if names and names <= EQUAL_AREA:
        return f"lengths in the plane of the projection {names.pop()}, which keeps areas,"
    what = ", ".join(sorted(names)) or "of which no grid mapping tells"
    raise InputError(
        f"{coordinate.name!r} lies in the plane of a projection ({what}), and an area there is not "
        f"that on the globe. {AREAS}"
    )


def _length_unit(coordinate: xr.DataArray) -> str | None:
    return "s" if is_time(coordinate) else units(coordinate) or None


def _plain(coordinate: xr.DataArray, bounds: xr.DataArray | None) -> Array:
    if bounds is not None:
        return np.abs(np.diff(numbers(bounds, coordinate), axis=-1))[:, 0]
    centres = numbers(coordinate, coordinate)
    _monotonic(coordinate, centres)
    if counts(coordinate) and np.ptp(np.diff(centres)):
        raise InputError(
            f"{coordinate.name!r} holds whole numbers without a unit, and not each one: are they "
            "positions or do they count? Give positions `units`; give what counts the "
            f"`standard_name` realization or model_level_number. {WAY_OUT}"
        )
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


def _kind(dim: str, coordinates: list[xr.DataArray]) -> str | None:
    coordinate = along(dim, coordinates)
    return None if coordinate is None else angle(coordinate)
