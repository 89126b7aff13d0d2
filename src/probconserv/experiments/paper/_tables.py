"""The records as tables: which numbers are bold, CSV, rows of LaTeX, remarks in plain words."""

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence

from ...diagnostics.metrics import best
from ...models._load import ELSEWHERE
from ...support.tolerances import HOLDS
from ._cell import Record
from ._experiments import EXPERIMENTS
from ._methods import METHODS


def cells(records: list[Record]) -> list[list[Record]]:
    """The records of each problem and parameter, in the order in which they are given.

    Parameters
    ----------
    records : list of dict
        Those of all cells.

    Returns
    -------
    list of lists
        One list for each cell.

    Examples
    --------
    >>> records = [{"problem": "pme", "parameter": m} for m in (1.0, 1.0, 3.0)]
    >>> [len(cell) for cell in cells(records)]
    [2, 1]
    """
    groups: dict[tuple[str, float], list[Record]] = {}
    for record in records:
        groups.setdefault((record["problem"], record["parameter"]), []).append(record)
    return list(groups.values())


def as_json(records: Sequence[Record], fronts: Sequence[Record], sweep: Sequence[Record]) -> str:
    """As described in docs/research/results_json.md."""
    content = {"schema": 1, "records": records, "fronts": fronts, "sweep": sweep}
    return json.dumps(content, indent=1) + "\n"


def as_csv(records: list[Record]) -> str:
    text = io.StringIO()
    table = csv.DictWriter(text, fieldnames=list(records[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(records)
    return text.getvalue()


def as_latex(records: list[Record]) -> str:
    """A row for each method and parameter: CE, LL and MSE with standard errors, ours and theirs."""
    rows = ["% method & CE & published & LL & published & MSE & published"]
    for cell in cells(records):
        first = cell[0]
        experiment = EXPERIMENTS[first["problem"]]
        parameter = f"{experiment.problem.parameter} = {first['parameter']:g}"
        rows.append(
            f"% {first['problem']}, {parameter}, t = {first['time']:g}; protocol "
            f"{first['protocol']}, weights {first['recipe']}, n = {first['n']}"
        )
        for record in cell:
            paper, row = experiment.paper(first["parameter"], record["method"]), [record["method"]]
            for metric in ("CE", "LL", "MSE"):
                ours = _number(metric, record[metric], record[f"{metric}_se"])
                ours = rf"\mathbf{{{ours}}}" if best(record, cell, metric) else ours
                theirs = f"${_number(metric, *paper[metric])}$" if paper else "--"
                row += [f"${ours}$", theirs]
            rows.append(" & ".join(row) + r" \\")
    return "\n".join(rows) + "\n"


def _number(metric: str, mean: float, error: float) -> str:
    """Mean and standard error in one power of ten, for the mathematics of LaTeX."""
    if metric == "CE" and max(abs(mean), error) < HOLDS:
        return "0"
    small = metric != "LL" and 0 < abs(mean) < 0.1
    power = math.floor(math.log10(abs(mean))) if small else 0
    text = f"{mean / 10.0**power:.3f} \\, ({error / 10.0**power:.3f})"
    return text + (rf" \times 10^{{{power}}}" if power else "")


def remarks(records: list[Record]) -> list[str]:
    """What a reader should be told of these numbers, in plain words.

    Parameters
    ----------
    records : list of dict
        Those of all cells.

    Returns
    -------
    list of str
        Sentences: where an order differs from the paper's, what is missing.
    """
    said, some_missing = [], False
    for cell in cells(records):
        name = _case(cell[0])
        by_method = {record["method"]: record for record in cell}
        anp, ours = by_method["ANP"], by_method["ProbConserv-ANP"]
        if ours["LL"] < anp["LL"]:
            said.append(
                f"{name}: the LL of ProbConserv-ANP, {ours['LL']:.3f}, is below that of "
                f"the ANP, {anp['LL']:.3f}. The paper's theorem is about another LL."
            )
        missing = [method for method in METHODS if method not in by_method]
        if missing:
            some_missing = True
            said.append(f"{name}: no weights for {', '.join(missing)}.")
        said += _other_orders(cell)
    if some_missing:
        said.append(ELSEWHERE)
    for name in dict.fromkeys(record["problem"] for record in records):
        if EXPERIMENTS[name].warning:
            title = EXPERIMENTS[name].problem.title
            said.append(f"{title}, beside the paper: {EXPERIMENTS[name].warning}.")
    return said


def _case(record: Record) -> str:
    """The equation and its parameter, as the headings of the report have them."""
    problem = EXPERIMENTS[record["problem"]].problem
    return f"{problem.title}, {problem.parameter} = {record['parameter']:g}"


def _other_orders(cell: list[Record]) -> Iterator[str]:
    """Where methods stand the other way round than in the paper, by more than the errors there."""
    name, value = cell[0]["problem"], cell[0]["parameter"]
    for metric, sign in (("LL", 1), ("MSE", -1)):
        here, paper = {}, {}
        for record in cell:
            published = EXPERIMENTS[name].paper(value, record["method"])
            if published:
                here[record["method"]] = sign * record[metric], record[f"{metric}_se"]
                paper[record["method"]] = sign * published[metric][0], published[metric][1]
        for one in paper:
            passed_by = [
                other for other in paper if _ahead(paper, one, other) and _ahead(here, other, one)
            ]
            if passed_by:
                others = ", ".join(passed_by)
                yield (
                    f"{_case(cell[0])}, {metric}: the paper has {one} ahead of {others}; "
                    "here it is behind."
                )


def _ahead(scores: dict[str, tuple[float, float]], one: str, other: str) -> bool:
    """By more than the two standard errors together."""
    (a, a_se), (b, b_se) = scores[one], scores[other]
    return a - b > a_se + b_se
