"""The report of an update: every budget before and after, and what else a user should know."""

import csv
import io
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import xarray as xr

from .._errors import ImplausibleError, ImplausibleWarning
from ._budget import FIGURES, TOLERANCE, Budget, worst


@dataclass(frozen=True, eq=False)
class Report:
    """What was asked, what the field had and has, and how far values moved.

    Attributes
    ----------
    budgets : tuple of Budget
        One for each law.
    method : str
        How the correction was spread, in words.
    minimum, maximum : float
        The bounds that were asked for, if any.
    outside_before : dict of int
        How many values were out of these bounds, by variable.
    outside : dict of int
        The same after the update.
    moved : dict of float
        The largest change of a value, by variable.
    in_std : dict of float
        The largest change in a value's own standard deviations.
    notes : tuple of str
        What else a user should know.
    warnings : tuple of str
        What is implausible.
    change : dict of DataArray
        The change of every variable, as a mean over what is not a map.
    """

    budgets: tuple[Budget, ...]
    method: str
    minimum: float | None = None
    maximum: float | None = None
    outside_before: Mapping[str, int] = field(default_factory=dict)
    outside: Mapping[str, int] = field(default_factory=dict)
    moved: Mapping[str, float] = field(default_factory=dict)
    in_std: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    change: Mapping[str, xr.DataArray] = field(default_factory=dict)

    def closes(self, tolerance: float = TOLERANCE, after: bool = False) -> bool:
        """Whether all budgets close.

        Parameters
        ----------
        tolerance, after : as in `Budget.closes`

        Returns
        -------
        bool
            True if no total is off by more.
        """
        return all(budget.closes(tolerance, after) for budget in self.budgets)

    @property
    def plausible(self) -> bool:
        """Whether nothing speaks against what was asked and done."""
        return not self.warnings

    @property
    def is_done(self) -> bool:
        """Whether there was an update, and it is computed."""
        return all(budget.after is not None for budget in self.budgets)

    def __str__(self) -> str:
        return self.text()

    def text(self, tolerance: float = TOLERANCE) -> str:
        """The report in words; budgets close that are off by no more than the tolerance."""
        lines = [line for budget in self.budgets for line in _lines(budget, tolerance)]
        lines += [f"update: {self.method}"] if self.is_done else []
        for name, most in self.moved.items():
            own = f", and by at most {self.in_std.get(name, 0.0):.2g} of its standard deviations"
            own = own if name in self.in_std else ""
            lines.append(f"{name} moved by at most {most:.3g}{own}")
        low = [] if self.minimum is None else [f"below {self.minimum:g}"]
        bounds = " or ".join([*low, *([] if self.maximum is None else [f"above {self.maximum:g}"])])
        for name, count in self.outside_before.items():
            if (brought := count - self.outside.get(name, 0)) > 0:
                lines.append(f"{brought} values of {name} were {bounds} and are not now")
        for name, count in self.outside.items():
            lines.append(f"{count} values of {name} are {bounds}: no law counts them")
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join([*lines, *(f"implausible: {text}" for text in self.warnings)])

    def check_plausible(self) -> None:
        """Raises `ImplausibleError` if something is implausible, or a law fails after an update."""
        reasons = list(self.warnings)
        if self.is_done and not self.closes(after=True):
            reasons.append("the laws do not hold after the update")
        if reasons:
            error = ImplausibleError(f"`strict` refuses this: {'; '.join(reasons)}.")
            error.report = self
            raise error

    def warn_if_implausible(self) -> None:
        """Gives an `ImplausibleWarning` if something is implausible."""
        if self.warnings:
            text = f"{'; '.join(self.warnings)}. See the report; `strict=True` refuses this."
            warnings.warn(text, ImplausibleWarning, stacklevel=3)

    def summary(self, tolerance: float = TOLERANCE) -> dict[str, Any]:
        """The figures of the report, as JSON takes them."""
        of_update = {
            "method": self.method,
            "outside_before": dict(self.outside_before),
            "outside_after": dict(self.outside),
            "largest_change": dict(self.moved),
            "largest_change_in_std": dict(self.in_std),
        }
        return {
            "laws": [_figures(budget, tolerance) for budget in self.budgets],
            "minimum": self.minimum,
            "maximum": self.maximum,
            **(of_update if self.is_done else dict.fromkeys(of_update)),
            "notes": list(self.notes),
            "warnings": list(self.warnings),
            "plausible": self.plausible,
        }

    def json(self) -> str:
        """The figures of `summary`, as text in JSON."""
        return json.dumps(self.summary())

    def rows(self, tolerance: float = TOLERANCE) -> list[dict[str, Any]]:
        """Every total: its place, what it should be, and what the field has."""
        return [row for budget in self.budgets for row in budget.table(tolerance)]

    def csv(self, tolerance: float = TOLERANCE) -> str:
        """The rows of `rows` as text, with a column for each of the axes that some law has."""
        rows = self.rows(tolerance)
        axes = dict.fromkeys(key for row in rows for key in row if key not in ("law", *FIGURES))
        text = io.StringIO()
        writer = csv.DictWriter(text, ["law", *axes, *FIGURES], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()


def _lines(budget: Budget, tolerance: float) -> list[str]:
    unit = f" in {budget.unit}" if budget.unit else ""
    rows, members = int(budget.terms.size), budget.before.size // max(1, budget.terms.size)
    each = f" for each of {members} members" if members > 1 else ""
    empty = int((budget.size == 0).sum())
    done, sort = ("averaged", "average") if budget.is_average else ("summed", "total")
    lines = [
        f"{budget.name}, {done} over {', '.join(budget.over)}{unit}",
        f"  weights: {budget.measure}",
        *(f"  {remark}" for remark in budget.remarks),
        f"  {rows} {sort}{'s' * (rows != 1)}{each}{f', {empty} without data' if empty else ''}",
        f"  {'now' if budget.after is None else 'before'}: {_imbalance(budget, tolerance, False)}",
    ]
    if budget.after is not None:
        lines.append(f"  after:  {_imbalance(budget, tolerance, True)}")
    when = "before the update: " if budget.after is not None and budget.knows_std else ""
    return [*lines, f"  {when}{budget.verdict}"]


def _imbalance(budget: Budget, tolerance: float, after: bool) -> str:
    off, where = worst(budget.imbalance(after))
    gap = abs(budget.gap(after))
    word = "closes" if budget.closes(tolerance, after) else "does not close"
    at = f" ({where})" if where else ""
    terms = " + ".join(f"|{name}|" for name in budget.variables)
    of, kind = ("mean", "on average") if budget.is_average else ("sum", "in total")
    most = f"{off:.1e} of the {of} of {terms}{at}, {float(gap.max()):.3g} {kind}"
    said = f"{word}; off by at most {most}"
    if budget.is_average or len(budget.variables) > 1:  # their units differ, so no average
        return said
    return f"{said}, {float((gap / budget.size).where(budget.size > 0, 0.0).max()):.3g} on average"


def _figures(budget: Budget, tolerance: float) -> dict[str, Any]:
    figures = {
        "name": budget.name,
        "variables": list(budget.variables),
        "over": list(budget.over),
        "units": budget.unit,
        "average": budget.is_average,
        "weights": budget.measure,
        "remarks": list(budget.remarks),
        "totals": int(budget.terms.size),
        "imbalance_before": float(budget.imbalance().max()),
        "closed_before": budget.closes(tolerance),
        "verdict": budget.verdict,
    }
    if budget.after is not None:
        figures |= {
            "imbalance_after": float(budget.imbalance(True).max()),
            "closed_after": budget.closes(tolerance, after=True),
        }
    return figures
