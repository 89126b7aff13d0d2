"""How large cells are: by the corners of faces and cells, or from where each ends along its axis.

Each fact is taken from the first of these that is there:

areas       great circles between the nodes of faces (UGRID) or the corners of cells; equal cells of
            HEALPix; zones of latitude times arcs of longitude; a plane without a map
cell ends   bounds; the zones of Gaussian latitudes; half way between centres, to the pole and
            around the globe, and no further than 0 for depths, heights and pressures
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import xarray as xr

from ..support import sphere
from ..support.errors import InputError
from ..support.sphere import Array, Globe
from ..support.tolerances import CIRCLE, SINGLE
from ._attributes import is_decoded, product, scale, seconds, setting, units
from ._conventions import (
    AREAS,
    FROM_ZERO,
    LATITUDE,
    LONGITUDE,
    NO_PLANE,
    angle,
    counted,
    counts,
    is_axis,
    is_pressure,
    unsized,
    ways_to_weigh,
)
from ._grid import FileGrid, Mesh, degrees

ALONE = {
    LATITUDE: "areas of the zones of latitude per metre of the equator",
    LONGITUDE: "arcs of longitude along the equator",
}
BLOCK = 1 << 19  # cells whose corners are in memory at once


@dataclass(frozen=True)
class AxisSizes:
    """Weights that are multiplied with others; `where` says what they come from."""

    weights: xr.DataArray
    units: str | None
    where: str
    angle: str | None = None


def describe(factors: list[AxisSizes], globe: Globe) -> str:
    """One sentence for a report: what the weights are and where they come from."""
    texts = [factor.where for factor in factors if factor.angle is None]
    angles = {factor.angle: factor.where for factor in factors if factor.angle}
    if angles:
        what = "cell areas" if len(angles) == 2 else ALONE[next(iter(angles))]
        where = [angles[kind] for kind in (LATITUDE, LONGITUDE) if kind in angles]
        where[1:] = [text.removeprefix(f"{where[0].split(' of ')[0]} of ") for text in where[1:]]
        texts.insert(0, f"{what} from {' and '.join(where)}, {globe}")
    return "; times ".join(texts)


def cell_sizes(grid: FileGrid, over: list[str], globe: Globe) -> list[AxisSizes]:
    """The factors whose product is the size of each cell in a sum over the dimensions."""
    mesh = grid.mesh(over)
    corners = [each for c in mesh or () if (each := grid.bounds(c)) is not None]
    factors = []
    if mesh and len(corners) == 2:
        factors = [_mesh_areas(mesh, corners, globe)]
    elif flat := grid.horizontal(over):
        factors = _equal_areas(grid, flat, globe)
    covered = {dim for factor in factors for dim in factor.weights.dims}
    left = [dim for dim in over if dim not in covered]
    return factors + [_lengths(grid, _sized(grid, dim, mesh, over), globe) for dim in left]


def _by_block(area: Callable[[slice], Array], cells: tuple[int, ...]) -> Array:
    """The areas of cells, so many rows at a time that their corners fit in memory."""
    rows, areas = max(1, BLOCK * cells[0] // max(1, int(np.prod(cells)))), np.empty(cells)
    for start in range(0, cells[0], rows):
        block = slice(start, start + rows)
        areas[block] = area(block)
    return areas


def _mesh_areas(mesh: Mesh, corners: list[xr.DataArray], globe: Globe) -> AxisSizes:
    """Areas of cells between great circles."""
    (lat, lon), (north, east) = mesh, corners
    east = east.transpose(*lat.dims, ...)
    if not north.shape[-1] == east.shape[-1] >= 3:
        raise unsized(
            f"the bounds of {lat.name!r} and {lon.name!r} must hold the same corners, three or "
            f"more for each cell, got {north.shape[-1]} and {east.shape[-1]}"
        )

    def area(block: slice) -> Array:
        y, x = degrees(north[block].values, lat), degrees(east[block].values, lon)
        _check_latitudes(north, y)
        return sphere.polygon_areas(y, np.where(np.isinf(x), np.nan, x))

    areas = _by_block(area, lat.shape)
    unknown = int(np.isnan(areas).sum())
    where = f"cell areas from the bounds of {lat.name} and {lon.name}, corners joined by great "
    where += f"circles {globe}" + f" ({unknown} cells without corners count as 0)" * (unknown > 0)
    weights = xr.DataArray(globe.radius**2 * np.nan_to_num(areas), dims=lat.dims)
    return AxisSizes(weights, "m2", where)


def _equal_areas(grid: FileGrid, flat: list[str], globe: Globe) -> list[AxisSizes]:
    """The areas of HEALPix cells; none on other grids."""
    marks = [each.attrs for each in (*grid.mappings, *grid.coordinates)]
    said = next((m for m in marks if "healpix" in map(str, m.values())), None)
    if said is None:
        return []
    dim = max(flat, key=lambda name: grid.data.sizes[name])
    size = grid.data.sizes[dim]
    level = said.get("refinement_level")
    side = float(np.sqrt(size / 12) if level is None else 2 ** int(level))
    if size > 12 * side**2 or side % 1:
        raise InputError(
            f"{grid.name!r} lies on HEALPix cells, but its {size} entries along {dim!r} are not "
            f"some of 12 nside^2 equal cells (nside {side:.6g}). {AREAS}"
        )
    count = 12 * int(side) ** 2
    weights = xr.DataArray(np.full(size, 4 * np.pi * globe.radius**2 / count), dims=dim)
    return [AxisSizes(weights, "m2", f"equal areas, a sphere over {count} HEALPix cells, {globe}")]


def face_areas(grid: FileGrid, over: list[str], globe: Globe) -> AxisSizes | None:
    """The areas of the faces (UGRID) that a variable lies on; None where none are summed over."""
    name = setting(grid.data, "mesh")
    if not name or not grid.horizontal(over):
        return None
    if name not in grid.dataset.variables:
        raise _no_faces(grid, "there is no variable of that name to say what it is made of")
    if (location := setting(grid.data, "location")) != "face":
        raise _no_faces(grid, f"`location` is {location or 'missing'!r}, and only faces have areas")
    faces, *_ = _of_mesh(grid, "face_node_connectivity")
    along = [str(dim) for dim in faces.dims if dim in grid.data.dims]
    if faces.ndim != 2 or len(along) != 1:
        rule = "must have the dimension of the faces and one of their nodes"
        raise _no_faces(grid, f"{faces.name!r} {rule}, got {faces.dims}")
    if along[0] not in over:
        return None
    nodes = _of_mesh(grid, "node_coordinates")
    corners = _corners(grid, faces.transpose(along[0], ...), nodes[0].size)
    kinds = {angle(each): numbers(each, each) for each in nodes}
    area: Callable[[Array, Array], Array] = _plane_areas
    if on_globe := {LATITUDE, LONGITUDE} <= set(kinds):
        area, unit, how = sphere.polygon_areas, "m2", f"joined by great circles {globe}"
        y, x = kinds[LATITUDE], kinds[LONGITUDE]
    elif len(nodes) != 2 or any(scale(each, "m") is None for each in nodes):
        said = ", ".join(f"{each.name} in {units(each) or 'no units'!r}" for each in nodes)
        raise _no_faces(grid, f"its nodes must lie in degrees or in lengths, got {said}")
    else:
        unit, how = str(product(*map(units, nodes))), plane(nodes[0], grid, True)
        x, y = (numbers(each, each) for each in nodes)
    areas = _by_block(lambda block: area(y[corners[block]], x[corners[block]]), corners.shape[:1])
    if on_globe and (share := areas.sum() / (4 * np.pi)) > 1 + SINGLE:
        raise _no_faces(grid, f"its faces cover {share:.6g} times the globe")
    empty = int((areas == 0).sum())
    where = f"areas of the faces of {name} from {' and '.join(str(each.name) for each in nodes)}"
    where += f", {how}" + f" ({empty} faces without an area count as 0)" * (empty > 0)
    by = globe.radius**2 if on_globe else 1.0
    return AxisSizes(xr.DataArray(by * areas, dims=along[0]), unit, where)


def _no_faces(grid: FileGrid, why: str) -> InputError:
    mesh = setting(grid.data, "mesh")
    return InputError(f"the mesh {mesh!r} of {grid.name!r} (UGRID) gives no areas: {why}. {AREAS}")


def _of_mesh(grid: FileGrid, key: str) -> list[xr.DataArray]:
    """The variables that the mesh names in an attribute."""
    names = setting(grid.dataset[setting(grid.data, "mesh")], key).split()
    lost = [f"{name!r} is not there" for name in names if name not in grid.dataset.variables]
    if lost or not names:
        raise _no_faces(grid, f"its `{key}` {[*lost, 'is missing'][0]}")
    return [grid.dataset[name] for name in names]


def _corners(grid: FileGrid, faces: xr.DataArray, nodes: int) -> Array:  # (F, n)
    """The nodes of every face, counted from 0; one that is missing is the first again."""
    start, fill = int(faces.attrs.get("start_index", 0)), faces.attrs.get("_FillValue", np.nan)
    given = faces.values.astype(np.float64)
    there = np.isfinite(given) & (given != fill) & (given >= start)
    found = np.where(there, given - start, -1).astype(np.int64)
    first = found[there].min(initial=nodes)
    if found.max(initial=-1) >= nodes or ("start_index" not in faces.attrs and first == 1):
        raise _no_faces(
            grid,
            f"{faces.name!r} has nodes {first + start} to {found.max() + start}, and there are "
            f"{nodes} of them, counted from {start}. Correct its `start_index`",
        )
    return np.where(found < 0, found[:, :1], found)


def _plane_areas(y: Array, x: Array) -> Array:  # (F, n) -> (F,)
    """Half the sum of the cross products of neighbouring corners, seen from the first."""
    y, x = y - y[:, :1], x - x[:, :1]
    return np.abs((x[:, :-1] * y[:, 1:] - x[:, 1:] * y[:, :-1]).sum(axis=-1)) / 2


def _sized(grid: FileGrid, dim: str, mesh: Mesh | None, over: list[str]) -> xr.DataArray:
    """The coordinate that gives the sizes of cells along a dimension."""
    own = grid.along(dim)
    if mesh and dim in mesh[0].dims and not (own is not None and _is_plain(own, mesh)):
        lat, lon = mesh
        raise InputError(
            f"{lat.name!r} and {lon.name!r} lie on {lat.dims} and have no bounds, so that the areas"
            f" of the cells are not known{grid.lacks_bounds(lat, lon)}. "
            f"{grid.ways(over, *mesh[0].dims)} Or add their corners as bounds."
        )
    if own is None:
        why = f"{dim!r} of {grid.name!r} has no coordinate to find sizes of cells from"
        raise unsized(why, ways_to_weigh(grid.dataset, grid.data, over, dim))
    same = [c.name for c in grid.coordinates if c.dims == own.dims and units(c) and not counts(c)]
    if counts(own) and same:
        raise unsized(
            f"{own.name!r} only numbers the cells along its dimension. Choose the coordinate that "
            f"has their sizes, {' or '.join(map(str, same))}, as that of the dimension"
        )
    return own


def _is_plain(own: xr.DataArray, mesh: Mesh) -> bool:
    """Whether cells have their sizes along it: in a plane or around a rotated pole."""
    rotated = "grid_" in setting(own, "standard_name")
    return mesh[0].ndim > 1 and not counts(own) and (rotated or not angle(own))


def _lengths(grid: FileGrid, coordinate: xr.DataArray, globe: Globe) -> AxisSizes:
    """The sizes of cells along one coordinate."""
    kind, name, bounds = angle(coordinate), coordinate.name, grid.bounds(coordinate)

    def sizes(of_cells: Array, unit: str | None, where: str) -> AxisSizes:
        return AxisSizes(xr.DataArray(of_cells, dims=coordinate.dims), unit, where, kind)

    if bounds is None and counted(coordinate):
        return sizes(np.ones(coordinate.size), "1", f"1 for every {name}, which is a number")
    ends, remark = ends_of(coordinate, bounds)
    where = f"the {'centres' if bounds is None else 'bounds'} of {name}"
    where += grid.lacks_bounds(coordinate)
    if kind == LATITUDE:
        exact = None if bounds is not None else sphere.gaussian(numbers(coordinate, coordinate))
        heights, count = exact or (sphere.zone_heights(ends), 0)
        where += f" ({coordinate.size} of {count} Gaussian latitudes)" if exact else ""
        return sizes(globe.radius * heights, "m", where)
    if kind == LONGITUDE:
        widths = sphere.arcs(ends, degrees(coordinate.values, coordinate))
        if (circle := np.degrees(widths.sum())) > 360 * (1 + CIRCLE):
            raise unsized(
                f"the cells of {name!r} cover {circle:.6g} degrees of longitude, more than the "
                "circle. Drop the cells that come twice"
            )
        return sizes(globe.radius * widths, "m", where)
    unit = "s" if is_decoded(coordinate) else units(coordinate) or None
    remark += " (dp, not mass)" if is_pressure(coordinate) else ""
    words = f"{_in_words(coordinate, grid)} from {where}{remark}"
    return sizes(np.abs(np.diff(ends))[:, 0], unit, words)


def _in_words(coordinate: xr.DataArray, grid: FileGrid) -> str:
    """What lengths along it are; an error on a map."""
    on_axis = is_axis(coordinate, "X", "Y") or str(coordinate.name).lower() in ("x", "y")
    angles = {angle(each) for each in grid.coordinates} - {None}
    level = grid.maps == {"latitude_longitude"} and len(angles) < 2
    if level and (on_axis or not angles) and grid.horizontal(coordinate.dims):
        raise InputError(
            f"{coordinate.name!r} has the `units` {units(coordinate)!r}, and its grid mapping is "
            "latitude_longitude, a map of angles. If it holds degrees, `assume_units` says so: "
            f"degrees_north or degrees_east. If not, correct the grid mapping. {AREAS}"
        )
    return f"lengths {plane(coordinate, grid, on_axis)}".rstrip()


def plane(coordinate: xr.DataArray, grid: FileGrid, on_axis: bool) -> str:
    """In which plane it lies; an error on a map."""
    names = sorted(grid.maps - NO_PLANE)
    projected = setting(coordinate, "standard_name").startswith("projection_")
    if not projected and not (names and on_axis):
        metres = on_axis and scale(coordinate, "m") is not None
        return "in a plane (no grid mapping)" if metres else ""
    what = ", ".join(names) or "of which no grid mapping tells"
    raise InputError(
        f"{coordinate.name!r} lies in the plane of a projection ({what}), where areas are not "
        f"those on the globe. {grid.ways(coordinate.dims)}"
    )


def ends_of(coordinate: xr.DataArray, bounds: xr.DataArray | None) -> tuple[Array, str]:  # (n, 2)
    """Where each cell ends, in degrees or the unit of the coordinate, and a remark."""
    kind, name = angle(coordinate), coordinate.name
    centres = numbers(coordinate, coordinate)
    pressure = kind is None and is_pressure(coordinate)
    if bounds is not None:
        if bounds.shape[-1] != 2:
            got = f"got {bounds.shape[-1]}"
            raise unsized(f"the bounds {bounds.name!r} of {name!r} must hold two ends each, {got}")
        ends = numbers(bounds, coordinate)
        if pressure and (ends < 0).any():
            raise unsized(f"a cell of {name!r} ends at the pressure {ends.min():.6g}, below 0")
        return ends, ""
    centres = np.unwrap(centres, period=360) if kind == LONGITUDE else centres
    _check_centres(coordinate, centres)
    ends = {LATITUDE: sphere.zones, LONGITUDE: sphere.sectors, None: sphere.half_way}[kind](centres)
    if kind or is_decoded(coordinate):
        return ends, ""
    direction, standard = (setting(coordinate, key) for key in ("positive", "standard_name"))
    from_zero = pressure or {standard, name} & FROM_ZERO or direction == "down"
    low = 0.0 if from_zero and (centres >= 0).all() else -np.inf
    high = 0.0 if (from_zero or direction == "up") and (centres <= 0).all() else np.inf
    cut = np.clip(ends, low, high)
    return cut, ", cut at 0" if (cut != ends).any() else ""


def _check_centres(coordinate: xr.DataArray, centres: Array) -> None:
    """Centres that sizes can be found from: two or more, in order, more than mere numbers."""
    name, values = coordinate.name, coordinate.values
    if centres.size < 2:
        raise unsized(f"{name!r} has one entry and no bounds to tell the size of its cell")
    steps = np.diff(centres)
    for i in np.flatnonzero(steps * np.sign(steps[0]) <= 0)[:1]:
        raise unsized(
            f"{name!r} must increase or decrease throughout; entry {i} is {values[i]} and entry "
            f"{i + 1} is {values[i + 1]}. Sort it and drop duplicates"
        )
    if counts(coordinate) and not angle(coordinate) and np.ptp(steps):
        raise unsized(
            f"{name!r} holds whole numbers without a unit, unevenly. Give positions `units`; give "
            "what counts the `standard_name` realization or model_level_number"
        )


def numbers(array: xr.DataArray, coordinate: xr.DataArray) -> Array:
    """A coordinate or its bounds as float64: dates in seconds, angles in degrees."""
    dates = is_decoded(coordinate)
    if dates != is_decoded(array) or not (dates or array.dtype.kind in "iuf"):
        kinds = "dates, as its coordinate does" if dates else "numbers or dates"
        raise unsized(f"{array.name!r} must hold {kinds}, got {array.dtype}")
    values = degrees(seconds(array, coordinate.values.flat[0]), coordinate)
    if wrong := int((~np.isfinite(values)).sum()):
        raise unsized(f"{array.name!r} must be finite; {wrong} of its {values.size} values are not")
    if angle(coordinate) == LATITUDE:  # some files let the last cell reach past the pole
        _check_latitudes(array, values, slack=1e-3 if array is coordinate else 10)
    return values


def _check_latitudes(array: xr.DataArray, latitudes: Array, slack: float = 1e-3) -> None:
    for wrong in latitudes[np.abs(latitudes) > 90 + slack][:1]:
        raise unsized(
            f"{array.name!r} must hold latitudes from -90 to 90 degrees, got {wrong:.6g}. Correct "
            "its values or its `units`"
        )
