"""Directions that move all points, on top of a chain for the independent rest."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..fields.blocks import LatentPosterior, unblocks
from ..fields.covariances import Correlated, Fields
from ..fields.gaussian import Normals
from ..support.checks import any_of, concrete
from ..support.tolerances import FIXED, SURE
from ..support.tree import Node, once
from .estimate import Estimate, diluted
from .joint import Joint, surely
from .stages import Stage, summed, thin, without_rounding

if TYPE_CHECKING:
    from .engine import Chain


class Shared(Node):
    """Directions F on top of a chain for the rest: u = mean + F^T z + e.

    Given z the chain conditions e. Whitened by it, the residual is an observation of z with unit
    noise through W, the whitened G F^T.
    """

    stacked = ("moved",)
    is_simple = makes_variance = is_iterative = False

    def __init__(self, chain: "Chain", root: Correlated, lead: int) -> None:
        self.chain, self.root = chain, root
        self.differentiable = any(f.requires_grad for f in root.directions)
        u, white, look = root.directions, [], concrete(*root.directions)
        self.thin = False  # whether little but directions can move some row: not to be used then
        for stage in chain.stages:
            r = stage.residual(u, value=False)
            white.append(stage.over(stage.whiten(r), lead))
            dropped = look and any_of(stage.dropped)
            if dropped or stage is not chain.stages[-1]:
                u = stage.shift(u, r)
            self.thin = self.thin or (look and (thin(stage, r) or _nearly_repeats(stage)))
            self.thin = self.thin or (dropped and any_of(stage.dropped & _moves(stage, u)))
        self.latent = LatentPosterior(torch.cat(white, -1).movedim(0, -2))

    @property
    def lead(self) -> int:
        """How many first axes number the parts."""
        return self.latent.seen.ndim - 2

    @once
    def moved(self) -> tuple[Tensor, ...]:  # (R, *shape)
        """F - gain of G F^T."""
        u, _ = self.chain.run(self.root.directions, value=False)
        u = u if self.chain.is_simple else self.chain.settle(u, value=False)
        return without_rounding(u, self.root.variance)

    @property
    def shared(self) -> Correlated:
        """What is left of the directions: V^T (F - gain of G F^T), V V^T the covariance of z."""
        moved = self.root._with(directions=self.moved, rest=None, _rounding=())
        pairs = zip(moved.matrices, self.moved, strict=True)
        found = tuple(unblocks(self.latent.left(rows), f.shape) for rows, f in pairs)
        return moved._with(directions=found)

    def run(self, u: Fields) -> tuple[Fields, list[Tensor]]:
        """Means or members of the prior, moved to the laws; and the residuals that they had."""
        u, residuals = self.chain.run(u)
        shift, _ = self._along(residuals)
        return tuple(x - d for x, d in zip(u, shift, strict=True)), residuals

    def _along(self, residuals: Sequence[Tensor]) -> tuple[Fields, list[Tensor]]:
        """F^T z, moved to the laws; and its residuals."""
        white, more = self._white(residuals)
        return self.chain.run(self.root.along(self.latent.mean(white), more), value=False)

    def _white(self, residuals: Sequence[Tensor]) -> tuple[Tensor, tuple[int, ...]]:
        """Whitened, (*more, *lead, K) as (*lead, N, K); and the sizes `more`."""
        pairs = zip(self.chain.stages, residuals, strict=True)
        white = torch.cat([s.over(s.whiten(r), self.lead) for s, r in pairs], -1)
        more = white.shape[: white.ndim - 1 - self.lead]
        return white.reshape(math.prod(more), *white.shape[len(more) :]).movedim(0, -2), more

    def weighed(self, u: Fields, residuals: Sequence[Tensor]) -> Tensor | None:
        """As of a `Chain`, given z."""
        if self.chain.weighed(u, residuals) is None:
            return None
        _, known = self._along(residuals)
        return self.chain.weighed(u, [residuals[-1] - known[-1]])

    @property
    def is_banded(self) -> bool:
        return self.chain.is_banded

    def settle(self, u: Fields, value: bool = True) -> Fields:
        return self.chain.settle(u, value)

    def times(self, v: Fields) -> Fields:
        pairs = zip(self.chain.times(v), self.shared.times(v), strict=True)
        return tuple(s if x is None else x + s for x, s in pairs)

    @property
    def variance(self) -> Fields:
        pairs = zip(self.chain.variance, self.shared.variance, strict=True)
        found = tuple(v + s for v, s in pairs)
        if not concrete(*found) or self.chain.is_iterative:  # which has looked itself
            return found
        simple, pairs = self.chain.is_simple, zip(found, self.root.variance, strict=True)
        lost = [(v < SURE * d) & ((v > 0) | (not simple)) for v, d in pairs]  # its zeros are sure
        lost = self.chain.without_known(lost)
        return surely(self.chain.laws, self.root.exactly(), self.lead, found, lost)

    @property
    def has_estimated(self) -> bool:
        return self.chain.has_estimated

    @property
    def estimate(self) -> tuple[Estimate, ...] | None:
        """How the variance of the rest was estimated, as a share of all that is left."""
        each = self.chain.estimate
        return each and diluted(each, self.chain.variance, self.shared.variance)

    def draw(self, normals: Normals) -> Fields:
        pairs = zip(self.chain.draw(normals), self.shared.draw(normals), strict=True)
        return tuple(x + s for x, s in pairs)

    def square(self, residuals: Sequence[Tensor], lead: int) -> Tensor:
        return summed(self.latent.square(self._white(residuals)[0]), lead)

    def log_norm(self, lead: int) -> Tensor:
        return summed(self.chain.log_norm(self.lead) + self.latent.log_det, lead)

    def count(self, lead: int) -> Tensor:
        return self.chain.count(lead)


def _nearly_repeats(stage: Stage) -> bool:
    """Whether rows lose digits in the rest that directions may still tell apart."""
    return isinstance(stage, Joint) and stage.factor.order is not None


def _moves(stage: Stage, u: Fields) -> Tensor:
    """Whether directions still move a row, by more than the rounding of its terms."""
    sizes = tuple(None if x is None else x.abs() for x in u)
    terms = [rows.entrywise(1).apply(sizes) for rows in stage.rows]
    size = stage.flat(terms) if isinstance(stage, Joint) else terms[0]
    left = stage.residual(u, value=False)
    return left.square().sum(0) > FIXED * size.square().sum(0)
