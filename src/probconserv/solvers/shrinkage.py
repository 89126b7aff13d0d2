"""How much of an ensemble's covariance is chance: what it is mixed with.

A few members say little about how distant points move together. Taken at their word they move a
field along directions that are noise. The covariance P of N members is mixed with one that has
their variances s^2 and the same correlation c between any two points,

    Sigma = (1 - a) P + a (c s s^T + (1 - c) diag(s^2))

with c such that totals spread as those of the members do, and a the larger the fewer members there
are for each total. Where a is given c is 0.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..fields.blocks import root_of
from ..fields.gaussian import Field
from ..fields.low_rank import LowRank
from ..fields.state import rebuilt
from ..laws.law import Rows
from ..support.tolerances import HALF_THE_DIGITS

MEMBERS_PER_ROW = 16  # with so many a is a half; chosen by benchmarks/fields.py


class Mix(NamedTuple):
    """How an ensemble's covariance is mixed, for each part that is solved by itself."""

    share: Tensor  # a, (*lead)
    correlation: Tensor  # c, (*lead)


def shrinks(field: Field) -> bool:
    """Whether a field is an ensemble of which part is taken as chance."""
    return field.shrinkage != 0


def shrunk(prior: Any, laws: Sequence[Rows]) -> Any:
    """A field or a state, with part of each ensemble's covariance replaced by one correlation."""
    fields = prior.parts
    if not any(map(shrinks, fields)):
        return prior
    every, found = range(len(fields)), list(fields)
    for group in [every] if prior.shared else [[i] for i in every]:
        if shrinks(fields[group[0]]):
            mix = mix_of(prior, group[0], laws)
            for i in group:
                found[i] = _mixed(fields[i], mix)
    return rebuilt(prior, tuple(found))


def mix_of(prior: Any, number: int, laws: Sequence[Rows]) -> Mix:
    """How the ensemble that is field `number` of a field or a state is mixed."""
    parts = enumerate(prior.parts)
    return _mix_of([f if prior.shared or i == number else None for i, f in parts], laws)


def _mix_of(members: Sequence[Any], laws: Sequence[Rows]) -> Mix:
    """From the totals of the members, as the laws take them, if it is not given."""
    first = next(field for field in members if field is not None)
    none = first.mean.new_zeros((), dtype=torch.float64)
    if first.shrinkage is not None:
        return Mix(none + first.shrinkage, none)
    lead, count = len(first.shape) - first.event_dims, len(first.factor)
    factors = tuple(None if f is None else f.factor.double() for f in members)
    variances = tuple(None if f is None else f.square().sum(0) for f in factors)
    stds = tuple(None if v is None else root_of(v) for v in variances)
    sums: list[tuple[Tensor, Tensor, Tensor]] = []
    for rows in laws:
        read = any(f is not None and m is not None for f, m in zip(members, rows.maps, strict=True))
        if read and rows.map.is_total:
            spread = rows.apply(factors).square().sum(0)
            lead = min(lead, spread.ndim - len(rows.map.row_names))
            alone, together = rows.entrywise(2).apply(variances), rows.apply(stds).square()
            sums.append((spread, alone, together))
    if not sums:
        return Mix(none + 1 / count, none)
    spread, alone, together = (
        torch.cat([x[..., None].flatten(lead) for x in each], -1)
        for each in zip(*sums, strict=True)
    )
    return mix(spread, alone, together, count)


def mix(spread: Tensor, alone: Tensor, together: Tensor, count: int) -> Mix:  # (*lead, K) each
    """What the spread of members' totals leaves to chance, and how points go together otherwise.

    spread: the variance of each total over the members. alone, together: the same if the errors of
    all points were independent, and if they were one. count: of the members.
    """
    there = alone > 0
    rows = there.double().sum(-1)
    less = together - alone
    several = less > HALF_THE_DIGITS * alone  # a row of one point says nothing of others
    more = torch.where(several, (spread - alone) / torch.where(several, less, 1.0), 0.0)
    chance = 2 * math.sqrt(2 / (count - 1))  # share of a variance that so many members miss it by
    sure = less / (chance * torch.where(there, alone, 1.0))  # little where signs all but cancel
    correlation = more.clamp(0, 1) * sure.clamp(0, 1)
    correlation = torch.where(there, correlation, 0.0).sum(-1) / rows.clamp_min(1)
    beside = torch.where(spread > 0, spread, torch.where(there, alone, 1.0))
    above = (1 + chance) * alone / beside
    least, least_share = least_of(count, rows)
    below = spread / torch.where(there, alone * least, 1.0)  # errors that cancel
    share = torch.where(there, torch.minimum(above, below).clamp_max(1), 0.0).sum(-1)
    share = torch.maximum(share / rows.clamp_min(1), least_share)
    return Mix(share.clamp(1 / count, 1), correlation)


def least_of(count: int, rows: Any) -> tuple[float, Any]:
    """The least of its variance that the spread of a total is taken for, and the least share."""
    return _least(count - 1), rows / (rows + (count - 1) / MEMBERS_PER_ROW)


def _least(free: int) -> float:
    """What chi-square over its degrees of freedom exceeds but for three standard deviations.

    By the cube root of Wilson and Hilferty; above 0, for a total that all members agree on.
    """
    width = 2 / (9 * free)
    return max(1 - width - 3 * math.sqrt(width), 0.01) ** 3


def _mixed(field: LowRank, mix: Mix) -> LowRank:
    dims = len(field.shape) - mix.share.ndim
    share, correlation = (x[(..., *[None] * dims)].to(field.dtype) for x in mix)
    variance = field.factor.square().sum(0)
    rounded = (4 * field.rounding * field.mean).square()  # members that are equal but for rounding
    variance = torch.where(variance > rounded, variance, 0.0)
    common = root_of(share * correlation * variance)[None]
    directions = torch.cat([field.factor * root_of(1 - share), common])
    rest = field.rest + share * (1 - correlation) * variance
    return field._with(factor=directions, rest=rest, bare=False)
