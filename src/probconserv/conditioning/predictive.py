"""Intervals of N members given laws: what they still say once each has been moved.

Given K exact rows, a value is predicted from its rows by a regression on the members: their mean is
the intercept, the gain its K slopes. So the value lies about the mean given the laws as t with
nu = N - 1 - K degrees of freedom, with the variance

    M (N - 1) / nu (1 + 1/N + d^2 / (N - 1))     with d^2 = r^T S^-1 r

M is the variance of the moved members and r the residual of their mean. This is exact.

It goes on in the same way where the gain is not that of the members alone. They have a share 1 - a
in Sigma, or stand beside independent variances, or the law has noise. With tr = tr(G P G^T S^-1) of
the members' covariance P the gain takes up k = (1 - a) min(tr, K) degrees, and d^2 counts by the
ratio of tr and K, whichever way it is below 1. The rest of the variance is known, or it belongs to
the part a of Sigma, which has the members' variances and one correlation c for all points:

    a part (1 + 1/N + c^2 d^2 / (K (N - 1)))     with N - 1 degrees of freedom

(a correlation of all but 1 makes the gain s_i / sum(s), which is found from the members as a slope
is). A point whose moved members spread more than its variance says has their variance: Sigma is not
theirs, and the gain may suit it and not them.

`benchmarks/intervals.py` measures how often the truth is inside.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..fields.low_rank import LowRank
from ..fields.student import Predictive, predictive
from ..solvers.shrinkage import mix_of
from ..support.checks import any_of, concrete
from ..support.errors import InputError

TOO_FEW = 0.25  # degrees of freedom: with fewer, 90 % intervals were seen to hold 2 to 85 %
AT_ONCE = 1 << 22  # numbers of members that are moved together


class MovedMembers(NamedTuple):
    """Members, each moved to the laws as their mean is."""

    left: Tensor  # their variance, (*shape)
    trace: Tensor  # tr(G P G^T S^-1), (*lead)
    away: Tensor  # d^2, (*lead)


def given_laws(prior: Any, number: int, solved: Any) -> Predictive:
    """What the next value of field `number` of a field or a state of members may be."""
    field: LowRank = prior.parts[number]
    members, free = field.count, field.count - 1
    before, moved = field.factor.double().square().sum(0), _moved(prior, number, solved)
    taken = moved.left / torch.where(before > 0, before, 1.0)
    part = _shares(taken, solved.lead, field.event_dims)

    def at_points(x: Tensor) -> Tensor:
        return x[(..., *[None] * (len(field.shape) - x.ndim))]

    trace, away = part * at_points(moved.trace), part * at_points(moved.away)
    rows = part * at_points(solved.way.count(solved.lead))
    share, correlation = map(at_points, mix_of(prior, number, solved.laws))
    less, more = torch.minimum(trace, rows), torch.maximum(trace, rows)
    nu = free - (1 - share) * less
    _check_left(field, nu, rows)
    nu = nu.clamp_min(1)  # what is less is left beside other variances, which are known better
    away = away * less / torch.where(more > 0, more, 1.0) / free
    stated = solved.variance[number]
    variance = torch.where(stated > 0, torch.maximum(stated, moved.left), stated)
    own = torch.minimum((1 - share) * moved.left, variance)  # M
    plain = share * before
    plain = plain / torch.where(plain > 0, plain + field.rest, 1.0) * (variance - own)
    slope = correlation.square() / rows.clamp_min(1)
    return predictive(
        variance - own - plain,
        (own * free / nu * (1 + 1 / members + away), nu),
        (plain * (1 + 1 / members + slope * away), free),
    )


def _moved(prior: Any, number: int, solved: Any) -> MovedMembers:
    """Some members at a time, so that no copy of all of them is held."""
    field, way, lead = prior.parts[number], solved.way, solved.lead
    together = [(prior.shared and isinstance(f, LowRank)) or f is field for f in prior.parts]
    means = tuple(f.mean.double()[None] for f in prior.parts)
    centre, residuals = way.run(means)
    left: Any = 0.0
    squares, some = [], max(1, AT_ONCE // max(1, sum(m.numel() for m in means)))
    for start in range(0, field.count, some):
        at, scale = slice(start, start + some), math.sqrt(field.count - 1)
        count = len(field.factor[at])
        moved, found = way.run(
            tuple(
                m + scale * f.factor[at].double() if moves else m.repeat(count, *[1] * (m.ndim - 1))
                for f, m, moves in zip(prior.parts, means, together, strict=True)
            )
        )
        left = left + (moved[number] - centre[number]).square().sum(0)
        pairs = [*zip(found, residuals, strict=True)]
        squares += [way.square([r[i] - r0[0] for r, r0 in pairs], lead) for i in range(count)]
    free = field.count - 1
    away = way.square([r[0] for r in residuals], lead)
    return MovedMembers(left / free, torch.stack(squares).sum(0) / free, away)


def _shares(left: Tensor, lead: int, dims: int) -> Tensor:  # (*lead, *parts, 1, ..., 1)
    """How much of laws that tie several parts of a field each part takes: it adds up to 1.

    left: of the variance of each point. dims: axes of a part.
    """
    taken = 1 - left.mean(tuple(range(-dims, 0)), keepdim=True).clamp_max(1)
    tied = tuple(range(lead, left.ndim - dims))
    if not tied:
        return torch.ones_like(taken)
    total = taken.sum(tied, keepdim=True)
    even = 1 / math.prod(left.shape[lead : left.ndim - dims])
    return torch.where(total > 0, taken / torch.where(total > 0, total, 1.0), even)


def _check_left(field: LowRank, free: Tensor, rows: Tensor) -> None:
    if concrete(free) and any_of(free < TOO_FEW):
        raise InputError(
            f"`samples`: {field.count} members given {round(float(rows.max()))} rows leave too few "
            "degrees of freedom for an interval, which takes more than K + 1 members for K rows. "
            "Give more members, or leave `shrinkage` out, so that it is found."
        )
