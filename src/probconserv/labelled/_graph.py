"""The two passes as dask graphs: from named axes to the (I, P) blocks that `_passes` works on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr

from ._terms import Array, Term

BLOCK = 1 << 20  # points of a block of an array in memory
SLAB = 1 << 16  # points that are worked on at a time: their temporaries fit the cache
SUMS, MEMBERS = "sums of a block", "members"  # names of axes that no dataset has


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


def chunked(variable: xr.Variable, axes: Axes, whole: bool = False) -> da.Array:
    """The variable as a dask array in the order of `axes`, members in one chunk."""
    order = [dim for dim in axes.all if dim in variable.dims]
    variable = variable.transpose(*order)
    if not isinstance(variable.data, da.Array):
        sizes = [-1 if whole else _in_memory(dim, variable, axes) for dim in order]
        return da.from_array(variable.values, chunks=tuple(sizes), name=False)
    if axes.member in order:
        return variable.data.rechunk({order.index(axes.member): -1})
    return variable.data


def _in_memory(dim: str, variable: xr.Variable, axes: Axes) -> int:
    """How much of an axis goes into a block: many indices, and of the points as many as fit."""
    size: int = variable.sizes[dim]
    inner = prod(variable.sizes[d] for d in axes.all[axes.all.index(dim) + 1 :] if d in variable.sizes)
    return size if dim == axes.member else max(1, min(size, BLOCK // max(inner, 1)))


def summed(
    function: Callable[..., Array], arrays: Sequence[xr.Variable], pieces: Sequence[Piece],
    axes: Axes, size: int,
) -> da.Array:  # (*index, size)
    """The sum over all blocks of function(block, ..., terms), which gives (I, size)."""
    given = [chunked(array, axes) for array in arrays]
    call = _Call(function, axes, _dims(arrays, axes), _specs(pieces, axes))
    parts = da.blockwise(
        call,
        (*axes.places, SUMS),
        *_pairs(given, call.dims),
        *_piece_pairs(pieces, axes),
        new_axes={SUMS: size},
        adjust_chunks=dict.fromkeys(axes.points, lambda n: 1),
        dtype=float,
        meta=np.empty((0,) * (len(axes.places) + 1)),
        concatenate=True,
    )
    return parts.sum(axis=tuple(range(len(axes.index), len(axes.places))))


def moved(
    function: Callable[..., Array], arrays: Sequence[xr.Variable], pieces: Sequence[Piece],
    axes: Axes, steps: da.Array, dtype: Any,
) -> da.Array:  # like the first array, in the order of `axes`
    """Every block by function(block, ..., terms, steps)."""
    given = [chunked(array, axes) for array in arrays]
    call = _Call(function, axes, _dims(arrays, axes), _specs(pieces, axes), dtype)
    return da.blockwise(
        call,
        axes.all,
        *_pairs(given, call.dims),
        *_piece_pairs(pieces, axes),
        steps,
        (*axes.index, SUMS),
        dtype=dtype,
        meta=np.empty((0,) * len(axes.all), dtype),
        concatenate=True,
    )


@dataclass(frozen=True, eq=False)
class _Call:
    """One task: its arrays as (I, P) or (I, P, N), a few indices at a time, with their terms."""

    function: Callable[..., Array]
    axes: Axes
    dims: tuple[tuple[str, ...], ...]  # of each array
    specs: tuple[tuple[tuple[str, ...], tuple[str, ...] | None, int, int], ...]  # of each piece
    dtype: Any = None  # of the moved block; None for sums

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
            sums = np.concatenate([found(slab) for slab in slabs])
            return sums.reshape(*shape, *[1] * len(self.axes.points), -1)
        out = np.empty(arrays[0].shape, self.dtype)
        for slab in slabs:
            out[slab] = found(slab)
        return out.reshape([sizes[dim] for dim in self.axes.all])

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


def _piece_pairs(pieces: Sequence[Piece], axes: Axes) -> list[Any]:
    arrays = [
        array for piece in pieces for array in (piece.weights, piece.labels) if array is not None
    ]
    return _pairs([chunked(array, axes, whole=True) for array in arrays], _dims(arrays, axes))


def _pairs(arrays: Sequence[da.Array], dims: Sequence[tuple[str, ...]]) -> list[Any]:
    return [each for pair in zip(arrays, dims, strict=True) for each in pair]
