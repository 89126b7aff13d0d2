"""What attributes say: units, cell methods, dates; and coordinates in words.

Units are products of words, compared and converted by UDUNITS. A word that UDUNITS does not know
is a unit of its own: "bananas m-2" times "m2" is "bananas".
"""

import math
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import xarray as xr

from ..support.errors import InputError
from ..support.tolerances import SINGLE, UNIT

Array = npt.NDArray[Any]
Labelled = TypeVar("Labelled", xr.Dataset, xr.DataArray)
Words = Mapping[str, int]  # the power of each word

WKT = ("crs_wkt", "spatial_ref")  # attributes of a grid mapping
SILENT = ("", "unknown", "?")
DIMENSIONLESS = {
    *("-", "~", "0-1", "0 - 1", "(0-1)", "(0 - 1)", "none", "no_unit", "dimensionless", "unitless"),
    *("numeric", "fraction", "proportion", "ratio"),
}
READ_AS = {"mb": "mbar", "C": "degC", "Sv": "1e6 m3 s-1"}  # not barn, coulomb and sievert
PROSE = ("of", "as")  # m of water equivalent, day as %Y%m%d.%f
SIGNS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺·⋅", "0123456789-+  ", "{}[]$")
AMOUNT = "[EPTGMkmunµμ]?(?:g|t|mol)"
OF_WHAT = "CO2|CH4|N2O|H2O|O2|O3|CO|SO2|SO4|NO2|NO3|NO|NH3|NH4|Fe|Si|C|N|P|S"
SUBSTANCE = re.compile(rf"({AMOUNT})({OF_WHAT})")  # kgC: kg of a new unit C
SPELLINGS = (  # what people write and what is meant, in this order
    (r"\*\*", "^"),
    (r"(?i)\bdeg(?:ree)?s?\.? k(?![\w^-])", "K"),
    (r"(?i)\bdeg(?:ree)?s?\.? (?:celsius|c)(?![\w^-])", "degC"),
    (r"/\s*\(([^()/]+)\)", lambda found: re.sub(r"(^|[\s.*]+)(?=\w)", "/", found[1])),
    (r"\s+per\s+", "/"),
    (r"(?<=[A-Za-z]) (?=-\d)", ""),
    (rf"\b({AMOUNT}) ({OF_WHAT})(?![\w^-])", r"\1\2"),
)
TERM = re.compile(
    r"(?P<between>[\s.*]*/?\s*)"
    r"(?:(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)(?:\^(?P<to>[+-]?\d{1,2}))?"
    rf"|(?P<word>{AMOUNT}(?:{OF_WHAT})(?![A-Za-z])|(?:[^\W\d]|[%°'])+"
    r"|\((?:[^()]|\([^()]*\))*\))\^?(?P<power>[+-]?\d{1,2})?)(?=[\s*/]|\.(?!\d)|$)"
)
WATER = ". 1 mm of water is 1 kg m-2, 1 m is '1e3 kg m-2': say so with `assume_units`"
HINTS = {
    "total": ", perhaps a mean where a total is meant (then give `average`), or a rate",
    "std": ": a standard deviation has the unit of its variable. Or is it a variance?",
}
NO_LENGTH = re.compile("(months?|years?|yr)$")
METHODS = re.compile(r"((?:[\w.-]+:\s*)+)(\w+)((?:\s+(?:where|within|over)\s+\w+)*)")


def setting(array: xr.DataArray, key: str) -> str:
    """An attribute that xarray may have moved to the encoding; empty where there is none."""
    return str(array.attrs.get(key) or array.encoding.get(key) or "")


def pairs(array: xr.DataArray, key: str) -> dict[str, str]:
    """The names in an attribute such as "area: areacella volume: volcello"."""
    return dict(re.findall(r"(\w+):\s*(\S+)", setting(array, key)))


def cell_methods(array: xr.DataArray, *names: str) -> list[tuple[str, str]]:
    """The methods that are about one of the names, and where, within or over what."""
    text = re.sub(r"\([^)]*\)", " ", setting(array, "cell_methods"))
    own = [m for m in METHODS.findall(text) if set(names) & set(re.findall(r"[\w.-]+", m[0]))]
    return [(method, qualifier.strip()) for _, method, qualifier in own]


def map_of(mapping: xr.DataArray) -> str:
    """The name of a grid mapping."""
    wkt = next((str(mapping.attrs[key]) for key in WKT if key in mapping.attrs), "")
    title = re.match(r'\s*(\w+)\s*[\[(]\s*"([^"]*)', wkt)
    if "grid_mapping_name" in mapping.attrs or title is None:
        return str(mapping.attrs.get("grid_mapping_name"))
    angles = title[1].startswith("GEO") and "BASEGEO" not in wkt  # the base is of a rotated pole
    return "latitude_longitude" if angles else title[2]


def units(array: xr.DataArray) -> str:
    """The unit as the attribute says it; empty where there is none."""
    return str(array.attrs.get("units", "")).strip()


@dataclass(frozen=True)
class Conversion:
    """The factor to another unit, and what the report says of it."""

    factor: float = 1.0
    remarks: tuple[str, ...] = ()


def product(*units: str | None) -> str | None:
    """The unit of a product in the words given, "kg m-2" and "m2" as "kg"; None if one is None."""
    powers: Counter[str] = Counter()
    for unit in units:
        words = words_of(unit)
        if words is None:
            return None
        powers.update(words)
    return " ".join(_term(word, power) for word, power in powers.items() if power) or "1"


def per(unit: str | None, time: str | None) -> str | None:
    """The unit of a rate; None if one is None."""
    words = words_of(time)
    return None if words is None else product(unit, *(_term(w, -n) for w, n in words.items()))


def power(unit: str | None, to: float) -> str | None:
    """The unit of a power; None if it is None, or a word would have a part of a power."""
    words = words_of(unit)
    if words is None or any(n * to % 1 for n in words.values()):
        return None
    return product("1", *(_term(word, int(n * to)) for word, n in words.items() if to))


def conversion(
    argument: str, given: str | None, expected: str | None, of: str, same_zero: bool = True
) -> Conversion:
    """How `argument` becomes what is expected; an error if no factor leads there.

    same_zero: False for differences, which have none: 1 degC is then 1 K.
    """
    ours, theirs = words_of(given), words_of(expected)
    if ours == theirs:
        return Conversion()
    if ours is None or theirs is None:
        lacks = "it" if ours is None else of
        return Conversion(1.0, (f"units of {argument} not compared: {lacks} has none",))
    if wrong := _difference(argument, ours, theirs, same_zero):
        raise InputError(f"`{argument}` is in {given!r}, but {of} is in {expected!r}{wrong}")
    factor = _unit(ours).convert(1.0, _unit(theirs))
    if abs(factor - 1) < UNIT:  # m2 Pa and N
        return Conversion()
    both = sorted({*ours, *theirs})
    notes = [f"{word} is {READ_AS[word]}" for word in both if word in READ_AS]
    why = f" ({', '.join(notes)})" if notes else ""
    said = f"{argument} converted from {given} to {expected}: times {factor:.10g}{why}"
    return Conversion(factor, (said,))


def per_second(argument: str, given: str, of: str) -> Conversion:
    """How a rate becomes one per second where the unit of what it adds to is not known."""
    words = words_of(given) or {}
    clocks = {w: n for w, n in words.items() if n < 0 and _known(w)[0].is_convertible("s")}
    if not clocks and "s-" not in _unit(words).definition:
        raise InputError(
            f"`{argument}` is in {given!r}, which is not per time: no rate. A rate is in a "
            "unit such as 'kg s-1'; of amounts `cell_methods` say 'time: sum'."
        )
    if said := no_length(clocks):
        raise InputError(f"`{argument}` is in {given!r}: {said}")
    found = math.prod(_known(word)[0].convert(1.0, "s") ** n for word, n in clocks.items())
    said = f"units of {argument} not compared: {of} has none"
    if found == 1:
        return Conversion(1.0, (said,))
    return Conversion(found, (said, f"{argument} converted to per second: times {found:.10g}"))


def no_length(words: Words) -> str:
    """What is wrong about months and years among the words; empty without."""
    found = next(filter(NO_LENGTH.match, words), "")
    return f"{found!r} differs in length. Convert it to days or seconds." * bool(found)


def scale(array: xr.DataArray, wanted: str) -> float | None:
    """The factor from the unit of an array to another; None where there is none."""
    try:
        known = words_of(units(array)) is not None
        return conversion("it", units(array), wanted, "that").factor if known else None
    except InputError:
        return None


def factor(array: xr.DataArray, wanted: str) -> float:
    """What leads from the unit of an array to another; an error where nothing does."""
    found = scale(array, wanted)
    if found is None:
        water = of_water(array, wanted)
        said = " (1 m of water is '1e3 kg m-2')." if "kg m-2" in wanted and not water else "."
        raise InputError(
            f"{array.name!r} must be in {wanted}, up to a factor between units; its `units` are "
            f"{array.attrs.get('units', 'missing')!r}. Convert it, or say what they are, as in "
            f"`assume_units={{{str(array.name)!r}: {water or wanted!r}}}`"
            + (" if it is water." if water else said)
        )
    return found


def of_water(array: xr.DataArray, wanted: str) -> str | None:
    """The unit of a depth of water, or of its rate, as a mass per area; None for another unit.

    1 m of water is 1e3 kg m-2, as ECMWF counts it.
    """
    depth = None if "kg m-2" not in wanted else scale(array, wanted.replace("kg m-2", "m"))
    if depth is None:
        return None
    by = 1e3 * depth
    return wanted if by == 1 else f"{'1e3' if by == 1e3 else f'{by:.15g}'} {wanted}"


def in_unit(array: xr.DataArray, wanted: str) -> xr.DataArray:
    """The array in that unit, as float64 without coordinates."""
    by, values = factor(array, wanted), array.variable.astype(np.float64)
    return xr.DataArray(values if by == 1 else by * values, name=array.name)


def words_of(text: str | None) -> Words | None:
    """The powers of the words of a unit; None where it says nothing."""
    plain = str(text or "").split(" since ")[0].translate(SIGNS).strip()
    if plain in SILENT:
        return None
    if plain.lower() in DIMENSIONLESS:
        return {}
    for written, meant in SPELLINGS:
        plain = re.sub(written, meant, plain)
    powers: Counter[str] = Counter()
    end = 0
    while end < len(plain):
        found = TERM.match(plain, end)
        if found is None or (end and not found["between"]) or found["word"] in PROSE:
            return {f"({plain})": 1}  # one word, whatever it is
        sign = -1 if "/" in found["between"] else 1
        powers[found["number"] or found["word"]] += sign * int(found["to"] or found["power"] or 1)
        end = found.end()
    return {word: power for word, power in powers.items() if power and word != "1"}


def _term(word: str, power: int) -> str:
    if power == 1:
        return word
    return f"{word}^{power}" if word[-1].isdigit() else f"{word}{power}"


def _unit(words: Words) -> Any:
    """What UDUNITS knows of a unit, counted from zero."""
    one = _udunits("1")
    return math.prod(((_known(word)[0] * one) ** n for word, n in words.items()), start=one)


def _unknown(words: Words) -> set[tuple[str, int]]:
    """The words that UDUNITS does not know, and their powers."""
    powers: Counter[str] = Counter()
    for word, power in words.items():
        powers[_known(word)[1]] += power
    return {(word, power) for word, power in powers.items() if word and power}


def _zero(words: Words) -> float:
    """Where the scale begins, in K: 273.15 for degC; 0 for degC times J K-1, which has no zero."""
    scales = [word for word in words if _known(word)[0].is_convertible("K")]
    return _known(scales[0])[0].convert(0.0, "K") if [words[w] for w in scales] == [1] else 0.0


@cache
def _known(word: str) -> tuple[Any, str]:
    """What UDUNITS knows of a word, and what it does not: of "kgC" that it is of C."""
    unit = _udunits(READ_AS.get(word, word))
    if unit is not None:
        return unit, ""
    if parts := SUBSTANCE.fullmatch(word):
        return _udunits(parts[1]), f"of {parts[2]}"
    return _udunits("1"), word


@cache
def _udunits(text: str) -> Any:
    """None for what UDUNITS cannot read or multiply: logarithms, dates."""
    import cf_units

    try:
        with cf_units.suppress_errors():
            unit = cf_units.Unit(text)
    except ValueError:
        return None
    is_logarithm = "(re " in unit.definition
    is_date = "@" in unit.definition and not unit.is_convertible("K")
    return None if unit.is_unknown() or unit.is_no_unit() or is_logarithm or is_date else unit


def _difference(argument: str, ours: Words, theirs: Words, same_zero: bool) -> str:
    """Why no factor leads from one to the other, and the way out; empty if one does."""
    if said := no_length(dict({*ours.items()} ^ {*theirs.items()})):
        return f": {said}"
    if words := {word for word, _ in _unknown(ours) ^ _unknown(theirs)}:
        name = argument.split()[-1] if " " in argument else "NAME"
        return (
            f". UDUNITS does not know {' and '.join(map(repr, sorted(words)))}: say what is meant, "
            f"as in assume_units={{{name!r}: 'kg'}} or `--assume-units {name}=kg`."
        )
    ratio = _unit(ours) / _unit(theirs)
    if not ratio.is_dimensionless():  # UDUNITS would convert s to s-1
        water = ratio.is_convertible("kg m-3") or ratio.is_convertible("m3 kg-1")
        return f", another quantity{WATER if water else HINTS.get(argument.split()[0], '')}."
    if same_zero and abs(_zero(ours) - _zero(theirs)) > SINGLE:
        return (
            ": their zeros differ, so that no factor leads from one to the other. Convert one of "
            "them, values and `units`."
        )
    return ""


def is_decoded(times: xr.DataArray) -> bool:
    """Whether it holds dates or durations, not numbers."""
    return times.dtype.kind == "m" or holds_dates(times)


def holds_dates(times: xr.DataArray) -> bool:
    if times.dtype.kind != "O":
        return times.dtype.kind == "M"
    return times.size > 0 and hasattr(times.values.flat[0], "calendar")  # of cftime


def seconds(times: xr.DataArray, start: Any, factor: float = 1.0) -> Array:
    """Dates as seconds since `start`, durations as seconds, numbers times a factor."""
    values = times.values
    if values.dtype.kind in "iuf":
        return np.asarray(values * factor, float)
    try:
        passed = values - start if holds_dates(times) else values
        passed = passed.astype("timedelta64[us]") if passed.dtype.kind == "O" else passed
        return np.asarray(passed / np.timedelta64(1, "s"), float)
    except (TypeError, ValueError):
        raise InputError(
            f"`time`: the dates of {times.name!r} are of another calendar than those of the field, "
            "or missing. Convert them with `convert_calendar` of xarray."
        ) from None


def decoded(data: Labelled) -> Labelled:
    """The same with dates for coordinates, and bounds of them, such as "days since 2000-01-01".

    Units that xarray cannot decode are left as they are.
    """
    within: Any = data if isinstance(data, xr.Dataset) else data.coords
    found: dict[Any, xr.Variable] = {}
    for name, times in data.coords.items():
        if times.dtype.kind in "iuf" and " since " in units(times):
            clock = {key: times.attrs[key] for key in ("units", "calendar") if key in times.attrs}
            both = {n: within[n] for n in (name, times.attrs.get("bounds")) if n in within}
            with suppress(ValueError, OverflowError, TypeError, KeyError):
                found |= {n: _dates(each.variable, clock) for n, each in both.items()}
    if not found:
        return data
    return data.assign(found) if isinstance(data, xr.Dataset) else data.assign_coords(found)


def _dates(times: xr.Variable, clock: Mapping[str, str]) -> xr.Variable:
    """Numbers as dates; clock: the units and the calendar where it says none itself."""
    said = xr.Variable(times.dims, times.data, {**clock, **times.attrs}, times.encoding)
    return xr.coders.CFDatetimeCoder().decode(said).load()


def shown(value: Any, digits: int = 6) -> str:
    """A time, or another entry of a coordinate, in words."""
    if isinstance(value, np.timedelta64):
        return f"{value / np.timedelta64(1, 'h'):.{digits}g} h"
    if isinstance(value, float | np.floating):
        return f"{value:.{digits}g}"
    if isinstance(value, np.datetime64) or hasattr(value, "calendar"):
        return re.sub(r"([T ]00:00:00)?(\.0+)?$", "", str(value))
    return str(value)


def entry(array: xr.DataArray, value: Any, digits: int = 6) -> str:
    """An entry of a coordinate in words, with its unit."""
    unit = "" if is_decoded(array) else units(array)
    return f"{shown(value, digits)} {unit}".rstrip()


def place(coords: Mapping[Any, Any], at: Mapping[Any, Any]) -> str:
    """Entries of dimensions in words, by their coordinates where there are some."""
    return ", ".join(
        f"{dim} {shown(coords[dim].values[int(i)]) if dim in coords else f'number {i}'}"
        for dim, i in at.items()
    )


def least_to_most(values: Array) -> str:
    """From the smallest to the largest, in words; one number if they are the same."""
    return " to ".join(dict.fromkeys(f"{end:.3g}" for end in (values.min(), values.max())))
