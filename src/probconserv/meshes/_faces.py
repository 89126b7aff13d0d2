"""The faces between cells: values of cells to values at faces, and back.

A face looks from one cell (before) to the next (after), the way in which a flux counts as positive.
At the boundary one of the two is missing. Shapes are (..., *cells) and (..., *faces).
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..support.tree import Node


class Faces(Node, ABC):
    """Faces whose fluxes are one array."""

    shape: tuple[int, ...]
    sizes: Tensor  # these four broadcast to `shape`
    distances: Tensor | None  # centre to centre; at the boundary centre to face
    boundary: Tensor  # True where one side is outside
    share: Tensor  # of the cell before, in linear interpolation

    @abstractmethod
    def collect(self, flux: Tensor) -> Tensor:
        """What leaves each cell less what enters it."""

    @abstractmethod
    def sides(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """The values before and after each face; at the boundary, that of its one cell twice."""

    @abstractmethod
    def outflow(self, flux: Tensor) -> Tensor:  # (..., *faces) -> (...)
        """What leaves through the boundary less what enters."""


class AxisFaces(Faces):
    """The faces across one axis of a grid; on a periodic axis the first is also the last.

    Parameters
    ----------
    dim
        The axis, counted from the end.
    forward
        Whether the coordinate grows with the index.
    half
        From the centre of each cell to its faces; broadcasts to `cells`, full along the axis.
    """

    def __init__(
        self,
        cells: tuple[int, ...],
        dim: int,
        sizes: Tensor,
        half: Tensor,
        periodic: bool,
        forward: bool = True,
    ) -> None:
        self.dim, self.ndim, self.periodic, self.forward = dim, len(cells), periodic, forward
        axis = len(cells) + dim
        self.shape = (*cells[:axis], cells[axis] + (not periodic), *cells[axis + 1 :])
        ends = [0, 0] * (-1 - dim) + [1, 1]
        before, after = self.sides(half) if periodic else self._neighbours(pad(half, ends))
        self.sizes, self.distances = sizes, before + after
        self.boundary = (before == 0) | (after == 0)
        self.share = after / self.distances

    def collect(self, flux: Tensor) -> Tensor:
        if self.periodic:
            flux = torch.cat([flux, flux.narrow(self.dim, 0, 1)], self.dim)
        start, end = self._neighbours(flux)
        return end - start

    def sides(self, u: Tensor) -> tuple[Tensor, Tensor]:
        first, last = u.narrow(self.dim, 0, 1), u.narrow(self.dim, -1, 1)
        return self._neighbours(
            torch.cat([last, u] if self.periodic else [first, u, last], self.dim)
        )

    def outflow(self, flux: Tensor) -> Tensor:
        if self.periodic:
            return flux.new_zeros(flux.shape[: flux.ndim - self.ndim])
        net = flux.select(self.dim, -1) - flux.select(self.dim, 0)
        net = net.unsqueeze(-1).flatten(-self.ndim).sum(-1)
        return net if self.forward else -net

    def _neighbours(self, wide: Tensor) -> tuple[Tensor, Tensor]:
        """All entries of the axis but the last, and all but the first, as the coordinate grows."""
        count = wide.shape[self.dim] - 1
        low, high = wide.narrow(self.dim, 0, count), wide.narrow(self.dim, 1, count)
        return (low, high) if self.forward else (high, low)


class ListedFaces(Faces):
    """Faces of any mesh, each with its two cells; -1 is the outside.

    Parameters
    ----------
    cells
        How many there are.
    neighbours
        (F, 2), the cell before and the cell after.
    """

    def __init__(
        self, cells: int, neighbours: Tensor, sizes: Tensor, distances: Tensor | None
    ) -> None:
        self.cells, self.shape = cells, (len(neighbours),)
        self.sizes, self.distances = sizes, distances
        inside, swapped = neighbours >= 0, neighbours.flip(-1)
        self.boundary = ~inside.all(-1)
        self.before, self.after = torch.where(inside, neighbours, swapped).unbind(-1)
        self.before_inside, self.after_inside = inside.to(sizes.dtype).unbind(-1)
        self.share = sizes.new_tensor(0.5)

    def collect(self, flux: Tensor) -> Tensor:
        found = flux.new_zeros(*flux.shape[:-1], self.cells)
        found = found.index_add(-1, self.before, flux * self.before_inside)
        return found.index_add(-1, self.after, -flux * self.after_inside)

    def sides(self, u: Tensor) -> tuple[Tensor, Tensor]:
        return u.index_select(-1, self.before), u.index_select(-1, self.after)

    def outflow(self, flux: Tensor) -> Tensor:
        return (flux * (self.before_inside - self.after_inside)).sum(-1)
