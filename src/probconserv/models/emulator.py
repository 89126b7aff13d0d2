"""An emulator of a family of solutions: coherent functions, one for each value of the parameter."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..support import checks as check
from ..support.errors import InputError
from ..support.progress import track
from ._network import log_normal
from ._predictor import Predictor, rows_at_once
from ._trained import INFERRED, beyond, warn_of

PARTICLES = 64
KEPT = 1 / 8  # of the particles must count, by their effective number
WIDER = 1.5  # than the fitted normal is the one that is drawn from
STEPS = 12  # at most; noise that is left then stays
INDEPENDENT = 1 / 4  # of the points: a network's errors are alike at neighbours
MARGIN = 0.1  # of the range is the standard deviation of the prior beyond its ends
REACH = 2.5 * MARGIN  # beyond each end the first particles go: outside it the prior leaves little
MISFIT = 3  # the mean square of (u - mean) / std above which observations are taken to be noisy


def _draws(
    predict: Callable[[Tensor], tuple[Tensor, ...]],  # z (S, n, d) to mean and std (S, n, N) each
    u: Tensor,  # (n, N)
    seen: Tensor,  # (n, N), 1 where a point counts and 0 where not
    low: Tensor,  # (d,)
    high: Tensor,  # (d,)
    samples: int,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """z (samples, n, d) from p(z) prod_i N(u_i; mean_i(z), std_i(z)^2), p(z) flat from low to high.

    And the mean (n, d) of the normal that was fitted to it, which depends on the observations
    alone. Particles that start evenly, also beyond the range, are weighed with noise added to every
    std, as little as leaves enough of them; a normal is fitted, the next ones are even quantiles of
    a wider one, and so on until no noise is left, or the steps are at an end. Only then numbers are
    drawn, and resampled by their weights. Observations that no particle explains keep as much noise
    as explains them.
    """
    even, beyond = _even(len(low)).to(low), REACH * (high - low)
    z = (low - beyond + (high - low + 2 * beyond) * even)[:, None].expand(-1, len(u), -1)
    quantiles = torch.special.ndtri(even)[:, None].expand_as(z)
    log_q = z.new_zeros(z.shape[:2])
    mean, std = predict(z)
    noise = ((mean - u) * seen).abs().amax((0, 2))  # a start; it only falls

    def log_weights(std_added: Tensor) -> Tensor:
        wide = (std**2 + std_added[:, None] ** 2).sqrt()
        fit = INDEPENDENT * (log_normal(u, mean, wide) * seen).sum(-1)
        return _log_prior(z, low, high) + fit - log_q

    for step in range(STEPS):
        least = _needed(u, seen, mean, std)
        noise = _least(log_weights, noise).maximum(least)
        centre, root = _moments(z, log_weights(noise).softmax(0), high - low)
        if step == STEPS - 1 or bool((noise <= least).all()):
            break
        z, log_q = _wider(centre, root, quantiles)
        mean, std = predict(z)
    normals = torch.randn(4 * samples, *centre.shape, generator=generator).to(centre)
    z, log_q = _wider(centre, root, normals)
    mean, std = predict(z)
    return _resampled(z, log_weights(noise).softmax(0), samples, generator), centre


def _even(dimensions: int) -> Tensor:  # (PARTICLES, dimensions)
    """Points that fill the unit cube evenly, none on its faces."""
    points = torch.quasirandom.SobolEngine(dimensions).draw(PARTICLES, dtype=torch.float64)
    return points + 1 / (2 * PARTICLES)


def _log_prior(z: Tensor, low: Tensor, high: Tensor) -> Tensor:  # (S, n, d) -> (S, n)
    beyond = (low - z).clamp(min=0) + (z - high).clamp(min=0)
    return -((beyond / (MARGIN * (high - low))) ** 2).sum(-1) / 2


def _least(log_weights: Callable[[Tensor], Tensor], most: Tensor) -> Tensor:  # (n,) -> (n,)
    """The least noise, up to `most`, that leaves enough particles; 0 where none is needed."""

    def enough(noise: Tensor) -> Tensor:
        weights = log_weights(noise).softmax(0)
        return 1 / weights.square().sum(0) >= KEPT * len(weights)

    return torch.where(enough(torch.zeros_like(most)), 0.0, _smallest(enough, most))


def _needed(u: Tensor, seen: Tensor, mean: Tensor, std: Tensor) -> Tensor:  # (n,)
    """The noise with which the best particle explains the observations; 0 where none is needed."""

    def misfit(noise: Tensor) -> Tensor:
        square = (u - mean) ** 2 / (std**2 + noise[:, None] ** 2)
        return ((square * seen).sum(-1) / seen.sum(-1)).amin(0)

    most = ((u - mean) * seen).abs().amax((0, 2))  # leaves a misfit of at most 1
    noise = _smallest(lambda noise: misfit(noise) <= 1, most)
    return torch.where(misfit(torch.zeros_like(most)) <= MISFIT, 0.0, noise)


def _smallest(good: Callable[[Tensor], Tensor], most: Tensor) -> Tensor:  # (n,) -> (n,)
    """The least noise, from 1e-7 of `most` up to it, that is good; by bisection."""
    low, high = 1e-7 * most, most
    for _ in range(20):
        middle = (low * high).sqrt()
        fine = good(middle)
        low, high = torch.where(fine, low, middle), torch.where(fine, middle, high)
    return high


def _moments(z: Tensor, weights: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (n, d), and root (n, d, d) of the covariance."""
    mean = (weights[..., None] * z).sum(0)
    apart = weights.sqrt()[..., None] * (z - mean)
    covariance = torch.einsum("snd,sne->nde", apart, apart)
    smallest = torch.diag_embed((1e-6 * width) ** 2)  # nearer ones float32 does not tell apart
    return mean, torch.linalg.cholesky(covariance + smallest)


def _wider(mean: Tensor, root: Tensor, normals: Tensor) -> tuple[Tensor, Tensor]:
    """z (count, n, d) of a wider normal, and its log density up to a constant."""
    z = mean + (root @ (WIDER * normals)[..., None])[..., 0]
    return z, -normals.square().sum(-1) / 2


def _resampled(z: Tensor, weights: Tensor, samples: int, generator: torch.Generator) -> Tensor:
    """Each about as often as its weight says: at even steps along the sum of the weights."""
    start = torch.rand(z.shape[1], 1, generator=generator).to(z)
    steps = (torch.arange(samples, device=z.device) + start) / samples
    index = torch.searchsorted(weights.T.cumsum(-1), steps.contiguous()).clamp(max=len(z) - 1)
    return z.gather(0, index.T[..., None].expand(-1, -1, z.shape[-1]))


FUNCTIONS = 8  # at once on a CPU: the slowest of them decides how many steps are taken


class Emulator(Predictor):
    """A network of u(t, x; z), where z are the parameters of the equation.

    It learns from solutions whose parameters are known. To predict it infers z from the context::

        p(z | context) ~ prod_i N(u_i; mean(t_i, x_i; z), std(t_i, x_i; z)^2)

    So every component is a whole solution, and a law that tells solutions apart chooses among them.

    Parameters
    ----------
    inputs : int
        How many coordinates.
    parameters : int
        How many parameters the equation has.
    hidden : int
        The width of the layers.
    layers : int
        How many blocks of two layers.
    octaves : int
        How many frequencies of sine and cosine each coordinate is given in.
    min_std : float
        The least standard deviation that it predicts.
    """

    models = ("emulator",)
    low: Tensor  # of coordinates and parameters, (inputs + parameters,)
    high: Tensor
    octaves: Tensor

    def __init__(
        self,
        inputs: int = 2,
        parameters: int = 1,
        hidden: int = 256,
        layers: int = 4,
        octaves: int = 4,
        min_std: float = 1e-4,
    ) -> None:
        sizes = {"inputs": inputs, "parameters": parameters, "hidden": hidden}
        sizes |= {"layers": layers, "octaves": octaves}
        super().__init__({name: check.samples(n, name) for name, n in sizes.items()}, min_std)
        self.register_buffer("low", -torch.ones(inputs + parameters))
        self.register_buffer("high", torch.ones(inputs + parameters))
        self.register_buffer("octaves", math.pi / 2 * 2.0 ** torch.arange(octaves), False)
        self.place = nn.Linear(inputs * (1 + 2 * octaves), hidden)
        self.parameter = nn.Linear(parameters, hidden)
        self.layers = nn.ModuleList(_Layer(hidden) for _ in range(layers))
        self.last = nn.Linear(hidden, 2)

    def set_ranges(self, *ranges: tuple[float, float]) -> None:
        """Sets the range in training of each coordinate, then of each parameter.

        Ranges are scaled to -1..1.
        """
        if len(ranges) != len(self.low) or not all(
            -math.inf < low < high < math.inf for low, high in ranges
        ):
            raise InputError(
                f"`ranges` must be {len(self.low)} pairs (low, high), one for each coordinate and "
                f"parameter; got {ranges}."
            )
        low, high = zip(*ranges, strict=True)
        self.low.copy_(torch.tensor(low))
        self.high.copy_(torch.tensor(high))

    def draws(
        self,
        known: Tensor,
        u: Tensor,
        mask: Tensor | None,
        samples: int,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Parameters of the equation given the context, in their own units.

        Parameters
        ----------
        known, u, mask, samples, generator : as in `AttentiveNeuralProcess.draws`

        Returns
        -------
        Tensor, shape (samples, n, parameters)
            The draws.
        """
        seen = torch.ones_like(u) if mask is None else (~mask).to(u)
        step = len(u) if u.is_cuda else FUNCTIONS
        parts = [slice(i, i + step) for i in range(0, len(u), step)]
        each = [
            self._inferred(known[part], u[part], seen[part], samples, generator)
            for part in track(parts, "Inferring")
        ]
        z, fitted = zip(*each, strict=True)
        self._warn_outside(torch.cat(fitted))
        return torch.cat(z, dim=1)

    def _warn_outside(self, fitted: Tensor) -> None:  # (n, parameters)
        """Warns where the parameters that fit best are beyond those of training."""
        inputs, what = self.sizes["inputs"], "what fits `context` best"
        ends = zip(self.low[inputs:].tolist(), self.high[inputs:].tolist(), strict=True)
        said = [beyond("parameters", e, what, fitted[:, i], INFERRED) for i, e in enumerate(ends)]
        warn_of([*filter(None, said)] if self.card else [])  # a network without one is untrained

    def given(self, known: Tensor, u: Tensor, numbers: Tensor | None, samples: int = 1) -> Tensor:
        if numbers is None:
            raise InputError("`numbers` must be given: an emulator learns what they do.")
        return numbers[None].to(u)

    def _inferred(
        self,
        known: Tensor,
        u: Tensor,
        seen: Tensor,
        samples: int,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, Tensor]:
        """Draws (samples, n, parameters), and the parameters that fit best (n, parameters)."""
        common = self.common(known, u, known)

        def predict(z: Tensor) -> tuple[Tensor, ...]:
            parts = z.split(max(1, rows_at_once(u.device) // u.numel()))
            moments = [self.decode(common, part) for part in parts]
            return tuple(torch.cat(each) for each in zip(*moments, strict=True))

        inputs, seed = self.sizes["inputs"], torch.randint(2**62, (), generator=generator)
        own = torch.Generator().manual_seed(int(seed))
        return _draws(predict, u, seen, self.low[inputs:], self.high[inputs:], samples, own)

    def common(self, known: Tensor, u: Tensor, asked: Tensor, mask: Tensor | None = None) -> Tensor:
        inputs = self.sizes["inputs"]
        scaled = _scaled(asked, self.low[:inputs], self.high[:inputs])
        waves = (scaled[..., None] * self.octaves).flatten(-2)
        return self.place(torch.cat([scaled, waves.sin(), waves.cos()], dim=-1))

    def decode(self, common: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        inputs = self.sizes["inputs"]
        scaled = _scaled(z, self.low[inputs:], self.high[inputs:])
        h = common + self.parameter(scaled)[..., None, :]
        for layer in self.layers:
            h = layer(h)
        mean, raw = self.last(F.silu(h)).unbind(-1)
        return mean, F.softplus(raw) + self.min_std


class _Layer(nn.Module):
    """Two layers beside a way past them."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.up, self.down = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.down(F.silu(self.up(self.norm(h))))


def _scaled(values: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return 2 * (values - low) / (high - low) - 1
