"""The conventions by which files are read: what tells a coordinate, and where models keep areas.

A coordinate is an angle, of time, of levels, of members or of places in a plane, by the first of
units, standard name, name and axis that says so. Models keep the areas of cells, or the lengths and
map factors that they are made of, under names of their own.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

import xarray as xr
from cf_xarray.criteria import coordinate_criteria

from ..support.errors import InputError
from ._arithmetic import WRF, attributes_of, names_in
from ._attributes import pairs, scale, setting, units
from ._time import TIMES, tells_time

LATITUDE, LONGITUDE = "latitude", "longitude"


class Angle(NamedTuple):
    """How files say that a coordinate is an angle."""

    kind: str
    axis: str
    letter: str  # of the axis, in names
    towards: str  # in units
    units: set[str]  # of this angle alone
    names: re.Pattern[str]  # of what is one, where units do not say


def _angle(kind: str, axis: str, towards: str) -> Angle:
    own = {unit.lower() for unit in coordinate_criteria[kind]["units"]}
    names = re.compile(f"(nav_|r|c)?{kind[:3]}|(grid_)?{kind}")
    return Angle(kind, axis, axis.lower(), towards, own, names)


ANGLES = {LATITUDE: _angle(LATITUDE, "Y", "north"), LONGITUDE: _angle(LONGITUDE, "X", "east")}
RADIANS = {"radian", "radians", "rad"}
DEGREES = {"degree", "degrees", "deg"}
LIKE_ANGLE = re.compile(r"(?i)\bn?(lat|lon)(itude|gitude)?\b")  # what an axis may be called
MEMBERS = re.compile("realization|number|(ensemble_?)?members?|ensemble")
LEVELS = re.compile("lev(els?)?|plev|depth|height|altitude|z")
FROM_ZERO = {"depth", "height", "air_pressure", "sea_water_pressure"}
PLAIN_MAPS = {"latitude_longitude": "", "rotated_latitude_longitude": "grid_"}  # angles called so
NO_PLANE = {*PLAIN_MAPS, "reduced_gaussian", "healpix"}
NOMINAL = re.compile(r"(?i)[xy][tubhq](_ocean)?|grid_[xy]_[tc]")  # axes of MOM and SIS
TILE = re.compile(r"grid_[xy]t?")  # of FV3: degrees, or numbers on a tile of the cubed sphere

TIME, LEVEL, MEMBER = "time", "level", "member"  # what is no place on the map


def angle(coordinate: xr.DataArray) -> str | None:
    """LATITUDE or LONGITUDE, also those of a rotated pole; None for any other coordinate."""
    unit, said = units(coordinate).lower(), coordinate.attrs.get("standard_name")
    if unit in DEGREES and str(said).startswith("projection_"):  # cdo, of a rotated pole
        said = None
    for kind, its in ANGLES.items():
        if unit in its.units:
            return kind
        if unit in {"", *RADIANS, *DEGREES}:
            by_axis = unit and not said and coordinate.attrs.get("axis") == its.axis
            if by_axis or its.names.fullmatch(str(said or coordinate.name).lower()):
                return kind
    return None


def is_axis(coordinate: xr.DataArray, *keys: str) -> bool:
    """Whether its attributes say that it is one of cf-xarray's X, Y, Z, T, vertical, ..."""
    told = [(name, str(value)) for name, value in coordinate.attrs.items()]
    return any(
        said in coordinate_criteria[key].get(name, ()) for name, said in told for key in keys
    )


def axis_of(coordinate: xr.DataArray) -> Angle | None:
    """The angle that would lie along its axis, X or Y by its attributes or its name."""
    standard, said = (setting(coordinate, key) for key in ("standard_name", "long_name"))
    for kind, its in ANGLES.items():
        projected = standard == f"projection_{its.letter}_coordinate"
        named = str(coordinate.name).lower() == its.letter or kind in said.lower()
        if projected or named or is_axis(coordinate, its.axis):
            return its
    return None


def is_pressure(coordinate: xr.DataArray) -> bool:
    return scale(coordinate, "Pa") is not None


def counted(coordinate: xr.DataArray) -> str:
    """MEMBER or LEVEL where its name says that it counts these; else empty."""
    said = str(coordinate.attrs.get("standard_name", coordinate.name)).lower()
    if units(coordinate) not in ("", "1"):
        return ""
    return LEVEL if said == "model_level_number" else MEMBER if MEMBERS.fullmatch(said) else ""


def counts(coordinate: xr.DataArray) -> bool:
    """Whether it only numbers the cells: integers without a unit, or members and model levels."""
    whole = coordinate.dtype.kind in "iu" and units(coordinate) in ("", "1")
    return whole or bool(counted(coordinate))


def role(dim: str, coordinate: xr.DataArray | None, is_row: bool = False) -> str:
    """TIME, LEVEL or MEMBER, as the coordinate of a dimension or its name says; empty: places.

    is_row: of an image with latitudes and longitudes of each cell, which may be called height.
    """
    if coordinate is not None:
        if angle(coordinate) or is_axis(coordinate, "X", "Y"):
            return ""
        if tells_time(coordinate):
            return TIME
        vertical = is_axis(coordinate, "Z", "vertical") or pairs(coordinate, "formula_terms")
        if vertical or is_pressure(coordinate):
            return LEVEL
        if told := counted(coordinate):
            return told
    if (name := dim.lower()) in TIMES:
        return TIME
    if LEVELS.fullmatch(name) and not is_row:
        return LEVEL
    return MEMBER if MEMBERS.fullmatch(name) else ""


AREAS = (
    "Give the areas of the cells as `measure`, in a file as AREAS.nc:NAME. Models keep them, or "
    "what they are made of: areacello, areaCell; e1t*e2t (NEMO), 1/(pm*pn) (ROMS), "
    "DX*DY/MAPFAC_M**2 (WRF)."
)
POINTS = {  # of a staggered grid: what models keep there
    "T": (
        *("areacello", "areacella", "areaCell", "cell_area", "area", "area_t", "tarea", "TAREA"),
        *("rA", "e1t*e2t", "1/(pm*pn)", "dxt*dyt", "DXT*DYT"),
        *("volcello", "e1t*e2t*e3t", "Hz/(pm*pn)"),
    ),
    "U": ("area_u", "uarea", "UAREA", "rAw", "e1u*e2u", "dxu*dyu", "DXU*DYU", "e1u*e2u*e3u"),
    "V": ("rAs", "e1v*e2v", "e1v*e2v*e3v"),
    "F": ("rAz", "e1f*e2f"),
}
TOLD = re.compile(  # the points of a field, in names of its dimensions and coordinates or the file
    r"\bdepth([tuvfw])\b|grid_([tuvfw])(?![a-z])|\b([tu])lat|\bocean ([tuvfw]) grid", re.IGNORECASE
)
HORIZONTAL = {  # of WRF, where `stagger` says which points
    "M": {"south_north", "west_east"},
    "U": {"south_north", "west_east_stag"},
    "V": {"south_north_stag", "west_east"},
}
DRY_MASS = "(C1H*(MU+MUB)+C2H)*-DNW"  # of WRF, per area and times g: in Pa
BETWEEN = {f"{axis}_{points}" for axis in ("xi", "eta") for points in ("u", "v", "psi")}  # of ROMS


def unsized(why: str, way: str = "") -> InputError:
    """The error where sizes of cells cannot be found, with the way out."""
    way = way or "Give the weights of the cells as `measure`."
    return InputError(f"{why}. {way} `measure=1` means plain sums.")


def ways_to_weigh(dataset: xr.Dataset, data: xr.DataArray, over: Iterable[str], *dims: str) -> str:
    """What to give as `measure` for sums over dimensions; empty if that is not known.

    dims: those that it must have.
    """
    over, told = {*over, *dims}, points_of(dataset, data)
    fits = [
        (len(its & over), -len(its - over), points, text)
        for points, choices in {**POINTS, "T": (*_of_wrf(dataset), *POINTS["T"])}.items()
        for text in choices
        if told in ("", points) and {*dims} <= (its := _dims(dataset, data, text)) and its & over
    ]
    best: dict[str, str] = {}  # those that have most of the dimensions and least of others
    for count, _, points, text in sorted(fits, key=lambda fit: fit[:2], reverse=True):
        if count == max(fits)[0]:
            best.setdefault(points, f"`measure={text!r}`")
    at = sorted(best, key=[*POINTS].index)
    ways = [best[p] + f" at {p} points" * (len(best) > 1) for p in at]
    if ways:
        return f"Give {' or '.join(ways)}, which the file has."
    return _from_elsewhere(dataset, data, (told or "T").lower(), dims)


def points_of(dataset: xr.Dataset, data: xr.DataArray) -> str:
    """T, U, V or F where names tell on which points of a staggered grid a field is; else empty."""
    said = [*map(str, data.dims), setting(data, "coordinates"), *map(str, data.coords)]
    said += [str(dataset.attrs.get(key, "")) for key in ("name", "title", "description")]
    found = TOLD.search(" ".join(said))
    return next(filter(None, found.groups())).upper().replace("W", "T") if found else ""


def _dims(dataset: xr.Dataset, data: xr.DataArray, text: str) -> set[str]:
    """The dimensions of what is named; none if something is not there or lies elsewhere."""
    known, sizes = attributes_of(dataset), dict[str, int]()
    for name in names_in(text):
        if name in dataset.variables and dataset[name].dtype.kind in "iuf":
            sizes |= {str(dim): size for dim, size in dataset[name].sizes.items()}
        elif name not in known:
            return set()
    its = {dim for dim, size in sizes.items() if size > 1 or dim in data.dims}
    return its if all(sizes[dim] in (1, data.sizes.get(dim)) for dim in its) else set()


def _of_wrf(dataset: xr.Dataset) -> list[str]:
    """Areas and masses of WRF; latitudes and longitudes have a map factor along each."""
    if WRF not in dataset.attrs:
        return []
    by = "({0}X*{0}Y)" if attributes_of(dataset).get(WRF) == 6 else "{0}**2"
    areas = [f"DX*DY/{by.format(f'MAPFAC_{points}')}" for points in HORIZONTAL]
    return [*areas, f"{DRY_MASS}*{areas[0]}", f"(MU+MUB)*-DNW*{areas[0]}"]


def _from_elsewhere(dataset: xr.Dataset, data: xr.DataArray, at: str, dims: Iterable[str]) -> str:
    """Where models that are known by their names keep what this file has not."""
    nemo = any(str(name).startswith("nav_lat") for name in dataset.variables)
    flat, area = set(map(str, data.dims)), pairs(data, "cell_measures").get("area", "")
    known = [  # the measure, and the dimensions that it has
        (f"{area}.nc:{area}", flat if area and area not in dataset.variables else set()),
        *((f"wrfinput.nc:DX*DY/MAPFAC_{p}**2", its) for p, its in HORIZONTAL.items()),
        (f"wrfout.nc:{DRY_MASS}*DX*DY/MAPFAC_M**2", {*HORIZONTAL["M"], "bottom_top"}),
        ("roms_grd.nc:1/(pm*pn)", {"eta_rho", "xi_rho"}),
        (f"mesh_mask.nc:e1{at}*e2{at}", {"y", "x"} if nemo else set()),
    ]
    for way, its in known:
        if {*dims} <= its <= flat and its:
            lacks = "The file has no areas of its cells, and not what they are made of"
            return f"{lacks}: give `measure={way!r}`, with the path of a file that has them."
    if not flat & BETWEEN:
        return ""
    return (
        "ROMS has pm and pn at rho points alone: average them to the points of "
        f"{str(data.name)!r}, and give 1/(pm*pn) as `measure`, in a file as AREAS.nc:NAME."
    )
