"""`train`: from a problem and a recipe to weights in a folder."""

import dataclasses
import math
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Unpack, get_args

import torch

from .. import _checks as check
from .._errors import InputError, surprises_expected
from .._files import sole_writer
from ..models._load import Model, Network, RecipeName
from ..problems import PROBLEMS, ClosedForm
from ._recipes import EMULATOR, PENALTIES, RECIPES, Changes, Keep, Recipe, Schedule
from ._run import Report, Run
from ._team import local_rank, team
from ._through import LOSSES


@surprises_expected()
def train(
    problem: type[ClosedForm] | str,
    out: str | Path,
    model: Model = "anp",
    recipe: RecipeName = "modern",
    device: torch.device | str = "auto",
    seed: int = 0,
    report: Report | None = None,
    sizes: dict[str, int] | None = None,
    start: str | Path | None = None,
    **changes: Unpack[Changes],
) -> Network:
    """A network trained on the problem; its weights and card are in the folder `out`.

    A folder with a checkpoint is continued. Ctrl-C and SIGTERM leave one and end in
    KeyboardInterrupt. Under torchrun all processes train one network together.

    Parameters
    ----------
    problem : str, or a class of ClosedForm
        The problem, or its name.
    out : str or Path
        The folder.
    model : {"anp", "softc", "emulator"}
        softc adds the equation's squared residual to the loss; emulator is given the parameter and
        infers it when it predicts.
    recipe : {"modern", "paper"}
        One of `RECIPES`.
    device : torch.device or str
        Where it is trained; "auto" is a GPU where there is one.
    seed : int
        Of all random numbers.
    report : callable
        Called every so many steps with what there is to show.
    sizes : dict of int
        Of the network: hidden, latent, heads; of an emulator hidden, layers, octaves.
    start : str or Path
        Weights to go on from, a file that training wrote.
    **changes
        Entries of the recipe that are replaced (steps=1000, batch=32, penalty=10.0, ...). Of these
        through="ll" or "crps" trains an anp by that score of its predictions after Step 2, best
        from a `start`.

    Returns
    -------
    AttentiveNeuralProcess or Emulator
        The trained network.

    Raises
    ------
    InputError
        If the problem has no closed form, or an entry of the recipe breaks a rule.
    DivergedError
        If the loss is no longer a number.
    """
    plan = _plan(model, recipe, changes)
    family, number, place = (
        _family(problem),
        check.whole("seed", seed),
        check.device(str(device), local_rank()),
    )
    precision = torch.get_float32_matmul_precision()
    # TF32 where there is a GPU; its 10 bits are too few for the place of an emulator's front
    torch.set_float32_matmul_precision("highest" if model == "emulator" else "high")
    try:
        with (
            team(place) as together,
            torch.random.fork_rng([place] if place.type == "cuda" else []),
            torch.inference_mode(False),
            torch.enable_grad(),
            _interrupts() as asked,
            warnings.catch_warnings(),
            sole_writer(Path(out)) if together.first else nullcontext(),
        ):
            warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")  # chosen above
            names = {"problem": family.name, "model": model, "recipe": recipe, "seed": number}
            run = Run(family, names, plan, Path(out), place, together, _sizes(model, sizes), start)
            run.go(report or (lambda _: None), asked)
    finally:
        torch.set_float32_matmul_precision(precision)
    return run.network


def _plan(model: Model, recipe: RecipeName, changes: Changes) -> Recipe:
    check.choice("model", model, PENALTIES)
    check.choice("recipe", recipe, RECIPES)
    entries = [field.name for field in dataclasses.fields(Recipe)]
    for name in changes:
        check.choice("changes", name, entries)
    own: Changes = EMULATOR if (model, recipe) == ("emulator", "modern") else {}
    chosen: dict[str, Any] = {"penalty": PENALTIES[model], **own, **changes}
    plan = dataclasses.replace(RECIPES[recipe], **chosen)
    check.choice("keep", plan.keep, get_args(Keep))
    check.choice("schedule", plan.schedule, get_args(Schedule))
    if not (0 < plan.penalty < math.inf if model == "softc" else plan.penalty == 0):
        raise InputError(
            f"`penalty` must be positive for softc and 0 otherwise, got {plan.penalty} for {model}."
        )
    if not 0 < plan.learning_rate < math.inf:
        raise InputError(f"`learning_rate` must be positive, got {plan.learning_rate}.")
    if plan.clip is not None and not plan.clip > 0:
        raise InputError(f"`clip` must be positive, or None for no limit; got {plan.clip}.")
    if not 0 <= plan.dropout < 1:
        raise InputError(f"`dropout` must be at least 0 and less than 1, got {plan.dropout}.")
    if model == "emulator" and plan.dropout:
        raise InputError(
            f"`dropout` must be 0 for an emulator, got {plan.dropout}. Use the recipe modern."
        )
    if plan.near and plan.functions is not None:
        raise InputError("`near` is for fresh functions; a fixed set has its targets already.")
    if plan.through is not None:
        _check_through(model, plan)
    steps, batch = check.samples(plan.steps, "steps"), check.samples(plan.batch, "batch")
    return dataclasses.replace(plan, steps=steps, batch=batch)


def _check_through(model: Model, plan: Recipe) -> None:
    check.choice("through", str(plan.through), LOSSES)
    if model != "anp":
        raise InputError(
            f"`through` is for the model anp, got {model}: the loss after Step 2 takes the place "
            "of the whole loss, and with it of what makes a softc or an emulator."
        )
    for name, size in (("rows", plan.rows), ("samples", plan.samples)):
        check.samples(size, name)
    if check.samples(plan.points, "points") < 2:
        raise InputError(f"`points` must be both ends of the domain or more, got {plan.points}.")


def _family(problem: type[ClosedForm] | str) -> type[ClosedForm]:
    closed = {name: p for name, p in PROBLEMS.items() if issubclass(p, ClosedForm)}
    if isinstance(problem, str):
        if problem in PROBLEMS and problem not in closed:
            raise InputError(f"{problem} has no closed form to train on.")
        check.choice("problem", problem, closed)
        return closed[problem]
    if not (isinstance(problem, type) and issubclass(problem, ClosedForm)):
        raise InputError(
            f"`problem` must be the class of a problem with a closed form, or its name; got "
            f"{problem!r}. Its parameters are drawn from its training range."
        )
    return problem


def _sizes(model: Model, sizes: dict[str, int] | None) -> dict[str, int]:
    own = ["layers", "octaves"] if model == "emulator" else ["latent", "heads"]
    for name in sizes or {}:
        check.choice("sizes", name, ["hidden", *own])
    return {name: check.samples(size, name) for name, size in (sizes or {}).items()}


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Ctrl-C and a scheduler's SIGTERM are noted, to be obeyed between two steps.

    A step that is torn could not be resumed.
    """
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted  # no signal gets here
        return
    signals = signal.SIGINT, signal.SIGTERM
    before = [signal.signal(s, lambda number, _: noted.append(number)) for s in signals]
    try:
        yield noted
    finally:
        for s, handler in zip(signals, before, strict=True):
            signal.signal(s, handler)
