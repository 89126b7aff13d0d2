"""Student's t: how far a value may lie from what a few members say.

A variance that was estimated from N members is itself uncertain, as is their mean. A value that is
drawn as they are lies about their mean as t with N - 1 degrees of freedom, times their standard
deviation, times sqrt(1 + 1/N).
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .blocks import root_of

LEAST, MOST = 0.2, 1e8  # degrees of freedom: fewer are taken as 0.2, more as 1e8
NODES = 1 << 16  # of the table, even in their logarithm: a line between them is right to 1e-7


class Predictive(NamedTuple):
    """What the next value at each point may be: its variance, and how well that is known."""

    variance: Tensor
    degrees: Tensor  # of freedom; infinite where the variance is known

    def quantiles(self, mean: Tensor, shares: Sequence[float]) -> list[Tensor]:
        """The values that each point stays below with these probabilities, in the dtype of mean."""
        std = root_of(self.variance)
        return [(mean.double() + std * quantile(p, self.degrees)).to(mean.dtype) for p in shares]


def predictive(known: Tensor, *estimated: tuple[Tensor, Tensor | float]) -> Predictive:
    """Variances added up. estimated: each with its degrees of freedom, all from the same members.

    Their errors go together, so the relative errors sqrt(2 / degrees) add up by their shares.
    """
    total, error = known, torch.zeros_like(known)
    for variance, degrees in estimated:
        total = total + variance
        error = error + variance / torch.as_tensor(degrees).to(variance).sqrt()
    degrees = (total / torch.where(error > 0, error, 1.0)).square()
    return Predictive(total, torch.where(error > 0, degrees, torch.inf))


def quantile(p: float, degrees: Tensor) -> Tensor:
    """The value that t with so many degrees of freedom stays below with probability `p`."""
    if p == 0.5:
        return torch.zeros_like(degrees)
    table = (_traced_table if torch.compiler.is_compiling() else _table)(min(p, 1 - p)).to(degrees)
    place = (degrees.clamp(LEAST, MOST).log() - math.log(LEAST)) / _STEP
    below = place.long().clamp_max(NODES - 2)
    log = torch.lerp(table[below], table[below + 1], place - below)
    return math.copysign(1.0, p - 0.5) * log.exp()


_STEP = math.log(MOST / LEAST) / (NODES - 1)


@functools.lru_cache(maxsize=64)
def _table(tail: float) -> Tensor:
    """The logarithm of the value that t exceeds with probability `tail`, for all nodes."""
    from scipy.special import stdtrit  # a tenth of a second, so not for everybody

    degrees = LEAST * np.exp(_STEP * np.arange(NODES))
    return torch.tensor(np.log(-stdtrit(degrees, tail)))


# Compiled code cannot follow SciPy: it calls an operator as it is.
@torch.library.custom_op("probconserv::student_table", mutates_args=())
def _traced_table(tail: float) -> Tensor:
    """As `_table`."""
    return _table(tail).clone()


@_traced_table.register_fake
def _(tail: float) -> Tensor:
    return torch.empty(NODES, dtype=torch.float64)
