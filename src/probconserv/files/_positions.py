"""Which coordinates tell where cells are: angles of a map without units, and nominal axes."""

import re
from collections.abc import Iterable

import numpy as np
import xarray as xr

from ..support.errors import InputError
from ..support.tolerances import STEP
from ._attributes import scale, setting, units
from ._coordinates import (
    AXES,
    DEGREES,
    LATITUDE,
    LONGITUDE,
    RADIANS,
    FileGrid,
    Mesh,
    angle,
    counts,
    degrees,
    is_axis,
)
from ._metrics import AREAS

ANGLES = {  # of each map: what its coordinates are
    "latitude_longitude": {LATITUDE: ("latitude", "north"), LONGITUDE: ("longitude", "east")},
    "rotated_latitude_longitude": {
        LATITUDE: ("grid_latitude", ""),
        LONGITUDE: ("grid_longitude", ""),
    },
}
NOMINAL = re.compile(r"(?i)[xy][tubhq](_ocean)?|grid_[xy]_[tc]")  # axes of MOM and SIS
TOWARDS = {"Y": "north", "X": "east"}
ANGLE = re.compile(r"(?i)\bn?(lat|lon)(itude|gitude)?\b")  # what an axis may be called
TILE = re.compile(r"grid_[xy]t?")  # of FV3: degrees, or numbers on a tile of the cubed sphere
TRUE = 1e-3  # of a step: how far latitudes of cells may be from those of their axis


def axis_of(coordinate: xr.DataArray) -> str:
    """X or Y, by its attributes or its name; empty for any other coordinate."""
    name = str(coordinate.name).lower()
    standard, said = (coordinate.attrs.get(key, "") for key in ("standard_name", "long_name"))
    for kind, axis in AXES.items():
        letter = axis.lower()
        projected = standard == f"projection_{letter}_coordinate"
        if projected or is_axis(coordinate, axis) or name == letter or kind in str(said).lower():
            return axis
    return ""


def with_angles(dataset: xr.Dataset, name: str) -> xr.Dataset:
    """The dataset with `x` and `y` as angles where the map of a variable says that they are.

    Only what has no unit, or that of an angle, becomes one; whole numbers may count cells.
    """
    grid = FileGrid(dataset, name)
    kinds = ANGLES.get(next(iter(grid.maps), ""))
    if kinds is None or len(set(grid.maps)) > 1:
        return dataset
    found = {}
    for each in grid.coordinates:
        unit, axis = units(each).lower(), axis_of(each)
        plain = unit in DEGREES | RADIANS or not (unit or counts(each))
        if angle(each) is None and each.ndim == 1 and axis and plain:
            standard, towards = kinds[next(kind for kind in AXES if AXES[kind] == axis)]
            turned = unit if unit in RADIANS else f"degrees_{towards}".rstrip("_")
            found[each.name] = each.variable.copy(deep=False)
            found[each.name].attrs = {**each.attrs, "standard_name": standard, "units": turned}
    return dataset.assign_coords(found) if found else dataset


def positions(grid: FileGrid, dims: Iterable[str]) -> Mesh | None:
    """Latitudes and longitudes of each cell along two of the dimensions.

    Those that are coordinates, else variables of the dataset that have the names and units.
    """
    known = set(dims)
    mesh = grid.mesh(list(known))
    if mesh and mesh[0].ndim == 2 and set(mesh[0].dims) <= set(grid.data.dims):
        return mesh
    named: dict[str, list[xr.DataArray]] = {kind: [] for kind in AXES}
    for each in grid.dataset.variables:
        its = grid.dataset[each]
        kind = angle(its) if its.ndim == 2 and set(its.dims) <= known else None
        if kind and kind[:3] in str(each).lower():
            named[kind].append(its)
    for lat in named[LATITUDE]:
        for lon in named[LONGITUDE]:
            if set(lat.dims) == set(lon.dims):
                return lat, lon
    return None


def check_true(grid: FileGrid, dims: list[str]) -> None:
    """Refuse axes that are not the latitudes and longitudes of their cells."""
    mesh = grid.mesh(dims)
    if mesh and all(grid.bounds(each) is not None for each in mesh):
        return
    cells = positions(grid, map(str, grid.data.dims))
    for dim in dims:
        axis = grid.along(dim)
        if axis is None or dim not in grid.horizontal([dim]):
            continue
        if (kind := angle(axis)) is None:
            _check_numbers(grid, axis)
            _check_plain(grid, axis, cells)
        elif _is_globe(grid, np.pi):
            raise InputError(
                f"{axis.name!r} has no units, and spans half a circle or a whole one in radians. "
                f"Say `assume_units={_as_angles(grid, 'radians')}`, or 'degrees'."
            )
        elif "grid_" in str(axis.attrs.get("standard_name")) or axis.name in ("rlat", "rlon"):
            continue
        elif cells and dim in cells[0].dims:
            if not _agree(axis, cells[kind == LONGITUDE]):
                its = cells[kind == LONGITUDE].name
                raise _not_true(grid, axis, f"{its!r} has other {kind}s for the same cells")
        elif why := _nominal(axis):
            raise _not_true(grid, axis, why)


def _check_numbers(grid: FileGrid, axis: xr.DataArray) -> None:
    """Refuse what counts cells where the variable names latitudes that are not there."""
    names = setting(grid.data, "coordinates").split()
    lost = [n for n in names if n not in grid.dataset.variables and re.search("(?i)lat|lon", n)]
    if lost and counts(axis):
        raise InputError(
            f"{axis.name!r} only numbers the cells of {grid.name!r}, and their places "
            f"({' '.join(lost)}, by its `coordinates`) are not in the dataset. {AREAS}"
        )


def _check_plain(grid: FileGrid, axis: xr.DataArray, cells: Mesh | None) -> None:
    """Refuse an axis as a length where its unit is none and something says that it is an angle."""
    unit, mapping = units(axis), setting(grid.data, "grid_mapping")
    if scale(axis, "m") is not None:
        return
    said = f"{setting(axis, 'standard_name')} {setting(axis, 'long_name')}"
    name, word = ANGLE.match(str(axis.name)), ANGLE.search(said)
    lost = [name for name in mapping.replace(":", " ").split() if name not in grid.dataset]
    why = f"its attributes say {word[0]!r}" if word else ""
    why = "its name says what it is" if name else why
    beside = cells and axis.dims[0] in cells[0].dims and not counts(axis)
    if not (why or unit) and cells and beside:
        why = f"{cells[0].name!r} and {cells[1].name!r} are the places of its cells"
    if not (why or unit):
        why = f"the grid mapping {lost[0]!r} is not in the dataset" if lost else ""
        if not (why or grid.mappings) and _is_globe(grid, 180):
            why = "it and another axis span 180 by 360, as degrees of a globe do"
    if why:
        has = f"has the `units` {unit!r}, not known as an angle" if unit else "has no units"
        raise InputError(
            f"{axis.name!r} {has}, and {why}. If it is an angle, say "
            f"`assume_units={_as_angles(grid) or {str(axis.name): 'degrees_north'}}`; if it is a "
            f"length, 'm'. {grid.ways(map(str, grid.data.dims), *(cells or [axis])[0].dims)}"
        )


def _as_angles(grid: FileGrid, unit: str = "") -> dict[str, str]:
    """Units of angles for the axes that look like those of a map and have none."""
    found: dict[str, str] = {}
    for each in map(grid.along, grid.data.dims):
        if each is not None and (not angle(each) or not units(each)) and not scale(each, "m"):
            word = ANGLE.match(str(each.name))
            axis = ("Y" if word[1].lower() == "lat" else "X") if word else axis_of(each)
            found |= {str(each.name): unit or f"degrees_{TOWARDS[axis]}"} if axis else {}
    return found


def _is_globe(grid: FileGrid, half: float) -> bool:
    """Whether two axes without units span a globe, from pole to pole and around."""
    axes = [c for dim in grid.data.dims if (c := grid.along(dim)) is not None and not units(c)]
    ends = [(c.values.min(), c.values.max(), c.size) for c in axes if c.dtype.kind in "iuf"]
    steps = [(low, high, (high - low) / (size - 1)) for low, high, size in ends if size > 1]
    rows = [e for e in steps if _spans(*e, half) and max(-e[0], e[1]) <= half / 2 * (1 + TRUE)]
    return bool(rows) and any(_spans(*each, 2 * half) for each in steps)


def _spans(low: float, high: float, step: float, whole: float) -> bool:
    """Whether cells span it, with the first and the last on its ends or half a step within."""
    return min(abs(high - low - whole), abs(high - low + step - whole)) < TRUE * whole


def _nominal(axis: xr.DataArray) -> str:
    """Why an axis is nominal; empty where nothing says so."""
    said, name = setting(axis, "long_name"), str(axis.name)
    if re.search(r"(?i)\b(nominal|fake)\b", said):  # fake: of GEOS, on a cubed sphere
        return f"its `long_name` is {said!r}"
    if NOMINAL.fullmatch(name):
        return "models that name it so bend their grid around the poles"
    numbered = np.array_equal(axis.values, np.arange(1, axis.size + 1))
    return "it only numbers the cells of a tile" if TILE.fullmatch(name) and numbered else ""


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


def _agree(axis: xr.DataArray, cells: xr.DataArray) -> bool:
    """Whether cells are where their axis says, as far as they are known."""
    along = degrees(axis.values, axis)
    other = [dim for dim in cells.dims if dim not in axis.dims]
    away = degrees(cells.transpose(*other, *axis.dims).values, cells) - along
    away = away[np.isfinite(away)]
    if angle(axis) == LONGITUDE:
        away = (away + 180) % 360 - 180
    slack = max(TRUE * np.abs(np.diff(along)).max(initial=0), STEP)
    return bool((np.abs(away) <= slack).all())
