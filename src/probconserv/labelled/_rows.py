"""G on a block of points: the rows of laws as weights and labels, all in NumPy."""

from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
PIECE = 4096  # points of one product: too few for BLAS to start threads of its own


def weighted_sum(u: Array, weights: Array) -> Array:  # (..., I, P) and (P) or (I, P) to (..., I)
    """The sum of u times weights over the points, in float64, in pieces that rounding likes."""
    whole = u.shape[-1] // PIECE * PIECE
    pieces = [x[..., :whole].reshape(*x.shape[:-1], -1, PIECE) for x in (u, weights)]
    found = _dot(*pieces).sum(-1)
    return found if whole == u.shape[-1] else found + _dot(u[..., whole:], weights[..., whole:])


def _dot(u: Array, weights: Array) -> Array:
    u = u.astype(float, copy=False)
    return np.matmul(u[..., None, :], weights[..., :, None])[..., 0, 0]


@dataclass(frozen=True, eq=False)
class Part:
    """The rows of one law: sums of weights times u over the points of each row."""

    weights: Array  # (P), or (I, P) if they change with the index
    labels: Array | None  # (P), the row of each point within the law; None: all are of one row
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
        return self.weights * (v if self.labels is None else v[..., self.labels])

    def entrywise(self, weights: Array) -> "Part":
        return replace(self, weights=weights)

    def times(self, other: "Part") -> "Part":
        """The points that two laws share, with a row for each pair of their rows."""
        labels: Array | None = None
        if self.labels is not None or other.labels is not None:
            mine: Any = 0 if self.labels is None else self.labels
            labels = mine * other.rows + (0 if other.labels is None else other.labels)
        return Part(self.weights * other.weights, labels, 0, self.rows * other.rows)


@dataclass(frozen=True, eq=False)
class BlockRows:
    """G on one block, (K, P): the rows of all laws."""

    parts: tuple[Part, ...]
    count: int  # K
    disjoint: bool  # whether no point is in two rows, so that G D G^T is diagonal
    variable: int = 0  # number of the variable that this is a block of

    def apply(self, u: Array) -> Array:  # (..., I, P) to (..., I, K)
        first, *others = self.parts
        if not others and first.rows == self.count:
            return first.apply(u)
        own = [part.apply(u) for part in self.parts]  # of some laws weights vary with the index
        lead = np.broadcast_shapes(*(each.shape[:-1] for each in own))
        found = np.zeros((*lead, self.count))
        for part, each in zip(self.parts, own, strict=True):
            found[..., part.own] += each
        return found

    def adjoint(self, v: Array) -> Array:  # (..., I, K) to (..., I, P)
        first, *others = (part.adjoint(v[..., part.own]) for part in self.parts)
        return sum(others, start=first)

    def gram(self, d: Array) -> Array:  # (I, P) to (I, K, K)
        """G diag(d) G^T; its diagonal (I, K), where it has no more."""
        if self.disjoint:
            return self.squared.apply(d)
        found = np.zeros((len(d), self.count, self.count))
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
    def _pairs(self) -> list[tuple[Part, Part, Part]]:
        return [(one, other, one.times(other)) for one in self.parts for other in self.parts]

    @cached_property
    def sizes(self) -> "BlockRows":
        """|G|."""
        if not any((part.weights < 0).any() for part in self.parts):
            return self
        parts = tuple(part.entrywise(np.abs(part.weights)) for part in self.parts)
        return replace(self, parts=parts)

    @cached_property
    def present(self) -> "BlockRows":
        """1 where G is not 0."""
        parts = tuple(part.entrywise((part.weights != 0).astype(float)) for part in self.parts)
        return replace(self, parts=parts)

    @cached_property
    def squared(self) -> "BlockRows":
        parts = tuple(part.entrywise(np.square(part.weights)) for part in self.parts)
        return replace(self, parts=parts)

    @cached_property
    def signs(self) -> "BlockRows":
        parts = tuple(part.entrywise(np.sign(part.weights)) for part in self.parts)
        return replace(self, parts=parts)

    @cached_property
    def are_plain(self) -> bool:
        """Whether all points are of one row, with weights above 0."""
        first, *others = self.parts
        return not others and first.labels is None and bool((first.weights > 0).all())

    @property
    def even(self) -> float | None:
        """The mean weight if there is one law, and one number is the std of all its points."""
        return self.parts[0].unit if self.disjoint else None

    @cached_property
    def whole(self) -> Array:  # (1, K) or (I, K)
        """The sums of ones."""
        return self.apply(np.ones((1, self.parts[0].weights.shape[-1])))

    @cached_property
    def left_out(self) -> Array | None:  # (P) or (I, P)
        """Which points no law counts; None if there are none."""
        out = [part.weights == 0 for part in self.parts]
        return reduce(np.logical_and, out) if all(x.any() for x in out) else None

    @property
    def counted(self) -> Array | float:
        """1 where some law counts a point, else 0."""
        return 1.0 if self.left_out is None else (~self.left_out).astype(float)

    @cached_property
    def relative_sizes(self) -> Array:  # (P) or (I, P)
        """|g| over the mean weight, by the first law that counts a point; inf if none does."""
        found: Any = 0.0
        for part in self.parts:
            found = np.where(found == 0, np.abs(part.weights) / (part.unit or 1.0), found)
        return np.where(found == 0, np.inf, found)

    def at(self, indices: slice) -> "BlockRows":
        """The same at some of the indices."""
        if all(part.weights.ndim == 1 for part in self.parts):
            return self
        parts = tuple(
            part if part.weights.ndim == 1 else part.entrywise(part.weights[indices])
            for part in self.parts
        )
        return replace(self, parts=parts)
