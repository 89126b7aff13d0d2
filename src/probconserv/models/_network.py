"""The parts of the attentive neural process: attention, two encoders and a decoder; and jets.

A jet (..., 3 or 4, M, h) holds h, h_t, h_x and, where it is needed, h_xx at M places: derivatives
in (t, x), carried forward through the network beside its values. Each function takes a jet to the
jet of its result. Without h_xx its slice is empty, and so is all that it enters, because an axis of
length 1 broadcasts to one of length 0.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def jet_of_places(places: Tensor, order: int) -> Tensor:  # (n, M, inputs), t and x first
    """The jet of the coordinates themselves; order: the highest derivative in x, 1 or 2."""
    t, x = torch.zeros_like(places), torch.zeros_like(places)
    t[..., 0], x[..., 1] = 1, 1
    return torch.stack([places, t, x, torch.zeros_like(places)][: 2 + order], dim=-3)


def jet_linear(layer: nn.Linear, h: Tensor) -> Tensor:
    return jet_plus(h @ layer.weight.mT, layer.bias)


def jet_plus(h: Tensor, constant: Tensor) -> Tensor:
    """h + constant, which moves the value alone."""
    return torch.cat([_value(h) + constant, h[..., 1:, :, :]], dim=-3)


def jet_relu(h: Tensor) -> Tensor:
    return h * (_value(h) > 0)


def jet_softmax(s: Tensor) -> Tensor:
    """p = exp(s) / sum exp(s), with p' = p (s' - <s'>), where <.> is the mean under p.

    The second derivative is p (c - <c>) with c = s'' + (s' - <s'>)^2.
    """
    value, first, second = _parts(s)
    p = value.softmax(-1)
    first = _centred(first, p)
    second = _centred(second + first[..., 1:, :, :] ** 2, p)
    return torch.cat([p, p * first, p * second], dim=-3)


def _centred(s: Tensor, p: Tensor) -> Tensor:
    return s - (p * s).sum(-1, keepdim=True)


def jet_layer_norm(norm: nn.LayerNorm, h: Tensor) -> Tensor:
    """c / sqrt(v) with c = h - mean(h) and v = mean(c^2) + eps, scaled and moved."""
    c, c_d, c_xx = _parts(h - h.mean(-1, keepdim=True))  # c_d: both first derivatives
    c_x = c_d[..., 1:, :, :]
    v = (c**2).mean(-1, keepdim=True) + norm.eps
    v_d = 2 * (c * c_d).mean(-1, keepdim=True)
    v_xx = 2 * (c_x**2 + c * c_xx).mean(-1, keepdim=True)
    r = v.rsqrt()
    r_d = -(r**3) * v_d / 2
    r_x, v_x = r_d[..., 1:, :, :], v_d[..., 1:, :, :]
    r_xx = r**5 * v_x**2 * 3 / 4 - r**3 * v_xx / 2
    normed = [c * r, c_d * r + c * r_d, c_xx * r + 2 * c_x * r_x + c * r_xx]
    return jet_plus(torch.cat(normed, dim=-3) * norm.weight, norm.bias)


def _value(h: Tensor) -> Tensor:
    return h[..., :1, :, :]


def _parts(h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The value, the first derivatives in t and x, the second in x or nothing."""
    return _value(h), h[..., 1:3, :, :], h[..., 3:, :, :]


class Attention(nn.Module):
    """Multi-head attention whose result is mixed with the query, added to it and normalised.

    norm(query + mix([query, attended])), with dropout on the attention weights and on the mix.
    """

    def __init__(self, hidden: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout, self.in_float16 = heads, dropout, False
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.value = nn.Linear(hidden, hidden, bias=False)
        self.mix = nn.Linear(2 * hidden, hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(
        self,
        query: Tensor,  # (n, Q, hidden)
        key: Tensor,  # (n, K, hidden)
        value: Tensor,  # (n, K, hidden)
        mask: Tensor | None = None,  # (n, K), True where a point is left out
    ) -> Tensor:  # (n, Q, hidden)
        q, k, v = self._heads(query, key, value)
        if self.in_float16:  # fused kernels want 16 bits; float16 has as many digits as TF32
            q, k, v = q.half(), k.half(), v.half()
        seen = None if mask is None else ~mask[:, None, None, :]
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=dropout)
        attended = attended.to(query).transpose(1, 2).flatten(-2)
        mixed = F.dropout(self.mix(torch.cat([query, attended], dim=-1)), dropout)
        return self.norm(query + mixed)

    def jet(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The jet of the result from that of the query, (n, 3 or 4, Q, hidden).

        Plain attention: the fused kernels have no derivatives to carry forward.
        """
        q, k, v = self._heads(query.flatten(1, 2), key, value)
        scores = q @ k.mT / q.shape[-1] ** 0.5  # (n, heads, 3 or 4 times Q, K)
        weights = jet_softmax(scores.unflatten(2, query.shape[1:3]))
        attended = self._dropped(weights).flatten(2, 3) @ v
        attended = attended.transpose(1, 2).flatten(-2).view_as(query)
        mixed = jet_linear(self.mix, torch.cat([query, attended], dim=-1))
        return jet_layer_norm(self.norm, query + self._dropped(mixed))

    def _dropped(self, jet: Tensor) -> Tensor:
        """Dropout of a jet: what is left out is left out of all its parts."""
        if not (self.training and self.dropout):
            return jet
        return jet * F.dropout(torch.ones_like(jet[..., :1, :, :]), self.dropout)

    def _heads(self, query: Tensor, key: Tensor, value: Tensor) -> Iterator[Tensor]:
        """Queries, keys and values of each head, (n, heads, points, hidden / heads)."""
        layers = self.query, self.key, self.value
        if query is key and key is value:  # of a set itself: one product for the three
            parts = F.linear(query, torch.cat([layer.weight for layer in layers])).chunk(3, dim=-1)
        else:
            parts = tuple(layer(x) for layer, x in zip(layers, (query, key, value), strict=True))
        return (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)


def attend_in_float16(network: nn.Module, on: bool) -> None:
    """Sets whether the attention of a network is computed in float16, by fused kernels of a GPU."""
    for module in network.modules():
        if isinstance(module, Attention):
            module.in_float16 = on


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
        key, h = self.keys(known), jet_linear(self.queries, asked)
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
        places = jet_linear(self.place, asked)
        h = torch.cat([representation, places], dim=-1) @ weight.mT
        h = jet_relu(jet_plus(h, bias + self._of_z(z)[:, None]))
        for layer in list(self.layers)[1:]:
            h = jet_relu(jet_linear(cast(nn.Linear, layer), h))
        return jet_linear(self.last, h)


def _mean(h: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return h.mean(dim=1)
    seen = (~mask)[..., None].to(h)
    return (h * seen).sum(dim=1) / seen.sum(dim=1)


LOG_ROOT_2_PI = math.log(2 * math.pi) / 2


def log_normal(u: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return -(((u - mean) / std) ** 2) / 2 - std.log() - LOG_ROOT_2_PI
