"""An emulator of a family of solutions: coherent functions, one for each value of the parameter."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..support import checks as check
from ..support.errors import InputError
from ..support.progress import track
from ._inference import draws
from ._predictor import Predictor, rows_at_once
from ._ranges import INFERRED, beyond, warn_of

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
        return draws(predict, u, seen, self.low[inputs:], self.high[inputs:], samples, own)

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
