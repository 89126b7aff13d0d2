"""Means over seeds, and what a run leaves in its folder: results, two pictures and one page."""

import json
import math
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from ...support.complete_files import sole_writer
from .._runs import Record, as_csv, at_least_one, written
from ._benchmark import METHODS, Cell
from ._cases import CASES

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
    rows = []
    for name in CASES:
        mine = [r for r in records if r["case"] == name]
        for where in {r["where"]: None for r in mine}:
            for method in METHODS:
                same = [r for r in mine if (r["where"], r["method"]) == (where, method)]
                if same:
                    rows.append(_summary(same))
    return rows


def _summary(same: Sequence[Record]) -> Record:
    row = {key: same[0][key] for key in KEYS if key != "seeds"} | {"seeds": len(same)}
    for score in SCORES:
        values = [r[score] for r in same]
        row[score] = mean(values)
        row[f"{score}_se"] = stdev(values) / math.sqrt(len(same)) if len(same) > 1 else None
    row |= {key: same[0][key] for key in ("published_CRPS",)}
    return row | {key: mean(r[key] for r in same) for key in SHARES[1:]}


def _rounded(rows: Sequence[Record]) -> list[Record]:
    """For CSV: each score with its error behind it, in five digits."""
    pairs = [c for score in SCORES for c in (score, f"{score}_se")]
    return [
        {
            c: f"{row[c]:.5g}" if isinstance(row[c], float) else row[c]
            for c in (*KEYS, *pairs, *SHARES)
        }
        for row in rows
    ]


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
    found: dict[tuple[str, str], dict[str, Record]] = {}
    for row in rows:
        found.setdefault((row["case"], row["where"]), {})[row["method"]] = row
    return list(found.values())


def heading(row: Record) -> str:
    """Such as Stefan, near: 0.55..0.6."""
    where = "in domain" if row["where"] == "in" else row["where"]
    return f"{CASES[row['case']].title}, {where}: {row['low']:g}..{row['high']:g}"


def write(cells: Sequence[Cell], out: str | Path, figures: bool = True) -> list[Path]:
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
        "results.csv": as_csv(_rounded(rows)),
    }
    pictures = []
    with sole_writer(out):
        if figures:
            from ..paper._report import page  # needs jinja2
            from ._figures import examples_figure, save, scores_figure  # needs matplotlib

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
