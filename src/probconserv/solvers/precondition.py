"""Approximate inverses of S for conjugate gradients.

A row of S is scaled by its diagonal. What is left is nearly the same at every row of a regular mesh
where variances are smooth: `Transform` inverts that operator with constant coefficients, along each
axis by its eigenvectors, or by Fourier transforms where it is a ring. Where neighbours differ much,
`Scaling` by the diagonal alone is better.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..laws.stencils import Offset, Stencil, StencilGrid, read
from ..support.tolerances import HOLDS, TINY
from ..support.tree import Node

ROUGH = 0.1  # share of the scaled matrix off its constant part from which scaling alone is used


class Scaling(Node):
    """r / diag S."""

    def __init__(self, diagonal: Tensor) -> None:  # (*lead, *rows)
        self.inverse = 1 / torch.where(diagonal > TINY, diagonal, math.inf)

    def __call__(self, r: Tensor) -> Tensor:
        return r * self.inverse


class Transform(Node):
    """The inverse of the scaled operator with constant coefficients."""

    loose = ("bases",)

    def __init__(self, matrix: Stencil) -> None:
        """matrix: S from rows to rows, its coefficients (*lead, *rows)."""
        self.dims, self.wraps = matrix.dims, matrix.wraps
        terms = dict(matrix.terms())
        diagonal = terms[(0,) * self.dims]
        usable = diagonal > TINY
        self.scale = torch.where(usable, diagonal, math.inf).rsqrt()
        axes = range(-self.dims, 0)
        steps = [tuple(int(a == axis) for a in axes) for axis in axes]
        ties = [self._ties(terms, matrix.grid, step) for step in steps]
        couplings = [self._coupling(tie, axis) for tie, axis in zip(ties, axes, strict=True)]
        near = {(0,) * self.dims, *steps, *(tuple(-s for s in step) for step in steps)}
        far = [c * self.scale * self.scale for step, c in terms.items() if step not in near]
        pairs = zip(ties, couplings, strict=True)
        off = [torch.where(tie == 0, 0.0, tie + c) for tie, c in pairs]
        self.roughness = 2 * _mean_square(off) + _mean_square(far)  # off its constant part
        if self.roughness >= ROUGH:  # it is not used then, and eigenvectors of a long axis are dear
            return
        excess = sum(terms.values()) * self.scale.square()  # 0 in the middle of a closed mesh
        there = torch.where(usable, excess, torch.nan).flatten(-self.dims)
        middle = there.nanmedian(-1).values.nan_to_num(0.0).clamp_min(0)
        symbol = middle[(..., *[None] * self.dims)]
        bases = []
        for axis, c in zip(axes, couplings, strict=True):
            basis, values = self._modes(axis, c, excess)
            bases.append(basis)
            symbol = symbol + c * values.reshape(-1, *[1] * (-1 - axis))
        floor = HOLDS * symbol.amax(tuple(axes), keepdim=True)
        least = torch.where(symbol > floor, symbol, math.inf).amin(tuple(axes), keepdim=True)
        least = torch.where(least.isfinite(), least, 1.0)
        self.inverse = 1 / torch.where(symbol > floor, symbol, least)
        self.bases = tuple(bases)

    def _ties(self, terms: dict[Offset, Tensor], grid: StencilGrid, step: Offset) -> Tensor:
        """What ties each row to the next along an axis, scaled."""
        if step not in terms:
            return torch.zeros_like(self.scale)
        return terms[step] * self.scale * read(self.scale, grid, step)

    def _coupling(self, ties: Tensor, axis: int) -> Tensor:  # (*lead, 1, ..., 1)
        """How strongly neighbours along an axis are tied, on average over the pairs."""
        pairs = math.prod(ties.shape[-self.dims :])
        pairs = pairs if self.wraps[axis] else pairs - pairs // ties.shape[axis]
        total = -ties.sum(tuple(range(-self.dims, 0)), keepdim=True)
        return (total / max(pairs, 1)).clamp_min(0)

    def _modes(self, axis: int, coupling: Tensor, excess: Tensor) -> tuple[Tensor | None, Tensor]:
        """Eigenvectors along an axis, None for Fourier's, and eigenvalues."""
        count = self.scale.shape[axis]
        angles = torch.arange(count, dtype=torch.float64, device=self.scale.device)
        if self.wraps[axis]:
            return None, 2 - 2 * (2 * math.pi / count * angles).cos()
        tied = float(coupling.mean())
        ends = [float(excess.select(axis, end).mean()) > tied / 2 for end in (0, count - 1)]
        return _between_ends(angles, *ends)

    def __call__(self, r: Tensor) -> Tensor:
        if not r.numel():  # of which there is no Fourier transform
            return r
        r = r * self.scale
        fourier = [a for a in range(-self.dims, 0) if self.bases[a] is None]
        sizes = [r.shape[a] for a in fourier]
        pairs = zip(range(-self.dims, 0), self.bases, strict=True)
        bases = [(axis, basis) for axis, basis in pairs if basis is not None]
        for axis, basis in bases:
            r = along(basis.mT, r, axis)
        if fourier:
            half = self.inverse.narrow(fourier[-1], 0, sizes[-1] // 2 + 1)
            r = torch.fft.irfftn(torch.fft.rfftn(r, dim=fourier) * half, sizes, fourier)
        else:
            r = r * self.inverse
        for axis, basis in bases:
            r = along(basis, r, axis)
        return r * self.scale


def _between_ends(n: Tensor, first: bool, last: bool) -> tuple[Tensor, Tensor]:
    """Waves on a line of rows 0, 1, ..., and their eigenvalues under second differences.

    first, last: whether that end is open, so that points beyond it can move.
    """
    count = len(n)
    place, order, period = {
        (True, True): (n + 1, n + 1, count + 1),
        (False, False): (n + 0.5, n, count),
        (True, False): (n + 1, n + 0.5, count + 0.5),
        (False, True): (n + 0.5, n + 0.5, count + 0.5),
    }[first, last]
    angles = math.pi / period * order
    waves = (place[:, None] * angles).sin() if first else (place[:, None] * angles).cos()
    return waves / waves.norm(dim=0), 2 - 2 * angles.cos()


def along(matrix: Tensor, r: Tensor, axis: int) -> Tensor:
    """A matrix times one axis."""
    shape = r.shape
    after = math.prod(shape[axis:][1:])
    flat = r.reshape(*shape[: axis % r.ndim], shape[axis], after)
    return (matrix @ flat).reshape(shape)


def _mean_square(each: Sequence[Tensor]) -> float:
    return sum(float(x.square().mean()) for x in each)
