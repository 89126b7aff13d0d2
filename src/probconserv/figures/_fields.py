"""Pictures of predicted fields: several methods side by side, against the truth; figures as files.

`fields` maps the name of each method to its field. The methods of the paper have colours and lines
of their own, the same in every picture; other names take what is left.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ..conditioning.draws import FieldDraws
from ..diagnostics.fronts import FrontPosition
from ..fields.state import as_field
from ..laws.law import Law, check_law
from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.complete_files import complete
from ..support.errors import InputError

ENDINGS = sorted(FigureCanvasBase.get_supported_filetypes())
SAME_EVERY_TIME: Any = {"svg.hashsalt": "probconserv"}  # names inside the file


def save(figure: Figure, path: str | Path) -> Path:
    """Writes a figure to a file and returns its path; the ending says as what.

    It appears under its name only when it is complete. The same figure gives the same file.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        What to write.
    path : str or Path
        The file, such as "mass.svg" or "mass.png".

    Returns
    -------
    Path
        The same path.

    Raises
    ------
    InputError
        If the ending is none that matplotlib can write.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     save(Figure(), f"{folder}/empty.svg").name
    'empty.svg'
    """
    path = check.path("path", path)
    if not isinstance(figure, Figure):
        raise InputError(f"`figure` must be a figure of matplotlib, got {type(figure).__name__}.")
    check.choice("ending of path", path.suffix.removeprefix("."), ENDINGS)
    dated: dict[str, Any] = {"metadata": {"Date": None}} if path.suffix == ".svg" else {}
    with complete(path) as part, matplotlib.rc_context(SAME_EVERY_TIME):
        figure.savefig(part, dpi=150, **dated)
    return path


PAPER: dict[str, tuple[str, Any]] = {  # colours that differ for all eyes, and lines for grey prints
    "ANP": ("#D55E00", "--"),
    "SoftC-ANP": ("#CA0B3B", (0, (1, 1))),
    "HardC-ANP": ("#009E73", "-."),
    "ProbConserv-ANP": ("#0072B2", "-"),
    "ProbConserv-ANP (w/diff)": ("#8957EE", (0, (5, 1, 1, 1, 1, 1))),
}
OTHERS: tuple[tuple[str, Any], ...] = (
    ("#C98500", "-"),
    ("#5C3D99", "--"),
    ("#5F6B00", "-."),
    ("#808080", (0, (1, 1))),
    ("#4A1F00", (0, (5, 1, 1, 1, 1, 1))),
)
TRUTH: dict[str, Any] = {"color": "black", "linewidth": 0.9, "linestyle": ":", "label": "truth"}
SIGMAS = 3  # half of the width of a band, as in the paper
COLUMNS = 3
BINS = 30
FEW = 250  # places of a grid, each of which has a bar of its own

INSIDE = 0.9973  # the share of a normal within that band

Array = NDArray[np.float64]


class Line(NamedTuple):
    """The mean of a field along an axis, and the ends of its band."""

    mean: Array
    low: Array
    high: Array


def profiles_figure(
    x: ArrayLike, fields: Mapping[str, Any], truth: ArrayLike | None = None
) -> Figure:
    """A figure of each field at one time: its mean and a band of three standard deviations.

    Bands that reach far beyond the truth are cut off.

    Parameters
    ----------
    x : array, shape (M,)
        The points.
    fields : dict of fields, shape (M,) or (1, M) each
        By the name of the method. The band of a field known by draws holds as many of them as three
        standard deviations do of a normal.
    truth : array, shape (M,) or (1, M)
        The exact solution.

    Returns
    -------
    matplotlib.figure.Figure
        A panel for each field.

    Raises
    ------
    InputError
        If `fields` hold nothing, or do not fit `x`.

    Examples
    --------
    >>> figure = profiles_figure([0.0, 0.5, 1.0], {"ANP": ([1.0, 0.5, 0.0], 0.01)})
    >>> [panel.get_title() for panel in figure.axes]
    ['ANP']
    """
    places = _axis("x", x)
    lines = _lines(places, fields)
    exact = None if truth is None else _line("truth", truth, places)
    figure, axes = _small_multiples(len(lines))
    for (name, line), panel in zip(lines.items(), axes, strict=True):
        if exact is not None:
            panel.plot(places, exact, **TRUTH, zorder=3)
        _band(panel, places, line, 0.0, _style(name, fields))
        panel.set_title(name)
    _label(axes, "x", "u")
    if exact is not None:
        beyond = max(float(np.ptp(exact)) * 0.35, _reach(lines, exact))
        axes[0].set_ylim(exact.min() - beyond, exact.max() + beyond)
        axes[0].legend(fontsize="small")
    return figure


def errors_figure(x: ArrayLike, fields: Mapping[str, Any], truth: ArrayLike) -> Figure:
    """A figure of each field at one time less the truth: the error of its mean with a band.

    Parameters
    ----------
    x, fields, truth : as in `profiles_figure`

    Returns
    -------
    matplotlib.figure.Figure
        A panel for each field.

    Raises
    ------
    InputError
        As `profiles_figure` does.

    Examples
    --------
    >>> figure = errors_figure([0.0, 1.0], {"ANP": ([1.0, 0.5], 0.01)}, truth=[1.0, 0.4])
    >>> figure.axes[0].get_ylabel()
    'mean of u less the truth'
    """
    places = _axis("x", x)
    lines, exact = _lines(places, fields), _line("truth", truth, places)
    figure, axes = _small_multiples(len(lines))
    for (name, line), panel in zip(lines.items(), axes, strict=True):
        panel.axhline(0, **TRUTH, zorder=3)
        _band(panel, places, line, exact, _style(name, fields))
        panel.set_title(name)
    _label(axes, "x", "mean of u less the truth")
    reach = _reach(lines, exact)
    axes[0].set_ylim(-reach, reach)
    return figure


def mass_figure(t: ArrayLike, fields: Mapping[str, Any], law: Law) -> Figure:
    """A figure of the total of each field's mean over time, beside the one that the law states.

    Parameters
    ----------
    t : array, shape (T,)
        The times.
    fields : dict of fields, shape (T, M) each
        By the name of the method.
    law : Law
        With one row for each time, as `integral` makes it.

    Returns
    -------
    matplotlib.figure.Figure
        Totals on the left, how far they are off on the right.

    Raises
    ------
    InputError
        If the law is not linear, or its rows do not fit `t`.

    Examples
    --------
    >>> import probconserv as pc
    >>> field = pc.Diagonal([[1.0, 1.0], [1.0, 2.0]], 0.1)
    >>> len(mass_figure([0.0, 1.0], {"ANP": field}, pc.integral([0.0, 1.0], 1.0)).axes)
    2
    """
    times = _axis("t", t)
    check_law(law)
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, field in _given("fields", fields).items():
        mean, style = as_field(field).mean, _style(name, fields, times)
        total = _line(f"fields[{name!r}]", law.apply(mean), times)
        off = _line(f"fields[{name!r}]", law.residual(mean), times)
        left.plot(times, total, label=name, **style)
        right.plot(times, off, **style)
    left.plot(times, total - off, **TRUTH)
    left.set(xlabel="t", ylabel="total of u")
    right.set(xlabel="t", ylabel="total of u less the true total")
    left.legend(fontsize="small")
    return figure


def scores_figure(t: ArrayLike, scores: Mapping[str, ArrayLike], label: str = "MSE") -> Figure:
    """A figure of a score of each method over time; logarithmic if all are positive.

    Parameters
    ----------
    t : array, shape (T,)
        The times.
    scores : dict of arrays, shape (T,) each
        By the name of the method.
    label : str
        What the score is called.

    Returns
    -------
    matplotlib.figure.Figure
        One panel.

    Raises
    ------
    InputError
        If `scores` hold nothing, or do not fit `t`.

    Examples
    --------
    >>> scores_figure([0.0, 1.0], {"ANP": [0.1, 0.2]}).axes[0].get_yscale()
    'log'
    """
    times = _axis("t", t)
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    lines = {
        name: _line(f"scores[{name!r}]", v, times) for name, v in _given("scores", scores).items()
    }
    for name, values in lines.items():
        axes.plot(times, values, label=name, **_style(name, scores, times))
    positive = all((values > 0).all() for values in lines.values())
    axes.set(xlabel="t", ylabel=label, yscale="log" if positive else "linear")
    axes.legend(fontsize="small")
    return figure


def precision_figure(
    precision: ArrayLike,  # (P,)
    scores: Mapping[str, tuple[ArrayLike, ArrayLike]],  # name: mean and standard error, (P,) each
    logarithmic: Sequence[str] = ("CE²", "MSE"),
) -> Figure:
    """A figure of scores against the precision 1 / sigma_G^2 of the law, with standard errors.

    Where a precision is infinite (sigma_G = 0) its scores are drawn as a level.

    Parameters
    ----------
    precision : array, shape (P,)
        The precisions.
    scores : dict of pairs of arrays, shape (P,) each
        By the name of the score, its average and its standard error.
    logarithmic : sequence of str
        Which scores are on a logarithmic scale.

    Returns
    -------
    matplotlib.figure.Figure
        A panel for each score.

    Raises
    ------
    InputError
        If no precision is finite.
    """
    steps = _axis("precision", precision, finite=False)
    finite = np.isfinite(steps)
    if not finite.any():
        raise InputError("`precision` must hold finite numbers as well; got none.")
    figure = Figure(figsize=(3.2 * len(scores), 3), layout="constrained")
    colour = PAPER["ProbConserv-ANP"][0]
    for axes, (name, (mean, error)) in zip(
        figure.subplots(1, max(len(scores), 1), squeeze=False)[0],
        _given("scores", scores).items(),
        strict=True,
    ):
        value, se = _line(name, mean, steps), _line(name, error, steps)
        axes.plot(steps[finite], value[finite], color=colour)
        ends = value[finite] - se[finite], value[finite] + se[finite]
        axes.fill_between(steps[finite], *ends, color=colour, alpha=0.25, linewidth=0)
        scale = "log" if name in logarithmic else "linear"
        for level in value[~finite]:
            if scale == "linear" or level > value[finite].min() / 1e3:  # else far below the picture
                axes.axhline(level, **TRUTH | {"label": r"exact, $\sigma_G = 0$"})
                axes.legend(fontsize="small")
        axes.set(xlabel=r"$1 / \sigma_G^2$", ylabel=name, xscale="log", yscale=scale)
    return figure


def front_figure(fronts: Mapping[str, FrontPosition], true: float | None = None) -> Figure:
    """A figure of each method's distribution of the front, over all functions and times it has.

    Parameters
    ----------
    fronts : dict of FrontPosition
        By the name of the method.
    true : float
        Where the front is.

    Returns
    -------
    matplotlib.figure.Figure
        A panel for each method.

    Raises
    ------
    InputError
        If `fronts` hold nothing.

    Examples
    --------
    >>> import probconserv as pc
    >>> field = pc.Diagonal([0.3, 0.0, -0.3], 0.04)
    >>> front = pc.diagnostics.front_position(field, x=[0.0, 0.5, 1.0])
    >>> len(front_figure({"ANP": front}, true=0.5).axes)
    1
    """
    outcomes = {name: _outcomes(front) for name, front in _given("fronts", fronts).items()}
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
    if 1 < len(places) < FEW and not any(_scattered(*outcome) for outcome in outcomes):
        middles = (places[1:] + places[:-1]) / 2
        return np.array([2 * places[0] - middles[0], *middles, 2 * places[-1] - middles[-1]])
    return np.linspace(low - margin, high + margin, BINS + 1)


def _scattered(positions: Array, shares: Array) -> bool:
    """Whether these are draws between grid points: each at a place of its own, all alike."""
    return (
        len(np.unique(positions)) == len(positions) and len(positions) > 1 and np.ptp(shares) == 0
    )


def _small_multiples(n: int, sharey: bool = True) -> tuple[Figure, list[Axes]]:
    """Panels of one size in rows."""
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


def _band(axes: Axes, x: Array, line: Line, less: Array | float, style: dict[str, Any]) -> None:
    """less: what is taken off."""
    axes.plot(x, line.mean - less, **style)
    ends = line.low - less, line.high - less
    axes.fill_between(x, *ends, color=style["color"], alpha=0.25, linewidth=0)


def _style(name: str, names: Mapping[str, Any], along: Array | None = None) -> dict[str, Any]:
    """Of a method among the others of its picture; a lone point of it is marked."""
    unknown = [other for other in names if other not in PAPER]
    index = unknown.index(name) if name in unknown else 0
    again = index // len(OTHERS)  # round: the same colours with other lines
    colour = OTHERS[index % len(OTHERS)][0]
    line = OTHERS[(index + again) % len(OTHERS)][1]
    colour, line = PAPER.get(name, (colour, line))
    alone = {"marker": "o"} if along is not None and len(along) == 1 else {}
    return {"color": colour, "linestyle": line, "linewidth": 1.6, **alone}


def _reach(lines: dict[str, Line], exact: Array) -> float:
    """How far from the truth a picture must reach: the worst error, and half of the bands."""
    worst = max(float(np.abs(line.mean - exact).max()) for line in lines.values())
    bands = float(np.median([(line.high - line.low) / 2 for line in lines.values()]))
    return 1.3 * max(worst, bands) or 1.0


def _lines(places: Array, fields: Mapping[str, Any]) -> dict[str, Line]:
    """Mean and band of each field, (M,): its draws' own where it is known by draws."""
    lines = {}
    for name, given in _given("fields", fields).items():
        field, label = as_field(given), f"fields[{name!r}]"
        mean = _line(label, field.mean, places)
        if isinstance(field, FieldDraws):
            low, high = (_line(label, end, places) for end in field.interval(INSIDE))
        else:
            reach = SIGMAS * _line(label, field.std, places)
            low, high = mean - reach, mean + reach
        lines[name] = Line(mean, low, high)
    return lines


def _given(name: str, mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(mapping, Mapping) or not mapping:
        raise InputError(f"`{name}` must be a dictionary with at least one method to draw.")
    return mapping


def _axis(name: str, values: ArrayLike, finite: bool = True) -> Array:
    axis = check.as_tensor(name, values)
    if finite:
        check.finite(name, axis)
    check.increasing(name, axis, least=1)
    return axis.double().numpy(force=True)


def _line(name: str, values: ArrayLike, along: Array) -> Array:
    """Values of the length of an axis; axes of length 1 before it are dropped."""
    tensor = check.as_tensor(name, values)
    check.finite(name, tensor)
    array = tensor.double().numpy(force=True)
    if array.size != len(along) or array.shape[-1] != len(along):
        raise InputError(
            f"`{name}` must have one value for each of the {len(along)} points, but has shape "
            f"{array.shape}. Draw one function and, over x, one time."
        )
    return array.reshape(-1)
