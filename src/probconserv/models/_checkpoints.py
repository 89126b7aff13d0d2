"""Tensors and notes in one safetensors file, written whole or not at all."""

import json
import os
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor

from .._errors import InputError


def write(path: Path, tensors: dict[str, Tensor], notes: dict[str, Any]) -> None:
    """Appears under its name only when it is complete and on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    on_cpu = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    part.touch()
    mode = part.stat().st_mode  # what the user's umask allows; safetensors would keep it private
    save_file(on_cpu, part, metadata={"notes": json.dumps(notes)})
    part.chmod(mode)
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(part, path)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safetensors.safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            notes = json.loads((file.metadata() or {}).get("notes", "{}"))
    except (safetensors.SafetensorError, json.JSONDecodeError, OSError) as error:
        raise InputError(f"{path} is not a file that this library wrote: {error}") from None
    return tensors, notes


def to_half(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: v.to(torch.float16) if v.is_floating_point() else v for k, v in tensors.items()}
