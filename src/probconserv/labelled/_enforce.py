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

    Laws are `Law(...)`, or functions that make one of a dataset, such as `moisture`.

    how: the way to spread a correction, by what is given if not said. "uniform": every point of a
    row moves by the same amount. "proportional": every value by the same share of its size.
    "variance", the default with `std`: by how uncertain each point is. "members", the default with
    `member`: as the members of an ensemble differ.

    std: the name of the standard deviations, a number, or a mapping from variables to them; those
    with a name are updated too. One number is that of a cell of mean size, and errors are alike per
    unit of area (variance times mean cell size / cell size), so that all points move alike. member:
    the dimension of an ensemble, of which every member is made to hold. correlation: of the errors
    of any two points of a variable, for `std`: 0 moves points by variance times cell size, towards
    1 by standard deviation. shrinkage: of an ensemble's covariance towards independent points, 0 to
    1; if not given, towards one correlation between any two points, as large as the members' totals
    show, by a share that falls with their number. jointly: dimensions beside `over` that an
    ensemble's update couples, such as time. minimum, maximum: no value that counts ends below or
    above it, and the total holds all the same; with one law for each variable. strict: raise
    `ImplausibleError` where there would be an `ImplausibleWarning`, or where a law does not hold
    after the update.

    Data in memory are computed, dask arrays stay lazy; the totals that the update starts from are
    computed now in both cases. The report is in the attribute `probconserv_report`; of lazy data it
    says whether the totals are plausible, and cannot say how far values move.

    >>> field = xr.Dataset({"u": ("x", [1.0, 2.0, 3.0]), "s": ("x", [0.1, 0.2, 0.1])})
    >>> enforce(field, Law("u", "x", total=7.0, measure=1.0), std="s")["u"].values.sum()
    np.float64(7.0)
    """
    tied = tuple(listed(jointly))
    spread = Spread(std, member, correlation, shrinkage, tied, how, minimum, maximum)
    work = Work.of(dataset, laws, spread)
    work.check_apart()
    sums = compute(*work.first)
    found = work.moved(sums)
    after = None
    if not lazy(work.plans):
        (both,) = compute(work.outcomes(found))  # cell sizes may be lazy where the field is not
        found, after = [new for new, _ in both], [after for _, after in both]
    report = work.report(sums, after)
    report.check_plausible() if strict else report.warn_if_implausible()
    return work.finished(found, report)


def check(
    dataset: xr.Dataset,
    *laws: Law | Recipe,
    std: Std = None,
    member: str | None = None,
) -> Report:
    """Whether the laws hold as the data are: print it, or ask `.closes()`; nothing is changed.

    Arguments are those of `enforce`; without `std` and `member` it cannot say whether a total is
    plausible.
    """
    given = 0.0 if std is None and member is None else std
    work = Work.of(dataset, laws, Spread(given, member))
    sums, invalid = compute(work.first, work.invalid)
    return work.report(sums, invalid=invalid)


def totals(dataset: xr.Dataset, law: Law) -> xr.DataArray:
    """What the dataset has of that which a law sums, for every row; `total` of the law is not used.

    >>> totals(xr.Dataset({"u": ("x", [1.0, 2.0, 4.0])}), Law("u", "x", measure=1.0)).item()
    7.0
    """
    plain = replace(law, total=0.0, average=None, inflow=(), outflow=(), noise=0.0)
    (budget,) = check(dataset, plain).budgets
    named = budget.before.rename("total")
    return named if budget.unit is None else named.assign_attrs(units=budget.unit)


@xr.register_dataset_accessor("probconserv")
class Accessor:
    """The functions of `probconserv.labelled` for this dataset."""

    def __init__(self, dataset: xr.Dataset) -> None:
        self._dataset = dataset

    def enforce(self, *laws: Law | Recipe, **how: Any) -> xr.Dataset:
        """As `labelled.enforce`."""
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
        """As `labelled.check`."""
        return check(self._dataset, *laws, **how)
