"""Rods without a closed form, u_t = (k u_x)_x: of two materials, super-slow, melting."""

import torch
from torch import Tensor

from ._problem import Diffusive, Parameter, StepConductivity, default, parametric


@parametric
class VariableCoefficient(Diffusive):
    """k = 1 for x < 1/2, k_right from there on; u = 0 at first, held at 1 and 0 at the ends.

    No closed form; use `simulate`, with an even number of cells: k then jumps between two of them,
    else inside one, and the error is of first order in its width. In the end the same flux,
    2 / (1 + 1 / k_right), passes every x.

    Parameters
    ----------
    k_right : float or array
        The conductivity of the right half, positive.

    Examples
    --------
    >>> VariableCoefficient(k_right=0.2).conductivity(torch.zeros(2), torch.tensor([0.4, 0.6]))
    tensor([1.0000, 0.2000])
    """

    k_right: Parameter

    name = "variable"
    title = "Variable coefficient"
    equation = "u_t = (k(x) u_x)_x"
    parameter = "k_right"
    train_range = (0.1, 1.0)
    domain = (0.0, 1.0)
    time_range = (0.0, 1.0)
    difficulty = "easy"
    example = (0.2, 0.1)

    def _boundary(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ones_like(t), torch.zeros_like(t)

    def _conductivity(self, u: Tensor, x: Tensor) -> Tensor:
        return torch.where(x < 0.5, 1, self.k_right) + 0 * u


@parametric
class SuperSlow(Diffusive):
    """k = exp(-1/u); u = 0 at first, held at u_left and 0 at the ends.

    No closed form; use `simulate`.

    Parameters
    ----------
    u_left : float or array
        The value held at the left end, positive.

    Examples
    --------
    >>> SuperSlow(u_left=1.0).conductivity(torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.5]))
    tensor([0.0000, 0.3679])
    """

    u_left: Parameter

    name = "super_slow"
    title = "Super-slow diffusion"
    equation = "u_t = (exp(-1/u) u_x)_x"
    parameter = "u_left"
    train_range = (0.5, 1.5)
    domain = (0.0, 1.0)
    time_range = (0.0, 1.0)
    difficulty = "medium"
    example = (1.0, 0.5)

    def _boundary(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return self.u_left, torch.zeros_like(t)

    def _conductivity(self, u: Tensor, x: Tensor) -> Tensor:
        inside = u > 1e-3  # below, exp(-1/u) is 0 in floating point, and its derivative not inf * 0
        return torch.where(inside, (-1 / torch.where(inside, u, 1)).exp(), 0)


@parametric
class GeneralStefan(StepConductivity):
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
    train_range = (0.3, 0.7)
    domain = (0.0, 1.0)
    time_range = (0.0, 1.0)
    difficulty = "hard"
    example = (0.5, 0.25)

    def _boundary(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ones_like(t), torch.zeros_like(t)
