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
from ...support.tolerances import (
    CERTAIN,
    EPS,
    FINISHED,
    FIXED_BY_LAWS,
    INSIDE,
    NEARLY_EXACT,
    OPTIMAL,
    SETTLED,
    TINY,
)
from .given import Given, Prior
from .reading import Full, Reading, picked, product

SETS, FINISH = 14, 3  # rounds of the active set: at first, and to finish
PATIENCE = 1  # rounds that may change no fewer numbers than the one before
ROUNDS, LOOK = 80, 16  # of the interior point; how often the active set looks
FLOOR = 1e-3  # squared standard deviations, where a field hardly moves
SETTLING = 3  # solves of the exact laws alone
FRACTION = 0.99  # of the way to the boundary
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
        value = torch.where(changed, target, value)
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


@torch.no_grad()
def nearest(problem: Programme) -> Nearest:
    """The nearest field of each part."""
    size = len(problem.mean), problem.unit.shape[-1]
    found = _active_set(problem, problem.mean.new_zeros(size), SETS)
    left = (~found.solved).nonzero()[:, 0]
    if len(left):
        more = _interior(problem.some(left))
        for whole, some in zip(found, more, strict=True):
            whole[left] = some if whole is not found.solves else whole[left] + some
    return found


def terms_of(prior: Prior, u: Tensor) -> Tensor:  # (P, N + K)
    """The sizes of the terms of points and rows."""
    return torch.cat([u.abs(), prior.rows.sizes(u.abs())], -1)


def _active_set(
    problem: Programme, active: Tensor, rounds: int, force: Tensor | None = None
) -> Nearest:
    """Rounds of the active set. force: of the interior point, a certificate; then rows are only
    added."""
    finish, found = force is not None, Nearest.of(problem, active)
    left = torch.arange(len(active), device=active.device)
    patience, last = torch.full_like(left, PATIENCE), torch.full_like(left, active.shape[-1] + 1)
    for _ in range(rounds):
        u, push = problem.held(active)
        short, over, met = _misses(problem, u, active, push)
        size = (push * problem.unit).abs()
        largest = torch.where(active != 0, size, 0.0).amax(-1, keepdim=True).clamp_min(1.0)
        wrong = active * push * problem.unit < -CERTAIN * largest
        half, distance = problem.least(push)
        if force is not None:
            other, _ = problem.least(force)
            half = torch.maximum(half, other)
        energy = problem.energy(push) / 2
        rounded = 64 * EPS * (push.abs() * problem.scale).sum(-1)
        good = met & ~(short | over).any(-1) & (energy - half <= OPTIMAL * energy + rounded)
        new = active if finish else torch.where(wrong, 0.0, active)
        new = torch.where(short & (active == 0), 1.0, new)
        new = torch.where(over & (active == 0), -1.0, new)
        changes = (new != active).sum(-1)
        patience = patience - (changes >= last).long()
        stop, last = good | (changes == 0) | (patience < 0), changes
        for whole, some in zip(found, (u, active, push, good), strict=False):
            whole[left] = some
        found.distance[left] = torch.maximum(found.distance[left], distance)
        found.solves[left] += 1
        keep = (~stop).nonzero()[:, 0]
        if not len(keep):
            break
        left, active, problem = left[keep], new[keep], problem.some(keep)
        patience, last = patience[keep], last[keep]
        force = None if force is None else force[keep]
    return found


def _misses(
    problem: Programme, u: Tensor, active: Tensor, force: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Which numbers are below their bounds, or above; and whether those held are met, (P,)."""
    at, terms = problem.prior.read(u), terms_of(problem.prior, u)
    near = INSIDE * problem.unit + 16 * EPS * terms
    target = torch.where(
        active > 0, problem.low, torch.where(active < 0, problem.high, problem.value)
    )
    said = (active != 0) | (problem.precision > 0)
    off = torch.where(said, target - problem.noise * force - at, 0.0)
    law = (INSIDE * problem.prior.variances.sqrt()) * 10
    allowed = torch.maximum(near, law)
    return at < problem.low - near, at > problem.high + near, (off.abs() <= allowed).all(-1)


class _Slacks:
    """Where the interior point is: slacks s and multipliers z of lower and upper bounds, (2, P, M),
    in units of each number."""

    def __init__(self, problem: Programme, u: Tensor) -> None:
        at = problem.prior.read(u)
        away = torch.stack([at - problem.low, problem.high - at]) / problem.unit
        self.has = away.isfinite()
        self.s = torch.where(self.has, away.abs().clamp_min(1.0), 1.0)
        self.z = self.has.to(u.dtype)
        self.rate = self.s, self.z  # of each in the last step
        self.last = self.s[0, :, :1]  # the share of the last step

    @property
    def gap(self) -> Tensor:  # (P,)
        return (self.s * self.z).sum((0, 2))

    @property
    def pairs(self) -> Tensor:
        return self.has.sum((0, 2)).clamp_min(1)

    def some(self, keep: Tensor) -> None:
        """Only the parts that `keep` picks."""
        self.s, self.z, self.has = self.s[:, keep], self.z[:, keep], self.has[:, keep]

    def active(self, by_rate: bool) -> Tensor:
        """Numbers that are at a bound: their slack is the lesser, or falls faster."""
        held = self.has & (self.rate[1] > self.rate[0] if by_rate else self.z > self.s)
        return held[0].to(self.s.dtype) - held[1].to(self.s.dtype)

    def move(self, ds: Tensor, dz: Tensor) -> None:
        """Most of the way to the boundary."""
        a = torch.minimum(_longest(self.s, ds), _longest(self.z, dz))
        step = (FRACTION * a).clamp(max=1.0)[:, None]
        self.rate = 1 + step * ds / self.s, 1 + step * dz / self.z.clamp_min(TINY)
        self.s = torch.where(self.has, self.s + step * ds, 1.0)
        self.z, self.last = torch.where(self.has, self.z + step * dz, 0.0), step


def _interior(problem: Programme) -> Nearest:
    """Mehrotra's method, each part until its active set is right."""
    count, size = len(problem.mean), problem.unit.shape[-1]
    found = Nearest.of(problem, problem.mean.new_zeros(count, size))
    left = torch.arange(count, device=problem.mean.device)
    u, _ = problem.held(torch.zeros_like(found.active))
    at = _Slacks(problem, u)
    for number in range(1, ROUNDS + 1):
        to, force = _step(problem, at)
        u = u + at.last * (to - u)
        found.solves[left] += 2
        found.distance[left] = torch.maximum(found.distance[left], problem.least(force)[1])
        found.u[left], found.force[left] = u, force
        done = found.distance[left] > BEYOND
        look = (at.gap <= FINISHED * (problem.energy(force) + FLOOR)) | (number % LOOK == 0)
        if bool(look.any()):
            some = look.nonzero()[:, 0]
            own = torch.where(problem.precision > 0, force, (at.z[0] - at.z[1]) / problem.unit)
            active = at.active(by_rate=number % 2 == 1)
            tried = _active_set(problem.some(some), active[some], FINISH, own[some])
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
            at.some(keep)
    return found


def _step(problem: Programme, at: _Slacks) -> tuple[Tensor, Tensor]:
    """One predictor and corrector: moves slacks and multipliers; the full step of u, its forces."""
    s, z, has, unit, law = at.s, at.z, at.has, problem.unit, problem.precision > 0
    low, high = (
        torch.where(h, x, 0.0) for h, x in zip(has, (problem.low, problem.high), strict=True)
    )
    w = z / s / unit.square()
    total = w.sum(0)
    given, first = Given(problem.prior, total + problem.precision), w[0] >= w[1]

    def newton(t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        aim = unit * (s + torch.where(has, t / z.clamp_min(TINY), 0.0))
        y = (w[0] * (low + aim[0]) + w[1] * (high - aim[1])) / total.clamp_min(TINY)
        to, force = given.at(problem.mean, torch.where(law, problem.value, y))
        q, f = problem.prior.read(to), force * unit
        ds = torch.where(has, torch.stack([q - low, high - q]) / unit - s, 0.0)
        new = torch.where(has, (t - z * ds) / s, 0.0)
        # the larger of the two from the solve: later the other formula loses its digits
        new = torch.stack(
            [torch.where(first, f + new[1], new[0]), torch.where(first, new[1], new[0] - f)]
        )
        return to, force, ds, torch.where(has & ~law, new, 0.0) - z

    gap = at.gap / at.pairs
    _, _, ds, dz = newton(torch.zeros_like(s))
    a, b = (_longest(x, dx).clamp(max=1.0)[:, None] for x, dx in ((s, ds), (z, dz)))
    after = ((s + a * ds) * (z + b * dz) * has).sum((0, 2)) / at.pairs
    aim = (after / gap.clamp_min(TINY)).clamp(0, 1) ** 3 * gap
    to, force, ds, dz = newton(torch.where(has, aim[:, None] - ds * dz, 0.0))
    at.move(ds, dz)
    return to, force


def _longest(x: Tensor, dx: Tensor) -> Tensor:  # (2, P, M) to (P,)
    """The longest step that keeps x positive."""
    return torch.where(dx < 0, -x / dx, torch.inf).amin((0, 2))
