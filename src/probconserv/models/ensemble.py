"""Deep ensembles, MC dropout, members of a neural operator: any models as one Gaussian field."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..fields.ensemble import Ensemble
from ..fields.gaussian import LowRank
from ..fields.state import as_field
from ..support import checks as check
from ..support.errors import InputError


class ModelEnsemble:
    """Models that together predict one Gaussian field, a `LowRank`.

    Its mean is the mean of their means. Its directions are their deviations from it, so that the
    covariance is that of a sample of n (with n - 1). The variance of its independent rest is the
    mean of their variances.

    Parameters
    ----------
    members : iterable of models
        At least two, each with a method `predict` or itself a function: networks, Gaussian
        processes, anything. An AttentiveNeuralProcess puts components on axis 0, so give its
        mixture, `lambda *inputs: Mixture(network.predict(*inputs))`. Their train or eval mode is
        left as it is. A stochastic model may be listed many times: `ModelEnsemble([network] * 50)`
        after `network.train()` is MC dropout.
    batch_dims : int
        How many first axes of what they predict stand for independent entries, as in `Ensemble`; 1
        = each time by itself, 0 = time and space jointly.

    Raises
    ------
    InputError
        If there are fewer than two members, or one cannot predict.

    Examples
    --------
    >>> members = [lambda x: x, lambda x: 3 * x]
    >>> ModelEnsemble(members).predict(torch.tensor([[0.0, 1.0]])).variance
    tensor([[0., 2.]])
    """

    def __init__(self, members: Iterable[Any], batch_dims: int = 0) -> None:
        one = callable(members) and not isinstance(members, nn.ModuleList)
        if one or not isinstance(members, Iterable):
            raise InputError(
                f"`members` must be a list of models, got {type(members).__name__}. For MC dropout "
                "repeat the model, [model] * 50."
            )
        self.members, self.batch_dims = list(members), batch_dims
        if len(self.members) < 2:
            raise InputError(
                f"`members` must hold at least two members, got {len(self.members)}: one has no "
                "spread. A stochastic model may be listed many times."
            )
        for i, member in enumerate(self.members):
            if not callable(getattr(member, "predict", member)):
                raise InputError(
                    f"`members[{i}]` must have a method `predict` or be a function; got "
                    f"{type(member).__name__}. `Ensemble` takes predictions."
                )

    @torch.no_grad()
    def predict(self, *inputs: Any, **options: Any) -> LowRank:
        """The field of what the members predict.

        A member gives means (..., T, M), or a pair (means, variances), or a field or distribution,
        of which the mean and the variance of each point are used.

        Parameters
        ----------
        *inputs, **options
            What each member is called with.

        Returns
        -------
        LowRank
            One direction for each member.

        Raises
        ------
        InputError
            If the members do not predict the same places, or some give variances and others none.
        """
        predictions = [
            _moments(f"members[{i}]", getattr(member, "predict", member)(*inputs, **options))
            for i, member in enumerate(self.members)
        ]
        _check_alike(predictions)
        means, variances = zip(*predictions, strict=True)
        if all(variance is not None for variance in variances):
            rest = torch.stack(variances).mean(0)
            return Ensemble(torch.stack(means), rest, batch_dims=self.batch_dims)
        if all(torch.equal(mean, means[0]) for mean in means):
            raise InputError(
                "`members` all predict the same and no variance, so nothing is uncertain. For MC "
                "dropout switch it on with network.train()."
            )
        return Ensemble(torch.stack(means), batch_dims=self.batch_dims)


def _moments(name: str, prediction: Any) -> tuple[Tensor, Tensor | None]:
    """Mean and variance, copied: a model may give the same buffer every time."""
    try:
        if isinstance(prediction, Tensor | np.ndarray) or _is_table(prediction):
            return check.tensor("mean", prediction).clone(), None
        field = as_field(prediction)
        return field.mean.clone(), field.variance.clone()
    except InputError as error:
        raise InputError(f"`{name}` gave a prediction that cannot be used: {error}") from None


def _is_table(prediction: Any) -> bool:
    """Whether these are means as nested lists, not a pair of arrays."""
    return isinstance(prediction, list) and all(
        isinstance(p, list | float | int) for p in prediction
    )


def _check_alike(predictions: list[tuple[Tensor, Tensor | None]]) -> None:
    first = predictions[0][0]
    for i, (mean, _) in enumerate(predictions):
        check.same_kind(f"members[{i}]", mean, "`members[0]`", first)
        if mean.shape != first.shape:
            raise InputError(
                f"`members` must predict the same places; members[0] gave the shape "
                f"{tuple(first.shape)} and members[{i}] {tuple(mean.shape)}."
            )
    bare = [i for i, (_, variance) in enumerate(predictions) if variance is None]
    if 0 < len(bare) < len(predictions):
        raise InputError(
            f"`members` must all predict variances, or none of them; members[{bare[0]}] gave none. "
            "Let it give a pair (mean, variance), or the others their means alone."
        )
