"""The command that says whether laws help, on forecasts in files."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..support.complete_files import check_folder
from ..support.errors import InputError, printable
from .files import COMMANDS, LawOptions, Machine, Names, SpreadOptions, check_plot
from .words import narrow, split

if TYPE_CHECKING:
    from ..diagnostics.comparison import Comparison, Difference

LOSERS = 3  # forecasts that lose most, of each way
SCORES = re.compile("(.+: )?(CRPS|RMSE|LL)|CE .+")  # of a variable, or of all


def compare(
    source: Annotated[list[str], Parameter(negative=())],
    /,
    *,
    truth: str,
    functions: str | None = None,
    by: str | None = None,
    block: int = 1,
    how: Names = None,
    score: str = "CRPS",
    law: LawOptions = LawOptions(),  # noqa: B008
    spread: SpreadOptions = SpreadOptions(),  # noqa: B008
    out: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
    plot: Annotated[Path | None, Parameter(name=["--plot", "--figure"])] = None,
    machine: Machine = Machine(),  # noqa: B008
) -> None:
    """Say whether a law helps, on forecasts whose truth is known.

    probconserv compare IN.nc --truth TRUE.nc --mean u --over x --functions init

    Each way of `enforce` is scored beside no law. The differences are averaged
    over forecasts, with a standard error. Take forecasts that the model was not
    trained on. In one long run, neighbouring times count as one forecast:

    probconserv compare RUN.nc --truth TRUE.nc --mean u --over x \\
    --functions time --block 30

    Exit status: 0 if some way helps; 1 if none does; 2 on errors, and where
    nothing can be said: too few forecasts, or no way that works; 3 if those
    that help are implausible.

    Parameters
    ----------
    source
        The forecasts, NetCDF or Zarr. Several files, such as run_*.nc, are one series in time.
    truth
        The file of what came true, found by coordinates; FILE:VARIABLE for another name. It may
        have one axis of dates instead of starts and lead times.
    functions
        The dimension that counts forecasts, such as init: standard errors are over it.
    by
        Show each entry of this dimension by itself, such as lead_time.
    block
        How many neighbours along --functions count as one, where they are not independent.
    how
        The ways to try: uniform, proportional, variance, members; all that can be if not given.
    score
        What is compared: CRPS, RMSE, LL, or CE and the name of a law.
    out
        Write all scores and differences into this .json file.
    plot
        Draw the gains into this picture.
    """
    with law.speaking():
        laws = law.read()
    check_plot(plot)
    if not SCORES.fullmatch(score):
        raise InputError(
            f"`--score` must be CRPS, RMSE, LL or CE and the name of a law; got {score!r}."
        )
    if out is not None:
        if out.suffix != ".json":
            raise InputError(f"`--out` {out} must end in .json: `compare` writes no forecasts.")
        check_folder("--out", out)
    from ..files import compare_file

    ways: Any = None if how is None else split(how)  # the library refuses what it does not know
    with law.speaking():
        found = compare_file(
            source,
            truth,
            *laws,
            functions=functions,
            by=by,
            block=block,
            how=ways,
            **spread.read(),
            **machine.read(),
        )
        differences = [found.difference(way, score) for way in found.ways[1:]]
    plot = plot if differences else None
    console = Console()
    tables = [_scores(found), _gains(differences, score)]
    for table in [*tables, *([] if by is None else [_by_time(found, score)])]:
        console.print(table)
        console.print()
    lines = [*map(str, differences), *_rest(found, differences)]
    print(printable(law.in_options("\n".join(lines))))
    if out is not None:
        found.save(out)
    if plot is not None:
        from ..figures import comparison_figure, save

        save(comparison_figure(found, score, None if by is None else "time"), plot)
    for path in (out, plot):
        if path is not None:
            print(path)
    _exit(found, differences)


def _exit(found: "Comparison", differences: "list[Difference]") -> None:
    if not differences:
        why = (
            "every way failed"
            if found.failed
            else "no way is left to try; give `--std`, `--member`"
        )
        raise InputError(f"nothing can be said of whether a law helps: {why}.")
    if all(one.answer == "too few" for one in differences):
        most = max(one.count for one in differences)
        score = differences[0].score
        raise InputError(f"too few forecasts to say whether a law helps: {most} have a {score}.")
    helping = [one.way for one in differences if one.answer == "helps"]
    if not helping:
        sys.exit(1)
    if found.ways[0] in found.notes or all(way in found.notes for way in helping):
        sys.exit(3)


def _rest(found: "Comparison", differences: "list[Difference]") -> list[str]:
    """What is to be said beside the verdict on each way."""
    lines = []
    for one in differences:
        worst = ", ".join(found.functions[i] for i in one.losers[:LOSERS])
        lines += [f"`{one.way}` loses most at {worst}"] if worst else []
    lines += [f"`{way}` failed: {why}" for way, why in found.failed.items()]
    lines += [f"note: {text}" for text in found.remarks]
    return lines + [f"implausible: {way}: {text}" for way, text in found.notes.items()]


def _scores(found: "Comparison") -> Table:
    """A row for each way, the mean scores."""
    from ..diagnostics.comparison import is_share  # needs scipy

    names = [name for name in found.names if ": " not in name or name.startswith("CE ")]
    title = f"{len(found.functions)} functions, {len(found.times) or 1} times"
    heads = [name.replace("coverage_90", "in 90 %") for name in names]
    table = narrow(title, ("way", *(escape(printable(head)) for head in heads)))
    for way in found.ways:
        each = [found.difference(way, name).value for name in names]
        shares = [is_share(name) for name in names]
        cells = [f"{100 * x:.0f}" if s else f"{x:.3g}" for x, s in zip(each, shares, strict=True)]
        table.add_row(way, *cells)
    return table


def _gains(differences: "list[Difference]", score: str) -> Table:
    """A row for each way: the gain over no law."""
    table = narrow(f"{score}, beside no law", ("way", "gain", "better in", "answer"))
    for one in differences:
        table.add_row(one.way, _gain(one), f"{one.better:.0%}", one.answer)
    return table


def _by_time(found: "Comparison", score: str) -> Table:
    """A row for each time: the gain of each way."""
    base, *ways = (found.difference(way, score, "time") for way in found.ways)
    title = f"{score} with no law, and gains over it"
    table = narrow(title, ("at", *found.ways))
    for time, one in base.items():
        gains = [_gain(way[time]) for way in ways]
        table.add_row(escape(printable(time)), f"{one.value:.4g}", *gains)
    return table


def _gain(one: "Difference") -> str:
    """With its standard error."""
    from ..diagnostics.comparison import is_higher  # needs scipy

    if is_higher(one.score) or not one.base:
        return f"{one.gain:.3g} ± {one.error:.2g}"
    return f"{100 * one.gain / abs(one.base):.1f} ± {100 * one.error / abs(one.base):.1f} %"


def register(app: App) -> None:
    COMMANDS.append(compare)
    app.command(compare)
