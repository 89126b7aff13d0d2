"""`reproduce`: every cell of the tables, each kept as soon as it is there."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch

from .. import _checks as check
from .._builders import integral
from .._errors import InputError
from .._fields import Diagonal
from .._files import complete
from ..data import draw
from ..metrics import Scores, evaluate
from ..models._load import load, shipped
from ..models.anp import AttentiveNeuralProcess
from ..training import RECIPES
from ._experiments import EXPERIMENTS, Experiment
from ._methods import METHODS, PROTOCOLS

Record: TypeAlias = dict[str, Any]
CONTEXT = (10, 10)  # as the published experiments, and ours, were trained


def reproduce(
    problems: Sequence[str] = tuple(EXPERIMENTS),
    out: Path | None = None,
    protocol: str = "ours",
    recipe: str = "modern",
    device: str = "cpu",
    n: int = 50,
    samples: int = 100,
    fresh: bool = False,
    report: Callable[[str], None] | None = None,
) -> list[Record]:
    """The records of the tables: one for each problem, parameter and method.

    problems: their names. out: a folder that keeps every finished cell, for a run that was stopped
    or is repeated; `fresh` computes all again. protocol: ours, or paper, which leaves dropout on
    and mixes as published. recipe: of the weights. n: test functions; samples: of the latent.
    report: called with the name of each cell that is begun.
    """
    for name in problems:
        check.choice("problems", name, EXPERIMENTS)
    check.choice("protocol", protocol, PROTOCOLS)
    check.choice("recipe", recipe, RECIPES)
    check.samples(samples, "samples")
    if check.samples(n) < 2:
        raise InputError(f"`n` must be at least 2, for a standard error; got {n}.")
    plan = {"recipe": recipe, "protocol": protocol, "n": n, "samples": samples}
    records: list[Record] = []
    for name in problems:
        networks = _networks(name, recipe, device)
        for value in EXPERIMENTS[name].values:
            cell = f"{name}-{value:g}-{recipe}-{protocol}-{n}-{samples}"
            kept = None if out is None else Path(out) / "cells" / f"{cell}.json"
            trained = {model: network.card for model, network in networks.items()}
            found = None if fresh or kept is None else _kept(kept, trained)
            if found is None:
                (report or (lambda _: None))(cell)
                found = _cell(EXPERIMENTS[name], value, networks, plan)
                if kept is not None:
                    with complete(kept) as part:
                        part.write_text(json.dumps({"cards": trained, "records": found}))
            records += found
    return records


def _networks(name: str, recipe: str, device: str) -> dict[str, AttentiveNeuralProcess]:
    """By model; SoftC where its weights are there."""
    models = [model for model in ("anp", "softc") if f"{name}-{model}-{recipe}" in shipped()]
    return {model: load(name, model, recipe).to(device) for model in models}


def _kept(path: Path, trained: dict[str, Any]) -> list[Record] | None:
    """The records of a cell that the same weights made, if they are there."""
    try:
        content = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        return None
    return content["records"] if content.get("cards") == trained else None


def _cell(
    experiment: Experiment,
    value: float,
    networks: dict[str, AttentiveNeuralProcess],
    plan: dict[str, Any],
) -> list[Record]:
    problem, time = experiment.problem(value), experiment.time
    test = draw(problem, "test", plan["n"], CONTEXT)
    x, protocol = problem.grid()[1], PROTOCOLS[plan["protocol"]]
    truth, law = problem.on_grid([time], x), integral(x, problem.total([time]))
    grid, known = ([time], x), tuple(test.context)
    parts: dict[str, Diagonal] = {}
    for model, network in networks.items():
        predict, generator = protocol.predict(network), torch.Generator().manual_seed(0)
        parts[model] = predict(known, grid, plan["samples"], generator).to("cpu")
    records = []
    for name, method in METHODS.items():
        if method.model in parts:
            field = protocol.mix(method.update(parts[method.model], law, x))
            generator = torch.Generator().manual_seed(1)
            scores = evaluate(field, truth, law, generator=generator)
            where = {"problem": experiment.name, "parameter": value, "time": time, "method": name}
            records.append(where | plan | _numbers(scores))
    return records


def _numbers(scores: Scores) -> dict[str, float]:
    """Each mean over functions at the one time, and its standard error as NAME_se."""
    mean, error, numbers = scores.mean()[0], scores.standard_error()[0], {}
    for entry in dataclasses.fields(scores):
        numbers[entry.name] = float(getattr(mean, entry.name))
        numbers[f"{entry.name}_se"] = float(getattr(error, entry.name))
    return numbers
