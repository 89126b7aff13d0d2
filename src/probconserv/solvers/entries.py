"""G as its entries: what all rows read of all points of a part, the fields side by side."""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..fields.blocks import same_once
from ..fields.covariances import Fields
from ..laws.law import Rows
from ..support.checks import broadcast_shapes

FULL = 1 / 32  # of all products of two rows at a point: where more are not 0, matrices are quicker
CHUNK = 1 << 22  # numbers that are worked on at a time


class Entries:
    """G of each part, (*lead, K, P). Axes of `lead` along which parts are the same have size 1."""

    def __init__(self, laws: Sequence[Rows], shapes: Sequence[Sequence[int]], lead: int) -> None:
        """Of laws on fields of `shapes`, of which the first `lead` axes number the parts."""
        sizes = [math.prod(shape[lead:]) for shape in shapes]
        device = laws[0].value.device
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        self.blocks: tuple[tuple[int, int, Tensor], ...] = ()  # first row, first point, full rows
        row = 0
        for law in laws:
            count = math.prod(law.row_shape(shapes)[lead:])
            point = 0
            for number, (m, shape, size) in enumerate(zip(law.maps, shapes, sizes, strict=True)):
                own = None if m is None else _of_parts(law, number, shape, lead)
                if own is not None:
                    rows, points, values = own
                    found.append((rows.to(device) + row, points.to(device) + point, values))
                elif m is not None:
                    self.blocks += ((row, point, _full(law, number, shape, lead, count)),)
                point += size
            row += count
        self.count, self.size = row, sum(sizes)
        leads = [v.shape[:-1] for _, _, v in found] + [b.shape[:-2] for _, _, b in self.blocks]
        self.lead = broadcast_shapes(*leads)
        none = torch.zeros(0, dtype=torch.int64, device=device)
        self._take([(none, none, torch.zeros(0, dtype=torch.float64, device=device)), *found])

    def _take(self, found: Sequence[tuple[Tensor, Tensor, Tensor]]) -> None:
        """Rows, points and values of entries, to be sorted by point."""
        rows, points, values = zip(*found, strict=True)
        self.points, order = torch.cat(points).sort(stable=True)
        every = [v.expand(*self.lead, -1).to(order.device) for v in values]
        self.rows, self.values = torch.cat(rows)[order], torch.cat(every, -1)[..., order]
        ends = torch.arange(self.size + 1, device=order.device)
        self.starts = torch.searchsorted(self.points, ends)

    def without_blocks(self) -> "Entries":
        """The same, with what is not 0 in full rows among the entries."""
        if not self.blocks:
            return self
        new, found = copy.copy(self), [(self.rows, self.points, self.values)]
        new.blocks = ()
        for row, point, full in self.blocks:
            there = (full != 0).reshape(-1, *full.shape[-2:]).any(0)
            k, j = there.nonzero().unbind(-1)
            found.append((row + k, point + j, full[..., k, j]))
        new._take(found)
        return new

    def scaled(self, pick: Callable[[Tensor, int], Tensor], rows: Tensor, points: Tensor) -> Self:
        """Those of some parts, in other units. pick: these parts; it is told the axes behind."""
        new = copy.copy(self)
        unit = rows.index_select(-1, self.rows) * points.index_select(-1, self.points)
        new.values = pick(self.values, 1) * unit
        new.lead = new.values.shape[:-1]
        new.blocks = ()
        for row, point, full in self.blocks:
            k, size = full.shape[-2:]
            unit = rows[..., row : row + k, None] * points[..., None, point : point + size]
            new.blocks += ((row, point, pick(full, 2) * unit),)
        return new

    def apply(self, x: Tensor) -> Tensor:  # (*lead, N, P) to (*lead, N, K)
        """G x."""
        terms = self.values[..., None, :] * x.index_select(-1, self.points)
        found = x.new_zeros(*terms.shape[:-1], self.count)
        found = found.scatter_add(-1, self.rows.expand(terms.shape), terms)
        for row, point, full in self.blocks:
            k, size = full.shape[-2:]
            found[..., row : row + k] += x[..., point : point + size] @ full.mT
        return found

    def adjoint(self, v: Tensor) -> Tensor:  # (*lead, N, K) to (*lead, N, P)
        """G^T v."""
        terms = self.values[..., None, :] * v.index_select(-1, self.rows)
        found = v.new_zeros(*terms.shape[:-1], self.size)
        found = found.scatter_add(-1, self.points.expand(terms.shape), terms)
        for row, point, full in self.blocks:
            k, size = full.shape[-2:]
            found[..., point : point + size] += v[..., row : row + k] @ full
        return found

    def sizes(self, x: Tensor) -> Tensor:  # (*lead, N, P) to (*lead, N, K)
        """|G| x."""
        new = copy.copy(self)
        new.values = self.values.abs()
        new.blocks = tuple((row, point, full.abs()) for row, point, full in self.blocks)
        return new.apply(x)

    @property
    def is_sparse(self) -> bool:
        """Whether rows share so few points that products are best formed one by one."""
        read = self.starts.diff().double()
        return not self.blocks and bool(
            (read * (read + 1)).sum() <= FULL * read.numel() * self.count**2 + 4 * read.sum()
        )

    def pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Entries of the same point, two by two: each with itself, with the next, and so on."""
        first = torch.arange(len(self.points), device=self.points.device)
        step = 0
        while len(first):
            yield first, first + step
            step += 1
            first = first[first + step < len(self.points)]
            first = first[self.points[first] == self.points[first + step]]

    def _in_pieces(self, x: Tensor, axes: int) -> Iterator[tuple["Entries", Tensor]]:
        """Entries and numbers for some of the first axis at a time, so that memory stays small."""
        lead = broadcast_shapes(self.lead, x.shape[: x.ndim - axes])
        each = max(1, len(self.points) * math.prod(lead[1:]))
        step = max(1, CHUNK // each) if lead else 1
        for start in range(0, max(lead[0], 1) if lead else 1, step):
            new, own = copy.copy(self), x
            if lead and step < lead[0]:
                some = slice(start, start + step)
                own = x if x.shape[0] == 1 else x[some]
                new.values = self.values if self.lead[0] == 1 else self.values[some]
                new.lead = new.values.shape[:-1]
            yield new, own

    def gram(self, variance: Tensor) -> Tensor:  # (*lead, P) to (*lead, K, K)
        """G D G^T of the variances of the points."""
        if self.is_sparse:
            each = [part._gram(d) for part, d in self._in_pieces(variance, 1)]
            return torch.cat(each) if len(each) > 1 else each[0]
        chunks = self.chunks(max(variance[..., :1].numel(), self.values[..., :1].numel()))
        terms = ((g * variance[..., None, at]) @ g.mT for at, g in chunks)
        return sum(terms, start=variance.new_zeros(*self.lead, self.count, self.count))

    def _gram(self, variance: Tensor) -> Tensor:
        keys, each = [self.rows[:0]], [self.values[..., :0] * variance[..., :0]]
        for number, (one, other) in enumerate(self.pairs()):
            g = self.values[..., one] * self.values[..., other] / (1 if number else 2)
            keys.append(self.rows[one] * self.count + self.rows[other])
            each.append(g * variance[..., self.points[one]])
        half = added_up(torch.cat(keys), torch.cat(each, -1), self.count**2)
        half = half.unflatten(-1, (self.count, self.count))
        return half + half.mT

    def form(self, matrix: Tensor) -> Tensor:  # (*lead, K, K) to (*lead, P)
        """g^T M g of the column g of each point, M symmetric; for few entries at each point."""
        each = [part._form(m) for part, m in self._in_pieces(matrix, 2)]
        return torch.cat(each) if len(each) > 1 else each[0]

    def _form(self, matrix: Tensor) -> Tensor:
        flat, found = matrix.flatten(-2), matrix.new_zeros(self.size)
        for number, (one, other) in enumerate(self.pairs()):
            g = self.values[..., one] * self.values[..., other] * (2 if number else 1)
            g = g * flat.index_select(-1, self.rows[one] * self.count + self.rows[other])
            points = self.points[one].expand(g.shape)
            found = found + g.new_zeros(*g.shape[:-1], self.size).scatter_add(-1, points, g)
        return found

    def chunks(self, parts: int) -> Iterator[tuple[slice, Tensor]]:
        """Columns of G, (*lead, K, points), with the points; so many that memory stays small."""
        step = max(1, CHUNK // max(1, parts * self.count))
        for start in range(0, self.size, step):
            at = slice(start, min(start + step, self.size))
            yield at, self._columns(at)

    @property
    def matrix(self) -> Tensor:  # (*lead, K, P)
        """All of it."""
        return self._columns(slice(0, self.size))

    def _columns(self, at: slice) -> Tensor:
        whole = [full for _, _, full in self.blocks if full.shape[-2:] == (self.count, self.size)]
        if whole and not len(self.points):
            return whole[0][..., at]
        some, width = (
            slice(int(self.starts[at.start]), int(self.starts[at.stop])),
            at.stop - at.start,
        )
        values = self.values[..., some]
        place = self.rows[some] * width + self.points[some] - at.start
        found = values.new_zeros(*self.lead, self.count * width)
        found = found.scatter_add(-1, place.expand(values.shape), values)
        found = found.unflatten(-1, (self.count, width))
        for row, point, full in self.blocks:
            k, size = full.shape[-2:]
            low, high = max(point, at.start), min(point + size, at.stop)
            if low < high:
                own = full[..., low - point : high - point]
                left = low - at.start, at.stop - high, row, self.count - row - k
                found = found + pad(own, left)
        return found


def added_up(keys: Tensor, x: Tensor, count: int) -> Tensor:  # (n,), (..., n) to (..., count)
    """The sums of the numbers with each key, rounded once: redundant rows are found by digits.

    The first digits of all numbers of a sum are whole multiples of one unit, so that they are
    added without rounding; what is left of them is tiny.
    """
    keys = keys.expand(x.shape)
    zero = x.new_zeros(*x.shape[:-1], count)
    with torch.no_grad():
        size = zero.scatter_add(-1, keys, x.abs())
        unit = (power_of_2(size) * 2.0**-51).gather(-1, keys)
        first = (x / unit).round_().mul_(unit)
    return zero.scatter_add(-1, keys, first) + zero.scatter_add(-1, keys, x - first)


def power_of_2(x: Tensor) -> Tensor:
    """The one just above each number; 1 for 0."""
    return torch.where(x > 0, x / torch.frexp(x).mantissa, 1.0)


def _of_parts(
    law: Rows, number: int, shape: Sequence[int], lead: int
) -> tuple[Tensor, Tensor, Tensor] | None:
    """The entries of a law on one field, with one copy for each place within a part."""
    m = law.maps[number]
    assert m is not None
    found = m.nonzeros(shape)
    if found is None:
        return None
    rows, points, values = found
    places = len(shape) - m.dims
    values = values[(None,) * (places + 1 - values.ndim)]
    if law.present is not None:
        own = law.present.shape[:places]  # which may be 1 where places share them
        inner = m.row_shape(shape)[places:]
        present = law.present.expand((*own, *inner)).reshape(*own, math.prod(inner))
        values = values * present[..., rows]
    values = same_once(values, lead)
    between = shape[lead:places]
    count = math.prod(between)
    if count == 1:
        return rows, points, values.flatten(lead)
    values = values.expand(*values.shape[:lead], *between, -1).flatten(lead)
    at = torch.arange(count, device=rows.device)[:, None]
    rows = at * math.prod(m.row_shape(shape)[places:]) + rows
    points = at * math.prod(shape[places:]) + points
    return rows.flatten(), points.flatten(), values


def _full(law: Rows, number: int, shape: Sequence[int], lead: int, count: int) -> Tensor:
    """Rows without zeros, as a matrix."""
    m = law.maps[number]
    assert m is not None
    tail = m.row_shape(shape)[lead:]
    eye = torch.eye(count, dtype=torch.float64, device=law.value.device)
    eye = eye.reshape(count, *[1] * lead, *tail)
    eye = eye if law.present is None else eye * law.present
    found = m.adjoint(eye)  # (K, *lead or 1, *shape)
    return same_once(found.flatten(lead + 1).movedim(0, -2), lead)


def side_by_side(fields: Fields, lead: int) -> Tensor:  # to (*lead or 1, P)
    """Fields of a state, or stacks of them, as one axis of points."""
    flat = [same_once(x, lead) for x in fields]
    flat = [x.flatten(lead) if x.ndim > lead else x[..., None] for x in flat]
    if len(flat) == 1:
        return flat[0]
    shape = broadcast_shapes(*(x.shape[:-1] for x in flat))
    return torch.cat([x.expand(*shape, -1) for x in flat], -1)
