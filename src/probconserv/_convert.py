"""Other libraries' predictions as fields."""

from typing import Any, TypeAlias

import torch
from torch import Tensor

from . import _checks as check
from ._blocks import blocks, unblocks
from ._checks import ArrayLike
from ._dense import Dense
from ._errors import InputError
from ._fields import Diagonal, Field, LowRank
from ._tree import Change

Distributed: TypeAlias = (
    tuple[ArrayLike, ArrayLike] | list[ArrayLike] | torch.distributions.Distribution
)
Prediction: TypeAlias = Field | Distributed


def as_field(prediction: Prediction) -> Field:
    """A field from a field, a distribution, or a pair (mean, variance).

    Parameters
    ----------
    prediction : Field, tuple, list or distribution
        A field; a pair of arrays; of `torch.distributions` a Normal, an Independent of it, a
        MultivariateNormal or a LowRankMultivariateNormal; a GPyTorch MultivariateNormal.

    Returns
    -------
    Field
        The field itself where one was given.

    Raises
    ------
    InputError
        If it is something else.

    Examples
    --------
    >>> as_field(torch.distributions.Normal(torch.zeros(2, 3), 2.0)).variance[0, 0]
    tensor(4.)
    """
    if isinstance(prediction, Field):
        return prediction
    if isinstance(prediction, tuple | list) and len(prediction) == 2:
        return Diagonal(*prediction)
    if hasattr(prediction, "lazy_covariance_matrix"):  # GPyTorch, without importing it
        return _from_gpytorch(prediction)
    kinds = torch.distributions
    if isinstance(prediction, kinds.Independent):
        return as_field(prediction.base_dist)
    if isinstance(prediction, kinds.Normal):
        return Diagonal(prediction.mean, prediction.variance)
    if isinstance(prediction, kinds.LowRankMultivariateNormal):
        factor = prediction.cov_factor.expand(*prediction.loc.shape, -1).movedim(-1, 0)
        return LowRank(prediction.loc, factor, prediction.cov_diag)
    if isinstance(prediction, kinds.MultivariateNormal):
        return Dense(prediction.loc, prediction.covariance_matrix)
    raise InputError(
        f"`prediction` of type {type(prediction).__name__} is not a field. Give a pair (mean, "
        "variance), a Normal, Independent, MultivariateNormal or LowRankMultivariateNormal of "
        "torch.distributions, a GPyTorch MultivariateNormal, or build Diagonal, LowRank or Dense. "
        "For members of an ensemble: LowRank.from_samples(members)."
    )


def _from_gpytorch(prediction: Any) -> "Lazy":
    if prediction.loc.shape != prediction.mean.shape:
        raise InputError(
            "a GPyTorch multitask prediction is not supported: give one task at a time."
        )
    return Lazy(prediction.mean, prediction.lazy_covariance_matrix)


class Lazy(Dense):
    """A Dense field whose covariance is a lazy operator: products through it, dense on request."""

    def __init__(self, mean: Tensor, operator: Any) -> None:
        self.mean, self._operator, self.event_dims = check.tensor("mean", mean), operator, 1

    @property
    def _matrix(self) -> Tensor:  # type: ignore[override]
        return self._operator.to_dense()

    @property
    def variance(self) -> Tensor:  # type: ignore[override]
        return self._operator.diagonal(dim1=-2, dim2=-1)

    def covariance_times(self, v: ArrayLike) -> Tensor:
        v = self._factor_of(v)
        rows = self._operator @ blocks(v, self.shape, 1).mT
        return unblocks(rows.mT, v.shape)

    def _change(self, change: Change) -> "Dense":  # type: ignore[override]
        return Dense(self.mean, self._matrix)._change(change)

    def _with_mean(self, mean: Tensor) -> "Lazy":
        return Lazy(mean, self._operator)
