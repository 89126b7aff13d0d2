"""What is read for a run: names in laws that lie in other files, and files that are one series."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import partial
from glob import glob
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import xarray as xr

from ..support.errors import InputError
from ._arithmetic import calculated, is_arithmetic
from ._attributes import decoded, setting, shown
from ._encoding import without_packing
from ._law import STORES, FileLaw, Recipe, find, nearest
from ._plan import FileSpread
from ._read import SMALL, groups, here, read
from ._time import BOUNDS, tells_time

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]
NAMES = (str, list, tuple, Mapping)  # what may hold names
AS_STORED = ("dtype", "scale_factor", "add_offset", "_Unsigned")
RULE = "`source`: files of a series follow one another along one coordinate and are the same"


def with_files(
    laws: Sequence[FileLaw | Recipe], spread: FileSpread, opened: ExitStack
) -> tuple[list[FileLaw | Recipe], FileSpread]:
    """Both with a DataArray in place of every FILE:VARIABLE; files stay open with the stack."""
    std = from_file(spread.std, "std", opened)
    return [_with_files(law, opened) for law in laws], replace(spread, std=std)


def _with_files(law: Any, opened: ExitStack) -> Any:
    if isinstance(law, partial):  # of a recipe
        told = {key: from_file(each, key, opened) for key, each in law.keywords.items()}
        law = partial(law.func, *law.args, **told)
    if callable(law):
        return lambda dataset: _with_files(law(dataset), opened)
    if not isinstance(law, FileLaw):
        return law
    named = {f.name: getattr(law, f.name) for f in fields(law) if f.name not in ("name", "remarks")}
    named = {key: given for key, given in named.items() if isinstance(given, NAMES) and given}
    return replace(law, **{key: from_file(given, key, opened) for key, given in named.items()})


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


def opened_as_one(
    paths: Sequence[Path],
    opened: ExitStack,
    group: str,
    chunks: Mapping[str, int] | None,
    member: str | None,
    unpack: bool = False,
) -> xr.Dataset:
    """The dataset in a file, or that of a series; files stay open with the stack."""
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
    return parts[0] if len(parts) == 1 else _combined(paths, parts)


def _combined(paths: Sequence[Path], parts: Sequence[xr.Dataset]) -> xr.Dataset:
    """The series that the files make, in dates where their times count from different ones."""
    clocks = [_clocks(part) for part in parts]
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
    return whole


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
