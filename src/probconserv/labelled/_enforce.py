"""`enforce`, `check` and `totals` of a dataset, also as `dataset.probconserv`, and of files.

Names in laws may lie in other files, and many files that follow one another are one series.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from glob import glob
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xarray as xr

from .._errors import InputError, ProbConservError
from ._attributes import shown
from ._cluster import cluster, compute
from ._encoding import Packing, without_packing
from ._law import STORES, Given, Law, Recipe, find, listed, nearest
from ._plan import Spread
from ._read import SMALL, groups, read
from ._report import Report
from ._work import REPORT, Work, is_lazy
from ._write import check_output, write

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]
How = Literal["uniform", "proportional", "variance", "members"]
Std = Given | Mapping[str, Given] | None


def enforce(
    dataset: xr.Dataset,
    *laws: Law | Recipe,
    how: How | None = None,
    std: Std = None,
    member: str | None = None,
    correlation: float = 0.0,
    shrinkage: float | None = None,
    jointly: str | Sequence[str] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    strict: bool = False,
) -> xr.Dataset:
    """The dataset with its variables updated so that the laws hold: Step 2 for labelled data.

    Data in memory are computed, dask arrays stay lazy; the totals that the update starts from are
    computed now in both cases.

    Parameters
    ----------
    dataset : xarray.Dataset
        What holds the variables; it is not changed.
    *laws : Law or recipe
        One or more. A recipe is a function that makes a law of a dataset, such as `moisture`.
    how : {"uniform", "proportional", "variance", "members"}
        The way to spread a correction. "uniform": every point of a sum moves by the same amount.
        "proportional": every value moves by the same share of its size. "variance", the default
        with `std`: by how uncertain each point is. "members", the default with `member`: as the
        members of an ensemble differ.
    std : str, float, DataArray, or a dict of these by variable
        The standard deviations; those with a name are updated too. One number is the standard
        deviation of a cell of mean size. Smaller cells get a larger one (its square times mean cell
        size / cell size), so that all points move alike.
    member : str
        The dimension of an ensemble. The laws then hold for every member.
    correlation : float
        The correlation of the errors of any two points of a variable, for `std`. With 0 a point
        moves in proportion to its variance times its cell size; near 1, in proportion to its
        standard deviation.
    shrinkage : float
        The share of an ensemble's variance that is taken as independent, 0 to 1. If it is not given
        it is found, as in `LowRank.from_samples`.
    jointly : str or sequence of str
        Dimensions beside `over` that an ensemble's update couples, such as time.
    minimum, maximum : float
        No value that counts ends below or above it, and the total holds all the same. A variable
        with bounds may have one law only.
    strict : bool
        True raises `ImplausibleError` where there would be an `ImplausibleWarning`, or where a law
        does not hold after the update.

    Returns
    -------
    xarray.Dataset
        The updated dataset. The report is in its attribute `probconserv_report`. For lazy data it
        says whether the totals are plausible, but cannot say how far values move.

    Raises
    ------
    InputError
        If a law names what the dataset does not have, or units or shapes do not fit.
    InfeasibleError
        If the laws cannot hold.
    ImplausibleError
        If `strict` refuses the update.

    Warns
    -----
    ImplausibleWarning
        If what the laws ask is implausible.

    Examples
    --------
    >>> field = xr.Dataset({"u": ("x", [1.0, 2.0, 3.0]), "s": ("x", [0.1, 0.2, 0.1])})
    >>> enforce(field, Law("u", "x", total=7.0, measure=1.0), std="s")["u"].values.sum()
    np.float64(7.0)
    """
    tied = tuple(listed(jointly))
    spread = Spread(std, member, correlation, shrinkage, tied, how, minimum, maximum)
    work = Work.of(dataset, laws, spread)
    work.check_apart()
    stay_lazy = any(map(is_lazy, work.plans))
    new, sums, after = work.updated(watch=not stay_lazy)
    if not stay_lazy:  # cell sizes may be lazy where the field is not
        new, sums, after = compute((new, sums, after))
    report = work.report(sums, None if stay_lazy else after)
    report.check_plausible() if strict else report.warn_if_implausible()
    return work.finished(new, report)


def check(
    dataset: xr.Dataset,
    *laws: Law | Recipe,
    std: Std = None,
    member: str | None = None,
) -> Report:
    """A report on whether the laws hold as the data are; nothing is changed.

    Print it, or ask `Report.closes`.

    Parameters
    ----------
    dataset, *laws, std, member : as in `enforce`
        Without `std` and `member` it cannot say whether a total is plausible.

    Returns
    -------
    Report
        The totals stated and found.

    Raises
    ------
    InputError
        As `enforce` does.

    Examples
    --------
    >>> field = xr.Dataset({"u": ("x", [1.0, 2.0, 4.0])})
    >>> check(field, Law("u", "x", total=7.0, measure=1.0)).closes()
    True
    """
    given = 0.0 if std is None and member is None else std
    work = Work.of(dataset, laws, Spread(given, member))
    return work.report(**compute({"sums": work.first, "invalid": work.invalid}))


def totals(dataset: xr.Dataset, law: Law) -> xr.DataArray:
    """The sums that a law is about, as the dataset has them, for every row.

    Parameters
    ----------
    dataset : xarray.Dataset
        What holds the variables.
    law : Law
        Which sums; its `total` is not used.

    Returns
    -------
    xarray.DataArray
        The totals, with their units if they are known.

    Raises
    ------
    InputError
        As `enforce` does.

    Examples
    --------
    >>> totals(xr.Dataset({"u": ("x", [1.0, 2.0, 4.0])}), Law("u", "x", measure=1.0)).item()
    7.0
    """
    plain = replace(law, total=0.0, average=None, inflow=(), outflow=(), noise=0.0)
    (budget,) = check(dataset, plain).budgets
    named = budget.before.rename("total")
    return named if budget.unit is None else named.assign_attrs(units=budget.unit)


@xr.register_dataset_accessor("probconserv")
class Accessor:
    """The functions of `probconserv.labelled` for this dataset, as `dataset.probconserv`.

    Parameters
    ----------
    dataset : xarray.Dataset
        The dataset that the functions are applied to.
    """

    def __init__(self, dataset: xr.Dataset) -> None:
        self._dataset = dataset

    def enforce(self, *laws: Law | Recipe, **how: Any) -> xr.Dataset:
        """As `labelled.enforce`.

        Parameters
        ----------
        *laws : Law or recipe
            One or more.
        **how
            The other arguments of `labelled.enforce`.

        Returns
        -------
        xarray.Dataset
            The updated dataset.
        """
        return enforce(self._dataset, *laws, **how)

    def totals(self, law: Law) -> xr.DataArray:
        """As `labelled.totals`."""
        return totals(self._dataset, law)

    @property
    def report(self) -> dict[str, Any] | None:
        """The figures of the report that `enforce` left in the dataset; None if there is none."""
        text = self._dataset.attrs.get(REPORT)
        return None if text is None else json.loads(text)

    def check(self, *laws: Law | Recipe, **how: Any) -> Report:
        """As `labelled.check`.

        Parameters
        ----------
        *laws : Law or recipe
            One or more.
        **how
            The other arguments of `labelled.check`.

        Returns
        -------
        Report
            Whether the laws hold.
        """
        return check(self._dataset, *laws, **how)


def enforce_file(
    source: Paths,
    target: str | PathLike[str] | None,
    *laws: Law | Recipe,
    how: How | None = None,
    std: Std = None,
    member: str | None = None,
    correlation: float = 0.0,
    shrinkage: float | None = None,
    jointly: str | Sequence[str] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    overwrite: bool = False,
    unpack: bool = False,
    strict: bool = False,
    change: bool = False,
    group: str = "",
    chunks: Mapping[str, int] | None = None,
    scheduler: str | None = None,
    workers: int | None = None,
) -> Report:
    """Writes `target`, the dataset in `source` with the laws enforced, and returns the report.

    Files are NetCDF or Zarr, by the ending of the name. Data need not fit in memory: blocks are
    read once where each holds all points of its totals, and these are of one variable; else twice,
    and with `minimum` or `maximum` two to five times more. The target appears under its name when
    it is complete, or not at all. Names in laws and `std` may lie in other files:
    "areacella.nc:areacella".

    Parameters
    ----------
    source : str, path, or a sequence of these
        A file, or several that follow one another in time ("run_*.nc" or a list) and count as one
        series.
    target : str or path
        The file to write; for a series also an existing folder, for files of the same names.
        None only computes the report.
    *laws, how, std, member, correlation, shrinkage, jointly, minimum, maximum : as in `enforce`
    overwrite : bool
        True replaces a target that exists.
    unpack : bool
        True writes packed integers as floats.
    strict : bool
        True writes nothing, and raises `ImplausibleError`, if the update is implausible or a law
        does not hold after it.
    change : bool
        True puts the mean change of every point into the report, for `figures`.
    group : str
        The group of the file that the laws are about; the others are kept.
    chunks : dict of int
        Entries of a block along dimensions.
    scheduler : str
        None for threads, "local" for processes, or the address of a dask scheduler.
    workers : int
        How many threads or processes.

    Returns
    -------
    Report
        Totals before and after, and how far values moved.

    Raises
    ------
    InputError, InfeasibleError, ImplausibleError
        As `enforce` does; also if a file cannot be read, or the target exists already.

    Warns
    -----
    ImplausibleWarning
        If what the laws ask is implausible.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> law = Law("u", "x", total=7.0, measure=1.0)
    >>> with TemporaryDirectory() as folder:
    ...     xr.Dataset({"u": ("x", [1.0, 2.0, 3.0])}).to_netcdf(f"{folder}/old.nc")
    ...     report = enforce_file(f"{folder}/old.nc", f"{folder}/new.nc", law, how="uniform")
    >>> report.closes(after=True)
    True
    """
    tied = tuple(listed(jointly))
    spread = Spread(std, member, correlation, shrinkage, tied, how, minimum, maximum)
    paths, place = paths_of(source), None if target is None else Path(target)
    several = len(paths) > 1 and place is not None and place.is_dir() and place.suffix != ".zarr"
    folder = place if several else None
    for out in filter(None, [place] if folder is None else outputs(paths, folder)):
        check_output(out, overwrite, map(str, paths))

    def written(work: Work, source: Path, target: Path | None, strict: bool) -> tuple[Any, Report]:
        """What the passes found, and the report on it; in the target too, if there is one."""
        new, sums, after = work.updated(store=True)
        lazy = {"sums": sums, "after": after, "change": _changes(work, new) if change else {}}
        reports: list[Report] = []

        def finish(results: Any) -> dict[str, str]:
            reports.append(work.report(**results))
            if strict:
                reports[0].check_plausible()
            return {REPORT: reports[0].json()}

        if target is None:
            results = compute(lazy)
            finish(results)
        else:
            results = write(work.finished(new), target, overwrite, lazy, finish, source, group)
        return results, reports[0]

    with cluster(scheduler, workers), ExitStack() as opened:
        series = _opened(paths, opened, group, chunks, member, unpack)
        work = _work(series.whole, laws, spread, opened)
        work.check_apart()
        if folder is None:
            report = written(work, paths[0], place, strict)[1]
        else:
            if strict:  # all files are looked at before one is written
                written(work, paths[0], None, strict)
            report = _one_by_one(work, series, folder, partial(written, strict=False))
    report.warn_if_implausible()
    return report


def check_file(
    source: Paths,
    *laws: Law | Recipe,
    std: Std = None,
    member: str | None = None,
    group: str = "",
    chunks: Mapping[str, int] | None = None,
    scheduler: str | None = None,
    workers: int | None = None,
) -> Report:
    """A report on whether the laws hold in a file as it is.

    Parameters
    ----------
    source : as in `enforce_file`
    *laws, std, member : as in `check`
    group, chunks, scheduler, workers : as in `enforce_file`

    Returns
    -------
    Report
        The totals stated and found.

    Raises
    ------
    InputError
        As `check` does; also if a file cannot be read.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     xr.Dataset({"u": ("x", [1.0, 2.0, 3.0])}).to_netcdf(f"{folder}/u.nc")
    ...     check_file(f"{folder}/u.nc", Law("u", "x", total=7.0, measure=1.0)).closes()
    False
    """
    given = 0.0 if std is None and member is None else std
    with cluster(scheduler, workers), ExitStack() as opened:
        series = _opened(paths_of(source), opened, group, chunks, member)
        work = _work(series.whole, laws, Spread(given, member), opened)
        found = compute({"sums": work.first, "invalid": work.invalid})
        return work.report(**found)


def _changes(work: Work, found: Sequence[Mapping[str, Any]]) -> dict[str, xr.DataArray]:
    """The change of every variable, averaged over all but the last two axes that laws sum over."""
    changes = {}
    for plan, new in zip(work.plans, found, strict=True):
        for name, arrays in new.items():
            old = work.dataset[name]
            summed = {dim for ready in plan.laws for dim in ready.law.dims}
            kept = [dim for dim in old.dims if dim in summed][-2:]
            moved = old.copy(data=arrays[0].data) - old
            mean = moved.mean([dim for dim in old.dims if dim not in kept], keep_attrs=True)
            changes[name] = mean.assign_attrs(old.attrs)
    return changes


def with_files(law: Any, opened: ExitStack) -> Any:
    """The law with a DataArray in place of every FILE:VARIABLE; files stay open with the stack."""
    if callable(law):
        return lambda dataset: with_files(law(dataset), opened)
    if not isinstance(law, Law):
        return law
    given = {f.name: getattr(law, f.name) for f in fields(law) if f.name not in ("name", "remarks")}
    return replace(law, **{key: from_file(each, key, opened) for key, each in given.items()})


def from_file(given: Any, argument: str, opened: ExitStack) -> Any:
    """What FILE:VARIABLE stands for, also within lists and mappings; anything else as it is."""
    if isinstance(given, Mapping):
        return {key: from_file(value, argument, opened) for key, value in given.items()}
    if isinstance(given, list | tuple):
        return [from_file(value, argument, opened) for value in given]
    path, _, name = given.rpartition(":") if isinstance(given, str) else ("", "", "")
    if not path.endswith(STORES):
        return given
    where = Path(path)
    if not where.exists():
        near = nearest(where.name, [each.name for each in where.parent.glob(f"*{where.suffix}")])
        raise InputError(f"`{argument}` is {given!r}, but there is no file {path}. {near}")
    group, _, name = name.rpartition("/")
    found = find(opened.enter_context(read(path, group=group)), name, f"{argument} {given}")
    return found.load() if found.nbytes <= SMALL else found


def paths_of(source: Paths) -> list[Path]:
    """The files that are meant; a name with * or ? stands for all that match it."""
    given = [source] if isinstance(source, str | PathLike) else list(source)
    found: list[str] = []
    for path in given:
        each = fspath(path)
        found += (not Path(each).exists() and sorted(glob(each))) or [each]
    return list(map(Path, found))


def outputs(paths: Sequence[Path], folder: Path) -> list[Path]:
    """A file of the same name in the folder for each."""
    name, count = Counter(path.name for path in paths).most_common(1)[0]
    if count > 1:
        raise InputError(f"`source` has two files called {name}, which cannot both be written.")
    return [folder / path.name for path in paths]


@dataclass(frozen=True, eq=False)
class Part:
    """A file of a series, and where its times are in those of all."""

    path: Path
    dataset: xr.Dataset
    entries: slice


@dataclass(frozen=True, eq=False)
class Series:
    """Files that follow one another along a dimension, in its order; one alone has none."""

    whole: xr.Dataset
    dim: str = ""
    parts: Sequence[Part] = ()

    def work_on(self, part: Part, work: Work) -> Work:
        """The work on one of the files, whose totals follow from the whole series."""
        for plan in work.plans:
            if self.dim not in plan.index:
                labels = ", ".join(ready.law.label for ready in plan.laws)
                raise InputError(
                    f"`target`: {labels} ties all files together along {self.dim!r}. Write one "
                    "file: a name that ends in .nc or .zarr."
                )
        plans = []
        for plan in _at(work.plans, self.dim, part.entries):
            own = {n: (part.dataset[n].variable, *std) for n, (_, *std) in plan.arrays.items()}
            plans.append(replace(plan, arrays=own))
        return replace(work, dataset=part.dataset, plans=plans)

    def together(self, work: Work, found: Sequence[Any]) -> dict[str, Any]:
        """What the passes found in each file, as if they had gone over the whole series."""
        axes = [plan.index.index(self.dim) for plan in work.plans]
        result: dict[str, Any] = {"change": {}}
        for key in ("sums", "after"):
            per_plan = zip(*(each[key] for each in found), strict=True)
            result[key] = [_side_by_side(*each) for each in zip(per_plan, axes, strict=True)]
        lengths = xr.DataArray([part.dataset.sizes[self.dim] for part in self.parts], dims="files")
        for name in found[0]["change"]:
            changes = xr.concat([each["change"][name] for each in found], "files")
            result["change"][name] = changes.weighted(lengths).mean("files", keep_attrs=True)
        return result


def _opened(
    paths: Sequence[Path],
    opened: ExitStack,
    group: str,
    chunks: Mapping[str, int] | None,
    member: str | None,
    unpack: bool = False,
) -> Series:
    """The files as one series; they stay open with the stack."""
    for path in paths if len(paths) > 1 else ():
        if group or groups(path):
            raise InputError(
                f"`source` {path} has groups, and several files with groups cannot be one "
                "series. Take the group out of each first, or give one file at a time."
            )
    whole = () if member is None else (member,)
    parts = [opened.enter_context(read(path, chunks, group, whole)) for path in paths]
    parts = [_unpacked(part) for part in parts] if unpack else parts
    return Series(parts[0]) if len(parts) == 1 else _combined(paths, parts)


def _unpacked(dataset: xr.Dataset) -> xr.Dataset:
    packings = {name: Packing.of(variable) for name, variable in dataset.items()}
    return dataset.assign({n: without_packing(dataset[n], p) for n, p in packings.items() if p})


def _work(
    dataset: xr.Dataset, laws: Sequence[Law | Recipe], spread: Spread, opened: ExitStack
) -> Work:
    """The work on a dataset, with what lies in other files; these stay open with the stack."""
    spread = replace(spread, std=from_file(spread.std, "std", opened))
    return Work.of(dataset, [with_files(law, opened) for law in laws], spread)


def _one_by_one(
    work: Work, series: Series, folder: Path, write_one: Callable[..., tuple[Any, Report]]
) -> Report:
    """A file in the folder for each; those that are finished stay if a later one fails."""
    found: list[Any] = []
    for part in series.parts:
        try:
            own = series.work_on(part, work)
            found.append(write_one(own, part.path, folder / part.path.name)[0])
        except ProbConservError as error:
            done = f"{len(found)} of {len(series.parts)} files are finished and stay in {folder}"
            error.args = (f"{part.path.name}: {error} ({done}.)",)
            raise
    return work.report(**series.together(work, found))


def _side_by_side(parts: Sequence[Any], axis: int) -> Any:
    """Arrays one after the other, counts added up; also within mappings."""
    if isinstance(parts[0], Mapping):
        return {key: _side_by_side([each[key] for each in parts], axis) for key in parts[0]}
    return np.concatenate(parts, axis) if np.ndim(parts[0]) else sum(parts)


def _at(given: Any, dim: str, where: slice) -> Any:
    """What is given at some entries of a dimension, also within plans, mappings and sequences."""
    if isinstance(given, xr.Variable | xr.DataArray):
        return given.isel({dim: where}, missing_dims="ignore")
    if isinstance(given, Mapping):
        sizes = {dim: where.stop - where.start} if isinstance(given.get(dim), int) else {}
        return {key: _at(value, dim, where) for key, value in given.items()} | sizes
    if isinstance(given, list | tuple):
        return tuple(_at(value, dim, where) for value in given)
    if is_dataclass(given) and not isinstance(given, type):
        parts = {each.name: _at(getattr(given, each.name), dim, where) for each in fields(given)}
        return replace(given, **parts)
    return given


def _combined(paths: Sequence[Path], parts: Sequence[xr.Dataset]) -> Series:
    """The series that the files make."""
    for path, part in zip(paths[1:], parts[1:], strict=True):
        for name in part.data_vars.keys() & parts[0].data_vars.keys():
            for key in ("units", "cell_methods"):  # they become one array, and must mean one thing
                ours, theirs = (each[name].attrs.get(key) for each in (parts[0], part))
                if ours != theirs:
                    raise InputError(
                        f"`source`: `{key}` of {str(name)!r} is {theirs!r} in {path.name} and "
                        f"{ours!r} in {paths[0].name}. Make them the same, values and attributes."
                    )
    rule = "`source`: files of a series follow one another along one coordinate and are the same"
    same: Any = {"data_vars": "minimal", "coords": "minimal", "compat": "equals", "join": "exact"}
    try:
        whole: Any = xr.combine_by_coords(parts, combine_attrs="override", **same)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{rule} elsewhere. These are not: {error}") from error
    differ = [str(dim) for dim, n in whole.sizes.items() if n != parts[0].sizes.get(dim)]
    if len(differ) != 1:
        raise InputError(f"{rule} elsewhere. These differ along {' and '.join(differ)}.")
    (dim,) = differ
    index = whole.indexes[dim]
    if index.duplicated().any():
        when = shown(whole[dim].values[index.duplicated()][0])
        raise InputError(f"{rule} elsewhere. These overlap: {dim} {when} is there twice.")
    whole.encoding = parts[0].encoding
    starts = [index.get_loc(part.indexes[dim][0]) for part in parts]
    ends = [start + part.sizes[dim] for start, part in zip(starts, parts, strict=True)]
    files = map(Part, paths, parts, map(slice, starts, ends))
    return Series(whole, dim, sorted(files, key=lambda file: file.entries.start))
