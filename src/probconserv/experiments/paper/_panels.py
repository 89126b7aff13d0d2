"""Figures as SVG that stands inside a page: one picture for each panel, so that they flow."""

import io
import re
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.gridspec import GridSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (3.0, 2.5)  # inches; a text of 10 points is then no smaller on a phone than the page's
AS_TEXT: Any = {"svg.fonttype": "none", "svg.hashsalt": "probconserv"}
OF_A_FILE = "|".join(
    (
        r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>|<defs>\s*<style.*?</defs>",
        r' (?:xmlns(?::\w+)?|version)="[^"]*"',
        r'(?<=<g) id="[\w.]+"',  # nothing refers to a group
        r"; font-family: [^;\"]*",
        r' transform="rotate\(-0 [^"]*"',
    )
)
LONE_GROUP = r"<g>\s*(<[^g][^<]*/>)\s*</g>"
INK = "currentColor"  # black on a light page, white on a dark one


def panels(figure: "Figure", name: str, size: tuple[float, float] = SIZE) -> list[str]:
    """Each panel as an SVG element. Takes the figure apart: save it before.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        In the layout "constrained".
    name : str
        Begins the ids inside; no other picture of the page has it.
    size : pair of float
        Of a panel, in inches.

    Returns
    -------
    list of str
        In the order of the panels. Legends are left out: the page has one for all.
    """
    _complete(figure.axes)
    for shared in (*figure.texts, *figure.legends):
        shared.remove()
    figure.set_size_inches(size)
    figure.set_layout_engine("constrained")
    for panel in figure.axes:
        panel.set_subplotspec(GridSpec(1, 1, figure=figure)[0, 0])
    drawn = []
    for i, panel in enumerate(figure.axes):
        for other in figure.axes:
            other.set_visible(other is panel)
        svg = io.StringIO()
        with matplotlib.rc_context(AS_TEXT):
            figure.savefig(svg, format="svg", transparent=True)
        drawn.append(_inside_a_page(svg.getvalue(), f"{name}-{i}-"))
    return drawn


def _complete(axes: list["Axes"]) -> None:
    """Gives every panel the labels that it shared with its neighbours."""
    for panel in axes:
        panel.set_xlabel(panel.get_xlabel() or axes[-1].get_xlabel())
        panel.set_ylabel(panel.get_ylabel() or axes[0].get_ylabel())
        panel.tick_params(labelleft=True, labelbottom=True)
        if legend := panel.get_legend():
            legend.remove()


def _inside_a_page(svg: str, prefix: str) -> str:
    """Without what only a file needs, in the font and the ink of the page, with ids of its own."""
    svg = re.sub(OF_A_FILE, "", svg, flags=re.DOTALL)
    svg = re.sub(r'(?<=^<svg) width="[^"]*" height="[^"]*"', "", svg.strip())
    svg = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{prefix}", svg)
    svg = re.sub(r' (?:d|x|y)="[^"]*"', lambda places: _shorter(places[0]), svg)
    svg = svg.replace("#000000", INK)
    for _ in range(2):
        svg = re.sub(LONE_GROUP, r"\1", svg)
    return re.sub(r"\s*\n\s*", "\n", svg)


def _shorter(places: str) -> str:
    """A tenth of a point is enough."""
    places = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}", places)
    return re.sub(r"\s+", " ", places)
