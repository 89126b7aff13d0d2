"""`enforce`, `check` and `totals` of a dataset, also as `dataset.probconserv`, and of files."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal

import xarray as xr

from ._encoding import is_lazy
from ._graph import compute, threads
from ._law import FileLaw, Given, Recipe
from ._plan import FileSpread
from ._read import check_target
from ._report import Report
from ._series import Paths, opened_as_one, paths_of, with_files
from ._work import REPORT, Work
from ._write import check_output, write

Dtype = Literal["float32", "float64"]
How = Literal["uniform", "proportional", "variance", "members"]
Std = Given | Mapping[str, Given] | None


def enforce(
    dataset: xr.Dataset,
    *laws: FileLaw | Recipe,
    how: How | None = None,
    std: Std = None,
    member: str | None = None,
    correlation: float = 0.0,
    shrinkage: float | None = None,
    jointly: str | Sequence[str] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    strict: bool = False,
    dtype: Dtype | None = None,
) -> xr.Dataset:
    """The dataset with its variables updated so that the laws hold: Step 2 for xarray.

    Data in memory are computed, dask arrays stay lazy; the totals that the update starts from are
    computed now in both cases.

    Parameters
    ----------
    dataset : xarray.Dataset
        What holds the variables; it is not changed.
    *laws : FileLaw or recipe
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
        it is found, as in `Ensemble`.
    jointly : str or sequence of str
        Dimensions beside `over` that an ensemble's update couples, such as time.
    minimum, maximum : float
        No value that counts ends below or above it, and the total holds all the same. A variable
        with bounds may have one law only.
    strict : bool
        True raises `ImplausibleError` where there would be an `ImplausibleWarning`, or where a law
        does not hold after the update.
    dtype : {"float32", "float64"}
        The type of what is moved, variables and standard deviations; as they are if not given.

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
    >>> enforce(field, FileLaw("u", "x", total=7.0, measure=1.0), std="s")["u"].values.sum()
    np.float64(7.0)
    """
    spread = FileSpread(std, member, correlation, shrinkage, jointly, how, minimum, maximum)
    work = Work.of(dataset, laws, spread, dtype)
    work.check_apart()
    stay_lazy = any(is_lazy(x) for plan in work.plans for xs in plan.arrays.values() for x in xs)
    new, seen = work.updated(watch=not stay_lazy)
    if not stay_lazy:  # cell sizes may be lazy where the field is not
        new, seen = compute((new, seen))
    report = work.report(seen)
    report.check_plausible() if strict else report.warn_if_implausible()
    return work.finished(new, report)


def check(
    dataset: xr.Dataset,
    *laws: FileLaw | Recipe,
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
    >>> check(field, FileLaw("u", "x", total=7.0, measure=1.0)).closes()
    True
    """
    given = 0.0 if std is None and member is None else std
    work = Work.of(dataset, laws, FileSpread(given, member))
    return work.report(compute(work.summed()))


def totals(dataset: xr.Dataset, law: FileLaw) -> xr.DataArray:
    """The sums that a law is about, as the dataset has them, for every row.

    Parameters
    ----------
    dataset : xarray.Dataset
        What holds the variables.
    law : FileLaw
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
    >>> totals(xr.Dataset({"u": ("x", [1.0, 2.0, 4.0])}), FileLaw("u", "x", measure=1.0)).item()
    7.0
    """
    plain = replace(law, total=0.0, average=None, inflow=(), outflow=(), noise=0.0)
    (budget,) = check(dataset, plain).budgets
    named = budget.before.rename("total")
    return named if budget.unit is None else named.assign_attrs(units=budget.unit)


@xr.register_dataset_accessor("probconserv")
class Accessor:
    """The functions of `probconserv.files` for this dataset, as `dataset.probconserv`.

    Parameters
    ----------
    dataset : xarray.Dataset
        The dataset that the functions are applied to.
    """

    def __init__(self, dataset: xr.Dataset) -> None:
        self._dataset = dataset

    def enforce(self, *laws: FileLaw | Recipe, **how: Any) -> xr.Dataset:
        """As `files.enforce`.

        Parameters
        ----------
        *laws : FileLaw or recipe
            One or more.
        **how
            The other arguments of `files.enforce`.

        Returns
        -------
        xarray.Dataset
            The updated dataset.
        """
        return enforce(self._dataset, *laws, **how)

    def totals(self, law: FileLaw) -> xr.DataArray:
        """As `files.totals`."""
        return totals(self._dataset, law)

    @property
    def report(self) -> dict[str, Any] | None:
        """The figures of the report that `enforce` left in the dataset; None if there is none."""
        text = self._dataset.attrs.get(REPORT)
        return None if text is None else json.loads(text)

    def check(self, *laws: FileLaw | Recipe, **how: Any) -> Report:
        """As `files.check`.

        Parameters
        ----------
        *laws : FileLaw or recipe
            One or more.
        **how
            The other arguments of `files.check`.

        Returns
        -------
        Report
            Whether the laws hold.
        """
        return check(self._dataset, *laws, **how)


def enforce_file(
    source: Paths,
    target: str | PathLike[str] | None,
    *laws: FileLaw | Recipe,
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
    dtype: Dtype | None = None,
    change: bool = False,
    group: str = "",
    chunks: Mapping[str, int] | None = None,
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
        The file to write; None only computes the report.
    *laws, how, std, member, correlation, shrinkage, jointly, minimum, maximum : as in `enforce`
    overwrite : bool
        True replaces a target that exists.
    unpack : bool
        True writes packed integers as floats.
    strict : bool
        True writes nothing, and raises `ImplausibleError`, if the update is implausible or a law
        does not hold after it.
    dtype : as in `enforce`
        NetCDF has no float16: there other variables in float16 are written so too.
    change : bool
        True puts the mean change of every point into the report, for `figures`.
    group : str
        The group of the file that the laws are about; the others are kept.
    chunks : dict of int
        Entries of a block along dimensions.
    workers : int
        How many threads; as many as there are cores if not given.

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
    >>> law = FileLaw("u", "x", total=7.0, measure=1.0)
    >>> with TemporaryDirectory() as folder:
    ...     xr.Dataset({"u": ("x", [1.0, 2.0, 3.0])}).to_netcdf(f"{folder}/old.nc")
    ...     report = enforce_file(f"{folder}/old.nc", f"{folder}/new.nc", law, how="uniform")
    >>> report.closes(after=True)
    True
    """
    spread = FileSpread(std, member, correlation, shrinkage, jointly, how, minimum, maximum)
    check_target(fspath(target or ""))
    paths, place = paths_of(source), None if target is None else Path(target)
    if place is not None:
        check_output(place, overwrite, map(str, paths))
    with threads(workers), ExitStack() as opened:
        dataset = opened_as_one(paths, opened, group, chunks, member, unpack)
        found, spread = with_files(laws, spread, opened)
        halves = [] if place is None or place.suffix == ".zarr" else _in_half(dataset)
        work = Work.of(dataset, found, spread, dtype, halves)
        work.check_apart()
        new, seen = work.updated(store=True)
        lazy = {"seen": seen, "change": work.changes(new) if change else {}}
        reports: list[Report] = []

        def finish(results: Any) -> dict[str, str]:
            reports.append(work.report(**results))
            if strict:
                reports[0].check_plausible()
            return {REPORT: reports[0].json()}

        if place is None:
            finish(compute(lazy))
        else:
            lazily = {name: [each.chunk() for each in arrays] for name, arrays in new.items()}
            write(work.finished(lazily), place, overwrite, lazy, finish, paths[0], group)
    (report,) = reports
    report.warn_if_implausible()
    return report


def _in_half(dataset: xr.Dataset) -> list[str]:
    """Variables that NetCDF cannot store as they are."""
    return [str(n) for n, v in dataset.variables.items() if v.dtype == "float16"]


def check_file(
    source: Paths,
    *laws: FileLaw | Recipe,
    std: Std = None,
    member: str | None = None,
    group: str = "",
    chunks: Mapping[str, int] | None = None,
    workers: int | None = None,
) -> Report:
    """A report on whether the laws hold in a file as it is.

    Parameters
    ----------
    source : as in `enforce_file`
    *laws, std, member : as in `check`
    group, chunks, workers : as in `enforce_file`

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
    ...     check_file(f"{folder}/u.nc", FileLaw("u", "x", total=7.0, measure=1.0)).closes()
    False
    """
    given = 0.0 if std is None and member is None else std
    with threads(workers), ExitStack() as opened:
        dataset = opened_as_one(paths_of(source), opened, group, chunks, member)
        work = Work.of(dataset, *with_files(laws, FileSpread(given, member), opened))
        return work.report(compute(work.summed()))
