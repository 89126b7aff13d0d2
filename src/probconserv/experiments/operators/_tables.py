"""Records as JSON, CSV and Markdown."""

import csv
import io
import json
import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from ._cases import CASES
from ._methods import METHODS

SCORES = ("MSE", "CRPS", "energy", "NLL", "coverage_90", "n_MeRCI", "CE")
KEYS = ("case", "where", "low", "high", "method", "functions", "seeds")
SHARES = ("published_CRPS", "alarms", "alarms_of_one")


def summaries(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
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


def _summary(same: Sequence[dict[str, Any]]) -> dict[str, Any]:
    row = {key: same[0][key] for key in KEYS if key != "seeds"} | {"seeds": len(same)}
    for score in SCORES:
        values = [r[score] for r in same]
        row[score] = mean(values)
        row[f"{score}_se"] = stdev(values) / math.sqrt(len(same)) if len(same) > 1 else None
    row |= {key: same[0][key] for key in ("published_CRPS",)}
    return row | {key: mean(r[key] for r in same) for key in SHARES[1:]}


def as_json(records: Sequence[dict[str, Any]]) -> str:
    return json.dumps({"records": list(records)}, indent=1) + "\n"


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    errors = [f"{score}_se" for score in SCORES]
    columns = [*KEYS, *(c for pair in zip(SCORES, errors, strict=True) for c in pair), *SHARES]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(f"{row[c]:.5g}" if isinstance(row[c], float) else row[c] for c in columns)
    return text.getvalue()


def cells_of(rows: Sequence[dict[str, Any]]) -> list[dict[str, dict[str, Any]]]:
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
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["case"], row["where"]), {})[row["method"]] = row
    return list(found.values())


def heading(row: dict[str, Any]) -> str:
    """Such as Stefan, near: 0.55..0.6."""
    where = "in domain" if row["where"] == "in" else row["where"]
    return f"{CASES[row['case']].title}, {where}: {row['low']:g}..{row['high']:g}"
