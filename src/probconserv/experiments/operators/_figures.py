"""The pictures of the benchmark (matplotlib)."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from ...figures._fields import save as save
from .._runs import Record
from ._benchmark import METHODS, Cell
from ._cases import CASES

STYLES: dict[str, dict[str, Any]] = {
    "no law": {"color": "#C98500", "marker": "o"},
    "paper's update": {"color": "#CA0B3B", "marker": "s"},
    "law": {"color": "#2A78B5", "marker": "^"},
    "law and shape": {"color": "#5C3D99", "marker": "D"},
}
WIDTH = 1.645  # standard deviations: 90 %


def scores_figure(cells: Sequence[dict[str, Record]]) -> Figure:
    """CRPS and coverage of each case and distance, from the rows of its methods."""
    figure = Figure(figsize=(11, 0.34 * len(cells) + 1.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    places = range(len(cells))
    for i, method in enumerate(METHODS):
        style = STYLES[method] | {"linestyle": "", "markersize": 5}
        here = [y + 0.13 * (i - 1.5) for y in places]
        left.plot([1e3 * c[method]["CRPS"] for c in cells], here, label=method, **style)
        right.plot([100 * c[method]["coverage_90"] for c in cells], here, **style)
    published = [c["no law"]["published_CRPS"] for c in cells]
    known = [(1e3 * p, y) for p, y in zip(published, places, strict=True) if p is not None]
    if known:
        style = {"color": "black", "marker": "|", "markersize": 13, "linestyle": ""}
        left.plot(*zip(*known, strict=True), label="best published", **style)
    names = [f"{CASES[c['no law']['case']].title}, {c['no law']['where']}" for c in cells]
    left.set(xscale="log", xlabel="CRPS in 1e-3: left is better", yticks=places, yticklabels=names)
    left.invert_yaxis()
    right.axvspan(85, 97, color="grey", alpha=0.15, linewidth=0)
    right.axvline(90, color="black", linewidth=0.8, linestyle=":")
    right.set(xlabel="points inside 90 % intervals, in %; grey is 85 to 97")
    figure.legend(loc="outside upper center", ncols=5, frameon=False)
    return figure


def examples_figure(cells: Sequence[Cell]) -> Figure:
    """The first function of each cell of the first seed, at a quarter of the times."""
    first = [cell for cell in cells if cell.records[0]["seed"] == 0]
    columns = len({cell.example["where"] for cell in first})
    rows = -(-len(first) // columns)
    figure = Figure(figsize=(3.2 * columns, 2.3 * rows + 0.5), layout="constrained")
    for axes, cell in zip(figure.subplots(rows, columns, squeeze=False).flat, first, strict=False):
        example = cell.example
        x, at = example["x"], len(example["t"]) // 4
        axes.plot(x, example["truth"][at], color="black", linewidth=1.2, label="truth")
        for method in ("no law", "law and shape"):
            mean, std = (a[at] for a in example["fields"][method])
            colour = STYLES[method]["color"]
            axes.plot(x, mean, color=colour, linewidth=1.2, linestyle="--", label=method)
            low, high = mean - WIDTH * std, mean + WIDTH * std
            axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.set_title(f"{example['title']}, {example['where']}", fontsize="small")
        axes.tick_params(labelsize="x-small")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    figure.supxlabel(f"x, at t = {float(first[0].example['t'][at]):.2f}", fontsize="small")
    return figure
