"""Trained networks that come with the library."""

from pathlib import Path
from typing import Any

import torch

from .. import _checks as check
from .._errors import InputError
from ..problems import PROBLEMS, ClosedForm
from ._checkpoints import read
from ._predictor import Predictor
from .anp import AttentiveNeuralProcess
from .emulator import Emulator

FOLDERS = (Path(__file__).parent / "weights", Path(__file__).parents[3] / "weights")


def load(problem: str, model: str = "anp", recipe: str = "modern") -> Any:
    """A trained network for one of the paper's problems, ready to predict; needs no network.

    problem: diffusion, pme, stefan, advection or burgers. model: anp; softc, which was trained
    with the equation's residual in its loss; or emulator, which was given the parameters too.
    recipe: modern or, but for emulators, paper. All but the modern anp are in the repository, not
    in the package. `network.card` says how it was trained.

    >>> load("stefan").card["recipe"]
    'modern'
    """
    check.choice("problem", problem, [n for n, p in PROBLEMS.items() if issubclass(p, ClosedForm)])
    found, name = shipped(), f"{problem}-{model}-{recipe}"
    if name not in found:
        raise InputError(
            f"There are no weights {name}. There are: {', '.join(sorted(found))}. "
            "`probconserv.training.train` makes others."
        )
    return open_weights(found[name])


def shipped() -> dict[str, Path]:
    """The weights that are here, by the name PROBLEM-MODEL-RECIPE."""
    return {path.stem: path for folder in FOLDERS for path in folder.glob("*.safetensors")}


def open_weights(path: Path) -> Any:
    """The network of a file that training wrote, or of its folder."""
    path = Path(path)
    tensors, card = read(path / "weights.safetensors" if path.is_dir() else path)
    if not {"sizes", "settings", "min_std"} <= set(card):
        raise InputError(f"{path} holds no card of a trained network. Give weights.safetensors.")
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers are not ours to use
        network = _empty(card)
    shapes, expected = (
        {name: tuple(t.shape) for name, t in state.items()}
        for state in (tensors, network.state_dict())
    )
    if shapes != expected:
        raise InputError(f"{path} holds tensors that do not fit the network of its card.")
    network.load_state_dict({name: t.float() for name, t in tensors.items()})
    network.card = card
    return network.eval()


def _empty(card: dict[str, Any]) -> Predictor:
    """The network of a card, with weights of no use yet."""
    if card.get("model") == "emulator":
        return Emulator(**card["sizes"], min_std=card["min_std"])
    dropout = card["settings"]["dropout"]
    return AttentiveNeuralProcess(**card["sizes"], dropout=dropout, min_std=card["min_std"])
