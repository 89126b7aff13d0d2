"""Maps on grids: each row reads a few points near it.

Rows and points lie on grids of the same axes (time, then space). A grid of points may be longer
than that of the rows by one, as times are than intervals and faces than cells.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, reduce
from types import EllipsisType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..support.checks import broadcast_shapes, concrete
from ..support.errors import InputError
from .maps import Map, Nonzeros, powered

Offset = tuple[int, ...]
Slices = tuple[EllipsisType | slice, ...]


class StencilGrid(NamedTuple):
    """Rows and points along the same axes; a ring where an axis wraps."""

    rows: tuple[int, ...]
    points: tuple[int, ...]
    wraps: tuple[bool, ...]

    @property
    def between_rows(self) -> "StencilGrid":
        return StencilGrid(self.rows, self.rows, self.wraps)


@lru_cache(maxsize=4096)
def pieces(grid: StencilGrid, offset: Offset) -> tuple[tuple[Slices, Slices], ...]:
    """Where row i and point i + offset both are: slices of the rows and of the points."""
    along = []
    for rows, points, wraps, o in zip(*grid, offset, strict=True):
        if wraps:
            o %= points
            both = [(slice(0, points - o), slice(o, points)), (slice(points - o, points), slice(o))]
            along.append([pair for pair in both if pair[0].start < pair[0].stop])
        else:
            low, high = max(0, -o), min(rows, points - o)
            along.append([(slice(low, high), slice(low + o, high + o))] if low < high else [])
    return tuple(
        ((..., *(r for r, _ in each)), (..., *(p for _, p in each)))
        for each in itertools.product(*along)
    )


def read(u: Tensor, grid: StencilGrid, offset: Offset) -> Tensor:
    """u at the point i + offset of each row i; 0 where there is none."""
    u = u.expand(*u.shape[: u.ndim - len(offset)], *grid.points)
    found = u.new_zeros(*u.shape[: u.ndim - len(offset)], *grid.rows)
    for rows, points in pieces(grid, offset):
        found[rows] = u[points]
    return found


class Stencil(Map):
    """Row i is the sum of c_o(i) u(i + o) over a few offsets o; a point beyond an end counts as 0.

    `terms` are pairs of o and c_o, each c_o of the size of the rows, or 1 along an axis. Those of
    offsets that lead to the same point are added up.
    """

    loose: tuple[str, ...] = ("coefficients",)
    is_local = True

    def __init__(
        self, grid: StencilGrid, terms: Iterable[tuple[Offset, Tensor]], row_names: tuple[str, ...]
    ) -> None:
        self.rows, self.points, self.wraps = grid
        own: dict[Offset, Tensor] = {}
        for o, c in terms:
            step = short(grid, o)
            own[step] = own[step] + c if step in own else c
        self.offsets, self.coefficients = tuple(own), tuple(own.values())
        self.dims, self.row_names = len(grid.rows), row_names

    @property
    def grid(self) -> StencilGrid:
        return StencilGrid(tuple(self.rows), tuple(self.points), tuple(self.wraps))

    def terms(self) -> Iterator[tuple[Offset, Tensor]]:
        """Offsets, and coefficients in full size."""
        for offset, c in zip(self.offsets, self.coefficients, strict=True):
            yield tuple(offset), c.expand(*c.shape[: c.ndim - self.dims], *self.rows)

    def apply(self, u: Tensor) -> Tensor:
        if not concrete(u, *self.coefficients):  # `vmap` cannot add to what it does not map
            return reduce(torch.add, (c * read(u, self.grid, o) for o, c in self.terms()))
        found = u.new_zeros(*u.shape[: u.ndim - self.dims], *self.rows)
        for offset, c in self.terms():
            for rows, points in pieces(self.grid, offset):
                found[rows].addcmul_(c[rows], u[points])
        return found

    def adjoint(self, v: Tensor) -> Tensor:
        if not concrete(v, *self.coefficients):
            back = StencilGrid(self.grid.points, self.grid.rows, self.grid.wraps)
            each = ((tuple(-step for step in o), c * v) for o, c in self.terms())
            return reduce(torch.add, (read(x, back, o) for o, x in each))
        found = v.new_zeros(*v.shape[: v.ndim - self.dims], *self.points)
        for offset, c in self.terms():
            for rows, points in pieces(self.grid, offset):
                found[points].addcmul_(c[rows], v[rows])
        return found

    def nonzeros(self, shape: Sequence[int]) -> Nonzeros:
        rows, points = (torch.arange(math.prod(n)).reshape(n) for n in self.grid[:2])
        read = [
            (rows[r].flatten(), points[p].flatten(), c[r].flatten(-self.dims))
            for offset, c in self.terms()
            for r, p in pieces(self.grid, offset)
        ]
        lead = broadcast_shapes(*(c.shape[:-1] for _, _, c in read))
        values = torch.cat([c.expand(*lead, -1) for _, _, c in read], -1)
        return torch.cat([r for r, _, _ in read]), torch.cat([p for _, p, _ in read]), values

    def entrywise(self, power: int) -> "Stencil":
        terms = zip(self.offsets, (powered(c, power) for c in self.coefficients), strict=True)
        return Stencil(self.grid, terms, self.row_names)

    def on(self, shape: Sequence[int]) -> "Stencil":
        check_points(shape, self.points)
        return self

    def row_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (*super().row_shape(shape), *self.rows)

    def plus(self, other: "Stencil") -> "Stencil":
        """The sum of two maps between the same grids."""
        offsets, each = self.offsets + other.offsets, self.coefficients + other.coefficients
        return Stencil(self.grid, zip(offsets, each, strict=True), self.row_names)


def check_points(shape: Sequence[int], points: Sequence[int]) -> None:
    if tuple(shape[max(len(shape) - len(points), 0) :]) != tuple(points):
        raise InputError(
            f"it reads a field that ends in {tuple(points)} (times, then space), but the field has "
            f"shape {tuple(shape)}."
        )


class Listed(Map):
    """Rows on lists of cells, one for each interval of time.

    Row (n, rows[e]) reads the points (n + o, columns[e]) with values[o][n, e].
    """

    loose = ("entries", "columns", "values")
    is_local = True
    dims = 2

    def __init__(
        self,
        entries: Tensor,
        columns: Tensor,
        values: tuple[Tensor, ...],  # for each time after the start, (N or 1, E)
        sizes: tuple[int, int],  # how many rows and points a time has
        row_names: tuple[str, ...],
    ) -> None:
        self.entries, self.columns, self.values, self.sizes = entries, columns, values, sizes
        self.count = max(len(v) for v in values)
        self.row_names = row_names

    @property
    def _points(self) -> tuple[int, int]:
        return self.count + len(self.values) - 1, self.sizes[1]

    def apply(self, u: Tensor) -> Tensor:
        found = u.new_zeros(*u.shape[:-2], self.count, self.sizes[0])
        for o, v in enumerate(self.values):
            read = u.narrow(-2, o, self.count).index_select(-1, self.columns)
            found = found.index_add(-1, self.entries, v * read)
        return found

    def adjoint(self, v: Tensor) -> Tensor:
        found: list[Tensor] = []
        for each in self.values:
            part = v.new_zeros(*v.shape[:-1], self.sizes[1])
            found.append(part.index_add(-1, self.columns, each * v.index_select(-1, self.entries)))
        last = len(found) - 1
        return torch.stack([pad(x, (0, 0, o, last - o)) for o, x in enumerate(found)]).sum(0)

    def nonzeros(self, shape: Sequence[int]) -> Nonzeros:
        times = torch.arange(self.count, device=self.columns.device)[:, None]
        after = range(len(self.values))
        rows = (times * self.sizes[0] + self.entries).flatten()
        points = [((times + o) * self.sizes[1] + self.columns).flatten() for o in after]
        values = [v.expand(self.count, -1).flatten() for v in self.values]
        return rows.repeat(len(points)), torch.cat(points), torch.cat(values)

    def entrywise(self, power: int) -> "Listed":
        values = tuple(powered(v, power) for v in self.values)
        return Listed(self.entries, self.columns, values, self.sizes, self.row_names)

    def plus(self, other: "Listed") -> "Listed":
        """The sum of two maps of as many times."""
        count = max(self.count, other.count)
        values = tuple(
            torch.cat([a.expand(count, -1), b.expand(count, -1)], -1)
            for a, b in zip(self.values, other.values, strict=True)
        )
        entries = torch.cat([self.entries, other.entries])
        columns = torch.cat([self.columns, other.columns])
        return Listed(entries, columns, values, self.sizes, self.row_names).merged()

    def merged(self) -> "Listed":
        """With one entry for each pair of row and column."""
        flat, place = (self.entries * self.sizes[1] + self.columns).unique(return_inverse=True)
        values = tuple(v.new_zeros(len(v), len(flat)).index_add(-1, place, v) for v in self.values)
        rows, columns = flat.div(self.sizes[1], rounding_mode="floor"), flat % self.sizes[1]
        return Listed(rows, columns, values, self.sizes, self.row_names)

    def on(self, shape: Sequence[int]) -> "Listed":
        check_points(shape, self._points)
        return self

    def row_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (*super().row_shape(shape), self.count, self.sizes[0])


class RowStencil(Stencil):
    """A stencil from rows to rows, with coefficients for each part, (*lead, *rows)."""

    loose = ()


def between_rows(
    every: Sequence[Map], variances: Sequence[Tensor], noise: Tensor
) -> RowStencil | None:
    """S = G D G^T + noise of independent points, from rows to rows; None if a map is no stencil.

    S(i, i + d) is the sum of c_o(i) D(i + o) c_p(i + d) over the offsets with o - p = d: of the
    points that both rows read.
    """
    maps = [m for m in every if isinstance(m, Stencil)]
    if len(maps) < len(every):
        return None
    own, dims = maps[0].grid.between_rows, maps[0].dims

    def terms() -> Iterator[tuple[Offset, Tensor]]:  # one at a time: each is as large as the rows
        yield (0,) * dims, noise
        for m, d in zip(maps, variances, strict=True):
            seen = [(o, c * read(d, m.grid, o)) for o, c in m.terms()]
            for (o, one), (p, other) in itertools.product(seen, m.terms()):
                step = short(own, tuple(a - b for a, b in zip(o, p, strict=True)))
                yield step, one * read(other, own, step)

    return RowStencil(own, terms(), maps[0].row_names)


def short(grid: StencilGrid, step: Offset) -> Offset:
    """A step between rows, the short way round where an axis is a ring."""
    triples = zip(step, grid.rows, grid.wraps, strict=True)
    return tuple((a + n // 2) % n - n // 2 if wraps else a for a, n, wraps in triples)
