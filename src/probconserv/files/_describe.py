"""What a dataset holds that a law could be about, and the commands that take it.

Of values only what gives the sizes of cells is read. For the laws of the air usual values stand for
large variables: whether a law can be made does not depend on them.
"""

import re
import shlex
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr

from ..support.errors import InputError, printable
from ._arithmetic import names_in
from ._attributes import decoded, pairs, scale, setting, shown, units
from ._conventions import LEVEL, MEMBER, TIME, angle, counted, role
from ._grid import FileGrid
from ._methods import fluxes_of
from ._read import SMALL, Bare, groups
from ._recipes import RECIPES
from ._series import Paths, opened_as_one, paths_of
from ._time import is_lead, tells_time, time_of
from ._weights import cell_measure

OF_CELLS = ("coordinates", "grid_mapping", "cell_measures", "mesh", "cell_methods")
MESH = ("node", "edge", "face")  # of UGRID: what its variables connect
NAMING = (
    *("bounds", "climatology", "ancillary_variables", "grid_mapping", "mesh"),
    *(f"{each}_coordinates" for each in MESH),
    *(f"{one}_{other}_connectivity" for one in (*MESH, "boundary") for other in MESH),
)
PER_TIME = ("kg m-2 s-1", "W m-2")  # units of fluxes
STD = ("_std", "_stddev", "_sd", "_stdev")
FEW = 2  # entries of time and members
USUAL = {"Pa": 1e5, "K": 280.0, "kg kg-1": 1e-3}


@dataclass(frozen=True)
class Variable:
    """A variable that a law could be about."""

    name: str
    sizes: Mapping[str, int]
    units: str | None
    dtype: str  # as it is stored
    missing: float | None  # what stands for a missing value
    long_name: str | None
    std: str | None  # the variable that looks like its standard deviation

    @classmethod
    def of(cls, data: xr.DataArray, std: str | None) -> "Variable":
        marks = (data.encoding.get(key) for key in ("_FillValue", "missing_value"))
        mark = next((float(np.ravel(each)[0]) for each in marks if each is not None), None)
        return cls(
            str(data.name),
            {str(dim): size for dim, size in data.sizes.items()},
            units(data) or None,
            str(data.encoding.get("dtype", data.dtype)),
            mark,
            str(data.attrs.get("long_name") or data.attrs.get("standard_name") or "") or None,
            std,
        )

    def __str__(self) -> str:
        dims = ", ".join(f"{dim} {size}" for dim, size in self.sizes.items())
        missing = "" if self.missing is None else f", missing values {self.missing:g}"
        std = f", standard deviation {self.std}" if self.std else ""
        said = f" - {self.long_name}" if self.long_name else ""
        unit = f"in {self.units}" if self.units else "no units"
        return f"{self.name} ({dims}) {unit}, {self.dtype}{missing}{std}{said}"


@dataclass(frozen=True)
class Cells:
    """What variables on the same cells have in common."""

    variables: tuple[str, ...]
    time: str | None  # in words
    time_dim: str | None
    time_known: bool  # whether attributes or names tell it
    horizontal: tuple[str, ...]
    levels: tuple[str, ...]
    members: str | None
    over: tuple[str, ...]  # what can be summed over; empty if sizes of cells are not known
    weights: str  # in words, or why they are not known
    measure: str | None  # what the weights have to be given as, if they are not found
    fluxes: str | None  # amounts and means of an interval, in words

    def options_of_time(self) -> list[str]:
        return ["--time", self.time_dim] if self.time_dim and not self.time_known else []

    def lines(self) -> Iterator[str]:
        yield f"on the same cells: {', '.join(self.variables)}"
        yield f"  time: {self.time or 'none'}"
        yield f"  horizontal: {', '.join(self.horizontal)}"
        if self.levels:
            yield f"  levels: {', '.join(self.levels)}"
        if self.members:
            yield f"  members: {self.members}"
        over = f"weights in a sum over {', '.join(self.over)}" if self.over else "no weights"
        yield f"  {over}: {self.weights}"
        if self.fluxes:
            yield f"  fluxes: {self.fluxes}"


@dataclass(frozen=True)
class Description:
    """What a dataset holds that a law could be about.

    Attributes
    ----------
    variables : tuple of Variable
        Variables that a law could be about: numbers with fractions on cells.
    cells : tuple of Cells
        Time, levels, members and weights, for variables on the same cells.
    laws : dict of str
        What each law of the air would do.
    lacking : dict of str
        Why each of the others cannot be made.
    others : tuple of str
        The other variables.
    groups : tuple of str
        The groups of the file.
    source : tuple of str
        The files.
    group : str
        The group that is described.
    """

    variables: tuple[Variable, ...] = ()
    cells: tuple[Cells, ...] = ()
    laws: Mapping[str, str] | None = None
    lacking: Mapping[str, str] | None = None
    others: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    source: tuple[str, ...] = ()
    group: str = ""

    def __str__(self) -> str:
        return self.text()

    def text(self) -> str:
        """What is there in words, and the commands that take it."""
        lines = [str(each) for each in self.variables] or ["no variable that a law could be about"]
        lines += [f"others: {', '.join(self.others)}"] if self.others else []
        inside = f"groups, one of which `group` chooses: {', '.join(self.groups)}"
        lines += [inside] if self.groups else []
        lines += [line for each in self.cells for line in each.lines()]
        lines += [f"law {name}: {said}" for name, said in (self.laws or {}).items()]
        lines += [f"no law {name}: {_why(text)}" for name, text in (self.lacking or {}).items()]
        commands = self.commands()
        lines += [*([""] * bool(commands)), *commands]
        return "\n".join(printable(line.replace("\n", "\\n")) for line in lines)

    def summary(self) -> dict[str, Any]:
        """The same, as JSON takes it."""
        found = {**asdict(self), "commands": self.commands()}
        for each in found["variables"]:  # JSON has no NaN
            each["missing"] = None if each["missing"] != each["missing"] else each["missing"]
        return found

    def commands(self) -> list[str]:
        """The commands that check and enforce a law of these files, as a shell takes them."""
        if not self.source:
            return []
        if self.groups and not self.variables:
            return [_command("check", *self.source, "--group", each) for each in self.groups]
        stds = {each.name: each.std for each in self.variables}
        laws = enumerate(self._laws(stds), 1)
        return [line for number, law in laws for line in self._pair(*law, number)]

    def _laws(self, stds: Mapping[str, str | None]) -> Iterator[tuple[list[str], list[str]]]:
        """The options of each law, and of how uncertain the field is, if something says so."""
        members = next((["--member", c.members] for c in self.cells if c.members), [])
        times = next(filter(None, (each.options_of_time() for each in self.cells)), [])
        known = [each for each in self.cells if each.over]
        for cells in [each for each in known if each.time_dim] or known:
            name = cells.variables[0]
            law = ["--mean", name, "--over", *cells.over]
            law += ["--measure", cells.measure] if cells.measure else []
            law += cells.options_of_time() if cells.time_dim else ["--total", "0"]
            member = ["--member", cells.members] if cells.members else []
            yield law, ["--std", std] if (std := stds[name]) else member
        for law_of_air in self.laws or {}:
            yield ["--law", law_of_air, *times], members

    def _pair(self, law: list[str], uncertain: list[str], number: int) -> list[str]:
        group = ["--group", self.group] if self.group else []
        first = Path(self.source[0])
        one = len(self.source) == 1 and not set("*?[") & set(first.name)
        suffix = ".zarr" if first.suffix == ".zarr" else ".nc"
        stem = first.stem if one else "series"
        stem = f"./{stem}" if stem.startswith("-") else stem  # which is no option
        out = ["-o", f"{stem}_fixed{number if number > 1 else ''}{suffix}"]
        how = uncertain or ["--how", "uniform"]
        return [
            _command("check", *self.source, *law, *uncertain, *group),
            _command("enforce", *self.source, *law, *how, *group, *out),
        ]


def _why(text: str) -> str:
    """What lacks, and the units that would do, without the other ways out."""
    first, *rest = text.split(". ")
    found = re.search(r"[Ss]ay (?:units|what they are) with (`assume_units=.*)", ". ".join(rest))
    is_there = "as those of" in first or "has no `units`" in text  # it lacks units alone
    return f"{first}; say units with {found[1]}" if found and is_there else first


def _command(*words: str) -> str:
    return shlex.join(["probconserv", *words])


def describe(dataset: xr.Dataset) -> Description:
    """What a dataset holds that a law could be about; print it.

    Parameters
    ----------
    dataset : xarray.Dataset
        What holds the variables. Lazy values are not read, but those that give the sizes of cells.

    Returns
    -------
    Description
        Variables, what is taken for time, levels and members, how cells are weighed, and which laws
        of the air there could be.

    Examples
    --------
    >>> lat, lon = xr.Variable("lat", [-45.0, 45.0]), xr.Variable("lon", [0.0, 120.0, 240.0])
    >>> field = xr.DataArray(np.ones((2, 3)), {"lat": lat, "lon": lon}, ("lat", "lon"), "u")
    >>> describe(field.to_dataset()).cells[0].over
    ('lat', 'lon')
    """
    dataset = decoded(dataset)
    there = [str(name) for name in dataset.data_vars]
    spreads = {name + end: name for name in there for end in STD if name + end in there}
    stds = {name: std for std, name in reversed(spreads.items())}
    grids = {name: FileGrid(dataset, name) for name in _fields(dataset, spreads)}
    alike: dict[Any, list[str]] = {}
    for name, grid in grids.items():
        key = (grid.data.dims, *(setting(grid.data, each) for each in OF_CELLS))
        alike.setdefault(key, []).append(name)
    sketch = _sketch(dataset)
    laws: dict[str, str] = {}
    lacking: dict[str, str] = {}
    for recipe, law in RECIPES.items():
        try:
            laws[recipe] = "; ".join(law(sketch).remarks)
        except InputError as error:
            lacking[recipe] = str(error)
    return Description(
        tuple(Variable.of(grid.data, stds.get(name)) for name, grid in grids.items()),
        tuple(_cells(grids[names[0]], sketch, tuple(names)) for names in alike.values()),
        laws,
        lacking,
        tuple(name for name in there if name not in (*grids, *spreads)),
    )


def describe_file(source: Paths, group: str = "") -> Description:
    """What a file holds that a law could be about, and the commands that take it; print it.

    Parameters
    ----------
    source : as in `enforce_file`
    group : str
        The group of the file to look at.

    Returns
    -------
    Description
        As `describe` gives it; of a file with nothing at its root the groups.

    Raises
    ------
    InputError
        If a file cannot be read.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     xr.Dataset({"u": ("x", [1.0, 2.0, 3.0])}).to_netcdf(f"{folder}/u.nc")
    ...     print(describe_file(f"{folder}/u.nc").variables[0])
    u (x 3) no units, float64, missing values nan
    """
    given = [source] if isinstance(source, str | PathLike) else list(source)
    paths, names = paths_of(source), tuple(fspath(each) for each in given)
    with ExitStack() as opened:
        try:
            found = describe(opened_as_one(paths, opened, group, None, None))
        except Bare:
            found = Description()
    inside = tuple(groups(paths[0])) if not group else ()
    return replace(found, groups=inside, source=names, group=group.strip("/"))


def _fields(dataset: xr.Dataset, stds: Container[str]) -> list[str]:
    """The variables with fractions on cells, that do not describe others."""
    arrays = [dataset[name] for name in dataset.variables]
    named = {word for each in arrays for key in NAMING for word in setting(each, key).split()}
    for key in ("formula_terms", "cell_measures"):
        named |= {name for each in arrays for name in pairs(each, key).values()}

    def is_field(name: str, data: xr.DataArray) -> bool:
        of_others = name in stds or name in named or angle(data)
        plain = data.dtype.kind == "f" and data.size and not of_others
        return bool(plain and FileGrid(dataset, name).flat)

    return [str(name) for name, data in dataset.data_vars.items() if is_field(str(name), data)]


def _cells(grid: FileGrid, sketch: xr.Dataset, names: tuple[str, ...]) -> Cells:
    data, flat, roles = grid.data, grid.flat, {str(d): grid.role(d) for d in grid.data.dims}
    members = next((d for d in roles if roles[d] == MEMBER), None)
    levels = [d for d in roles if roles[d] == LEVEL and d not in flat]
    whole = [d for d in roles if d in (*flat, *levels)]
    dim = next((d for d in roles if d not in (*whole, members)), None)
    known, said = False, None
    try:
        time = time_of(data)
        known, dim, said = True, time.dim, _span(time.coordinate, str(time))
    except InputError as error:
        said = f"{error} The commands take {dim}" if dim else None
    numbered = any((own := grid.along(d)) is None or counted(own) for d in levels)
    choices = [flat] if numbered else [whole, flat]
    tried = [_weights(sketch, names[0], choices)]
    tried += [_weights(sketch, name, choices) for name in names[1:] if not tried[0][0]]
    over, weights, measure = next((each for each in tried if each[0]), tried[0])
    lengths = names_in(measure) if measure else []  # a field is not made of itself
    names = tuple(name for name in names if name not in lengths)
    is_step = dim is not None and is_lead(data, dim)

    def is_flux(name: str) -> bool:
        rate = any(scale(sketch[name], unit) is not None for unit in PER_TIME)
        return rate or fluxes_of(sketch, (name,), is_step) is not None

    names = tuple(sorted(names, key=is_flux))  # totals are seldom those of fluxes
    if over and len(over) < len(whole):
        weights += f"; a total for each {' and '.join(levels)}"
    coordinates = {each: grid.along(each) for each in levels}
    spans = tuple(
        f"{each} (no coordinate)" if own is None else _span(own, each)
        for each, own in coordinates.items()
    )
    fluxes = fluxes_of(sketch, names, is_step)
    return Cells(
        names, said, dim, known, tuple(flat), spans, members, over, weights, measure, fluxes
    )


def _weights(
    sketch: xr.Dataset, name: str, choices: Sequence[list[str]]
) -> tuple[tuple[str, ...], str, str | None]:
    """The first dimensions over which sizes of cells are known, these in words, and the measure.

    Where they have to be given, and the error says as what, they are tried so.
    """
    variable = sketch[name].variable
    bare = variable.copy(data=da.full(variable.shape, np.nan, chunks=-1))  # nothing is read
    dataset, why = sketch.assign({name: bare}), ""
    for dims in choices:
        measures: list[str | None] = [None]
        for measure in measures:  # which grows on the way
            try:
                found = cell_measure(dataset, name, tuple(dims), measure)
                return tuple(dims), str(found.attrs["description"]), measure
            except InputError as error:
                if measure is None:
                    why = str(error)
                    measures += re.findall("`measure='([^']+)'`", why)
    return (), why, None


def _span(times: xr.DataArray, how: str) -> str:
    ends = " to ".join(dict.fromkeys(shown(each) for each in times.values.ravel()[[0, -1]]))
    return f"{how}, {times.size} entries, {ends} {units(times)}".rstrip()


def _sketch(dataset: xr.Dataset) -> xr.Dataset:
    """The dataset with a few entries of time and members, and usual values in place of large ones.

    What does not change in time gives the sizes of cells, and is kept.
    """
    along = {d for c in dataset.coords.values() if c.ndim == 1 and tells_time(c) for d in c.dims}
    apart = [d for d in dataset.dims if d in along or role(str(d), None) in (TIME, MEMBER)]
    few = dataset.isel({dim: slice(FEW) for dim in apart})
    usual = {}
    for name, data in few.data_vars.items():
        large = dataset[name].nbytes > SMALL and (data.ndim > 2 or set(apart) & set(data.dims))
        if large and data.dtype.kind == "f":
            by = ((value, scale(data, unit)) for unit, value in USUAL.items() if units(data))
            value = next((value / factor for value, factor in by if factor), 1.0)
            usual[name] = data.variable.copy(data=da.full(data.shape, value, chunks=-1))
    return few.assign(usual)
