"""Fields given laws and inequalities, as draws: picks the way in one place.

| fields | laws | way |
|---|---|---|
| independent points | at most one that ties points, by rows that share none | `linewise.py` |
| any, also where gradients are asked for | any | `loop/within.py` |
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...fields.covariances import Fields, Independent, shared_axes
from ...fields.gaussian import Diagonal, Field, random_normals
from ...fields.mixture import Mixture
from ...fields.state import State, covariance_of
from ...laws.inequalities import Inequality, Limits, limits_of, sloping_axes
from ...laws.law import Law, Rows
from ...solvers.shrinkage import shrunk
from ...solvers.stages import SinglePoints
from ...support import checks as check
from ...support.errors import InputError
from ..audit import check_met, warn_if_far
from ..draws import FieldDraws, StateDraws, mean_of
from ..loop.within import Within, placed
from ..posterior import FieldPosterior
from . import linewise as _linewise
from .truncated import Tilted, tilted

CLOSED = 50  # points in a row: from here on the closed form of `Truncated` is good
Found = list[tuple[Tensor, Tensor, Tensor]]  # draws, their mean, the point, of each field


def constrained(
    prior: Field | State,
    before: tuple[Rows, ...],
    laws: Sequence[Law],
    inequalities: Sequence[Inequality],
    n: int,
    generator: torch.Generator | None,
    dtypes: Sequence[torch.dtype] = (),
) -> tuple[Found, int]:
    """`n` draws of each field, their mean and the point; and how many axes number the parts.

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
    if not any(u.numel() for u in means):
        check_met(rows, means, means, root, slack)
        given = zip(means, dtypes, strict=True)
        return [(x.new_empty(n, *x.shape, dtype=d), x.to(d), x.to(d)) for x, d in given], 0
    if isinstance(root, Independent) and not _learns(root, means, rows):
        with torch.no_grad():
            found = _line_by_line(rows, means, root, limits, dtypes, slack, n, generator)
        if found is not None:
            return found
    grain = 4 * max(torch.finfo(dtype).eps for dtype in dtypes)
    within = Within(rows, means, root, limits, slack, grain)
    all_found = []
    normals = random_normals(n, generator, device) if n else None
    for u, one, v, dtype in zip(
        within.draws(normals), within.limits, root.variance, dtypes, strict=True
    ):
        mean_ = torch.where(v == 0, u[-1], mean_of(u[:n])) if n else u[-1]
        all_found.append((u[:n].to(dtype), one.holding(mean_).to(dtype), u[-1].to(dtype)))
    return all_found, within.lead


def _learns(root: Independent, means: Fields, rows: Sequence[Rows]) -> bool:
    """Whether the result has a gradient, which the fast way has not."""
    given = [*root.variance, *means]
    for one in rows:
        given += [one.value, one.noise_variance]
        given += [t for m in one.maps if m is not None for t in m.tensors]
    return torch.is_grad_enabled() and any(t.requires_grad for t in given)


def _line_by_line(
    rows: tuple[Rows, ...],
    means: Fields,
    root: Independent,
    limits: Sequence[Limits],
    dtypes: Sequence[torch.dtype],
    slack: float,
    n: int,
    generator: torch.Generator | None,
) -> tuple[Found, int] | None:
    """The fast way, where one number for each row of one law decides."""
    shapes = root.shapes
    points = tuple(r for r in rows if r.map.is_points)
    others = [r for r in rows if r not in points]
    if not _linewise.suits(others, limits):
        return None
    mean, left = _at_points(points, means, root, slack)
    triples = zip(left.variance, root.variance, means, strict=True)
    sizes = [torch.where(v == v0, 0.0, u.abs() + v0.sqrt()) for v, v0, u in triples]
    each = zip(mean, left.variance, sizes, limits, dtypes, strict=True)
    alone = [_linewise.OneField(*one) for one in each]
    found = _linewise.draws_of(others, alone, n, generator)
    tied = [r.places(shapes) for r in others]
    return found, min([shared_axes(shapes), *tied, *sloping_axes(limits, shapes)])


def _at_points(
    points: tuple[Rows, ...], prior: Fields, root: Independent, slack: float
) -> tuple[Fields, Independent]:
    """Mean and covariance of independent points given values at some of them."""
    mean, left = prior, root
    for rows in sorted(points, key=lambda r: bool((r.noise_variance > 0).any())):
        stage = SinglePoints(rows, left, root)
        mean, left = stage.shift(mean, stage.residual(mean)), stage.left
    check_met(points, mean, prior, root, slack)
    return placed(points, mean), left


class Truncated(FieldDraws):
    """Independent points that cannot lie outside of their bounds, given one law.

    The mean comes in closed form, right to 1e-4 standard deviations for 200 points in a row of the
    law, to 1e-2 for 10 and to 1e-1 for 5. So do variance and quantiles of rows of at least 50
    points; for shorter ones, where the closed form is too wide or too narrow by several percent,
    they are those of the draws. Draws are exact, and so is the law in each. `condition` makes it,
    with `bounds(..., truncated=True)`.

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
        self.draws = self._shaped(law.draw(n, generator)).to(dtype)
        self._mean = self._shaped(law.mean).to(dtype)

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
        return [self._shaped(self._law.quantile(p)).to(self.dtype) for p in shares]

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
        return self._shaped(self._law.draw(n, generator)).to(self.dtype)


def condition_within(
    prior: Field | State,
    before: tuple[Rows, ...],
    laws: Sequence[Law],
    inequalities: Sequence[Inequality],
    n: int,
    generator: torch.Generator | None,
) -> FieldDraws | StateDraws:
    """A field or a state, no mixture, given laws and inequalities; before: laid on it already."""
    if _any_truncated(inequalities):
        return _truncated(prior, before, laws, inequalities, n, generator)
    found, lead = constrained(prior, before, laws, inequalities, n, generator)
    points = tuple(point.double() for _, _, point in found)
    warn_if_far(None, points, prior.parts)
    parts = tuple(
        FieldDraws._unchecked(draws, max(1, point.ndim - lead), point, mean)
        for draws, mean, point in found
    )
    return StateDraws(prior.names, parts) if isinstance(prior, State) else parts[0]


@torch.no_grad()
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
    rows = before[0] if before else laws[0].to(prior.device).on(("",), [prior.shape])
    one_sum = rows.map.is_disjoint and not rows.map.rows_of_place
    if not one_sum or not rows.map.dims:
        raise InputError(
            "`truncated` bounds take a law on sums, `integral` or `weighted_sum`, not "
            f"`{rows.label}`."
        )
    ((_, _, point),), _ = constrained(prior, before, laws, inequalities, 0, None)
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
    "`truncated` bounds take a `Diagonal` field and one law beside them, in `condition`. Leave "
    "`truncated` out for other fields, several laws, `monotone`, or `project`."
)


def _any_truncated(inequalities: Sequence[Inequality]) -> bool:
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
    if _any_truncated(inequalities):
        raise InputError(NOT_TRUNCATED)
    picked = _prior_and_laws(mixture._picked(n, generator))
    (((draws,), _, _),), lead = constrained(*picked, (), inequalities, 1, generator)
    prior, before = _prior_and_laws(mixture.components)
    ((_, _, points),), _ = constrained(prior, before, (), inequalities, 0, None)
    warn_if_far(None, (points.double(),), (prior,))
    share = mixture.log_weights.softmax(0)
    share = share.reshape(*share.shape, *[1] * (points.ndim - share.ndim))
    (limits,) = limits_of(inequalities, ("",), [mixture.shape], [draws.dtype], draws.device)
    both = (draws, mean_of(draws.double())), (points, (share * points.double()).sum(0))
    mean, point = (limits.holding(_between(x, of)).to(draws.dtype) for of, x in both)
    dims = max(1, mixture.event_dims, draws.ndim - lead)
    return FieldDraws._unchecked(draws, dims, point, mean)


def _prior_and_laws(field: Field) -> tuple[Field, tuple[Rows, ...]]:
    return (field.prior, field._solved.laws) if isinstance(field, FieldPosterior) else (field, ())


def _between(mean: Tensor, of: Tensor) -> Tensor:
    """A mean, exact where all are equal."""
    return mean.clamp(of.amin(0).double(), of.amax(0).double())


def nearest_within(
    names: tuple[str, ...],
    means: Sequence[Tensor],
    laws: Sequence[Law],
    inequalities: Sequence[Inequality],
) -> list[Tensor]:
    """The nearest fields that obey laws and inequalities."""
    if _any_truncated(inequalities):
        raise InputError(NOT_TRUNCATED)
    units = [Diagonal._unchecked(mean, torch.ones_like(mean)) for mean in means]
    prior = units[0] if names == ("",) else State(**dict(zip(names, units, strict=True)))
    dtypes = [mean.dtype for mean in means]
    found, _ = constrained(prior, (), laws, inequalities, 0, None, dtypes)
    return [point for _, _, point in found]


def dtype_of(field: Field) -> torch.dtype:
    return field.dtype if field.dtype.itemsize >= 4 else torch.float32
