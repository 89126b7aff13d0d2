"""Ways to solve with S = G Sigma G^T + sigma^2, each for the rows and the fields it suits.

A stage conditions fields, a tuple of arrays, on the rows of some laws. What is left after it is a
covariance again, with `times` and `variance`, so that stages follow each other.

| stage | fields | rows |
|---|---|---|
| `SinglePoints` | independent points | values at single points |
| `Banded` | independent points | second differences: S has five diagonals |
| `Numbers` | independent points, or after `Banded` | one law whose rows share no point |

`Joint` (joint.py) takes any fields and rows, with a dense matrix for each part; `Iterative`
(iterative.py) many local rows, without a matrix or with a sparse one.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..fields.covariances import Fields, Independent
from ..laws.law import Rows
from ..support.checks import any_of, broadcast_shapes, concrete
from ..support.rowwise import solved_by_row
from ..support.slices import by_slices, may_overwrite
from ..support.tolerances import DEPENDENT, FIXED, HALF_THE_DIGITS, TINY
from ..support.tree import Node, once
from .banded import by_rows, factored, rows_first, squared
from .factor import LOG_2PI

CARE = 0.25  # of its variance: if less is left of a point, no other point of its row has as little


class Stage(Node):
    """Fields given the rows of some laws. Rows are (*places, *rows), or (*lead, K) in `Joint`."""

    rows: tuple[Rows, ...]
    prior: Any  # the covariance before
    noise: Tensor  # its variance, in full size
    seen: Tensor  # the variance of each row, with its noise, given those that were taken before it
    dropped: Tensor  # rows that take no part
    differentiable: bool = True

    @abstractmethod
    def residual(self, u: Fields, value: bool = True) -> Tensor:
        """G u - b, or G u."""

    @abstractmethod
    def shift(self, u: Fields, r: Tensor) -> Fields:
        """u - Sigma G^T S^-1 r."""

    @abstractmethod
    def whiten(self, r: Tensor) -> Tensor:
        """L^-1 r with S = L L^T, 0 for rows that are dropped."""

    @abstractmethod
    def log_norm(self, lead: int) -> Tensor:
        """log det(2 pi S) over the rows that are kept, (*lead)."""

    def settle(self, u: Fields, value: bool) -> Fields:
        """`u` with what its exact rows miss taken off."""
        if not any_of(self.exact):
            return u
        return self.shift(u, self.residual(u, value) * self.exact)

    def square(self, r: Tensor, lead: int) -> Tensor:
        """r^T S^-1 r, (*lead)."""
        return self.over(self.whiten(r).square(), lead).sum(-1)

    @property
    def exact(self) -> Tensor:
        return self.noise == 0

    def over(self, terms: Tensor, lead: int) -> Tensor:
        """Numbers for each row, (*more, *places, *rows), as (*more, *lead, K)."""
        start = terms.ndim - self.noise.ndim + lead
        return terms.flatten(start) if terms.ndim > start else terms[..., None]

    def times(self, v: Fields) -> Fields:
        """The covariance that is left, times something."""
        product = self.prior.times(v)
        return self.shift(product, self.residual(product, value=False))


class Multiplied(Stage):
    """A stage that knows lambda."""

    @abstractmethod
    def multiplier(self, r: Tensor) -> Tensor:
        """lambda = S^-1 r."""

    def times(self, v: Fields) -> Fields:
        """G of it is sigma^2 lambda: what rounding adds to that is taken off noisy rows."""
        product = self.prior.times(v)
        r = self.residual(product, value=False)
        found = self.shift(product, r)
        if not any_of(self.noise > 0):  # exact rows are settled by those who need it
            return found
        rounding = self.residual(found, value=False) - self.noise * self.multiplier(r)
        return self.shift(found, rounding)


class OneLaw(Stage):
    """A stage for the rows of one law."""

    def residual(self, u: Fields, value: bool = True) -> Tensor:
        (rows,) = self.rows
        return rows.residual(u) if value else rows.apply(u)


class ByRow(OneLaw, Multiplied):
    """Rows that do not see each other: S is a number for each."""

    def _solve(self, own: Tensor, before: Tensor) -> None:
        """own: the variance of each row without noise. before: the same without any law."""
        (rows,) = self.rows
        floor: Any = TINY
        noise = rows.noise_variance
        if before is not own:
            floor = (DEPENDENT * (before + noise)).clamp_min(TINY)
        self.seen, self.inverse = solved_by_row(own, None if rows.exact else noise, floor)

    @property
    def noise(self) -> Tensor:  # type: ignore[override]
        return self.rows[0].noise_variance.expand(self.seen.shape)

    @property
    def dropped(self) -> Tensor:  # type: ignore[override]
        return self.inverse == 0

    def multiplier(self, r: Tensor) -> Tensor:
        return r * self.inverse

    def whiten(self, r: Tensor) -> Tensor:
        return r * self.inverse.sqrt()

    def log_norm(self, lead: int) -> Tensor:
        sizes = torch.where(self.dropped, 1.0, self.seen).log() + LOG_2PI
        return self.over(torch.where(self.dropped, 0.0, sizes), lead).sum(-1)

    def square(self, r: Tensor, lead: int) -> Tensor:
        return self.over(r.square() * self.inverse, lead).sum(-1)


class SinglePoints(ByRow):
    """Values at single points: independent points stay independent."""

    def __init__(self, rows: Rows, prior: Independent, root: Independent) -> None:
        self.rows, self.prior, self.field = (rows,), prior, rows.first
        own = rows.map.apply(prior.variance[self.field])
        self._solve(own, rows.map.apply(root.variance[self.field]))
        fixed = self.exact & ~self.dropped  # to the value itself, without rounding
        self.gain = torch.where(fixed, 1.0, own * self.inverse)
        left = rows.map.put(prior.variance[self.field], own * (self.noise * self.inverse))
        self.left = Independent(replaced(prior.variance, self.field, left))

    def shift(self, u: Fields, r: Tensor) -> Fields:
        (rows,) = self.rows
        own = rows.map.apply(u[self.field]) - self.gain * r
        return replaced(u, self.field, rows.map.put(u[self.field], own))

    def over(self, terms: Tensor, lead: int) -> Tensor:
        start = terms.ndim - self.noise.ndim + lead
        terms = self.rows[0].at_all(terms, self.prior.variance[self.field].ndim, lead)
        return terms.flatten(start) if terms.ndim > start else terms[..., None]


class Numbers(ByRow):
    """One law whose rows share no point: all is linear time."""

    def __init__(self, rows: Rows, prior: "Independent | Banded", root: Independent) -> None:
        self.rows, self.prior, self.squares = (rows,), prior, rows.entrywise(2)
        before = own = self.squares.apply(root.variance)
        self.cross: Fields | None = None  # Sigma G^T, where Sigma is not diagonal
        if isinstance(prior, Banded):
            self.cross = prior.times(rows.adjoint(own.new_ones([1] * own.ndim)))
            own = rows.apply(self.cross)
        elif prior is not root:
            own = self.squares.apply(prior.variance)
        self._solve(own, before)

    def shift(self, u: Fields, r: Tensor) -> Fields:
        sent = self._at_points(r * self.inverse)
        if self.cross is not None:
            triples = zip(u, self.cross, sent, strict=True)
            return tuple(
                x if v is None else torch.addcmul(x, c, v, value=-1) for x, c, v in triples
            )
        maps: tuple[Any, ...] = self.rows[0].maps
        each = zip(u, self.prior.variance, sent, maps, strict=True)
        return tuple(
            [x if v is None else by_slices(_moved, x, d, v, m.weights) for x, d, v, m in each]
        )

    def square(self, r: Tensor, lead: int) -> Tensor:
        return summed(r.square() * self.inverse, lead)

    def _at_points(self, v: Tensor) -> Fields:
        (rows,) = self.rows
        v = v if rows.present is None else v * rows.present
        maps: tuple[Any, ...] = rows.maps
        return tuple([None if m is None else m.at_points(v) for m in maps])

    @property
    def variance(self) -> Fields:
        """Product form: no two numbers that are nearly the same are subtracted."""
        before, inverse = self.prior.variance, self._at_points(self.inverse)
        if self.cross is not None:
            triples = zip(before, self.cross, inverse, strict=True)
            return tuple(v if w is None else by_slices(_less, v, c, w) for v, c, w in triples)
        most = 0.0  # of a point's variance, that is lost

        def left(d: Tensor, v: Tensor, w: Tensor, out: Tensor | None) -> Tensor:
            nonlocal most
            lost = w * d  # at most S: with S^-1 first it could overflow
            lost = lost * v if out is None else lost.mul_(v)
            most = max(most, lost.max().item())
            return torch.addcmul(d, d, lost, value=-1, out=out)

        squares: tuple[Any, ...] = self.squares.maps
        each = [*zip(before, inverse, squares, strict=True)]
        map_ = self.rows[0].map
        if concrete(self.inverse) and not (map_.is_spread and self._has_gradient):
            found = tuple(
                by_slices(left, d, v, m.weights) if m is not None and d.numel() else d
                for d, v, m in each
            )
            if map_.largest(most) <= 1 - CARE:
                return found
        lost = (None if m is None else m.weights * d * v for d, v, m in each)
        return self._with_care(tuple(lost))

    @property
    def _has_gradient(self) -> bool:
        """Then all processes take the same steps, whatever they hold."""
        return not may_overwrite(self.inverse, *self.prior.variance)

    def _with_care(self, lost: Fields) -> Fields:
        """Where one point has most of a row's variance, what is left is the share of the others."""
        before = self.prior.variance
        pairs = zip(before, lost, strict=True)
        others = tuple(None if s is None else torch.where(s > 1 - CARE, 0.0, d) for d, s in pairs)
        share = (self.squares.apply(others) + self.noise) * self.inverse
        share = torch.where(self.exact & (share < FIXED), 0.0, share)
        triples = zip(before, lost, self._at_points(share), strict=True)
        return tuple(
            d if s is None else d * torch.where(s > 1 - CARE, w, 1 - s) for d, s, w in triples
        )


class Banded(OneLaw):
    """Second differences of independent points: S has five diagonals.

    What it gives lies by rows in memory.
    """

    def __init__(self, rows: Rows, prior: "Independent | Banded", root: Independent) -> None:
        self.rows, self.prior, self.field = (rows,), prior, rows.first
        weights, d = torch.stack((rows.map.a, rows.map.b, rows.map.c)), self._moves(prior)
        self.noise = rows.noise_variance.expand(*d.shape[1:], weights.shape[-1])
        noise = self.noise.movedim(-1, 0)
        floor = noise.new_full((), TINY)
        if not concrete(noise) or (noise.numel() and not bool(self.noise.min() > 0)):
            before = d if prior is root else self._moves(root)
            exact = DEPENDENT * (squared(before, weights) + noise)
            floor = torch.where(noise == 0, exact, 0.0) + TINY
        self.matrix = factored(d, weights, noise, floor)

    @property
    def seen(self) -> Tensor:  # type: ignore[override]
        return self.matrix.pivots.movedim(0, -1)

    @property
    def dropped(self) -> Tensor:  # type: ignore[override]
        return self.seen == 0

    def _moves(self, prior: Any) -> Tensor:  # (M, *lead)
        """The variance that the rows can move."""
        (rows,) = self.rows
        d = prior.variance[self.field]
        return by_rows(d if rows.present is None else d * rows.present).movedim(-1, 0)

    def residual(self, u: Fields, value: bool = True) -> Tensor:
        b, r = self.rows[0].value, super().residual(u, value=False)
        return r if not value else r.sub_(b) if may_overwrite(r, b) else r - b

    def shift(self, u: Fields, r: Tensor) -> Fields:
        return self._shifted(u, rows_first(r))

    def _shifted(self, u: Fields, r: Tensor) -> Fields:  # (K, *more, *lead), may be written over
        own, move = u[self.field], self.matrix.move(r).movedim(0, -1)
        return replaced(u, self.field, move if own is None else move.add_(own))

    def whiten(self, r: Tensor) -> Tensor:
        return self.matrix.whiten(rows_first(r)).movedim(0, -1)

    def square(self, r: Tensor, lead: int) -> Tensor:
        return summed(self.matrix.square(rows_first(r)), lead)

    def log_norm(self, lead: int) -> Tensor:
        return summed(self.matrix.log_det + LOG_2PI * (~self.dropped).double().sum(-1), lead)

    def times(self, v: Fields) -> Fields:
        product = self.prior.times(v)
        if v[self.field] is None:
            return product
        r = self.residual(product, value=False)
        return self._shifted(product, by_rows(r).movedim(-1, 0))

    @once
    def variance(self) -> Fields:
        before, share = self.prior.variance[self.field], self.matrix.explained().movedim(0, -1)
        out = share if may_overwrite(before, share) else None
        left = torch.addcmul(before, before, share, value=-1, out=out)
        return replaced(self.prior.variance, self.field, left)


class Together(Multiplied):
    """Several laws at once: their rows side by side, (*lead, K)."""

    def _bundle(self, rows: tuple[Rows, ...], shapes: Sequence[Sequence[int]], lead: int) -> None:
        """lead: how many of the first axes number the parts."""
        self.rows = tuple(r.over(shapes, lead) for r in rows)
        natural = [r.row_shape(shapes) for r in self.rows]
        self.tails = tuple(tuple(shape[lead:]) for shape in natural)
        pairs = zip(self.rows, natural, strict=True)
        self.noise = self.flat([r.noise_variance.expand(shape) for r, shape in pairs])

    @property
    def lead(self) -> int:
        """How many first axes number the parts."""
        return self.noise.ndim - 1

    def residual(self, u: Fields, value: bool = True) -> Tensor:
        return self.flat([r.residual(u) if value else r.apply(u) for r in self.rows])

    def flat(self, each: Sequence[Tensor]) -> Tensor:
        """(*more, *places, *rows) of each law, side by side: (*more, *lead, K)."""
        pairs = zip(each, self.tails, strict=True)
        return torch.cat([r.flatten(-len(t)) if t else r[..., None] for r, t in pairs], -1)

    def parts(self, v: Tensor) -> list[Tensor]:
        """The inverse of `flat`."""
        pairs = zip(v.split([math.prod(t) for t in self.tails], -1), self.tails, strict=True)
        return [part.unflatten(-1, tail) if tail else part[..., 0] for part, tail in pairs]

    def each(self, work: Callable[[Tensor], Tensor], r: Tensor) -> Tensor:
        """Work on (*lead, N, k), done on (*more, *lead, k)."""
        lead = self.noise.shape[:-1]
        shape = broadcast_shapes(r.shape[:-1], lead)
        more = math.prod(shape[: len(shape) - len(lead)])
        flat = r.expand(*shape, -1).reshape(more, *lead, r.shape[-1]).movedim(0, -2)
        found = work(flat).movedim(-2, 0)
        return found.reshape(*shape, found.shape[-1])

    def adjoint(self, v: Tensor) -> Fields:
        """G^T v, (*more, *lead, K) to fields."""
        total: list[Tensor | None] = [None] * len(self.rows[0].maps)
        for rows, part in zip(self.rows, self.parts(v), strict=True):
            total = [_sum(x, y) for x, y in zip(total, rows.adjoint(part), strict=True)]
        return tuple(total)


def _moved(u: Tensor, variance: Tensor, v: Tensor, weights: Tensor, out: Tensor | None) -> Tensor:
    return torch.addcmul(u, variance, v * weights, value=-1, out=out)


def _less(variance: Tensor, cross: Tensor, inverse: Tensor, out: Tensor | None) -> Tensor:
    return torch.addcmul(variance, cross, cross * inverse, value=-1, out=out)


def summed(x: Tensor, lead: int) -> Tensor:
    """Summed over the axes after the first `lead`."""
    return x.flatten(lead).sum(-1) if x.ndim > lead else x


def share_no_point(laws: Sequence[Rows]) -> bool:
    """Whether no two rows of all laws read the same point."""
    return len(laws) == 1 and not [m for m in laws[0].maps if m is not None and not m.is_disjoint]


def minus(u: Fields, shift: Fields) -> Fields:
    return tuple(_sum(x, None if d is None else -d) for x, d in zip(u, shift, strict=True))


def _sum(x: Tensor | None, y: Tensor | None) -> Tensor | None:
    return x if y is None else y if x is None else x + y


def replaced(fields: Fields, at: int, new: Tensor) -> Fields:
    return tuple(new if i == at else x for i, x in enumerate(fields))


def without_rounding(moved: Fields, variance: Fields) -> tuple[Tensor, ...]:
    """Directions that are exactly 0 at points where exact rows leave nothing of the variance."""
    found = []
    for f, v in zip(moved, variance, strict=True):
        fixed = f.detach().square().sum(0) < FIXED * v.detach()
        found.append(torch.where(fixed, 0.0, f) if any_of(fixed) else f)
    return tuple(found)


def thin(stage: Stage, r: Tensor) -> bool:
    """Whether some row has next to no variance in the rest beside that of r = G F^T."""
    shared = r.square().sum(0)
    thin = (shared > 0) & ((stage.seen <= HALF_THE_DIGITS * shared) | stage.dropped)
    if isinstance(stage, ByRow):  # noise of rows that do not see each other is variance enough
        thin = thin & stage.exact
    return any_of(thin)
