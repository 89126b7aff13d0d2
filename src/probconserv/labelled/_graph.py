"""G on blocks of points, for NumPy and dask arrays: sums over blocks and updates of blocks."""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import prod
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
from dask.system import CPU_COUNT
from numpy.typing import NDArray

Array = NDArray[Any]
PIECE = 4096  # points of one product: too few for BLAS to start threads of its own


def weighted_sum(u: Array, weights: Array) -> Array:  # (..., I, P) and (P) or (I, P) to (..., I)
    """The sum of u times weights over the points, in float64, in pieces that rounding likes."""
    whole = u.shape[-1] // PIECE * PIECE
    pieces = [x[..., :whole].reshape(*x.shape[:-1], -1, PIECE) for x in (u, weights)]
    found = _dot(*pieces).sum(-1)
    return found if whole == u.shape[-1] else found + _dot(u[..., whole:], weights[..., whole:])


def _dot(u: Array, weights: Array) -> Array:
    u = u.astype(float, copy=False)
    return np.matmul(u[..., None, :], weights[..., :, None])[..., 0, 0]


@dataclass(frozen=True, eq=False)
class Part:
    """The rows of one law: sums of weights times u over the points of each row."""

    weights: Array  # (P), or (I, P) if they change with the index
    labels: Array | None  # (P), the row of each point within the law; None: all are of one row
    first: int  # row of the law among the rows of all laws
    rows: int
    unit: float | None = None  # the mean weight, if one number is the std of all points

    @property
    def own(self) -> slice:
        return slice(self.first, self.first + self.rows)

    def apply(self, u: Array) -> Array:  # (..., I, P) to (..., I, rows)
        if self.labels is None:
            return weighted_sum(u, self.weights)[..., None]
        weighted = u * self.weights
        flat = weighted.reshape(-1, weighted.shape[-1])
        found = np.stack([np.bincount(self.labels, each, self.rows) for each in flat])
        return found.reshape(*weighted.shape[:-1], self.rows)

    def adjoint(self, v: Array) -> Array:  # (..., I, rows) to (..., I, P)
        return self.weights * (v if self.labels is None else v[..., self.labels])

    def entrywise(self, weights: Array) -> "Part":
        return replace(self, weights=weights)

    def times(self, other: "Part") -> "Part":
        """The points that two laws share, with a row for each pair of their rows."""
        labels: Array | None = None
        if self.labels is not None or other.labels is not None:
            mine: Any = 0 if self.labels is None else self.labels
            labels = mine * other.rows + (0 if other.labels is None else other.labels)
        return Part(self.weights * other.weights, labels, 0, self.rows * other.rows)


@dataclass(frozen=True, eq=False)
class BlockRows:
    """G on one block, (K, P): the rows of all laws."""

    parts: tuple[Part, ...]
    count: int  # K
    disjoint: bool  # whether no point is in two rows, so that G D G^T is diagonal
    variable: int = 0  # number of the variable that this is a block of

    def apply(self, u: Array) -> Array:  # (..., I, P) to (..., I, K)
        first, *others = self.parts
        if not others and first.rows == self.count:
            return first.apply(u)
        own = [part.apply(u) for part in self.parts]  # of some laws weights vary with the index
        lead = np.broadcast_shapes(*(each.shape[:-1] for each in own))
        found = np.zeros((*lead, self.count))
        for part, each in zip(self.parts, own, strict=True):
            found[..., part.own] += each
        return found

    def adjoint(self, v: Array) -> Array:  # (..., I, K) to (..., I, P)
        first, *others = (part.adjoint(v[..., part.own]) for part in self.parts)
        return sum(others, start=first)

    def gram(self, d: Array) -> Array:  # (I, P) to (I, K, K)
        """G diag(d) G^T; its diagonal (I, K), where it has no more."""
        if self.disjoint:
            return self.squared.apply(d)
        found = np.zeros((len(d), self.count, self.count))
        for one, other, both in self._pairs:
            found[:, one.own, other.own] += both.apply(d).reshape(-1, one.rows, other.rows)
        return found

    def quadratic(self, a: Array) -> Array:  # (I, K) or (I, K, K) to (I, P)
        """The diagonal of G^T a G."""
        if self.disjoint:
            return self.squared.adjoint(a)
        first, *others = (
            both.adjoint(a[:, one.own, other.own].reshape(len(a), -1))
            for one, other, both in self._pairs
        )
        return sum(others, start=first)

    @cached_property
    def _pairs(self) -> list[tuple[Part, Part, Part]]:
        return [(one, other, one.times(other)) for one in self.parts for other in self.parts]

    @cached_property
    def sizes(self) -> "BlockRows":
        """|G|."""
        if not any((part.weights < 0).any() for part in self.parts):
            return self
        parts = tuple(part.entrywise(np.abs(part.weights)) for part in self.parts)
        return replace(self, parts=parts)

    @cached_property
    def present(self) -> "BlockRows":
        """1 where G is not 0."""
        parts = tuple(part.entrywise((part.weights != 0).astype(float)) for part in self.parts)
        return replace(self, parts=parts)

    @cached_property
    def squared(self) -> "BlockRows":
        parts = tuple(part.entrywise(np.square(part.weights)) for part in self.parts)
        return replace(self, parts=parts)

    @cached_property
    def signs(self) -> "BlockRows":
        parts = tuple(part.entrywise(np.sign(part.weights)) for part in self.parts)
        return replace(self, parts=parts)

    @cached_property
    def are_plain(self) -> bool:
        """Whether all points are of one row, with weights above 0."""
        first, *others = self.parts
        return not others and first.labels is None and bool((first.weights > 0).all())

    @property
    def even(self) -> float | None:
        """The mean weight if there is one law, and one number is the std of all its points."""
        return self.parts[0].unit if self.disjoint else None

    @cached_property
    def whole(self) -> Array:  # (1, K) or (I, K)
        """The sums of ones."""
        return self.apply(np.ones((1, self.parts[0].weights.shape[-1])))

    @cached_property
    def left_out(self) -> Array | None:  # (P) or (I, P)
        """Which points no law counts; None if there are none."""
        out = [part.weights == 0 for part in self.parts]
        return reduce(np.logical_and, out) if all(x.any() for x in out) else None

    @property
    def counted(self) -> Array | float:
        """1 where some law counts a point, else 0."""
        return 1.0 if self.left_out is None else (~self.left_out).astype(float)

    @cached_property
    def relative_sizes(self) -> Array:  # (P) or (I, P)
        """|g| over the mean weight, by the first law that counts a point; inf if none does."""
        found: Any = 0.0
        for part in self.parts:
            found = np.where(found == 0, np.abs(part.weights) / (part.unit or 1.0), found)
        return np.where(found == 0, np.inf, found)

    def at(self, indices: slice) -> "BlockRows":
        """The same at some of the indices."""
        if all(part.weights.ndim == 1 for part in self.parts):
            return self
        parts = tuple(
            part if part.weights.ndim == 1 else part.entrywise(part.weights[indices])
            for part in self.parts
        )
        return replace(self, parts=parts)


Shapes = Mapping[str, tuple[int, ...]]
Pair = tuple[Any, tuple[str, ...]]  # an array and the names of its axes

SLAB = 1 << 18  # points that are worked on at a time: what stays in a core's cache
SUMS, STEPS = "sums of a block", "steps of a block"  # names of axes that no dataset has


@dataclass(frozen=True, eq=False)
class NamedPart:
    """What one law reads of one variable: a `Part` before it is cut into blocks."""

    weights: xr.Variable
    labels: xr.Variable | None
    first: int
    rows: int
    unit: float | None = None

    @property
    def arrays(self) -> tuple[Any, Any]:
        return self.weights, self.labels


@dataclass(frozen=True, eq=False)
class NamedRows:
    """G on one variable, by names of axes: indices that no law sums over, points, members."""

    parts: tuple[NamedPart, ...]
    count: int
    disjoint: bool
    index: tuple[str, ...]
    points: tuple[str, ...]
    member: str | None = None
    variable: int = 0  # its number among those of the system

    @property
    def places(self) -> tuple[str, ...]:
        return self.index + self.points

    @property
    def all(self) -> tuple[str, ...]:
        return self.places if self.member is None else (self.member, *self.places)

    def dims(self, array: xr.Variable) -> tuple[str, ...]:
        return tuple(dim for dim in self.all if dim in array.dims)

    def summed(self, function: Callable[..., Array], arrays: Any, size: int, *steps: Any) -> Any:
        """The sum over all blocks of function(block, ..., rows, *steps), (*index, size)."""
        task, dims = _Task(function, self, arrays), (*self.places, SUMS)
        return self.total(self._mapped(task, dims, arrays, steps, self._partial(size)))

    def total(self, partials: Any) -> Any:
        """The sum of what is there for each block of points."""
        return partials.sum(axis=self.of_points)

    @property
    def of_points(self) -> tuple[int, ...]:
        """The axes of `partials` that number blocks of points."""
        return tuple(range(len(self.index), len(self.places)))

    def _partial(self, size: int) -> dict[str, Any]:
        one = dict.fromkeys(self.points, lambda n: 1)
        return {"new_axes": {SUMS: size}, "adjust_chunks": one}

    def moved(self, function: Callable[..., Array], arrays: Any, dtype: Any, *steps: Any) -> Any:
        """Every block by function(block, ..., rows, *steps), in the order of `all`."""
        return self._mapped(_Task(function, self, arrays, dtype), self.all, arrays, steps, {})

    def moved_and_summed(
        self, function: Callable[..., Any], arrays: Any, dtype: Any, size: int, *steps: Any
    ) -> tuple[Any, Any]:
        """As `moved`, and partial sums (*index, *blocks of points, size); the function gives both.

        One task makes them: two would read the block twice, and hold it until the second comes.
        """
        task = _Task(function, self, arrays, dtype, with_sums=True)
        both = self._mapped(task, self.all, arrays, steps, {})
        if not isinstance(both, da.Array):
            return both
        new = blockwise(_new, self.all, [(both, self.all)], dtype)
        pairs, how = [(both, self.all)], self._partial(size)
        return new, blockwise(_sums, (*self.places, SUMS), pairs, float, concatenate=False, **how)

    def _mapped(
        self,
        task: "_Task",
        dims: tuple[str, ...],
        arrays: Sequence[xr.Variable],
        steps: Sequence[Any],
        how: dict[str, Any],
    ) -> Any:
        """The task on whole arrays with all cores, or on every block of dask's."""
        all_ = [*arrays, *(array for part in self.parts for array in part.arrays)]
        pairs = [self._pair(array) for array in all_ if array is not None]
        pairs += [(each, (*self.index, f"{STEPS} {n}")) for n, each in enumerate(steps)]
        if any(isinstance(array, da.Array) for array, _ in pairs):
            return blockwise(task, dims, pairs, task.dtype or float, **how)
        with ThreadPoolExecutor(CPU_COUNT) as pool:
            return task(*(array for array, _ in pairs), each=pool.map)

    def _pair(self, array: xr.Variable) -> Pair:
        """Data in the order of the axes, members in one block."""
        dims = self.dims(array)
        data = array.transpose(*dims).data
        if not isinstance(data, da.Array):
            return np.asarray(data), dims
        return data.rechunk({0: -1}) if self.member in dims else data, dims


def _new(both: tuple[Array, Array]) -> Array:
    return both[0]


def _sums(both: Any) -> Array:
    while isinstance(both, list):  # of the one block of members
        (both,) = both
    return np.asarray(both[1])


def pack(shapes: Shapes, parts: Mapping[str, Array]) -> Array:
    """Named arrays (I, ...) side by side, (I, C), as they pass from task to task."""
    return np.concatenate([parts[name].reshape(len(parts[name]), -1) for name in shapes], 1)


def packed_size(shapes: Shapes) -> int:
    return sum(map(prod, shapes.values()))


def unpack(shapes: Shapes, packed: Array) -> dict[str, Array]:  # (..., C)
    parts = np.split(packed, np.cumsum([*map(prod, shapes.values())])[:-1], -1)
    return {
        name: part.reshape((*part.shape[:-1], *shape))
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def blockwise(
    call: Callable[..., Array], dims: tuple[str, ...], pairs: Sequence[Pair], dtype: Any, **how: Any
) -> da.Array:
    """The call on the blocks of all arrays; those in memory are cut into views, like the others.

    One that dask had to cut again would tie all blocks together, and hold them in memory.
    """
    lazy = [pair for pair in pairs if isinstance(pair[0], da.Array)]
    cut = {n: sizes for x, names in lazy for n, sizes in zip(names, x.chunks, strict=True)}
    arrays = [
        (x if isinstance(x, da.Array) else _held(x, [cut.get(name, -1) for name in names]), names)
        for x, names in pairs
    ]
    meta = np.empty((0,) * len(dims), dtype)
    flat = (each for pair in arrays for each in pair)
    how = {"concatenate": True, "name": f"probconserv-{uuid.uuid4().hex}", **how}
    return da.blockwise(call, dims, *flat, dtype=dtype, meta=meta, **how)


def _held(values: Array, cuts: list[Any]) -> da.Array:
    chunks = tuple(-1 if size == 1 else c for size, c in zip(values.shape, cuts, strict=True))
    return da.from_array(_Held(values), chunks=chunks, name=False, asarray=False)


class _Held:
    """An array that dask cuts without a copy."""

    def __init__(self, values: Array) -> None:
        self.values = values
        self.shape, self.ndim, self.dtype = values.shape, values.ndim, values.dtype

    def __getitem__(self, index: Any) -> Array:
        return self.values[index]


class _Task:
    """One block: its arrays as (I, P) or (N, I, P), a few indices at a time, with G."""

    def __init__(
        self,
        function: Callable[..., Any],
        rows: NamedRows,
        arrays: Any,
        dtype: Any = None,
        with_sums: bool = False,
    ) -> None:
        """dtype: of the updated block; None for sums alone. with_sums: for both."""
        self.function, self.dtype, self.with_sums = function, dtype, with_sums
        self.rows = replace(rows, parts=())
        self.dims = [rows.dims(array) for array in arrays]
        self.parts: list[Any] = [
            (p.first, p.rows, p.unit, *(x if x is None else rows.dims(x) for x in p.arrays))
            for p in rows.parts
        ]

    def __call__(self, *blocks: Array, each: Callable[..., Iterator[Any]] = map) -> Any:
        """each: `map`, or that of a pool of threads."""
        sizes = dict(zip(self.dims[0], blocks[0].shape, strict=True))
        indices, points = (
            prod(sizes[dim] for dim in dims) for dims in (self.rows.index, self.rows.points)
        )
        rest = list(blocks)
        arrays = [self._members(rest.pop(0), dims, sizes, (indices, points)) for dims in self.dims]
        rows = self._rows(rest, sizes, points)
        steps = [x.reshape(indices, -1) for x in rest]
        new = None if self.dtype is None else np.empty(arrays[0].shape, self.dtype)

        def work(slab: slice) -> Any:
            given = [a if a.size == 1 else a[..., slab, :] for a in arrays]
            found = self.function(*given, rows.at(slab), *(x[slab] for x in steps))
            if new is None:
                return found
            new[..., slab, :], sums = found if self.with_sums else (found, None)
            return sums

        stride = max(1, SLAB * indices // max(1, arrays[0].size))
        parts = list(each(work, [slice(i, i + stride) for i in range(0, indices, stride)]))
        moved = None if new is None else new.reshape([sizes[dim] for dim in self.rows.all])
        if moved is not None and not self.with_sums:
            return moved
        shape = [sizes[dim] for dim in self.rows.index]
        sums = np.concatenate(parts).reshape(*shape, *[1] * len(self.rows.points), -1)
        return sums if moved is None else (moved, sums)

    def _members(
        self, block: Array, dims: tuple[str, ...], sizes: dict[str, int], shape: tuple[int, int]
    ) -> Array:
        if not dims:  # one number for all
            return block.reshape(1, 1)
        lead = (self.rows.member,) if self.rows.member in dims else ()
        wide = _wide(block, dims, (*lead, *self.rows.index, *self.rows.points), sizes)
        return wide.reshape(*wide.shape[: len(lead)], *shape)

    def _rows(self, blocks: list[Array], sizes: dict[str, int], points: int) -> BlockRows:
        """G, from the first of the blocks, which are taken off."""
        parts = []
        for first, count, unit, dims, label_dims in self.parts:
            varies = any(dim in dims for dim in self.rows.index)
            wanted = (*self.rows.index, *self.rows.points) if varies else self.rows.points
            weights = _wide(blocks.pop(0), dims, wanted, sizes).reshape(*[-1] * varies, points)
            labels = None
            if label_dims is not None:
                labels = _wide(blocks.pop(0), label_dims, self.rows.points, sizes).reshape(points)
            parts.append(Part(weights, labels, first, count, unit))
        return BlockRows(tuple(parts), self.rows.count, self.rows.disjoint, self.rows.variable)


def _wide(
    block: Array, dims: Sequence[str], wanted: Sequence[str | None], sizes: Mapping[Any, int]
) -> Array:
    """With all the wanted axes; `dims` are in their order."""
    shape = iter(block.shape)
    narrow = block.reshape([next(shape) if dim in dims else 1 for dim in wanted])
    return np.broadcast_to(narrow, [sizes[dim] for dim in wanted])
