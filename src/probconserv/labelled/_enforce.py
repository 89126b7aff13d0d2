"""`enforce`, `check` and `totals` of a dataset, also as `dataset.probconserv`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import xarray as xr
from dask.base import compute

from ._law import Law, Recipe, listed
from ._lookup import Given
from ._plan import Spread
from ._report import Report
from ._update import lazy
from ._work import REPORT, Work

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
        The way to spread a correction. "uniform": every point of a row moves by the same amount.
        "proportional": every value moves by the same share of its size. "variance", the default
        with `std`: by how uncertain each point is. "members", the default with `member`: as the
        members of an ensemble differ.
    std : str, float, DataArray, or a dict of these by variable
        The standard deviations; those with a name are updated too. One number is that of a cell of
        mean size. Smaller cells get more (its square times mean cell size / cell size), so that all
        points move alike.
    member : str
        The dimension of an ensemble. The laws then hold for every member.
    correlation : float
        Of the errors of any two points of a variable, for `std`. With 0 a point moves in proportion
        to its variance times its cell size; near 1, in proportion to its standard deviation.
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
        The updated dataset. The report is in its attribute `probconserv_report`; of lazy data it
        says whether the totals are plausible, and cannot say how far values move.

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
    sums = compute(*work.first)
    stay_lazy = lazy(work.plans)
    both = work.updated(sums, watch=not stay_lazy)
    if not stay_lazy:
        (both,) = compute(both)  # cell sizes may be lazy where the field is not
    report = work.report(sums, None if stay_lazy else [after for _, after in both])
    report.check_plausible() if strict else report.warn_if_implausible()
    return work.finished([new for new, _ in both], report)


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
    sums, invalid = compute(work.first, work.invalid)
    return work.report(sums, invalid=invalid)


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
