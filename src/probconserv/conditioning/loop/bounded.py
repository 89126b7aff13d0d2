"""Laws that need not be linear, within inequalities: steps whose fields obey the inequalities.

Each step of Gauss-Newton takes the laws as they are at u and finds the nearest field within the
inequalities, in place of one linear solve.
"""

from typing import Any

import torch
from torch import Tensor

from ...laws.inequalities import Limits
from ...support.errors import InputError
from ...support.tolerances import EPS, GIVES, INSIDE, SETTLED, TINY
from .given import Given, Prior
from .gradient import nearest_with_gradient
from .layout import check_size, pairs_that_rise, rows_that_rise
from .linearised import MOST_DENSE, DenseStep, Linearisation, NonlinearProblem, joined
from .programme import Nearest, Programme, in_units, nearest
from .reading import Full

SETTLING = 4  # times that rounding is taken off


class Bounded(NonlinearProblem):
    """Fields given laws, within inequalities; see `NonlinearProblem`."""

    loose = ("rising",)

    def __init__(self, *given: Any, low: Tensor, high: Tensor, slopes: tuple[Any, ...]) -> None:
        """low, high: (P, N). slopes: of each field, (axis, sign) along which values rise."""
        super().__init__(*given)
        if not self.is_dense:
            raise InputError(
                f"`laws`: these have {sum(self.counts)} rows in a part. Beside inequalities laws "
                f"that are not linear, limits of laws, and points without draws take up to "
                f"{MOST_DENSE}. Way out: laws at each time by itself."
            )
        self.low, self.high, self.slopes = low, high, slopes
        pairs, points = pairs_that_rise(slopes, self.shapes), low.shape[-1]
        check_size(points, len(pairs))
        self.rising = rows_that_rise(pairs, points).to_dense().to(low.device)  # (K, N)

    def held(self, u: Tensor) -> Tensor:
        """u, which obeys up to rounding, exactly within the inequalities."""
        fields = zip(*(self.fields(x) for x in (u, self.low, self.high)), strict=True)
        each = zip(fields, self.slopes, strict=True)
        return joined([Limits(low, high, own).holding(x) for (x, low, high), own in each])

    def broken(self, look: Linearisation) -> Tensor:
        """By how much points, differences and rows with one side lie outside."""
        wrong = self.missed(look.misses) * ~self.exact
        return torch.cat([self._outside(look.u), wrong], -1)

    def _outside(self, u: Tensor) -> Tensor:  # (P, N + K)
        points = torch.maximum(self.low - u, u - self.high).clamp_min(0)
        return torch.cat([points, (-u @ self.rising.mT).clamp_min(0)], -1)

    def is_within(self, look: Linearisation) -> Tensor:  # (P,)
        near = INSIDE * self.variance.sqrt() + 16 * EPS * look.u.abs()
        near = torch.cat([near, near @ self.rising.mT.abs()], -1)
        return (self._outside(look.u) <= near).all(-1)

    @property
    def side(self) -> Tensor:  # (K,)
        """Of each row: 1 at least, -1 at most, 0 a law."""
        sides = [side for side, n in zip(self.sides, self.counts, strict=True) for _ in range(n)]
        return torch.tensor(sides, device=self.low.device)

    def step(self, look: Linearisation) -> "BoundedStep":
        return BoundedStep(self, look)


class BoundedStep(DenseStep):
    """The laws as they are at u, and the nearest field within the inequalities."""

    problem: Bounded

    def __init__(self, problem: Bounded, look: Linearisation) -> None:
        super().__init__(problem, look)
        self.found: Nearest | None = None
        self.gave = torch.zeros_like(look.u[:, 0], dtype=torch.bool)  # parts where laws gave way

    def programme(self, elastic: bool = False) -> Programme:
        """elastic: exact laws that are not linear may give way, where they leave no field."""
        problem, wide = self.problem, len(self.rows)
        rising = problem.rising.expand(wide, -1, -1)
        rest = problem.rest
        rest = problem.mean.new_zeros(1, problem.mean.shape[-1]) if rest is None else rest
        prior = Prior(rest, problem.directions, Full(torch.cat([rising, self.rows], 1)))
        before = problem.mean.shape[-1] + len(problem.rising)
        value = self.along(self.look.u) - self.look.misses
        value = torch.cat([value.new_zeros(wide, before), value], -1)
        noise = problem.noise
        if elastic:
            noise = torch.where(noise == 0, GIVES * self.variance(), noise)
        precision = torch.cat([noise.new_zeros(wide, before), 1 / noise], -1)
        rise = noise.new_zeros(wide, len(problem.rising))
        own = value[:, before:]
        least = torch.where(problem.side > 0, own, -torch.inf)
        most = torch.where(problem.side < 0, own, torch.inf)
        low = torch.cat([problem.low, rise, least], -1)
        high = torch.cat([problem.high, torch.full_like(rise, torch.inf), most], -1)
        return in_units(prior, problem.mean, value, precision, low, high)[0]

    @property
    def nearest(self) -> Nearest:
        if self.found is None:
            with torch.no_grad():
                self.found = nearest(self.programme().detached())
                self.gave = ~self.found.solved
                wrong = self.gave.nonzero()[:, 0]
                if len(wrong):
                    more = nearest(self.programme(elastic=True).detached().some(wrong))
                    for whole, some in zip(self.found, more, strict=True):
                        whole[wrong] = some
        return self.found

    def multiplier(self, close: float = 0.0) -> Tensor:
        return -self.nearest.force[:, self.count :]

    @property
    def count(self) -> int:
        """Points and differences."""
        return self.problem.mean.shape[-1] + len(self.problem.rising)

    @property
    def penalty(self) -> Tensor:  # (P, 1)
        """The weight of what lies outside, beside the distance."""
        law = torch.cat([self.rows.new_zeros(self.count), (self.problem.side == 0).double()])
        return 2 * (self.nearest.force.abs() * (1 - law)).amax(-1, keepdim=True)

    def solved(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """As in `Step`, refined once: by what the change leaves of laws and of what is held."""
        problem, active, force = self.problem, self.nearest.active, self.nearest.force
        given = self._held()
        change = given.prior.pushed(force) - a
        move = problem.times(change)
        end = torch.where(active[:, : len(move.T)] > 0, problem.low, problem.high)
        there = self.look.u + move
        noise = torch.where(problem.noise.isfinite(), problem.noise, 0.0)
        rows = -self.look.misses - self.along(move) - noise * force[:, self.count :]
        left = torch.cat([end - there, -there @ problem.rising.mT, rows], -1)
        _, more = given.once(torch.zeros_like(move), torch.where(given.said > 0, left, 0.0))
        more = torch.where(self.gave[:, None], 0.0, more)
        return -(force + more)[:, self.count :], change + given.prior.pushed(more)

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
        held = problem.exact | (self.nearest.active[:, self.count :] != 0)
        none = u.new_zeros(len(u), given.said.shape[-1] - self.rows.shape[1])
        for _ in range(SETTLING):
            u = torch.where(side > 0, problem.low, torch.where(side < 0, problem.high, u))
            u = problem.held(torch.where(problem.variance > 0, u, problem.mean))
            misses = problem.look(u).misses * held
            if bool((misses.abs() <= SETTLED * self.terms().clamp_min(TINY)).all()):
                break
            wanted = torch.cat([none, -misses], -1)
            u = u + given.once(torch.zeros_like(u), wanted)[0]
        return problem.held(torch.where(problem.variance > 0, u, problem.mean))

    def response(self) -> Tensor:
        found = self.nearest
        return nearest_with_gradient(self.programme(), self.look.u, found.active, found.force)
