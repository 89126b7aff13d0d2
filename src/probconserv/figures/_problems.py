"""Pictures of equations."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ..problems import ClosedForm, Diffusive, Problem, simulate

SYMBOLS = {"u_star": "u*", "beta": "β", "k_right": "k right", "u_left": "u left"}
STYLES = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)))


class Curves(NamedTuple):
    """Solutions for P parameters at T times."""

    x: Tensor  # (M,)
    u: Tensor  # (P, T, M)
    total: Tensor  # (P, T)


def problem_figure(problem: type[Problem]) -> Figure:
    """A figure of one problem: its solution in time, the effect of its parameter, its mass.

    Parameters
    ----------
    problem : class of Problem
        A closed form, or one that `simulate` takes.

    Returns
    -------
    matplotlib.figure.Figure
        Three panels.
    """
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    figure.suptitle(f"{problem.title} ({problem.difficulty}):  {_formula(problem)}")
    values = _spread(problem.train_range, 4)
    draw_profiles(left, problem, problem.example[0])
    draw_effect(middle, problem, values, problem.example[1])
    draw_mass(right, problem, values)
    return figure


def overview_figure(problems: Iterable[type[Problem]]) -> Figure:
    """A figure of problems side by side: solutions at several times, and mass over time below.

    Parameters
    ----------
    problems : iterable of classes
        As `problem_figure` takes them.

    Returns
    -------
    matplotlib.figure.Figure
        Two panels for each problem.
    """
    problems = list(problems)
    figure = Figure(figsize=(3.2 * len(problems), 5.6), layout="constrained")
    axes = figure.subplots(2, len(problems), squeeze=False)
    for problem, (upper, lower) in zip(problems, axes.T, strict=True):
        draw_profiles(upper, problem, problem.example[0])
        draw_mass(lower, problem, _spread(problem.train_range, 3))
        value = _named(problem, problem.example[0])
        upper.set_title(f"{problem.title} ({problem.difficulty})\n{_formula(problem)}, {value}")
        upper.set_ylabel("u" if problem is problems[0] else "")
        lower.set_title("")
        lower.set_ylabel("total of u" if problem is problems[0] else "")
    return figure


def draw_profiles(axes: Axes, problem: type[Problem], parameter: float) -> None:
    """u(t, x) over x, darker as time goes on."""
    times = _spread(problem.time_range, 5)
    curves = _curves(problem, [parameter], times)
    for u, t, colour in zip(curves.u[0], times, _shades(len(times)), strict=True):
        axes.plot(curves.x, u, color=colour, label=f"t = {t:g}")
    axes.set(xlabel="x", ylabel="u", title=f"in time, {_named(problem, parameter)}")
    axes.legend(fontsize="small", framealpha=0.6, handlelength=1.6)


def draw_effect(axes: Axes, problem: type[Problem], parameters: list[float], t: float) -> None:
    """u(t, x) over x for several parameters."""
    curves = _curves(problem, parameters, [t])
    for u, value, style in zip(curves.u[:, 0], parameters, _styles(len(parameters)), strict=True):
        axes.plot(curves.x, u, label=_named(problem, value), **style)
    axes.set(xlabel="x", ylabel="u", title=f"its parameter, t = {t:g}")
    axes.legend(fontsize="small", framealpha=0.6, handlelength=1.6)


def draw_mass(axes: Axes, problem: type[Problem], parameters: list[float]) -> None:
    """The total of u over time for several parameters."""
    times = _spread(problem.time_range, 101)
    totals = _curves(problem, parameters, times).total
    for total, value, style in zip(totals, parameters, _styles(len(parameters)), strict=True):
        axes.plot(times, total, label=_named(problem, value), **style)
    axes.set(xlabel="t", ylabel="total of u", title="its mass")
    axes.legend(fontsize="small", framealpha=0.6, handlelength=1.6)


def _curves(problem: type[Problem], parameters: list[float], times: list[float]) -> Curves:
    case = problem(**{problem.parameter: torch.tensor(parameters, dtype=torch.float64)})
    t = torch.tensor(times, dtype=torch.float64)
    if isinstance(case, ClosedForm):
        x = torch.linspace(*problem.domain, 1001, dtype=torch.float64)
        return Curves(x, case.on_grid(t, x), case[:, None].total(t))
    assert isinstance(case, Diffusive)
    run = simulate(case, t)
    return Curves(run.x, run.u, run.total)


def _spread(ends: tuple[float, float], n: int) -> list[float]:
    return np.linspace(*ends, n).tolist()


def _shades(n: int) -> list[object]:
    """Light to dark, in colour as in grey."""
    return list(matplotlib.colormaps["viridis_r"](np.linspace(0.1, 1, n)))


def _styles(n: int) -> list[dict[str, Any]]:
    return [{"color": c, "linestyle": s} for c, s in zip(_shades(n), STYLES, strict=False)]


def symbol(parameter: str) -> str:
    """A parameter as people write it.

    Parameters
    ----------
    parameter : str
        The name of a field of a problem.

    Returns
    -------
    str
        The name itself where there is no other.

    Examples
    --------
    >>> symbol("u_star")
    'u*'
    """
    return SYMBOLS.get(parameter, parameter)


def _named(problem: type[Problem], value: float) -> str:
    return f"{symbol(problem.parameter)} = {value:.3g}"


def _formula(problem: type[Problem]) -> str:
    formula = problem.equation
    for plain, tex in (("u_xx", "u_{xx}"), ("beta", r"\beta"), ("exp(-1/u)", "e^{-1/u}")):
        formula = formula.replace(plain, tex)
    return f"${formula}$"
