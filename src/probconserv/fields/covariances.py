"""Covariances of several fields at once: independent points, or these with shared directions.

Fields are tuples of arrays; None stands for zeros. A covariance has `times` and `variance`.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from ..support.checks import broadcast_shapes
from ..support.tree import Node
from .blocks import blocks, root_of, same_once, unblocks
from .gaussian import Normals

if TYPE_CHECKING:
    from ..laws.law import Rows

Fields: TypeAlias = tuple[Any, ...]  # a tensor for each field of a state; None stands for zeros
Dims: TypeAlias = tuple[int, ...]
Rounding: TypeAlias = tuple[tuple[float, Tensor], ...]


class Independent(Node):
    """Points that are independent of each other: the covariance is diagonal."""

    def __init__(self, variance: tuple[Tensor, ...]) -> None:
        self.variance = variance

    @property
    def shapes(self) -> list[torch.Size]:
        return [*map(Tensor.size, self.variance)]

    @property
    def lead(self) -> int:
        """How many first axes can number the parts."""
        return shared_axes(self.shapes)

    def joined(self, lead: int) -> "Independent":
        """The same: points stand alone, whatever the parts are."""
        return self

    def times(self, v: Fields) -> Fields:
        return tuple(None if x is None else d * x for d, x in zip(self.variance, v, strict=True))

    def draw(self, normals: Normals) -> tuple[Tensor, ...]:
        """Draws about 0."""
        return tuple(root_of(d) * normals(*d.shape) for d in self.variance)


class Correlated(Node):
    """Fields moved by shared directions, Sigma = F^T F + diag(D)."""

    stacked = ("directions",)

    def __init__(
        self, directions: Fields, rest: Independent | None, dims: Dims, rounding: Rounding
    ) -> None:
        """directions: F, (R, *shape) of each field. rest: D, None for 0.

        dims: how many last axes of each field share a direction. rounding: of the directions, a
        share of their size and a number at every point.
        """
        self.directions, self.rest, self.dims, self._rounding = directions, rest, dims, rounding

    def joined(self, lead: int) -> "Correlated":
        """The same, with directions of their own for what was a part and is now joined with others.

        lead: how many first axes still number the parts.
        """
        dims = tuple(f.ndim - 1 - lead for f in self.directions)
        if dims == self.dims:
            return self
        found = tuple(map(expanded, self.directions, self.dims, dims))
        return self._with(directions=found, dims=dims)

    @property
    def shapes(self) -> list[torch.Size]:
        return [f.shape[1:] for f in self.directions]

    @property
    def lead(self) -> int:
        """How many first axes number the parts."""
        return self.directions[0].ndim - 1 - self.dims[0]

    @property
    def variance(self) -> tuple[Tensor, ...]:
        shared = list(map(_squares, self.directions))
        if self.rest is None:
            return tuple(shared)
        return tuple(s + d for s, d in zip(shared, self.rest.variance, strict=True))

    def exactly(self) -> "Correlated":
        """The same as if nothing had been rounded."""
        none = tuple((0.0, torch.zeros_like(own)) for _, own in self._rounding)
        return self._with(_rounding=none)

    @property
    def rounding_at_points(self) -> tuple[Tensor, ...]:
        """Of directions that were taken off a mean, whose rounding they have; else 0."""
        return tuple(own for _, own in self._rounding)

    @property
    def matrices(self) -> list[Tensor]:  # (*lead, R, E)
        """F of each field, as a matrix for each part."""
        return list(map(blocks, self.directions, self.shapes, self.dims))

    def seen(self, v: Fields) -> Tensor:  # (*more, *shape) each to (*lead, N, R)
        """F v."""
        total: Any = 0.0
        for x, shape, dims, f in zip(v, self.shapes, self.dims, self.matrices, strict=True):
            if x is not None:
                x = x.expand(broadcast_shapes(x.shape, shape))
                total = total + _product(blocks(x, shape, dims), f.mT)
        return total

    def along(self, z: Tensor, more: tuple[int, ...] = ()) -> tuple[Tensor, ...]:
        """F^T z, (*lead, N, R) to (*more, *shape) each."""
        pairs = zip(self.matrices, self.shapes, strict=True)
        return tuple(unblocks(_product(z, f), (*more, *shape)) for f, shape in pairs)

    def times(self, v: Fields) -> Fields:
        pairs = [(x, f) for x, f in zip(v, self.directions, strict=True) if x is not None]
        x, f = pairs[0]
        product = self.along(self.seen(v), tuple(x.shape[: x.ndim - f.ndim + 1]))
        if self.rest is None:
            return product
        own = self.rest.times(v)
        return tuple(p if x is None else p + x for p, x in zip(product, own, strict=True))

    def draw(self, normals: Normals) -> tuple[Tensor, ...]:
        """Draws about 0."""
        z = normals(*self.shapes[0][: self.lead], len(self.directions[0]))
        shared = self.along(z.movedim(0, -2), (len(z),))
        if self.rest is None:
            return shared
        return tuple(x + e for x, e in zip(shared, self.rest.draw(normals), strict=True))

    def rounding(self, rows: "Rows") -> Tensor:
        """The variance of each row that the rounding of the directions alone can make."""
        pairs = zip(self._rounding, self.directions, strict=True)
        at = tuple(
            torch.add(least, _squares(f.detach()).sqrt(), alpha=share)
            for (share, least), f in pairs
        )
        return rows.entrywise(1).apply(at).detach().square()


def _product(x: Tensor, f: Tensor) -> Tensor:
    """x f of each part; of directions that all parts share as one product."""
    f = same_once(f, f.ndim - 2)
    shared = f.ndim > 2 and math.prod(f.shape[:-2]) == 1
    return x @ (f.reshape(f.shape[-2:]) if shared else f)


def _squares(f: Tensor) -> Tensor:
    """The squares of directions, summed; entries that share them are summed once."""
    return same_once(f, f.ndim, 1).square().sum(0).expand(f.shape[1:])


def shared_axes(shapes: Sequence[Sequence[int]]) -> int:
    """How many first axes all shapes have in common."""
    if len(shapes) == 1:
        return len(shapes[0])
    most = min(map(len, shapes))
    for axis in range(most):
        if any(shape[axis] != shapes[0][axis] for shape in shapes):
            return axis
    return most


def expanded(directions: Tensor, old: int, new: int) -> Tensor:
    """Directions that move the last `old` axes, as more of them that move the last `new` axes."""
    shape = directions.shape[1:]
    between = shape[len(shape) - new : len(shape) - old]
    size = math.prod(between)
    if size == 1 or not len(directions):
        return directions
    places = torch.eye(size, dtype=directions.dtype, device=directions.device)
    places = places.reshape(size, 1, *[1] * (len(shape) - new), *between, *[1] * old)
    return (places * directions).flatten(0, 1)
