"""Variable coefficient, u_t = (k(x) u_x)_x: a rod of two materials heated from the left. Easy."""

import torch
from torch import Tensor

from ._problem import Diffusive, Parameter, parametric


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

    def _initial(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def _boundary(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ones_like(t), torch.zeros_like(t)

    def _conductivity(self, u: Tensor, x: Tensor) -> Tensor:
        return torch.where(x < 0.5, 1, self.k_right) + 0 * u
