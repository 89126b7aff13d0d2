"""Several files: names in other files, and a series in time over many."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from glob import glob
from itertools import pairwise
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import xarray as xr

from .._errors import InputError
from ._law import Law, find, nearest
from ._plan import Plan, Ready
from ._read import SMALL, read
from ._report import Budget, Report
from ._survey import groups
from ._time import shown, tells_time
from ._write import NETCDF

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]


def with_files(law: Any, opened: ExitStack) -> Any:
    """The law with a DataArray in place of every FILE:VARIABLE; files stay open with the stack."""

    def filled(law: Any) -> Any:
        if not isinstance(law, Law):
            return law
        given = {each.name: getattr(law, each.name) for each in fields(law)}
        return replace(law, **{key: from_file(each, key, opened) for key, each in given.items()})

    return (lambda dataset: filled(law(dataset))) if callable(law) else filled(law)


def from_file(given: Any, argument: str, opened: ExitStack) -> Any:
    """What FILE:VARIABLE stands for, also within lists and mappings; anything else as it is."""
    if isinstance(given, Mapping):
        return {key: from_file(value, argument, opened) for key, value in given.items()}
    if isinstance(given, list | tuple):
        return [from_file(value, argument, opened) for value in given]
    path, _, name = given.rpartition(":") if isinstance(given, str) else ("", "", "")
    if Path(path).suffix not in (*NETCDF, ".zarr") or argument in ("name", "remarks"):
        return given
    if not Path(path).exists():
        there = [each.name for each in Path(path).parent.glob(f"*{Path(path).suffix}")]
        near = nearest(Path(path).name, there)
        raise InputError(f"`{argument}` is {given!r}, but there is no file {path}. {near}")
    group, _, name = name.rpartition("/")
    dataset = opened.enter_context(read(path, group=group))
    found = find(dataset, name, f"{argument} {given}")
    return found.load() if found.nbytes <= SMALL else found


def paths_of(source: Paths) -> list[Path]:
    """The files that are meant; a name with * or ? stands for all that match it."""
    given = [source] if isinstance(source, str | PathLike) else list(source)
    found = []
    for path in given:
        each = fspath(path)
        many = [] if Path(each).exists() else sorted(glob(each))
        found += many or [each]
    return list(map(Path, found))


def read_series(paths: Sequence[Path], opened: ExitStack, **how: Any) -> tuple[xr.Dataset, str]:
    """The files as one dataset, and the dimension along which they follow one another."""
    for path in paths:
        if how.get("group") or groups(path):
            raise InputError(
                f"`source` {path} has groups, and several files with groups cannot be one series. "
                "Take the group out of each first, or give one file at a time."
            )
    parts = [opened.enter_context(read(path, **how)) for path in paths]
    _check_alike(paths, parts)
    dim = _dimension(paths, parts)
    order = sorted(range(len(parts)), key=lambda number: parts[number].indexes[dim][0])
    for one, other in pairwise(order):
        end, start = parts[one].indexes[dim][-1], parts[other].indexes[dim][0]
        if not end < start:
            raise InputError(
                f"`source`: {paths[one].name} and {paths[other].name} overlap along {dim!r}: one "
                f"ends at {end}, the other starts at {start}. Give files that follow one another."
            )
    try:
        whole = xr.concat(
            [parts[number] for number in order],
            dim,
            data_vars="minimal",
            coords="minimal",
            compat="equals",
            join="exact",
            combine_attrs="override",
        )
    except (ValueError, KeyError) as error:
        raise InputError(
            f"`source`: {len(paths)} files do not fit together along {dim!r}: {error}. Variables "
            f"without {dim!r} and all other coordinates must be the same in all."
        ) from error
    whole.encoding = parts[order[0]].encoding
    return whole, dim


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
        which = ", ".join(
            f"{dim} {shown(first[dim][0])} to {shown(first[dim][-1])}"
            for dim in first
            if tells_time(parts[0][dim])
        )
        raise InputError(
            f"`source`: {paths[0].name} and the {len(paths) - 1} after it have the same coordinates"
            f"{f' ({which})' if which else ''}, so that they do not follow one another. Give one "
            "at a time, or join members of an ensemble along a new dimension first (`ncecat`)."
        )
    if len(differ) != 1 or not all(len(part.indexes.get(differ[0], ())) for part in parts):
        raise InputError(
            f"`source`: {len(paths)} files make a series if exactly one of their coordinates "
            f"differs, such as time; here it is {', '.join(differ)}."
        )
    return differ[0]


def outputs(paths: Sequence[Path], folder: Path) -> list[Path]:
    """A file of the same name in the folder for each."""
    names = [path.name for path in paths]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"`source` has two files called {twice}, which cannot both be written.")
    return [folder / name for name in names]


def part_of(plans: Sequence[Plan], std: Any, path: Path, dim: str) -> tuple[list[Law], Any]:
    """The laws with the totals of one file, which follow from the whole series, and its std."""
    with read(path) as dataset:
        times = dataset[dim]
    laws = [ready for plan in plans for ready in plan.laws]
    own = [_law_at(ready, times) for ready in laws]
    return own, _at(std, times, laws[0].points.coords[dim])


def as_parts(plans: Sequence[Plan], whole: Sequence[Plan]) -> list[Plan]:
    """The plans of one file, which say of their totals what those of the whole series do."""

    def told(ready: Ready, of: Ready) -> Ready:
        return replace(ready, remarks=of.remarks, one_total=of.one_total)

    return [
        replace(plan, laws=tuple(map(told, plan.laws, other.laws)))
        for plan, other in zip(plans, whole, strict=True)
    ]


def _law_at(ready: Ready, times: xr.DataArray) -> Law:
    coords = ready.points.coords
    if times.name not in ready.points.rows:
        raise InputError(
            f"`target`: {ready.law.label} ties all files together along {times.name!r}, so they "
            "cannot be written one by one. Write one file: a name that ends in .nc or .zarr."
        )
    known: dict[str, Any] = {"inflow": (), "outflow": (), "average": None}
    for name, value in (("total", ready.value + ready.fixed), ("noise", ready.noise)):
        labels = {dim: coords[str(dim)].variable for dim in value.dims if dim in coords}
        known[name] = xr.DataArray(value, labels) if value.dims else float(value)
    law = replace(ready.law, **known)
    along = coords[str(times.name)]
    return replace(law, **{f.name: _at(getattr(law, f.name), times, along) for f in fields(law)})


def _at(given: Any, times: xr.DataArray, along: xr.DataArray) -> Any:
    """What is given at these times, if it changes in time; also within lists and mappings."""
    if isinstance(given, Mapping):
        return {key: _at(value, times, along) for key, value in given.items()}
    if isinstance(given, list | tuple):
        return [_at(value, times, along) for value in given]
    if not isinstance(given, xr.DataArray) or times.name not in given.dims:
        return given
    timed = given if times.name in given.indexes else given.assign_coords({times.name: along})
    return timed.sel({times.name: times.values})


def joined(reports: Sequence[Report], dim: str) -> Report:
    """One report on all files, in the order of their times."""
    columns = zip(*(report.budgets for report in reports), strict=True)
    budgets = tuple(_joined(column, dim) for column in columns)
    of_parts = {text for r in reports for budget in r.budgets for text in budget.warnings}
    warnings = [text for budget in budgets for text in budget.warnings]
    warnings += [text for r in reports for text in r.warnings if text not in of_parts]
    return replace(
        reports[0],
        budgets=budgets,
        moved={name: max(r.moved[name] for r in reports) for name in reports[0].moved},
        in_std={name: max(r.in_std[name] for r in reports) for name in reports[0].in_std},
        outside=_added(report.outside for report in reports),
        outside_before=_added(report.outside_before for report in reports),
        notes=tuple(dict.fromkeys(note for report in reports for note in report.notes)),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    return dict(sum(map(Counter, counts), Counter()))


def _joined(column: Sequence[Budget], dim: str) -> Budget:
    def along(name: str) -> Any:
        parts = [getattr(budget, name) for budget in column]
        if not isinstance(parts[0], xr.DataArray) or dim not in parts[0].dims:
            return parts[0]
        whole = xr.concat(parts, dim)
        return whole.sortby(dim) if dim in whole.coords else whole

    return replace(column[0], **{each.name: along(each.name) for each in fields(Budget)})
