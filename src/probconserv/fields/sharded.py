"""Covariances of fields in shards, and random numbers for them.

Points have their numbers where they are. Directions that move points on several processes, and
noise of rows that stand on several, have the same numbers on all of these.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..support.checks import broadcast_shapes
from ..support.shards import Groups, Shards, generator_of, summed_over
from .blocks import blocks, root_of
from .covariances import Correlated, Fields, Independent, _product
from .gaussian import Normals, random_normals


class ShardNormals:
    """Standard normal numbers, for `n` draws on axis 0: those that processes share when called."""

    def __init__(
        self, n: int, seed: int, shards: Sequence[Shards], lead: int, like: Tensor
    ) -> None:
        """lead: how many first axes number the parts: what is shared differs along these alone."""
        together = generator_of(seed, "rows", shards[0].before(lead).place(), like=like)
        self.shared = random_normals(n, together, like.device)
        each = (
            generator_of(seed, f"points {i}", one.place(), like=like)
            for i, one in enumerate(shards)
        )
        self.points = [random_normals(n, own, like.device) for own in each]

    def __call__(self, *shape: int) -> Tensor:
        return self.shared(*shape)


class SpreadIndependent(Independent):
    """Independent points, of which each process has some."""

    def draw(self, normals: Normals) -> tuple[Tensor, ...]:
        assert isinstance(normals, ShardNormals)
        pairs = zip(self.variance, normals.points, strict=True)
        return tuple(root_of(d) * own(*d.shape) for d, own in pairs)


class SpreadCorrelated(Correlated):
    """Directions that move points on several processes."""

    shards: tuple[Shards, ...] = ()  # of each field
    groups: tuple[Groups, ...] = ()  # over which what is seen of each field is added up

    def joined(self, lead: int) -> "Correlated":
        dims = tuple(f.ndim - 1 - lead for f in self.directions)
        if dims == self.dims:
            return self
        found = tuple(map(_expanded, self.directions, self.dims, dims, self.shards))
        return self._with(directions=found, dims=dims)

    def seen(self, v: Fields) -> Tensor:
        total: Any = 0.0
        each = zip(v, self.shapes, self.dims, self.matrices, self.groups, strict=True)
        for x, shape, dims, f, groups in each:
            if x is not None:
                x = x.expand(broadcast_shapes(x.shape, shape))
                total = total + summed_over(_product(blocks(x, shape, dims), f.mT), groups)
        return total


def spread_covariance(
    covariance: Independent | Correlated, shards: Sequence[Shards], lead: int, rest: bool
) -> Independent | Correlated:
    """The same, of what is here of fields in shards. rest: whether some process has variances D."""
    if isinstance(covariance, Independent):
        return SpreadIndependent(covariance.variance)
    found = SpreadCorrelated.__new__(SpreadCorrelated)
    found.__dict__.update(covariance.__dict__)
    found.shards, found.groups = tuple(shards), tuple(one.groups(lead) for one in shards)
    if rest:
        zeros = tuple(f.new_zeros(f.shape[1:]) for f in found.directions)
        own = covariance.rest
        found.rest = SpreadIndependent(zeros if own is None else own.variance)
    return found


def _expanded(directions: Tensor, old: int, new: int, shards: Shards) -> Tensor:
    """Directions that move the last `old` axes, as those of all entries of more axes.

    Of these each process has a block, and directions that do not move it are 0 there.
    """
    ndim = len(shards.shape)
    between = range(ndim - new, ndim - old)
    sizes = [shards.shape[axis] for axis in between]
    size = math.prod(sizes)
    if size == 1 or not len(directions):
        return directions
    places = torch.eye(size, dtype=directions.dtype, device=directions.device)
    places = places.reshape(size, 1, *[1] * (ndim - new), *sizes, *[1] * old)
    for axis in between:
        places = places.narrow(2 + axis, *shards.blocks[axis])
    return (places * directions).flatten(0, 1)
