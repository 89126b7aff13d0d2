"""The figures of a cell, from what it kept, and the one over all; as SVG inside a page."""

import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.ticker import LogLocator, NullFormatter

from ... import figures
from ...diagnostics.fronts import FrontPosition
from ...fields.gaussian import Diagonal
from ...figures._fields import PAPER
from ...laws.sums import integral
from ...support.tolerances import HOLDS
from .._runs import Record
from ._experiments import EXPERIMENTS
from ._report import MARKS, Picture
from ._reproduce import Cell
from ._tables import beside_the_anp, cells

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
ROUNDING = 1e-17  # what a CE of 0 is drawn as
FAR = 10.0  # a difference of LL beyond which the scale is logarithmic
ANP: Any = {"color": "black", "linewidth": 0.8, "linestyle": ":", "zorder": 0}


def draw(cell: Cell, folder: Path) -> list[Picture]:
    """Writes each figure of the cell as PNG and SVG into the folder."""
    pictures = []
    for kind, caption, figure in _figures(cell):
        figure.suptitle(_label(cell), fontsize="small", color="dimgrey")
        drawn = _saved(figure, folder / f"{cell.name}-{kind}")
        pictures.append(Picture(cell.experiment.name, cell.value, kind, caption, drawn))
    return pictures


def draw_overview(records: Sequence[Record], folder: Path) -> list[str]:
    """Writes the figure over all cells, for each method; returns its panels."""
    rows, plan = cells(list(records)), records[0]
    figure = Figure(figsize=(12, 0.5 * len(rows) + 1.5), layout="constrained")
    conservation, likelihood, error = figure.subplots(1, 3, sharey=True)
    for method in {record["method"]: None for record in records}:
        places, numbers = _of_method(method, rows)
        for axes, each in zip(figure.axes, zip(*numbers, strict=True), strict=True):
            style: Any = {
                "color": PAPER[method][0],
                "marker": MARKS[method].name,
                "markersize": 5.5,
            }
            axes.plot(each, places, linestyle="", label=method, **style)
    conservation.axvspan(ROUNDING / 10, HOLDS, color="grey", alpha=0.15, linewidth=0)
    conservation.set(title="Who conserves", xlabel="|CE|; grey is rounding", xscale="log")
    conservation.set_xlim(ROUNDING / 10, None)
    likelihood.set(title="LL: right is better", xlabel="LL less that of the ANP")
    error.set(title="MSE: left is better", xlabel="MSE over that of the ANP")
    _scales(likelihood, error)
    _rows(figure.axes, [_row(row[0]) for row in rows])
    handles = conservation.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=len(handles[0]))
    name = f"overview-{plan['recipe']}-{plan['protocol']}"
    return _saved(figure, folder / name, (SIZE[0], 0.38 * len(rows) + 0.9))


def _scales(likelihood: Axes, error: Axes) -> None:
    """Logarithms where numbers go far, with plain numbers below."""
    likelihood.axvline(0, **ANP)
    error.axvline(1, **ANP)
    low, high = likelihood.get_xlim()
    if (reach := max(-low, high)) > FAR:
        likelihood.set_xscale("symlog", linthresh=1)
        likelihood.set_xlim(4 * min(low, -1), 4 * max(high, 1))  # room for the outermost marks
        likelihood.set_xticks([-FAR, 0, FAR] if reach < FAR**2 else [-(FAR**2), 0, FAR**2])
    error.set_xscale("log")
    low, high = error.get_xlim()
    error.xaxis.set_major_locator(LogLocator(subs=(1,) if high / low > FAR else (1, 2, 5)))
    for axes in (likelihood, error):
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())


def _of_method(method: str, rows: list[list[Record]]) -> tuple[list[float], list[Any]]:
    """Places from top to bottom; |CE|, and LL and MSE beside the ANP's."""
    places: list[float] = []
    numbers: list[Any] = []
    for i, row in enumerate(rows):
        for record in row:
            beside = beside_the_anp(row).get(method)
            if record["method"] == method and beside:
                places.append(i + 0.15 * (list(PAPER).index(method) - 2))
                numbers.append((max(abs(record["CE"]), ROUNDING), *beside))
    return places, numbers or [(), (), ()]


def _row(record: Record) -> str:
    problem = EXPERIMENTS[record["problem"]].problem
    return f"{problem.title}\n{symbol(problem.parameter)} = {record['parameter']:g}"


def symbol(parameter: str) -> str:
    """A parameter as people write it."""
    return {"u_star": "u*", "beta": "β"}.get(parameter, parameter)


def _rows(panels: list[Axes], names: list[str]) -> None:
    """Every second row has a ground of its own."""
    for axes in panels:
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(names) - 0.5, -0.5)
        for i in range(0, len(names), 2):
            axes.axhspan(i - 0.5, i + 0.5, color="grey", alpha=0.1, linewidth=0, zorder=0)


def _saved(figure: Figure, path: Path, size: tuple[float, float] = SIZE) -> list[str]:
    """Writes SVG and PNG, in one layout; the panels for the page."""
    for ending in ("svg", "png"):
        figures.save(figure, path.with_name(f"{path.name}.{ending}"))
        figure.set_layout_engine("none")
    return panels(figure, path.name, size)


def _label(cell: Cell) -> str:
    problem, plan = cell.experiment.problem, cell.plan
    parameter = f"{symbol(problem.parameter)} = {cell.value:g}"
    return f"{problem.title}, {parameter}; protocol {plan.protocol}, weights {plan.recipe}"


def _figures(cell: Cell) -> Iterator[tuple[str, str, Figure]]:
    """Kind, caption and figure."""
    curves, plan, where = cell.curves, cell.plan, f"at t = {cell.experiment.time:g}"
    x, truth, variances = curves["x"], curves["truth"], cell.of_methods("variance")
    fields = {name: Diagonal(m, variances[name]) for name, m in cell.of_methods("mean").items()}
    yield (
        "profiles",
        f"Mean and three standard deviations of one test function {where}.",
        figures.profiles_figure(x, fields, truth),
    )
    yield (
        "errors",
        f"The error of that mean {where}, with the band around it.",
        figures.errors_figure(x, fields, truth),
    )
    law = integral(x, curves["total"])
    means = {name: Diagonal(m, 0.0) for name, m in cell.of_methods("mean over time").items()}
    yield (
        "mass",
        "Total of u over time, of the same test function, from "
        f"{_count(plan.samples_over_time, 'latent sample')}. "
        "Methods that conserve lie on the truth.",
        figures.mass_figure(curves["t"], means, law),
    )
    yield (
        "mse",
        f"MSE over time, averaged over {_count(plan.functions_over_time, 'test function')}, "
        f"from {_count(plan.samples_over_time, 'latent sample')}.",
        figures.scores_figure(curves["t"], cell.of_methods("MSE over time")),
    )
    yield (
        "precision",
        f"ProbConserv-ANP {where} as the constraint is taken more seriously, with standard errors.",
        figures.precision_figure(
            curves["precision"],
            {
                label: tuple(curves[f"precision/{name}"])
                for label, name in (("CE²", "CE"), ("LL", "LL"), ("MSE", "MSE"))
            },
        ),
    )
    yield from _fronts(cell)


RULES = {
    "point": "the first grid point with u at or below 0, the paper's definition",
    "crossing": "where u comes down through half of the jump, between grid points",
}


def _fronts(cell: Cell) -> Iterator[tuple[str, str, Figure]]:
    for rule, meaning in RULES.items() if cell.fronts else ():
        places = cell.of_methods(f"{rule}/positions")
        chances = cell.of_methods(f"{rule}/probabilities")
        fronts = {name: FrontPosition(at, chances[name]) for name, at in places.items()}
        yield (
            f"front-{rule}",
            f"The front at t = {cell.experiment.time:g}, over all test functions: {meaning}.",
            figures.front_figure(fronts, cell.fronts[0]["true"]),
        )


def _count(n: int, what: str) -> str:
    return f"{n} {what}" + "s" * (n > 1)


def panels(figure: Figure, name: str, size: tuple[float, float] = SIZE) -> list[str]:
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


def _complete(axes: list[Axes]) -> None:
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
