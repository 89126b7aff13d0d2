"""The porous medium in 1 to 3 dimensions, u_t = Laplacian(u^m): a drop spreads out. Hard."""

import math

import torch
from torch import Tensor

from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError
from . import _inputs as inputs
from ._ball import passed, within
from ._box import Box, along, ends, sizes
from ._problem import Parameter, default, parametric

LOSS = 16 * torch.finfo(torch.float64).eps  # of a difference of integrals from the origin
DIGITS = 1e-10


@parametric
class Barenblatt(Box):
    """The source solution of Barenblatt, Zel'dovich, Kompaneets and Pattle on [-1, 1]^dims.

    With r the distance from the origin and (.)_+ the positive part::

        u = mass / (c R^dims) (1 - r^2 / R^2)_+^(1/(m-1)),   R = radius (1 + t / t_0)^beta

    Here c makes the integral `mass`, beta = 1 / (dims (m - 1) + 2), and t_0 is the age of the drop
    at t = 0. The flux -grad(u^m) is beta x u / (t + t_0). Where the drop has reached the walls, it
    goes on as if they were not there: the total is what is still inside.

    Parameters
    ----------
    m : float or array
        The power, above 1.
    mass : float or array
        The integral of u.
    radius : float or array
        R at t = 0.
    dims : int
        How many axes of space: 1, 2 or 3.

    Examples
    --------
    >>> Barenblatt(m=2.0).solution(0.0, torch.tensor([0.0, 0.3, 0.6]), 0.0)
    tensor([1.2732, 0.8149, 0.0000])
    """

    m: Parameter
    mass: Parameter = default(0.5)
    radius: Parameter = default(0.5)
    dims: int = 2

    name = "barenblatt"
    title = "Barenblatt's drop"
    equation = "u_t = Lap(u^m)"
    parameter = "m"
    train_range = (2.0, 6.0)
    allowed = (1.0, math.inf)
    domain = (-1.0, 1.0)
    time_range = (0.0, 0.1)
    difficulty = "hard"
    example = (3.0, 0.05)

    def __post_init__(self) -> None:
        if type(self.dims) is not int or not 1 <= self.dims <= 3:
            raise InputError(f"`dims` must be 1, 2 or 3; got {self.dims!r}.")
        super().__post_init__()
        for name in ("mass", "radius"):
            inputs.strictly_between(name, getattr(self, name), 0.0, math.inf)
        check.finite("m", self._age.log(), hint="Its power overflows.")

    def front(self, t: ArrayLike) -> Tensor:
        """R(t), the radius of the drop."""
        problem, (t,), _ = self._elementwise(t=t)
        return problem._front(t)

    def _front(self, t: Tensor) -> Tensor:
        return self.radius * (1 + t / self._age) ** self._rate

    @property
    def _rate(self) -> Tensor:
        return 1 / (self.dims * (self.m - 1) + 2)  # beta

    @property
    def _power(self) -> Tensor:
        return self.m / (self.m - 1)  # 1 / (m - 1) + 1

    @property
    def _strength(self) -> Tensor:
        """u at the centre times R^dims, at all times."""
        q, half = self._power, self.dims / 2
        return self.mass * ((q + half).lgamma() - q.lgamma()).exp() / math.pi**half

    @property
    def _age(self) -> Tensor:
        """t_0: the front starts with the speed of the gas there, -grad(u^(m-1)) m / (m-1)."""
        top = self._strength / self.radius**self.dims
        return self._rate * self.radius**2 / (2 * self._power * top ** (self.m - 1))

    def _solution(self, t: Tensor, *places: Tensor) -> Tensor:
        front = self._front(t)
        depth = 1 - torch.stack(torch.broadcast_tensors(*places)).square().sum(0) / front**2
        inside = depth > 0
        shape = torch.where(inside, torch.where(inside, depth, 1) ** (self._power - 1), 0)
        return self._strength / front**self.dims * shape

    def _flux_at(self, t: Tensor, *places: Tensor) -> tuple[Tensor, ...]:
        carried = self._solution(t, *places) * self._rate / (t + self._age)
        return tuple(x * carried for x in places)

    def _total(self, t: Tensor) -> Tensor:
        return torch.where(self._front(t) <= self.domain[1], self.mass, super()._total(t))

    def _cell_averages(self, t: Tensor, edges: list[Tensor]) -> Tensor:
        one, t = self._spread(t, self.dims)
        volumes, front = sizes(edges), one._front(t)
        _enough_digits(volumes, front, self.dims)
        from_origin = within(one._power, front, dict(enumerate(edges)), self.dims)
        inside = one._strength * _differences(from_origin, self.dims)
        return torch.where(_nearest(edges) < front**2, (inside / volumes).clamp(min=0), 0)

    def _face_flux(self, axis: int, t: Tensor, edges: list[Tensor]) -> Tensor:
        """A cut through the drop is a drop in one dimension less, of radius sqrt(R^2 - x^2)."""
        one, t = self._spread(t, self.dims)
        front, x = one._front(t), along(axis, self.dims, edges[axis])
        wet = (x / front).abs() < 1
        depth = torch.where(wet, 1 - (x / front) ** 2, 1)
        mean = one._strength / front**self.dims * depth ** (one._power - 1)
        rest = {i: edge for i, edge in enumerate(edges) if i != axis}
        if rest:
            radius = depth.sqrt() * front
            cut = within(one._power, radius, rest, self.dims)
            areas = sizes(edges, leave_out=axis) / radius ** len(rest)
            mean = mean * _differences(cut, self.dims, leave_out=axis) / areas
        wet = wet & (_nearest(edges, axis) < front**2)
        return x * one._rate / (t + one._age) * torch.where(wet, mean, 0)

    def _interval_fluxes(self, t: Tensor, edges: list[Tensor]) -> list[list[Tensor]]:
        """No quadrature in time: what has passed a face since the drop was a point is known."""
        one, _ = self._spread(t[0], self.dims)
        fronts = [one._front(time) for time in t]
        grid = dict(enumerate(edges))
        sides = [passed(one._power, front, grid, self.dims) for front in fronts]
        fluxes: list[list[Tensor]] = [[] for _ in edges]
        for axis, found in enumerate(fluxes):
            nearest, areas = _nearest(edges, axis), sizes(edges, leave_out=axis)
            still = [_differences(side[axis], self.dims, leave_out=axis) for side in sides]
            for i, dt in enumerate(t.diff()):
                mean = one._strength * (still[i] - still[i + 1]) / (areas * dt)
                found.append(torch.where(nearest < fronts[i + 1] ** 2, mean, 0))
        return fluxes


def _differences(corners: Tensor, dims: int, leave_out: int | None = None) -> Tensor:
    """From integrals between the origin and corners to those over cells, or over faces."""
    for axis in range(dims):
        if axis != leave_out:
            corners = corners.diff(dim=axis - dims)
    return corners


def _nearest(edges: list[Tensor], on: int | None = None) -> Tensor:
    """The square of the least distance of cells, or of faces across axis `on`, to the origin."""
    dims, square = len(edges), torch.zeros(1).to(edges[0])
    for i, e in enumerate(edges):
        low, high = ends(e, 0)
        least = e if i == on else torch.maximum(low, -high).clamp(min=0)
        square = square + along(i, dims, least) ** 2
    return square


def _enough_digits(volumes: Tensor, front: Tensor, dims: int) -> None:
    """Cell averages are differences of integrals from the origin: in small cells digits cancel."""
    least = float(volumes.min()) / float(front.detach().max()) ** dims
    if least * DIGITS < LOSS:
        raise InputError(
            f"The smallest cell has {least:.2g} of the volume of the drop's box; below "
            f"{LOSS / DIGITS:.2g} rounding leaves less than ten digits. Take larger cells."
        )
