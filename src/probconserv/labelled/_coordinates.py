"""What the coordinates of a variable are: angles, counts, places on a map; and where cells end."""

import math
import re
from dataclasses import dataclass
from itertools import pairwise
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from cf_xarray.criteria import coordinate_criteria

from .._errors import InputError
from .._values import EARTH
from ._time import is_decoded, seconds, tells_time

Array = npt.NDArray[np.float64]

WAY_OUT = "Give the weights of the cells as `measure`; `measure=1` means plain sums."
GAUSSIAN = 0.3  # a Gaussian grid's last edge is 0.27 cells short of the pole
SHAPE = ("earth_radius", "semi_major_axis", "semi_minor_axis", "inverse_flattening")
LATITUDE, LONGITUDE = "latitude", "longitude"
AXES = {LATITUDE: "Y", LONGITUDE: "X"}
UNITS = {kind: {unit.lower() for unit in coordinate_criteria[kind]["units"]} for kind in AXES}
NAMES = {kind: re.compile(f"(nav_|r|c)?{kind[:3]}|(grid_)?{kind}") for kind in AXES}
RADIANS = {"radian", "radians", "rad"}
DEGREES = {"degree", "degrees", "deg"}
METHODS = re.compile(r"((?:[\w.-]+:\s*)+)(\w+)((?:\s+(?:where|within|over)\s+\w+)*)")
NUMBERED = re.compile("realization|number|(ensemble_?)?members?|ensemble|model_level_number")


def angle(coordinate: xr.DataArray) -> str | None:
    """LATITUDE or LONGITUDE, also those of a rotated pole; None for any other coordinate."""
    unit, said = units(coordinate).lower(), coordinate.attrs.get("standard_name")
    for kind in AXES:
        if unit in UNITS[kind]:
            return kind
    if unit and unit not in RADIANS | DEGREES:
        return None
    if unit in DEGREES and str(said).startswith("projection_"):  # cdo, of a rotated pole
        said = None
    for kind, axis in AXES.items():
        by_axis = bool(unit) and not said and coordinate.attrs.get("axis") == axis
        if by_axis or NAMES[kind].fullmatch(str(said or coordinate.name).lower()):
            return kind
    return None


def is_axis(coordinate: xr.DataArray, *keys: str) -> bool:
    """Whether its attributes say that it is one of cf-xarray's X, Y, Z, T, vertical, ..."""
    criteria = [pair for key in keys for pair in coordinate_criteria[key].items()]
    return any(str(coordinate.attrs.get(name)) in known for name, known in criteria)


def is_horizontal(dim: str, coordinates: list[xr.DataArray]) -> bool:
    """Whether a dimension is neither time nor vertical nor one of members."""
    own = along(dim, coordinates)
    return own is None or not (tells_time(own) or is_axis(own, "Z", "vertical") or is_numbered(own))


def units(array: xr.DataArray) -> str:
    """The unit, without the date that a time counts from; empty where there is none."""
    return str(array.attrs.get("units", "")).split(" since ")[0].strip()


def setting(array: xr.DataArray, key: str) -> str:
    """An attribute that xarray may have moved to the encoding; empty where there is none."""
    return str(array.attrs.get(key) or array.encoding.get(key) or "")


def cell_methods(array: xr.DataArray, *names: str) -> list[tuple[str, str]]:
    """The methods that are about one of the names, and where, within or over what."""
    text = re.sub(r"\([^)]*\)", " ", setting(array, "cell_methods"))
    own = [m for m in METHODS.findall(text) if set(names) & set(re.findall(r"[\w.-]+", m[0]))]
    return [(method, qualifier.strip()) for _, method, qualifier in own]


def coordinates_of(dataset: xr.Dataset, variable: str) -> list[xr.DataArray]:
    """Every coordinate along the variable's dimensions, those that the variable names first."""
    data = dataset[variable]
    names = [*setting(data, "coordinates").split(), *(str(name) for name in data.coords)]
    found = [dataset[name] for name in dict.fromkeys(names) if name in dataset.variables]
    return [c for c in found if c.dims and set(c.dims) <= set(data.dims)]


def along(dim: str, coordinates: list[xr.DataArray]) -> xr.DataArray | None:
    """The coordinate that says where the cells of `dim` are; a mere index yields to an angle."""
    single = [c for c in coordinates if c.dims == (dim,)]
    own = next((c for c in single if c.name == dim), None)
    if own is not None and not counts(own):
        return own
    angles = [c for c in single if angle(c)]
    if angles or own is not None:
        return angles[0] if angles else own
    return single[0] if len(single) == 1 else None


def counts(coordinate: xr.DataArray) -> bool:
    """Whether it only numbers the cells: integers without a unit, or members and model levels."""
    whole = coordinate.dtype.kind in "iu" and units(coordinate) in ("", "1")
    return whole or is_numbered(coordinate)


def is_numbered(coordinate: xr.DataArray) -> bool:
    """Whether its name says that it counts, as members and the levels of a model are counted."""
    said = coordinate.attrs.get("standard_name", coordinate.name)
    return bool(NUMBERED.fullmatch(str(said).lower())) and units(coordinate) in ("", "1")


@dataclass(frozen=True)
class Globe:
    """The sphere that cells lie on."""

    radius: float  # metres
    origin: str = ""

    def __str__(self) -> str:
        return f"on a sphere of {self.radius / 1000:.10g} km{self.origin}"


def mappings_of(dataset: xr.Dataset, data: xr.DataArray) -> list[xr.DataArray]:
    """The grid mappings that the data name and the dataset has."""
    names = setting(data, "grid_mapping").replace(":", " ").split()
    found = [dataset[name] for name in dict.fromkeys(names) if name in dataset.variables]
    return [each for each in found if {"grid_mapping_name", *SHAPE} & set(each.attrs)]


def globe_of(dataset: xr.Dataset, data: xr.DataArray, radius: float | None) -> Globe:
    """The sphere of the radius given, else that of the grid mapping, else one of 6371.229 km.

    An ellipsoid becomes the sphere of the same area.
    """
    if radius is not None:
        positive("radius", radius)
        return Globe(radius, " (as given)")
    sized = [each for each in mappings_of(dataset, data) if set(SHAPE[:2]) & set(each.attrs)]
    return _globe(sized[0]) if sized else Globe(EARTH)


def _globe(mapping: xr.DataArray) -> Globe:
    said = {key: mapping.attrs[key] for key in SHAPE if key in mapping.attrs}
    try:
        radius, a, b, f = (float(np.squeeze(said.get(key, 0))) for key in SHAPE)
    except (TypeError, ValueError):
        radius = a = b = f = math.nan
    a, b = (radius, radius) if radius else (a, b or (a - a / f if f else a))
    if not 1e5 < b <= a < math.inf:
        raise InputError(
            f"the grid mapping {mapping.name!r} must give the size of its globe in metres, got "
            f"{said}. Give `radius`."
        )
    if a == b:
        return Globe(a, f" (grid mapping {mapping.name})")
    e = math.sqrt(1 - (b / a) ** 2)
    same = math.sqrt((a**2 + b**2 * math.atanh(e) / e) / 2)
    return Globe(same, f" (the area of the ellipsoid of {mapping.name})")


def positive(name: str, number: Any) -> None:
    real = isinstance(number, Real) and not isinstance(number, bool)
    if not (real and 0 < number < math.inf):
        raise InputError(f"`{name}` must be a positive finite number, got {number!r}.")


def bounds_of(dataset: xr.Dataset, coordinate: xr.DataArray) -> xr.DataArray | None:  # (*dims, n)
    """The bounds that the coordinate names, corners last; None where the dataset has none."""
    name = setting(coordinate, "bounds")
    if name not in dataset.variables:
        return None
    bounds = dataset[name]
    corners = [dim for dim in bounds.dims if dim not in coordinate.dims]
    if len(corners) != 1 or bounds.ndim != coordinate.ndim + 1:
        raise InputError(
            f"the bounds {name!r} of {coordinate.name!r} must have its dimensions "
            f"{coordinate.dims} and one for the corners, got {bounds.dims}. {WAY_OUT}"
        )
    return bounds.transpose(*coordinate.dims, corners[0])


def missing_bounds(dataset: xr.Dataset, coordinate: xr.DataArray) -> str:
    """A remark where a coordinate names bounds that the dataset does not have."""
    name = setting(coordinate, "bounds")
    return f" (its bounds {name} are not in the dataset)" if name and name not in dataset else ""


def interval_bounds(dataset: xr.Dataset, coordinate: xr.DataArray) -> xr.DataArray | None:
    """The bounds (n, 2) of a coordinate along one dimension; None where the dataset has none."""
    bounds = bounds_of(dataset, coordinate)
    if bounds is not None and bounds.shape[-1] != 2:
        raise InputError(
            f"the bounds {bounds.name!r} of {coordinate.name!r} must hold two ends for each cell, "
            f"got {bounds.shape[-1]}. {WAY_OUT}"
        )
    return bounds


def numbers(array: xr.DataArray, coordinate: xr.DataArray) -> Array:
    """A coordinate or its bounds as float64, dates as seconds; an error for text and gaps."""
    dates = is_decoded(coordinate)
    if dates != is_decoded(array) or not (dates or array.dtype.kind in "iuf"):
        kinds = "dates, as its coordinate does" if dates else "numbers or dates"
        raise InputError(f"{array.name!r} must hold {kinds}, got {array.dtype}. {WAY_OUT}")
    values = seconds(array, coordinate.values.flat[0])
    if not np.isfinite(values).all():
        raise InputError(
            f"{array.name!r} must be finite; {(~np.isfinite(values)).sum()} of its {values.size} "
            f"values are NaN or infinite. {WAY_OUT}"
        )
    return values


def degrees(values: npt.NDArray[Any], coordinate: xr.DataArray) -> Array:
    """Values in the unit of a coordinate as float64, angles in degrees."""
    radians = units(coordinate).lower() in RADIANS and angle(coordinate)
    return np.degrees(values.astype(np.float64)) if radians else values.astype(np.float64)


def polygon_areas(latitude: Array, longitude: Array) -> Array:  # (..., n), (..., n) -> (...)
    """The area of each polygon whose corners are joined by great circles, in either order.

    The signed triangles (a, b, c) of a fan from the first corner are added up, each with
    tan(area / 2) = a . (b - a) x (c - a) / (1 + a.b + b.c + c.a), which holds at the poles and
    across the date line; corners that coincide add nothing.
    """
    lat, lon = np.radians(latitude), np.radians(longitude)
    corners = [np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)]
    a, *others = np.moveaxis(np.stack(corners, axis=-1), -2, 0)
    total = np.zeros(a.shape[:-1])
    for b, c in pairwise(others):
        volume = _dot(a, np.cross(b - a, c - a))  # differences first: small cells keep their digits
        total += 2 * np.arctan2(volume, 1 + _dot(a, b) + _dot(b, c) + _dot(c, a))
    return np.abs(total)


def _dot(a: Array, b: Array) -> Array:
    return np.einsum("...i,...i->...", a, b)


def zone_heights(bounds: Array) -> Array:  # (n, 2) -> (n,)
    """sin(north) - sin(south) of each zone of latitude, its area over 2 pi; cut at the poles."""
    south, north = np.radians(np.clip(np.sort(bounds, axis=-1), -90, 90)).T
    return 2 * np.cos((south + north) / 2) * np.sin((north - south) / 2)


def arcs(bounds: Array, centres: Array) -> Array:  # (n, 2), (n,) -> (n,)
    """Width in radians of each cell of longitude; 179 to -179 is 2 degrees where 180 is inside."""
    low, high = np.sort(bounds, axis=-1).T
    width = high - low
    inside = sum((low < c) & (c < high) for c in (centres - 360, centres, centres + 360))
    rest = 360 - width
    around = (inside == 0) & (rest > 0) & (rest < width)
    return np.radians(np.where(around, rest, width))


def half_way(centres: Array) -> Array:  # (n,) -> (n, 2)
    """Bounds half way between the centres; the end cells reach as far out as they reach in."""
    middle = (centres[1:] + centres[:-1]) / 2
    first, last = 2 * centres[0] - middle[0], 2 * centres[-1] - middle[-1]
    edges = np.concatenate([[first], middle, [last]])
    return np.stack([edges[:-1], edges[1:]], axis=-1)


def latitude_bounds(centres: Array) -> Array:  # (n,) -> (n, 2)
    """Half way between the centres, and to the pole where the last cell ends close to it."""
    bounds = np.clip(half_way(centres), -90, 90)
    for end, inner in (((0, 0), 1), ((-1, 1), -2)):
        reach = GAUSSIAN * abs(centres[inner] - centres[end[0]])
        if 90 - abs(bounds[end]) <= reach:
            bounds[end] = np.copysign(90, bounds[end])
    return bounds


def longitude_bounds(centres: Array) -> Array:  # (n,) -> (n, 2)
    """Half way between the centres, also across the seam where the grid goes around the globe."""
    bounds = half_way(centres)
    steps = np.diff(centres)
    gap = 360 - abs(centres[-1] - centres[0])
    if 0 < gap <= 1.01 * np.abs(steps).max():
        half = np.copysign(gap / 2, steps[0])
        bounds[0, 0], bounds[-1, 1] = centres[0] - half, centres[-1] + half
    return bounds
