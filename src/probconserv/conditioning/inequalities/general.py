"""Fields given laws and inequalities of any kind: draws of the engine, then a programme for each.

The engine draws from the fields given all laws. Its covariance, as a dense matrix for each part
that nothing ties to others, says how a draw moves within the inequalities.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...fields.covariances import Correlated, Fields, Independent
from ...fields.gaussian import random_normals
from ...laws.inequalities import Limits, sloping_axes
from ...laws.law import Rows
from ...laws.maps import Select
from ...solvers.engine import Chain, solve
from ...support.checks import any_of, unravelled
from ...support.errors import InfeasibleError, InputError
from ...support.tolerances import SETTLED
from ..audit import check_met, misses, settled
from ..posterior import Solved
from .feasible import Programme, root_given, settled_on_face
from .reach import WAYS, Part, unreachable

MOST_POINTS = 2500  # of one part, for which a dense matrix is made
NOTHING = 1e-15  # of a point and its standard deviation before: what counts beside values of 0
UNMET = 1e-12  # the same: one that misses by more after all tries is an error
INSIDE = (0.0, 0.0, 0.0, 0.0, 1e-12, 1e-9, 1e-9)  # standard deviations: a point as close is there
ROUNDING = 1e-14  # of a point and its standard deviation: one as close to its bound is there
LEFT = 1e-15  # of its variance before: a point that keeps less is fixed
FIXED = 1e-9  # of a point before the laws that fix it: what these may leave by rounding
GIVEN = 1e-12  # of a point that no law fixes: the same
WITHIN = 10.0  # standard deviations of noise: how far a value that laws hardly leave free may go


class Vectors:
    """Fields as vectors: for each part the points of all fields side by side."""

    def __init__(self, shapes: Sequence[torch.Size], lead: int) -> None:
        """lead: how many first axes number the parts."""
        self.shapes, self.lead = shapes, lead
        self.sizes = [math.prod(shape[lead:]) for shape in shapes]
        self.parts, self.count = math.prod(shapes[0][:lead]), sum(self.sizes)

    def flat(self, fields: Fields) -> Tensor:  # (*more, *shape) each to (*more, parts, N)
        more = fields[0].shape[: fields[0].ndim - len(self.shapes[0])]
        pairs = zip(fields, self.sizes, strict=True)
        return torch.cat([x.reshape(*more, self.parts, n) for x, n in pairs], -1)

    def numbers(self, fields: Fields) -> Any:
        """The same for NumPy."""
        return self.flat(fields).cpu().numpy()

    def ends(self, limits: Sequence[Limits]) -> Any:  # (2, parts, N)
        """The lower bounds, and the upper ones."""
        each = ([one.low for one in limits], [one.high for one in limits])
        pairs = (zip(ends, self.shapes, strict=True) for ends in each)
        return np.stack([self.numbers(tuple(x.expand(s) for x, s in own)) for own in pairs])

    def fields(self, flat: Any, device: torch.device) -> Fields:  # (n, parts, N)
        pieces = torch.from_numpy(flat).to(device).split(self.sizes, -1)
        pairs = zip(pieces, self.shapes, strict=True)
        return tuple(x.reshape(len(flat), *shape) for x, shape in pairs)

    def units(self, device: torch.device) -> Fields:  # (N, *shape) each
        """Every point of a part, at all parts at once."""
        eye = torch.eye(self.count, dtype=torch.float64, device=device).split(self.sizes, -1)
        return tuple(
            one.reshape(self.count, *[1] * self.lead, *shape[self.lead :]).expand(-1, *shape)
            for one, shape in zip(eye, self.shapes, strict=True)
        )

    def dense(self, rows: Sequence[Rows], device: torch.device) -> tuple[Any, Any, Any]:
        """G (parts, K, N), b and the variance of its noise (parts, K)."""
        basis = self.units(device)
        found = [[np.zeros((self.parts, 0, self.count)), *[np.zeros((self.parts, 0))] * 2]]
        for one in rows:
            shape = one.row_shape(self.shapes)
            seen = one.apply(basis).expand(-1, *shape).reshape(self.count, self.parts, -1)
            ends = [
                x.expand(shape).reshape(self.parts, -1) for x in (one.value, one.noise_variance)
            ]
            found.append([x.cpu().numpy() for x in (seen.movedim(0, -1), *ends)])
        matrix, value, noise = (np.concatenate(each, 1) for each in zip(*found, strict=True))
        return matrix, value, noise


class Conditioned(Solved):
    """Fields given laws or none: draws, and the covariance of what is left."""

    def __init__(
        self, rows: tuple[Rows, ...], prior: Fields, root: Independent | Correlated, slack: float
    ) -> None:
        self.root, self.shapes, self.prior = root, root.shapes, prior
        self.own = root.lead  # axes that number the parts of the prior
        way = solve(rows, root, slack) if rows else Chain((), root, self.own)
        u, residuals = way.run(prior)
        mean, holds = settled(way, u, rows)
        if not holds:
            check_met(rows, mean, prior, root, slack)
        dims = tuple(len(shape) - way.lead for shape in root.shapes)
        super().__init__(rows, mean, way, tuple(residuals), dims)

    @property
    def variance(self) -> Fields:
        return self._variance

    def draws(self, n: int, generator: torch.Generator | None) -> Fields:  # (n + 1, *shape) each
        """Draws, and the mean as the last."""
        if not n:
            return placed(self.laws, tuple(m[None] for m in self.mean))
        found = self.draw(random_normals(n, generator, self.mean[0].device))
        pairs = zip(found, self.mean, strict=True)
        return placed(self.laws, tuple(torch.cat([x, m[None]]) for x, m in pairs))

    def covariances(self, lead: int) -> Iterator[Any]:  # (N, N) each
        """The covariance of each part, one after the other."""
        return self._parts(self.way, self.variance, self.free, lead)

    def prior_covariance(self, part: int, lead: int) -> Any:  # (N, N)
        before = self._parts(self.root, self.root.variance, self.own, lead)
        return next(itertools.islice(before, part, None))

    def _parts(self, way: Any, variance: Fields, free: int, lead: int) -> Iterator[Any]:
        if not min(lead, free):
            yield from _covariances(way, variance, self.root.variance, lead)
            return
        for i in range(self.shapes[0][0]):
            own, before = (tuple(v[i] for v in x) for x in (variance, self.root.variance))
            yield from _covariances(way._at((i,)), own, before, lead - 1)

    def near(self, grain: float) -> Fields:
        """What rounding may leave of each point, where nothing moves it; grain: of its dtype."""
        each = zip(self.mean, self.prior, self.variance, self.root.variance, strict=True)
        return tuple(
            max(GIVEN, grain) * u.abs()
            + torch.where(v0 > 0, FIXED * (u0.abs() + v0.sqrt()), 0.0)
            + torch.where(v <= LEFT * v0, WITHIN * v.sqrt(), 0.0)
            for u, u0, v, v0 in each
        )


def placed(rows: Sequence[Rows], u: Fields) -> Fields:
    """`u` with values that are known exactly in their places, to the last digit."""
    found = list(u)
    for one in rows:
        if isinstance(one.map, Select):
            own = one.map.apply(found[one.first])
            own = torch.where(one.noise_variance == 0, one.value, own)
            found[one.first] = one.map.put(found[one.first], own)
    return tuple(found)


def _covariances(way: Any, variance: Fields, before: Fields, lead: int) -> Any:  # (parts, N, N)
    """The covariance of each part; exactly 0 at points that keep no variance."""
    vectors = Vectors([v.shape for v in variance], lead)
    product = zip(way.times(vectors.units(variance[0].device)), variance, strict=True)
    wide = tuple(x.expand(vectors.count, *v.shape) for x, v in product)
    found = vectors.flat(wide).movedim(0, -2)
    own, most = vectors.flat(variance), vectors.flat(before)
    free = own > LEFT * most
    found = torch.where(free[:, :, None] & free[:, None, :], found, 0.0)
    found.diagonal(dim1=-2, dim2=-1).copy_(torch.where(free, own, 0.0))
    return ((found + found.mT) / 2).cpu().numpy()


class Within:
    """Fields given laws, and the limits that draws of them are moved to.

    `tight` are the limits with what points of no variance imply for others that rise or fall.
    """

    def __init__(self, given: Conditioned, limits: Sequence[Limits]) -> None:
        self.given, shapes = given, given.shapes
        self.lead = min([given.way.lead, *sloping_axes(limits, shapes)])
        self.device = given.mean[0].device
        self.vectors = Vectors(shapes, self.lead)
        if self.vectors.count > MOST_POINTS:
            raise InputError(
                f"`laws`: these tie {self.vectors.count} points to each other, and inequalities "
                f"beside such laws are solved for up to {MOST_POINTS}. Ways out: laws and "
                "inequalities at each time by itself, a field of independent points with one exact "
                "law, or a coarser grid."
            )
        self.ends = self.vectors.ends(limits)
        self.differences = _differences(limits, [shape[self.lead :] for shape in shapes])
        each = zip(limits, given.variance, placed(given.laws, given.mean), strict=True)
        self.tight = [one.given(v == 0, u) for one, v, u in each]
        rows = [r.over(shapes, self.lead) for r in given.laws]
        self.rows, self.exact = rows, [r for r in rows if any_of(r.noise_variance == 0)]

    def draws(self, n: int, generator: torch.Generator | None, grain: float) -> Fields:
        """`n` draws of each field and the point as the last, exactly within the limits.

        grain: of the numbers that bounds are rounded to.
        """
        y = self.vectors.numbers(self.given.draws(n, generator))  # (n + 1, parts, N)
        found, doubt = np.empty_like(y), self.vectors.numbers(self.given.near(grain))
        for part, matrix in enumerate(self.given.covariances(self.lead)):
            ends = self.ends[:, part]
            rows, least = _inequalities(ends[0], ends[1], self.differences)
            try:
                root = partial(self._root, part)
                u = Programme(matrix, rows, least, doubt[part], root).solve(y[:, part])
            except InfeasibleError as error:
                raise InfeasibleError(self._why(part, ends) or str(error)) from None
            std = np.sqrt(np.diag(matrix))
            near = np.where(std > 0, ROUNDING * (np.abs(y[:, part]) + std), 0.0)
            for end in ends:
                u = np.where(np.abs(u - end) <= near, end, u)
            found[:, part] = u
        return self._held(self.vectors.fields(found, self.device), max(UNMET, grain))

    def _root(self, part: int) -> Any:  # (N, R)
        """F of the covariance F F^T of one part: it shows directions of hardly any variance, which
        the covariance itself does not."""
        rows, _, noise = self.vectors.dense(self.rows, self.device)
        return root_given(self.given.prior_covariance(part, self.lead), rows[part], noise[part])

    def _held(self, u: Fields, unmet: float) -> Fields:
        """Exactly within the limits, with the rounding taken off exact rows."""
        ends = self.vectors.ends(self.tight)
        for inside in (*INSIDE, None):
            u = tuple(one.holding(x) for one, x in zip(self.tight, u, strict=True))
            off = self._off(u)
            if not bool((off > SETTLED).any()):
                return u
            if inside is not None:
                u = self._settled(u, off > SETTLED, ends, inside)
        if not (worst := float(off.max())) <= unmet:
            part = int(off.amax(0).argmax())
            raise InfeasibleError(
                self._why(part, ends[:, part])
                or f"the exact laws are off by {worst:.2g} of their terms within the inequalities. "
                + WAYS
            )
        return u

    def _off(self, u: Fields) -> Tensor:  # (n, parts)
        """The most that an exact row of each part misses, of its terms and of next to nothing."""
        pairs = zip(self.given.prior, self.given.root.variance, strict=True)
        nothing = tuple(NOTHING * (m.abs() + v.sqrt()) for m, v in pairs)
        found = u[0].new_zeros(len(u[0]), self.vectors.parts, 1)
        for miss, size in misses(self.exact, u, nothing):
            share = (miss / size.clamp_min(1e-300)).reshape(*found.shape[:2], -1)
            found = torch.cat([found, share], -1).amax(-1, keepdim=True)
        return found[..., 0]

    @cached_property
    def _dense(self) -> tuple[Any, Any, Any]:
        """Of the laws with exact rows."""
        return self.vectors.dense(self.exact, self.device)

    def _settled(self, u: Fields, wrong: Tensor, ends: Any, inside: float) -> Fields:
        """Exact rows settled: points at a bound stay there, points that are equal stay so."""
        pairs = zip(self.given.variance, self.given.root.variance, strict=True)
        left = tuple(torch.maximum(v, LEFT * before) for v, before in pairs)  # laws fix some points
        variance, flat = self.vectors.numbers(left), self.vectors.numbers(u).copy()
        rows, value, noise = self._dense
        rows, value = rows * (noise == 0)[..., None], value * (noise == 0)
        for i, part in wrong.nonzero().tolist():
            law, own = (rows[part], value[part]), (variance[part], ends[:, part])
            flat[i, part] = settled_on_face(flat[i, part], law, *own, self.differences, inside)
        return self.vectors.fields(flat, self.device)

    def _why(self, part: int, ends: Any) -> str | None:
        """What is out of reach in one part, within its bounds."""
        if not self.exact:
            return None
        rows, value, noise = (x[part] for x in self._dense)
        names = []
        for one in self.exact:
            numbers = torch.arange(math.prod(size := one.row_shape(self.vectors.shapes)))
            own = numbers.reshape(self.vectors.parts, -1)[part]
            names += [one.name(unravelled(i, size)) for i in own.tolist()]
        mean, before = self.vectors.numbers(self.given.prior)[part], self.given.prior_covariance
        at = (noise == 0) & (np.abs(rows).max(-1) > 0)
        names = [names[i] for i in np.flatnonzero(at)]
        some = rows[at], value[at], *ends, self.differences, names
        return unreachable(Part(mean, before(part, self.lead), *some))


def _differences(limits: Sequence[Limits], shapes: Sequence[torch.Size]) -> list[Any]:
    """Pairs (i, j) of points of a part with u_j >= u_i."""
    pairs, start = [], 0
    for one, shape in zip(limits, shapes, strict=True):
        numbers = start + torch.arange(math.prod(shape)).reshape(shape)
        for axis, sign in one.slopes:
            last = numbers.shape[axis] - 1
            first, second = numbers.narrow(axis, 0, last), numbers.narrow(axis, 1, last)
            pair = (first, second) if sign > 0 else (second, first)
            pairs.append(np.stack([x.flatten().numpy() for x in pair]))
        start += numbers.numel()
    return pairs


def _inequalities(low: Any, high: Any, differences: Sequence[Any]) -> tuple[Any, Any]:
    """A and h of A u >= h, without bounds that follow from those of a neighbour."""
    eye, lows, highs = np.eye(len(low)), np.isfinite(low), np.isfinite(high)
    once = len(differences) == 1
    for i, j in differences if once else []:
        lows[j[low[j] <= low[i]]] = False
        highs[i[high[i] >= high[j]]] = False
    rows, least = [eye[lows], -eye[highs]], [low[lows], -high[highs]]
    for i, j in differences:
        rows.append(eye[j] - eye[i])
        least.append(np.zeros(len(i)))
    return np.concatenate(rows), np.concatenate(least)
