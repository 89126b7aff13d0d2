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
from ...support.tolerances import SHIFTS, SMALL_SHARE, THIN, TINY

REFINED = 6  # times that a solve with repeated rows is corrected
MOST = 1 << 27  # numbers of rows that stand for points
WELL = 1e4  # times the inverse variance: a point without variance of its own is known well


class Prior:
    """The covariance F^T F + D of P parts, and the rows J that are looked at."""

    def __init__(self, rest: Tensor, directions: Tensor | None, rows: Tensor) -> None:
        """rest: D, (P or 1, N). directions: F, (P or 1, R, N). rows: J, (P or 1, K, N)."""
        self.rest, self.directions, self.rows = rest, directions, rows
        with torch.no_grad():
            self.variance = rest if directions is None else rest + directions.square().sum(1)
            self.row_variance = (self.times(rows) * rows).sum(-1)
            self.thin = rest <= THIN * self.variance

    def some(self, index: Tensor) -> "Prior":
        """The parts that `index` picks; what all share stays as it is."""
        three = self.rest, self.directions, self.rows
        if all(t is None or len(t) == 1 for t in three):
            return self
        return self._with(lambda t: picked(t, index))

    def detached(self) -> "Prior":
        """The same without gradients."""
        three = self.rest, self.directions, self.rows
        if not any(t is not None and t.requires_grad for t in three):
            return self
        return self._with(Tensor.detach)

    def _with(self, change: Callable[[Tensor], Tensor]) -> "Prior":
        directions = None if self.directions is None else change(self.directions)
        return Prior(change(self.rest), directions, change(self.rows))

    @property
    def variances(self) -> Tensor:  # (P or 1, N + K)
        """Of points and rows."""
        count = max(len(self.variance), len(self.row_variance))
        return torch.cat([v.expand(count, -1) for v in (self.variance, self.row_variance)], -1)

    def times(self, v: Tensor) -> Tensor:
        """Sigma v, (P, N) or (P, K, N)."""
        return spread_by(self.rest, self.directions, v)

    def read(self, u: Tensor) -> Tensor:  # (P, N) to (P, N + K)
        """Points and rows."""
        return torch.cat([u, product(self.rows, u)], -1)

    def pushed(self, force: Tensor) -> Tensor:  # (P, N + K) to (P, N)
        """What forces on points and rows come to at the points."""
        points, rows = force.split([self.rest.shape[-1], self.rows.shape[-2]], -1)
        return points + product(self.rows.mT, rows)


class Given:
    """The prior given points and rows to precisions w, (P, N + K): one factor for many values."""

    def __init__(self, prior: Prior, w: Tensor) -> None:
        self.prior, self.said = prior, w
        points, rows = w.split([prior.rest.shape[-1], prior.rows.shape[-2]], -1)
        points = torch.where(prior.variance > TINY, points, 0.0)
        hard = prior.thin & (points * prior.variance > WELL)
        points, rows = torch.where(hard, 0.0, points), self._as_rows(hard, points, rows)
        self._take_points(points)
        self._factor(rows)

    def _as_rows(self, hard: Tensor, points: Tensor, rows: Tensor) -> Tensor:
        """The precisions of rows, with those of hard points, which become rows."""
        self.places, self.rows = _places(hard), self.prior.rows
        if not self.places.shape[-1]:
            return rows
        own = hard.gather(-1, self.places)
        if own.numel() * hard.shape[-1] > MOST:
            raise InputError(
                f"`field`: {own.shape[-1]} points of it lie beyond bounds and are moved by "
                "directions alone, which is more than can be solved for together. Way out: give "
                "the field variance of its own at each point."
            )
        there = torch.zeros(
            *own.shape, hard.shape[-1], dtype=self.rows.dtype, device=self.rows.device
        )
        there.scatter_(-1, self.places[..., None], own[..., None].to(there.dtype))
        self.rows = torch.cat([self.rows.expand(len(there), -1, -1), there], 1)
        known = points.expand(len(own), -1).gather(-1, self.places)
        return torch.cat([rows, torch.where(own, known, 0.0)], -1)

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
        gram = self.rows @ self.times(self.rows).mT + noise.diag_embed()
        before = (self.prior.times(self.rows) * self.rows).sum(-1)
        size = torch.maximum(gram.diagonal(dim1=-2, dim2=-1), SMALL_SHARE * before)
        self.scale = torch.where(active & (size > TINY), size.clamp_min(TINY).rsqrt(), 0.0)
        self.scaled = gram * self.scale[:, None] * self.scale[..., None]
        idle = (self.scale == 0).to(gram.dtype)
        for shift in SHIFTS:
            more = torch.where(noise <= shift * size, shift, 0.0) + idle
            self.lower, failed = torch.linalg.cholesky_ex(self.scaled + more.diag_embed())
            if not bool(failed.any()):
                break

    def times(self, v: Tensor) -> Tensor:
        """The covariance given the points, times v."""
        return spread_by(self.left, self.directions, v)

    def multipliers(self, r: Tensor) -> Tensor:  # (P, K)
        """S^-1 r, refined: rows may repeat each other."""
        r = (r * self.scale)[..., None]
        found = torch.cholesky_solve(r, self.lower)
        for _ in range(REFINED):
            found = found + torch.cholesky_solve(r - self.scaled @ found, self.lower)
        return found[..., 0] * self.scale

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
        points, rows = value.split([mean.shape[-1], prior.rows.shape[-2]], -1)
        rows = torch.cat([rows, points.gather(-1, places)], -1)
        u, z = mean, None
        if prior.directions is not None:
            away = self.inner * torch.where(self.seen, points - mean, 0.0)
            z = torch.cholesky_solve(product(prior.directions, away)[..., None], self.root)[..., 0]
            u = u + product(prior.directions.mT, z)
        nearer = u + self.gain * torch.where(self.seen, points - u, 0.0)
        u = torch.where(self.gain == 1, points, nearer)
        multiplier = self.multipliers(rows - product(self.rows, u))
        pull = product(self.rows.mT, multiplier)
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


def _places(some: Tensor) -> Tensor:  # (P, most)
    """Where it is true in each part, first; as many as the part with most of them has."""
    most = int(some.sum(-1).max()) if some.numel() else 0
    if not most:
        return torch.zeros(len(some), 0, dtype=torch.int64, device=some.device)
    return some.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[:, :most]


def precision_of(variance: Tensor) -> Tensor:
    """1 / variance, infinite where that is 0, with a gradient of 0 there."""
    exact = variance == 0
    return torch.where(exact, torch.inf, 1 / torch.where(exact, 1.0, variance))


def picked(t: Tensor, index: Tensor) -> Tensor:
    """Some parts of what has one axis of them, which is 1 where all share it."""
    return t if len(t) == 1 else t.index_select(0, index)


def product(matrix: Tensor, v: Tensor) -> Tensor:  # (P, K, N), (P, N) to (P, K)
    if len(matrix) == 1 and len(v) > 1:
        return v @ matrix[0].mT
    return (matrix @ v[..., None])[..., 0]


def spread_by(rest: Tensor, directions: Tensor | None, v: Tensor) -> Tensor:
    """(F^T F + D) v, (P, N) or (P, K, N)."""
    wide = v[:, None] if v.ndim == 2 else v
    total = wide * rest[:, None]
    if directions is not None:
        total = total + (wide @ directions.mT) @ directions
    return total[:, 0] if v.ndim == 2 else total
