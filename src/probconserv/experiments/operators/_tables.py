"""Means over seeds, and what a run leaves in its folder: results, two pictures and one page."""

import json
import math
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from ...support.complete_files import sole_writer
from .._runs import Record, as_csv, at_least_one, grouped, written
from ._benchmark import METHODS, OperatorCell
from ._cases import CASES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLES: dict[str, dict[str, Any]] = {
    "no law": {"color": "#C98500", "marker": "o"},
    "paper's update": {"color": "#CA0B3B", "marker": "s"},
    "law": {"color": "#2A78B5", "marker": "^"},
    "law and shape": {"color": "#5C3D99", "marker": "D"},
}
WIDTH = 1.645  # standard deviations: 90 %

SCORES = ("MSE", "CRPS", "energy", "NLL", "coverage_90", "n_MeRCI", "CE")
KEYS = ("case", "where", "low", "high", "method", "functions", "seeds")
SHARES = ("published_CRPS", "alarms", "alarms_of_one")


def summaries(records: Sequence[Record]) -> list[Record]:
    """One row for each case, distance and method: means over seeds, and standard errors.

    Parameters
    ----------
    records : list of dict
        Those of cells, as `benchmark` returns them.

    Returns
    -------
    list of dict
        Each score as NAME and, of several seeds, its standard error as NAME_se.
    """
    return [_summary(same) for same in grouped(records, "case", "where", "method")]


def _summary(same: Sequence[Record]) -> Record:
    row = {key: same[0][key] for key in KEYS if key != "seeds"} | {"seeds": len(same)}
    for score in SCORES:
        values = [r[score] for r in same]
        row[score] = mean(values)
        row[f"{score}_se"] = stdev(values) / math.sqrt(len(same)) if len(same) > 1 else None
    row |= {key: same[0][key] for key in ("published_CRPS",)}
    return row | {key: mean(r[key] for r in same) for key in SHARES[1:]}


def cells_of(rows: Sequence[Record]) -> list[dict[str, Record]]:
    """The rows of each case and distance, by method.

    Parameters
    ----------
    rows : list of dict
        As `summaries` returns them.

    Returns
    -------
    list of dict
        One for each cell: from the name of a method to its row.
    """
    return [{row["method"]: row for row in cell} for cell in grouped(rows, "case", "where")]


def heading(row: Record) -> str:
    """Such as Stefan, near: 0.55..0.6."""
    where = "in domain" if row["where"] == "in" else row["where"]
    return f"{CASES[row['case']].title}, {where}: {row['low']:g}..{row['high']:g}"


def write(cells: Sequence[OperatorCell], out: str | Path, figures: bool = True) -> list[Path]:
    """Writes results.json, results.csv and, with `figures`, two pictures and report.html.

    Parameters
    ----------
    cells : sequence of Cell
        As `benchmark` returns them.
    out : str or Path
        The folder.
    figures : bool
        Whether to draw; needs matplotlib and jinja2.

    Returns
    -------
    list of Path
        The files, each whole or as it was.

    Raises
    ------
    InputError
        If there is no cell.
    """
    at_least_one("cells", cells, "cell", "benchmark")
    out, records = Path(out), [record for cell in cells for record in cell.records]
    rows = summaries(records)
    texts = {
        "results.json": json.dumps({"records": records}, indent=1) + "\n",
        "results.csv": as_csv(rows),
    }
    pictures = []
    with sole_writer(out):
        if figures:
            from ...figures import save  # needs matplotlib
            from ..paper._report import page  # needs jinja2

            pictures = [out / "scores.png", out / "examples.png"]
            save(scores_figure(cells_of(rows)), pictures[0])
            save(examples_figure(cells), pictures[1])
            texts["report.html"] = page(
                Path(__file__).with_name("report.html"),
                images=[b64encode(path.read_bytes()).decode() for path in pictures],
                methods=METHODS,
                cells=cells_of(rows),
                heading=heading,
            )
        return pictures + written(out, texts)


def scores_figure(cells: Sequence[dict[str, Record]]) -> "Figure":
    """CRPS and coverage of each case and distance, from the rows of its methods."""
    from matplotlib.figure import Figure

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


def examples_figure(cells: Sequence[OperatorCell]) -> "Figure":
    """The first function of each cell of the first seed, at a quarter of the times."""
    from matplotlib.figure import Figure

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
