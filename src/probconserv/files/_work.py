"""A dataset and laws on their way through the passes, to new values and a report."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from math import prod
from typing import Any

import numpy as np
import xarray as xr

from .. import __version__
from ..conditioning.sums import Ensemble
from ..support.errors import FAR, InputError
from ._attributes import decoded, least_to_most
from ._blocks import BlockWork, ValueBounds
from ._encoding import Packing, next_held, typed, valid_limits
from ._graph import Sums, added, compute
from ._law import FileLaw, Recipe, array
from ._plan import HOW, ONE_BY_ONE, FilePlan, FileSpread, plans, worst
from ._report import Report, budgets
from ._verdict import with_spread

REPORT = "probconserv_report"
ENSEMBLES = ("member", "members", "realization", "ensemble", "ensemble_member")
FEW = (
    "Members' totals differ by less than what was asked, and what so few say about distant points "
    "is chance; `how` 'uniform' moves all points alike"
)
OF_SHAPE = ("chunksizes", "chunks", "preferred_chunks", "shards", "original_shape", "contiguous")
WAYS = {"packed into integers": "`unpack`", "float16": "`dtype='float32'`"}
INVALID = {
    "invalid_before": "lie outside the valid {} already",
    "invalid": "were pushed outside the valid {}",
}


@dataclass(frozen=True, eq=False)
class Work:
    """A dataset and laws, ready for the passes."""

    dataset: xr.Dataset
    plans: Sequence[FilePlan]
    spread: FileSpread

    @classmethod
    def of(
        cls,
        dataset: xr.Dataset,
        laws: Sequence[FileLaw | Recipe],
        spread: FileSpread,
        dtype: str | None = None,
        also: Sequence[str] = (),
    ) -> "Work":
        """dtype: of what is moved, and of these variables."""
        if not isinstance(dataset, xr.Dataset):
            raise InputError(
                f"`dataset` must be an xarray.Dataset, got {type(dataset).__name__}. "
                "`enforce_file` and `check_file` take paths; `.to_dataset()` makes one of an array."
            )
        known = decoded(dataset)
        made = [law(known) if callable(law) else law for law in laws]
        if dtype is not None:
            moved = [name for law in made if isinstance(law, FileLaw) for name in law.factors]
            stds = spread.std.values() if isinstance(spread.std, Mapping) else [spread.std]
            names = [*moved, *(std for std in stds if isinstance(std, str)), *also]
            dataset = typed(dataset, names, dtype)
            known = decoded(dataset)
        return cls(dataset, plans(known, made, spread), spread)

    def check_apart(self) -> None:
        """Refuse to update what another law takes as it is: its total would not hold."""
        for law in self.laws:
            for other in self.laws:
                if shared := set(other.factors) & set(law.held):
                    raise InputError(
                        f"{other.label} moves {min(shared)}, which {law.label} holds fixed, so "
                        f"that both cannot be met at once: {ONE_BY_ONE}."
                    )

    @property
    def laws(self) -> list[FileLaw]:
        return [ready.law for plan in self.plans for ready in plan.laws]

    def summed(self) -> dict[str, list[Any]]:
        """Of every variable the sums before an update, in a list, now or lazily."""
        first = [first_pass(plan) for plan in self.plans]
        return {name: [sums] for each in first for name, sums in each.items()}

    def updated(
        self, watch: bool = True, store: bool = False
    ) -> tuple[dict[str, tuple[xr.Variable, ...]], dict[str, list[Any]]]:
        """Of every variable the arrays after the update, and what was summed and seen, in a list.

        watch: look at the new values, which takes them as computed. store: they will be, so that
        packed integers are rounded to keep the totals.
        """
        new: dict[str, tuple[xr.Variable, ...]] = {}
        seen: dict[str, list[Any]] = {}
        for plan in self.plans:
            arrays, parts = update(plan, watch, store)
            new, seen = new | arrays, seen | parts
        for law in (law for law in self.laws if law.linear and watch):
            (name,) = law.factors
            low, high = (array(self.dataset, e, "linear", self.dataset[name]) for e in law.linear)
            values = new[name][0]
            left = (values < low.variable) | (values > high.variable)
            seen[name].append({"left": left.sum().data})
        return new, seen

    def changes(self, new: Mapping[str, Sequence[xr.Variable]]) -> dict[str, xr.DataArray]:
        """The change of every variable, averaged over all but the last two axes that are summed."""
        found = {}
        for name, (values, *_) in new.items():
            old = self.dataset[name]
            summed = {dim for law in self.laws if name in law.factors for dim in law.dims}
            kept = [dim for dim in old.dims if dim in summed][-2:]
            mean = (values - old.variable).mean([dim for dim in old.dims if dim not in kept])
            coords = {dim: old[dim] for dim in kept if dim in old.coords}
            found[name] = xr.DataArray(mean, coords, attrs=old.attrs, name=name)
        return found

    def report(self, seen: Mapping[str, Sequence[Sums]], change: Any = None) -> Report:
        """seen: of `summed` or `updated`, computed."""
        of = {name: with_spread(parts) for name, parts in seen.items()}
        sums = [added([of[name] for name in plan.arrays]) for plan in self.plans]
        found = [budget for both in zip(self.plans, sums, strict=True) for budget in budgets(*both)]
        warnings = [text for budget in found for text in budget.warnings]
        warnings += [text for name, own in of.items() for text in self._implausible(name, own)]
        moves = {name: own for name, own in of.items() if "change" in own}
        outside, before = (
            {name: int(own[key].sum()) for name, own in moves.items() if own[key].any()}
            for key in ("outside", "outside_before")
        )
        moved, in_std = (
            {name: float(own[key].max()) for name, own in moves.items()}
            for key in ("change", "in_std")
        )
        report = Report(
            budgets=tuple(found),
            method=self._method(sums),
            minimum=self.spread.minimum,
            maximum=self.spread.maximum,
            outside_before=before,
            outside=outside,
            moved=moved,
            in_std=in_std if self.spread.knows_std else {},
            warnings=tuple(warnings),
            change=change or {},
        )
        lacking = sum(int(own["lacking"].sum()) for own in sums)
        return replace(report, notes=tuple(self._notes(report, moves, lacking)))

    def _notes(self, report: Report, moves: Mapping[str, Any], lacking: int) -> Iterator[str]:
        if lacking:
            yield (
                f"values that some members lack: {lacking}. They count in no member's total, and "
                "stay as they are in the others."
            )
        opened = [b for b in report.budgets if report.is_done and not b.closes(after=True)]
        for name in (name for name in moves if any(name in b.variables for b in opened)):
            packed = Packing.of(self.dataset[name]) is not None
            held = "packed into integers" if packed else str(self.dataset[name].dtype)
            if held in WAYS:
                said = f"{name} is {held}: rounding to it opens the budget again"
                yield f"{said}. Write floats with {WAYS[held]} to keep it closed."
        stds = [std for plan in self.plans if plan.is_bounded for std in plan.stds.values()]
        if report.is_done and any(std.values.dims for std in stds):
            yield "the new standard deviations are those without bounds"
        for dim in dict.fromkeys(dim for plan in self.plans for dim in plan.index):
            if self.spread.member is None and dim.lower() in ENSEMBLES:
                yield f"{dim!r} looks like an ensemble; as `member` it gives the uncertainty."
        for name, figures in moves.items():
            least = -float(figures["below"].max())
            if least < 0 and not (figures["below_before"] > 0).any():
                ways = self._ways_above(name)
                said = f"values of {name} were pushed below 0, to {least:.3g}; none was before"
                yield f"{said}. {', '.join(ways)}." if ways else said

    def _ways_above(self, name: str) -> list[str]:
        """How values can be kept from falling below 0, of what is not done already."""
        (plan,) = (plan for plan in self.plans if name in plan.arrays)
        bounded = len(plan.laws) > 1 or self.spread.minimum is not None
        ways = [] if bounded else ["`minimum=0` holds them"]
        return ways + ["`how='proportional'` keeps signs"] * (self.spread.how != "proportional")

    def _implausible(self, name: str, found: Mapping[str, Any]) -> Iterator[str]:
        """What is implausible about the values of a variable."""
        counts = {each: int(np.sum(found.get(each, 0))) for each in (*INVALID, "left", "far")}
        low, high = valid_limits(self.dataset[name])
        for key, said in INVALID.items():
            if counts[key]:
                yield f"{counts[key]} values of {name} {said.format(f'{low:g} to {high:g}')}"
        if counts["left"]:
            yield (
                f"{counts['left']} values of {name} left the range in which the law is linear in "
                "them, so that it holds only nearly: enforce it again on the output"
            )
        if counts["far"] and not self.spread.knows_std:
            yield f"{counts['far']} values of {name} changed sign"
        elif counts["far"]:
            (index,) = (plan.index for plan in self.plans if name in plan.arrays)
            known = decoded(self.dataset).coords
            coords = {dim: known[dim] for dim in index if dim in known}
            most, where = worst(xr.DataArray(found["in_std"], coords, index))
            yield (
                f"{counts['far']} values of {name} moved by more than {FAR:g} of their standard "
                f"deviations, by up to {most:.3g}{f' ({where})' if where else ''}"
                + (f". {FEW}" if self.spread.member else "")
            )

    def _method(self, sums: Sequence[Sums]) -> str:
        if self.spread.how and not self.spread.knows_std:
            return f"{self.spread.how}, {HOW[self.spread.how]}"
        if self.spread.member is None:
            stds = [std for plan in self.plans for std in plan.stds.values()]
            number = any(not std.values.dims for std in stds)
            alike = " (a number: that of a cell of mean size, alike per unit of area)" * number
            return f"mean and standard deviation{alike}, correlation {self.spread.correlation:.3g}"
        from ..conditioning.sums_solve import ensemble_mix

        kinds: list[Any] = [plan.kind for plan in self.plans]
        mixes = [
            ensemble_mix(kind, plan.flat(own))
            for kind, plan, own in zip(kinds, self.plans, sums, strict=True)
        ]
        both = zip(*mixes, strict=True)
        share, correlation = (least_to_most(np.concatenate(each)) for each in both)
        tied = f", jointly over {', '.join(self.spread.tied)}" if self.spread.tied else ""
        return (
            f"ensemble of {kinds[0].members}, shrinkage {share} towards a correlation of "
            f"{correlation}{tied}"
        )

    def finished(
        self, new: Mapping[str, Sequence[xr.Variable]], report: Report | None = None
    ) -> xr.Dataset:
        """A copy of the dataset with the new values, a line of history and the report."""
        out = self.dataset.copy()
        stds = {name: std for plan in self.plans for name, std in plan.stds.items()}
        for name, (values, *spread) in new.items():
            out[name] = out.variables[name].copy(data=values.data)
            for each in spread:
                std = stds[name]
                old = out[std.place] if std.given is None else std.given
                out[std.place] = _like(each if std.factor == 1 else each / std.factor, old)
        line = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} probconserv {__version__}: enforced " + (
            "; ".join(f"{law.label} over {', '.join(law.dims)}" for law in self.laws)
        )
        before = out.attrs.get("history")
        history = f"{before}\n{line}" if isinstance(before, str) and before else line
        told = {} if report is None else {REPORT: report.json()}
        return out.assign_attrs({"history": history, **told})


def _like(new: xr.Variable, old: Any) -> xr.Variable:
    """With the attributes of the old variable, its order of axes and how it is stored."""
    encoding = old.encoding
    if set(old.dims) == set(new.dims):
        new = new.transpose(*old.dims)
    else:
        encoding = {key: each for key, each in encoding.items() if key not in OF_SHAPE}
    return xr.Variable(new.dims, new.data, old.attrs, encoding)


def is_whole(plan: FilePlan) -> bool:
    """Whether every block holds all points of its indices, so that it need not be read twice."""
    (arrays, *others), (rows, *_) = plan.arrays.values(), plan.rows.values()
    given = [*arrays, *(each for law in rows.laws for each in (law.weights, law.labels))]
    cut = [each.chunksizes for each in given if isinstance(each, xr.Variable)]
    return not others and not any(len(c.get(dim, ())) > 1 for c in cut for dim in rows.points)


def first_pass(plan: FilePlan) -> dict[str, Any]:
    """The sums over all points of every variable, now or lazily."""
    return _pass(plan, {name: _block_work(plan, name) for name in plan.arrays}, "statistics", {})


def _pass(
    plan: FilePlan, works: Mapping[str, BlockWork], method: str, steps: Sums
) -> dict[str, Any]:  # (*index, ...) of each
    return {name: _mapped(plan, name, work, method, steps)[1] for name, work in works.items()}


def _mapped(plan: FilePlan, name: str, work: BlockWork, method: str, steps: Sums) -> Any:
    dtypes = work.dtypes if method in ("update", "all") else ()
    return plan.rows[name].mapped(partial(work.run, method), plan.arrays[name], dtypes, steps)


def _block_work(
    plan: FilePlan, name: str, watched: bool = False, stored: bool = False
) -> BlockWork:
    arrays, bounds = plan.arrays[name], None
    if plan.is_bounded:
        known = isinstance(plan.kind, Ensemble) or plan.kind.knows_std
        noise = ", `noise`" if known else ""
        low, high = (next_held(arrays[0], *end) for end in zip(plan.bounds, (1, -1), strict=True))
        bounds = ValueBounds(low, high, plan.laws[0].law.label, noise)
    return BlockWork(
        plan.kind,
        plan.places,
        bounds,
        plan.bounds,
        [array.dtype for array in arrays if array.dims],  # one number is no variable
        valid_limits(arrays[0]),
        Packing.of(arrays[0]),
        watched,
        stored and plan.kind.disjoint,
    )


def update(
    plan: FilePlan, watched: bool, stored: bool
) -> tuple[dict[str, tuple[xr.Variable, ...]], dict[str, list[Any]]]:
    """Of every variable the new arrays; the sums before, and the figures if they are watched.

    Where a block has all points of its indices it is read, solved and updated at once. Else all
    blocks are summed first, and read again for the update. Sums that are needed on the way are
    computed.
    """
    works = {name: _block_work(plan, name, watched, stored) for name in plan.arrays}
    steps: Any = {name: plan.side_by_side(name) for name in ("value", "noise")}
    steps["numbers"] = np.arange(prod(plan.lengths)).reshape(plan.lengths)
    seen: dict[str, list[Any]] = {name: [] for name in works}
    at_once = watched and is_whole(plan)
    if not at_once:
        seen = {name: [sums] for name, sums in compute(first_pass(plan)).items()}

        def total(method: str, steps: Sums) -> Sums:
            found = compute(_pass(plan, works, method, plan.shaped(steps)))
            return plan.flat(added(list(found.values())))

        first, *_ = works.values()
        together = plan.flat(added([sums for (sums,) in seen.values()]))
        steps = plan.shaped(first.solved(total, together, plan.flat(steps)))
    new = {}
    for name, work in works.items():
        found, figures = _mapped(plan, name, work, "all" if at_once else "update", steps)
        dims, all_dims = plan.arrays[name][0].dims, plan.rows[name].all
        new[name] = tuple(xr.Variable(all_dims, x).transpose(*dims) for x in found)
        seen[name] += [figures] * watched
    return new, seen
