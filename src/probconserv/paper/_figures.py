"""The figures of a cell, from what it kept."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .. import figures
from .._builders import integral
from .._fields import Diagonal
from ..fronts import FrontPosition
from ._cell import Cell
from ._report import Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(cell: Cell, folder: Path) -> list[Picture]:
    """Writes each figure of the cell as PNG and SVG into the folder."""
    pictures = []
    for kind, caption, figure in _figures(cell):
        figure.suptitle(_label(cell), fontsize="small", color="dimgrey")
        name = f"{cell.name}-{kind}"
        svg = figures.save(figure, folder / f"{name}.svg").read_text(encoding="utf-8")
        figures.save(figure, folder / f"{name}.png")
        pictures.append(Picture(cell.experiment.name, cell.value, kind, caption, svg))
    return pictures


def _label(cell: Cell) -> str:
    problem, plan = cell.experiment.problem, cell.plan
    parameter = f"{figures.symbol(problem.parameter)} = {cell.value:g}"
    return f"{problem.title}, {parameter}; protocol {plan.protocol}, weights {plan.recipe}"


def _figures(cell: Cell) -> Iterator[tuple[str, str, "Figure"]]:
    """Kind, caption and figure."""
    curves, plan, where = cell.curves, cell.plan, f"at t = {cell.experiment.time:g}"
    x, truth, variances = curves["x"], curves["truth"], cell.of_methods("variance")
    fields = {name: Diagonal(m, variances[name]) for name, m in cell.of_methods("mean").items()}
    yield (
        "profiles",
        f"Mean and three standard deviations of one test function {where}.",
        figures.profiles_figure(x, fields, truth),
    )
    yield (
        "errors",
        f"The error of that mean {where}, with the band around it.",
        figures.errors_figure(x, fields, truth),
    )
    law = integral(x, curves["total"])
    means = {name: Diagonal(m, 0.0) for name, m in cell.of_methods("mean over time").items()}
    yield (
        "mass",
        "Total of u over time, of the same test function, from "
        f"{_count(plan.samples_over_time, 'latent sample')}. "
        "Methods that conserve lie on the truth.",
        figures.mass_figure(curves["t"], means, law),
    )
    yield (
        "mse",
        f"MSE over time, averaged over {_count(plan.functions_over_time, 'test function')}, "
        f"from {_count(plan.samples_over_time, 'latent sample')}.",
        figures.scores_figure(curves["t"], cell.of_methods("MSE over time")),
    )
    yield (
        "precision",
        f"ProbConserv-ANP {where} as the constraint is taken more seriously, with standard errors.",
        figures.precision_figure(
            curves["precision"],
            {
                label: tuple(curves[f"precision/{name}"])
                for label, name in (("CE²", "CE"), ("LL", "LL"), ("MSE", "MSE"))
            },
        ),
    )
    yield from _fronts(cell)


RULES = {
    "point": "the first grid point with u at or below 0, the paper's definition",
    "crossing": "where u comes down through half of the jump, between grid points",
}


def _fronts(cell: Cell) -> Iterator[tuple[str, str, "Figure"]]:
    for rule, meaning in RULES.items() if cell.fronts else ():
        places = cell.of_methods(f"{rule}/positions")
        chances = cell.of_methods(f"{rule}/probabilities")
        fronts = {name: FrontPosition(at, chances[name]) for name, at in places.items()}
        yield (
            f"front-{rule}",
            f"The front at t = {cell.experiment.time:g}, over all test functions: {meaning}.",
            figures.front_figure(fronts, cell.fronts[0]["true"]),
        )


def _count(n: int, what: str) -> str:
    return f"{n} {what}" + "s" * (n > 1)
