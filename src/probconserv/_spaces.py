"""What cells and faces add to the budget of a cell, on grids and on lists of faces."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from ._errors import InputError
from ._maps import Map, powered
from ._stencils import Grid, Listed, Offset, Stencil, check_points
from ._tree import Node
from .meshes import Mesh
from .meshes._faces import AxisFaces, Faces, ListedFaces


class Term(Node, ABC):
    """A linear map from values in space, of cells or faces, to cells."""

    points: tuple[int, ...]

    @abstractmethod
    def over(self, weights: Mapping[int, Tensor], names: tuple[str, ...]) -> "Stencil | Listed":
        """The map to intervals: values `o` times after the start count with weights[o], (N,)."""


class InTime(Map):
    """What a field adds in each interval: given for intervals, or at times and then averaged."""

    loose = ("term", "dt")
    is_local = True

    def __init__(self, term: Term, dt: Tensor, row_names: tuple[str, ...]) -> None:
        """dt: the lengths of the intervals."""
        self.term, self.dt, self.row_names = term, dt, row_names
        self.dims = 1 + len(term.points)

    def on(self, shape: Sequence[int]) -> "Stencil | Listed":
        count, points, d = len(self.dt), self.term.points, self.dims - 1
        given = shape[-1 - d] if len(shape) > d else 0
        if given not in (count, count + 1) or tuple(shape[len(shape) - d :]) != tuple(points):
            raise InputError(
                f"it reads a field that ends in {(count, *points)}, an average for each interval, "
                f"or in {(count + 1, *points)}, at the times; the shape is {tuple(shape)}."
            )
        half = self.dt / 2
        weights = {0: self.dt} if given == count else {0: half, 1: half}
        return self.term.over(weights, self.row_names)

    def apply(self, u: Tensor) -> Tensor:
        return self.on(u.shape).apply(u)

    def adjoint(self, v: Tensor) -> Tensor:
        raise NotImplementedError("`on` says what is given")

    def entrywise(self, power: int) -> "InTime":
        raise NotImplementedError("`on` says what is given")


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

    def entrywise(self, power: int) -> "Gain":
        return Gain(powered(self.weights, power), self.times, 1.0, 1.0)

    def on(self, shape: Sequence[int]) -> "Gain":
        check_points(shape, (self.times, *self.weights.shape))
        return self

    def row_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (*super().row_shape(shape), self.times - 1)


class OnGrid(Term):
    """Coefficients by offset, each (*cells), or (T, *cells) where they change in time."""

    def __init__(self, grid: Grid, terms: Mapping[Offset, Tensor]) -> None:
        self.rows, self.points, self.wraps = grid
        self.offsets, self.coefficients = tuple(terms), tuple(terms.values())

    def over(self, weights: Mapping[int, Tensor], names: tuple[str, ...]) -> Stencil:
        d, count = len(self.rows), len(weights[0])
        terms = {}
        for offset, c in zip(self.offsets, self.coefficients, strict=True):
            for o, w in weights.items():
                own = at_start(c, o, count) if c.ndim > d else c
                terms[o, *offset] = w.reshape(-1, *[1] * d) * own
        points = (count + max(weights), *self.points)
        return Stencil(Grid((count, *self.rows), points, (False, *self.wraps)), terms, names)


class OnList(Term):
    """Entries (row, column, value); values are (E,), or (T, E) where they change in time."""

    def __init__(self, rows: Tensor, columns: Tensor, values: Tensor, cells: int, points: int):
        self.rows, self.columns, self.values = rows, columns, values
        self.cells, self.points = cells, (points,)

    def over(self, weights: Mapping[int, Tensor], names: tuple[str, ...]) -> Listed:
        v, count = self.values, len(weights[0])
        values = tuple(
            w[:, None] * (at_start(v, o, count) if v.ndim > 1 else v) for o, w in weights.items()
        )
        sizes = self.cells, self.points[0]
        return Listed(self.rows, self.columns, values, sizes, names).merged()


def at_start(x: Tensor, o: int, count: int) -> Tensor:
    """Of numbers at the times, those `o` after the start of each interval."""
    return x.narrow(0, o, count) if len(x) > 1 else x


class Space(ABC):
    """The cells that count and the faces that are open."""

    def __init__(self, mesh: Mesh, where: Tensor | None) -> None:
        self.mesh, self.volumes = mesh, mesh.volumes
        self.sizes = [f.sizes.expand(f.shape) for f in mesh._faces]
        if where is not None:
            opens = mesh.open_faces(where)
            self.sizes = [s * is_open for s, is_open in zip(self.sizes, opens, strict=True)]
            self.volumes = mesh.volumes * where.to(mesh.volumes.device)

    @abstractmethod
    def cells(self, values: Tensor) -> Term:
        """values times u in each cell."""

    @abstractmethod
    def divergence(self, axis: int) -> Term:
        """Of fluxes across one axis."""

    @abstractmethod
    def transport(self, axis: int, before: Tensor, after: Tensor) -> Term:
        """The divergence of before * u_before + after * u_after across one axis.

        At the boundary both read the one cell that is there.
        """


class GridSpace(Space):
    """Of a mesh with axes."""

    def _grid(self, points: tuple[int, ...]) -> Grid:
        wraps = tuple(isinstance(f, AxisFaces) and f.periodic for f in self.mesh._faces)
        return Grid(self.mesh.shape, points, wraps)

    def cells(self, values: Tensor) -> OnGrid:
        return OnGrid(self._grid(self.mesh.shape), {self._step(0, 0): values})

    def divergence(self, axis: int) -> OnGrid:
        faces = self._faces(axis)
        low, high = _ends(faces, self._signed(axis))
        terms = {self._step(axis, 0): -low, self._step(axis, 1): high}
        return OnGrid(self._grid(faces.shape), terms)

    def transport(self, axis: int, before: Tensor, after: Tensor) -> OnGrid:
        faces, size = self._faces(axis), self._signed(axis)
        low, high = (before, after) if faces.forward else (after, before)
        first, last = _outer(faces)
        low, high = (
            torch.where(first, 0.0, torch.where(last, low + high, low)),
            torch.where(last, 0.0, torch.where(first, low + high, high)),
        )
        (low_0, low_1), (high_0, high_1) = (_ends(faces, size * x) for x in (low, high))
        terms = {-1: -low_0, 0: low_1 - high_0, 1: high_1}
        return OnGrid(
            self._grid(self.mesh.shape), {self._step(axis, by): c for by, c in terms.items()}
        )

    def _faces(self, axis: int) -> AxisFaces:
        faces = self.mesh._faces[axis]
        assert isinstance(faces, AxisFaces)
        return faces

    def _signed(self, axis: int) -> Tensor:
        return self.sizes[axis] if self._faces(axis).forward else -self.sizes[axis]

    def _step(self, axis: int, by: int) -> Offset:
        return tuple(by if i == axis else 0 for i in range(len(self.mesh.shape)))


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


class ListSpace(Space):
    """Of an unstructured mesh."""

    def cells(self, values: Tensor) -> OnList:
        every = torch.arange(len(values), device=values.device)
        return OnList(every, every, values, len(values), len(values))

    def divergence(self, axis: int) -> OnList:
        f, size = self._faces, self.sizes[axis]
        every = torch.arange(len(size), device=size.device)
        rows = torch.cat([f.before, f.after])
        values = torch.cat([size * f.before_inside, -size * f.after_inside])
        return OnList(rows, every.repeat(2), values, len(self.volumes), len(size))

    def transport(self, axis: int, before: Tensor, after: Tensor) -> OnList:
        f, size = self._faces, self.sizes[axis]
        leaves, enters = size * f.before_inside, -size * f.after_inside
        rows = torch.cat([f.before, f.before, f.after, f.after])
        columns = torch.cat([f.before, f.after, f.before, f.after])
        parts = [leaves * before, leaves * after, enters * before, enters * after]
        return OnList(rows, columns, torch.cat(parts, -1), len(self.volumes), len(self.volumes))

    @property
    def _faces(self) -> ListedFaces:
        (faces,) = self.mesh._faces
        assert isinstance(faces, ListedFaces)
        return faces


def space_of(mesh: Mesh, where: Tensor | None) -> Space:
    listed = isinstance(mesh._faces[0], ListedFaces)
    return (ListSpace if listed else GridSpace)(mesh, where)


def carried(faces: Faces, speed: Tensor, scheme: str) -> tuple[Tensor, Tensor]:
    """velocity times u at faces, as coefficients of u before and after."""
    if scheme == "upwind":
        return speed.clamp_min(0), speed.clamp_max(0)
    return speed * faces.share, speed * (1 - faces.share)
