"""Several files: names in other files, and a series in time over many."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from glob import glob
from itertools import pairwise
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import xarray as xr

from .._errors import InputError
from ._budget import Budget
from ._law import Law
from ._lookup import find
from ._plan import Plan
from ._read import SMALL, read
from ._report import Report
from ._stage import NETCDF
from ._survey import groups

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]


def with_files(law: Law, opened: ExitStack) -> Law:
    """The law with a DataArray in place of every FILE:VARIABLE; files stay open with the stack."""
    given = {each.name: getattr(law, each.name) for each in fields(law)}
    return replace(law, **{key: from_file(value, opened) for key, value in given.items()})


def from_file(given: Any, opened: ExitStack) -> Any:
    """What FILE:VARIABLE stands for, also within lists and mappings; anything else as it is."""
    if isinstance(given, Mapping):
        return {key: from_file(value, opened) for key, value in given.items()}
    if isinstance(given, list | tuple):
        return [from_file(value, opened) for value in given]
    path, _, name = given.rpartition(":") if isinstance(given, str) else ("", "", "")
    if Path(path).suffix not in (*NETCDF, ".zarr"):
        return given
    group, _, name = name.rpartition("/")
    dataset = opened.enter_context(read(path, group=group))
    found = find(dataset, name, given)
    return found.load() if found.nbytes <= SMALL else found


def paths_of(source: Paths) -> list[Path]:
    """The files that are meant; a name with * or ? stands for all that match it."""
    given = [source] if isinstance(source, str | PathLike) else list(source)
    found = []
    for each in map(fspath, given):
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


def _dimension(paths: Sequence[Path], parts: Sequence[xr.Dataset]) -> str:
    """The one along which the coordinates of the files differ."""
    first, *others = (part.indexes for part in parts)
    differ = [
        str(dim)
        for dim in first
        if not all(dim in other and first[dim].equals(other[dim]) for other in others)
    ]
    if len(differ) != 1 or not all(len(part.indexes.get(differ[0], ())) for part in parts):
        raise InputError(
            f"`source`: {len(paths)} files make a series if exactly one of their coordinates "
            f"differs, such as time; here it is {', '.join(differ) or 'none'}."
        )
    return differ[0]


def laws_of_parts(plans: Sequence[Plan], paths: Sequence[Path], dim: str) -> Iterator[list[Law]]:
    """For each file the laws with its own totals, which follow from the whole series."""
    ready = [each for plan in plans for each in plan.laws]
    for each in ready:
        if dim not in each.points.rows:
            raise InputError(
                f"`target`: {each.law.label} ties all files together along {dim!r}, so they cannot "
                "be written one by one. Write one file: give a name that ends in .nc or .zarr."
            )
    for path in paths:
        with read(path) as dataset:
            times = dataset[dim]
        laws = []
        for each in ready:
            b, noise = (_at(value, each.points.coords, times) for value in (each.value, each.noise))
            laws.append(replace(each.law, total=b, noise=noise, inflow=(), outflow=()))
        yield laws


def _at(value: xr.Variable, coords: Mapping[str, xr.DataArray], times: xr.DataArray) -> Any:
    if not value.dims:
        return float(value)
    known = {dim: coords[dim].variable for dim in value.dims if dim in coords}
    found = xr.DataArray(value, known)
    return found.sel({times.name: times.values}) if times.name in found.dims else found


def joined(reports: Sequence[Report], dim: str) -> Report:
    """One report on all files, in the order of their times."""
    columns = zip(*(report.budgets for report in reports), strict=True)
    return replace(
        reports[0],
        budgets=tuple(_joined(column, dim) for column in columns),
        moved={name: max(r.moved[name] for r in reports) for name in reports[0].moved},
        below=dict(sum((Counter(r.below) for r in reports), Counter())),
        notes=tuple(dict.fromkeys(note for report in reports for note in report.notes)),
    )


def _joined(column: Sequence[Budget], dim: str) -> Budget:
    def along(name: str) -> Any:
        parts = [getattr(budget, name) for budget in column]
        if not isinstance(parts[0], xr.DataArray) or dim not in parts[0].dims:
            return parts[0]
        whole = xr.concat(parts, dim)
        return whole.sortby(dim) if dim in whole.coords else whole

    return replace(column[0], **{each.name: along(each.name) for each in fields(Budget)})
