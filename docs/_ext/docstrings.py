"""Docstrings are plain text with `names` in backticks; numpydoc reads reStructuredText.

So stars, bars and underscores outside of backticks are made literal, and indented formulas of the
running text become literal blocks.
"""

import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import inspect

from probconserv import api, diagnostics, errors, fields, laws

CODE = re.compile(r"(``[^`]+``|`[^`]+`)")
UNDERLINE = re.compile(r"-{3,}\s*$")
ROOMS = (diagnostics, errors, fields, laws)  # one level down
PUBLIC = {
    name: f"{room.__name__}.{name}"
    for room in ROOMS
    for name in dir(room)
    if getattr(getattr(room, name), "__module__", "").startswith("probconserv")
} | {name: f"probconserv.{name}" for name in vars(api) if not name.startswith("_")}


def escaped(line: str) -> str:
    """The line, with links to public names, and nothing else that would be markup."""
    parts = CODE.split(line)
    parts[::2] = [re.sub(r"[*|]|(?<=\w)_(?!\w)", r"\\\g<0>", part) for part in parts[::2]]
    parts[1::2] = [_code(part.strip("`")) for part in parts[1::2]]
    return "".join(parts)


def _code(text: str) -> str:
    return f":py:obj:`{text} <{PUBLIC[text]}>`" if text in PUBLIC else f"``{text}``"


def _announced(lines: list[str]) -> bool:
    """Whether the text before says that a literal block follows."""
    return next((line for line in reversed(lines) if line.strip()), "").endswith("::")


def converted(lines: list[str]) -> list[str]:
    """All lines of a docstring."""
    done: list[str] = []
    running, formula, example = True, False, False
    for i, line in enumerate(lines):
        if i + 1 < len(lines) and UNDERLINE.match(lines[i + 1]):
            running = line.strip() in ("Notes", "Examples")
        indented, blank = line.startswith("    "), not line.strip()
        example = not blank and (example or line.lstrip().startswith(">>>"))
        if formula and not indented and not blank:
            formula = False
        if running and indented and not formula and not example and (not i or not lines[i - 1]):
            done += [] if _announced(done) else ["::", ""]
            formula = True
        done.append(line if formula or example else escaped(line))
    return done


def process(
    app: Sphinx, what: str, name: str, found: object, options: object, lines: list[str]
) -> None:
    lines[:] = converted(lines)


def arguments(
    app: Sphinx, what: str, name: str, found: Any, options: object, said: str, returns: str
) -> tuple[str, str] | None:
    """As one writes them; those of `__init__`, where a class lets everything through to it."""
    if not said:
        return None
    if what == "class" and said.startswith("(*args"):
        given = inspect.signature(found.__init__, bound_method=True)
        said = inspect.stringify_signature(given, show_annotation=False)
    said = re.sub(r"<class '[\w.]*?(\w+)'>", r"\1", said)
    said = re.sub(r"<factory>|<function <lambda>[^>]*>", "...", said)
    said = re.sub(r"<(?:built-in method|function) (\w+) [^>]*>", r"\1", said)
    return re.sub(r"mappingproxy\((.*?)\)", r"\1", said), returns


def is_entry_of_tuple(
    app: Sphinx, kind: str, name: str, member: object, skip: bool, options: object
) -> bool | None:
    """Entries of a named tuple say nothing of their own: the section Attributes has them."""
    return True if str(member.__doc__).startswith("Alias for field number") else None


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process, priority=100)
    app.connect("autodoc-process-signature", arguments)
    app.connect("autodoc-skip-member", is_entry_of_tuple)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
