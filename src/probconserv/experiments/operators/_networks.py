"""The ensembles of the benchmark: those that are shipped, and how they are trained."""

import shutil
from pathlib import Path

import torch

from ...models import FNO, open_weights, save
from ...support import checks as check
from ...support.errors import InputError
from ...training import train
from ._cases import CASES, FUNCTIONS, HELD_OUT

HERE = Path(__file__).parent / "weights"
MEMBERS = 6
SIZES = {"modes": [0, 12], "width": 20}  # frequencies of x; time is a coordinate
STEPS, TIMES_AT_ONCE = 12_800, 5


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
