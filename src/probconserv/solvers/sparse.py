"""S of sparse rows of independent points: its entries, its factor, and what that gives exactly.

Where the factor has few numbers, it solves in one step, gives the determinant, and the variance of
every point: the rows take D_j^2 g_j^T S^-1 g_j off that of point j, which needs entries of S^-1
only where S has some.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..fields.covariances import Fields, Independent
from ..laws.law import Rows
from ..support.checks import concrete
from ..support.progress import Ticker
from ..support.tolerances import (
    CONVERGED,
    DEPENDENT,
    FIXED,
    FOLLOWS,
    HALF_THE_DIGITS,
    INDEPENDENT,
    LEAKED,
    TINY,
)
from .cholesky import MOST_NUMBERS, Order, Tree, fronts, parents
from .entries import Entries
from .stages import minus, summed

if TYPE_CHECKING:
    from .iterative import Iterative

MOST_ROWS = 100_000  # of one part
MOST_PAIRS = 1 << 24  # of rows that read the same point, in all parts
MOST_AGAIN = 1 << 32  # numbers of the factor, times points whose variance is a sum of squares
HALF = 0.5  # the most of it
STEPS = 9  # corrections of lambda at most
AT_ONCE = 1 << 22  # numbers that are worked on at a time


class Pairs(NamedTuple):
    """The entries of G, sorted by point, and all pairs of them at one point: what adds up to S."""

    rows: Tensor
    points: Tensor
    values: Tensor  # (*lead or 1s, E)
    lower: np.ndarray  # rows and columns of S in its lower half
    one: Tensor  # the first entry of a pair, whose row is not before that of the other
    other: Tensor
    slot: Tensor  # where the pair adds to the lower half
    times: Tensor  # 2 for a pair of two rows, which stands for both halves; else 1
    diagonal: Tensor  # where the diagonal is


def pairs(laws: Sequence[Rows], shapes: Sequence[Sequence[int]], noise: Tensor) -> Pairs | None:
    """All pairs of entries at one point; None where they are too many."""
    lead, count = noise.ndim - 1, noise.shape[-1]
    known = Entries(laws, shapes, lead).without_blocks()
    rows, own = known.rows, torch.arange(count)
    if int(known.starts.diff().square().sum()) * noise[..., 0].numel() > MOST_PAIRS:
        return None
    none = torch.zeros(0, dtype=torch.int64)
    one, other = map(torch.cat, zip((none, none), *known.pairs(), strict=True))
    turned = rows[one] < rows[other]
    one, other = torch.where(turned, other, one), torch.where(turned, one, other)
    keys = torch.cat([rows[one] * count + rows[other], own * (count + 1)])
    slots, slot = keys.unique(return_inverse=True)
    lower = torch.stack([slots // count, slots % count]).numpy()
    pair, diagonal = slot.split([len(one), count])
    times = 1.0 + (one != other).double()
    return Pairs(rows, known.points, known.values, lower, one, other, pair, times, diagonal)


def direct(stage: "Iterative") -> "Direct | None":
    """The factor of S; None where it would have too many numbers."""
    prior, noise = stage.prior, stage.noise
    if not isinstance(prior, Independent) or not concrete(noise, *prior.variance):
        return None
    count, parts = noise.shape[-1], noise[..., :1].numel()
    if not noise.is_cpu or not 0 < count <= MOST_ROWS or not parts:
        return None
    known = pairs(stage.rows, prior.shapes, noise)
    if known is None:
        return None
    found = Direct(stage, known)
    below = parents(count, known.lower, MOST_NUMBERS // (1 if found.shared else parts))
    if below is None:
        return None
    found.factor(stage, fronts(below))
    return found


class Direct:
    """S, in units in which its diagonal is 1, and its factor.

    Rows that follow from others are left out: their scale is 0.
    """

    order: Order
    plain: Tree  # without gradients
    is_sure = True  # whether it is known which rows follow from others

    def __init__(self, stage: "Iterative", pairs: Pairs) -> None:
        self.pairs, self.noise, self.variances = pairs, stage.noise, stage.prior.variance
        self.scale = torch.where(stage.diagonal > TINY, stage.diagonal, torch.inf).rsqrt()
        self.shared = False  # whether all parts have the same S and noise
        if self.noise.ndim > 1:
            both = torch.cat([self.values().detach(), self.noise.detach()], -1).flatten(0, -2)
            self.shared = bool((both == both[:1]).all())
        self.live: Tree | None = None  # the factor with gradients

    @property
    def keep(self) -> Tensor:
        return self.scale > 0

    @property
    def tree(self) -> Tree:
        """The factor, with gradients where they are asked for."""
        if self.live is None and torch.is_grad_enabled():
            values = self.values()
            self.live = Tree(self.order, values) if values.requires_grad else self.plain
        return self.live if self.live is not None and torch.is_grad_enabled() else self.plain

    def values(self) -> Tensor:  # (*lead, entries)
        """The lower half of S, with 1 on the diagonal for rows that are left out."""
        p, g = self.pairs, self.coefficients
        moved = (g * self._at_points(self.variances)).index_select(-1, p.one)
        each = moved * g.index_select(-1, p.other)
        total = self.noise.new_zeros(*self.noise.shape[:-1], p.lower.shape[-1])
        total = total.index_add(-1, p.slot, each.expand(*total.shape[:-1], -1))
        own = self.noise * self.scale.square() + (~self.keep).double()
        return total.index_add(-1, p.diagonal, own)

    @property
    def coefficients(self) -> Tensor:  # (*lead, E)
        """The entries of G, in units of the rows."""
        return self.pairs.values * self.scale.index_select(-1, self.pairs.rows)

    def _at_points(self, fields: Fields) -> Tensor:  # (*lead, E)
        lead = self.noise.shape[:-1]
        flat = torch.cat([v.reshape(*lead, -1) for v in fields], -1)
        return flat.index_select(-1, self.pairs.points)

    def _of_one(self, x: Tensor) -> Tensor:
        """Of what is the same for all parts that of the first."""
        return x.flatten(0, -2)[:1].reshape(*[1] * (x.ndim - 1), -1) if self.shared else x

    @torch.no_grad()
    def factor(self, stage: "Iterative", order: Order) -> None:
        """Factors S, without exact rows that are found to follow from others."""
        self.order, before, values = order, self.scale, self._of_one(self.values())
        self.plain = Tree(order, values)
        if bool((self.plain.pivots > INDEPENDENT).all()):
            return
        exact = self._of_one((self.noise == 0) & self.keep)
        gone = Tree(order, values, exact).gone
        self.scale = torch.where(gone, 0.0, before)
        self.plain = Tree(order, self._of_one(self.values()))
        self.is_sure = bool((self.plain.pivots > INDEPENDENT).all())
        some = gone.flatten(0, -2).any(0) if gone.ndim > 1 else gone
        for rows in some.nonzero()[:, 0].split(max(1, AT_ONCE // before.numel())):
            share = self._left(stage, rows) * before[..., rows].square()
            self.is_sure = self.is_sure and bool(
                (share <= DEPENDENT)[gone.expand(before.shape)[..., rows]].all()
            )
        if not self.is_sure:
            self.scale = before
            values[..., self.pairs.diagonal] += FOLLOWS
            self.plain = Tree(order, values)

    def _left(self, stage: "Iterative", rows: Tensor) -> Tensor:  # (*lead, N)
        """The variance of rows given those that are kept: a sum of squares, no difference."""
        units = self.noise.new_zeros(len(rows), *self.noise.shape)
        units[torch.arange(len(rows)), ..., rows] = 1.0
        left = units - stage.each(self.solve, stage.product(units))
        own, noise = _squares(stage, stage.adjoint(left), left)
        return own + noise

    def _shared(self, work: Callable[[Tensor], Tensor], r: Tensor) -> Tensor:
        if not self.shared:
            return work(r)
        return work(r.reshape(*[1] * (r.ndim - 2), -1, r.shape[-1])).reshape(r.shape)

    def solve(self, r: Tensor) -> Tensor:  # (*lead, N, K)
        """S^-1 r."""
        scale = self.scale[..., None, :]
        return self._shared(self.plain.solve, r * scale) * scale

    def whiten(self, r: Tensor) -> Tensor:  # (*lead, N, K)
        """L^-1 r, 0 at rows that are left out."""
        tree = self.tree
        r = r * self.scale[..., None, :]
        return self._shared(tree.whiten, r) if tree is self.plain else tree.whiten(r)

    @property
    def pivots(self) -> Tensor:  # (*lead, K)
        """The variance of each row given those taken before it, 0 at rows that are left out."""
        units = torch.where(self.keep, self.scale, torch.inf)
        return self.tree.pivots / units.square()

    @property
    def log_det(self) -> Tensor:  # (*lead)
        """Over the rows that are kept."""
        return torch.where(self.keep, self.pivots, 1.0).log().sum(-1)

    def explained(self) -> tuple[Tensor, Tensor]:  # (*lead, P) each
        """g^T S^-1 g of every point; and how far rounding can grow in it."""
        p, g, lead = self.pairs, self.coefficients, self.noise.shape[:-1]
        inverse = self.tree.inverse()
        each = g.index_select(-1, p.one) * g.index_select(-1, p.other)
        each = each * inverse.index_select(-1, p.slot) * p.times
        none = each.new_zeros(*lead, sum(v[(0,) * len(lead)].numel() for v in self.variances))
        total = none.index_add(-1, p.points.index_select(-1, p.one), each.expand(*lead, -1))
        grown = inverse.detach().index_select(-1, p.diagonal).index_select(-1, p.rows)
        at = p.points.expand(*lead, -1)
        return total, none.scatter_reduce(-1, at, grown.expand(at.shape), "amax")


def variance(stage: "Iterative", factor: Direct) -> Fields | None:
    """What the rows leave of every point: a difference, and a sum of squares where it is small.

    None where the latter are too many: each takes a solve.
    """
    lead = stage.lead
    explained, grown = factor.explained()
    before = stage.prior.variance
    sizes = [v[(0,) * lead].numel() for v in before]
    flat = torch.cat([v.reshape(*v.shape[:lead], -1) for v in before], -1)
    share = 1 - flat * explained
    doubt = (share < (HALF_THE_DIGITS * grown).clamp_max(HALF)) & (flat > 0)
    again = doubt.flatten(0, -2).any(0) if lead else doubt
    found, points = flat * share, again.nonzero()[:, 0]
    if len(points) * factor.plain.numbers > MOST_AGAIN:
        return None
    with Ticker() as ticker:
        for number, some in enumerate(points.split(max(1, AT_ONCE // max(flat.numel(), 1)))):
            ticker.say(f"variance of {number * len(some):,} of {len(points):,} points")
            left = _some(stage, factor, some, sizes)
            picked = torch.where(doubt[..., some], left, found.index_select(-1, some))
            found = found.index_copy(-1, some, picked)
    pairs = zip(found.split(sizes, -1), before, strict=True)
    return tuple(part.reshape(v.shape) for part, v in pairs)


def _some(
    stage: "Iterative", factor: Direct, points: Tensor, sizes: Sequence[int]
) -> Tensor:  # (*lead, N)
    """What the rows leave of some points, as a sum of squares, which is least at the right lambda.

    0 where exact rows fix the point.
    """
    count, lead, variances = len(points), stage.lead, stage.prior.variance
    flat = torch.zeros(count, sum(sizes), dtype=torch.float64)
    flat[torch.arange(count), points] = 1.0
    units = tuple(
        part.reshape(count, *[1] * lead, *d.shape[lead:]).expand(count, *d.shape)
        for part, d in zip(flat.split(sizes, -1), variances, strict=True)
    )
    with torch.no_grad():
        along = stage.noise.new_zeros(count, *stage.noise.shape)
        (before, _), w = _squares(stage, units, along), units
        best = torch.full_like(before, torch.inf)
        for _ in range(STEPS):
            r = stage.residual(stage.prior.times(w), value=False) - stage.noise * along
            along = along + stage.each(factor.solve, r)
            w = minus(units, stage.adjoint(along))
            own, noise = _squares(stage, w, along)
            if bool((own + noise >= (1 - CONVERGED) * best).all()):
                break
            best = torch.fmin(own + noise, best)
        fixed = (own <= FIXED * before) & (noise <= LEAKED * before)
    own, noise = _squares(stage, minus(units, stage.adjoint(along)), along)
    return torch.where(fixed & bool((stage.noise == 0).any()), 0.0, own + noise)


def _squares(stage: "Iterative", w: Fields, along: Tensor) -> tuple[Tensor, Tensor]:  # (*lead, N)
    """w^T D w, and |sigma lambda|^2."""
    each = zip(w, stage.prior.variance, strict=True)
    own = sum(summed(d * x.square(), 1 + stage.lead) for x, d in each if x is not None)
    noise = (stage.noise * along.square()).sum(-1)
    return (own + torch.zeros_like(noise)).movedim(0, -1), noise.movedim(0, -1)
