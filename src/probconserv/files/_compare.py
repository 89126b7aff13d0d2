"""`compare`: whether laws help, on forecasts in datasets and files whose truth is known."""

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from ..support.errors import InputError, ProbConservError
from ..support.values import choice, samples
from ._attributes import Array, decoded, is_decoded, shown, units
from ._enforce import How, Std
from ._graph import compute as computed
from ._graph import threads
from ._law import FileLaw, Recipe, nearest
from ._plan import HOW, FilePlan, FileSpread, Ready
from ._series import Paths, from_file, opened_as_one, paths_of, with_files
from ._truth import truth_of
from ._work import Work

if TYPE_CHECKING:
    from ..diagnostics.comparison import Comparison

NO_LAW = "no law"
SCORES = ("RMSE", "CRPS", "LL", "coverage_50", "coverage_90", "coverage_99")
PLAIN = ("uniform", "proportional")  # ways that need no uncertainty
NEIGHBOURS = (
    "entries along {} that are neighbours are not independent: standard errors are too small. "
    "`block` takes several as one."
)


def compare(
    dataset: xr.Dataset,
    truth: xr.Dataset | xr.DataArray,
    *laws: FileLaw | Recipe,
    functions: str | None = None,
    by: str | None = None,
    block: int = 1,
    how: How | Sequence[How] | None = None,
    std: Std = None,
    member: str | None = None,
    correlation: float = 0.0,
    shrinkage: float | None = None,
    jointly: str | Sequence[str] = (),
    minimum: float | None = None,
    maximum: float | None = None,
) -> "Comparison":
    """Whether laws help, on forecasts whose truth is known: each way of `enforce` beside no law.

    Each way is that of `enforce`. Scores are means over the points that count and are missing in
    neither, with the weights of the law. The CRPS is that of the normal with mean and standard
    deviation, or the fair one of members; with neither (or with one number as `std`) it is the mean
    absolute error.

    Parameters
    ----------
    dataset : xarray.Dataset
        The forecasts, as a model gave them.
    truth : xarray.Dataset or DataArray
        What came true: variables of the same names, or the only one. Entries are found by
        coordinates. It may have one axis of dates in place of starts and lead times.
    *laws : FileLaw or recipe
        Those to be judged.
    functions : str
        The dimension that counts forecasts (the start of each), over which standard errors are.
    by : str
        The dimension that is kept apart; the time of the laws if it is not given.
    block : int
        How many neighbours along `functions` count as one function.
    how : str, or a sequence of these
        The ways to try, as in `enforce`. If it is not given: all that can be, and the first of them
        for each of several laws alone.
    std, member, correlation, shrinkage, jointly, minimum, maximum : as in `enforce`

    Returns
    -------
    Comparison
        `verdict` says it in words, `table` and `difference` in numbers; ``by="time"`` is by `by`.

    Raises
    ------
    InputError
        As `enforce` does, or if the truth is not there at the places and times of the forecasts.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> true = xr.Dataset({"u": (("run", "x"), rng.random((20, 3)))})
    >>> lost = true - 0.3 * rng.random((20, 1))
    >>> law = FileLaw("u", "x", total=true["u"].sum("x"), measure=1.0)
    >>> compare(lost, true, law, functions="run").difference("uniform").answer
    'helps'
    """
    spread = FileSpread(std, member, correlation, shrinkage, jointly, None, minimum, maximum)
    hows = [how] if isinstance(how, str) else how
    return _compared(dataset, truth, laws, spread, hows, _Axes(functions, by, block))


def compare_file(
    source: Paths,
    truth: Paths,
    *laws: FileLaw | Recipe,
    functions: str | None = None,
    by: str | None = None,
    block: int = 1,
    how: How | Sequence[How] | None = None,
    std: Std = None,
    member: str | None = None,
    correlation: float = 0.0,
    shrinkage: float | None = None,
    jointly: str | Sequence[str] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    group: str = "",
    chunks: Mapping[str, int] | None = None,
    workers: int | None = None,
) -> "Comparison":
    """Whether laws help, on forecasts in a file, with the truth in another.

    Files are read block by block, twice for each way.

    Parameters
    ----------
    source : as in `enforce_file`
    truth : str, path, or a sequence of these
        The file of the truth; "analysis.nc:t2m" for a variable of another name.
    *laws, functions, by, block, how, std, member, correlation, shrinkage, jointly, minimum, \
maximum : as in `compare`
    group, chunks, workers : as in `enforce_file`; those of `source`

    Returns
    -------
    Comparison
        As `compare` does.

    Raises
    ------
    InputError
        As `compare` does; also if a file cannot be read.
    """
    spread = FileSpread(std, member, correlation, shrinkage, jointly, None, minimum, maximum)
    hows = [how] if isinstance(how, str) else how
    with threads(workers), ExitStack() as opened:
        dataset = opened_as_one(paths_of(source), opened, group, chunks, member)
        known: Any = from_file(truth, "truth", opened)
        if isinstance(known, str | PathLike | list | tuple):
            known = opened_as_one(paths_of(known), opened, "", None, None)
        laws_, spread = with_files(laws, spread, opened)
        return _compared(dataset, known, laws_, spread, hows, _Axes(functions, by, block))


@dataclass(frozen=True)
class _Axes:
    """Which dimensions count functions and times."""

    functions: Any
    by: str | None
    block: int

    def of(self, ready: Ready, member: str | None) -> tuple[str, ...]:
        """Functions, and times if there are some."""
        samples(self.block, "block")
        field, law = ready.points.first, ready.law
        free = [str(d) for d in field.dims if d not in law.dims and d != member]
        if self.functions not in free:
            known = nearest(self.functions, free)
            raise InputError(
                "`functions` must name the dimension that counts forecasts, which no law sums over;"
                f" got {self.functions!r}. {known} Where there is one series in time, its own "
                "dimension takes each time as a function."
            )
        if field.sizes[self.functions] <= self.block:
            raise InputError(
                f"`functions`: {self.functions!r} makes one function, of which nothing can be "
                "said. Give two or more, better twenty, held out from what the model learned from."
            )
        if self.by is not None:
            choice("by", self.by, [dim for dim in free if dim != self.functions])
        dim = self.by or ready.totals.time_of_rows
        return (self.functions,) if dim in (None, self.functions) else (self.functions, str(dim))


def _compared(
    dataset: xr.Dataset,
    truth: Any,
    laws: Sequence[FileLaw | Recipe],
    spread: FileSpread,
    hows: Sequence[How] | None,
    asked: _Axes,
) -> "Comparison":
    from ..diagnostics.comparison import Comparison, combined  # needs scipy

    if not isinstance(truth, xr.Dataset | xr.DataArray):
        raise InputError(f"`truth` must be a dataset or an array; got {type(truth).__name__}.")
    known = decoded(dataset) if isinstance(dataset, xr.Dataset) else dataset
    made: list[Any] = [law(known) if callable(law) else law for law in laws]
    given = 0.0 if spread.std is None and spread.member is None else spread.std
    base = Work.of(dataset, made, FileSpread(given, spread.member))
    judge = _Judge.of(base, truth, asked)
    scores, moves, said = judge.judged({})
    found, moved, failed, notes = {NO_LAW: scores}, {NO_LAW: moves}, {}, {NO_LAW: said}
    for name, (some, way) in _ways(made, spread, hows).items():
        try:
            work = Work.of(dataset, some, way)
            work.check_apart()
            found[name], moved[name], own = judge.judged(*work.updated(), work)
            notes[name] = [text for text in own if text not in said]
        except InputError:
            raise
        except ProbConservError as error:
            failed[name] = str(error)
    names = [field.name for field in judge.fields]
    if len(names) > 1:
        every = [{k.removeprefix(f"{name}: ") for k in scores} for name in names]
        found = combined(found, names, [k for k in SCORES if all(k in each for each in every)])
    return Comparison(
        {
            way: {k: _in_blocks(x, asked.block) for k, x in own.items()}
            for way, own in found.items()
        },
        {way: _added(x, asked.block) for way, x in moved.items()},
        failed,
        {way: "; ".join(own) for way, own in notes.items() if own},
        judge.called(0)[:: asked.block],  # each block by its first
        judge.called(1),
        judge.remarks(asked.block),
    )


def _ways(
    laws: Sequence[FileLaw], given: FileSpread, hows: Sequence[How] | None
) -> dict[str, tuple[Sequence[FileLaw], FileSpread]]:
    """By name the laws and the spread of each way."""
    own = {"variance": given.std, "members": given.member}
    usual = [how for how, each in own.items() if each is not None]
    if not any(not isinstance(law.noise, int | float) or law.noise for law in laws):
        usual += PLAIN  # these know no spread to weigh noise against
    chosen: Sequence[Any] = usual if hows is None else hows
    bare = FileSpread(minimum=given.minimum, maximum=given.maximum)
    ways: dict[str, tuple[Sequence[FileLaw], FileSpread]] = {}
    for how in chosen:
        choice("how", how, HOW)
        ways[how] = laws, replace(bare if how in PLAIN else given, how=how)
    if hows is None and usual and len(laws) > 1:
        first = ways[usual[0]][1]
        for name, law in _named(laws).items():
            std = first.std
            if isinstance(std, Mapping):
                std = {key: each for key, each in std.items() if key in law.factors}
            ways[f"{usual[0]} on {name}"] = [law], replace(first, std=std)
    return ways


def _named(laws: Sequence[FileLaw]) -> dict[str, FileLaw]:
    """By their labels; with a number where two have the same."""
    labels = [law.label for law in laws]
    return {
        label if labels.count(label) == 1 else f"{label} {i + 1}": law
        for i, (label, law) in enumerate(zip(labels, laws, strict=True))
    }


@dataclass(frozen=True, eq=False)
class _Field:
    """A variable, what came true of it, and what each point counts."""

    name: str
    values: xr.Variable  # or members
    std: xr.Variable | None
    truth: xr.Variable
    counts: xr.Variable  # weights of the law, 0 where something is missing
    axes: tuple[str, ...]
    member: str | None

    @classmethod
    def of(
        cls, plan: FilePlan, ready: Ready, name: str, truth: xr.Variable, axes: tuple[str, ...]
    ) -> "_Field":
        values, *others = plan.arrays[name]
        std = next((each for each in others if each.dims), None)
        there: Any = np.isfinite(truth) & np.isfinite(values if std is None else values + std)
        there = there.all(plan.member) if plan.member in there.dims else there
        counts = abs(ready.points.weights[name]) * there
        return cls(name, values, std, truth, counts, axes, plan.member)

    def summed(self, x: xr.Variable) -> xr.Variable:
        """The sum over the points of each function and time."""
        x = x.where(self.counts > 0, 0.0) * self.counts
        return x.sum([dim for dim in x.dims if dim not in self.axes]).transpose(*self.axes)

    def average(self, x: xr.Variable) -> xr.Variable:
        size = self.summed(xr.ones_like(self.truth))
        return self.summed(x) / size.where(size > 0)

    def mean(self, values: xr.Variable) -> xr.Variable:
        return values.astype(float).mean(self.member) if self.member in values.dims else values

    def scores(self, values: xr.Variable, std: xr.Variable | None) -> dict[str, xr.Variable]:
        away = self.truth - self.mean(values)
        found = {"RMSE": self.average(away**2) ** 0.5}
        if self.member is not None:
            return found | self._of_members(values, away)
        if std is None:
            return found | {"CRPS": self.average(abs(away))}
        return found | self._of_normal(away, std)

    def _of_normal(self, away: xr.Variable, std: xr.Variable) -> dict[str, xr.Variable]:
        from scipy.special import ndtr

        moves = std > 0
        wide = std.where(moves, 1.0).astype(float)
        z = away / wide
        density: Any = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
        crps = wide * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))
        spread = self.summed((~moves).astype(float)) == 0
        log: Any = -(z**2) / 2 - np.log(wide) - math.log(2 * math.pi) / 2
        found = {
            "CRPS": self.average(crps.where(moves, abs(away))),
            "LL": self.average(log).where(spread),
        }
        return found | self._coverage(away, std, math.inf)

    def _of_members(self, members: xr.Variable, away: xr.Variable) -> dict[str, xr.Variable]:
        """The fair CRPS; coverage of the t intervals that so many members allow."""
        n = members.sizes[self.member]
        off = abs(members.astype(float) - self.truth).mean(self.member)
        apart = xr.apply_ufunc(
            _mean_distance,
            members.astype(float),
            input_core_dims=[[self.member]],
            dask="parallelized",
            dask_gufunc_kwargs={"allow_rechunk": True},
            output_dtypes=[float],
        )
        std = members.astype(float).std(self.member, ddof=1) * math.sqrt(1 + 1 / n)
        return {"CRPS": self.average(off - apart / 2)} | self._coverage(away, std, n - 1)

    def _coverage(self, away: xr.Variable, std: xr.Variable, degrees: float) -> Any:
        from scipy.special import stdtrit

        found = {}
        for name in SCORES[3:]:
            end = stdtrit(min(degrees, 1e9), (1 + int(name.split("_")[1]) / 100) / 2)
            found[name] = self.average((abs(away) <= end * std).astype(float))
        return found

    def moves(self, values: xr.Variable) -> list[xr.Variable]:
        """Move times error, the squared move and the squared error, summed over points."""
        before = self.mean(self.values).astype(float)
        move, error = self.mean(values) - before, self.truth - before
        return [self.summed(x) for x in (move * error, move**2, error**2)]


def _mean_distance(members: Array) -> Array:
    """The mean of |u - u'| over all pairs along the last axis."""
    n = members.shape[-1]
    ranks = 2 * np.arange(1, n + 1) - n - 1
    return np.asarray(2 * np.sort(members, -1) @ ranks / (n * (n - 1)))


@dataclass(frozen=True, eq=False)
class _Judge:
    """Scores of what ways make of a dataset."""

    work: Work
    fields: Sequence[_Field]
    axes: tuple[str, ...]
    said: tuple[str, ...]  # of the truth

    @classmethod
    def of(cls, work: Work, truth: Any, asked: _Axes) -> "_Judge":
        ready = [(plan, each) for plan in work.plans for each in plan.laws]
        axes = {asked.of(each, work.spread.member) for _, each in ready}
        if len(axes) > 1:
            raise InputError("`by` must be given: the laws are of several times.")
        (own,) = axes
        fields: dict[str, _Field] = {}
        said: list[str] = []
        for plan, each in ready:
            for name in [name for name in each.points.fields if name not in fields]:
                like = each.points.fields[name]
                true, remarks = truth_of(truth, like, work.spread.member)
                fields[name] = _Field.of(plan, each, name, true, own)
                said += remarks
        return cls(work, list(fields.values()), own, tuple(said))

    def judged(
        self, new: Mapping[str, Any], seen: Any = None, work: Work | None = None
    ) -> tuple[dict[str, Array], Array, list[str]]:
        """Scores and moves, (n, T) each, and what is implausible; new: as `Work.updated` has it."""
        arrays = {field.name: new.get(field.name, (field.values,)) for field in self.fields}
        scores: dict[str, xr.Variable] = {}
        for field in self.fields:
            prefix = f"{field.name}: " if len(self.fields) > 1 else ""
            values, *std = arrays[field.name]
            own = field.scores(values, std[0] if std else field.std)
            scores |= {f"{prefix}{name}": x for name, x in own.items()}
        moves = [field.moves(arrays[field.name][0]) for field in self.fields]
        plans = [self._with(plan, arrays) for plan in self.work.plans]
        after = replace(self.work, plans=plans)
        scores, moves, sums, seen = computed((scores, moves, after.summed(), seen))
        report = after.report(sums)
        found = {name: self._numbers(x) for name, x in scores.items()}
        laws = _named([ready.law for plan in plans for ready in plan.laws])
        for name, budget in zip(laws, report.budgets, strict=True):
            off = abs(budget.gap())
            off = off.mean([dim for dim in off.dims if dim not in self.axes])
            found[f"CE {name}"] = self._numbers(off.variable)
        told = report if work is None else work.report(seen)
        parts = np.array([[self._numbers(x) for x in own] for own in moves])
        if len(parts) > 1:  # of several units
            parts = parts / np.maximum(parts[:, 2].sum((1, 2)), 1e-300)[:, None, None, None]
        return found, parts.sum(0), list(told.warnings)

    def _with(self, plan: FilePlan, arrays: Mapping[str, Any]) -> FilePlan:
        kept = {name: (arrays[name][0], *own[1:]) for name, own in plan.arrays.items()}
        return replace(plan, arrays=kept)

    def _numbers(self, x: xr.Variable) -> Array:
        """(n, T)."""
        shape = {dim: self.work.dataset.sizes[dim] for dim in self.axes}
        wide = x.set_dims({**shape, **x.sizes}).transpose(*self.axes)
        return np.asarray(wide.values, float).reshape(shape[self.axes[0]], -1)

    def called(self, axis: int) -> tuple[str, ...]:
        """The names of functions or of times."""
        first = self.work.plans[0].laws[0].points.first
        dims = self.axes[axis : axis + 1]
        return tuple(_called(first, dim, i) for dim in dims for i in range(first.sizes[dim]))

    def remarks(self, block: int) -> tuple[str, ...]:
        """What scores were weighted with, what was found or assumed, and how far they go."""
        ready = [each for plan in self.work.plans for each in plan.laws]
        said = [f"{each.law.label}: weights: {each.points.measure}" for each in ready]
        said += [text for each in ready for text in each.remarks]
        said += self.said
        if block == 1 and self.axes[0] in (each.totals.time_of_rows for each in ready):
            said.append(NEIGHBOURS.format(self.axes[0]))
        return tuple(dict.fromkeys(said))


def _called(field: xr.DataArray, dim: str, i: int) -> str:
    """An entry of a dimension in words."""
    if dim not in field.coords:
        return f"{dim} number {i}"
    unit = "" if is_decoded(field[dim]) else units(field[dim])
    return f"{dim} {shown(field[dim].values[i])} {unit}".rstrip()


def _added(x: Array, block: int) -> Array:
    """Sums over blocks of functions, (..., n, T)."""
    return np.add.reduceat(x, np.arange(0, x.shape[-2], block), -2)


def _in_blocks(x: Array, block: int) -> Array:
    """Means over blocks of functions, of what is known."""
    known = ~np.isnan(x)
    number = _added(known.astype(float), block)
    return _added(np.where(known, x, 0.0), block) / np.where(number > 0, number, np.nan)
