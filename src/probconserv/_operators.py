"""The operator G of a constraint, laid on a field of known shape: apply, adjoint, no big matrix.

A row reads the last `dims` axes of the field and stands once at every place of the axes before
them, so `apply` maps (..., *lead, *space) to (..., *lead) for `Weights`, the one row per place,
and to (..., *lead, R) for the others. With `dims` = 0 a row reads a single point.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ._errors import InputError


class Operator(ABC):
    dims: int  # last axes of the field that a row reads
    row_axes: int  # axes of apply(u) that number rows: 0 or 1
    row_count: int  # rows per place
    present: Tensor | None = None  # 0 where a time has no rows, broadcasts against apply(u)

    @abstractmethod
    def _apply(self, u: Tensor) -> Tensor: ...

    @abstractmethod
    def _adjoint(self, v: Tensor) -> Tensor: ...

    @abstractmethod
    def magnitude(self, u: Tensor) -> Tensor:
        """|G| |u|: the size of the terms that each row adds up."""

    @abstractmethod
    def squares(self, u: Tensor) -> Tensor:
        """The sum over j of g_j^2 u_j, for each row g of G."""

    def row_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of apply(u) for a field of `shape`."""
        places = tuple(shape[: len(shape) - self.dims])
        return (*places, self.row_count) if self.row_axes else places

    def there(self, u: Tensor) -> Tensor:
        """False for rows that are absent, like apply(u)."""
        rows = torch.ones(self.row_shape(u.shape), dtype=torch.bool, device=u.device)
        return rows if self.present is None else rows & (self.present != 0)

    def apply(self, u: Tensor) -> Tensor:
        return self._apply(u) if self.present is None else self._apply(u) * self.present

    def adjoint(self, v: Tensor) -> Tensor:
        return self._adjoint(v if self.present is None else v * self.present)


class Weights(Operator):
    """One row per place, sum_j weights_j u_j; weights (*some of lead, *space)."""

    row_axes, row_count = 0, 1

    def __init__(self, weights: Tensor, dims: int) -> None:
        self.weights, self.dims = weights, dims

    def _apply(self, u: Tensor) -> Tensor:
        if self.dims == 0:
            return u * self.weights
        if self.weights.ndim == self.dims:
            return u.flatten(-self.dims) @ self.weights.flatten()
        return (u * self.weights).flatten(-self.dims).sum(-1)

    def _adjoint(self, v: Tensor) -> Tensor:
        return v[(..., *[None] * self.dims)] * self.weights

    def there(self, u: Tensor) -> Tensor:
        rows = super().there(u)
        return rows & (self.weights != 0) if self.dims == 0 else rows

    def row(self) -> Tensor:
        """The rows themselves, broadcast against the field."""
        if self.present is None:
            return self.weights
        return self._adjoint(self.present)

    def magnitude(self, u: Tensor) -> Tensor:
        return Weights(self.weights.abs(), self.dims)._apply(u.abs())

    def squares(self, u: Tensor) -> Tensor:
        return Weights(self.weights**2, self.dims)._apply(u)


class Matrix(Operator):
    """R rows per place: dense (*some of lead, R, E) or sparse (R, E), with E = prod(space)."""

    row_axes = 1

    def __init__(self, matrix: Tensor, space: tuple[int, ...]) -> None:
        self.matrix, self.space, self.dims = matrix, space, len(space)
        self.row_count = matrix.shape[-2]

    def _apply(self, u: Tensor) -> Tensor:
        return _matvec(self.matrix, u.flatten(-self.dims))

    def _adjoint(self, v: Tensor) -> Tensor:
        return _matvec(self.matrix.mT, v).unflatten(-1, self.space)

    def magnitude(self, u: Tensor) -> Tensor:
        return _matvec(self.matrix.abs(), u.abs().flatten(-self.dims))

    def squares(self, u: Tensor) -> Tensor:
        return _matvec(self.matrix.square(), u.flatten(-self.dims))


def _matvec(matrix: Tensor, v: Tensor) -> Tensor:  # (R, E), (..., E) -> (..., R)
    if matrix.layout != torch.strided:
        flat = matrix @ v.reshape(-1, v.shape[-1]).T
        return flat.T.reshape(*v.shape[:-1], matrix.shape[0])
    return v @ matrix.T if matrix.ndim == 2 else (matrix @ v[..., None])[..., 0]


class Stencil(Operator):
    """Second differences: row j is a_j u_j - (a_j + c_j) u_{j+1} + c_j u_{j+2}."""

    row_axes = 1
    dims = 1

    def __init__(self, a: Tensor, c: Tensor) -> None:  # (M - 2,)
        self.a, self.c, self.row_count = a, c, len(a)

    def _apply(self, u: Tensor) -> Tensor:
        slope = u.diff(dim=-1)
        return self.c * slope[..., 1:] - self.a * slope[..., :-1]

    def _adjoint(self, v: Tensor) -> Tensor:
        pad = torch.nn.functional.pad
        left, right = self.a * v, self.c * v
        return pad(left, (0, 2)) - pad(left + right, (1, 1)) + pad(right, (2, 0))

    def magnitude(self, u: Tensor) -> Tensor:
        u = u.abs()
        return self.a * u[..., :-2] + (self.a + self.c) * u[..., 1:-1] + self.c * u[..., 2:]

    def squares(self, u: Tensor) -> Tensor:
        a, c = self.a, self.c
        return a**2 * u[..., :-2] + (a + c) ** 2 * u[..., 1:-1] + c**2 * u[..., 2:]


ABSENT = 1 / (2 * math.pi)  # noise variance of a row that is not there: N(0; 0, ABSENT) is 1


@dataclass(frozen=True)
class Rows:
    """G, b and the noise variance of one constraint on one field, in float64."""

    operator: Operator
    value: Tensor  # broadcasts against operator.apply(u)
    noise_variance: Tensor  # the same; ABSENT where G is 0 because no row is there
    label: str
    axis_names: tuple[str, ...]  # of the last axes of apply(u)
    numbers: Tensor | None = None  # of the rows as the user counts them, like apply(u)

    def residual(self, u: Tensor) -> Tensor:
        return self.operator.apply(u) - self.value

    def name(self, index: tuple[int, ...]) -> str:
        """A row in words, `index` into apply(u)."""
        if self.numbers is not None:
            return f"`{self.label}` at row {int(self.numbers[index[-self.numbers.ndim :]])}"
        named = min(len(self.axis_names), len(index))
        words = [f"batch {i}" for i in index[: len(index) - named]]
        pairs = zip(self.axis_names[-named:], index[len(index) - named :], strict=True)
        words += [f"{axis} {i}" for axis, i in pairs] if named else []
        return f"`{self.label}`" + (f" at {', '.join(words)}" if words else "")


def separate(rows: Rows, event_dims: int) -> Rows:
    """The same rows with only the last `event_dims` axes read by each, or an error.

    A field whose times are independent can take a constraint over all times when no row reads more
    than one of them.
    """
    operator = rows.operator
    outer = operator.dims - event_dims
    if outer <= 0:
        return rows
    if isinstance(operator, Matrix) and operator.present is None and operator.matrix.ndim == 2:
        matrix = operator.matrix
        matrix = matrix if matrix.layout == torch.strided else matrix.to_dense()
        lead, inner = operator.space[:outer], math.prod(operator.space[outer:])
        cube = matrix.reshape(matrix.shape[0], -1, inner)  # (R, Q, I)
        reads = (cube != 0).any(-1)
        if bool((reads.sum(-1) <= 1).all()):
            return _regroup(rows, cube, reads.long().argmax(-1), lead, operator.space[outer:])
    raise InputError(
        f"`{rows.label}` couples the last {operator.dims} axes, but the field takes only the last "
        f"{event_dims} as correlated: its times are independent. Build the field with "
        f"event_dims={operator.dims} (LowRank.from_samples and Dense take it)."
    )


def _regroup(
    rows: Rows, cube: Tensor, place: Tensor, lead: tuple[int, ...], space: tuple[int, ...]
) -> Rows:
    """Rows (R, Q, I), each at one place of Q, as up to K rows at every place."""
    places = cube.shape[1]
    before = (place[:, None] == place[None, :]).tril(-1).sum(-1)  # rank among rows of its place
    most = int(before.max()) + 1
    slot = place * most + before
    matrix = cube.new_zeros(places * most, cube.shape[2])
    matrix[slot] = cube[torch.arange(len(place), device=place.device), place]

    def spread(x: Tensor, fill: float) -> Tensor:
        x = x.expand(*x.shape[:-1], len(place)) if x.ndim else x.expand(len(place))
        full = x.new_full((*x.shape[:-1], places * most), fill).index_copy(-1, slot, x)
        return full.unflatten(-1, (*lead, most))

    operator = Matrix(matrix.reshape(*lead, most, -1), space)
    numbers = spread(torch.arange(len(place), device=place.device), -1)
    value, noise = spread(rows.value, 0.0), spread(rows.noise_variance, ABSENT)
    return Rows(operator, value, noise, rows.label, (), numbers)
