"""Burgers' equation, u_t + (u^2 / 2)_x = 0: a ramp steepens, breaks, and runs as a shock. Hard."""

import torch
from torch import Tensor

from ._problem import ClosedForm, Parameter, parametric


@parametric
class Burgers(ClosedForm):
    """A ramp from a at x = -1 to 0 at x = 0, and 0 from there to x = 1, fed with a from the left.

    The ramp -a x / (1 - a t) breaks at t = 1/a; the shock is then at (a t - 1) / 2 and leaves at
    t = 3/a.

    Parameters
    ----------
    a : float or array
        The height of the ramp, positive.

    Examples
    --------
    >>> Burgers(a=2.0).front(torch.tensor([0.25, 0.75, 2.0]))
    tensor([   nan, 0.2500,    nan])
    """

    a: Parameter

    name = "burgers"
    title = "Burgers"
    equation = "u_t + (u^2/2)_x = 0"
    parameter = "a"
    train_range = (1.0, 4.0)
    domain = (-1.0, 1.0)
    time_range = (0.0, 1.0)
    difficulty = "hard"
    order = 1
    example = (3.0, 0.5)

    def _solution(self, t: Tensor, x: Tensor) -> Tensor:
        left = 1 - self.a * t  # until it breaks, in units of 1/a
        smooth = left > 0
        ramp = (-x / torch.where(smooth, left, 1)).clamp(0, 1)
        return self.a * torch.where(smooth, ramp, (x <= -left / 2).to(ramp))

    def _initial(self, x: Tensor) -> Tensor:
        return self.a * (-x).clamp(0, 1)

    def _total(self, t: Tensor) -> Tensor:
        return self.a / 2 * (1 + self.a * t).clamp(max=4)

    def _boundary(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return self.a, torch.where(self.a * t >= 3, self.a, 0)

    def _inflow(self, t: Tensor) -> Tensor:
        return self._boundary(t)[0] ** 2 / 2

    def _outflow(self, t: Tensor) -> Tensor:
        return self._boundary(t)[1] ** 2 / 2

    def _front(self, t: Tensor) -> Tensor:
        height = self.a * t
        return torch.where(height >= 1, (height - 1) / 2, torch.nan)

    def _flux(self, u: Tensor, u_x: Tensor) -> Tensor:
        return u**2 / 2

    def _residual(self, u: Tensor, u_t: Tensor, u_x: Tensor, u_xx: Tensor) -> Tensor:
        return u_t + u * u_x
