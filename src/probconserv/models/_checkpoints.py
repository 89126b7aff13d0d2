"""Tensors and notes in one safetensors file, written whole or not at all."""

import json
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import save_file
from torch import Tensor

from ..support.complete_files import complete
from ..support.errors import InputError


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
