"""How much of an ensemble's covariance is chance: shrinkage towards independent points.

A few members say little about how distant points move together. Taken at their word they move a
field along directions that are noise. The members' totals tell: if they spread no more than those
of independent points would, the points are taken as independent.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ._fields import Field, LowRank
from ._laws import Rows
from ._maps import SecondDifferences, Select

MEMBERS_PER_ROW = 4  # with so many half is taken as independent; chosen by benchmarks/fields.py


def shrunk(fields: tuple[Field, ...], shared: bool, laws: Sequence[Rows]) -> tuple[Any, ...]:
    """The fields, with part of each ensemble's variance made independent.

    shared: whether all fields are moved by the same members.
    """
    groups = [list(range(len(fields)))] if shared else [[i] for i in range(len(fields))]
    found: list[Any] = list(fields)
    for group in groups:
        first = fields[group[0]]
        if isinstance(first, LowRank) and first.shrinkage != 0:
            share = _share([fields[i] if i in group else None for i in range(len(fields))], laws)
            for i in group:
                found[i] = _with_share(found[i], share)
    return tuple(found)


def _share(members: Sequence[Any], laws: Sequence[Rows]) -> Tensor:  # (*lead), or broadcasts to it
    """Of the spread of the members' totals, what independent points and chance would make."""
    first = next(field for field in members if field is not None)
    if first.shrinkage is not None:
        return first.mean.new_tensor(first.shrinkage, dtype=torch.float64)
    lead, count = len(first.shape) - first.event_dims, len(first.factor)
    spreads: list[Tensor] = []
    alones: list[Tensor] = []
    for rows in laws:
        read = [f is not None and m is not None for f, m in zip(members, rows.maps, strict=True)]
        if not any(read) or isinstance(rows.map, Select | SecondDifferences):
            continue
        factors = tuple(
            f.factor.double() if r else None for f, r in zip(members, read, strict=True)
        )
        variances = tuple(None if f is None else f.square().sum(0) for f in factors)
        spread = rows.apply(factors).square().sum(0)
        alone = rows.entrywise(2).apply(variances)
        lead = min(lead, spread.ndim - len(rows.map.row_names))
        spreads.append(spread)
        alones.append(alone)
    if not spreads:
        return first.mean.new_tensor(1 / count, dtype=torch.float64)
    spread, alone = (
        torch.cat([x[..., None].flatten(lead) for x in each], -1) for each in (spreads, alones)
    )
    return share_of_chance(spread, alone, count)


def share_of_chance(spread: Tensor, alone: Tensor, count: int) -> Tensor:  # (*lead, K) to (*lead)
    """Of the spread of members' totals, what independent points and chance would make.

    spread: the variance of each total over the members. alone: the same if the points were
    independent. count: of the members. The share is larger the more totals there are beside them.
    """
    chance = 1 + 2 * math.sqrt(2 / (count - 1))  # of a variance from so many members
    there = alone > 0
    beside = torch.where(spread > 0, spread, torch.where(there, alone, 1.0))
    share = (chance * alone / beside).clamp_max(1)
    share = torch.where(there, share, 0.0).sum(-1) / there.sum(-1).clamp_min(1)
    rows = there.sum(-1)
    return torch.maximum(share, rows / (rows + (count - 1) / MEMBERS_PER_ROW)).clamp(1 / count, 1)


def _with_share(field: LowRank, share: Tensor) -> LowRank:
    dims = len(field.shape) - share.ndim
    share = share[(..., *[None] * dims)].to(field.dtype)
    variance = field.factor.square().sum(0)
    rounded = (4 * field.rounding * field.mean).square()  # members that are equal but for rounding
    variance = torch.where(variance > rounded, variance, 0.0)
    other = field._with_mean(field.mean)
    other.factor, other.rest = field.factor * (1 - share).sqrt(), field.rest + share * variance
    other.bare = False
    return other
