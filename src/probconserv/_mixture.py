"""Mixtures of fields: latent samples that are each a Gaussian field of their own."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from . import _checks as check
from ._checks import ArrayLike
from ._errors import InputError
from ._fields import Diagonal, Field, check_level


class Mixture(Field):
    """A weighted mixture of the fields along axis 0 of `components`.

    Mean and variance are the total ones. `condition` on a mixture is the exact update, which also
    reweights; the paper's experiments condition the components and mix afterwards with equal
    weights, `Mixture(condition(components, law))`.

    components: any field of shape (S, *batch, T, M). weights: (S, *batch), or (S, *batch, T) with
    `event_dims` = 1; normalised here, equal by default. event_dims: how many last axes share one
    weight: 2 = per whole field, 1 = per time; with two axes of space 3 and 2.

    >>> Mixture(Diagonal([[[0.0]], [[2.0]]], 1.0)).variance
    tensor([[2.]], dtype=torch.float64)
    """

    def __init__(
        self, components: Field, weights: ArrayLike | None = None, event_dims: int = 2
    ) -> None:
        if not isinstance(components, Field) or isinstance(components, Mixture):
            raise InputError(
                "`components` must be a field with the component axis first (not a mixture), "
                f"got {type(components).__name__}. Use as_field or Diagonal(means, variances)."
            )
        self.event_dims = check.event_dims(event_dims, len(components.shape) - 1)
        if self.event_dims < components.event_dims:
            raise InputError(
                f"`event_dims` of the mixture is {event_dims} but its components are joint over "
                f"{components.event_dims} axes: a weight must cover at least those."
            )
        self.components = components
        lead = components.shape[: len(components.shape) - event_dims]
        if weights is None:
            self.log_weights = torch.full(
                lead, -math.log(lead[0]), dtype=torch.float64, device=components.device
            )
            return
        w = check.as_tensor("weights", weights).double()
        check.same_device("weights", w.device, "the components", components.device)
        check.finite("weights", w, 0, "Weights are not logarithms.")
        if w.ndim < 1 or w.shape[0] != lead[0]:
            raise InputError(
                f"`weights` must have {lead[0]} components on axis 0, got {tuple(w.shape)}."
            )
        w = w.reshape(*w.shape, *[1] * (len(lead) - w.ndim))
        check.broadcasts("weights", w, lead, "the components")
        if check.concrete(w) and bool((w.sum(0) == 0).any()):
            raise InputError("`weights` must not all be zero.")
        self.log_weights = (w / w.sum(0)).log().expand(lead)

    @property
    def weights(self) -> Tensor:
        """(S, *batch), adding up to 1 over axis 0."""
        return self.log_weights.exp().to(self.dtype)

    @property
    def effective_sample_size(self) -> Tensor:
        """1 / sum of squared weights: how many components still count, (*batch)."""
        return 1 / self.weights.square().sum(0)

    @property
    def shape(self) -> torch.Size:
        return self.components.shape[1:]

    @property
    def dtype(self) -> torch.dtype:
        return self.components.dtype

    @property
    def device(self) -> torch.device:
        return self.components.device

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        return (self._wide * self.components.mean).sum(0)

    @property
    def variance(self) -> Tensor:  # type: ignore[override]
        between = (self.components.mean - self.mean).square()
        return (self._wide * (self.components.variance + between)).sum(0)

    @property
    def _wide(self) -> Tensor:
        return self.weights[(..., *[None] * self.event_dims)]

    def covariance_times(self, v: Tensor) -> Tensor:
        v = v.expand(torch.broadcast_shapes(v.shape, self.shape))
        apart = self.components.mean - self.mean  # (S, *shape)

        def times(one: Tensor) -> Tensor:
            along = (apart * one).flatten(-self.event_dims).sum(-1)
            between = apart * along[(..., *[None] * self.event_dims)]
            return (self._wide * (self.components.covariance_times(one) + between)).sum(0)

        return torch.stack([times(one) for one in v.reshape(-1, *self.shape)]).reshape(v.shape)

    def gaussian(self) -> Diagonal:
        """The Gaussian with this mean and variance at each point: what the paper's LL scores."""
        return Diagonal._unchecked(self.mean, self.variance)

    def marginal_log_prob(self, u: ArrayLike) -> Tensor:
        """Log density of the mixture at each point; for the paper's LL use `.gaussian()`."""
        each = self.components.marginal_log_prob(self._values(u))
        log_weights = self.log_weights[(..., *[None] * self.event_dims)].to(each)
        return (each + log_weights).logsumexp(0)

    def log_prob(self, u: ArrayLike) -> Tensor:
        each = self.components.log_prob(self._values(u))
        missing = self.event_dims - self.components.event_dims
        each = each.flatten(-missing).sum(-1) if missing else each
        return (each + self.log_weights.to(each)).logsumexp(0)

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        """Ends of the central interval of the mixture itself, by bisection; no gradients."""
        tail = (1 - check_level(level)) / 2
        return self._quantile(tail), self._quantile(1 - tail)

    @torch.no_grad()
    def _quantile(self, p: float) -> Tensor:
        mean, std, wide = self.components.mean, self.components.std, self._wide
        low, high = (mean - 10 * std).amin(0), (mean + 10 * std).amax(0)
        safe = torch.where(std > 0, std, 1.0)
        for _ in range(60):
            middle = (low + high) / 2
            below = torch.where(
                std > 0, torch.special.ndtr((middle - mean) / safe), (middle >= mean).to(mean)
            )
            under = (wide * below).sum(0) < p
            low, high = torch.where(under, middle, low), torch.where(under, high, middle)
        return (low + high) / 2

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Picks a component for each draw (and batch index), then draws from it."""
        flat = self.weights.flatten(1).T if self.log_weights.ndim > 1 else self.weights[None]
        index = flat.multinomial(check.samples(n), replacement=True, generator=generator).T
        index = index.reshape(n, *self.log_weights.shape[1:])
        return self.components._take(index).sample(1, generator)[0]

    def _reweighted(self, components: Field, log_factor: Tensor) -> "Mixture":
        log_weights = self.log_weights + log_factor
        log_weights = log_weights - log_weights.logsumexp(0)
        return self._unchecked(components, log_weights, self.event_dims)

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Mixture":
        return self._unchecked(
            self.components._map(change), change(self.log_weights), self.event_dims
        )

    @classmethod
    def _unchecked(cls, components: Field, log_weights: Tensor, event_dims: int) -> "Mixture":
        field = cls.__new__(cls)
        field.components, field.log_weights, field.event_dims = components, log_weights, event_dims
        return field
