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

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..fields.covariances import Correlated, Fields, Independent
from ..fields.gaussian import Normals
from ..laws.law import Rows
from ..laws.maps import Matrix
from ..solvers.engine import Chain, Shared, free_axes, solve
from ..solvers.factor import NOTHING
from ..solvers.stages import Together, summed
from ..support.checks import broadcast_shapes, concrete
from ..support.errors import DegenerateError, InputError
from ..support.tree import Node

ROUNDING = 1e-11  # of its row's size: a coefficient, or a row, that is less is rounding
OPEN = 1e-8  # a point is open that moves by so much, in units of its rows, while no row changes
MOST = 1 << 27  # numbers of a matrix: 1 GiB
CHUNK = 1 << 20  # numbers that are worked on at a time


class Eliminated(Node):
    """Fields given laws, where some points have infinite variance."""

    is_simple = is_banded = is_iterative = makes_variance = False
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
        self.root = _finite(prior)
        self.tails = tuple(tuple(shape[lead:]) for shape in prior.shapes)
        flat = _Flat(laws, prior.shapes, lead)
        g, noise, count = flat.matrix(self), flat.noise, flat.noise.shape[-1]
        before = self._together(prior.variance)
        open_ = before == torch.inf
        self.places = open_.reshape(-1, open_.shape[-1]).any(0).nonzero()[:, 0]
        self.unmeasured = open_[..., self.places]
        found = _eliminated(g[..., self.places] * self.unmeasured[..., None, :], noise == 0, open_)
        self.log_det, self.value = found.log_det, flat.value(prior.shapes)
        keeps = ~found.pivots
        self.noisy = found.pivots & (noise > 0)
        own = keeps.double().diag_embed() - found.made_of
        left = own @ g
        left = torch.where(left.abs() <= ROUNDING * (own.abs() @ g.abs()), 0.0, left)
        left = torch.where(open_[..., None, :], 0.0, left)
        rows, at_noise = torch.cat([left, own * self.noisy[..., None, :]], -1), self.noisy.double()
        self.all = Matrix(torch.cat([g, at_noise.diag_embed()], -1), (rows.shape[-1],))
        self.back = Matrix(found.inverse, (count,))
        value = (own @ self.value[..., None])[..., 0]
        self.rows = Rows(
            "combined", (Matrix(rows, (rows.shape[-1],)),), value, noise * keeps, None
        )
        self.prior = self._with_noise(prior, noise * self.noisy)
        self.inner: Chain | Shared = solve((self.rows,), self.prior, slack)
        self.undetermined = self._apart(self._around(found.undetermined))

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
        sizes = [int(np.prod(tail)) for tail in self.tails]
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
        """Means of the prior, at unmeasured points as large as the widest of the others."""
        each = zip(u, self.root.variance, self._apart(self._around(self.unmeasured)), strict=True)
        return tuple(torch.where(open_, x.abs() + d.sqrt(), x) for x, d, open_ in each)

    def run(self, u: Fields) -> tuple[Fields, list[Tensor]]:
        """Means or members of the prior, moved to the laws; and the residuals that they had."""
        (x,), residuals = self.inner.run((self._together(u, noise=True),))
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
        if bool(((at != 0) & self._open).any()):
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
        """The variance of what the pivots say of unmeasured points."""
        units = self.back.matrix.movedim(-2, 0)
        at_once = max(1, CHUNK // max(1, self.all.matrix[..., 0, :].numel()))
        found = [self._spread(-self.all.adjoint(some)) for some in units.split(at_once)]
        return torch.cat(found).movedim(0, -1)

    def _spread(self, v: Tensor) -> Tensor:  # (N, *lead, E) to (N, *lead)
        """The variance of v^T x: of independent points a sum of squares, with no difference."""
        (x,) = self.inner.times((v,))
        if isinstance(self.prior, Correlated):
            return (v * x).sum(-1).clamp_min(0)
        (x,), (d,) = self.inner.settle((x,), value=False), self.prior.variance
        r, noise = self.rows.apply((x,)), self.rows.noise_variance
        found = _over(x.square(), d).sum(-1) + _over(r.square(), noise).sum(-1)
        return torch.where(found <= NOTHING * (v.square() * d).sum(-1), 0.0, found)

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


class _Flat(Together):
    """The rows of all laws side by side, (*lead, K)."""

    def __init__(self, laws: tuple[Rows, ...], shapes: Sequence[Any], lead: int) -> None:
        self._bundle(laws, shapes, lead)
        points = sum(torch.Size(shape).numel() for shape in shapes)
        if points * self.noise.shape[-1] > MOST:
            raise InputError(
                f"`laws`: {self.noise.shape[-1]} rows of {points} points, some of infinite "
                "variance, take too large a matrix. Give each entry of the batch or each time by "
                "itself, leave points out that no law reads, or give the others a variance."
            )

    def matrix(self, way: Eliminated) -> Tensor:  # (*lead, K, E)
        """G."""
        noise, count = self.noise, self.noise.shape[-1]
        eye = torch.eye(count, dtype=noise.dtype, device=noise.device)
        units = self.adjoint(eye.reshape(count, *[1] * self.lead, count))
        sizes = [(count, *noise.shape[:-1], *tail) for tail in way.tails]
        zero = noise.new_zeros(())
        pairs = zip(units, sizes, strict=True)
        whole = tuple((zero if x is None else x).expand(size) for x, size in pairs)
        return way._together(whole).movedim(0, -2)

    def value(self, shapes: Sequence[Any]) -> Tensor:  # (*lead, K)
        """b."""
        return self.flat([r.value.expand(r.row_shape(shapes)) for r in self.rows])


class Found(NamedTuple):
    """Pivots of each part, and what they are good for."""

    pivots: Tensor  # (*lead, K)
    made_of: Tensor  # C, (*lead, K, K)
    inverse: Tensor  # of A, (*lead, points, K)
    undetermined: Tensor  # (*lead, points)
    log_det: Tensor  # of 1 + C C^T, (*lead)


def _eliminated(rows: Tensor, exact: Tensor, open_: Tensor) -> Found:
    """rows: G_u of the points that are unmeasured in some part, (*lead, K, points)."""
    lead, (count, points) = rows.shape[:-2], rows.shape[-2:]
    parts = lead.numel()
    rows, exact = rows.reshape(parts, count, points), exact.reshape(parts, count)
    some = open_.reshape(parts, -1)
    at = some.any(0)
    some = some[:, at]
    pivots, made_of = torch.zeros_like(exact), rows.new_zeros(parts, count, count)
    inverse, left = rows.new_zeros(parts, points, count), torch.zeros_like(some)
    log_det = rows.new_zeros(parts)
    arrays = [x.detach().cpu().numpy() for x in (rows, exact, some)]
    alike: dict[tuple[bytes, ...], list[int]] = {}
    for number in range(parts):
        alike.setdefault(tuple(x[number].tobytes() for x in arrays), []).append(number)
    for numbers in alike.values():
        g, free, own = (x[numbers[0]] for x in arrays)
        chosen = _pivots(g[:, own], free)
        here = torch.tensor(numbers, device=rows.device)
        j, p, q, row_units, units = (torch.as_tensor(x).to(rows.device) for x in (
            own.nonzero()[0], chosen.pivots, chosen.others, chosen.row_units, chosen.units
        ))
        left[here[:, None], j] = torch.as_tensor(chosen.undetermined).to(rows.device)
        if not len(p):
            continue
        pivots[here[:, None], p] = True
        g = (rows[here if rows.requires_grad else here[:1]][..., j] * row_units[:, None]) * units
        basis, upper = torch.linalg.qr(g[:, p].mT)
        back = torch.linalg.solve_triangular(upper, basis.mT, upper=True).mT
        c = g[:, q] @ back
        c = c + (g[:, q] - c @ g[:, p]) @ back
        c = torch.where(c.abs() <= ROUNDING, 0.0, c) * row_units[p] / row_units[q][:, None]
        made_of[here[:, None, None], q[:, None], p] = c
        inverse[here[:, None, None], j[:, None], p] = units[:, None] * back * row_units[p]
        gram = c.mT @ c + torch.eye(len(p), dtype=c.dtype, device=c.device)
        log_det[here] = 2 * torch.linalg.cholesky(gram).diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return Found(
        pivots.reshape(*lead, count),
        made_of.reshape(*lead, count, count),
        inverse.reshape(*lead, points, count),
        left.reshape(*lead, points),
        log_det.reshape(lead),
    )


class Chosen(NamedTuple):
    """Rows that give all others, and units, powers of two, in which coefficients are about 1."""

    pivots: NDArray[Any]
    others: NDArray[Any]
    row_units: NDArray[Any]
    units: NDArray[Any]  # of points
    undetermined: NDArray[Any]


def _pivots(g: NDArray[Any], exact: NDArray[Any]) -> Chosen:
    """By QR with column pivoting of G_u^T; exact rows first, so that they keep no noise."""
    row_units = _units(abs(g).max(1, initial=0.0))
    g = g * row_units[:, None]
    units = _units(abs(g).max(0, initial=0.0))
    g = g * units
    first, basis = _independent(g, exact.nonzero()[0])
    rest = g - (g @ basis) @ basis.T
    rest = rest - (rest @ basis) @ basis.T
    second, _ = _independent(rest, (~exact).nonzero()[0])
    pivots = np.concatenate([first, second])
    whole = np.linalg.qr(g[pivots].T, mode="complete")[0]
    open_ = (whole[:, len(pivots) :] ** 2).sum(1) > OPEN**2
    others = np.setdiff1d(np.arange(len(g)), pivots)
    return Chosen(pivots, others, row_units, units, open_)


def _independent(g: NDArray[Any], some: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Those of some rows that do not follow from the others, and a basis of what they read."""
    from scipy.linalg import qr  # a tenth of a second, so not for everybody

    if not len(some) or not g.shape[1]:
        return some[:0], g[:0].T
    basis, upper, order = qr(g[some].T, mode="economic", pivoting=True)
    rank = int((abs(upper.diagonal()) > ROUNDING).sum())
    return some[order[:rank]], basis[:, :rank]


def _units(sizes: NDArray[Any]) -> NDArray[Any]:
    """What to multiply with, so that sizes are about 1; 1 where there is nothing."""
    return np.where(sizes > 0, np.ldexp(1.0, -np.frexp(sizes)[1]), 1.0)


def _over(x: Tensor, by: Tensor) -> Tensor:
    """x / by, and 0 where `by` is 0."""
    return torch.where(by > 0, x / torch.where(by > 0, by, 1.0), 0.0)


def _finite(prior: Independent | Correlated) -> Independent | Correlated:
    """A prior with another number in place of infinite variances."""
    if isinstance(prior, Correlated):
        assert prior.rest is not None
        rest = _finite(prior.rest)
        return prior._with(rest=rest)
    largest = [d[d < torch.inf] for d in prior.variance]
    wide = max([float(d.max()) for d in largest if d.numel()], default=0.0) or 1.0
    return Independent(tuple(torch.where(d == torch.inf, wide, d) for d in prior.variance))


def eliminated(
    laws: tuple[Rows, ...], prior: Independent | Correlated, slack: float
) -> Eliminated:
    """Fields given laws, where some points have infinite variance."""
    if not concrete(*prior.variance):
        raise InputError(
            "`variance` is infinite at some points, which are found by a look at values: not "
            "inside `torch.func` transforms, nor compiled. Give the fields a batch axis instead."
        )
    return Eliminated(laws, prior, slack)
