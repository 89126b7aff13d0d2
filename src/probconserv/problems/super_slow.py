"""Super-slow diffusion, u_t = (exp(-1/u) u_x)_x: k falls faster than any power of u. Medium."""

import torch
from torch import Tensor

from ._problem import Diffusive, Parameter, parametric


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

    def _initial(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def _boundary(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return self.u_left, torch.zeros_like(t)

    def _conductivity(self, u: Tensor, x: Tensor) -> Tensor:
        inside = u > 1e-3  # below, exp(-1/u) is 0 in floating point, and its derivative not inf * 0
        return torch.where(inside, (-1 / torch.where(inside, u, 1)).exp(), 0)
