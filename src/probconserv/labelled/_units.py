"""Units as UDUNITS writes them; without cf-units, or without units, nothing is compared."""

import importlib
from typing import Any

from .._errors import InputError


def product(*units: str | None) -> str | None:
    """The unit of a product; None if one of them is not known or cannot be read.

    A scale with a zero of its own, such as degrees Celsius, keeps its name and stands first.
    """
    parts = [_unit(unit) for unit in units]
    if any(part is None for part in parts):
        return None
    if _has_zero(parts[0]):
        return f"{units[0]} {product(*units[1:])}"
    whole, *rest = parts
    for part in rest:
        whole = whole * part
    return str(whole)


def check_same(argument: str, given: str | None, expected: str | None, of: str) -> None:
    """Refuse a unit that is not the expected one, with the factor between them."""
    ours, theirs = _unit(given), _unit(expected)
    if ours is None or theirs is None:
        return
    scale = str(expected).split()[0]
    if _has_zero(_unit(scale)) and scale not in str(given).split():
        raise InputError(
            f"`{argument}` is in {given!r}, but {of} is in {expected!r}: the zero of {scale} lies "
            f"elsewhere, so that no factor leads from one to the other. Give a total in "
            f"{expected!r}, or convert the field."
        )
    if ours == theirs:
        return
    raise InputError(
        f"`{argument}` is in {given!r}, but {of} is in {expected!r}{_way_out(ours, theirs)}."
    )


def of_change(unit: str | None) -> str | None:
    """The unit of differences: those of degrees Celsius are kelvins."""
    known = _unit(unit)
    return None if known is None else str(known * _unit("1"))


def _has_zero(unit: Any) -> bool:
    return unit is not None and "@" in unit.definition


def _way_out(ours: Any, theirs: Any) -> str:
    if not ours.is_convertible(theirs):
        return ", another quantity: is it a mean where a total is meant, or a rate"
    return f". Multiply it by {ours.convert(1.0, theirs):.10g} and change its `units`"


def _unit(text: str | None) -> Any:
    """None where nothing can be said."""
    if text is None:
        return None
    try:
        library = importlib.import_module("cf_units")
    except ImportError:
        return None
    try:
        unit = library.Unit(str(text))
    except ValueError:
        return None
    return None if unit.is_unknown() or unit.is_no_unit() or unit.is_time_reference() else unit


def seconds(unit: str | None) -> float | None:
    """Seconds in a unit of time; None for any other."""
    known = _unit(unit or None)
    if known is None or not known.is_convertible("s"):
        return None
    return float(known.convert(1.0, "s"))
