"""`enforce`, `check` and `totals` of a dataset."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import xarray as xr
from dask.base import compute

from ._law import Law, Recipe, listed
from ._lookup import Given
from ._plan import Spread
from ._report import Report
from ._update import lazy, second_pass, solve
from ._work import Work

Std = Given | Mapping[str, Given] | None


def enforce(
    dataset: xr.Dataset,
    *laws: Law | Recipe,
    std: Std = None,
    member: str | None = None,
    correlation: float = 0.0,
    shrinkage: float | None = None,
    jointly: str | Sequence[str] = (),
    minimum: float | None = None,
) -> xr.Dataset:
    """The dataset with its variables updated so that the laws hold: Step 2 for labelled data.

    Laws are `Law(...)`, or functions that make one of a dataset, such as `moisture`. The variables
    are means with a standard deviation each, or an ensemble. std: the name of the
    standard deviations, a number, or a mapping from variables to them; they are updated too.
    member: the dimension of an ensemble, of which every member is made to hold. correlation: of the
    errors of any two points, for `std`: 0 moves points by variance times cell size, towards 1 by
    standard deviation. shrinkage: of an ensemble's covariance towards independent points, 0 to 1;
    if not given, as much as the spread of the members' totals does not speak against, at least one
    over their number. jointly: dimensions beside `over` that an ensemble's update couples, such as
    time. minimum: values pushed below it are counted.

    Data in memory are computed, dask arrays stay lazy; the totals that the update starts from are
    computed now in both cases. The report is in the attribute `probconserv_report`.

    >>> field = xr.Dataset({"u": ("x", [1.0, 2.0, 3.0]), "s": ("x", [0.1, 0.2, 0.1])})
    >>> enforce(field, Law("u", "x", total=7.0, measure=1.0), std="s")["u"].values.sum()
    np.float64(7.0)
    """
    spread = Spread(std, member, correlation, shrinkage, tuple(listed(jointly)))
    work = Work.of(dataset, laws, spread, minimum)
    sums = compute(*work.first)
    found = [second_pass(plan, solve(plan, s)) for plan, s in zip(work.plans, sums, strict=True)]
    if lazy(work.plans):
        return work.finished(found, work.report(sums))
    both = work.outcomes(found)
    (both,) = compute(both)  # cell sizes may be lazy where the field is not
    return work.finished([new for new, _ in both], work.report(sums, [after for _, after in both]))


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
    work = Work.of(dataset, laws, Spread(given, member), None)
    return work.report(compute(*work.first))


def totals(dataset: xr.Dataset, law: Law) -> xr.DataArray:
    """What the dataset has of that which a law sums, for every row; `total` of the law is not used.

    >>> totals(xr.Dataset({"u": ("x", [1.0, 2.0, 4.0])}), Law("u", "x", measure=1.0)).item()
    7.0
    """
    plain = replace(law, total=0.0, average=None, inflow=(), outflow=(), noise=0.0)
    (budget,) = check(dataset, plain).budgets
    named = budget.before.rename("total")
    return named if budget.unit is None else named.assign_attrs(units=budget.unit)
