"""The Stefan problem, u_t = (k(u) u_x)_x with a step in k: a melting front. Hard."""

import math

import torch
from torch import Tensor
from torch.special import erfcx

from ..support.tree import once
from ._problem import ClosedForm, Parameter, StepConductivity, default, parametric

ROOT_PI = math.sqrt(math.pi)
NEWTON_STEPS = 8
SERIES = (1, 1, -2, 10, -74, 706, -8162)  # of 1 / (sqrt(pi) z erfcx(z)) in 1 / (2 z^2)
CHANGES = tuple(i * c for i, c in enumerate(SERIES))


@parametric
class Stefan(ClosedForm, StepConductivity):
    """Cold [0, 1] heated to 1 from the left; k = k_max where u >= u_star, else k_min.

    Behind the front u = 1 - c erf(x / sqrt(4 k_max t)). Ahead of it u is 0 if k_min = 0, so that u
    jumps there from u_star; else it is u_star erfc(x / sqrt(4 k_min t)) over its value at the
    front, and u is continuous. Both are solutions on the half-line x > 0, cut at x = 1: what
    crosses x = 1 is the outflow.

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
    >>> Stefan(u_star=0.6).front(0.05)
    tensor(0.2351, dtype=torch.float64)
    """

    u_star: Parameter
    k_min: Parameter = default(0.0)
    k_max: Parameter = default(1.0)

    name = "stefan"
    title = "Stefan"
    train_range = (0.55, 0.7)
    domain = (0.0, 1.0)
    time_range = (0.0, 0.1)
    difficulty = "hard"
    example = (0.6, 0.05)

    def _solution(self, t: Tensor, x: Tensor) -> Tensor:
        started = t > 0
        width = self._width(torch.where(started, t, 1))
        y = x / width
        behind = 1 - self._slope(self._alpha) * y.erf()
        u = torch.where(x <= self._alpha * width, behind, self._ahead(y))
        return torch.where(started, u, 0)

    def _total(self, t: Tensor) -> Tensor:
        started = t > 0
        width, y, z = self._right_end(torch.where(started, t, 1))
        slope = self._slope(self._alpha)
        seeped = self._ahead(y) / z * (1 / (ROOT_PI * erfcx(z)) - z)
        before = slope * width / ROOT_PI - seeped
        after = 1 - slope * (y.erf() + (-(y**2)).expm1() / (ROOT_PI * y))  # the front has left
        return torch.where(started, torch.where(self._alpha * width >= 1, after, before), 0)

    def _boundary(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ones_like(t), self._solution(t, torch.ones_like(t))

    def _inflow(self, t: Tensor) -> Tensor:
        """Infinite at t = 0."""
        return 2 / ROOT_PI * self.k_max * self._slope(self._alpha) / self._width(t)

    def _outflow(self, t: Tensor) -> Tensor:
        started = t > 0
        width, y, z = self._right_end(torch.where(started, t, 1))
        passed = self._slope(self._alpha) * (-(y**2)).exp()
        seeped = self._ratio * self._ahead(y) / erfcx(z)
        steepness = torch.where(self._alpha * width >= 1, passed, seeped)
        return torch.where(started, 2 / ROOT_PI * self.k_max / width * steepness, 0)

    def _front(self, t: Tensor) -> Tensor:
        return torch.where(t > 0, self._alpha * self._width(t), torch.nan)

    def _flux(self, u: Tensor, u_x: Tensor) -> Tensor:
        return -self._conductivity(u) * u_x

    def _residual(self, u: Tensor, u_t: Tensor, u_x: Tensor, u_xx: Tensor) -> Tensor:
        """0 almost everywhere: not at the front."""
        return u_t - self._conductivity(u) * u_xx

    def _width(self, t: Tensor) -> Tensor:
        """Lengths grow with it: u is a function of y = x / width."""
        return 2 * (self.k_max * t).sqrt()

    def _slope(self, front: Tensor) -> Tensor:
        return (1 - self.u_star) / front.erf()

    def _right_end(self, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The width, and x = 1 in units of it, behind and ahead of the front."""
        width = self._width(t)
        return width, 1 / width, 1 / (width * self._ratio)

    @property
    def _ratio(self) -> Tensor:
        """sqrt(k_min / k_max), or 1 where k_min = 0 and nothing is ahead of the front."""
        return torch.where(self.k_min > 0, self.k_min / self.k_max, 1).sqrt()

    def _ahead(self, y: Tensor) -> Tensor:
        """u ahead of the front: u_star erfc(y / ratio) / erfc(front / ratio)."""
        ratio, front = self._ratio, self._alpha
        y = torch.maximum(y, front)
        fall = ((front - y) / ratio * ((front + y) / ratio)).exp()  # erfc underflows, not this
        u = self.u_star * fall * erfcx(y / ratio) / erfcx(front / ratio)
        return torch.where(self.k_min > 0, u, 0)

    @once
    def _alpha(self) -> Tensor:
        """The front in units of width, where the flux behind it feeds the jump or the flux ahead.

        slope exp(-y^2) = u_star pull(y). Newton's method in log y on the logarithm of both sides,
        which is concave: from the second step on it comes from the right.
        """
        u_star, ratio = self.u_star, self._ratio
        with torch.no_grad():
            guess = torch.minimum((1 - u_star) / (2 * u_star), 1 - u_star.log()).sqrt()
            log_y = (guess + 0 * ratio).log()
            for _ in range(NEWTON_STEPS):
                log_y = log_y - self._imbalance(log_y.exp()) / self._imbalance_slope(log_y.exp())
        for _ in range(2):  # derivatives pass through these, the first and the second
            log_y = log_y - self._imbalance(log_y.exp()) / self._imbalance_slope(log_y.exp())
        return log_y.exp()

    def _imbalance(self, y: Tensor) -> Tensor:
        return self._slope(y).log() - y**2 - (self.u_star * self._pull(y)[0]).log()

    def _imbalance_slope(self, y: Tensor) -> Tensor:
        """The derivative of the imbalance in log y."""
        behind = 2 / ROOT_PI * y * (-(y**2)).exp() / y.erf() + 2 * y**2
        return -behind - self._pull(y)[1]

    def _pull(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """What the jump or the layer ahead takes, over u_star, and its logarithmic derivative.

        sqrt(pi) y for k_min = 0, else ratio / erfcx(z) with z = y / ratio. Where z is large,
        rounding would leave little of the derivatives of that: there it is a series in 1 / z^2.
        """
        a = self.k_min / self.k_max / (2 * y**2)  # 1 / (2 z^2)
        thin = a < 1 / 1800  # z > 30
        small = torch.where(thin, a, 0)
        series, change = _polynomial(SERIES, small), _polynomial(CHANGES, small)
        z = torch.where(thin, 1, y / self._ratio)
        pull = torch.where(thin, ROOT_PI * y * series, self._ratio / erfcx(z))
        near = 2 / ROOT_PI * z / erfcx(z) - 2 * z**2
        return pull, torch.where(thin, 1 - 2 * change / series, near)


def _polynomial(coefficients: tuple[int, ...], a: Tensor) -> Tensor:
    value = torch.zeros_like(a)
    for c in reversed(coefficients):
        value = value * a + c
    return value
