"""`enforce` and `check` for a dataset."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from numbers import Real
from typing import Any

import xarray as xr
from dask.base import compute

from .. import __version__
from .._errors import InputError
from ._budget import budgets
from ._law import Law, listed
from ._lookup import Given, nearest
from ._packing import is_packed, unpacked_after_packing
from ._plan import Plan, Spread, plans
from ._report import Report
from ._update import first_pass, lazy, one_pass, outcome, second_pass, solve

Std = Given | Mapping[str, Given] | None
REPORT = "probconserv_report"
ENSEMBLES = ("member", "members", "realization", "ensemble", "ensemble_member")
OF_SHAPE = ("chunksizes", "chunks", "preferred_chunks", "shards", "original_shape", "contiguous")


def enforce(
    dataset: xr.Dataset,
    *laws: Law,
    std: Std = None,
    member: str | None = None,
    correlation: float = 0.0,
    shrinkage: float | None = None,
    jointly: str | Sequence[str] = (),
    minimum: float | None = None,
) -> xr.Dataset:
    """The dataset with its variables updated so that the laws hold: Step 2 for labelled data.

    The variables are means with a standard deviation each, or an ensemble. std: the name of the
    standard deviations, a number, or a mapping from variables to them; they are updated too.
    member: the dimension of an ensemble, of which every member is made to hold. correlation: of the
    errors of any two points, for `std`: 0 moves points by variance times cell size, towards 1 by
    standard deviation. shrinkage: of an
    ensemble's covariance towards independent points, 0 to 1; one over the number of members if not
    given. jointly: dimensions beside `over` that an ensemble's update couples, such as time.
    minimum: values pushed below it are counted.

    Data in memory are computed, dask arrays stay lazy; the totals that the update starts from are
    computed now in both cases. The report is in the attribute `probconserv_report`.

    >>> field = xr.Dataset({"u": ("x", [1.0, 2.0, 3.0]), "s": ("x", [0.1, 0.2, 0.1])})
    >>> enforce(field, Law("u", "x", total=7.0, measure=1.0), std="s")["u"].values.sum()
    np.float64(7.0)
    """
    spread = Spread(std, member, correlation, shrinkage, tuple(listed(jointly)))
    work = Work.of(dataset, laws, spread, minimum)
    sums = compute(*work.first)
    found = [second_pass(plan, solve(plan, s)) for plan, s in zip(work.plans, sums, strict=True)]
    if lazy(work.plans):
        return work.finished(found, work.report(sums))
    both = work.outcomes(found)
    (both,) = compute(both)  # cell sizes may be lazy where the field is not
    return work.finished([new for new, _ in both], work.report(sums, [after for _, after in both]))


def check(
    dataset: xr.Dataset,
    *laws: Law,
    std: Std = None,
    member: str | None = None,
) -> Report:
    """Whether the laws hold as the data are: print it, or ask `.closes()`; nothing is changed.

    Arguments are those of `enforce`; without `std` and `member` it cannot say whether a total is
    plausible.
    """
    given = 0.0 if std is None and member is None else std
    work = Work.of(dataset, laws, Spread(given, member), None)
    return work.report(compute(*work.first))


def totals(dataset: xr.Dataset, law: Law) -> xr.DataArray:
    """What the dataset has of that which a law sums, for every row; `total` of the law is not used.

    >>> totals(xr.Dataset({"u": ("x", [1.0, 2.0, 4.0])}), Law("u", "x", measure=1.0)).item()
    7.0
    """
    (budget,) = check(dataset, replace(law, total=0.0, inflow=(), outflow=(), noise=0.0)).budgets
    named = budget.before.rename("total")
    return named if budget.unit is None else named.assign_attrs(units=budget.unit)


@dataclass(frozen=True, eq=False)
class Work:
    """A dataset and laws, ready for the passes."""

    dataset: xr.Dataset
    plans: Sequence[Plan]
    spread: Spread
    minimum: float | None

    @classmethod
    def of(
        cls, dataset: xr.Dataset, laws: Sequence[Law], spread: Spread, minimum: float | None
    ) -> "Work":
        if not isinstance(dataset, xr.Dataset):
            raise InputError(f"`dataset` must be an xarray.Dataset, got {type(dataset).__name__}.")
        _check(dataset, spread)
        if minimum is not None and not isinstance(minimum, Real):
            raise InputError(f"`minimum` must be a number, got {minimum!r}.")
        work = cls(dataset, plans(dataset, laws, spread), spread, minimum)
        work._check_places()
        return work

    @property
    def first(self) -> list[Any]:
        return [first_pass(plan) for plan in self.plans]

    @property
    def one_pass(self) -> bool:
        return all(map(one_pass, self.plans))

    def report(self, sums: Any, after: Any = None) -> Report:
        after = after or [(None, {})] * len(self.plans)
        found = [
            budget
            for plan, s, (totals, _) in zip(self.plans, sums, after, strict=True)
            for budget in budgets(plan, s, totals)
        ]
        below = {name: int(n) for _, counts in after for name, n in counts.items() if n}
        report = Report(tuple(found), self._method, self.minimum, below)
        for note in self._notes(report):
            report = report.noting(note)
        return report

    def outcomes(self, found: Sequence[Any]) -> list[Any]:
        """The moved arrays and their sums, of every system."""
        both = zip(self.plans, found, strict=True)
        return [outcome(plan, new, self.minimum, self._views) for plan, new in both]

    @property
    def _views(self) -> dict[str, Any]:
        """Of packed variables, what a reader of the output will see of their values."""
        return {
            name: partial(unpacked_after_packing, encoding=self.dataset[name].encoding)
            for plan in self.plans
            for name in plan.arrays
            if is_packed(self.dataset[name])
        }

    def _notes(self, report: Report) -> Iterator[str]:
        if self._views and report.is_done and not report.closes(after=True):
            yield (
                f"{', '.join(self._views)} packed into integers: rounding to them opens the budget "
                "again. Write floats with `unpack` to keep it closed."
            )
        for plan in self.plans if self.spread.member is None else ():
            for dim in plan.index:
                if dim.lower() in ENSEMBLES:
                    yield f"{dim!r} looks like an ensemble; as `member` it gives the uncertainty."

    @property
    def _method(self) -> str:
        kind = self.plans[0].kind
        if self.spread.member is None:
            return f"mean and standard deviation, correlation {self.spread.correlation:.3g}"
        tied = f", jointly over {', '.join(self.spread.jointly)}" if self.spread.jointly else ""
        return f"ensemble of {kind.members}, shrinkage {kind.shrinkage:.3g}{tied}"  # type: ignore[union-attr]

    def finished(self, found: Any, report: Report | None = None) -> xr.Dataset:
        """A copy of the dataset with the new values, a line of history and the report."""
        out = self.dataset.copy()
        for new in found:
            for name, arrays in new.items():
                out[name] = out.variables[name].copy(data=arrays[0].data)
                if len(arrays) == 2:
                    self._put_std(out, name, arrays[1])
        line = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} probconserv {__version__}: enforced " + (
            "; ".join(f"{law.label} over {', '.join(law.dims)}" for law in self._laws)
        )
        before = out.attrs.get("history")
        history = f"{before}\n{line}" if isinstance(before, str) and before else line
        out = out.assign_attrs({"history": history})
        return out if report is None else out.assign_attrs({REPORT: report.json()})

    @property
    def _laws(self) -> list[Law]:
        return [ready.law for plan in self.plans for ready in plan.laws]

    def _put_std(self, out: xr.Dataset, name: str, new: xr.Variable) -> None:
        given = self._std(name)
        old = out[given].variable if isinstance(given, str) else given.variable
        if set(old.dims) == set(new.dims):
            new, encoding = new.transpose(*old.dims), old.encoding
        else:
            encoding = {key: each for key, each in old.encoding.items() if key not in OF_SHAPE}
        out[self._place(name)] = xr.Variable(new.dims, new.data, old.attrs, encoding)

    def _std(self, name: str) -> Any:
        std = self.spread.std
        return std[name] if isinstance(std, Mapping) else std

    def _place(self, name: str) -> str:
        """The name under which the standard deviations of a variable stand after the update."""
        given = self._std(name)
        if isinstance(given, str):
            return given
        known = [each for plan in self.plans for each in plan.arrays]
        return f"{name}_std" if given.name is None or given.name in known else str(given.name)

    def _check_places(self) -> None:
        """Refuse one place for two things."""
        variables = {name: arrays for plan in self.plans for name, arrays in plan.arrays.items()}
        taken = {name: name for name in variables}
        for name, arrays in variables.items():
            if len(arrays) == 1 or not arrays[1].dims:
                continue
            place = self._place(name)
            if place in taken:
                raise InputError(
                    f"`std` of `{name}` is {place!r}, which cannot hold what the update makes of "
                    f"`{taken[place]}` as well. Give every variable its own, "
                    f"std={{'{name}': ..., ...}}."
                )
            taken[place] = name


def _check(dataset: xr.Dataset, spread: Spread) -> None:
    if spread.member is not None and spread.std is not None:
        raise InputError(
            "`std` and `member` are two ways to say how uncertain a field is: give one."
        )
    if spread.member is not None and spread.member not in dataset.dims:
        raise InputError(
            f"`member`: no dimension {spread.member!r} here. {nearest(spread.member, dataset.dims)}"
        )
    if spread.member is not None and spread.correlation:
        raise InputError("`correlation` is for `std`; an ensemble has its own. See `shrinkage`.")
    for name in ("correlation", "shrinkage"):
        value: Any = getattr(spread, name)
        if value is not None and not (isinstance(value, Real) and 0 <= float(value) <= 1):
            raise InputError(f"`{name}` must lie between 0 and 1, got {value!r}.")
    for dim in spread.jointly:
        if dim not in dataset.dims:
            raise InputError(f"`jointly`: no dimension {dim!r} here. {nearest(dim, dataset.dims)}")
