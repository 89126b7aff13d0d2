"""S = G D G^T + sigma^2 where row k of G reads the points k, k + 1 and k + 2: five diagonals.

Rows and points come first in every array, (K, *lead) and (M, *lead). `Loop` is S = L D L^T, one row
after the other for all matrices of a batch at once: its work is linear in the number of rows.
`Small` is for few small matrices, as dense ones, in few steps.
"""

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..fields.blocks import root_of
from ..support.checks import broadcast_shapes, concrete
from ..support.slices import may_overwrite
from ..support.tree import Node

SMALL = 400_000  # entries of dense matrices up to which no loop along rows is worth its steps


class Pentadiagonal(Node, ABC):
    """S for one G and many D. `weights`: the three entries of each row of G, (3, K)."""

    stacked: tuple[str, ...] = ("variance", "noise")
    loose = ("weights",)

    def __init__(self, variance: Tensor, weights: Tensor, noise: Tensor) -> None:
        self.variance, self.weights, self.noise = variance, weights, noise

    @property
    @abstractmethod
    def pivots(self) -> Tensor:  # (K, *lead)
        """The variance of each row given those before it, 0 for rows that are dropped."""

    @property
    def most_growth(self) -> Tensor:
        """One number that is no less than `growth`, and cheap."""
        most = self.weights.square().sum(0).amax() * self.variance.amax() + self.noise.amax()
        return most / self.pivots.amin()

    @property
    def growth(self) -> Tensor:  # (*lead)
        """The largest variance of a row over its pivot: the rounding of `explained` grows so."""
        pivots, own = self.pivots, squared(self.variance, self.weights) + self.noise
        share = torch.where(pivots == 0, 1.0, own / pivots)
        return share.amax(0) if len(share) else share.sum(0)

    @property
    def log_det(self) -> Tensor:
        return torch.where(self.pivots == 0, 1.0, self.pivots).log().sum(0)

    def square(self, r: Tensor) -> Tensor:
        """r^T S^-1 r."""
        return self.whiten(r).square().sum(0)

    @abstractmethod
    def whiten(self, r: Tensor) -> Tensor:  # (K, *more, *lead)
        """W r with W^T W = S^-1: independent of unit variance when r ~ N(0, S).

        Here and in `square` and `move` r may be written over.
        """

    def _spread(self, v: Tensor) -> Tensor:
        """-D G^T v."""
        weights, variance = along_rows(self.weights, v.ndim), wide(self.variance, v.ndim)
        if not concrete(v, *weights, variance):
            none = (0, 0) * (v.ndim - 1)
            a, b, c = (pad(w * v, (*none, k, 2 - k)) for k, w in enumerate(weights))
            return -(a + b + c) * variance
        total = v.new_zeros(len(v) + 2, *v.shape[1:])
        for k, w in enumerate(weights):
            total[k : k + len(v)].addcmul_(w, v, value=-1)
        return total.mul_(variance)

    @abstractmethod
    def move(self, r: Tensor) -> Tensor:  # (K, *more, *lead) -> (M, *more, *lead)
        """-D G^T S^-1 r."""

    @abstractmethod
    def explained(self) -> Tensor:  # (M, *lead)
        """The diagonal of D G^T S^-1 G: the share of each variance that the rows explain."""


def factored(variance: Tensor, weights: Tensor, noise: Tensor, floor: Tensor) -> Pentadiagonal:
    """variance: D. noise: sigma^2, (K, *lead). A pivot not above `floor` counts as 0."""
    if concrete(variance, weights, noise) and noise.numel() * len(noise) <= SMALL:
        small = Small(variance, weights, noise)
        if small.works and bool((small.pivots > floor).all()):
            return small
    return Loop(variance, weights, noise, floor)


class Small(Pentadiagonal):
    """As dense matrices, (*lead, K, K); no row is dropped."""

    def __init__(self, variance: Tensor, weights: Tensor, noise: Tensor) -> None:
        super().__init__(variance, weights, noise)
        main, first, second = (x.movedim(0, -1) for x in diagonals(variance, weights, noise))
        matrix = main.diag_embed()
        for k, x in ((1, first), (2, second)):
            matrix.diagonal(k, -2, -1).copy_(x[..., k:])
            matrix.diagonal(-k, -2, -1).copy_(x[..., k:])
        self.root, failed = torch.linalg.cholesky_ex(matrix)
        self.works = not bool(failed.any())

    @property
    def pivots(self) -> Tensor:
        return self.root.diagonal(dim1=-2, dim2=-1).square().movedim(-1, 0)

    def whiten(self, r: Tensor) -> Tensor:
        found = torch.linalg.solve_triangular(self.root, self._columns(r), upper=False)
        return found.movedim((-2, -1), (0, 1)).reshape(r.shape)

    def move(self, r: Tensor) -> Tensor:
        found = torch.cholesky_solve(self._columns(r), self.root)
        return self._spread(found.movedim((-2, -1), (0, 1)).reshape(r.shape))

    def _columns(self, r: Tensor) -> Tensor:  # (*lead, K, N)
        lead = self.root.shape[:-2]
        more = math.prod(r.shape[1 : r.ndim - len(lead)])
        return r.reshape(len(r), more, *lead).movedim((0, 1), (-2, -1))

    def explained(self) -> Tensor:
        count = self.weights.shape[-1]
        rows = self.root.new_zeros(count, count + 2)  # G
        for k, x in enumerate(self.weights):
            rows.diagonal(k).copy_(x)
        white = torch.linalg.solve_triangular(self.root, rows, upper=False)
        return white.square().sum(-2).movedim(-1, 0) * self.variance


class Loop(Pentadiagonal):
    """Row after row. `near` and `far` are L_{k, k-1} and L_{k, k-2}."""

    stacked = ("variance", "near", "far", "inverses", "noise")

    def __init__(self, variance: Tensor, weights: Tensor, noise: Tensor, floor: Tensor) -> None:
        super().__init__(variance, weights, noise)
        look = concrete(variance, weights, noise)
        self._sweep(noise, None if look else floor)
        if look and not _plainly_above(floor, self.inverses):
            self._sweep(noise, floor)

    def _sweep(self, noise: Tensor, floor: Tensor | None) -> None:
        """L beside its diagonal, and 1 / D. Without `floor` no pivot is looked at."""
        main, first, second = diagonals(self.variance, self.weights, noise)
        near, far = Lines(first, main, into=first), Lines(second, main, into=second)
        inverses = Lines(main, first, into=main)
        between = near.zero  # S_{k, k-1} without what row k - 2 explains
        rows = zip(main.unbind(), first.unbind(), second.unbind(), strict=True)
        for k, (pivot, one, two) in enumerate(rows):
            share = two * inverses[k - 2]
            pivot = torch.addcmul(pivot, share, two, value=-1)
            far[k] = share if far.array is None else far.out[k].copy_(share)
            between = torch.addcmul(one, share, between, value=-1)
            near[k] = torch.mul(between, inverses[k - 1], out=near.out[k])
            pivot = torch.addcmul(pivot, near[k], between, value=-1)
            if floor is not None:
                pivot = torch.where(pivot > floor.expand(main.shape)[k], pivot, math.inf)
            inverses[k] = torch.reciprocal(pivot, out=inverses.out[k])
        self.near, self.far, self.inverses = near.joined(), far.joined(), inverses.joined()

    @property
    def pivots(self) -> Tensor:
        keep = self.inverses > 0
        return torch.where(keep, 1 / torch.where(keep, self.inverses, 1.0), 0.0)

    def whiten(self, r: Tensor) -> Tensor:
        y = self._forward(r).joined()
        return y * wide(root_of(self.inverses), y.ndim)

    def square(self, r: Tensor) -> Tensor:
        y = self._forward(r).joined()
        return (y.square() * wide(self.inverses, y.ndim)).sum(0)

    def move(self, r: Tensor) -> Tensor:
        z = self._forward(r)
        near, far = (*self.near.unbind(), z.zero), (*self.far.unbind(), z.zero, z.zero)
        for k, inverse in reversed([*enumerate(self.inverses.unbind())]):
            row = torch.mul(z[k], inverse, out=z.out[k])
            row = torch.addcmul(row, near[k + 1], z[k + 1], value=-1, out=z.out[k])
            z[k] = torch.addcmul(row, far[k + 2], z[k + 2], value=-1, out=z.out[k])
        return self._spread(z.joined())

    def _forward(self, r: Tensor) -> "Lines":
        y = Lines(r, self.inverses, into=r)
        rows = zip(r.unbind(), self.near.unbind(), self.far.unbind(), y.out, strict=True)
        for k, (row, near, far, out) in enumerate(rows):
            row = torch.addcmul(row, near, y[k - 1], value=-1, out=out)
            y[k] = torch.addcmul(row, far, y[k - 2], value=-1, out=out)
        return y

    def explained(self) -> Tensor:
        """From the last point to the first, with the diagonals of S^-1 on the way."""
        total = Lines(self.inverses, self.variance, self.weights[0], more=2)
        zero = total.zero
        a, b, c = (pad(x, (k, 2 - k)) for k, x in enumerate(self.weights))  # at each point
        weights = torch.stack((a * a, b * b, c * c, -2 * a * b, -2 * b * c, -2 * a * c))
        near, far = (zero, *self.near.unbind(), zero), (*self.far.unbind(), zero, zero)
        inverses = (zero, zero, *self.inverses.unbind())
        main, after, first = zero, zero, zero  # first and second: with a minus
        each = near, far, inverses, total.out, *(x.unbind() for x in along_rows(weights, a.ndim))
        points = zip(*each, strict=True)
        for k, (e1, e2, inverse, out, aa, bb, cc, ab, bc, ac) in reversed([*enumerate(points)]):
            row = torch.mul(aa, after, out=out)
            row = torch.addcmul(row, bb, main, out=out)
            row = torch.addcmul(row, ab, first, out=out)
            second = torch.addcmul(e2 * after, e1, first, value=-1)
            first = torch.addcmul(e1 * main, e2, first, value=-1)
            after, main = main, torch.addcmul(torch.addcmul(inverse, e1, first), e2, second)
            row = torch.addcmul(row, cc, main, out=out)
            row = torch.addcmul(row, bc, first, out=out)
            total[k] = torch.addcmul(row, ac, second, out=out)
        return total.joined().mul_(self.variance)


class Lines(dict[int, Tensor]):
    """Rows that are found one by one; zero before the first and after the last.

    Their places in one array, `out`, are None where they must be new tensors: for gradients, and
    where values are traced.
    """

    def __init__(self, *of: Tensor, more: int = 0, into: Tensor | None = None) -> None:
        """of: what they are made of, the first with as many rows less `more`.

        into: the array, if it may be written over.
        """
        first, count = of[0], len(of[0]) + more
        shape = broadcast_shapes(*(t.shape[1:] for t in of))
        self.array, self.zero = into, first.new_zeros(shape)
        if not may_overwrite(*of):
            self.array = None
        elif into is None or into.shape[1:] != shape:
            self.array = first.new_empty(count, *shape)
        self.out: Any = [None] * count if self.array is None else self.array.unbind()
        super().__init__(dict.fromkeys((-2, -1, count, count + 1), self.zero))

    def joined(self) -> Tensor:
        if self.array is not None:
            return self.array
        return torch.stack([self[k] for k in range(len(self.out))])


def _plainly_above(floor: Tensor, inverses: Tensor) -> bool:
    """Whether every pivot is above the largest floor."""
    if not inverses.numel():
        return True
    least, most = inverses.detach().aminmax()
    return bool((least > 0) & (most * floor.detach().amax() < 1))


def diagonals(variance: Tensor, weights: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
    """S_{k, k}, S_{k, k-1} and S_{k, k-2} of each row k, (K, *lead); 0 where k is too small."""
    a, b, c = weights
    products = pad(b, (1, 0))[:-1] * a, pad(c, (1, 0))[:-1] * b, pad(c, (2, 0))[:-2] * a
    ab, bc, ac = along_rows(torch.stack(products), variance.ndim)
    own = squared(variance, weights)
    main = torch.add(own, noise, out=own if may_overwrite(own, noise) else None)
    first = _plus(ab * variance[:-2], bc, variance[1:-1])
    return main, first, ac * variance[:-2]


def squared(variance: Tensor, weights: Tensor) -> Tensor:
    """The variance of each row without noise."""
    a, b, c = along_rows(weights.square(), variance.ndim)
    return _plus(_plus(a * variance[:-2], b, variance[1:-1]), c, variance[2:])


def _plus(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """x + a b, in the memory of x where that can be: `vmap` has no such step."""
    return x.addcmul_(a, b) if concrete(x, a, b) else torch.addcmul(x, a, b)


def along_rows(weights: Tensor, ndim: int) -> tuple[Tensor, ...]:
    """Numbers for each row, (N, K), as N tensors (K, 1, ...) with so many axes."""
    return weights.reshape(*weights.shape, *[1] * (ndim - 1)).unbind()


def rows_first(x: Tensor) -> Tensor:  # (*lead, K) -> (K, *lead)
    """A copy. Of two axes, which is what torch copies fast."""
    *lead, count = x.shape
    flat = x.reshape(math.prod(lead), count).mT
    return flat.clone(memory_format=torch.contiguous_format).reshape(count, *lead)


def by_rows(x: Tensor) -> Tensor:
    """The same numbers, (*lead, K), with the last axis first in memory."""
    return x if x.movedim(-1, 0).is_contiguous() else rows_first(x).movedim(0, -1)


def wide(x: Tensor, ndim: int) -> Tensor:
    """(K, *lead) with axes of size 1 after the first, to go with (K, *more, *lead)."""
    return x[(slice(None), *[None] * (ndim - x.ndim))]
