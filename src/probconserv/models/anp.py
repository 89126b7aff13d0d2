"""The attentive neural process: a Gaussian field from scattered observations."""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from ..fields.gaussian import Diagonal
from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError
from ..support.progress import track
from ._network import Decoder, DeterministicEncoder, Latent, LatentEncoder, jet_of_places
from ._predictor import Context, Predictor, field_of, rows_at_once


class AttentiveNeuralProcess(Predictor):
    """The paper's network, from scattered observations to a Gaussian field.

    p(u | context) is the mixture over z ~ p(z | context) of independent normals at each place.
    Inputs are coordinates in their own units, in the order (t, x).

    Parameters
    ----------
    inputs : int
        How many coordinates.
    hidden : int
        The width of the layers, a multiple of `heads`.
    latent : int
        The size of z.
    heads : int
        How many heads the attention has.
    dropout : float
        The share of entries that are dropped in training.
    min_std : float
        The least standard deviation that it predicts.

    Raises
    ------
    InputError
        If a size is not positive, or `hidden` not a multiple of `heads`.

    Examples
    --------
    >>> network = AttentiveNeuralProcess(hidden=8, latent=8)
    >>> seen = [0.1, 0.2, 0.4], [0.0, 0.5, 1.0], [1.0, 0.8, 0.1]  # t, x, u
    >>> network.predict(seen, ([0.1, 0.2], [0.0, 0.5, 1.0]), samples=5)
    Diagonal(shape=(5, 2, 3), event_dims=0, torch.float64)
    """

    models = "anp", "softc"

    def __init__(
        self,
        inputs: int = 2,
        hidden: int = 128,
        latent: int = 128,
        heads: int = 4,
        dropout: float = 0.0,
        min_std: float = 1e-3,
    ) -> None:
        sizes = {"inputs": inputs, "hidden": hidden, "latent": latent, "heads": heads}
        super().__init__({name: check.samples(n, name) for name, n in sizes.items()}, min_std)
        dropout = check.between("dropout", dropout, 0, 1)
        if hidden % heads:
            raise InputError(f"`hidden` must be a multiple of `heads`, got {hidden} and {heads}.")
        self.latent_encoder = LatentEncoder(inputs, hidden, latent, heads, dropout)
        self.deterministic_encoder = DeterministicEncoder(inputs, hidden, heads, dropout)
        self.decoder = Decoder(inputs, hidden, latent)

    @classmethod
    def from_card(cls, card: dict[str, Any]) -> Self:
        """The network of a card, with weights of no use yet."""
        dropout, min_std = card["settings"]["dropout"], card["min_std"]
        return cls(**card["sizes"], dropout=dropout, min_std=min_std)

    def latent(self, known: Tensor, u: Tensor, mask: Tensor | None = None) -> Latent:
        """The distribution of z, given observations.

        Parameters
        ----------
        known : Tensor, shape (n, N, inputs)
            Where u is known.
        u : Tensor, shape (n, N)
            The values there.
        mask : Tensor of bool, shape (n, N)
            True where a point is missing.

        Returns
        -------
        Latent
            Mean and log variance of z, (n, latent) each.
        """
        return self.latent_encoder(torch.cat([known, u[..., None]], dim=-1), mask)

    def draws(
        self,
        known: Tensor,
        u: Tensor,
        mask: Tensor | None,
        samples: int,
        generator: torch.Generator | None,
    ) -> Tensor:
        latent = self.latent(known, u, mask)
        noise = torch.randn(samples, *latent.mean.shape, generator=generator)
        return latent.sample(noise.to(u))

    def common(self, known: Tensor, u: Tensor, asked: Tensor, mask: Tensor | None = None) -> Tensor:
        points = torch.cat([known, u[..., None]], dim=-1)
        values = self.deterministic_encoder.values(points, mask)
        representation = self.deterministic_encoder(values, known, asked, mask)
        return self.decoder.without_z(asked, representation)

    def decode(self, common: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = self.decoder(common, z).unbind(-1)
        return mean, F.softplus(raw) + self.min_std

    def derivatives(
        self, known: Tensor, u: Tensor, asked: Tensor, z: Tensor, order: int = 2
    ) -> tuple[Tensor, ...]:
        """Mean, standard deviation, and derivatives of the mean at places.

        The first two coordinates are t and x.

        Parameters
        ----------
        known : Tensor, shape (n, N, inputs)
            Where u is known.
        u : Tensor, shape (n, N)
            The values there.
        asked : Tensor, shape (n, M, inputs)
            The places.
        z : Tensor, shape (n, latent)
            The latent.
        order : {1, 2}
            The order of the highest derivative in x.

        Returns
        -------
        tuple of Tensor, shape (n, M) each
            Mean, standard deviation, u_t, u_x and, for order 2, u_xx.

        Raises
        ------
        InputError
            If `order` is not 1 or 2.
        """
        if order not in (1, 2):
            raise InputError(f"`order` must be 1 or 2, got {order}.")
        points = torch.cat([known, u[..., None]], dim=-1)
        values = self.deterministic_encoder.values(points, None)
        places = jet_of_places(asked, order)
        representation = self.deterministic_encoder.jet(values, known, places)
        jet = self.decoder.jet(places, representation, z)
        std = F.softplus(jet[:, 0, :, 1]) + self.min_std
        mean, *derivatives = jet[..., 0].unbind(1)
        return mean, std, *derivatives

    @torch.no_grad()
    def predict_with_dropout(
        self,
        context: Context | list[Context],
        grid: Sequence[ArrayLike],
        samples: int = 100,
        generator: torch.Generator | None = None,
    ) -> Diagonal:
        """The prediction on a grid with dropout on, as the published experiments were evaluated.

        Each sample is a whole pass with masks and a z of its own.

        Parameters
        ----------
        context, grid, samples, generator : as in `predict`

        Returns
        -------
        Diagonal, shape (samples, n, T, M)
            As `predict` gives it.
        """
        (known, u, mask), (places, shape) = self._read(context, grid, samples, generator)
        n, seed = len(u), int(torch.randint(2**62, (), generator=generator))
        step = max(1, rows_at_once(u.device) // len(places))  # of the functions at once
        field = torch.empty(2, samples, n, len(places), dtype=torch.float64, device=u.device)
        with self.mode(training=True), torch.random.fork_rng([u.device] if u.is_cuda else []):
            torch.manual_seed(seed)
            for j in track(range(samples), "Predicting"):
                for part in (slice(i, i + step) for i in range(0, n, step)):
                    seen = known[part], u[part], None if mask is None else mask[part]
                    latent = self.latent(*seen)
                    z = latent.sample(torch.randn_like(latent.mean))
                    here = places.expand(len(u[part]), -1, -1)
                    mean, std = self.decode(self.common(*seen[:2], here, seen[2]), z)
                    field[0, j, part], field[1, j, part] = mean, std.double() ** 2
        return field_of(field, shape, context)
