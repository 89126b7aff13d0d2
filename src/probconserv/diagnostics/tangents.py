"""Laws of every kind as a prior sees them: rows of a linear law, and what these leave out.

A law f(u) = b that is not linear has the tangent J at the prior's mean, and

    expected  the mean of f over draws of the prior
    added     the variance of f over these draws, less that of J u over the same draws

so that G = J, G mu - b = expected - b and J Sigma J^T + added stand where G, G mu - b and
G Sigma G^T of a linear law do. A square of many points is expected to be larger than the square of
the mean, often by more than its tangent varies: neither the tangent alone nor the distance from the
mean to the nearest field that obeys allows for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..conditioning.loop.linearised import MOST_DENSE
from ..fields.covariances import expanded
from ..fields.dense import Dense
from ..fields.gaussian import Diagonal, Field, random_normals
from ..fields.low_rank import LowRank
from ..fields.mixture import Mixture
from ..fields.state import State, covariance_of
from ..laws.inequalities import Inequality, OneSided
from ..laws.law import Law, check_laws
from ..laws.nonlinear import NonlinearLaw
from ..solvers.shrinkage import shrunk
from ..support.errors import InputError

PAIRS, SEED = 100, 1  # of draws, one as far above the mean as the other is below it
AT_ONCE = 1 << 22  # numbers of draws that are held together


@dataclass(frozen=True, eq=False)
class Seen:
    """A law as rows of a linear one."""

    law: Law  # its residual at the prior's mean is what is expected less b
    value: Tensor  # b
    side: int = 0  # 1 where rows are at least b, -1 at most
    added: Tensor | None = None  # variance beyond that of the tangent; None of linear laws
    bent: Tensor | float = 0.0  # expected less f(mean); NaN where the tangent is all there is
    tail: tuple[int, ...] = ()  # the shape of the rows of one solution, of laws that are not linear

    @property
    def timed(self) -> bool:
        """Whether the last axis of the rows may be time."""
        one_sum = not self.tail if self.is_curved else not self.law.row_names
        return one_sum and not self.law.is_initial

    @property
    def is_curved(self) -> bool:
        return self.added is not None

    def beyond(self, residual: Tensor) -> Tensor:
        """G mu - b; 0 where a limit holds."""
        return (residual * self.side).clamp_max(0) * self.side if self.side else residual

    def shaped(self, rows: Tensor) -> Tensor:
        """Numbers for each row, in the shape that the function of the law returns."""
        return rows.reshape((*rows.shape[:-1], *self.tail)) if self.is_curved else rows


def as_seen(prior: Field | State, laws: Sequence[Any]) -> tuple[list[Seen], tuple[str, ...]]:
    """Laws and limits of laws as a prior sees them; and the labels of inequalities without a b."""
    unjudged = [one for one in laws if isinstance(one, Inequality) and not one.side]
    judged = [law for law in laws if law not in unjudged]
    rows = [(x.law, x.side) if isinstance(x, OneSided) else (x, 0) for x in judged]
    linear = [law for law, _ in rows if not isinstance(law, NonlinearLaw)]
    if linear or not laws:
        check_laws(linear)
    if not rows:
        raise InputError(
            f"`laws`: {', '.join(f'`{one.label}`' for one in unjudged)} state no b to judge. Give "
            "a law, or a limit of one (`at_least`, `at_most`)."
        )
    seen = [
        _tangent(prior, law, side) if isinstance(law, NonlinearLaw) else Seen(law, law.value, side)
        for law, side in rows
    ]
    return seen, tuple(one.label for one in unjudged)


def _tangent(prior: Field | State, law: NonlinearLaw, side: int) -> Seen:
    means = tuple(field._moments()[0].double() for field in prior.parts)
    curved = law.on(prior.names, means)
    rows = curved.linearised(means, curved.count <= MOST_DENSE)
    at_mean = curved.apply(means)
    if not bool(at_mean.isfinite().all()):
        raise InputError(
            f"`laws`: `{law.label}` is NaN or infinite at the prior's mean, so nothing is expected "
            "of it. Write its function for all values that the field may have."
        )
    root = covariance_of(shrunk(prior, [rows]))
    generator = torch.Generator(prior.device).manual_seed(SEED)
    some = max(1, AT_ONCE // max(1, sum(mean.numel() for mean in means)))
    each: list[list[Tensor]] = [[], [], []]  # f(u) - f(mean) above and below, J (u - mean)
    for start in range(0, PAIRS, some):
        draws = root.draw(random_normals(min(some, PAIRS - start), generator, prior.device))
        for found, sign in zip(each, (1, -1), strict=False):
            u = tuple(mean + sign * x for mean, x in zip(means, draws, strict=True))
            found.append(curved.apply(u) - at_mean)
        each[2].append(rows.apply(draws))
    above, below, along = (torch.cat(parts) for parts in each)
    moved = torch.cat([above, below])
    bent = moved.mean(0)
    added = moved.var(0) - torch.cat([along, -along]).var(0)
    known = bent.isfinite()  # a function may not be so at draws: then the tangent is all there is
    bent, added = torch.where(known, bent, 0.0), torch.where(known, added, 0.0).clamp_min(0)
    value = curved.value.expand(at_mean.shape)
    shown = torch.where(known, bent, torch.nan)
    maps = {name: m for name, m in zip(prior.names, rows.maps, strict=True) if m is not None}
    flat = Law(law.label, maps, rows.value - bent, curved.noise_variance)
    return Seen(flat, value, side, added, shown, curved.tail)


def plain(field: Field) -> Field:
    """A Diagonal, LowRank or Dense field with the same mean and covariance."""
    if isinstance(field, Diagonal | LowRank | Dense):
        return field
    parts = field.components if isinstance(field, Mixture) else None
    if isinstance(field, Mixture) and isinstance(parts, Diagonal | LowRank):
        mean, weights = field._moments()[0], field._wide(field.log_weights.exp())
        directions, own = weights.sqrt() * (parts.mean - mean), parts.variance
        if isinstance(parts, LowRank):
            each = expanded(parts.factor.double(), parts.event_dims, field.event_dims)
            each, own = (weights.sqrt() * each).flatten(0, 1), parts.rest
            directions = torch.cat([directions, each])
        return LowRank(mean, directions, (weights * own).sum(0), field.event_dims)
    mean, dims = field.mean.double(), max(field.event_dims, 1)
    return Dense(mean, field.covariance().double(), dims)
