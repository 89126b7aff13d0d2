r"""The most probable fields that obey laws, of which some are not linear: Gauss-Newton.

    minimise   1/2 |u - mu|^2 + 1/2 sum over noisy rows of ((f(u) - b) / sigma)^2
    subject to f(u) = b in exact rows,   |.| the norm of Sigma^-1

Each step takes the linear laws as they are and the others linearised at u, and conditions the prior
on all of them at once. A step that does not lower

    merit   the sum above + sum over exact rows of weight |f(u) - b|

is bent back to the law, then shortened. Where steps do not shrink fast, the second derivative of
the laws is added. Sigma^-1 is never needed: u - mu = Sigma a, and a is kept.
"""

from typing import Any

import torch
from torch import Tensor

from ._errors import DegenerateError, InfeasibleError
from ._factor import TINY
from ._linearised import Look, Problem, Step

MET = 1e-12  # of |b| + |J| |u|: what an exact row may miss
STATIONARY = 1e-7  # of the way from the prior: the longest step that is left
LIMIT = 100  # steps
SHORTEST = 2.0**-30  # share of a step
LOWER = 1e-4  # share of the expected decrease that a step must bring
ROUNDING = 64 * torch.finfo(torch.float64).eps
SOON, LATER = 4, 20  # steps after which the second derivative is used, for few rows and for many
INNER = 50  # products with the second derivative in one step
CLOSE, CLOSER = 1e-2, 1e-12  # to which these solve: for a step, for a gradient


@torch.no_grad()
def most_probable(given: Problem, name: str = "solution", first: int = 0) -> Tensor:  # (P, N)
    """The fields, each part by its own number of steps; or an error.

    name: what errors call a part. first: the number of the first one.
    """
    problem = given._map(Tensor.detach)
    u, found = problem.mean, torch.empty_like(problem.mean)
    a, left = torch.zeros_like(u), torch.arange(len(u), device=u.device)
    done, weights = torch.zeros_like(left, dtype=torch.bool), torch.zeros_like(problem.value)
    look = problem.look(u)
    for number in range(LIMIT):
        step = problem.step(look)
        where = f"{name} {{}}", left + first, number
        _check_defined(step, *where)
        multiplier, there = step.solved()
        terms = step.terms()
        now = _arrived(step, a, there, terms) & ~done
        found[left[now]] = u[now]
        done = done | now
        if bool(done.all()):
            return found
        if 2 * int(done.sum()) > len(done):  # go on with the others alone
            keep = (~done).nonzero()[:, 0]
            parts = left, u, a, there, multiplier, terms, weights, done
            left, u, a, there, multiplier, terms, weights, done = (x[keep] for x in parts)
            problem = problem.some(keep)
            step = problem.step(problem.look(u))
            where = where[0], left + first, number
        _check_movable(step, terms, *where)
        weights = torch.where(problem.exact, torch.maximum(2 * multiplier.abs(), weights), 0.0)
        slack = MET * (weights * terms).sum(-1)
        if number >= (SOON if problem.is_dense else LATER):
            there = _newton(step, a, there, multiplier)
        look, a, stuck = _searched(step, a, there, weights, slack, done)
        u = look.u
        if bool(stuck.any()):
            raise InfeasibleError(_explained(step, stuck, *where))
    raise InfeasibleError(_explained(problem.step(look), ~done, *where))


def _arrived(step: Step, a: Tensor, there: Tensor, terms: Tensor) -> Tensor:  # (P,)
    """Whether u is feasible, and the step from it is next to nothing."""
    problem, u = step.problem, step.look.u
    new = problem.away(there)
    feasible = ((step.look.misses.abs() <= MET * terms) | ~problem.exact).all(-1)
    length, reach = _dot(there - a, new - u).abs(), _dot(there, new - problem.mean).abs()
    floor = (ROUNDING * problem.size(u)).square()
    return feasible & (length <= STATIONARY**2 * reach + floor)


def _newton(step: Step, a: Tensor, there: Tensor, multiplier: Tensor) -> Tensor:
    """a of where the step goes if the second derivative counts; `there` where it has no minimum."""
    move = step.problem.times(there - a)
    change, fine = _solved_on_tangent(step, multiplier, -step.curvature(multiplier, move), CLOSE)
    return torch.where(fine[:, None], there + change, there)


def _solved_on_tangent(
    step: Step, multiplier: Tensor, g: Tensor, close: float
) -> tuple[Tensor, Tensor]:
    """a of x = Sigma a with (P^-1 + W) x = g along the laws, and whether that is a minimum.

    By conjugate gradients, with P, the covariance that is left, as the inverse of the first part.
    """
    times = step.problem.times
    r, x = g, torch.zeros_like(g)
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
        fine = fine & (~going | (curve > 0))
        share = torch.where(going & fine, size / curve, 0.0)[:, None]
        x, r = x + share * s, r - share * product
        z = step.tangent(r)
        new = _dot(r, times(z)).clamp_min(0)
        more = torch.where(going, new / size.clamp_min(TINY), 0.0)[:, None]
        s, h, size = z + more * s, r + more * h, new
    return x, fine & x.isfinite().all(-1)


def _searched(
    step: Step, a: Tensor, there: Tensor, weights: Tensor, slack: Tensor, done: Tensor
) -> tuple[Look, Tensor, Tensor]:
    """The next u and its a, and which parts found no step that lowers the merit.

    done: parts that need none.
    """
    problem, misses, u = step.problem, step.look.misses, step.look.u
    noisy = torch.where(problem.exact, 0.0, 1 / torch.where(problem.exact, 1.0, problem.noise))

    def merit(at: Look, of: Tensor) -> Tensor:
        rows = noisy * at.misses.square() / 2 + weights * at.misses.abs()
        return _dot(of, at.u - problem.mean) / 2 + rows.sum(-1)

    before = merit(step.look, a)
    moves = problem.away(there) - u
    slope = noisy * misses * step.along(moves) - weights * misses.abs()
    slope = _dot(a, moves) + slope.sum(-1)
    slack = slack + 1e-13 * before.abs()

    def lowers(at: Look, of: Tensor, share: Any) -> Tensor:
        return merit(at, of) <= before + LOWER * share * slope + slack

    full = problem.look(problem.away(there))
    ok = lowers(full, there, 1.0) | done
    if bool(ok.all()):
        return full, there, ~ok
    bent = there + step.bent(torch.where(full.misses.isfinite(), full.misses, 0.0))
    at = problem.look(problem.away(bent))
    best_a = torch.where(ok[:, None], there, a)
    better = lowers(at, bent, 1.0) & ~ok
    best_a, ok = torch.where(better[:, None], bent, best_a), ok | better
    share = torch.ones_like(before)
    while not bool(ok.all()):
        share = torch.where(ok, share, share / 2)
        if bool((share < SHORTEST).any()):
            break
        next_a = torch.lerp(a, there, share[:, None])
        better = lowers(problem.look(problem.away(next_a)), next_a, share) & ~ok
        best_a, ok = torch.where(better[:, None], next_a, best_a), ok | better
    return problem.look(problem.away(best_a)), best_a, ~ok


def with_gradient(problem: Problem, u: Tensor) -> Tensor:
    """`u`, where the steps of `problem` stay, with its gradient.

    u = step(u; theta) gives du = (1 + P W)^-1 d step / d theta. A gradient g of u is that of one
    step for g - W x, with (P^-1 + W) x = g along the laws.
    """
    with torch.no_grad():
        start = problem._map(Tensor.detach)
        here = start.step(start.look(u.detach()))
        multiplier = here.solved()[0]
    with torch.enable_grad():
        found = problem.away(problem.step(problem.look(u.detach())).solved()[1])

    @torch.no_grad()
    def backward(g: Tensor) -> Tensor:
        x, fine = _solved_on_tangent(here, multiplier, g, CLOSER)
        if not bool(fine.all()):
            raise DegenerateError(
                "there is no gradient here: fields given laws that are not linear are not at a "
                "minimum in every direction. Give the laws `noise`, or the prior less variance."
            )
        return g - here.curvature(multiplier, start.times(x))

    if found.requires_grad:
        found.register_hook(backward)
    return u.detach() + (found - found.detach())


def _dot(x: Tensor, y: Tensor) -> Tensor:  # (P, N), (P, N) to (P,)
    return torch.linalg.vecdot(x, y)


def _check_defined(step: Step, name: str, left: Tensor, number: int) -> None:
    misses = step.look.misses
    if not bool(misses.isfinite().all()):
        row, part = _worst((~misses.isfinite()).double())
        raise InfeasibleError(
            f"{step.problem.named(row)} is NaN or infinite at step {number} of "
            f"{name.format(int(left[part]))}. The function must be defined wherever the prior puts "
            "the field: give the prior less variance, or a function that is defined everywhere (a "
            "logarithm of what may be negative is not)."
        )


def _check_movable(step: Step, terms: Tensor, name: str, left: Tensor, number: int) -> None:
    """Every exact row that is not met can be moved."""
    problem, misses = step.problem, step.look.misses
    fixed = problem.exact & (misses.abs() > MET * terms) & (step.variance() <= TINY)
    if bool(fixed.any()):
        row, part = _worst(fixed.double())
        raise DegenerateError(
            f"{problem.named(row)} cannot be moved at step {number} of "
            f"{name.format(int(left[part]))}, where it is off by {float(misses[part, row]):.3g}: "
            "its gradient is zero there, or the variance of the points that it reads. Ways out: a "
            "prior mean where the gradient is not zero, more variance, `noise` on the law, or a "
            "function without `detach` or rounding."
        )


def _worst(share: Tensor) -> tuple[int, int]:
    """Row and part of the largest."""
    part, row = torch.unravel_index(share.argmax(), share.shape)
    return int(row), int(part)


def _explained(step: Step, stuck: Tensor, name: str, left: Tensor, number: int) -> str:
    problem = step.problem
    misses = step.look.misses.abs() * problem.exact * stuck[:, None]
    share = misses / step.terms().clamp_min(TINY)
    row, part = _worst(share)
    state = (
        f"{problem.named(row)} is off by {float(misses[part, row]):.3g} "
        f"({float(share[part, row]):.1e} of its terms)"
        if float(share.max()) > MET
        else "the laws hold, but the state is not the most probable one yet"
    )
    count = int(stuck.sum())
    return (
        f"{count} {name.split()[0]}{'s' * (count != 1)} did not get to the laws after {number + 1} "
        f"steps: in {name.format(int(left[part]))} {state}. Either no state near the prior obeys "
        "them, or they contradict each other, or they are bent too much beside the variance. Ways "
        "out: check `value`, give the law `noise`, start from a better mean, or give less variance "
        "to what the law should not move."
    )
