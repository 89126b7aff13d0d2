"""One engine: fields given laws. The structure of fields and laws picks the stages in one place.

    statistics   G mu, G F^T, G D G^T     of a prior with Sigma = F^T F + diag(D)
    solve        S lambda = G mu - b
    update       mu - (F^T F + diag(D)) G^T lambda

`Chain` conditions on one stage after the other; `Shared` adds directions F on top of a chain for
the independent rest. Both work on tuples of arrays, one for each field of a state.
"""

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from ..fields.blocks import root_of
from ..fields.covariances import Correlated, Fields, Independent, shared_axes
from ..fields.gaussian import Normals
from ..laws.law import Rows
from ..support.checks import any_of, concrete
from ..support.tolerances import HALF_THE_DIGITS, SURE
from ..support.tree import Node
from .banded import by_rows
from .estimate import Estimate
from .iterative import Iterative
from .joint import Joint, surely
from .shared import Shared
from .stages import Banded, ByRow, Numbers, SinglePoints, Stage, share_no_point
from .tridiagonal import Tridiagonal, chained

MOST_DENSE = 512  # rows of one part up to which local ones are always solved by a dense matrix
LITTLE_WORK = 1 << 31  # products up to which all are
MOST_WORK = 1 << 36  # the same where there is no sparse factor: shared directions, or on a GPU
MOST_MEMORY = 1 << 25  # numbers in all matrices, the same
MANY = 32  # matrices of five diagonals that are worth a loop along their rows
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
        found: Fields = self.covariance.variance
        if not self.bands or not concrete(*found):
            return found
        bands = [stage for stage in self.stages if isinstance(stage, Banded)]
        if all(stage.matrix.noise.numel() for stage in bands):
            most = max(float(stage.matrix.most_growth.detach()) for stage in bands)
            least = max(SURE, HALF_THE_DIGITS * most)
            pairs = zip(found, self.root.variance, strict=True)
            if all(not v.numel() or bool(v.amin() >= least * d.amax()) for v, d in pairs):
                return found
        lost = [v < SURE * d for v, d in zip(found, self.root.variance, strict=True)]
        for stage in bands:
            i, share = stage.field, HALF_THE_DIGITS * stage.matrix.growth[..., None]
            lost[i] = lost[i] | (found[i] < share * self.root.variance[i])
        return surely(self.laws, self.root, self.lead, found, self.without_known(lost))

    def without_known(self, lost: Sequence[Tensor]) -> list[Tensor]:
        """Less the points of which values at single points leave nothing: that is sure."""
        found = list(lost)
        for stage in self.stages:
            if isinstance(stage, SinglePoints):
                triples = zip(found, stage.left.variance, self.root.variance, strict=True)
                found = [x & ((left > 0) | (d == 0)) for x, left, d in triples]
        return found

    def draw(self, normals: Normals) -> Fields:
        """Draws about 0 of what is left."""
        u = self.root.draw(normals)
        noise = [root_of(stage.noise) * normals(*stage.noise.shape) for stage in self.stages]
        return self.settle(self.run(u, noise, value=False)[0], value=False)

    def square(self, residuals: Sequence[Tensor], lead: int) -> Tensor:  # (*lead)
        """(G mu - b)^T S^-1 (G mu - b) of all rows, which is how implausible b is."""
        pairs = zip(self.stages, residuals, strict=True)
        return reduce(torch.add, [stage.square(r, lead) for stage, r in pairs])

    def log_norm(self, lead: int) -> Tensor:  # (*lead)
        """log det(2 pi S) of all rows that are kept."""
        return reduce(torch.add, [stage.log_norm(lead) for stage in self.stages])

    def count(self, lead: int) -> Tensor:  # (*lead)
        """How many rows are kept."""
        kept = [stage.over((~stage.dropped).double(), lead).sum(-1) for stage in self.stages]
        return reduce(torch.add, kept)


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
    free = shared_axes(shapes)
    for rows in laws:
        m = rows.map
        if not m.is_points:
            free = min(free, len(shapes[rows.first]) - m.dims)
    return free


def _single(
    laws: tuple[Rows, ...], root: Independent, shapes: Sequence[Sequence[int]], banded: bool
) -> list[Rows]:
    """Laws that a stage of their own serves: values at points, exact ones first, then bands.

    A law that is all but exact would decide exact rows that come after it: it stays with them.
    """
    points = [rows for rows in laws if rows.map.is_points]
    bands: list[Rows] = []
    for rows in laws:
        again = any(rows.first == other.first for other in bands)
        if not banded or not rows.map.is_difference or again:
            continue  # without a look at the sizes, to which an exported program would be tied
        if len(laws) == 1 or torch.Size(shapes[rows.first][:-1]).numel() >= MANY:
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
    has_factor = isinstance(root, Independent) and laws[0].value.is_cpu
    most = LITTLE_WORK if has_factor else MOST_WORK
    many = _many(laws, root.shapes)
    if many and isinstance(root, Independent) and chained(laws, root.shapes, lead):
        return Tridiagonal(laws, prior, root, lead)
    if many and not (MOST_DENSE and _fits(laws, root.shapes, most)):
        return Iterative(laws, prior, root, lead, slack)
    return Joint(laws, prior, root, lead)


def _many(laws: Sequence[Rows], shapes: Sequence[Sequence[int]]) -> bool:
    """Whether rows are too many for a matrix, and local enough to do without."""
    count = _rows_of_part(laws, shapes)
    return count > MOST_DENSE and any(m.is_local for r in laws for m in r.maps if m is not None)


def _rows_of_part(laws: Sequence[Rows], shapes: Sequence[Sequence[int]]) -> int:
    free = free_axes(laws, shapes)
    return sum(math.prod(rows.row_shape(shapes)[free:]) for rows in laws)


def _fits(laws: Sequence[Rows], shapes: Sequence[Sequence[int]], most: int) -> bool:
    """Whether a matrix for each part takes no more than so many products."""
    count, parts = _rows_of_part(laws, shapes), math.prod(shapes[0][: free_axes(laws, shapes)])
    return parts * count**3 <= most and parts * count**2 <= MOST_MEMORY
