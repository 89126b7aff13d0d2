"""A linear flow, u_t + A x . grad u = k Lap u: a cloud is turned, sheared and cut. Medium."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..support.checks import concrete
from ..support.errors import InputError
from . import _inputs as inputs
from ._box import Box, along, ends
from ._gauss import settled
from ._normal import between, density
from ._problem import Parameter, default, parametric

TERMS = 14  # of the series below, for arguments up to 1
THINNEST = 1e6  # ratio of variances: rounding would leave less than ten digits of thinner clouds


class Moments(NamedTuple):
    """The centre and the covariance of a Gaussian.

    Attributes
    ----------
    x, y : Tensor
        The centre.
    xx, xy, yy : Tensor
        The covariance.
    """

    x: Tensor
    y: Tensor
    xx: Tensor
    xy: Tensor
    yy: Tensor

    def along(self, axis: int) -> tuple[Tensor, Tensor]:
        """The centre and the variance along an axis, 0 or 1."""
        return (self.x, self.xx) if axis == 0 else (self.y, self.yy)

    @property
    def det(self) -> Tensor:
        """The determinant of the covariance."""
        return self.xx * self.yy - self.xy**2


@parametric
class LinearFlow(Box):
    """A Gaussian on [-1, 1]^2 that a velocity A (x, y) carries along, and that remains Gaussian.

    A = [[strain, shear - rotation], [rotation, -strain]]. The centre is exp(A t) (x0, y0), and the
    covariance S solves S' = A S + S A^T + 2 k I. It is the solution on the plane, cut at the walls:
    what crosses them is the inflow.

    Parameters
    ----------
    k : float or array
        The diffusivity, positive.
    rotation, shear, strain : float or array
        The entries of A.
    width : float or array
        The standard deviation at t = 0.
    x0, y0 : float or array
        The centre at t = 0.
    mass : float or array
        The integral of u over the plane.

    Examples
    --------
    >>> LinearFlow(k=0.01, shear=0.0).solution(torch.pi, -0.4, 0.0)
    tensor(1.8651, dtype=torch.float64)
    """

    k: Parameter
    rotation: Parameter = default(1.0)
    shear: Parameter = default(1.5)
    strain: Parameter = default(0.0)
    width: Parameter = default(0.15)
    x0: Parameter = default(0.4)
    y0: Parameter = default(0.0)
    mass: Parameter = default(1.0)

    name = "linear_flow"
    title = "Linear flow"
    equation = "u_t + Ax.grad u = k Lap u"
    parameter = "k"
    train_range = (0.005, 0.05)
    domain = (-1.0, 1.0)
    time_range = (0.0, 1.0)
    difficulty = "medium"
    example = (0.01, 0.5)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("width", "mass"):
            inputs.strictly_between(name, getattr(self, name), 0.0, math.inf)

    @property
    def _matrix(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        return (self.strain, self.shear - self.rotation), (self.rotation, -self.strain)

    def _moments(self, t: Tensor) -> Moments:
        """As A^2 = q I, exp(A t) = c I + s A; its square is integrated term by term."""
        (a, b), (d, _) = self._matrix
        q = a**2 + b * d
        c, s, rest = _hyperbolic(q * t**2)
        s = t * s
        xx, xy, yx, yy = c + s * a, s * b, s * d, c - s * a  # exp(A t)
        first, second, third = (t + c * s) / 2, s**2 / 2, t**3 * rest  # of c^2, c s, s^2
        w, k = self.width**2, 2 * self.k
        found = Moments(
            xx * self.x0 + xy * self.y0,
            yx * self.x0 + yy * self.y0,
            w * (xx**2 + xy**2) + k * (first + 2 * a * second + (a**2 + b**2) * third),
            w * (xx * yx + xy * yy) + k * ((b + d) * second + a * (d - b) * third),
            w * (yx**2 + yy**2) + k * (first - 2 * a * second + (a**2 + d**2) * third),
        )
        _not_too_thin(found)
        return found

    def _solution(self, t: Tensor, *places: Tensor) -> Tensor:
        return self._value(self._moments(t), *places)

    def _value(self, at: Moments, x: Tensor, y: Tensor) -> Tensor:
        """The density of x times that of y given x."""
        mean, s = _given(at, 0, x)
        wide = at.xx.sqrt()
        return self.mass * density((x - at.x) / wide) / wide * density((y - mean) / s) / s

    def _flux_at(self, t: Tensor, *places: Tensor) -> tuple[Tensor, ...]:
        (x, y), at = places, self._moments(t)
        u, (row_x, row_y) = self._value(at, x, y), self._matrix
        dx, dy = (x - at.x) / at.det, (y - at.y) / at.det
        return (
            u * (row_x[0] * x + row_x[1] * y + self.k * (at.yy * dx - at.xy * dy)),
            u * (row_y[0] * x + row_y[1] * y + self.k * (at.xx * dy - at.xy * dx)),
        )

    def _cell_averages(self, t: Tensor, edges: list[Tensor]) -> Tensor:
        """Along y by the normal distribution, along x by quadrature."""
        one, t = self._spread(t, 3)  # (..., nx, points, ny)
        at, (low, _) = one._moments(t), ends(edges[0], 0)
        step = edges[0].diff()
        wide = at.xx.sqrt()

        def mean(nodes: Tensor, weights: Tensor) -> Tensor:
            x = (low[:, None] + step[:, None] * nodes)[..., None]
            middle, s = _given(at, 0, x)
            inside = between(*ends((edges[1] - middle) / s, -1)) / edges[1].diff()
            here = one.mass * density((x - at.x) / wide) / wide * inside
            return (weights[:, None] * here).sum(-2)

        narrow = float((at.det / at.yy).detach().min().sqrt())
        return settled(mean, t, 2, "Take smaller cells.", float(step.max()) / narrow)

    def _face_flux(self, axis: int, t: Tensor, edges: list[Tensor]) -> Tensor:
        """Along a face the flux is u times a line, c_0 + c_1 (distance from the mean there)."""
        one, t = self._spread(t, 2)
        at, other = one._moments(t), 1 - axis
        x, y = along(axis, 2, edges[axis]), along(other, 2, edges[other])
        centre, variance = at.along(axis)
        mean, s = _given(at, axis, x)
        row = one._matrix[axis]
        c_0 = row[axis] * x + row[other] * mean + one.k * (x - centre) / variance
        c_1 = row[other] - one.k * at.xy / at.det
        low, high = ends((y - mean) / s, other - 2)
        line = c_0 * between(low, high) + c_1 * s * (density(low) - density(high))
        there = one.mass * density((x - centre) / variance.sqrt()) / variance.sqrt()
        return there * line / along(other, 2, edges[other].diff())


def _given(at: Moments, axis: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation along the other axis, given the place along this one."""
    centre, variance = at.along(axis)
    return at.along(1 - axis)[0] + at.xy / variance * (x - centre), (at.det / variance).sqrt()


def _hyperbolic(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """cosh r, sinh(r) / r and (sinh(2 r) / (2 r) - 1) / (2 z) for r = sqrt(z); cos, sin for z < 0.

    By their series in z where z is small.
    """
    small = z.abs() <= 1
    near, far = torch.where(small, z, 0), torch.where(small, 1, z)
    r = far.abs().sqrt()
    grows = far > 0
    up = torch.where(grows, r, 1)
    c = torch.where(grows, up.cosh(), r.cos())
    s = torch.where(grows, up.sinh() / up, r.sin() / r)
    series = [
        sum(near**n * (scale**n / math.factorial(2 * n + shift)) for n in range(TERMS))
        for scale, shift in ((1, 0), (1, 1), (4, 3))
    ]
    return (
        torch.where(small, series[0], c),
        torch.where(small, series[1], s),
        torch.where(small, 2 * series[2], (c * s - 1) / (2 * far)),
    )


def _not_too_thin(at: Moments) -> None:
    if not concrete(*at):
        return
    ratio = float(((at.xx + at.yy) ** 2 / at.det).detach().max())
    if not 0 < ratio < THINNEST:
        raise InputError(
            f"`t` is too late: the flow has stretched the cloud to a ratio of {ratio:.2g} between "
            f"its variances, and from {THINNEST:g} on rounding leaves less than ten digits."
        )
