"""Points that nobody measured have infinite variance: they are eliminated, not approximated.

Let G_m be what rows G u = b + noise read of measured points, and G_u what they read of the others.
A few rows p, the pivots, give all others: G_u = C G_u[p]. What these say beside the pivots,

    (G_m - C G_m[p]) u_m = b - C b[p] + noise - C noise[p]

reads measured points alone, and conditions them as any rows do; the noise of the pivots stands
beside them as more points. The pivots then say what the other points are, with A = G_u[p]:

    A u_u = b[p] - G_m[p] u_m - noise[p]

That is the limit of a variance that grows without end. A point that the rows leave open keeps its
infinite variance, and moves no further than exact rows need.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from ..fields.blocks import root_of
from ..fields.covariances import Correlated, Fields, Independent
from ..fields.gaussian import Normals
from ..laws.law import Rows
from ..laws.maps import Matrix
from ..solvers.engine import Chain, free_axes, solve
from ..solvers.entries import Entries
from ..solvers.pivots import found_from
from ..solvers.shared import Shared
from ..solvers.stages import summed
from ..support.checks import broadcast_shapes, concrete
from ..support.errors import DegenerateError, InputError
from ..support.tolerances import FIXED, INDEPENDENT
from ..support.tree import Node

MOST = 1 << 27  # numbers of a matrix: 1 GiB
CHUNK = 1 << 20  # numbers that are worked on at a time


class Eliminated(Node):
    """Fields given laws, where some points have infinite variance."""

    is_simple = is_banded = is_iterative = makes_variance = has_estimated = False
    estimate = None
    loose = ("places",)

    def __init__(
        self, laws: tuple[Rows, ...], prior: Independent | Correlated, slack: float = 0.0
    ) -> None:
        """slack: as in `Chain`."""
        lead = free_axes(laws, prior.shapes)
        if isinstance(prior, Correlated):
            lead = min(lead, prior.lead)
            prior = prior.joined(lead)
        self.root = widest(prior)
        self.tails = tuple(tuple(shape[lead:]) for shape in prior.shapes)
        laws = tuple(rows.over(prior.shapes, lead) for rows in laws)
        natural = [rows.row_shape(prior.shapes) for rows in laws]
        self.value = _flat([rows.value for rows in laws], natural, lead)
        noise = _flat([rows.noise_variance for rows in laws], natural, lead)
        count = noise.shape[-1]
        _check_size(count * sum(math.prod(shape) for shape in prior.shapes))
        g = Entries(laws, prior.shapes, lead).matrix.expand(*noise.shape, -1)
        before = self._together(prior.variance)
        open_ = before == torch.inf
        self.places = open_.reshape(-1, open_.shape[-1]).any(0).nonzero()[:, 0]
        self.unmeasured = open_[..., self.places]
        found = found_from(g[..., self.places] * self.unmeasured[..., None, :], noise == 0, open_)
        self.log_det = found.log_det
        keeps = ~found.pivots
        self.noisy = found.pivots & (noise > 0)
        own = keeps.double().diag_embed() - found.made_of
        left = own @ g
        left = torch.where(left.abs() <= INDEPENDENT * (own.abs() @ g.abs()), 0.0, left)
        left = torch.where(open_[..., None, :], 0.0, left)
        rows, at_noise = torch.cat([left, own * self.noisy[..., None, :]], -1), self.noisy.double()
        self.all = Matrix(torch.cat([g, at_noise.diag_embed()], -1), (rows.shape[-1],))
        self.back = Matrix(found.inverse, (count,))
        value, noise_left = (own @ self.value[..., None])[..., 0], noise * keeps
        some = keeps.reshape(-1, count).any(0).nonzero()[:, 0]
        some = some if len(some) else some.new_zeros(1)  # a row of zeros
        combined = Matrix(rows[..., some, :], (rows.shape[-1],))
        self.rows = Rows("combined", (combined,), value[..., some], noise_left[..., some], None)
        self.prior = self._with_noise(prior, noise * self.noisy)
        self.inner: Chain | Shared = solve((self.rows,), self.prior, slack)
        self.undetermined = self._apart(self._around(found.undetermined))
        self.determined = self._around(self.unmeasured & ~found.undetermined)

    def _with_noise(
        self, prior: Independent | Correlated, noise: Tensor
    ) -> Independent | Correlated:
        """The measured points of all fields side by side, and then the noise of the pivots."""
        rest = prior.rest if isinstance(prior, Correlated) else prior
        assert rest is not None  # it has the infinite variances
        own = self._together(rest.variance)
        points = Independent((torch.cat([torch.where(own == torch.inf, 0.0, own), noise], -1),))
        if isinstance(prior, Independent):
            return points
        along = self._together(prior.directions)
        along = torch.cat([along, noise.new_zeros(len(along), *noise.shape)], -1)
        rounded = self._together(prior.rounding_at_points)
        at = torch.cat([rounded.expand(own.shape), torch.zeros_like(noise)], -1)
        share = max(share for share, _ in prior._rounding)
        return Correlated((along,), points, (1,), ((share, at),))

    @property
    def lead(self) -> int:
        """How many first axes number the parts."""
        return self.log_det.ndim

    def _together(self, fields: Fields, noise: bool = False) -> Tensor:  # to (*more, *lead, E)
        """Fields side by side. noise: whether zeros for the noise of the rows follow."""
        pairs = zip(fields, self.tails, strict=True)
        flat = [x.flatten(x.ndim - len(t)) if t else x[..., None] for x, t in pairs]
        lead = broadcast_shapes(*(x.shape[:-1] for x in flat))
        flat += [flat[0].new_zeros(1).expand(self.value.shape[-1])] if noise else []
        return torch.cat([x.expand(*lead, -1) for x in flat], -1)

    def _apart(self, flat: Tensor) -> tuple[Tensor, ...]:
        """The inverse; what follows the fields is left out."""
        sizes = [math.prod(tail) for tail in self.tails]
        parts = flat[..., : sum(sizes)].split(sizes, -1)
        pairs = zip(parts, self.tails, strict=True)
        return tuple(part.unflatten(-1, tail) if tail else part[..., 0] for part, tail in pairs)

    def _around(self, at: Tensor) -> Tensor:
        """Booleans at `places`, as those of all points."""
        false = torch.zeros_like(self.all.matrix[..., 0, :], dtype=torch.bool)
        return false.index_copy(-1, self.places, at)

    def _filled(self, x: Tensor, value: bool = True) -> Tensor:
        """`x` with the unmeasured points that the pivots ask for."""
        r = self.all.apply(x)
        move = self.back.apply(r - self.value if value else r)
        return x.index_add(-1, self.places, -move)

    def sizes(self, u: Fields) -> Fields:
        """Means of the prior, at unmeasured points as large as the others are wide."""
        each = zip(u, self.root.variance, self._apart(self._around(self.unmeasured)), strict=True)
        return tuple(torch.where(open_, root_of(d), x) for x, d, open_ in each)

    def means(self, u: Fields) -> Tensor:
        """Means of the prior as `prior` has them, with those of the noise."""
        return self._together(u, noise=True)

    def run(self, u: Fields) -> tuple[Fields, list[Tensor]]:
        """Means or members of the prior, moved to the laws; and the residuals that they had."""
        x = self._together(u, noise=True)  # what is determined forgets its mean
        (x,), residuals = self.inner.run((torch.where(self.determined, 0.0, x),))
        return self._apart(self._filled(x)), residuals

    def settle(self, u: Fields, value: bool = True) -> Fields:
        x = self._together(u, noise=True)
        r = self.all.apply(x)
        noise = (r - self.value if value else r) * self.noisy  # what they miss
        size = x.shape[-1] - noise.shape[-1]
        (x,) = self.inner.settle((torch.cat([x[..., :size], -noise], -1),), value)
        return self._apart(self._filled(x, value))

    def times(self, v: Fields) -> Fields:
        x = self._together(v, noise=True)
        at = x[..., self.places]
        if concrete(at) and bool(((at != 0) & self._open).any()):
            raise DegenerateError(f"the covariance {OF_OPEN}")
        (found,) = self.inner.times((x - self.all.adjoint(self.back.adjoint(at)),))
        return self._apart(self._filled(found, value=False))

    @property
    def _open(self) -> Tensor:
        return self._together(self.undetermined)[..., self.places]

    @property
    def variance(self) -> Fields:
        (left,) = self.inner.variance
        own = torch.where(self.unmeasured, self._of_unmeasured(), left[..., self.places])
        own = torch.where(self._open, torch.inf, own)
        return self._apart(left.index_copy(-1, self.places, own))

    def _of_unmeasured(self) -> Tensor:  # (*lead, points)
        """The variance of what the pivots say; of independent points a sum of squares."""
        along, count = self.back.matrix, self.value.shape[-1]
        eye = torch.eye(count, dtype=along.dtype, device=along.device)
        v = self.all.adjoint(eye.reshape(count, *[1] * self.lead, count))
        (x,) = self.inner.times((v,))
        if isinstance(self.prior, Correlated):
            left = self.all.apply(x).movedim(0, -2)
            return (along @ left * along).sum(-1).clamp_min(0)
        (x,), (d,) = self.inner.settle((x,), value=False), self.prior.variance
        r, noise = self.rows.apply((x,)), self.rows.noise_variance
        roots = torch.cat([_over(x, root_of(d)), _over(r, root_of(noise))], -1).movedim(0, -2)
        before = (v * root_of(d)).movedim(0, -2)
        found = []
        for some in along.split(max(1, CHUNK // max(1, roots[..., 0, :].numel())), -2):
            left, whole = ((some @ each).square().sum(-1) for each in (roots, before))
            found.append(torch.where(left <= FIXED * whole, 0.0, left))
        return torch.cat(found, -1)

    @property
    def breadth(self) -> Fields:
        """How wide unmeasured points are, as variances: what is left of them; where nothing is, or
        all, what the rows that read them have without them."""
        left, found = self._together(self.variance), self.all.matrix[..., self.places]
        (before,) = self.prior.variance
        rows = (self.all.matrix.square() * before[..., None, :]).sum(-1, keepdim=True)
        each = torch.where(found != 0, rows / found.square(), 0.0).amax(-2)
        own = left[..., self.places]
        own = torch.where((own > 0) & own.isfinite(), own, each)
        own = torch.where(own > 0, own, before.amax(-1, keepdim=True))
        own = torch.where(own > 0, own, 1.0)
        return self._apart(left.index_copy(-1, self.places, own))

    def draw(self, normals: Normals) -> Fields:
        """Draws about 0 of what is left, and nothing at points that are not determined."""
        (x,) = self.inner.draw(normals)
        return self._apart(self._filled(x, value=False))

    def square(self, residuals: Sequence[Tensor], lead: int) -> Tensor:
        return self.inner.square(residuals, lead)

    def log_norm(self, lead: int) -> Tensor:
        """Of combined rows whose coefficients are orthonormal, whichever rows are pivots."""
        return self.inner.log_norm(lead) - summed(self.log_det, lead)

    def count(self, lead: int) -> Tensor:
        return self.inner.count(lead)


Way: TypeAlias = Chain | Shared | Eliminated
OF_OPEN = (
    "is infinite at points that nobody measured and no law determines: `undetermined` shows where. "
    "Add laws that read them, or give them a variance."
)


def _flat(each: Sequence[Tensor], shapes: Sequence[Sequence[int]], lead: int) -> Tensor:
    """Numbers for the rows of each law, side by side, (*lead, K)."""
    pairs = zip(each, shapes, strict=True)
    return torch.cat([x.expand(shape).reshape(*shape[:lead], -1) for x, shape in pairs], -1)


def _check_size(numbers: int) -> None:
    if numbers > MOST:
        raise InputError(
            f"`laws`: points of infinite variance are found by a dense matrix, and here it has "
            f"{numbers} entries. Give entries of the batch, or times, one by one, leave out points "
            "that no law reads, or give all a finite variance."
        )


def _over(x: Tensor, by: Tensor) -> Tensor:
    """x / by, and 0 where `by` is 0."""
    return torch.where(by > 0, x / torch.where(by > 0, by, 1.0), 0.0)


def widest(prior: Independent | Correlated, times: float = 1.0) -> Independent | Correlated:
    """A prior with so many times its largest variance in place of infinite ones."""
    own = (prior.rest if isinstance(prior, Correlated) else prior) or prior
    known = [d.detach()[d < torch.inf] for d in own.variance]
    wide = max([float(d.max()) for d in known if d.numel()], default=0.0) or 1.0
    return finite(prior, tuple(torch.full_like(d, times * wide) for d in own.variance))


def finite(prior: Independent | Correlated, variance: Fields) -> Independent | Correlated:
    """A prior with other variances in place of infinite ones."""
    if isinstance(prior, Correlated):
        assert prior.rest is not None
        return prior._with(rest=finite(prior.rest, variance))
    pairs = zip(prior.variance, variance, strict=True)
    return Independent(tuple(torch.where(d == torch.inf, x, d) for d, x in pairs))


def eliminated(laws: tuple[Rows, ...], prior: Independent | Correlated, slack: float) -> Eliminated:
    """Fields given laws, where some points have infinite variance."""
    made_of = [t for rows in laws for m in rows.maps if m is not None for t in m.tensors]
    if not concrete(*prior.variance, *made_of, *(rows.noise_variance for rows in laws)):
        raise InputError(
            "`variance` is infinite at some points, which are found by a look at values: not "
            "inside `torch.func` transforms, nor compiled. Give the fields a batch axis instead."
        )
    return Eliminated(laws, prior, slack)
