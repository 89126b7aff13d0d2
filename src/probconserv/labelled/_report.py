"""The report of an update: every budget before and after, and what else a user should know."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import xarray as xr

from ._budget import TOLERANCE, Budget, worst


@dataclass(frozen=True, eq=False)
class Report:
    """What was asked, what the field had and has, and how much it took."""

    budgets: tuple[Budget, ...]
    method: str
    minimum: float | None = None
    below: Mapping[str, int] = field(default_factory=dict)  # values that were pushed below minimum
    moved: Mapping[str, float] = field(default_factory=dict)  # the largest change of a value
    notes: tuple[str, ...] = ()
    change: Mapping[str, xr.DataArray] = field(default_factory=dict)  # mean over what is not a map

    def closes(self, tolerance: float = TOLERANCE, after: bool = False) -> bool:
        """Whether all budgets close."""
        return all(budget.closes(tolerance, after) for budget in self.budgets)

    @property
    def is_done(self) -> bool:
        return all(budget.after is not None for budget in self.budgets)

    def __str__(self) -> str:
        return self.text()

    def text(self, tolerance: float = TOLERANCE) -> str:
        """The report in words; budgets close that are off by no more than the tolerance."""
        lines = [line for budget in self.budgets for line in _lines(budget, tolerance)]
        lines += [f"update: {self.method}"] if self.is_done else []
        lines += [self._move(name) for name in self.moved]
        lines += [
            f"{count} values of {name} were pushed below {self.minimum:g}"
            for name, count in self.below.items()
        ]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def in_std(self, name: str) -> float | None:
        """The largest change of a variable beside its mean standard deviation, if that is known."""
        for budget in self.budgets:
            std = float((budget.spread / budget.size.where(budget.size > 0)).max())
            if budget.variables == (name,) and std > 0:
                return self.moved[name] / std
        return None

    def _move(self, name: str) -> str:
        times = self.in_std(name)
        beside = "" if times is None else f", {times:.2g} times its mean standard deviation"
        return f"{name} moved by at most {self.moved[name]:.3g}{beside}"

    def noting(self, note: str) -> "Report":
        return replace(self, notes=(*self.notes, note))

    def summary(self) -> dict[str, Any]:
        """The figures of the report, as JSON takes them."""
        return {
            "laws": [_figures(budget) for budget in self.budgets],
            "method": self.method,
            "minimum": self.minimum,
            "below_minimum": dict(self.below) if self.is_done else None,
            "largest_change": dict(self.moved) if self.is_done else None,
            "notes": list(self.notes),
        }

    def json(self) -> str:
        return json.dumps(self.summary())


def _lines(budget: Budget, tolerance: float) -> list[str]:
    unit = f" in {budget.unit}" if budget.unit else ""
    rows = int(budget.terms.size)
    empty = int((budget.size == 0).sum())
    done, sort = ("averaged", "average") if budget.is_average else ("summed", "total")
    lines = [
        f"{budget.name}, {done} over {', '.join(budget.over)}{unit}",
        f"  weights: {budget.measure}",
        *(f"  {remark}" for remark in budget.remarks),
        f"  {rows} {sort}{'s' * (rows != 1)}{f', {empty} without data' if empty else ''}",
        f"  {'now' if budget.after is None else 'before'}: {_imbalance(budget, tolerance, False)}",
    ]
    if budget.after is not None:
        lines.append(f"  after:  {_imbalance(budget, tolerance, True)}")
    when = "" if budget.after is None else "before the update "
    return [*lines, f"  {when}{budget.verdict}"]


def _imbalance(budget: Budget, tolerance: float, after: bool) -> str:
    off, where = worst(budget.imbalance(after))
    gap = abs(budget.gap(after))
    word = "closes" if budget.closes(tolerance, after) else "does not close"
    at = f" ({where})" if where else ""
    terms = " + ".join(f"|{name}|" for name in budget.variables)
    if budget.is_average:
        said = f"{off:.1e} of the mean of {terms}{at}, {float(gap.max()):.3g} on average"
        return f"{word}; off by at most {said}"
    most = f"{off:.1e} of the sum of {terms}{at}, {float(gap.max()):.3g} in total"
    said = f"{word}; off by at most {most}"
    if len(budget.variables) > 1:  # an average of variables in different units means nothing
        return said
    mean, _ = worst((gap / budget.size).where(budget.size > 0, 0.0))
    return f"{said}, {mean:.3g} on average"


def _figures(budget: Budget) -> dict[str, Any]:
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
        "closed_before": budget.closes(),
        "verdict": budget.verdict,
    }
    if budget.after is not None:
        figures |= {
            "imbalance_after": float(budget.imbalance(True).max()),
            "closed_after": budget.closes(after=True),
        }
    return figures
