"""Attention as in the paper's network, fused where it can be and plain where it must be."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, x in ((self.query, query), (self.key, key), (self.value, value))
        )
        if self.in_float16:  # fused kernels want 16 bits; float16 has as many digits as TF32
            q, k, v = q.half(), k.half(), v.half()
        seen = None if mask is None else ~mask[:, None, None, :]
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=dropout)
        attended = attended.to(query).transpose(1, 2).flatten(-2)
        mixed = F.dropout(self.mix(torch.cat([query, attended], dim=-1)), dropout)
        return self.norm(query + mixed)
