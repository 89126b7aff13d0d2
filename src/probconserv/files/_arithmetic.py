"""Areas as arithmetic of what a file holds: "e1t*e2t", "1/(pm*pn)", "DX*DY/MAPFAC_M**2".

It is read as Python reads an expression: numbers, names, + - * / ** and brackets, nothing else.
Names are those of variables, else of global attributes. Units go the way of the numbers: m times m
is m2. A name without a unit leaves that of the result unknown.
"""

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from ..support.errors import InputError
from ._attributes import conversion, per, power, product, units
from ._read import OUTER

Values = npt.NDArray[np.float64]

LONGEST, HIGHEST = 400, 9  # signs, powers
SIGNS = re.compile(r"[-+*/()]")
RULE = (
    "Arithmetic has numbers, names, + - * / and brackets, and ** with a number from "
    f"-{HIGHEST} to {HIGHEST}; names with other signs stand in quotes"
)
WRF, IN_METRES = "MAP_PROJ", ("DX", "DY")  # what marks a file of WRF, and its lengths


def is_arithmetic(text: object) -> bool:
    """Whether a name that no variable has is to be calculated."""
    return isinstance(text, str) and ":" not in text and bool(SIGNS.search(text))


def attributes_of(dataset: xr.Dataset) -> dict[str, float]:
    """The global attributes that are one number, those of the groups around among them."""
    found = {**dataset.encoding.get(OUTER, {}), **dataset.attrs}
    plain = {str(name): np.squeeze(value) for name, value in found.items()}
    return {name: float(v) for name, v in plain.items() if v.dtype.kind in "iuf" and not v.ndim}


def names_in(text: str) -> list[str]:
    """The names in it, each once; an error where it cannot be read."""
    noted = _Noted()
    _evaluated(text, noted)
    return list(noted)


def calculated(dataset: xr.Dataset, text: str, place: str = "") -> xr.DataArray:
    """What it gives, lazily where a variable is lazy, with `units` if these are known.

    It is inf where finite numbers give none, as in a division by 0. place: the file, for messages.
    """
    known = attributes_of(dataset)
    leaves, of_name, said = [], {}, []
    if not (names := names_in(text)):
        raise InputError(f"`measure` {text!r} names nothing of the file: give a number or names.")
    for name in names:
        if name not in dataset.variables and name not in known:
            raise InputError(
                f"`measure` {text!r}: no variable or global attribute {name!r} {place or 'here'}. "
                f"{_near(name, text, [*dataset.variables, *known])}"
            )
        is_variable = name in dataset.variables
        leaf = dataset[name].variable if is_variable else xr.Variable((), known[name])
        if leaf.dtype.kind not in "iuf":
            raise InputError(f"`measure` {text!r}: {name!r} holds {leaf.dtype}, not numbers.")
        leaves.append(leaf)
        of_name[name] = units(dataset[name]) if is_variable else ""
        if WRF in known and (name in IN_METRES or (is_variable and leaf.attrs.get("units") == "")):
            of_name[name] = "m" if name in IN_METRES else "1"
            said += [f"{name} in m"] * (name in IN_METRES)
    unit = _evaluated(text, {n: _Quantity(np.ones(()), u or None) for n, u in of_name.items()}).unit
    values = xr.apply_ufunc(
        partial(_calculate, text, of_name), *leaves, dask="parallelized", output_dtypes=[np.float64]
    )
    values = values if isinstance(values, xr.Variable) else xr.Variable((), values)
    lacking = [name for name, its in of_name.items() if not its]
    words = f"{text}, calculated{f' {place}' if place else ''}"
    words += "" if values.dims else ", for every cell"
    words += f" with {' and '.join(said)} as in WRF" if said else ""
    words += f"; its unit is not known: {', '.join(lacking)} without `units`" if lacking else ""
    coords = {name: c for name, c in dataset.coords.items() if set(c.dims) <= set(values.dims)}
    attrs = {"description": words} | ({} if unit is None else {"units": unit})
    return xr.DataArray(values, coords, attrs=attrs)


def _calculate(text: str, of_name: Mapping[str, str], *leaves: Values) -> Values:
    given = [np.asarray(leaf, np.float64) for leaf in leaves]
    named = zip(of_name, given, of_name.values(), strict=True)
    found = _evaluated(text, {name: _Quantity(x, u or None) for name, x, u in named})
    missing = wrong = np.zeros((), bool)
    for each in given:
        missing, wrong = missing | np.isnan(each), wrong | np.isinf(each)
    values = np.where(wrong | ~np.isfinite(found.values), np.inf, found.values)
    return np.where(missing, np.nan, values)


def _near(name: str, text: str, known: list[Any]) -> str:
    """The names that may be meant, as the end of a message."""
    lower = {str(each).lower(): str(each) for each in known}
    close = [*get_close_matches(name.lower(), lower, 3), *get_close_matches(text.lower(), lower, 1)]
    if close:
        return f"Did you mean {' or '.join(repr(lower[each]) for each in dict.fromkeys(close))}?"
    return f"There are: {', '.join(map(str, known)) or 'none'}."


def _unreadable(text: str, rest: str | None) -> InputError:
    where = f" at {rest!r}" if rest else ""
    return InputError(f"`measure` {text!r} cannot be read{where}. {RULE}.")


@dataclass(frozen=True, eq=False)
class _Quantity:
    values: Values
    unit: str | None  # None: not known

    def plus(self, other: "_Quantity", sign: float) -> "_Quantity":
        by = sign * conversion("measure", other.unit, self.unit, "what it is added to").factor
        unit = None if other.unit is None else self.unit
        return _Quantity(self.values + by * other.values, unit)

    def times(self, other: "_Quantity") -> "_Quantity":
        return _Quantity(self.values * other.values, product(self.unit, other.unit))

    def over(self, other: "_Quantity") -> "_Quantity":
        return _Quantity(self.values / other.values, per(self.unit, other.unit))

    def to(self, exponent: float) -> "_Quantity":
        return _Quantity(self.values**exponent, power(self.unit, exponent))


class _Noted(dict[str, _Quantity]):
    """Notes each name that is asked for."""

    def __missing__(self, name: str) -> _Quantity:
        return self.setdefault(name, _Quantity(np.ones(()), None))


def _evaluated(text: str, known: Mapping[str, _Quantity]) -> _Quantity:
    """What arithmetic comes to; an error where it is none."""
    if len(text) > LONGEST:
        raise InputError(f"`measure` must have {LONGEST} signs at most, got {len(text)}. {RULE}.")
    plain = text.strip()
    try:
        tree = ast.parse(plain, mode="eval").body
    except (SyntaxError, ValueError) as error:
        at = getattr(error, "offset", None)
        raise _unreadable(text, plain[at - 1 :] if at else None) from None
    if "#" in plain:  # a comment, which would not count
        raise _unreadable(text, plain[plain.index("#") :])

    def value(node: ast.expr) -> _Quantity:
        match node:
            case ast.Constant(value=str(name)) | ast.Name(id=name):
                return known[name]
            case ast.Attribute():  # a name with a point in it
                return known[ast.unparse(node)]
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                found = value(inner)
                return _Quantity(-found.values, found.unit)
            case ast.BinOp(op=ast.Pow()):
                return value(node.left).to(exponent(node.right))
            case ast.BinOp() if type(node.op) in WAYS:
                return WAYS[type(node.op)](value(node.left), value(node.right))
        return _Quantity(np.asarray(number(node)), "1")

    def number(node: ast.expr) -> float:
        if not isinstance(node, ast.Constant) or type(node.value) not in (int, float):
            raise _unreadable(text, ast.get_source_segment(plain, node))
        return float(str(node.value))  # a whole number may be larger than floats are

    def exponent(node: ast.expr) -> float:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -exponent(node.operand)
        if (found := number(node)) > HIGHEST:
            raise _unreadable(text, ast.get_source_segment(plain, node))
        return found

    with np.errstate(all="ignore"):
        return value(tree)


WAYS: Mapping[type[ast.operator], Callable[[_Quantity, _Quantity], _Quantity]] = {
    ast.Add: lambda one, other: one.plus(other, 1.0),
    ast.Sub: lambda one, other: one.plus(other, -1.0),
    ast.Mult: _Quantity.times,
    ast.Div: _Quantity.over,
}
