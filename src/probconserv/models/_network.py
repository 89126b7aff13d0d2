"""The parts of the attentive neural process: two encoders and a decoder."""

import math
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import _jets as jets
from ._attention import Attention


class Latent(NamedTuple):
    """An independent normal for each entry of z, (n, latent) each."""

    mean: Tensor
    log_variance: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        """z from standard normal noise (..., n, latent)."""
        return self.mean + (self.log_variance / 2).exp() * noise

    def divergence(self, other: "Latent") -> Tensor:
        """KL(self || other), (n,)."""
        ratio = self.log_variance - other.log_variance
        apart = (self.mean - other.mean) ** 2 * (-other.log_variance).exp()
        return (ratio.exp() - 1 - ratio + apart).sum(-1) / 2


class LatentEncoder(nn.Module):
    """Points to the distribution of z."""

    def __init__(self, inputs: int, hidden: int, latent: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.points = nn.Linear(inputs + 1, hidden)
        self.attention = nn.ModuleList(Attention(hidden, heads, dropout) for _ in range(2))
        self.pooled = nn.Linear(hidden, hidden)
        self.mean = nn.Linear(hidden, latent)
        self.log_variance = nn.Linear(hidden, latent)

    def forward(self, points: Tensor, mask: Tensor | None) -> Latent:  # (n, N, inputs + 1), (n, N)
        h = self.points(points)
        for layer in self.attention:
            h = layer(h, h, h, mask)
        pooled = F.relu(self.pooled(_mean(h, mask)))
        return Latent(self.mean(pooled), self.log_variance(pooled))


class DeterministicEncoder(nn.Module):
    """Points, and places to predict, to a representation of each place."""

    def __init__(self, inputs: int, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.points = nn.Linear(inputs + 1, hidden)
        self.keys = nn.Linear(inputs, hidden)
        self.queries = nn.Linear(inputs, hidden)
        self.attention = nn.ModuleList(Attention(hidden, heads, dropout) for _ in range(2))
        self.cross = nn.ModuleList(Attention(hidden, heads, dropout) for _ in range(2))

    def values(self, points: Tensor, mask: Tensor | None) -> Tensor:
        h = self.points(points)
        for layer in self.attention:
            h = layer(h, h, h, mask)
        return h

    def forward(
        self, values: Tensor, known: Tensor, asked: Tensor, mask: Tensor | None
    ) -> Tensor:  # (n, N, hidden), places (n, N, inputs) and (n, M, inputs) to (n, M, hidden)
        key, h = self.keys(known), self.queries(asked)
        for layer in self.cross:
            h = layer(h, key, values, mask)
        return h

    def jet(self, values: Tensor, known: Tensor, asked: Tensor) -> Tensor:
        """The jet of the representation from that of the places, (n, 3 or 4, M, inputs)."""
        key, h = self.keys(known), jets.linear(self.queries, asked)
        for layer in self.cross:
            h = cast(Attention, layer).jet(h, key, values)
        return h


class Decoder(nn.Module):
    """A place, its representation and z to mean and standard deviation."""

    def __init__(self, inputs: int, hidden: int, latent: int) -> None:
        super().__init__()
        width = 2 * hidden + latent
        self.place = nn.Linear(inputs, hidden)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.last = nn.Linear(width, 2)

    def without_z(self, asked: Tensor, representation: Tensor) -> Tensor:
        """The part of the first layer that no z enters, (n, M, width)."""
        return F.linear(torch.cat([representation, self.place(asked)], dim=-1), *self._first)

    @property
    def _first(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the first layer, without the columns of z."""
        first, hidden = cast(nn.Linear, self.layers[0]), self.place.out_features
        weight = torch.cat([first.weight[:, :hidden], first.weight[:, -hidden:]], dim=1)
        return weight, first.bias

    def _of_z(self, z: Tensor) -> Tensor:
        """What z adds to the first layer, (..., n, 1, width)."""
        first, hidden = cast(nn.Linear, self.layers[0]), self.place.out_features
        return F.linear(z, first.weight[:, hidden:-hidden])[..., None, :]

    def forward(self, common: Tensor, z: Tensor) -> Tensor:  # (n, M, width), (..., n, latent)
        h = F.relu(common + self._of_z(z))
        for layer in list(self.layers)[1:]:
            h = F.relu(layer(h))
        return self.last(h)  # (..., n, M, 2)

    def jet(self, asked: Tensor, representation: Tensor, z: Tensor) -> Tensor:
        """The jet of the two outputs, (n, 3 or 4, M, 2)."""
        weight, bias = self._first
        places = jets.linear(self.place, asked)
        h = torch.cat([representation, places], dim=-1) @ weight.mT
        h = jets.relu(jets.plus(h, bias + self._of_z(z)[:, None]))
        for layer in list(self.layers)[1:]:
            h = jets.relu(jets.linear(cast(nn.Linear, layer), h))
        return jets.linear(self.last, h)


def _mean(h: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return h.mean(dim=1)
    seen = (~mask)[..., None].to(h)
    return (h * seen).sum(dim=1) / seen.sum(dim=1)


LOG_ROOT_2_PI = math.log(2 * math.pi) / 2


def log_normal(u: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return -(((u - mean) / std) ** 2) / 2 - std.log() - LOG_ROOT_2_PI
