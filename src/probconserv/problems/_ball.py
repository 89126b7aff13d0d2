"""The integral of (1 - |x|^2)_+^p over boxes that the unit sphere may cut, in 1 to 3 dimensions.

The radial field x g(|x|) with g(r) = r^-d (integral of s^(d-1) (1 - s^2)^p from 0 to r) has this
function as its divergence. What the field carries through a face is again the integral of a radial
function, now in the plane of the face, so that the same step takes it to the edges. On an edge
v = Z - w^4, where Z is the place of the sphere: in w the integrand is smooth enough for Gauss.
Outside of the sphere the field is that of a point charge, and the integrals are angles.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..support.errors import InputError
from ._box import along
from ._gauss import settled

TINY = 1e-150  # in place of 0 in a denominator
TERMS = 1000  # of a series, at most
WAY_OUT = "Take an `m` further from 1."


def passed(
    q: Tensor, scale: Tensor, edges: dict[int, Tensor], dims: int, most: float = math.inf
) -> list[Tensor]:
    """What the field carries through the sides of boxes from the origin to corners of a grid.

    The i-th is through the side at the i-th coordinate of the corner.

    Parameters
    ----------
    q
        p + 1, (..., 1, 1).
    scale
        Of the grid: its corners are edges / scale.
    edges
        The edges along some of the `dims` last axes.
    most
        Coordinates are cut off there.
    """
    halves = {i: e.abs().unique(return_inverse=True) for i, e in edges.items()}
    corner = [(along(i, dims, x) / scale).clamp(max=most) for i, (x, _) in halves.items()]
    if len(corner) == 1:
        sides = [arc(0.5, q, corner[0] ** 2)]
    else:
        rule: Callable[..., tuple[Tensor, ...]] = _flat if len(corner) == 2 else _solid
        found = settled(lambda n, w: torch.stack(rule(q, *corner, n, w)), q, dims, WAY_OUT)
        sides = list(found)
    for i, (_, place) in halves.items():  # odd in every coordinate
        sign = along(i, dims, edges[i].sign())
        sides = [sign * side.index_select(i - dims, place) for side in sides]
    return sides


def within(q: Tensor, scale: Tensor, edges: dict[int, Tensor], dims: int) -> Tensor:
    """The integral over the boxes, which no longer changes where a coordinate is above 1."""
    return torch.stack(passed(q, scale, edges, dims, most=1.0)).sum(0)


def arc(a: float, q: Tensor, s2: Tensor) -> Tensor:
    """Half the incomplete beta function: the integral of s^(2a-1) (1 - s^2)^(q-1) from 0 to s.

    By a series of positive terms in s^2 or, past one half, from the other end.
    """
    s2 = s2.clamp(max=1)
    near, far = s2.clamp(max=0.5), (1 - s2).clamp(max=0.5)
    start = torch.full_like(q, a)
    low = _root(near, a) * (1 - near) ** q * _series(start, q, near)
    high = _root(far, q) * (1 - far) ** a * _series(q, start, far)
    return torch.where(s2 <= 0.5, low, _whole_arc(a, q) - high)


def _series(b: Tensor, c: Tensor, x: Tensor) -> Tensor:
    """The sum over k of (b + c)_k / (b + 1)_k x^k / (2 b), for x up to one half."""
    coefficients = [0.5 / b]
    while float((coefficients[-1] * 0.5 ** len(coefficients) / coefficients[0]).max()) > 1e-17:
        k = len(coefficients) - 1
        if k == TERMS:
            raise InputError(f"The power 1 / (m - 1) is too large here. {WAY_OUT}")
        coefficients.append(coefficients[-1] * ((b + c + k) / (b + 1 + k)))
    value = coefficients.pop() + torch.zeros_like(x)
    for coefficient in reversed(coefficients):
        value = torch.addcmul(coefficient, value, x)
    return value


def _whole_arc(a: float, q: Tensor) -> Tensor:
    start = torch.full_like(q, a)
    return (start.lgamma() + q.lgamma() - (start + q).lgamma()).exp() / 2


def _flat(q: Tensor, x: Tensor, y: Tensor, nodes: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    return _across(q, x, y, nodes, weights), _across(q, y, x, nodes, weights)


def _across(q: Tensor, x: Tensor, y: Tensor, nodes: Tensor, weights: Tensor) -> Tensor:
    """Through the side from (x, 0) to (x, y)."""
    front = _root(1 - x**2, 0.5)
    v, depth, dv = _to_front(y, front, nodes, weights)
    r2 = (x[..., None] ** 2 + v**2).clamp(min=TINY)
    inside = x * ((1 - depth ** q[..., None]) / r2 * dv).sum(-1)
    return (inside + _angle(y, x) - _angle(torch.minimum(y, front), x)) / (2 * q)


def _solid(
    q: Tensor, x: Tensor, y: Tensor, z: Tensor, nodes: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    x_y, y_x = _edge(q, x, y, z, nodes, weights)
    y_z, z_y = _edge(q, y, z, x, nodes, weights)
    z_x, x_z = _edge(q, z, x, y, nodes, weights)
    return x_y + x_z, y_z + y_x, z_x + z_y


def _edge(
    q: Tensor, x: Tensor, y: Tensor, z: Tensor, nodes: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """The share of the edge from (x, y, 0) to (x, y, z) in what passes the sides x and y."""
    front = _root(1 - x**2 - y**2, 0.5)
    v, depth, dv = _to_front(z, front, nodes, weights)
    r2 = x[..., None] ** 2 + y[..., None] ** 2 + v**2
    level = _level(q[..., None], r2, depth)
    return (
        _share(q, x, y, z, front, (v, level, dv)),
        _share(q, y, x, z, front, (v, level, dv)),
    )


def _share(
    q: Tensor, x: Tensor, y: Tensor, z: Tensor, front: Tensor, inside: tuple[Tensor, Tensor, Tensor]
) -> Tensor:
    """Of the side x: y times the integral of x (level(x) - level(r)) / (y^2 + v^2) over v."""
    v, level, dv = inside
    start = _level(q, x**2, (1 - x**2).clamp(min=0))
    rho2 = (y[..., None] ** 2 + v**2).clamp(min=TINY)
    near = x * y * ((start[..., None] - level) / rho2 * dv).sum(-1)
    cut = torch.minimum(z, front)
    r, r_cut = (_root(x**2 + y**2 + w**2, 0.5) for w in (z, cut))
    far = x * start * (_angle(z, y) - _angle(cut, y))
    charge = _angle(x * z, y * r) - _angle(x * cut, y * r_cut)
    return near + far - _whole_arc(1.5, q) * charge


def _level(q: Tensor, r2: Tensor, depth: Tensor) -> Tensor:
    """Minus the integral of g(r) r dr, up to a constant; depth = (1 - r^2)_+."""
    return arc(1.5, q, r2) / _root(r2, 0.5).clamp(min=TINY) + depth**q / (2 * q)


def _to_front(
    z: Tensor, front: Tensor, nodes: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Places v between 0 and z or the sphere, 1 - r^2 there, and dv, along a new last axis."""
    start, end = _root(front - z, 0.25)[..., None], _root(front, 0.25)[..., None]
    w = start + (end - start) * nodes
    gap = w**4
    v = front[..., None] - gap
    return v, gap * (front[..., None] + v), 4 * w**3 * (end - start) * weights


def _root(x: Tensor, power: float | Tensor) -> Tensor:
    """x_+^power, with derivatives 0 and not infinite where x <= 0."""
    inside = x > 0
    return torch.where(inside, torch.where(inside, x, 1) ** power, 0)


def _angle(y: Tensor, x: Tensor) -> Tensor:
    return torch.atan2(y, x.clamp(min=TINY))
