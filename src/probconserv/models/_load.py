"""Trained networks that come with the library."""

from pathlib import Path
from typing import Any, Literal, TypeAlias, overload

import torch

from ..problems import PROBLEMS, ClosedForm
from ..support import checks as check
from ..support.complete_files import check_folder
from ..support.errors import InputError
from ._trained import CLASSES, Trained, axes_on, inputs_on, ranges_on, read, write
from .anp import AttentiveNeuralProcess
from .emulator import Emulator
from .fno import FNO

Model: TypeAlias = Literal["anp", "softc", "emulator"]
RecipeName: TypeAlias = Literal["modern", "paper"]
Network: TypeAlias = AttentiveNeuralProcess | Emulator

TRAINED: dict[Model, tuple[RecipeName, ...]] = {
    "anp": ("modern", "paper"),
    "softc": ("modern", "paper"),
    "emulator": ("modern",),
}
ELSEWHERE = (
    "The package has the models anp and emulator of recipe modern; the other networks are in the "
    "folder weights of a checkout. To use them, run `pip install --editable .` there."
)


@overload
def load(
    problem: str, model: Literal["anp", "softc"] = "anp", recipe: RecipeName = "modern"
) -> AttentiveNeuralProcess: ...
@overload
def load(problem: str, model: Literal["emulator"], recipe: RecipeName = "modern") -> Emulator: ...
def load(problem: str, model: Model = "anp", recipe: RecipeName = "modern") -> Network:
    """A trained network for one of the paper's problems, ready to predict; needs no network access.

    The package has anp and emulator of the recipe modern; the others are in a checkout, and found
    after `pip install --editable .` there.

    Parameters
    ----------
    problem : {"diffusion", "pme", "stefan", "advection", "burgers"}
        What it was trained on.
    model : {"anp", "softc", "emulator"}
        softc was trained with the equation's residual in its loss; emulator was given the
        parameters too.
    recipe : {"modern", "paper"}
        How it was trained. Emulators have only modern.

    Returns
    -------
    AttentiveNeuralProcess or Emulator
        `network.card` says how it was trained.

    Raises
    ------
    InputError
        If there are no such weights here; the message says how to get them.

    Examples
    --------
    >>> load("stefan").card["recipe"]
    'modern'
    """
    return open_weights(find_weights(problem, model, recipe))


def find_weights(problem: str, model: Model, recipe: RecipeName) -> Path:
    """The file of a trained network, or an error that says how to get it."""
    check.choice("problem", problem, [n for n, p in PROBLEMS.items() if issubclass(p, ClosedForm)])
    check.choice("model", model, TRAINED)
    if recipe not in TRAINED[model]:
        rule = f"`recipe` must be {' or '.join(TRAINED[model])} for the model {model}"
        raise InputError(f"{rule}; got {recipe!r}.")
    found, name = shipped(), f"{problem}-{model}-{recipe}"
    if name not in found:
        others = sorted(other for other in found if other.startswith(f"{problem}-"))
        raise InputError(
            f"There are no weights here for `problem` {problem}, `model` {model} and `recipe` "
            f"{recipe}; of this problem there are: {', '.join(others) or 'none'}. {ELSEWHERE} "
            "`probconserv train` makes new ones, which `probconserv.models.open_weights` opens."
        )
    return found[name]


def shipped() -> dict[str, Path]:
    """The weights that are here, by the name PROBLEM-MODEL-RECIPE."""
    return {path.stem: path for folder in _folders() for path in folder.glob("*.safetensors")}


def _folders() -> list[Path]:
    """That of the package and, where the package runs from a checkout, that of the checkout."""
    here, packages = Path(__file__).parent, Path(__file__).parents[2]
    checkout = [packages.parent / "weights"] if packages.name == "src" else []
    return [here / "weights", *checkout]


def open_weights(path: str | Path) -> Any:
    """The network of a file that training wrote, or of its folder.

    Parameters
    ----------
    path : str or Path
        weights.safetensors, or the folder that holds it.

    Returns
    -------
    AttentiveNeuralProcess, Emulator or FNO
        What was trained, in float32 and in eval mode, with its `card`.

    Raises
    ------
    InputError
        If the file is not one of a trained network.
    """
    path = check.path("path", path)
    tensors, card = read(path / "weights.safetensors" if path.is_dir() else path)
    if not {"sizes", "settings", "min_std"} <= set(card):
        raise InputError(f"{path} holds no card of a trained network. Give weights.safetensors.")
    model = card.get("model", "anp")
    check.choice("model", model, CLASSES)
    try:
        with torch.random.fork_rng(devices=[]):  # the caller's random numbers are not ours to use
            network = CLASSES[model].from_card(card)
        ranges_on(card), axes_on(card), inputs_on(card)  # every prediction reads them
    except (InputError, AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{path} has a card from which no network can be built: {error}") from None
    shapes, expected = (
        {name: tuple(t.shape) for name, t in state.items()}
        for state in (tensors, network.state_dict())
    )
    if shapes != expected:
        raise InputError(f"{path} holds tensors that do not fit the network of its card.")
    for name, values in tensors.items():
        check.finite(f"{path}: {name}", values)
    network.load_state_dict({name: t.float() for name, t in tensors.items()})
    network.card = card
    return network.eval()


def save(network: Trained, path: str | Path, half: bool = False) -> None:
    """Writes a network and its card into one file, which `open_weights` opens.

    Parameters
    ----------
    network : AttentiveNeuralProcess, Emulator or FNO
        With the `card` that training left, or none.
    path : str or Path
        The file, NAME.safetensors.
    half : bool
        Whether large weights are rounded to 16 bits, three digits: in an FNO those of its
        frequencies, in other networks all. What scales inputs and targets keeps its digits.

    Raises
    ------
    InputError
        If it is no such network, a weight is too large for 16 bits, or the folder is not there.
    """
    if not isinstance(network, Trained) or not network.models:
        raise InputError(
            "`network` must be an AttentiveNeuralProcess, an Emulator or an FNO; got "
            f"{type(network).__name__}."
        )
    card = {"model": network.models[0], "settings": {}} | network.card
    card |= {"sizes": network.sizes, "min_std": network.min_std}  # what it is built from
    check.choice("model", card["model"], CLASSES)
    tensors = network.state_dict()
    if half:
        few = "spectral." if isinstance(network, FNO) else ""  # the rest sets a level exactly
        kept = [(n, p.detach()) for n, p in network.named_parameters() if n.startswith(few)]
        rounded = {name: p.half() for name, p in kept}
        for name, values in rounded.items():
            check.finite(name, values)
        tensors = tensors | rounded
    place = check.path("path", path)
    check_folder("path", place)
    write(place, tensors, card)
