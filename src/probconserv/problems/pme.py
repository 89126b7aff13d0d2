"""The porous medium equation, u_t = (u^m u_x)_x: a wave with a sharp foot runs in. Medium."""

import torch
from torch import Tensor

from ._problem import ClosedForm, Diffusive, Parameter, parametric


@parametric
class PorousMedium(ClosedForm, Diffusive):
    """u(t, x) = (m (t - x)_+)^(1/m) on [0, 1]: empty at first, fed from the left, front at x = t.

    The flux of this wave equals u. From t = 1 on it flows out on the right.

    Parameters
    ----------
    m : float or array
        The power of u in the conductivity, positive.

    Examples
    --------
    >>> PorousMedium(m=1.0).solution(t=0.5, x=torch.tensor([0.0, 0.25, 0.75]))
    tensor([0.5000, 0.2500, 0.0000])
    """

    m: Parameter

    name = "pme"
    title = "Porous medium"
    equation = "u_t = (u^m u_x)_x"
    parameter = "m"
    train_range = (0.99, 6.0)
    domain = (0.0, 1.0)
    time_range = (0.0, 1.0)
    difficulty = "medium"
    example = (3.0, 0.5)

    def _solution(self, t: Tensor, x: Tensor) -> Tensor:
        return self._power(t - x, 1 / self.m)

    def _total(self, t: Tensor) -> Tensor:
        upper = 1 + 1 / self.m
        late = t > 1  # then 1 - ((t - 1) / t)^upper of it is still here
        here = torch.where(late, -(upper * (-1 / torch.where(late, t, 2)).log1p()).expm1(), 1)
        return self._power(t, upper) / (self.m + 1) * here

    def _boundary(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return self._power(t, 1 / self.m), self._power(t - 1, 1 / self.m)

    def _inflow(self, t: Tensor) -> Tensor:
        return self._boundary(t)[0]

    def _outflow(self, t: Tensor) -> Tensor:
        return self._boundary(t)[1]

    def _front(self, t: Tensor) -> Tensor:
        return torch.where(t > 0, t, torch.nan)

    def _power(self, depth: Tensor, exponent: Tensor) -> Tensor:
        """(m depth_+)^exponent, with derivatives 0 and not NaN where depth < 0."""
        inside = depth > 0
        return torch.where(inside, (self.m * torch.where(inside, depth, 1)) ** exponent, 0)

    def _flux(self, u: Tensor, u_x: Tensor) -> Tensor:
        return -self._conductivity(u) * u_x

    def _residual(self, u: Tensor, u_t: Tensor, u_x: Tensor, u_xx: Tensor) -> Tensor:
        inside = u > 0
        slope = torch.where(inside, self.m * torch.where(inside, u, 1) ** (self.m - 1), 0)  # k'(u)
        return u_t - self._conductivity(u) * u_xx - slope * u_x**2

    def _conductivity(self, u: Tensor, x: Tensor | None = None) -> Tensor:
        """k(u) = u^m; 0 for u < 0."""
        inside = u > 0
        return torch.where(inside, torch.where(inside, u, 1) ** self.m, 0)
