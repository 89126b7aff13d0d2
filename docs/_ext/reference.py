"""Directives of the reference: `names` of a module, with a table first; `help` of a command.

Names in backticks on the other pages become links to it. References to names that are nowhere on
the site stay plain code: a docstring may put any word in backticks.
"""

import contextlib
import io
import os
import re
from importlib import import_module

from docstrings import PUBLIC
from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext import autosummary
from sphinx.util.docutils import SphinxDirective

from probconserv.cli.main import main

WORDS = {"budget", "data", "errors", "fields", "initial", "laws", "linear", "models", "problems"}


def looked_up(name: str) -> object:
    """What a full name such as `probconserv.problems.Stefan` stands for."""
    module, _, last = name.rpartition(".")
    return getattr(import_module(module), last)


def directive_of(name: str) -> str:
    found = looked_up(name)
    if isinstance(found, type):
        return "autoexception" if issubclass(found, BaseException | Warning) else "autoclass"
    return "autofunction"


class Names(SphinxDirective):
    """The argument is a module, the content names in it, one for each line.

    Words after a colon describe what has no docstring, such as a dictionary.
    """

    has_content = True
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        lines = [line.partition(": ") for line in self.content if line.strip()]
        words = {f"{self.arguments[0]}.{name.strip()}": text for name, _, text in lines}
        rows = [f"   ~{name}" for name, text in words.items() if not text]
        table = [".. autosummary::", "   :nosignatures:", "", *rows]
        entries = [line for name, text in words.items() for line in ("", *_entry(name, text))]
        text = ["````{eval-rst}", *table, *entries, "````"]  # the pages are Markdown
        return self.parse_text_to_nodes("\n".join(text))


def _entry(name: str, words: str) -> list[str]:
    if words:
        return [f".. py:data:: {name}", "", f"   {words}"]
    return [f".. {directive_of(name)}:: {name}"]


class Help(SphinxDirective):
    """What `probconserv COMMAND --help` prints."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        os.environ["COLUMNS"] = "90"
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
            main([self.arguments[0], "--help"])
        lines = [line.rstrip() for line in out.getvalue().strip().splitlines()]
        return [nodes.literal_block(text="\n".join(lines), language="text")]


def linked(app: Sphinx, tree: nodes.document) -> None:
    """Code such as `condition`, `pc.project` or `Diagonal(mean, variance)` as a link."""
    if app.env.docname.startswith(("reference/", "develop/")) or "file" in app.env.docname:
        return
    for code in list(tree.findall(nodes.literal)):
        found = re.match(
            r"(pc\.)?(?:(?:diagnostics|errors|fields|laws)\.)?(\w+)(\.\w+)?(\(.*\))?$",
            code.astext(),
        )
        if not found or isinstance(code.parent, nodes.title | nodes.reference | pending_xref):
            continue
        start, name, method, called = found.groups()
        if name in PUBLIC and (start or method or called or name not in WORDS):
            target = f"{PUBLIC[name]}{method or ''}"
            link = pending_xref(
                "", refdomain="py", reftype="obj", reftarget=target, refexplicit=True
            )
            code.replace_self(link)
            link += code


def plain(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: nodes.Element
) -> nodes.Element | None:
    return contnode if node.get("refdomain") == "py" else None


def setup(app: Sphinx) -> dict[str, bool]:
    autosummary.WELL_KNOWN_ABBREVIATIONS += ("Eq.",)  # no end of a sentence
    app.add_directive("names", Names)
    app.add_directive("help", Help)
    app.connect("doctree-read", linked)
    app.connect("missing-reference", plain, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
