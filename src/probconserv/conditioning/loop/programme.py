"""What is asked of fields: linear laws and inequalities, in units of what exact laws leave free.

minimise   1/2 |u - mean|^2 + 1/2 sum over noisy rows of ((J u - b) / sigma)^2
subject to J u = b in exact rows,   low <= (u, J u) <= high,   |.| the norm of Sigma^-1
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ...solvers.factor import Factor
from ...support.gradients import as_if
from ...support.tolerances import (
    EPS,
    FIXED_BY_LAWS,
    NEARLY_EXACT,
    SETTLED,
    TINY,
)
from .given import Given, Prior, picked, product

SETTLING = 3  # solves of the exact laws alone
BEYOND = 1e7  # standard deviations: a set that is further away is empty


class Programme(NamedTuple):
    """What is asked of P parts; the numbers are points and rows, side by side."""

    prior: Prior
    mean: Tensor  # (P, N)
    value: Tensor  # of laws, (P or 1, N + K)
    precision: Tensor  # of laws: inf exact, 0 where there is none
    low: Tensor  # the least that a number may be, or -inf
    high: Tensor
    unit: Tensor  # of each number, for tolerances: the standard deviation that laws leave

    def some(self, index: Tensor) -> "Programme":
        """The parts that `index` picks."""
        if len(index) == len(self.mean):
            return self
        prior, *rest = self
        return Programme(prior.some(index), *(picked(t, index) for t in rest))

    def detached(self) -> "Programme":
        """The same without gradients."""
        prior, *rest = self
        return Programme(prior.detached(), *(t.detach() for t in rest))

    @property
    def learns(self) -> bool:
        """Whether anything in it has a gradient."""
        prior, *rest = self
        given = prior.rest, prior.directions, prior.rows, *rest
        return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given)

    def held(self, active: Tensor) -> tuple[Tensor, Tensor]:
        """The field with active numbers at their bound, and forces; active: 1 low, -1 high."""
        w = torch.where(active != 0, torch.inf, self.precision)
        end = torch.where(active > 0, self.low, self.high)
        return Given(self.prior, w).at(self.mean, torch.where(active != 0, end, self.value))

    @property
    def scale(self) -> Tensor:
        """Of what numbers are rounded to."""
        return self.prior.variances.sqrt() + terms_of(self.prior, self.mean)

    @property
    def noise(self) -> Tensor:
        """Variances of the noise of laws; 0 elsewhere."""
        noisy = (self.precision > 0) & self.precision.isfinite()
        return torch.where(noisy, 1 / torch.where(noisy, self.precision, 1.0), 0.0)

    def energy(self, force: Tensor) -> Tensor:  # (P,)
        """The squared distance of what forces move, noise included."""
        pushed = self.prior.pushed(force)
        return (pushed * self.prior.times(pushed)).sum(-1) + (self.noise * force.square()).sum(-1)

    def least(self, force: Tensor) -> tuple[Tensor, Tensor]:  # (P,) each
        """Lower bounds of half the squared distance, and of the distance, from any forces."""
        law = self.precision > 0
        force = torch.where(law | self.low.isfinite(), force, force.clamp(max=0.0))
        force = torch.where(law | self.high.isfinite(), force, force.clamp(min=0.0))
        end = torch.where(force > 0, self.low, self.high)
        target = torch.where(law, self.value, torch.where(force != 0, end, 0.0))
        away = torch.where(force != 0, target - self.prior.read(self.mean), 0.0)
        gain, energy = (force * away).sum(-1), self.energy(force)
        return gain - energy / 2, gain / energy.clamp_min(TINY).sqrt()


class Nearest(NamedTuple):
    """What was found of each part."""

    u: Tensor  # (P, N)
    active: Tensor  # (P, N + K): 1 at the lower bound, -1 at the upper one, else 0
    force: Tensor  # (P, N + K)
    solved: Tensor  # (P,)
    distance: Tensor  # a lower bound, in standard deviations, (P,)
    solves: Tensor  # linear ones, (P,)

    @classmethod
    def of(cls, problem: Programme, active: Tensor) -> "Nearest":
        """Nothing yet."""
        count = torch.zeros(len(active), dtype=torch.int64, device=active.device)
        least = torch.zeros_like(active[:, 0])
        return cls(
            problem.mean.clone(), active.clone(), torch.zeros_like(active), count > 0, least, count
        )


class Start(NamedTuple):
    """The fields given exact laws alone."""

    u: Tensor  # (P, N)
    fixed: Tensor  # numbers that these laws fix, or that have no variance, (P or 1, N + K)
    broken: Tensor  # by how much those break an inequality, (P, N + K)


def in_units(
    prior: Prior, mean: Tensor, value: Tensor, precision: Tensor, low: Tensor, high: Tensor
) -> tuple[Programme, Start]:
    """The programme in units of what exact laws leave free; what these fix is not asked again."""
    points = mean.shape[-1]
    with torch.no_grad():
        plain = prior.detached()
        silent = precision * plain.variances < SETTLED  # noise so large that it says nothing
    precision = torch.where(silent, 0.0, precision)
    with torch.no_grad():
        target = value.detach().expand(len(mean), -1).clone()
        sharp = precision * plain.variances > 1 / NEARLY_EXACT  # noise that rounding hides
        nearly = (sharp & precision.isfinite())[:, points:]
        rows = torch.where(sharp[:, points:, None], plain.rows, 0.0)
        ends = low[:, :points], high[:, :points]
        own = target[:, points:]
        target[:, points:] = torch.where(nearly, own.clamp(*_range(rows, *ends)), own)
        start, left = _given_rows(plain, mean.detach(), rows, torch.where(sharp, target, 0.0))
        fixed, at = left <= FIXED_BY_LAWS**2 * plain.variances, plain.read(start)
        broken = torch.where(fixed, torch.maximum(low - at, at - high).clamp_min(0), 0.0)
        side, room = _at_ends(rows, target[:, points:], *ends)
        unit = torch.where(fixed, 1.0, left).sqrt().expand(len(room), -1).clone()
        unit[:, :points] = torch.minimum(unit[:, :points], room)
        pinned = torch.cat([side, torch.zeros_like(own)], -1)
        pinned = torch.where(low == high, 1.0, pinned) * ~fixed
        target = torch.where(pinned > 0, low, torch.where(pinned < 0, high, target))
        stays = (fixed | (pinned != 0))[:, None, :points]
        known = ~((plain.rows != 0) & ~stays).any(-1)  # rows that read nothing else weigh nothing
        idle = torch.cat([torch.zeros_like(side, dtype=torch.bool), known], -1) & ~sharp
        changed = (pinned != 0) | (sharp & precision.isfinite())
    precision = torch.where(idle, 0.0, precision)
    if bool(changed.any()):
        pins = torch.where(pinned > 0, low, torch.where(pinned < 0, high, value))
        value = torch.where(changed, as_if(target, pins.expand_as(target)), value)
        precision = torch.where(changed, torch.inf, precision)
    done = fixed | (pinned != 0)
    low, high = torch.where(done, -torch.inf, low), torch.where(done, torch.inf, high)
    problem = Programme(prior, mean, value, precision, low, high, unit)
    return problem, Start(start, fixed, broken)


def _given_rows(prior: Prior, mean: Tensor, rows: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The fields given exact rows, some of the prior's, the others 0; and all variances left."""
    cross = prior.times(rows)
    gram = rows @ cross.mT
    before = gram.diagonal(dim1=-2, dim2=-1)
    factor = Factor(gram, before, torch.zeros_like(before))
    start = mean
    for _ in range(SETTLING):  # the first time by all of it, then by its rounding
        away = value[:, mean.shape[-1] :] - product(rows, start)
        start = start + product(cross.mT, factor.solve(away[:, None])[:, 0])
    seen = torch.cat([cross.mT, prior.rows @ cross.mT], 1)
    return start, (prior.variances - factor.whiten(seen).square().sum(-1)).clamp_min(0)


def _range(rows: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:  # (P, K) each
    """The least and the most of each row within bounds."""
    least, most = (
        torch.where(rows == 0, 0.0, rows * torch.where(rows > 0, *each)).sum(-1)
        for each in ((low[:, None], high[:, None]), (high[:, None], low[:, None]))
    )
    return least, most


def _at_ends(
    rows: Tensor, value: Tensor, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor]:  # (P, N) each
    """Where a row has its least or its largest value points are at a bound: 1 low, -1 high. How
    far others may move from theirs, however wide the prior is."""
    side = value.new_zeros(len(value), rows.shape[-1])
    room = torch.full_like(side, torch.inf)
    if not rows.shape[-2]:
        return side, room
    size, reads = rows.abs(), rows != 0
    for sign, end in zip((1.0, -1.0), _range(rows, low, high), strict=True):
        away = sign * (value - end)[..., None]
        scale = (
            value.abs()
            + (size @ torch.maximum(low.abs(), high.abs()).nan_to_num(posinf=0.0)[..., None])[
                ..., 0
            ]
        )[..., None]
        there = reads & end.isfinite()[..., None] & (away.abs() <= 4 * EPS * scale)
        found = torch.where(there, torch.sign(sign * rows), 0.0).sum(1).sign()
        side = torch.where(side != 0, side, found)
        free = reads & ~there & (away > 0)
        room = torch.minimum(room, torch.where(free, away / size, torch.inf).amin(1))
    return side, room


def terms_of(prior: Prior, u: Tensor) -> Tensor:  # (P, N + K)
    """The sizes of the terms of points and rows."""
    return torch.cat([u.abs(), product(prior.rows.abs(), u.abs())], -1)
