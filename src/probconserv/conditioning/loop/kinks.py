"""Laws with kinks, such as the sum of |u|: the nearest field is often on the kinks themselves.

There no slope of the law is that of the next step, and Gauss-Newton turns from side to side. But
where a law that must come down is convex (or rise, concave), it lies above each of its tangents:

    f(u) >= f(u_j) + J_j (u - u_j)   at any place u_j,   so u obeys if each tangent does

The nearest field to which all tangents so far are inequalities is found, and its tangent joins
them, until the law holds. For laws that are linear between kinks there are few: one more than the
kinks that it ends on. At these places the law holds with several slopes at once, as exact rows.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ...support.tolerances import HALF_THE_DIGITS, HOLDS
from .given import Given, Prior, precision_of
from .gradient import nearest_with_gradient
from .linearised import DenseStep, NonlinearProblem
from .nearest import nearest
from .programme import Programme, in_units

ROUNDS = 60  # tangents at most


class Across(NamedTuple):
    """What was found of each part."""

    u: Tensor  # (P, N)
    solved: Tensor  # (P,)
    places: Tensor  # where the slopes are that hold at once, (P, C, N); u where there are fewer


class Tangents(NamedTuple):
    """The laws that are not linear, as they are at some places: C of them, K rows at each."""

    misses: Tensor  # f - b there, (P, C, K)
    rows: Tensor  # (P, C, K, N)
    places: Tensor  # (P, C, N)

    @classmethod
    def none(cls, step: DenseStep, start: int) -> "Tangents":
        """start: of the rows that are not linear."""
        own, rows, u = step.look.misses[:, None, start:], step.rows[:, None, start:], step.look.u
        return cls(own[:, :0], rows[:, :0], u[:, None][:, :0])

    def also(self, step: DenseStep, start: int) -> "Tangents":
        new = step.look.misses[:, None, start:], step.rows[:, None, start:], step.look.u[:, None]
        return Tangents(*(torch.cat(each, 1) for each in zip(self, new, strict=True)))

    @property
    def value(self) -> Tensor:  # (P, C K)
        """What rows times u is where a tangent holds."""
        return ((self.rows @ self.places[..., None])[..., 0] - self.misses).flatten(1)

    def are_below(self, side: Tensor, near: Tensor) -> Tensor:  # (P,)
        """Whether the law lies above each tangent at each of the other places."""
        apart = self.places[:, :, None] - self.places[:, None]  # (P, i, j, N)
        rise = (self.rows[:, None] @ apart[..., None])[..., 0]
        above = self.misses[:, :, None] - self.misses[:, None] - rise
        return (side[:, None, None] * above >= -near[:, None, None]).flatten(1).all(-1)


@torch.no_grad()
def across_kinks(given: NonlinearProblem) -> Across:
    """The nearest fields, of parts whose laws are linear between kinks."""
    problem = given._map(Tensor.detach)
    u, start = problem.mean, _start(problem)
    solved = torch.zeros_like(u[:, 0], dtype=torch.bool)
    if type(problem) is not NonlinearProblem or not _suits(problem, start):
        return Across(u, solved, u[:, None])
    step = DenseStep(problem, problem.look(u))
    once = torch.ones_like(problem.value)
    if not bool(_is_flat(step, once, problem.times(step.back(once))).any()):
        return Across(u, solved, u[:, None])
    found, side = u, step.look.misses[:, start:].sign()
    tangents = Tangents.none(step, start)
    for _ in range(ROUNDS):
        tangents = tangents.also(step, start)
        nearby = nearest(_programme(problem, tangents, side))
        step = DenseStep(problem, problem.look(nearby.u))
        near, misses = HOLDS * step.terms(), step.look.misses
        bad = (side * misses[:, start:] < -near[:, start:]).any(-1) | ~step.is_finite()
        new = (problem.missed(misses) <= near).all(-1) & ~bad & ~solved
        found, solved = torch.where(new[:, None], nearby.u, found), solved | new
        if bool((solved | bad).all()):
            break
    force = nearby.force[:, u.shape[-1] + start :].reshape(tangents.misses.shape)
    multiplier = torch.nn.functional.pad(force.sum(1), (start, 0))
    solved = solved & tangents.are_below(side, near[:, start:])
    solved = solved & _is_flat(step, multiplier, found - problem.mean)
    used = (force != 0).any(-1, keepdim=True)
    places = torch.where(used, tangents.places, found[:, None])
    return Across(found, solved, torch.cat([places, found[:, None]], 1))


def kinked_with_gradient(problem: NonlinearProblem, across: Across) -> Tensor:
    """The fields with their gradient: the laws hold with all their slopes at once."""
    start = _start(problem)
    tangents: Tangents | None = None
    for place in across.places.unbind(1):
        step = DenseStep(problem, problem.look(place))
        tangents = (tangents or Tangents.none(step, start)).also(step, start)
    assert tangents is not None
    held = _programme(problem, tangents, None)
    with torch.no_grad():
        plain = held.detached()
        _, force = Given(plain.prior, plain.precision).at(plain.mean, plain.value)
    return nearest_with_gradient(held, across.u, torch.zeros_like(force), force)


def _start(problem: NonlinearProblem) -> int:
    """How many rows are linear."""
    return sum(problem.counts[: len(problem.counts) - len(problem.curved)])


def _suits(problem: NonlinearProblem, start: int) -> bool:
    return problem.is_dense and bool(problem.exact[:, start:].all())


def _is_flat(step: DenseStep, multiplier: Tensor, v: Tensor) -> Tensor:  # (P,)
    """Whether the laws, with these multipliers, have no second derivative along v."""
    bend = step.problem.times(step.curvature(multiplier, v))
    return bend.abs().amax(-1) <= HALF_THE_DIGITS * v.abs().amax(-1)


def _programme(problem: NonlinearProblem, tangents: Tangents, side: Tensor | None) -> Programme:
    """The nearest field given the linear laws and tangents; side: of each row, where these are
    inequalities, 1 where the law must come down."""
    start, value = _start(problem), tangents.value
    bent = tangents.rows.flatten(1, 2)
    rows = torch.cat([problem.fixed.expand(len(bent), -1, -1), bent], 1)
    none = torch.zeros_like(problem.mean)
    rest = none[:1] if problem.rest is None else problem.rest
    prior = Prior(rest, problem.directions, rows)
    linear = problem.value[:, :start]
    target = torch.cat([none, linear, value], 1)
    known = torch.zeros_like(value) if side is not None else torch.full_like(value, torch.inf)
    precision = torch.cat([none, precision_of(problem.noise[:, :start]), known], 1)
    if side is None:
        free = torch.full_like(target, torch.inf)
        return Programme(prior, problem.mean, target, precision, -free, free, free)
    each = side.repeat(1, tangents.misses.shape[1])
    free = torch.full_like(torch.cat([none, linear], 1), torch.inf)
    low = torch.cat([-free, torch.where(each < 0, value, -torch.inf)], 1)
    high = torch.cat([free, torch.where(each > 0, value, torch.inf)], 1)
    return in_units(prior, problem.mean, target, precision, low, high)[0]
