"""Sums over the points of a block and back: rows of G, whatever regions or levels they stand for.

Arrays of a block are (I, P): I indices that no law sums over (times, say) and P points. K is the
number of rows of all laws together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Term:
    """What one law asks of one variable: a row is the sum of weights times u over its points."""

    weights: Array  # (I, P), or (1, P) if they are the same at every index
    labels: Array | None  # (P,), the row of each point within the law; None: all are of one row
    first: int  # row of the law among the rows of all laws
    rows: int

    @property
    def own(self) -> slice:
        return slice(self.first, self.first + self.rows)

    def total(self, values: Array) -> Array:  # (I, P) -> (I, rows)
        if self.labels is None and len(self.weights) == 1:
            # not BLAS, whose threads would fight with those that work on other blocks
            return np.einsum("ip,p->i", values, self.weights[0])[:, None]
        weighted = values * self.weights
        if self.labels is None:
            return weighted.sum(-1, keepdims=True)
        return np.stack([np.bincount(self.labels, each, self.rows) for each in weighted])

    def at_points(self, coefficients: Array) -> Array:  # (I, K) -> (I, P)
        """The law's part of G^T times the coefficients."""
        mine = coefficients[:, self.own]
        return self.weights * (mine if self.labels is None else mine[:, self.labels])

    def at(self, slab: slice) -> "Term":
        """The term of some indices."""
        return self if len(self.weights) == 1 else self._weighing(self.weights[slab])

    @cached_property
    def sizes(self) -> "Term":
        signed = (self.weights < 0).any()
        return self._weighing(np.abs(self.weights)) if signed else self

    @cached_property
    def squared(self) -> "Term":
        return self._weighing(self.weights**2)

    @cached_property
    def points(self) -> Array:
        """1 for every point that counts, else 0."""
        return (self.weights != 0).astype(float)

    @cached_property
    def out(self) -> Array:
        """Where no point counts."""
        return self.weights == 0

    @cached_property
    def full(self) -> bool:
        return not self.out.any()

    def _weighing(self, weights: Array) -> "Term":
        return Term(weights, self.labels, self.first, self.rows)

    def times(self, other: "Term") -> "Term":
        """Points that two laws share, with one row for each pair of their rows."""
        labels: Array | None = None
        if self.labels is not None or other.labels is not None:
            mine: Any = 0 if self.labels is None else self.labels
            labels = mine * other.rows + (0 if other.labels is None else other.labels)
        return Term(self.weights * other.weights, labels, 0, self.rows * other.rows)


Terms = Sequence[Term]


def totals(values: Array, terms: Terms, rows: int) -> Array:
    """G u, (I, P) -> (I, K)."""
    indices = max(len(values), *(len(term.weights) for term in terms))
    found = np.zeros((indices, rows))
    for term in terms:
        found[:, term.own] += term.total(values)
    return found


def seen_totals(values: Array, terms: Terms, rows: int) -> tuple[Array, Array, Array | None]:
    """G u over the points that are not NaN, u in double precision, and where it is NaN, if any."""
    values = values.astype(float, copy=False)
    with np.errstate(invalid="ignore"):
        found = totals(values, terms, rows)
    if np.isfinite(found).all():  # a NaN anywhere would show, whatever its weight
        return found, values, None
    missing = np.isnan(values) if (out := uncounted(terms)) is None else np.isnan(values) | out
    values = np.where(missing, 0.0, values)
    return totals(values, terms, rows), values, missing


def adjoint(terms: Terms, coefficients: Array) -> Array:
    """G^T times the coefficients, (I, K) -> (I, P)."""
    first, *rest = (term.at_points(coefficients) for term in terms)
    return sum(rest, start=first)


def squares(variance: Array, terms: Terms, rows: int, single: bool) -> Array:
    """G D G^T, (I, K, K); for a single law its diagonal, (I, K), since its rows are disjoint."""
    if single:
        return totals(variance, [term.squared for term in terms], rows)
    found = np.zeros((len(variance), rows, rows))
    for term in terms:
        for other in terms:
            pairs = term.times(other).total(variance)
            found[:, term.own, other.own] += pairs.reshape(-1, term.rows, other.rows)
    return found


def quadratic(terms: Terms, inverse: Array, single: bool) -> Array:
    """The diagonal of G^T S^-1 G at every point, (I, P)."""
    if single:
        return adjoint([term.squared for term in terms], inverse)
    found: Any = 0.0
    for term in terms:
        for other in terms:
            pairs = inverse[:, term.own, other.own].reshape(len(inverse), -1)
            found = found + term.times(other).at_points(pairs)
    return found


def counted(terms: Terms) -> Array:
    """1 where some law counts a point, else 0."""
    first, *rest = (term.points for term in terms)
    return np.minimum(sum(rest, start=first), 1.0)


def uncounted(terms: Terms) -> Array | None:
    """Where no law counts a point; None if every point is counted."""
    if any(term.full for term in terms):
        return None
    first, *rest = (term.out for term in terms)
    return reduce(np.logical_and, rest, first)


@dataclass(frozen=True)
class Layout:
    """Named arrays (I, ...) side by side in one array (I, C): what passes from task to task."""

    shapes: Mapping[str, tuple[int, ...]]

    @property
    def size(self) -> int:
        return sum(map(prod, self.shapes.values()))

    def pack(self, parts: Mapping[str, Array]) -> Array:
        return np.concatenate(
            [parts[name].reshape(len(parts[name]), -1) for name in self.shapes], axis=1
        )

    def unpack(self, packed: Array) -> dict[str, Array]:
        ends = np.cumsum([prod(shape) for shape in self.shapes.values()])[:-1]
        parts = np.split(packed, ends, axis=-1)
        return {
            name: part.reshape((*packed.shape[:-1], *shape))
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }
