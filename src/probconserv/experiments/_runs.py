"""What runs of experiments share: cells that are kept, and files that are whole or not there."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from ..models._trained import read, write
from ..support.complete_files import complete, sole_writer
from ..support.errors import InputError

Record: TypeAlias = dict[str, Any]


class Found(NamedTuple):
    """What came out of a cell."""

    curves: dict[str, Tensor]
    notes: Record  # as JSON has it


class Job(NamedTuple):
    """A cell to compute, or to find where it was kept by the same weights and settings."""

    title: str
    file: str
    made_by: Record
    compute: Callable[[], Found]
    with_curves: bool = False  # what was kept without does not do


def run(
    jobs: Sequence[Callable[[], Job]],
    out: str | Path | None,
    fresh: bool,
    report: Callable[[str], None] | None,
) -> Iterator[Found]:
    """Every cell, each kept in `out` as soon as it is there."""
    with nullcontext() if out is None else sole_writer(Path(out)):
        for i, made in enumerate(jobs):
            job = made()
            path = None if out is None else Path(out) / "cells" / f"{job.file}.safetensors"
            made_by = json.loads(json.dumps(job.made_by))  # as files have it
            found = None if fresh or path is None else _kept(path, made_by, job.with_curves)
            if found is None:
                if report is not None:
                    report(f"{job.title}, {i + 1} of {len(jobs)}")
                found = job.compute()
                if path is not None:
                    write(path, found.curves, found.notes | {"made_by": made_by})
            yield found


def _kept(path: Path, made_by: Record, with_curves: bool) -> Found | None:
    if not path.exists():
        return None
    try:
        curves, notes = read(path)
    except InputError:  # torn, or not ours
        return None
    if notes.pop("made_by", None) != made_by or (with_curves and not curves):
        return None
    return Found(curves, notes)


def at_least_one(name: str, given: Sequence[Any], what: str, made: str) -> None:
    if not given:
        raise InputError(f"`{name}` must hold at least one {what}, as `{made}` returns them.")


def written(out: Path, texts: Mapping[str, str]) -> list[Path]:
    """The files, each whole or as it was; the caller is the sole writer of the folder."""
    for name, text in texts.items():
        with complete(out / name) as part:
            part.write_text(text, encoding="utf-8")
    return [out / name for name in texts]


def grouped(records: Sequence[Record], *keys: str) -> list[list[Record]]:
    """Those that agree in these, in the order in which they are given."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record[key] for key in keys), []).append(record)
    return list(groups.values())


def as_csv(rows: Sequence[Record]) -> str:
    text = io.StringIO()
    table = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()
