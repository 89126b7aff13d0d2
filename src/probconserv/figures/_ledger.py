"""Pictures of what a fixer corrected over a rollout."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..support import checks as check
from ..support.errors import InputError

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
            values["lon"],
            values["lat"],
            values.values,
            cmap="viridis",
            rasterized=True,
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
