"""Laws that need not be linear, within inequalities: steps whose fields obey the inequalities.

Each step of Gauss-Newton takes the laws as they are at u and finds the nearest field within the
inequalities, in place of one linear solve.
"""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...laws.inequalities import Limits
from ...support.errors import InfeasibleError, InputError
from ...support.tolerances import CONVERGED, EPS, GIVES, INSIDE, SETTLED, TINY, UNREACHED
from .given import Given, Prior, precision_of
from .gradient import nearest_with_gradient
from .layout import check_size, pairs_that_rise, rows_that_rise
from .linearised import MOST_DENSE, DenseStep, Linearisation, NonlinearProblem, joined
from .nearest import nearest
from .programme import BEYOND, Nearest, Programme, in_units, terms_of
from .reading import Full, product
from .refused import FIXED, OFF, out_of_reach, refusal

SETTLING = 12  # times that rounding is taken off
AFRESH = 8  # of these, the last: with the laws as they are there, where gradients may vanish


class Bounded(NonlinearProblem):
    """Fields given laws, within inequalities; see `NonlinearProblem`."""

    loose = ("rising",)
    within = " within the inequalities"

    def __init__(
        self,
        *given: Any,
        low: Tensor,
        high: Tensor,
        slopes: tuple[Any, ...],
        back: tuple[Tensor, ...] = (),
    ) -> None:
        """low, high: (P, N). slopes: of each field, (axis, sign) along which values rise. back: low
        and high on the way back of gradients, if others."""
        super().__init__(*given)
        if not self.is_dense:
            raise InputError(
                f"`laws`: these have {sum(self.counts)} rows in a part. Beside inequalities there "
                f"may be {MOST_DENSE}, if some laws are limits or not linear. Way out: laws at "
                "each time by itself."
            )
        self.low, self.high, self.slopes, self.back = low, high, slopes, back
        pairs, points = pairs_that_rise(slopes, self.shapes), low.shape[-1]
        check_size(points, len(pairs))
        self.rising = rows_that_rise(pairs, points).to_dense().to(low.device)  # (K, N)
        self.linear_rows = self.fixed.shape[1]  # the first ones
        count = low.shape[-1] + len(self.rising) + self.value.shape[-1]
        self.active = low.new_zeros(len(low), count)  # of the last step: where the next one starts

    @property
    def of_gradients(self) -> "Bounded":
        return self._with(low=self.back[0], high=self.back[1]) if self.back else self

    def start(self) -> Tensor:
        """a of the nearest fields within bounds and order: laws may be undefined outside."""
        if not self.curved or not len(self.mean):
            return super().start()
        rest = self.mean.new_zeros(1, self.mean.shape[-1]) if self.rest is None else self.rest
        prior = Prior(rest, self.directions, Full(self.rising[None]))
        rise = self.mean.new_zeros(len(self.mean), len(self.rising))
        low, high = torch.cat([self.low, rise], -1), torch.cat([self.high, rise + torch.inf], -1)
        none = torch.zeros_like(low)
        found = nearest(in_units(prior, self.mean, none, none, low, high)[0])
        return prior.pushed(found.force)

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
        self.jacobian = self.rows  # with its gradient: what follows looks at it without
        self.found: Nearest | None = None
        self._gave = super().gave

    def knowing(self, other: Any) -> "BoundedStep":
        self.found, self._gave = other.found, other.gave
        return self

    def programme(
        self, noise: Tensor | None = None, count: int | None = None, limits: Tensor | None = None
    ) -> Programme:
        """noise: of laws, if not their own. count: of rows that are asked, if not all. limits: rows
        that are asked for as such, (P, K), if not all of them."""
        problem, wide = self.problem, len(self.jacobian)
        rising = problem.rising.expand(wide, -1, -1)
        rest = problem.rest
        rest = problem.mean.new_zeros(1, problem.mean.shape[-1]) if rest is None else rest
        prior = Prior(
            rest, problem.directions, Full(torch.cat([rising, self.jacobian[:, :count]], 1))
        )
        before = problem.mean.shape[-1] + len(problem.rising)
        noise = (problem.noise if noise is None else noise)[:, :count]
        own = self.along(self.look.u) - self.look.misses
        linear = problem.linear_rows  # the same at every step, to the last digit
        own = torch.cat([problem.value[:, :linear], own[:, linear:]], -1)[:, :count]
        value = torch.cat([own.new_zeros(wide, before), own], -1)
        precision = torch.cat([noise.new_zeros(wide, before), precision_of(noise)], -1)
        rise, side = noise.new_zeros(wide, len(problem.rising)), problem.side[:count]
        side = side if limits is None else side * limits
        least = torch.where(side > 0, own, -torch.inf)
        most = torch.where(side < 0, own, torch.inf)
        low = torch.cat([problem.low, rise, least], -1)
        high = torch.cat([problem.high, torch.full_like(rise, torch.inf), most], -1)
        found, start = in_units(prior, problem.mean, value, precision, low, high)
        near = INSIDE * prior.variances.sqrt() + CONVERGED * terms_of(prior, start.u)
        self.broken = (start.broken - near).amax(-1)
        return found.narrowed(problem.variance.sqrt())

    @property
    def nearest(self) -> Nearest:
        if self.found is None:
            problem = self.problem
            with torch.no_grad():
                self.found = nearest(self.plain, problem.active)
                self._gave = ~self.found.solved.clone()
                for noise in self._giving_way() if bool(self._gave.any()) else ():
                    wrong = (~self.found.solved).nonzero()[:, 0]
                    some = self.programme(noise, limits=noise == problem.noise)
                    for whole, part in zip(
                        self.found, nearest(some.detached().some(wrong)), strict=True
                    ):
                        whole[wrong] = part
                problem.active = self.found.active
        return self.found

    @property
    def gave(self) -> Tensor:
        return self._gave

    def _giving_way(self) -> tuple[Tensor, Tensor]:
        """Noise of laws that are not linear, where they leave no field as they are at u: of those
        that u breaks, the less the nearer it is, then so much of all that they say nothing."""
        problem = self.problem
        curved = torch.arange(problem.noise.shape[-1], device=self.jacobian.device)
        curved = curved >= problem.linear_rows
        missed, variance = problem.missed(self.look.misses), self.variance()
        broken = curved & (problem.exact | (missed > 0))
        share = (missed * broken).square() / variance.clamp_min(TINY)
        share = share.amax(-1, keepdim=True).clamp(GIVES**2, 1)
        first = torch.where(broken, GIVES * share * variance, problem.noise)
        return first, torch.where(curved, torch.finfo(first.dtype).max, first)

    def refused(self) -> dict[int, str]:
        """Why parts have no field that obeys the linear laws and the inequalities."""
        problem, count = self.problem, self.problem.linear_rows
        if not bool(self.gave.any()) and not bool((self.broken > 0).any()):
            return {}
        plain = self.programme(count=count).detached()
        found = nearest(plain)
        wrong, names = {}, [problem.named(row) for row in range(count)]
        proved = found.distance > (BEYOND if problem.curved else -1.0)
        for i in (~found.solved & proved | (self.broken > 0)).nonzero()[:, 0].tolist():
            ends, most = (problem.low[i], problem.high[i]), float(self.broken[i])
            text = out_of_reach(plain, i, ends, names) or FIXED.format(most=most)
            wrong[i] = text if most > 0 else refusal(plain, found, i, ends, names)
        return wrong

    def multiplier(self, close: float = 0.0) -> Tensor:
        return -self.nearest.force[:, self.count :]

    @property
    def count(self) -> int:
        """Points and differences."""
        return self.problem.mean.shape[-1] + len(self.problem.rising)

    @property
    def penalty(self) -> Tensor:  # (P, 1)
        """The weight of what lies outside, beside the distance."""
        law = torch.cat([self.jacobian.new_zeros(self.count), (self.problem.side == 0).double()])
        return 2 * (self.nearest.force.abs() * (1 - law)).amax(-1, keepdim=True)

    def aimed(self) -> Tensor:
        return self._held.prior.pushed(self.nearest.force)

    def solved(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """As in `Step`, refined once: by what the change leaves of laws and of what is held."""
        problem, active, given = self.problem, self.nearest.active, self._held
        force = self._force(given)
        change = given.prior.pushed(force) - a
        move = problem.times(change)
        end = self._ends(active[:, : len(move.T)])
        there = self.look.u + move
        noise = torch.where(problem.noise.isfinite(), problem.noise, 0.0)
        rows = -self.look.misses - self.along(move) - noise * force[:, self.count :]
        left = torch.cat([end - there, -there @ problem.rising.mT, rows], -1)
        _, more = given.once(torch.zeros_like(move), torch.where(given.said > 0, left, 0.0))
        more = torch.where(self.gave[:, None], 0.0, more)
        return -(force + more)[:, self.count :], change + given.prior.pushed(more)

    def _force(self, given: Given) -> Tensor:
        """Of each number; also of noisy rows that nothing free moves, which others bear."""
        noise, found = self.problem.noise, self.nearest
        idle = (given.said[:, self.count :] == 0) & (noise > 0) & noise.isfinite()
        idle = idle & ~self.gave[:, None]  # the step leaves those laws as they are
        left = -self.look.misses - self.along(found.u - self.look.u)
        own = torch.where(idle, left / torch.where(idle, noise, 1.0), found.force[:, self.count :])
        return torch.cat([found.force[:, : self.count], own], -1)

    @cached_property
    def plain(self) -> Programme:
        """The programme without gradients."""
        return self.programme().detached()

    def _ends(self, active: Tensor) -> Tensor:  # (P, N)
        """The bounds of points that are at one: active, or where rows leave nothing else."""
        problem, known = self.problem, self.plain.value[:, : active.shape[-1]]
        return torch.where(active > 0, problem.low, torch.where(active < 0, problem.high, known))

    def _given(self, more: Tensor | bool = False) -> Given:
        """The prior given the laws as they are and what is at a bound; more: other such numbers."""
        problem, held = self.plain, (self.nearest.active != 0) | more
        return Given(problem.prior, torch.where(held, torch.inf, problem.precision))

    @cached_property
    def _held(self) -> Given:
        return self._given()

    def tangent(self, r: Tensor) -> Tensor:
        given = self._held
        none = r.new_zeros(len(r), given.said.shape[-1])
        _, force = given.once(self.problem.times(r), none)
        return r + given.prior.pushed(force)

    def bent(self, misses: Tensor) -> Tensor:
        given = self._held
        none = misses.new_zeros(len(misses), given.said.shape[-1] - misses.shape[-1])
        wanted = torch.cat([none, -misses * self.problem.exact], -1)
        _, force = given.once(torch.zeros_like(self.problem.mean), wanted)
        return given.prior.pushed(force)

    def reached(self, change: Tensor) -> Tensor:
        return self.nearest.u  # forces lose digits where they nearly balance

    @property
    def near(self) -> Tensor:
        return INSIDE * self._spread * ~self.gave[:, None]

    @property
    def _spread(self) -> Tensor:  # (P, K)
        """The standard deviation of each row, as laws leave points that nobody measured."""
        most = product(self.jacobian.abs(), self.problem.variance.sqrt())
        return torch.minimum(self.variance().sqrt(), most)

    def finished(self, parts: Tensor) -> Tensor:
        """u with points at their bounds, and the rounding taken off exact rows."""
        problem, count = self.problem, self.problem.mean.shape[-1]
        side, u = self.nearest.active[:, :count], self.look.u
        at_end, end = (side != 0) | self.plain.precision[:, :count].isinf(), self._ends(side)
        held = problem.exact | (self.nearest.active[:, self.count :] != 0)
        none, size = u.new_zeros(len(u), self.count), self.terms() + self._spread
        for more in range(SETTLING, -1, -1):
            u = torch.where(at_end, end, u)
            u = problem.held(torch.where(problem.variance > 0, u, problem.mean))
            look = problem.look(u)
            held = held | (problem.missed(look.misses) > 0)
            misses = look.misses * held
            off = (misses.abs() / size.clamp_min(TINY))[parts]
            if more == 0 or not bool((off > SETTLED).any()):
                break
            rising = torch.zeros_like(none[:, count:], dtype=torch.bool)
            here = self if more > AFRESH else problem.step(look).knowing(self)
            given = here._given(torch.cat([at_end, rising, held], -1))
            u = u + given.once(torch.zeros_like(u), torch.cat([none, -misses], -1))[0]
        if bool((off > UNREACHED).any()):
            raise InfeasibleError(OFF.format(worst=float(off.max())))
        return u

    def response(self) -> Tensor:
        found = self.nearest
        return nearest_with_gradient(self.programme(), self.look.u, found.active, found.force)
