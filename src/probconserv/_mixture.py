"""Mixtures of fields: latent samples that are each a Gaussian field of their own."""

import math

import torch
from torch import Tensor

from . import _checks as check
from ._checks import ArrayLike
from ._errors import InputError
from ._fields import Diagonal, Field, Normals, check_level

NEAR = 1e-7  # of a quantile and its spread: Newton's step after one that is smaller is its square
CLOSE = 1e-12  # the same for bisections
CHUNK = 1 << 16  # numbers that are worked on at a time


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

    stacked = ("components", "log_weights")

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
        return self._moments()[0].to(self.dtype)

    @property
    def variance(self) -> Tensor:  # type: ignore[override]
        return self._moments()[1].to(self.dtype)

    def _moments(self) -> tuple[Tensor, Tensor]:
        means, variances = self.components._moments()
        weights = self.log_weights.exp()[(..., *[None] * self.event_dims)]
        mean = (weights * means).sum(0)
        return mean, (weights * (variances + (means - mean).square())).sum(0)

    @property
    def _wide(self) -> Tensor:
        return self.weights[(..., *[None] * self.event_dims)]

    def covariance_times(self, v: ArrayLike) -> Tensor:
        v = self._factor_of(v)
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
        """Ends of the central interval of the mixture itself; no gradients."""
        tail = (1 - check_level(level)) / 2
        return self.quantile(tail), self.quantile(1 - tail)

    @torch.no_grad()
    def quantile(self, p: float) -> Tensor:
        """The value that each point stays below with probability `p`; no gradients."""
        check_level(p, "p")
        means, variances = (x.flatten(1) for x in self.components._moments())
        weights = self.log_weights.exp()[(..., *[None] * self.event_dims)]
        weights = weights.expand(self.components.shape).flatten(1)
        step = max(1, CHUNK // len(means))  # points at a time, so that they stay in the cache
        parts = zip(*(t.split(step, 1) for t in (means, variances.sqrt(), weights)), strict=True)
        found = [_quantile(p, *part) for part in parts]
        return torch.cat(found).reshape(self.shape).to(self.dtype)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Picks a component for each draw (and batch index), then draws from it."""
        count = check.samples(n)
        check.generator(generator)
        weights = self.log_weights.exp()
        flat = weights.flatten(1).T if weights.ndim > 1 else weights[None]
        index = flat.multinomial(count, replacement=True, generator=generator).T
        index = index.reshape(count, *weights.shape[1:])
        if weights.ndim <= self.components._free:
            return self._taken(index).sample(1, generator)[0]
        draws = torch.empty(count, *self.shape, dtype=self.dtype, device=self.device)
        for number in index.unique().tolist():
            mine = index == number
            own = self.components[number].sample(count, generator)
            draws = torch.where(mine[(..., *[None] * self.event_dims)], own, draws)
        return draws

    def _taken(self, index: Tensor) -> Field:
        """The components, with axis 0 replaced by the entries that `index` (n, *batch) picks."""

        def pick(t: Tensor, before: int | None) -> Tensor:
            if before is None or t.shape[before] == 1:
                return t
            places = index.reshape(*index.shape, *[1] * (t.ndim - before - index.ndim))
            return torch.take_along_dim(t, places[(None,) * before], dim=before)

        return self.components._change(pick)

    def _draw(self, normals: Normals) -> Tensor:
        raise InputError("`normals`: draws of a mixture also pick components. Use `sample`.")

    @property
    def normals_per_draw(self) -> int:
        raise InputError("`normals`: draws of a mixture also pick components. Use `sample`.")

    def _reweighted(self, components: Field, log_factor: Tensor) -> "Mixture":
        log_weights = self.log_weights + log_factor
        log_weights = log_weights - log_weights.amax(0)  # else rounding of large numbers stays
        log_weights = log_weights - log_weights.logsumexp(0)
        return self._unchecked(components, log_weights, self.event_dims)

    @classmethod
    def _unchecked(cls, components: Field, log_weights: Tensor, event_dims: int) -> "Mixture":
        field = cls.__new__(cls)
        field.components, field.log_weights, field.event_dims = components, log_weights, event_dims
        return field


def _quantile(p: float, means: Tensor, std: Tensor, weights: Tensor) -> Tensor:  # (S, N) to (N,)
    """Newton's method from the normal with the same moments.

    A step that leaves what is known to hold the quantile is replaced by a bisection.
    """
    mean = (weights * means).sum(0)
    spread = (weights * (std.square() + (means - mean).square())).sum(0).sqrt()
    low, high = (means - 40 * std).amin(0), (means + 40 * std).amax(0)
    x = mean + spread * torch.special.ndtri(mean.new_tensor(p))
    sure, narrow = bool((std == 0).any()), torch.where(std > 0, 1 / std, 0.0)
    heights = weights * narrow / math.sqrt(2 * math.pi)
    for _ in range(200):
        z = (x - means) * narrow
        below = torch.special.ndtr(z)
        if sure:
            below = torch.where(std > 0, below, (x >= means).to(z.dtype))
        reached = (weights * below).sum(0)
        slope = (heights * torch.exp(z.square_().mul_(-0.5))).sum(0)
        low, high = torch.where(reached < p, x, low), torch.where(reached < p, high, x)
        step = x - (reached - p) / slope
        inside = (step > low) & (step < high)
        step = torch.where(inside, step, (low + high) / 2)  # also where it is NaN
        size = step.abs() + spread
        done = (inside & ((step - x).abs() <= NEAR * size)) | (high - low <= CLOSE * size)
        x = step
        if bool(done.all()):
            break
    return x
