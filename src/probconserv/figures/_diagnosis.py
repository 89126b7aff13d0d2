"""A picture of a diagnosis: what a prior expects of the law, beside b."""

import textwrap
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..diagnostics.diagnosis import Diagnosis
from ..diagnostics.limits import FULL
from ..support.checks import ArrayLike
from ..support.errors import InputError
from ._fields import OTHERS, TRUTH, Array, _axis, _line

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
