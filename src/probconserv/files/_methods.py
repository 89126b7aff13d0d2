"""What a rate is in time: point values, means, amounts or running totals, and between which times.

It is known from the first of these that says so: what the user states, `cell_methods`, a name that
tells hours (total_precipitation_6hr), `GRIB_stepType`, the names of ERA5's means.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import xarray as xr

from ..support.errors import InputError
from ._attributes import cell_methods, of_water, per, scale, setting, units

KINDS = ("point", "mean", "sum", "running")
PLACES = {"end": "ends at", "start": "begins at", "middle": "is centred at"}  # of the interval
STATED = [*KINDS, *(f"{kind}:{place}" for kind in ("mean", "sum") for place in PLACES)]
SAY = "point, mean, sum (mean:end, sum:end if its interval ends at its time), or running"
HOURS = re.compile(r"(\w+?)_(\d+)_?h(?:rs?|ours?)?")  # total_precipitation_6hr
MEANS = re.compile(  # of ERA5, by short name; its long names begin with (time-)mean, avg
    "mtpr|mlspr|mcpr|mer|mper|msr|mcsr|mlssr|mrr|msrr|mssror|msmr|mslhf|msshf|mgws|megwss|mngwss"
    "|m[st]n[sl]wrf(cs)?|ms[du][sl]?wswrf|msdw[sl]wrf(cs)?|mtdwswrf|avg_[a-z0-9]+"
)
NAMED_MEANS = re.compile(r"(time[-_ ])?(mean|average)[-_ ].*[-_ ](rate|flux|fluxes)")
WATER = {  # amounts of water in metres
    *("tp", "e", "sf", "cp", "lsp", "csf", "lsf", "pev", "ro", "sro", "ssro", "smlt", "es"),
    *("total_precipitation", "evaporation", "snowfall", "convective_precipitation"),
    *("large_scale_precipitation", "runoff", "surface_runoff", "sub_surface_runoff", "snowmelt"),
    *("potential_evaporation", "snow_evaporation"),
}
HEAT = {  # amounts of heat, J m-2
    *("slhf", "sshf", "ssr", "str", "tsr", "ttr", "ssrd", "strd", "tisr", "fdir", "ssrc", "strc"),
    *("surface_latent_heat_flux", "surface_sensible_heat_flux", "toa_incident_solar_radiation"),
    *("surface_net_solar_radiation", "surface_net_thermal_radiation"),
    *("top_net_solar_radiation", "top_net_thermal_radiation"),
    *("surface_solar_radiation_downwards", "surface_thermal_radiation_downwards"),
}
ONE_SIGN = (WATER | HEAT) - {"slhf", "sshf", "surface_latent_heat_flux"}
ONE_SIGN -= {"surface_sensible_heat_flux", "pev", "potential_evaporation"}
WATER_METRES = "1e3 kg m-2"  # ECMWF counts water in metres of this density


@dataclass(frozen=True)
class CellMethod:
    """What the values of a rate are in time."""

    kind: str | None  # one of KINDS; None if nothing says
    place: str | None = None  # of PLACES: where the interval is; None: by bounds, or as is usual
    hours: float | None = None  # how long it is; None: as far as the next entry
    why: str = ""  # in words

    @property
    def is_amount(self) -> bool:
        return self.kind in ("sum", "running")


def check_stated(stated: object) -> None:
    """Refuse what is no mapping of names to methods."""
    if not isinstance(stated, Mapping):
        raise InputError(
            f"`assume_method` must be methods by name, {{'tp': 'sum'}}; got {stated!r}."
        )
    for name, method in stated.items():
        if method not in STATED:
            raise InputError(
                f"`assume_method` of `{name}` must be one of {', '.join(STATED)}; got {method!r}."
            )


def method_of(
    dataset: xr.Dataset,
    array: xr.DataArray,
    name: str,
    dims: tuple[str, ...],
    is_lead: bool,
    stated: Mapping[str, str],
) -> CellMethod:
    """What a rate is in time, and what says so.

    name: in messages; dims: names of its time; is_lead: whether that counts from the start of a
    forecast.
    """
    if array.name in stated:
        kind, _, place = stated[str(array.name)].partition(":")
        return CellMethod(kind, place or None, None, "as stated")
    if found := cell_methods(array, "time", *dims):
        *others, (method, qualifier) = found
        if others or qualifier or method not in ("point", "mean", "sum"):
            raise InputError(
                f"`{name}` has cell_methods {setting(array, 'cell_methods')!r}; over time only "
                "point values, means and sums add up, and not those of a climatology. Give such a "
                "rate."
            )
        return CellMethod(method)
    hours = HOURS.fullmatch(str(array.name))
    if hours and hours[1] in WATER | HEAT:
        return CellMethod("sum", "end", float(hours[2]), "by its name")
    is_era5 = _is_era5(dataset, array, is_lead)
    if step := str(array.attrs.get("GRIB_stepType", "")):
        return _of_step(array, name, step, is_era5, is_lead)
    if _names(array) & (WATER | HEAT) and is_era5:
        return _accumulated(array, name, "by its name")
    if any(MEANS.fullmatch(each) or NAMED_MEANS.fullmatch(each) for each in _names(array)):
        return _averaged(array, is_era5, "by its name")
    return CellMethod(None)


def fluxes_of(dataset: xr.Dataset, names: Sequence[str], is_lead: bool) -> str | None:
    """Which variables are amounts or means of an interval by GRIB or by their names, in words."""
    found: dict[str, list[str]] = {}
    for name in names:
        try:
            method = method_of(dataset, dataset[name], name, (), is_lead, {})
        except InputError as error:
            found.setdefault(str(error).split(". ")[0], []).append(name)
        else:
            if method.why:
                found.setdefault(method.why, []).append(name)
    found = {why: each for why, each in found.items() if why != "GRIB_stepType instant"}
    if not found:
        return None
    said = "; ".join(f"{', '.join(each)} ({why})" for why, each in found.items())
    era5 = any("ERA5" in why for why in found)
    sign = ". ERA5 counts downward: evaporation is negative, an `outflow` as rain" if era5 else ""
    return f"{said}, for `inflow` and `outflow`{sign}"


def _of_step(array: xr.DataArray, name: str, step: str, is_era5: bool, is_lead: bool) -> CellMethod:
    """What GRIB says: amounts along the steps of a forecast are counted since its start."""
    why = f"GRIB_stepType {step}"
    if step == "instant":
        return CellMethod("point", None, None, why)
    if step == "avg":
        return _averaged(array, is_era5, why)
    if step == "accum" and is_era5:
        return _accumulated(array, name, why)
    if step == "accum" and is_lead:
        return CellMethod("running", None, None, f"{why} along a forecast")
    since = "does not say since when" if step == "accum" else "is not known here"
    raise InputError(
        f"`{name}` has GRIB_stepType {step!r}, which {since}. Say what it is, as in "
        f"`assume_method={{'{array.name}': 'sum:end'}}`: {SAY}, a total since the start of the run."
    )


def _averaged(array: xr.DataArray, is_era5: bool, why: str) -> CellMethod:
    hours = _hours(array) if is_era5 else None
    return CellMethod("mean", "end", hours, f"{why}, ERA5" if hours else why)


def _accumulated(array: xr.DataArray, name: str, why: str) -> CellMethod:
    if _is_land(array):
        raise InputError(
            f"`{name}` has the grid of ERA5-Land, which counts from 00 UTC of each day. Take "
            f"differences in time, and say `assume_method={{'{array.name}': 'sum:end'}}`."
        )
    return CellMethod("sum", "end", _hours(array), f"{why}, ERA5")


def _names(array: xr.DataArray) -> set[str]:
    """What a variable is called, by itself and by its attributes."""
    keys = ("GRIB_shortName", "short_name", "GRIB_cfVarName", "long_name", "GRIB_name")
    said = [str(array.name), *(str(array.attrs.get(key, "")) for key in keys)]
    return {each.lower().replace(" ", "_") for each in said if each}


def _is_era5(dataset: xr.Dataset, array: xr.DataArray, is_lead: bool) -> bool:
    """Whether the file shows that it is ERA5: by its text, or an ECMWF experiment, no forecast."""
    if "era5" in " ".join(str(each) for each in dataset.attrs.values()).lower():
        return True
    centre = array.attrs.get("GRIB_centre", dataset.attrs.get("GRIB_centre", "ecmf"))
    return not is_lead and centre == "ecmf" and "expver" in {*dataset.variables, *array.coords}


def _is_land(array: xr.DataArray) -> bool:
    """Whether its grid is that of ERA5-Land, of 0.1 degrees."""
    step = array.attrs.get("GRIB_iDirectionIncrementInDegrees", 0.0)
    for c in array.coords.values():
        if str(c.name).lower() in ("longitude", "lon") and c.ndim == 1 and c.size > 1:
            step = abs(float(c[1] - c[0]))
    return abs(step - 0.1) < 1e-3


def _hours(array: xr.DataArray) -> float:
    """ERA5's interval: an hour, of its ensemble three."""
    many = array.sizes.get("number", 1) > 1 or array.attrs.get("GRIB_dataType") in ("em", "es")
    return 3.0 if many else 1.0


def is_water(name: object) -> bool:
    """Whether ECMWF's water in metres has that name."""
    hours = HOURS.fullmatch(str(name))
    return (hours[1] if hours else str(name)) in WATER


def check_running(name: str, array: xr.DataArray, method: CellMethod, gains: xr.Variable) -> None:
    """Refuse differences of a running total with both signs, where it can only rise or only fall.

    gains: sums over the grid. Packing leaves a hundredth of them.
    """
    if method.kind != "running" or not _names(array) & ONE_SIGN:
        return
    least, most = float(gains.min()), float(gains.max())
    if min(-least, most) > 0.01 * max(-least, most):
        raise InputError(
            f"`{name}` both rises and falls in time, so that it is no total since the start of the "
            f"run ({method.why}). If it is the amount since the time before, as in ERA5, say "
            f"`assume_method={{'{array.name}': 'sum:end'}}`."
        )


def in_mass(dataset: xr.Dataset, array: xr.DataArray, amount: str | None) -> xr.DataArray:
    """ERA5's metres of water as kg m-2, where an amount is in that; anything else as it is."""
    if amount is None or not _converts(amount, "kg m-2"):
        return array
    metres = units(array) in ("m", "m of water equivalent", "m of water")
    if not (metres and _names(array) & WATER and _is_era5(dataset, array, False)):
        return array
    return array.assign_attrs(units=WATER_METRES)


def check_unit(
    name: str, array: xr.DataArray, method: CellMethod, amount: str | None, clock: str | None
) -> None:
    """Refuse an amount in place of a rate, and the other way round, with the way out."""
    rate = per(amount, clock)
    if amount is None or rate is None or not units(array):
        return
    wanted, other = (amount, rate) if method.is_amount else (rate, amount)
    water = of_water(array, "kg m-2") if _converts(amount, "kg m-2") else None
    if scale(array, wanted) is not None or not (scale(array, other) is not None or water):
        return
    said, called = f"`{name}` is in {units(array)!r}", str(array.name)
    if method.is_amount and not water:
        raise InputError(
            f"{said}, a rate, and is taken as an amount ({method.why or 'time: sum'}). Say "
            f"`assume_method={{'{called}': 'mean'}}` or 'point' if it is a rate."
        )
    ways = []
    if not method.is_amount:
        said += f", an amount, where a rate in {rate} is expected"
        choices = {
            "sum:end": "the amount since the time before",
            "sum:start": "until the next",
            "running": "since the start of the run",
        }
        if "ACCUMULATED" in str(array.attrs.get("description", "")):  # of WRF, whose run it is
            choices = {"running": f"what came {choices.pop('running')}"} | choices
        (first, what), *rest = choices.items()
        others = "; ".join(f"{method}: {when}" for method, when in rest)
        ways.append(f"If it is {what}, say `assume_method={{'{called}': '{first}'}}` ({others}).")
    if water:
        said += "" if ways else f", where {amount} is expected"
        ways.append(f"As water it is in `assume_units={{'{called}': '{water}'}}`.")
    raise InputError(f"{said}. {' '.join(ways)}")


def _converts(unit: str, wanted: str) -> bool:
    return scale(xr.DataArray(0.0, attrs={"units": unit}), wanted) is not None
