"""G on blocks of points, for NumPy and dask arrays: sums over blocks and updates of blocks."""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from math import prod
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
from dask.system import CPU_COUNT
from numpy.typing import NDArray

Array = NDArray[Any]
Shapes = Mapping[str, tuple[int, ...]]
Pair = tuple[Any, tuple[str, ...]]  # an array and the names of its axes

PIECE = 4096  # points of one product: too few for BLAS to start threads of its own
SLAB = 1 << 18  # points that are worked on at a time: what stays in a core's cache
SUMS, STEPS = "sums of a block", "steps of a block"  # names of axes that no dataset has


def weighted_sum(u: Array, weights: Array) -> Array:  # (..., I, P) and (1 or I, P) to (..., I)
    """The sum of u times weights over the points, in float64, in pieces that rounding likes."""
    whole = u.shape[-1] // PIECE * PIECE
    pieces = [x[..., :whole].reshape(*x.shape[:-1], -1, PIECE) for x in (u, weights)]
    found = _dot(*pieces).sum(-1)
    return found if whole == u.shape[-1] else found + _dot(u[..., whole:], weights[..., whole:])


def _dot(u: Array, weights: Array) -> Array:
    u = u.astype(float, copy=False)
    return np.matmul(u[..., None, :], weights[..., :, None])[..., 0, 0]


@dataclass(frozen=True, eq=False)
class LawRows:
    """The rows of one law: sums of weights times u over the points of each row.

    In a block weights are (I, P), or (1, P) if they do not change with the index, and labels are
    (P). Before they are cut into blocks both are xarray variables.
    """

    weights: Any
    labels: Any  # the row of each point within the law; None: all are of one row
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
        return np.asarray(self.weights * (v if self.labels is None else v[..., self.labels]))

    def times(self, other: "LawRows") -> "LawRows":
        """The points that two laws share, with a row for each pair of their rows."""
        labels: Array | None = None
        if self.labels is not None or other.labels is not None:
            mine: Any = 0 if self.labels is None else self.labels
            labels = mine * other.rows + (0 if other.labels is None else other.labels)
        return LawRows(self.weights * other.weights, labels, 0, self.rows * other.rows)


@dataclass(frozen=True, eq=False)
class BlockRows:
    """G on one block, (K, P): the rows of all laws."""

    laws: tuple[LawRows, ...]
    count: int  # K
    disjoint: bool  # whether no point is in two rows, so that G D G^T is diagonal
    variable: int = 0  # number of the variable that this is a block of

    def apply(self, u: Array) -> Array:  # (..., I, P) to (..., I, K)
        first, *others = self.laws
        if not others and first.rows == self.count:
            return first.apply(u)
        own = [law.apply(u) for law in self.laws]  # of some laws weights vary with the index
        lead = np.broadcast_shapes(*(each.shape[:-1] for each in own))
        found = np.zeros((*lead, self.count))
        for law, each in zip(self.laws, own, strict=True):
            found[..., law.own] += each
        return found

    def adjoint(self, v: Array) -> Array:  # (..., I, K) to (..., I, P)
        first, *others = (law.adjoint(v[..., law.own]) for law in self.laws)
        return sum(others, start=first)

    def gram(self, d: Array) -> Array:  # (I, P) to (I, K, K)
        """G diag(d) G^T; its diagonal (I, K), where it has no more."""
        if self.disjoint:
            return self.squared.apply(d)
        indices = max(len(d), *(len(law.weights) for law in self.laws))
        found = np.zeros((indices, self.count, self.count))
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
    def _pairs(self) -> list[tuple[LawRows, LawRows, LawRows]]:
        return [(one, other, one.times(other)) for one in self.laws for other in self.laws]

    def by(self, function: Callable[[Array], Array]) -> "BlockRows":
        """With a function of every weight."""
        laws = (replace(law, weights=function(law.weights)) for law in self.laws)
        return replace(self, laws=tuple(laws))

    @cached_property
    def sizes(self) -> "BlockRows":
        """|G|."""
        return self.by(np.abs) if any((law.weights < 0).any() for law in self.laws) else self

    @cached_property
    def squared(self) -> "BlockRows":
        return self.by(np.square)

    @cached_property
    def present(self) -> "BlockRows":
        """1 where G is not 0."""
        return self.by(lambda weights: (weights != 0).astype(float))

    @cached_property
    def are_plain(self) -> bool:
        """Whether all points are of one row, with weights above 0."""
        first, *others = self.laws
        return not others and first.labels is None and bool((first.weights > 0).all())

    @property
    def even(self) -> float | None:
        """The mean weight if there is one law, and one number is the std of all its points."""
        return self.laws[0].unit if self.disjoint else None

    @cached_property
    def whole(self) -> Array:  # (1 or I, K)
        """The sums of ones."""
        return self.apply(np.ones((1, self.laws[0].weights.shape[-1])))

    @cached_property
    def left_out(self) -> Array | None:  # (1 or I, P)
        """Which points no law counts; None if there are none."""
        out = [law.weights == 0 for law in self.laws]
        return reduce(np.logical_and, out) if all(x.any() for x in out) else None

    @property
    def counted(self) -> Array | float:
        """1 where some law counts a point, else 0."""
        return 1.0 if self.left_out is None else (~self.left_out).astype(float)

    @cached_property
    def relative_sizes(self) -> Array | None:  # (1 or I, P)
        """|g| over the mean weight, by the first law that counts a point; inf if none does.

        None if every point has a std of its own.
        """
        if all(law.unit is None for law in self.laws):
            return None
        found: Any = 0.0
        for law in self.laws:
            found = np.where(found == 0, np.abs(law.weights) / (law.unit or 1.0), found)
        return np.where(found == 0, np.inf, found)

    def at(self, indices: slice) -> "BlockRows":
        """The same at some of the indices."""
        if all(len(law.weights) == 1 for law in self.laws):
            return self
        return self.by(lambda weights: weights if len(weights) == 1 else weights[indices])


@dataclass(frozen=True, eq=False)
class NamedRows:
    """G on one variable, by names of axes: indices that no law sums over, points, members."""

    laws: tuple[LawRows, ...]
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

    @property
    def of_points(self) -> tuple[int, ...]:
        """The axes of partial sums that number blocks of points."""
        return tuple(range(len(self.index), len(self.places)))

    def dims(self, array: Any) -> Any:
        return None if array is None else tuple(dim for dim in self.all if dim in array.dims)

    def summed(self, function: Callable[..., Array], arrays: Any, size: int, *steps: Any) -> Any:
        """The sum over all blocks of function(block, ..., rows, *steps), (*index, size)."""
        (partials,) = self.mapped(function, arrays, (), size, *steps)
        return partials.sum(axis=self.of_points)

    def mapped(
        self,
        function: Callable[..., Any],
        arrays: Sequence[xr.Variable],
        dtypes: Sequence[Any],
        size: int,
        *steps: Any,
    ) -> list[Any]:
        """What function(block, ..., rows, *steps) makes of every block, on all cores or lazily.

        An array of each dtype, in the order of `all`; then sums, (*index, *blocks of points, size),
        if they have a size. The function returns all of them, or the only one. One task makes
        them: several would read the block again, and hold it until the last is done.
        """
        task = _Task(function, self, arrays, dtypes, size)
        all_ = [*arrays, *(array for law in self.laws for array in (law.weights, law.labels))]
        pairs = [self._pair(array) for array in all_ if array is not None]
        pairs += [(each, (*self.index, f"{STEPS} {n}")) for n, each in enumerate(steps)]
        if not any(isinstance(array, da.Array) for array, _ in pairs):
            with ThreadPoolExecutor(CPU_COUNT) as pool:
                return task.run([array for array, _ in pairs], pool.map)
        one = dict.fromkeys(self.points, lambda n: 1)
        as_sums: dict[str, Any] = {"new_axes": {SUMS: size}, "adjust_chunks": one}
        if not dtypes:
            return [blockwise(task, (*self.places, SUMS), pairs, float, **as_sums)]
        made = [(blockwise(task, self.all, pairs, dtypes[0]), self.all)]
        found = [
            blockwise(partial(_picked, number=number), self.all, made, dtype)
            for number, dtype in enumerate(dtypes)
        ]
        if size:
            pick, dims = partial(_picked, number=-1), (*self.places, SUMS)
            found.append(blockwise(pick, dims, made, float, concatenate=False, **as_sums))
        return found

    def _pair(self, array: xr.Variable) -> Pair:
        """Data in the order of the axes, members in one block."""
        dims = self.dims(array)
        data = array.transpose(*dims).data
        if not isinstance(data, da.Array):
            return np.asarray(data), dims
        return data.rechunk({0: -1}) if self.member in dims else data, dims


def _picked(made: Any, number: int) -> Array:
    """One of the arrays that a task made; `made` may be nested in lists of one."""
    while len(made) == 1 and isinstance(made[0], list):
        (made,) = made
    return np.asarray(made[number])


def pack(shapes: Shapes, parts: Mapping[str, Array]) -> Array:
    """Named arrays (I or 1, ...) side by side, (I, C), as they pass from task to task."""
    flat = [parts[name].reshape(len(parts[name]), -1) for name in shapes]
    indices = max(map(len, flat))
    return np.concatenate([np.broadcast_to(x, (indices, x.shape[1])) for x in flat], 1)


def packed_size(shapes: Shapes) -> int:
    return sum(map(prod, shapes.values()))


def unpack(shapes: Shapes, packed: Array) -> dict[str, Array]:  # (..., C)
    parts = np.split(packed, np.cumsum([*map(prod, shapes.values())])[:-1], -1)
    return {
        name: part.reshape((*part.shape[:-1], *shape))
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def blockwise(
    call: Callable[..., Any], dims: tuple[str, ...], pairs: Sequence[Pair], dtype: Any, **how: Any
) -> da.Array:
    """The call on the blocks of all arrays; those in memory are cut into views, like the others.

    One that dask had to cut again would tie all blocks together, and hold them in memory.
    """
    lazy = [pair for pair in pairs if isinstance(pair[0], da.Array)]
    cut = {n: sizes for x, names in lazy for n, sizes in zip(names, x.chunks, strict=True)}
    flat: list[Any] = []
    for x, names in pairs:
        flat += [x if isinstance(x, da.Array) else _cut(x, names, cut), names]
    meta = np.empty((0,) * len(dims), dtype)
    how = {"concatenate": True, "name": f"probconserv-{uuid.uuid4().hex}", **how}
    return da.blockwise(call, dims, *flat, dtype=dtype, meta=meta, **how)


def _cut(values: Array, names: tuple[str, ...], cut: Mapping[str, Any]) -> da.Array:
    """As views of the array, in the blocks of the others."""
    pairs = zip(values.shape, names, strict=True)
    chunks = tuple(-1 if size == 1 else cut.get(name, -1) for size, name in pairs)
    return da.from_array(values, chunks=chunks, name=False)


class _Task:
    """One block: its arrays as (I, P) or (N, I, P), a few indices at a time, with G."""

    def __init__(
        self,
        function: Callable[..., Any],
        rows: NamedRows,
        arrays: Sequence[xr.Variable],
        dtypes: Sequence[Any],
        size: int,
    ) -> None:
        self.function, self.dtypes, self.size = function, dtypes, size
        self.dims = [rows.dims(array) for array in arrays]
        laws = (  # the names of axes in place of arrays
            replace(law, weights=rows.dims(law.weights), labels=rows.dims(law.labels))
            for law in rows.laws
        )
        self.rows = replace(rows, laws=tuple(laws))

    def __call__(self, *blocks: Array) -> Any:
        made = self.run(blocks, map)
        return made[0] if not self.dtypes else made

    def run(self, blocks: Sequence[Array], each: Callable[..., Iterator[Any]]) -> list[Any]:
        """each: `map`, or that of a pool of threads."""
        sizes = dict(zip(self.dims[0], blocks[0].shape, strict=True))
        rest, index = list(blocks), [sizes[dim] for dim in self.rows.index]
        first = [rest.pop(0) for _ in self.dims]
        arrays = [  # one number stays one
            self._flat(block, dims, sizes) if dims else block.reshape(1, 1)
            for block, dims in zip(first, self.dims, strict=True)
        ]
        rows, count = self._rows(rest, sizes), prod(index)
        steps = [x.reshape(count, -1) for x in rest]
        new = [np.empty(arrays[0].shape, dtype) for dtype in self.dtypes]

        def work(slab: slice) -> Any:
            given = [a if a.shape[-2] == 1 else a[..., slab, :] for a in arrays]
            found = self.function(*given, rows.at(slab), *(x[slab] for x in steps))
            found = found if isinstance(found, tuple) else (found,)
            for array, values in zip(new, found, strict=False):
                array[..., slab, :] = values
            return found[-1] if self.size else None

        stride = max(1, SLAB * count // max(1, arrays[0].size))
        sums = list(each(work, [slice(i, i + stride) for i in range(0, count, stride)]))
        made = [array.reshape([sizes[dim] for dim in self.rows.all]) for array in new]
        if self.size:
            made.append(np.concatenate(sums).reshape(*index, *[1] * len(self.rows.points), -1))
        return made

    def _flat(self, block: Array, dims: Sequence[str], sizes: Mapping[Any, int]) -> Array:
        """As (I, P) or (N, I, P), with (1, P) for what does not change with the index."""
        index, points, member = self.rows.index, self.rows.points, self.rows.member
        varies = index if any(dim in dims for dim in index) else ()
        lead = (member,) if member in dims else ()
        wide = _wide(block, dims, (*lead, *varies, *points), sizes)
        shape = [prod(sizes[dim] for dim in some) for some in (varies, points)]
        return wide.reshape(*wide.shape[: len(lead)], *shape)

    def _rows(self, blocks: list[Array], sizes: Mapping[Any, int]) -> BlockRows:
        """G, from the first of the blocks, which are taken off."""
        rows, laws = self.rows, []
        for law in rows.laws:
            weights = self._flat(blocks.pop(0), law.weights, sizes)
            labels = None
            if law.labels is not None:
                labels = self._flat(blocks.pop(0), law.labels, sizes)[0]
            laws.append(replace(law, weights=weights, labels=labels))
        return BlockRows(tuple(laws), rows.count, rows.disjoint, rows.variable)


def _wide(
    block: Array, dims: Sequence[str], wanted: Sequence[str | None], sizes: Mapping[Any, int]
) -> Array:
    """With all the wanted axes; `dims` are in their order."""
    shape = iter(block.shape)
    narrow = block.reshape([next(shape) if dim in dims else 1 for dim in wanted])
    return np.broadcast_to(narrow, [sizes[dim] for dim in wanted])
