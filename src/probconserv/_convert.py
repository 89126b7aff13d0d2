"""Other libraries' predictions as fields."""

from typing import TypeAlias

import torch

from ._checks import ArrayLike
from ._dense import Dense
from ._errors import InputError
from ._fields import Diagonal, Field, LowRank

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
    kinds = torch.distributions
    if isinstance(prediction, kinds.Independent):
        return as_field(prediction.base_dist)
    if isinstance(prediction, kinds.Normal):
        return Diagonal(prediction.mean, prediction.variance)
    if isinstance(prediction, kinds.LowRankMultivariateNormal):
        factor = prediction.cov_factor.expand(*prediction.loc.shape, -1).movedim(-1, 0)
        return LowRank(prediction.loc, factor, prediction.cov_diag)
    if isinstance(prediction, kinds.MultivariateNormal):  # those of GPyTorch are such
        if prediction.loc.shape != prediction.mean.shape:
            raise InputError(
                "a GPyTorch multitask prediction is not supported: give one task at a time."
            )
        return Dense(prediction.loc, prediction.covariance_matrix)
    raise InputError(
        f"`prediction` of type {type(prediction).__name__} is not a field. Give a pair (mean, "
        "variance), a Normal, Independent, MultivariateNormal or LowRankMultivariateNormal of "
        "torch.distributions, a GPyTorch MultivariateNormal, or build Diagonal, LowRank or Dense. "
        "For members of an ensemble: LowRank.from_samples(members)."
    )
