"""What is written on the command line, as values; messages in its words; tables of its width.

Messages of the library speak of arguments; here they speak of options.
"""

import re
import tomllib
from collections.abc import Collection, Iterable
from dataclasses import fields
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from ..support.errors import InputError

if TYPE_CHECKING:
    from ..files import FileLaw
    from ..files._law import Recipe

OPTIONS = {"variables": "mean", "path": "out", "target": "out"}  # arguments under another name
KEYS = {"mean": "variables", "law": "recipe"}  # of a file of laws, by the option
NAMED = re.compile(r"`(?P<name>[a-z_]+)(?:=(?P<value>[^`]+))?`")
ENTRY = re.compile(r"'([^']+)': ")


def in_options(text: str, options: Collection[str]) -> str:
    """The text with `name=value` as `--name value` for these options.

    >>> in_options("`measure=1` means plain sums, `overwrite=True` ...", ["measure", "overwrite"])
    '`--measure 1` means plain sums, `--overwrite` ...'
    """

    def option(found: re.Match[str]) -> str:
        name, value = OPTIONS.get(found["name"], found["name"]), found["value"]
        if name not in options:
            return found[0]
        said = f"--{name.replace('_', '-')}"
        if value is None or value == "True":
            return f"`{said}`"
        if value.startswith("{"):  # std={'u': 1, 'v': 2} is --std u=1 v=2
            value = ENTRY.sub(r"\1=", value.strip("{}")).replace(",", "")
        return f"`{said} {value}`"

    return NAMED.sub(option, re.sub(r"`path` (?=[/'])", "", text))


def laws_in(path: Path) -> "list[FileLaw | Recipe]":
    try:
        tables = tomllib.loads(path.read_text()).get("law")
    except OSError as error:
        raise InputError(f"`--laws` {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"`--laws` {path} is no TOML file: {error}.") from None
    if not isinstance(tables, list) or not tables or not all(isinstance(t, dict) for t in tables):
        raise InputError(f"`--laws` {path} has no table [[law]].")
    return [_law(table, path) for table in tables]


def _law(table: dict[str, Any], path: Path) -> "FileLaw | Recipe":
    """The law in a table, or the recipe that it names."""
    from ..files import RECIPES, FileLaw
    from ..support.checks import choice

    rest = dict(table)
    recipe = rest.pop("recipe", None)
    what, needed, known = "a law", ["variables", "over"], [field.name for field in fields(FileLaw)]
    if recipe is not None:
        choice("recipe", recipe, RECIPES)
        what, needed, known = f"the recipe {recipe}", [], options_of(recipe)
    for key in rest:
        if key not in known:
            meant = f", {KEYS[key]!r} here" if key in KEYS else ""
            has = ", ".join(known if recipe is not None else [*known, "or a recipe"])
            raise InputError(f"`--laws`: {what} has no {key!r}{meant}; it has {has}.")
    for key in needed:
        if key not in rest:
            raise InputError(f"`--laws`: a law in {path} has no {key!r}, and no 'recipe' either.")
    return FileLaw(**rest) if recipe is None else partial(RECIPES[recipe], **rest)


def options_of(recipe: str) -> list[str]:
    """What a law of the air can be told."""
    from ..files import RECIPES

    return [name for name in signature(RECIPES[recipe]).parameters if name != "dataset"]


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


def number(text: str | None) -> float | str | None:
    """A number if it is one, else the name of a variable; None if nothing is given."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def narrow(title: str, headings: Iterable[str]) -> Table:
    """A table for 80 columns: of names, and numbers beside them."""
    style: Any = {"title_justify": "left", "box": box.SIMPLE_HEAD, "show_edge": False}
    table = Table(title=title, padding=(0, 1, 0, 0), **style)
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i else "left", no_wrap=not i)
    return table
