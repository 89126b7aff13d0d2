"""`reproduce`: every cell of the tables, each kept as soon as it is there."""

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

import torch

from ...models._checkpoints import read, write
from ...models._load import RecipeName, find_weights, load, shipped
from ...support import checks as check
from ...support.complete_files import sole_writer
from ...support.errors import InputError, surprises_expected
from ...training import RECIPES
from ._cell import Cell, Networks, Plan, tables, whole
from ._experiments import EXPERIMENTS, Experiment
from ._methods import PROTOCOLS, ProtocolName

FORMAT = 1  # of the kept cells
MODELS: tuple[Literal["anp", "softc"], ...] = ("anp", "softc")


@surprises_expected()
def reproduce(
    problems: Sequence[str] = tuple(EXPERIMENTS),
    out: str | Path | None = None,
    protocol: ProtocolName = "ours",
    recipe: RecipeName = "modern",
    device: str = "auto",
    n: int = 50,
    samples: int = 100,
    figures: bool = True,
    fresh: bool = False,
    report: Callable[[str], None] | None = None,
) -> list[Cell]:
    """The cells of the tables, one for each problem and parameter.

    Parameters
    ----------
    problems : sequence of str
        Their names.
    out : str or Path
        A folder that keeps every finished cell, for a run that was stopped or is repeated.
    protocol : {"ours", "paper"}
        paper leaves dropout on and mixes as published.
    recipe : {"modern", "paper"}
        The recipe of the weights.
    device : str
        auto, cpu or cuda, where figures over time have more times and functions.
    n : int
        How many test functions, at least 2.
    samples : int
        How many samples of the latent.
    figures : bool
        Whether to compute what they need.
    fresh : bool
        True computes again what `out` holds.
    report : callable
        Called with the name of each cell that is begun.

    Returns
    -------
    list of Cell
        For `write`.

    Raises
    ------
    InputError
        If a name is unknown, or weights are not here.
    """
    for name in problems:
        check.choice("problems", name, EXPERIMENTS)
    check.choice("protocol", protocol, PROTOCOLS)
    check.choice("recipe", recipe, RECIPES)
    check.samples(samples, "samples")
    if check.samples(n) < 2:
        raise InputError(f"`n` must be at least 2, for a standard error; got {n}.")
    place = check.device(device)
    for name in problems:
        find_weights(name, "anp", recipe)  # before any work is done
    plan = Plan(recipe, protocol, n, samples)
    if place.type == "cuda":
        plan = dataclasses.replace(plan, times=201, at_most=50)
    todo = [(name, value) for name in dict.fromkeys(problems) for value in EXPERIMENTS[name].values]
    cells, compute = [], whole if figures else tables
    with nullcontext() if out is None else sole_writer(Path(out)):
        for i, (name, value) in enumerate(todo):
            networks = _networks(name, recipe, place)
            kept = _Kept(out, EXPERIMENTS[name], value, networks, plan)
            cell = None if fresh else kept.read(figures)
            if cell is None:
                if report is not None:
                    report(f"{name} {value:g}, {i + 1} of {len(todo)}")
                cell = compute(EXPERIMENTS[name], value, networks, plan)
                kept.write(cell)
            cells.append(cell)
    return cells


def _networks(name: str, recipe: RecipeName, device: torch.device) -> Networks:
    """By model; SoftC where its weights are there."""
    models = [model for model in MODELS if f"{name}-{model}-{recipe}" in shipped()]
    return {model: load(name, model, recipe).to(device) for model in models}


class _Kept:
    """A finished cell as a file, of use only to the same weights and plan."""

    def __init__(
        self,
        out: str | Path | None,
        experiment: Experiment,
        value: float,
        networks: Networks,
        plan: Plan,
    ) -> None:
        self.experiment, self.value, self.plan = experiment, value, plan
        self.made_by = {
            "format": FORMAT,
            "plan": dataclasses.asdict(plan),
            "cards": {model: network.card for model, network in networks.items()},
        }
        name = f"{Cell(experiment, value, plan, []).name}.safetensors"
        self.path = None if out is None else Path(out) / "cells" / name

    def read(self, with_curves: bool) -> Cell | None:
        if self.path is None or not self.path.exists():
            return None
        try:
            curves, notes = read(self.path)
        except InputError:  # torn, or not ours
            return None
        if notes.get("made_by") != self.made_by or (with_curves and not curves):
            return None
        curves = curves if with_curves else {}
        return Cell(
            self.experiment, self.value, self.plan, notes["records"], notes["fronts"], curves
        )

    def write(self, cell: Cell) -> None:
        if self.path is not None:
            notes = {"made_by": self.made_by, "records": cell.records, "fronts": [*cell.fronts]}
            write(self.path, cell.curves, notes)
