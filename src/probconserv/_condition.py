r"""Step 2 of the paper: a Gaussian field, given that a law holds, is a Gaussian field.

    u ~ N(mu, Sigma),   b = G u + sigma eps,   S = G Sigma G^T + sigma^2 I

    mean        mu - Sigma G^T S^-1 (G mu - b)
    covariance  Sigma - Sigma G^T S^-1 G Sigma
    sample      y - Sigma G^T S^-1 (G y + sigma eps - b),  y a draw of the field before

sigma = 0 is the number zero: nothing here asks for it. Several constraints are taken one after the
other, the cheap ones first. `_given.py` has these lines as code for one constraint, `_systems.py`
the ways to solve with S.
"""

from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor

from . import _checks as check
from ._checks import ArrayLike
from ._constraints import Constraint
from ._convert import as_field
from ._errors import DegenerateError, InputError
from ._fields import Diagonal, Field
from ._given import Given, sum_last, update
from ._mixture import Mixture
from ._operators import Rows, Stencil, separate

NEARLY = 1e-8  # noise variance below this share of a row's terms, squared, is nearly none


@overload
def condition(field: Mixture, *constraints: Constraint) -> Mixture: ...
@overload
def condition(field: Any, *constraints: Constraint) -> "Conditioned": ...
def condition(field: Any, *constraints: Constraint) -> Any:
    """The field given that the constraints hold: Eq. (8) of the paper. A field of the same axes.

    field: any field, or a prediction that `as_field` takes. For a `Mixture` every component is
    conditioned and its weight multiplied by its evidence; the result is a `Mixture`.

    >>> import probconserv as pc
    >>> prior = pc.Diagonal([[0.0, 1.0, 1.0]], 1.0)
    >>> law = pc.integral([0.0, 1.0, 2.0], 2.0)
    >>> post = pc.condition(prior, law)
    >>> post.mean
    tensor([[0.1667, 1.3333, 1.1667]], dtype=torch.float64)
    >>> law.residual(post)
    tensor([0.], dtype=torch.float64)
    """
    field = as_field(field)
    constraints = _checked(field, constraints)
    if isinstance(field, Mixture):
        return _condition_mixture(field, constraints)
    if isinstance(field, Conditioned):  # from the start again, so that two steps equal one
        return condition(field.prior, *field.constraints, *constraints)
    rows = [constraint.rows(field.shape) for constraint in constraints]
    if field.event_dims:
        rows = [separate(one, field.event_dims) for one in rows]
    state: Any = field._map(lambda t: t.double())
    state.eps = torch.finfo(field.dtype).eps
    for one in sorted(rows, key=lambda one: _cost(one, state)) if len(rows) > 1 else rows:
        state = update(state, one)
        state.check()
    return Conditioned(field, constraints, state)


def project(field: Any, *constraints: Constraint) -> Any:
    """The field with its mean moved to the nearest one that obeys the constraints: HardC-ANP.

    The mean is mu - G^T (G G^T)^-1 (G mu - b), which is `condition` with Sigma = I; the covariance
    stays as it is, so samples do not conserve. Takes constraints without noise.
    """
    field = as_field(field)
    constraints = _checked(field, constraints)
    for constraint in constraints:
        noise = constraint.noise_variance
        if check.concrete(noise) and bool((noise > 0).any()):
            raise InputError(
                f"`project` takes exact constraints, but `{constraint.label}` has noise. "
                "Use `condition`, which weighs noise against variance."
            )
    if isinstance(field, Mixture):
        components = project(field.components, *constraints)
        return Mixture._unchecked(components, field.log_weights, field.event_dims)
    unit = Diagonal._unchecked(field.mean, torch.ones_like(field.mean))
    return field._with_mean(condition(unit, *constraints).mean)


class Conditioned(Field):
    """What `condition` returns: a Gaussian field that keeps its prior and its constraints.

    Solved in float64 throughout; mean, variance and samples come back in the dtype of the prior.
    """

    def __init__(self, prior: Field, constraints: tuple[Constraint, ...], solved: Given) -> None:
        self.prior, self.constraints, self._solved = prior, constraints, solved
        self.event_dims = solved.event_dims

    @property
    def shape(self) -> torch.Size:
        return self.prior.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.prior.dtype

    @property
    def device(self) -> torch.device:
        return self.prior.device

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        return self._solved.mean.to(self.dtype)

    @property
    def variance(self) -> Tensor:  # type: ignore[override]
        return self._solved.variance.to(self.dtype)

    @property
    def log_evidence(self) -> Tensor:
        """log N(b; G mu, G Sigma G^T + sigma^2), one value per independent part (*batch)."""
        return self._solved.log_evidence.to(self.dtype)

    def covariance_times(self, v: Tensor) -> Tensor:
        return self._solved.covariance_times(v.double()).to(self.dtype)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        return self._solved.sample(check.samples(n), generator).to(self.dtype)

    def log_prob(self, u: ArrayLike) -> Tensor:
        """By Bayes: log p(u) + log p(b | u) - log p(b)."""
        u = self._values(u)
        likelihood = self._solved.log_likelihood(u.double())
        before = self._solved.root.log_prob(u.double())
        before = sum_last(before, self.event_dims - self.prior.event_dims)
        return (before + likelihood - self._solved.log_evidence).to(self.dtype)

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Conditioned":
        laws = [constraint._map(change) for constraint in self.constraints]
        return condition(self.prior._map(change), *laws)

    def _take(self, index: Tensor) -> "Conditioned":
        laws = [constraint._take(index, self.shape) for constraint in self.constraints]
        return condition(self.prior._take(index), *laws)


def _condition_mixture(field: Mixture, constraints: tuple[Constraint, ...]) -> Mixture:
    """p(z | b) is proportional to p(z) p(b | z), with what was known before taken off."""
    components = condition(field.components, *constraints)
    _check_comparable(components._solved)
    gained = components._solved.log_evidence
    if isinstance(field.components, Conditioned):
        before = field.components._solved.log_evidence
        gained = gained - sum_last(before, before.ndim - gained.ndim)
    missing = field.event_dims - components.event_dims
    if missing < 0:
        raise InputError(
            f"weights per time (event_dims={field.event_dims}) need components whose times are "
            f"independent, but these are joint over {components.event_dims} axes. "
            f"Use Mixture(..., event_dims={components.event_dims})."
        )
    return field._reweighted(components, sum_last(gained, missing))


def _check_comparable(solved: Given) -> None:
    """Evidences of components can be compared when they are densities of the same rows."""
    rows = solved.system.dropped
    if rows.ndim and bool((rows != rows[:1]).any()):
        raise DegenerateError(
            f"some components of the mixture have no variance left for `{solved.rows.label}` and "
            "others have, so their evidences cannot be compared. Give the components variance, or "
            "the constraint `noise` > 0."
        )
    if isinstance(solved.prior, Given):
        _check_comparable(solved.prior)


def _checked(field: Field, constraints: tuple[Constraint, ...]) -> tuple[Constraint, ...]:
    if not constraints:
        raise InputError("`condition` and `project` need at least one constraint.")
    for constraint in constraints:
        if not isinstance(constraint, Constraint):
            raise InputError(
                f"constraints are made by integral, cells, linear and their like; got "
                f"{type(constraint).__name__}."
            )
    constraints = tuple(constraint._beside(field.device) for constraint in constraints)
    for constraint in constraints:
        for name in constraint._tensors:
            t = getattr(constraint, name)
            check.same_device(f"{name} of {constraint.label}", t.device, "the field", field.device)
            if t.ndim and torch.finfo(t.dtype).eps > torch.finfo(field.dtype).eps:
                raise InputError(
                    f"`{constraint.label}` is {t.dtype} ({name}), coarser than the {field.dtype} "
                    "field: exact conservation would be exact only to its rounding. Build it in "
                    f"{field.dtype} or better."
                )
    return constraints


def _cost(rows: Rows, root: Field) -> tuple[bool, int, bool, bool]:
    """Rows over fewer axes first; among equals second differences (S stays banded), then exact.

    Rows with so little noise that they are all but exact come last, lest they decide exact ones.
    """
    noise, operator = rows.noise_variance, rows.operator
    small = NEARLY * operator.magnitude(root.std).square()
    nearly = bool(((noise > 0) & (noise < small)).any())
    stencil = isinstance(operator, Stencil)
    return nearly, operator.dims, not stencil, bool((noise > 0).any())
