"""The records as files: JSON, CSV and rows of LaTeX; and which numbers are bold."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

from .._files import complete
from ._experiments import EXPERIMENTS
from ._methods import METHODS
from ._reproduce import Record

EXACT = 1e-12  # a conservation error below this is none


def write(records: list[Record], out: Path) -> list[Path]:
    """results.json, results.csv and results.tex in the folder, each whole or as it was."""
    contents = {
        "results.json": as_json(records),
        "results.csv": _csv(records),
        "results.tex": _latex(records),
    }
    for name, text in contents.items():
        with complete(Path(out) / name) as part:
            part.write_text(text)
    return [Path(out) / name for name in contents]


def cells(records: list[Record]) -> list[list[Record]]:
    """The records of each problem and parameter, in the order in which they are given."""
    groups: dict[tuple[str, float], list[Record]] = {}
    for record in records:
        groups.setdefault((record["problem"], record["parameter"]), []).append(record)
    return list(groups.values())


def bold(record: Record, cell: list[Record], metric: str) -> bool:
    """The paper's rule: no conservation error, or within a standard error of the best mean."""
    if metric == "CE":
        return abs(record["CE"]) < EXACT
    sign = -1 if metric == "LL" else 1
    best = min(cell, key=lambda other: sign * other[metric])
    return abs(record[metric] - best[metric]) <= best[f"{metric}_se"]


def as_json(records: Sequence[Record]) -> str:
    return json.dumps({"schema": 1, "records": list(records)}, indent=1) + "\n"


def _csv(records: list[Record]) -> str:
    text = io.StringIO()
    table = csv.DictWriter(text, fieldnames=list(records[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(records)
    return text.getvalue()


def _latex(records: list[Record]) -> str:
    """A row for each method and parameter: CE, LL and MSE with standard errors, ours and theirs."""
    rows = ["% method & CE & LL & MSE & published LL & published MSE"]
    for cell in cells(records):
        first = cell[0]
        experiment = EXPERIMENTS[first["problem"]]
        parameter = f"{experiment.problem.parameter} = {first['parameter']:g}"
        rows.append(
            f"% {first['problem']}, {parameter}, t = {first['time']:g}; protocol "
            f"{first['protocol']}, weights {first['recipe']}, n = {first['n']}"
        )
        for record in cell:
            ours = [_number(record, cell, metric) for metric in ("CE", "LL", "MSE")]
            paper = experiment.paper(first["parameter"], record["method"])
            theirs = [f"${paper[m][0]:.3g}$" if paper else "--" for m in ("LL", "MSE")]
            rows.append(" & ".join([record["method"], *ours, *theirs]) + r" \\")
    return "\n".join(rows) + "\n"


def _number(record: Record, cell: list[Record], metric: str) -> str:
    text = f"{record[metric]:.3g} ({record[f'{metric}_se']:.1g})"
    return rf"$\mathbf{{{text}}}$" if bold(record, cell, metric) else f"${text}$"


def remarks(records: list[Record]) -> list[str]:
    """What a reader should be told of these numbers, in plain words."""
    said = []
    for cell in cells(records):
        name, value = cell[0]["problem"], cell[0]["parameter"]
        by_method = {record["method"]: record for record in cell}
        anp, ours = by_method["ANP"], by_method["ProbConserv-ANP"]
        if ours["LL"] < anp["LL"]:
            said.append(
                f"{name} {value:g}: the LL of ProbConserv-ANP, {ours['LL']:.3f}, is below that of "
                f"the ANP, {anp['LL']:.3f}. The paper's theorem is about another LL."
            )
        missing = [method for method in METHODS if method not in by_method]
        if missing:
            said.append(f"{name} {value:g}: no weights for {', '.join(missing)}.")
    for name in dict.fromkeys(record["problem"] for record in records):
        if EXPERIMENTS[name].warning:
            said.append(f"{name}, beside the paper: {EXPERIMENTS[name].warning}.")
    return said
