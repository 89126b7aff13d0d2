"""The picture of docs/learn/equations.md: python docs/pictures/equations.py."""

from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure

from probconserv.figures import save
from probconserv.problems import PROBLEMS, ClosedForm

STYLES = ("-", "--", "-.")


def overview(problems):
    """Solutions at several times, and below the total over time."""
    figure = Figure(figsize=(3.2 * len(problems), 5.6), layout="constrained")
    for problem, (upper, lower) in zip(problems, figure.subplots(2, len(problems)).T, strict=True):
        draw_profiles(upper, problem, problem.example[0])
        draw_mass(lower, problem, spread(problem.train_range, 3))
        value = named(problem, problem.example[0])
        upper.set_title(f"{problem.title} ({problem.difficulty})\n{formula(problem)}, {value}")
    figure.axes[0].set_ylabel("u")
    figure.axes[len(problems)].set_ylabel("total of u")
    return figure


def draw_profiles(axes, problem, parameter):
    times = spread(problem.time_range, 5)
    x = torch.linspace(*problem.domain, 1001, dtype=torch.float64)
    u = problem(**{problem.parameter: parameter}).on_grid(times, x)
    for each, t, colour in zip(u, times, shades(5), strict=True):
        axes.plot(x, each, color=colour, label=f"t = {t:g}")
    axes.set(xlabel="x")
    axes.legend(fontsize="small", framealpha=0.6, handlelength=1.6)


def draw_mass(axes, problem, parameters):
    times = spread(problem.time_range, 101)
    totals = problem(**{problem.parameter: parameters})[:, None].total(times)
    styles = zip(shades(len(parameters)), STYLES, strict=True)
    for total, value, (colour, line) in zip(totals, parameters, styles, strict=True):
        axes.plot(times, total, color=colour, linestyle=line, label=named(problem, value))
    axes.set(xlabel="t")
    axes.legend(fontsize="small", framealpha=0.6, handlelength=1.6)


def spread(ends, n):
    return np.linspace(*ends, n)


def shades(n):
    """Light to dark, in colour as in grey."""
    return matplotlib.colormaps["viridis_r"](np.linspace(0.1, 1, n))


def named(problem, value):
    symbol = {"u_star": "u*", "beta": "β"}.get(problem.parameter, problem.parameter)
    return f"{symbol} = {value:.3g}"


def formula(problem):
    text = problem.equation.replace("u_xx", "u_{xx}").replace("beta", r"\beta")
    return f"${text}$"


closed = [problem for problem in PROBLEMS.values() if issubclass(problem, ClosedForm)]
save(overview(closed), Path(__file__).with_name("equations.png"))
