"""Formulas as MathML, written when the site is built: no script and no font is needed."""

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


def _written(text: str, display: bool) -> str:
    return str(latex2mathml.tex2mathml(text, as_block=display))


def inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(_written(node.astext(), display=False))
    raise nodes.SkipNode


def block(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(f'<div class="formula">{_written(node.astext(), display=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
