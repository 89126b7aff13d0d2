"""What is read for a run: names in laws that lie in other files, and files that are one series."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from glob import glob
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from ..support.errors import InputError, ProbConservError
from ._arithmetic import calculated, is_arithmetic
from ._attributes import decoded, setting, shown
from ._elsewhere import here
from ._encoding import without_packing
from ._law import STORES, Law, Recipe, find, nearest
from ._plan import Spread
from ._read import SMALL, groups, read
from ._report import Report
from ._time import BOUNDS, tells_time
from ._types import Typed
from ._work import Work

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]
AS_STORED = ("dtype", "scale_factor", "add_offset", "_Unsigned")
RULE = "`source`: files of a series follow one another along one coordinate and are the same"


def with_files(
    laws: Sequence[Law | Recipe], spread: Spread, opened: ExitStack
) -> tuple[list[Law | Recipe], Spread]:
    """Both with a DataArray in place of every FILE:VARIABLE; files stay open with the stack."""
    std = from_file(spread.std, "std", opened)
    return [_with_files(law, opened) for law in laws], replace(spread, std=std)


def _with_files(law: Any, opened: ExitStack) -> Any:
    if isinstance(law, partial):  # of a recipe
        told = {key: from_file(each, key, opened) for key, each in law.keywords.items()}
        law = partial(law.func, *law.args, **told)
    if callable(law):
        return lambda dataset: _with_files(law(dataset), opened)
    if not isinstance(law, Law):
        return law
    given = {f.name: getattr(law, f.name) for f in fields(law) if f.name not in ("name", "remarks")}
    return replace(law, **{key: from_file(each, key, opened) for key, each in given.items()})


def from_file(given: Any, argument: str, opened: ExitStack) -> Any:
    """What FILE:VARIABLE stands for, also within lists and mappings; anything else as it is."""
    if isinstance(given, Mapping):
        return {key: from_file(value, argument, opened) for key, value in given.items()}
    if isinstance(given, list | tuple):
        return [from_file(value, argument, opened) for value in given]
    path, _, name = given.rpartition(":") if isinstance(given, str) else ("", "", "")
    if not path.endswith(STORES):
        return given
    where = Path(here(path, argument))
    if not where.exists():
        near = nearest(where.name, [each.name for each in where.parent.glob(f"*{where.suffix}")])
        raise InputError(f"`{argument}` is {given!r}, but there is no file {path}. {near}")
    group, name = _group_and_name(where, name, argument)
    source = decoded(opened.enter_context(read(where, group=group)))
    if argument == "measure" and is_arithmetic(name) and name not in source.variables:
        found = calculated(source, name, f"in {where.name}")
    else:
        found = find(source, name, f"{argument} {given}")
    for times in filter(tells_time, found.coords.values()):
        if (label := setting(times, "bounds")) in source.variables:
            times.encoding[BOUNDS] = source[label].load()
    return found.load() if found.nbytes <= SMALL else found


def _group_and_name(path: Path, name: str, argument: str) -> tuple[str, str]:
    """What stands before the last /; of a measure, where / may divide, the group that is there."""
    group, _, inner = name.rpartition("/")
    if argument != "measure" or not group:
        return group, inner
    around = [each for each in groups(path) if name.startswith(f"{each}/")]
    group = max(around, key=len, default="")
    return group, name.removeprefix(f"{group}/")


def paths_of(source: Paths) -> list[Path]:
    """The files that are meant; a name with * or ? stands for all that match it."""
    given = [source] if isinstance(source, str | PathLike) else list(source)
    found: list[str] = []
    for path in given:
        each = here(fspath(path), "source")
        found += (not Path(each).exists() and sorted(glob(each))) or [each]
    return [Path(each).absolute() for each in found]


def outputs(paths: Sequence[Path], folder: Path) -> list[Path]:
    """A file of the same name in the folder for each."""
    name, count = Counter(path.name for path in paths).most_common(1)[0]
    if count > 1:
        raise InputError(f"`source` has two files called {name}, which cannot both be written.")
    return [folder / path.name for path in paths]


@dataclass(frozen=True, eq=False)
class Part:
    """A file of a series, and where its times are in those of all."""

    path: Path
    dataset: xr.Dataset
    entries: slice


@dataclass(frozen=True, eq=False)
class Series:
    """Files that follow one another along a dimension, in its order; one alone has none."""

    whole: xr.Dataset
    dim: str = ""
    parts: Sequence[Part] = ()

    @classmethod
    def of(
        cls,
        paths: Sequence[Path],
        opened: ExitStack,
        group: str,
        chunks: Mapping[str, int] | None,
        member: str | None,
        unpack: bool = False,
    ) -> "Series":
        """The files stay open with the stack."""
        for path in paths if len(paths) > 1 else ():
            if group or groups(path):
                raise InputError(
                    f"`source` {path} has groups, and several files with groups cannot be one "
                    "series. Take the group out of each first, or give one file at a time."
                )
        whole = () if member is None else (member,)
        parts = [opened.enter_context(read(path, chunks, group, whole)) for path in paths]
        if unpack:
            parts = [p.assign({n: without_packing(v) for n, v in p.items()}) for p in parts]
        return cls(parts[0]) if len(parts) == 1 else _combined(paths, parts)

    def typed(self, change: Typed) -> "Series":
        """With the moved variables in another type."""
        parts = [replace(part, dataset=change(part.dataset)) for part in self.parts]
        return replace(self, whole=change(self.whole), parts=parts)

    def one_by_one(
        self, work: Work, folder: Path, write: Callable[..., tuple[Any, Report]]
    ) -> Report:
        """A file in the folder for each; those that are finished stay if a later one fails."""
        for plan in work.plans:
            if self.dim not in plan.index:
                labels = ", ".join(ready.law.label for ready in plan.laws)
                raise InputError(
                    f"`target`: {labels} ties all files together along {self.dim!r}. Write one "
                    "file: a name that ends in .nc or .zarr."
                )
        found: list[Any] = []
        for part in self.parts:
            try:
                own = self._work_on(part, work)
                found.append(write(own, part.path, folder / part.path.name)[0])
            except ProbConservError as error:
                done = f"{len(found)} of {len(self.parts)} files are finished and stay in {folder}"
                error.args = (f"{part.path.name}: {error} ({done}.)",)
                raise
        axis = {name: plan.index.index(self.dim) for plan in work.plans for name in plan.arrays}
        seen = {name: _joined([each["seen"][name] for each in found], axis[name]) for name in axis}
        lengths = xr.DataArray([part.dataset.sizes[self.dim] for part in self.parts], dims="files")
        change = {}
        for name in found[0]["change"]:
            changes = xr.concat([each["change"][name] for each in found], "files")
            change[name] = changes.weighted(lengths).mean("files", keep_attrs=True)
        return work.report(seen, change)

    def _work_on(self, part: Part, work: Work) -> Work:
        """The work on one of the files, whose totals follow from the whole series."""
        plans = []
        for plan in _at(work.plans, self.dim, part.entries):
            own = {n: (part.dataset[n].variable, *std) for n, (_, *std) in plan.arrays.items()}
            plans.append(replace(plan, arrays=own))
        return replace(work, dataset=part.dataset, plans=plans)


def _joined(parts: Sequence[Any], axis: int) -> Any:
    """Arrays one after the other, counts added up; also within lists and mappings."""
    if isinstance(parts[0], list):
        return [_joined(each, axis) for each in zip(*parts, strict=True)]
    if isinstance(parts[0], Mapping):
        return {key: _joined([each[key] for each in parts], axis) for key in parts[0]}
    return np.concatenate(parts, axis) if np.ndim(parts[0]) else sum(parts)


def _at(given: Any, dim: str, where: slice) -> Any:
    """What is given at some entries of a dimension, also within plans, mappings and sequences."""
    if isinstance(given, xr.Variable | xr.DataArray):
        return given.isel({dim: where}, missing_dims="ignore")
    if isinstance(given, Mapping):
        sizes = {dim: where.stop - where.start} if isinstance(given.get(dim), int) else {}
        return {key: _at(value, dim, where) for key, value in given.items()} | sizes
    if isinstance(given, list | tuple):
        return tuple(_at(value, dim, where) for value in given)
    if is_dataclass(given) and not isinstance(given, type):
        parts = {each.name: _at(getattr(given, each.name), dim, where) for each in fields(given)}
        return replace(given, **parts)
    return given


def _combined(paths: Sequence[Path], parts: Sequence[xr.Dataset]) -> Series:
    """The series that the files make, in dates where their times count from different ones."""
    stored, clocks = parts, [_clocks(part) for part in parts]
    if any(clock != clocks[0] for clock in clocks):
        parts = [decoded(part) for part in parts]
    for path, part in zip(paths[1:], parts[1:], strict=True):
        _check_alike(part, parts[0], path.name, paths[0].name)
    ours = parts[0].indexes
    differ = [d for d in ours if not all(ours[d].equals(each.indexes.get(d)) for each in parts)]
    if len(differ) != 1:
        along = " and ".join(map(str, differ)) or "no coordinate"
        raise InputError(f"{RULE} elsewhere. These differ along {along}.")
    dim = str(differ[0])
    same: Any = {"data_vars": "minimal", "coords": "minimal", "compat": "equals", "join": "exact"}
    try:
        whole: Any = xr.combine_by_coords(parts, combine_attrs="override", **same)
    except (ValueError, KeyError, TypeError) as error:
        why = str(error).split(". ")[0]  # the rest is advice for Python
        raise InputError(f"{RULE} elsewhere. These are not: {why}.") from error
    index = whole.indexes[dim]
    if index.duplicated().any():
        when = shown(decoded(whole)[dim].values[index.duplicated()][0])
        raise InputError(f"{RULE} elsewhere. These overlap: {dim} {when} is there twice.")
    for name in whole.data_vars:
        whole[name] = _for_one_file(whole[name], [part[name] for part in parts])
    whole.encoding = parts[0].encoding
    starts = [index.get_loc(part.indexes[dim][0]) for part in parts]
    ends = [start + part.sizes[dim] for start, part in zip(starts, parts, strict=True)]
    files = map(Part, paths, stored, map(slice, starts, ends))
    return Series(whole, dim, sorted(files, key=lambda file: file.entries.start))


def _clocks(dataset: xr.Dataset) -> dict[Any, Any]:
    """What the coordinates count, and from when."""
    keys = ("units", "calendar")
    return {name: [c.attrs.get(key) for key in keys] for name, c in dataset.coords.items()}


def _check_alike(part: xr.Dataset, first: xr.Dataset, name: str, other: str) -> None:
    """Refuse what would become one array without meaning one thing."""
    for lost in sorted(map(str, part.data_vars.keys() ^ first.data_vars.keys())):
        here, there = (name, other) if lost in part else (other, name)
        raise InputError(f"`source`: {lost!r} is in {here} and not in {there}. Drop it, or add it.")
    for each in part.variables.keys() & first.variables.keys():
        for key in ("units", "cell_methods"):
            both = (dataset[each].attrs for dataset in (part, first))
            theirs, ours = (attrs.get(key, "missing") for attrs in both)
            if ours != theirs:
                raise InputError(
                    f"`source`: `{key}` of {str(each)!r} is {theirs!r} in {name} and {ours!r} in "
                    f"{other}. Make them the same, values and attributes."
                )


def _for_one_file(whole: xr.DataArray, parts: Sequence[xr.DataArray]) -> xr.DataArray:
    """The whole as plain numbers where files store it differently: no packing holds all of it."""
    ways = [[each.encoding.get(key) for key in AS_STORED] for each in parts]
    if whole.dtype.kind not in "iuf" or all(way == ways[0] for way in ways):
        return whole
    plain = without_packing(whole)
    plain.encoding["dtype"] = whole.dtype
    return plain
