"""One linear solve of the loop: a Gaussian given numbers, each known to a precision of its own.

The numbers are the points u and the rows J u, side by side: (P, N + K) for P parts. A precision of
0 says nothing, inf says exactly. Points are taken into the variances first, so that only rows are
solved for, however many points are at a bound:

    D' = D / (1 + w D),   F' = L^-1 F / (1 + w D),   L L^T = 1 + F W F^T,   W = w / (1 + w D)

    S = J (F'^T F' + D') J^T + 1 / w

Points that directions move almost alone, and that are known well, are rows as well: there 1 / w
loses no digits.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...support.tolerances import SHIFT, SMALL_SHARE, THIN, TINY

REFINED = 6  # times that a solve with repeated rows is corrected
WELL = 1e4  # times the inverse variance: a point without variance of its own is known well


class Prior:
    """The covariance F^T F + D of P parts, and the rows J that are looked at."""

    def __init__(self, rest: Tensor, directions: Tensor | None, rows: Tensor) -> None:
        """rest: D, (P or 1, N). directions: F, (P or 1, R, N). rows: J, (P or 1, K, N)."""
        self.rest, self.directions, self.rows = rest, directions, rows
        self.variance = rest if directions is None else rest + directions.square().sum(1)
        self.row_variance = (self.times(rows) * rows).sum(-1)
        self.thin = rest <= THIN * self.variance

    def some(self, index: Tensor) -> "Prior":
        """The parts that `index` picks; what all share stays as it is."""
        three = self.rest, self.directions, self.rows
        if all(t is None or len(t) == 1 for t in three):
            return self
        return Prior(*(t if t is None else picked(t, index) for t in three))

    def detached(self) -> "Prior":
        """The same without gradients."""
        if not torch.is_grad_enabled() and not self.variance.requires_grad:
            return self
        return Prior(*(t if t is None else t.detach() for t in (self.rest, self.directions, self.rows)))

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

    def __init__(self, prior: Prior, w: Tensor, shifts: Sequence[float] = (SHIFT, 100 * SHIFT)) -> None:
        """shifts: tried one after the other, for exact rows that may repeat each other."""
        self.prior, self.said, d, total = prior, w, prior.rest, prior.variance
        points, rows = w.split([d.shape[-1], prior.rows.shape[-2]], -1)
        points = torch.where(total > TINY, points, 0.0)
        hard = prior.thin & (points * total > WELL)
        self.at_points = _places(hard)
        self.rows = prior.rows
        if self.at_points.shape[-1]:
            there = torch.zeros(*self.at_points.shape, d.shape[-1], dtype=d.dtype, device=d.device)
            own = hard.gather(-1, self.at_points)
            there.scatter_(-1, self.at_points[..., None], own[..., None].to(d.dtype))
            rows = torch.cat([rows, torch.where(own, points.expand(own.shape[0], -1).gather(-1, self.at_points), 0.0)], -1)
            self.rows = torch.cat([self.rows.expand(len(w), -1, -1), there], 1)
        self.w = torch.where(hard, 0.0, points)
        held = self.w.isinf()
        keep = 1 / (1 + self.w * d)  # 0 where it is held
        inverse = 1 / torch.where(held, d, 1.0)
        self.inner = torch.where(held, inverse, self.w * keep)  # W
        self.gain = torch.where(held, 1.0, self.inner * d)
        self.left, self.seen, self.directions = d * keep, self.inner > 0, None
        self.firm = self.gain > 0.5  # where the force is best read off the field
        if prior.directions is not None:
            weighed = (prior.directions * self.inner[:, None]) @ prior.directions.mT
            self.root = torch.linalg.cholesky(weighed + _eye(weighed))
            kept = prior.directions * keep[:, None]
            self.directions = torch.linalg.solve_triangular(self.root, kept, upper=False)
        active = rows > 0
        self.noise = torch.where(active, 1 / torch.where(active, rows, 1.0), 0.0)
        cross = self.times(self.rows)
        gram = self.rows @ cross.mT + self.noise.diag_embed()
        before = (prior.times(self.rows) * self.rows).sum(-1)
        size = torch.maximum(gram.diagonal(dim1=-2, dim2=-1), SMALL_SHARE * before)
        self.scale = torch.where(active & (size > TINY), size.clamp_min(TINY).rsqrt(), 0.0)
        self.scaled = gram * self.scale[:, None] * self.scale[..., None]
        still = (self.scale == 0).to(gram.dtype)
        for shift in shifts:
            idle = torch.where(self.noise <= shift * size, shift, 0.0) + still
            self.lower, failed = torch.linalg.cholesky_ex(self.scaled + idle.diag_embed())
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

        Solved once more for what the first forces miss.
        """
        _, force = self._once(mean, value)
        moved = mean + self.prior.times(self.prior.pushed(force))
        u, more = self._once(moved, value - torch.where(self.said > 0, force / self.said, 0.0))
        return u, force + more

    def _once(self, mean: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        prior, u = self.prior, mean
        count = prior.rows.shape[-2]
        points, rows = value.split([mean.shape[-1], count], -1)
        places = self.at_points.expand(len(mean), -1)
        rows = torch.cat([rows, points.gather(-1, places)], -1)
        away = torch.where(self.seen, points - mean, 0.0)
        z: Any = None
        if prior.directions is not None:
            z = product(prior.directions, self.inner * away)
            z = torch.cholesky_solve(z[..., None], self.root)[..., 0]
            u = u + product(prior.directions.mT, z)
        nearer = u + self.gain * torch.where(self.seen, points - u, 0.0)
        u = torch.where(self.gain == 1, points, nearer)
        multiplier = self.multipliers(rows - product(self.rows, u))
        pull = product(self.rows.mT, multiplier)
        u = u + self.left * pull
        free = mean + prior.rest * pull
        if self.directions is not None:
            along = product(self.directions, pull)
            u = u + product(self.directions.mT, along)
            more = torch.linalg.solve_triangular(self.root.mT, along[..., None], upper=True)
            free = free + product(prior.directions.mT, z + more[..., 0])
        firm = (u - free) / torch.where(self.firm, prior.rest, 1.0)
        soft = self.w * torch.where(self.seen, points - u, 0.0)
        force = torch.where(self.firm, firm, soft.nan_to_num(0.0))
        force = force.scatter_add(-1, places, multiplier[..., count:])
        return u, torch.cat([force, multiplier[..., :count]], -1)

    def variance(self, of: Prior) -> Tensor:  # (P, N + K)
        """Of points and rows, given all."""
        cross = self.times(self.rows) * self.scale[..., None]
        seen = torch.cat([cross, cross @ of.rows.mT], -1)
        white = torch.linalg.solve_triangular(self.lower, seen, upper=False)
        points = self.left
        if self.directions is not None:
            points = points + self.directions.square().sum(1)
        own = (self.times(of.rows) * of.rows).sum(-1)
        before = torch.cat([points.expand(len(own), -1), own.expand(len(points), -1)], -1)
        return (before - white.square().sum(1)).clamp_min(0)


def _places(some: Tensor) -> Tensor:  # (P, most)
    """Where it is true in each part, first; as many as the part with most of them has."""
    most = int(some.sum(-1).max()) if some.numel() else 0
    return some.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[:, :most]


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


def _eye(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
