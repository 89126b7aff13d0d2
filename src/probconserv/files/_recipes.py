"""Laws of the atmosphere made of what a dataset holds: dry air, moisture and energy.

These budgets are products of several variables: each law moves one and holds the others as they
are, and says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add

import xarray as xr

from ..air import contents
from ..air.contents import FUSION, HEAT_CAPACITY, VAPORIZATION
from ..support.errors import InputError
from ._attributes import factor, in_unit, per, scale, units
from ._columns import (
    CLOUDS,
    HUMIDITY,
    NONE,
    PRESSURE,
    TEMPERATURE,
    WINDS,
    AirColumns,
    Flux,
    columns,
    described,
)
from ._law import FileLaw, Given, Recipe, find, listed

Moved = str | Mapping[str, Given]  # a variable, or with its factor
Parts = Mapping[str, xr.DataArray]  # by the words for each
Fluxes = tuple[list[xr.DataArray], list[xr.DataArray], str]  # in, out, and what is said of them

GEOPOTENTIAL = "surface_geopotential geopotential surface_altitude"  # the first that is there
PARTS = (  # of energy, held fixed: in words, their unit, and what `air.contents` calls them
    (HUMIDITY, "L {}", "1", "specific_humidity"),
    (CLOUDS[1], "(-Lf) {}", "1", "cloud_ice"),
    *((wind, "{}^2 / 2", "m s-1", wind) for wind in WINDS),
)
EVAPORATION = ("water_evapotranspiration_flux water_evaporation_flux",)
PRECIPITATION = ("precipitation_flux",)
HEATING = (
    "toa_incoming_shortwave_flux",
    "surface_upwelling_shortwave_flux_in_air",
    "surface_upwelling_longwave_flux_in_air",
    "surface_upward_sensible_heat_flux",
    "surface_upward_latent_heat_flux",
)
COOLING = (
    "toa_outgoing_shortwave_flux",
    "toa_outgoing_longwave_flux",
    "surface_downwelling_shortwave_flux_in_air",
    "surface_downwelling_longwave_flux_in_air",
)


def dry_air(
    dataset: xr.Dataset,
    assume_units: Mapping[str, str] = NONE,
    *,
    time: str | None = None,
    measure: Given | None = None,
    radius: float | None = None,
) -> FileLaw:
    """A law: the mass of dry air stays that of the start; the surface pressure is moved.

    A column has the sum of (1 - water) dp / g over its cells, and dp depends on the surface
    pressure. Water, which is humidity and clouds, is held fixed.

    Parameters
    ----------
    dataset : xarray.Dataset
        What holds specific humidity on levels and the surface pressure, with their standard names
        or usual ones.
    assume_units : dict of str
        Units of variables instead of those in the dataset.
    time : str
        The dimension of time, if attributes, units or names do not tell.
    measure : float, str or DataArray
        The areas of the cells, if not those found by bounds, `cell_measures` or coordinates.
    radius : float
        The radius of the globe in metres, as in `FileLaw`.

    Returns
    -------
    FileLaw
        For `enforce` and `check`, which also take this function itself.

    Raises
    ------
    InputError
        If a variable that it needs is not found, or there is more than one.
    """
    told = {"assume_units": assume_units, "time": time, "measure": measure, "radius": radius}
    air = columns(dataset, HUMIDITY, "dry-air", **told)
    if not air.pressure:
        raise InputError(
            f"`dry-air` moves the surface pressure, and no variable is {PRESSURE}. Where levels "
            "are fixed, the mass of dry air changes with humidity only: see `moisture`."
        )
    (pressure,), water = air.pressure, [air.name, *air.beside(CLOUDS)]
    parts = [in_unit(air.dataset[name], "1") for name in water]
    gaps = [str(part.name) for part in parts if bool(part.isnull().any())]
    dry = contents.dry(*(part.fillna(0.0) for part in parts))
    ps, vertical = air.dataset[pressure], air.over[0]
    slope = (air.layers.slope * dry).sum(vertical) * factor(ps, "Pa")
    rest = (air.layers.constant * dry).sum(vertical)
    remarks = [f"(1 - {' - '.join(water)}) times {air.layers.where}", _moves(pressure, water)]
    remarks += [f"missing values of {', '.join(gaps)} count as dry air"] if gaps else []
    return replace(
        air.asked,
        variables={pressure: described(slope, per("kg m-2", units(ps)), "d mass / d ps times")},
        over=air.over[1:],
        measure=air.area,
        name="dry air",
        fixed=described(rest, "kg m-2", "mass that does not depend on it"),
        held=water,
        remarks=remarks,
        linear=[end / factor(ps, "Pa") for end in air.layers.reach],
    )


def moisture(
    dataset: xr.Dataset,
    assume_units: Mapping[str, str] = NONE,
    *,
    time: str | None = None,
    measure: Given | None = None,
    radius: float | None = None,
    inflow: Flux = (),
    outflow: Flux = (),
    assume_method: Mapping[str, str] = NONE,
) -> FileLaw:
    """A law: water in the air is that of the start, plus evaporation less precipitation.

    The specific humidity q is moved. A column has the sum of (q + cloud water + cloud ice) dp / g
    over its cells. Clouds and surface pressure are held fixed.

    Parameters
    ----------
    dataset : xarray.Dataset
        What holds q on levels, with its standard name or a usual one. Clouds count if
        they are in the dataset, fluxes only if all of them are.
    assume_units, time, measure, radius : as in `dry_air`
    inflow, outflow : str, DataArray, or a sequence of these
        Fluxes per area, or amounts, in place of those that are looked for.
    assume_method : dict of str
        What the fluxes are in time, as in `FileLaw`.

    Returns
    -------
    FileLaw
        For `enforce` and `check`, which also take this function itself.

    Raises
    ------
    InputError
        As `dry_air` does.
    """
    told = {"assume_units": assume_units, "time": time, "measure": measure, "radius": radius}
    fluxes = {"inflow": inflow, "outflow": outflow, "assume_method": assume_method}
    air = columns(dataset, HUMIDITY, "moisture", **told, **fluxes)
    factor(air.data, "1")
    unit = units(air.data)
    parts = {name: in_unit(air.dataset[name], unit) for name in air.beside(CLOUDS)}
    return _law(air, air.name, parts, unit, _fluxes(air, EVAPORATION, PRECIPITATION, "kg"))


def energy(
    dataset: xr.Dataset,
    assume_units: Mapping[str, str] = NONE,
    *,
    time: str | None = None,
    measure: Given | None = None,
    radius: float | None = None,
    inflow: Flux = (),
    outflow: Flux = (),
    assume_method: Mapping[str, str] = NONE,
) -> FileLaw:
    """A law: energy of the air is that of the start, plus what fluxes bring; temperature is moved.

    A column has the sum of (cp T + L q - Lf ice + (u^2 + v^2) / 2 + surface geopotential) dp / g
    over its cells, as `weather.Fixer` has it. All but the temperature T is held fixed.

    Parameters
    ----------
    dataset : xarray.Dataset
        What holds T on levels, with its standard name or a usual one. q, cloud ice, the winds u and
        v and the geopotential count if they are in the dataset; fluxes count only if all of them
        are. The latent heat of snow that falls is not among them.
    assume_units, time, measure, radius : as in `dry_air`
    inflow, outflow : str, DataArray, or a sequence of these
        Fluxes per area, or amounts, in place of those that are looked for.
    assume_method : dict of str
        What the fluxes are in time, as in `FileLaw`.

    Returns
    -------
    FileLaw
        For `enforce` and `check`, which also take this function itself.

    Raises
    ------
    InputError
        As `dry_air` does.
    """
    told = {"assume_units": assume_units, "time": time, "measure": measure, "radius": radius}
    fluxes = {"inflow": inflow, "outflow": outflow, "assume_method": assume_method}
    air = columns(dataset, TEMPERATURE, "energy", **told, **fluxes)
    factor(air.data, "K")
    parts, found = {}, set()
    for standard, words, unit, kind in PARTS:
        for name in air.beside([standard]):
            parts[words.format(name)] = contents.energy(kind, in_unit(air.dataset[name], unit))
            found.add(standard)
    if ground := air.below(GEOPOTENTIAL):
        height = scale(air.dataset[ground], "m") is not None
        high = in_unit(air.dataset[ground], "m" if height else "m2 s-2")
        parts[ground] = contents.geopotential(high) if height else high
    there = {
        "humidity": HUMIDITY in found,
        "wind": found >= {*WINDS},
        "surface geopotential": ground,
    }
    lacking = [what for what, is_there in there.items() if not is_there]
    remarks = [
        f"energy per mass: {' + '.join([f'cp {air.name}', *parts])}; cp = {HEAT_CAPACITY} "
        f"J kg-1 K-1, L = {VAPORIZATION:g} J kg-1"
        + f", Lf = {FUSION:g} J kg-1"
        * (CLOUDS[1] in found),
    ]
    remarks += [f"not found, so that it counts as 0: {', '.join(lacking)}"] if lacking else []
    moved = {air.name: described(xr.DataArray(HEAT_CAPACITY), "J kg-1 K-1", "cp")}
    return _law(air, moved, parts, "J kg-1", _fluxes(air, HEATING, COOLING, "J"), *remarks)


RECIPES: dict[str, Recipe] = {"dry-air": dry_air, "moisture": moisture, "energy": energy}


def _law(
    air: AirColumns, moved: Moved, parts: Parts, unit: str, fluxes: Fluxes, *remarks: str
) -> FileLaw:
    """Mass of air times what is moved and parts that are held fixed, with fluxes in and out."""
    held = [*(str(part.name) for part in parts.values()), *air.pressure]
    inflow, outflow, said = fluxes
    names, stated = {rate.name for rate in (*inflow, *outflow)}, air.asked.assume_method
    for name in [name for name in stated if name not in names]:
        find(air.dataset, name, "assume_method")
        said += f"; {name} is no flux of this law: name it with `inflow` or `outflow` if it is one"
    return replace(
        air.asked,
        variables=moved,
        over=air.over,
        inflow=inflow,
        outflow=outflow,
        measure=air.mass,
        assume_method={name: method for name, method in stated.items() if name in names},
        fixed=described(reduce(add, parts.values()), unit, " + ".join(parts)) if parts else 0.0,
        held=held,
        remarks=(*remarks, _moves(air.name, held), said),
    )


def _fluxes(air: AirColumns, into: Sequence[str], out: Sequence[str], unit: str) -> Fluxes:
    """The fluxes in and out, those given or all that the law asks for, and what is to be said."""
    given = {"inflow": listed(air.asked.inflow), "outflow": listed(air.asked.outflow)}
    if not any(given.values()):
        found = {each: air.below(each) for each in (*into, *out)}
        if lacking := [each.split()[0] for each, name in found.items() if name is None]:
            beside = [name for name in found.values() if name]
            unused = f"; {', '.join(beside)} alone would not do" if beside else ""
            ways = "; `inflow` and `outflow` name others"
            return [], [], f"no fluxes counted, for want of {', '.join(lacking)}{unused}{ways}"
        given = {"inflow": [found[each] for each in into], "outflow": [found[e] for e in out]}
    rates: dict[str, list[tuple[xr.DataArray, str, str]]] = {side: [] for side in given}
    wrong = []
    for side, name in [(side, name) for side, part in given.items() for name in part]:
        try:
            rates[side].append(air.rate(name, side, unit))
        except InputError as error:
            wrong.append(str(error))
    if wrong:  # all at once
        raise InputError(" ".join(wrong))
    inflow, outflow = ([air.summed(*rate) for rate in part] for part in rates.values())
    text = [
        f"{sign} {r.description}" for sign, part in (("+", inflow), ("-", outflow)) for r in part
    ]
    return inflow, outflow, f"fluxes: {' '.join(text)}"


def _moves(name: str, held: Sequence[str]) -> str:
    return f"moves {name}" + (f"; held fixed: {', '.join(held)}" if held else "")
