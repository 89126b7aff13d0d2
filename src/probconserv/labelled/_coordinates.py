"""The coordinates of a variable: which are latitudes and longitudes, and where cells end."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from .._errors import InputError
from ._time import is_decoded, seconds

Array = npt.NDArray[np.float64]

WAY_OUT = "Give the weights of the cells as `measure`; `measure=1` means plain sums."


@dataclass(frozen=True)
class Angle:
    """How files name one of the two angles on a sphere."""

    name: str
    axis: str
    standard_names: frozenset[str]
    units: frozenset[str]
    names: frozenset[str]


def _angle(name: str, axis: str, ways: tuple[str, ...], names: tuple[str, ...]) -> Angle:
    units = {f"degree{s}{way}" for s in ("", "s") for way in ways}
    standard = frozenset({name, f"grid_{name}"})
    return Angle(name, axis, standard, frozenset(units), standard | set(names))


LATITUDE = _angle("latitude", "Y", ("_north", "_n", "n"), ("lat", "nav_lat", "rlat", "clat"))
LONGITUDE = _angle("longitude", "X", ("_east", "_e", "e"), ("lon", "nav_lon", "rlon", "clon"))
RADIANS = {"radian", "radians", "rad"}
DEGREES = {"degree", "degrees", "deg"}


def angle(coordinate: xr.DataArray) -> Angle | None:
    """LATITUDE, LONGITUDE, or None for any other coordinate."""
    for kind in (LATITUDE, LONGITUDE):
        if _is(kind, coordinate):
            return kind
    return None


def _is(kind: Angle, coordinate: xr.DataArray) -> bool:
    unit = units(coordinate).lower()
    if unit in kind.units:
        return True
    if unit and unit not in RADIANS | DEGREES:
        return False
    if "standard_name" in coordinate.attrs:
        return coordinate.attrs["standard_name"] in kind.standard_names
    by_axis = bool(unit) and coordinate.attrs.get("axis") == kind.axis
    return by_axis or str(coordinate.name).lower() in kind.names


def units(array: xr.DataArray) -> str:
    """The unit, without the date that a time counts from; empty where there is none."""
    return str(array.attrs.get("units", "")).split(" since ")[0].strip()


def setting(array: xr.DataArray, key: str) -> str:
    """An attribute that xarray may have moved to the encoding; empty where there is none."""
    return str(array.attrs.get(key) or array.encoding.get(key) or "")


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
    """Whether it only numbers the cells: integers without a unit."""
    return coordinate.dtype.kind in "iu" and units(coordinate) in ("", "1")


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
    values = seconds(array, coordinate.values[0])
    if not np.isfinite(values).all():
        raise InputError(
            f"{array.name!r} must be finite; {(~np.isfinite(values)).sum()} of its {values.size} "
            f"values are NaN or infinite. {WAY_OUT}"
        )
    return values


def degrees(values: npt.NDArray[Any], unit: str) -> Array:
    """Values in degrees; bounds take the unit of their coordinate."""
    values = values.astype(np.float64)
    return np.degrees(values) if unit.lower() in RADIANS else values
