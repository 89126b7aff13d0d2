"""The rows of a law on fields in shards: each process sums what it holds, and the sums are added.

The law is laid on the whole fields and then cut. Along the first axes, which number parts that no
row ties together, rows are cut as the fields are. All other rows stand on every process.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..support.errors import InputError
from ..support.shards import Block, Groups, Shards, joined, most_over, summed_over
from .law import Rows
from .maps import Map, Matrix, Regions, Sum

Cuts = dict[int, Block]  # by axis, counted from the end


class SpreadMap(Map):
    """A map cut to the part of a field that is here; rows are added up over the processes."""

    is_spread = True

    def __init__(
        self, inner: Map, dims: int, rows: tuple[int, ...], flat: int, gathered: Cuts
    ) -> None:
        """rows: the sizes of their axes. flat: how many of these, the last, `inner` has as one.

        gathered: axes of rows of which `inner` has a block; all of them stand on every process.
        """
        self.inner, self.dims, self.rows_of_place = inner, dims, rows
        self.flat, self.gathered, self.is_disjoint = flat, gathered, inner.is_disjoint
        self.groups: Groups = ()  # over which rows are added up
        self.looks: Groups = ()  # over which looks at values agree

    def apply(self, u: Tensor) -> Tensor:
        return summed_over(self._all_rows(self.inner.apply(u)), self.groups)

    def adjoint(self, v: Tensor) -> Tensor:
        return self.inner.adjoint(self._rows_here(v))

    def at_points(self, v: Tensor) -> Tensor:
        """As of the map that is here."""
        assert isinstance(self.inner, Sum | Regions)
        return self.inner.at_points(self._rows_here(v))

    @property
    def weights(self) -> Tensor:
        """As of the map that is here."""
        assert isinstance(self.inner, Sum | Regions)
        return self.inner.weights

    def entrywise(self, power: int) -> "SpreadMap":
        return self._with(inner=self.inner.entrywise(power))

    def on(self, shape: Sequence[int]) -> "SpreadMap":
        return self

    def largest(self, x: float) -> float:
        return most_over([x], self.looks, self.tensors[0])[0]

    @property
    def tensors(self) -> list[Tensor]:
        return self.inner._tensors()

    def _all_rows(self, x: Tensor) -> Tensor:
        """Those that are here, among zeros for the others."""
        if isinstance(self.inner, Matrix):
            tail = self.rows_of_place[len(self.rows_of_place) - self.flat :]
            x = x.unflatten(-1, tail) if tail else x[..., 0]
        for axis, (start, size) in self.gathered.items():
            whole = self.rows_of_place[axis]
            x = pad(x, (*[0, 0] * (-1 - axis), start, whole - start - size))
        return x

    def _rows_here(self, v: Tensor) -> Tensor:
        for axis, block in self.gathered.items():
            v = v.narrow(axis, *block) if v.shape[axis] == self.rows_of_place[axis] else v
        if isinstance(self.inner, Matrix):
            v = v.flatten(v.ndim - self.flat) if self.flat else v[..., None]
        return v


class CutRows(Rows):
    """Rows of the parts that are here, named by their numbers among all."""

    starts: tuple[int, ...] = ()

    def name(self, index: Sequence[int]) -> str:
        known = zip(index, self.starts, strict=False)
        return super().name([*(i + at for i, at in known), *index[len(self.starts) :]])


def cut(rows: Rows, shards: Sequence[Shards], lead: int) -> CutRows:
    """The rows on what is here of fields in shards. lead: how many first axes number the parts."""
    places = rows.places([one.shape for one in shards])
    blocks = shards[rows.first].blocks[: min(lead, places)]  # of values at points it may be less
    found = rows._at(tuple(slice(start, start + size) for start, size in blocks))
    new = CutRows.__new__(CutRows)
    new.__dict__.update(found.__dict__)
    new.starts = tuple(start for start, _ in blocks)
    groups = [one.groups(lead) for one in shards]
    if not any(groups):
        return new
    looks = joined(groups)
    new.maps = tuple(
        None if m is None else _spread(m, rows.label, one, lead, looks)
        for m, one in zip(new.maps, shards, strict=True)
    )
    return new


def _spread(m: Map, label: str, shards: Shards, lead: int, looks: Groups) -> SpreadMap:
    """A map of which the first `lead` axes have been cut, cut along the others."""
    ndim = len(shards.shape)
    shape = (*shards.local_shape[:lead], *shards.shape[lead:])
    places, whole = ndim - m.dims, m.row_shape(shape)
    tied = [axis for axis in shards.axes if axis is not None and axis >= lead]
    cuts: Cuts = {axis - ndim: shards.blocks[axis] for axis in tied}
    first = min([places, *(axis + ndim for axis in cuts)])
    gathered = {
        axis + ndim - len(whole): block for axis, block in cuts.items() if axis + ndim < places
    }
    inner, flat = _here(m, label, shape, cuts), len(whole) - places
    found = SpreadMap(inner, ndim - first, whole[first:], flat, gathered)
    found.groups, found.looks, found.row_names = shards.groups(lead), looks, m.row_names
    found.is_total = m.is_total
    return found


def _here(m: Map, label: str, shape: Sequence[int], cuts: Cuts) -> Map:
    """The map on the part of a field that is here."""
    space = {axis: block for axis, block in cuts.items() if axis >= -m.dims}
    if isinstance(m, Sum):
        return Sum(_narrowed(m.weights, cuts, m.dims), m.dims)
    if isinstance(m, Regions):
        weights, labels = _narrowed(m.weights, cuts, m.dims), _narrowed(m.labels, space, m.dims)
        return Regions(weights, labels, *m.rows_of_place)
    if isinstance(m, Matrix) and m.matrix.layout == torch.strided:
        places = {axis - 1: block for axis, block in cuts.items() if axis < -m.dims}
        wide = m.matrix.unflatten(-1, m.sizes)
        wide = _narrowed(wide, {**space, **places}, m.dims)
        return Matrix(wide.flatten(-m.dims), tuple(wide.shape[wide.ndim - m.dims :]))
    return _listed(m, label, shape, space)


def _narrowed(x: Tensor, cuts: Cuts, dims: int) -> Tensor:
    """Cut along some axes; before the last `dims`, those along which it does not change are not."""
    for axis, block in cuts.items():
        if axis >= -dims or (x.ndim >= -axis and x.shape[axis] > 1):
            x = x.narrow(axis, *block)
    return x


def _listed(m: Map, label: str, shape: Sequence[int], space: Cuts) -> Matrix:
    """Any other map, by its entries: those of the points that are here."""
    found = m.nonzeros(shape)
    sizes = tuple(shape[len(shape) - m.dims :])
    if found is None or found[2].reshape(-1, found[2].shape[-1]).shape[0] != 1:
        raise InputError(
            f"`{label}` has other rows at every place, which are not cut into shards. Keep its "
            "last axes whole: shard those before them."
        )
    rows, points, values = found
    values = values.flatten()
    kept, number = torch.ones_like(points, dtype=torch.bool), torch.zeros_like(points)
    here, behind = [], math.prod(sizes)
    for axis, size in zip(range(-m.dims, 0), sizes, strict=True):
        start, count = space.get(axis, (0, size))
        behind //= max(size, 1)
        at = points // max(behind, 1) % max(size, 1) - start
        kept &= (at >= 0) & (at < count)
        number = number * count + at
        here.append(count)
    count = math.prod(m.row_shape(shape)[len(shape) - m.dims :])
    index = torch.stack([rows[kept], number[kept]])
    entries = torch.sparse_coo_tensor(index, values[kept], (count, math.prod(here)))
    return Matrix(entries.coalesce(), tuple(here))
