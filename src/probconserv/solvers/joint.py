"""Any rows on any fields: S as a dense matrix for each independent part.

What the rows leave of a variance is a difference, and where that is next to nothing it is computed
again (`System`). Of a point j the rows leave the least value, over numbers lambda for the rows, of

    |F w|^2 + w^T D w + |sigma lambda|^2     with w = e_j - G^T lambda

A lambda that is off by delta adds delta^T S delta, so float64 is good enough for it. It is not for
w and F w, whose terms all but cancel: these are sums of slices, numbers of so few digits that their
products are added up without rounding.
"""

import math
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..fields.blocks import blocks
from ..fields.covariances import Correlated, Fields, Independent
from ..laws.law import Rows
from ..support.checks import any_of, concrete
from .factor import DEPENDENT, LOG_2PI, NOTHING, Factor
from .stages import Banded, Together, minus, share_no_point, summed

LEAKED = 1e-36  # share of a variance that noise makes by the rounding of lambda alone
SLICES = 4  # of a number
STEPS = 9  # corrections of lambda at most
SAME = 1e-9  # of a variance: a correction that changes no more is the last
CHUNK = 1 << 20  # numbers that are worked on at a time

Pair: TypeAlias = tuple[Tensor, Tensor]  # a number, and what it was rounded by


class Joint(Together):
    """Any rows on any fields: S is a dense (K, K) matrix for each independent part."""

    def __init__(
        self, rows: tuple[Rows, ...], prior: Any, root: Independent | Correlated, lead: int
    ) -> None:
        """prior: a covariance or the stage before. lead: how many first axes number the parts."""
        self._bundle(rows, root.shapes, lead)
        self.prior = prior
        matrix = self.gram(prior)
        before = matrix if prior is root else self.gram(root)
        before = before.diagonal(dim1=-2, dim2=-1).detach() + self.noise.detach()
        if isinstance(root, Correlated):
            before = before + self.flat([root.rounding(r) for r in self.rows]) / DEPENDENT
        value = self.flat([r.value.expand(r.row_shape(root.shapes)) for r in self.rows])
        self.factor = Factor(matrix + self.noise.diag_embed(), before, self.noise, value)
        self.dropped, self.seen = ~self.factor.keep, self.factor.pivots

    @property
    def units(self) -> Fields:
        """G^T, with the rows on axis 0."""
        count = self.noise.shape[-1]
        eye = torch.eye(count, dtype=torch.float64, device=self.noise.device)
        return self.adjoint(eye.reshape(count, *[1] * self.lead, count))

    def gram(self, prior: Any) -> Tensor:  # (*lead, K, K)
        """G Sigma G^T; of directions H H^T with H = G F^T: each row is rounded once."""
        if isinstance(prior, Correlated):
            seen = self._read(prior.directions).movedim(0, -1)  # H
            own = 0.0 if prior.rest is None else self.gram(prior.rest)
            found = seen @ seen.mT + own
        elif isinstance(prior, Independent) and share_no_point(self.rows):
            found = self.flat([self.rows[0].entrywise(2).apply(prior.variance)]).diag_embed()
        else:
            found = self._read(prior.times(self.units)).movedim(0, -2)
        return found.expand(*self.noise.shape, -1)

    def _read(self, fields: Fields) -> Tensor:  # (N, *shape) each to (N, *lead, K)
        return self.flat([r.apply(fields) for r in self.rows])

    def multiplier(self, r: Tensor) -> Tensor:
        return self.each(self.factor.solve, r)

    def shift(self, u: Fields, r: Tensor) -> Fields:
        return minus(u, self.prior.times(self.adjoint(self.multiplier(r))))

    def settle(self, u: Fields, value: bool) -> Fields:
        along = self.each(self.factor.solve_exact, self.residual(u, value) * self.exact)
        return minus(u, self.prior.times(self.adjoint(along)))

    def whiten(self, r: Tensor) -> Tensor:
        return self.each(self.factor.whiten, r)

    def log_norm(self, lead: int) -> Tensor:
        return summed(self.factor.log_det + LOG_2PI * (~self.dropped).double().sum(-1), lead)

    @property
    def variance(self) -> Fields:
        """A difference, computed again where next to nothing is left."""
        pairs = zip(self.prior.variance, self.prior.times(self.units), strict=True)
        found = tuple(v if x is None else v - self._explained(x).reshape(v.shape) for v, x in pairs)
        if isinstance(self.prior, Banded):
            return found
        if not concrete(*found):
            return tuple(v.clamp_min(0) for v in found)
        return all_but_fixed(self, found)

    def _explained(self, cross: Tensor) -> Tensor:  # (K, *lead, *event) to (*lead, P)
        """The squares of L^-1 G Sigma, summed over rows; cross: Sigma G^T of one field."""
        start = 1 + self.lead
        cross = cross.expand(-1, *self.noise.shape[:-1], *cross.shape[start:])
        flat = cross.flatten(start) if cross.ndim > start else cross[..., None]
        return self.factor.whiten(flat.movedim(0, -1)).square().sum(-1)


def all_but_fixed(joint: Joint, found: Fields) -> Fields:
    """`found`, what the rows of `joint` leave, computed again where that is next to nothing."""
    parts, rows = joint.noise[..., 0].numel(), joint.noise.shape[-1]
    sizes = [math.prod(x.shape[joint.lead :]) for x in found]

    def together(fields: Fields) -> Tensor:  # (parts, points)
        return torch.cat([x.reshape(parts, n) for x, n in zip(fields, sizes, strict=True)], -1)

    left, old = together(found), together(joint.prior.variance).detach()
    doubt = left.detach() < joint.factor.doubtful.reshape(parts, 1) * old
    if not any_of(doubt):
        return found
    bare = isinstance(joint.prior, Correlated) and joint.prior.rest is None
    width = rows + (len(joint.prior.directions[0]) if bare else sum(sizes))  # of w, F w and lambda
    most = int(doubt.sum(-1).max())
    new = torch.where(doubt, left.detach() / old, 2.0)  # the shares that are left
    some_parts = CHUNK // max(1, most * width, rows * sum(sizes))
    for some in doubt.any(-1).nonzero()[:, 0].split(max(1, some_parts)):
        system = System(joint, some)
        at = new[some].topk(most, largest=False).indices
        shares = [system.left(j) for j in at.split(max(1, CHUNK // width), -1)]
        new[some] = new[some].scatter(-1, at, torch.cat(shares, -1))
    new = torch.where(new == 0, 0.0, old * new + (left - left.detach()))  # with its gradients
    pieces = torch.where(doubt, new, left).split(sizes, -1)
    return tuple(y.reshape(x.shape) for y, x in zip(pieces, found, strict=True))


class System:
    """Some parts of a `Joint`, in units, powers of two, in which points and rows are about 1."""

    def __init__(self, joint: Joint, some: Tensor) -> None:
        lead, prior, count = joint.lead, joint.prior, joint.noise.shape[-1]

        def pick(x: Tensor) -> Tensor:  # (*lead, ...) to (parts, ...)
            return (x.flatten(0, lead - 1)[some] if lead else x[None]).detach()

        def side_by_side(fields: Fields, count: int) -> Tensor:  # (count, *shape) of each field
            zero = joint.noise.new_zeros(())
            pairs = zip((zero if x is None else x for x in fields), prior.shapes, strict=True)
            every = [blocks(x.expand(count, *s), s, len(s) - lead) for x, s in pairs]
            return pick(torch.cat(every, -1))  # (parts, count, points)

        self.factor = joint.factor._map(pick)
        self.unit = power_of_2(self.factor.scale)[:, None]
        self.noise = pick(joint.noise)[:, None] * self.unit.square()  # sigma^2
        self.exact = pick(joint.exact)[:, None]
        self.least = torch.where(self.exact.any(-1), NOTHING, 0.0)
        before = side_by_side(prior.variance, 1)
        point = power_of_2(before.sqrt())
        self.before = before[:, 0] / point[:, 0].square()
        rows = side_by_side(joint.units, count) * self.factor.keep[..., None]
        self.rows = rows * point * self.unit.mT  # G
        own, directions, rounding = before, before[:, :0], torch.zeros_like(before)
        if isinstance(prior, Correlated):
            directions = side_by_side(prior.directions, len(prior.directions[0])) / point
            own = own[..., :0] if prior.rest is None else side_by_side(prior.rest.variance, 1)
            rounding = side_by_side(prior.rounding_at_points, 1)
        self.rounding = rounding / point  # of F at every point
        self.own = own / point[..., : own.shape[-1]].square()  # D of all points, or of none
        self.read = self.rows[..., : own.shape[-1]]  # G of the same points
        self.read_slices = sliced(exactly(self.read.mT))
        self.directions = directions.mT  # F, (parts, points, R)
        terms = product(sliced(exactly(directions)), sliced(exactly(self.rows)))
        self.seen = total(terms)  # F G^T
        self.seen_slices = sliced(self.seen)
        sigma, dropped = self.noise[:, 0].sqrt().diag_embed(), (~self.factor.keep).double()
        roots = self.seen[0], (self.own.sqrt() * self.read).mT, sigma, dropped.diag_embed()
        self.upper = torch.linalg.qr(torch.cat(roots, -2), mode="r").R  # R^T R = S, not squared

    def left(self, points: Tensor) -> Tensor:  # (parts, N), their numbers, to (parts, N)
        """The shares of their variances that the rows leave."""
        at = points[..., None].expand(-1, -1, self.directions.shape[-1])
        moved = exactly(self.directions.gather(1, at))  # F w
        numbers = torch.arange(self.own.shape[-1], device=points.device)
        w = exactly((numbers == points[..., None]).double())
        along = self.rows.new_zeros(*points.shape, self.rows.shape[1])  # lambda
        best = along.new_full(points.shape, torch.inf)
        for number in range(STEPS):
            r = moved[0] @ self.seen[0] + (self.own * w[0]) @ self.read.mT - self.noise * along
            if number == 0:  # of exact rows alone: that is all where they fix j
                step = self.factor.solve_exact(r / self.unit * self.exact) / self.unit
            else:
                half = torch.linalg.solve_triangular(self.upper.mT, r.mT, upper=False)
                step = torch.linalg.solve_triangular(self.upper, half, upper=True).mT
            along, slices = along + step, sliced(exactly(step))
            moved = less(moved, product(slices, self.seen_slices))
            w = less(w, product(slices, self.read_slices))
            left = moved[0].square().sum(-1), (self.own * w[0].square()).sum(-1)
            share = self._share(*left, along, points)
            if bool((share >= (1 - SAME) * best).all()):
                break
            best = torch.fmin(best, share)
        return best

    def _share(self, shared: Tensor, own: Tensor, along: Tensor, points: Tensor) -> Tensor:
        """The share of all three sums, 0 where they are no more than rounding."""
        before = self.before.gather(-1, points)
        noise = (self.noise * along.square()).sum(-1)
        none = (noise <= LEAKED * before) & (self.least > 0)
        least = self.least * before
        none = none & (shared <= least + self._rounded(along, points)) & (own <= least)
        return torch.where(none, 0.0, shared + own + noise) / before

    def _rounded(self, along: Tensor, points: Tensor) -> Tensor:
        """The most that the rounding of F can make of |F w|^2."""
        at = points[:, None].expand(-1, self.rows.shape[1], -1)
        own, rows = self.rounding[:, 0].gather(-1, points), self.rows.gather(-1, at).mT
        others = (self.rows.abs() @ self.rounding.mT).mT - rows.abs() * own[..., None]
        here = (1 - (along * rows).sum(-1)).abs() * own
        return (here + (along.abs() * others).sum(-1)).square()


def power_of_2(x: Tensor) -> Tensor:
    """The one just above each number; 1 for 0."""
    return torch.where(x > 0, x / torch.frexp(x)[0], 1.0)


def exactly(x: Tensor) -> Pair:
    return x, torch.zeros_like(x)


def sliced(x: Pair) -> list[Tensor]:  # (..., K)
    """Parts of x with so few digits each that sums of K products of them are not rounded."""
    (rest, lost), found = x, []
    digits = (52 - max(1, rest.shape[-1]).bit_length()) // 2
    unit = power_of_2(rest.abs().amax(-1, keepdim=True).clamp_min(1e-200))
    for _ in range(SLICES):
        unit = unit * 2.0**-digits
        found.append((rest / unit).round() * unit)
        rest, lost = added(rest - found[-1], lost)
    return found


def product(a: list[Tensor], b: list[Tensor]) -> list[Tensor]:  # (..., N, K), (..., M, K)
    """a b^T of matrices in slices: its parts, (..., N, M), the largest first."""
    orders = range(1, SLICES + 1)
    return [torch.cat(a[:n], -1) @ torch.cat(b[:n][::-1], -1).mT for n in orders]


def total(parts: list[Tensor]) -> Pair:
    return less(exactly(torch.zeros_like(parts[0])), [-x for x in parts])


def less(x: Pair, parts: list[Tensor]) -> Pair:
    """x less all parts, of which the first two are exact."""
    first, second, *small = parts
    value, lost = added(x[0], -first)
    value, more = added(value, -second)
    return added(value, x[1] + lost + more - sum(small))


def added(a: Tensor, b: Tensor) -> Pair:
    """a + b, and what is lost when it is rounded."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)
