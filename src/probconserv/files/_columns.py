"""The columns of air of a dataset, for the laws of the atmosphere: their variables, mass, fluxes.

Variables are found by their standard names, else by names that models use.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import xarray as xr

from ..support.errors import InputError
from ._attributes import decoded, factor, in_unit, pairs, product, scale, setting, units
from ._conventions import angle, is_pressure
from ._grid import FileGrid
from ._law import FileLaw, Given, assumed, listed, match, taken
from ._methods import WATER_METRES, check_unit, in_mass, is_water
from ._repeated import ONCE
from ._time import method_in, tells_time, time_of
from ._vertical import FileLayers, formula_layers, pressure_layers
from ._weights import cell_measure

Flux = str | xr.DataArray | Sequence[str | xr.DataArray]  # per area; names, or arrays

NONE: Mapping[str, str] = MappingProxyType({})
HUMIDITY, TEMPERATURE = "specific_humidity", "air_temperature"
PRESSURE = "surface_air_pressure"
WINDS = ("eastward_wind", "northward_wind")
CLOUDS = tuple(f"mass_fraction_of_cloud_{each}_in_air" for each in ("liquid_water", "ice"))
UNITS = {"kg": ("kg m-2", "kg m-2 s-1"), "J": ("J m-2", "W m-2")}  # of amounts and of rates
KNOWN = {  # the units of variables, and how those are called that do not say their standard name
    HUMIDITY: ("kg kg-1", "specific_humidity", "hus", "q", "Q"),
    TEMPERATURE: ("K", "temperature", "ta", "t", "T"),
    PRESSURE: ("Pa", "surface_pressure", "ps", "sp", "PS"),
    WINDS[0]: ("m s-1", "u_component_of_wind", "ua", "u", "U"),
    WINDS[1]: ("m s-1", "v_component_of_wind", "va", "v", "V"),
    CLOUDS[0]: ("kg kg-1", "specific_cloud_liquid_water_content", "clw", "clwc", "CLDLIQ"),
    CLOUDS[1]: ("kg kg-1", "specific_cloud_ice_water_content", "cli", "ciwc", "CLDICE"),
    "surface_geopotential": ("m2 s-2", "geopotential_at_surface", "phis", "PHIS"),
}


@dataclass(frozen=True, eq=False)
class AirColumns(FileGrid):
    """The columns of air in which a variable lies."""

    levels: xr.DataArray  # the coordinate that says where they are
    asked: FileLaw  # what a user says where the dataset does not tell

    @cached_property
    def over(self) -> tuple[str, ...]:
        """The dimension of levels, and those of the area."""
        if not (flat := self.area_dims(self.horizontal(self.data.dims))):
            raise InputError(
                f"`{self.asked.name}` needs latitudes and longitudes of {self.name!r}."
            )
        return (str(self.levels.dims[0]), *flat)

    @cached_property
    def layers(self) -> FileLayers:
        found = formula_layers(self, self.over[0])
        if found is None:
            found = pressure_layers(self, self.levels, self.below(PRESSURE))
        if found.units != "kg m-2":
            raise InputError(
                f"`{self.asked.name}` needs levels of pressure; those of {self.name!r} are heights."
            )
        return found

    @cached_property
    def area(self) -> xr.DataArray:  # without coordinates
        asked = self.asked
        found = cell_measure(self.dataset, self.name, self.over[1:], asked.measure, asked.radius)
        if asked.measure is not None and scale(found, "m2") is None:
            raise InputError(
                f"`measure` must give areas for `{asked.name}`, in m2 or the like; its unit is "
                f"{units(found) or 'not known'}: {found.description}. Say the units of variables "
                "of the file itself with `assume_units`; those of another file must stand in it."
            )
        return described(in_unit(found, "m2"), "m2", found.description).assign_attrs(_once(found))

    @property
    def mass(self) -> xr.DataArray:
        """Of every cell, kg."""
        where = f"{self.area.description}; times {self.layers.where}"
        found = described(self.layers.thickness * self.area, "kg", where)
        return found.assign_attrs(_once(self.area))

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

    def rate(self, given: Given, argument: str, unit: str) -> tuple[xr.DataArray, str, str]:
        """A flux per area, or an amount, that fits; the unit that it is wanted in, and a remark."""
        amount, rate = UNITS[unit]
        plain = decoded(taken(self.dataset, given, argument))
        found = in_mass(self.dataset, plain, amount)
        name, time = f"{argument} {found.name}", time_of(self.data, self.asked.time, self.over)
        match(found, self.data, name, [str(dim) for dim in found.dims if dim not in self.data.dims])
        method = method_in(self.dataset, found, name, time.dim, self.asked.assume_method)
        check_unit(name, found, method, amount, "s")
        wanted = amount if method.is_amount else rate
        factor(found, wanted)
        said = f"{found.name}" + f" (1 m of water is {WATER_METRES})" * (found is not plain)
        return found, wanted, said

    def summed(self, rate: xr.DataArray, wanted: str, said: str) -> xr.DataArray:
        """What `rate` gives, as the sum over all of the area."""
        total = (in_unit(rate, wanted) * self.area).sum(self.area.dims, skipna=False).compute()
        if total.isnull().any():
            raise InputError(
                f"{rate.name!r} has missing values, so that its sum over the area is not known. "
                "Fill them, or drop the variable: then the total stays that of the start."
            )
        coords = {dim: rate[dim].variable for dim in total.dims if dim in rate.coords}
        summed = xr.DataArray(total.variable, coords, name=rate.name, attrs=rate.attrs)
        return summed.assign_attrs(units=product(wanted, "m2"), description=said)


def columns(dataset: xr.Dataset, standard_name: str, recipe: str, **told: Any) -> AirColumns:
    """The columns of the variable that a recipe starts from; told: what a `FileLaw` is told."""
    asked = FileLaw(standard_name, "levels", name=recipe, **told)
    dataset = assumed(dataset, [asked])
    found = {name: _levels(FileGrid(dataset, str(name))) for name in dataset.data_vars}
    levels = {str(name): c for name, c in found.items() if c is not None}
    name = _find(dataset, standard_name, lambda each: each.name in levels)
    if name is not None and not units(dataset[name]):
        way = _lacking(dataset, name, asked)
        raise InputError(f"`{recipe}`: {name!r} has no `units`. Say what they are with {way}.")
    if name is None:
        there = _find(dataset, standard_name, lambda each: each.ndim > 2)
        lack = f", as those of {there!r} have not" if there else ""
        raise InputError(
            f"`{recipe}` needs a variable with the standard_name {standard_name} (or called "
            f"{' or '.join(KNOWN[standard_name][2:])}) on levels whose coordinate has "
            f"formula_terms or the units of a pressure{lack}. Copy the coordinate with its terms "
            f"from the file that has them, or say units with {_lacking(dataset, there, asked)}."
        )
    return AirColumns(dataset, name, levels[name], asked)


def _lacking(dataset: xr.Dataset, there: str | None, asked: FileLaw) -> str:
    """The option with usual units for all that has none: levels, and variables by usual names."""
    water = [*listed(asked.inflow), *listed(asked.outflow)]
    usual = {name: unit for unit, *names in KNOWN.values() for name in names}
    usual |= {each: WATER_METRES for each in water if isinstance(each, str) and is_water(each)}
    silent = [str(name) for name in dataset.variables if not units(dataset[name])]
    found = {name: usual[name] for name in silent if name in usual and dataset[name].ndim}
    for dim in () if there is None else dataset[there].dims:
        c = dataset[dim]
        plain = dim in silent and c.dtype.kind in "iuf" and not (angle(c) or tells_time(c))
        if plain and c.size > 1 and c.min() > 0 and 100 < c.max() <= 1.1e5:  # at most 1100 hPa
            found = {str(dim): "hPa" if c.max() <= 1100 else "Pa", **found}
    entries = ", ".join(f"{name!r}: {unit!r}" for name, unit in found.items())
    return f"`assume_units={{{entries}}}`, if these are right" if found else "`assume_units`"


def _levels(grid: FileGrid) -> xr.DataArray | None:
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
        found = found or [name for name in KNOWN.get(standard, ())[1:] if name in fields]
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


def _once(weights: xr.DataArray) -> dict[Hashable, str]:
    """What says that cells which come twice count once in them, if it does."""
    return {key: said for key, said in ONCE.items() if weights.attrs.get(key) == said}


def described(array: xr.DataArray, unit: str | None, description: str) -> xr.DataArray:
    return array.rename(None).assign_attrs(units=unit, description=description)
