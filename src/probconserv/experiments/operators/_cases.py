"""The four equations of the benchmark, and the parameters that networks see and do not see."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from ...data import Grids
from ...problems import Advection, ClosedForm, Diffusion, PorousMedium, Stefan
from ...support import checks as check
from ...support.random_address import uniform

Range: TypeAlias = tuple[float, float]
Where: TypeAlias = Literal["in", "beside", "near", "other side", "far"]
TIMES, PLACES, FUNCTIONS = 20, 100, 320  # of the grid, and to train on
HELD_OUT = 100  # functions to choose by, of a range
ADDRESS = 11  # of the random parameters
SPLITS = {"train": 0, "validation": 1, "test": 2}


@dataclass(frozen=True)
class Case:
    """One equation: what networks are trained on, and how far away they are tested.

    Parameters
    ----------
    problem : class of ClosedForm
        The equation.
    title : str
        What tables call it.
    ranges : dict of pairs
        The ranges of its parameter: "in", trained on; "beside", to choose by; "near", "other side"
        and "far", tested on.
    falls : bool
        Whether solutions fall in x from the value at the left end to 0.
    logarithm : bool
        Whether networks read the logarithm of the parameter in its place.
    """

    problem: type[ClosedForm]
    title: str
    ranges: dict[Where, Range]
    falls: bool
    logarithm: bool = False

    @property
    def grid(self) -> tuple[Tensor, Tensor]:
        """Times from 0 to 1 and places over the domain, both ends included."""
        left, right = self.problem.domain
        times = torch.linspace(0, 1, TIMES, dtype=torch.float64)
        return times, torch.linspace(left, right, PLACES, dtype=torch.float64)

    def functions(self, where: Where, split: str, n: int) -> tuple[ClosedForm, Grids]:
        """Solutions with parameters drawn evenly from a range, and the data of these.

        Parameters
        ----------
        where : str
            The name of a range.
        split : {"train", "validation", "test"}
            Splits share no random number.
        n : int
            How many.

        Returns
        -------
        tuple of ClosedForm and Grids
            With the totals of the solutions, also after a front has left the domain.
        """
        check.choice("where", where, self.ranges)
        check.choice("split", split, SPLITS)
        low, high = self.ranges[where]
        address = ADDRESS, SPLITS[split], list(self.ranges).index(where)
        parameter = low + (high - low) * uniform(address, (check.samples(n),), "cpu")
        problem = self.problem(**{self.problem.parameter: parameter})
        t, x = self.grid
        inputs = parameter.log() if self.logarithm else parameter
        u, totals = problem.on_grid(t, x), problem[:, None].total(t)
        return problem, Grids(inputs[:, None], u, {"t": t, "x": x}, totals, self.problem.name)


CASES = {
    "heat": Case(
        Diffusion,
        "Heat",
        {"in": (1, 5), "beside": (0.5, 1), "near": (5, 6), "other side": (6, 7), "far": (7, 8)},
        falls=False,
    ),
    "pme": Case(
        PorousMedium,
        "Porous medium",
        {"in": (2, 3), "beside": (4, 5), "near": (3, 4), "other side": (1, 2), "far": (5, 6)},
        falls=True,
        logarithm=True,
    ),
    "advection": Case(
        Advection,
        "Advection",
        {
            "in": (1, 2),
            "beside": (2, 2.5),
            "near": (2.5, 3),
            "other side": (0.5, 1),
            "far": (3, 3.5),
        },
        falls=True,
    ),
    "stefan": Case(
        Stefan,
        "Stefan",
        {
            "in": (0.6, 0.65),
            "beside": (0.65, 0.7),
            "near": (0.55, 0.6),
            "other side": (0.7, 0.75),
            "far": (0.5, 0.55),
        },
        falls=True,
    ),
}
