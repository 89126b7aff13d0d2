"""The command line. Needs cyclopts and rich, the extra `cli`."""

import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App, CycloptsError
from rich import box
from rich.console import Console
from rich.table import Table

from .. import __version__
from ..support.errors import InputError, ProbConservError, printable
from . import compare as cli_compare
from . import files as cli_files
from . import train as cli_train
from .words import narrow

if TYPE_CHECKING:  # torch takes seconds: commands import what they need
    from ..problems import Problem

app = App(
    name="probconserv",
    help="Predictions that obey conservation laws, with their uncertainty.",
    version=__version__,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,
)
cli_files.register(app)
cli_compare.register(app)


@app.command
def problems() -> None:
    """List the equations."""
    from ..problems import PROBLEMS, ClosedForm

    closed = [p for p in PROBLEMS.values() if issubclass(p, ClosedForm)]
    others = [p for p in PROBLEMS.values() if not issubclass(p, ClosedForm)]
    console = Console()
    console.print(_table("Closed form", closed, console.width))
    console.print(_table("Finite volumes (simulate)", others, console.width))


cli_train.register(app)


@app.command
def reproduce(
    *problems: str,
    protocol: str = "ours",
    recipe: str = "modern",
    out: Path = Path("out", "reproduce"),
    device: str = "auto",
    n: int = 50,
    samples: int = 100,
    figures: bool = True,
    fresh: bool = False,
) -> None:
    """Compute the paper's tables and figures again, beside what was published.

    Parameters
    ----------
    problems
        Names of equations; all if none is given, or `all`.
    protocol
        ours, or paper: dropout on and moments as in the published evaluation.
    recipe
        The recipe of the weights: modern or paper.
    out
        The folder for the report, the results and the figures; finished cells in it are reused.
    device
        auto, cpu or cuda.
    n
        Test functions for each parameter.
    samples
        How many samples of the latent.
    figures
        Draw figures and write the report.
    fresh
        Compute finished cells again.
    """
    from ..experiments import paper

    if figures:
        cli_files.require("plots", "matplotlib", "jinja2")
    way: Any = protocol  # `reproduce` refuses what it does not know
    known: Any = recipe
    with Console(stderr=True).status("") as status:
        told = device, n, samples, figures, fresh, status.update
        cells = paper.reproduce(_chosen(problems, paper.EXPERIMENTS), out, way, known, *told)
        status.update("drawing")
        written = paper.write(cells, out)
    remarks = paper.remarks([record for cell in cells for record in cell.records])
    _show([_scores(cell.experiment, cell.records) for cell in cells], remarks, written)


@app.command
def operators(
    *cases: str,
    out: Path = Path("out", "operators"),
    networks: Path | None = None,
    seeds: int = 1,
    train: bool = False,
    device: str = "auto",
    n: int = 200,
    figures: bool = True,
) -> None:
    """Test neural operators inside and outside what they were trained on, with laws and without.

    Parameters
    ----------
    cases
        Some of heat, pme, advection and stefan; all if none is given, or `all`.
    out
        The folder for report.html, results.json, results.csv and two pictures.
    networks
        A folder of other ensembles, CASE-SEED.safetensors.
    seeds
        How many ensembles of each case; the package has one.
    train
        Train the ensembles first, into `networks`: minutes on a GPU, hours without.
    device
        Where they are trained: auto, cpu or cuda.
    n
        Test functions in each cell.
    figures
        Draw pictures and write the report.
    """
    from ..experiments import operators as ops

    if figures:
        cli_files.require("plots", "matplotlib", "jinja2")
    names = _chosen(cases, ops.CASES)
    if train and networks is None:
        raise InputError("`--train` needs a folder for the ensembles: `--networks FOLDER`.")
    out.mkdir(parents=True, exist_ok=True)  # what cannot be written is known before the work
    with Console(stderr=True).status("") as status:
        for name in names if train else ():
            assert networks is not None
            status.update(f"training {name}")
            ops.train_ensembles(name, networks, seeds, device)
        cells = ops.benchmark(names, seeds, n, networks, tell=status.update)
        status.update("writing")
        written = ops.write(cells, out, figures)
    rows = ops.summaries([record for cell in cells for record in cell.records])
    _show([_operators(ops.cells_of(rows), ops.METHODS)], [], written)


def _operators(cells: list[dict[str, Any]], methods: Sequence[str]) -> Table:
    """A row for each case and distance: CRPS of each method, coverage without a law and with."""
    table = narrow(
        "CRPS in 1e-3; points inside 90 % intervals, in %, of the first and the last",
        ("tested on", "published", *methods, "in 90", "in 90"),
    )
    for cell in cells:
        first, last = cell[methods[0]], cell[methods[-1]]
        published = first["published_CRPS"]
        table.add_row(
            f"{first['case']} {first['low']:g}..{first['high']:g}",
            "" if published is None else f"{1e3 * published:.3g}",
            *(f"{1e3 * cell[method]['CRPS']:.3g}" for method in methods),
            *(f"{100 * row['coverage_90']:.0f}" for row in (first, last)),
        )
    return table


@app.command
def ablate(
    *problems: str,
    networks: list[str] | None = None,
    split: str = "test",
    out: Path = Path("out", "ablate"),
    device: str = "auto",
    n: int = 50,
    samples: int = 100,
    times: int = 21,
    fresh: bool = False,
) -> None:
    """Compare ways to use the law: every update of every network, exact and with noise.

    Parameters
    ----------
    problems
        Names of equations; all if none is given, or `all`.
    networks
        Some of paper, modern (the ANPs of these recipes) and emulator; all if not given.
    split
        test, at the parameters of the tables, or validation, to choose by.
    out
        The folder for ablation.json and ablation.csv; finished cells in it are reused.
    device
        auto, cpu or cuda.
    n
        Functions for each parameter.
    samples
        How many samples of the latent.
    times
        How many times have a known total, evenly over the time range; joint updates use all.
    fresh
        Compute finished cells again.
    """
    from ..experiments import paper

    chosen: Any = tuple(networks or paper.NETWORKS)  # `ablate` refuses what it does not know
    part: Any = split
    with Console(stderr=True).status("") as status:
        told = device, n, samples, times, fresh, status.update
        found = paper.ablate(_chosen(problems, paper.EXPERIMENTS), out, chosen, part, *told)
    of_network = [[r for r in found if r["network"] == network] for network in chosen]
    tables = [_updates(cell) for mine in of_network for cell in paper.cells(mine)]
    _show(tables, [], paper.write_ablation(found, out))


def _chosen(given: tuple[str, ...], known: Iterable[str]) -> tuple[str, ...]:
    return tuple(known) if not given or "all" in given else given


def _show(tables: Iterable[Table], remarks: Iterable[str], written: Iterable[Path]) -> None:
    """What came out, and where it is."""
    console = Console()
    for table in tables:
        console.print(table)
    for remark in remarks:
        console.print(f"- {remark}", highlight=False)
    for path in written:
        print(path)


def _updates(cell: list[dict[str, Any]]) -> Table:
    """One network, problem and parameter: a row for each update, exact and with noise."""
    from ..experiments.paper import update_name

    first = cell[0]
    at = "validation functions" if first["parameter"] is None else f"{first['parameter']:g}"
    table = narrow(
        f"{first['problem']}, {at}, t = {first['time']:g}; network {first['network']}",
        ("update", "LL", "MSE", "CRPS", "in 90 %", "front"),
    )
    for record in cell:
        front = record["front_error"]
        table.add_row(
            update_name(record),
            f"{record['LL']:.4g}",
            f"{record['MSE']:.2e}",
            f"{record['CRPS']:.2e}",
            f"{100 * record['coverage_90']:.0f}",
            "" if front is None else f"{front:.1e}",
        )
    return table


def _scores(experiment: Any, cell: list[dict[str, Any]]) -> Table:
    """One problem and parameter: a row for each method, the paper's numbers beside ours."""
    from ..diagnostics.metrics import best

    first = cell[0]
    title = (
        f"{experiment.problem.title}, {experiment.problem.parameter} = {first['parameter']:g}, "
        f"t = {first['time']:g}; protocol {first['protocol']}, weights {first['recipe']}"
    )
    table = narrow(title, ("method", "CE", "LL", "paper", "MSE", "paper", "in 90 %"))
    for record in cell:
        published = experiment.paper(first["parameter"], record["method"])
        row = []
        for metric, style in (("CE", ".0e"), ("LL", ".2f"), ("MSE", ".2e")):
            ours = format(record[metric], style)
            row.append(f"[bold]{ours}[/]" if best(record, cell, metric) else ours)
            if metric != "CE":
                row.append(format(published[metric][0], style) if published else "")
        table.add_row(record["method"], *row, f"{100 * record['coverage_90']:.0f}")
    return table


def _table(title: str, problems: "Sequence[type[Problem]]", width: int) -> Table:
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; `arguments` are those of the process if not given."""
    try:
        app(arguments, exit_on_error=False)
    except CycloptsError:  # it has been printed
        sys.exit(2)
    except BrokenPipeError:  # whoever reads has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except (ProbConservError, OSError) as error:
        print(f"probconserv: {printable(str(error))}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt as stop:
        kept = str(stop) or "what was finished is kept"
        print(f"probconserv: stopped; {kept}", file=sys.stderr)
        sys.exit(130)
    except Exception:  # not foreseen: it must not pass for a law that does not hold, which is 1
        print(printable(traceback.format_exc()), end="", file=sys.stderr)
        sys.exit(2)
