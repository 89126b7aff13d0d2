"""Directives of the reference: `names` of a module, with a table first; `help` of a command.

References to names that are nowhere on the site stay plain code: a docstring may put any word in
backticks, and a signature may name a type of another library.
"""

import contextlib
import inspect
import io
import os
from importlib import import_module

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective

from probconserv.cli import main


def looked_up(name: str) -> object:
    """What a full name such as `probconserv.problems.Stefan` stands for."""
    module, _, last = name.rpartition(".")
    return getattr(import_module(module), last)


def directive_of(name: str) -> str:
    found = looked_up(name)
    if isinstance(found, type):
        return "autoexception" if issubclass(found, BaseException | Warning) else "autoclass"
    return "autofunction" if inspect.isroutine(found) else "autodata"


class Names(SphinxDirective):
    """The argument is a module, the content names in it, one for each line."""

    has_content = True
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        names = [f"{self.arguments[0]}.{line.strip()}" for line in self.content if line.strip()]
        table = [".. autosummary::", "   :nosignatures:", "", *(f"   ~{name}" for name in names)]
        entries = [line for name in names for line in ("", *_entry(name))]
        text = ["````{eval-rst}", *table, *entries, "````"]  # the pages are Markdown
        return self.parse_text_to_nodes("\n".join(text))


def _entry(name: str) -> list[str]:
    directive = directive_of(name)
    return [f".. {directive}:: {name}", *(["   :no-value:"] * (directive == "autodata"))]


class Help(SphinxDirective):
    """What `probconserv COMMAND --help` prints."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        os.environ["COLUMNS"] = "90"
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
            main([self.arguments[0], "--help"])
        lines = [line.rstrip() for line in out.getvalue().strip().splitlines()]
        return [nodes.literal_block(text="\n".join(lines), language="text")]


def plain(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: nodes.Element
) -> nodes.Element | None:
    return contnode if node.get("refdomain") == "py" else None


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("names", Names)
    app.add_directive("help", Help)
    app.connect("missing-reference", plain, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
