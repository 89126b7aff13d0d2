"""Integrals by Gauss's rule, with more points until they no longer change."""

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor

from ..support.errors import InputError

POINTS = (16, 32, 64, 128, 256, 512)
SETTLED = 1e-13  # of the largest value

Rule = Callable[[Tensor, Tensor], Tensor]  # from nodes and weights on [0, 1] to integrals


@cache
def gauss(points: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(points)
    return torch.from_numpy((nodes + 1) / 2), torch.from_numpy(weights / 2)


def settled(integral: Rule, like: Tensor, axes: int, way_out: str, least: float = 0.0) -> Tensor:
    """The integrals, once twice as many points change them by less than 1e-13.

    Parameters
    ----------
    integral
        Takes nodes and weights.
    like
        Gives dtype and device of the nodes.
    axes
        A change is measured against the largest value along this many last axes.
    way_out
        What the user can do where 512 points are not enough.
    least
        Fewer points than these could miss what there is to see.
    """
    last = None
    for points in (n for n in POINTS if 2 * n >= least):
        nodes, weights = (a.to(like) for a in gauss(points))
        found = integral(nodes, weights)
        if last is not None and _close(found, last, axes):
            return found
        last = found
    raise InputError(f"{POINTS[-1]} points do not integrate this to ten digits. {way_out}")


def _close(found: Tensor, last: Tensor, axes: int) -> bool:
    largest = found.detach().abs().amax(tuple(range(-axes, 0)), keepdim=True)
    return bool(((found - last).detach().abs() <= SETTLED * largest).all())
