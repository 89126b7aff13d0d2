"""Messages of the library in the words of the command line: options instead of arguments."""

import re
from collections.abc import Collection

OPTIONS = {"variables": "mean", "path": "out", "target": "out"}  # arguments under another name
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
