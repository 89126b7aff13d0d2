"""A dataset and laws on their way through the passes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
import xarray as xr

from .. import __version__
from .._errors import InputError
from ._budget import budgets
from ._encoding import is_packed, unpacked_after_packing
from ._graph import as_tensors, unpack
from ._law import Law, Recipe
from ._lookup import nearest
from ._plan import Plan, Spread, plans
from ._report import Report
from ._update import first_pass, one_pass, outcome

REPORT = "probconserv_report"
ENSEMBLES = ("member", "members", "realization", "ensemble", "ensemble_member")
FAR = 50.0  # standard deviations that no ensemble should move by
OF_SHAPE = ("chunksizes", "chunks", "preferred_chunks", "shards", "original_shape", "contiguous")


@dataclass(frozen=True, eq=False)
class Work:
    """A dataset and laws, ready for the passes."""

    dataset: xr.Dataset
    plans: Sequence[Plan]
    spread: Spread
    minimum: float | None

    @classmethod
    def of(
        cls,
        dataset: xr.Dataset,
        laws: Sequence[Law | Recipe],
        spread: Spread,
        minimum: float | None,
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
        after = after or [(None, {}, {})] * len(self.plans)
        found = [
            budget
            for plan, s, (totals, *_) in zip(self.plans, sums, after, strict=True)
            for budget in budgets(plan, s, totals)
        ]
        below = {name: int(n) for _, counts, _ in after for name, n in counts.items() if n}
        moved = {name: float(most) for *_, moves in after for name, most in moves.items()}
        report = Report(tuple(found), self._method(sums), self.minimum, below, moved)
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
        far = [name for name in report.moved if (report.in_std(name) or 0.0) > FAR]
        if far and self.spread.member is not None:
            yield (
                f"members of {', '.join(far)} moved far: their totals hardly differ, and what so "
                "few say about distant points is chance. `shrinkage` 1 takes points for "
                "independent."
            )
        for plan in self.plans if self.spread.member is None else ():
            for dim in plan.index:
                if dim.lower() in ENSEMBLES:
                    yield f"{dim!r} looks like an ensemble; as `member` it gives the uncertainty."

    def _method(self, sums: Any) -> str:
        if self.spread.member is None:
            return f"mean and standard deviation, correlation {self.spread.correlation:.3g}"
        kinds: list[Any] = [plan.kind for plan in self.plans]
        used = [
            kind.shrinkages(as_tensors(unpack(kind.sums, s.reshape(-1, s.shape[-1])))).numpy()
            for kind, s in zip(kinds, sums, strict=True)
        ]
        ends = [f"{end:.3g}" for end in (min(map(np.min, used)), max(map(np.max, used)))]
        tied = f", jointly over {', '.join(self.spread.jointly)}" if self.spread.jointly else ""
        return f"ensemble of {kinds[0].members}, shrinkage {' to '.join(dict.fromkeys(ends))}{tied}"

    def finished(self, found: Any, report: Report | None = None) -> xr.Dataset:
        """A copy of the dataset with the new values, a line of history and the report."""
        out = self.dataset.copy()
        for plan, new in zip(self.plans, found, strict=True):
            for name, arrays in new.items():
                out[name] = out.variables[name].copy(data=arrays[0].data)
                if len(arrays) == 2:
                    factor = plan.converted[name].factor
                    self._put_std(out, name, arrays[1] if factor == 1 else arrays[1] / factor)
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
