"""How networks are trained: every default is here."""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypedDict

import torch
from torch import Tensor

from ..data import Layout
from ..models._load import RecipeName

Schedule: TypeAlias = Literal["constant", "one cycle"]
Keep: TypeAlias = Literal["last", "best"]
Score: TypeAlias = Literal["ll", "crps"]


@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    Parameters
    ----------
    learning_rate : float
        The largest one.
    schedule : {"constant", "one cycle"}
        one cycle: up over a tenth of the steps, down to 0 as a cosine.
    dropout : float
        The share of entries that are dropped.
    functions : int
        The size of a fixed set, or None: fresh functions at every step.
    clip : float
        The largest norm of the gradient, or None.
    steps : int
        How many.
    batch : int
        Functions in a step.
    context, target : int or tuple of two int
        How many points of each function, as in `probconserv.data.draw`.
    penalty : float
        lambda, the weight of the squared residual of the equation.
    validation : int
        Functions held out, whose LL is reported.
    near : float
        The share of scattered targets that are drawn near the front.
    keep : {"last", "best"}
        Which weights: the last, or those that did best on the functions held out.
    through : {"ll", "crps"}
        If given, the loss is this score of the field after Step 2.
    rows : int
        With `through`, random times of a function.
    points : int
        Places in a row, evenly over the domain with both ends: with `through`, and of the grid of
        an equation that an fno learns.
    samples : int
        With `through`, draws of z; on a grid, draws within inequalities.
    loss : {"ll", "crps"}
        For networks on a grid: minus the log density of the truth, or the CRPS, in units of its
        spread; before Step 2. With `through` it is not used.
    times : int
        For networks on a grid: how many random entries of the first axis without frequencies are
        taken of each function at each step; None is all, and so it is `through` a `law`.
    apart : float
        The weight of the likeness of an fno's heads in the loss.
    noise : float
        With `through` on a grid, the standard deviation of the total, for the error of the
        rule by which it adds up.
    beta : float
        Of anp and softc: the log density at a target is weighed by its variance to this power, as
        it is then. 0 is the likelihood, in which flat parts of a std near 0 outweigh a front.
    plain : float
        The share of the steps, at the end, with a `beta` of 0: it falls in a line from the middle
        on. If 0, `beta` stays.
    """

    learning_rate: float
    schedule: Schedule
    dropout: float
    functions: int | None
    clip: float | None
    steps: int = 20_000
    batch: int = 250
    context: Layout = (10, 10)
    target: Layout = (10, 10)
    penalty: float = 0.0
    validation: int = 200
    near: float | None = None
    keep: Keep = "last"
    through: Score | None = None
    rows: int = 3
    points: int = 101
    samples: int = 8
    loss: Score | None = None
    times: int | None = None
    apart: float = 0.0
    noise: float = 0.0
    beta: float = 0.0
    plain: float = 0.0

    def rate(self, step: Tensor) -> Tensor:
        """The learning rate of a step, as a tensor on its device.

        Parameters
        ----------
        step : Tensor
            The number of the step.

        Returns
        -------
        Tensor
            By `learning_rate` and `schedule`.

        Examples
        --------
        >>> RECIPES["modern"].rate(torch.tensor([0.0, 2_000.0, 20_000.0]))
        tensor([0.0000, 0.0010, 0.0000])
        """
        done = step / self.steps
        if self.schedule == "constant":
            return torch.full_like(done, self.learning_rate)
        down = (1 + (math.pi * ((done - 0.1) / 0.9).clamp(min=0)).cos()) / 2
        return self.learning_rate * (done / 0.1).clamp(max=1) * down

    def power(self, step: Tensor) -> Tensor:
        """`beta` at a step, as a tensor on its device.

        Parameters
        ----------
        step : Tensor
            The number of the step.

        Returns
        -------
        Tensor
            By `beta` and `plain`.

        Examples
        --------
        >>> recipe = Recipe(1e-3, "one cycle", 0.0, None, None, steps=100, beta=0.5, plain=0.25)
        >>> recipe.power(torch.tensor([0.0, 50.0, 60.0, 75.0, 99.0]))
        tensor([0.5000, 0.5000, 0.3000, 0.0000, 0.0000])
        """
        left = 1 - step / self.steps
        fallen = ((left - self.plain) / (0.5 - self.plain)).clamp(0, 1)
        return self.beta * (fallen if self.plain else torch.ones_like(left))


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
    through: Score | None
    rows: int
    points: int
    samples: int
    loss: Score | None
    times: int | None
    apart: float
    noise: float
    beta: float
    plain: float


RECIPES: dict[RecipeName, Recipe] = {
    "paper": Recipe(
        learning_rate=1e-4, schedule="constant", dropout=0.1, functions=10_000, clip=None
    ),
    "modern": Recipe(
        learning_rate=1e-3, schedule="one cycle", dropout=0.0, functions=None, clip=1e3, target=100
    ),
}
