"""One engine: fields given laws. The structure of fields and laws picks the stages in one place.

    statistics   G mu, G F^T, G D G^T     of a prior with Sigma = F^T F + diag(D)
    solve        S lambda = G mu - b
    update       mu - (F^T F + diag(D)) G^T lambda

`Chain` conditions on one stage after the other; `Shared` adds directions F on top of a chain for
the independent rest. Both work on tuples of arrays, one for each field of a state.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..fields.blocks import root_of, unblocks
from ..fields.covariances import Correlated, Fields, Independent, shared_axes
from ..fields.gaussian import Normals
from ..fields.latent import LatentPosterior
from ..laws.law import Rows
from ..support.checks import any_of, concrete
from ..support.once import once
from ..support.tolerances import FIXED, HALF_THE_DIGITS, SURE
from ..support.tree import Node
from .banded import by_rows
from .estimate import Estimate, diluted
from .iterative import Iterative
from .joint import Joint
from .stages import (
    Banded,
    ByRow,
    Numbers,
    SinglePoints,
    Stage,
    much_left,
    share_no_point,
    summed,
    thin,
    without_rounding,
)
from .tridiagonal import Tridiagonal, chained

MOST_DENSE = 512  # rows of one part up to which local ones are always solved by a dense matrix
MOST_WORK = 1 << 36  # products up to which they are if they form no chain of times
MOST_MEMORY = 1 << 25  # numbers in all matrices, the same
MANY = 32  # matrices of five diagonals that are worth a loop along their rows
MOST_NUMBERS = 1 << 25  # of rows at points, up to which variances are computed a second time
FEW = 16  # joint rows up to which a traced computation takes the dense system


class Chain(Node):
    """Fields given laws: stages one after the other, each given those before."""

    bands: tuple[int, ...] = ()  # the fields with five diagonals, whose arrays lie by rows
    is_iterative = False
    is_simple = True  # whether exact rows hold to rounding without `settle`

    def __init__(
        self,
        laws: tuple[Rows, ...],
        root: Independent | Correlated,
        lead: int,
        slack: float = 0.0,
        banded: bool = True,
    ) -> None:
        """lead: how many first axes number the parts. banded: whether five diagonals are used.

        slack: what the rounding of the input may leave of an exact row, as a share of its terms.
        """
        self.laws, self.root, self.lead = laws, root, lead
        self.stages: tuple[Any, ...] = ()
        left: Any = root
        if isinstance(root, Independent) and share_no_point(laws):
            self.covariance = Numbers(laws[0], root, root)
            self.stages = (self.covariance,)
            return
        shapes = root.shapes
        banded = banded and not _many(laws, shapes)
        single = _single(laws, root, shapes, banded) if isinstance(root, Independent) else []
        self.bands = tuple([r.first for r in single if r.map.is_difference])
        if self.bands:
            each = enumerate(root.variance)
            found = tuple([by_rows(d) if i in self.bands else d for i, d in each])
            left = self.root = root = Independent(found)
        for rows in single:
            assert isinstance(root, Independent)
            if rows.map.is_difference:
                left = Banded(rows, left, root)
                self.stages += (left,)
            else:
                self.stages += (SinglePoints(rows, left, root),)
                left = self.stages[-1].left
        if general := tuple(rows for rows in laws if rows not in single):
            left = _general(general, left, root, lead, slack)
            self.stages += (left,)
        self.covariance = left
        self.is_iterative = isinstance(left, Iterative)
        self.is_simple = all(isinstance(stage, ByRow) for stage in self.stages)

    @property
    def is_banded(self) -> bool:
        return bool(self.bands)

    @property
    def has_determinant(self) -> bool:
        """Whether S is factored."""
        return not self.is_iterative or self.stages[-1].known is not None

    def run(
        self, u: Fields, noise: Sequence[Tensor | float] | None = None, value: bool = True
    ) -> tuple[Fields, list[Tensor]]:
        """Means or draws of the prior, moved to the laws; and the residuals that they had."""
        residuals = []
        for number, stage in enumerate(self.stages):
            r = stage.residual(u, value)
            r = r if noise is None else r + noise[number]
            u = stage.shift(u, r)
            residuals.append(r)
        return u, residuals

    def weighed(self, u: Fields, residuals: Sequence[Tensor]) -> Tensor | None:
        """How far noisy rows of the last stage are from G u - b = sigma^2 lambda, beside sizes."""
        last = self.stages[-1]
        if not isinstance(last, Joint | Tridiagonal) or not any_of(last.noise > 0):
            return None
        return (last.residual(u) - last.noise * last.multiplier(residuals[-1])) * (last.noise > 0)

    def settle(self, u: Fields, value: bool = True) -> Fields:
        """`u` with the rounding taken off its exact rows."""
        for stage in self.stages:
            u = stage.settle(u, value)
        return u

    @property
    def estimate(self) -> tuple[Estimate, ...] | None:
        """How the variance of each field was estimated; None where it is exact."""
        return self.stages[-1].estimate if self.is_iterative else None

    @property
    def has_estimated(self) -> bool:
        """Whether a variance was asked for, and estimated."""
        return self.is_iterative and self.stages[-1].has_estimated

    @property
    def makes_variance(self) -> bool:
        """Whether `variance` is cheap and new at every call, so that nobody else holds it."""
        last = self.stages[-1]
        return isinstance(last, Numbers) and None not in last.rows[0].maps

    def times(self, v: Fields) -> Fields:
        return self.covariance.times(v)

    @property
    def variance(self) -> Fields:
        found = self.covariance.variance
        if self.is_banded:
            if not concrete(*found):
                return found
            before = next(s.prior.variance for s in self.stages if isinstance(s, Banded))
            triples = [*zip(found, before, self._least_sure(), strict=True)]
            if all(much_left(*each) for each in triples):
                return found
            lost = [v < share * d for v, d, share in triples]
            if any(map(any_of, lost)):
                return self._densely(found, lost)
        return found

    def _least_sure(self) -> list[Tensor]:
        """Of the variances of each field, the share below which what bands leave is not sure."""
        least = [torch.tensor(SURE, dtype=v.dtype, device=v.device) for v in self.root.variance]
        for stage in self.stages:
            if isinstance(stage, Banded):
                grown = torch.as_tensor(stage.matrix.growth, device=least[0].device)
                own = (HALF_THE_DIGITS * grown.detach()).clamp_min(SURE)
                least[stage.field] = own[..., None] if own.ndim else own
        return least

    def _densely(self, found: Fields, lost: Sequence[Tensor]) -> Fields:
        """Parts where next to nothing is left, with dense matrices."""
        shapes = [v.shape for v in found]
        lead = min([shared_axes(shapes), *(rows.places(shapes) for rows in self.laws)])
        new = [v.clone() for v in found]
        hard = torch.stack([summed(x, lead) > 0 for x in lost]).any(0)
        for index in hard.nonzero().tolist():
            at = tuple(index)
            laws = tuple(rows._at(at) for rows in self.laws)
            part = Chain(laws, self.root._at(at), 0, banded=False).variance
            for v, p in zip(new, part, strict=True):
                v[at] = p
        return tuple(new)

    def draw(self, normals: Normals) -> Fields:
        """Draws about 0 of what is left."""
        u = self.root.draw(normals)
        noise = [root_of(stage.noise) * normals(*stage.noise.shape) for stage in self.stages]
        return self.settle(self.run(u, noise, value=False)[0], value=False)

    def square(self, residuals: Sequence[Tensor], lead: int) -> Tensor:  # (*lead)
        """(G mu - b)^T S^-1 (G mu - b) of all rows, which is how implausible b is."""
        pairs = zip(self.stages, residuals, strict=True)
        first, *rest = (stage.square(r, lead) for stage, r in pairs)
        return sum(rest, start=first)

    def log_norm(self, lead: int) -> Tensor:  # (*lead)
        """log det(2 pi S) of all rows that are kept."""
        first, *rest = (stage.log_norm(lead) for stage in self.stages)
        return sum(rest, start=first)

    def count(self, lead: int) -> Tensor:  # (*lead)
        """How many rows are kept."""
        kept = [stage.over((~stage.dropped).double(), lead).sum(-1) for stage in self.stages]
        return sum(kept[1:], start=kept[0])


class Shared(Node):
    """Directions F on top of a chain for the rest: u = mean + F^T z + e.

    Given z the chain conditions e. Whitened by it, the residual is an observation of z with unit
    noise through W, the whitened G F^T.
    """

    stacked = ("moved",)
    is_simple = makes_variance = is_iterative = False

    def __init__(self, chain: Chain, root: Correlated, lead: int) -> None:
        self.chain, self.root = chain, root
        self.differentiable = any(f.requires_grad for f in root.directions)
        u, white, look = root.directions, [], concrete(*root.directions)
        self.thin = False  # whether little but directions can move some row: not to be used then
        for stage in chain.stages:
            r = stage.residual(u, value=False)
            white.append(stage.over(stage.whiten(r), lead))
            dropped = look and any_of(stage.dropped)
            if dropped or stage is not chain.stages[-1]:
                u = stage.shift(u, r)
            self.thin = self.thin or (look and thin(stage, r))
            self.thin = self.thin or (dropped and any_of(stage.dropped & _moves(stage, u)))
        self.latent = LatentPosterior(torch.cat(white, -1).movedim(0, -2))

    @property
    def lead(self) -> int:
        """How many first axes number the parts."""
        return self.latent.seen.ndim - 2

    @once
    def moved(self) -> tuple[Tensor, ...]:  # (R, *shape)
        """F - gain of G F^T."""
        u, _ = self.chain.run(self.root.directions, value=False)
        u = u if self.chain.is_simple else self.chain.settle(u, value=False)
        return without_rounding(u, self.root.variance)

    @property
    def shared(self) -> Correlated:
        """What is left of the directions: V^T (F - gain of G F^T), V V^T the covariance of z."""
        moved = Correlated(self.moved, None, self.root.dims, ())
        pairs = zip(moved.matrices, self.moved, strict=True)
        found = tuple(unblocks(self.latent.left(rows), f.shape) for rows, f in pairs)
        return moved._with(directions=found)

    def run(self, u: Fields) -> tuple[Fields, list[Tensor]]:
        """Means or members of the prior, moved to the laws; and the residuals that they had."""
        u, residuals = self.chain.run(u)
        shift, _ = self._along(residuals)
        return tuple(x - d for x, d in zip(u, shift, strict=True)), residuals

    def _along(self, residuals: Sequence[Tensor]) -> tuple[Fields, list[Tensor]]:
        """F^T z, moved to the laws; and its residuals."""
        white, more = self._white(residuals)
        return self.chain.run(self.root.along(self.latent.mean(white), more), value=False)

    def _white(self, residuals: Sequence[Tensor]) -> tuple[Tensor, tuple[int, ...]]:
        """Whitened, (*more, *lead, K) as (*lead, N, K); and the sizes `more`."""
        pairs = zip(self.chain.stages, residuals, strict=True)
        white = torch.cat([s.over(s.whiten(r), self.lead) for s, r in pairs], -1)
        more = white.shape[: white.ndim - 1 - self.lead]
        return white.reshape(math.prod(more), *white.shape[len(more) :]).movedim(0, -2), more

    def weighed(self, u: Fields, residuals: Sequence[Tensor]) -> Tensor | None:
        """As of a `Chain`, given z."""
        if self.chain.weighed(u, residuals) is None:
            return None
        _, known = self._along(residuals)
        return self.chain.weighed(u, [residuals[-1] - known[-1]])

    @property
    def is_banded(self) -> bool:
        return self.chain.is_banded

    def settle(self, u: Fields, value: bool = True) -> Fields:
        return self.chain.settle(u, value)

    def times(self, v: Fields) -> Fields:
        pairs = zip(self.chain.times(v), self.shared.times(v), strict=True)
        return tuple(s if x is None else x + s for x, s in pairs)

    @property
    def variance(self) -> Fields:
        pairs = zip(self.chain.variance, self.shared.variance, strict=True)
        found = tuple(v + s for v, s in pairs)
        if not concrete(*found):
            return found
        simple, pairs = self.chain.is_simple, zip(found, self.root.variance, strict=True)
        lost = [(v < SURE * d) & ((v > 0) | (not simple)) for v, d in pairs]  # its zeros are sure
        known = [s for s in self.chain.stages if isinstance(s, SinglePoints)]
        for stage in known:  # they are sure too
            triples = zip(lost, stage.left.variance, self.chain.root.variance, strict=True)
            lost = [x & ((left > 0) | (rest == 0)) for x, left, rest in triples]
        many = self.latent.seen.shape[-1] * sum(v.numel() for v in found) > MOST_NUMBERS
        if many or not any(map(any_of, lost)):
            return found
        root = self.root.exactly()
        again = Joint(self.chain.laws, root, root, self.lead).variance
        return tuple(torch.where(x, w, v) for x, v, w in zip(lost, found, again, strict=True))

    @property
    def has_estimated(self) -> bool:
        return self.chain.has_estimated

    @property
    def estimate(self) -> tuple[Estimate, ...] | None:
        """How the variance of the rest was estimated, as a share of all that is left."""
        each = self.chain.estimate
        return each and diluted(each, self.chain.variance, self.shared.variance)

    def draw(self, normals: Normals) -> Fields:
        pairs = zip(self.chain.draw(normals), self.shared.draw(normals), strict=True)
        return tuple(x + s for x, s in pairs)

    def square(self, residuals: Sequence[Tensor], lead: int) -> Tensor:
        return summed(self.latent.square(self._white(residuals)[0]), lead)

    def log_norm(self, lead: int) -> Tensor:
        return summed(self.chain.log_norm(self.lead) + self.latent.log_det, lead)

    def count(self, lead: int) -> Tensor:
        return self.chain.count(lead)


def solve(
    laws: tuple[Rows, ...], prior: Independent | Correlated, slack: float = 0.0
) -> "Chain | Shared":
    """Fields given laws, by the way that suits them. slack: as in `Chain`."""
    shapes = prior.shapes
    free = free_axes(laws, shapes)
    if isinstance(prior, Independent):
        return Chain(laws, prior, free, slack)
    own = prior.lead
    if free < own:
        return Chain(laws, prior.joined(free), free, slack)
    if prior.rest is not None:
        few = sum(math.prod(rows.row_shape(shapes)[own:]) for rows in laws) <= FEW
        if not few or concrete(*prior.directions):
            rest = Chain(laws, prior.rest, free, slack)
            shared = Shared(rest, prior, own) if rest.has_determinant else None
            if shared is not None and not shared.thin:
                return shared
    return Chain(laws, prior, own, slack)


def free_axes(laws: Sequence[Rows], shapes: Sequence[Sequence[int]]) -> int:
    """How many first axes number parts that no law ties together; all fields share them."""
    tied = [rows.places(shapes) for rows in laws if not rows.map.is_points]
    return min([shared_axes(shapes), *tied])


def _moves(stage: Stage, u: Fields) -> Tensor:
    """Whether directions still move a row, by more than the rounding of its terms."""
    sizes = tuple(None if x is None else x.abs() for x in u)
    terms = [rows.entrywise(1).apply(sizes) for rows in stage.rows]
    size = stage.flat(terms) if isinstance(stage, Joint) else terms[0]
    left = stage.residual(u, value=False)
    return left.square().sum(0) > FIXED * size.square().sum(0)


def _single(
    laws: tuple[Rows, ...], root: Independent, shapes: Sequence[Sequence[int]], banded: bool
) -> list[Rows]:
    """Laws that a stage of their own serves: values at points, exact ones first, then bands.

    A law that is all but exact would decide exact rows that come after it: it stays with them.
    """
    points = [rows for rows in laws if rows.map.is_points]
    bands: list[Rows] = []
    for rows in laws:
        alone = len(laws) == 1 or torch.Size(shapes[rows.first][:-1]).numel() >= MANY
        again = any(rows.first == other.first for other in bands)
        if banded and alone and rows.map.is_difference and not again:
            bands.append(rows)
    single = [*points, *bands]
    if not single:
        return []
    general = [rows for rows in laws if rows not in single]
    if any(any_of(rows.noise_variance == 0) for rows in general):
        single = [rows for rows in single if not _nearly_exact(rows, root)]
    elif bands and any(_nearly_exact(rows, root) for rows in points):
        single = points
    return sorted(single, key=lambda rows: (rows in bands, any_of(rows.noise_variance > 0)))


def _nearly_exact(rows: Rows, root: Independent) -> bool:
    noise, squares, before = rows.noise_variance, rows.entrywise(2), root.variance[rows.first]
    if rows.map.is_difference and concrete(noise, before) and before.numel():
        most = squares.map.apply(before.max().expand(before.shape[-1]))  # they cannot be larger
        if noise.min() >= HALF_THE_DIGITS * most.max():
            return False
    return any_of((noise > 0) & (noise < HALF_THE_DIGITS * squares.apply(root.variance)))


def _general(
    laws: tuple[Rows, ...],
    prior: Any,
    root: Independent | Correlated,
    lead: int,
    slack: float,
) -> Stage:
    first = laws[0]
    if len(laws) == 1 and isinstance(root, Independent):
        banded = not isinstance(prior, Independent)
        one_axis = len(first.maps) == 1 and first.map.is_sum_along
        if one_axis if banded else share_no_point(laws):
            return Numbers(first, prior, root)
    if isinstance(root, Independent):
        lead = free_axes(laws, root.shapes)
    if not _many(laws, root.shapes):
        return Joint(laws, prior, root, lead)
    if isinstance(root, Independent) and chained(laws, root.shapes, lead):
        return Tridiagonal(laws, prior, root, lead)
    if isinstance(root, Correlated) and MOST_DENSE and _fits(laws, root.shapes):
        return Joint(laws, prior, root, lead)
    return Iterative(laws, prior, root, lead, slack)


def _many(laws: Sequence[Rows], shapes: Sequence[Sequence[int]]) -> bool:
    """Whether rows are too many for a matrix, and local enough to do without."""
    count = _rows_of_part(laws, shapes)
    return count > MOST_DENSE and any(m.is_local for r in laws for m in r.maps if m is not None)


def _rows_of_part(laws: Sequence[Rows], shapes: Sequence[Sequence[int]]) -> int:
    free = free_axes(laws, shapes)
    return sum(math.prod(rows.row_shape(shapes)[free:]) for rows in laws)


def _fits(laws: Sequence[Rows], shapes: Sequence[Sequence[int]]) -> bool:
    """Whether a matrix for each part is quick enough to have exact variances."""
    count, parts = _rows_of_part(laws, shapes), math.prod(shapes[0][: free_axes(laws, shapes)])
    return parts * count**3 <= MOST_WORK and parts * count**2 <= MOST_MEMORY
