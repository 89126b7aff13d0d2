"""Derivatives with respect to (t, x), carried forward through a network beside its values.

A jet (..., 3 or 4, M, h) holds h, h_t, h_x and, where it is needed, h_xx at M places. Each function
here takes a jet to the jet of its result. Without h_xx its slice is empty, and so is all that it
enters, because an axis of length 1 broadcasts to one of length 0.
"""

import torch
from torch import Tensor, nn


def of_places(places: Tensor, order: int) -> Tensor:  # (n, M, inputs), t and x first
    """The jet of the coordinates themselves; order: the highest derivative in x, 1 or 2."""
    t, x = torch.zeros_like(places), torch.zeros_like(places)
    t[..., 0], x[..., 1] = 1, 1
    return torch.stack([places, t, x, torch.zeros_like(places)][: 2 + order], dim=-3)


def linear(layer: nn.Linear, h: Tensor) -> Tensor:
    return plus(h @ layer.weight.mT, layer.bias)


def plus(h: Tensor, constant: Tensor) -> Tensor:
    """h + constant, which moves the value alone."""
    return torch.cat([_value(h) + constant, h[..., 1:, :, :]], dim=-3)


def relu(h: Tensor) -> Tensor:
    return h * (_value(h) > 0)


def softmax(s: Tensor) -> Tensor:
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


def layer_norm(norm: nn.LayerNorm, h: Tensor) -> Tensor:
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
    return plus(torch.cat(normed, dim=-3) * norm.weight, norm.bias)


def _value(h: Tensor) -> Tensor:
    return h[..., :1, :, :]


def _parts(h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The value, the first derivatives in t and x, the second in x or nothing."""
    return _value(h), h[..., 1:3, :, :], h[..., 3:, :, :]
