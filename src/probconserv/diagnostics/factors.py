"""Factors between common units, and in words: what a total may be off by."""

import math

ALIKE = 0.05  # a factor so near to one between units is named as that
LARGE = 10.0  # the least factor that one number may tell
UNITS = {
    2.54: "inches and cm",
    3.281: "metres and feet",
    3.6: "m/s and km/h",
    10.0: "cm and mm",
    24.0: "days and hours",
    60.0: "minutes and seconds",
    100.0: "m and cm, hPa and Pa, per cent",
    365.25: "years and days",
    1e3: "kg and g, km and m",
    3600.0: "hours and seconds",
    86400.0: "days and seconds",
    1e6: "t and g, square km and square m",
    31557600.0: "years and seconds",
    1e9: "Mt and kg, cubic km and cubic m",
    1e12: "Gt and kg",
    1e15: "Gt and g",
}


def in_digits(size: float) -> str:
    """Three digits, without an exponent."""
    return f"{float(f'{size:.3g}'):g}"


def in_times(factor: float) -> str:
    """As a part of a sentence: "1/1000 of", "60 times"."""
    sign, size = "-" if factor < 0 else "", abs(factor)
    return f"{sign}{in_digits(size)} times" if size >= 0.1 else f"{sign}1/{in_digits(1 / size)} of"


def units_of(factor: float, alike: float = ALIKE) -> str:
    """Units that differ by a factor or its inverse; nothing if no common ones do."""
    size = max(abs(factor), 1 / abs(factor)) if factor else math.inf
    near = min(UNITS, key=lambda known: abs(math.log(known / size)))
    return UNITS[near] if abs(near / size - 1) <= alike else ""


def wrong_by(b: str, factor: float, prior: str, alike: float = ALIKE) -> str:
    """A factor between two things in words, with the units that differ by it."""
    units = units_of(factor, alike)
    said = f"{b} is about {in_times(factor)} what {prior} says, check its units"
    return f"{said} ({units})" if units else said
