"""What every network that can be trained and opened again has in common: its card and file."""

import json
import sys
from pathlib import Path
from typing import Any, ClassVar, Self

import safetensors
from safetensors.torch import save_file
from torch import Tensor, nn

from ..support.complete_files import complete
from ..support.errors import InputError
from ..support.values import between


def write(path: Path, tensors: dict[str, Tensor], notes: dict[str, Any]) -> None:
    on_cpu = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    with complete(path) as part:
        try:
            save_file(on_cpu, part, metadata={"notes": json.dumps(notes)})
        except safetensors.SafetensorError as error:
            raise OSError(f"{path} could not be written: {error}") from None


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safetensors.safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            notes = json.loads((file.metadata() or {}).get("notes", "{}"))
    except (safetensors.SafetensorError, json.JSONDecodeError, OSError) as error:
        raise InputError(f"{path} is not a file that this library wrote: {error}") from None
    if not isinstance(notes, dict):
        raise InputError(f"{path} is not a file that this library wrote: its notes are no table.")
    return tensors, notes


CLASSES: "dict[str, type[Trained]]" = {}  # by the name of a model on a card


class Trained(nn.Module):
    """A network that its card says how to build.

    A subclass names its `models`: what cards call the networks of this class.
    """

    models: ClassVar[tuple[str, ...]] = ()

    def __init__(self, sizes: dict[str, Any], min_std: float) -> None:
        super().__init__()
        self.card: dict[str, Any] = {}  # how it was trained, where known
        self.sizes, self.min_std = sizes, between("min_std", min_std, 0, sys.float_info.max)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        CLASSES.update(dict.fromkeys(cls.models, cls))

    @classmethod
    def from_card(cls, card: dict[str, Any]) -> Self:
        """The network of a card, with weights of no use yet."""
        network: Self = cls(**card["sizes"], min_std=card["min_std"])
        return network
