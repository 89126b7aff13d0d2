"""Fields as vectors, and what laws and order read of them: J of each part."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...fields.covariances import Fields
from ...laws.law import Rows
from ...laws.maps import Known, Map, Matrix
from ...solvers.cholesky import MOST_NUMBERS
from ...solvers.entries import FULL as SHARED
from ...solvers.entries import Entries
from ...support.errors import InputError
from ...support.tolerances import HOLDS
from .factors import fill
from .reading import Few, Full, Reading

FEW = 300  # rows up to which they are a matrix
MOST_ROWS, MOST = 2500, 1 << 27  # rows and directions of a matrix; times its points


@dataclass(frozen=True)
class Layout:
    """Fields as vectors: for each part the points of all fields side by side."""

    shapes: tuple[torch.Size, ...]
    lead: int  # how many first axes number the parts

    @property
    def sizes(self) -> list[int]:
        return [math.prod(shape[self.lead :]) for shape in self.shapes]

    @property
    def parts(self) -> int:
        return math.prod(self.shapes[0][: self.lead])

    def count(self, rows: Rows) -> int:
        """Of the rows of a law in a part."""
        return math.prod(rows.row_shape(self.shapes)[self.lead :])

    def flat(self, fields: Fields, more: int = 0) -> Tensor:  # (*more, *shape) to (*more, parts, N)
        triples = zip(fields, self.shapes, self.sizes, strict=True)
        each = [
            x.expand((*x.shape[:more], *shape)).reshape(*x.shape[:more], self.parts, n)
            for x, shape, n in triples
        ]
        return torch.cat(each, -1)

    def fields(self, flat: Tensor) -> Fields:  # (*more, parts, N)
        pairs = zip(flat.split(self.sizes, -1), self.shapes, strict=True)
        return tuple(x.reshape(*flat.shape[:-2], *shape) for x, shape in pairs)

    def matrix(self, rows: Rows) -> Tensor:  # (parts, K, N)
        """The rows of a law."""
        shape = rows.row_shape(self.shapes)
        count = self.count(rows)
        eye = torch.eye(count, dtype=torch.float64, device=rows.value.device)
        wide = eye.reshape(count, *[1] * self.lead, *shape[self.lead :]).expand((count, *shape))
        found = [
            eye.new_zeros(()).expand((count, *n)) if x is None else x
            for x, n in zip(rows.adjoint(wide), self.shapes, strict=True)
        ]
        return self.flat(tuple(found), 1).movedim(0, 1)

    def of_rows(self, rows: Rows, x: Tensor, more: int = 0) -> Tensor:  # to (*more, parts, K)
        shape = *x.shape[:more], *rows.row_shape(self.shapes)
        return x.expand(shape).reshape(*x.shape[:more], self.parts, self.count(rows))


def pairs_that_rise(
    slopes: Sequence[Sequence[tuple[int, int]]], shapes: Sequence[Sequence[int]]
) -> Tensor:  # (K, 2)
    """Neighbours of which the first must not be larger, of the points of a part.

    slopes: of each field, (axis, sign). shapes: of each field in one part.
    """
    pairs, start = [torch.zeros(0, 2, dtype=torch.int64)], 0
    for own, shape in zip(slopes, shapes, strict=True):
        numbers = start + torch.arange(math.prod(shape)).reshape(shape)
        for axis, sign in own:
            last = numbers.shape[axis] - 1
            ends = numbers.narrow(axis, 0, last), numbers.narrow(axis, 1, last)
            pairs.append(torch.stack([x.flatten() for x in ends[::sign]], -1))
        start += math.prod(shape)
    return torch.cat(pairs)


def rows_that_rise(pairs: Tensor, points: int) -> Tensor:
    """Their differences, which must not be negative, as a sparse matrix, (K, N)."""
    rows = torch.arange(len(pairs), device=pairs.device).repeat_interleave(2)
    signs = torch.tensor([-1.0, 1.0], dtype=torch.float64, device=pairs.device)
    at, size = torch.stack([rows, pairs.flatten()]), (len(pairs), points)
    return torch.sparse_coo_tensor(
        at, signs.repeat(len(pairs)), size, check_invariants=True
    ).coalesce()


def reading_of(
    laws: Sequence[Rows], layout: Layout, pairs: Tensor, directions: int, thin: bool
) -> tuple[Reading, int]:
    """J, of what must not fall and then of laws; and how many numbers work on a part takes.

    Many rows that share few points are known by their entries, all others are a matrix; so they
    are where directions move some points alone (thin), which makes S full.
    """
    points = sum(layout.sizes)
    width = len(pairs) + sum(layout.count(rows) for rows in laws)
    found = None if thin or width <= FEW else _entries(laws, layout, pairs, width)
    if found is not None:
        found.fill = fill(found)
        return found, (found.fill or MOST_NUMBERS) + (1 + directions) * (width + points)
    check_size(points, max(1, width + directions))
    matrices = [layout.matrix(rows) for rows in laws]
    rising = rows_that_rise(pairs, points).to_dense()
    rising = rising.expand(max([1, *map(len, matrices)]), -1, -1)
    return Full(torch.cat([rising, *matrices], 1)), max(1, width + directions) * points


def _entries(laws: Sequence[Rows], layout: Layout, pairs: Tensor, width: int) -> Few | None:
    """The rows by their entries; None where too many of these are at the same points."""
    shapes, lead, points = layout.shapes, layout.lead, sum(layout.sizes)
    full = [rows for rows in laws if not rows.is_sparse(shapes)]
    if sum(layout.count(rows) for rows in full) * points > MOST:
        return None
    signs = torch.tensor([-1.0, 1.0], dtype=torch.float64, device=pairs.device)
    numbers = torch.arange(len(pairs), device=pairs.device).repeat_interleave(2)
    found = [(signs.repeat(len(pairs))[None], numbers, pairs.flatten())]
    if laws:
        own = Entries(laws, shapes, lead).without_blocks()
        values = own.values
        if math.prod(own.lead) > 1:
            values = values.expand(*shapes[0][:lead], -1)
        values = values.reshape(-1, values.shape[-1])
        found.append((values, own.rows + len(pairs), own.points))
    parts = max(len(values) for values, _, _ in found)
    values = torch.cat([x.expand(parts, -1) for x, _, _ in found], -1)
    rows, at = (torch.cat(each) for each in list(zip(*found, strict=True))[1:])
    read = torch.bincount(at, minlength=points).double()
    products = float((read * (read + 1)).sum())
    if products > SHARED * points * width**2 or products > MOST:
        return None
    return Few.of(values, rows, at, width, points)


def check_size(points: int, width: int) -> None:
    """width: rows and directions of a part that are a matrix."""
    if width > MOST_ROWS or width * points > MOST:
        raise InputError(
            f"`laws`: these tie {points} points to each other, by {width} rows and directions that "
            f"read many points each. Inequalities beside them are solved for up to {MOST_ROWS} of "
            f"these, and {MOST} as the product of the two. Ways out: laws and inequalities at each "
            "time by itself, sums of fewer points, a field of independent points with one exact "
            "law, or a coarser grid."
        )


def at_bounds(
    u: Fields, ends: Sequence[tuple[Tensor, Tensor, Any]], sizes: Sequence[Tensor], lead: int
) -> list[Rows]:
    """What is at a bound, or tied by order, as exact rows.

    ends: low, high and slopes of each field; none where there are no inequalities. sizes: what
    differences are small beside.
    """
    found = []
    for i, (low, high, slopes) in enumerate(ends):
        x, own = u[i], u[i].shape[lead:]
        there = ((x == low) | (x == high)).double()
        maps: list[tuple[str, Map, Tensor, Tensor | None]] = []
        maps.append(("bounds", Known(there), there * x.detach(), None))
        if slopes:
            pairs = pairs_that_rise([slopes], [own]).to(x.device)
            rising = Matrix(rows_that_rise(pairs, math.prod(own)), own)
            level = (rising.apply(x).abs() <= HOLDS * rising.entrywise(1).apply(sizes[i])).double()
            maps.append(("monotone", rising, torch.zeros_like(level), level))
        for label, one, value, present in maps:
            each = tuple(one if i == j else None for j in range(len(u)))
            found.append(Rows(label, each, value, torch.zeros_like(value), present, True))
    return found
