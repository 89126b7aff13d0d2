"""Linear constraints b = G u + noise eps: what is known about a field, and how well.

`_builders.py` makes them; a constraint learns the shape of its field only in `rows`.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from . import _checks as check
from ._blocks import root_of, take
from ._checks import ArrayLike
from ._errors import InputError
from ._fields import Field
from ._operators import ABSENT, Matrix, Operator, Rows, Stencil, Weights

Times = Sequence[int] | slice | Any  # indices, a slice, or a boolean mask over the times


class Constraint(ABC):
    """Rows of G u = value, each known up to `noise`, a standard deviation (0: exactly).

    A row reads the last `space_dims` axes of a field (..., T, *space) and stands once at every
    time and batch index before them.
    """

    label: str
    space_dims: int
    row_names: tuple[str, ...] = ()  # of the axes that number the rows of one time
    timeless: bool = False  # rows at a single time, so that value has no time axis
    value: Tensor  # broadcasts against apply(u)
    noise_variance: Tensor  # the same
    anywhere: bool = False  # made of bare numbers, so that it goes to the device of the field
    _tensors: tuple[str, ...] = ("value", "noise_variance")

    @property
    def noise(self) -> Tensor:
        """Standard deviation of each row; 0 is exact."""
        return root_of(self.noise_variance)

    @abstractmethod
    def apply(self, u: ArrayLike) -> Tensor:
        """G u in float64, (..., T) or (..., T, rows)."""

    def magnitude(self, u: Tensor) -> Tensor:
        """|G| |u|, as `apply` returns it: the largest spread of G u, for points of spread u."""
        return self.apply(u.abs())  # here for rows of one point, each with weight 1

    def squares(self, u: Tensor) -> Tensor:
        """The squares of G's entries times u: the variance of G u, for independent points."""
        return self.apply(u)  # the same

    @abstractmethod
    def _spread(self, v: Tensor, shape: Sequence[int], fill: float) -> Tensor:
        """Entries per row of `apply`, as entries per row of `_operator`, `fill` where no row is."""

    @abstractmethod
    def _operator(self, shape: Sequence[int]) -> Operator:
        """G for a field of `shape`, absent rows included as zeros."""

    def adjoint(self, v: ArrayLike, shape: Sequence[int]) -> Tensor:
        """G^T v in float64, for a field of `shape`; v as `apply` returns it."""
        self._check_space(shape)
        v = check.as_tensor("v", v).double()
        wanted = self._row_shape(torch.Size(shape))
        if v.shape[max(v.ndim - len(wanted), 0) :] != wanted:
            raise InputError(f"`v` must end in the rows, {wanted}, but has shape {tuple(v.shape)}.")
        return self._beside(v.device)._operator(shape).adjoint(self._spread(v, shape, 0.0))

    def residual(self, u: Field | ArrayLike) -> Tensor:
        """G u - b of a tensor, or of the mean of a field; 0 where the law holds."""
        u = check.as_tensor("u", u.mean if isinstance(u, Field) else u)
        self._check_space(u.shape)
        self._check_rows(u.shape)
        return self.apply(u) - self._beside(u.device).value.double()

    def rows(self, shape: Sequence[int]) -> Rows:
        """Operator, value and noise laid on a field of `shape`."""
        self._check_space(shape)
        self._check_rows(shape)
        value = self._spread(self.value.double(), shape, 0.0)
        noise = self._spread(self.noise_variance.double(), shape, ABSENT)
        names = ("time", *self.row_names)
        return Rows(self._operator(shape), value, noise, self.label, names)

    def to(self, device: torch.device | str) -> Self:
        """The same constraint on another device."""
        return self._map(lambda t: t.to(device))

    def _beside(self, device: torch.device) -> Self:
        return self.to(device) if self.anywhere else self

    def _map(self, change: Callable[[Tensor], Tensor]) -> Self:
        other = copy.copy(self)
        for name in self._tensors:
            setattr(other, name, change(getattr(self, name)))
        return other

    def _take(self, index: Tensor, shape: Sequence[int]) -> Self:
        """Entries `index` of the component axis 0 of a field of `shape`, where a tensor has it."""
        rows = len(self._row_shape(torch.Size(shape)))
        full = {"value": rows, "noise_variance": rows, "weights": len(shape)}

        def pick(name: str, t: Tensor) -> Tensor:
            if t.ndim < full.get(name, t.ndim + 1):
                return t
            of_rows = index if name == "weights" else self._index_of_rows(index, shape)
            return take(t.expand(shape[0], *t.shape[1:]), of_rows)

        other = copy.copy(self)
        for name in self._tensors:
            setattr(other, name, pick(name, getattr(self, name)))
        return other

    def _index_of_rows(self, index: Tensor, shape: Sequence[int]) -> Tensor:
        """An index (n, *batch) or (n, *batch, T), with the times that the rows have."""
        return index

    def _check_space(self, shape: Sequence[int]) -> None:
        if len(shape) < self.space_dims:
            raise InputError(
                f"`{self.label}` reads the last {self.space_dims} axes, but the field has shape "
                f"{tuple(shape)}."
            )

    def _check_rows(self, shape: Sequence[int]) -> None:
        """Value and noise have one entry per row, or broadcast."""
        wanted = self._row_shape(torch.Size(shape))
        for name, t in (("value", self.value), ("noise", self.noise_variance)):
            times = -1 - len(self.row_names)
            timed = not self.timeless and min(t.ndim, len(wanted)) >= -times
            if timed and t.shape[times] not in (1, wanted[times]):
                raise InputError(
                    f"`{name}` of `{self.label}` has {t.shape[times]} times (axis {times} of shape "
                    f"{tuple(t.shape)}), but the constraint has {wanted[times]} on a field of "
                    f"shape {tuple(shape)}. Give one value per time, or choose `times`."
                )
            check.broadcasts(name, t, wanted, f"the rows of `{self.label}`")

    @abstractmethod
    def _row_shape(self, shape: torch.Size) -> tuple[int, ...]:
        """Shape of `apply` of a field of `shape`."""

    def __repr__(self) -> str:
        return f"Constraint({self.label}, rows over the last {self.space_dims} axes)"


class AtTimes(Constraint):
    """A constraint that says the same at every time, or at the chosen `times`."""

    times: Times | None = None

    @abstractmethod
    def _everywhere(self, shape: Sequence[int]) -> Operator:
        """G at every time of a field of `shape`."""

    def apply(self, u: ArrayLike) -> Tensor:
        return self._read(u, lambda operator, u: operator.apply(u))

    def magnitude(self, u: Tensor) -> Tensor:
        return self._read(u, lambda operator, u: operator.magnitude(u))

    def squares(self, u: Tensor) -> Tensor:
        return self._read(u, lambda operator, u: operator.squares(u))

    def at_times(self, rows: Tensor, shape: Sequence[int]) -> Tensor:
        """Of rows at every time of a field of `shape`, those at the chosen times."""
        if self.times is None:
            return rows
        axis = -1 - len(self.row_names)
        return rows.index_select(axis, self._index(shape, rows.device))

    def _read(self, u: ArrayLike, by: Callable[[Operator, Tensor], Tensor]) -> Tensor:
        u = check.as_tensor("u", u).double()
        self._check_space(u.shape)
        operator = self._beside(u.device)._everywhere(u.shape)
        return self.at_times(by(operator, u), u.shape)

    def _operator(self, shape: Sequence[int]) -> Operator:
        operator = self._everywhere(shape)
        if self.times is not None:
            ones = torch.ones(
                self._index(shape).shape, dtype=torch.float64, device=self.value.device
            )
            ones = ones.reshape(-1, *[1] * len(self.row_names))
            operator.present = self._spread(ones, shape, 0.0)
        return operator

    def _spread(self, v: Tensor, shape: Sequence[int], fill: float) -> Tensor:
        if self.times is None:
            return v
        index = self._index(shape, v.device)
        axis = -1 - len(self.row_names)
        v = v.expand(torch.broadcast_shapes(v.shape, (len(index), *[1] * len(self.row_names))))
        size = list(v.shape)
        size[axis] = shape[-1 - self.space_dims]
        return v.new_full(size, fill).index_copy(axis, index, v)

    def _index_of_rows(self, index: Tensor, shape: Sequence[int]) -> Tensor:
        if self.times is None or index.ndim < len(shape) - self.space_dims:
            return index
        return index.index_select(-1, self._index(shape, index.device))

    def _index(self, shape: Sequence[int], device: torch.device | None = None) -> Tensor:
        if len(shape) <= self.space_dims:
            raise InputError(f"`times` of `{self.label}` needs a time axis; the field has none.")
        count = shape[-1 - self.space_dims]
        try:
            index = torch.from_numpy(np.arange(count)[_numpy_index(self.times)].copy())
        except (IndexError, TypeError, ValueError) as error:
            raise InputError(
                f"`times` of `{self.label}` does not fit {count} times: {error}"
            ) from None
        if index.ndim != 1 or len(index.unique()) != len(index):
            raise InputError(
                f"`times` of `{self.label}` must be indices, a slice or a mask that name each time "
                "at most once."
            )
        return index.to(device) if device is not None else index

    def _row_shape(self, shape: torch.Size) -> tuple[int, ...]:
        lead = list(shape[: len(shape) - self.space_dims])
        if self.times is not None:
            lead[-1] = len(self._index(shape))
        return (*lead, *self._rows_per_time(shape))

    def _rows_per_time(self, shape: torch.Size) -> tuple[int, ...]:
        return ()


def _numpy_index(times: Times) -> Any:
    if isinstance(times, Tensor):
        return times.cpu().numpy()
    if isinstance(times, slice):
        return times
    return np.asarray(times, dtype=None if len(times) else int)


class Weighted(AtTimes):
    """One row per time: sum_j weights_j u_j = value."""

    quadrature: tuple[Tensor, str] | None = None  # x and rule of an integral over all of one axis
    _tensors = ("value", "noise_variance", "weights")

    def __init__(
        self,
        label: str,
        weights: Tensor,
        space_dims: int,
        value: Tensor,
        noise: Tensor,
        times: Times,
    ) -> None:
        self.label, self.weights, self.space_dims = label, weights, space_dims
        self.value, self.noise_variance, self.times = value, noise**2, times

    def _everywhere(self, shape: Sequence[int]) -> Operator:
        return Weights(self.weights.double(), self.space_dims)

    def _check_space(self, shape: Sequence[int]) -> None:
        super()._check_space(shape)
        space, own = tuple(shape[-self.space_dims :]), self.weights.shape[-self.space_dims :]
        if space != own:
            raise InputError(
                f"`{self.label}` was built for {tuple(own)} points on the last {self.space_dims} "
                f"axes, but the field has {space} there (shape {tuple(shape)}). With rule='cell' "
                "the coordinates are edges, one more than the cells."
            )
        check.broadcasts("weights", self.weights, shape, "the field")


class Periodic(AtTimes):
    """First and last point are the same: u_1 - u_M = 0 at each time."""

    label, space_dims = "periodic", 1

    def __init__(self, value: Tensor, noise: Tensor, anywhere: bool) -> None:
        self.value, self.noise_variance, self.anywhere = value, noise**2, anywhere

    def _everywhere(self, shape: Sequence[int]) -> Operator:
        weights = torch.zeros(shape[-1], dtype=torch.float64, device=self.value.device)
        ends = torch.tensor([0, shape[-1] - 1], device=weights.device)
        signs = torch.tensor([1.0, -1.0], dtype=torch.float64, device=weights.device)
        return Weights(weights.index_add(0, ends, signs), 1)


class Smoothness(AtTimes):
    """Second differences are zero up to noise: the paper's artificial diffusion."""

    label, space_dims, row_names = "smoothness", 1, ("row",)
    _tensors = ("value", "noise_variance", "a", "c")

    def __init__(self, a: Tensor, c: Tensor, noise_variance: Tensor) -> None:
        self.a, self.c, self.noise_variance = a, c, noise_variance
        self.value = noise_variance.new_zeros(())

    def _everywhere(self, shape: Sequence[int]) -> Operator:
        return Stencil(self.a.double(), self.c.double())

    def _check_space(self, shape: Sequence[int]) -> None:
        super()._check_space(shape)
        if shape[-1] != len(self.a) + 2:
            raise InputError(
                f"`smoothness` was built for {len(self.a) + 2} points, but the last axis of the "
                f"field (shape {tuple(shape)}) has {shape[-1]}."
            )

    def _rows_per_time(self, shape: torch.Size) -> tuple[int, ...]:
        return (len(self.a),)


class Linear(AtTimes):
    """Any rows: matrix u = value, over the last axes flattened."""

    label, row_names = "linear", ("row",)
    _tensors = ("value", "noise_variance", "matrix")

    def __init__(
        self, matrix: Tensor, space: tuple[int, ...], value: Tensor, noise: Tensor, times: Times
    ) -> None:
        self.matrix, self.space, self.space_dims = matrix, space, len(space)
        self.value, self.noise_variance, self.times = value, noise**2, times

    def _everywhere(self, shape: Sequence[int]) -> Operator:
        return Matrix(self.matrix.double(), self.space)

    def _check_space(self, shape: Sequence[int]) -> None:
        super()._check_space(shape)
        if tuple(shape[-self.space_dims :]) != self.space:
            raise InputError(
                f"`matrix` of `linear` reads axes of sizes {self.space}, but the last axes of the "
                f"field (shape {tuple(shape)}) are {tuple(shape[-self.space_dims :])}."
            )

    def _rows_per_time(self, shape: torch.Size) -> tuple[int, ...]:
        return (self.matrix.shape[0],)


class Boundary(Constraint):
    """The values at the ends of the last axis are known."""

    label, space_dims, row_names = "boundary", 1, ("point",)

    def __init__(self, ends: list[int], value: Tensor, noise: Tensor, anywhere: bool) -> None:
        self.ends, self.anywhere = ends, anywhere  # ends: 0 for left, -1 for right
        self.value, self.noise_variance = value, noise**2  # (..., T, len(ends))

    def apply(self, u: ArrayLike) -> Tensor:
        u = check.as_tensor("u", u).double()
        self._check_space(u.shape)
        return u[..., self.ends]

    def _operator(self, shape: Sequence[int]) -> Operator:
        ones = torch.ones(len(self.ends), dtype=torch.float64, device=self.value.device)
        return Weights(self._spread(ones, shape, 0.0), 0)

    def _spread(self, v: Tensor, shape: Sequence[int], fill: float) -> Tensor:
        v = v.expand(*v.shape[:-1], len(self.ends))
        index = torch.tensor([end % shape[-1] for end in self.ends], device=v.device)
        return v.new_full((*v.shape[:-1], shape[-1]), fill).index_copy(-1, index, v)

    def _check_space(self, shape: Sequence[int]) -> None:
        super()._check_space(shape)
        if shape[-1] < len(self.ends):
            raise InputError("`boundary` with `left` and `right` needs two points on its axis.")

    def _row_shape(self, shape: torch.Size) -> tuple[int, ...]:
        return (*shape[:-1], len(self.ends))


class Initial(Constraint):
    """The whole field at the first time is known."""

    label, timeless = "initial", True

    def __init__(self, values: Tensor, noise: Tensor, space_dims: int) -> None:
        self.value, self.noise_variance, self.space_dims = values, noise**2, space_dims
        self.row_names = ("point",) * space_dims

    def apply(self, u: ArrayLike) -> Tensor:
        u = check.as_tensor("u", u).double()
        self._check_space(u.shape)
        return u.select(-1 - self.space_dims, 0)

    def _operator(self, shape: Sequence[int]) -> Operator:
        one = torch.ones((), dtype=torch.float64, device=self.value.device)
        return Weights(self._spread(one, shape, 0.0), 0)

    def _spread(self, v: Tensor, shape: Sequence[int], fill: float) -> Tensor:
        space = shape[-self.space_dims :]
        v = v.expand(torch.broadcast_shapes(v.shape, space)).unsqueeze(-1 - self.space_dims)
        rest = v.new_full((), fill).expand(
            *v.shape[: -1 - self.space_dims], shape[-1 - self.space_dims] - 1, *space
        )
        return torch.cat([v, rest], dim=-1 - self.space_dims)

    def _check_space(self, shape: Sequence[int]) -> None:
        super()._check_space(shape)
        if len(shape) <= self.space_dims:
            raise InputError("`initial` needs a field with a time axis, (..., T, *space).")

    def _index_of_rows(self, index: Tensor, shape: Sequence[int]) -> Tensor:
        return index if index.ndim < len(shape) - self.space_dims else index[..., 0]

    def _row_shape(self, shape: torch.Size) -> tuple[int, ...]:
        return (*shape[: -1 - self.space_dims], *shape[-self.space_dims :])


def check_law(law: Any) -> None:
    if not isinstance(law, Constraint):
        raise InputError(
            f"`law` must be a constraint such as `integral(x, total)`; got {type(law).__name__}."
        )
