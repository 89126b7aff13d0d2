"""What a dataset says of the cells of a variable, and how large they are by that.

Each fact is taken from the first of these that is there:

angle       units degrees_north or degrees_east; else, with units of an angle or none, the standard
            name, the name, the axis
coordinate  of a dimension: that of its name, unless it only counts and an angle lies along it; an
            angle along it; the only one along it
areas       great circles between the corners of cells; equal cells of HEALPix; zones of latitude
            times arcs of longitude; a plane without a map
cell ends   bounds; the zones of Gaussian latitudes; half way between centres, to the pole and
            around the globe, and no further than 0 for depths, heights and pressures
"""

import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr
from cf_xarray.criteria import coordinate_criteria

from ..support.errors import InputError
from ..support.sphere import (
    Array,
    Globe,
    arcs,
    gaussian,
    half_way,
    polygon_areas,
    sectors,
    zone_heights,
    zones,
)
from ..support.tolerances import CIRCLE
from ._attributes import WKT, is_decoded, map_of, scale, seconds, setting, units
from ._metrics import AREAS, ways_to_weigh
from ._time import tells_time

Mesh = tuple[xr.DataArray, xr.DataArray]  # latitudes and longitudes of each cell

WAY_OUT = "Give the weights of the cells as `measure`."
LATITUDE, LONGITUDE = "latitude", "longitude"
AXES = {LATITUDE: "Y", LONGITUDE: "X"}
UNITS = {kind: {unit.lower() for unit in coordinate_criteria[kind]["units"]} for kind in AXES}
NAMES = {kind: re.compile(f"(nav_|r|c)?{kind[:3]}|(grid_)?{kind}") for kind in AXES}
RADIANS = {"radian", "radians", "rad"}
DEGREES = {"degree", "degrees", "deg"}
NUMBERED = re.compile("realization|number|(ensemble_?)?members?|ensemble|model_level_number")
FROM_ZERO = {"depth", "height", "air_pressure", "sea_water_pressure"}
SHAPE = ("earth_radius", "semi_major_axis", "semi_minor_axis", "inverse_flattening")
NO_PLANE = {"latitude_longitude", "rotated_latitude_longitude", "reduced_gaussian", "healpix"}
ALONE = {
    LATITUDE: "areas of the zones of latitude per metre of the equator",
    LONGITUDE: "arcs of longitude along the equator",
}
BLOCK = 1 << 19  # cells whose corners are in memory at once


def unsized(why: str, way: str = "") -> InputError:
    """The error where sizes of cells cannot be found, with the way out."""
    return InputError(f"{why}. {way or WAY_OUT} `measure=1` means plain sums.")


def is_pressure(coordinate: xr.DataArray) -> bool:
    return scale(coordinate, "Pa") is not None


def angle(coordinate: xr.DataArray) -> str | None:
    """LATITUDE or LONGITUDE, also those of a rotated pole; None for any other coordinate."""
    unit, said = units(coordinate).lower(), coordinate.attrs.get("standard_name")
    if unit in DEGREES and str(said).startswith("projection_"):  # cdo, of a rotated pole
        said = None
    for kind, axis in AXES.items():
        if unit in UNITS[kind]:
            return kind
        if unit in {"", *RADIANS, *DEGREES}:
            by_axis = unit and not said and coordinate.attrs.get("axis") == axis
            if by_axis or NAMES[kind].fullmatch(str(said or coordinate.name).lower()):
                return kind
    return None


def is_axis(coordinate: xr.DataArray, *keys: str) -> bool:
    """Whether its attributes say that it is one of cf-xarray's X, Y, Z, T, vertical, ..."""
    for name, value in coordinate.attrs.items():
        for key in keys:
            if str(value) in coordinate_criteria[key].get(name, ()):
                return True
    return False


def is_numbered(coordinate: xr.DataArray) -> bool:
    """Whether its name says that it counts, as members and the levels of a model are counted."""
    said = coordinate.attrs.get("standard_name", coordinate.name)
    return bool(NUMBERED.fullmatch(str(said).lower())) and units(coordinate) in ("", "1")


def counts(coordinate: xr.DataArray) -> bool:
    """Whether it only numbers the cells: integers without a unit, or members and model levels."""
    whole = coordinate.dtype.kind in "iu" and units(coordinate) in ("", "1")
    return whole or is_numbered(coordinate)


@dataclass(frozen=True, eq=False)
class FileGrid:
    """The cells of a variable, as a dataset describes them."""

    dataset: xr.Dataset
    name: str  # of the variable

    @property
    def data(self) -> xr.DataArray:
        return self.dataset[self.name]

    @cached_property
    def coordinates(self) -> list[xr.DataArray]:
        """Every coordinate along the variable's dimensions, those that it names first."""
        found = self._named(*setting(self.data, "coordinates").split(), *map(str, self.data.coords))
        return [c for c in found if c.dims and set(c.dims) <= set(self.data.dims)]

    @cached_property
    def mappings(self) -> list[xr.DataArray]:
        """The grid mappings that the variable names."""
        found = self._named(*setting(self.data, "grid_mapping").replace(":", " ").split())
        marks = {"grid_mapping_name", *WKT, *SHAPE}
        found += [c for c in self.data.coords.values() if not found and {*marks} & set(c.attrs)]
        return [each for each in found if marks & set(each.attrs)]

    @property
    def maps(self) -> list[str]:
        """The names of the grid mappings, as CF has them or as their WKT says."""
        return [map_of(each) for each in self.mappings]

    def _named(self, *names: str) -> list[xr.DataArray]:
        there = self.dataset.variables
        return [self.dataset[name] for name in dict.fromkeys(names) if name in there]

    def along(self, dim: Hashable) -> xr.DataArray | None:
        """The coordinate of a dimension; one that only counts yields to an angle."""
        single = [c for c in self.coordinates if c.dims == (dim,)]
        own = next((c for c in single if c.name == dim), None)
        angles = [c for c in single if c.name in self.angles]
        if angles and (own is None or counts(own)):
            return angles[0]
        return single[0] if own is None and len(single) == 1 else own

    @cached_property
    def angles(self) -> dict[Hashable, str]:
        """The coordinates that are latitudes or longitudes, by name."""
        return {c.name: kind for c in self.coordinates if (kind := angle(c))}

    def horizontal(self, dims: Iterable[str]) -> list[str]:
        """Those of the dimensions that are neither time nor vertical nor of members."""

        def is_other(c: xr.DataArray) -> bool:
            return tells_time(c) or is_axis(c, "Z", "vertical") or is_numbered(c)

        return [dim for dim in dims if (c := self.along(dim)) is None or not is_other(c)]

    def mesh(self, dims: list[str]) -> Mesh | None:
        """Latitudes and longitudes with the same dimensions: a curvilinear or unstructured grid."""
        known = [(c, self.angles[c.name]) for c in self.coordinates if c.name in self.angles]
        longitudes = [c for c, kind in known if kind == LONGITUDE]
        for lat in [c for c, kind in known if kind == LATITUDE]:
            others = [lon for lon in longitudes if set(lon.dims) == set(lat.dims)]
            own = self.along(lat.dims[0]) if lat.ndim == 1 else None
            path = own is not None and not angle(own) and not counts(own)  # long by its own unit
            if others and set(lat.dims) & set(dims) and not path:
                return lat, others[0]
        return None

    def area_dims(self, dims: list[str]) -> list[str]:
        """Those of the dimensions whose cells form areas together."""
        mesh = {dim for c in self.mesh(dims) or () for dim in c.dims}
        along = {dim: getattr(self.along(dim), "name", None) for dim in dims}
        return [dim for dim in dims if dim in mesh or along[dim] in self.angles]

    def bounds(self, coordinate: xr.DataArray) -> xr.DataArray | None:  # (*dims, n)
        """The bounds that a coordinate names, corners last; None where the dataset has none."""
        name = setting(coordinate, "bounds")
        if name not in self.dataset.variables:
            return None
        bounds = self.dataset[name]
        corners = [dim for dim in bounds.dims if dim not in coordinate.dims]
        if len(corners) != 1 or bounds.ndim != coordinate.ndim + 1:
            raise unsized(
                f"the bounds {name!r} of {coordinate.name!r} must have its dimensions "
                f"{coordinate.dims} and one for the corners, got {bounds.dims}"
            )
        by = scale(bounds, units(coordinate)) or 1.0  # hPa, where the bounds are in Pa
        bounds = bounds if by == 1 else (by * bounds).assign_attrs(bounds.attrs)
        return bounds.transpose(*coordinate.dims, corners[0])

    def ways(self, over: Iterable[Hashable], *dims: Hashable) -> str:
        """How to give the areas of the cells, on these dimensions of those summed over."""
        flat = [str(dim) for dim in dims if dim in over]
        return ways_to_weigh(self.dataset, self.data, map(str, over), *flat) or AREAS

    def lacks_bounds(self, *coordinates: xr.DataArray) -> str:
        """A remark where a coordinate names bounds that the dataset does not have."""
        names = [setting(each, "bounds") for each in coordinates]
        lost = [name for name in names if name and name not in self.dataset.variables]
        return f" (its bounds {lost[0]} are not in the dataset)" if lost else ""


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
    flat = grid.horizontal(over)
    factors = []
    if mesh and len(corners) == 2:
        factors = [_mesh_areas(mesh, corners, globe)]
    elif flat:
        factors = _equal_areas(grid, flat, globe)
    covered = {dim for factor in factors for dim in factor.weights.dims}
    left = [dim for dim in over if dim not in covered]
    return factors + [_lengths(grid, _sized(grid, dim, mesh, over), globe) for dim in left]


def _mesh_areas(mesh: Mesh, corners: list[xr.DataArray], globe: Globe) -> AxisSizes:
    """Areas of cells between great circles, some rows of corners at a time."""
    (lat, lon), (north, east) = mesh, corners
    east = east.transpose(*lat.dims, ...)
    if not north.shape[-1] == east.shape[-1] >= 3:
        raise unsized(
            f"the bounds of {lat.name!r} and {lon.name!r} must hold the same corners, three or "
            f"more for each cell, got {north.shape[-1]} and {east.shape[-1]}"
        )
    rows = max(1, BLOCK * lat.shape[0] // max(1, lat.size))
    areas = np.empty(lat.shape)
    for start in range(0, lat.shape[0], rows):
        block = slice(start, start + rows)
        y, x = degrees(north[block].values, lat), degrees(east[block].values, lon)
        _check_latitudes(north, y)
        areas[block] = polygon_areas(y, np.where(np.isinf(x), np.nan, x))
    unknown = int(np.isnan(areas).sum())
    where = f"cell areas from the bounds of {lat.name} and {lon.name}, corners joined by great "
    where += f"circles {globe}"
    where += f" ({unknown} cells without corners count as 0)" if unknown else ""
    weights = xr.DataArray(globe.radius**2 * np.nan_to_num(areas), dims=lat.dims)
    return AxisSizes(weights, "m2", where)


def _equal_areas(grid: FileGrid, flat: list[str], globe: Globe) -> list[AxisSizes]:
    """The areas of HEALPix cells; none on other grids."""
    marks = [each.attrs for each in (*grid.mappings, *grid.coordinates)]
    said = next((m for m in marks if "healpix" in map(str, m.values())), None)
    if said is None:
        return []
    levels = [2 ** int(said[key]) for key in ("refinement_level", "level") if key in said]
    dim = max(flat, key=lambda name: grid.data.sizes[name])
    size = grid.data.sizes[dim]
    side = float(levels[0] if levels else np.sqrt(size / 12))
    if size > 12 * side**2 or side != int(side):
        raise InputError(
            f"{grid.name!r} lies on HEALPix cells, but its {size} entries along {dim!r} are not "
            f"some of 12 nside^2 equal cells (nside {side:.6g}). {AREAS}"
        )
    count = 12 * int(side) ** 2
    weights = xr.DataArray(np.full(size, 4 * np.pi * globe.radius**2 / count), dims=dim)
    return [AxisSizes(weights, "m2", f"equal areas, a sphere over {count} HEALPix cells, {globe}")]


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
    rotated = "grid_" in str(own.attrs.get("standard_name"))
    return mesh[0].ndim > 1 and not counts(own) and (rotated or not angle(own))


def _lengths(grid: FileGrid, coordinate: xr.DataArray, globe: Globe) -> AxisSizes:
    """The sizes of cells along one coordinate."""
    kind, name, bounds = angle(coordinate), coordinate.name, grid.bounds(coordinate)
    if bounds is None and is_numbered(coordinate):
        ones = xr.DataArray(np.ones(coordinate.size), dims=coordinate.dims)
        return AxisSizes(ones, "1", f"1 for every {name}, which is a number")
    ends, remark = ends_of(coordinate, bounds)
    where = f"the {'centres' if bounds is None else 'bounds'} of {name}"
    where += grid.lacks_bounds(coordinate)
    if kind == LATITUDE:
        exact = None if bounds is not None else gaussian(numbers(coordinate, coordinate))
        heights, count = exact or (zone_heights(ends), 0)
        where += f" ({coordinate.size} of {count} Gaussian latitudes)" if exact else ""
        sizes = xr.DataArray(globe.radius * heights, dims=coordinate.dims)
        return AxisSizes(sizes, "m", where, kind)
    if kind == LONGITUDE:
        widths = arcs(ends, degrees(coordinate.values, coordinate))
        if (circle := np.degrees(widths.sum())) > 360 * (1 + CIRCLE):
            raise unsized(
                f"the cells of {name!r} cover {circle:.6g} degrees of longitude, more than the "
                "circle. Drop the cells that come twice"
            )
        sizes = xr.DataArray(globe.radius * widths, dims=coordinate.dims)
        return AxisSizes(sizes, "m", where, kind)
    weights = xr.DataArray(np.abs(np.diff(ends))[:, 0], dims=coordinate.dims)
    unit = "s" if is_decoded(coordinate) else units(coordinate) or None
    remark += " (dp, not mass)" if is_pressure(coordinate) else ""
    return AxisSizes(weights, unit, f"{_in_words(coordinate, grid)} from {where}{remark}")


def _in_words(coordinate: xr.DataArray, grid: FileGrid) -> str:
    """What lengths along it are; an error on a map."""
    on_axis = is_axis(coordinate, "X", "Y") or str(coordinate.name).lower() in ("x", "y")
    angles = {angle(each) for each in grid.coordinates} - {None}
    level = set(grid.maps) == {"latitude_longitude"} and len(angles) < 2
    if level and (on_axis or not angles) and grid.horizontal(map(str, coordinate.dims)):
        raise InputError(
            f"{coordinate.name!r} has the `units` {units(coordinate)!r}, and its grid mapping is "
            "latitude_longitude, a map of angles. If it holds degrees, `assume_units` says so: "
            f"degrees_north or degrees_east. If not, correct the grid mapping. {AREAS}"
        )
    return f"lengths {plane(coordinate, grid, on_axis)}".rstrip()


def plane(coordinate: xr.DataArray, grid: FileGrid, on_axis: bool) -> str:
    """In which plane it lies; an error on a map."""
    names = sorted(set(grid.maps) - NO_PLANE)
    projected = str(coordinate.attrs.get("standard_name")).startswith("projection_")
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
    kind, name, centres = angle(coordinate), coordinate.name, numbers(coordinate, coordinate)
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
    ends = {LATITUDE: zones, LONGITUDE: sectors, None: half_way}[kind](centres)
    if kind or is_decoded(coordinate):
        return ends, ""
    direction, standard = setting(coordinate, "positive"), coordinate.attrs.get("standard_name")
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


def degrees(values: Any, coordinate: xr.DataArray) -> Any:
    """Values in the unit of a coordinate as float64, angles in degrees."""
    radians = units(coordinate).lower() in RADIANS and angle(coordinate)
    return np.degrees(values.astype(np.float64)) if radians else values.astype(np.float64)


def _check_latitudes(array: xr.DataArray, latitudes: Array, slack: float = 1e-3) -> None:
    for wrong in latitudes[np.abs(latitudes) > 90 + slack][:1]:
        raise unsized(
            f"{array.name!r} must hold latitudes from -90 to 90 degrees, got {wrong:.6g}. Correct "
            "its values or its `units`"
        )
