"""Step 2 for independent points and rows that share no point, in two sweeps over the points.

    sums     G u, |G u|, and of d g^2 the largest and the sum of the others
    solve    S = sum d g^2 + sigma^2,  lambda = (G u - b) / S
    moves    u - d g lambda,  d - (d g)^2 / S

A field in float32 is read and written as such; only sums and the numbers of rows are in float64.
On a GPU kernels do it, see `kernels/`. Other devices, and a GPU without Triton, take block by
block.
"""

import importlib.util
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..support.checks import any_of
from ..support.rowwise import solved_by_row, sums_by_label
from ..support.tolerances import FIXED
from .points import Members, Moved, Points
from .stages import CARE

IN_CACHE = 1 << 17  # numbers of a block on a CPU
ON_GPU = 1 << 25  # and on a GPU
MOST_REGIONS = 65_535  # which CUDA can number along the last axis of a grid of programmes


@cache
def has_triton(device: int) -> bool:
    """Whether Triton is there, as it is with torch for Linux and CUDA, and knows this GPU."""
    known = torch.cuda.get_device_capability(device) >= (7, 0)
    return known and importlib.util.find_spec("triton") is not None


def has_kernels(x: Tensor) -> bool:
    """Whether `x` is on the GPU that is used now, and Triton is there."""
    if not x.is_cuda or x.device.index != torch.cuda.current_device():
        return False
    return has_triton(x.device.index)


def _fits(points: Points) -> bool:
    """Whether the kernels can be launched."""
    return has_kernels(points.u) and points.regions <= MOST_REGIONS


def moved(points: Points) -> Moved:
    """Mean and variance given the rows."""
    if not _fits(points):
        return _by_blocks(points)
    from .kernels.launch import moved as by_kernels

    return by_kernels(points)


def gradients(
    points: Points, found: Tensor, of_mean: Tensor | None, of_variance: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of u and d, (places, n), of b and sigma^2, (rows,), by those of mean and variance."""
    if _fits(points):
        from .kernels.launch import gradients as by_kernels

        return by_kernels(points, found, of_mean, of_variance)
    zero = torch.zeros_like(points.u[:1, :1]).expand(points.u.shape)
    m, v = (zero if x is None else x for x in (of_mean, of_variance))
    a, b = (points.value.new_zeros(len(points.u), points.regions) for _ in range(2))
    for at in _blocks(points):
        dg = at.d(points) * at.g(points)
        at.add(a, at.of(m) * dg)
        at.add(b, at.of(v) * dg.square())
    lam, inv = (x.reshape(a.shape) for x in found[:2])
    c = (a * lam + b * inv) * inv
    of_u, of_d = (torch.empty_like(points.u, dtype=points.dtype) for _ in range(2))
    for at in _blocks(points):
        g, m_i, v_i = at.g(points), at.of(m), at.of(v)
        at.put(of_u, m_i - g * at.each(a * inv))
        left = v_i * (1 - 2 * at.d(points) * g.square() * at.each(inv))
        at.put(of_d, left - m_i * g * at.each(lam) + g.square() * at.each(c))
    return of_u, of_d, (a * inv).flatten(), c.flatten()


def members_solved(given: Members) -> tuple[Tensor, Tensor, Tensor]:
    """What an ensemble on a GPU is moved by: see `kernels/members.py`."""
    from .kernels.launch import members_solved as by_kernels

    return by_kernels(given)


def members_moved(
    given: Members, by: Tensor, each: Tensor, all_of_them: bool
) -> tuple[Tensor, Tensor]:
    """Its mean or all members, moved; and the sums as stored."""
    from .kernels.launch import members_moved as by_kernels

    return by_kernels(given, by, each, all_of_them)


def joint_sums(u: Tensor, d: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """G u, (places, K), and G D G^T of rows that read the same points, on a GPU."""
    from .kernels.launch import joint_sums as by_kernels

    return by_kernels(u, d, g)


def joint_moves(
    u: Tensor, d: Tensor, g: Tensor, multipliers: Tensor, white: Tensor
) -> tuple[Tensor, ...]:
    """Mean and variance; G u and |G u| as stored, and what is looked at: `kernels/joint.py`."""
    from .kernels.launch import joint_moves as by_kernels

    return by_kernels(u, d, g, multipliers, white)


class _Block(NamedTuple):
    """Some points of some places."""

    places: slice
    points: slice
    labels: Tensor | None  # of these points

    def of(self, x: Tensor) -> Tensor:
        return x[self.places, self.points].double()

    def put(self, x: Tensor, new: Tensor) -> None:
        x[self.places, self.points] = new

    def d(self, given: Points) -> Tensor:
        return self._cyclic(given.d).double()

    def g(self, given: Points) -> Tensor:
        return self._cyclic(given.g)

    def _cyclic(self, x: Tensor) -> Tensor:
        if len(x) == 1:
            return x[:, self.points]
        index = torch.arange(self.places.start, self.places.stop, device=x.device) % len(x)
        return x[:, self.points].index_select(0, index)

    def each(self, row: Tensor) -> Tensor:  # (places, regions) to (places, points)
        """The number of the row of each point."""
        some = row[self.places]
        return some if self.labels is None else some.index_select(-1, self.labels)

    def add(self, total: Tensor, x: Tensor) -> None:
        one = x.sum(-1, keepdim=True) if self.labels is None else None
        own = one if one is not None else sums_by_label(x, self.labels, total.shape[-1])
        total[self.places] += own

    def raise_(self, most: Tensor, x: Tensor) -> None:
        """`most` of each row, at least what is here."""
        if self.labels is None:
            own = x.amax(-1, keepdim=True)
        else:
            index = self.labels.long().expand(x.shape)
            own = x.new_zeros(len(x), most.shape[-1]).scatter_reduce(-1, index, x, "amax")
        most[self.places] = torch.maximum(most[self.places], own)


def _blocks(points: Points) -> Iterator[_Block]:
    places, n = points.u.shape
    size = ON_GPU if points.u.is_cuda else IN_CACHE
    labels = None if points.listed is None else points.listed.labels
    wide = min(n, size)
    step = max(1, size // max(wide, 1))
    for start in range(0, places, step):
        for first in range(0, n, wide):
            some = slice(first, min(first + wide, n))
            here = slice(start, min(start + step, places))
            yield _Block(here, some, None if labels is None else labels[some])


def _by_row(points: Points, x: Tensor) -> Tensor:  # (rows,) or (1,) to (places, regions) or (1, 1)
    return x.reshape(-1, points.regions) if len(x) > 1 else x.reshape(1, 1)


def _by_blocks(points: Points) -> Moved:
    shape = len(points.u), points.regions
    total, own, most, others = (points.value.new_zeros(shape) for _ in range(4))
    for at in _blocks(points):
        x, v, g = at.of(points.u), at.d(points), at.g(points)
        e = v * g.square()
        at.add(total, torch.addcmul(torch.where(v >= 0, 0 * v, torch.nan), x, g))
        at.add(own, e)
        at.raise_(most, e)
    value, noise = (_by_row(points, x).expand(shape) for x in (points.value, points.noise))
    _, inverse = solved_by_row(own, noise)
    multiplier = (total - value) * inverse
    if any_of(most * inverse > 1 - CARE):
        for at in _blocks(points):
            e = at.d(points) * at.g(points).square()
            at.add(others, torch.where(e * at.each(inverse) > 1 - CARE, 0.0, e))
    share = (others + noise) * inverse
    share = torch.where((noise == 0) & (share < FIXED), 0.0, share)
    mean, variance = (torch.empty_like(points.u, dtype=points.dtype) for _ in range(2))
    after, terms = torch.zeros_like(total), torch.zeros_like(total)
    for at in _blocks(points):
        v, g = at.d(points), at.g(points)
        at.put(mean, torch.addcmul(at.of(points.u), v * g, at.each(multiplier), value=-1))
        lost = v * g.square() * at.each(inverse)
        at.put(variance, v * torch.where(lost > 1 - CARE, at.each(share), 1 - lost))
        stored = at.of(mean) * g
        at.add(after, stored)
        at.add(terms, stored.abs())
    size = terms + value.abs()
    missed = (after - value).abs() / torch.where(size > 0, size, 1.0)
    missed = torch.where(noise == 0, missed, 0 * missed)
    far = multiplier.square() * most
    found = torch.stack([multiplier, inverse, far, missed + 0 * total, most * inverse])
    return Moved(mean, variance, found.flatten(1))
