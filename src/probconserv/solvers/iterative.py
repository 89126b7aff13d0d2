"""Many local rows, one for each cell: S lambda = r by conjugate gradients.

Where they take many iterations, and for the determinant and the variance of every point, S is
factored (sparse.py). Each row is met to 1e-12 of its terms, which is looked at in the final fields.
Gradients come by implicit differentiation: one more solve.
"""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..fields.covariances import Correlated, Fields, Independent
from ..laws.law import Rows
from ..laws.stencils import Stencil, between_rows
from ..support.checks import broadcast_shapes, concrete, unravelled
from ..support.errors import DegenerateError, InfeasibleError, InputError, ProbConservError
from ..support.progress import Ticker
from ..support.tolerances import FOLLOWS, HOLDS, ROUNDED, TINY
from ..support.tree import once
from .estimate import Estimate, estimated
from .factor import LOG_2PI
from .precondition import ROUGH, Scaling, Transform
from .sparse import Direct, direct, variance
from .stages import Together, minus, summed

REFINEMENTS = 4  # at most; one is always made
LIMIT = 10_000  # iterations
MANY = 100  # iterations: where they would be more the factor is taken, if it is not too large
LOOK = 4  # iterations from one look at the rows to the next
SOON = 16  # iterations after which it is seen how many there will be
DIVERGED = 1e8  # times the least that rows were off by: they contradict each other


class Iterative(Together):
    """Rows that each read few points: all is done by products with S."""

    def __init__(
        self,
        rows: tuple[Rows, ...],
        prior: Independent | Correlated,
        root: Independent | Correlated,
        lead: int,
        slack: float = 0.0,
    ) -> None:
        """lead: how many of the first axes number the parts.

        slack: what the rounding of the input may leave of an exact row, as a share of its terms.
        """
        self._bundle(rows, root.shapes, lead)
        self.prior = prior
        self.allowed = max(HOLDS, slack)
        self.iterations = 0  # of the last update, with its refinements
        with torch.no_grad():
            self.matrices = tuple(self.matrix(i) for i in range(len(rows)))
            both = zip(self.rows, self.parts(self.noise), strict=True)
            squares = [r.entrywise(2).apply(prior.variance) + noise for r, noise in both]
            self.diagonal = self.flat(squares)
            pairs = zip(self.matrices, squares, strict=True)
            self.inverses = tuple(_inverse(matrix, d) for matrix, d in pairs)
        self.is_hard = False  # whether many iterations were needed, so that the factor is taken

    @property
    def own(self) -> Fields:
        """The variance of each point alone."""
        own = self.prior.rest if isinstance(self.prior, Correlated) else self.prior
        if own is None:
            return tuple(torch.zeros_like(v) for v in self.prior.variance)
        found: Fields = own.variance
        return found

    def matrix(self, law: int) -> Stencil | None:
        """S of independent points, from rows to rows of one law whose maps are stencils."""
        both = zip(self.rows[law].maps, self.own, strict=True)
        maps, variances = zip(*[(m, v) for m, v in both if m is not None], strict=True)
        return between_rows(maps, variances, self.parts(self.noise)[law])

    def product(self, v: Tensor) -> Tensor:
        """S v, of this stage as it is."""
        (matrix, *more), alone = self.matrices, isinstance(self.prior, Independent)
        if matrix is None or more or not alone:
            return _product(self, v)
        return matrix.apply(v.unflatten(-1, self.tails[0])).flatten(-len(self.tails[0]))

    @property
    def direct(self) -> Direct | None:
        """The factor of S, where it has few numbers. It is not kept in files or copies."""
        if "_direct" not in self.__dict__:
            self._direct = direct(self)
        return self._direct

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_direct"}

    def _whole(self) -> "Iterative":
        return copy.copy(self)

    @property
    def known(self) -> Direct | None:
        """The factor, if it is known which rows follow from others."""
        return None if self.direct is None or not self.direct.is_sure else self.direct

    @property
    def dropped(self) -> Tensor:  # type: ignore[override]
        return self.diagonal <= TINY if self.known is None else ~self.known.keep

    @property
    def seen(self) -> Tensor:  # type: ignore[override]
        return self._factor().pivots

    def approximate(self, r: Tensor) -> Tensor:
        """About S^-1 r."""
        if self.is_hard and self.direct is not None:
            return self.each(self.direct.solve, r)
        pairs = zip(self.inverses, self.parts(r), strict=True)
        return self.flat([inverse(part) for inverse, part in pairs])

    def shift(self, u: Fields, r: Tensor) -> Fields:
        """u - Sigma G^T S^-1 r, so that each row holds; or an error."""
        try:
            return self._shifted(u, r)
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError) and "memory" not in str(error):
                raise
            raise ProbConservError(
                f"there is not enough memory for {r.numel():,} rows: conjugate gradients need "
                "about 20 arrays of the size of the fields. Condition fewer batch entries, draws "
                "or times at once, or use a machine with more memory."
            ) from error

    def _shifted(self, u: Fields, r: Tensor) -> Fields:
        self.iterations = 0
        multiplier = self.solve(r, HOLDS * self._terms(u))
        moved = minus(u, self.prior.times(self.adjoint(multiplier)))
        pairs = zip(moved, self._refined(u, r, moved, multiplier), strict=True)
        return tuple(  # the gradient is that of the first solve
            new + (x - x.detach()) if x is not None and x.requires_grad else new for x, new in pairs
        )

    @torch.no_grad()
    def _refined(self, u: Fields, r: Tensor, moved: Fields, multiplier: Tensor) -> Fields:
        """`moved`, with what rows still miss taken off."""
        start, terms = self.residual(u, value=False) - r, self._terms(u) + self._terms(moved)
        before = torch.inf
        for number in range(REFINEMENTS):
            left = self.residual(moved, value=False) - start - self.noise * multiplier
            if number and bool((left.abs() <= HOLDS * terms).all()):
                return moved
            most = float(_off_by(left, terms).max()) if left.numel() else 0.0
            if not most < before / 2:
                break
            before = most
            more = self.solve(left, ROUNDED * terms)
            multiplier = multiplier + more
            moved = minus(moved, self.prior.times(self.adjoint(more)))
        if not bool((left.abs() <= self.allowed * terms).all()):
            self._refuse(left, terms)
        return moved

    def settle(self, u: Fields, value: bool) -> Fields:
        return u

    def solve(self, r: Tensor, tolerance: Tensor) -> Tensor:
        """S^-1 r, each row to its tolerance."""
        if not torch.compiler.is_compiling() and not concrete(r):
            raise InputError(NOT_TRACED)
        every = [t for node in (*self.rows, self.prior) for t in node._tensors()]
        tensors = [t for t in every if t.requires_grad]
        found: Tensor = Solve.apply(self, r, tolerance, *tensors)  # type: ignore[no-untyped-call]
        return found

    def iterated(self, r: Tensor, tolerance: Tensor) -> Tensor:
        """S^-1 r by conjugate gradients; where they take many iterations, with the factor."""
        given = self.product, self.approximate, r, tolerance, self.diagonal
        if not self.is_hard:
            found, count = conjugate_gradients(*given, self._takes_factor)
            self.iterations += count
        if self.is_hard:
            found, count = conjugate_gradients(*given, look=1)
            self.iterations += count
        return found

    def _takes_factor(self) -> bool:
        self.is_hard = self.direct is not None
        return self.is_hard

    def relative(self, r: Tensor) -> Tensor:
        """What rows may miss, beside the size of r as a whole: for what has units of its own."""
        size = (r.square() / self.diagonal.clamp_min(TINY)).sum(-1, keepdim=True).sqrt()
        return HOLDS * size * self.diagonal.sqrt()

    def multiplier(self, r: Tensor) -> Tensor:
        return self.solve(r, self.relative(r.detach()))

    def times(self, v: Fields) -> Fields:
        product = self.prior.times(v)
        found = self.multiplier(self.residual(product, value=False))
        return minus(product, self.prior.times(self.adjoint(found)))

    def square(self, r: Tensor, lead: int) -> Tensor:
        return self.over(r * self.multiplier(r), lead).sum(-1)

    @once
    def _answer(self) -> tuple[Fields, tuple[Estimate, ...] | None]:
        found = None if self.known is None else variance(self, self.known)
        return estimated(self) if found is None else (found, None)

    @property
    def has_estimated(self) -> bool:
        """Whether the variance is known, and estimated."""
        return "_answer" in vars(self) and self._answer[1] is not None

    @property
    def variance(self) -> Fields:
        return self._answer[0]

    @property
    def estimate(self) -> tuple[Estimate, ...] | None:
        """How the variance of each field was estimated; None where it is exact."""
        return self._answer[1]

    def _factor(self) -> Direct:
        if self.known is None:
            raise DegenerateError(NO_DETERMINANT)
        return self.known

    def whiten(self, r: Tensor) -> Tensor:
        return self.each(self._factor().whiten, r) * self._factor().keep

    def log_norm(self, lead: int) -> Tensor:
        factor = self._factor()
        return summed(factor.log_det + LOG_2PI * factor.keep.double().sum(-1), lead)

    @torch.no_grad()
    def _terms(self, u: Fields) -> Tensor:
        """|b| + |G| (|u| + standard deviation) + noise: the size of what a row adds up."""
        pairs = zip(u, self.prior.variance, strict=True)
        sizes = tuple(v.sqrt() if x is None else x.abs() + v.sqrt() for x, v in pairs)
        each = [
            r.entrywise(1).apply(sizes) + r.value.abs() + r.noise_variance.sqrt() for r in self.rows
        ]
        return self.flat(each).expand(*each[0].shape[: each[0].ndim - len(self.tails[0])], -1)

    def _refuse(self, left: Tensor, terms: Tensor) -> NoReturn:
        """An error that names the worst rows."""
        share = _off_by(left, terms)
        wrong = share > HOLDS
        pairs = zip(self.rows, self.parts(wrong), strict=True)
        labels = [f"`{rows.label}`" for rows, part in pairs if bool(part.any())]
        count = int(wrong.sum())
        worst = share.flatten().topk(min(3, count)).indices.tolist()
        each = [unravelled(number, share.shape) for number in worst]
        named = "; ".join(
            f"{self._name(index)} by {float(left[tuple(index)].abs()):.2g}" for index in each
        )
        raise InfeasibleError(
            f"{count} row{'s' * (count != 1)} of {' and '.join(labels)} cannot be met after "
            f"{self.iterations} iterations; the worst are off: {named}. Either exact rows "
            "contradict each other, or nothing is left to move, or the variances of neighbours "
            "differ too much. Ways out: make the values agree, give the laws `noise`, or give the "
            "points that they read more even variances."
        )

    def _name(self, index: Sequence[int]) -> str:
        """A row in words, `index` into (*more, *lead, K)."""
        *places, row = index[-1 - self.lead :]
        for rows, tail in zip(self.rows, self.tails, strict=True):
            if row < math.prod(tail):
                return rows.name([*places, *map(int, np.unravel_index(row, tail))])
            row -= math.prod(tail)
        raise AssertionError(index)


NOT_TRACED = (
    "`laws` for every cell are solved by conjugate gradients, which look at values: not inside "
    "`torch.func` transforms. Give the fields a batch axis instead of `vmap`, or use fewer rows."
)
NO_DETERMINANT = (
    "these `laws` are solved by conjugate gradients, which give no determinant: the rows are too "
    "many to factor their matrix, or not on a CPU, or all but follow from each other. There is no "
    "`log_evidence`, no `log_prob` and no mixture. Use `marginal_log_prob`, fewer rows, or `noise`."
)


class Solve(torch.autograd.Function):
    """S^-1 r. Its gradient needs one more solve, and one product with S."""

    @staticmethod
    def forward(ctx: Any, stage: Iterative, r: Tensor, tolerance: Tensor, *of: Tensor) -> Tensor:
        found = stage.iterated(r, tolerance)
        ctx.stage, ctx.of = stage, of
        ctx.save_for_backward(found)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (found,), stage = ctx.saved_tensors, ctx.stage
        w = stage.iterated(grad, stage.relative(grad))
        if not ctx.of:
            return None, w, None
        with torch.enable_grad():
            copies = {id(t): t.detach().requires_grad_() for t in ctx.of}
            again = stage._map(lambda t: copies.get(id(t), t.detach()))
            change = -(w * _product(again, found)).sum()
        grads = torch.autograd.grad(change, list(copies.values()), allow_unused=True)
        return None, w, None, *grads


def conjugate_gradients(
    product: Callable[[Tensor], Tensor],
    approximate: Callable[[Tensor], Tensor],
    r: Tensor,
    tolerance: Tensor,
    diagonal: Tensor,
    stops: Callable[[], bool] = lambda: False,
    look: int = LOOK,
) -> tuple[Tensor, int]:
    """S^-1 r (*more, *lead, K) for all right sides at once, and how many iterations it took.

    A system stops when each of its rows is within its tolerance, or when it comes no nearer: rows
    that contradict each other drive it away again. What came nearest is returned. Rows without
    variance take no part. stops: asked where many iterations are to come.
    """
    r = r.expand(broadcast_shapes(r.shape, tolerance.shape)) * (diagonal > TINY)
    x = nearest = torch.zeros_like(r)
    z = approximate(r)
    p, rz = z.clone(), _dot(r, z)
    least = torch.full_like(rz, torch.inf)
    free = rz > 0  # whether something can be moved
    first: float | None = None  # how many digits are to be gained
    with Ticker() as ticker:
        for iteration in range(LIMIT + 1):
            if iteration % look == 0:
                off = _off_by(r, tolerance).amax(-1, keepdim=True)
                nearest = torch.where(off < least, x, nearest)
                least = torch.minimum(off, least)
                going = (off > 1) & (off < DIVERGED * least)
                if not bool((going & free).any()):
                    break
                worst = float(off.max())
                first = first or math.log(worst)
                gained = first - math.log(worst)  # less than 0 where it drives away
                slow = iteration >= MANY or iteration * first >= MANY * gained
                if iteration >= SOON and slow and stops():
                    break
                ticker.say(f"iteration {iteration}: the worst row is at {worst:.0e} of its goal")
            q = product(p)
            pq = _dot(p, q)
            free = free & (rz > 0) & (pq > ROUNDED * _dot(p * diagonal, p))
            going = going & free
            step = torch.where(going, rz / pq, 0.0)
            x.addcmul_(step, p)
            r.addcmul_(step, q, value=-1)
            z = approximate(r)
            new = _dot(r, z)
            p = torch.addcmul(z, torch.where(going, new / rz, 0.0), p)
            rz = new
    return nearest, iteration


def _off_by(r: Tensor, size: Tensor) -> Tensor:
    """How far rows are off beside a size; 0 of nothing is 0."""
    share = torch.where(r == 0, 0.0, r.abs() / size.clamp_min(TINY))
    return torch.where(share.isnan(), torch.inf, share)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return torch.linalg.vecdot(x, y)[..., None]


def _product(stage: Iterative, v: Tensor) -> Tensor:
    """S v, from the laws and the covariance."""
    fields = stage.prior.times(stage.adjoint(v))
    pairs = zip(stage.rows, stage.parts(v), strict=True)
    return stage.flat([r.apply(fields) + r.noise_variance * part for r, part in pairs])


def _inverse(matrix: Stencil | None, diagonal: Tensor) -> "Scaling | Transform":
    """matrix: S of independent points alone. diagonal: of S, with directions."""
    if matrix is None or not diagonal.numel():
        return Scaling(diagonal)
    alone = dict(matrix.terms())[(0,) * matrix.dims]
    if bool((alone < FOLLOWS * diagonal).any()):
        return Scaling(diagonal)
    transform = Transform(matrix)
    return transform if transform.roughness < ROUGH else Scaling(diagonal)
