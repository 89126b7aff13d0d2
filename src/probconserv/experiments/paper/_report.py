"""The records and pictures as one HTML page. Needs jinja2, the extra `plots`."""

import math
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from ... import __version__
from ...diagnostics.metrics import best
from ...support.errors import InputError
from ...support.extras import missing
from ...support.tolerances import HOLDS
from .._runs import Record, grouped
from ._experiments import EXPERIMENTS, METHODS
from ._tables import amount, as_json, signed, standings

try:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup, escape
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"the report needs jinja2: {missing(error.name, 'plots')}", name=error.name
    ) from None

from ...figures._fields import PAPER  # needs matplotlib

COMPARED = ("CE", "LL", "MSE")  # with what the paper published
SCORES = ("CRPS", "energy")
COVERAGES = ("coverage_50", "coverage_90", "coverage_99")
NOTHING = "-"
DASHES = {"-": "none", "--": "7 3", "-.": "10 3 2 3"}


class Mark(NamedTuple):
    """The point of a method in the picture over all equations: matplotlib's name, and SVG."""

    name: str
    path: str


MARKS = {
    "ANP": Mark("o", "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z"),
    "SoftC-ANP": Mark("s", "M-3.5-3.5h7v7h-7z"),
    "HardC-ANP": Mark("^", "M0-4.5L4.5 4h-9z"),
    "ProbConserv-ANP": Mark("D", "M0-5L5 0 0 5-5 0z"),
    "ProbConserv-ANP (w/diff)": Mark("v", "M0 4.5L4.5-4h-9z"),
}


class Picture(NamedTuple):
    """A picture of one problem and parameter."""

    problem: str
    parameter: float
    kind: str  # profiles, errors, mass, mse, precision, front-point or front-crossing
    caption: str  # a sentence; also what those hear who do not see the picture
    panels: Sequence[str]  # SVG elements


class Entry(NamedTuple):
    """What stands in one place of a table; a number of ours says which record it is from."""

    text: str = NOTHING
    metric: str = ""
    record: Record | None = None
    bold: bool = False


class Table(NamedTuple):
    """Rows of entries, and the power of ten that the numbers of each metric are in."""

    powers: dict[str, int]
    rows: dict[str, list[Entry]]


class TableCell(NamedTuple):
    """One parameter of a problem."""

    value: float
    outside: bool  # of the training range
    published: bool
    table: Table | None
    pictures: list[Picture]
    fronts: dict[str, list[Record]]  # of each method, by the paper's rule and by crossing


def report(
    records: Sequence[Record],
    sweep: Sequence[Record],
    remarks: Sequence[str],
    pictures: Sequence[Picture],
    fronts: Sequence[Record] = (),
    overview: Sequence[str] = (),
) -> str:
    """One page of HTML that needs no other file and no network.

    records: as `reproduce` returns them, all of one protocol and recipe. sweep: records of
    SoftC-ANP on the porous medium equation, each with its `penalty`, lambda; 0 is the plain ANP.
    remarks: sentences. pictures: shown below the table of their problem and parameter, in order.
    fronts: records of front positions. overview: panels of the picture over all of them.
    """
    if not records:
        raise InputError("`records` must hold at least one record; got none.")
    names = dict.fromkeys(chain((r["problem"] for r in records), (p.problem for p in pictures)))
    with_sweep = bool(sweep) or "pme" in names
    table = standings(records)
    return page(
        Path(__file__).with_name("report.html"),
        plan=records[0],
        standings=table,
        cases=max(one.cases for one in table),
        overview=overview,
        legend={name: _line(name) for name in METHODS},
        remarks=remarks,
        sections=[(EXPERIMENTS[name], _cells(name, records, pictures, fronts)) for name in names],
        sweep=_sweep(sweep) if with_sweep else {},
        sweep_plan=next(iter(sweep), None),
        results=as_json(records, fronts, sweep),
    )


def page(template: Path, **content: Any) -> str:
    """A template with its content, in the style of all reports."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"base64": _base64, "formula": _formula, "svg": Markup}
    environment.filters |= {"amount": amount, "signed": signed}
    css = Path(__file__).with_name("report.css").read_text("utf-8")
    whole = environment.from_string(template.read_text("utf-8"))
    return whole.render(css=css, version=__version__, **content)


def _cells(
    name: str, records: Sequence[Record], pictures: Sequence[Picture], fronts: Sequence[Record]
) -> list[TableCell]:
    """Every parameter of the problem that has a record or a picture."""
    records = [record for record in records if record["problem"] == name]
    pictures = [picture for picture in pictures if picture.problem == name]
    values = chain((r["parameter"] for r in records), (p.parameter for p in pictures))
    low, high = EXPERIMENTS[name].problem.train_range
    cells = []
    for value in dict.fromkeys(values):
        of_value = [record for record in records if record["parameter"] == value]
        cells.append(
            TableCell(
                value,
                outside=not low <= value <= high,
                published=any(EXPERIMENTS[name].paper(value, method) for method in METHODS),
                table=_methods(of_value) if of_value else None,
                pictures=[picture for picture in pictures if picture.parameter == value],
                fronts=_by_method(name, value, fronts),
            )
        )
    return cells


def _methods(cell: list[Record]) -> Table:
    """A row for each method that has a record or was published."""
    experiment, value = EXPERIMENTS[cell[0]["problem"]], cell[0]["parameter"]
    powers = {metric: _power(cell, metric) for metric in COMPARED + SCORES}
    ours = {record["method"]: record for record in cell}
    rows = {}
    for method in METHODS:
        record, paper = ours.get(method), experiment.paper(value, method)
        if record or paper:
            row = [_beside(record, paper, metric, powers, cell) for metric in COMPARED]
            scores = [_score(record, metric, powers, cell) for metric in SCORES]
            rows[method] = [*chain(*row), *scores, *(_share(record, m) for m in COVERAGES)]
    return Table(powers, rows)


def _by_method(name: str, value: float, fronts: Sequence[Record]) -> dict[str, list[Record]]:
    here = [one for one in fronts if (one["problem"], one["parameter"]) == (name, value)]
    return {rows[0]["method"]: rows for rows in grouped(here, "method")}


def _sweep(sweep: Sequence[Record]) -> dict[float, Table]:
    """For each parameter of the published sweep, a row for each lambda, theirs and ours."""
    tables = {}
    for value, published in EXPERIMENTS["pme"].published["penalties"].items():
        cell = [record for record in sweep if record["parameter"] == float(value)]
        ours = {float(record["penalty"]): record for record in cell}
        theirs = {
            float(penalty): {metric: (mean, None) for metric, mean in numbers.items()}
            for penalty, numbers in published.items()
        }
        powers = {metric: _power(cell or published.values(), metric) for metric in COMPARED}
        rows = {}
        for penalty in sorted(ours.keys() | theirs.keys()):
            record, paper = ours.get(penalty), theirs.get(penalty, {})
            row = [_beside(record, paper, metric, powers) for metric in COMPARED]
            rows[f"{penalty:g}"] = list(chain(*row))
        tables[float(value)] = Table(powers, rows)
    return tables


def _beside(
    record: Record | None,
    paper: dict[str, Any],
    metric: str,
    powers: dict[str, int],
    cell: Sequence[Record] = (),
) -> list[Entry]:
    """Our number and the paper's, each with its standard error; bold if it is so in the cell."""
    ours, theirs = Entry(), Entry()
    if record:
        text = _number(record[metric], record[f"{metric}_se"], metric, powers, _rounded)
        ours = Entry(text, metric, record, bool(cell) and best(record, cell, metric))
    if paper:
        mean, error = paper[metric]
        theirs = Entry(_number(mean, error, metric, powers, _in_full))
    return [ours, theirs]


def _score(record: Record | None, metric: str, powers: dict[str, int], cell: list[Record]) -> Entry:
    if record is None:
        return Entry()
    text = _number(record[metric], None, metric, powers, _rounded)
    return Entry(text, metric, record, best(record, cell, metric))


def _share(record: Record | None, metric: str) -> Entry:
    return Entry(f"{100 * record[metric]:.1f}", metric, record) if record else Entry()


def _number(
    mean: float,
    error: float | None,
    metric: str,
    powers: dict[str, int],
    digits: Callable[[float, int], str],
) -> str:
    """As "mean (standard error)", in its power of ten; a CE of rounding alone is 0."""
    if metric == "CE" and max(abs(mean), error or 0.0) < HOLDS:
        return "0"
    text = digits(mean, powers[metric]).replace("-", "\N{MINUS SIGN}")
    return text if error is None else f"{text} ({digits(error, powers[metric])})"


def _rounded(number: float, power: int) -> str:
    return f"{number / 10.0**power:.3f}"


def _in_full(number: float, power: int) -> str:
    """Every digit that was published, and at least two decimals."""
    exact = Decimal(str(number)).scaleb(-power)
    return f"{exact:.{max(2, -int(exact.as_tuple().exponent))}f}"


def _power(numbers: Iterable[dict[str, Any]], metric: str) -> int:
    """That of the largest mean; 0 for log-likelihoods and for what reads well as it is."""
    sizes = [abs(one[metric]) for one in numbers]
    largest = max((s for s in sizes if math.isfinite(s)), default=1.0)
    if metric == "LL" or largest < HOLDS or largest >= 0.1:
        return 0
    return math.floor(math.log10(largest))


def _line(method: str) -> dict[str, str]:
    """How a method is drawn, for the legends of the page."""
    colour, style = PAPER[method]
    dash = DASHES[style] if isinstance(style, str) else " ".join(str(2 * part) for part in style[1])
    return {"colour": colour, "dash": dash, "mark": MARKS[method].path}


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()


def _formula(text: str) -> Markup:
    """Indices below, exponents above, Greek letters as such."""
    html = str(escape(text)).replace("beta", "β")
    html = re.sub(r"_(\w+)", r"<sub>\1</sub>", html)
    return Markup(re.sub(r"\^(\w+)", r"<sup>\1</sup>", html))
