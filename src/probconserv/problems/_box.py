"""Equations in more dimensions: exact solutions, cell averages and fluxes on boxes."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor

from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError
from . import _inputs as inputs
from ._gauss import settled
from ._problem import Family

AXES = ("x", "y", "z")


class Box(Family):
    """u_t + div F = 0 on a box, with a formula for u; `domain` is its extent along every axis.

    Edges make a grid of cells. Averages over these, over their faces and over intervals of time are
    right to 1e-10 of the largest value, so that for every cell::

        volume (u_next - u) + dt (sum of outward face areas times fluxes) = 0

    They are computed in float64 and come back in the dtype of what was given. A subclass writes
    `_solution`, `_flux_at`, `_cell_averages` and `_face_flux`; `_total` where there is a formula.

    Attributes
    ----------
    dims : int
        How many axes of space there are.
    """

    dims: int = 2

    def solution(self, t: ArrayLike, *places: ArrayLike) -> Tensor:
        """u(t, x, y, ...), elementwise.

        Parameters
        ----------
        t : float or array
            The times, not negative.
        *places : float or array
            x, y, ..., inside the box.

        Returns
        -------
        Tensor
            In the shape that all broadcast to, with the parameters.
        """
        problem, (t, *at), _ = self._elementwise(t=t, **self._named(places))
        return problem._solution(t, *at)

    def initial(self, *places: ArrayLike) -> Tensor:
        """u(0, x, y, ...), the initial condition."""
        return self.solution(0.0, *places)

    def flux_at(self, t: ArrayLike, *places: ArrayLike) -> tuple[Tensor, ...]:
        """The exact flux F at points, one component for each axis.

        Parameters
        ----------
        t, *places : as in `solution`

        Returns
        -------
        tuple of Tensor
            One for each axis, shaped as `solution`.
        """
        problem, (t, *at), _ = self._elementwise(t=t, **self._named(places))
        return problem._flux_at(t, *at)

    def total(self, t: ArrayLike) -> Tensor:
        """The integral of u(t, .) over the box: the b(t) of the conservation law."""
        problem, t, shape, kind = self._wide(t)
        return problem._total(t).expand(shape).to(kind)

    def inflow(self, t: ArrayLike) -> Tensor:
        """What comes in through the walls, less what goes out: the change of the total."""
        problem, t, shape, kind = self._wide(t)
        net = torch.zeros(shape).to(t)
        if self.periodic:
            return net.to(kind)
        walls = problem._walls(t)
        for axis in range(self.dims):
            through = problem._face_flux(axis, t, walls).flatten(-self.dims)
            net = net + (through[..., 0] - through[..., 1]) * self._width ** (self.dims - 1)
        return net.to(kind)

    def cell_averages(self, t: ArrayLike, *edges: ArrayLike) -> Tensor:
        """The averages of u over cells.

        Parameters
        ----------
        t : array, shape (T,)
            The times, increasing.
        *edges : array, shapes (nx + 1,), (ny + 1,), ...
            The edges of the cells along each axis, increasing, inside the box.

        Returns
        -------
        Tensor, shape (..., T, nx, ny)
            For parameters of shape (...).
        """
        problem, t, grid, kind = self._grid(t, edges)
        averages = [problem._cell_averages(time, grid) for time in t]
        return torch.stack(averages, -1 - self.dims).to(kind)

    def face_fluxes(self, t: ArrayLike, *edges: ArrayLike) -> tuple[Tensor, ...]:
        """The fluxes averaged over faces, one tensor for each axis.

        Parameters
        ----------
        t, *edges : as in `cell_averages`

        Returns
        -------
        tuple of Tensor, shapes (..., T, nx + 1, ny), (..., T, nx, ny + 1), ...
            In a periodic box the last face of an axis, which is the first again, is left out.
        """
        problem, t, grid, kind = self._grid(t, edges)
        return tuple(
            self._faces(axis, [problem._face_flux(axis, time, grid) for time in t]).to(kind)
            for axis in range(self.dims)
        )

    def interval_fluxes(self, t: ArrayLike, *edges: ArrayLike) -> tuple[Tensor, ...]:
        """The fluxes averaged over faces and over the intervals of time between t.

        Parameters
        ----------
        t, *edges : as in `cell_averages`

        Returns
        -------
        tuple of Tensor
            As `face_fluxes`, with T - 1 in the place of T.
        """
        problem, t, grid, kind = self._grid(t, edges, times=2)
        fluxes = problem._interval_fluxes(t, grid)
        return tuple(self._faces(axis, found).to(kind) for axis, found in enumerate(fluxes))

    @property
    def _width(self) -> float:
        return self.domain[1] - self.domain[0]

    def _walls(self, like: Tensor) -> list[Tensor]:
        """The box as one cell."""
        return [torch.tensor(self.domain, dtype=like.dtype, device=like.device)] * self.dims

    def _named(self, given: Sequence[ArrayLike]) -> dict[str, ArrayLike]:
        if len(given) != self.dims:
            names = ", ".join(f"`{name}`" for name in AXES[: self.dims])
            raise InputError(f"{self.name} needs {names} after `t` here; got {len(given)} of them.")
        return dict(zip(AXES, given, strict=False))

    def _wide(self, t: ArrayLike) -> tuple[Self, Tensor, torch.Size, torch.dtype]:
        problem, (t,), shape = self._elementwise(t=t)
        return problem.to(torch.float64), t.double(), shape, t.dtype

    def _grid(
        self, t: ArrayLike, edges: Sequence[ArrayLike], times: int = 1
    ) -> tuple[Self, Tensor, list[Tensor], torch.dtype]:
        """The problem, times and edges in float64, and the dtype that was given."""
        problem, (t, *grid) = self._ready(t=t, **self._named(edges))
        check.increasing("t", t, times)
        for name, axis in zip(AXES, grid, strict=False):
            check.increasing(name, axis)
            if self.periodic:
                inputs.spans(name, axis, *self.domain, f"the period of {self.name}")
        return problem.to(torch.float64), t.double(), [axis.double() for axis in grid], t.dtype

    def _faces(self, axis: int, fluxes: Sequence[Tensor]) -> Tensor:
        """One tensor of the fluxes at several times; around a ring the last face is the first."""
        found = torch.stack(list(fluxes), -1 - self.dims)
        place = axis - self.dims
        return found.narrow(place, 0, found.shape[place] - 1) if self.periodic else found

    def _spread(self, t: Tensor, axes: int) -> tuple[Self, Tensor]:
        """Parameters and times with room for this many axes behind theirs."""
        room = (..., *[None] * axes)
        return self[room], t[room]

    def _interval_fluxes(self, t: Tensor, edges: list[Tensor]) -> list[list[Tensor]]:
        """By quadrature in time; a subclass with a formula writes its own."""
        return [
            [self._mean_flux(axis, *interval, edges) for interval in pairwise(t)]
            for axis in range(self.dims)
        ]

    def _mean_flux(self, axis: int, start: Tensor, end: Tensor, edges: list[Tensor]) -> Tensor:
        many, room = self[..., None], (-1, *[1] * self.dims)

        def mean(nodes: Tensor, weights: Tensor) -> Tensor:
            flux = many._face_flux(axis, start + (end - start) * nodes, edges)
            return (weights.reshape(room) * flux).sum(-1 - self.dims)

        return settled(mean, start, self.dims, "Take shorter intervals of `t`.")

    def _total(self, t: Tensor) -> Tensor:
        whole = self._cell_averages(t, self._walls(t))
        return whole.flatten(-self.dims)[..., 0] * self._width**self.dims

    def _solution(self, t: Tensor, *places: Tensor) -> Tensor:
        raise self._unwritten("_solution")

    def _flux_at(self, t: Tensor, *places: Tensor) -> tuple[Tensor, ...]:
        raise self._unwritten("_flux_at")

    def _cell_averages(self, t: Tensor, edges: list[Tensor]) -> Tensor:
        """(..., nx, ny) where parameters and t broadcast to (...)."""
        raise self._unwritten("_cell_averages")

    def _face_flux(self, axis: int, t: Tensor, edges: list[Tensor]) -> Tensor:
        """(..., nx + 1, ny) for the first axis, where parameters and t broadcast to (...)."""
        raise self._unwritten("_face_flux")


def along(axis: int, dims: int, x: Tensor) -> Tensor:
    """x (n,) as an array with n entries along one of `dims` axes."""
    return x.reshape([-1 if i == axis else 1 for i in range(dims)])


def ends(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """The lower and the upper ends of the cells along an axis."""
    cells = x.shape[axis] - 1
    return x.narrow(axis, 0, cells), x.narrow(axis, 1, cells)


def sizes(edges: list[Tensor], leave_out: int | None = None) -> Tensor:
    """Volumes of cells, or areas of the faces across the axis that is left out."""
    dims = len(edges)
    widths = [along(i, dims, e.diff()) for i, e in enumerate(edges) if i != leave_out]
    return math.prod(widths, start=torch.ones([1] * dims).to(edges[0]))
