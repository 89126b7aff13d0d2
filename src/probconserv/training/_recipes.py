"""How networks are trained: every default is here."""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypedDict

import torch
from torch import Tensor

from ..data import Layout
from ..models._load import Model, RecipeName

Schedule: TypeAlias = Literal["constant", "one cycle"]
Keep: TypeAlias = Literal["last", "best"]
Through: TypeAlias = Literal["ll", "crps"]


@dataclass(frozen=True)
class Recipe:
    """How a network is trained."""

    learning_rate: float
    schedule: Schedule  # one cycle: up over a tenth of the steps, down to 0 as a cosine
    dropout: float
    functions: int | None  # a fixed set of so many, or None: fresh ones at every step
    clip: float | None  # the largest norm of the gradient, or None
    steps: int = 20_000
    batch: int = 250
    context: Layout = (10, 10)
    target: Layout = (10, 10)
    penalty: float = 0.0  # lambda, of the squared residual of the equation
    validation: int = 200  # functions held out, whose LL is reported
    near: float | None = None  # the share of scattered targets that are drawn near the front
    keep: Keep = "last"  # of the weights, or best: those that did best on the functions held out
    through: Through | None = None  # the loss is that of the field after Step 2
    rows: int = 3  # random times of a function, then
    points: int = 101  # places in a row, evenly over the domain with both ends
    samples: int = 8  # of z

    def rate(self, step: Tensor) -> Tensor:
        """The learning rate of a step, as a tensor on its device."""
        done = step / self.steps
        if self.schedule == "constant":
            return torch.full_like(done, self.learning_rate)
        down = (1 + (math.pi * ((done - 0.1) / 0.9).clamp(min=0)).cos()) / 2
        return self.learning_rate * (done / 0.1).clamp(max=1) * down


class Changes(TypedDict, total=False):
    """Entries of a recipe that are to be replaced."""

    learning_rate: float
    schedule: Schedule
    dropout: float
    functions: int | None
    clip: float | None
    steps: int
    batch: int
    context: Layout
    target: Layout
    penalty: float
    validation: int
    near: float | None
    keep: Keep
    through: Through | None
    rows: int
    points: int
    samples: int


RECIPES: dict[RecipeName, Recipe] = {
    "paper": Recipe(
        learning_rate=1e-4, schedule="constant", dropout=0.1, functions=10_000, clip=None
    ),
    "modern": Recipe(
        learning_rate=1e-3, schedule="one cycle", dropout=0.0, functions=None, clip=1e3, target=100
    ),
}
EMULATOR: Changes = {"steps": 60_000, "batch": 100, "near": 0.5}  # what it replaces in modern
PENALTIES: dict[Model, float] = {"anp": 0.0, "softc": 1.0, "emulator": 0.0}
