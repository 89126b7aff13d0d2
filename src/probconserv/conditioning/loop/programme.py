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
from .given import Given, Prior
from .reading import Full, Reading, picked, product

SETTLING = 3  # solves of the exact laws alone
SAMPLES, SEED = 8, 1  # draws that give units, and what they are drawn from
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
        given = prior.rest, prior.directions, prior.rows.values, *rest
        return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given)

    def narrowed(self, std: Tensor) -> "Programme":
        """With tolerances for points that are no wider than `std`, (P or 1, N)."""
        most = terms_of(self.prior, std.expand(len(self.mean), -1))
        unit = torch.where(most > 0, torch.minimum(self.unit, most), self.unit)
        return self._replace(unit=unit)

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
        rows = plain.rows.only(sharp[:, points:])
        ends = low[:, :points], high[:, :points]
        own = target[:, points:]
        target[:, points:] = torch.where(nearly, own.clamp(*rows.span(*ends)), own)
        known = torch.where(sharp, target, 0.0)
        if isinstance(rows, Full):
            start, left = _given_rows(plain, mean.detach(), rows, known)
        else:
            start, left = _given_many(plain, mean.detach(), sharp, known)
        fixed, at = left <= FIXED_BY_LAWS**2 * plain.variances, plain.read(start)
        broken = torch.where(fixed, torch.maximum(low - at, at - high).clamp_min(0), 0.0)
        side, room = _at_ends(rows, target[:, points:], *ends)
        unit = torch.where(fixed, 1.0, left).sqrt().expand(len(room), -1).clone()
        unit[:, :points] = torch.minimum(unit[:, :points], room)
        pinned = torch.cat([side, torch.zeros_like(own)], -1)
        pinned = torch.where(low == high, 1.0, pinned) * ~fixed
        target = torch.where(pinned > 0, low, torch.where(pinned < 0, high, target))
        free = (~(fixed | (pinned != 0)))[:, :points].double()
        still = plain.rows.sizes(free) == 0  # rows that read nothing free weigh nothing
        idle = torch.cat([torch.zeros_like(side, dtype=torch.bool), still], -1) & ~sharp
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


def _given_rows(prior: Prior, mean: Tensor, rows: Full, value: Tensor) -> tuple[Tensor, Tensor]:
    """The fields given exact rows, the others 0; and all variances that are left."""
    own = rows.values
    cross = prior.times(own)
    gram = own @ cross.mT
    before = gram.diagonal(dim1=-2, dim2=-1)
    factor = Factor(gram, before, torch.zeros_like(before))
    start = mean
    for _ in range(SETTLING):  # the first time by all of it, then by its rounding
        away = value[:, mean.shape[-1] :] - rows.apply(start)
        start = start + product(cross.mT, factor.solve(away[:, None])[:, 0])
    seen = torch.cat([cross.mT, prior.rows.along(cross)], 1)
    return start, (prior.variances - factor.whiten(seen).square().sum(-1)).clamp_min(0)


def _given_many(prior: Prior, mean: Tensor, sharp: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """As `_given_rows`, with variances as mean squares of some draws: they are but units."""
    given, start = Given(prior, torch.where(sharp, torch.inf, 0.0)), mean
    for _ in range(SETTLING):
        start = given.once(start, value)[0]
    if prior.left is None or not torch.equal(prior.left[0], sharp):
        generator, parts = torch.Generator().manual_seed(SEED), len(given.said)
        each, total = SAMPLES if parts == 1 else 1, torch.zeros_like(prior.variances)
        for _ in range(SAMPLES // each):  # draws of one part are solved for together
            y = prior.draw(each * parts, generator)
            squares = prior.read(given.once(y, torch.zeros_like(prior.read(y)))[0]).square()
            total = total + squares.unflatten(0, (each, parts)).sum(0) / SAMPLES
        prior.left = sharp, total
    return start, prior.left[1]


def _at_ends(
    rows: Reading, value: Tensor, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor]:  # (P, N) each
    """Where a row has its least or its largest value points are at a bound: 1 low, -1 high. How
    far others may move from theirs, however wide the prior is."""
    side = value.new_zeros(len(value), rows.size)
    room = torch.full_like(side, torch.inf)
    g = rows.values
    size, reads = g.abs(), g != 0
    far = torch.maximum(low.abs(), high.abs()).nan_to_num(posinf=0.0)
    scale = value.abs() + rows.sizes(far)
    for sign, each in zip((1.0, -1.0), rows.span(low, high), strict=True):
        away = sign * (value - each)
        there = each.isfinite() & (away.abs() <= 4 * EPS * scale)
        at = rows.of_rows(there) & reads
        found = rows.by_point(torch.where(at, torch.sign(sign * g), 0.0)).sign()
        side = torch.where(side != 0, side, found)
        free = reads & rows.of_rows(~there & (away > 0))
        room = torch.minimum(
            room, rows.least(torch.where(free, rows.of_rows(away) / size, torch.inf))
        )
    return side, room


def terms_of(prior: Prior, u: Tensor) -> Tensor:  # (P, N + K)
    """The sizes of the terms of points and rows."""
    return torch.cat([u.abs(), prior.rows.sizes(u.abs())], -1)
