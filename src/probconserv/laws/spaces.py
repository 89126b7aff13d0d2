"""What cells and faces add to the budget of a cell, on grids and on lists of faces."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..meshes import Mesh
from ..meshes._faces import AxisFaces, Faces, ListedFaces
from ..support.errors import InputError
from .maps import Map, Nonzeros, powered
from .stencils import Listed, Offset, Stencil, StencilGrid, check_points

FaceEntries: TypeAlias = tuple[Tensor, Tensor, Tensor]  # numbers of cells, of points, and values


class Intervals(NamedTuple):
    """Of time, and the names of the axes that number rows: intervals, then cells."""

    dt: Tensor
    row_names: tuple[str, ...]


class Term(Map):
    """What values in space add to each cell in each interval.

    The values are averages over the intervals, or are given at the times and then averaged.
    """

    is_local = True

    def __init__(self, points: tuple[int, ...], intervals: Intervals) -> None:
        """points: the shape of the values in space."""
        self.points, self.dims, (self.dt, self.row_names) = points, 1 + len(points), intervals

    @abstractmethod
    def over(self, weights: Mapping[int, Tensor]) -> "Stencil | Listed":
        """The map to intervals: values `o` times after the start count with weights[o], (N,)."""

    def on(self, shape: Sequence[int]) -> "Stencil | Listed":
        count, points, d = len(self.dt), self.points, self.dims - 1
        given = shape[-1 - d] if len(shape) > d else 0
        if given not in (count, count + 1) or tuple(shape[len(shape) - d :]) != tuple(points):
            raise InputError(
                f"it reads a field that ends in {(count, *points)}, an average for each interval, "
                f"or in {(count + 1, *points)}, at the times; the shape is {tuple(shape)}."
            )
        half = self.dt / 2
        return self.over({0: self.dt} if given == count else {0: half, 1: half})


class OnGrid(Term):
    """Coefficients by offset, each (*cells), or (T, *cells) where they change in time."""

    loose = ("dt", "coefficients")

    def __init__(
        self, grid: StencilGrid, terms: Mapping[Offset, Tensor], intervals: Intervals
    ) -> None:
        super().__init__(grid.points, intervals)
        self.rows, self.wraps = grid.rows, grid.wraps
        self.offsets, self.coefficients = tuple(terms), tuple(terms.values())

    def over(self, weights: Mapping[int, Tensor]) -> Stencil:
        d, count = len(self.rows), len(self.dt)
        grid = StencilGrid(
            (count, *self.rows), (count + max(weights), *self.points), (False, *self.wraps)
        )
        pairs = zip(self.offsets, self.coefficients, strict=True)
        terms = (
            ((o, *offset), w.reshape(-1, *[1] * d) * _at_start(c, d, o, count))
            for offset, c in pairs
            for o, w in weights.items()
        )
        return Stencil(grid, terms, self.row_names)


class OnList(Term):
    """Entries (row, column, value); values are (E,), or (T, E) where they change in time."""

    loose = ("dt", "rows", "columns", "values")

    def __init__(self, entries: FaceEntries, sizes: tuple[int, int], intervals: Intervals) -> None:
        """sizes: how many cells and points there are."""
        super().__init__(sizes[1:], intervals)
        (self.rows, self.columns, self.values), self.sizes = entries, sizes

    def over(self, weights: Mapping[int, Tensor]) -> Listed:
        count = len(self.dt)
        values = tuple(w[:, None] * _at_start(self.values, 1, o, count) for o, w in weights.items())
        return Listed(self.rows, self.columns, values, self.sizes, self.row_names).merged()


def _at_start(x: Tensor, dims: int, o: int, count: int) -> Tensor:
    """Of numbers (T, *space) those `o` times after the start of each interval; dims: of space."""
    return x.narrow(0, o, count) if x.ndim > dims and len(x) > 1 else x


class Gain(Map):
    """A row for each interval: the sum of weights times u after it less that before it."""

    row_names = ("interval",)
    loose = ("weights",)

    def __init__(
        self, weights: Tensor, times: int, after: float = 1.0, before: float = -1.0
    ) -> None:
        self.weights, self.times, self.dims = weights, times, 1 + weights.ndim
        self.after, self.before = after, before

    def apply(self, u: Tensor) -> Tensor:
        totals = (u * self.weights).flatten(1 - self.dims).sum(-1)
        return self.after * totals[..., 1:] + self.before * totals[..., :-1]

    def adjoint(self, v: Tensor) -> Tensor:
        each = self.after * pad(v, (1, 0)) + self.before * pad(v, (0, 1))
        return each[(..., *[None] * self.weights.ndim)] * self.weights

    def nonzeros(self, shape: Sequence[int]) -> Nonzeros:
        weights = self.weights.flatten()
        rows = torch.arange(self.times - 1, device=weights.device).repeat_interleave(len(weights))
        before = torch.arange(len(rows), device=weights.device)
        values = torch.cat([self.before * weights, self.after * weights])
        values = values.reshape(2, 1, -1).expand(2, self.times - 1, -1).flatten()
        return rows.repeat(2), torch.cat([before, before + len(weights)]), values

    def entrywise(self, power: int) -> "Gain":
        return Gain(powered(self.weights, power), self.times, 1.0, 1.0)

    def on(self, shape: Sequence[int]) -> "Gain":
        check_points(shape, (self.times, *self.weights.shape))
        return self

    def row_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (*super().row_shape(shape), self.times - 1)


class _Space:
    """The cells that count and the faces that are open, and the intervals of time."""

    def __init__(self, mesh: Mesh, where: Tensor | None, dt: Tensor) -> None:
        self.mesh, self.volumes = mesh, mesh.volumes
        self.intervals = Intervals(dt, ("interval", *mesh.axes))
        self.sizes = [f.sizes.expand(f.shape) for f in mesh._faces]
        if where is not None:
            opens = mesh.open_faces(where)
            self.sizes = [s * is_open for s, is_open in zip(self.sizes, opens, strict=True)]
            self.volumes = mesh.volumes * where.to(mesh.volumes.device)


class GridSpace(_Space):
    """Of a mesh with axes."""

    def _term(self, points: tuple[int, ...], axis: int, by_step: Mapping[int, Tensor]) -> OnGrid:
        """by_step: coefficients by the step along the axis."""
        wraps = tuple(isinstance(f, AxisFaces) and f.periodic for f in self.mesh._faces)
        axes = range(len(self.mesh.shape))
        terms = {tuple(by if i == axis else 0 for i in axes): c for by, c in by_step.items()}
        return OnGrid(StencilGrid(self.mesh.shape, points, wraps), terms, self.intervals)

    def cells(self, values: Tensor) -> OnGrid:
        """values times u in each cell."""
        return self._term(self.mesh.shape, 0, {0: values})

    def divergence(self, axis: int) -> OnGrid:
        """Of fluxes across one axis."""
        faces = self._faces(axis)
        low, high = _ends(faces, self._signed(axis))
        return self._term(faces.shape, axis, {0: -low, 1: high})

    def transport(self, axis: int, before: Tensor, after: Tensor) -> OnGrid:
        """The divergence of before * u_before + after * u_after across one axis.

        At the boundary both read the one cell that is there.
        """
        faces, size = self._faces(axis), self._signed(axis)
        low, high = (before, after) if faces.forward else (after, before)
        first, last = _outer(faces)
        low, high = (
            torch.where(first, 0.0, torch.where(last, low + high, low)),
            torch.where(last, 0.0, torch.where(first, low + high, high)),
        )
        (low_0, low_1), (high_0, high_1) = (_ends(faces, size * x) for x in (low, high))
        return self._term(self.mesh.shape, axis, {-1: -low_0, 0: low_1 - high_0, 1: high_1})

    def _faces(self, axis: int) -> AxisFaces:
        faces = self.mesh._faces[axis]
        assert isinstance(faces, AxisFaces)
        return faces

    def _signed(self, axis: int) -> Tensor:
        return self.sizes[axis] if self._faces(axis).forward else -self.sizes[axis]


def _ends(faces: AxisFaces, values: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers at faces, as those at the first and at the second face of each cell."""
    values = values.expand(*values.shape[: values.ndim - faces.ndim], *faces.shape)
    if faces.periodic:
        return values, values.roll(-1, faces.dim)
    count = values.shape[faces.dim] - 1
    return values.narrow(faces.dim, 0, count), values.narrow(faces.dim, 1, count)


def _outer(faces: AxisFaces) -> tuple[Tensor, Tensor]:
    """True at the first and at the last faces of an axis that has ends."""
    count = faces.shape[faces.dim]
    index = torch.arange(count, device=faces.sizes.device).reshape(-1, *[1] * (-1 - faces.dim))
    there = not faces.periodic
    return (index == 0) & there, (index == count - 1) & there


class ListSpace(_Space):
    """Of an unstructured mesh: the same terms as lists."""

    def _term(self, entries: FaceEntries, points: int) -> OnList:
        return OnList(entries, (len(self.volumes), points), self.intervals)

    def cells(self, values: Tensor) -> OnList:
        every = torch.arange(len(values), device=values.device)
        return self._term((every, every, values), len(values))

    def divergence(self, axis: int) -> OnList:
        f, size = self._faces, self.sizes[axis]
        every = torch.arange(len(size), device=size.device)
        rows = torch.cat([f.before, f.after])
        values = torch.cat([size * f.before_inside, -size * f.after_inside])
        return self._term((rows, every.repeat(2), values), len(size))

    def transport(self, axis: int, before: Tensor, after: Tensor) -> OnList:
        f, size = self._faces, self.sizes[axis]
        leaves, enters = size * f.before_inside, -size * f.after_inside
        rows = torch.cat([f.before, f.before, f.after, f.after])
        columns = torch.cat([f.before, f.after, f.before, f.after])
        parts = [leaves * before, leaves * after, enters * before, enters * after]
        return self._term((rows, columns, torch.cat(parts, -1)), len(self.volumes))

    @property
    def _faces(self) -> ListedFaces:
        (faces,) = self.mesh._faces
        assert isinstance(faces, ListedFaces)
        return faces


Space: TypeAlias = GridSpace | ListSpace


def space_of(mesh: Mesh, where: Tensor | None, dt: Tensor) -> Space:
    listed = isinstance(mesh._faces[0], ListedFaces)
    return (ListSpace if listed else GridSpace)(mesh, where, dt)


def carried(faces: Faces, speed: Tensor, scheme: str) -> tuple[Tensor, Tensor]:
    """velocity times u at faces, as coefficients of u before and after."""
    if scheme == "upwind":
        return speed.clamp_min(0), speed.clamp_max(0)
    return speed * faces.share, speed * (1 - faces.share)
