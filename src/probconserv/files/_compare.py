"""`compare`: whether laws help, on forecasts in datasets and files whose truth is known."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import cached_property
from inspect import signature
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from ..support.errors import InputError, ProbConservError
from ..support.values import choice, samples
from ._attributes import Array, entry
from ._enforce import How
from ._graph import compute as computed
from ._graph import threads
from ._law import FileLaw, Recipe, listed, nearest
from ._plan import HOW, FilePlan, FileSpread, Ready
from ._series import Paths, from_file, opened_as_one, paths_of, with_files
from ._truth import GIVE, truth_of
from ._work import Work

if TYPE_CHECKING:
    from ..diagnostics.comparison import Comparison

NO_LAW = "no law"
TINY = np.finfo(float).tiny
SCORES = ("RMSE", "CRPS", "LL", "coverage_90")
PLAIN = ("uniform", "proportional")  # ways that need no uncertainty
DIGITS = (6, 9, 12, 15, 17)  # of times in words: as few as do
NEIGHBOURS = (
    "neighbouring entries of {} are not independent, so that standard errors are too small; "
    "`block` takes several as one"
)


def compare(
    dataset: xr.Dataset,
    truth: xr.Dataset | xr.DataArray,
    *laws: FileLaw | Recipe,
    functions: str | None = None,
    by: str | None = None,
    block: int = 1,
    how: How | Sequence[How] | None = None,
    **spread: Any,
) -> "Comparison":
    """Whether laws help, on forecasts whose truth is known: ways of `enforce` beside no law.

    Scores are means over the points that count and are missing in neither, weighted as the laws
    weight them. The CRPS is that of the normal with mean and standard deviation, or the fair one of
    members; with neither (or one number as `std`) it is the mean absolute error.

    Parameters
    ----------
    dataset : xarray.Dataset
        The forecasts, as a model gave them.
    truth : xarray.Dataset or DataArray
        What came true: variables of the same names, or the only one. Entries are found by
        coordinates. It may have one axis of dates in place of starts and lead times.
    *laws : FileLaw or recipe
        Those to be judged, together.
    functions : str
        The dimension that counts forecasts, such as the start of each: standard errors are over it.
    by : str
        The dimension that is kept apart; the time of the laws if it is not given.
    block : int
        How many neighbours along `functions` count as one function.
    how : str, or a sequence of these
        The ways to try, as in `enforce`. If it is not given: all that can be.
    **spread
        `std`, `member`, `correlation`, `shrinkage`, `jointly`, `minimum`, `maximum`, as in
        `enforce`.

    Returns
    -------
    Comparison
        `verdict` says it in words, `table` and `difference` in numbers; `by` is its time.

    Raises
    ------
    InputError
        As `enforce` does, or if the truth is not there at the places and times of the forecasts:
        it lacks some, has one twice, or has no number at any.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> true = xr.Dataset({"u": (("run", "x"), rng.random((20, 3)))})
    >>> lost = true - 0.3 * rng.random((20, 1))
    >>> law = FileLaw("u", "x", total=true["u"].sum("x"), measure=1.0)
    >>> compare(lost, true, law, functions="run").difference("uniform").answer
    'helps'
    """
    asked = _Asked(functions, by, samples(block, "block"), how)
    return _compared(dataset, truth, laws, _spread(compare, spread), asked)


def compare_file(
    source: Paths,
    truth: Paths,
    *laws: FileLaw | Recipe,
    functions: str | None = None,
    by: str | None = None,
    block: int = 1,
    how: How | Sequence[How] | None = None,
    group: str = "",
    chunks: Mapping[str, int] | None = None,
    workers: int | None = None,
    **spread: Any,
) -> "Comparison":
    """Whether laws help, on forecasts in a file, with the truth in another.

    Data need not fit in memory: blocks are read once or twice for each way. Scores take some 1 GB
    for each worker, and less with smaller `chunks`.

    Parameters
    ----------
    source : as in `enforce_file`
    truth : str, path, or a sequence of these
        The file of the truth; "analysis.nc:t2m" for a variable of another name.
    *laws, functions, by, block, how : as in `compare`
    group, chunks, workers : as in `enforce_file`; `group` and `chunks` are of the source
    **spread
        As in `compare`.

    Returns
    -------
    Comparison
        As `compare` does.

    Raises
    ------
    InputError
        As `compare` does; also if a file cannot be read.
    """
    asked, way = _Asked(functions, by, samples(block, "block"), how), _spread(compare_file, spread)
    with threads(workers), ExitStack() as opened:
        dataset = opened_as_one(paths_of(source), opened, group, chunks, way.member)
        known: Any = from_file(truth, "truth", opened)
        if isinstance(known, str | PathLike | list | tuple):
            known = opened_as_one(paths_of(known), opened, "", None, None)
        return _compared(dataset, known, *with_files(laws, way, opened), asked)


def _spread(of: Callable[..., Any], given: Mapping[str, Any]) -> FileSpread:
    known = [field.name for field in fields(FileSpread)]
    for name in given:
        if name not in known:
            own = [p.name for p in signature(of).parameters.values() if p.kind is p.KEYWORD_ONLY]
            options = dict.fromkeys([*own, *known])
            raise InputError(f"`{of.__name__}` has no option {name!r}. {nearest(name, options)}")
    return FileSpread(**given)


@dataclass(frozen=True)
class _Asked:
    """Which dimensions count functions and times, and the ways to try."""

    functions: Any
    by: str | None
    block: int
    how: How | Sequence[How] | None

    def __post_init__(self) -> None:
        hows = () if self.how is None else listed(self.how)
        for how in hows:
            choice("how", how, HOW)
        if self.how is not None and not hows:
            raise InputError(
                f"`how` names no way: give some of {', '.join(HOW)}, or leave it out for all."
            )

    def axes(self, ready: Ready, member: str | None) -> tuple[str, ...]:
        """Of functions, and of times if there is one."""
        field, dims = ready.points.first, ready.law.dims
        free = [str(d) for d in field.dims if d not in dims and d != member]
        if self.functions not in free:
            raise InputError(
                "`functions` must name the dimension that counts forecasts, which no law sums over;"
                f" got {self.functions!r}. {nearest(self.functions, free)} Of one series in time it"
                " is time: each entry then counts as a forecast."
            )
        if field.sizes[self.functions] <= self.block:
            raise InputError(
                f"`functions`: {self.functions!r} makes one function, of which nothing can be said."
                " Give two or more, better twenty, that the model was not trained on."
            )
        if self.by is not None:
            choice("by", self.by, [dim for dim in free if dim != self.functions])
        dim = self.by or ready.totals.time_of_rows
        return (self.functions,) if dim in (None, self.functions) else (self.functions, str(dim))

    def ways(self, given: FileSpread, laws: Sequence[FileLaw]) -> dict[str, FileSpread]:
        """How corrections are spread, by name."""
        if self.how is None:
            own = {"variance": given.std, "members": given.member}
            hows = [how for how, each in own.items() if each is not None]
            noisy = any(not isinstance(law.noise, int | float) or law.noise for law in laws)
            hows += [] if noisy else PLAIN  # these have no spread to weigh noise against
        else:
            hows = listed(self.how)
        bare = FileSpread(minimum=given.minimum, maximum=given.maximum)
        return {how: replace(bare if how in PLAIN else given, how=how) for how in hows}


def _compared(
    dataset: xr.Dataset,
    truth: Any,
    laws: Sequence[FileLaw | Recipe],
    spread: FileSpread,
    asked: _Asked,
) -> "Comparison":
    from ..diagnostics.comparison import Comparison, combined  # needs scipy

    given = 0.0 if spread.std is None and spread.member is None else spread.std
    judge = _Judge.of(Work.of(dataset, laws, FileSpread(given, spread.member)), truth, asked)
    scores, moves, said = judge.judged({})
    judge.check_known(scores)
    found, moved, failed, notes = {NO_LAW: scores}, {NO_LAW: moves}, {}, {NO_LAW: said}
    for name, way in asked.ways(spread, judge.work.laws).items():
        try:
            work = Work.of(dataset, laws, way)
            work.check_apart()
            found[name], moved[name], own = judge.judged(*work.updated(), work)
            notes[name] = [text for text in own if text not in said]
        except InputError:
            raise
        except ProbConservError as error:
            failed[name] = str(error)
    if judge.fields[1:]:
        names = [field.name for field in judge.fields]
        every = [k for k in SCORES if all(f"{name}: {k}" in scores for name in names)]
        found = combined(found, names, every)
    first = found[NO_LAW]
    return Comparison(
        {
            w: {k: _means(x, first[k], asked.block) for k, x in own.items()}
            for w, own in found.items()
        },
        {way: _sums(x, asked.block) for way, x in moved.items()},
        failed,
        {way: "; ".join(own) for way, own in notes.items() if own},
        judge.called(0)[:: asked.block],  # each block by its first
        judge.called(1),
        judge.remarks(asked.block),
    )


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

    @cached_property
    def size(self) -> xr.Variable:
        """What the points weigh together; NaN where none counts."""
        found = self.summed(xr.ones_like(self.truth))
        return found.where(found > 0)

    def average(self, x: xr.Variable) -> xr.Variable:
        return self.summed(x) / self.size

    def mean(self, values: xr.Variable) -> xr.Variable:
        values = values.astype(float)
        return values if self.member is None else values.mean(self.member)

    def scores(self, values: xr.Variable, std: xr.Variable | None) -> dict[str, xr.Variable]:
        away = self.truth - self.mean(values)
        found = {"RMSE": self.average(away**2) ** 0.5}
        if self.member is not None:
            return found | self._of_members(values, away)
        if std is None:
            return found | {"CRPS": self.average(abs(away))}
        return found | self._of_normal(away, std.astype(float))

    def _of_normal(self, away: xr.Variable, std: xr.Variable) -> dict[str, xr.Variable]:
        from scipy.special import ndtri

        wide = std.where(std > 0, 1.0)
        z = away / wide
        crps = wide * xr.apply_ufunc(_crps, z, dask="parallelized", output_dtypes=[float])
        log: Any = -(z**2) / 2 - np.log(wide) - math.log(2 * math.pi) / 2
        fixed = self.summed((std <= 0).astype(float))  # LL of these is infinite
        return {
            "CRPS": self.average(crps.where(std > 0, abs(away))),
            "LL": self.average(log).where(fixed == 0),
            "coverage_90": self.average((abs(away) <= ndtri(0.95) * std).astype(float)),
        }

    def _of_members(self, members: xr.Variable, away: xr.Variable) -> dict[str, xr.Variable]:
        """The fair CRPS; coverage of the t intervals that so many members allow."""
        from scipy.special import stdtrit

        n, members = members.sizes[self.member], members.astype(float)
        apart = xr.apply_ufunc(
            _mean_distance,
            members,
            input_core_dims=[[self.member]],
            dask="parallelized",
            dask_gufunc_kwargs={"allow_rechunk": True},
            output_dtypes=[float],
        )
        half = stdtrit(n - 1, 0.95) * math.sqrt(1 + 1 / n) * members.std(self.member, ddof=1)
        return {
            "CRPS": self.average(abs(members - self.truth).mean(self.member) - apart / 2),
            "coverage_90": self.average((abs(away) <= half).astype(float)),
        }

    def moves(self, values: xr.Variable) -> list[xr.Variable]:
        """Move times error, the squared move and the squared error, summed over points."""
        before = self.mean(self.values)
        move, error = self.mean(values) - before, self.truth - before
        return [self.summed(x) for x in (move * error, move**2, error**2)]


def _crps(z: Array) -> Array:
    """Of a standard normal, at z."""
    from scipy.special import ndtr

    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return np.asarray(z * (2 * ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))


def _mean_distance(members: Array) -> Array:
    """The mean of |u - u'| over all pairs along the last axis."""
    n = members.shape[-1]
    return np.asarray(np.sort(members, -1) @ (4 * np.arange(n) + 2 - 2 * n) / (n * (n - 1)))


@dataclass(frozen=True, eq=False)
class _Judge:
    """Scores of what ways make of a dataset."""

    work: Work
    fields: Sequence[_Field]
    axes: tuple[str, ...]
    said: tuple[str, ...]  # of the truth

    @classmethod
    def of(cls, work: Work, truth: Any, asked: _Asked) -> "_Judge":
        member = work.spread.member
        ready = [(plan, each) for plan in work.plans for each in plan.laws]
        axes, *others = dict.fromkeys(asked.axes(each, member) for _, each in ready)
        if others:
            raise InputError("`by` must be given: the laws have different times.")
        fields: dict[str, _Field] = {}
        said: list[str] = []
        for plan, each in ready:
            for name in each.points.fields.keys() - fields.keys():
                true, remarks = truth_of(truth, each.points.fields[name], member)
                fields[name] = _Field.of(plan, each, name, true, axes)
                said += remarks
        return cls(work, list(fields.values()), axes, tuple(said))

    def judged(
        self, new: Mapping[str, Any], seen: Any = None, work: Work | None = None
    ) -> tuple[dict[str, Array], Array, list[str]]:
        """Scores (n, T) and moves; what is implausible. new, seen: as `Work.updated` has them."""
        lazy: dict[str, xr.Variable] = {}
        arrays = {field.name: new.get(field.name, (field.values,)) for field in self.fields}
        for field in self.fields:
            values, *std = arrays[field.name]
            own = field.scores(values, std[0] if std else field.std)
            lazy |= {f"{self._prefix(field)}{name}": x for name, x in own.items()}
        moves = [field.moves(arrays[field.name][0]) for field in self.fields]
        after = replace(self.work, plans=[_holding(plan, arrays) for plan in self.work.plans])
        scores, moves, sums, seen = computed((lazy, moves, after.summed(), seen))
        report = after.report(sums)
        for i, budget in enumerate(report.budgets):
            off = abs(budget.gap()).variable
            name = f"CE {budget.name}"
            name += f" {i + 1}" * (name in scores)
            scores[name] = off.mean([dim for dim in off.dims if dim not in self.axes])
        parts = np.array([[self._numbers(x) for x in own] for own in moves])
        if len(parts) > 1:  # of several units
            parts = parts / np.maximum(parts[:, 2:].sum((1, 2, 3), keepdims=True), TINY)
        told = report if work is None else work.report(seen)
        found = {name: self._numbers(x) for name, x in scores.items()}
        return found, parts.sum(0), list(told.warnings)

    def check_known(self, scores: Mapping[str, Array]) -> None:
        """Whether each variable has a point to score."""
        for field in self.fields:
            if np.isnan(scores[f"{self._prefix(field)}RMSE"]).all():
                raise InputError(
                    f"`truth` of `{field.name}` has no number where the forecasts have one, at the "
                    f"points that count. {GIVE}"
                )

    def _prefix(self, field: _Field) -> str:
        return f"{field.name}: " if self.fields[1:] else ""

    def _numbers(self, x: xr.Variable) -> Array:
        """(n, T)."""
        shape = {dim: self.work.dataset.sizes[dim] for dim in self.axes}
        wide = x.set_dims({**shape, **x.sizes}).transpose(*self.axes)
        return np.asarray(wide.values, float).reshape(shape[self.axes[0]], -1)

    def called(self, axis: int) -> tuple[str, ...]:
        """The names of functions or of times."""
        first = self.work.plans[0].laws[0].points.first
        dims = self.axes[axis : axis + 1]
        return tuple(name for dim in dims for name in _called(first, dim))

    def remarks(self, block: int) -> tuple[str, ...]:
        """What scores were weighted with, what was found or assumed, and how far they go."""
        ready = [each for plan in self.work.plans for each in plan.laws]
        said = [f"{each.law.label}: weights: {each.points.measure}" for each in ready]
        said += [*(text for each in ready for text in each.remarks), *self.said]
        if block == 1 and self.axes[0] in (each.totals.time_of_rows for each in ready):
            said.append(NEIGHBOURS.format(self.axes[0]))
        return tuple(dict.fromkeys(said))


def _holding(plan: FilePlan, arrays: Mapping[str, Any]) -> FilePlan:
    """The same rows and totals, of other values."""
    held = {name: (arrays[name][0], *own[1:]) for name, own in plan.arrays.items()}
    return replace(plan, arrays=held)


def _called(field: xr.DataArray, dim: str) -> list[str]:
    """The entries of a dimension in words, with as many digits as tell them apart."""
    if dim not in field.coords:
        return [f"{dim} number {i}" for i in range(field.sizes[dim])]
    names: list[str] = []
    for digits in DIGITS:
        names = [f"{dim} {entry(field[dim], value, digits)}" for value in field[dim].values]
        if len(set(names)) == len(names):
            return names
    return [f"{name}, number {i}" for i, name in enumerate(names)]


def _sums(x: Array, block: int) -> Array:
    """Over blocks of functions, (..., n, T)."""
    return np.add.reduceat(x, np.arange(0, x.shape[-2], block), -2)


def _means(x: Array, base: Array, block: int) -> Array:
    """Over blocks of functions, of what is known with no law; NaN where a way has lost a part."""
    known = ~np.isnan(base)
    number = _sums(1.0 * known, block)
    return _sums(np.where(known, x, 0.0), block) / np.where(number > 0, number, np.nan)
