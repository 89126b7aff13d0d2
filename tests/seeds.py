"""Random numbers that no other test and no order of tests changes; SEED gives all of them anew."""

import os
import random  # noqa: TID251
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

SEED = int(os.environ.get("SEED", "0"))  # `make test-seeds` sets it


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed + 1000 * SEED)


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Torch's own generator starts at the seed, and is afterwards where it was before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + 1000 * SEED)
        yield


def made(build: Callable[..., Any], *args: Any, seed: int = 0, **named: Any) -> Any:
    """What is built, such as a network: its first weights can be drawn in no other way."""
    with seeded(seed):
        return build(*args, **named)


def start_all() -> None:
    """Sets every generator that a test could draw from without being given one."""
    random.seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002
    torch.manual_seed(SEED)


def states() -> dict[str, object]:
    """Of torch and NumPy, to be compared; imports of other libraries draw from `random`."""
    _, numbers, at, *gauss = np.random.get_state()  # noqa: NPY002
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": (numbers.tobytes(), at, *gauss),
    }
