"""A dataset and laws on their way through the passes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import xarray as xr

from .. import __version__
from .._errors import FAR, InputError
from .._sums import Ensemble, check_usable
from ._encoding import Packing, valid_limits
from ._graph import Array, unpack
from ._law import Law, Recipe, array, nearest
from ._plan import HOW, ONE_BY_ONE, Plan, Ready, Spread, plans
from ._report import Budget, Report, worst
from ._time import decoded, least_to_most
from ._update import LARGEST, NO_BOUNDS, Watch, first_pass, one_pass, second_pass, seen_after, solve

REPORT = "probconserv_report"
ENSEMBLES = ("member", "members", "realization", "ensemble", "ensemble_member")
FEW = (
    "Members' totals differ by less than what was asked, and what so few say about distant points "
    "is chance; `how` 'uniform' moves all points alike"
)
OF_SHAPE = ("chunksizes", "chunks", "preferred_chunks", "shards", "original_shape", "contiguous")


@dataclass(frozen=True, eq=False)
class Work:
    """A dataset and laws, ready for the passes."""

    dataset: xr.Dataset
    plans: Sequence[Plan]
    spread: Spread

    @classmethod
    def of(cls, dataset: xr.Dataset, laws: Sequence[Law | Recipe], spread: Spread) -> "Work":
        if not isinstance(dataset, xr.Dataset):
            raise InputError(f"`dataset` must be an xarray.Dataset, got {type(dataset).__name__}.")
        _check(dataset, spread)
        work = cls(dataset, plans(decoded(dataset), laws, spread), spread)
        work._check_places()
        return work

    def check_apart(self) -> None:
        """Refuse to update what another law takes as it is: its total would not hold."""
        for law in self._laws:
            for other in self._laws:
                if shared := set(other.factors) & set(law.held):
                    raise InputError(
                        f"{other.label} moves {min(shared)}, which {law.label} holds fixed, so "
                        f"that both cannot be met at once: {ONE_BY_ONE}."
                    )

    @property
    def first(self) -> list[Any]:
        return [first_pass(plan) for plan in self.plans]

    @property
    def one_pass(self) -> bool:
        return all(map(one_pass, self.plans))

    def updated(self, sums: Sequence[Any], watch: bool = True, store: bool = False) -> list[Any]:
        """The arrays of every system after the update, from the sums of the first pass.

        Each with what was seen of them, if they are watched. store: they will be, so that
        packed integers are rounded to keep the totals.
        """
        done = []
        for plan, each in zip(self.plans, sums, strict=True):
            watches = {name: self._watch(name, plan, store) for name in plan.arrays}
            new, seen = second_pass(plan, solve(plan, each), watches if watch else None)
            for law in (ready.law for ready in plan.laws if ready.law.linear and seen):
                (name,) = law.factors
                ends = (array(self.dataset, e, "linear", self.dataset[name]) for e in law.linear)
                (low, high), values = (end.variable for end in ends), new[name][0]
                seen[name]["left"] = ((values < low) | (values > high)).sum().data
            done.append((new, seen))
        return done

    def _watch(self, name: str, plan: Plan, store: bool) -> Watch:
        valid, packing = self._valid.get(name, NO_BOUNDS), Packing.of(self.dataset[name])
        return Watch(valid, packing, store and plan.kind.disjoint)

    @property
    def invalid(self) -> dict[str, Any]:
        """Of each variable with a valid range, how many values lie outside."""
        found = {}
        for name, (low, high) in self._valid.items():
            values = self.dataset[name].variable
            found[name] = {"invalid_before": ((values < low) | (values > high)).sum().data}
        return found

    def report(self, sums: Any, after: Any = None, invalid: Any = None) -> Report:
        """after: of `updated`. invalid: of the property, where nothing is updated."""
        each = zip(self.plans, after or [], strict=False)
        seen: list[Any] = [seen_after(plan, s) for plan, s in each] or [(None, {})] * len(sums)
        all_ = zip(self.plans, sums, seen, strict=True)
        found = [budget for plan, s, (totals, _) in all_ for budget in budgets(plan, s, totals)]
        moves = {name: figures for _, of in seen for name, figures in of.items()}
        outside, before = (
            {name: int(m[key].sum()) for name, m in moves.items() if m[key].any()}
            for key in ("outside", "outside_before")
        )
        warnings = [text for budget in found for text in budget.warnings]
        known = moves or invalid or {}
        warnings += [text for name, m in known.items() for text in self._implausible(name, m)]
        report = Report(
            tuple(found),
            self._method(sums),
            self.spread.minimum,
            self.spread.maximum,
            before,
            outside,
            {name: float(m["change"].max()) for name, m in moves.items()},
            {name: float(m["in_std"].max()) for name, m in moves.items() if self._knows_std},
            warnings=tuple(warnings),
        )
        notes = [*self._notes(report), *_pushed_below_zero(moves)]
        return replace(report, notes=tuple(notes))

    @property
    def _knows_std(self) -> bool:
        return self.spread.how not in ("uniform", "proportional")

    @property
    def _packed(self) -> list[str]:
        names = (name for plan in self.plans for name in plan.arrays)
        return [name for name in names if Packing.of(self.dataset[name])]

    @property
    def _valid(self) -> dict[str, tuple[float, float]]:
        names = (name for plan in self.plans for name in plan.arrays)
        return {name: ends for name in names if (ends := valid_limits(self.dataset[name]))}

    def _notes(self, report: Report) -> Iterator[str]:
        if self._packed and report.is_done and not report.closes(after=True):
            yield (
                f"{', '.join(self._packed)} packed into integers: rounding to them opens the "
                "budget again. Write floats with `unpack` to keep it closed."
            )
        arrays = (each for plan in self.plans for each in plan.arrays.values())
        named = self.spread.member is None and any(std.dims for _, std in arrays)
        if report.is_done and named and any(plan.is_bounded for plan in self.plans):
            yield "the new standard deviations are those without bounds"
        for plan in self.plans if self.spread.member is None else ():
            for dim in plan.index:
                if dim.lower() in ENSEMBLES:
                    yield f"{dim!r} looks like an ensemble; as `member` it gives the uncertainty."

    def _implausible(self, name: str, found: Mapping[str, Any]) -> Iterator[str]:
        """What is implausible about the values of a variable."""
        counts = {each: int(np.sum(found[each])) for each in found if each not in LARGEST}
        low, high = self._valid.get(name, (0.0, 0.0))
        valid = f"the valid {low:g} to {high:g}"
        if counts["invalid_before"]:
            yield f"{counts['invalid_before']} values of {name} lie outside {valid} already"
        if counts.get("invalid"):
            yield f"{counts['invalid']} values of {name} were pushed outside {valid}"
        if counts.get("left"):
            yield (
                f"{counts['left']} values of {name} left the range in which the law is linear in "
                "them, so that it holds only nearly: enforce it again on the output"
            )
        if counts.get("far") and not self._knows_std:
            yield f"{counts['far']} values of {name} changed sign"
        elif counts.get("far"):
            (index,) = (plan.index for plan in self.plans if name in plan.arrays)
            coords = {dim: self.dataset[dim] for dim in index if dim in self.dataset.coords}
            most, where = worst(xr.DataArray(found["in_std"], coords, index))
            yield (
                f"{counts['far']} values of {name} moved by more than {FAR:g} of their standard "
                f"deviations, by up to {most:.3g}{f' ({where})' if where else ''}"
                + (f". {FEW}" if self.spread.member else "")
            )

    def _method(self, sums: Any) -> str:
        if self.spread.how and not self._knows_std:
            return f"{self.spread.how}, {HOW[self.spread.how]}"
        if self.spread.member is None:
            number = any(not std.dims for p in self.plans for _, std in p.arrays.values())
            alike = " (a number: that of a cell of mean size, alike per unit of area)" * number
            return f"mean and standard deviation{alike}, correlation {self.spread.correlation:.3g}"
        from .._sums_solve import ensemble_mix

        kinds: list[Any] = [plan.kind for plan in self.plans]
        mixes = [
            ensemble_mix(kind, unpack(kind.sums, s.reshape(-1, s.shape[-1])))
            for kind, s in zip(kinds, sums, strict=True)
        ]
        both = zip(*mixes, strict=True)
        share, correlation = (least_to_most(np.concatenate(each)) for each in both)
        tied = f", jointly over {', '.join(self.spread.jointly)}" if self.spread.jointly else ""
        return (
            f"ensemble of {kinds[0].members}, shrinkage {share} towards a correlation of "
            f"{correlation}{tied}"
        )

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
        old = (out[given] if isinstance(given, str) else given).variable
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
                    f"`std={{'{name}': ..., ...}}`."
                )
            taken[place] = name


def _pushed_below_zero(moves: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A note on variables that had no negative value and have some now."""
    for name, figures in moves.items():
        least = -float(figures["below"].max())
        if least < 0 and not (figures["below_before"] > 0).any():
            yield (
                f"values of {name} were pushed below 0, to {least:.3g}; none was before. "
                "`minimum=0` holds them, `how='proportional'` keeps signs."
            )


def _check(dataset: xr.Dataset, spread: Spread) -> None:
    members = [("member", spread.member)] if spread.member is not None else []
    for name, dim in (*members, *(("jointly", dim) for dim in spread.jointly)):
        if dim not in dataset.dims:
            raise InputError(f"`{name}`: no dimension {dim!r} here. {nearest(dim, dataset.dims)}")


def budgets(plan: Plan, sums: Array, after: Array | None) -> list[Budget]:
    """The budgets of a system, from what its passes summed, (*index, C)."""
    parts = unpack(plan.kind.sums, sums)
    with plan.places.named():
        check_usable(parts)
    for ready in plan.laws:
        if not parts["size"][..., ready.own].any():
            raise InputError(
                f"no point of {ready.law.label} counts: all are missing, or have no weight by "
                "`where`, `regions`, a factor or cell sizes of 0."
            )
    if isinstance(plan.kind, Ensemble):
        parts["assumed"] = parts["total"].var(-2, ddof=1)
    else:
        gram, rho = parts["gram"], plan.kind.correlation
        many = gram.ndim > len(plan.index) + 1
        alone = np.einsum("...kk->...k", gram) if many else gram
        parts["assumed"] = (1 - rho) * alone + rho * (parts["common"] ** 2).sum(-2)
    return [_budget(plan, ready, parts, after) for ready in plan.laws]


def _budget(plan: Plan, ready: Ready, parts: Mapping[str, Array], after: Array | None) -> Budget:
    def rows(values: Array) -> xr.DataArray:
        """(*index, N, K) or (*index, K) -> the rows of the law, by their names."""
        lead = values.shape[: len(plan.index)]
        member = () if values.ndim == len(lead) + 1 else (plan.member,)
        inner = [ready.points.rows[dim] for dim in ready.inner]
        mine = values[..., ready.own].reshape((*values.shape[:-1], *inner))
        found = xr.DataArray(mine, dims=(*plan.index, *member, *ready.inner))
        return _labelled(found, ready)

    law, points = ready.law, ready.points
    fixed = _labelled(xr.DataArray(ready.fixed), ready)
    shape = {dim: points.rows[dim] for dim in points.rows}
    vary = any(ready.time in weights.dims for weights in points.weights.values())
    if after is not None and plan.member is not None:
        after = after.reshape(*after.shape[:-1], -1, len(plan.kind.laws))
    budget = Budget(
        name=law.label,
        variables=tuple(law.factors),
        over=law.dims,
        unit=points.unit,
        measure=points.measure,
        time=ready.time,
        total=_wide(ready.value + ready.fixed, shape, ready),
        noise=_wide(ready.noise, shape, ready),
        before=rows(parts["total"]) + fixed,
        after=None if after is None else rows(after) + fixed,
        terms=rows(parts["terms"]),
        size=rows(parts["size"]),
        spread=rows(parts["spread"]),
        assumed=rows(np.sqrt(parts["assumed"])),
        correlation=getattr(plan.kind, "correlation", 0.0),
        present=rows(parts["count" if vary else "size"]),
        one_total=ready.one_total,
        marks=int(parts["marks"].sum()),
        remarks=ready.remarks,
    )
    return budget if law.average is None else _averaged(budget, ready, shape)


def _averaged(budget: Budget, ready: Ready, shape: Mapping[str, int]) -> Budget:
    """The budget of an average: all that is summed, divided by the cell sizes."""
    sizes = _wide(ready.sizes.where(ready.sizes > 0, 1.0), shape, ready)
    summed = ("total", "noise", "before", "terms", "size", "spread", "assumed")
    means = {name: getattr(budget, name) / sizes for name in summed}
    after = None if budget.after is None else budget.after / sizes
    unit = ready.points.mean_unit
    return replace(budget, unit=unit, is_average=True, after=after, **means)


def _wide(given: xr.Variable, shape: Mapping[str, int], ready: Ready) -> xr.DataArray:
    wide = given.set_dims({**shape, **{d: n for d, n in given.sizes.items() if d not in shape}})
    return _labelled(xr.DataArray(wide.data, dims=wide.dims), ready)


def _labelled(found: xr.DataArray, ready: Ready) -> xr.DataArray:
    coords = {name: c.variable for name, c in ready.points.coords.items() if name in found.dims}
    return found.assign_coords(coords)
