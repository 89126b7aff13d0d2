"""A prior that b does not contradict: its variance widened by what the rows of laws miss."""

from collections.abc import Sequence
from typing import TypeVar, overload

import torch
from torch import Tensor

from ..conditioning.condition import AnyLaw, laid_on
from ..conditioning.sharded import check_whole
from ..fields.blocks import root_of
from ..fields.covariances import Correlated, Fields, shared_axes
from ..fields.dense import Dense
from ..fields.gaussian import Diagonal, Field, check_measured
from ..fields.low_rank import LowRank, members_of
from ..fields.mixture import Mixture
from ..fields.state import Prediction, State, as_field, covariance_of, rebuilt
from ..laws.law import Rows
from ..solvers.engine import free_axes
from ..solvers.shrinkage import shrunk
from ..solvers.stages import summed
from ..support.errors import InputError
from .tangents import Seen, as_seen, plain

FEW = 3  # samples: of a variance from so few a t distribution has none
Prior = TypeVar("Prior", Diagonal, LowRank, Dense, Mixture, State)


@overload
def inflate(prior: Prior, *laws: AnyLaw) -> Prior: ...
@overload
def inflate(prior: Prediction, *laws: AnyLaw) -> Field: ...
def inflate(prior: Prediction | State, *laws: AnyLaw) -> Field | State:
    """The prior with its variance widened, for each solution, until b is no surprise.

    The variance is multiplied by::

        k = max(1, mean over rows of (G mu - b)^2 / (v + sigma^2))

    v is the variance of a row of G u:

    - For `Dense`, `LowRank` and states of these it is that of the prior's own covariance, or of
      independent points if that is larger. Of N > 3 samples it is multiplied by
      (1 + 1/N) (N - 1) / (N - 3), what the chance of so few adds on average.
    - A `Diagonal` field, a mixture or 3 samples do not say which errors are shared. v is
      (sum_j abs(g_j) s_j)^2, as if all were: no covariance with these spreads makes it larger.
      So k is the least that explains b, and too small where errors are shared by some points only.

    Of a law that is not linear G is its tangent at the mean, and draws of the prior say what is
    expected of it and how much more it varies, as in `diagnose`. Rows of a limit (`at_least`,
    `at_most`) count where the prior is expected to break them. `bounds` and `monotone` count for
    nothing.

    It is an estimate. A right prior is widened a little where rows are few, by 1.5 on average for
    one row, and of a prior that is too sure one row tells little: half of the time k is less than
    0.45 of what it should be. `condition` the result.

    Parameters
    ----------
    prior : Field, State, or what `as_field` takes
        Any before `condition`, (..., T, space). Each entry of the batch is a solution; all its
        times share one k.
    *laws : Law, NonlinearLaw or Inequality
        Those that will be conditioned on.

    Returns
    -------
    Field or State
        Of the same kind, about the same mean.

    Raises
    ------
    InputError
        If there is no law with a b, or `prior` is a posterior.

    Examples
    --------
    >>> import probconserv as pc
    >>> prior = pc.Diagonal([[1.0, 1.0]], 0.25)  # a total of 2, give or take 1
    >>> inflate(prior, pc.weighted_sum([1.0, 1.0], 4.0)).std  # b is 4
    tensor([[1., 1.]], dtype=torch.float64)
    """
    given = prior if isinstance(prior, State) else as_field(prior)
    check_whole("prior", given)
    check_measured(given.parts, "prior", "no factor can widen")
    seen, _ = as_seen(given if isinstance(given, State) else plain(given), laws)
    factor = _factor(given, seen)
    return rebuilt(given, tuple(scaled(field, factor) for field in given.parts))


def _factor(prior: Field | State, seen: Sequence[Seen]) -> Tensor:
    """k, (*batch)."""
    means, variances = zip(*(field._moments() for field in prior.parts), strict=True)
    shapes, rows = [mean.shape for mean in means], laid_on(prior, [one.law for one in seen])
    batch = min(shared_axes(shapes), *(_batch_axes(each, shapes) for each in rows))
    covariance, total = _stated(prior, rows), means[0].new_zeros(())
    count = total
    for each, one in zip(rows, seen, strict=True):
        spread = _variance(each, variances, covariance) * _chance(prior) + each.noise_variance
        spread = spread if one.added is None else spread + one.added
        away = one.beyond(each.residual(means))
        there = (spread > 0) & ((away != 0) if one.side else True)
        miss = away.square() / torch.where(there, spread, 1.0)
        total = total + summed(torch.where(there, miss, 0.0), batch)
        count = count + summed(there.double(), batch)
    return (total / count.clamp_min(1)).clamp_min(1)


def _stated(prior: Field | State, rows: Sequence[Rows]) -> Correlated | None:
    """The covariance of a prior that says of all its points how they are correlated."""
    tied = all(isinstance(field, Dense | LowRank) for field in prior.parts)
    if not tied or (members_of(prior.parts) or FEW + 1) <= FEW:
        return None
    found = covariance_of(shrunk(prior, rows))
    assert isinstance(found, Correlated)
    return found.joined(min(found.lead, free_axes(rows, found.shapes)))


def _variance(rows: Rows, variances: Fields, covariance: Correlated | None) -> Tensor:
    """Of G u, for each row."""
    if covariance is None:
        return rows.entrywise(1).apply(tuple(map(root_of, variances))).square()
    own = rows.apply(covariance.directions).square().sum(0)
    if covariance.rest is not None:
        own = own + rows.entrywise(2).apply(covariance.rest.variance)
    return torch.maximum(own, rows.entrywise(2).apply(variances))


def _chance(prior: Field | State) -> float:
    """The mean of a square over its variance, where that is known of few samples (t, normal)."""
    n = members_of(prior.parts)
    return 1.0 if n is None or n <= FEW else (1 + 1 / n) * (n - 1) / (n - 3)


def _batch_axes(rows: Rows, shapes: Sequence[Sequence[int]]) -> int:
    """How many axes come before time; a matrix that reads several axes reads time as well.

    So does a budget, whose rows are intervals.
    """
    m = rows.map
    if m.row_names[:1] == ("interval",):
        return rows.places(shapes)
    return max(rows.places(shapes) - (not m.reads_time), 0)


def scaled(field: Field, factor: Tensor) -> Field:
    """The field with its covariance times a factor (*batch)."""

    def wide(t: Tensor, before: int = 0) -> Tensor:
        return factor[(..., *[None] * (t.ndim - before - factor.ndim))].to(t.dtype)

    if isinstance(field, Mixture):
        return field._with(components=scaled(field.components, factor[None]))
    if isinstance(field, Diagonal):
        return field._with(variance=field.variance * wide(field.variance))
    if isinstance(field, LowRank):
        directions = field.factor * wide(field.factor, 1).sqrt()
        return field._with(factor=directions, rest=field.rest * wide(field.rest))
    if isinstance(field, Dense):
        matrix = field.covariance()
        return Dense(field.mean, matrix * wide(matrix), field.event_dims)
    raise InputError("`prior` must be a field before `condition`.")
