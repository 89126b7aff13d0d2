"""Drift and diffusion, u_t + c . grad u = k Lap u: a cloud runs around a periodic square. Easy."""

import math

import torch
from torch import Tensor

from . import _inputs as inputs
from ._box import Box, along, ends
from ._normal import between, density
from ._problem import Parameter, default, parametric

WIDE = 0.4  # of the period: from here on the Fourier series needs fewer terms than the images
IMAGES = torch.arange(-5, 6, dtype=torch.float64)
MODES = 2 * math.pi * torch.arange(1, 6, dtype=torch.float64)  # what both leave out is below 1e-20


@parametric
class Drift(Box):
    """A Gaussian on [0, 1]^2, periodic, that drifts with a velocity and widens.

    Its centre is (x0 + velocity_x t, y0 + velocity_y t), its variance width^2 + 2 k t along both
    axes; all its periodic images are summed, and it wraps around. The total is `mass`.

    Parameters
    ----------
    k : float or array
        The diffusivity, positive.
    velocity_x, velocity_y : float or array
        The velocity of the drift.
    width : float or array
        The standard deviation at t = 0.
    x0, y0 : float or array
        The centre at t = 0.
    mass : float or array
        The integral of u.

    Examples
    --------
    >>> cloud = Drift(k=0.005)
    >>> cloud.solution(torch.tensor([0.0, 1.0]), 0.3, 0.3)
    tensor([15.9155,  0.0307])
    """

    k: Parameter
    velocity_x: Parameter = default(1.0)
    velocity_y: Parameter = default(0.5)
    width: Parameter = default(0.1)
    x0: Parameter = default(0.3)
    y0: Parameter = default(0.3)
    mass: Parameter = default(1.0)

    name = "drift"
    title = "Drift and diffusion"
    equation = "u_t + c.grad u = k Lap u"
    parameter = "k"
    train_range = (0.001, 0.01)
    domain = (0.0, 1.0)
    time_range = (0.0, 1.0)
    difficulty = "easy"
    example = (0.005, 0.5)
    periodic = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("width", "mass"):
            inputs.strictly_between(name, getattr(self, name), 0.0, math.inf)

    def _spread_of(self, t: Tensor) -> Tensor:
        return (self.width**2 + 2 * self.k * t).sqrt()

    def _from_centre(self, axis: int, t: Tensor, x: Tensor) -> Tensor:
        start, speed = ((self.x0, self.velocity_x), (self.y0, self.velocity_y))[axis]
        return x - start - speed * t

    def _solution(self, t: Tensor, *places: Tensor) -> Tensor:
        s = self._spread_of(t)
        values = [_value(self._from_centre(i, t, x), s)[0] for i, x in enumerate(places)]
        return self.mass * values[0] * values[1]

    def _flux_at(self, t: Tensor, *places: Tensor) -> tuple[Tensor, ...]:
        s = self._spread_of(t)
        x, y = (_value(self._from_centre(i, t, x), s) for i, x in enumerate(places))
        return (
            self.mass * (self.velocity_x * x[0] - self.k * x[1]) * y[0],
            self.mass * (self.velocity_y * y[0] - self.k * y[1]) * x[0],
        )

    def _total(self, t: Tensor) -> Tensor:
        return self.mass

    def _cell_averages(self, t: Tensor, edges: list[Tensor]) -> Tensor:
        one, t = self._spread(t, 2)
        return one.mass * one._mean(0, t, edges[0]) * one._mean(1, t, edges[1])

    def _face_flux(self, axis: int, t: Tensor, edges: list[Tensor]) -> Tensor:
        one, t = self._spread(t, 2)
        speed = (one.velocity_x, one.velocity_y)[axis]
        x = along(axis, 2, edges[axis])
        value, slope = _value(one._from_centre(axis, t, x), one._spread_of(t))
        return one.mass * (speed * value - one.k * slope) * one._mean(1 - axis, t, edges[1 - axis])

    def _mean(self, axis: int, t: Tensor, edges: Tensor) -> Tensor:
        """Over the cells along an axis."""
        places = self._from_centre(axis, t, along(axis, 2, edges))
        a, b = ends(places, axis - 2)
        return _inside(a, b, self._spread_of(t)) / along(axis, 2, edges.diff())


def _value(x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """The Gaussian of standard deviation s around 0 on a ring of length 1, and its slope."""
    x, s = (x - x.round())[..., None], s[..., None]
    near = s.clamp(max=WIDE)
    z = (x + IMAGES.to(x)) / near
    images = density(z) / near
    modes, fade = MODES.to(x), 2 * (-((MODES.to(x) * s) ** 2) / 2).exp()
    value = torch.where(
        s < WIDE, images.sum(-1, True), 1 + (fade * (modes * x).cos()).sum(-1, True)
    )
    slope = torch.where(
        s < WIDE,
        -(z / near * images).sum(-1, True),
        -(fade * modes * (modes * x).sin()).sum(-1, True),
    )
    return value[..., 0], slope[..., 0]


def _inside(a: Tensor, b: Tensor, s: Tensor) -> Tensor:
    """Its integral from a to b, at most one turn."""
    turn = a.round()
    a, b, s = (x[..., None] for x in (a - turn, b - turn, s))
    near = s.clamp(max=WIDE)
    images = between((a + IMAGES.to(a)) / near, (b + IMAGES.to(a)) / near)
    modes, fade = MODES.to(a), 2 * (-((MODES.to(a) * s) ** 2) / 2).exp()
    waves = fade * ((modes * b).sin() - (modes * a).sin()) / modes
    return torch.where(s < WIDE, images.sum(-1, True), b - a + waves.sum(-1, True))[..., 0]
