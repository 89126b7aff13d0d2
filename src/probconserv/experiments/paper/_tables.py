"""The records in words and numbers: remarks, who conserves, who is best."""

import json
import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

from ...diagnostics.metrics import best
from ...models._load import ELSEWHERE
from .._runs import Record, grouped
from ._experiments import EXPERIMENTS, METHODS


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
    return grouped(records, "problem", "parameter")


def as_json(records: Sequence[Record], fronts: Sequence[Record], sweep: Sequence[Record]) -> str:
    """As described in docs/research/results_json.md."""
    content = {"schema": 1, "records": records, "fronts": fronts, "sweep": sweep}
    return json.dumps(content, indent=1) + "\n"


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


class Spread(NamedTuple):
    """Of a number over all cases."""

    middle: float  # the median
    low: float
    high: float


class Standing(NamedTuple):
    """Of one method, over the cases that it has a record of; a case is one cell of the tables."""

    method: str
    cases: int
    conserves: int  # in how many cases
    best_LL: int
    best_MSE: int
    gain: Spread | None  # LL less that of the ANP; nothing for the ANP itself
    share: Spread | None  # MSE over that of the ANP


def beside_the_anp(cell: Sequence[Record]) -> dict[str, tuple[float, float]]:
    """LL less that of the ANP, and MSE over that of the ANP, for each method; empty without one."""
    by_method = {record["method"]: record for record in cell}
    anp = by_method.get("ANP")
    if anp is None:
        return {}
    return {
        name: (record["LL"] - anp["LL"], record["MSE"] / (anp["MSE"] or math.nan))
        for name, record in by_method.items()
    }


def standings(records: Sequence[Record]) -> list[Standing]:
    """One for each method that has a record, in the order of the tables."""
    table = []
    for method in METHODS:
        mine = [
            (record, cell)
            for cell in cells(list(records))
            for record in cell
            if record["method"] == method
        ]
        pairs = [beside_the_anp(cell).get(method, (math.nan,) * 2) for _, cell in mine]
        conserves, likely, close = (
            sum(best(*one, metric) for one in mine) for metric in ("CE", "LL", "MSE")
        )
        if mine:
            gain, share = (
                None if method == "ANP" else _spread(each) for each in zip(*pairs, strict=True)
            )
            table.append(Standing(method, len(mine), conserves, likely, close, gain, share))
    return table


def _spread(numbers: Sequence[float]) -> Spread | None:
    known = [number for number in numbers if math.isfinite(number)]
    return Spread(median(known), min(known), max(known)) if known else None


def amount(number: float) -> str:
    """With two decimals, or fewer where it is large, or more where it is small."""
    size = abs(number)
    if 0 < size < 0.01:
        return f"{number:.1g}"
    return f"{number:.{0 if size >= 100 else 1 if size >= 10 else 2}f}"


def signed(number: float) -> str:
    """A difference, with its sign; what rounds to nothing has none."""
    if abs(number) < 0.005:
        return "0.00"
    sign = "+" if number > 0 else "\N{MINUS SIGN}"
    return sign + amount(max(abs(number), 0.01))
