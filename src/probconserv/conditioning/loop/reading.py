"""J, what rows read of the points of each part: a matrix where rows are few, else its entries.

An entry is what a row reads of a point: all of a matrix, (P, K, N), or those that are not 0,
(P, E). What is asked of J is asked of its entries, so that it is written once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor


class Reading(ABC):
    """J of P parts, or one for all."""

    values: Tensor  # (P or 1, *entries)
    count: int  # rows, K
    size: int  # points, N
    is_sparse: bool

    @abstractmethod
    def of_points(self, x: Tensor) -> Tensor:
        """Numbers of points, (P, N), at the entries."""

    @abstractmethod
    def of_rows(self, y: Tensor) -> Tensor:
        """Numbers of rows, (P, K), at the entries."""

    @abstractmethod
    def by_row(self, entries: Tensor) -> Tensor:
        """Their sums in each row, (P, K)."""

    @abstractmethod
    def by_point(self, entries: Tensor) -> Tensor:
        """Their sums at each point, (P, N)."""

    @abstractmethod
    def least(self, entries: Tensor) -> Tensor:
        """The least of them at each point, (P, N); inf where there are none."""

    @abstractmethod
    def beside(self, points: Tensor) -> tuple[Tensor, "Reading"]:
        """Points that are picked, (P, N), as rows after the others: their places, (P or 1, n)."""

    @abstractmethod
    def _new(self, values: Tensor) -> Self:
        """The same with other values."""

    def apply(self, u: Tensor) -> Tensor:  # (P, N) to (P, K)
        """J u."""
        return self.by_row(self.values * self.of_points(u))

    def back(self, v: Tensor) -> Tensor:  # (P, K) to (P, N)
        """J^T v."""
        return self.by_point(self.values * self.of_rows(v))

    def along(self, directions: Tensor) -> Tensor:  # (P, R, N) to (P, K, R)
        """J F^T."""
        return torch.stack([self.apply(f) for f in directions.unbind(1)], -1)

    def sizes(self, u: Tensor) -> Tensor:
        """|J| u."""
        return self._new(self.values.abs()).apply(u)

    def outer(self, a: Tensor, b: Tensor) -> Tensor:  # (P, K), (P, N)
        """a b^T at the entries: of each part, or the sum of all where they share J."""
        each = self.of_rows(a) * self.of_points(b)
        return each.sum(0, keepdim=True) if len(self.values) == 1 else each

    def variance(self, rest: Tensor, directions: Tensor | None) -> Tensor:  # (P, K)
        """Of the rows."""
        own = self._new(self.values.square()).apply(rest)
        return own if directions is None else own + self.along(directions).square().sum(-1)

    def span(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:  # (P, K) each
        """The least and the most of each row within bounds."""
        g, ends = self.values, (self.of_points(low), self.of_points(high))
        least, most = (
            self.by_row(torch.where(g == 0, 0.0, g * torch.where(g > 0, *each)))
            for each in (ends, ends[::-1])
        )
        return least, most

    def changed(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same of other parts, or without gradients."""
        return self._new(change(self.values))

    def only(self, rows: Tensor) -> Self:
        """The same with 0 in all rows but those that are picked, (P, K)."""
        return self._new(torch.where(self.of_rows(rows), self.values, 0.0))


class Full(Reading):
    """A matrix, (P or 1, K, N)."""

    is_sparse = False

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.count, self.size = values.shape[-2:]

    def _new(self, values: Tensor) -> "Full":
        return Full(values)

    def of_points(self, x: Tensor) -> Tensor:
        return x[:, None]

    def of_rows(self, y: Tensor) -> Tensor:
        return y[..., None]

    def by_row(self, entries: Tensor) -> Tensor:
        return entries.sum(-1)

    def by_point(self, entries: Tensor) -> Tensor:
        return entries.sum(-2)

    def least(self, entries: Tensor) -> Tensor:
        if not self.count:
            return entries.new_full((len(entries), self.size), torch.inf)
        return entries.amin(-2)

    def outer(self, a: Tensor, b: Tensor) -> Tensor:
        return (a.mT @ b)[None] if len(self.values) == 1 else a[..., None] * b[:, None]

    def apply(self, u: Tensor) -> Tensor:
        return product(self.values, u)

    def back(self, v: Tensor) -> Tensor:
        return product(self.values.mT, v)

    def along(self, directions: Tensor) -> Tensor:
        return self.values @ directions.mT

    def beside(self, points: Tensor) -> tuple[Tensor, Reading]:
        most = int(points.sum(-1).max()) if points.numel() else 0
        if not most:
            return torch.zeros(len(points), 0, dtype=torch.int64, device=points.device), self
        order = points.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
        places = order[:, :most]  # as many as the part with most of them has
        there = self.values.new_zeros(*places.shape, self.size)
        there.scatter_(-1, places[..., None], points.gather(-1, places)[..., None].to(there.dtype))
        return places, Full(torch.cat([self.values.expand(len(there), -1, -1), there], 1))


class Few(Reading):
    """The entries that are not 0, (P or 1, E), sorted by row."""

    is_sparse = True
    fill: int | None = None  # numbers in the factor of S, where they are few

    def __init__(self, values: Tensor, rows: Tensor, points: Tensor, count: int, size: int) -> None:
        """rows, points: of each entry, (E,)."""
        self.values, self.rows, self.points = values, rows, points
        self.count, self.size = count, size

    @classmethod
    def of(cls, values: Tensor, rows: Tensor, points: Tensor, count: int, size: int) -> "Few":
        """Of entries in any order, which add up where they are at one place."""
        keys, at = (rows * size + points).unique(return_inverse=True)
        total = values.new_zeros(len(values), len(keys)).index_add(-1, at, values)
        return cls(total, keys // size, keys % size, count, size)

    def _new(self, values: Tensor) -> "Few":
        return self._with(values, self.rows, self.points, self.count)

    def _with(self, values: Tensor, rows: Tensor, points: Tensor, count: int) -> "Few":
        new = Few(values, rows, points, count, self.size)
        new.fill = self.fill
        return new

    def of_points(self, x: Tensor) -> Tensor:
        return x.index_select(-1, self.points)

    def of_rows(self, y: Tensor) -> Tensor:
        return y.index_select(-1, self.rows)

    def by_row(self, entries: Tensor) -> Tensor:
        return entries.new_zeros(len(entries), self.count).index_add(-1, self.rows, entries)

    def by_point(self, entries: Tensor) -> Tensor:
        return entries.new_zeros(len(entries), self.size).index_add(-1, self.points, entries)

    def least(self, entries: Tensor) -> Tensor:
        found = entries.new_full((len(entries), self.size), torch.inf)
        return found.scatter_reduce(-1, self.points.expand(entries.shape), entries, "amin")

    def beside(self, points: Tensor) -> tuple[Tensor, Reading]:
        places = points.any(0).nonzero()[:, 0]  # of any part: entries are at the same places
        if not len(places):
            return places[None], self
        ones = self.values.new_ones(len(self.values), len(places))
        more = self.count + torch.arange(len(places), device=places.device)
        at: Any = zip((self.rows, self.points), (more, places), strict=True)
        rows, at_points = (torch.cat(pair) for pair in at)
        values = torch.cat([self.values, ones], -1)
        return places[None], self._with(values, rows, at_points, self.count + len(places))


def picked(t: Tensor, index: Tensor) -> Tensor:
    """Some parts of what has one axis of them, which is 1 where all share it."""
    return t if len(t) == 1 else t.index_select(0, index)


def product(matrix: Tensor, v: Tensor) -> Tensor:  # (P, K, N), (P, N) to (P, K)
    if len(matrix) == 1 and len(v) > 1:
        return v @ matrix[0].mT
    return (matrix @ v[..., None])[..., 0]
