"""Laws of the atmosphere made of what a dataset holds: dry air, moisture and energy.

Variables are found by their standard names, else by names that models use. These budgets are
products of several variables: each law moves one and holds the others as they are, and says so.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add
from types import MappingProxyType

import xarray as xr

from .._air import FUSION, GRAVITY, HEAT_CAPACITY, VAPORIZATION
from .._errors import InputError
from ._attributes import decoded, factor, in_unit, pairs, per, scale, setting, units
from ._coordinates import Grid, angle, is_pressure
from ._law import Given, Law, Recipe, assumed, find, listed, match, taken
from ._methods import WATER_METRES, check_stated, check_unit, in_mass, is_water
from ._time import method_in, tells_time, time_of
from ._vertical import Layers, formula_layers, pressure_layers
from ._weights import cell_measure

Moved = str | Mapping[str, Given]  # a variable, or with its factor
Flux = str | xr.DataArray | Sequence[str | xr.DataArray]  # per area; names, or arrays
Parts = Mapping[str, xr.DataArray]  # by the words for each
Fluxes = tuple[list[xr.DataArray], list[xr.DataArray], str]  # in, out, and what is said of them

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
UNITS = {"kg": ("kg m-2", "kg m-2 s-1"), "J": ("J m-2", "W m-2")}  # of amounts and of rates
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


USUAL_UNITS = {  # of these
    HUMIDITY: "kg kg-1",
    TEMPERATURE: "K",
    PRESSURE: "Pa",
    **dict.fromkeys(WINDS, "m s-1"),
    **dict.fromkeys(CLOUDS, "kg kg-1"),
    "surface_geopotential": "m2 s-2",
}


@dataclass(frozen=True, eq=False)
class Said:
    """What a user says where a dataset does not tell."""

    assume_units: Mapping[str, str]
    assume_method: Mapping[str, str]
    time: str | None
    measure: Given | None
    radius: float | None
    inflow: Flux = ()
    outflow: Flux = ()


@dataclass(frozen=True, eq=False)
class Air(Grid):
    """The columns of air in which a variable lies."""

    levels: xr.DataArray  # the coordinate that says where they are
    recipe: str
    said: Said

    @cached_property
    def over(self) -> tuple[str, ...]:
        """The dimension of levels, and those of the area."""
        flat = {dim for c in self.coordinates if angle(c) for dim in c.dims}
        if not flat:
            raise InputError(f"`{self.recipe}` needs latitudes and longitudes of {self.name!r}.")
        return (str(self.levels.dims[0]), *(str(d) for d in self.data.dims if d in flat))

    @cached_property
    def layers(self) -> Layers:
        found = formula_layers(self, self.over[0])
        if found is None:
            found = pressure_layers(self, self.levels, self.below(PRESSURE))
        if found.units != "kg m-2":
            raise InputError(
                f"`{self.recipe}` needs levels of pressure; those of {self.name!r} are heights."
            )
        return found

    @cached_property
    def area(self) -> xr.DataArray:  # without coordinates
        how = self.said.measure, self.said.radius
        found = cell_measure(self.dataset, self.name, self.over[1:], *how)
        return _said(in_unit(found, "m2"), "m2", found.description)

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
        """Variables in the same cells, of those of these standard names that are there.

        One on other levels, or of more members or times, is refused: it would count by half.
        """
        own, (vertical, *flat) = set(self.data.dims), self.over

        def in_cells(each: xr.DataArray) -> bool:
            more = any(each.sizes[dim] > 1 for dim in set(each.dims) - own)
            return vertical in each.dims or (more and any(dim in each.dims for dim in flat))

        found = [_find(self.dataset, name, in_cells, own) for name in standard_names]
        for name in filter(None, found):
            match(self.dataset[name], self.data, name)
        return [name for name in found if name]

    def below(self, standard_names: str) -> str | None:
        """The variable at the surface or the top that has one of these standard names."""
        vertical, *flat = self.over
        moving = set(self.data.dims) - {vertical}
        return _find(
            self.dataset, standard_names, lambda each: set(flat) <= set(each.dims) <= moving, moving
        )

    def flux(self, given: Given, argument: str, unit: str) -> xr.DataArray:
        """A flux per area, or an amount, as the sum over all of it."""
        found = in_mass(self.dataset, decoded(taken(self.dataset, given, argument)))
        name, time = f"{argument} {found.name}", time_of(self.data, self.said.time, self.over)
        match(found, self.data, name, [str(dim) for dim in found.dims if dim not in self.data.dims])
        method = method_in(self.dataset, found, name, time.dim, self.said.assume_method)
        amount, rate = UNITS[unit]
        check_unit(name, found, method, amount, "s")
        values = in_unit(found, amount if method.is_amount else rate)
        total = (values * self.area).sum(self.area.dims, skipna=False).compute()
        if total.isnull().any():
            raise InputError(
                f"{found.name!r} has missing values, so that its sum over the area is not known. "
                "Fill them, or drop the variable: then the total stays that of the start."
            )
        coords = {dim: found[dim].variable for dim in total.dims if dim in found.coords}
        summed = xr.DataArray(total.variable, coords, name=found.name)
        clock = "" if method.is_amount else " s-1"
        return summed.assign_attrs({**found.attrs, "units": f"{unit}{clock}"})


def dry_air(
    dataset: xr.Dataset,
    assume_units: Mapping[str, str] = NONE,
    *,
    time: str | None = None,
    measure: Given | None = None,
    radius: float | None = None,
) -> Law:
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
        The radius of the globe in metres, as in `Law`.

    Returns
    -------
    Law
        For `enforce` and `check`, which also take this function itself.

    Raises
    ------
    InputError
        If a variable that it needs is not found, or there is more than one.
    """
    said = Said(assume_units, NONE, time, measure, radius)
    air = _air(dataset, HUMIDITY, "dry-air", said)
    if not air.pressure:
        raise InputError(
            f"`dry-air` moves the surface pressure, and no variable is {PRESSURE}. Where levels "
            "are fixed, the mass of dry air changes with humidity only: see `moisture`."
        )
    (pressure,), water = air.pressure, [air.name, *air.beside(CLOUDS)]
    parts = [in_unit(air.dataset[name], "1") for name in water]
    gaps = [str(part.name) for part in parts if bool(part.isnull().any())]
    dry = 1 - sum(part.fillna(0.0) for part in parts)
    ps, vertical = air.dataset[pressure], air.over[0]
    slope = (air.layers.slope * dry).sum(vertical) * factor(ps, "Pa")
    rest = (air.layers.constant * dry).sum(vertical)
    remarks = [f"(1 - {' - '.join(water)}) times {air.layers.where}", _moves(pressure, water)]
    remarks += [f"missing values of {', '.join(gaps)} count as dry air"] if gaps else []
    return Law(
        {pressure: _said(slope, per("kg m-2", units(ps)), "d mass / d ps times")},
        air.over[1:],
        measure=air.area,
        time=time,
        name="dry air",
        assume_units=assume_units,
        fixed=_said(rest, "kg m-2", "mass that does not depend on it"),
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
) -> Law:
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
        What the fluxes are in time, as in `Law`.

    Returns
    -------
    Law
        For `enforce` and `check`, which also take this function itself.

    Raises
    ------
    InputError
        As `dry_air` does.
    """
    said = Said(assume_units, assume_method, time, measure, radius, inflow, outflow)
    air = _air(dataset, HUMIDITY, "moisture", said)
    factor(air.data, "1")
    unit = units(air.data)
    parts = {name: in_unit(air.dataset[name], unit) for name in air.beside(CLOUDS)}
    fluxes = _fluxes(air, [EVAPORATION], ["precipitation_flux"], "kg")
    return _law(air, air.name, parts, unit, fluxes)


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
) -> Law:
    """A law: energy of the air is that of the start, plus what fluxes bring; temperature is moved.

    A column has the sum of (cp T + L q - Lf ice + (u^2 + v^2) / 2 + surface geopotential) dp / g
    over its cells, as `fixers.Fixer` has it. All but the temperature T is held fixed.

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
        What the fluxes are in time, as in `Law`.

    Returns
    -------
    Law
        For `enforce` and `check`, which also take this function itself.

    Raises
    ------
    InputError
        As `dry_air` does.
    """
    said = Said(assume_units, assume_method, time, measure, radius, inflow, outflow)
    air = _air(dataset, TEMPERATURE, "energy", said)
    factor(air.data, "K")
    humidity, winds, ground = air.beside([HUMIDITY]), air.beside(WINDS), air.below(GEOPOTENTIAL)
    parts = {f"L {name}": VAPORIZATION * in_unit(air.dataset[name], "1") for name in humidity}
    ice = air.beside(CLOUDS[1:])
    parts |= {f"(-Lf) {name}": -FUSION * in_unit(air.dataset[name], "1") for name in ice}
    parts |= {f"{name}^2 / 2": in_unit(air.dataset[name], "m s-1") ** 2 / 2 for name in winds}
    if ground:
        height = scale(air.dataset[ground], "m") is not None
        parts[ground] = in_unit(air.dataset[ground], "m" if height else "m2 s-2")
        parts[ground] *= GRAVITY if height else 1.0
    there = {"humidity": humidity, "wind": len(winds) == 2, "surface geopotential": ground}
    lacking = [what for what, found in there.items() if not found]
    remarks = [
        f"energy per mass: {' + '.join([f'cp {air.name}', *parts])}; cp = {HEAT_CAPACITY} "
        f"J kg-1 K-1, L = {VAPORIZATION:g} J kg-1" + f", Lf = {FUSION:g} J kg-1" * bool(ice),
    ]
    remarks += [f"not found, so that it counts as 0: {', '.join(lacking)}"] if lacking else []
    moved = {air.name: _said(xr.DataArray(HEAT_CAPACITY), "J kg-1 K-1", "cp")}
    return _law(air, moved, parts, "J kg-1", _fluxes(air, HEATING, COOLING, "J"), *remarks)


RECIPES: dict[str, Recipe] = {"dry-air": dry_air, "moisture": moisture, "energy": energy}


def _law(air: Air, moved: Moved, parts: Parts, unit: str, fluxes: Fluxes, *remarks: str) -> Law:
    """Mass of air times what is moved and parts that are held fixed, with fluxes in and out."""
    held = [*(str(part.name) for part in parts.values()), *air.pressure]
    inflow, outflow, said = fluxes
    names, stated = {rate.name for rate in (*inflow, *outflow)}, air.said.assume_method
    for name in [name for name in stated if name not in names]:
        find(air.dataset, name, "assume_method")
        said += f"; {name} is no flux of this law: name it with `inflow` or `outflow` if it is one"
    return Law(
        moved,
        air.over,
        inflow=inflow,
        outflow=outflow,
        measure=air.mass,
        time=air.said.time,
        name=air.recipe,
        assume_units=air.said.assume_units,
        assume_method={name: method for name, method in stated.items() if name in names},
        fixed=_said(reduce(add, parts.values()), unit, " + ".join(parts)) if parts else 0.0,
        held=held,
        remarks=(*remarks, _moves(air.name, held), said),
    )


def _air(dataset: xr.Dataset, standard_name: str, recipe: str, said: Said) -> Air:
    """The columns of the variable that a recipe starts from."""
    check_stated(said.assume_method)
    dataset = assumed(dataset, [Law(standard_name, recipe, assume_units=said.assume_units)])
    found = {name: _levels(Grid(dataset, str(name))) for name in dataset.data_vars}
    levels = {str(name): c for name, c in found.items() if c is not None}
    name = _find(dataset, standard_name, lambda each: each.name in levels)
    if name is None:
        there = _find(dataset, standard_name, lambda each: each.ndim > 2)
        lack = f", as those of {there!r} have not" if there else ""
        raise InputError(
            f"`{recipe}` needs a variable with the standard_name {standard_name} on levels whose "
            f"coordinate has formula_terms or the units of a pressure{lack}. Copy the coordinate "
            f"with its terms from the file that has them, or say units with "
            f"{_lacking(dataset, there, said)}."
        )
    return Air(dataset, name, levels[name], recipe, said)


def _lacking(dataset: xr.Dataset, there: str | None, said: Said) -> str:
    """The option with usual units for all that has none: levels, and variables by usual names."""
    water = [each for each in (*listed(said.inflow), *listed(said.outflow)) if is_water(each)]
    usual = {name: unit for key, unit in USUAL_UNITS.items() for name in USUAL.get(key, ())}
    usual |= dict.fromkeys(water, WATER_METRES)
    silent = [str(name) for name in dataset.variables if not units(dataset[name])]
    found = {name: usual[name] for name in silent if name in usual and dataset[name].ndim}
    along = [
        dataset[dim] for dim in ([] if there is None else dataset[there].dims) if dim in silent
    ]
    flat = [c for c in along if angle(c) is None and not tells_time(c) and c.dtype.kind in "iuf"]
    for c in flat:  # surface pressures are at most 1100 hPa
        if c.size > 1 and c.min() > 0 and 100 < c.max() <= 1.1e5:
            found = {str(c.name): "hPa" if c.max() <= 1100 else "Pa", **found}
    said = ", ".join(f"{name!r}: {unit!r}" for name, unit in found.items())
    return f"`assume_units={{{said}}}`, if these are right" if found else "`assume_units`"


def _levels(grid: Grid) -> xr.DataArray | None:
    """The coordinate of levels with formula terms, or of pressures."""
    single = [c for c in grid.coordinates if c.ndim == 1]
    return next((c for c in single if pairs(c, "formula_terms") or is_pressure(c)), None)


def _find(
    dataset: xr.Dataset,
    standard_names: str,
    fits: Callable[[xr.DataArray], bool],
    dims: Set[Hashable] = frozenset(),
) -> str | None:
    """The variable that fits and has one of the standard names, or a usual name.

    Of several, the one whose dimensions are the closest to `dims`.
    """
    arrays = [dataset[name] for name in dataset.variables]
    ancillary = " ".join(setting(each, "ancillary_variables") for each in arrays).split()
    spreads = [c.name for c in arrays if "standard_deviation" in setting(c, "cell_methods")]
    fields = {str(c.name): c for c in arrays if c.name not in (*ancillary, *spreads) and fits(c)}
    for standard in standard_names.split():
        named = dataset.cf.standard_names.get(standard, [])
        found = [name for name in fields if name in named and not name.endswith("_std")]
        found = found or [name for name in USUAL.get(standard, ()) if name in fields]
        off = {name: len(dims ^ set(fields[name].dims)) if dims else 0 for name in found}
        found = [name for name in found if off[name] == min(off.values())]
        if len(found) > 1:
            raise InputError(
                f"which is the {standard}: {' or '.join(found)}? Drop the others, or take their "
                "standard_name off."
            )
        if found:
            return found[0]
    return None


def _fluxes(air: Air, into: Sequence[str], out: Sequence[str], unit: str) -> Fluxes:
    """The fluxes in and out, those given or all that the law asks for, and what is to be said."""
    given: list[list[Given]] = [listed(air.said.inflow), listed(air.said.outflow)]
    if not any(map(len, given)):
        found = {each: air.below(each) for each in (*into, *out)}
        if lacking := [each.split()[0] for each, name in found.items() if name is None]:
            beside = [name for name in found.values() if name]
            unused = f"; {', '.join(beside)} alone would not do" if beside else ""
            ways = "; `inflow` and `outflow` name others"
            return [], [], f"no fluxes counted, for want of {', '.join(lacking)}{unused}{ways}"
        given = [[str(found[each]) for each in part] for part in (into, out)]
    sides = zip(("inflow", "outflow"), given, strict=True)
    inflow, outflow = ([air.flux(each, side, unit) for each in part] for side, part in sides)
    text = [f"+ {rate.name}" for rate in inflow] + [f"- {rate.name}" for rate in outflow]
    return inflow, outflow, f"fluxes: {' '.join(text)}"


def _said(array: xr.DataArray, unit: str | None, description: str) -> xr.DataArray:
    return array.rename(None).assign_attrs(units=unit, description=description)


def _moves(name: str, held: Sequence[str]) -> str:
    return f"moves {name}" + (f"; held fixed: {', '.join(held)}" if held else "")
