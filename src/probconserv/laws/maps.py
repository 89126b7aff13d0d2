"""The maps G of laws: from a field to rows and back, without a big matrix.

A row reads the last `dims` axes of a field (*places, *space) and stands once at every place:
`apply` gives (*places,) for `Sum` and (*places, rows) for the others. Everything is float64.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..support.checks import broadcast_shapes, fits
from ..support.errors import InputError
from ..support.rowwise import sums_by_label
from ..support.slices import by_slices, is_large, may_overwrite
from ..support.tree import Node

Nonzeros: TypeAlias = tuple[Tensor, Tensor, Tensor]  # rows, points, values


class Map(Node):
    """A linear map from one field to rows, once `on` has fitted it to the shape of the field."""

    dims: int  # last axes of the field that a row reads
    row_names: tuple[str, ...] = ()  # of the axes that number the rows of one place
    rows_of_place: tuple[int, ...] = ()  # the sizes of these axes
    made_of: tuple[str, ...] = ()  # the names of its tensors
    is_local: bool = False  # whether a row reads few points, so that rows may be many
    is_disjoint: bool = False  # whether its rows share no point
    is_points: bool = False  # whether a row is the value of a point
    is_difference: bool = False  # whether S of independent points has five diagonals
    is_sum_along: bool = False  # whether a row is one sum along the last axis
    is_shared_sum: bool = False  # whether a row is one sum, with the same weights at every place
    reads_time: bool = False  # whether time is the first of the axes that a row reads
    is_total: bool = True  # whether rows are sums that say how the errors of points go together
    is_spread: bool = False  # whether rows are added up over several processes

    def apply(self, u: Tensor) -> Tensor:  # (*more, *places, *space) -> (*more, *places, *rows)
        return self.on(u.shape).apply(u)

    def adjoint(self, v: Tensor) -> Tensor:  # (*more, *places, *rows) -> (*more, *places, *space)
        raise NotImplementedError

    def entrywise(self, power: int) -> "Map":
        """The map with entries |g| or g^2: the size of a row's terms, or their variance."""
        raise NotImplementedError

    def nonzeros(self, shape: Sequence[int]) -> Nonzeros | None:
        """G at one place, once fitted: row and point of each entry (n,), values (*some places, n).

        Rows and points are numbered in the order of memory. None for a matrix that is full.
        """
        return None

    @abstractmethod
    def on(self, shape: Sequence[int]) -> "Map":
        """The same map for fields of one shape, its tensors with as many axes; or an error."""

    def largest(self, x: float) -> float:
        """The largest of a number, over the processes that a row is added up over."""
        return x

    @property
    def tensors(self) -> list[Tensor]:
        """What it is made of."""
        return [getattr(self, name) for name in self.made_of]

    def row_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of apply(u) for a field of `shape`."""
        return (*shape[: len(shape) - self.dims], *self.rows_of_place)

    def _check(self, shape: Sequence[int], sizes: Sequence[int], lead: Sequence[int] = ()) -> None:
        """sizes: of the axes that a row reads. lead: of its tensors' axes before those."""
        places = shape[: len(shape) - self.dims]
        if len(shape) < self.dims or tuple(shape[len(places) :]) != tuple(sizes):
            raise InputError(
                f"it was built for fields that end in {tuple(sizes)}, but this one has shape "
                f"{tuple(shape)}. Time comes before space, (..., time, space). With rule='cell' "
                "the coordinates are edges, one more than the cells."
            )
        if lead and not fits(lead, places):
            raise InputError(
                f"it is made of tensors with the axes {tuple(lead)} before those that it reads, "
                f"which do not fit the field of shape {tuple(shape)}."
            )


class Disjoint(Map):
    """A map whose rows share no point: each point has a weight, in one row."""

    is_disjoint = True
    weights: Tensor  # broadcasts to the field

    @abstractmethod
    def at_points(self, v: Tensor) -> Tensor:
        """Numbers for each row, at the points that it reads."""

    def adjoint(self, v: Tensor) -> Tensor:
        return self.at_points(v) * self.weights


class Sum(Disjoint):
    """One row per place: sum_j weights_j u_j, with weights (*some of places, *space)."""

    made_of = ("weights",)

    def __init__(self, weights: Tensor, dims: int) -> None:
        self.weights, self.dims = weights, dims
        self.shared = weights.ndim == dims
        self.is_local = dims == 0  # a row reads one point of each field
        self.is_sum_along, self.is_shared_sum = dims == 1, self.shared and dims > 0
        self.loose = ("weights",) if self.shared else ()

    def apply(self, u: Tensor) -> Tensor:
        if self.dims == 0:
            return u * self.weights
        if self.shared and not is_large(u, self.weights):
            if self.dims == 1:
                return u @ self.weights
            return u.flatten(-self.dims) @ self.weights.flatten()
        return by_slices(self._weighted_sum, u, self.weights, whole=self.dims)

    def _weighted_sum(self, u: Tensor, weights: Tensor, out: Tensor | None) -> Tensor:
        return torch.sum((u * weights).flatten(-self.dims), -1, out=out)

    def at_points(self, v: Tensor) -> Tensor:
        return v.unsqueeze(-1) if self.dims == 1 else v[(..., *[None] * self.dims)]

    def nonzeros(self, shape: Sequence[int]) -> Nonzeros:
        points = _numbers(math.prod(shape[len(shape) - self.dims :]), self.weights)
        flat = self.weights.flatten(-self.dims) if self.dims else self.weights[..., None]
        return torch.zeros_like(points), points, flat

    def entrywise(self, power: int) -> "Sum":
        return Sum(powered(self.weights, power), self.dims)

    def on(self, shape: Sequence[int]) -> "Sum":
        own = self.weights.shape
        self._check(shape, own[len(own) - self.dims :], own[: len(own) - self.dims])
        return self if self.shared else Sum(widened(self.weights, len(shape)), self.dims)


class Known(Sum):
    """A row for each point: the point where `weights` is 1, nothing where it is 0."""

    is_points, is_total = True, False

    def __init__(self, weights: Tensor) -> None:
        super().__init__(weights, 0)

    def put(self, u: Tensor, v: Tensor) -> Tensor:
        """`u` with the points `v` where they are read."""
        return torch.where(self.weights > 0, v, u)


class Join(Map):
    """One row per place: u at the first point of the last axis less u at the last; `on` a `Sum`."""

    dims = 1
    made_of = loose = ("one",)

    def __init__(self) -> None:
        self.one = torch.ones(1, dtype=torch.float64)  # where it is, the weights will be

    def on(self, shape: Sequence[int]) -> Sum:
        if not shape or not shape[-1]:
            raise InputError("it reads the last axis of a field, and this one has no points there.")
        one, inner = self.one, self.one.new_zeros(max(shape[-1] - 2, 0))
        return Sum(torch.cat([one, inner, -one]) if shape[-1] > 1 else 0 * one, 1)


class Regions(Disjoint):
    """A row for each region: the sum of weights times u over the points with its label."""

    row_names, made_of = ("region",), ("weights", "labels")

    def __init__(self, weights: Tensor, labels: Tensor, count: int) -> None:
        """weights: (*some of places, *space). labels: (*space), from 0 to `count` - 1."""
        self.weights, self.labels = weights, labels
        self.dims, self.rows_of_place = labels.ndim, (count,)
        self.loose = self.made_of if weights.ndim == labels.ndim else ("labels",)

    def apply(self, u: Tensor) -> Tensor:
        each = (u * self.weights).flatten(-self.dims)
        found: Tensor = sums_by_label(each, self.labels.flatten(), *self.rows_of_place)
        return found

    def at_points(self, v: Tensor) -> Tensor:
        return v.index_select(-1, self.labels.flatten()).unflatten(-1, self.labels.shape)

    def nonzeros(self, shape: Sequence[int]) -> Nonzeros:
        rows = self.labels.flatten()
        return rows, _numbers(len(rows), rows), self.weights.flatten(-self.dims)

    def entrywise(self, power: int) -> "Regions":
        return Regions(powered(self.weights, power), self.labels, *self.rows_of_place)

    def on(self, shape: Sequence[int]) -> "Regions":
        lead = self.weights.shape[: self.weights.ndim - self.dims]
        self._check(shape, self.labels.shape, lead)
        weights = widened(self.weights, len(shape)) if lead else self.weights
        return Regions(weights, self.labels, *self.rows_of_place)


class Select(Map):
    """A row for each of some entries of one axis, or for one entry, without the axis."""

    is_points, is_total = True, False

    def __init__(self, axis: int, entries: tuple[int, ...] | int, size: int = 0) -> None:
        """axis: from the end. size: of the axis, known after `on`."""
        self.axis, self.entries, self.size, self.dims = axis, entries, size, -axis
        self.reads_time = isinstance(entries, int)
        self.row_names = ("point",) * (self.dims - self.reads_time)

    def apply(self, u: Tensor) -> Tensor:
        if isinstance(self.entries, int):
            return u.select(self.axis, self.entries)
        return u.index_select(self.axis, self._index(u))

    def adjoint(self, v: Tensor) -> Tensor:
        return self.put(v.new_zeros(()), v)

    def put(self, u: Tensor, v: Tensor) -> Tensor:
        """`u` with the entries `v`."""
        v = v.unsqueeze(self.axis) if isinstance(self.entries, int) else v
        shape = list(v.shape)
        shape[self.axis] = self.size
        u = u.expand(broadcast_shapes(u.shape, shape))
        u = u.contiguous() if 0 in u.stride() else u  # compiled code would write to all at once
        return u.index_copy(self.axis, self._index(v), v)

    def _index(self, like: Tensor) -> Tensor:
        entries = (self.entries,) if isinstance(self.entries, int) else self.entries
        return torch.tensor([i % self.size for i in entries], device=like.device)

    def nonzeros(self, shape: Sequence[int]) -> Nonzeros:
        read = shape[len(shape) - self.dims :]
        points = torch.arange(math.prod(read)).reshape(read)
        points = points.index_select(0, self._index(points)).flatten()
        return torch.arange(len(points)), points, torch.ones(len(points), dtype=torch.float64)

    def entrywise(self, power: int) -> "Select":
        return self

    def on(self, shape: Sequence[int]) -> "Select":
        count = 1 if isinstance(self.entries, int) else len(self.entries)
        if len(shape) < self.dims or shape[self.axis] < count:
            raise InputError(
                f"it reads the last {self.dims} axes of a field, with {count} points or more on "
                f"the first of these; the shape is {tuple(shape)}."
            )
        return Select(self.axis, self.entries, shape[self.axis])

    def row_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        before, after = shape[: len(shape) - self.dims], shape[len(shape) - self.dims + 1 :]
        count = () if isinstance(self.entries, int) else (len(self.entries),)
        return (*before, *count, *after)


class Matrix(Map):
    """R rows per place: dense (*some of places, R, E) or sparse (R, E), with E = prod(space)."""

    row_names, made_of = ("row",), ("matrix",)

    def __init__(self, matrix: Tensor, sizes: tuple[int, ...]) -> None:
        self.sizes, self.dims = sizes, len(sizes)
        self.loose = ("matrix",) if matrix.ndim == 2 else ()
        self.is_local, self.reads_time = matrix.layout != torch.strided, self.dims > 1
        self.matrix, self.rows_of_place = matrix, (matrix.shape[-2],)

    def apply(self, u: Tensor) -> Tensor:
        return _matvec(self.matrix, u.flatten(-self.dims))

    def adjoint(self, v: Tensor) -> Tensor:
        return _matvec(self.matrix, v, back=True).unflatten(-1, self.sizes)

    def nonzeros(self, shape: Sequence[int]) -> Nonzeros | None:
        if self.matrix.layout == torch.strided:
            return None
        rows, points = self.matrix.indices().unbind()
        return rows, points, self.matrix.values()

    def entrywise(self, power: int) -> "Matrix":
        return Matrix(powered(self.matrix, power), self.sizes)

    def on(self, shape: Sequence[int]) -> "Matrix":
        lead = self.matrix.shape[:-2]
        self._check(shape, self.sizes, lead)
        wide = len(shape) - self.dims + 2
        return Matrix(widened(self.matrix, wide), self.sizes) if lead else self


def _matvec(matrix: Tensor, v: Tensor, back: bool = False) -> Tensor:
    """(R, E) times (..., E) to (..., R); its transpose times (..., R) if `back`."""
    if matrix.layout == torch.strided:
        matrix = matrix if back else matrix.mT
        more = v.ndim + 1 - matrix.ndim  # axes that the matrix does not have
        if matrix.ndim == 2 or more != 1:
            return v @ matrix if matrix.ndim == 2 else (v[..., None, :] @ matrix)[..., 0, :]
        return (v.movedim(0, -2) @ matrix).movedim(-2, 0)  # not a copy of it for each of a stack
    rows, columns = matrix.indices().unbind()
    rows, columns = (columns, rows) if back else (rows, columns)
    found = v.new_zeros(*v.shape[:-1], matrix.shape[int(back)])
    return found.index_add(-1, rows, matrix.values() * v.index_select(-1, columns))


class SecondDifferences(Map):
    """Row j is a_j u_j - (a_j + c_j) u_{j+1} + c_j u_{j+2}, along the last axis."""

    dims, row_names = 1, ("row",)
    made_of = loose = ("a", "b", "c")
    is_difference, is_total = True, False

    def __init__(self, a: Tensor, b: Tensor, c: Tensor) -> None:  # (M - 2,) each
        self.a, self.b, self.c, self.rows_of_place = a, b, c, (len(a),)

    def apply(self, u: Tensor) -> Tensor:
        first = self.a * u[..., :-2]
        out = first if may_overwrite(first, self.b, self.c) else None
        both = torch.addcmul(first, self.b, u[..., 1:-1], out=out)
        return torch.addcmul(both, self.c, u[..., 2:], out=out)

    def adjoint(self, v: Tensor) -> Tensor:
        return pad(self.a * v, (0, 2)) + pad(self.b * v, (1, 1)) + pad(self.c * v, (2, 0))

    def nonzeros(self, shape: Sequence[int]) -> Nonzeros:
        rows = _numbers(len(self.a), self.a)
        points = torch.cat([rows, rows + 1, rows + 2])
        return rows.repeat(3), points, torch.cat([self.a, self.b, self.c])

    def entrywise(self, power: int) -> "SecondDifferences":
        return SecondDifferences(*(powered(t, power) for t in self.tensors))

    def on(self, shape: Sequence[int]) -> "SecondDifferences":
        self._check(shape, (len(self.a) + 2,))
        return self


def _numbers(count: int, like: Tensor) -> Tensor:
    return torch.arange(count, device=like.device)


def powered(t: Tensor, power: int) -> Tensor:
    return t.square() if power == 2 else t.abs()


def widened(t: Tensor, ndim: int) -> Tensor:
    """With axes of size 1 in front, so that it has `ndim`."""
    for _ in range(ndim - t.ndim):
        t = t.unsqueeze(0)  # faster than an index
    return t
