"""What to weigh cells by where coordinates do not tell, in words for messages.

Models keep the areas of cells, or the lengths and map factors that they are made of, under names
of their own. What is proposed is what the file has on the dimensions of the field.
"""

import re
from collections.abc import Iterable, Mapping

import xarray as xr

from ._arithmetic import WRF, attributes_of, names_in
from ._attributes import pairs, setting

AREAS = (
    "Give the areas of the cells as `measure`, in a file as AREAS.nc:NAME. Models keep them, or "
    "what they are made of: areacello, areaCell; e1t*e2t (NEMO), 1/(pm*pn) (ROMS), "
    "DX*DY/MAPFAC_M**2 (WRF)."
)
POINTS = {  # of a staggered grid
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


def ways_to_weigh(dataset: xr.Dataset, data: xr.DataArray, over: Iterable[str], *dims: str) -> str:
    """What to give as `measure` for sums over dimensions; empty if that is not known.

    dims: those that it must have.
    """
    over, told, found = set(over) | set(dims), points_of(dataset, data), {}
    for points, choices in {**POINTS, "T": (*_of_wrf(dataset), *POINTS["T"])}.items():
        fits = [(_dims(dataset, data, each), each) for each in choices if told in ("", points)]
        fits = [(its, each) for its, each in fits if set(dims) <= its and its & over]
        if fits:  # the one that has most of the dimensions and least of others
            its, best = min(fits, key=lambda fit: (-len(fit[0] & over), len(fit[0] - over)))
            found[points] = best, len(its & over)
    most = max((count for _, count in found.values()), default=0)
    best_of = {points: text for points, (text, count) in found.items() if count == most}
    where = {points: f" at {points} points" * (len(best_of) > 1) for points in best_of}
    ways = [f"`measure={text!r}`{where[points]}" for points, text in best_of.items()]
    if ways:
        return f"Give {' or '.join(ways)}, which the file has."
    return _from_elsewhere(dataset, data, told or "T", dims)


def points_of(dataset: xr.Dataset, data: xr.DataArray) -> str:
    """T, U, V or F where names tell on which points of a staggered grid a field is; else empty."""
    said = [*map(str, data.dims), setting(data, "coordinates"), *map(str, data.coords)]
    said += [str(dataset.attrs.get(key, "")) for key in ("name", "title", "description")]
    found = TOLD.search(" ".join(said))
    return next(filter(None, found.groups())).upper().replace("W", "T") if found else ""


def _dims(dataset: xr.Dataset, data: xr.DataArray, text: str) -> set[str]:
    """The dimensions of what is named; none if something is not there or lies elsewhere."""
    known: Mapping[str, float] = attributes_of(dataset)
    sizes: dict[str, int] = {}
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
    masses = [f"{DRY_MASS}*{areas[0]}", f"(MU+MUB)*-DNW*{areas[0]}"]
    return [*areas, *masses]


def _from_elsewhere(
    dataset: xr.Dataset, data: xr.DataArray, points: str, dims: tuple[str, ...]
) -> str:
    """Where models that are known by their names keep what this file has not."""
    nemo = any(str(name).startswith("nav_lat") for name in dataset.variables)
    flat, named = set(map(str, data.dims)), pairs(data, "cell_measures").get("area", "area")
    wrf = next((p for p, its in HORIZONTAL.items() if its <= flat), "")
    known = {  # the measure, and the dimensions that it has
        f"{named}.nc:{named}": flat if named not in ("area", *dataset.variables) else set(),
        f"wrfinput.nc:DX*DY/MAPFAC_{wrf}**2": HORIZONTAL.get(wrf, set()),
        f"wrfout.nc:{DRY_MASS}*DX*DY/MAPFAC_M**2": {*HORIZONTAL["M"], "bottom_top"},
        "roms_grd.nc:1/(pm*pn)": {"eta_rho", "xi_rho"},
        f"mesh_mask.nc:e1{points.lower()}*e2{points.lower()}": {"y", "x"} if nemo else set(),
    }
    way = next((way for way, its in known.items() if {*dims} <= its <= flat and its), "")
    if not way and flat & {"xi_u", "xi_v", "xi_psi", "eta_u", "eta_v", "eta_psi"}:
        return (
            "ROMS has pm and pn at rho points alone: average them to the points of "
            f"{str(data.name)!r}, and give 1/(pm*pn) as `measure`, in a file as AREAS.nc:NAME."
        )
    return way and (
        f"The file has no areas of its cells, and not what they are made of: give `measure={way!r}`"
        ", with the path of a file that has them."
    )
