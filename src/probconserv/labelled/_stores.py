"""`enforce` and `check` from file to file, block by block."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import xarray as xr

from .._errors import ProbConservError
from ._cluster import cluster, compute
from ._encoding import is_packed, without_packing
from ._enforce import How, Std
from ._law import Law, Recipe, listed
from ._plan import Plan, Spread
from ._read import read
from ._report import Report
from ._series import (
    Paths,
    as_parts,
    from_file,
    joined,
    outputs,
    part_of,
    paths_of,
    read_series,
    with_files,
)
from ._stage import check_output
from ._work import REPORT, Work
from ._write import write


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
    read once where each holds all points of its totals, else twice, and with `minimum` or `maximum`
    two to five times more. The target appears under its name when it is complete, or not at all.
    Names in laws and `std` may lie in other files: "areacella.nc:areacella".

    Parameters
    ----------
    source : str, path, or a sequence of these
        A file, or several that follow one another in time ("run_*.nc" or a list) and count as one
        series.
    target : str or path
        The file to write; of a series also a folder that is there, for files of the same names.
        None only computes the report.
    *laws, how, std, member, correlation, shrinkage, jointly, minimum, maximum : as in `enforce`
    overwrite : bool
        True replaces a target that is there.
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
        As `enforce` does; also if a file cannot be read, or the target is there already.

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
    job = _Job(spread, overwrite, unpack, strict, change, group, chunks)
    with cluster(scheduler, workers):
        report = job.run(paths_of(source), None if target is None else Path(target), laws)
    report.warn_if_implausible()
    return report


@dataclass(frozen=True, eq=False)
class _Job:
    """How files are worked on; see `enforce_file`."""

    spread: Spread
    overwrite: bool
    unpack: bool
    strict: bool
    change: bool
    group: str
    chunks: Mapping[str, int] | None

    def run(
        self,
        paths: list[Path],
        target: Path | None,
        laws: Sequence[Law | Recipe],
        whole: Sequence[Plan] = (),
    ) -> Report:
        """whole: the plans of the series that this is one file of."""
        folder = target is not None and target.is_dir() and target.suffix != ".zarr"
        one_by_one = len(paths) > 1 and folder
        if target is not None:
            for out in outputs(paths, target) if one_by_one else [target]:
                check_output(out, self.overwrite, map(str, paths))
        with ExitStack() as opened:
            dataset, along = _opened(paths, opened, self.chunks, self.group, self.spread.member)
            if self.unpack:
                packed = {n: without_packing(v) for n, v in dataset.items() if is_packed(v)}
                dataset = dataset.assign(packed)
            spread = replace(self.spread, std=from_file(self.spread.std, "std", opened))
            named = [with_files(law, opened) for law in laws]
            work = Work.of(dataset, named, spread)
            work.check_apart()
            work = replace(work, plans=as_parts(work.plans, whole)) if whole else work
            if target is None or not one_by_one:
                return self._write(work, paths[0], target)
            if self.strict:  # all files are looked at before one is written
                self._write(work, paths[0], None)
            return self._one_by_one(work.plans, spread, paths, target, along)

    def _one_by_one(
        self, plans: Sequence[Plan], spread: Spread, paths: list[Path], target: Path, along: str
    ) -> Report:
        """A file in the folder for each; those that are finished stay if a later one fails."""
        reports: list[Report] = []
        for path, out in zip(paths, outputs(paths, target), strict=True):
            own, std = part_of(plans, spread.std, path, along)
            part = replace(self, spread=replace(spread, std=std), strict=False)  # see `run`
            try:
                reports.append(part.run([path], out, own, plans))
            except ProbConservError as error:
                done = f"{len(reports)} of {len(paths)} files are finished and stay in {target}"
                error.args = (f"{path.name}: {error} ({done}.)",)
                raise
        return joined(reports, along)

    def _write(self, work: Work, source: Path, target: Path | None) -> Report:
        sums = work.first if work.one_pass else compute(work.first, "summing")
        both = work.updated(sums, store=True)
        found, after = [new for new, _ in both], [after for _, after in both]
        changes = _changes(work, found) if self.change else {}
        also = {"sums": sums, "after": after, "change": changes}
        if target is None:
            return _report(work, compute(also, "computing"), self.strict)
        reports: list[Report] = []

        def finish(results: Any) -> dict[str, str]:
            reports.append(_report(work, results, self.strict))
            return {REPORT: reports[0].json()}

        write(work.finished(found), target, self.overwrite, also, finish, source, self.group)
        return reports[0]


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
        dataset, _ = _opened(paths_of(source), opened, chunks, group, member)
        spread = Spread(from_file(given, "std", opened), member)
        work = Work.of(dataset, [with_files(law, opened) for law in laws], spread)
        found = compute({"sums": work.first, "invalid": work.invalid}, "summing")
        return work.report(**found)


def _opened(
    paths: list[Path],
    opened: ExitStack,
    chunks: Mapping[str, int] | None,
    group: str,
    member: str | None,
) -> tuple[xr.Dataset, str]:
    """The dataset in one file, or in many as a series along a dimension."""
    how: dict[str, Any] = {"chunks": chunks, "whole": () if member is None else (member,)}
    if len(paths) > 1:
        return read_series(paths, opened, group=group, **how)
    return opened.enter_context(read(paths[0], group=group, **how)), ""


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


def _report(work: Work, results: Any, strict: bool) -> Report:
    report = replace(work.report(results["sums"], results["after"]), change=results["change"])
    if strict:
        report.check_plausible()
    return report
