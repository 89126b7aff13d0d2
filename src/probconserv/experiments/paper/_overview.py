"""What came out, over all equations: who conserves, who is best, by how much."""

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from ...diagnostics.metrics import best
from ._cell import Record
from ._methods import METHODS
from ._tables import cells


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


def sentences(table: Sequence[Standing]) -> list[str]:
    """The standings in words."""
    always = [one.method for one in table if one.conserves == one.cases]
    never = [one.method for one in table if not one.conserves]
    said = []
    if always:
        where = "in all cases" if table[0].cases > 1 else "in this case"
        said.append(f"{_and(always)} {_verb(always, 'conserve')} {where}.")
    if never:
        said.append(f"{_and(never)} never {_verb(never, 'do') if always else 'conserve'}.")
    for metric, count in (("LL", "best_LL"), ("MSE", "best_MSE")):
        most = max(getattr(one, count) for one in table)
        first = [one.method for one in table if getattr(one, count) == most]
        of = f"{most} of {max(one.cases for one in table)}" + " each" * (len(first) > 1)
        said.append(f"The best {metric} is most often that of {_and(first)}: {of}.")
    ours = next((one for one in table if one.method == "ProbConserv-ANP" and one.share), None)
    if ours and ours.share:
        said.append(
            "ProbConserv-ANP is the ANP with the law put in. Its MSE is "
            f"{amount(ours.share.middle)} times that of the ANP in the median, from "
            f"{amount(ours.share.low)} to {amount(ours.share.high)}."
        )
    return said


def _verb(names: list[str], verb: str) -> str:
    return verb if len(names) > 1 else {"do": "does"}.get(verb, f"{verb}s")


def _and(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


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
