"""Pictures of predicted fields: several methods side by side, against the truth.

`fields` maps the name of each method to its field. The methods of the paper have colours and lines
of their own, the same in every picture; other names take what is left.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from .. import _checks as check
from .._checks import ArrayLike
from .._constraints import Constraint
from .._convert import as_field
from .._errors import InputError
from ..fronts import FrontPosition

PAPER: dict[str, tuple[str, Any]] = {  # colours that differ for all eyes, and lines for grey prints
    "ANP": ("#D55E00", "--"),
    "SoftC-ANP": ("#CC79A7", (0, (1, 1))),
    "HardC-ANP": ("#009E73", "-."),
    "ProbConserv-ANP": ("#0072B2", "-"),
    "ProbConserv-ANP (w/diff)": ("#56B4E9", (0, (5, 1, 1, 1, 1, 1))),
}
OTHERS: tuple[tuple[str, Any], ...] = (
    ("#E69F00", "-"),
    ("#5C3D99", "--"),
    ("#F0E442", "-."),
    ("#999999", (0, (1, 1))),
    ("#7F3C00", (0, (5, 1, 1, 1, 1, 1))),
)
TRUTH: dict[str, Any] = {"color": "black", "linewidth": 0.9, "linestyle": ":", "label": "truth"}
SIGMAS = 3  # half of the width of a band, as in the paper
COLUMNS = 3
BINS = 30
FEW = 250  # places of a grid, each of which has a bar of its own

Array = NDArray[np.float64]


def profiles_figure(
    x: ArrayLike, fields: Mapping[str, Any], truth: ArrayLike | None = None
) -> Figure:
    """Each field at one time: its mean and a band of three standard deviations, over x.

    x: (M,). fields: (M,) or (1, M) each. truth: the same. Bands that reach far beyond the truth are
    cut off.
    """
    places, lines = _array("x", x), _lines(x, fields)
    exact = None if truth is None else _line("truth", truth, places)
    figure, axes = _small_multiples(len(lines))
    for (name, (mean, std)), panel in zip(lines.items(), axes, strict=True):
        if exact is not None:
            panel.plot(places, exact, **TRUTH, zorder=3)
        _band(panel, places, mean, std, _style(name, fields))
        panel.set_title(name)
    _label(axes, "x", "u")
    if exact is not None:
        reach = max(float(np.ptp(exact)), 1e-12) * 0.35
        axes[0].set_ylim(exact.min() - reach, exact.max() + reach)
        axes[0].legend(fontsize="small")
    return figure


def errors_figure(x: ArrayLike, fields: Mapping[str, Any], truth: ArrayLike) -> Figure:
    """Each field at one time less the truth: the error of its mean with the band around it."""
    places, lines = _array("x", x), _lines(x, fields)
    exact = _line("truth", truth, places)
    figure, axes = _small_multiples(len(lines))
    for (name, (mean, std)), panel in zip(lines.items(), axes, strict=True):
        panel.axhline(0, **TRUTH, zorder=3)
        _band(panel, places, mean - exact, std, _style(name, fields))
        panel.set_title(name)
    _label(axes, "x", "mean of u less the truth")
    worst = max(float(np.abs(mean - exact).max()) for mean, _ in lines.values())
    axes[0].set_ylim(-1.3 * worst - 1e-12, 1.3 * worst + 1e-12)
    return figure


def mass_figure(t: ArrayLike, fields: Mapping[str, Any], law: Constraint) -> Figure:
    """The total of each field's mean over time, beside the one that the law states.

    t: (T,). fields: (T, M) each. law: with one row for each time, as `integral` makes it.
    """
    times = _array("t", t)
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, field in fields.items():
        mean = as_field(field).mean
        off = _line(f"fields[{name!r}]", law.residual(mean), times)
        left.plot(times, law.apply(mean).numpy(force=True), label=name, **_style(name, fields))
        right.plot(times, off, **_style(name, fields))
    left.plot(times, law.value.double().expand(len(times)).numpy(force=True), **TRUTH)
    left.set(xlabel="t", ylabel="total of u")
    right.set(xlabel="t", ylabel="total of u less the true total")
    left.legend(fontsize="small")
    return figure


def scores_figure(t: ArrayLike, scores: Mapping[str, ArrayLike], label: str = "MSE") -> Figure:
    """A score of each method over time, (T,) each, on a logarithmic scale."""
    times = _array("t", t)
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    for name, values in scores.items():
        values = _line(f"scores[{name!r}]", values, times)
        axes.plot(times, values, label=name, **_style(name, scores))
    axes.set(xlabel="t", ylabel=label, yscale="log")
    axes.legend(fontsize="small")
    return figure


def precision_figure(
    precision: ArrayLike,  # (P,)
    scores: Mapping[str, tuple[ArrayLike, ArrayLike]],  # name: mean and standard error, (P,) each
    logarithmic: Sequence[str] = ("CE²", "MSE"),
) -> Figure:
    """Scores against the precision 1 / sigma_G^2 of the constraint, each with its standard error.

    Where the last precision is infinite (sigma_G = 0) its scores are drawn as a level.
    """
    steps = _array("precision", precision)
    finite = np.isfinite(steps)
    figure = Figure(figsize=(3.2 * len(scores), 3), layout="constrained")
    colour = PAPER["ProbConserv-ANP"][0]
    for axes, (name, (mean, error)) in zip(
        figure.subplots(1, len(scores), squeeze=False)[0], scores.items(), strict=True
    ):
        value, se = _line(name, mean, steps), _line(name, error, steps)
        axes.plot(steps[finite], value[finite], color=colour)
        ends = value[finite] - se[finite], value[finite] + se[finite]
        axes.fill_between(steps[finite], *ends, color=colour, alpha=0.25, linewidth=0)
        if not finite.all() and value[-1] > value[finite].min() / 1e3:
            axes.axhline(value[-1], **TRUTH | {"label": r"exact, $\sigma_G = 0$"})
            axes.legend(fontsize="small")
        axes.set(xlabel=r"$1 / \sigma_G^2$", ylabel=name, xscale="log")
        axes.set_yscale("log" if name in logarithmic else "linear")
    return figure


def front_figure(fronts: Mapping[str, FrontPosition], true: float | None = None) -> Figure:
    """The distribution of each method's front, over all functions and times that it has."""
    outcomes = {name: _outcomes(front) for name, front in fronts.items()}
    edges = _edges([*outcomes.values()], true)
    figure, axes = _small_multiples(len(fronts), sharey=False)
    for (name, (positions, shares)), panel in zip(outcomes.items(), axes, strict=True):
        heights, _ = np.histogram(positions, edges, weights=shares)
        colour = _style(name, fronts)["color"]
        panel.stairs(heights, edges, fill=True, color=colour, alpha=0.5)
        if true is not None:
            panel.axvline(true, **TRUTH | {"label": "true front"})
        none = 1 - float(shares.sum())
        missing = f"\nno front: {100 * none:.1f} %" if none > 5e-4 else ""
        panel.set(title=name + missing)
    _label(axes, "x of the front", "probability")
    if true is not None:
        axes[0].legend(fontsize="small")
    return figure


def _outcomes(front: FrontPosition) -> tuple[Array, Array]:
    """Positions and their probabilities, without what has no front or no probability."""
    positions, shares = (v.numpy(force=True) for v in (front.positions, front.probabilities))
    found, cases = ~np.isnan(positions) & (shares > 1e-12), max(positions[0].size, 1)
    return positions[found], shares[found] / cases


def _edges(outcomes: list[tuple[Array, Array]], true: float | None) -> Array:
    """Bins around where nearly all of the probability is; where there are few places, theirs."""
    ends = [] if true is None else [true]
    for positions, shares in outcomes:
        if len(positions):
            order = positions.argsort()
            share = shares[order].cumsum() / shares.sum()
            ends += [positions[order][np.searchsorted(share, q)] for q in (0.005, 0.995)]
    low, high = (min(ends), max(ends)) if ends else (0.0, 1.0)
    margin = 0.05 * (high - low) or 0.5
    places = np.unique(np.concatenate([positions for positions, _ in outcomes]))
    places = places[(places >= low - margin) & (places <= high + margin)]
    if 1 < len(places) < FEW:
        middles = (places[1:] + places[:-1]) / 2
        return np.array([2 * places[0] - middles[0], *middles, 2 * places[-1] - middles[-1]])
    return np.linspace(low - margin, high + margin, BINS + 1)


def _small_multiples(n: int, sharey: bool = True) -> tuple[Figure, list[Axes]]:
    """Panels of one size in rows."""
    if not n:
        raise InputError("there is nothing to draw: no method was given.")
    columns = min(n, COLUMNS)
    rows = -(-n // columns)
    figure = Figure(figsize=(3 * columns, 2.5 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=sharey, squeeze=False)
    for spare in panels.flat[n:]:
        spare.remove()
    return figure, list(panels.flat[:n])


def _label(panels: list[Axes], x: str, y: str) -> None:
    """At the bottom of each column and the left of each row."""
    for i, panel in enumerate(panels):
        panel.set_ylabel("" if i % COLUMNS else y)
        if i + COLUMNS >= len(panels):
            panel.set_xlabel(x)
            panel.tick_params(labelbottom=True)


def _band(axes: Axes, x: Array, mean: Array, std: Array, style: dict[str, Any]) -> None:
    axes.plot(x, mean, **style)
    ends = mean - SIGMAS * std, mean + SIGMAS * std
    axes.fill_between(x, *ends, color=style["color"], alpha=0.25, linewidth=0)


def _style(name: str, names: Mapping[str, Any]) -> dict[str, Any]:
    """Of a method among the others of its picture."""
    unknown = [other for other in names if other not in PAPER]
    index = unknown.index(name) if name in unknown else 0
    colour, line = PAPER.get(name) or OTHERS[index % len(OTHERS)]
    return {"color": colour, "linestyle": line, "linewidth": 1.6}


def _lines(x: ArrayLike, fields: Mapping[str, Any]) -> dict[str, tuple[Array, Array]]:
    """Mean and standard deviation of each field, (M,)."""
    places = _array("x", x)
    return {name: tuple(_moments(name, field, places)) for name, field in fields.items()}  # type: ignore[misc]


def _moments(name: str, field: Any, places: Array) -> Iterator[Array]:
    field = as_field(field)
    for moment in (field.mean, field.std):
        yield _line(f"fields[{name!r}]", moment, places)


def _line(name: str, values: ArrayLike, along: Array) -> Array:
    """Values of the length of an axis; axes of length 1 before it are dropped."""
    array = _array(name, values)
    if array.size != len(along) or array.shape[-1] != len(along):
        raise InputError(
            f"`{name}` must have one value for each of the {len(along)} points, but has shape "
            f"{array.shape}. Draw one function and, over x, one time."
        )
    return array.reshape(-1)


def _array(name: str, values: ArrayLike) -> Array:
    return check.as_tensor(name, values).double().numpy(force=True)
