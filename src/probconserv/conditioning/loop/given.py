"""One linear solve of the loop: a Gaussian given numbers, each known to a precision of its own.

The numbers are the points u and the rows J u, side by side: (P, N + K) for P parts. A precision of
0 says nothing, inf says exactly. Points are taken into the variances first, so that only rows are
solved for, however many points are at a bound:

    D' = D / (1 + w D),   F' = L^-1 F / (1 + w D),   L L^T = 1 + F W F^T,   W = w / (1 + w D)

    S = J (F'^T F' + D') J^T + 1 / w

Points that directions move almost alone, and that are known well, are rows as well: there 1 / w
loses no digits.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...support.errors import InputError
from ...support.tolerances import SMALL_SHARE, THIN, TINY
from .factors import factor_of
from .reading import Reading, picked, product

MOST = 1 << 27  # numbers of rows that stand for points
WELL = 1e4  # times the inverse variance: a point without variance of its own is known well


class Prior:
    """The covariance F^T F + D of P parts, and the rows J that are looked at."""

    left: tuple[Tensor, Tensor] | None = None  # numbers known exactly, and variances given these

    def __init__(self, rest: Tensor, directions: Tensor | None, rows: Reading) -> None:
        """rest: D, (P or 1, N). directions: F, (P or 1, R, N). rows: J."""
        self.rest, self.directions, self.rows = rest, directions, rows
        with torch.no_grad():
            self.variance = rest if directions is None else rest + directions.square().sum(1)
            self.row_variance = rows.variance(rest, directions)
            self.thin = is_thin(rest, directions)

    def some(self, index: Tensor) -> "Prior":
        """The parts that `index` picks; what all share stays as it is."""
        return self.with_parts(lambda t: picked(t, index))

    def with_parts(self, pick: Callable[[Tensor], Tensor]) -> "Prior":
        """Other parts; what all share stays as it is."""
        three = self.rest, self.directions, self.rows.values
        shared = all(t is None or len(t) == 1 for t in three)
        return self if shared else self._with(pick)

    def detached(self) -> "Prior":
        """The same without gradients."""
        three = self.rest, self.directions, self.rows.values
        if not any(t is not None and t.requires_grad for t in three):
            return self
        return self._with(Tensor.detach)

    def _with(self, change: Callable[[Tensor], Tensor]) -> "Prior":
        directions = None if self.directions is None else change(self.directions)
        return Prior(change(self.rest), directions, self.rows.changed(change))

    @property
    def variances(self) -> Tensor:  # (P or 1, N + K)
        """Of points and rows."""
        count = max(len(self.variance), len(self.row_variance))
        return torch.cat([v.expand(count, -1) for v in (self.variance, self.row_variance)], -1)

    def times(self, v: Tensor) -> Tensor:
        """Sigma v, (P, N) or (P, K, N)."""
        wide = v[:, None] if v.ndim == 2 else v
        total = wide * self.rest[:, None]
        if self.directions is not None:
            total = total + (wide @ self.directions.mT) @ self.directions
        return total[:, 0] if v.ndim == 2 else total

    def draw(self, n: int, generator: torch.Generator) -> Tensor:  # (n, N)
        """Draws about 0, each of its part or of the one that there is."""
        size, like = self.rest.shape[-1], self.rest
        found = torch.randn(n, size, generator=generator, dtype=like.dtype).to(like) * like.sqrt()
        if self.directions is None:
            return found
        z = torch.randn(n, self.directions.shape[1], generator=generator, dtype=like.dtype)
        return found + product(self.directions.mT, z.to(like))

    def read(self, u: Tensor) -> Tensor:  # (P, N) to (P, N + K)
        """Points and rows."""
        return torch.cat([u, self.rows.apply(u)], -1)

    def pushed(self, force: Tensor) -> Tensor:  # (P, N + K) to (P, N)
        """What forces on points and rows come to at the points."""
        points, rows = force.split([self.rest.shape[-1], self.rows.count], -1)
        return points + self.rows.back(rows)


class Given:
    """The prior given points and rows to precisions w, (P, N + K): one factor for many values."""

    def __init__(self, prior: Prior, w: Tensor) -> None:
        self.prior, self.said = prior, w
        points, rows = w.split([prior.rest.shape[-1], prior.rows.count], -1)
        points = torch.where(prior.variance > TINY, points, 0.0)
        hard = prior.thin & (points * prior.variance > WELL)
        points, rows = torch.where(hard, 0.0, points), self._as_rows(hard, points, rows)
        self._take_points(points)
        self._factor(rows)

    def _as_rows(self, hard: Tensor, points: Tensor, rows: Tensor) -> Tensor:
        """The precisions of rows, with those of hard points, which become rows."""
        count = int(hard.sum(-1).max()) if hard.numel() else 0
        if not self.prior.rows.is_sparse and count * hard.numel() > MOST:
            raise InputError(
                f"`field`: {count} points of it lie beyond bounds and are moved by "
                "directions alone, which is more than can be solved for together. Way out: give "
                "the field variance of its own at each point."
            )
        self.places, self.rows = self.prior.rows.beside(hard)
        if not self.places.shape[-1]:
            return rows
        places = self.places.expand(len(hard), -1)
        own = hard.gather(-1, places)
        wide = max(len(points), len(own))
        known = points.expand(wide, -1).gather(-1, places.expand(wide, -1))
        return torch.cat([rows.expand(wide, -1), torch.where(own, known, 0.0)], -1)

    def _take_points(self, w: Tensor) -> None:
        """What is left of the variances given points."""
        prior, d = self.prior, self.prior.rest
        held = w.isinf()
        keep = 1 / (1 + w * d)  # 0 where it is held
        self.w, inverse = w, 1 / torch.where(held, d, 1.0)
        self.inner = torch.where(held, inverse, w * keep)  # W
        self.gain = torch.where(held, 1.0, self.inner * d)
        self.left, self.seen = d * keep, self.inner > 0
        self.firm = self.gain > 0.5  # where the force is best read off the field
        self.directions: Any = None
        if prior.directions is not None:
            weighed = (prior.directions * self.inner[:, None]) @ prior.directions.mT
            eye = torch.eye(weighed.shape[-1], dtype=w.dtype, device=w.device)
            self.root = torch.linalg.cholesky(weighed + eye)
            kept = prior.directions * keep[:, None]
            self.directions = torch.linalg.solve_triangular(self.root, kept, upper=False)

    def _factor(self, w: Tensor) -> None:
        """S in units in which its diagonal is 1, and its factor."""
        active = w > 0
        noise = torch.where(active, 1 / torch.where(active, w, 1.0), 0.0)
        own = self.rows.variance(self.left, self.directions) + noise
        before = self.rows.variance(self.prior.rest, self.prior.directions)
        size = torch.maximum(own, SMALL_SHARE * before)
        self.scale = torch.where(active & (size > TINY), size.clamp_min(TINY).rsqrt(), 0.0)
        self.factor = factor_of(self.rows, self.left, self.directions, noise, self.scale)

    def multipliers(self, r: Tensor) -> Tensor:  # (P, K)
        """S^-1 r, refined: rows may repeat each other."""
        return self.factor.solve(r * self.scale) * self.scale

    def at(self, mean: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The field given these values of points and rows, and the force of each, (P, N + K).

        Solved once more for what the first forces miss: being small, it loses no digits.
        """
        _, force = self.once(mean, value)
        u = mean + self.prior.times(self.prior.pushed(force))
        missed = value - self.prior.read(u) - force / self.said
        by, more = self.once(torch.zeros_like(u), torch.where(self.said > 0, missed, 0.0))
        return u + by, force + more

    def once(self, mean: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """As `at`, solved once."""
        prior, places = self.prior, self.places.expand(len(mean), -1)
        points, rows = value.split([mean.shape[-1], prior.rows.count], -1)
        rows = torch.cat([rows, points.gather(-1, places)], -1)
        u, z = mean, None
        if prior.directions is not None:
            away = self.inner * torch.where(self.seen, points - mean, 0.0)
            z = torch.cholesky_solve(product(prior.directions, away)[..., None], self.root)[..., 0]
            u = u + product(prior.directions.mT, z)
        nearer = u + self.gain * torch.where(self.seen, points - u, 0.0)
        u = torch.where(self.gain == 1, points, nearer)
        multiplier = self.multipliers(rows - self.rows.apply(u))
        pull = self.rows.back(multiplier)
        u, free = u + self.left * pull, mean + prior.rest * pull
        if prior.directions is not None:
            along = product(self.directions, pull)
            u = u + product(self.directions.mT, along)
            more = torch.linalg.solve_triangular(self.root.mT, along[..., None], upper=True)
            free = free + product(prior.directions.mT, z + more[..., 0])
        firm = (u - free) / torch.where(self.firm, prior.rest, 1.0)
        soft = self.w * torch.where(self.seen, points - u, 0.0)
        force = torch.where(self.firm, firm, soft.nan_to_num(0.0))
        multiplier, own = multiplier.split(
            [rows.shape[-1] - places.shape[-1], places.shape[-1]], -1
        )
        return u, torch.cat([force.scatter_add(-1, places, own), multiplier], -1)


def is_thin(rest: Tensor, directions: Tensor | None) -> Tensor:  # (P or 1, N)
    """Whether directions move a point almost alone, or nothing does."""
    return rest <= (0 if directions is None else THIN * (rest + directions.square().sum(1)))


def precision_of(variance: Tensor) -> Tensor:
    """1 / variance, infinite where that is 0, with a gradient of 0 there."""
    exact = variance == 0
    return torch.where(exact, torch.inf, 1 / torch.where(exact, 1.0, variance))
