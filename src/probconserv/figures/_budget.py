"""A picture of a report: how far each budget is off over time, and where the field was moved."""

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import CenteredNorm
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from ..support.errors import InputError
from ._fields import OTHERS, TRUTH

if TYPE_CHECKING:
    import xarray as xr

    from ..files import Budget, Report

BEFORE: dict[str, Any] = {"color": OTHERS[0][0], "linestyle": OTHERS[0][1], "linewidth": 1.6}
AFTER: dict[str, Any] = {"color": OTHERS[1][0], "linestyle": OTHERS[1][1], "linewidth": 1.6}
ROWS = 4  # laws and variables in one picture at most


def budget(report: "Report") -> Figure:
    """A figure of a report: for every law field - total, per cell size, before and after.

    Beside it is the mean change of each variable, if the report has it.

    Parameters
    ----------
    report : files.Report
        What `files.check` or `files.enforce_file` returned; only the latter can have the
        change.

    Returns
    -------
    matplotlib.figure.Figure
        At most 4 laws and 4 variables.

    Raises
    ------
    InputError
        If `report` is something else.
    """
    budgets = getattr(report, "budgets", None)
    if not budgets:
        raise InputError(f"`report` must come from `files.check` or the like; got {report!r:.40}.")
    laws, changes = budgets[:ROWS], list(report.change.items())[:ROWS]
    rows, columns = max(len(laws), len(changes)), 1 + bool(changes)
    figure = Figure(figsize=(5.2 * columns, 3.2 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes, law in zip(panels[:, 0], laws, strict=False):
        _draw_law(axes, law)
    for axes, (name, change) in zip(panels[:, -1], changes, strict=False):
        _draw_change(figure, axes, name, change)
    for axes in panels.flat:
        axes.set_visible(axes.has_data())
    return figure


def _draw_law(axes: Axes, law: "Budget") -> None:
    """Of several rows at a time the one that is off most."""
    size = law.size.where(law.size > 0)
    worst = (abs(law.before - law.total) / size).max(law.time)
    at = worst.argmax(...) if worst.ndim else {}
    along, label = _along(law)

    def line(values: "xr.DataArray") -> Any:
        here = values.isel({dim: i for dim, i in at.items() if dim in values.dims})
        return np.atleast_1d(here.values)

    off = line((law.before - law.total) / size)
    band = line((law.spread**2 + law.noise**2) ** 0.5 / size)
    axes.fill_between(along, -band, band, color="0.85", linewidth=0, label="one std of the field")
    when = "now" if law.after is None else "before"
    axes.plot(along, off, label=when, **_marked(BEFORE, along))
    if law.after is not None:
        axes.plot(
            along, line((law.after - law.total) / size), label="after", **_marked(AFTER, along)
        )
    axes.axhline(0, **TRUTH | {"label": "law"})
    axes.set(xlabel=label, ylabel="field - total, per cell size", title=_title(law, at))
    axes.legend(fontsize="small")
    if along.dtype.kind == "M":
        dates = AutoDateLocator(maxticks=7)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(dates)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(dates))  # type: ignore[no-untyped-call]


def _along(law: "Budget") -> tuple[Any, str]:
    """The times as matplotlib takes them."""
    if law.time is None:
        return np.zeros(1), "row"
    if law.time not in law.total.coords:
        return np.arange(law.total.sizes[law.time]), f"{law.time}, by number"
    times = law.total[law.time].values
    if times.dtype == object:  # dates of other calendars
        return np.array([each.year + (each.dayofyr - 1) / 365.25 for each in times]), "year"
    return times, law.time


def _marked(style: dict[str, Any], along: Any) -> dict[str, Any]:
    return style | {"marker": "o"} if len(along) == 1 else style


def _title(law: "Budget", at: Any) -> str:
    if not at:
        return law.name
    names = []
    for dim, number in at.items():
        there = law.before[dim].values[int(number)] if dim in law.before.coords else int(number)
        names.append(f"{dim} {there}")
    return f"{law.name}, worst at {', '.join(names)}"


def _draw_change(figure: Figure, axes: Axes, name: str, change: "xr.DataArray") -> None:
    unit = f" [{change.attrs['units']}]" if "units" in change.attrs else ""
    if change.ndim == 1:
        (dim,) = change.dims
        axes.plot(change[dim] if dim in change.coords else np.arange(len(change)), change, **AFTER)
        axes.set(xlabel=str(dim), ylabel=f"mean change{unit}")
    else:
        y, x = change.dims
        straight = [dim for dim in (x, y) if dim in change.coords]
        grid = [change[dim].values for dim in (x, y)] if len(straight) == 2 else []
        seen = axes.pcolormesh(
            *grid,
            np.ma.masked_invalid(change.values),
            cmap="RdBu_r",
            norm=CenteredNorm(),
            rasterized=True,
        )
        figure.colorbar(seen, ax=axes, label=f"mean change{unit}")
        axes.set(xlabel=str(x), ylabel=str(y))
    axes.set_title(f"{name}: where it was moved")
