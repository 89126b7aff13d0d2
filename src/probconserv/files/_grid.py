"""The cells of a variable, as a dataset describes them: which coordinates tell where they lie.

Each fact is taken from the first of these that is there:

angle       units degrees_north or degrees_east; else, with units of an angle or none, the standard
            name, the name, the axis; else the grid mapping, of `x` and `y`
coordinate  of a dimension: that of its name, unless it only counts and an angle lies along it; an
            angle along it; the only one along it
places      latitudes and longitudes with the same dimensions; those of the dimensions
"""

import re
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import xarray as xr

from ..support.errors import InputError
from ..support.sphere import Array
from ..support.tolerances import STEP
from ._attributes import WKT, map_of, scale, setting, units
from ._conventions import (
    ANGLES,
    AREAS,
    DEGREES,
    LATITUDE,
    LIKE_ANGLE,
    LONGITUDE,
    NOMINAL,
    PLAIN_MAPS,
    RADIANS,
    TILE,
    angle,
    axis_of,
    counts,
    role,
    unsized,
    ways_to_weigh,
)

Mesh = tuple[xr.DataArray, xr.DataArray]  # latitudes and longitudes of each cell

SHAPE = ("earth_radius", "semi_major_axis", "semi_minor_axis", "inverse_flattening")
WORDS = {"lat": LATITUDE, "lon": LONGITUDE}
TRUE = 1e-3  # of a step: how far latitudes of cells may be from those of their axis


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
        found += [] if found else self.data.coords.values()
        return [each for each in found if marks & set(each.attrs)]

    @property
    def maps(self) -> set[str]:
        """The names of the grid mappings, as CF has them or as their WKT says."""
        return {map_of(each) for each in self.mappings}

    def _named(self, *names: str) -> list[xr.DataArray]:
        there = self.dataset.variables
        return [self.dataset[name] for name in dict.fromkeys(names) if name in there]

    def along(self, dim: Hashable) -> xr.DataArray | None:
        """The coordinate of a dimension; one that only counts yields to an angle."""
        single = [c for c in self.coordinates if c.dims == (dim,)]
        own = next((c for c in single if c.name == dim), None)
        angles = [c for c in single if angle(c)]
        if angles and (own is None or counts(own)):
            return angles[0]
        return single[0] if own is None and len(single) == 1 else own

    def role(self, dim: Hashable) -> str:
        """TIME, LEVEL or MEMBER of a dimension; empty where places lie along it."""
        is_row = self.places is not None and dim in self.places[0].dims
        return role(str(dim), self.along(dim), is_row)

    def horizontal(self, dims: Iterable[Hashable]) -> list[str]:
        """Those of the dimensions that are neither time nor vertical nor of members."""
        return [str(dim) for dim in dims if not self.role(dim)]

    @property
    def flat(self) -> list[str]:
        """The dimensions whose cells form areas, or lie along what is no other axis."""
        flat = self.horizontal(self.data.dims)  # WRF has latitudes along Time too
        return self.area_dims(flat) or flat

    def mesh(self, dims: Iterable[Hashable]) -> Mesh | None:
        """Latitudes and longitudes with the same dimensions: a curvilinear or unstructured grid."""

        def is_path(lat: xr.DataArray) -> bool:  # long by its own unit
            own = self.along(lat.dims[0]) if lat.ndim == 1 else None
            return own is not None and not angle(own) and not counts(own)

        found = (each for each in _meshes(self.coordinates) if {*each[0].dims} & {*dims})
        return next((each for each in found if not is_path(each[0])), None)

    @cached_property
    def places(self) -> Mesh | None:
        """Latitudes and longitudes of each cell along two dimensions.

        Those that are coordinates, else variables of the dataset that have the names and units.
        """
        known = set(self.data.dims)
        mesh = self.mesh(known)
        if mesh and mesh[0].ndim == 2 and set(mesh[0].dims) <= known:
            return mesh
        flat = [v for v in self.dataset.variables if self.dataset[v].ndim == 2]
        named = [self.dataset[v] for v in flat if set(self.dataset[v].dims) <= known]
        return next(_meshes(c for c in named if (angle(c) or "-")[:3] in str(c.name).lower()), None)

    def area_dims(self, dims: Iterable[Hashable]) -> list[str]:
        """Those of the dimensions whose cells form areas together."""
        names = [*map(str, dims)]
        mesh = {dim for c in self.mesh(names) or () for dim in c.dims}
        flat = [dim for dim in names if (own := self.along(dim)) is not None and angle(own)]
        return [dim for dim in names if dim in mesh or dim in flat]

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


def _meshes(arrays: Iterable[xr.DataArray]) -> Iterator[Mesh]:
    """Latitudes and longitudes that have the same dimensions."""
    kinds = [(c, angle(c)) for c in arrays]
    each = [[c for c, kind in kinds if kind == wanted] for wanted in ANGLES]
    return ((lat, lon) for lat, lon in product(*each) if set(lat.dims) == set(lon.dims))


def degrees(values: Any, coordinate: xr.DataArray) -> Any:
    """Values in the unit of a coordinate as float64, angles in degrees."""
    radians = units(coordinate).lower() in RADIANS and angle(coordinate)
    return np.degrees(values.astype(np.float64)) if radians else values.astype(np.float64)


def with_angles(dataset: xr.Dataset, name: str) -> xr.Dataset:
    """The dataset with `x` and `y` as angles where the map of a variable says that they are.

    Only what has no unit, or that of an angle, becomes one; whole numbers may count cells.
    """
    grid = FileGrid(dataset, name)
    (own,) = grid.maps if len(grid.maps) == 1 else [""]
    found = {}
    for each in grid.coordinates if own in PLAIN_MAPS else ():
        unit, its = units(each).lower(), axis_of(each)
        plain = unit in DEGREES | RADIANS or not (unit or counts(each))
        if its and angle(each) is None and each.ndim == 1 and plain:
            prefix = PLAIN_MAPS[own]
            unit = unit if unit in RADIANS else "degrees" if prefix else f"degrees_{its.towards}"
            said = each.assign_attrs(standard_name=f"{prefix}{its.kind}", units=unit)
            found[each.name] = said.variable
    return dataset.assign_coords(found) if found else dataset


def check_true(grid: FileGrid, dims: list[str]) -> None:
    """Refuse axes that are not, or may not be, the latitudes and longitudes of their cells."""
    mesh = grid.mesh(dims)
    if mesh and all(grid.bounds(each) is not None for each in mesh):
        return
    cells = grid.places
    for dim in grid.horizontal(dims):
        if (axis := grid.along(dim)) is None:
            continue
        kind, here = angle(axis), cells if cells and dim in cells[0].dims else None
        if kind is None:
            _check_no_angle(grid, axis, here)
        elif _is_globe(grid, np.pi):
            raise InputError(
                f"{axis.name!r} has no units, and spans half a circle or a whole one in radians. "
                f"Say `assume_units={_as_angles(grid, 'radians')}`, or 'degrees'."
            )
        elif "grid_" in setting(axis, "standard_name") or axis.name in ("rlat", "rlon"):
            continue
        elif why := _nominal(axis) if here is None else _elsewhere(axis, here[kind == LONGITUDE]):
            raise _not_true(grid, axis, why)


def _check_no_angle(grid: FileGrid, axis: xr.DataArray, cells: Mesh | None) -> None:
    """Refuse what counts cells whose places are lost, and as a length what may be an angle."""
    unit, names = units(axis), setting(grid.data, "coordinates").split()
    lost = [n for n in names if n not in grid.dataset.variables and re.search("(?i)lat|lon", n)]
    if lost and counts(axis):
        raise InputError(
            f"{axis.name!r} only numbers the cells of {grid.name!r}, and their places "
            f"({' '.join(lost)}, by its `coordinates`) are not in the dataset. {AREAS}"
        )
    if scale(axis, "m") is None and (why := _like_angle(grid, axis, cells)):
        has = f"has the `units` {unit!r}, not known as an angle" if unit else "has no units"
        raise InputError(
            f"{axis.name!r} {has}, and {why}. If it is an angle, say "
            f"`assume_units={_as_angles(grid) or {str(axis.name): 'degrees_north'}}`; if it is a "
            f"length, 'm'. {grid.ways(map(str, grid.data.dims), *(cells or [axis])[0].dims)}"
        )


def _like_angle(grid: FileGrid, axis: xr.DataArray, cells: Mesh | None) -> str:
    """Why an axis may be an angle; empty where nothing says so."""
    if LIKE_ANGLE.match(str(axis.name)):
        return "its name says what it is"
    word = LIKE_ANGLE.search(f"{setting(axis, 'standard_name')} {setting(axis, 'long_name')}")
    if word or units(axis):
        return f"its attributes say {word[0]!r}" if word else ""
    if cells and not counts(axis):
        return f"{cells[0].name!r} and {cells[1].name!r} are the places of its cells"
    mapping = setting(grid.data, "grid_mapping").replace(":", " ").split()
    if lost := [name for name in mapping if name not in grid.dataset]:
        return f"the grid mapping {lost[0]!r} is not in the dataset"
    globe = not grid.mappings and _is_globe(grid, 180)
    return "it and another axis span 180 by 360, as degrees of a globe do" if globe else ""


def _as_angles(grid: FileGrid, unit: str = "") -> dict[str, str]:
    """Units of angles for the axes that look like those of a map and have none."""
    found: dict[str, str] = {}
    for each in map(grid.along, grid.data.dims):
        if each is not None and (not angle(each) or not units(each)) and not scale(each, "m"):
            word = LIKE_ANGLE.match(str(each.name))
            its = ANGLES[WORDS[word[1].lower()]] if word else axis_of(each)
            found |= {str(each.name): unit or f"degrees_{its.towards}"} if its else {}
    return found


def _is_globe(grid: FileGrid, half: float) -> bool:
    """Whether two axes without units span a globe, from pole to pole and around.

    The first and the last of their cells lie on the ends or half a step within.
    """

    def spans(low: float, high: float, step: float, whole: float) -> bool:
        return min(abs(high - low - whole), abs(high - low + step - whole)) < TRUE * whole

    axes = [c for dim in grid.data.dims if (c := grid.along(dim)) is not None and not units(c)]
    ends = [(c.values.min(), c.values.max(), c.size) for c in axes if c.dtype.kind in "iuf"]
    steps = [(low, high, (high - low) / (size - 1)) for low, high, size in ends if size > 1]
    rows = [e for e in steps if spans(*e, half) and max(-e[0], e[1]) <= half / 2 * (1 + TRUE)]
    return bool(rows) and any(spans(*each, 2 * half) for each in steps)


def _nominal(axis: xr.DataArray) -> str:
    """Why an axis is nominal; empty where nothing says so."""
    said, name = setting(axis, "long_name"), str(axis.name)
    if re.search(r"(?i)\b(nominal|fake)\b", said):  # fake: of GEOS, on a cubed sphere
        return f"its `long_name` is {said!r}"
    if NOMINAL.fullmatch(name):
        return "models that name it so bend their grid around the poles"
    numbered = np.array_equal(axis.values, np.arange(1, axis.size + 1))
    return "it only numbers the cells of a tile" if TILE.fullmatch(name) and numbered else ""


def _elsewhere(axis: xr.DataArray, cells: xr.DataArray) -> str:
    """Why an axis is nominal: cells, as far as they are known, are not where it says."""
    along: Array = degrees(axis.values, axis)
    other = [dim for dim in cells.dims if dim not in axis.dims]
    away = degrees(cells.transpose(*other, *axis.dims).values, cells) - along
    away = away[np.isfinite(away)]
    if angle(axis) == LONGITUDE:
        away = (away + 180) % 360 - 180
    slack = max(TRUE * np.abs(np.diff(along)).max(initial=0), STEP)
    there = (np.abs(away) <= slack).all()
    return "" if there else f"{cells.name!r} has other {angle(axis)}s for the same cells"


def _not_true(grid: FileGrid, axis: xr.DataArray, why: str) -> InputError:
    """The error for a nominal axis, with the area that the file names, if it does."""
    area = re.search(r"area:\s*(\S+)", setting(grid.data, "cell_measures"))
    files = str(grid.dataset.attrs.get("associated_files", ""))
    way = AREAS
    if area:
        place = re.search(rf"{re.escape(area[1])}:\s*([^\s,;]+)", files)
        measure = f"`measure={place[1] if place else 'STATIC.nc'}:{area[1]}`"
        way = f"`cell_measures` name {area[1]}, which is not in the dataset: give {measure}."
    return InputError(
        f"{axis.name!r} is a nominal {angle(axis)}, not that of the cells of {grid.name!r} "
        f"({why}): it gives no areas. {way}"
    )
