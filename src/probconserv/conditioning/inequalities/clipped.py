"""Independent points within bounds, given one law whose rows share no point.

The u that minimises sum (u - y)^2 / d + (g u - t)^2 / s within bounds is, for each row,

    u_i = clip(y_i - d_i g_i mu, low_i, high_i)   with   sum g_i u_i = t + s mu

With y a draw of the prior and t = b less a draw of the noise this is the draw that is asked for; a
noise s of 0 needs no special case. `root_of_falling` finds mu.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Self

import torch
from torch import Tensor

from ...support.rowwise import root_of_falling, sums_by_label
from ...support.tolerances import HOLDS, ROUNDED

POLISH = 2  # times that rounding is taken off
AGAIN = 8  # tries at rows whose rounding shows; each takes off most of what the last one left


@dataclass
class Clipped:
    """Values clip(y - d g mu, low, high) of k parts and n draws, and sums over rows of them.

    `root_of_falling` finds the mu, (k, n, R), for which the sums are right.
    """

    y: Tensor  # (k, n, E)
    variance: Tensor  # d, (k, 1, E)
    weights: Tensor  # g, (k, 1, E)
    low: Tensor  # broadcasts to y
    high: Tensor
    target: Tensor  # t, (k, n, R)
    noise: Tensor  # s, (k, 1, R)
    labels: Tensor | None = field(default=None, kw_only=True)  # the row of each point, (E,)

    def __post_init__(self) -> None:
        self.fall = self.move = self.variance * self.weights  # d g; fall: where nothing is clipped
        self._v, self._u = torch.empty_like(self.y), torch.empty_like(self.y)
        self._reach: Tensor | None = None

    def total(self, x: Tensor, weights: Tensor) -> Tensor:  # (k, n, E) to (k, n, R)
        if self.labels is None:
            return torch.bmm(x, weights.mT)
        found: Tensor = sums_by_label(x * weights, self.labels, self.target.shape[-1])
        return found

    def spread(self, mu: Tensor) -> Tensor:
        return mu if self.labels is None else mu.index_select(-1, self.labels)

    def moved(self, mu: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.addcmul(self.y, self.move, self.spread(mu), value=-1, out=out)

    def values(self, mu: Tensor) -> Tensor:
        return torch.clamp(self.moved(mu, self._v), self.low, self.high, out=self._u)

    def held(self, u: Tensor) -> Tensor:
        """Exactly within the limits."""
        return torch.clamp(u, self.low, self.high)

    def start(self) -> Tensor:
        """A first guess of mu: there are no bounds."""
        slope = self.total(self.move, self.weights) + self.noise
        off = self.total(self.y, self.weights) - self.target
        return torch.where(slope > 0, off / slope, 0.0)

    def at(self, mu: Tensor) -> tuple[Tensor, Tensor]:
        """How far sums are off, and how fast they fall in mu."""
        off = self._off(self.values(mu), mu)
        return off, self.total(self._falls(), self.weights) + self.noise

    def _falls(self) -> Tensor:
        """How fast the last values fall in mu."""
        return torch.eq(self._u, self._v, out=self._v).mul_(self.fall)

    def _off(self, u: Tensor, mu: Tensor) -> Tensor:
        return self.total(u, self.weights) - self.noise * mu - self.target

    def scale(self) -> Tensor:
        """The size of the terms of a sum."""
        return self.target.abs() + self.total(self._u.abs(), self.weights.abs())

    def farther(self, mu: Tensor, off: Tensor, number: int) -> Tensor:
        """Farther at each step: where all points are at bounds nothing says how far."""
        if self._reach is None:
            slope = self.total(self.move, self.weights) + self.noise
            size = self.target.abs() + self.total(self.y.abs(), self.weights.abs())
            self._reach = torch.where(slope > 0, size / slope, 0.0)
        return mu + off.sign() * 4.0**number * self._reach

    def taken(self, index: Tensor) -> Self:
        """Some of the k n systems of rows, as (len(index), 1)."""
        k, n, _ = self.y.shape
        every = {each.name: getattr(self, each.name) for each in fields(self)}
        wide = {name: t for name, t in every.items() if isinstance(t, Tensor) and t.ndim == 3}
        some = {name: t.expand(k, n, -1)[index // n, index % n] for name, t in wide.items()}
        return replace(self, **{name: t[:, None] for name, t in some.items()})

    def nearer(self, mu: Tensor) -> "Clipped":
        """The same problem with mu measured from here, where less is rounded."""
        y, target = self.y - self.move * self.spread(mu), self.target + self.noise * mu
        return replace(self, y=y, target=target)

    def solved(self, mu: Tensor, tries: int = AGAIN) -> tuple[Tensor, Tensor]:
        """The values with the right sums, and by how much of its terms a row misses; mu: a guess.

        Rows whose rounding shows are solved again.
        """
        mu = root_of_falling(self, mu)
        u, miss = self._finished(mu)
        at = (~(miss <= HOLDS).all(-1)).flatten().nonzero()[:, 0]
        if len(at) and tries:
            some = self.nearer(mu).taken(at)
            better = some.solved(torch.zeros_like(some.target), tries - 1)
            u, miss = (
                old.flatten(0, 1).index_copy(0, at, new[:, 0]).reshape(old.shape)
                for old, new in zip((u, miss), better, strict=True)
            )
        return u, miss

    def _finished(self, mu: Tensor) -> tuple[Tensor, Tensor]:
        """As `solved`, with rounding taken off by the points that are free."""
        u, fall = self.values(mu), self._falls()
        slope = self.total(fall, self.weights) + self.noise
        for _ in range(POLISH):
            step = torch.where(slope > 0, self._off(u, mu) / slope, 0.0)
            u, mu = self.held(u - fall * self.spread(step)), mu + step
        self._u, off = u, self._off(u, mu)
        size = self.scale() + ROUNDED**2 * slope * mu.abs()
        return u, torch.where(off == 0, 0.0, off.abs() / size)
