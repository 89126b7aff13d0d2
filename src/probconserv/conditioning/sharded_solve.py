"""Step 2 of fields in shards: how they lie, what is refused, the solve, and looks at the result."""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from ..fields.covariances import Correlated, Independent, shared_axes
from ..fields.gaussian import Diagonal, Field
from ..fields.low_rank import LowRank
from ..fields.sharded import spread_covariance
from ..fields.state import State, covariance_of
from ..laws.law import Rows
from ..laws.maps import Known
from ..solvers.engine import free_axes, solve
from ..solvers.shrinkage import shrunk
from ..support.errors import FAR, InfeasibleError, InputError
from ..support.shards import (
    Groups,
    Shards,
    groups_of,
    is_sharded,
    joined,
    most_over,
    once,
    shards_of,
    size_of,
)
from ..support.tree import Node
from .audit import NOT_WEIGHED, check_met, check_weighed, largest_move, settled, slack_of
from .posterior import Solved
from .unmeasured import eliminated

MOST_NUMBERS = 1 << 27  # rows times points of a process: 1 GiB
OWN_PART = (
    "Condition what each process holds, `.to_local()`, where no law ties shards together; or the "
    "whole, `.full_tensor()`."
)


class ShardLayout(Node):
    """How the fields lie on a mesh of devices, and how many first axes number the parts."""

    def __init__(self, shards: Sequence[Shards], lead: int) -> None:
        self.shards, self.lead = shards, lead

    @property
    def mesh_groups(self) -> Groups:
        return groups_of(self.shards[0].mesh)

    @property
    def active(self) -> Groups:
        """Over which some field is sharded: these processes have different parts."""
        pairs = enumerate(zip(*(one.axes for one in self.shards), strict=True))
        return tuple(self.mesh_groups[i] for i, axes in pairs if any(a is not None for a in axes))

    @property
    def tied(self) -> Groups:
        """Over which the points of one part are sharded, of any field."""
        return joined([one.groups(self.lead) for one in self.shards])

    def copied(self, shards: Shards) -> Groups:
        """Over which other tensors are sharded, and this one is repeated."""
        own = shards.groups()
        return tuple(group for group in self.active if not any(group is g for g in own))

    def whole(self, shards: Shards, x: Tensor) -> Tensor:
        """The DTensor of what is here."""
        return shards.whole(once(x, self.copied(shards)))


def layouts_of(field: Field | State) -> list[Shards]:
    found = []
    for name, part in zip(field.names, field.parts, strict=True):
        what = f"`{name}`" if name else "`field`"
        if not isinstance(part, Diagonal | LowRank):
            raise InputError(
                f"{what} is a {part.noun}; in shards (DTensor) fields are Diagonal or LowRank. "
                f"{OWN_PART}"
            )
        if not is_sharded(part.mean):
            raise InputError(
                f"{what} is made of plain tensors, but others of DTensors. Use `distribute_tensor` "
                "for its mean and variance, on the same mesh; Replicate() is as good as Shard(i)."
            )
        found.append(shards_of(name or "mean", part.mean))
        if found[-1].mesh != found[0].mesh:
            raise InputError(f"{what} lies on another mesh of devices than the first field.")
    return found


def lead_of(field: Any, rows: Sequence[Rows], shapes: Sequence[Sequence[int]]) -> int:
    """How many first axes number parts that neither laws nor directions tie together."""
    tied = [len(f.shape) - f.event_dims for f in field.parts if isinstance(f, LowRank)]
    return min([*tied, free_axes(rows, shapes)])


def by_points(rows: Rows, layout: ShardLayout) -> Rows:
    """Values at the ends of an axis, or at one entry of it, as values at all of its points.

    Where that axis is sharded, and numbers parts: then each process has its own points.
    """
    shapes, lead = [one.shape for one in layout.shards], layout.lead
    places = rows.places(shapes)
    cut = {axis for axis in layout.shards[rows.first].axes if axis is not None and axis >= places}
    if not rows.map.is_points or places >= lead or not (cut or layout.tied):
        return rows
    found = rows.over(shapes, lead)
    maps = tuple(None if m is None else Known(m.weights) for m in cast(Any, found.maps))
    return found._with(maps=maps, rounding=rows.rounding)


def check_sharded(field: Any, rows: Sequence[Rows], layout: ShardLayout) -> None:
    """What cannot be done in shards is refused; all processes see the same."""
    first, *others = [one.before(layout.lead).axes for one in layout.shards]
    if any(axes != first for axes in others):
        raise InputError(
            "`field`: the fields of a state must be sharded alike along the axes of batch and time "
            "that they share. Use .redistribute(placements=[...])."
        )
    shapes = [one.shape for one in layout.shards]
    alone_in = [len(f.shape) - f.event_dims for f in field.parts if isinstance(f, LowRank)]
    between = range(min([*alone_in, shared_axes(shapes)]), max(alone_in, default=0))
    if any(axis in between for one in layout.shards for axis in one.axes):
        raise InputError(
            "`field`: an axis is sharded that is independent in one field of the state and joint "
            "in another. Shard other axes, or give all fields the same `event_dims`."
        )
    if not layout.tied:
        return
    if any(part.infinite for part in field.parts):
        raise InputError(
            "`variance` is infinite at some points, and laws or directions tie points on several "
            f"processes. Shard the axes of batch or time instead. {OWN_PART}"
        )
    alone = len(rows) == 1 and all(m is None or m.is_disjoint for m in rows[0].maps)
    count = sum(math.prod(one.row_shape(shapes)[layout.lead :]) for one in rows)
    parts = max(map(math.prod, shapes)) // size_of(layout.active)
    if not alone and count * max(count, parts) > MOST_NUMBERS:
        raise InputError(
            f"`laws` have {count} rows for points on several processes, too many for a matrix of "
            f"{parts} points. Shard the axes of batch or time instead, or give fewer rows."
        )


def solved_here(prior: Any, rows: tuple[Rows, ...], layout: ShardLayout) -> tuple[Solved, float]:
    """Fields given laws; and how far they move, in standard deviations, if that may be far."""
    prior = shrunk(prior, rows)
    means = tuple(field.mean.double() for field in prior.parts)
    covariance: Independent | Correlated = covariance_of(prior)
    if layout.tied:
        own = isinstance(covariance, Correlated) and covariance.rest is not None
        rest = bool(most_over([own], layout.tied, means[0])[0])
        covariance = spread_covariance(covariance, layout.shards, layout.lead, rest)
    slack = slack_of(prior.parts, rows)
    endless = any(field.infinite for field in prior.parts)
    way: Any = (eliminated if endless else solve)(rows, covariance, slack)
    mean, residuals = way.run(means)
    mean, holds = settled(way, mean, rows)
    dims = tuple(u.ndim - way.lead for u in means)
    found = Solved(rows, mean, way, tuple(residuals), dims)
    with torch.no_grad():
        return found, _looked_at(found, prior.parts, holds, slack, layout.tied)


def _looked_at(
    found: Solved, prior: Sequence[Field], holds: bool, slack: float, tied: Groups
) -> float:
    """Refuses what the laws and the prior do not allow, as `condition` does."""
    way: Any = found.way
    before = tuple(field.mean.double() for field in prior)
    square = None if way.is_banded or way.is_iterative else found.square
    near = square is not None and (not square.numel() or float(square.max()) <= FAR**2)
    if near and holds and way.is_simple and all(rows.exact for rows in found.laws):
        return 0.0
    if not holds:
        before = way.sizes(before) if hasattr(way, "sizes") else before
        check_met(found.laws, found.mean, before, way.root, slack)
    wrong = not all(math.isfinite(x.sum()) or bool(x.isfinite().all()) for x in found.mean)
    if most_over([wrong], tied, found.mean[0])[0]:
        raise InfeasibleError(NOT_WEIGHED)
    check_weighed(found.laws, found.mean, way, found.residuals)
    return 0.0 if near else largest_move(found.mean, prior)
