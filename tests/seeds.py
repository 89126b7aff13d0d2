"""Random numbers that no other test, no seed and no order of tests changes."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Torch's own generator starts at the seed, and is afterwards where it was before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def made(build: Callable[..., Any], *args: Any, seed: int = 0, **named: Any) -> Any:
    """What is built, such as a network: its first weights can be drawn in no other way."""
    with seeded(seed):
        return build(*args, **named)


def start_all(seed: int) -> None:
    """Sets every generator that a test could draw from without being given one."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


def states() -> dict[str, object]:
    """Of the same generators, to be compared."""
    _, numbers, at, *gauss = np.random.get_state()  # noqa: NPY002
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": (numbers.tobytes(), at, *gauss),
        "random": random.getstate(),
    }
