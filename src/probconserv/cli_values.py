"""What is written on the command line for files, as values: numbers, names, pairs, laws."""

import tomllib
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._errors import InputError

if TYPE_CHECKING:
    from .labelled import Law
    from .labelled._law import Recipe


def laws_in(path: Path) -> "list[Law | Recipe]":
    try:
        tables = tomllib.loads(path.read_text()).get("law")
    except OSError as error:
        raise InputError(f"`--laws` {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"`--laws` {path} is no TOML file: {error}.") from None
    if not isinstance(tables, list) or not tables or not all(isinstance(t, dict) for t in tables):
        raise InputError(f"`--laws` {path} has no table [[law]].")
    return [_law(table, path) for table in tables]


def _law(table: dict[str, Any], path: Path) -> "Law | Recipe":
    """The law in a table, or the recipe that it names."""
    from ._checks import choice
    from .labelled import RECIPES, Law

    rest = dict(table)
    recipe = rest.pop("recipe", None)
    what, needed, known = "a law", ["variables", "over"], [field.name for field in fields(Law)]
    if recipe is not None:
        choice("recipe", recipe, RECIPES)
        what, needed, known = "a recipe", [], ["assume_units"]
    for key in rest:
        if key not in known:
            raise InputError(f"`--laws`: {what} has no {key!r}; it has {', '.join(known)}.")
    for key in needed:
        if key not in rest:
            raise InputError(f"`--laws`: a law in {path} has no {key!r}, and no 'recipe' either.")
    return Law(**rest) if recipe is None else partial(RECIPES[recipe], **rest)


def std(given: list[str] | None) -> Any:
    if not given:
        return None
    if len(given) == 1 and "=" not in given[0]:
        return number(given[0])
    return {name: number(std) for name, std in (pair(text, "std") for text in given)}


def split(names: list[str] | None) -> list[str]:
    """Names that stand apart or are joined by commas."""
    return [name for word in names or () for name in word.split(",") if name]


def pair(text: str, option: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not (name and separator and value):
        raise InputError(f"`--{option}` takes NAME=VALUE pairs; got {text!r}.")
    return name, value


def number(text: str) -> float | str:
    """A number if it is one, else the name of a variable."""
    try:
        return float(text)
    except ValueError:
        return text
