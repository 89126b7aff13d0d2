"""Laws of the atmosphere made of what a dataset holds: dry air, moisture and energy.

Variables are found by their standard names, else by names that models use. These budgets are
products of several variables: each law moves one and holds the others as they are, and says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from types import MappingProxyType
from typing import Any

import numpy as np
import xarray as xr

from .._air import GRAVITY, HEAT_CAPACITY, VAPORIZATION
from .._errors import InputError
from ._coordinates import angle, coordinates_of, interval_bounds, setting, units
from ._law import Law, Recipe, assumed
from ._lengths import intervals
from ._units import per
from ._vertical import (
    MASS,
    Layers,
    extremes,
    factor,
    in_order,
    in_unit,
    is_pressure,
    layers_of,
    scale,
)
from ._weights import cell_measure

Sizes = Mapping[Any, int]  # of the dimensions of a variable

NONE: Mapping[str, str] = MappingProxyType({})
HUMIDITY, TEMPERATURE = "specific_humidity", "air_temperature"
PRESSURE = "surface_air_pressure"
WINDS = ("eastward_wind", "northward_wind")
CLOUDS = tuple(f"mass_fraction_of_cloud_{each}_in_air" for each in ("liquid_water", "ice"))
GEOPOTENTIAL = "surface_geopotential geopotential surface_altitude"  # the first that is there
EVAPORATION = "water_evapotranspiration_flux water_evaporation_flux"
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
USUAL = {  # names of variables that do not say their standard name
    HUMIDITY: ("specific_humidity", "hus", "q"),
    TEMPERATURE: ("temperature", "ta", "t"),
    PRESSURE: ("surface_pressure", "ps", "sp"),
    WINDS[0]: ("u_component_of_wind", "ua", "u"),
    WINDS[1]: ("v_component_of_wind", "va", "v"),
    CLOUDS[0]: ("specific_cloud_liquid_water_content", "clw", "clwc"),
    CLOUDS[1]: ("specific_cloud_ice_water_content", "cli", "ciwc"),
    "surface_geopotential": ("geopotential_at_surface", "phis"),
}


@dataclass(frozen=True, eq=False)
class Air:
    """The columns of air in which a variable lies."""

    dataset: xr.Dataset
    name: str  # of the variable
    vertical: str  # dimension
    layers: Layers
    area: xr.DataArray  # m2, without coordinates

    @property
    def over(self) -> tuple[str, ...]:
        return (self.vertical, *(str(dim) for dim in self.area.dims))

    @property
    def mass(self) -> xr.DataArray:
        """Of every cell, kg."""
        where = f"{self.area.description}; times {self.layers.where}"
        return _said(self.layers.thickness * self.area, "kg", where)

    @property
    def pressure(self) -> list[str]:
        """The surface pressure that the thickness of cells depends on, if any."""
        return [] if self.layers.surface.name is None else [str(self.layers.surface.name)]

    def beside(self, standard_names: Sequence[str]) -> list[str]:
        """Variables in the same cells, of those of these standard names that are there."""
        own = set(self.dataset[self.name].dims)

        def apart(sizes: Sizes) -> bool:
            """Whether it is on levels, but on others, or for more members or times."""
            extra = [size for dim, size in sizes.items() if dim not in own]
            near = bool(extra) and any(dim in sizes for dim in self.over)
            return near and (self.vertical in sizes or max(extra) > 1)

        fits = (
            lambda sizes: own == set(sizes),
            lambda sizes: self.vertical in sizes and own >= set(sizes),
            apart,
        )
        found = [_find(self.dataset, each, *fits) for each in standard_names]
        for name in filter(None, found):
            if extra := [dim for dim in self.dataset[name].dims if dim not in own]:
                raise InputError(
                    f"{name!r} has the dimension {extra[0]!r}, which {self.name!r} has not. Bring "
                    "it onto the same cells, or drop it: then it does not count."
                )
        return [name for name in found if name]

    def below(self, standard_names: str) -> str | None:
        """The variable at the surface or the top that has one of these standard names."""
        return _at_surface(self.dataset, standard_names, self.over, self.dataset[self.name])

    def flux(self, name: str, unit: str) -> xr.DataArray:
        """A flux per area as the sum over all of it."""
        given, per_area = self.dataset[name], {"kg": "kg m-2 s-1", "J": "W m-2"}[unit]
        total = (in_unit(given, per_area) * self.area).sum(self.area.dims, skipna=False).compute()
        if total.isnull().any():
            raise InputError(
                f"{name!r} has missing values, so that its sum over the area is not known. Fill "
                "them, or drop the variable: then the total stays that of the start."
            )
        coords = {dim: given[dim].variable for dim in total.dims if dim in given.coords}
        found = xr.DataArray(total.variable, coords, name=name)
        return found.assign_attrs({**given.attrs, "units": f"{unit} s-1"})


def dry_air(dataset: xr.Dataset, assume_units: Mapping[str, str] = NONE) -> Law:
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

    Returns
    -------
    Law
        For `enforce` and `check`, which also take this function itself.

    Raises
    ------
    InputError
        If a variable that it needs is not found, or there is more than one.
    """
    air = _air(dataset, HUMIDITY, "dry-air", assume_units)
    dataset = air.dataset
    if not air.pressure:
        raise InputError(
            f"`dry-air` moves the surface pressure, and no variable is {PRESSURE}. Where levels "
            "are fixed, the mass of dry air changes with humidity only: see `moisture`."
        )
    (pressure,), water = air.pressure, [air.name, *air.beside(CLOUDS)]
    dry = 1 - sum(in_unit(dataset[name], "1").fillna(0.0) for name in water)
    gaps = [name for name in water if bool(dataset[name].isnull().any())]
    counted = (f"missing values of {', '.join(gaps)} count as dry air",) if gaps else ()
    slope = (air.layers.slope * dry).sum(air.vertical) * factor(dataset[pressure], "Pa")
    rest = (air.layers.constant * dry).sum(air.vertical)
    return Law(
        {pressure: _said(slope, per("kg m-2", units(dataset[pressure])), "d mass / d ps times")},
        air.over[1:],
        measure=air.area,
        name="dry air",
        assume_units=assume_units,
        fixed=_said(rest, "kg m-2", "mass that does not depend on it"),
        held=water,
        remarks=(
            f"(1 - {' - '.join(water)}) times {air.layers.where}",
            _moves(pressure, water),
            *counted,
        ),
        linear=[end / factor(dataset[pressure], "Pa") for end in air.layers.reach],
    )


def moisture(dataset: xr.Dataset, assume_units: Mapping[str, str] = NONE) -> Law:
    """A law: water in the air is that of the start, plus evaporation less precipitation.

    The specific humidity q is moved. A column has the sum of (q + cloud water + cloud ice) dp / g
    over its cells. Clouds and surface pressure are held fixed.

    Parameters
    ----------
    dataset : xarray.Dataset
        What holds q on levels, with its standard name or a usual one. Clouds count if
        they are in the dataset, fluxes only if all of them are.
    assume_units : as in `dry_air`

    Returns
    -------
    Law
        For `enforce` and `check`, which also take this function itself.

    Raises
    ------
    InputError
        As `dry_air` does.
    """
    air = _air(dataset, HUMIDITY, "moisture", assume_units)
    dataset = air.dataset
    unit, clouds = units(dataset[air.name]), air.beside(CLOUDS)
    factor(dataset[air.name], "1")
    parts = {name: in_unit(dataset[name], unit) for name in clouds}
    rates = _rates(air, [EVAPORATION], ["precipitation_flux"], "kg")
    known = Law(air.name, air.over, name="moisture", assume_units=assume_units)
    return _completed(known, air, _sum(parts, unit), clouds, rates)


def energy(dataset: xr.Dataset, assume_units: Mapping[str, str] = NONE) -> Law:
    """A law: energy of the air is that of the start, plus what fluxes bring; temperature is moved.

    A column has the sum of (cp T + L q + (u^2 + v^2) / 2 + surface geopotential) dp / g over its
    cells. All but the temperature T is held fixed.

    Parameters
    ----------
    dataset : xarray.Dataset
        What holds T on levels, with its standard name or a usual one. q, the winds u and v and the
        geopotential count if they are in the dataset; fluxes count only if all of them are.
    assume_units : as in `dry_air`

    Returns
    -------
    Law
        For `enforce` and `check`, which also take this function itself.

    Raises
    ------
    InputError
        As `dry_air` does.
    """
    air = _air(dataset, TEMPERATURE, "energy", assume_units)
    dataset = air.dataset
    factor(dataset[air.name], "K")
    humidity, winds, ground = air.beside([HUMIDITY]), air.beside(WINDS), air.below(GEOPOTENTIAL)
    parts = {f"L {name}": VAPORIZATION * in_unit(dataset[name], "1") for name in humidity}
    parts |= {f"{name}^2 / 2": in_unit(dataset[name], "m s-1") ** 2 / 2 for name in winds}
    parts |= {name: _geopotential(dataset[name]) for name in [ground] if name}
    there = {"humidity": humidity, "wind": len(winds) == 2, "surface geopotential": ground}
    lacking = [what for what, found in there.items() if not found]
    said = [
        f"energy per mass: {' + '.join([f'cp {air.name}', *parts])}; cp = {HEAT_CAPACITY} "
        f"J kg-1 K-1, L = {VAPORIZATION:g} J kg-1",
    ]
    said += [f"not found, so that it counts as 0: {', '.join(lacking)}"] if lacking else []
    moved = {air.name: _said(xr.DataArray(HEAT_CAPACITY), "J kg-1 K-1", "cp")}
    known = Law(moved, air.over, name="energy", assume_units=assume_units, remarks=said)
    rates = _rates(air, HEATING, COOLING, "J")
    return _completed(known, air, _sum(parts, "J kg-1"), [*humidity, *winds], rates)


RECIPES: dict[str, Recipe] = {"dry-air": dry_air, "moisture": moisture, "energy": energy}


def _completed(law: Law, air: Air, fixed: Any, held: list[str], rates: tuple[Any, Any, str]) -> Law:
    """With the mass of air as weights, what is held fixed, and the fluxes."""
    held, (inflow, outflow, said) = held + air.pressure, rates
    known = {"measure": air.mass, "fixed": fixed, "held": held, "inflow": inflow}
    remarks = (*law.remarks, _moves(air.name, held), said)
    return replace(law, outflow=outflow, remarks=remarks, **known)


def _air(dataset: xr.Dataset, standard_name: str, recipe: str, units: Mapping[str, str]) -> Air:
    """The columns of the variable that a recipe starts from."""
    dataset = assumed(dataset, [Law(standard_name, recipe, assume_units=units)])
    upright = {
        str(name): dim
        for name in dataset.data_vars
        if (dim := _vertical_dimension(dataset, str(name)))
    }
    shapes = [dict(dataset[each].sizes) for each in upright]
    name = _find(dataset, standard_name, lambda sizes: dict(sizes) in shapes)
    if name is None:
        raise InputError(_lacks(dataset, standard_name, recipe))
    vertical, data = upright[name], dataset[name]
    flat = {dim for c in coordinates_of(dataset, name) if angle(c) for dim in c.dims}
    over = tuple(str(dim) for dim in data.dims if dim in flat)
    if not over:
        raise InputError(f"`{recipe}` needs latitudes and longitudes of {name!r}.")
    layers = layers_of(dataset, name, vertical) or _on_pressures(dataset, data, vertical, over)
    if layers.units != "kg m-2":
        raise InputError(f"`{recipe}` needs levels of pressure; those of {name!r} are heights.")
    area = cell_measure(dataset, name, over)
    return Air(dataset, name, vertical, layers, _said(in_unit(area, "m2"), "m2", area.description))


def _lacks(dataset: xr.Dataset, standard_name: str, recipe: str) -> str:
    """Why a recipe has no variable to start from, and the way out."""
    there = _find(dataset, standard_name, lambda sizes: len(sizes) > 2)
    if there is None:
        return (
            f"`{recipe}` needs a variable with the standard_name {standard_name} on levels, whose "
            "coordinate has formula_terms or the units of a pressure; `assume_units` can say those."
        )
    dims = ", ".join(map(str, dataset[there].dims))
    return (
        f"`{recipe}` needs the pressure of the levels of {there!r}, and no coordinate along {dims} "
        "has formula_terms or the units of a pressure. Copy the coordinate with its terms from the "
        "file that has them, or say the units of pressures with `assume_units`."
    )


def _vertical_dimension(dataset: xr.Dataset, name: str) -> str | None:
    """The dimension of levels with formula terms, or of pressures."""
    for c in coordinates_of(dataset, name):
        if c.ndim == 1 and (setting(c, "formula_terms") or is_pressure(c)):
            return str(c.dims[0])
    return None


def _on_pressures(dataset: xr.Dataset, data: xr.DataArray, dim: str, flat: Sequence[str]) -> Layers:
    """Cells between pressures, cut at the surface pressure where the dataset has it."""
    along = (c for c in coordinates_of(dataset, str(data.name)) if c.dims == (dim,))
    coordinate = next(filter(is_pressure, along))
    bounds = interval_bounds(dataset, coordinate)
    ends = np.sort(intervals(coordinate, bounds)[0], -1) * factor(coordinate, "Pa")
    where = f"{MASS} between the pressures of {coordinate.name}, "
    where += "half way between levels" if bounds is None else f"from {bounds.name}"
    name = _at_surface(dataset, PRESSURE, (dim, *flat), data)
    if name is None:
        where += f", from {ends.min():g} to {ends.max():g} Pa: no surface pressure to cut them at"
        thickness = xr.DataArray((ends[:, 1] - ends[:, 0]) / GRAVITY, dims=dim)
        return Layers(thickness, 0 * thickness, xr.DataArray(0.0), "kg m-2", where)
    ps = in_order(in_unit(dataset[name], "Pa"), data)
    _, highest, missing = extremes(ps)
    if highest < coordinate.max() * factor(coordinate, "Pa") / 2:
        raise InputError(
            f"{name!r} reaches {highest:.6g} Pa at most, and {coordinate.name!r} has levels far "
            "below that surface. Are the `units` of both right?"
        )
    where += (
        f", from {ends.min():g} Pa to the surface ({name}), linear while that stays in its cell"
    )
    where += f"; {missing} places without {name} do not count" if missing else ""
    ps = ps.fillna(0.0) if missing else ps
    reaching = np.where(ends == ends.max(), np.inf, ends)  # the lowest ends at the surface
    top, bottom = (in_order(xr.DataArray(end, dims=dim), data, ps) for end in reaching.T)
    slope = ((top < ps) & (bottom >= ps)) / GRAVITY
    constant = (xr.where(bottom < ps, bottom, 0.0) - xr.where(top < ps, top, 0.0)) / GRAVITY
    reach = tuple(end.where(slope > 0, 0.0).sum(dim) for end in (top, bottom))
    return Layers(constant, slope, ps, "kg m-2", where, reach)


def _at_surface(
    dataset: xr.Dataset, standard_names: str, over: Sequence[str], data: xr.DataArray
) -> str | None:
    """The variable that has one of the standard names and lies below or above the data.

    over: the dimension of levels, and those of the area.
    """
    vertical, *flat = over
    moving = {dim for dim in data.dims if dim != vertical}
    return _find(
        dataset,
        standard_names,
        lambda sizes: moving == set(sizes),
        lambda sizes: set(flat) <= set(sizes) <= moving,
    )


def _find(dataset: xr.Dataset, standard_names: str, *fits: Callable[[Sizes], bool]) -> str | None:
    """The variable that has one of the standard names, or a usual name, and sizes that fit best."""
    known = [str(name) for name in dataset.variables]
    ancillary = {
        each for name in known for each in setting(dataset[name], "ancillary_variables").split()
    }
    spreads = {name for name in known if name.endswith("_std") or name in ancillary}
    spreads |= {n for n in known if "standard_deviation" in setting(dataset[n], "cell_methods")}
    fields = [name for name in known if name not in spreads]
    for standard, fit in product(standard_names.split(), fits):
        named = [name for name in fields if dataset[name].attrs.get("standard_name") == standard]
        usual = [name for name in USUAL.get(standard, ()) if name in fields]
        found = [n for n in named if fit(dataset[n].sizes)]
        found = found or [n for n in usual if fit(dataset[n].sizes)]
        if len(found) > 1:
            raise InputError(
                f"which is the {standard}: {' or '.join(found)}? Drop the others, or take their "
                "standard_name off."
            )
        if found:
            return found[0]
    return None


def _rates(air: Air, into: Sequence[str], out: Sequence[str], unit: str) -> tuple[Any, Any, str]:
    """The fluxes in and out, all of them or none, and what is to be said of them."""
    found = {each: air.below(each) for each in (*into, *out)}
    if lacking := [each.split()[0] for each, name in found.items() if name is None]:
        beside = [name for name in found.values() if name]
        unused = f"; {', '.join(beside)} alone would not do" if beside else ""
        return (), (), f"no fluxes counted, for want of {', '.join(lacking)}{unused}"
    inflow, outflow = ([air.flux(str(found[each]), unit) for each in part] for part in (into, out))
    text = [f"+ {rate.name}" for rate in inflow] + [f"- {rate.name}" for rate in outflow]
    return inflow, outflow, f"fluxes: {' '.join(text)}"


def _geopotential(ground: xr.DataArray) -> xr.DataArray:
    if scale(units(ground), "m") is not None:
        return GRAVITY * in_unit(ground, "m")
    return in_unit(ground, "m2 s-2")


def _sum(parts: dict[str, xr.DataArray], unit: str) -> xr.DataArray | float:
    if not parts:
        return 0.0
    first, *others = parts.values()
    return _said(sum(others, start=first), unit, " + ".join(parts))


def _said(array: xr.DataArray, unit: str | None, description: str) -> xr.DataArray:
    return array.rename(None).assign_attrs(units=unit, description=description)


def _moves(name: str, held: Sequence[str]) -> str:
    return f"moves {name}" + (f"; held fixed: {', '.join(held)}" if held else "")
