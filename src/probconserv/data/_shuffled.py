"""Batches of anything that has a length and can be indexed."""

from dataclasses import dataclass
from numbers import Integral
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from ..support.errors import InputError
from ..support.random_address import uniform

SHUFFLE = 5  # the seed of orders, beside those of `_functions`


class Indexed(Protocol):
    """What can be shuffled: of a length, and indexed by a tensor of whole numbers."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: Any) -> Any: ...


Data = TypeVar("Data", bound=Indexed)


@dataclass(frozen=True, eq=False)
class Shuffled(Generic[Data]):
    """Batches of a fixed set, in a new order every epoch: `shuffled(step)` is `n` of its functions.

    The order is a function of (seed, epoch); what does not fill a batch waits for the next epoch.

    Parameters
    ----------
    functions : Functions, Grids, Tensor or anything with a length and an index
        The fixed set.
    n : int
        How many make a batch.
    seed : int
        Another number gives other orders.

    Raises
    ------
    InputError
        If `n` is more than there are functions.

    Examples
    --------
    >>> Shuffled(torch.arange(6), n=3)(step=1)
    tensor([5, 4, 0])
    """

    functions: Data
    n: int = 250
    seed: int = 0

    def __post_init__(self) -> None:
        if not (isinstance(self.n, Integral) and 0 < self.n <= len(self.functions)):
            raise InputError(
                f"`n` must be a whole number from 1 to the {len(self.functions)} functions there "
                f"are, got {self.n}."
            )

    def __call__(self, step: int | Tensor) -> Data:
        device = getattr(self.functions, "device", "cpu")
        batches = len(self.functions) // self.n
        epoch, batch = step // batches, step % batches
        order = uniform((SHUFFLE, self.seed, epoch), (len(self.functions),), device).argsort()
        within = batch * self.n + torch.arange(self.n, device=device)
        chosen: Data = self.functions[order[within]]
        return chosen
