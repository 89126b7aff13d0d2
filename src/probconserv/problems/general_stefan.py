"""The general Stefan problem, u_t = (k(u) u_x)_x: both phases conduct, in a finite rod. Hard."""

import math

import torch
from torch import Tensor

from ..support import checks as check
from ._problem import Diffusive, Parameter, default, mean_of_step, parametric, strictly_between


@parametric
class GeneralStefan(Diffusive):
    """k = k_max where u >= u_star, else k_min; u = 0 at first, held at 1 and 0 at the ends.

    No closed form; use `simulate`. `Stefan` with k_min > 0 is the same on a half-line.

    Parameters
    ----------
    u_star : float or array
        Where k jumps, between 0 and 1.
    k_min : float or array
        The conductivity below `u_star`, not negative.
    k_max : float or array
        The conductivity from there on, positive.

    Examples
    --------
    >>> GeneralStefan(u_star=0.5).conductivity(torch.tensor([0.2, 0.7]), torch.tensor([0.1, 0.1]))
    tensor([0.1000, 1.0000])
    """

    u_star: Parameter
    k_min: Parameter = default(0.1)
    k_max: Parameter = default(1.0)

    name = "general_stefan"
    title = "General Stefan"
    equation = "u_t = (k(u) u_x)_x"
    parameter = "u_star"
    train_range = (0.3, 0.7)
    allowed = (0.0, 1.0)
    domain = (0.0, 1.0)
    time_range = (0.0, 1.0)
    difficulty = "hard"
    example = (0.5, 0.25)

    def __post_init__(self) -> None:
        super().__post_init__()
        strictly_between("k_max", self.k_max, 0.0, math.inf)
        check.finite("k_min", self.k_min, 0.0, "It is a conductivity.")

    def _initial(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def _boundary(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ones_like(t), torch.zeros_like(t)

    def _conductivity(self, u: Tensor, x: Tensor) -> Tensor:
        return torch.where(u >= self.u_star, self.k_max, self.k_min)

    def _mean_conductivity(self, left: Tensor, right: Tensor, x: Tensor) -> Tensor:
        return mean_of_step(left, right, self.u_star, self.k_min, self.k_max)
