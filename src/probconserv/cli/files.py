"""Commands for files of predictions: enforce and check."""

import ctypes
import gc
import importlib.util
import json
import math
import re
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from ..support.complete_files import check_folder
from ..support.errors import (
    ImplausibleError,
    InputError,
    ProbConservError,
    printable,
    surprises_expected,
)
from ..support.tolerances import CLOSES
from .words import in_options, laws_in, number, options_of, pair, split, std

if TYPE_CHECKING:
    from ..files import FileLaw, Report
    from ..files._law import Recipe

NUMBERS = ("total", "average", "measure", "fraction", "noise")  # of a law: numbers or names
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # of mallopt in malloc.h
How = Literal["uniform", "proportional", "variance", "members"]
Names = Annotated[list[str] | None, Parameter(consume_multiple=True, negative=())]


@Parameter(name="*")
@dataclass(frozen=True)
class LawOptions:
    """The law on the command line, or a file of laws.

    Parameters
    ----------
    mean
        The variable: a mean, or an ensemble's values.
    over
        Dimensions to sum over, such as lat lon.
    total
        The known sum: a number, a variable, or initial, the sum at the earliest time, which it is
        if nothing is given.
    average
        Instead of --total, the known mean over the cells: a number, a variable, or initial.
    inflow
        Variables: rates that add to the total. Rates on the grid are summed with the cell sizes.
    outflow
        Variables: rates that take from the total.
    measure
        Cell areas or volumes: a variable, arithmetic as "e1t*e2t", or 1 for plain sums.
    fraction
        The part of each cell that counts, 0 to 1 or per cent, such as sftlf; 1: all of it.
    radius
        The radius of the globe in metres; that of the grid mapping, or 6371229, if not given.
    where
        A variable that is not 0 where points count.
    regions
        A variable with the number of each point's region; each has a total of its own.
    noise
        Standard deviation of the total, a number or a variable; 0 is exact.
    time
        The dimension of time, if attributes, units or names do not tell.
    assume_units
        Units of variables instead of those in the file: VARIABLE=UNIT ...
    assume_method
        What rates are in time, instead of what the file says: VARIABLE=METHOD ..., point, mean, sum
        or running (a total since the start of the run). sum:end, sum:start, mean:middle: the time
        is at the end, the start or the middle of the interval.
    law
        Laws of the air: dry-air, moisture, energy; of the options above, with --inflow, --outflow,
        --measure, --radius, --time and --assume-... alone.
    laws
        A TOML file of laws, instead of these options: a table [[law]] for each.
    """

    mean: str | None = None
    over: Names = None
    total: str | None = None
    average: str | None = None
    inflow: Names = None
    outflow: Names = None
    measure: str | None = None
    fraction: str | None = None
    radius: float | None = None
    where: str | None = None
    regions: str | None = None
    noise: str = "0"
    time: str | None = None
    assume_units: Names = None
    assume_method: Names = None
    law: Names = None
    laws: Path | None = None

    def read(self) -> "list[FileLaw | Recipe]":
        require_files()
        from ..files import RECIPES, FileLaw
        from ..support.values import choice

        if self.law is not None:
            for name in self.law:
                choice("--law", name, RECIPES)
            self._check_alone("law", *{key for name in self.law for key in options_of(name)})
            if (self.inflow or self.outflow) and len(self.law) > 1:
                raise InputError(
                    "`--inflow` and `--outflow` go with one `--law`: give one at a time."
                )
            return [partial(RECIPES[name], **self._given(options_of(name))) for name in self.law]
        if self.laws is not None:
            self._check_alone("laws")
            return laws_in(self.laws)
        if self.mean is None or not self.over:
            raise InputError(
                "give `--mean` and `--over`, a law of the air with `--law`, or a file of laws with "
                "`--laws`. `probconserv check FILE` alone lists what a file holds, with commands."
            )
        if None not in (self.total, self.average):
            raise InputError("`average` and `total` are two ways to say what is known: give one.")
        given = self._given({each.name for each in fields(FileLaw)} - {"over"})
        return [FileLaw(self.mean, split(self.over), **given)]

    def _given(self, names: Collection[str]) -> dict[str, Any]:
        """The options of these names that are given, as the library takes them."""
        found: dict[str, Any] = {}
        for name in [each.name for each in fields(self) if each.name in names]:
            given = getattr(self, name)
            if name.startswith("assume_"):
                option = name.replace("_", "-")
                found[name] = dict(pair(text, option) for text in given or ())
            elif given is not None:
                found[name] = number(given) if name in NUMBERS else given
        return found

    @property
    def is_given(self) -> bool:
        """Whether any of these options is."""
        return any(getattr(self, option.name) != option.default for option in fields(self))

    def in_options(self, text: str) -> str:
        """A message in the words of the command line; variables and keys of a file stay."""
        from ..files import FileLaw

        keys = {key.name for key in fields(FileLaw)} if self.laws else set()
        return in_options(text, _options() - keys - {self.mean})

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Errors that are raised inside speak of options."""
        try:
            yield
        except ProbConservError as error:
            error.args = (self._usable(self.in_options(str(error))),)
            raise

    def _usable(self, text: str) -> str:
        """The text, with a word on options in it that do not go with `--law`."""
        if not self.law or text.startswith("`--law` "):
            return text
        away = {"law", "laws"}.union(*(options_of(name) for name in self.law))
        options = [f"`--{f.name.replace('_', '-')}" for f in fields(self) if f.name not in away]
        named = [f"{each}`" for each in options if re.search(rf"{each}[` ]", text)]
        go = "goes" if len(named) == 1 else "go"
        way = f" ({' and '.join(named)} {go} with `--mean` and `--over`, not with `--law`.)"
        return text + way if named else text

    def _check_alone(self, name: str, *also: str) -> None:
        """No option of a law stands beside `--law` or `--laws`, where it would not count."""
        given = [
            f"`--{option.name.replace('_', '-')}`"
            for option in fields(self)
            if option.name not in (name, *also) and getattr(self, option.name) != option.default
        ]
        if given:
            way = f"say that in {self.laws}" if name == "laws" else "leave these out"
            raise InputError(f"`--{name}` replaces {', '.join(given)}: {way}.")


@Parameter(name="*")
@dataclass(frozen=True)
class FieldOptions:
    """How uncertain the fields are.

    Parameters
    ----------
    std
        Standard deviations: a variable or a number; VARIABLE=STD for several variables. A number is
        that of a cell of mean size: smaller cells get a larger one, so that all points move alike.
    member
        Instead of --std: the dimension of an ensemble.
    """

    std: Names = None
    member: str | None = None

    def read(self) -> dict[str, Any]:
        return {"std": std(self.std), "member": self.member}


@Parameter(name="*")
@dataclass(frozen=True)
class SpreadOptions(FieldOptions):
    """How uncertain the fields are, and how they are moved.

    Parameters
    ----------
    correlation
        The correlation of the errors of any two points, 0 to 1: near 1, points move more evenly.
    shrinkage
        The share of an ensemble's variance taken as independent, 0 to 1; found if not given.
    jointly
        Dimensions beside --over that an ensemble is moved along together, such as time.
    minimum
        No value ends below it, and the total holds.
    maximum
        No value ends above it.
    """

    correlation: float = 0.0
    shrinkage: float | None = None
    jointly: Names = None
    minimum: float | None = None
    maximum: float | None = None

    def read(self) -> dict[str, Any]:
        return {**vars(self), **super().read(), "jointly": split(self.jointly)}


@Parameter(name="*")
@dataclass(frozen=True)
class Machine:
    """Which part of the file, and how it is worked on.

    Parameters
    ----------
    group
        The group of the file that holds the variables, such as forecast/day1; others are kept.
    chunks
        Entries of a block: DIMENSION=NUMBER ...
    workers
        How many threads; as many as there are cores if not given.
    """

    group: str = ""
    chunks: Names = None
    workers: int | None = None

    def read(self) -> dict[str, Any]:
        pairs = dict(pair(text, "chunks") for text in self.chunks or ())
        try:
            chunks = {name: int(size) for name, size in pairs.items()}
        except ValueError:
            raise InputError("`--chunks` needs whole numbers: DIMENSION=NUMBER.") from None
        return {**vars(self), "chunks": chunks or None}


def enforce(
    source: Annotated[list[str], Parameter(negative=())],
    /,
    *,
    out: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
    law: LawOptions = LawOptions(),  # noqa: B008
    how: How | None = None,
    spread: SpreadOptions = SpreadOptions(),  # noqa: B008
    dry_run: bool = False,
    plot: Path | None = None,
    overwrite: bool = False,
    unpack: bool = False,
    dtype: Literal["float32", "float64"] | None = None,
    strict: bool = False,
    format: Literal["text", "json", "csv"] = "text",
    machine: Machine = Machine(),  # noqa: B008
) -> None:
    """Make the predictions in a NetCDF file or Zarr store obey a conservation law.

    probconserv enforce IN.nc --mean u --std u_std --over lat lon --total initial -o OUT.nc

    Exit status: 0 if it was done; 1 if the law does not hold after it; 2 on errors; 3 if it was
    done but is implausible.

    Parameters
    ----------
    source
        NetCDF or Zarr; it is not changed. Several files, such as run_*.nc, are one series in time.
    out
        The file to write, .nc or .zarr.
    how
        How points move: all alike, in proportion to values, by --std, or as the members differ.
    dry_run
        Print the budget before and after, and write nothing.
    plot
        Draw the budget and the change into this picture.
    overwrite
        Replace a file that exists.
    unpack
        Write packed integers as floats, which keep the total.
    dtype
        The type in which moved variables are written; as they are if not given.
    strict
        Write nothing if the update is implausible (exit status 3) or a law does not hold after it.
    format
        The form of the report: text, json, or csv with a line for each total.
    """
    with law.speaking():
        laws = law.read()
    check_plot(plot)
    if out is None and not dry_run:
        raise InputError("where to? Give `-o OUT.nc` or `-o OUT.zarr`, or `--dry-run`.")
    from ..files import enforce_file

    _settle_memory()
    written = [] if dry_run else [out]
    try:
        with law.speaking(), surprises_expected():
            report = enforce_file(
                source,
                None if dry_run else out,
                *laws,
                how=how,
                **spread.read(),
                overwrite=overwrite,
                unpack=unpack,
                dtype=dtype,
                strict=strict,
                change=plot is not None,
                **machine.read(),
            )
    except ImplausibleError as error:
        print(f"probconserv: nothing was written; {error}", file=sys.stderr)
        report, written = error.report, []
    except KeyboardInterrupt:
        raise KeyboardInterrupt("nothing was written") from None
    _show(report, law, format, CLOSES, plot, *written)


def check(
    source: Annotated[list[str], Parameter(negative=())],
    /,
    *,
    law: LawOptions = LawOptions(),  # noqa: B008
    field: FieldOptions = FieldOptions(),  # noqa: B008
    tolerance: float = CLOSES,
    plot: Path | None = None,
    format: Literal["text", "json", "csv"] = "text",
    machine: Machine = Machine(),  # noqa: B008
) -> None:
    """Say whether a conservation law holds in a file; without a law, what the file holds.

    probconserv check IN.nc

    lists variables, time, levels, how cells are weighed, and the commands for them.

    probconserv check IN.nc --mean u --over lat lon --total initial

    Exit status: 0 if it holds; 1 if not; 2 on errors; 3 if it holds but something is implausible.

    Parameters
    ----------
    source
        NetCDF or Zarr; several files, such as run_*.nc, are one series in time.
    tolerance
        Relative to the sum of |u| times cell sizes.
    plot
        Draw the budget into this picture.
    format
        The form of the report: text, json, or csv with a line for each total.
    """
    if not law.is_given and field == FieldOptions() and plot is None:
        _describe(source, law, format, machine.group)
        return
    check_plot(plot)
    with law.speaking():
        laws = law.read()
        from ..files import check_file
        from ..support.values import between

        between("tolerance", tolerance, 0.0, math.inf)
        report = check_file(source, *laws, **field.read(), **machine.read())
    _show(report, law, format, tolerance, plot)


def _describe(source: list[str], law: LawOptions, format: str, group: str) -> None:
    """Print what files hold that a law could be about, and the commands for it."""
    require_files()
    if format == "csv":
        raise InputError("`--format csv` is for totals; what a file holds is text or json.")
    from ..files import describe_file

    with law.speaking():
        found = describe_file(source, group)
    print(json.dumps(found.summary()) if format == "json" else law.in_options(found.text()))


def require_files() -> None:
    require("files", "xarray", "dask", "netCDF4", "zarr", "cf_units")


def require(extra: str, *names: str) -> None:
    for name in names:
        if importlib.util.find_spec(name) is None:
            from ..support.extras import missing

            raise ProbConservError(missing(name, extra))


def check_plot(plot: Path | None) -> None:
    """Refuses a picture that cannot be drawn, before any work is done."""
    if plot is None:
        return
    require("plots", "matplotlib")
    from matplotlib.backend_bases import FigureCanvasBase

    if plot.suffix[1:] not in FigureCanvasBase.get_supported_filetypes():
        raise InputError(f"`--plot` {plot} must end in .png, .svg or .pdf, as pictures do.")
    check_folder("--plot", plot)


COMMANDS: list[Callable[..., None]] = [enforce, check]  # whose options messages may name


def register(app: App) -> None:
    for command in COMMANDS:
        app.command(command)


def _settle_memory() -> None:
    """Have Python look for garbage again (see `__main__.py`), and the C library keep what is freed.

    To ask the system for every block anew takes longer. Only glibc can be told so, and only in a
    process that is ours alone.
    """
    gc.freeze()
    gc.set_threshold(700)
    with suppress(AttributeError, OSError, TypeError):
        tell = ctypes.CDLL(None).mallopt
        for option in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
            tell(option, 1 << 29)
        tell(M_ARENA_MAX, 1)


def _show(
    report: "Report",
    law: LawOptions,
    format: str,
    tolerance: float,
    plot: Path | None,
    *written: Any,
) -> None:
    """Print the report and what was written, and exit with the status that says how it is."""
    if format == "text":
        print(law.in_options(report.text(tolerance)))
    elif format == "json":
        print(json.dumps(report.summary(tolerance) | {"rows": report.rows(tolerance)}))
    else:
        print(printable(report.csv(tolerance)), end="")
    for warning in report.warnings if format != "text" else ():
        print(printable(law.in_options(f"implausible: {warning}")), file=sys.stderr)
    if plot is not None:
        from ..figures import budget, save

        save(budget(report), plot)
    for path in [plot, *written] if format == "text" else []:
        if path is not None:
            print(path)
    if not report.closes(tolerance, after=report.is_done):
        sys.exit(1)
    if not report.plausible:
        sys.exit(3)


def _options() -> set[str]:
    """The names of all options, as arguments of Python."""
    given = [each for f in COMMANDS for each in signature(f).parameters.values()]
    own = {each.name for each in given if not is_dataclass(each.default)} - {"source"}
    return own.union(
        *({f.name for f in fields(group)} for group in (LawOptions, SpreadOptions, Machine))
    )
