"""Pictures of findings: a diagnosis, a comparison, a report on files, what a fixer corrected."""

import textwrap
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import CenteredNorm
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from ..diagnostics.causes import FULL
from ..diagnostics.comparison import Comparison, is_higher, is_share
from ..diagnostics.diagnosis import Diagnosis
from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError
from ._fields import OTHERS, TRUTH, Array, _axis, _line, _style

EXPECTED: dict[str, Any] = {"color": OTHERS[0][0], "linestyle": OTHERS[0][1], "linewidth": 1.6}
OWN: dict[str, Any] = {"color": OTHERS[1][0], "linestyle": OTHERS[1][1], "linewidth": 1.2}
WRONG: dict[str, Any] = {"color": "black", "linestyle": "none", "marker": "x", "label": "wrong"}


def diagnosis(diagnosis: Diagnosis, t: ArrayLike | None = None) -> Figure:
    """A figure of b, with the bands in which the prior takes it to be right, and z of each row.

    The inner band is that of the variances that the prior states, the outer one that of points
    which all err together. The verdict stands above.

    Parameters
    ----------
    diagnosis : Diagnosis
        That of one function, as `diagnose` returns it.
    t : array, shape (T,)
        The times of its rows; without them they are numbered.

    Returns
    -------
    matplotlib.figure.Figure
        Totals on the left, z on the right.

    Raises
    ------
    InputError
        If `diagnosis` is something else, or is of several functions.
    """
    if not isinstance(diagnosis, Diagnosis):
        raise InputError(f"`diagnosis` must come from `diagnose`; got {diagnosis!r:.40}.")
    rows = diagnosis.value.shape[-1] if diagnosis.value.ndim else 1
    along = np.arange(float(rows)) if t is None else _axis("t", t)
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    figure.suptitle(textwrap.fill(diagnosis.verdict, 110), fontsize="medium")
    left, right = figure.subplots(1, 2)
    _draw_totals(left, diagnosis, along)
    _draw_scores(right, diagnosis, along)
    for axes in (left, right):
        axes.set_xlabel("row" if t is None else "t")
        axes.legend(fontsize="small")
    return figure


def _draw_totals(axes: Axes, found: Diagnosis, along: Array) -> None:
    b, limit = _line("diagnosis", found.value, along), _line("diagnosis", found.limit, along)
    total = b + _line("diagnosis", found.residual, along)
    axes.plot(along, total, label="G mu of the prior", **EXPECTED)
    for std, times, style in ((found.std_full, FULL, EXPECTED), (found.std, limit, OWN)):
        reach = times * _line("diagnosis", std, along)
        ends = total - reach, total + reach
        axes.fill_between(along, *ends, color=style["color"], alpha=0.25, linewidth=0)
    axes.plot(along, b, **TRUTH | {"label": "b"})
    _mark(axes, along, b, found.wrong.numpy(force=True))
    axes.set_ylabel("total of u")


def _draw_scores(axes: Axes, found: Diagnosis, along: Array) -> None:
    limit = _line("diagnosis", found.limit, along)
    scores = [_drawable(z.numpy(force=True).reshape(-1)) for z in (found.z_full, found.z_own)]
    for z, words, style, most in (
        (scores[0], "all points err together", EXPECTED, np.full_like(limit, FULL)),
        (scores[1], "as the prior states", OWN, limit),
    ):
        axes.plot(along, z, label=words, **style)
        for level in (-most, most):
            axes.plot(along, level, **style | {"linewidth": 0.6})
    _mark(axes, along, scores[1], found.wrong.numpy(force=True))
    axes.set_yscale("symlog", linthresh=FULL)
    axes.set_ylabel("G mu - b in standard deviations")


def _mark(axes: Axes, along: Array, values: Array, wrong: Array) -> None:
    there = wrong.reshape(-1).astype(bool)
    if there.any():
        axes.plot(along[there], values[there], **WRONG)


def _drawable(z: Array) -> Array:
    """Infinite ones, of rows without spread, just beyond the others."""
    finite = np.abs(z[np.isfinite(z)])
    return np.clip(z, *(np.array([-2.0, 2.0]) * max(FULL, finite.max(initial=0))))


MARKERS = "osD^vP*X"


def comparison_figure(
    comparison: Comparison, score: str = "CRPS", by: Literal["time"] | None = None
) -> Figure:
    """A figure of what each way gains over no law, with the 95 % interval over functions.

    A full mark is a way that helps or harms, an open one a difference that does not show.

    Parameters
    ----------
    comparison : Comparison
        What `compare` or `files.compare` returned.
    score : str
        One of its `names`, but for the shares inside intervals, of which none is better.
    by : "time"
        Each time by itself, as lines with bands.

    Returns
    -------
    matplotlib.figure.Figure
        Gains in % of the score with no law; of LL, and where that is 0, in units of the score.

    Raises
    ------
    InputError
        If there is no such score, or no way beside no law.

    Examples
    --------
    >>> import probconserv as pc
    >>> truth = np.arange(12.0).reshape(6, 1, 2)
    >>> law = pc.weighted_sum([1.0, 1.0], truth.sum(-1))
    >>> comparison = pc.compare((truth + 1.0, 1.0 + 0 * truth), truth, law)
    >>> comparison_figure(comparison).axes[0].get_xlabel()
    'gain in CRPS over no law (%)'
    """
    if not isinstance(comparison, Comparison) or not comparison.ways[1:]:
        raise InputError(f"`comparison` must be of ways beside no law; got {comparison!r:.40}.")
    check.choice("score", score, [name for name in comparison.names if not is_share(name)])
    ways = comparison.ways[1:]
    found = {way: comparison.difference(way, score, by) for way in ways}
    ones = [[one] if by is None else [*one.values()] for one in found.values()]
    share = not is_higher(score) and all(one.base for own in ones for one in own)
    label = f"gain in {score} over no law" + " (%)" * share
    height = 1.1 + 0.45 * len(ways) if by is None else 3.6
    figure = Figure(figsize=(6.4, height), layout="constrained")
    axes = figure.subplots()
    for row, (way, own) in enumerate(zip(ways, ones, strict=True)):
        style = {**_style(way, found), "marker": MARKERS[row % len(MARKERS)], "label": way}
        unit = np.array([100 / abs(one.base) if share else 1.0 for one in own])
        lines = (unit[:, None] * [(*one.interval, one.gain) for one in own]).T
        low, high, gain = np.where(np.isfinite(lines), lines, np.nan)
        along, across = np.arange(len(own)), np.full(len(own), row)
        if by is None:
            axes.hlines(across, low, high, color=style["color"], linewidth=2)
            axes.annotate(
                own[0].answer, (1.02, row), xycoords=("axes fraction", "data"), va="center"
            )
        else:
            axes.fill_between(along, low, high, color=style["color"], alpha=0.12, linewidth=0)
            for end in (low, high):
                axes.plot(along, end, **{**style, "marker": "", "label": None, "linewidth": 0.6})
        x, y = (gain, across) if by is None else (along, gain)
        axes.plot(x, y, **style)
        open_ = [one.answer not in ("helps", "harms") for one in own]
        axes.plot(x[open_], y[open_], **{**style, "label": None, "linestyle": ""}, mfc="white")
    if by is None:
        axes.axvline(0, **TRUTH)
        axes.set(xlabel=label, yticks=range(len(ways)), ylim=(row + 0.5, -0.5))
        axes.set_yticklabels(ways)
        return figure
    axes.axhline(0, **TRUTH | {"label": "no law"})
    _name_times(axes, [*found[ways[0]]])
    axes.set_ylabel(label)
    figure.legend(loc="outside right upper", fontsize="small")
    return figure


def _name_times(axes: Axes, names: list[str]) -> None:
    """A dozen at most; what all begin with is the name of the axis."""
    first = names[0].partition(" ")[0]
    common = first if all(name.startswith(f"{first} ") for name in names) else ""
    few = range(0, len(names), -(-len(names) // 12))
    axes.set_xticks(list(few), [names[i].removeprefix(f"{common} ") for i in few])
    axes.set_xlabel(common)


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


DAY = 86400.0
BUDGETS = {"dry_air": ("dry air", "kg m$^{-2}$"), "water": ("water", "kg m$^{-2}$")}
BUDGETS["energy"] = ("energy", "J m$^{-2}$")
UNITS = {
    "surface_pressure": "Pa",
    "temperature": "K",
    "specific_humidity": "kg/kg",
    "precipitation": "kg m$^{-2}$ s$^{-1}$",
}


def ledger_figure(ledger: Any, variable: str = "temperature") -> Figure:
    """A figure of what a fixer corrected: each budget over time, and where it moved the state.

    Parameters
    ----------
    ledger : xarray.Dataset
        Of `weather.Ledger.to_xarray`.
    variable : str
        Of which the map is drawn.

    Returns
    -------
    matplotlib.figure.Figure
        For each law what the totals would have drifted by and what is left, mean over members; the
        corrections of a variable added up over the rollout, as a map; and those of temperature
        and humidity, as profiles.

    Raises
    ------
    InputError
        If this is no ledger, or has no such variable.
    """
    if not hasattr(ledger, "data_vars") or "total_before" not in ledger:
        raise InputError("`ledger` must be the dataset of `Ledger.to_xarray`.")
    check.choice("variable", variable, UNITS)
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    panels = figure.subplots(2, 3)
    for axes, law in zip(panels[0], BUDGETS, strict=True):
        _budget(axes, ledger, law)
    panels[0, 0].legend(frameon=False)
    _map(figure, panels[1, 0], ledger, variable)
    for axes, name in zip(panels[1, 1:], ("temperature", "specific_humidity"), strict=True):
        _profile(axes, ledger, name)
    return figure


def _budget(axes: Axes, ledger: Any, law: str) -> None:
    name, unit = BUDGETS[law]
    one = ledger.sel(law=law)
    days = ledger["time"].values / DAY
    moved = one["total"] - one["total_before"]
    drift = -moved.cumsum("step").mean("member").values
    left = (one["total"] - one["target"]).mean("member").values
    axes.plot(days, drift, color="0.6", lw=2.5, label="taken off")
    axes.plot(days, left, color="black", lw=1, ls="--", label="left")
    axes.set(title=name, xlabel="time (days)", ylabel=f"change of the total ({unit})")
    axes.ticklabel_format(axis="y", scilimits=(-3, 4))


def _map(figure: Figure, axes: Axes, ledger: Any, variable: str) -> None:
    values = ledger["map"].sel(variable=variable)
    axes.set(title=f"{variable.replace('_', ' ')}, added up")
    if {"lat", "lon"} <= set(values.coords):
        seen: Any = axes.pcolormesh(
            values["lon"], values["lat"], values.values, cmap="viridis", rasterized=True
        )
        axes.set(xlabel="longitude (degrees)", ylabel="latitude (degrees)")
        bar = figure.colorbar(seen, ax=axes, location="bottom", label=UNITS[variable])
        bar.formatter.set_powerlimits((-3, 4))  # type: ignore[attr-defined]
        return
    axes.plot(values.values.ravel(), ".", ms=2, color="black")
    axes.set(xlabel="cell", ylabel=UNITS[variable])


def _profile(axes: Axes, ledger: Any, variable: str) -> None:
    values = ledger["profile"].sel(on_levels=variable)
    axes.plot(values.values, ledger["pressure"].values / 100, "o-", ms=4, color="black")
    axes.axvline(0, color="0.7", lw=1)
    axes.invert_yaxis()
    axes.ticklabel_format(axis="x", scilimits=(-3, 4))
    title = f"{variable.replace('_', ' ')}, added up"
    axes.set(title=title, xlabel=f"mean correction ({UNITS[variable]})", ylabel="pressure (hPa)")
