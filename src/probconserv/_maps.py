"""The maps G of laws: from a field to rows and back, without a big matrix.

A row reads the last `dims` axes of a field (*places, *space) and stands once at every place:
`apply` gives (*places,) for `Sum` and (*places, rows) for the others. Everything is float64.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from ._errors import InputError
from ._tree import Node


class Map(Node, ABC):
    """A linear map from one field to rows."""

    dims: int  # last axes of the field that a row reads
    row_names: tuple[str, ...] = ()  # of the axes that number the rows of one place
    disjoint: bool = False  # whether no point is read by two rows
    tensors: tuple[str, ...] = ()  # names of what it is made of

    @abstractmethod
    def apply(self, u: Tensor) -> Tensor:  # (*more, *places, *space) -> (*more, *places, *rows)
        ...

    @abstractmethod
    def adjoint(self, v: Tensor) -> Tensor:  # (*more, *places, *rows) -> (*more, *places, *space)
        ...

    @abstractmethod
    def entrywise(self, power: int) -> "Map":
        """The map with entries |g|^power: the size of a row's terms, or their variance."""

    @abstractmethod
    def space(self) -> tuple[int, ...] | None:
        """Sizes of the axes that a row reads, or None if any will do."""

    def on(self, shape: Sequence[int]) -> "Map":
        """The same map for fields of one shape, its tensors with as many axes; or an error."""
        sizes, own = self.space(), tuple(shape[len(shape) - self.dims :])
        if len(shape) < self.dims or (sizes is not None and own != sizes):
            raise InputError(
                f"it was built for {sizes or self.dims} points on the last {self.dims} axes, but "
                f"the field has shape {tuple(shape)}. With rule='cell' the coordinates are edges, "
                "one more than the cells."
            )
        return self

    def row_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of apply(u) for a field of `shape`."""
        return tuple(shape[: len(shape) - self.dims])


class Sum(Map):
    """One row per place: sum_j weights_j u_j, with weights (*some of places, *space)."""

    disjoint, tensors = True, ("weights",)

    def __init__(self, weights: Tensor, dims: int) -> None:
        self.weights, self.dims = weights, dims
        self.shared = weights.ndim == dims
        self.loose = ("weights",) if self.shared else ()

    def apply(self, u: Tensor) -> Tensor:
        if self.dims == 0:
            return u * self.weights
        if self.shared:
            return u.flatten(-self.dims) @ self.weights.reshape(-1)
        return (u * self.weights).flatten(-self.dims).sum(-1)

    def adjoint(self, v: Tensor) -> Tensor:
        return v[(..., *[None] * self.dims)] * self.weights

    def entrywise(self, power: int) -> "Sum":
        return Sum(self.weights.abs() ** power, self.dims)

    def space(self) -> tuple[int, ...]:
        return tuple(self.weights.shape[self.weights.ndim - self.dims :])

    def on(self, shape: Sequence[int]) -> "Sum":
        super().on(shape)
        if self.weights.ndim > len(shape):
            raise InputError(
                f"its weights have shape {tuple(self.weights.shape)}, more axes than the field of "
                f"shape {tuple(shape)}."
            )
        lead = self.weights.shape[: self.weights.ndim - self.dims]
        places = shape[len(shape) - self.dims - len(lead) : len(shape) - self.dims]
        if any(n not in (1, size) for n, size in zip(lead, places, strict=True)):
            raise InputError(
                f"its weights of shape {tuple(self.weights.shape)} do not fit the field of shape "
                f"{tuple(shape)}."
            )
        return self if self.shared else Sum(widened(self.weights, len(shape)), self.dims)


class Join(Map):
    """One row per place: u at the first point of the last axis less u at the last."""

    dims, disjoint = 1, True
    tensors = loose = ("one",)

    def __init__(self) -> None:
        self.one = torch.ones((), dtype=torch.float64)  # where it is, the weights will be

    def apply(self, u: Tensor) -> Tensor:
        return u[..., 0] - u[..., -1]

    def adjoint(self, v: Tensor) -> Tensor:
        raise NotImplementedError  # `on` makes it a Sum

    def entrywise(self, power: int) -> "Map":
        return self

    def space(self) -> None:
        return None

    def on(self, shape: Sequence[int]) -> Sum:
        super().on(shape)
        inner = self.one.new_zeros(max(shape[-1] - 2, 0))
        one = self.one[None]
        return Sum(torch.cat([one, inner, -one]) if shape[-1] > 1 else 0 * one, 1)


class Regions(Map):
    """A row for each region: the sum of weights times u over the points with its label."""

    row_names, disjoint = ("region",), True
    tensors = loose = ("weights", "labels")

    def __init__(self, weights: Tensor, labels: Tensor, count: int) -> None:
        self.weights, self.labels = weights, labels  # (*space); a label out of range counts nowhere
        self.dims, self.count = labels.ndim, count

    def apply(self, u: Tensor) -> Tensor:
        each = (u * self.weights).flatten(-self.dims)
        found = each.new_zeros(*each.shape[:-1], self.count)
        return found.index_add(-1, self.labels.reshape(-1), each)

    def adjoint(self, v: Tensor) -> Tensor:
        spread = v.index_select(-1, self.labels.reshape(-1))
        return spread.unflatten(-1, self.space()) * self.weights

    def entrywise(self, power: int) -> "Regions":
        return Regions(self.weights.abs() ** power, self.labels, self.count)

    def space(self) -> tuple[int, ...]:
        return tuple(self.labels.shape)

    def row_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (*super().row_shape(shape), self.count)


class Select(Map):
    """A row for each of some entries of one axis: u at the ends, or at the first time."""

    disjoint = True

    def __init__(self, axis: int, entries: tuple[int, ...]) -> None:
        self.axis, self.entries, self.dims = axis, entries, -axis  # axis counts from the end
        self.row_names = ("point",) * self.dims

    def apply(self, u: Tensor) -> Tensor:
        return u.index_select(self.axis, self.index(u))

    def adjoint(self, v: Tensor) -> Tensor:
        raise NotImplementedError  # `on` gives it the size of its axis

    def index(self, u: Tensor) -> Tensor:
        return torch.tensor([i % u.shape[self.axis] for i in self.entries], device=u.device)

    def entrywise(self, power: int) -> "Select":
        return self

    def space(self) -> None:
        return None

    def on(self, shape: Sequence[int]) -> "Select":
        if len(shape) < self.dims:
            raise InputError(
                f"it reads the last {self.dims} axes of a field, but the shape is {tuple(shape)}."
            )
        if shape[self.axis] < len(self.entries):
            raise InputError(f"it needs {len(self.entries)} points on axis {self.axis}.")
        return Selected(self.axis, self.entries, shape[self.axis])

    def row_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        rows = list(shape)
        rows[self.axis] = len(self.entries)
        return tuple(rows)


class Selected(Select):
    """`Select` on an axis of known size."""

    def __init__(self, axis: int, entries: tuple[int, ...], size: int) -> None:
        super().__init__(axis, entries)
        self.size = size

    def adjoint(self, v: Tensor) -> Tensor:
        return self.put(v.new_zeros(()), v)

    def put(self, u: Tensor, v: Tensor) -> Tensor:
        """`u` with the entries `v`."""
        shape = list(v.shape)
        shape[self.axis] = self.size
        return u.expand(torch.broadcast_shapes(u.shape, shape)).index_copy(
            self.axis, torch.tensor([i % self.size for i in self.entries], device=v.device), v
        )


class Matrix(Map):
    """R rows per place: dense (*some of places, R, E) or sparse (R, E), with E = prod(space)."""

    row_names, tensors = ("row",), ("matrix",)

    def __init__(self, matrix: Tensor, sizes: tuple[int, ...]) -> None:
        self.matrix, self.sizes, self.dims = matrix, sizes, len(sizes)
        self.loose = ("matrix",) if matrix.ndim == 2 else ()

    def apply(self, u: Tensor) -> Tensor:
        return _matvec(self.matrix, u.flatten(-self.dims))

    def adjoint(self, v: Tensor) -> Tensor:
        return _matvec(self.matrix.mT, v).unflatten(-1, self.sizes)

    def entrywise(self, power: int) -> "Matrix":
        return Matrix(self.matrix.abs() ** power, self.sizes)

    def space(self) -> tuple[int, ...]:
        return self.sizes

    def on(self, shape: Sequence[int]) -> "Matrix":
        super().on(shape)
        places, lead = shape[: len(shape) - self.dims], self.matrix.shape[:-2]
        if len(lead) > len(places) or any(
            n not in (1, size) for n, size in zip(lead[::-1], places[::-1], strict=False)
        ):
            raise InputError(
                f"its matrices (..., {', '.join(map(str, self.matrix.shape[-2:]))}) have the axes "
                f"{tuple(lead)} before, which do not fit the field of shape {tuple(shape)}."
            )
        return Matrix(widened(self.matrix, len(places) + 2), self.sizes) if lead else self

    def row_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (*super().row_shape(shape), self.matrix.shape[-2])


def _matvec(matrix: Tensor, v: Tensor) -> Tensor:  # (R, E), (..., E) -> (..., R)
    if matrix.layout != torch.strided:
        flat = matrix @ v.reshape(-1, v.shape[-1]).T
        return flat.T.reshape(*v.shape[:-1], matrix.shape[0])
    return v @ matrix.mT if matrix.ndim == 2 else (matrix @ v[..., None])[..., 0]


class SecondDifferences(Map):
    """Row j is a_j u_j - (a_j + c_j) u_{j+1} + c_j u_{j+2}, along the last axis."""

    dims, row_names = 1, ("row",)
    tensors = loose = ("a", "b", "c")

    def __init__(self, a: Tensor, b: Tensor, c: Tensor) -> None:  # (M - 2,) each
        self.a, self.b, self.c = a, b, c

    def apply(self, u: Tensor) -> Tensor:
        return self.a * u[..., :-2] + self.b * u[..., 1:-1] + self.c * u[..., 2:]

    def adjoint(self, v: Tensor) -> Tensor:
        return pad(self.a * v, (0, 2)) + pad(self.b * v, (1, 1)) + pad(self.c * v, (2, 0))

    def entrywise(self, power: int) -> "SecondDifferences":
        return SecondDifferences(*(t.abs() ** power for t in (self.a, self.b, self.c)))

    def space(self) -> tuple[int, ...]:
        return (self.a.shape[-1] + 2,)

    def row_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (*super().row_shape(shape), self.a.shape[-1])


def widened(t: Tensor, ndim: int) -> Tensor:
    """With axes of size 1 in front, so that it has `ndim`."""
    return t[(None,) * (ndim - t.ndim)]
