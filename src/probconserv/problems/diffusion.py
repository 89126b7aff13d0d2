"""Diffusion, u_t = k u_xx: a sine wave on a ring flattens. Easy."""

import math

import torch
from torch import Tensor

from ._problem import ClosedForm, Diffusive, Parameter, parametric


@parametric
class Diffusion(ClosedForm, Diffusive):
    """u(t, x) = exp(-k t) sin x on [0, 2 pi], periodic; the total is 0 at all times.

    Parameters
    ----------
    k : float or array
        The conductivity, positive.

    Examples
    --------
    >>> Diffusion(k=1.0).solution(t=0.5, x=torch.pi / 2)
    tensor(0.6065, dtype=torch.float64)
    """

    k: Parameter

    name = "diffusion"
    title = "Diffusion"
    equation = "u_t = k u_xx"
    parameter = "k"
    train_range = (1.0, 5.0)
    domain = (0.0, 2 * math.pi)
    time_range = (0.0, 1.0)
    difficulty = "easy"
    example = (1.0, 0.5)
    periodic = True

    def _solution(self, t: Tensor, x: Tensor) -> Tensor:
        return (-self.k * t).exp() * x.sin()

    def _initial(self, x: Tensor) -> Tensor:
        return x.sin()

    def _total(self, t: Tensor) -> Tensor:
        return torch.zeros_like(t)

    def _boundary(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return self._total(t), self._total(t)

    def _inflow(self, t: Tensor) -> Tensor:
        return -self.k * (-self.k * t).exp()

    _outflow = _inflow  # what leaves on the right comes in on the left

    def _flux(self, u: Tensor, u_x: Tensor) -> Tensor:
        return -self.k * u_x

    def _residual(self, u: Tensor, u_t: Tensor, u_x: Tensor, u_xx: Tensor) -> Tensor:
        return u_t - self.k * u_xx

    def _conductivity(self, u: Tensor, x: Tensor) -> Tensor:
        return self.k + 0 * u
