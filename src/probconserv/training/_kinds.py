"""The models that can be trained: one entry each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias

from torch import Tensor, nn

from ..models._load import RecipeName
from ..models.anp import AttentiveNeuralProcess
from ..models.emulator import Emulator
from ..models.fno import FNO
from ..support.errors import InputError
from ._fields import FieldTask
from ._points import ANPTask, EmulatorTask
from ._recipes import Changes, Recipe
from ._source import Source

ModelName: TypeAlias = Literal["anp", "softc", "emulator", "fno"]
MODES = 12  # of an axis of space
OF_FIELDS: Changes = {
    "learning_rate": 2e-3,
    "batch": 20,
    "steps": 12_800,
    "clip": None,
    "loss": "crps",
    "times": 5,
    "apart": 0.01,
}  # of networks that give whole fields


class Task(Protocol):
    """What a training asks for: the loss of a step, and scores of what is held out.

    The last score is of what is trained; the best is the highest, of a CRPS the lowest. `reading`
    is 1 - MSE / MSE from what belongs to other functions: 0 if the network does not read its input.
    """

    def loss(self, step: Tensor) -> Tensor: ...
    def scores(self) -> dict[str, float]: ...
    def reading(self) -> float: ...


@dataclass(frozen=True)
class Kind:
    """A model that can be trained: how it is built, and what trains it.

    Parameters
    ----------
    name : str
        On the card.
    build : callable
        From the source, the recipe and the sizes to a network.
    task : callable
        From the network, the source, the recipe, the seed, this process's share of a batch and the
        device to a task; that of whole fields if not given.
    recipes : dict
        What it replaces in each recipe that it has.
    sizes : tuple of str
        What `sizes` may set.
    on_grids : bool
        Whether it learns from fields on a grid.
    exact : bool
        Whether float32 products keep all their bits on a GPU.
    through : bool
        Whether it can be trained by its score after Step 2.
    equation : bool
        Whether its loss needs an equation.
    """

    name: str
    build: Callable[[Source, Recipe, dict[str, Any]], nn.Module]
    task: Callable[..., Task] = FieldTask
    recipes: Mapping[RecipeName, Changes] = field(default_factory=lambda: {"modern": OF_FIELDS})
    sizes: tuple[str, ...] = ()
    on_grids: bool = True
    exact: bool = True
    through: bool = True
    equation: bool = False


def anp(source: Source, recipe: Recipe, sizes: dict[str, Any]) -> AttentiveNeuralProcess:
    _check_points(source)
    return AttentiveNeuralProcess(dropout=recipe.dropout, **sizes)


def emulator(source: Source, recipe: Recipe, sizes: dict[str, Any]) -> Emulator:
    _check_points(source)
    _refuse_dropout(recipe)
    problem = source.equation
    if problem is not None:
        network = Emulator(**sizes)
        network.set_ranges(problem.time_range, problem.domain, problem.train_range)
        return network
    learned, _ = source.require_grids()
    if learned.inputs.ndim != 2:
        raise InputError("An emulator needs `inputs` that are numbers, (n, c); got functions.")
    network = Emulator(parameters=learned.inputs.shape[1], **sizes)
    values = *learned.axes, *learned.inputs.T
    network.set_ranges(*((float(v.min()), float(v.max())) for v in values))
    return network


def fno(source: Source, recipe: Recipe, sizes: dict[str, Any]) -> FNO:
    _refuse_dropout(recipe)
    learned, _ = source.require_grids()
    chosen: dict[str, Any] = {"width": 16, "members": 6, "modes": default_modes(source)} | sizes
    channels, fields = learned.inputs.shape[1], learned.fields.shape[1]
    network = FNO(channels, fields=fields, **chosen)
    if not network.sizes["variance"] and (recipe.through or recipe.loss == "ll"):
        raise InputError("`variance` must be True for `through` and for the loss ll.")
    network.set_scales(learned.inputs, learned.fields, learned.axes)
    return network


def default_modes(source: Source) -> list[int]:
    """12 of an axis of space, and none of time where there is space too."""
    learned, _ = source.require_grids()
    time = learned.time if len(learned.shape) > 1 else None
    return [0 if i == time else min(MODES, n // 2) for i, n in enumerate(learned.shape)]


def _check_points(source: Source) -> None:
    if source.grids is None:
        return
    if len(source.grids.shape) != 2 or source.grids.fields.shape[1] != 1:
        raise InputError(
            "This model learns one field on two axes, time and space; got "
            f"{source.grids!r}. Use the model fno."
        )
    if source.grids.time == 1:
        raise InputError(
            f"`coordinates` must have time first for this model, got {source.grids!r}."
        )


def _refuse_dropout(recipe: Recipe) -> None:
    if recipe.dropout:
        raise InputError(f"`dropout` must be 0 for this model, got {recipe.dropout}.")


READING: Changes = {"beta": 0.5, "plain": 0.15, "steps": 30_000}
OF_ANP = "hidden", "latent", "heads"
OF_FNO = "modes", "width", "layers", "members", "heads", "variance", "periodic", "padding"
ANP = Kind(
    "anp", anp, ANPTask, {"modern": READING, "paper": {}}, OF_ANP, on_grids=False, exact=False
)
PENALISED: Mapping[RecipeName, Changes] = {
    "modern": {**READING, "penalty": 1.0},
    "paper": {"penalty": 1.0},
}
SOFTC = replace(ANP, name="softc", recipes=PENALISED, through=False, equation=True)
INFERRED = Kind(
    "emulator",
    emulator,
    EmulatorTask,
    recipes={"modern": {"steps": 60_000, "batch": 100, "near": 0.5}},
    sizes=("hidden", "layers", "octaves"),
    on_grids=False,
    through=False,
)
FIELDS = Kind("fno", fno, sizes=OF_FNO)
KINDS: dict[str, Kind] = {kind.name: kind for kind in (ANP, SOFTC, INFERRED, FIELDS)}
