"""A dataset and laws on their way through the passes, to new values and a report.

What the solve takes are sums over all points. Where a block has all points of its indices these are
sums over the block: it is read, solved and updated at once. Else all blocks are summed first, and
read again for the update. `_solve` is the same function for both; only `total` differs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from math import prod
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr

from .. import __version__
from .._errors import FAR, InputError
from .._sums import Kind, MeanAndStd, check_usable, is_hard, solved_rows
from ._attributes import decoded, least_to_most
from ._blocks import Block, BlockWork, Bounds
from ._cluster import compute
from ._encoding import NO_BOUNDS, Packing, next_held, valid_limits
from ._graph import Array, Made, Sums, added
from ._law import Law, Recipe, array
from ._plan import HOW, ONE_BY_ONE, Plan, Spread, plans, worst
from ._report import Budget, Report, budgets

SETTLING = 2  # times that exact rows are settled at most
REPORT = "probconserv_report"
ENSEMBLES = ("member", "members", "realization", "ensemble", "ensemble_member")
FEW = (
    "Members' totals differ by less than what was asked, and what so few say about distant points "
    "is chance; `how` 'uniform' moves all points alike"
)
OF_SHAPE = ("chunksizes", "chunks", "preferred_chunks", "shards", "original_shape", "contiguous")
INVALID = {
    "invalid_before": "lie outside the valid {} already",
    "invalid": "were pushed outside the valid {}",
}

Total = Callable[[str, Sums], Sums]  # the sums of a pass over all points, by its name; steps


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
        return cls(dataset, plans(decoded(dataset), laws, spread), spread)

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
    def _laws(self) -> list[Law]:
        return [ready.law for plan in self.plans for ready in plan.laws]

    @property
    def _names(self) -> list[str]:
        return [name for plan in self.plans for name in plan.arrays]

    @property
    def _packed(self) -> list[str]:
        return [name for name in self._names if Packing.of(self.dataset[name])]

    @property
    def _valid(self) -> dict[str, tuple[float, float]]:
        found = {name: valid_limits(self.dataset[name]) for name in self._names}
        return {name: ends for name, ends in found.items() if ends is not None}

    @property
    def first(self) -> list[Any]:
        return [first_pass(plan) for plan in self.plans]

    def updated(
        self, watch: bool = True, store: bool = False
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Of every system the arrays after the update, the sums before, and what was seen.

        watch: look at the new values, which takes them as computed. store: they will be, so that
        packed integers are rounded to keep the totals.
        """
        found = []
        for plan in self.plans:
            new, sums, figures = update(plan, watch, store)
            left = {}
            for law in (ready.law for ready in plan.laws if ready.law.linear and watch):
                (name,) = law.factors
                ends = (array(self.dataset, e, "linear", self.dataset[name]) for e in law.linear)
                left[name] = _outside(new[name][0], *(end.variable for end in ends))
            found.append((new, sums, {"figures": figures, "left": left}))
        new_, sums_, seen_ = (list(each) for each in zip(*found, strict=True))
        return new_, sums_, seen_

    @property
    def invalid(self) -> dict[str, Any]:
        """Of each variable with a valid range, how many values lie outside."""
        known = ((name, self.dataset[name].variable, ends) for name, ends in self._valid.items())
        return {name: {"invalid_before": _outside(values, *ends)} for name, values, ends in known}

    def report(
        self, sums: Any, after: Any = None, invalid: Any = None, change: Any = None
    ) -> Report:
        """after: of `updated`. invalid: of the property, where nothing is updated."""
        found: list[Budget] = []
        moves: dict[str, Any] = {}
        parts = [added(list(own.values())) for own in sums]  # of all variables of a system
        for plan, own, seen in zip(self.plans, parts, after or [None] * len(parts), strict=True):
            if seen is not None:
                own["after"] = sum(each["after"] for each in seen["figures"].values())
                left = {name: {"left": count} for name, count in seen["left"].items()}
                moves |= {name: f | left.get(name, {}) for name, f in seen["figures"].items()}
            found += budgets(plan, own)
        outside, before = (
            {name: int(m[key].sum()) for name, m in moves.items() if m[key].any()}
            for key in ("outside", "outside_before")
        )
        warnings = [text for budget in found for text in budget.warnings]
        for name, figures in (moves or invalid or {}).items():
            warnings += self._implausible(name, figures)
        report = Report(
            tuple(found),
            self._method(parts),
            self.spread.minimum,
            self.spread.maximum,
            before,
            outside,
            {name: float(m["change"].max()) for name, m in moves.items()},
            {name: float(m["in_std"].max()) for name, m in moves.items() if self.spread.knows_std},
            warnings=tuple(warnings),
            change=change or {},
        )
        lacking = sum(int(np.sum(own.get("lacking", 0))) for own in parts)
        return replace(report, notes=tuple(self._notes(report, moves, lacking)))

    def _notes(self, report: Report, moves: Mapping[str, Any], lacking: int) -> Iterator[str]:
        if lacking:
            yield (
                f"values that some members lack: {lacking}. They count in no member's total, and "
                "stay as they are in the others."
            )
        packed, number = self._packed, self.spread.member is None
        if packed and report.is_done and not report.closes(after=True):
            yield (
                f"{', '.join(packed)} packed into integers: rounding to them opens the "
                "budget again. Write floats with `unpack` to keep it closed."
            )
        stds = [std for plan in self.plans if plan.is_bounded for std in plan.stds.values()]
        if report.is_done and any(std.values.dims for std in stds):
            yield "the new standard deviations are those without bounds"
        for dim in dict.fromkeys(dim for plan in self.plans for dim in plan.index if number):
            if dim.lower() in ENSEMBLES:
                yield f"{dim!r} looks like an ensemble; as `member` it gives the uncertainty."
        for name, figures in moves.items():
            least = -float(figures["below"].max())
            if least < 0 and not (figures["below_before"] > 0).any():
                yield (
                    f"values of {name} were pushed below 0, to {least:.3g}; none was before. "
                    "`minimum=0` holds them, `how='proportional'` keeps signs."
                )

    def _implausible(self, name: str, found: Mapping[str, Any]) -> Iterator[str]:
        """What is implausible about the values of a variable."""
        counts = {each: int(np.sum(found.get(each, 0))) for each in (*INVALID, "left", "far")}
        low, high = self._valid.get(name, (0.0, 0.0))
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
            coords = {dim: self.dataset[dim] for dim in index if dim in self.dataset.coords}
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
        from .._sums_solve import ensemble_mix

        kinds: list[Any] = [plan.kind for plan in self.plans]
        mixes = [
            ensemble_mix(kind, plan.flat(own))
            for kind, plan, own in zip(kinds, self.plans, sums, strict=True)
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
                    std = plan.stds[name]
                    values = arrays[1] if std.factor == 1 else arrays[1] / std.factor
                    old = out[std.place] if std.given is None else std.given
                    out[std.place] = _like(values, old)
        line = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} probconserv {__version__}: enforced " + (
            "; ".join(f"{law.label} over {', '.join(law.dims)}" for law in self._laws)
        )
        before = out.attrs.get("history")
        history = f"{before}\n{line}" if isinstance(before, str) and before else line
        told = {} if report is None else {REPORT: report.json()}
        return out.assign_attrs({"history": history, **told})


def _outside(values: xr.Variable, low: Any, high: Any) -> Any:
    """How many values are outside."""
    return ((values < low) | (values > high)).sum().data


def _like(new: xr.Variable, old: Any) -> xr.Variable:
    """With the attributes of the old variable, its order of axes and how it is stored."""
    encoding = old.encoding
    if set(old.dims) == set(new.dims):
        new = new.transpose(*old.dims)
    else:
        encoding = {key: each for key, each in encoding.items() if key not in OF_SHAPE}
    return xr.Variable(new.dims, new.data, old.attrs, encoding)


def _solve(work: BlockWork, total: Total, sums: Sums, given: Sums) -> Sums:
    """What the update needs: the steps of the solve, and lambda that holds values within bounds.

    Nearly dependent rows are settled: the totals after the update are summed, and what exact rows
    miss is moved as well. given: b, its noise and the numbers of the indices.
    """
    value, noise = given["value"], given["noise"]
    with work.places.named(given["numbers"]):
        steps = _solved(work.kind, sums, value, noise)
        for _ in range(SETTLING):
            if len(work.kind.laws) == 1 or not is_hard(steps["least"]).any():
                break  # one row depends on no other
            from .._sums_solve import settled  # needs torch

            steps = settled(work.kind, steps, sums, total("after", steps), value, noise)
        if work.bounds is not None:
            seen = total("survey", steps)
            steps["tilt"] = work.bounds.tilts(
                lambda tilt: total("line", steps | {"tilt": tilt}), seen
            )
    return steps


def _solved(kind: Kind, sums: Sums, *given: Array) -> dict[str, Array]:
    check_usable(sums)
    if isinstance(kind, MeanAndStd) and kind.is_rowwise:
        return solved_rows(kind, sums, *given)
    from .._sums_solve import solved  # needs torch

    return solved(kind, sums, *given)


def is_whole(plan: Plan) -> bool:
    """Whether every block holds all points of its indices, so that it need not be read twice."""
    (arrays, *others), (rows, *_) = plan.arrays.values(), plan.rows.values()
    weights = (each for law in rows.laws for each in (law.weights, law.labels) if each is not None)
    cut = (each.chunksizes.get(dim, ()) for each in (*arrays, *weights) for dim in rows.points)
    return not others and all(len(sizes) < 2 for sizes in cut)


def is_lazy(plan: Plan) -> bool:
    """Whether some array is dask's, so that nothing large may be computed unasked."""
    return any(
        isinstance(each.data, da.Array) for arrays in plan.arrays.values() for each in arrays
    )


def first_pass(plan: Plan) -> dict[str, Any]:
    """The sums over all points of every variable, now or lazily."""
    return _pass(plan, {name: _block_work(plan, name) for name in plan.arrays}, "statistics", {})


def _pass(
    plan: Plan, works: Mapping[str, BlockWork], method: str, steps: Sums
) -> dict[str, Any]:  # (*index, ...) of each
    found = {}
    for name, work in works.items():
        call = partial(_only_sums, work, method)
        _, found[name] = plan.rows[name].mapped(call, plan.arrays[name], steps=steps)
    return found


def _only_sums(work: BlockWork, method: str, *given: Any) -> Made:
    *arrays, rows, steps = given
    return (), work.sums(method, Block.of(rows, *arrays), steps)


def _updated(work: BlockWork, *given: Any) -> Made:
    *arrays, rows, steps = given
    return work.updated(Block.of(rows, *arrays), steps, *arrays)


def _block_work(plan: Plan, name: str, watched: bool = False, stored: bool = False) -> BlockWork:
    arrays, bounds = plan.arrays[name], None
    if plan.is_bounded:
        low, high = (next_held(arrays[0], *end) for end in zip(plan.bounds, (1, -1), strict=True))
        bounds = Bounds(low, high, plan.laws[0].law.label)
    return BlockWork(
        plan.kind,
        plan.places,
        bounds,
        plan.bounds,
        [array.dtype for array in arrays if array.dims],  # one number is no variable
        valid_limits(arrays[0]) or NO_BOUNDS,
        Packing.of(arrays[0]),
        watched,
        stored and plan.kind.disjoint,
    )


def _at_once(work: BlockWork, *given: Any) -> Made:
    """A block with all points of its indices: what `updated` makes, with the statistics."""
    *arrays, rows, known = given
    block = Block.of(rows, *arrays)
    sums = work.sums("statistics", block, {})
    steps = _solve(work, lambda method, steps: work.sums(method, block, steps), sums, known)
    new, figures = work.updated(block, steps, *arrays)
    return new, {**sums, **figures}


def update(
    plan: Plan, watched: bool, stored: bool
) -> tuple[dict[str, tuple[xr.Variable, ...]], dict[str, Any], dict[str, Any]]:
    """Of every variable the new arrays, the sums before, and the figures if they are watched.

    Sums that are needed on the way, if one pass is not enough, are computed.
    """
    works = {name: _block_work(plan, name, watched, stored) for name in plan.arrays}
    numbers = np.arange(prod(plan.lengths)).reshape(plan.lengths)
    steps: Any = {name: plan.side_by_side(name) for name in ("value", "noise")}
    steps["numbers"] = numbers
    sums: dict[str, Any] = {}
    at_once = watched and is_whole(plan)
    if not at_once:
        sums = compute(first_pass(plan))

        def total(method: str, steps: Sums) -> Sums:
            found = compute(_pass(plan, works, method, plan.shaped(steps)))
            return plan.flat(added(list(found.values())))

        first, *_ = works.values()
        together = plan.flat(added(list(sums.values())))
        steps = plan.shaped(_solve(first, total, together, plan.flat(steps)))
    new, figures = {}, {}
    for name, work in works.items():
        rows, arrays = plan.rows[name], plan.arrays[name]
        call = partial(_at_once if at_once else _updated, work)
        found, figures[name] = rows.mapped(call, arrays, work.dtypes, steps)
        named = (xr.Variable(rows.all, data).transpose(*arrays[0].dims) for data in found)
        new[name] = tuple(named)
    return new, figures if at_once else sums, figures
