"""Points and rows as matrices, as the sweeps take them, and what comes out."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Listed(NamedTuple):
    """Rows that are regions."""

    labels: Tensor  # (n,), the region of each point
    order: Tensor  # (n,), the points, one region after the other
    starts: Tensor  # (regions + 1,), where in the order each begins


@dataclass(frozen=True, eq=False)
class Points:
    """Places, each with a row of n points, or with a row for each region of them."""

    u: Tensor  # (places, n), the mean; contiguous, as the next two
    d: Tensor  # (places or fewer, which repeat; n), the variance
    g: Tensor  # (places or fewer, which repeat; n), the weights, in float64 as what follows
    listed: Listed | None
    value: Tensor  # (places * regions,) or (1,)
    noise: Tensor  # sigma^2; infinite where the law says nothing

    @property
    def regions(self) -> int:
        return 1 if self.listed is None else self.listed.starts.shape[0] - 1

    @property
    def rows(self) -> int:
        return self.u.shape[0] * self.regions

    @property
    def dtype(self) -> torch.dtype:
        """Of what comes out: half precision becomes float32."""
        return self.u.dtype if self.u.dtype.itemsize >= 4 else torch.float32


class Moved(NamedTuple):
    """What comes out; what is looked at: see `kernels/rows.py`."""

    mean: Tensor  # (places, n)
    variance: Tensor
    found: Tensor  # (5, rows), in float64: lambda, 1 / S, and three to be looked at


@dataclass(frozen=True, eq=False)
class Members:
    """An ensemble, each part of which has a row."""

    m: Tensor  # (count, parts * n), contiguous
    n: int  # points of a part
    g: Tensor  # (parts or fewer, which repeat; n), the weights, in float64
    value: Tensor  # (parts,) or (1,), in float64
    noise: Tensor  # sigma^2
    shrinkage: float | None
    least: tuple[float, float]  # what `shrinkage.mix` takes of so many members
    rounding: float  # of the mean, as a share: a spread that is less is none

    @property
    def count(self) -> int:
        return self.m.shape[0]

    @property
    def parts(self) -> int:
        return self.m.shape[1] // self.n
