"""Members of an ensemble on a GPU given one sum over all that they move: see `kernels/members.py`.

The mean, and when they are asked for the members, come from the members themselves, in two sweeps
over them. The engine gives what else is asked for, as for any field.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..fields.covariances import Fields
from ..fields.low_rank import LowRank
from ..fields.state import covariance_of
from ..laws.law import Law
from ..solvers.engine import free_axes, solve
from ..solvers.points import Members
from ..solvers.shrinkage import least_of, shrunk
from ..solvers.sweeps import has_kernels, members_moved, members_solved
from ..support import checks as check
from ..support.errors import FAR
from ..support.tolerances import SETTLED
from ..support.tree import once
from .audit import settled, slack_of
from .posterior import FieldPosterior, Solved
from .swept import Plan, Swept, carries_derivatives, fine, plan_of
from .unmeasured import Way

MOST = 128  # members; a programme holds the sums of all of them
ROUNDING = 4  # times the rounding of the mean: a spread that is less is none, as `shrinkage` has it


class SweptMembers(Swept):
    """An ensemble given a sum, in its own dtype."""

    prior: LowRank  # type: ignore[assignment]

    def __init__(
        self,
        prior: LowRank,
        plan: Plan,
        mean: Tensor,
        given: Members,
        by: tuple[Tensor, Tensor],
        size: Tensor,
    ) -> None:
        """by: what `members_moved` takes. size: of the terms of each row."""
        self.prior, self.laws, self.mean = prior, (plan.rows,), (mean,)
        self.given, self.by, self.size = given, by, size
        self.dims = (mean.ndim - free_axes(self.laws, [mean.shape]),)
        self.known = self._versions()

    @property
    def held(self) -> tuple[Tensor, ...]:
        return self.mean[0], self.given.m

    @property
    def variance(self) -> Fields:
        return self._variance

    @once
    def _variance(self) -> Fields:
        return self.way.variance

    @once
    def way(self) -> Way:
        self.check_unchanged()
        prior = shrunk(self.prior, self.laws)
        return solve(self.laws, covariance_of(prior), slack_of(prior.parts, self.laws))

    def handed(self, found: Tensor, dtype: torch.dtype) -> Tensor:
        own = found is self.mean[0]  # the variance is that of the engine, in float64
        return super().handed(found, dtype) if own else Solved.handed(self, found, dtype)

    def _whole(self) -> Solved:  # type: ignore[override]
        """As the engine has it: indexed, moved and kept like that of any field."""
        mean, residuals = self.way.run((self.prior.mean.double(),))
        mean, _ = settled(self.way, mean, self.laws)
        return Solved(self.laws, mean, self.way, tuple(residuals), self.dims)

    def members(self) -> Tensor | None:
        """All members, each moved by its own residual; None if the engine is to do it."""
        if not self.laws[0].exact:
            return None
        self.check_unchanged()
        given, (by, each) = self.given, self.by
        moved, after = members_moved(given, by, each, True)  # (members, parts)
        missed = _missed(after, given.value, self.size).max()
        if not float(missed) <= max(SETTLED, torch.finfo(moved.dtype).eps):
            return None
        return moved.view(len(moved), *self.mean[0].shape)


def _missed(after: Tensor, value: Tensor, size: Tensor) -> Tensor:
    return (after - value).abs() / torch.where(size > 0, size, 1.0)


def swept_members(field: Any, laws: Sequence[Any]) -> FieldPosterior | None:
    """The ensemble given one sum, where this way is for it and all is well; else None."""
    if type(field) is not LowRank or not field.is_unseen or not has_kernels(field._unseen[0]):
        return None
    if len(laws) != 1 or not isinstance(laws[0], Law) or carries_derivatives():
        return None
    (members,) = field._unseen
    if not check.concrete(members) or members.dtype.itemsize < 4:
        return None
    plan = None if len(members) > MOST else plan_of(laws[0], members[0])
    if plan is None or plan.listed is not None or plan.rows.present is not None:
        return None
    read = members, plan.rows.value, plan.rows.noise_variance
    if plan.rows.map.dims != field.event_dims or any(t.requires_grad for t in read):
        return None
    m = members.reshape(len(members), -1).contiguous()
    rounding = ROUNDING * torch.finfo(members.dtype).eps
    least = least_of(len(m), 1.0)
    given = Members(m, plan.n, plan.g, plan.value, plan.noise, field.shrinkage, least, rounding)
    by, each, (far, size) = members_solved(given)
    mean, after = members_moved(given, by, each, False)
    missed = _missed(after, given.value, size)
    missed = torch.where(given.noise == 0, missed, 0 * missed)
    solved = SweptMembers(field, plan, mean.view(members.shape[1:]), given, (by, each), size)
    furthest, worst = torch.stack([far, missed]).amax(1).tolist()
    post = FieldPosterior(field, solved)
    return fine(field, post, furthest, worst) if furthest <= FAR**2 else None
