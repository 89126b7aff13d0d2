"""The nearest field that obeys linear laws and inequalities: a loop of linear solves.

First an active set: numbers at their bound become exact, those pushed the wrong way are released,
broken ones added. Where that does not settle, an interior point (Mehrotra's predictor and
corrector): a bound with slack s and multiplier z is an observation of variance s / z. It is
finished by an active set again. Last, broken numbers are taken in one at a time. A field is taken
when it is feasible and its distance is that of a lower bound, by duality; a lower bound that is
very large proves that no field obeys.
"""

import torch
from torch import Tensor

from ...support.tolerances import CERTAIN, EPS, FINISHED, INSIDE, OPTIMAL, SMALL_SHARE, TINY
from .given import Given
from .programme import BEYOND, Nearest, Programme, terms_of

SETS, FINISH = 14, 3  # rounds of the active set: at first, and to finish
PATIENCE = 1  # rounds that may change no fewer numbers than the one before
ROUNDS, LOOK, TURNS = (
    40,
    16,
    300,
)  # of the interior point; how often the active set looks; one by one
FLOOR = 1e-3  # squared standard deviations, where a field hardly moves
FRACTION = 0.99  # of the way to the boundary


@torch.no_grad()
def nearest(problem: Programme, active: Tensor | None = None) -> Nearest:
    """The nearest field of each part. active: what may be at a bound, where that is known."""
    start = problem.mean.new_zeros(len(problem.mean), problem.unit.shape[-1])
    if active is not None:
        end = torch.where(active > 0, problem.low, problem.high)
        start = torch.where(end.isfinite(), active, start)
    found = _active_set(problem, start, SETS)
    left = (~found.solved).nonzero()[:, 0]
    if len(left):
        _put(found, left, _interior(problem.some(left)))
        left = (~found.solved & (found.distance <= BEYOND)).nonzero()[:, 0]
    if len(left):
        _put(found, left, _one_by_one(problem.some(left), found.active[left]))
    return found


def _put(found: Nearest, parts: Tensor, more: Nearest) -> None:
    """What was found later of some parts."""
    solves = found.solves[parts] + more.solves
    for whole, some in zip(found, more, strict=True):
        whole[parts] = some
    found.solves[parts] = solves


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
        short, over, good, distance = _looked_at(problem, u, active, push, force)
        wrong = _pushed_out(problem, active, push)
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


def _pushed_out(problem: Programme, active: Tensor, push: Tensor) -> Tensor:  # (P, N + K)
    """Which numbers at a bound would leave it."""
    size = (push * problem.unit).abs()
    largest = torch.where(active != 0, size, 0.0).amax(-1, keepdim=True).clamp_min(1.0)
    return active * push * problem.unit < -CERTAIN * largest


def _looked_at(
    problem: Programme, u: Tensor, active: Tensor, push: Tensor, force: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Which numbers are below their bounds, or above; whether u is the nearest field, and a lower
    bound of the distance, (P,). force: another certificate."""
    short, over, met = _misses(problem, u, active, push)
    half, distance = problem.least(push)
    if force is not None:
        half = torch.maximum(half, problem.least(force)[0])
    energy = problem.energy(push) / 2
    rounded = 64 * EPS * (push.abs() * problem.scale).sum(-1)
    good = met & ~(short | over).any(-1) & (energy - half <= OPTIMAL * energy + rounded)
    return short, over, good, distance


def _one_by_one(problem: Programme, active: Tensor) -> Nearest:
    """Numbers that break their bounds are taken in one at a time, the worst first, and let go where
    they no longer push inward (Goldfarb and Idnani). Slow, and sure: the distance only grows."""
    found = Nearest.of(problem, active)
    left, lean = torch.arange(len(active), device=active.device), torch.zeros_like(active)
    for _ in range(TURNS):
        w = torch.where(active != 0, torch.inf, problem.precision)
        end = torch.where(active > 0, problem.low, problem.high)
        given, prior = Given(problem.prior, w), problem.prior
        mean = problem.mean + prior.times(prior.pushed(lean))  # moved by what is being taken in
        u, push = given.at(mean, torch.where(active != 0, end, problem.value))
        short, over, good, distance = _looked_at(problem, u, active, push)
        out, at = _pushed_out(problem, active, push), prior.read(u)
        away = torch.maximum(problem.low - at, at - problem.high) / problem.unit
        worst = torch.where(lean != 0, torch.inf, torch.where(short | over, away, -torch.inf))
        k = torch.where(active == 0, worst, -torch.inf).argmax(-1, keepdim=True)
        side = (2.0 * (at < problem.low).to(at) - 1).gather(-1, k)
        one = torch.zeros_like(active).scatter(-1, k, side)
        move, turn = given.once(prior.times(prior.pushed(one)), torch.zeros_like(active))
        gain = (prior.read(move) * one).sum(-1)
        miss = (away * problem.unit).gather(-1, k)[:, 0]
        firm = gain > SMALL_SHARE * (prior.variances * one.square()).sum(-1)
        full = torch.where(firm, miss / torch.where(firm, gain, 1.0), torch.inf)
        inward, falls = (active * push).clamp_min(0), active * turn < 0
        used = torch.where(falls, -inward / torch.where(falls, active * turn, 1.0), torch.inf)
        share, j = used.min(-1)
        start = out.any(-1)
        taken = ~start & (full <= share)
        empty = ~start & full.isinf() & share.isinf()
        distance = torch.where(empty, problem.least(turn + one)[1], distance)
        first = torch.zeros_like(active).scatter(-1, j[:, None], 1.0) > 0
        gone = torch.where(start[:, None], out, ~(start | taken)[:, None] & first)
        found.solves[left] += 1
        for whole, some in zip(found, (u, active, push, good), strict=False):
            whole[left] = some
        found.distance[left] = torch.maximum(found.distance[left], distance)
        keep = (~(good | empty | (~start & ~(short | over).any(-1)))).nonzero()[:, 0]
        new = torch.where(gone, 0.0, torch.where(taken[:, None] & (one != 0), one, active))
        more = lean + torch.where(~(start | taken), share, 0.0)[:, None] * one
        lean = torch.where((start | taken)[:, None], 0.0, more)
        if not len(keep):
            break
        left, active, lean, problem = left[keep], new[keep], lean[keep], problem.some(keep)
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
            found.active[left[some]] = tried.active
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
