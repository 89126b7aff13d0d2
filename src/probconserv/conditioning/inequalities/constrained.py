"""Fields given laws and inequalities, as draws: picks the way in one place.

| fields | laws | way |
|---|---|---|
| independent points | at most one that ties points, by rows that share none | `linewise.py` |
| any, also where gradients are asked for | any | `loop/within.py` |
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...fields.covariances import Correlated, Fields, Independent
from ...fields.gaussian import Diagonal, Field, check_measured
from ...fields.mixture import Mixture
from ...fields.state import State, covariance_of
from ...laws.inequalities import Inequality, Limits, limits_of
from ...laws.law import Law, Rows
from ...solvers.shrinkage import shrunk
from ...support import checks as check
from ...support.errors import InputError
from ...support.gradients import without
from ..audit import check_met, warn_if_far
from ..draws import FieldDraws, StateDraws, between, mean_of
from ..loop.gradient import clipped_with_gradient
from ..loop.within import Within
from ..posterior import FieldPosterior
from .linewise import Linewise
from .truncated import Tilted, tilted

CLOSED = 50  # points in a row: from here on the closed form of `Truncated` is good


class Found(NamedTuple):
    """What is known of a field."""

    draws: Tensor
    dims: int  # how many last axes a draw moves together
    point: Tensor
    mean: Tensor


def constrained(
    prior: Field | State,
    before: tuple[Rows, ...],
    laws: Sequence[Law],
    inequalities: Sequence[Inequality],
    n: int,
    generator: torch.Generator | None,
    dtypes: Sequence[torch.dtype] = (),
) -> list[Found]:
    """`n` draws of each field, with their mean and the point.

    before: laws laid on it already. dtypes: of the results, where bounds are to hold in less than
    float32.
    """
    check.generator(generator)
    fields, names = prior.parts, prior.names
    if not check.concrete(*(field.mean for field in fields)):
        raise InputError("`laws`: inequalities look at values, so `condition` cannot be traced.")
    device, shapes = fields[0].device, [field.shape for field in fields]
    rows = (*before, *(law.to(device).on(names, shapes) for law in laws))
    dtypes = dtypes or [dtype_of(field) for field in fields]
    limits = limits_of(inequalities, names, shapes, dtypes, device)
    root = covariance_of(shrunk(prior, rows))
    means = tuple(field.mean.double() for field in fields)
    slack = 16 * max(torch.finfo(field.dtype).eps for field in fields)
    grain = 4 * max(torch.finfo(dtype).eps for dtype in dtypes)
    if not any(u.numel() for u in means):
        check_met(rows, means, means, root, slack)
        drawn, lead = tuple(u.expand(n + 1, *u.shape) for u in means), 0
    else:
        learns = _learns(root, means, rows, limits)
        measured = isinstance(root, Independent) and not any(field.infinite for field in fields)
        fast = measured and Linewise.suits(rows, shapes, limits)
        fast = fast and not (learns and (n or any(one.slopes for one in limits)))
        kind: Any = Linewise if fast else Within
        way = kind(rows, means, root, limits, slack, grain)
        drawn, lead = way.draws(n, generator), way.lead
        if fast and learns:  # of the point alone
            at = [u[-1] for u in drawn]
            at = clipped_with_gradient(way.laws, way.mean, way.variance, limits, at)
            drawn = tuple(u[None] for u in at)
        limits = way.limits
    found = []
    for u, one, v, dtype in zip(drawn, limits, root.variance, dtypes, strict=True):
        mean = one.holding(torch.where(v == 0, u[-1], mean_of(u[:n]))) if n else u[-1]
        mean, draws, point = (x.to(dtype) for x in (mean, u[:n], u[-1]))
        found.append(Found(draws, max(1, point.ndim - lead), point, mean))
    return found


def _learns(
    root: Independent | Correlated, means: Fields, rows: Sequence[Rows], limits: Sequence[Limits]
) -> bool:
    """Whether the result has a gradient, which the fast way has for points within bounds alone."""
    given = [*means, *(t for node in (root, *rows) for t in node._tensors())]
    given += [end for one in limits for end in (one.low, one.high)]
    return torch.is_grad_enabled() and any(t.requires_grad for t in given)


class Truncated(FieldDraws):
    """Independent points that cannot lie outside of their bounds, given one law.

    The mean comes in closed form, right to 1e-4 standard deviations for 200 points in a row of the
    law, to 1e-2 for 10 and to 1e-1 for 5. So do variance and quantiles of rows of at least 50
    points; for shorter ones, where the closed form is too wide or too narrow by several percent,
    they are those of the draws. Draws are exact, and so is the law in each. `condition` makes it,
    with `bounds(..., truncated=True)`. Mean, point and the variance in closed form have a gradient.

    Attributes
    ----------
    draws : Tensor, shape (n, ..., T, M)
        The draws that `condition` was asked for.
    event_dims : int
        How many last axes the law ties.
    point : Tensor, shape (..., T, M)
        The mean, moved to the nearest field that obeys.

    Examples
    --------
    >>> import probconserv as pc
    >>> low = pc.bounds(low=0.0, truncated=True)
    >>> post = pc.condition(pc.Diagonal([0.1, 0.2, 1.0], 0.5), pc.weighted_sum([1.0] * 3, 0.7), low)
    >>> bool((post.draws > 0).all())
    True
    """

    def __init__(
        self,
        law: Tilted,
        limits: Limits,
        dtype: torch.dtype,
        shape: torch.Size,
        point: Tensor,
        n: int,
        generator: torch.Generator | None,
    ) -> None:
        self._law, self._low, self._high = law, limits.low.expand(shape), limits.high.expand(shape)
        self.event_dims, self.point = len(shape) - law.mean.ndim + 1, point.to(dtype)
        self._mean = self._shaped(law.mean).to(dtype)
        self.draws = self._drawn(n, generator)

    def _shaped(self, x: Tensor) -> Tensor:
        """(*more, *places, M) as the field, within the bounds."""
        own = self._low.shape[self._low.ndim - self.event_dims :]
        return x.unflatten(-1, own).clamp(self._low, self._high)

    @property
    def _closed(self) -> bool:
        """Whether variance and quantiles come in closed form."""
        return self._law.mean.shape[-1] >= CLOSED

    @property
    def variance(self) -> Tensor:  # type: ignore[override]
        """The variance of each point."""
        if not self._closed:
            return super().variance
        own = self.shape[len(self.shape) - self.event_dims :]
        return self._law.variance.unflatten(-1, own).to(self.dtype)

    def _quantiles(self, *shares: float) -> list[Tensor]:
        if not self._closed:
            return super()._quantiles(*shares)
        with torch.no_grad():
            found = [self._shaped(self._law.quantile(p)).to(self.dtype) for p in shares]
        return [without(each, self._mean, NO_GRADIENT) for each in found]

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """New draws, on a new axis 0.

        Parameters
        ----------
        n : int
            How many.
        generator : torch.Generator
            The source of the random numbers.

        Returns
        -------
        Tensor, shape (n, ..., T, M)
            Each obeys the law and the bounds.
        """
        return self._drawn(n, generator)

    def _drawn(self, n: int, generator: torch.Generator | None) -> Tensor:
        with torch.no_grad():
            found = self._shaped(self._law.draw(n, generator)).to(self._mean.dtype)
        return without(found, self._mean, NO_GRADIENT)


NO_GRADIENT = (
    "draws and intervals within `truncated` bounds have no gradient, nor has the variance of rows "
    f"of fewer than {CLOSED} points. Use `mean`, `variance` of longer rows or `point`, or leave "
    "`truncated` out."
)


def condition_within(
    prior: Field | State,
    before: tuple[Rows, ...],
    laws: Sequence[Law],
    inequalities: Sequence[Inequality],
    n: int,
    generator: torch.Generator | None,
) -> FieldDraws | StateDraws:
    """A field or a state, no mixture, given laws and inequalities; before: laid on it already."""
    labels = tuple(rows.label for rows in before)
    labels += tuple(law.label_on(prior.names) for law in laws)
    labels += tuple(one.label for one in inequalities)
    if any_truncated(inequalities):
        found_ = _truncated(prior, before, laws, inequalities, n, generator)
        found_.laws = labels
        return found_
    found = constrained(prior, before, laws, inequalities, n, generator)
    warn_if_far(None, tuple(each.point.double() for each in found), prior.parts)
    parts = tuple(FieldDraws._unchecked(*each) for each in found)
    for part in parts:
        part.laws = labels
    return StateDraws(prior.names, parts) if isinstance(prior, State) else parts[0]


def _truncated(
    prior: Field | State,
    before: tuple[Rows, ...],
    laws: Sequence[Law],
    inequalities: Sequence[Inequality],
    n: int,
    generator: torch.Generator | None,
) -> Truncated:
    """Independent points that cannot lie outside of their bounds, given one law."""
    alone = len(laws) + len(before) == len(inequalities) == 1
    if not isinstance(prior, Diagonal) or not alone:
        raise InputError(NOT_TRUNCATED)
    instead = "Leave out `truncated`, or give these points a finite variance."
    check_measured(prior.parts, "field", "`truncated` bounds do not take", instead)
    rows = before[0] if before else laws[0].to(prior.device).on(("",), [prior.shape])
    one_sum = rows.map.is_disjoint and not rows.map.rows_of_place
    if not one_sum or not rows.map.dims:
        raise InputError(
            "`truncated` bounds take a law on sums, `integral` or `weighted_sum`, not "
            f"`{rows.label}`."
        )
    point = constrained(prior, before, laws, inequalities, 0, None)[0].point
    shape, dims, dtype = prior.shape, rows.map.dims, dtype_of(prior)
    (limits,) = limits_of(inequalities, ("",), [shape], [dtype], prior.device)
    present = 1.0 if rows.present is None else rows.present[(..., *[None] * dims)]
    weights = rows.map.weights * present
    points = (prior.mean.double(), prior.variance.double(), limits.low, limits.high, weights)
    own = [t.expand(shape).flatten(-dims) for t in points]
    places = shape[: len(shape) - dims]
    law = tilted(*own, *(t.expand(places) for t in (rows.value, rows.noise_variance)))
    warn_if_far(None, (point.double(),), (prior,))
    return Truncated(law, limits, dtype, shape, point, n, generator)


NOT_TRUNCATED = (
    "`truncated` bounds take a `Diagonal` field and one law beside them, in `condition` with "
    "draws. Leave `truncated` out for other fields, several laws, laws that are not linear, "
    "`monotone`, limits of laws, `draws=0`, or `project`."
)


def any_truncated(inequalities: Sequence[Inequality]) -> bool:
    return any(one.truncated for one in inequalities)


def mixture_within(
    mixture: Mixture,
    inequalities: Sequence[Inequality],
    n: int,
    generator: torch.Generator | None,
) -> FieldDraws:
    """A mixture, its laws given, with inequalities: a draw is one of a component picked for it.

    The point is the weighted mean of the points of the components.
    """
    if any_truncated(inequalities):
        raise InputError(NOT_TRUNCATED)
    picked = _prior_and_laws(mixture._picked(n, generator))
    (each,) = constrained(*picked, (), inequalities, 1, generator)
    prior, before = _prior_and_laws(mixture.components)
    (own,) = constrained(prior, before, (), inequalities, 0, None)
    draws, points = each.draws[0], own.point
    warn_if_far(None, (points.double(),), (prior,))
    share = mixture.log_weights.softmax(0)
    share = share.reshape(*share.shape, *[1] * (points.ndim - share.ndim))
    (limits,) = limits_of(inequalities, ("",), [mixture.shape], [draws.dtype], draws.device)
    both = (draws, mean_of(draws.double())), (points, (share * points.double()).sum(0))
    mean, point = (limits.holding(between(x, of)).to(draws.dtype) for of, x in both)
    dims = max(mixture.event_dims, each.dims)
    found = FieldDraws._unchecked(draws, dims, point, mean)
    found.laws = (*(rows.label for rows in before), *(one.label for one in inequalities))
    return found


def _prior_and_laws(field: Field) -> tuple[Field, tuple[Rows, ...]]:
    return (field.prior, field._solved.laws) if isinstance(field, FieldPosterior) else (field, ())


def nearest_within(
    names: tuple[str, ...],
    means: Sequence[Tensor],
    laws: Sequence[Law],
    inequalities: Sequence[Inequality],
) -> list[Tensor]:
    """The nearest fields that obey laws and inequalities."""
    if any_truncated(inequalities):
        raise InputError(NOT_TRUNCATED)
    units = [Diagonal._unchecked(mean, torch.ones_like(mean)) for mean in means]
    prior = units[0] if names == ("",) else State(**dict(zip(names, units, strict=True)))
    dtypes = [mean.dtype for mean in means]
    return [each.point for each in constrained(prior, (), laws, inequalities, 0, None, dtypes)]


def dtype_of(field: Field) -> torch.dtype:
    return field.dtype if field.dtype.itemsize >= 4 else torch.float32
