"""`ablate`: networks, updates and sigma_G, each against each, on the same functions."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import get_args

from ...models._load import find_weights, load
from ...support import checks as check
from ...support.complete_files import complete, sole_writer
from ...support.errors import InputError, surprises_expected
from ._cell import Record
from ._experiments import EXPERIMENTS
from ._tables import as_csv
from ._trial import NETWORKS, NetworkName, Split, Trial, records


@surprises_expected()
def ablate(
    problems: Sequence[str] = tuple(EXPERIMENTS),
    out: str | Path | None = None,
    networks: Sequence[NetworkName] = tuple(NETWORKS),
    split: Split = "test",
    device: str = "auto",
    n: int = 50,
    samples: int = 100,
    times: int = 21,
    fresh: bool = False,
    report: Callable[[str], None] | None = None,
) -> list[Record]:
    """Scores at the evaluation time of every update of every network, exact and with noise.

    Parameters
    ----------
    problems : sequence of str
        Their names.
    out : str or Path
        A folder that keeps what is finished.
    networks : sequence of str
        paper, modern (the ANPs of these recipes) and emulator.
    split : {"test", "validation"}
        test: at the parameters of the tables. validation: with parameters from the training range,
        to choose by.
    device : str
        auto, cpu or cuda.
    n : int
        How many functions.
    samples : int
        How many samples of the latent.
    times : int
        At which b is known, evenly over the time range; joint updates use them all.
    fresh : bool
        True computes again what `out` holds.
    report : callable
        Called with the name of each cell that is begun.

    Returns
    -------
    list of dict
        A record for each problem, parameter, network, update and noise.

    Raises
    ------
    InputError
        If a name is unknown, a number is less than 2, or weights are not here.
    """
    for name in problems:
        check.choice("problems", name, EXPERIMENTS)
    for name in networks:
        check.choice("networks", name, NETWORKS)
    check.choice("split", split, get_args(Split))
    for name, count in {"n": n, "samples": samples, "times": times}.items():
        if check.samples(count, name) < 2:
            raise InputError(f"`{name}` must be at least 2, got {count}.")
    for name, network in product(problems, networks):
        _find(name, network)  # before any work is done
    trial, place = Trial(split, n, samples, times), check.device(device)
    every: list[Record] = []
    cells = [
        (name, value, network)
        for name in dict.fromkeys(problems)
        for value in (EXPERIMENTS[name].values if split == "test" else (None,))
        for network in dict.fromkeys(networks)
    ]
    with nullcontext() if out is None else sole_writer(Path(out)):
        for i, (name, value, network) in enumerate(cells):
            kept = _Kept(out, name, value, network, trial)
            found = None if fresh else kept.read()
            if found is None:
                if report is not None:
                    report(f"{kept.title}, {i + 1} of {len(cells)}")
                found = records(EXPERIMENTS[name], value, network, trial, place)
                kept.write(found)
            every += found
    return every


def _find(problem: str, network: NetworkName) -> None:
    try:
        find_weights(problem, *NETWORKS[network])
    except InputError as error:
        raise InputError(f"`networks` has {network}; leave it out, or get it. {error}") from None


class _Kept:
    """The records of one network at one parameter as a file, of use only to the same trial."""

    def __init__(
        self,
        out: str | Path | None,
        problem: str,
        value: float | None,
        network: NetworkName,
        trial: Trial,
    ) -> None:
        parts = [problem, *([] if value is None else [f"{value:g}"]), network]
        self.title = " ".join(parts)
        name = "-".join([*parts, trial.split]) + ".json"
        self.path = None if out is None else Path(out) / "cells" / name
        model, recipe = NETWORKS[network]
        card = load(problem, model, recipe).card
        made_by = {"value": value, "trial": dataclasses.asdict(trial), "card": card}
        self.made_by = json.loads(json.dumps(made_by))  # as files have it

    def read(self) -> list[Record] | None:
        if self.path is None or not self.path.exists():
            return None
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
        except ValueError:  # not ours
            return None
        if not isinstance(kept, dict) or kept.get("made_by") != self.made_by:
            return None
        return kept.get("records")

    def write(self, found: list[Record]) -> None:
        if self.path is not None:
            with complete(self.path) as part:
                part.write_text(json.dumps({"made_by": self.made_by, "records": found}))


def write_ablation(found: Sequence[Record], out: str | Path) -> list[Path]:
    """Writes the records as ablation.json, ablation.csv and tables in ablation.md.

    Parameters
    ----------
    found : sequence of dict
        The records of `ablate`.
    out : str or Path
        The folder.

    Returns
    -------
    list of Path
        The three files.

    Raises
    ------
    InputError
        If there is no record.
    """
    if not found:
        raise InputError("`found` must hold at least one record, as `ablate` returns them.")
    texts = {
        "ablation.json": json.dumps({"schema": 1, "records": list(found)}, indent=1) + "\n",
        "ablation.csv": as_csv(list(found)),
        "ablation.md": as_markdown(found),
    }
    with sole_writer(Path(out)):
        for name, text in texts.items():
            with complete(Path(out) / name) as part:
                part.write_text(text, encoding="utf-8")
    return [Path(out) / name for name in texts]


STYLES = {
    "LL": ".2f",
    "MSE": ".1e",
    "CRPS": ".1e",
    "coverage_90": ".2f",
    "front_error": ".1e",
}


def as_markdown(found: Sequence[Record]) -> str:
    """A table for each network and metric: updates down, problems and parameters across."""
    tables = []
    for network in dict.fromkeys(record["network"] for record in found):
        mine = [record for record in found if record["network"] == network]
        for metric, style in STYLES.items():
            known = [record for record in mine if record[metric] is not None]
            if known:
                tables.append(f"### {network}: {metric}\n\n{_table(known, metric, style)}\n")
    return "\n".join(tables)


def _table(found: Sequence[Record], metric: str, style: str) -> str:
    cells = list(dict.fromkeys(_cell(record) for record in found))
    lines = ["| " + " | ".join(["", *cells]) + " |", "|---" * (len(cells) + 1) + "|"]
    for row in dict.fromkeys(update_name(record) for record in found):
        numbers = {_cell(r): format(r[metric], style) for r in found if update_name(r) == row}
        lines.append("| " + " | ".join([row, *(numbers.get(cell, "") for cell in cells)]) + " |")
    return "\n".join(lines)


def _cell(record: Record) -> str:
    value = record["parameter"]
    return record["problem"] if value is None else f"{record['problem']} {value:g}"


def update_name(record: Record) -> str:
    """The name of an update in tables: with its noise, if it has some.

    Parameters
    ----------
    record : dict
        One of those of `ablate`.

    Returns
    -------
    str
        `update` of the record, and whether it has noise.

    Examples
    --------
    >>> update_name({"update": "ProbConserv", "noise": "quadrature"})
    'ProbConserv, with noise'
    """
    return record["update"] + (", with noise" if record["noise"] == "quadrature" else "")
