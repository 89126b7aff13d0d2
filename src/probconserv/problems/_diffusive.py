"""The family u_t = (k(u, x) u_x)_x."""

import numpy as np
import torch
from torch import Tensor

from ._problem import Problem

NODES, WEIGHTS = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(4))


class Diffusive(Problem):
    """A problem whose flux is -k(u, x) u_x.

    A subclass writes `_conductivity`, `_initial` and `_boundary`, which gives the values held at
    the ends (not used where `periodic`); and `_mean_conductivity` where k jumps in u.
    """

    def conductivity(self, u: Tensor, x: Tensor) -> Tensor:
        """k(u, x), which is not negative.

        Parameters
        ----------
        u, x : Tensor
            Values and places, which broadcast.

        Returns
        -------
        Tensor
            In the shape of both.
        """
        return self._like(u)._conductivity(u, x)

    def _conductivity(self, u: Tensor, x: Tensor) -> Tensor:
        raise self._unwritten("_conductivity")

    def _mean_conductivity(self, left: Tensor, right: Tensor, x: Tensor) -> Tensor:
        """The mean of k(., x) between two values of u."""
        shape = (-1, *[1] * max(left.ndim, x.ndim))
        nodes, weights = NODES.to(left).reshape(shape), WEIGHTS.to(left).reshape(shape)
        u = left + (nodes + 1) / 2 * (right - left)
        return (weights / 2 * self._conductivity(u, x)).sum(0)


def mean_of_step(left: Tensor, right: Tensor, at: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The mean between two values of u of a k that is `high` where u >= `at` and `low` else."""
    apart = left != right
    above = (right - at).clamp(min=0) - (left - at).clamp(min=0)
    share = torch.where(apart, above / torch.where(apart, right - left, 1), (left >= at).to(left))
    return low + (high - low) * share
