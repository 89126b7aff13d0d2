"""Several files: names in other files, and a series in time over many."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from glob import glob
from itertools import pairwise
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import xarray as xr

from .._errors import InputError
from ._law import STORES, Law, find, nearest
from ._plan import Plan, Ready
from ._read import SMALL, read
from ._report import Budget, Report
from ._survey import groups
from ._time import shown, tells_time
from ._weights import Points
from ._work import Work

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]


def with_files(law: Any, opened: ExitStack) -> Any:
    """The law with a DataArray in place of every FILE:VARIABLE; files stay open with the stack."""
    if callable(law):
        return lambda dataset: with_files(law(dataset), opened)
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
    where = Path(path)
    if not where.exists():
        near = nearest(where.name, [each.name for each in where.parent.glob(f"*{where.suffix}")])
        raise InputError(f"`{argument}` is {given!r}, but there is no file {path}. {near}")
    group, _, name = name.rpartition("/")
    found = find(opened.enter_context(read(path, group=group)), name, f"{argument} {given}")
    return found.load() if found.nbytes <= SMALL else found


def paths_of(source: Paths) -> list[Path]:
    """The files that are meant; a name with * or ? stands for all that match it."""
    given = [source] if isinstance(source, str | PathLike) else list(source)
    found: list[str] = []
    for each in map(fspath, given):
        found += (not Path(each).exists() and sorted(glob(each))) or [each]
    return list(map(Path, found))


def outputs(paths: Sequence[Path], folder: Path) -> list[Path]:
    """A file of the same name in the folder for each."""
    name, count = Counter(path.name for path in paths).most_common(1)[0]
    if count > 1:
        raise InputError(f"`source` has two files called {name}, which cannot both be written.")
    return [folder / path.name for path in paths]


@dataclass(frozen=True, eq=False)
class Series:
    """Files that follow one another along a dimension; one alone has none."""

    paths: Sequence[Path]
    parts: Sequence[xr.Dataset]
    whole: xr.Dataset
    dim: str = ""

    @classmethod
    def opened(cls, paths: Sequence[Path], stack: ExitStack, group: str, **how: Any) -> "Series":
        """how: as in `read`. The files stay open with the stack."""
        for path in paths if len(paths) > 1 else ():
            if group or groups(path):
                raise InputError(
                    f"`source` {path} has groups, and several files with groups cannot be one "
                    "series. Take the group out of each first, or give one file at a time."
                )
        parts = [stack.enter_context(read(path, group=group, **how)) for path in paths]
        if len(parts) == 1:
            return cls(paths, parts, parts[0])
        _check_alike(paths, parts)
        dim = _dimension(paths, parts)
        return cls(paths, parts, _joined_data(paths, parts, dim), dim)

    def part_of(self, work: Work, own: xr.Dataset) -> Work:
        """The work on one of the files, `own`, whose totals follow from the whole series."""
        start = self.whole.indexes[self.dim].get_indexer_for(own.indexes[self.dim][:1])[0]
        where = slice(int(start), int(start) + own.sizes[self.dim])
        plans: list[Plan] = []
        for plan in work.plans:
            if self.dim not in plan.index:
                labels = ", ".join(ready.law.label for ready in plan.laws)
                raise InputError(
                    f"`target`: {labels} ties all files together along {self.dim!r}, so they "
                    "cannot be written one by one. Write one file: a name that ends in .nc or "
                    ".zarr."
                )
            part: Plan = _at(plan, self.dim, where)
            own_fields = {n: (own[n].variable, *std) for n, (_, *std) in part.arrays.items()}
            plans.append(replace(part, arrays=own_fields))
        return replace(work, dataset=own, plans=plans)


def _at(given: Any, dim: str, where: slice) -> Any:
    """What is given at some entries of a dimension, within plans and whatever they are made of."""
    if isinstance(given, xr.Variable | xr.DataArray):
        return given.isel({dim: where}, missing_dims="ignore")
    if isinstance(given, Mapping):
        sizes = {dim: where.stop - where.start} if isinstance(given.get(dim), int) else {}
        return {key: _at(value, dim, where) for key, value in given.items()} | sizes
    if isinstance(given, list | tuple):
        return tuple(_at(value, dim, where) for value in given)
    if isinstance(given, Plan | Ready | Points | Law):
        parts = {each.name: _at(getattr(given, each.name), dim, where) for each in fields(given)}
        return replace(given, **parts)
    return given


def _check_alike(paths: Sequence[Path], parts: Sequence[xr.Dataset]) -> None:
    """Refuse variables that mean something else in another file: they become one array."""
    for path, part in zip(paths[1:], parts[1:], strict=True):
        for name in part.data_vars.keys() & parts[0].data_vars.keys():
            for key in ("units", "cell_methods"):
                ours, theirs = (each[name].attrs.get(key) for each in (parts[0], part))
                if ours != theirs:
                    raise InputError(
                        f"`source`: `{key}` of {str(name)!r} is {theirs!r} in {path.name} and "
                        f"{ours!r} in {paths[0].name}. Make them the same, values and attributes."
                    )


def _dimension(paths: Sequence[Path], parts: Sequence[xr.Dataset]) -> str:
    """The one along which the coordinates of the files differ."""
    first, *others = (part.indexes for part in parts)
    differ = [
        str(dim)
        for dim in first
        if not all(dim in other and first[dim].equals(other[dim]) for other in others)
    ]
    if not differ:
        times = [dim for dim in first if tells_time(parts[0][dim])]
        ends = [f" ({dim} {shown(first[dim][0])} to {shown(first[dim][-1])})" for dim in times]
        raise InputError(
            f"`source`: {paths[0].name} and the {len(paths) - 1} after it have the same coordinates"
            f"{''.join(ends)}, so that they do not follow one another. Give one at a time, or join "
            "members of an ensemble along a new dimension first (`ncecat`)."
        )
    if len(differ) != 1 or not all(len(part.indexes.get(differ[0], ())) for part in parts):
        raise InputError(
            f"`source`: {len(paths)} files make a series if exactly one of their coordinates "
            f"differs, such as time; here it is {', '.join(differ)}."
        )
    return differ[0]


def _joined_data(paths: Sequence[Path], parts: Sequence[xr.Dataset], dim: str) -> xr.Dataset:
    order = sorted(range(len(parts)), key=lambda number: parts[number].indexes[dim][0])
    for one, other in pairwise(order):
        end, start = parts[one].indexes[dim][-1], parts[other].indexes[dim][0]
        if not end < start:
            raise InputError(
                f"`source`: {paths[one].name} and {paths[other].name} overlap along {dim!r}: one "
                f"ends at {end}, the other starts at {start}. Give files that follow one another."
            )
    same: Any = {"data_vars": "minimal", "coords": "minimal", "compat": "equals", "join": "exact"}
    try:
        whole = xr.concat([parts[n] for n in order], dim, combine_attrs="override", **same)
    except (ValueError, KeyError) as error:
        raise InputError(
            f"`source`: {len(paths)} files do not fit together along {dim!r}: {error}. Variables "
            f"without {dim!r} and all other coordinates must be the same in all."
        ) from error
    whole.encoding = parts[order[0]].encoding
    return whole


def joined(reports: Sequence[Report], dim: str) -> Report:
    """One report on all files, in the order of their times."""

    def along(name: str, parts: Sequence[Any]) -> Any:
        if name == "marks":
            return sum(parts)
        if not isinstance(parts[0], xr.DataArray) or dim not in parts[0].dims:
            return parts[0]
        whole = xr.concat(parts, dim)
        return whole.sortby(dim) if dim in whole.coords else whole

    def largest(name: str) -> dict[str, float]:
        first, *others = (getattr(report, name) for report in reports)
        return {key: max([most, *(other[key] for other in others)]) for key, most in first.items()}

    def added(name: str) -> dict[str, int]:
        return dict(sum((Counter(getattr(report, name)) for report in reports), Counter()))

    names = [each.name for each in fields(Budget)]
    budgets = tuple(
        replace(parts[0], **{n: along(n, [getattr(part, n) for part in parts]) for n in names})
        for parts in zip(*(report.budgets for report in reports), strict=True)
    )
    of_parts = {text for r in reports for budget in r.budgets for text in budget.warnings}
    warnings = [text for budget in budgets for text in budget.warnings]
    warnings += [text for r in reports for text in r.warnings if text not in of_parts]
    return replace(
        reports[0],
        budgets=budgets,
        moved=largest("moved"),
        in_std=largest("in_std"),
        outside=added("outside"),
        outside_before=added("outside_before"),
        notes=tuple(dict.fromkeys(note for report in reports for note in report.notes)),
        warnings=tuple(dict.fromkeys(warnings)),
    )
