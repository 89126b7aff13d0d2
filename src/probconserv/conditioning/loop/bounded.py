"""Laws that need not be linear, within inequalities: steps whose fields obey the inequalities.

Each step of Gauss-Newton takes the laws as they are at u and finds the nearest field within the
inequalities, in place of one linear solve.
"""

from typing import Any

import torch
from torch import Tensor

from ...laws.inequalities import Limits
from ...support.tolerances import EPS, INSIDE, SETTLED, TINY
from .given import Given, Prior
from .gradient import nearest_with_gradient
from .linearised import DenseStep, Linearisation, NonlinearProblem, joined
from .programme import Nearest, Programme, in_units, nearest
from .within import rows_that_rise

SETTLING = 4  # times that rounding is taken off


class Bounded(NonlinearProblem):
    """Fields given laws, within inequalities; see `NonlinearProblem`."""

    loose = ("rising",)

    def __init__(self, *given: Any, low: Tensor, high: Tensor, slopes: tuple[Any, ...]) -> None:
        """low, high: (P, N). slopes: of each field, (axis, sign) along which values rise."""
        super().__init__(*given)
        self.low, self.high, self.slopes = low, high, slopes
        self.rising = rows_that_rise(slopes, self.shapes).to(low.device)  # (K, N)

    def held(self, u: Tensor) -> Tensor:
        """u, which obeys up to rounding, exactly within the inequalities."""
        fields = zip(*(self.fields(x) for x in (u, self.low, self.high)), strict=True)
        each = zip(fields, self.slopes, strict=True)
        return joined([Limits(low, high, own).holding(x) for (x, low, high), own in each])

    def broken(self, u: Tensor) -> Tensor:  # (P, N + K)
        """By how much points and differences lie outside."""
        points = torch.maximum(self.low - u, u - self.high).clamp_min(0)
        return torch.cat([points, (-u @ self.rising.mT).clamp_min(0)], -1)

    def is_within(self, u: Tensor) -> Tensor:  # (P,)
        near = INSIDE * self.variance.sqrt() + 16 * EPS * u.abs()
        near = torch.cat([near, near @ self.rising.mT.abs()], -1)
        return (self.broken(u) <= near).all(-1)

    def step(self, look: Linearisation) -> "BoundedStep":
        return BoundedStep(self, look)


class BoundedStep(DenseStep):
    """The laws as they are at u, and the nearest field within the inequalities."""

    problem: Bounded

    def __init__(self, problem: Bounded, look: Linearisation) -> None:
        super().__init__(problem, look)
        self.found: Nearest | None = None

    def programme(self, elastic: bool = False) -> Programme:
        """elastic: exact laws that are not linear may give way, where they leave no field."""
        problem, wide = self.problem, len(self.rows)
        rising = problem.rising.expand(wide, -1, -1)
        rest = problem.rest
        rest = problem.mean.new_zeros(1, problem.mean.shape[-1]) if rest is None else rest
        prior = Prior(rest, problem.directions, torch.cat([rising, self.rows], 1))
        before = problem.mean.shape[-1] + len(problem.rising)
        value = self.along(self.look.u) - self.look.misses
        value = torch.cat([value.new_zeros(wide, before), value], -1)
        noise = problem.noise
        if elastic:
            noise = torch.where(noise == 0, self.variance(), noise)
        precision = torch.cat([noise.new_zeros(wide, before), 1 / noise], -1)
        free = torch.full_like(noise, torch.inf)
        rise = noise.new_zeros(wide, len(problem.rising))
        low = torch.cat([problem.low, rise, -free], -1)
        high = torch.cat([problem.high, torch.full_like(rise, torch.inf), free], -1)
        return in_units(prior, problem.mean, value, precision, low, high)[0]

    @property
    def nearest(self) -> Nearest:
        if self.found is None:
            with torch.no_grad():
                self.found = nearest(self.programme().detached())
                wrong = (~self.found.solved).nonzero()[:, 0]
                if len(wrong):
                    more = nearest(self.programme(elastic=True).detached().some(wrong))
                    for whole, some in zip(self.found, more, strict=True):
                        whole[wrong] = some
        return self.found

    def multiplier(self, close: float = 0.0) -> Tensor:
        return -self.nearest.force[:, -self.rows.shape[1] :]

    @property
    def penalty(self) -> Tensor:  # (P, 1)
        """The weight of what lies outside, beside the distance."""
        outside = self.nearest.force[:, : -self.rows.shape[1]]
        return 2 * outside.abs().amax(-1, keepdim=True)

    def solved(self, a: Tensor) -> tuple[Tensor, Tensor]:
        force, count = self.nearest.force, self.problem.mean.shape[-1]
        points, rising, rows = force.split(
            [count, len(self.problem.rising), self.rows.shape[1]], -1
        )
        pushed = points + rising @ self.problem.rising + self.back(rows)
        return -rows, pushed - a

    def _held(self) -> Given:
        """The prior given the laws as they are and what is at a bound."""
        problem = self.programme().detached()
        return Given(
            problem.prior, torch.where(self.nearest.active != 0, torch.inf, problem.precision)
        )

    def tangent(self, r: Tensor) -> Tensor:
        given = self._held()
        none = r.new_zeros(len(r), given.said.shape[-1])
        _, force = given.once(self.problem.times(r), none)
        return r + given.prior.pushed(force)

    def bent(self, misses: Tensor) -> Tensor:
        given = self._held()
        none = misses.new_zeros(len(misses), given.said.shape[-1] - misses.shape[-1])
        wanted = torch.cat([none, -misses * self.problem.exact], -1)
        _, force = given.once(torch.zeros_like(self.problem.mean), wanted)
        return given.prior.pushed(force)

    def finished(self) -> Tensor:
        """u with points at their bounds, and the rounding taken off exact rows."""
        problem, count, given = self.problem, self.problem.mean.shape[-1], self._held()
        side, u = self.nearest.active[:, :count], self.look.u
        none = u.new_zeros(len(u), given.said.shape[-1] - self.rows.shape[1])
        for _ in range(SETTLING):
            u = torch.where(side > 0, problem.low, torch.where(side < 0, problem.high, u))
            u = problem.held(u)
            misses = problem.look(u).misses * problem.exact
            if bool((misses.abs() <= SETTLED * self.terms().clamp_min(TINY)).all()):
                break
            wanted = torch.cat([none, -misses], -1)
            u = u + given.once(torch.zeros_like(u), wanted)[0]
        return problem.held(u)

    def response(self) -> Tensor:
        found = self.nearest
        return nearest_with_gradient(self.programme(), self.look.u, found.active, found.force)
