"""How the site is built: `make docs`. Nothing here or in the pages needs a network."""

import sys
from pathlib import Path

from sphinx.application import Sphinx

import probconserv

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

from docstrings import PUBLIC  # noqa: E402  (found in _ext)
from inventories import written  # noqa: E402

project = "probconserv"
author = "the probconserv contributors"
copyright = author
release = version = probconserv.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "numpydoc",
    "sphinx_design",
    "sphinx_copybutton",
    "mathml",
    "docstrings",
    "reference",
]
exclude_patterns = ["_ext", "play"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "attrs_inline"]
myst_heading_anchors = 4
nitpicky = True

html_theme = "pydata_sphinx_theme"
html_title = "probconserv"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "probconserv"},
    "navigation_with_keys": False,
    "show_prev_next": True,
    "show_toc_level": 2,
    "header_links_before_dropdown": 8,
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}
html_sidebars = {name: [] for name in ("index", "start", "play", "errors", "glossary", "citing")}

autodoc_typehints = "none"  # the section Parameters has them, in words
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90
autosummary_generate = False
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
numpydoc_xref_param_type = True
numpydoc_xref_ignore = "all"  # but for these
numpydoc_xref_aliases = {
    "Tensor": "torch.Tensor",
    "Dataset": "xarray.Dataset",
    "DataArray": "xarray.DataArray",
    "Path": "pathlib.Path",
} | {name: full for name, full in PUBLIC.items() if name[0].isupper()}

intersphinx_mapping = written(HERE / "_ext" / "inventories.txt", HERE.parent / "build")
copybutton_prompt_text = ">>> |... "
copybutton_prompt_is_regexp = True


def setup(app: Sphinx) -> None:
    app.connect("build-finished", without_template)


def without_template(app: Sphinx, error: Exception | None) -> None:
    """The theme copies a template of its own into the site: nobody reads it there."""
    (Path(app.outdir) / "_static" / "webpack-macros.html").unlink(missing_ok=True)
