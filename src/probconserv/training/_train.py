"""`train`: from a problem and a recipe to weights in a folder."""

import dataclasses
import math
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from numbers import Real
from pathlib import Path
from typing import Any, Unpack, get_args

import torch

from ..data import Grids
from ..laws.inequalities import Inequality
from ..models._load import RecipeName
from ..support import checks as check
from ..support.complete_files import sole_writer
from ..support.errors import InputError, surprises_expected, warn_implausible
from ._kinds import KINDS, Kind, ModelName
from ._machine import local_rank, team
from ._points import LOSSES
from ._recipes import RECIPES, Changes, Keep, Recipe, Schedule
from ._run import Reporter, Run
from ._source import Source, TrainingData, source_of

WORDS: dict[str, Iterable[str]] = {  # of a recipe
    "keep": get_args(Keep),
    "schedule": get_args(Schedule),
    "through": LOSSES,
    "loss": LOSSES,
}
COUNTS = ["steps", "batch", "functions", "validation", "rows", "samples", "times", "points"]
NUMBERS: dict[str, tuple[str, Callable[[float], bool]]] = {
    "penalty": ("positive for softc and 0 otherwise", lambda x: 0 <= x < math.inf),
    "learning_rate": ("positive", lambda x: 0 < x < math.inf),
    "clip": ("positive, or None for no limit", lambda x: x > 0),
    "dropout": ("at least 0 and less than 1", lambda x: 0 <= x < 1),
    "near": ("from 0 to 1", lambda x: 0 <= x <= 1),
    "noise": ("0 or more", lambda x: 0 <= x < math.inf),
    "apart": ("0 or more", lambda x: 0 <= x < math.inf),
    "beta": ("from 0 to 1", lambda x: 0 <= x <= 1),
    "plain": ("at least 0 and less than 0.5", lambda x: 0 <= x < 0.5),
}
UNREAD = 0.1  # the share of the error that reading takes away, of networks that hardly do


def train(
    data: TrainingData,
    out: str | Path,
    model: ModelName | Kind = "anp",
    recipe: RecipeName = "modern",
    device: torch.device | str = "auto",
    seed: int = 0,
    report: Reporter | None = None,
    sizes: dict[str, Any] | None = None,
    start: str | Path | None = None,
    held_out: Grids | None = None,
    **changes: Unpack[Changes],
) -> Any:
    """A network trained on the data; its weights and card are in the folder `out`.

    A folder with a checkpoint is continued. Ctrl-C and SIGTERM leave one and end in
    KeyboardInterrupt. Under torchrun all processes train one network together.

    Parameters
    ----------
    data : str, class of ClosedForm, Grids or callable
        An equation or its name, functions on a grid, or a function from a step, an int64 tensor on
        the device, to `Grids` of a batch there.
    out : str or Path
        The folder.
    model : {"anp", "softc", "emulator", "fno"} or Kind
        softc adds the equation's squared residual to the loss; emulator is given the parameter and
        infers it when it predicts; fno gives whole fields from inputs.
    recipe : {"modern", "paper"}
        One of `RECIPES`.
    device : torch.device or str
        Where it is trained; "auto" is a GPU where there is one.
    seed : int
        The seed of all random numbers.
    report : callable
        Called at the start, and again every so many steps, with what there is to show.
    sizes : dict
        The sizes of the network. anp and softc: hidden, latent, heads. emulator: hidden, layers,
        octaves. fno: modes, width, layers, members, heads, variance, periodic, padding.
    start : str or Path
        Weights to go on from, a file that training wrote or its folder.
    held_out : Grids
        What judges a network on grids. If not given, a tenth of `data`, at most `validation`.
    **changes
        Entries of the recipe that are replaced (steps=1000, batch=32, penalty=10.0, ...).
        through="ll" or "crps" trains by that score of the predictions after Step 2; for an anp it
        is best to go on from a `start`. Step 2 takes the `law` of `Grids`, else their totals.

    Returns
    -------
    AttentiveNeuralProcess, Emulator, FNO or what a Kind builds
        The trained network.

    Raises
    ------
    InputError
        If the data do not suit the model, or an entry of the recipe breaks a rule.
    DivergedError
        If the loss is no longer a number.
    """
    kind, folder = _kind(model), check.path("out", out)
    plan = _plan(kind, recipe, changes)
    number, place = check.whole("seed", seed), check.device(str(device), local_rank())
    source = source_of(data, held_out, plan, number, place)
    source = source.on_grids(plan, number) if kind.on_grids else source
    _check_data(kind, plan, source)
    if source.grids is not None:
        plan = dataclasses.replace(plan, near=None)  # whose front is not known
    precision = torch.get_float32_matmul_precision()
    # TF32 where there is a GPU and its 10 bits are enough
    torch.set_float32_matmul_precision("highest" if kind.exact else "high")
    try:
        with (
            surprises_expected(),
            team(place) as together,
            torch.random.fork_rng([place] if place.type == "cuda" else []),
            torch.inference_mode(False),
            torch.enable_grad(),
            _interrupts() as asked,
            warnings.catch_warnings(),
            sole_writer(folder) if together.first else nullcontext(),
        ):
            warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")  # chosen above
            names = {"recipe": recipe, "seed": number}
            chosen = _sizes(kind, sizes)
            run = Run(kind, source, names, plan, folder, place, together, chosen, start)
            run.go(report or (lambda _: None), asked)
    finally:
        torch.set_float32_matmul_precision(precision)
    _warn_unread(run.card)
    return run.network


def _warn_unread(card: dict[str, Any]) -> None:
    """A network may be good on average and predict the same whatever it is shown."""
    share = card.get("reading", math.nan)
    if share < UNREAD:
        warn_implausible(
            "the network predicts nearly the same whatever it is shown: with a function's own "
            f"context or inputs the MSE is only {share:.1%} less than with those of another. "
            "Train for more steps, with another `learning_rate`, or an anp with another `beta`."
        )


def _kind(model: ModelName | Kind) -> Kind:
    if isinstance(model, Kind):
        return model
    check.choice("model", model, KINDS)
    return KINDS[model]


def _plan(kind: Kind, recipe: RecipeName, changes: Changes) -> Recipe:
    check.choice("recipe", recipe, RECIPES)
    if recipe not in kind.recipes:
        known = " or ".join(kind.recipes)
        raise InputError(f"`recipe` must be {known} for the model {kind.name}; got {recipe!r}.")
    for name in changes:
        check.choice("changes", name, [field.name for field in dataclasses.fields(Recipe)])
    chosen: dict[str, Any] = {**kind.recipes[recipe], **changes}
    plan = dataclasses.replace(RECIPES[recipe], **chosen)
    for name, known_words in WORDS.items():
        if getattr(plan, name) is not None:
            check.choice(name, getattr(plan, name), known_words)
    counts = {n: getattr(plan, n) for n in COUNTS if getattr(plan, n) is not None}
    counts = {name: check.samples(count, name) for name, count in counts.items()}
    for name, (rule, fits) in NUMBERS.items():
        given = getattr(plan, name)
        if given is None and name in ("clip", "near"):
            continue
        if not isinstance(given, Real):
            raise InputError(f"`{name}` must be a number, got {given!r}.")
        if not fits(float(given)):
            raise InputError(f"`{name}` must be {rule}, got {given}.")
    _check_together(kind, plan, bool(kind.recipes[recipe].get("penalty")))
    for name in ("beta", "plain"):
        if name in changes and name not in kind.recipes["modern"]:
            raise InputError(f"`{name}` is for the models anp and softc; got {kind.name}.")
    return dataclasses.replace(plan, **counts)


def _check_together(kind: Kind, plan: Recipe, penalised: bool) -> None:
    """What entries ask of each other, and of the model."""
    if (plan.penalty > 0) != penalised:
        raise InputError(
            f"`penalty` must be positive for softc and 0 otherwise, got {plan.penalty} for "
            f"{kind.name}."
        )
    if plan.near and plan.functions is not None:
        raise InputError("`near` is for fresh functions; a fixed set has its targets already.")
    if plan.points < 2:
        raise InputError(f"`points` must be at least 2, the ends of the domain; got {plan.points}.")
    if plan.loss is not None and not kind.on_grids:
        raise InputError(f"`loss` is for models on grids, such as fno; got {kind.name}.")
    if plan.through is not None and not kind.through:
        raise InputError(
            f"`through` is for the models anp and fno, got {kind.name}: it replaces the whole "
            "loss, and with it what a softc or an emulator learns from."
        )
    if plan.functions is not None and plan.functions < plan.batch:
        raise InputError(
            f"`batch` must be at most the {plan.functions} `functions` to learn from, got "
            f"{plan.batch}."
        )


def _check_data(kind: Kind, plan: Recipe, source: Source) -> None:
    """What a model needs of data that are not an equation."""
    if source.grids is None:
        return
    equation = "Give an equation, or use the model fno."
    if kind.equation:
        raise InputError(
            f"A {kind.name} needs an equation, whose residual is in its loss. {equation}"
        )
    if plan.through is not None and not kind.on_grids:
        raise InputError(f"`through` of an {kind.name} needs an equation. {equation}")
    if source.stream is None and plan.batch > len(source.grids):
        raise InputError(
            f"`batch` must be at most the {len(source.grids)} functions to learn from, got "
            f"{plan.batch}."
        )
    for part in source.require_grids():
        part.check_digits()
    if plan.through is None:
        return
    if any(g.totals is None and g.law is None for g in source.require_grids()):
        raise InputError("`through` needs the `totals` of the data, or its `law`.")
    laws = () if source.grids.law is None else source.grids.laws
    if laws and plan.noise:
        raise InputError(
            f"`noise` is for totals without `law`: give the law its own; got {plan.noise}."
        )
    limits = [law.label for law in laws if isinstance(law, Inequality)]
    if limits and plan.through == "ll":
        raise InputError(
            f"`through` must be 'crps' with `{limits[0]}`, got 'll': inequalities leave draws, "
            "which have no density."
        )


def _sizes(kind: Kind, sizes: dict[str, Any] | None) -> dict[str, Any]:
    for name in sizes or {}:
        check.choice("sizes", name, kind.sizes)
    return {name: _size(name, size) for name, size in (sizes or {}).items()}


def _size(name: str, size: Any) -> Any:
    """As a card has it: a number, or a list of these."""
    size = size.tolist() if hasattr(size, "tolist") else size  # of NumPy
    if isinstance(size, bool | float) or name == "padding":  # which may be 0
        return size
    return list(size) if isinstance(size, tuple | list) else check.samples(size, name)


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
