"""Ways to solve with S = G Sigma G^T + sigma^2, each for the rows and the fields it suits.

A stage conditions fields, a tuple of arrays, on the rows of some laws. What is left after it is a
covariance again, with `times` and `variance`, so that stages follow each other.

| stage | fields | rows |
|---|---|---|
| `Points` | independent points | values at single points |
| `Banded` | independent points | second differences: S has five diagonals |
| `Numbers` | independent points, or after `Banded` | one law whose rows share no point |
| `Joint` | any | any: S is a dense matrix for each part |
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ._banded import factored, spread, wide
from ._blocks import root_of
from ._checks import concrete
from ._covariances import Correlated, Independent, left_of
from ._factor import DEPENDENT, LOG_2PI, NOTHING, TINY, Factor, RowFactor
from ._laws import Fields, Rows
from ._maps import Disjoint
from ._once import once
from ._tree import Node

CARE = 0.25  # of its variance: if less is left of a point, no other point of its row has as little


class Stage(Node, ABC):
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


class OneLaw(Stage):
    """A stage for the rows of one law."""

    def residual(self, u: Fields, value: bool = True) -> Tensor:
        (rows,) = self.rows
        return rows.residual(u) if value else rows.apply(u)


class ByRow(OneLaw):
    """Rows that do not see each other: S is a number for each."""

    def _solve(self, own: Tensor, before: Tensor) -> None:
        """own: the variance of each row without noise. before: the same without any law."""
        (rows,) = self.rows
        self.noise = rows.noise_variance.expand(own.shape)
        self.seen = own + self.noise
        before = self.seen if before is own else before + self.noise
        self.factor = RowFactor(self.seen, before, self.noise)
        self.inverse = self.factor.inverse

    @property
    def dropped(self) -> Tensor:  # type: ignore[override]
        return ~self.factor.keep

    def whiten(self, r: Tensor) -> Tensor:
        return self.factor.whiten(r)

    def log_norm(self, lead: int) -> Tensor:
        return self.over(self.factor.log_norm, lead).sum(-1)

    def square(self, r: Tensor, lead: int) -> Tensor:
        return self.over(r.square() * self.inverse, lead).sum(-1)


class Points(ByRow):
    """Values at single points: independent points stay independent."""

    def __init__(self, rows: Rows, prior: Independent, root: Independent) -> None:
        self.rows, self.prior, self.field = (rows,), prior, rows.first
        own = rows.map.apply(prior.variance[self.field])
        self._solve(own, rows.map.apply(root.variance[self.field]))
        self.gain = own * self.inverse
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
            self.cross = prior.times(rows.adjoint(torch.ones_like(own)))
            own = rows.apply(self.cross)
        elif prior is not root:
            own = self.squares.apply(prior.variance)
        self._solve(own, before)

    def shift(self, u: Fields, r: Tensor) -> Fields:
        r, (rows,) = r * self.inverse, self.rows
        if self.cross is None:
            pairs = zip(self.prior.variance, rows.adjoint(r), strict=True)
        else:
            pairs = zip(self.cross, self._at_points(r), strict=True)
        triples = zip(u, pairs, strict=True)
        return tuple(x if v is None else torch.addcmul(x, c, v, value=-1) for x, (c, v) in triples)

    def square(self, r: Tensor, lead: int) -> Tensor:
        return summed(r.square() * self.inverse, lead)

    def _at_points(self, v: Tensor) -> Fields:
        return tuple(m.at_points(v) if isinstance(m, Disjoint) else None for m in self.rows[0].maps)

    @property
    def variance(self) -> Fields:
        """Product form: no two numbers that are nearly the same are subtracted."""
        before = self.prior.variance
        if self.cross is not None:
            triples = zip(before, self.cross, self._at_points(self.inverse), strict=True)
            return tuple(v if w is None else v - c.square() * w for v, c, w in triples)
        pairs = zip(self.squares.adjoint(self.inverse), before, strict=True)
        lost = tuple(None if s is None else s * d for s, d in pairs)
        there = [s for s in lost if s is not None and s.numel()]
        if any(not concrete(s) or float(s.detach().max()) > 1 - CARE for s in there):
            return self._with_care(lost)
        pairs = zip(before, lost, strict=True)
        return tuple(d if s is None else torch.addcmul(d, d, s, value=-1) for d, s in pairs)

    def _with_care(self, lost: Fields) -> Fields:
        """Where one point has most of a row's variance, what is left is the share of the others."""
        before = self.prior.variance
        pairs = zip(before, lost, strict=True)
        others = tuple(None if s is None else torch.where(s > 1 - CARE, 0.0, d) for d, s in pairs)
        share = (self.squares.apply(others) + self.noise) * self.inverse
        share = torch.where(self.exact & (share < NOTHING), 0.0, share)
        triples = zip(before, lost, self._at_points(share), strict=True)
        return tuple(
            d if s is None else d * torch.where(s > 1 - CARE, w, 1 - s) for d, s, w in triples
        )


class Banded(OneLaw):
    """Second differences of independent points: S has five diagonals. Points and rows come first.

    `moved` is the variance that the rows can move, (M, *lead).
    """

    stacked = ("moved",)

    def __init__(self, rows: Rows, prior: "Independent | Banded", root: Independent) -> None:
        self.rows, self.prior, self.field = (rows,), prior, rows.first
        self.moved = d = self._moves(prior)
        a, b, c = self._coefficients(d.ndim)
        self.noise = rows.noise_variance.expand(*d.shape[1:], len(a))
        noise = self.noise.movedim(-1, 0)
        main = self._squares(d) + noise
        first = torch.addcmul(b[:-1] * a[1:] * d[1:-2], c[:-1] * b[1:], d[2:-1])
        floor = main.new_full((), TINY)
        if not concrete(noise) or not bool(noise.min() > 0):
            least = main if prior is root else self._squares(self._moves(root)) + noise
            floor = torch.where(noise == 0, DEPENDENT * least, 0.0) + TINY
        self.matrix = factored(main, first, c[:-2] * a[2:] * d[2:-2], floor)

    @property
    def seen(self) -> Tensor:  # type: ignore[override]
        return self.matrix.pivots.movedim(0, -1)

    @property
    def dropped(self) -> Tensor:  # type: ignore[override]
        return self.seen == 0

    def _moves(self, prior: Any) -> Tensor:
        (rows,) = self.rows
        d = prior.variance[self.field]
        return (d if rows.present is None else d * rows.present).movedim(-1, 0).contiguous()

    def _coefficients(self, ndim: int) -> tuple[Tensor, ...]:
        m = self.rows[0].map
        return tuple(t.reshape(-1, *[1] * (ndim - 1)) for t in (m.a, m.b, m.c))

    def _squares(self, d: Tensor) -> Tensor:
        """The variance of each row."""
        a, b, c = (t.square() for t in self._coefficients(d.ndim))
        return (a * d[:-2]).addcmul_(b, d[1:-1]).addcmul_(c, d[2:])

    def shift(self, u: Fields, r: Tensor) -> Fields:
        v = self.matrix.solve(r.movedim(-1, 0).contiguous())
        along = spread(v, *self._coefficients(v.ndim)) * wide(self.moved, v.ndim)
        own, along = u[self.field], along.movedim(0, -1).contiguous()
        return replaced(u, self.field, -along if own is None else own - along)

    def whiten(self, r: Tensor) -> Tensor:
        return self.matrix.whiten(r.movedim(-1, 0).contiguous()).movedim(0, -1)

    def square(self, r: Tensor, lead: int) -> Tensor:
        return summed(self.matrix.square(r.movedim(-1, 0).contiguous()), lead)

    def log_norm(self, lead: int) -> Tensor:
        return summed(self.matrix.log_det + LOG_2PI * (~self.dropped).double().sum(-1), lead)

    def times(self, v: Fields) -> Fields:
        if v[self.field] is None:
            return self.prior.times(v)
        return super().times(v)

    @once
    def variance(self) -> Fields:
        before, m = self.prior.variance[self.field], self.rows[0].map
        share = self.matrix.explained(m.a, m.b, m.c) * self.moved
        share = share.movedim(0, -1).contiguous()
        left = torch.addcmul(before, before, share, value=-1)
        return replaced(self.prior.variance, self.field, left)


class Joint(Stage):
    """Any rows on any fields: S is a dense (K, K) matrix for each independent part."""

    stacked = ("units",)

    def __init__(
        self,
        rows: tuple[Rows, ...],
        prior: "Independent | Banded | Correlated",
        root: Independent | Correlated,
        lead: int,
    ) -> None:
        """lead: how many of the first axes number the parts."""
        shapes = root.shapes
        self.rows, self.prior = tuple(r.over(shapes, lead) for r in rows), prior
        rows, natural = self.rows, [r.row_shape(shapes) for r in self.rows]
        self.tails = tuple(tuple(shape[lead:]) for shape in natural)
        pairs = zip(rows, natural, strict=True)
        self.noise = self._flat([r.noise_variance.expand(shape) for r, shape in pairs])
        count = self.noise.shape[-1]
        eye = torch.eye(count, dtype=torch.float64, device=self.noise.device)
        self.units = self.adjoint(eye.reshape(count, *[1] * lead, count))  # G^T, rows on axis 0
        matrix = self.gram(prior)
        before = matrix if prior is root else self.gram(root)
        before = before.diagonal(dim1=-2, dim2=-1).detach() + self.noise.detach()
        if isinstance(root, Correlated):
            before = before + self._flat([root.rounding(r) for r in rows]) / DEPENDENT
        self.factor = Factor(matrix + self.noise.diag_embed(), before, self.noise)
        self.dropped, self.seen = ~self.factor.keep, self.factor.pivots

    def gram(self, prior: Any) -> Tensor:  # (*lead, K, K)
        """G Sigma G^T; of directions H H^T with H = G F^T: each row is rounded once."""
        if not isinstance(prior, Correlated):
            cross = prior.times(self.units)
            found = self._flat([r.apply(cross) for r in self.rows]).movedim(0, -2)
            return found.expand(*self.noise.shape, -1)
        seen = prior.seen(self.units)  # (*lead, K, R)
        own = 0.0 if prior.rest is None else self.gram(prior.rest)
        return (seen @ seen.mT + own).expand(*self.noise.shape, -1)

    def residual(self, u: Fields, value: bool = True) -> Tensor:
        return self._flat([r.residual(u) if value else r.apply(u) for r in self.rows])

    def multiplier(self, r: Tensor) -> Tensor:
        """lambda = S^-1 r."""
        return self._each(self.factor.solve, r)

    def shift(self, u: Fields, r: Tensor) -> Fields:
        return minus(u, self.prior.times(self.adjoint(self.multiplier(r))))

    def settle(self, u: Fields, value: bool) -> Fields:
        along = self._each(self.factor.solve_exact, self.residual(u, value) * self.exact)
        return minus(u, self.prior.times(self.adjoint(along)))

    def whiten(self, r: Tensor) -> Tensor:
        return self._each(self.factor.whiten, r)

    def log_norm(self, lead: int) -> Tensor:
        return summed(self.factor.log_det + LOG_2PI * (~self.dropped).double().sum(-1), lead)

    def _each(self, work: Any, r: Tensor) -> Tensor:  # (*more, *lead, K), by work on (*lead, N, K)
        shape = r.expand(torch.broadcast_shapes(r.shape, self.noise.shape)).shape
        more = math.prod(shape[: len(shape) - self.noise.ndim])
        flat = r.expand(shape).reshape(more, *self.noise.shape).movedim(0, -2)
        return work(flat).movedim(-2, 0).reshape(shape)

    def _flat(self, each: Sequence[Tensor]) -> Tensor:
        """(*more, *places, *rows) of each law, side by side: (*more, *lead, K)."""
        pairs = zip(each, self.tails, strict=True)
        return torch.cat([r.flatten(-len(t)) if t else r[..., None] for r, t in pairs], -1)

    def adjoint(self, v: Tensor) -> Fields:
        """G^T v, (*more, *lead, K) to fields."""
        total: list[Tensor | None] = [None] * len(self.rows[0].maps)
        parts = v.split([math.prod(t) for t in self.tails], -1)
        for rows, part, tail in zip(self.rows, parts, self.tails, strict=True):
            own = rows.adjoint(part.unflatten(-1, tail) if tail else part[..., 0])
            total = [_sum(x, y) for x, y in zip(total, own, strict=True)]
        return tuple(total)

    @property
    def variance(self) -> Fields:
        if isinstance(self.prior, Correlated):
            return self.prior.left(self)
        if isinstance(self.prior, Banded):
            pairs = zip(self.prior.variance, self.white(self.prior.times(self.units)), strict=True)
            return tuple(
                v if w is None else v - w.square().sum(-1).reshape(v.shape) for v, w in pairs
            )
        white = self.white(self.prior.root().times(self.units))
        there = [w for w in white if w is not None]
        least = torch.where(self.exact.any(-1), self.factor.nothing, 0.0)
        left = left_of(torch.cat([*there, self.white_noise()], -2), least)
        shares = iter(left[..., : -self.noise.shape[-1]].split([w.shape[-2] for w in there], -1))
        pairs = zip(self.prior.variance, white, strict=True)
        return tuple(d if w is None else d * next(shares).reshape(d.shape) for d, w in pairs)

    def white(self, fields: Fields) -> list[Tensor | None]:
        """L^-1 of fields with rows on axis 0: (K, *lead, *event) to (*lead, P, K)."""
        lead = self.noise.ndim - 1

        def one(x: Tensor) -> Tensor:
            x = x.expand(-1, *self.noise.shape[:-1], *x.shape[1 + lead :])
            return self.factor.whiten(x.flatten(1 + lead).movedim(0, -1))

        return [None if x is None else one(x) for x in fields]

    def white_noise(self) -> Tensor:  # (*lead, K, K)
        return self.factor.whiten(root_of(self.noise).diag_embed())


def summed(x: Tensor, lead: int) -> Tensor:
    """Summed over the axes after the first `lead`."""
    return x.flatten(lead).sum(-1) if x.ndim > lead else x


def minus(u: Fields, shift: Fields) -> Fields:
    return tuple(_sum(x, None if d is None else -d) for x, d in zip(u, shift, strict=True))


def _sum(x: Tensor | None, y: Tensor | None) -> Tensor | None:
    return x if y is None else y if x is None else x + y


def replaced(fields: Fields, at: int, new: Tensor) -> Fields:
    return tuple(new if i == at else x for i, x in enumerate(fields))
