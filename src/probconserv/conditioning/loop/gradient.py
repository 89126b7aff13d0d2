"""The gradient of the nearest field: that of one conditioning, with what is active held.

    u = mean + Sigma q,   q = J^T force,   J u + noise force = target,   the bound where active

For a gradient g of u the same solve gives y = Sigma r with J y + noise h = 0 and r = g + J^T h:

    mean r,   Sigma r q^T,   J force y^T + h u^T,   target -h,   noise h force
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...fields.covariances import Fields
from ...laws.inequalities import Limits
from ...laws.law import Rows
from ...support.errors import DegenerateError
from ...support.gradients import as_if
from ...support.tolerances import TINY
from .given import Given, picked, product
from .programme import Programme


def nearest_with_gradient(problem: Programme, u: Tensor, active: Tensor, force: Tensor) -> Tensor:
    """`u`, the nearest fields of the problem, with their gradient."""
    prior, *rest = problem[:6]
    known = problem.detached(), u.detach(), active, force
    found: Tensor = Moved.apply(known, prior.rest, prior.directions, prior.rows, *rest)  # type: ignore[no-untyped-call]
    return found


class Moved(torch.autograd.Function):
    """The nearest fields, of D, F, J, mean, value, precision, low and high."""

    @staticmethod
    def forward(ctx: Any, known: tuple[Any, ...], *given: Tensor | None) -> Tensor:
        ctx.known, ctx.counts = known, [0 if t is None else len(t) for t in given]
        u: Tensor = known[1]
        return u.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise DegenerateError(
                "fields within inequalities have first derivatives only: leave out `create_graph`."
            )
        some = (g != 0).any(-1).nonzero()[:, 0]  # parts that are asked for
        if not len(some):
            return (None,) * (1 + len(ctx.counts))
        problem, u, active, force = ctx.known
        u, active, force = (picked(t, some) for t in (u, active, force))
        problem, asked = problem.some(some), ctx.needs_input_grad[1:]
        found = _gradients(problem, g[some], u, active, force, asked)

        def whole(t: Tensor, count: int) -> Tensor:
            if count == 1:
                return t.sum(0, keepdim=True)
            return t if len(t) == count else t.new_zeros(count, *t.shape[1:]).index_copy(0, some, t)

        pairs = zip(found, ctx.counts, strict=True)
        return (None, *(None if t is None else whole(t, count) for t, count in pairs))


def _gradients(
    problem: Programme, g: Tensor, u: Tensor, active: Tensor, force: Tensor, asked: Sequence[bool]
) -> list[Tensor | None]:
    """Of D, F, J, mean, value, precision, low and high, those that are asked for."""
    prior, n = problem.prior, g.shape[-1]
    given = Given(prior, torch.where(active != 0, torch.inf, problem.precision))
    y, h = given.once(prior.times(g), torch.zeros_like(force))
    r, q, f = g + prior.pushed(h), prior.pushed(force), prior.directions
    each: tuple[Callable[[], Tensor | None], ...] = (
        lambda: r * q,
        lambda: None if f is None else _outer(product(f, q), r, f) + _outer(product(f, r), q, f),
        lambda: _outer(force[:, n:], y, prior.rows) + _outer(h[:, n:], u, prior.rows),
        lambda: r,
        lambda: -h * (active == 0),
        lambda: -h * (active == 0) * force * problem.noise.square(),
        lambda: -h * (active > 0),
        lambda: -h * (active < 0),
    )
    return [one() if wanted else None for one, wanted in zip(each, asked, strict=True)]


def _outer(a: Tensor, b: Tensor, like: Tensor) -> Tensor:
    """a b^T of each part, or the sum of all where they share one."""
    return (a.mT @ b)[None] if len(like) == 1 else a[..., None] * b[:, None]


def clipped_with_gradient(
    rows: Sequence[Rows],
    y: Fields,
    variance: Fields,
    limits: Sequence[Limits],
    found: Sequence[Tensor],
) -> list[Tensor]:
    """`found`, independent points y given at most one law and held at bounds, with their gradient.

    As above, where a number for each row says all.
    """
    at, left = [], []
    for u, before, v, one in zip(found, y, variance, limits, strict=True):
        low, high = one.of_gradients.low, one.of_gradients.high
        beyond = (u <= low) | (u >= high)
        at.append(torch.where(beyond, torch.where(u <= low, low, high), before))
        left.append(torch.where(beyond, 0.0, v))
    for law in rows:
        spread = law.entrywise(2).apply(left) + law.noise_variance
        force = torch.where(spread > TINY, -law.residual(at) / spread.clamp_min(TINY), 0.0)
        pushed = zip(at, left, law.adjoint(force), strict=True)
        at = [x if q is None else x + v * q for x, v, q in pushed]
    return [as_if(u, x.to(u.dtype)) for u, x in zip(found, at, strict=True)]
