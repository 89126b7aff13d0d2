"""Advection, u_t + beta u_x = 0: a step moves to the right and leaves. Medium."""

import torch
from torch import Tensor

from ._problem import ClosedForm, Parameter, parametric


@parametric
class Advection(ClosedForm):
    """u = 1 for x <= 1/2 + beta t, else 0, on [0, 1]; the step leaves at t = 1 / (2 beta).

    Parameters
    ----------
    beta : float or array
        The speed, positive.

    Examples
    --------
    >>> Advection(beta=2.0).total(torch.tensor([0.0, 0.1, 1.0]))
    tensor([0.5000, 0.7000, 1.0000])
    """

    beta: Parameter

    name = "advection"
    title = "Advection"
    equation = "u_t + beta u_x = 0"
    parameter = "beta"
    train_range = (1.0, 5.0)
    domain = (0.0, 1.0)
    time_range = (0.0, 1.0)
    difficulty = "medium"
    order = 1
    example = (1.0, 0.1)

    def _solution(self, t: Tensor, x: Tensor) -> Tensor:
        step = self._step(t)
        return (x <= step).to(step + x)

    def _initial(self, x: Tensor) -> Tensor:
        return self._solution(torch.zeros_like(x), x)

    def _total(self, t: Tensor) -> Tensor:
        return self._step(t).clamp(max=1)

    def _boundary(self, t: Tensor) -> tuple[Tensor, Tensor]:
        ends = torch.zeros_like(t), torch.ones_like(t)
        return self._solution(t, ends[0]), self._solution(t, ends[1])

    def _inflow(self, t: Tensor) -> Tensor:
        return self.beta * self._boundary(t)[0]

    def _outflow(self, t: Tensor) -> Tensor:
        return self.beta * self._boundary(t)[1]

    def _front(self, t: Tensor) -> Tensor:
        return self._step(t)

    def _step(self, t: Tensor) -> Tensor:
        return 0.5 + self.beta * t

    def _flux(self, u: Tensor, u_x: Tensor) -> Tensor:
        return self.beta * u

    def _residual(self, u: Tensor, u_t: Tensor, u_x: Tensor, u_xx: Tensor) -> Tensor:
        return u_t + self.beta * u_x
