"""The nearest field that obeys linear laws and inequalities: a loop of linear solves.

    minimise   1/2 |u - mean|^2 + 1/2 sum over noisy rows of ((J u - b) / sigma)^2
    subject to J u = b in exact rows,   low <= (u, J u) <= high,   |.| the norm of Sigma^-1

First an active set: numbers at their bound become exact, those pushed the wrong way are released,
broken ones added. Where that does not settle, an interior point (Mehrotra's predictor and
corrector): a bound with slack s and multiplier z is an observation of variance s / z. It is
finished by an active set again. A field is taken when it is feasible and its distance is that of a
lower bound, by duality; a lower bound that is very large proves that no field obeys.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ...solvers.factor import Factor
from ...support.tolerances import EPS, FIXED_BY_LAWS, INSIDE, OPTIMAL, TINY
from .given import Given, Prior, picked, product

SETS, FINISH = 6, 3  # rounds of the active set: at first, and to finish
ROUNDS, LOOK = 80, 16  # of the interior point; how often the active set looks
NEAR, FLOOR = 1e-6, 1e-3  # of the squared distance and this: so close a point is finished
SMALL = (1e-14, 1e-13, 1e-12, 1e-11, 1e-10)  # shifts: most rows have noise
FRACTION = 0.99  # of the way to the boundary
WRONG = 1e-10  # of the largest: a force the wrong way that is less is rounding
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


class Start(NamedTuple):
    """The fields given exact laws alone."""

    u: Tensor  # (P, N)
    fixed: Tensor  # numbers that these laws fix, or that have no variance, (P or 1, N + K)
    broken: Tensor  # by how much those break an inequality, (P, N + K)


def in_units(
    prior: Prior, mean: Tensor, value: Tensor, precision: Tensor, low: Tensor, high: Tensor
) -> tuple[Programme, Start]:
    """The programme in units of what exact laws leave free; what these fix is not asked again."""
    with torch.no_grad():
        plain, target = prior.detached(), value.detach().expand(len(mean), -1)
        points, exact = mean.shape[-1], precision.isinf()
        rows = torch.where(exact[:, points:, None], plain.rows, 0.0)
        cross = plain.times(rows)
        gram = rows @ cross.mT
        own = gram.diagonal(dim1=-2, dim2=-1)
        factor = Factor(gram, own, torch.zeros_like(own))
        away = torch.where(exact, target - plain.read(mean.detach()), 0.0)[:, points:]
        start = mean + product(cross.mT, factor.solve(away[:, None])[:, 0])
        seen = torch.cat([cross.mT, plain.rows @ cross.mT], 1)
        left = (plain.variances - factor.whiten(seen).square().sum(-1)).clamp_min(0)
        fixed = left <= FIXED_BY_LAWS**2 * plain.variances
        at = plain.read(start)
        broken = torch.where(fixed, torch.maximum(low - at, at - high).clamp_min(0), 0.0)
        ends, room = _ends_of_range(rows, target[:, points:], low[:, :points], high[:, :points])
        end = torch.where(ends != 0, torch.where(ends > 0, low[:, :points], high[:, :points]), 0.0)
        unit = torch.where(fixed, 1.0, left).sqrt()
        unit = torch.cat([torch.minimum(unit[:, :points], room), unit[:, points:].expand(len(room), -1)], -1)
    pinned = torch.cat([ends != 0, torch.zeros_like(target[:, points:], dtype=torch.bool)], -1) & ~fixed
    if bool(pinned.any()):
        value = torch.where(pinned, torch.cat([end, target[:, points:]], -1), value)
        precision = torch.where(pinned, torch.inf, precision)
    low = torch.where(fixed | pinned, -torch.inf, low)
    high = torch.where(fixed | pinned, torch.inf, high)
    problem = Programme(prior, mean, value, precision, low, high, unit)
    return problem, Start(start, fixed, broken)


def _ends_of_range(
    rows: Tensor, value: Tensor, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor]:  # (P, N) each
    """Which bound points are at, as a row has its least or its largest value; and how far others
    may move from theirs, however wide the prior is."""
    found = torch.zeros(len(value), rows.shape[-1], dtype=value.dtype, device=value.device)
    room = torch.full_like(found, torch.inf)
    if not rows.shape[-2]:
        return found, room
    size = rows.abs()
    for sign in (1.0, -1.0):
        end = torch.where(sign * rows > 0, low[:, None], high[:, None])
        terms = torch.where(rows == 0, 0.0, rows * end)
        least, scale = terms.sum(-1), terms.abs().sum(-1)
        some = least.isfinite() & (size > 0).any(-1)
        away = torch.where(some, sign * (value - least), torch.inf)
        near = some & (away.abs() <= 4 * EPS * (value.abs() + scale))
        there = near[..., None] & (size > 0)
        at = torch.where(there, torch.sign(sign * rows), 0.0)
        found = torch.where(found != 0, found, at.sum(1).sign())
        free = torch.where((size > 0) & ~there & (away > 0)[..., None], away[..., None] / size, torch.inf)
        room = torch.minimum(room, free.amin(1))
    return found, room


@torch.no_grad()
def nearest(problem: Programme) -> Nearest:
    """The nearest field of each part."""
    count, size = len(problem.mean), problem.unit.shape[-1]
    new = problem.mean.new_zeros
    found = _active_set(problem, new(count, size), SETS)
    left = (~found.solved).nonzero()[:, 0]
    if len(left):
        more = _interior(problem.some(left))
        for whole, some in zip(found, more, strict=True):
            whole[left] = some if whole is not found.solves else whole[left] + some
    return found


def terms_of(prior: Prior, u: Tensor) -> Tensor:  # (P, N + K)
    """The sizes of the terms of points and rows."""
    return torch.cat([u.abs(), product(prior.rows.abs(), u.abs())], -1)


def _active_set(
    problem: Programme, active: Tensor, rounds: int, force: Tensor | None = None
) -> Nearest:
    """Rounds of the active set. force: of the interior point, a certificate; then rows are only
    added."""
    finish = force is not None
    found = Nearest(
        problem.mean.clone(),
        active.clone(),
        torch.zeros_like(active),
        torch.zeros(len(active), dtype=torch.bool, device=active.device),
        torch.full_like(active[:, 0], -torch.inf),
        torch.zeros(len(active), dtype=torch.int64, device=active.device),
    )
    left = torch.arange(len(active), device=active.device)
    for _ in range(rounds):
        u, push = problem.held(active)
        short, over, met = _misses(problem, u, active, push)
        size = (push * problem.unit).abs()
        largest = torch.where(active != 0, size, 0.0).amax(-1, keepdim=True).clamp_min(1.0)
        wrong = active * push * problem.unit < -WRONG * largest
        half, distance = problem.least(push)
        if force is not None:
            other, _ = problem.least(force)
            half = torch.maximum(half, other)
        energy = problem.energy(push) / 2
        good = met & ~(short | over).any(-1) & (energy - half <= OPTIMAL * energy + EPS)
        new = active if finish else torch.where(wrong, 0.0, active)
        new = torch.where(short & (active == 0), 1.0, new)
        new = torch.where(over & (active == 0), -1.0, new)
        stop = good | (new == active).all(-1)
        for whole, some in zip(found, (u, active, push, good), strict=False):
            whole[left] = some
        found.distance[left] = torch.maximum(found.distance[left], distance)
        found.solves[left] += 1
        keep = (~stop).nonzero()[:, 0]
        if not len(keep):
            break
        left, active, problem = left[keep], new[keep], problem.some(keep)
        force = None if force is None else force[keep]
    return found


def _misses(
    problem: Programme, u: Tensor, active: Tensor, force: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Which numbers are below their bounds, or above; and whether those held are met, (P,)."""
    at, terms = problem.prior.read(u), terms_of(problem.prior, u)
    near = INSIDE * problem.unit + 16 * EPS * terms
    target = torch.where(active > 0, problem.low, torch.where(active < 0, problem.high, problem.value))
    said = (active != 0) | (problem.precision > 0)
    off = torch.where(said, target - problem.noise * force - at, 0.0)
    law = (INSIDE * problem.prior.variances.sqrt()) * 10
    allowed = torch.maximum(near, law)
    return at < problem.low - near, at > problem.high + near, (off.abs() <= allowed).all(-1)


def _interior(problem: Programme) -> Nearest:
    """Mehrotra's method, each part until its active set is right."""
    unit, count = problem.unit, len(problem.mean)
    size = unit.shape[-1]
    new, device = problem.mean.new_zeros, problem.mean.device
    found = Nearest(
        problem.mean.clone(), new(count, size), new(count, size),
        torch.zeros(count, dtype=torch.bool, device=device), new(count),
        torch.zeros(count, dtype=torch.int64, device=device),
    )
    left = torch.arange(count, device=device)
    u, _ = problem.held(torch.zeros_like(unit).expand(count, size))
    at = problem.prior.read(u)
    ends = torch.stack([(at - problem.low) / unit, (problem.high - at) / unit])
    has = ends.isfinite()
    s = torch.where(has, ends.abs().clamp_min(1.0), 1.0)
    z = has.double()
    for number in range(1, ROUNDS + 1):
        unit = problem.unit
        low = torch.where(has[0], problem.low, 0.0)
        high = torch.where(has[1], problem.high, 0.0)
        w = z / s / unit.square()
        given = Given(problem.prior, w.sum(0) + problem.precision, SMALL)
        law = problem.precision > 0
        total = w.sum(0)

        def newton(t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            aim = s + torch.where(has, t / z.clamp_min(TINY), 0.0)
            y = (w[0] * (low + unit * aim[0]) + w[1] * (high - unit * aim[1])) / total.clamp_min(TINY)
            y = torch.where(total > 0, y, 0.0)
            to, force = given.at(problem.mean, torch.where(law, problem.value, y))
            q = problem.prior.read(to)
            ds = torch.where(has, torch.stack([(q - low) / unit, (high - q) / unit]) - s, 0.0)
            znew = torch.where(has, (t - z * ds) / s, 0.0)
            f = force * unit
            first = w[0] >= w[1]
            both = torch.stack([torch.where(first, f + znew[1], znew[0]), torch.where(first, znew[1], znew[0] - f)])
            znew = torch.where(has & ~law, both, 0.0)
            return to, force, ds, znew - z

        pairs = has.flatten(2).sum((0, 2)).clamp_min(1)
        gap = (s * z * has).sum((0, 2)) / pairs
        to, force, ds, dz = newton(torch.zeros_like(s))
        a, b = _step(s, ds), _step(z, dz)
        after = ((s + a[:, None] * ds) * (z + b[:, None] * dz) * has).sum((0, 2)) / pairs
        aim = (after / gap.clamp_min(TINY)).clamp(0, 1) ** 3 * gap
        to, force, ds, dz = newton(torch.where(has, aim[:, None] - ds * dz, 0.0))
        a = FRACTION * torch.minimum(_step(s, ds, 1 / FRACTION), _step(z, dz, 1 / FRACTION))
        a = a.clamp(max=1.0)[:, None]
        u, rate = u + a * (to - u), (1 + a * ds / s, 1 + a * dz / z.clamp_min(TINY))
        s, z = s + a * ds, z + a * dz
        s, z = torch.where(has, s, 1.0), torch.where(has, z, 0.0)
        found.solves[left] += 2
        _, distance = problem.least(force)
        found.distance[left] = torch.maximum(found.distance[left], distance)
        gap = (s * z * has).sum((0, 2))
        energy = problem.energy(force)
        found.u[left], found.force[left] = u, force
        look = (gap <= NEAR * (energy + FLOOR)) | (number % LOOK == 0)
        far = distance > BEYOND
        done = far.clone()
        if bool(look.any()):
            some = look.nonzero()[:, 0]
            held = has & (rate[1] > rate[0] if number % 2 else z > s)
            active = held[0].double() - held[1].double()
            mine = torch.where(problem.precision > 0, force, (z[0] - z[1]) / unit)
            tried = _active_set(problem.some(some), active[some], FINISH, mine[some])
            found.solves[left[some]] += tried.solves
            right = some[tried.solved]
            done[right] = True
            for whole, part in zip(found[:4], tried[:4], strict=True):
                whole[left[right]] = part[tried.solved]
        keep = (~done).nonzero()[:, 0]
        if not len(keep):
            break
        if len(keep) < len(left):
            left, u, problem = left[keep], u[keep], problem.some(keep)
            s, z, has = s[:, keep], z[:, keep], has[:, keep] if has.shape[1] > 1 else has
    return found


def _step(x: Tensor, dx: Tensor, most: float = 1.0) -> Tensor:  # (2, P, M) to (P,)
    """The longest step that keeps x positive, at most `most`."""
    ratio = torch.where(dx < 0, -x / dx, torch.inf)
    return ratio.amin((0, 2)).clamp(max=most)
