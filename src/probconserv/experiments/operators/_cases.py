"""Four equations, the parameters that networks see and do not see, and the ensembles."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from ...data import Grids
from ...data._functions import uniform
from ...models import FNO, open_weights, save
from ...problems import Advection, ClosedForm, Diffusion, PorousMedium, Stefan
from ...support import checks as check
from ...support.errors import InputError
from ...training import train

Range: TypeAlias = tuple[float, float]
Where: TypeAlias = Literal["in", "beside", "near", "other side", "far"]
TIMES, PLACES, FUNCTIONS = 20, 100, 320  # of the grid, and to train on
HELD_OUT = 100  # functions to choose by, of a range
ADDRESS = 11  # of the random parameters
HERE = Path(__file__).parent / "weights"
MEMBERS = 6
SIZES = {"modes": [0, 12], "width": 20}  # frequencies of x; time is a coordinate
STEPS, TIMES_AT_ONCE = 12_800, 5
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


def load_ensemble(name: str, seed: int = 0, folder: str | Path | None = None) -> FNO:
    """Six trained networks of one case, side by side.

    Parameters
    ----------
    name : {"heat", "pme", "advection", "stefan"}
        The case.
    seed : int
        Which ensemble; of 0 the weights are shipped.
    folder : str or Path
        Where `train_ensembles` put others.

    Returns
    -------
    FNO
        In eval mode.

    Raises
    ------
    InputError
        If there is no such file.
    """
    check.choice("name", name, CASES)
    path = (HERE if folder is None else Path(folder)) / f"{name}-{check.whole('seed', seed)}"
    path = path.with_name(path.name + ".safetensors")
    if not path.exists():
        raise InputError(
            f"`seed` {seed}: there is no {path.name} in {path.parent}. Only the ensembles of seed "
            "0 are shipped; `train_ensembles` makes others."
        )
    network = open_weights(path)
    assert isinstance(network, FNO)
    return network


def train_ensembles(
    name: str, out: str | Path, seeds: int = 3, device: str = "auto", steps: int = STEPS
) -> list[Path]:
    """Ensembles of six networks, all trained at once, each from its own first weights.

    Parameters
    ----------
    name : {"heat", "pme", "advection", "stefan"}
        The case.
    out : str or Path
        The folder for NAME-SEED.safetensors.
    seeds : int
        How many ensembles.
    device : str
        Where; on a GPU it takes two minutes, on a CPU hours.
    steps : int
        How many.

    Returns
    -------
    list of Path
        The files.
    """
    check.choice("name", name, CASES)
    case, out, work = CASES[name], Path(out), Path(out) / f"{name}-training"
    data, held_out = (
        case.functions("in", split, n)[1]
        for split, n in (("train", FUNCTIONS), ("validation", HELD_OUT))
    )
    together = train(
        data,
        work,
        model="fno",
        device=device,
        sizes={**SIZES, "members": MEMBERS * check.samples(seeds, "seeds")},
        held_out=held_out,
        steps=steps,
        times=TIMES_AT_ONCE,
    ).cpu()
    paths = []
    for seed in range(seeds):
        with torch.random.fork_rng(devices=[]):  # the caller's random numbers are not ours to use
            network = FNO(**{**together.sizes, "members": MEMBERS}, min_std=together.min_std)
        network.load_state_dict(
            {
                key: t if key.endswith(("_middle", "_spread")) else t.chunk(seeds)[seed].clone()
                for key, t in together.state_dict().items()
            }
        )
        network.card = {**together.card, "sizes": network.sizes, "seed": seed}
        paths.append(out / f"{name}-{seed}.safetensors")
        save(network, paths[-1], half=True)
    shutil.rmtree(work)
    return paths
