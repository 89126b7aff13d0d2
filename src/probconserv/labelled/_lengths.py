"""Weights of cells from coordinates: lengths along one dimension, areas of a mesh on a sphere."""

from dataclasses import dataclass

import numpy as np
import xarray as xr

from .._errors import InputError
from . import _coordinates as grid
from ._coordinates import LATITUDE, LONGITUDE, WAY_OUT, Array, Globe
from ._time import is_decoded
from ._vertical import check_pressure, cut_at_zero, is_pressure, layers_of, scale

Mesh = tuple[xr.DataArray, xr.DataArray]  # latitudes and longitudes of each cell

BLOCK = 1 << 19  # cells whose corners are in memory at once
AREAS = (
    "Give the areas of the cells as `measure`; `cdo gridarea IN.nc AREAS.nc` finds those of many "
    "grids, as --measure AREAS.nc:cell_area takes them."
)
HEALPIX = {"healpix", "healpix_nside"}
ROUND = {"latitude_longitude", "rotated_latitude_longitude", "reduced_gaussian", "healpix"}
ALONE = {
    LATITUDE: "areas of the zones of latitude per metre of the equator",
    LONGITUDE: "arcs of longitude along the equator",
}


@dataclass(frozen=True)
class Factor:
    """Weights that are multiplied with others; `where` says which coordinates they come from."""

    weights: xr.DataArray
    units: str | None
    where: str
    angle: str | None = None


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
    data, coordinates = dataset[variable], grid.coordinates_of(dataset, variable)
    mesh = mesh_of(coordinates, over)
    corners = [each for c in mesh or () if (each := grid.bounds_of(dataset, c)) is not None]
    factors = []
    if mesh and len(corners) == 2:
        factors.append(_mesh_areas(mesh, corners, globe))
    elif flat := [dim for dim in over if grid.is_horizontal(dim, coordinates)]:
        factors += _equal_areas(dataset, data, flat, globe)
    covered = {dim for factor in factors for dim in factor.weights.dims}
    for dim in over:
        if dim in covered:
            continue
        if layers := layers_of(dataset, variable, dim):
            factors.append(Factor(layers.thickness, layers.units, layers.where))
            continue
        coordinate = grid.along(dim, coordinates)
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
    if topology := grid.setting(data, "mesh"):
        raise InputError(f"the mesh {topology!r} of {data.name!r} (UGRID) has no areas. {AREAS}")
    own = [dataset[dim] for dim in flat if dim in dataset.coords]
    marks = [each.attrs for each in (*grid.mappings_of(dataset, data), data, dataset, *own)]
    marks = [each for each in marks if HEALPIX & {*map(str, each), *map(str, each.values())}]
    if not marks:
        return []
    orders = [marks[0].get(key) for key in ("refinement_level", "healpix_order", "level")]
    order = next((int(each) for each in orders if each is not None), None)
    side = int(marks[0].get("healpix_nside", 0 if order is None else 2**order))
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


def _more_than_a_count(own: xr.DataArray, coordinates: list[xr.DataArray]) -> None:
    """Level numbers beside heights: the heights are meant, and which ones must be said."""
    others = [c for c in coordinates if c.dims == own.dims and not grid.counts(c) and grid.units(c)]
    if grid.counts(own) and others:
        raise InputError(
            f"{own.name!r} only numbers the cells along its dimension. Choose the coordinate that "
            f"has their sizes, {' or '.join(str(c.name) for c in others)}, as that of the "
            "dimension, or give the weights as `measure`; `measure=1` means plain sums."
        )


def mesh_of(coordinates: list[xr.DataArray], over: list[str]) -> Mesh | None:
    """Latitudes and longitudes that share their dimensions: a curvilinear or unstructured grid."""
    pairs = [(a, b) for a in coordinates for b in coordinates if set(a.dims) == set(b.dims)]
    for lat, lon in pairs:
        kinds = grid.angle(lat), grid.angle(lon)
        if kinds == (LATITUDE, LONGITUDE) and set(lat.dims) & set(over):
            own = grid.along(str(lat.dims[0]), coordinates) if lat.ndim == 1 else None
            if own is None or grid.angle(own) or grid.counts(own):  # else a path, in its unit
                return lat, lon
    return None


def _stands_without(dataset: xr.Dataset, mesh: Mesh, own: xr.DataArray | None) -> None:
    """A dimension of a mesh without bounds needs a coordinate that gives true sizes."""
    lat, lon = mesh
    sized = own is not None and not grid.counts(own) and own.ndim < lat.ndim
    if own is not None and sized and not _nominal(own, mesh):
        return
    remark = grid.missing_bounds(dataset, lat) or grid.missing_bounds(dataset, lon)
    raise InputError(
        f"{lat.name!r} and {lon.name!r} lie on {lat.dims} and have no bounds, so that the areas "
        f"of the cells are not known{remark}. Add their corners as bounds. {AREAS}"
    )


def _nominal(own: xr.DataArray, mesh: Mesh) -> bool:
    """Whether an angle along one dimension is not the one of the cells, as on a tripolar grid."""
    kind = grid.angle(own)
    if kind is None or "grid_" in str(own.attrs.get("standard_name")):
        return False
    true = mesh[0] if kind == LATITUDE else mesh[1]
    wide = own.broadcast_like(true).transpose(*true.dims)
    off = grid.degrees(true.values, true) - grid.degrees(wide.values, own)
    return bool((np.abs((off + 180) % 360 - 180) > 1e-3).any())


def _mesh_areas(mesh: Mesh, corners: list[xr.DataArray], globe: Globe) -> Factor:
    """Areas of cells between great circles, some rows of corners at a time."""
    (lat, lon), (north, east) = mesh, corners
    east = east.transpose(*lat.dims, ...)
    if not north.shape[-1] == east.shape[-1] >= 3:
        raise InputError(
            f"the bounds of {lat.name!r} and {lon.name!r} must hold the same corners, three or "
            f"more for each cell, got {north.shape[-1]} and {east.shape[-1]}. {WAY_OUT}"
        )
    rows = max(1, BLOCK * lat.shape[0] // max(1, lat.size))
    areas = np.empty(lat.shape)
    for start in range(0, lat.shape[0], rows):
        block = slice(start, start + rows)
        y, x = grid.degrees(north[block].values, lat), grid.degrees(east[block].values, lon)
        _on_sphere(north, y)
        areas[block] = grid.polygon_areas(y, np.where(np.isinf(x), np.nan, x))
    unknown = int(np.isnan(areas).sum())
    remark = f" ({unknown} cells without corners count as 0)" if unknown else ""
    where = (
        f"cell areas from the bounds of {lat.name} and {lon.name}, corners joined by great "
        f"circles {globe}{remark}"
    )
    weights = xr.DataArray(globe.radius**2 * np.nan_to_num(areas), dims=lat.dims)
    return Factor(weights, "m2", where)


def _on_sphere(coordinate: xr.DataArray, latitude: Array, slack: float = 1e-3) -> None:
    beyond = np.abs(latitude) > 90 + slack
    if beyond.any():
        raise InputError(
            f"{coordinate.name!r} must hold latitudes from -90 to 90 degrees, got "
            f"{latitude[beyond][0]:.6g}. Correct its values or its `units`. {WAY_OUT}"
        )


def _lengths(
    dataset: xr.Dataset, data: xr.DataArray, coordinate: xr.DataArray, globe: Globe
) -> Factor:
    kind, bounds = grid.angle(coordinate), grid.interval_bounds(dataset, coordinate)
    if bounds is None and grid.is_numbered(coordinate):
        ones = xr.DataArray(np.ones(coordinate.size), dims=coordinate.dims)
        return Factor(ones, "1", f"1 for every {coordinate.name}, which is a number")
    where = f"the {'centres' if bounds is None else 'bounds'} of {coordinate.name}"
    where += grid.missing_bounds(dataset, coordinate)
    if kind is None:
        ends, remark = intervals(coordinate, bounds)
        what = _in_words(coordinate, grid.mappings_of(dataset, data))
        cells = xr.DataArray(np.abs(np.diff(ends))[:, 0], dims=coordinate.dims)
        unit = "s" if is_decoded(coordinate) else grid.units(coordinate) or None
        return Factor(cells, unit, f"{what} from {where}{remark}")
    ends = _ends(coordinate, bounds, kind)
    size = grid.zone_heights(ends) if kind == LATITUDE else _arcs(coordinate, ends)
    return Factor(xr.DataArray(globe.radius * size, dims=coordinate.dims), "m", where, kind)


def _in_words(coordinate: xr.DataArray, mappings: list[xr.DataArray]) -> str:
    """What lengths along it are; an error on a map that does not keep areas."""
    names = sorted({str(each.attrs.get("grid_mapping_name")) for each in mappings} - ROUND)
    standard = str(coordinate.attrs.get("standard_name", ""))
    on_axis = grid.is_axis(coordinate, "X", "Y") or str(coordinate.name).lower() in ("x", "y")
    if not (standard.startswith("projection_") or (names and on_axis)):
        metres = on_axis and scale(grid.units(coordinate), "m") is not None
        return "lengths" + " in a plane (no grid mapping)" * metres
    if names and all(name.endswith("_equal_area") or name == "sinusoidal" for name in names):
        return f"lengths in the plane of the projection {names[0]}, which keeps areas,"
    what = ", ".join(names) or "of which no grid mapping tells"
    raise InputError(
        f"{coordinate.name!r} lies in the plane of a projection ({what}), where areas are not "
        f"those on the globe. {AREAS}"
    )


def intervals(coordinate: xr.DataArray, bounds: xr.DataArray | None) -> tuple[Array, str]:  # (n, 2)
    """The ends of each cell, and a remark on those that end at 0 and on pressure."""
    ends, pressure = _ends(coordinate, bounds, None), " (dp, not mass)"
    pressure = pressure if is_pressure(coordinate) else ""
    if bounds is not None:
        check_pressure(coordinate, ends)
        return ends, pressure
    cut = cut_at_zero(coordinate, ends)
    return cut, f"{'' if (cut == ends).all() else ', cut at 0'}{pressure}"


def _ends(coordinate: xr.DataArray, bounds: xr.DataArray | None, kind: str | None) -> Array:
    """Where each cell ends, (n, 2): its bounds, or half way to the next centre; in degrees."""
    centres = grid.degrees(grid.numbers(coordinate, coordinate), coordinate)
    if kind == LATITUDE:
        _on_sphere(coordinate, centres)
    if bounds is not None:
        ends = grid.degrees(grid.numbers(bounds, coordinate), coordinate)
        if kind == LATITUDE:
            _on_sphere(bounds, ends, slack=10)  # some files let the last cell reach past the pole
        return ends
    if kind == LONGITUDE:
        centres = np.unwrap(centres, period=360)
    _check_centres(coordinate, centres)
    if kind == LATITUDE:
        return grid.latitude_bounds(centres)
    return grid.longitude_bounds(centres) if kind else grid.half_way(centres)


def _arcs(coordinate: xr.DataArray, ends: Array) -> Array:
    widths = grid.arcs(ends, grid.degrees(coordinate.values, coordinate))
    if widths.sum() > 2 * np.pi * (1 + 1e-5):
        raise InputError(
            f"the cells of {coordinate.name!r} cover {np.degrees(widths.sum()):.6g} degrees of "
            f"longitude, more than the circle. Drop the cells that come twice. {WAY_OUT}"
        )
    return widths


def _check_centres(coordinate: xr.DataArray, centres: Array) -> None:
    """Centres that sizes can be found from: two or more, in order, more than mere numbers."""
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
            f"drop duplicates. {WAY_OUT}"
        )
    if grid.counts(coordinate) and not grid.angle(coordinate) and np.ptp(steps):
        raise InputError(
            f"{coordinate.name!r} holds whole numbers without a unit, unevenly: are they positions "
            "or do they count? Give positions `units`; give what counts the `standard_name` "
            f"realization or model_level_number. {WAY_OUT}"
        )


def area_dims(dataset: xr.Dataset, variable: str, dims: list[str]) -> list[str]:
    """Those of the dimensions whose cells form areas together."""
    coordinates = grid.coordinates_of(dataset, variable)
    mesh = mesh_of(coordinates, dims)
    own = {dim: grid.along(dim, coordinates) for dim in dims}
    angles = [dim for dim, c in own.items() if c is not None and grid.angle(c)]
    return [dim for dim in dims if dim in angles or (mesh and dim in mesh[0].dims)]
