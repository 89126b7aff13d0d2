"""Weights of a quadrature rule on a grid: the integral of u over x is `weights @ u`."""

from collections.abc import Callable

import torch
from torch import Tensor


def left(x: Tensor) -> Tensor:  # (M,) -> (M,)
    """Each interval takes the value at its left end; the last point counts for nothing."""
    return torch.cat([x.diff(), x.new_zeros(1)])


def right(x: Tensor) -> Tensor:  # (M,) -> (M,)
    """Each interval takes the value at its right end; the first point counts for nothing."""
    return torch.cat([x.new_zeros(1), x.diff()])


def trapezoid(x: Tensor) -> Tensor:  # (M,) -> (M,)
    """Exact for functions that are linear between the points."""
    return (left(x) + right(x)) / 2


def simpson(x: Tensor) -> Tensor:  # (M,) -> (M,)
    """Exact for parabolas through each pair of intervals.

    With an even number of points the last interval takes the parabola through the last three
    points, as `scipy.integrate.simpson` does; two points leave the trapezoid.
    """
    points = x.shape[0]
    if points == 2:
        return trapezoid(x)
    h = x.diff()
    pairs = (points - 1) // 2
    h0, h1 = h[0 : 2 * pairs : 2], h[1 : 2 * pairs : 2]
    both = h0 + h1
    weights = x.new_zeros(points)
    weights[0 : 2 * pairs : 2] += both / 6 * (2 - h1 / h0)
    weights[1 : 2 * pairs : 2] += both**3 / (6 * h0 * h1)
    weights[2 : 2 * pairs + 1 : 2] += both / 6 * (2 - h0 / h1)
    if points % 2 == 0:
        h0, h1 = h[-2], h[-1]
        weights[-1] += (2 * h1**2 + 3 * h0 * h1) / (6 * (h0 + h1))
        weights[-2] += (h1**2 + 3 * h0 * h1) / (6 * h0)
        weights[-3] -= h1**3 / (6 * h0 * (h0 + h1))
    return weights


def cell(edges: Tensor) -> Tensor:  # (M + 1,) -> (M,)
    """The field holds averages over the cells between the edges: the integral is exact."""
    return edges.diff()


RULES: dict[str, Callable[[Tensor], Tensor]] = {
    "left": left,
    "right": right,
    "trapezoid": trapezoid,
    "simpson": simpson,
    "cell": cell,
}
