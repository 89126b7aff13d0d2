"""G on blocks of points, for NumPy and dask arrays: sums over blocks and updates of blocks.

dask works in threads of this process, with a bar on a terminal.
"""

import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from itertools import chain
from math import prod
from typing import Any

import dask
import dask.array as da
import dask.threaded
import numpy as np
import xarray as xr
from dask.base import compute as compute_together
from dask.highlevelgraph import HighLevelGraph
from dask.system import CPU_COUNT
from numpy.typing import NDArray

from ..support.rowwise import sums_by_label
from ..support.values import samples

Array = NDArray[Any]
Sums = Mapping[str, Array]  # under names, with the indices on axis 0
Made = tuple[Sequence[Array], Sums]  # the new arrays of a block, and its sums
Pair = tuple[Any, tuple[str, ...]]  # an array and the names of its axes
Key = tuple[str, Any]  # what a block is, and which one

PIECE = 4096  # points of one product: too few for BLAS to start threads of its own
SLAB = 1 << 18  # points that are worked on at a time: what stays in a core's cache
NO_LABELS = (None,)
SLOW = 1.0  # seconds that a computation takes before a terminal shows how far it is
LARGEST = ("change", "in_std", "below", "below_before")  # not added up: the largest counts

# points that do not count may hold anything
quiet = np.errstate(invalid="ignore", over="ignore", divide="ignore")


def weighted_sum(u: Array, weights: Array) -> Array:  # (..., I, P) and (1 or I, P) to (..., I)
    """The sum of u times weights over the points, in float64, in pieces that rounding likes."""
    u, whole = u.astype(float, copy=False), u.shape[-1] // PIECE * PIECE
    pieces, other = u[..., :whole], weights[..., :whole]
    pieces = pieces.reshape(*u.shape[:-1], -1, PIECE)
    other = other.reshape(*weights.shape[:-1], -1, PIECE)
    return np.asarray(_dot(pieces, other).sum(-1) + _dot(u[..., whole:], weights[..., whole:]))


def _dot(u: Array, weights: Array) -> Array:
    return np.asarray(np.matmul(u[..., None, :], weights[..., :, None])[..., 0, 0])


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
        return np.asarray(sums_by_label(u * self.weights, self.labels, self.rows))

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

    @property
    def sizes(self) -> "BlockRows":
        """|G|."""
        return self._absolute or self

    @cached_property
    def _absolute(self) -> "BlockRows | None":  # not itself, which would keep it alive
        return self.by(np.abs) if any((law.weights < 0).any() for law in self.laws) else None

    def without(self, missing: Array) -> "BlockRows":  # (I, P)
        """With weights of 0 at some points; kept, since the next indices often lack the same."""
        missing = missing[:1] if (missing == missing[:1]).all() else missing
        last, rows = self.__dict__.get("_last", (None, self))
        if last is None or not np.array_equal(last, missing):
            rows = self.by(lambda weights: np.where(missing, 0.0, weights))
            self.__dict__["_last"] = missing, rows
        return rows

    @cached_property
    def squared(self) -> "BlockRows":
        return self.by(np.square)

    @cached_property
    def whole(self) -> Array:  # (1 or I, K)
        """The sums of ones."""
        return self.apply(np.ones((1, self.laws[0].weights.shape[-1])))

    @cached_property
    def points(self) -> Array:  # (1 or I, K)
        """How many points each row has."""
        return self.by(lambda weights: (weights != 0).astype(float)).whole

    @cached_property
    def left_out(self) -> Array | None:  # (1 or I, P)
        """Which points no law counts; None if there are none."""
        out = [law.weights == 0 for law in self.laws]
        return reduce(np.logical_and, out) if all(x.any() for x in out) else None

    @cached_property
    def freedom(self) -> Array | None:  # (1 or I, P)
        """The mean weight over |g|, by the first law that counts a point; 0 if none does.

        None if every point has a std of its own.
        """
        if all(law.unit is None for law in self.laws):
            return None
        found: Any = 0.0
        for law in self.laws:
            found = np.where(found == 0, np.abs(law.weights) / (law.unit or 1.0), found)
        return np.divide(1.0, found, out=np.zeros_like(found), where=found != 0)

    @cached_property
    def freed(self) -> "BlockRows":
        """G diag(freedom), kept for all indices that share their weights."""
        return self.by(lambda weights: weights * self.freedom)

    @cached_property
    def gram_of_freedom(self) -> Array:  # (1 or I, K) or (1 or I, K, K)
        """G diag(freedom) G^T, kept like that."""
        assert self.freedom is not None
        return self.gram(self.freedom)

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

    @cached_property
    def places(self) -> tuple[str, ...]:
        return self.index + self.points

    @cached_property
    def all(self) -> tuple[str, ...]:
        return self.places if self.member is None else (self.member, *self.places)

    def mapped(
        self,
        function: Callable[..., Made],
        arrays: Sequence[xr.Variable],
        dtypes: Sequence[Any] = (),
        steps: Mapping[str, Array] | None = None,
    ) -> tuple[list[Any], Any]:
        """What function(block, ..., rows, steps) makes of every block, on all cores or lazily.

        That is an array of each dtype, in the order of `all`, and sums under names, (*index, ...),
        which are then those over all blocks; lazily, a dask array without axes that holds them. One
        task makes all: several would read the block again, and hold it until the last is done.
        """
        pairs: dict[Key, Pair] = {("array", n): self._pair(each) for n, each in enumerate(arrays)}
        for number, law in enumerate(self.laws):
            pairs["weights", number] = self._pair(law.weights)
            if law.labels is not None:
                pairs["labels", number] = self._pair(law.labels)
        for name, step in (steps or {}).items():
            own = [f"{name} {axis}" for axis in range(len(self.index), step.ndim)]
            pairs["steps", name] = step, (*self.index, *own)
        empty = tuple(replace(law, weights=None, labels=None) for law in self.laws)
        axes = {key: dims for key, (_, dims) in pairs.items()}
        task = partial(replace(self, laws=empty)._run, function, axes, dtypes)
        cut = {
            dim: sizes
            for array, dims in pairs.values()
            if isinstance(array, da.Array)
            for dim, sizes in zip(dims, array.chunks, strict=True)
        }
        if not cut:
            with ThreadPoolExecutor(CPU_COUNT) as pool:
                return task(pool.map, *(array for array, _ in pairs.values()))
        lazy = [(_cut(array, dims, cut), dims) for array, dims in pairs.values()]
        made = [(blockwise(partial(task, map), self.all, lazy, object), self.all)]
        new = [
            blockwise(partial(_picked, number=number), self.all, made, dtype)
            for number, dtype in enumerate(dtypes)
        ]
        sums = blockwise(partial(_picked, number=-1), self.places, made, object, concatenate=False)
        return new, self._combined(sums)

    def _run(
        self,
        function: Callable[..., Made],
        axes: Mapping[Key, tuple[str, ...]],
        dtypes: Sequence[Any],
        each: Callable[..., Iterator[Any]],
        *blocks: Array,
    ) -> tuple[list[Array], dict[str, Array]]:
        """One block, a few indices at a time, with G; axes: of the blocks, by what they are.

        The first array is (N, I, P), with one member where there are none. The others are (1, P) or
        (I, P), and one number is (1, 1). each: `map`, or that of a pool of threads.
        """
        sizes = dict(zip(axes["array", 0], blocks[0].shape, strict=True))
        index = [sizes[dim] for dim in self.index]
        count = prod(index)
        flat, steps = {}, {}
        for (key, dims), block in zip(axes.items(), blocks, strict=True):
            if key[0] == "steps":
                steps[key[1]] = block.reshape(count, *block.shape[len(index) :])
            else:
                number = key[0] == "array" and not dims
                flat[key] = block.reshape(1, 1) if number else self._flat(block, dims, sizes)
        first, *others = (flat[key] for key in flat if key[0] == "array")
        first = first.reshape(-1, *first.shape[-2:])
        laws = (
            replace(law, weights=flat["weights", n], labels=flat.get(("labels", n), NO_LABELS)[0])
            for n, law in enumerate(self.laws)
        )
        rows = BlockRows(tuple(laws), self.count, self.disjoint, self.variable)
        new = [np.empty(first.shape, dtype) for dtype in dtypes]

        def work(slab: slice) -> Sums:
            given = [a if a.shape[-2] == 1 else a[..., slab, :] for a in (first, *others)]
            here = {name: step[slab] for name, step in steps.items()}
            found, sums = function(*given, rows.at(slab), here)
            for array, values in zip(new, found, strict=True):
                array[..., slab, :] = values
            return sums

        stride = max(1, SLAB * count // max(1, first.size))
        slabs = [slice(i, i + stride) for i in range(0, count, stride)]
        sums = combined(list(each(work, slabs)), index=1)
        shaped = {name: x.reshape((*index, *x.shape[1:])) for name, x in sums.items()}
        return [array.reshape([sizes[dim] for dim in self.all]) for array in new], shaped

    def _flat(self, block: Array, dims: Sequence[str], sizes: Mapping[Any, int]) -> Array:
        """As (I, P) or (N, I, P), with (1, P) for what does not change with the index."""
        varies = self.index if any(dim in dims for dim in self.index) else ()
        lead = (self.member,) if self.member in dims else ()
        wanted = (*lead, *varies, *self.points)
        narrow = np.expand_dims(block, [n for n, dim in enumerate(wanted) if dim not in dims])
        wide = np.broadcast_to(narrow, [sizes[dim] for dim in wanted])
        shape = [prod(sizes[dim] for dim in some) for some in (varies, self.points)]
        return wide.reshape(*wide.shape[: len(lead)], *shape)

    def _combined(self, blocks: da.Array) -> da.Array:
        name = f"sums-{blocks.name}"
        task = (partial(combined, index=len(self.index)), blocks.__dask_keys__())
        dependencies: Any = [blocks]
        graph = HighLevelGraph.from_collections(name, {(name,): task}, dependencies)
        return da.Array(graph, name, (), meta=np.empty((), object))

    def _pair(self, array: xr.Variable) -> Pair:
        """Data in the order of the axes, members in one block; axes of steps come last."""
        ordered: Any = array.transpose(*self.all, ..., missing_dims="ignore")
        if not isinstance(ordered.data, da.Array):
            return ordered.values, ordered.dims
        return ordered.chunk(
            {self.member: -1} if self.member in ordered.dims else {}
        ).data, ordered.dims


def _picked(made: Any, number: int) -> Any:
    """One of the things that a task made; `made` may be nested in lists of one."""
    while isinstance(made, list):
        (made,) = made
    new, sums = made
    return sums if number < 0 else new[number]


def combined(blocks: Any, index: int, axis: int = 0) -> dict[str, Array]:
    """The sums of blocks, in lists as deep as they have axes: side by side along the indices."""
    if isinstance(blocks, dict):
        return blocks
    each = [combined(block, index, axis + 1) for block in blocks]
    if axis < index:
        return {name: np.concatenate([one[name] for one in each], axis) for name in each[0]}
    return added(each)


def added(each: Sequence[Sums]) -> dict[str, Array]:
    """The sums of several blocks as those of one."""
    found = dict(each[0])
    for one in each[1:]:
        for name in found.keys() & one.keys():
            add = np.maximum if name in LARGEST else np.add
            found[name] = add(found[name], one[name])
        for name in found.keys() - one.keys():
            del found[name]
    return found


def blockwise(
    call: Callable[..., Any], dims: tuple[str, ...], pairs: Sequence[Pair], dtype: Any, **how: Any
) -> da.Array:
    """The call on the blocks of all arrays, which are cut alike."""
    meta = np.empty((0,) * len(dims), dtype)
    how = {"concatenate": True, "name": f"probconserv-{uuid.uuid4().hex}", **how}
    return da.blockwise(call, dims, *chain.from_iterable(pairs), dtype=dtype, meta=meta, **how)


def _cut(values: Any, names: tuple[str, ...], cut: Mapping[str, Any]) -> da.Array:
    """An array in memory as views, in the blocks of the others.

    One that dask had to cut again would tie all blocks together, and hold them in memory.
    """
    if isinstance(values, da.Array):
        return values
    pairs = zip(values.shape, names, strict=True)
    chunks = tuple([-1 if size == 1 else cut.get(name, -1) for size, name in pairs])
    return da.from_array(values, chunks=chunks, name=False)


@contextmanager
def threads(workers: int | None = None) -> Iterator[None]:
    """Everything that dask computes inside runs in so many threads, as many as there are cores."""
    chosen = {} if workers is None else {"num_workers": samples(workers, "workers")}
    # its name would make dask import distributed, which takes half a second
    with dask.config.set({"scheduler": dask.threaded.get, **chosen}), _progress():
        yield


def _progress() -> Any:
    if not sys.stderr.isatty():
        return nullcontext()
    from dask.diagnostics.progress import ProgressBar

    return ProgressBar(minimum=SLOW, out=sys.stderr)


def compute(collections: Any) -> Any:
    """The collections, any nest of them, computed together."""
    with _few_threads():
        return compute_together(collections)[0]


def _few_threads() -> Any:
    """Zarr takes as many threads as blocks are worked on: each keeps memory that it has freed."""
    if "zarr" not in sys.modules:
        return nullcontext()
    import zarr

    return zarr.config.set({"threading.max_workers": dask.config.get("num_workers", CPU_COUNT)})
