"""Attention as in the paper's network, fused where it can be and plain where it must be."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import _jets as jets


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
        weights = jets.softmax(scores.unflatten(2, query.shape[1:3]))
        attended = self._dropped(weights).flatten(2, 3) @ v
        attended = attended.transpose(1, 2).flatten(-2).view_as(query)
        mixed = jets.linear(self.mix, torch.cat([query, attended], dim=-1))
        return jets.layer_norm(self.norm, query + self._dropped(mixed))

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
