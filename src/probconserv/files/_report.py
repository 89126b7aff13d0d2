"""The report of an update: totals stated and found, what is implausible, as text, JSON, CSV."""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import xarray as xr

from ..conditioning.sums import Ensemble, check_usable
from ..support.errors import ImplausibleError, InputError, printable, warn_implausible
from ..support.tolerances import CLOSES, DOUBLE
from ._graph import Array
from ._plan import FilePlan, Ready, worst
from ._verdict import Verdict, judged

FIGURES = ("total", "field", "gap", "relative", "closes")  # of a total, in a table
ZERO = 273.15  # of degC in K


@dataclass(frozen=True, eq=False)
class Budget:
    """The totals of one law, an entry for every row; `before` and `after` also for every member.

    Attributes
    ----------
    name : str
        The name of the law.
    variables : tuple of str
        What is summed.
    over : tuple of str
        The dimensions that are summed over.
    unit : str
        The unit of the totals, if it is known.
    measure : str
        Where the cell sizes come from.
    time : str
        Which of the axes is time, if one is.
    total : DataArray
        As the law states it.
    noise : DataArray
        The standard deviation of `total`.
    before : DataArray
        What the field has.
    after : DataArray
        What the updated field has; None while that is not computed.
    terms : DataArray
        The sum of ``|u|`` times cell sizes.
    size : DataArray
        The sum of cell sizes, over points that are not missing.
    spread : DataArray
        The standard deviation of the field's total if its points move together.
    assumed : DataArray
        The same with the correlation of the update, or as the members' totals spread.
    present : DataArray
        How much data there is at each time: as `size`, or the share of the points that count
        where cell sizes change.
    one_total : bool
        Whether one total holds at all times, so that all of them should have all points.
    own : DataArray
        What the total changes by if all points move by the standard deviation that the field has
        over its points and times; None where standard deviations are given.
    gains : dict of DataArray
        What each rate brings since the earliest time.
    marks : int
        Values that look like marks for missing ones.
    remarks : tuple of str
        What was found, assumed or converted on the way.
    correlation : float
        The correlation of the errors of any two points.
    is_average : bool
        Whether the rows are means: sums divided by cell sizes.
    """

    name: str
    variables: tuple[str, ...]
    over: tuple[str, ...]
    unit: str | None
    measure: str
    time: str | None
    total: xr.DataArray
    noise: xr.DataArray
    before: xr.DataArray
    after: xr.DataArray | None
    terms: xr.DataArray
    size: xr.DataArray
    spread: xr.DataArray
    assumed: xr.DataArray
    present: xr.DataArray
    one_total: bool
    own: xr.DataArray | None = None
    gains: Mapping[str, xr.DataArray] = field(default_factory=dict)
    marks: int = 0
    remarks: tuple[str, ...] = ()
    correlation: float = 0.0
    is_average: bool = False

    def gap(self, after: bool = False) -> xr.DataArray:
        """Field - total, for every row and member; 0 for rows without data.

        Parameters
        ----------
        after : bool
            True for the updated field.

        Returns
        -------
        DataArray
            In the units of the total.
        """
        return self._gaps[after]

    @cached_property
    def _gaps(self) -> dict[bool, xr.DataArray]:
        """Before, and after if that is known."""
        both = {False: self.before} | ({} if self.after is None else {True: self.after})
        return {key: (has - self.total).where(self.size > 0, 0.0) for key, has in both.items()}

    def imbalance(self, after: bool = False) -> xr.DataArray:
        """How far each row is off: ``|field - total|`` over the sum of ``|u|``.

        Where ``|total|`` is larger, it is divided by that. For an ensemble it is that of the worst
        member.

        Parameters
        ----------
        after : bool
            True for the updated field.

        Returns
        -------
        DataArray
            One number for each row.
        """
        return self._imbalances[after]

    @cached_property
    def _imbalances(self) -> dict[bool, xr.DataArray]:
        off = {key: abs(gap) / self.scale for key, gap in self._gaps.items()}
        return {key: each.max({*each.dims} - {*self.terms.dims}) for key, each in off.items()}

    def closes(self, tolerance: float = CLOSES, after: bool = False) -> bool:
        """Whether every total is met, up to the tolerance and three times the noise.

        Parameters
        ----------
        tolerance : float
            The largest `imbalance` that counts as closed.
        after : bool
            True for the updated field.

        Returns
        -------
        bool
            True if no row is off by more.
        """
        return bool((self._imbalances[after] <= tolerance + 3 * self.noise / self.scale).all())

    def table(self, tolerance: float = CLOSES) -> list[dict[str, Any]]:
        """The rows of a table: of every total (and member) its place and figures.

        The figures are total, field, gap, relative and closes, after the update if there is one.
        """
        after = self.after is not None
        gap = self._gaps[after]
        relative = abs(gap) / self.scale
        closes = relative <= tolerance + 3 * self.noise / self.scale
        field = (gap + self.total).where(self.size > 0)
        total = self.total.where(self.size > 0) if self.is_average else self.total
        columns = [_column(each, gap) for each in (total, field, gap, relative, closes)]
        places = product(*(_labels(gap, dim) for dim in gap.dims))
        names = ["law", *map(str, gap.dims), *FIGURES]
        rows = zip(places, zip(*columns, strict=True), strict=True)
        return [
            dict(zip(names, (self.name, *place, *values), strict=True)) for place, values in rows
        ]

    def summary(self, tolerance: float = CLOSES) -> dict[str, Any]:
        """The figures of the budget, as JSON takes them."""
        figures: dict[str, Any] = {
            "name": self.name,
            "variables": list(self.variables),
            "over": list(self.over),
            "units": self.unit,
            "average": self.is_average,
            "weights": self.measure,
            "remarks": list(self.remarks),
            "totals": int(self.terms.size),
            "members": self.members,
            "without_data": int((self.size == 0).sum()),
            "knows_std": self.knows_std,
            "answer": self.answer,
            "verdict": self.verdict,
        }
        for after, gap in self._gaps.items():
            when, gap, mean = "after" if after else "before", abs(gap), None
            imbalance, where = worst(self._imbalances[after])
            if not self.is_average and len(self.variables) == 1:  # else their units differ
                mean = float((gap / self.size).where(self.size > 0, 0.0).max())
            figures |= {
                f"imbalance_{when}": imbalance,
                f"worst_{when}": where,
                f"gap_{when}": float(gap.max()),
                f"mean_gap_{when}": mean,
                f"closed_{when}": self.closes(tolerance, after),
            }
        return figures

    @cached_property
    def scale(self) -> xr.DataArray:
        """What an imbalance is relative to: the sum of ``|u|``, or ``|total|`` if that is more."""
        size = self.terms.where(self.terms > abs(self.total), abs(self.total))
        return size.where(size > 0, 1.0)

    @property
    def warnings(self) -> list[str]:
        """What is implausible before the update."""
        return [f"{self.name}: {text}" for text in (*self._judged.beyond, *self._suspect())]

    def _suspect(self) -> Iterator[str]:
        """Of points that come and go in time, marks of missing values, and degC taken for K."""
        if self.time is not None and self.one_total:
            gone = 1 - self.present / self.present.max(self.time)  # NaN where nothing ever is
            most, where = worst(gone.where(self.present > 0, 0.0).fillna(0.0))
            if most > DOUBLE:
                yield (
                    f"points are missing at some times and there at others, {100 * most:.3g} % of "
                    f"the whole at {where}; what is left is given the total of the whole. Give a "
                    "total for each time, or fill the gaps"
                )
        if self.marks:
            yield (
                f"{self.marks} values look like marks for missing ones (1e+20, -9999 and the "
                "like), which the file does not declare. Declare them as _FillValue"
            )
        off, other = abs(self._gaps[False]), "K" if self.is_celsius else "degC"
        known = self.is_average and (self.is_celsius or self.unit == "K")
        if known and bool((abs(off - ZERO) < 60).any()):
            largest = f"{float(off.max()):.3g} {self.unit}"
            yield f"the average asked for is {largest} off: is it in {other}?"

    @property
    def is_celsius(self) -> bool:
        """Whether the unit is degC, whose zero is not that of K."""
        return re.search(r"(?i)\b(deg(ree)?s?_?)?c(elsius)?\b", str(self.unit)) is not None

    @property
    def answer(self) -> str | None:
        """Whether it "agrees", "agrees if shared" or "does not agree"; None: nothing is known.

        The second: the totals are further off than the stated correlations allow, and plausible if
        all points err together. Unlike `diagnose` it may say so of members too.
        """
        return self._judged.answer

    @property
    def verdict(self) -> str:
        """Whether the totals are plausible for a field with this uncertainty, and if not why."""
        return self._judged.text

    @cached_property
    def knows_std(self) -> bool:
        """Whether the field or the total comes with standard deviations or members."""
        return bool((self.spread > 0).any()) or bool((self.noise > 0).any())

    @cached_property
    def members(self) -> int:
        """How many members the field has; 1 if it is none of an ensemble."""
        return self.before.size // max(1, self.terms.size)

    @cached_property
    def _judged(self) -> Verdict:
        return judged(self)


def _column(array: xr.DataArray, like: xr.DataArray) -> list[Any]:
    """The entries one after the other, None for missing ones."""
    wide = array.broadcast_like(like).transpose(*like.dims)
    return [None if each != each else each for each in wide.values.ravel().tolist()]


def _labels(array: xr.DataArray, dim: Any) -> list[Any]:
    """The coordinate as numbers and texts; numbers from 0 where there is none."""
    if dim not in array.coords:
        return list(range(array.sizes[dim]))
    values = array[dim].values
    if values.dtype.kind == "m":
        return (values / np.timedelta64(1, "s")).tolist()
    if values.dtype.kind == "M":
        return np.datetime_as_string(values, "s").tolist()
    return [each.isoformat() if hasattr(each, "isoformat") else each for each in values.tolist()]


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
    _summaries: dict[float, dict[str, Any]] = field(default_factory=dict, init=False, repr=False)

    def closes(self, tolerance: float = CLOSES, after: bool = False) -> bool:
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

    @cached_property
    def is_done(self) -> bool:
        """Whether there was an update, and it is computed."""
        return all(budget.after is not None for budget in self.budgets)

    def __str__(self) -> str:
        return self.text()

    def text(self, tolerance: float = CLOSES) -> str:
        """The report in words; budgets close that are off by no more than the tolerance."""
        told = self.summary(tolerance)
        lines = [line for law in told["laws"] for line in _lines(law)]
        lines += [f"update: {self.method}"] if self.is_done else []
        for name, most in self.moved.items():
            own = f", and by at most {self.in_std.get(name, 0.0):.2g} of its standard deviations"
            own = own if name in self.in_std else ""
            lines.append(f"{name} moved by at most {most:.3g}{own}")
        ends = (("below", self.minimum), ("above", self.maximum))
        bounds = " or ".join(f"{side} {end:g}" for side, end in ends if end is not None)
        for name, count in self.outside_before.items():
            if (brought := count - self.outside.get(name, 0)) > 0:
                lines.append(f"{brought} values of {name} were {bounds} and are not now")
        for name, count in self.outside.items():
            lines.append(f"{count} values of {name} are {bounds}: no law counts them")
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"implausible: {text}" for text in self.warnings]
        return "\n".join(printable(line.replace("\n", "\\n")) for line in lines)

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
            warn_implausible(text)

    def summary(self, tolerance: float = CLOSES) -> dict[str, Any]:
        """The figures of the report, as JSON takes them."""
        if tolerance not in self._summaries:
            self._summaries[tolerance] = self._summary(tolerance)
        return dict(self._summaries[tolerance])

    def _summary(self, tolerance: float) -> dict[str, Any]:
        of_update = {
            "method": self.method,
            "outside_before": dict(self.outside_before),
            "outside_after": dict(self.outside),
            "largest_change": dict(self.moved),
            "largest_change_in_std": dict(self.in_std),
        }
        return {
            "laws": [budget.summary(tolerance) for budget in self.budgets],
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

    def rows(self, tolerance: float = CLOSES) -> list[dict[str, Any]]:
        """Every total: its place, what it should be, and what the field has."""
        return [row for budget in self.budgets for row in budget.table(tolerance)]

    def csv(self, tolerance: float = CLOSES) -> str:
        """The rows of `rows` as text, with a column for each of the axes that some law has."""
        rows = self.rows(tolerance)
        axes = dict.fromkeys(key for row in rows for key in row if key not in ("law", *FIGURES))
        text = io.StringIO()
        writer = csv.DictWriter(text, ["law", *axes, *FIGURES], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()


def _lines(law: Mapping[str, Any]) -> list[str]:
    """The summary of a budget in words."""
    done, sort = ("averaged", "average") if law["average"] else ("summed", "total")
    unit = f" in {law['units']}" if law["units"] else ""
    members = f" for each of {law['members']} members" if law["members"] > 1 else ""
    empty = f", {law['without_data']} without data" if law["without_data"] else ""
    plural = "s" if law["totals"] != 1 else ""
    is_done = "closed_after" in law
    return [
        f"{law['name']}, {done} over {', '.join(law['over'])}{unit}",
        f"  weights: {law['weights']}",
        *(f"  {remark}" for remark in law["remarks"]),
        f"  {law['totals']} {sort}{plural}{members}{empty}",
        f"  {'before' if is_done else 'now'}: {_imbalance(law, 'before')}",
        *([f"  after:  {_imbalance(law, 'after')}"] if is_done else []),
        f"  {'before the update: ' if is_done and law['knows_std'] else ''}{law['verdict']}",
    ]


def _imbalance(law: Mapping[str, Any], when: str) -> str:
    word = "closes" if law[f"closed_{when}"] else "does not close"
    at = f" ({law[f'worst_{when}']})" if law[f"worst_{when}"] else ""
    terms = " + ".join(f"|{name}|" for name in law["variables"])
    of, kind = ("mean", "on average") if law["average"] else ("sum", "in total")
    off, mean = f"{law[f'imbalance_{when}']:.1e}", law[f"mean_gap_{when}"]
    more = "" if mean is None else f", {mean:.3g} on average"
    return (
        f"{word}; off by at most {off} of the {of} of {terms}{at}, "
        f"{law[f'gap_{when}']:.3g} {kind}{more}"
    )


def budgets(plan: FilePlan, parts: dict[str, Array]) -> list[Budget]:
    """The budgets of a system, from what its passes summed, (*index, ...)."""
    with plan.places.named():
        check_usable(parts)
    for ready in plan.laws:
        if not parts["size"][..., ready.own].any():
            raise InputError(
                f"no point of {ready.law.label} counts: all are missing, or have no weight by "
                "`where`, `regions`, a factor or cell sizes of 0."
            )
    if isinstance(plan.kind, Ensemble):
        assumed = parts["total"].var(-2, ddof=1)
    else:
        gram, rho = parts["gram"], plan.kind.correlation
        many = gram.ndim > len(plan.index) + 1
        alone = np.einsum("...kk->...k", gram) if many else gram
        assumed = (1 - rho) * alone + rho * (parts["common"] ** 2).sum(-2)
    parts["assumed"] = np.sqrt(assumed)
    return [_budget(plan, ready, parts) for ready in plan.laws]


def _budget(plan: FilePlan, ready: Ready, parts: Mapping[str, Array]) -> Budget:
    law, points, totals = ready.law, ready.points, ready.totals

    def named(variable: xr.Variable) -> xr.DataArray:
        coords = {d: c for d, c in points.names.items() if d in variable.dims}
        return xr.DataArray(variable.data, coords, variable.dims)

    def wide(given: xr.Variable) -> xr.DataArray:
        return named(given.set_dims({**given.sizes, **points.rows}).transpose(*points.rows, ...))

    def rows(key: str) -> xr.DataArray:
        """(*index, N, K) or (*index, K) -> the rows of the law, by their names."""
        values, lead = parts[key][..., ready.own], len(plan.index)
        values = values[..., 0, :] if plan.member is None and values.ndim > lead + 1 else values
        member = [plan.member] if values.ndim > lead + 1 else []
        shape = (*values.shape[:-1], *ready.sizes_inside.values())
        dims = (*plan.index, *member, *ready.sizes_inside)
        return named(xr.Variable(dims, values.reshape(shape)))

    fixed, is_average, time = named(totals.fixed), law.average is not None, totals.time_of_rows
    sizes = wide(totals.sizes.where(totals.sizes > 0, 1.0)) if is_average else 1.0
    vary = any(time in weights.dims for weights in points.weights.values())
    sums: Any = {key: rows(key) / sizes for key in ("terms", "size", "spread", "assumed")}
    return Budget(
        name=law.label,
        variables=tuple(law.factors),
        over=law.dims,
        unit=points.mean_unit if is_average else points.unit,
        measure=points.measure,
        time=time,
        total=wide(totals.value + totals.fixed) / sizes,
        noise=wide(totals.noise) / sizes,
        before=(rows("total") + fixed) / sizes,
        after=(rows("after") + fixed) / sizes if "after" in parts else None,
        **sums,
        correlation=getattr(plan.kind, "correlation", 0.0),
        present=rows("count") / rows("stated") if vary else rows("size"),
        one_total=totals.is_one,
        own=rows("own") / sizes if "own" in parts else None,
        gains={name: wide(gain) / sizes for name, gain in totals.gains.items()},
        marks=int(parts["marks"].sum()),
        remarks=ready.remarks,
        is_average=is_average,
    )
