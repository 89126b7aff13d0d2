r"""The most probable fields that obey laws, of which some are not linear: Gauss-Newton.

    minimise   1/2 |u - mu|^2 + 1/2 sum over noisy rows of ((f(u) - b) / sigma)^2
    subject to f(u) = b in exact rows,   |.| the norm of Sigma^-1

Each step takes the linear laws as they are and the others linearised at u, and conditions the prior
on all of them at once. A step that does not lower

    merit   the sum above + sum over exact rows of weight |f(u) - b|

is bent back to the law, then shortened. Where steps do not shrink fast, the second derivative of
the laws is added. Sigma^-1 is never needed: u - mu = Sigma a, and a is kept.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...support.errors import DegenerateError, InfeasibleError, ProbConservError
from ...support.gradients import as_if
from ...support.tolerances import ENOUGH_LOWER, HOLDS, ROUNDED, SETTLED, STATIONARY, TINY
from .linearised import Linearisation, NonlinearProblem, Step

LIMIT, FEW = 100, 30  # steps: in all, and to one of the draws between
SHORTEST = 2.0**-30  # share of a step
TURN = 0.5  # of a step: what it may be bent by
KICK, SEED = 0.3, 1  # standard deviations by which a saddle is left, in a direction drawn from this
ROUNDING = 64 * torch.finfo(torch.float64).eps
SOON, LATER = 4, 20  # steps after which the second derivative is used, for few rows and for many
INNER = 50  # products with the second derivative in one step
CLOSE = 1e-2  # to which these solve for a step


PART = "{part}"  # no format: names of laws may hold braces


class Failure(NamedTuple):
    """Why a part does not get to the laws."""

    kind: type[ProbConservError]
    text: str  # with `PART` in place of its name


@torch.no_grad()
def most_probable(
    given: NonlinearProblem, near: Tensor | None = None, limit: int = LIMIT
) -> tuple[Tensor, dict[int, Failure]]:  # (P, N)
    """The fields, each part by its own number of steps; and which parts did not get there.

    near: fields at which the laws are linearised for the first step, if not at the mean. limit: of
    steps.
    """
    problem = given._map(Tensor.detach)
    found = torch.full_like(problem.mean, torch.nan)
    left = torch.arange(len(found), device=found.device)
    weights, failed = torch.zeros_like(problem.value), dict[int, Failure]()
    a = problem.start()
    if near is not None and len(near):
        a = problem.step(problem.look(near)).aimed()
    u = problem.mean + problem.times(a)
    look = problem.look(u) if len(u) else None
    for number in range(limit + 1):
        if look is None:
            break
        step = problem.step(look)
        kick, done, wrong = torch.zeros_like(a), torch.zeros_like(left, dtype=torch.bool), {}
        if not (wrong := _undefined(step, number)):
            multiplier, change = step.solved(a)
            wrong = {} if number else _refused(step)
        if not wrong:
            terms = step.terms()
            still = _arrived(step, a, change, terms)
            if number == limit:
                wrong, done = _stuck(step, ~still, number - 1), still
            elif 2 * int(still.sum()) > len(still):  # look at these, go on with the others alone
                kick = _off_the_top(step, multiplier, still)
                done = still & (kick == 0).all(-1)
            elif not (wrong := _unmovable(step, terms, number)):
                least = 2 * multiplier.abs()
                weights = torch.maximum(least, (least + weights) / 2) * problem.exact
                slack = ((HOLDS * weights + _rounded(step)) * terms).sum(-1)
                to = step.reached(change)
                if number >= (SOON if problem.is_dense else LATER):
                    change = _newton(step, change, multiplier)
                    to = u + problem.times(change)
                before, short = u, step.gave & _is_short(problem, a, change)
                look, a, stuck = _searched(step, a, change, to, weights, slack, still)
                stuck = stuck | (~still & (short | (look.u == before).all(-1)))
                u, wrong = look.u, _stuck(step, stuck, number)
        if wrong or bool(done.any()) or bool(kick.any()):
            failed |= {int(left[i]): each for i, each in wrong.items()}
            found[left[done]] = step.finished(done)[done] if bool(done.any()) else u[done]
            ends = done.clone()
            ends[list(wrong)] = True
            keep = (~ends).nonzero()[:, 0]
            parts = left, a + kick, weights, u + problem.times(kick)
            left, a, weights, u = (x[keep] for x in parts)
            problem = problem.some(keep)
            look = problem.look(u) if len(u) else None
    return found, failed


def along_the_way(
    given: NonlinearProblem, mean: Tensor, value: Tensor, near: Tensor, stages: int
) -> tuple[Tensor, dict[int, Failure]]:
    """As `most_probable`, for draws that are far: by draws between, each from the one before.

    mean, value: of the fields `near` that obey the laws. stages: draws on the way.
    """
    found, failed = torch.full_like(near, torch.nan), dict[int, Failure]()
    left, u = torch.arange(len(near), device=near.device), near
    for stage in range(1, stages + 1 if len(left) else 0):
        some = given._map(Tensor.detach).some(left)
        pairs = (mean[left], some.mean), (value[left], some.value)
        some.mean, some.value = (torch.lerp(x, y, stage / stages) for x, y in pairs)
        u, wrong = most_probable(some, u, FEW)
        failed |= {int(left[i]): each for i, each in wrong.items()}
        keep = torch.ones_like(left, dtype=torch.bool)
        keep[list(wrong)] = False
        left, u = left[keep], u[keep]
    found[left] = u
    return found, failed


def _arrived(step: Step, a: Tensor, change: Tensor, terms: Tensor) -> Tensor:  # (P,)
    """Whether u is feasible, and the step from it is next to nothing."""
    problem = step.problem
    feasible = (problem.missed(step.look.misses) <= HOLDS * terms + step.near).all(-1)
    stays = (step.reached(change) == step.look.u).all(-1) | _is_short(problem, a, change)
    return feasible & problem.is_within(step.look) & stays


def _is_short(problem: NonlinearProblem, a: Tensor, change: Tensor) -> Tensor:  # (P,)
    """Whether a step is next to nothing, beside the way from the mean."""
    length, reach = (_dot(x, problem.times(x)).abs() for x in (change, a + change))
    floor = (ROUNDING * (problem.size + reach.sqrt())).square()
    return length <= STATIONARY**2 * reach + floor


def _off_the_top(step: Step, multiplier: Tensor, now: Tensor) -> Tensor:  # (P, N)
    """A change of a for parts that have arrived at a saddle; 0 for all others.

    There the probability rises along some direction, and that is the change.
    """
    problem = step.problem
    none = torch.zeros_like(problem.mean)
    if not problem.is_dense or not problem.curved or not bool(now.any()):
        return none
    generator = torch.Generator().manual_seed(SEED)
    random = torch.randn(problem.mean.shape[1:], generator=generator, dtype=none.dtype).to(none)
    moves, scale = problem.variance > TINY, problem.variance.clamp_min(TINY).rsqrt()
    start = torch.where(moves, random * scale, 0.0)
    _, fine, down = _solved_on_tangent(step, multiplier, start, CLOSE)
    whole, size = (_dot(x, problem.times(x)) for x in (start, down))
    falls = now & ~fine & (size > ROUNDING * whole)  # else none is known
    down = down * size.clamp_min(TINY).rsqrt()[:, None]
    return torch.where(falls[:, None], KICK * down, none)


def _rounded(step: Step) -> Tensor:  # (P, K)
    """What the rounding of a noisy row's terms makes of the merit, for each of its terms."""
    problem = step.problem
    noise = torch.where(problem.exact, torch.inf, problem.noise)
    return ROUNDED * step.look.misses.abs() / noise


def _newton(step: Step, change: Tensor, multiplier: Tensor) -> Tensor:
    """The change of a if the second derivative counts, where that stays within inequalities."""
    problem, look = step.problem, step.look
    bend = step.curvature(multiplier, problem.times(change))
    more, _, _ = _solved_on_tangent(step, multiplier, -bend, CLOSE)
    whole = change + more
    move = problem.times(whole)
    there = look._replace(u=look.u + move, misses=look.misses + step.along(move))
    limits = problem.missed(there.misses) * ~problem.exact
    within = problem.is_within(there) & (limits <= HOLDS * step.terms() + step.near).all(-1)
    return torch.where((more.isfinite().all(-1) & within)[:, None], whole, change)


def _solved_on_tangent(
    step: Step, multiplier: Tensor, g: Tensor, close: float
) -> tuple[Tensor, Tensor, Tensor]:
    """a of x = Sigma a with (P^-1 + W) x = g along the laws, and whether that is a minimum.

    By conjugate gradients, with P, the covariance that is left, as the inverse of the first part.
    Where there is no minimum they end with one step downhill; last comes a of its direction.
    """
    times = step.problem.times
    r, x, down = g, torch.zeros_like(g), torch.zeros_like(g)
    z = step.tangent(r)
    s, h = z, r  # P^-1 of times(s) is h along the laws
    size = first = _dot(r, times(z)).clamp_min(0)
    fine = torch.ones_like(size, dtype=torch.bool)
    for _ in range(INNER):
        going = fine & (size > close**2 * first) & (size > TINY)
        if not bool(going.any()):
            break
        move = times(s)
        product = h + step.curvature(multiplier, move)
        curve = _dot(move, product)
        falls = going & (curve <= 0)
        down, fine = torch.where(falls[:, None], s, down), fine & ~falls
        scale = torch.where(falls, _dot(move, h), curve)  # without W where the sum has no minimum
        share = torch.where(going, size / scale, 0.0)[:, None]
        x, r = x + share * s, r - share * product
        z = step.tangent(r)
        new = _dot(r, times(z)).clamp_min(0)
        more = torch.where(going, new / size.clamp_min(TINY), 0.0)[:, None]
        s, h, size = z + more * s, r + more * h, new
    return x, fine & x.isfinite().all(-1), down


def _searched(
    step: Step,
    a: Tensor,
    change: Tensor,
    to: Tensor,
    weights: Tensor,
    slack: Tensor,
    still: Tensor,
) -> tuple[Linearisation, Tensor, Tensor]:
    """The next u and its a, and which parts found no step that lowers the merit.

    change: of a, by the full step, which leads to `to`. still: parts that need none.
    """
    problem, misses, u = step.problem, step.look.misses, step.look.u
    change = torch.where(still[:, None], 0.0, change)
    noisy = torch.where(problem.exact, 0.0, 1 / torch.where(problem.exact, 1.0, problem.noise))

    outside = step.penalty

    move, reach = problem.times(change), _dot(a, problem.times(a))

    def merit(at: Linearisation, energy: Tensor) -> Tensor:
        rows = noisy * at.misses.square() / 2 + weights * at.misses.abs()
        return energy / 2 + rows.sum(-1) + (outside * problem.broken(at)).sum(-1)

    before = merit(step.look, reach)
    near = Linearisation(u + move, misses + step.along(move), ())  # as the laws are here
    slope = noisy * misses * step.along(move) + weights * (near.misses.abs() - misses.abs())
    more = outside * (problem.broken(near) - problem.broken(step.look))
    slope = _dot(a, move) + slope.sum(-1) + more.sum(-1)
    slack = slack + SETTLED * before.abs()

    def tried(
        change: Tensor, move: Tensor, share: Any = 1.0, to: Tensor | None = None
    ) -> tuple[Linearisation, Tensor]:
        at = problem.look(u + move if to is None else to)
        energy = reach + 2 * _dot(a, move) + _dot(change, move)
        return at, merit(at, energy) <= before + ENOUGH_LOWER * share * slope + slack

    full, ok = tried(change, move, to=torch.where(still[:, None], u, to))
    ok = ok | still
    if bool(ok.all()):
        return full, a + change, ~ok
    best = torch.where(ok[:, None], change, 0.0)
    turn = step.bent(torch.where(full.misses.isfinite(), full.misses, 0.0))
    short = _dot(turn, problem.times(turn)) <= TURN**2 * _dot(change, move)
    bent, better = tried(change + turn, problem.times(change + turn))
    better = better & short & ~ok & problem.is_within(bent)
    best, ok = torch.where(better[:, None], change + turn, best), ok | better
    share = torch.ones_like(before)
    while not bool(ok.all()):
        share = torch.where(ok, share, share / 2)
        if bool((share < SHORTEST).any()):
            break
        some = share[:, None] * change
        better = tried(some, share[:, None] * move, share)[1] & ~ok
        best, ok = torch.where(better[:, None], some, best), ok | better
    return problem.look(u + problem.times(best)), a + best, ~ok


class Implicit(torch.autograd.Function):
    """Its input, with a gradient that is changed on the way back."""

    @staticmethod
    def forward(ctx: Any, found: Tensor, backward: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.backward_of = backward
        return found.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        if torch.is_grad_enabled():
            raise DegenerateError(
                "fields given laws that are not linear have first derivatives only: leave out "
                "`create_graph`."
            )
        return ctx.backward_of(g), None


def with_gradient(problem: NonlinearProblem, u: Tensor) -> Tensor:
    """`u`, where the steps of `problem` stay, with its gradient.

    u = step(u; theta) gives du = (1 + P W)^-1 d step / d theta. A gradient g of u is that of one
    step for g - W x, with (P^-1 + W) x = g along the laws.
    """
    problem = problem.of_gradients
    with torch.enable_grad():
        step = problem.step(problem.look(u.detach()))
        found = step.response()
    if not problem.curved:
        return as_if(u, found)
    with torch.no_grad():
        start = problem._map(Tensor.detach)
        here = start.step(start.look(u.detach())).knowing(step)
        multiplier = here.multiplier(HOLDS)

    def backward(g: Tensor) -> Tensor:
        x, fine, _ = _solved_on_tangent(here, multiplier, g, HOLDS)
        if not bool(fine.all()):
            raise DegenerateError(
                "there is no gradient here: fields given laws that are not linear are not at a "
                "minimum in every direction. Give the laws `noise`, or the prior less variance."
            )
        return g - here.curvature(multiplier, start.times(x))

    again: Tensor = Implicit.apply(found, backward)  # type: ignore[no-untyped-call]
    return as_if(u, again)


def _dot(x: Tensor, y: Tensor) -> Tensor:  # (P, N), (P, N) to (P,)
    return torch.linalg.vecdot(x, y)


def _undefined(step: Step, number: int) -> dict[int, Failure]:
    """Parts where a law or its gradient is not finite."""
    wrong = ~step.look.misses.isfinite()
    text = (
        f"{{row}} is NaN or infinite at step {number} of {{part}}. The function must be defined "
        "wherever the prior puts the field: give the prior less variance, or a function that is "
        "defined everywhere (a logarithm of what may be negative is not)."
    )
    if not bool(wrong.any()):
        wrong = ~step.is_finite()[:, None]
        text = (
            f"a gradient of {{laws}} is NaN or infinite at step {number} of {{part}}. The function "
            "must be smooth wherever the prior puts the field (the root of a number that may be 0 "
            "is not)."
        )
    return _failures(step, wrong, InfeasibleError, text)


def _refused(step: Step) -> dict[int, Failure]:
    """Parts in which no field obeys the linear laws within inequalities."""
    said = step.refused().items()
    return {i: Failure(InfeasibleError, f"{PART}: {text}") for i, text in said}


def _unmovable(step: Step, terms: Tensor, number: int) -> dict[int, Failure]:
    """Parts with an exact row that is not met and that nothing moves."""
    problem, misses = step.problem, step.look.misses
    fixed = problem.exact & (misses.abs() > HOLDS * terms) & (step.variance() <= TINY)
    text = (
        f"{{row}} cannot be moved at step {number} of {{part}}, where it is off by {{miss:.3g}}: "
        "its gradient is zero there, or the variance of the points that it reads, or no state "
        f"obeys it{problem.within}. Ways out: a `value` that can be reached, a prior mean where "
        "the gradient is not zero, more variance, `noise` on the law, or a function without "
        "`detach` or rounding."
    )
    return _failures(step, fixed, DegenerateError, text)


def _failures(
    step: Step, wrong: Tensor, kind: type[ProbConservError], text: str
) -> dict[int, Failure]:
    """What is said of parts with rows that are wrong, (P, K): of the first one of each."""
    found, laws = {}, " or ".join(step.problem.labels)
    for i in wrong.any(-1).nonzero()[:, 0].tolist():
        row = int(wrong[i].int().argmax())
        name, miss = step.problem.named(row), float(step.look.misses[i, row])
        found[i] = Failure(kind, text.format(row=name, part=PART, miss=miss, laws=laws))
    return found


def _stuck(step: Step, stuck: Tensor, number: int) -> dict[int, Failure]:
    """What is said of parts that find no better step."""
    if not bool(stuck.any()):
        return {}
    problem = step.problem
    misses = problem.missed(step.look.misses)
    share = misses / step.terms().clamp_min(TINY)
    wrong = {}
    for i in stuck.nonzero()[:, 0].tolist():
        row = int(share[i].argmax())
        state = (
            f"{problem.named(row)} is off by {float(misses[i, row]):.3g} "
            f"({float(share[i, row]):.1e} of its terms)"
            if float(share[i, row]) > HOLDS
            else "the laws hold, but the state is not the most probable one yet"
        )
        wrong[i] = Failure(
            InfeasibleError,
            f"{PART} did not get to the laws after {number + 1} steps: {state}. Either no state "
            f"near the prior obeys them{problem.within}, or they contradict each other, or they "
            "are bent too much beside the variance (a law with a kink, such as |u|, is bent "
            "most). Ways out: check `value`, give the law `noise`, start from a better mean, or "
            "give less variance to what the law should not move.",
        )
    return wrong
