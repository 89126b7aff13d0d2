"""The variance after many local rows, estimated from draws.

A draw y of the prior about 0 is moved to the rows, to x; the mean of x^2 is the variance that is
left. Where the share s of the variance D is left, y^2 goes along with x^2, and its mean is known:

    x^2 - s^2 (y^2 - D),    s = x y / y^2    of the sums over n draws

has a relative error of sqrt(2 (1 - s^2) / n), whatever the mesh.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..fields.blocks import root_of
from ..fields.covariances import Fields
from ..support.tolerances import TINY, UNMET
from .stages import minus

if TYPE_CHECKING:
    from .iterative import Iterative

DRAWS = 128
SEED = 20_230_723  # of the draws, so that the estimate is the same each time
AT_ONCE = 1 << 22  # numbers that are worked on at a time


class Estimate(NamedTuple):
    """How the variance of a field was estimated, and how well."""

    solves: int
    relative_error: float  # root mean square over its points, from the spread of the draws


def estimated(stage: "Iterative") -> tuple[Fields, tuple[Estimate, ...]]:
    """The variance that the rows leave at every point, and how sure that of each field is."""
    device, lead, variances = stage.noise.device, stage.lead, stage.prior.variance
    seeds = [torch.Generator(device).manual_seed(SEED + i) for i in range(DRAWS)]

    def normals(some: list[torch.Generator], shape: Sequence[int]) -> Tensor:
        """The same for each part, so that a part alone has the same estimate."""
        own = (*[1] * lead, *shape[lead:])
        each = [torch.randn(own, generator=g, dtype=torch.float64, device=device) for g in some]
        return torch.stack(each).expand(len(some), *shape)

    per_draw = sum(v.numel() for v in variances) + 8 * stage.noise.numel()
    at_once = max(1, AT_ONCE // max(per_draw, 1))
    sums = [torch.zeros(3, *v.shape, dtype=v.dtype, device=device) for v in variances]
    for start in range(0, DRAWS, at_once):
        some = seeds[start : start + at_once]
        y = stage.prior.draw(lambda *shape, some=some: normals(some, shape))
        r = stage.residual(y, value=False) + root_of(stage.noise) * normals(some, stage.noise.shape)
        along = stage.solve(r, UNMET * stage.diagonal.sqrt())
        left = minus(y, stage.prior.times(stage.adjoint(along)))
        each = zip(sums, left, y, strict=True)
        sums = [s + torch.stack([x * x, x * y, y * y]).sum(1) / DRAWS for s, x, y in each]
    shares = [(xy / yy.clamp_min(TINY)).detach().clamp(0, 1) for _, xy, yy in sums]
    triples = zip(sums, shares, variances, strict=True)
    found = tuple((xx - s.square() * (yy - d)).clamp_min(0) for (xx, _, yy), s, d in triples)
    chance = [(1 - s.square())[v > 0].mean() for s, v in zip(shares, variances, strict=True)]
    errors = (math.sqrt(2 / DRAWS * float(x.nan_to_num())) for x in chance)
    return found, tuple(Estimate(DRAWS, error) for error in errors)


def diluted(each: Sequence[Estimate], own: Fields, more: Fields) -> tuple[Estimate, ...]:
    """Errors of variances that are a part of all, beside more that is known."""
    sums = [(e, v, v + s) for e, v, s in zip(each, own, more, strict=True)]
    shares = [(e, (v / both)[both > 0].detach()) for e, v, both in sums]
    return tuple(
        Estimate(e.solves, e.relative_error * float(share.square().mean().sqrt()))
        for e, share in shares
    )
