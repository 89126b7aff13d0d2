"""Independent points within bounds, given one law whose rows share no point.

The u that minimises sum (u - y)^2 / d + (g u - t)^2 / s within bounds is, for each row,

    u_i = clip(y_i - d_i g_i mu, low_i, high_i)   with   sum g_i u_i = t + s mu

With y a draw of the prior and t = b less a draw of the noise this is the draw that is asked for; a
noise s of 0 needs no special case. `root_of_falling` finds mu.
"""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ...support.rowwise import sums_by_label
from ...support.tolerances import GRAIN, TINY

BEYOND = 1e-6  # of the range of all bends: so far beyond it a sum is a straight line
ROUNDED = 1e-13  # of its terms: a row that misses by more is looked at again


@dataclass
class Clipped:
    """Values clip(y - d g mu, low, high) of k parts and n draws, and sums over rows of them.

    `root_of_falling` finds the mu, (k, n, R), for which the sums are right.
    """

    polish: ClassVar[int] = 2  # times that rounding is taken off

    y: Tensor  # (k, n, E)
    move: Tensor  # d g, (k, 1, E)
    weights: Tensor  # g, (k, 1, E) or (1, 1, E)
    low: Tensor | None  # broadcasts to y; None for none
    high: Tensor | None
    target: Tensor  # t, (k, n, R)
    noise: Tensor  # s, (k, 1, R)
    labels: Tensor | None = None  # the row of each point, (E,); None for one row

    def __post_init__(self) -> None:
        self.square = self.weights * self.move  # d g^2
        self._v, self._u = torch.empty_like(self.y), torch.empty_like(self.y)
        self._ends: tuple[Tensor, Tensor] | None = None

    @property
    def unbounded(self) -> bool:
        return self.low is None and self.high is None

    def total(self, x: Tensor, weights: Tensor) -> Tensor:  # (k, n, E) to (k, n, R)
        if self.labels is not None:
            found: Tensor = sums_by_label(x * weights, self.labels, self.target.shape[-1])
            return found
        if len(weights) == 1:
            return (x @ weights[0, 0])[..., None]
        return torch.bmm(x, weights.mT)

    def spread(self, mu: Tensor) -> Tensor:
        return mu if self.labels is None else mu.index_select(-1, self.labels)

    def values(self, mu: Tensor) -> Tensor:
        torch.addcmul(self.y, self.move, self.spread(mu), value=-1, out=self._v)
        if self.unbounded:
            return self._u.copy_(self._v)
        return torch.clamp(self._v, self.low, self.high, out=self._u)

    def start(self) -> Tensor:
        """A first guess of mu: there are no bounds."""
        square = self.total(self.square, torch.ones_like(self.square[:1])) + self.noise
        off = self.total(self.y, self.weights) - self.target
        return torch.where(square > 0, off / square, 0.0)

    def at(self, mu: Tensor) -> tuple[Tensor, Tensor]:
        """How far sums are off, and how fast they fall in mu."""
        u = self.values(mu)
        free = torch.eq(u, self._v, out=self._v)  # 1 or 0
        return self._off(u, mu), self.total(free, self.square) + self.noise

    def _off(self, u: Tensor, mu: Tensor) -> Tensor:
        return self.total(u, self.weights) - self.noise * mu - self.target

    def scale(self) -> Tensor:
        return self.size(self._u)

    def size(self, u: Tensor) -> Tensor:
        """The size of the terms of a sum."""
        return self.target.abs() + self.total(u.abs(), self.weights.abs())

    def farther(self, mu: Tensor, off: Tensor, number: int) -> Tensor:
        """Beyond where points meet their bounds."""
        least, most = self._ends = self._ends or self.ends()
        least, most = torch.minimum(mu, least), torch.maximum(mu, most)
        width = (most - least).nan_to_num(0.0, 0.0, 0.0) + GRAIN * mu.abs() + TINY
        up = torch.where(most > mu, most + BEYOND * width, mu + width)
        down = torch.where(least < mu, least - BEYOND * width, mu - width)
        return torch.where(off > 0, up, down)

    def ends(self) -> tuple[Tensor, Tensor]:
        """The least and the largest mu at which some point meets a bound."""
        least = torch.full_like(self.target, torch.inf)
        most, one = -least, torch.zeros_like(self.y[0, 0], dtype=torch.int64)
        at = (one if self.labels is None else self.labels).expand(self.y.shape)
        for end in (self.low, self.high):
            if end is not None:
                meets = (self.y - end) / self.move
                there = meets.isfinite()
                least.scatter_reduce_(-1, at, torch.where(there, meets, torch.inf), "amin")
                most.scatter_reduce_(-1, at, torch.where(there, meets, -torch.inf), "amax")
        return least, most

    def taken(self, index: Tensor) -> Self:
        """Some of the k n systems of rows, as (len(index), 1)."""
        return type(self)(**taken_fields(self, index))

    def finished(self, mu: Tensor) -> tuple[Tensor, Tensor]:
        """The values, rounding taken off their sums; and by how much of its terms a row misses."""
        u = self.values(mu)
        slope, fall = self._falls(u)
        slope = slope + self.noise
        for _ in range(self.polish):
            step = torch.where(slope > 0, self._off(u, mu) / slope, 0.0)
            u = self._held(torch.addcmul(u, fall, self.spread(step), value=-1, out=u))
            mu = mu + step
        return self.measured(u, mu)

    def _falls(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """How fast sums fall in mu, (k, n, R), and how fast points do, (k, n, E)."""
        fall = torch.eq(u, self._v, out=self._v).mul_(self.move)
        return self.total(fall, self.weights), fall

    def _held(self, u: Tensor) -> Tensor:
        """Exactly within the limits; changes `u`."""
        return u if self.unbounded else torch.clamp(u, self.low, self.high, out=u)

    def measured(self, u: Tensor, mu: Tensor) -> tuple[Tensor, Tensor]:
        """`u`, and by how much of its terms each row misses, (k, n, R).

        Of sums near 0 what is left may be rounding of y: there points that close to a bound are at
        it.
        """
        miss = self._miss(u, mu)
        if bool((miss > ROUNDED).any()):
            grain = 4 * GRAIN * (self.y.abs() + (self.move * self.spread(mu)).abs())
            other = u
            for end in (self.low, self.high):
                if end is not None:
                    other = torch.where((other - end).abs() <= grain, end, other)
            less = self._miss(other, mu)
            u = torch.where(self.spread(less < miss), other, u)
            miss = torch.minimum(less, miss)
        return u, miss

    def _miss(self, u: Tensor, mu: Tensor) -> Tensor:
        off = self._off(u, mu)
        return torch.where(off == 0, 0.0, off.abs() / self.size(u))


def taken_fields(problem: Any, index: Tensor) -> dict[str, Any]:
    """The fields of a dataclass of (k, n, ...) tensors, at some of the k n."""
    n = problem.y.shape[1]
    found = dict(vars(problem))
    for name, value in found.items():
        if isinstance(value, Tensor) and value.ndim == 3 and value.shape[:2] != (1, 1):
            wide = value.expand(len(problem.y), n, -1).flatten(0, 1) if value.shape[1] > 1 else None
            found[name] = value[index // n] if wide is None else wide[index][:, None]
    return {field.name: found[field.name] for field in fields(problem)}
