"""Any rows on any fields: S as a dense matrix for each independent part.

What the rows leave of a variance is a difference. Where little is left it is computed from the
weights of all points in the error of this one: over numbers lambda for the rows, the least of

    |F w|^2 + w^T D w + |sigma lambda|^2     with w = e_j - G^T lambda

A lambda that is off by delta adds delta^T S delta, which a few corrections by what it misses make
nothing.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..fields.blocks import same_once
from ..fields.covariances import Correlated, Fields, Independent
from ..laws.law import Rows
from ..support.checks import any_of, broadcast_shapes, concrete
from ..support.tolerances import CONVERGED, DEPENDENT, FIXED, HALF_THE_DIGITS, LEAKED
from .entries import CHUNK, Entries, side_by_side
from .factor import LOG_2PI, Factor
from .stages import Banded, Together, minus, summed

LITTLE = 0.1  # share of a variance: if less is left it is no difference
HALF = 0.5  # the most of that, if there are many points
AFFORDED = 1 << 24  # entries times points up to which all may be computed as sums of squares
MILD = 1e4  # growth of rounding up to which entries of S^-1 have digits enough
STEPS = 9  # corrections of lambda at most
AT_ONCE = 1 << 25  # rows times points that are solved again together


class Joint(Together):
    """Any rows on any fields: S is a dense (K, K) matrix for each independent part.

    Parts that have the same rows, covariance and noise share one factor: its axes have size 1.
    """

    def __init__(
        self, rows: tuple[Rows, ...], prior: Any, root: Independent | Correlated, lead: int
    ) -> None:
        """prior: a covariance or the stage before. lead: how many first axes number the parts."""
        self._bundle(rows, root.shapes, lead)
        self.prior = prior
        self.latent = self._seen(prior) if isinstance(prior, Correlated) else None  # G F^T
        noise = self._once([r.noise_variance for r in self.rows])
        matrix = self.gram(prior)
        if prior is root:
            before = matrix.diagonal(dim1=-2, dim2=-1).detach()
        else:
            squares = [r.entrywise(2).apply(root.variance) for r in self.rows]
            before = self._once(squares).detach()
        if isinstance(root, Correlated):
            before = before + self._once([root.rounding(r) for r in self.rows]) / DEPENDENT
        matrix = matrix + noise.diag_embed()
        own = matrix.shape[:-2]
        before, noise = _at_most(before + noise.detach(), own), noise.expand(*own, -1)
        value = self._once([r.value.detach() for r in self.rows]).abs()
        self.factor = Factor(matrix, before, noise, _at_most(value, own))
        self.dropped = (~self.factor.keep).expand(self.noise.shape)
        self.seen = self.factor.pivots.expand(self.noise.shape)

    def _once(self, each: Sequence[Tensor]) -> Tensor:  # (*lead or 1, K)
        """As `flat`, of numbers that are the same along some axes: these have size 1."""
        own = [same_once(x, self.lead) for x in each]
        lead = broadcast_shapes(*(x.shape[: self.lead] for x in own))
        return self.flat([x.expand((*lead, *t)) for x, t in zip(own, self.tails, strict=True)])

    @property
    def _entries(self) -> Entries:
        return Entries(self.rows, self.prior.shapes, self.lead)

    @property
    def _is_simple(self) -> bool:
        """Whether the rows can be taken apart, and the prior is no stage with bands."""
        banded = isinstance(self.prior, Banded)
        if banded or self.rows[0].map.is_spread or torch.compiler.is_compiling():
            return False
        return concrete(*self.prior._tensors(), *(t for r in self.rows for t in r._tensors()))

    def _columns(self, prior: Any) -> Fields:
        """Sigma G^T, with the rows on axis 0."""
        return prior.times(self._transposed())

    def _transposed(self) -> Fields:
        """G^T, with the rows on axis 0."""
        count = self.noise.shape[-1]
        eye = torch.eye(count, dtype=torch.float64, device=self.noise.device)
        return self.adjoint(eye.reshape(count, *[1] * self.lead, count))

    def _without_fixed(self, found: Fields) -> Fields:
        """The variances, 0 at points that an exact row reads alone."""
        ones = tuple(torch.ones_like(v) for v in self.prior.variance)
        sizes = self.flat([rows.entrywise(1).apply(ones) for rows in self.rows])
        sizes = torch.where(self.exact & (sizes > 0), sizes, torch.inf).movedim(-1, 0)
        fixed = (
            None if g is None else (g.abs() >= sizes[(..., *[None] * (g.ndim - sizes.ndim))]).any(0)
            for g in self._transposed()
        )
        pairs = zip(found, fixed, strict=True)
        return tuple(v if at is None else torch.where(at, 0.0, v) for v, at in pairs)

    def gram(self, prior: Any) -> Tensor:  # (*lead or 1, K, K)
        """G Sigma G^T; of directions H H^T with H = G F^T: each row is rounded once."""
        if isinstance(prior, Correlated):
            seen = self.latent if prior is self.prior else self._seen(prior)
            assert seen is not None
            own = 0.0 if prior.rest is None else self.gram(prior.rest)
            return seen @ seen.mT + own
        if isinstance(prior, Independent) and self._is_simple:
            return self._entries.gram(side_by_side(prior.variance, self.lead))
        found = self._read(self._columns(prior)).movedim(0, -2)
        return found.expand(*self.noise.shape, -1)

    def _seen(self, prior: Correlated) -> Tensor:  # (*lead or 1, K, R)
        """H = G F^T."""
        once = tuple(same_once(f, self.lead + 1, 1) for f in prior.directions)
        each = [r.apply(once) for r in self.rows]
        lead = broadcast_shapes(*(x.shape[: self.lead + 1] for x in each))
        each = [x.expand((*lead, *t)) for x, t in zip(each, self.tails, strict=True)]
        return self.flat(each).movedim(0, -1)

    def _read(self, fields: Fields) -> Tensor:  # (N, *shape) each to (N, *lead, K)
        return self.flat([r.apply(fields) for r in self.rows])

    def each(self, work: Callable[[Tensor], Tensor], r: Tensor) -> Tensor:
        """As in `Together`; entries that share a factor are worked on at once."""
        shared = [i for i, n in enumerate(self.factor.root.shape[:-2]) if n == 1]
        more = r.ndim - 1 - self.lead
        if not shared or more < 0:
            return super().each(work, r)
        r = r.expand(*r.shape[:more], *self.noise.shape[:-1], -1)
        axes = [more + i for i in shared]
        front = r.movedim(axes, [*range(len(axes))])
        some = front.shape[: len(axes) + more]
        rows = front.reshape(math.prod(some), *self.factor.root.shape[:-2], r.shape[-1])
        found = work(rows.movedim(0, -2)).movedim(-2, 0)
        return found.reshape(front.shape).movedim([*range(len(axes))], axes)

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
        total = self.factor.log_det.expand(self.noise.shape[:-1])
        return summed(total + LOG_2PI * (~self.dropped).double().sum(-1), lead)

    @property
    def variance(self) -> Fields:
        """A difference; a sum of squares where little is left."""
        if not self._is_simple:
            pairs = zip(self.prior.variance, self._columns(self.prior), strict=True)
            found = tuple([v if x is None else v - self._explained_by(x, v) for v, x in pairs])
            if self.rows[0].map.is_spread:
                found = self._without_fixed(found)
            return found if isinstance(self.prior, Banded) else tuple(v.clamp_min(0) for v in found)
        before, entries = side_by_side(self.prior.variance, self.lead), self._entries
        inverse = self.factor.inverse
        growth = inverse.detach().diagonal(dim1=-2, dim2=-1).sum(-1)  # of rounding
        left = before - self._explained(entries, before, inverse, growth)
        sure = (HALF_THE_DIGITS * growth).clamp(LITTLE, HALF)  # K rows leave less of 2K points
        if left.numel() * max(len(entries.points), left.shape[-1]) <= AFFORDED:
            sure = torch.where(growth > MILD, 1.0, sure)
        left = with_care(self, entries, left, before.expand(left.shape), sure)
        shapes = self.prior.shapes
        pieces = left.split([math.prod(shape[self.lead :]) for shape in shapes], -1)
        pairs = zip(pieces, shapes, strict=True)
        return tuple(
            x.reshape((*x.shape[:-1], *shape[self.lead :])).expand(shape) for x, shape in pairs
        )

    def _explained_by(self, cross: Tensor, like: Tensor) -> Tensor:  # (K, *lead, *event) to `like`
        """The squares of L^-1 G Sigma, summed over rows; cross: Sigma G^T of one field."""
        start = 1 + self.lead
        cross = cross.expand(-1, *self.noise.shape[:-1], *cross.shape[start:])
        flat = cross.flatten(start) if cross.ndim > start else cross[..., None]
        return self.factor.whiten(flat.movedim(0, -1)).square().sum(-1).reshape(like.shape)

    def _explained(
        self, entries: Entries, before: Tensor, inverse: Tensor, growth: Tensor
    ) -> Tensor:  # (*lead or 1, P)
        """What the rows explain of the variance of each point, with S = L L^T."""
        parts = max(before[..., :1].numel(), self.factor.scale[..., :1].numel())
        if self.latent is not None:
            directions = directions_of(self.prior, self.lead)
            seen = self.factor.whiten(self.latent.mT).mT  # L^-1 H
            if self.prior.rest is None:
                steps = directions.split(max(1, CHUNK // max(1, parts * seen.shape[-2])), -1)
                return torch.cat([(seen @ f).square().sum(-2) for f in steps], -1)
            rest = side_by_side(self.prior.rest.variance, self.lead)
            found = []
            for at, g in entries.chunks(parts):
                own = self.factor.whiten((g * rest[..., None, at]).mT).mT
                found.append((seen @ directions[..., at] + own).square().sum(-2))
            return torch.cat(found, -1)
        if entries.is_sparse and bool((growth <= MILD).all()):
            return entries.form(self.factor.unscaled(inverse)) * before.square()
        white = [self.factor.whiten(g.mT).square().sum(-1) for _, g in entries.chunks(parts)]
        return torch.cat(white, -1) * before.square()


def _at_most(x: Tensor, lead: Sequence[int]) -> Tensor:  # (..., K) to (*lead, K)
    """The largest numbers of those that share a factor."""
    shared = [i for i, n in enumerate(lead) if n < x.shape[i]]
    return (x.amax(shared, keepdim=True) if shared else x).expand(*lead, -1)


def directions_of(prior: Correlated, lead: int) -> Tensor:  # (*lead or 1, R, P)
    """F of all fields side by side."""
    return side_by_side(prior.directions, lead + 1).movedim(0, -2)


def with_care(joint: Joint, entries: Entries, left: Tensor, before: Tensor, sure: Tensor) -> Tensor:
    """`left`, what the rows leave, (*lead or 1, P); where it is less, as a sum of squares."""
    doubt = left.detach() < sure[..., None] * before.detach()
    if not any_of(doubt):
        return left
    lead, size = left.shape[:-1], left.shape[-1]
    parts = math.prod(lead)
    some_doubt, old = doubt.reshape(parts, size), before.detach().reshape(parts, size)
    shares = torch.where(some_doubt, left.detach().reshape(parts, size) / old, 2.0)
    most = int(some_doubt.sum(-1).max())
    width = max(size, len(entries.points), joint.noise.shape[-1])
    for some in some_doubt.any(-1).nonzero()[:, 0].split(max(1, CHUNK // (most * width))):
        system = System(joint, entries, old[some], lead, some)
        at = shares[some].topk(most, largest=False).indices
        found = [system.left(j) for j in at.split(max(1, CHUNK // width), -1)]
        shares[some] = shares[some].scatter(-1, at, torch.cat(found, -1))
    new = shares.reshape(left.shape)
    new = torch.where(new == 0, 0.0, before.detach() * new + (left - left.detach()))
    return torch.where(doubt, new, left)


def surely(
    laws: tuple[Rows, ...], root: Any, lead: int, found: Fields, lost: Sequence[Tensor]
) -> Fields:
    """`found`, what laws leave, and where it is lost in rounding what dense matrices say.

    Of points on several processes it stays as it is. lead: how many first axes number the parts.
    """
    if laws[0].map.is_spread or not any(map(any_of, lost)):
        return found
    laws = tuple(law.over(root.shapes, lead) for law in laws)
    hard = torch.stack([summed(x, lead) > 0 for x in lost]).any(0)
    rows = sum(math.prod(law.row_shape(root.shapes)[lead:]) for law in laws)
    each = rows * sum(math.prod(shape[lead:]) for shape in root.shapes)
    new = [v.clone() for v in found]
    for some in hard.nonzero().split(max(1, AT_ONCE // max(each, 1))):
        at = some.unbind(-1)
        part = root._at(at)
        again = Joint(tuple(law._at(at) for law in laws), part, part, min(lead, 1)).variance
        for v, x, w in zip(new, lost, again, strict=True):
            v[at] = torch.where(x[at], w, v[at])
    return tuple(new)


class System:
    """Some parts of a `Joint`, in units in which points and rows have a variance of about 1."""

    def __init__(
        self, joint: Joint, entries: Entries, before: Tensor, lead: Sequence[int], some: Tensor
    ) -> None:
        """before: the variance of the points, (parts, P). lead: of which `some` are the numbers."""

        def pick(x: Tensor, axes: int = 1) -> Tensor:  # (*lead or 1, ...) to (parts, ...)
            wide = x.detach().expand((*lead, *x.shape[x.ndim - axes :]))
            return wide.flatten(0, len(lead) - 1)[some] if lead else wide[None]

        prior, factor = joint.prior, joint.factor
        own = factor.root.ndim - 2
        assert own == len(lead)
        self.factor = factor._map(lambda t: pick(t, t.ndim - own))
        scale = self.factor.scale
        self.factor = self.factor._with(scale=self.factor.keep.double())
        point = before.sqrt()
        self.entries = entries.scaled(pick, scale, point)
        noise = joint._once([r.noise_variance for r in joint.rows])
        self.noise = (pick(noise) * scale.square())[:, None]
        self.has_exact = self.factor.exact.any(-1)[:, None]
        self.own: Tensor | None = torch.ones_like(point)[:, None]
        self.directions = point.new_zeros(*point.shape, 0)  # F, (parts, points, R)
        self.rounding = torch.zeros_like(point)
        if isinstance(prior, Correlated):
            inverse = torch.where(point > 0, 1 / point, 0.0)
            found = pick(directions_of(prior, joint.lead), 2)
            self.directions = found.mT * inverse[..., None]
            self.rounding = pick(side_by_side(prior.rounding_at_points, joint.lead)) * inverse
            self.own = None
            if prior.rest is not None:
                rest = pick(side_by_side(prior.rest.variance, joint.lead))
                self.own = (rest * inverse.square())[:, None]
        self.seen = self.entries.apply(self.directions.mT)  # F G^T
        self.sizes = self.entries.sizes(self.rounding[:, None])

    def left(self, points: Tensor) -> Tensor:  # (parts, N), their numbers, to (parts, N)
        """The shares of their variances that the rows leave."""
        at = points[..., None].expand(-1, -1, self.directions.shape[-1])
        first = moved = self.directions.gather(1, at)  # F w
        along = self.noise.new_zeros(*points.shape, self.noise.shape[-1])  # lambda
        unit = along.new_zeros(*points.shape, self.rounding.shape[-1])
        w = unit = unit if self.own is None else unit.scatter(-1, points[..., None], 1.0)
        best = along.new_full(points.shape, torch.inf)
        for _ in range(STEPS):
            r = moved @ self.seen - self.noise * along
            r = r if self.own is None else r + self.entries.apply(self.own * w)
            along = along + self.factor.solve(r)
            moved = first - along @ self.seen.mT
            w = w if self.own is None else unit - self.entries.adjoint(along)
            share = self._share(moved, w, along, points)
            if bool((share >= (1 - CONVERGED) * best).all()):
                break
            best = torch.fmin(best, share)
        return best

    def _share(self, moved: Tensor, w: Tensor, along: Tensor, points: Tensor) -> Tensor:
        """The share of all three sums; 0 where exact rows leave no more than rounding."""
        shared, noise = moved.square().sum(-1), (self.noise * along.square()).sum(-1)
        own = torch.zeros_like(shared) if self.own is None else (self.own * w.square()).sum(-1)
        rounded = self.rounding.gather(-1, points) + (along.abs() @ self.sizes.mT)[..., 0]
        none = (shared <= FIXED + rounded.square()) & (own <= FIXED) & (noise <= LEAKED)
        return torch.where(none & self.has_exact, 0.0, shared + own + noise)
