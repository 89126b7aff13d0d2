"""Mixtures of fields: latent samples that are each a Gaussian field of their own."""

import math

import torch
from torch import Tensor

from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError
from ..support.tolerances import EPS, HOLDS, TINY
from .gaussian import Diagonal, Field, Normals, check_measured, standard_quantile

CHUNK = 1 << 15  # numbers that are worked on at a time, so that they stay in the cache


class Mixture(Field):
    """A weighted mixture of the fields along axis 0 of `components`.

    Mean, variance, intervals and quantiles are those of the whole mixture; the last two have no
    gradients. `condition` on a mixture is the exact update, which also changes the weights, and
    warns where few components are left. The paper's experiments condition the components and mix
    them afterwards with equal weights, `Mixture(condition(components, law))`.

    Parameters
    ----------
    components : Field, shape (S, ..., T, M)
        Any field but a mixture, with the components on axis 0.
    weights : array, shape (S, ...) or (S, ..., T)
        The latter with `event_dims` = 1. Normalised here, equal by default.
    event_dims : int
        How many last axes share one weight: 2 for a weight for each whole field, 1 for one at each
        time; with two axes of space 3 and 2.

    Raises
    ------
    InputError
        If a weight covers fewer axes than the components are joint over, or all weights are 0.

    Examples
    --------
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
                f"got {type(components).__name__}. Use Diagonal(means, variances)."
            )
        check_measured((components,), "components", "have no weights beside each other")
        if len(components.shape) < 2 or not components.shape[0]:
            raise InputError(
                f"`components` must have at least one on axis 0, got {tuple(components.shape)}."
            )
        self.event_dims = check.event_dims(event_dims, len(components.shape) - 1)
        if self.event_dims < components.event_dims:
            raise InputError(
                f"`event_dims` of the mixture is {event_dims} but its components are joint over "
                f"{components.event_dims} axes: a weight must cover at least those."
            )
        self.components = components
        lead = components.shape[: len(components.shape) - event_dims]
        equal = torch.ones(lead[0], device=components.device)
        w = check.as_tensor("weights", equal if weights is None else weights).double()
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
        """The weights, (S, ...), adding up to 1 over axis 0."""
        return self.log_weights.exp().to(self.dtype)

    @property
    def effective_sample_size(self) -> Tensor:
        """How many components still count, (...): 1 / sum of squared weights."""
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
        """The mean of the mixture at each point."""
        return self._moments()[0].to(self.dtype)

    @property
    def variance(self) -> Tensor:  # type: ignore[override]
        """The variance of the mixture at each point."""
        return self._moments()[1].to(self.dtype)

    def _moments(self) -> tuple[Tensor, Tensor]:
        means, variances = self.components._moments()
        weights = self._wide(self.log_weights.exp())
        mean = (weights * means).sum(0)
        return mean, (weights * (variances + (means - mean).square())).sum(0)

    def _wide(self, t: Tensor) -> Tensor:
        return t[(..., *[None] * self.event_dims)]

    def covariance_times(self, v: ArrayLike) -> Tensor:
        v = self._factor_of(v)
        means, weights = self.components._moments()[0], self._wide(self.log_weights.exp())
        apart = means - (weights * means).sum(0)  # (S, *shape)

        def times(one: Tensor) -> Tensor:
            along = (apart * one).flatten(-self.event_dims).sum(-1)
            each = self.components.covariance_times(one) + apart * self._wide(along)
            return (weights * each).sum(0).to(self.dtype)

        every = [times(one) for one in v.reshape(-1, *self.shape)] if v.numel() else []
        return torch.stack(every).reshape(v.shape) if every else v.clone()

    def gaussian(self) -> Diagonal:
        """The Gaussian with this mean and variance at each point: what the paper's LL scores."""
        return Diagonal._unchecked(self.mean, self.variance)

    def marginal_log_prob(self, u: ArrayLike) -> Tensor:
        """The log density of the mixture at each point; for the paper's LL use `.gaussian()`."""
        each = self.components.marginal_log_prob(self._values(u))
        return (each + self._wide(self.log_weights).to(each)).logsumexp(0)

    def log_prob(self, u: ArrayLike) -> Tensor:
        each = self.components.log_prob(self._values(u))
        missing = self.event_dims - self.components.event_dims
        each = each.flatten(-missing).sum(-1) if missing else each
        return (each + self.log_weights.to(each)).logsumexp(0)

    def _quantiles(self, *shares: float) -> list[Tensor]:
        """Of the mixture itself, without gradients."""
        return [self._end(p, 1) if p <= 0.5 else self._end(1 - p, -1) for p in shares]

    @torch.no_grad()
    def _end(self, p: float, sign: int) -> Tensor:
        """The value with probability `p`, at most 1/2, below (sign 1) or above (-1) it."""
        weights = self._wide(self.log_weights.exp()).expand(self.components.shape)
        numbers = CHUNK << 10 if weights.is_cuda else CHUNK  # a GPU is fast with many
        step, every = max(1, numbers // len(weights)), (*self.components._moments(), weights)
        parts = zip(*(t.flatten(1).split(step, 1) for t in every), strict=True)
        found = [_tail(p, sign * means, *rest) for means, *rest in parts]
        return sign * torch.cat(found).reshape(self.shape).to(self.dtype)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Joint draws, on a new axis 0: each picks a component, then draws from it.

        Parameters
        ----------
        n : int
            How many.
        generator : torch.Generator
            The source of the random numbers.

        Returns
        -------
        Tensor, shape (n, ..., T, M)
            The draws. Each batch index picks its own component.
        """
        index = self._picks(n, generator)
        if index.ndim <= self.components._free:
            return self._taken(index).sample(1, generator)[0]
        draws = torch.empty(len(index), *self.shape, dtype=self.dtype, device=self.device)
        for number in index.unique().tolist():
            own = self.components[number].sample(len(index), generator)
            draws = torch.where(self._wide(index == number), own, draws)
        return draws

    def _picks(self, n: int, generator: torch.Generator | None) -> Tensor:  # (n, *batch)
        """A component for each draw and batch index, by the weights."""
        count = check.samples(n)
        check.generator(generator)
        weights = self.log_weights.exp()
        flat = weights.flatten(1).T if weights.ndim > 1 else weights[None]
        index = flat.multinomial(count, replacement=True, generator=generator).T
        return index.reshape(count, *weights.shape[1:])

    def _picked(self, n: int, generator: torch.Generator | None) -> Field:
        """Components, picked by the weights: a field with `n` of them on axis 0."""
        index = self._picks(n, generator)
        if index.ndim > self.components._free:
            raise InputError(
                "`field`: components whose first axes are joint cannot be picked for each of them. "
                f"Use Mixture(..., event_dims={len(self.shape)})."
            )
        return self._taken(index)

    def _taken(self, index: Tensor) -> Field:
        """The components, with axis 0 replaced by the entries that `index` (n, *batch) picks."""

        def pick(t: Tensor, before: int | None) -> Tensor:
            if before is None or t.shape[before] < len(self.log_weights):  # one for all
                return t
            places = index.reshape(*index.shape, *[1] * (t.ndim - before - index.ndim))
            return torch.take_along_dim(t, places[(None,) * before], dim=before)

        return self.components._change(pick)

    def _draw(self, normals: Normals) -> Tensor:
        raise InputError("`normals`: draws of a mixture also pick components. Use `sample`.")

    def _reweighted(self, components: Field, log_factor: Tensor) -> "Mixture":
        log_weights = self.log_weights + log_factor
        log_weights = log_weights - log_weights.amax(0)  # else rounding of large numbers stays
        log_weights = log_weights - log_weights.logsumexp(0)
        return self._with(components=components, log_weights=log_weights)


def _tail(p: float, means: Tensor, variances: Tensor, weights: Tensor) -> Tensor:
    """The quantile `p`, at most 1/2, by Newton's method on log probability: (S, N) to (N,)."""
    mean, away = (weights * means).sum(0), float(standard_quantile(p, means))
    spread = (means - mean).square_().add_(variances).mul_(weights).sum(0).sqrt_()
    own = torch.add(means, variances.sqrt(), alpha=away)  # one is too low, another too high
    low, high = own.amin(0), own.amax(0)
    x = found = (mean + away * spread).clamp(low, high)
    narrow = (2 * variances).clamp_(min=TINY).rsqrt_()
    heights = (weights * narrow).masked_fill_(variances == 0, 0)  # Newton does not see a jump
    left, least = torch.arange(len(x), device=x.device), EPS**2 * (high - low)
    z, terms = own, torch.empty_like(own)
    for _ in range(200):
        torch.sub(means, x, out=z).mul_(narrow)
        twice = torch.special.erfc(z, out=terms).mul_(weights).sum(0)
        slope = z.square_().neg_().exp_().mul_(heights).sum(0).mul_(2 / math.sqrt(math.pi))
        off = (twice / (2 * p)).log_()
        low, high = torch.where(off < 0, x, low), torch.where(off < 0, high, x)
        grain = torch.add(least, x.abs(), alpha=2 * EPS)  # what x can be told from
        done = (off.abs() <= HOLDS) | (high - low <= grain)
        step = x - torch.copysign((off * twice).div_(slope).abs_().clamp_(min=grain), off)
        step = torch.where((step > low) & (step < high), step, (low + high) / 2)  # or bisects
        x = torch.where(done, x, step)
        found, rest = found.index_copy(0, left, x), (~done).nonzero()[:, 0]
        if len(rest) == 0:
            break
        if 2 * len(rest) < len(x):  # go on with these alone
            left, x, low, high, least = (t[rest] for t in (left, x, low, high, least))
            each = (means, narrow, weights, heights, z, terms)
            means, narrow, weights, heights, z, terms = (t.index_select(1, rest) for t in each)
    return found
