"""A prior that b does not contradict."""

from collections.abc import Sequence
from typing import TypeVar, overload

import torch
from torch import Tensor

from ._blocks import root_of
from ._convert import Prediction, as_field
from ._covariances import shared_axes
from ._dense import Dense
from ._errors import InputError
from ._fields import Diagonal, Field, LowRank
from ._laws import Law, Rows, check_laws
from ._maps import Matrix, Select
from ._mixture import Mixture
from ._stages import summed
from ._state import State

Prior = TypeVar("Prior", Diagonal, LowRank, Dense, Mixture, State)


@overload
def plausible(prior: Prior, *laws: Law) -> Prior: ...
@overload
def plausible(prior: Prediction, *laws: Law) -> Field: ...
def plausible(prior: Prediction | State, *laws: Law) -> Field | State:
    """The prior with its variance widened, for each solution, until b is no surprise.

    The variance is multiplied by::

        k = max(1, mean over rows of (G mu - b)^2 / ((sum_j |g_j| s_j)^2 + sigma^2))

    sum_j abs(g_j) s_j is the standard deviation of G u if all points err together, so k is above 1
    only where no covariance with the same spreads explains b. That is the case where a network is
    sure and wrong, outside of what it was trained on. `condition` the result.

    Parameters
    ----------
    prior : Field, State, or what `as_field` takes
        Any before `condition`, (..., T, space). Each entry of the batch is a solution; all its
        times share one k.
    *laws : Law
        Those that will be conditioned on.

    Returns
    -------
    Field or State
        Of the same kind, about the same mean.

    Raises
    ------
    InputError
        If there is no law, or `prior` is a posterior.

    Examples
    --------
    >>> import probconserv as pc
    >>> prior = pc.Diagonal([[1.0, 1.0]], 0.25)  # a total of 2, give or take 1
    >>> plausible(prior, pc.cells([1.0, 1.0], 4.0)).std  # b is 4
    tensor([[1., 1.]], dtype=torch.float64)
    """
    check_laws(laws)
    given = prior if isinstance(prior, State) else as_field(prior)
    factor = _factor(given, laws)
    wider = tuple(_scaled(field, factor) for field in given.parts)
    return given._with(parts=wider) if isinstance(given, State) else wider[0]


def _factor(prior: Field | State, laws: Sequence[Law]) -> Tensor:
    """k, (*batch)."""
    means, variances = zip(*(field._moments() for field in prior.parts), strict=True)
    stds, shapes = tuple(map(root_of, variances)), [mean.shape for mean in means]
    rows = [law.to(prior.device).on(prior.names, shapes) for law in laws]
    batch = min(shared_axes(shapes), *(_batch_axes(each, shapes) for each in rows))
    total = count = means[0].new_zeros(())
    for each in rows:
        spread = each.entrywise(1).apply(stds).square() + each.noise_variance
        there = spread > 0
        miss = each.residual(means).square() / torch.where(there, spread, 1.0)
        total = total + summed(torch.where(there, miss, 0.0), batch)
        count = count + summed(there.double(), batch)
    return (total / count.clamp_min(1)).clamp_min(1)


def _batch_axes(rows: Rows, shapes: Sequence[Sequence[int]]) -> int:
    """How many axes come before time; a matrix that reads several axes reads time as well."""
    m = rows.map
    timed = isinstance(m, Select) and isinstance(m.entries, int)
    timed = timed or (isinstance(m, Matrix) and m.dims > 1)
    return max(rows.places(shapes) - (not timed), 0)


def _scaled(field: Field, factor: Tensor) -> Field:
    """The field with its covariance times a factor (*batch)."""

    def wide(t: Tensor, before: int = 0) -> Tensor:
        return factor[(..., *[None] * (t.ndim - before - factor.ndim))].to(t.dtype)

    if isinstance(field, Mixture):
        return field._with(components=_scaled(field.components, factor[None]))
    if isinstance(field, Diagonal):
        return field._with(variance=field.variance * wide(field.variance))
    if isinstance(field, LowRank):
        directions = field.factor * wide(field.factor, 1).sqrt()
        return field._with(factor=directions, rest=field.rest * wide(field.rest))
    if isinstance(field, Dense):
        matrix = field.covariance()
        return Dense(field.mean, matrix * wide(matrix), field.event_dims)
    raise InputError("`prior` must be a field before `condition`.")
