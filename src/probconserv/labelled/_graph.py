"""The two passes as dask graphs: from named axes to the (I, P) blocks that `_passes` works on."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
from dask.system import CPU_COUNT

from ._terms import Array, Term

SLAB = 1 << 20  # points that are worked on at a time; fewer, and threads wait for each other
SUMS, STEPS = "sums of a block", "steps of a block"  # names of axes that no dataset has
ROWS, MEMBERS = "rows of the laws", "members of the totals"


@dataclass(frozen=True, eq=False)
class Piece:
    """A `Term` before it is cut into blocks: one law of one variable, by the names of its axes."""

    weights: xr.Variable
    labels: xr.Variable | None
    first: int
    rows: int


@dataclass(frozen=True)
class Axes:
    """How the axes of a variable are read: indices that no law sums over, points, members."""

    index: tuple[str, ...]
    points: tuple[str, ...]
    member: str | None = None

    @property
    def places(self) -> tuple[str, ...]:
        return self.index + self.points

    @property
    def all(self) -> tuple[str, ...]:
        return self.places if self.member is None else (*self.places, self.member)


def summed(
    function: Callable[..., Array],
    arrays: Sequence[xr.Variable],
    pieces: Sequence[Piece],
    axes: Axes,
    size: int,
) -> Any:  # (*index, size)
    """The sum over all blocks of function(block, ..., terms), which gives (I, size).

    A NumPy array if everything is in memory, else a dask array.
    """
    return total(partials(function, arrays, pieces, axes, size), axes)


def partials(
    function: Callable[..., Array],
    arrays: Sequence[xr.Variable],
    pieces: Sequence[Piece],
    axes: Axes,
    size: int,
) -> Any:  # (*index, *blocks of points, size)
    """What `summed` adds up, block by block."""
    return _mapped(
        _Call(function, axes, _dims(arrays, axes), _specs(pieces, axes)),
        (*axes.places, SUMS),
        _pairs([*arrays, *_arrays(pieces)], axes),
        new_axes={SUMS: size},
        adjust_chunks=dict.fromkeys(axes.points, lambda n: 1),
    )


def total(sums: Any, axes: Axes) -> Any:
    """The sum of the blocks of points, (*index, size)."""
    return sums.sum(axis=tuple(range(len(axes.index), len(axes.places))))


def after(blocks: Any, sums: Any, axes: Axes) -> Any:
    """The same blocks, each available once its partial sums are there.

    Otherwise dask may put the sums off and hold every block until it comes to them.
    """
    if not isinstance(blocks, da.Array):
        return blocks
    return da.blockwise(
        _first,
        axes.all,
        blocks,
        axes.all,
        sums,
        (*axes.places, SUMS),
        dtype=blocks.dtype,
        meta=np.empty((0,) * blocks.ndim, blocks.dtype),
        align_arrays=False,
        concatenate=True,
    )


def _first(block: Array, sums: Array) -> Array:
    return block


def moved(
    function: Callable[..., Array],
    arrays: Sequence[xr.Variable],
    pieces: Sequence[Piece],
    axes: Axes,
    steps: Any,
    dtype: Any,
) -> Any:  # like the first array, in the order of `axes`
    """Every block by function(block, ..., terms, steps), as NumPy or dask array."""
    return _mapped(
        _Call(function, axes, _dims(arrays, axes), _specs(pieces, axes), dtype),
        axes.all,
        [*_pairs([*arrays, *_arrays(pieces)], axes), (steps, (*axes.index, SUMS))],
    )


def _mapped(
    call: "_Call", dims: tuple[str, ...], pairs: Sequence[tuple[Any, tuple[str, ...]]], **how: Any
) -> Any:
    """The call on whole arrays with all cores, or on every block of dask's."""
    if not any(isinstance(array, da.Array) for array, _ in pairs):
        return replace(call, threads=CPU_COUNT)(*(array for array, _ in pairs))
    dtype = float if call.dtype is None else call.dtype
    return da.blockwise(
        call,
        dims,
        *(each for array, names in pairs for each in (as_blocks(array), names)),
        dtype=dtype,
        meta=np.empty((0,) * len(dims), dtype),
        concatenate=True,
        **how,
    )


def as_blocks(array: Any) -> da.Array:
    """A dask array; of one in memory the blocks are views."""
    if isinstance(array, da.Array):
        return array
    return da.from_array(_Held(array), chunks=-1, name=False, asarray=False)


class _Held:
    """An array that dask cuts without a copy."""

    def __init__(self, values: Array) -> None:
        self.values, self.shape, self.ndim, self.dtype = (
            values,
            values.shape,
            values.ndim,
            values.dtype,
        )

    def __getitem__(self, index: Any) -> Array:
        return self.values[index]


@dataclass(frozen=True, eq=False)
class _Call:
    """One task: its arrays as (I, P) or (I, P, N), a few indices at a time, with their terms."""

    function: Callable[..., Array]
    axes: Axes
    dims: tuple[tuple[str, ...], ...]  # of each array
    specs: tuple[tuple[tuple[str, ...], tuple[str, ...] | None, int, int], ...]  # of each piece
    dtype: Any = None  # of the moved block; None for sums
    threads: int = 1

    def __call__(self, *blocks: Array) -> Array:
        sizes = dict(zip(self.dims[0], blocks[0].shape, strict=True))
        arrays = [
            self._flat(block, dims, sizes) for block, dims in zip(blocks, self.dims, strict=False)
        ]
        terms, rest = self._terms(list(blocks[len(self.dims) :]), sizes)
        steps = [each.reshape(-1, each.shape[-1]) for each in rest]
        indices, width = arrays[0].shape[0], max(1, prod(arrays[0].shape[1:]))
        stride = max(1, SLAB // width)
        slabs = [slice(i, i + stride) for i in range(0, indices, stride)]

        def found(slab: slice) -> Array:
            given = [array[slab] for array in arrays]
            here = [term.at(slab) for term in terms]
            return self.function(*given, here, *(each[slab] for each in steps))

        shape = [sizes[dim] for dim in self.axes.index]
        if self.dtype is None:
            sums = np.concatenate(self._each(found, slabs))
            return sums.reshape(*shape, *[1] * len(self.axes.points), -1)
        out = np.empty(arrays[0].shape, self.dtype)

        def put(slab: slice) -> None:
            out[slab] = found(slab)

        self._each(put, slabs)
        return out.reshape([sizes[dim] for dim in self.axes.all])

    def _each(self, function: Callable[[slice], Any], slabs: list[slice]) -> list[Any]:
        if self.threads == 1 or len(slabs) == 1:
            return [function(slab) for slab in slabs]
        with ThreadPoolExecutor(self.threads) as pool:
            return list(pool.map(function, slabs))

    def _flat(self, block: Array, dims: tuple[str, ...], sizes: dict[str, int]) -> Array:
        tail = tuple(dim for dim in dims if dim == self.axes.member)
        wide = _expanded(block, dims, (*self.axes.places, *tail))
        wide = np.broadcast_to(wide, [sizes[dim] for dim in (*self.axes.places, *tail)])
        indices = prod(sizes[dim] for dim in self.axes.index)
        return wide.reshape(indices, -1, *(sizes[dim] for dim in tail))

    def _terms(self, blocks: list[Array], sizes: dict[str, int]) -> tuple[list[Term], list[Array]]:
        terms = []
        points = [sizes[dim] for dim in self.axes.points]
        for dims, label_dims, first, rows in self.specs:
            weights = _expanded(blocks.pop(0), dims, self.axes.places)
            varies = any(dim in dims for dim in self.axes.index)
            index = [sizes[dim] if varies else 1 for dim in self.axes.index]
            weights = np.broadcast_to(weights, [*index, *points]).reshape(prod(index), -1)
            labels = None
            if label_dims is not None:
                wide = _expanded(blocks.pop(0), label_dims, self.axes.points)
                labels = np.broadcast_to(wide, points).reshape(-1)
            terms.append(Term(weights, labels, first, rows))
        return terms, blocks


def _expanded(block: Array, dims: Sequence[str], wanted: Sequence[str]) -> Array:
    """With an axis of size 1 for each wanted one that is not there; `dims` are in their order."""
    shape = iter(block.shape)
    return block.reshape([next(shape) if dim in dims else 1 for dim in wanted])


def _dims(arrays: Sequence[xr.Variable], axes: Axes) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(dim for dim in axes.all if dim in array.dims) for array in arrays)


def _specs(pieces: Sequence[Piece], axes: Axes) -> tuple[Any, ...]:
    return tuple(
        (
            *_dims([piece.weights], axes),
            None if piece.labels is None else _dims([piece.labels], axes)[0],
            piece.first,
            piece.rows,
        )
        for piece in pieces
    )


def _arrays(pieces: Sequence[Piece]) -> list[xr.Variable]:
    both = ((piece.weights, piece.labels) for piece in pieces)
    return [array for pair in both for array in pair if array is not None]


def _pairs(arrays: Sequence[xr.Variable], axes: Axes) -> list[tuple[Any, tuple[str, ...]]]:
    """Data in the order of the axes, members in one block, with the names of their axes."""
    pairs = []
    for array, dims in zip(arrays, _dims(arrays, axes), strict=True):
        data = array.transpose(*dims).data
        if isinstance(data, da.Array) and axes.member in dims:
            data = data.rechunk({dims.index(axes.member): -1})
        pairs.append((data if isinstance(data, da.Array) else np.asarray(data), dims))
    return pairs
