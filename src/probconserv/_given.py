"""One field given one constraint: the equations of Step 2, line by line.

The field before may itself be such a field; a chain of them ends in the field that Step 1 gave, its
root.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from . import _checks as check
from ._blocks import root_of
from ._errors import DegenerateError, InfeasibleError
from ._fields import Dense, Field, LowRank
from ._once import once
from ._operators import Rows, Stencil, Weights
from ._systems import Block, Latent, OneRow, SecondDifferences, System, Whitening

UNMET = 1e-8  # an exact row may miss its value by this much, relative to its terms
THIN = 1e-12  # share of a row's variance in the rest below which a low-rank field is solved whole


class Given:
    """One field given the rows of one constraint; `prior` may itself be such a field."""

    def __init__(self, prior: "Field | Given", rows: Rows, system: System) -> None:
        self.prior, self.rows, self.system = prior, rows, system
        self.root: Field = prior.root if isinstance(prior, Given) else prior
        self.event_dims: int = max(prior.event_dims, system.event_dims)

    @property
    def shape(self) -> torch.Size:
        return self.prior.shape

    @property
    def differentiable(self) -> bool:
        if isinstance(self.prior, Given) and self.prior.differentiable:
            return True
        return any(t.requires_grad for t in (self.root.mean, self.rows.value, self.system.variance))

    @once
    def mean(self) -> Tensor:
        return self._settled(self._correct(self.root.mean, lambda rows: 0.0))

    @once
    def variance(self) -> Tensor:
        left = self.system.remaining(self.prior.variance)
        if isinstance(self.root, Dense):
            self.root.check_variance(left)
        return left.clamp_min_(0)  # takes off rounding where a constraint leaves nothing

    def covariance_times(self, v: Tensor) -> Tensor:
        product = self.prior.covariance_times(v)
        return self.system.shift(product, self.rows.operator.apply(product))

    def sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        def noise(rows: Rows) -> Tensor | float:
            if not bool((rows.noise_variance > 0).any()):
                return 0.0
            size = (n, *rows.operator.row_shape(self.shape))
            eps = torch.randn(size, generator=generator, dtype=draw.dtype, device=draw.device)
            return root_of(rows.noise_variance) * eps

        draw = self.root.sample(n, generator)
        return self._settled(self._correct(draw, noise))

    def _correct(self, u: Tensor, noise: Callable[[Rows], Tensor | float]) -> Tensor:
        """A mean or a draw of the root field, moved to one of this field."""
        if isinstance(self.prior, Given):
            u = self.prior._correct(u, noise)
        return self.system.shift(u, self.rows.residual(u) + noise(self.rows))

    def _settled(self, u: Tensor) -> Tensor:
        """`u` with the rounding taken off its exact rows; more passes for ill-conditioned S."""
        for _ in range(1 if self._is_simple else 3):
            u = self._settle(u)
        return u

    @property
    def _is_simple(self) -> bool:
        if isinstance(self.system, Block):
            return False
        return not isinstance(self.prior, Given) or self.prior._is_simple

    @property
    def _is_certain(self) -> bool:
        """Whether exact rows hold by construction: one number, no cancellation anywhere."""
        alone = self.prior is self.root and self.root.event_dims == 0
        return alone and isinstance(self.system, OneRow)

    def _settle(self, u: Tensor) -> Tensor:
        """The exact rows once more."""
        if isinstance(self.prior, Given):
            u = self.prior._settle(u)
        exact = self.rows.noise_variance == 0
        if check.concrete(exact) and not bool(exact.any()):
            return u
        return self.system.shift_own(u, self.rows.residual(u) * exact)

    @once
    def log_evidence(self) -> Tensor:  # (*lead), over the last event_dims axes
        """log N(b; G mu, S) of all constraints so far."""
        own = self.system.log_density(self.rows.residual(self.prior.mean))
        own = sum_last(own, self.event_dims - self.system.event_dims)
        if not isinstance(self.prior, Given):
            return own
        return own + sum_last(self.prior.log_evidence, self.event_dims - self.prior.event_dims)

    def log_likelihood(self, u: Tensor) -> Tensor:
        """log N(b; G u, sigma^2) of all constraints so far, over the last event_dims axes."""
        rows = self.rows
        if bool((rows.noise_variance == 0).any()):
            raise DegenerateError(
                f"`{rows.label}` holds exactly (noise 0), so the field lies on a plane and has no "
                "joint density. Use `marginal_log_prob`, or give the constraint noise > 0."
            )
        terms = rows.residual(u) ** 2 / rows.noise_variance
        terms = terms + (2 * math.pi * rows.noise_variance).log()
        own = -0.5 * sum_last(terms, self.event_dims - rows.operator.dims + rows.operator.row_axes)
        if not isinstance(self.prior, Given):
            return own
        before = self.prior.log_likelihood(u)
        return own + sum_last(before, self.event_dims - self.prior.event_dims)

    def check(self) -> None:
        """Exact rows hold: those that nothing can move, and those where rounding may have won."""
        if not check.concrete(self.system.dropped):
            return
        rows, system = self.rows, self.system
        exact = rows.noise_variance == 0
        if not bool((system.decided if self._is_certain else exact | system.decided).any()):
            return
        miss = rows.residual(self.mean.detach()).abs() * (exact | system.decided)
        terms = (self.root.mean.abs() + self.root.std).detach()
        size = rows.operator.magnitude(terms) + rows.value.abs()
        worst = miss / torch.where(size > 0, size, 1.0)
        limit = max(UNMET, 100 * self.root.eps)
        if bool((worst > limit).any()):
            raise InfeasibleError(_infeasible(rows, miss, worst, limit))


class GivenLowRank(Given):
    """A low-rank field given a constraint: again a few shared directions and a rest."""

    system: Latent

    def __init__(
        self, prior: "LowRank | GivenLowRank", rows: Rows, seen: Tensor, rest: Given
    ) -> None:
        assert isinstance(rest.system, Whitening)
        super().__init__(prior, rows, Latent(prior.factor, seen, prior.event_dims, rest.system))
        self.residual = rest

    @property
    def factor(self) -> Tensor:
        return self.system.new_factor

    @property
    def _is_certain(self) -> bool:
        return self.prior is self.root and self.residual._is_certain

    @once
    def variance(self) -> Tensor:
        return self.system.remaining(self.residual.prior.variance).clamp_min_(0)


def update(prior: "Field | Given", rows: Rows) -> Given:
    """The one place where the structure of field and rows picks the system."""
    operator, root = rows.operator, prior.root if isinstance(prior, Given) else prior
    if isinstance(prior, LowRank | GivenLowRank) and operator.dims <= prior.event_dims:
        seen, rest = operator.apply(prior.factor), update(prior.residual, rows)
        shared = seen.square().sum(0)
        thin = (shared > 0) & ((rest.system.variance <= THIN * shared) | rest.system.dropped)
        if not bool(thin.any()):
            return GivenLowRank(prior, rows, seen, rest)
    if isinstance(operator, Weights) and operator.dims >= prior.event_dims:
        return Given(prior, rows, OneRow(prior, rows, root))
    if isinstance(operator, Stencil) and prior.event_dims == 0:
        return Given(prior, rows, SecondDifferences(prior, rows, root))
    return Given(prior, rows, Block(prior, rows, root))


def sum_last(x: Tensor, axes: int) -> Tensor:
    return x.flatten(-axes).sum(-1) if axes else x


def _infeasible(rows: Rows, miss: Tensor, worst: Tensor, limit: float) -> str:
    count = int((worst > limit).sum())
    names = []
    for flat in worst.flatten().argsort(descending=True)[: min(3, count)]:
        index = tuple(int(i) for i in torch.unravel_index(flat, worst.shape))
        names.append(
            f"{rows.name(index)} is off by {miss[index]:.3g} ({worst[index]:.1e} of its terms)"
        )
    more = f"; and {count - len(names)} more" if count > len(names) else ""
    return (
        f"the field cannot satisfy {count} row(s): {'; '.join(names)}{more}. "
        "Nothing is left to move there: the variance is zero, the field's directions are too few, "
        "or other constraints already decide the row and contradict it. (At the first time "
        "`initial` and `integral` disagree by the error of the quadrature rule where the field "
        "jumps.) Ways out: more variance; `noise` on the row, or more; event_dims=1 for a low-rank "
        "field; leave out t = 0 with times=slice(1, None)."
    )
