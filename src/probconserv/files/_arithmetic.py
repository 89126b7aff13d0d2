"""Areas as arithmetic of what a file holds: "e1t*e2t", "1/(pm*pn)", "DX*DY/MAPFAC_M**2".

sum      products with + or - between them
product  powers with * or / between them, each maybe with a - before it
power    a value, maybe with ** and a number
value    a number, a name, or a sum in brackets

Names are those of variables, else of global attributes. Units go the way of the numbers: m times m
is m2. A name without a unit leaves that of the result unknown.
"""

import re
from collections.abc import Mapping
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

LONGEST, DEEPEST, HIGHEST = 400, 20, 9  # signs, brackets in brackets, powers
SIGNS = re.compile(r"[-+*/()]")
TOKEN = re.compile(
    r"(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[^\W\d][\w.]*|'[^']+'|\"[^\"]+\")|(?P<sign>\*\*|[-+*/()])"
)
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
    names = dict.fromkeys(token for kind, token in _tokens(text) if kind == "name")
    _Reader(text, dict.fromkeys(names, _Quantity(np.ones(()), None))).result()
    return list(names)


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
    whole = _Reader(text, {name: _Quantity(np.ones(()), u or None) for name, u in of_name.items()})
    unit = whole.result().unit
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
    found = _Reader(text, {name: _Quantity(x, u or None) for name, x, u in named}).result()
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


def _tokens(text: str) -> list[tuple[str, str]]:
    """Kinds and texts: numbers, names without quotes, signs."""
    if len(text) > LONGEST:
        raise InputError(f"`measure` must have {LONGEST} signs at most, got {len(text)}. {RULE}.")
    found, end = [], 0
    while rest := text[end:].strip():
        token = TOKEN.match(rest)
        if token is None:
            raise _unreadable(text, rest)
        kind = str(token.lastgroup)
        found.append((kind, token[0].strip("'\"") if kind == "name" else token[0]))
        end = len(text) - len(text[end:].lstrip()) + token.end()
    return found


def _unreadable(text: str, rest: str) -> InputError:
    where = f"at {rest!r}" if rest else "where it ends"
    return InputError(f"`measure` {text!r} cannot be read {where}. {RULE}.")


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


class _Reader:
    """Reads arithmetic from left to right, and calculates on the way."""

    def __init__(self, text: str, known: Mapping[str, _Quantity]) -> None:
        self.text, self.known = text, known
        self.tokens, self.at, self.depth = _tokens(text), 0, 0

    def result(self) -> _Quantity:
        with np.errstate(all="ignore"):
            found = self.sum()
        if self.at < len(self.tokens):
            raise self.wrong()
        return found

    def sum(self) -> _Quantity:
        left = self.product()
        while sign := self.take("+", "-"):
            left = left.plus(self.product(), 1.0 if sign == "+" else -1.0)
        return left

    def product(self) -> _Quantity:
        left = self.signed()
        while sign := self.take("*", "/"):
            left = left.times(self.signed()) if sign == "*" else left.over(self.signed())
        return left

    def signed(self) -> _Quantity:
        sign = self.sign()
        value = self.value()
        if self.take("**"):
            exponent = self.sign() * self.number()
            if abs(exponent) > HIGHEST:
                raise self.wrong(back=1)
            value = value.to(exponent)
        return _Quantity(sign * value.values, value.unit)

    def value(self) -> _Quantity:
        if self.take("("):
            self.depth += 1
            if self.depth > DEEPEST:
                raise InputError(f"`measure` has brackets in brackets, {DEEPEST} deep at most.")
            found = self.sum()
            self.depth -= 1
            if not self.take(")"):
                raise self.wrong()
            return found
        kind, token = self.here
        if kind == "name":
            self.at += 1
            return self.known[token]
        return _Quantity(np.asarray(self.number()), "1")

    def number(self) -> float:
        kind, token = self.here
        if kind != "number":
            raise self.wrong()
        self.at += 1
        return float(token)

    def sign(self) -> float:
        sign = 1.0
        while self.take("-"):
            sign = -sign
        return sign

    def take(self, *signs: str) -> str:
        """The sign that stands here, if it is one of these; then what follows is next."""
        kind, token = self.here
        if kind != "sign" or token not in signs:
            return ""
        self.at += 1
        return token

    @property
    def here(self) -> tuple[str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "")

    def wrong(self, back: int = 0) -> InputError:
        return _unreadable(self.text, " ".join(token for _, token in self.tokens[self.at - back :]))
