"""The variance after many local rows, estimated from draws.

The rows take Var(l_j) off the variance of point j, where l = Sigma G^T S^-1 r and r ~ N(0, S) is
what the rows of a draw are off by. With any weights h on the rows P near the point,

    Var(l_j) = E[(l_j - h^T r_P)^2] + 2 h^T c_P - h^T S_PP h,    c = G Sigma e_j,

and only the first term is left to chance. With h = S_PP^-1 c_P it is small. What directions add
to independent points is not left to chance: it takes a solve for each.
"""

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from ..fields.blocks import blocks, eye_like, root_of
from ..fields.covariances import Correlated, Fields
from ..laws.stencils import Offset, Stencil, StencilGrid, read, short
from ..support.tolerances import UNMET
from .stages import minus

if TYPE_CHECKING:
    from .iterative import Iterative

DRAWS = 16  # with weights near every point
PLAIN_DRAWS = 128  # without
SEED = 20_230_723  # of the draws, so that the estimate is the same each time
AT_ONCE = 1 << 22  # numbers that are worked on at a time
UNSURE = 0.15  # relative error from which more draws are taken


class Estimate(NamedTuple):
    """How the variance of a field was estimated, and how well."""

    solves: int
    relative_error: float  # root mean square over its points, from the spread of the draws


Estimated: TypeAlias = tuple[Fields, tuple[Estimate, ...]]


def estimated(stage: "Iterative") -> Estimated:
    """The variance that the rows leave at every point, and how sure that of each field is."""
    if isinstance(stage.prior, Correlated) and stage.prior.rest is not None:
        found = _by_directions(stage, stage.prior, stage.of(stage.prior.rest))
        if found is not None:
            return found
    return _by_draws(stage, DRAWS)


def _by_directions(stage: "Iterative", prior: Correlated, rest: "Iterative") -> Estimated | None:
    """What is left of independent points, and of directions given these: V of u = F^T z + e.

    z has the covariance (I + H S^-1 H^T)^-1 with H = F G^T and S of the independent points, and
    moves F - H S^-1 G D. None where these points alone cannot meet the rows.
    """
    seen = stage.residual(prior.directions, value=False)  # H, (R, *lead, K)
    size = UNMET * stage.diagonal.sqrt()
    some = max(1, AT_ONCE // max(8 * stage.noise.numel(), 1))
    along = torch.cat([rest.solve(each, size) for each in seen.split(some)])
    left = (rest.product(along) - seen).detach().abs()
    if bool((left > 100 * size).any()):
        return None
    moved = minus(prior.directions, rest.prior.times(rest.adjoint(along)))
    inner = torch.einsum("r...k,s...k->...rs", seen, along)
    root = torch.linalg.cholesky(eye_like(inner) + (inner + inner.mT) / 2)
    found, errors = [], []
    variances, own = _by_draws(rest, DRAWS)
    for f, dims, v, each in zip(moved, prior.dims, variances, own, strict=True):
        white = torch.linalg.solve_triangular(root, blocks(f, v.shape, dims), upper=False)
        found.append(v + white.square().sum(-2).reshape(v.shape))
        share = (v / found[-1])[found[-1] > 0].detach()
        error = each.relative_error * root_mean_square(share)
        errors.append(Estimate(each.solves + len(seen), error))
    return tuple(found), tuple(errors)


def _by_draws(stage: "Iterative", count: int) -> Estimated:
    local = [i for i, matrix in enumerate(stage.matrices) if matrix is not None]
    law = max(local, key=lambda i: math.prod(stage.tails[i]), default=None)  # whose rows are near
    count = PLAIN_DRAWS if law is None else count
    y, r, moves = _draws(stage, count)
    found, errors = [], []
    for number, before in enumerate(stage.prior.variance):
        left = (y[number] - moves[number]).square().mean(0)
        error = torch.ones_like(left)  # in units of that of a mean square
        if law is not None and stage.rows[law].maps[number] is not None:
            known, chance = _near(stage, law, number, r, moves[number])
            left, error = _both(left, before - known, chance, stage.lead)
        found.append(left)
        size = math.sqrt(2 / count) * root_mean_square(error[before > 0].detach())
        errors.append(Estimate(count, size))
    if count < PLAIN_DRAWS and max(each.relative_error for each in errors) > UNSURE:
        return _by_draws(stage, PLAIN_DRAWS)
    return tuple(found), tuple(errors)


def diluted(each: Sequence[Estimate], own: Fields, more: Fields) -> tuple[Estimate, ...]:
    """Errors of variances that are a part of all, beside more that is known."""
    sums = [(e, v, v + s) for e, v, s in zip(each, own, more, strict=True)]
    shares = [(e, root_mean_square((v / both)[both > 0].detach())) for e, v, both in sums]
    return tuple(Estimate(e.solves, e.relative_error * share) for e, share in shares)


def _both(plain: Tensor, most: Tensor, chance: Tensor, lead: int) -> tuple[Tensor, Tensor]:
    """Two estimates of what is left, weighed as all of a part says; and their relative error.

    One is the mean square of the draws, `plain`; the other, which knows nothing of it, is `most`
    less a part that is left to chance. Weights that a point chose for itself would favour what is
    small by chance.
    """
    axes = tuple(range(lead, most.ndim))
    part = torch.where(most > 0, chance / most, torch.nan).detach()
    share = part.nanmean(axes, keepdim=True).nan_to_num(1.0).clamp(0, 1)
    weight = (1 - share).square() / (share.square() + (1 - share).square())
    left = weight * (most - chance) + (1 - weight) * plain
    left = torch.where(left > 0, left, plain)
    own = weight * chance / torch.where(left > 0, left, torch.inf)
    return left, (own.square() + (1 - weight).square()).sqrt()


def root_mean_square(x: Tensor) -> float:
    return float(x.square().mean().sqrt()) if x.numel() else 0.0


def _draws(stage: "Iterative", count: int) -> tuple[Fields, Tensor, Fields]:
    """Draws of the prior about 0, what their rows are off by, and how these move them."""
    device, lead = stage.noise.device, stage.lead
    seeds = [torch.Generator(device).manual_seed(SEED + i) for i in range(count)]

    def normals(some: list[torch.Generator], shape: Sequence[int]) -> Tensor:
        """The same for each part, so that a part alone has the same estimate."""
        own = (*[1] * lead, *shape[lead:])
        each = [torch.randn(own, generator=g, dtype=torch.float64, device=device) for g in some]
        return torch.stack(each).expand(len(some), *shape)

    per_draw = sum(v.numel() for v in stage.prior.variance) + 8 * stage.noise.numel()
    each: list[tuple[Fields, Tensor, Fields]] = []
    at_once = max(1, AT_ONCE // max(per_draw, 1))
    for start in range(0, count, at_once):
        some = seeds[start : start + at_once]
        y = stage.prior.draw(lambda *shape, some=some: normals(some, shape))
        noise = root_of(stage.noise) * normals(some, stage.noise.shape)
        r = stage.residual(y, value=False) + noise
        found = stage.solve(r, UNMET * stage.diagonal.sqrt())
        moves = zip(stage.prior.times(stage.adjoint(found)), y, strict=True)
        each.append((y, r, tuple(torch.zeros_like(own) if m is None else m for m, own in moves)))
    ys, rs, moved = zip(*each, strict=True)
    draws, shifts = (tuple(map(torch.cat, zip(*some, strict=True))) for some in (ys, moved))
    return draws, torch.cat(rs), shifts


def _near(
    stage: "Iterative", law: int, number: int, r: Tensor, moves: Tensor
) -> tuple[Tensor, Tensor]:
    """Of Var(l_j) at every point of one field what is known, and the part left to chance."""
    m: Any = stage.rows[law].maps[number]
    matrix, prior = stage.matrix(law), stage.prior
    assert matrix is not None
    rows = stage.parts(r)[law]
    known, chance = [], []
    size = max(1, AT_ONCE // max(1, 200 * moves[0].numel() // m.points[0]))
    for start in range(0, m.points[0], size):
        some = slice(start, min(start + size, m.points[0]))
        at: Any = (..., some, *[slice(None)] * (m.dims - 1))
        d = stage.own[number][at]
        patch = Patch(m, matrix, some)
        h = d.detach() * patch.weights
        sure = 2 * d * (patch.coefficients * h).sum(0) - torch.einsum(
            "p...,pq...,q...->...", h, patch.inner, h
        )
        if isinstance(prior, Correlated):
            seen = stage.rows[law].apply(prior.directions)  # G F^T, (R, *lead, *rows)
            across, f = patch.along(h, seen), prior.directions[number][at]
            sure = sure + (2 * f - across).mul(across).sum(0)
        left = (moves[at] - patch.along(h, rows)).square().mean(0)
        known.append(sure)
        chance.append(left)
    return torch.cat(known, -m.dims), torch.cat(chance, -m.dims)


class Patch:
    """The rows near some points of one field, and the weights S_PP^-1 g of each.

    Near are the rows that read a point, and those tied to them.
    """

    def __init__(self, m: Stencil, matrix: Stencil, some: slice) -> None:
        """some: the points of the first axis."""
        self.map, self.matrix, self.some = m, matrix, some
        readers = {short(m.grid, tuple(-a for a in o)): c for o, c in m.terms()}
        steps = dict(matrix.terms())
        self.offsets = list(readers)
        for q, step in itertools.product(readers, steps):
            other = short(m.grid, tuple(a + b for a, b in zip(q, step, strict=True)))
            if other not in self.offsets:
                self.offsets.append(other)
        lead = steps[(0,) * m.dims].shape[: -m.dims]
        shape = (*lead, some.stop - some.start, *m.points[1:])
        k = len(self.offsets)
        g = steps[(0,) * m.dims].new_zeros(k, *shape)
        inner = g.new_zeros(k, k, *shape)
        for a, q in enumerate(self.offsets):
            if q in readers:
                g[a] = self._at(readers[q], q)
            for b, p in enumerate(self.offsets):
                step = short(m.grid, tuple(y - x for x, y in zip(q, p, strict=True)))
                if step in steps:
                    inner[a, b] = self._at(steps[step], q)
        self.coefficients, self.inner = g, inner
        self.weights = _solved(inner.detach(), g.detach())

    def along(self, h: Tensor, rows: Tensor) -> Tensor:
        """h^T r_P at every point, for rows (*more, *lead, *rows)."""
        total: Any = 0.0
        for offset, each in zip(self.offsets, h, strict=True):
            total = total + each * self._at(rows, offset)
        return total

    def _at(self, rows: Tensor, offset: Offset) -> Tensor:
        """Numbers of the rows, at the points that lie `offset` before them."""
        some, (first, *others), m = self.some, self.map.rows, self.map
        low, high = max(0, some.start - 3), min(first, some.stop + 3)
        window = rows.narrow(rows.ndim - m.dims, low, high - low)
        sizes = (some.stop - some.start, *m.points[1:])
        grid = StencilGrid(sizes, (high - low, *others), tuple(m.wraps))
        return read(window, grid, (offset[0] + some.start - low, *offset[1:]))


def _solved(inner: Tensor, g: Tensor) -> Tensor:  # (k, k, ...), (k, ...) -> (k, ...)
    """S_PP^-1 g, with rows that are not there or cannot move left out."""
    matrix, right = inner.movedim((0, 1), (-2, -1)), g.movedim(0, -1)
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    there = diagonal > 0
    scale = torch.where(there, diagonal, math.inf).rsqrt()
    matrix = matrix * scale[..., None, :] * scale[..., :, None] + (~there).double().diag_embed()
    root, wrong = torch.linalg.cholesky_ex(matrix)
    found = torch.cholesky_solve((right * scale)[..., None], root)[..., 0] * scale
    found = torch.where((wrong != 0)[..., None], 0.0, found)
    return found.movedim(-1, 0)
