"""The command line. Needs cyclopts and rich: `pip install 'probconserv[cli]'`."""

import sys
from collections.abc import Sequence
from pathlib import Path

from cyclopts import App
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from . import __version__
from ._errors import ProbConservError
from .problems import PROBLEMS, ClosedForm, Problem

app = App(
    name="probconserv",
    help="Predictions that obey conservation laws, with honest uncertainty.",
    version=__version__,
)


@app.command
def problems(*, plot: Path | None = None) -> None:
    """List the equations.

    Parameters
    ----------
    plot
        Draw each into this folder as well.
    """
    closed = [p for p in PROBLEMS.values() if issubclass(p, ClosedForm)]
    others = [p for p in PROBLEMS.values() if not issubclass(p, ClosedForm)]
    console = Console()
    console.print(_table("Closed form", closed, console.width))
    console.print(_table("Finite volumes (simulate)", others, console.width))
    if plot is not None:
        _draw(plot, closed)


def _table(title: str, problems: Sequence[type[Problem]], width: int) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        show_edge=False,
    )
    for heading in ("name", "equation", "x", "t", "parameter", "level"):
        table.add_column(heading, no_wrap=width >= 80, overflow="fold")
    for problem in problems:
        domain, times, values = (
            f"{low:g}..{high:.4g}"
            for low, high in (problem.domain, problem.time_range, problem.train_range)
        )
        parameter = f"{problem.parameter} {values}"
        table.add_row(problem.name, problem.equation, domain, times, parameter, problem.difficulty)
    return table


def _draw(folder: Path, closed: Sequence[type[Problem]]) -> None:
    try:
        from .figures import overview_figure, problem_figure, save
    except ModuleNotFoundError as error:
        raise ProbConservError(f"no {error.name} here; pip install 'probconserv[plots]'") from None

    save(overview_figure(closed), folder / "overview.png")
    for name, problem in track(PROBLEMS.items(), "Drawing", transient=True):
        save(problem_figure(problem), folder / f"{name}.png")
    print(f"{len(PROBLEMS) + 1} pictures in {folder}")


def main() -> None:
    try:
        app()
    except (ProbConservError, OSError) as error:
        print(f"probconserv: {error}", file=sys.stderr)
        sys.exit(1)
