"""Fields given laws and inequalities of any kind: draws of the engine, then a programme for each.

The engine draws from the fields given all laws. Its covariance, as a dense matrix for each part
that nothing ties to others, says how a draw moves within the inequalities.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ._audit import check_met, misses, settled
from ._checks import any_of
from ._covariances import Correlated, Independent, shared_axes
from ._engine import Chain, Shared, solve
from ._errors import InfeasibleError, InputError
from ._feasible import Programme, root_given, settled_on_face
from ._fields import random_normals
from ._inequalities import Limits
from ._laws import Fields, Rows
from ._maps import Select
from ._reach import Part, unreachable

MOST_POINTS = 2500  # of one part, for which a dense matrix is made
SETTLED = 1e-13  # of its terms: an exact row that misses by less is left alone
NOTHING = 1e-15  # of a point and its standard deviation before: what counts beside values of 0
UNMET = 1e-12  # the same: one that misses by more after all tries is an error
INSIDE = (0.0, 0.0, 0.0, 0.0, 1e-12, 1e-9, 1e-9)  # standard deviations: a point as close is there
ROUNDING = 1e-14  # of a point and its standard deviation: one as close to its bound is there
LEFT = 1e-15  # of its variance before: a point that keeps less is fixed
FIXED = 1e-9  # of a point before the laws that fix it: what these may leave by rounding
GIVEN = 1e-12  # of a point that no law fixes: the same
WITHIN = 10.0  # standard deviations of noise: how far a value that laws hardly leave free may go


class Given:
    """Fields given laws, solved once: draws, and the covariance of what is left."""

    def __init__(
        self, rows: tuple[Rows, ...], prior: Fields, root: Independent | Correlated, slack: float
    ) -> None:
        self.rows, self.root, self.shapes, self.prior = rows, root, root.shapes, prior
        self.way: Chain | Shared | None = None
        self.mean, self.variance = prior, root.variance
        self.lead = self.free = _own_parts(root)
        if rows:
            self.way = way = solve(rows, root, slack)
            self.mean, holds = settled(way, way.run(prior)[0], rows)
            if not holds:
                check_met(rows, self.mean, prior, root, slack)
            self.lead, self.variance = way.lead, way.variance
            points = (r.places(self.shapes) for r in rows if isinstance(r.map, Select))
            self.free = min([self.lead, *points])

    def draws(self, n: int, generator: torch.Generator | None) -> Fields:  # (n + 1, *shape) each
        """Draws, and the mean as the last."""
        if not n:
            return placed(self.rows, tuple(m[None] for m in self.mean))
        normals = random_normals(n, generator, self.mean[0].device)
        about = (self.way or self.root).draw(normals)
        found = tuple(m + x for m, x in zip(self.mean, about, strict=True))
        if self.way is not None and not self.way.is_simple:
            found = self.way.settle(found)
        pairs = zip(found, self.mean, strict=True)
        return placed(self.rows, tuple(torch.cat([x, m[None]]) for x, m in pairs))

    def covariances(self, lead: int) -> Iterator[Any]:  # (N, N) each
        """The covariance of each part, one after the other."""
        return self._parts(self.way or self.root, self.variance, self.free, lead)

    def _parts(self, way: Any, variance: Fields, free: int, lead: int) -> Iterator[Any]:
        if not min(lead, free):
            yield from _covariances(way, variance, self.root.variance, lead)
            return
        for i in range(self.shapes[0][0]):
            own, before = (tuple(v[i] for v in x) for x in (variance, self.root.variance))
            yield from _covariances(way._at((i,)), own, before, lead - 1)

    def root_of(self, part: int, lead: int) -> Any:  # (N, R)
        """F of the covariance F F^T of one part: it shows directions of hardly any variance, which
        the covariance itself does not."""
        rows = [r.over(self.shapes, lead) for r in self.rows]
        prior = self.prior_covariance(part, lead)
        if not rows:
            return root_given(prior, np.zeros((0, len(prior))), np.zeros(0))
        dense, _, noise = _dense(rows, self.shapes, lead)
        return root_given(prior, dense[part], noise[part])

    def prior_covariance(self, part: int, lead: int) -> Any:  # (N, N)
        before = self._parts(self.root, self.root.variance, _own_parts(self.root), lead)
        return next(itertools.islice(before, part, None))

    def near(self, grain: float) -> Fields:
        """What rounding may leave of each point, where nothing moves it; grain: of its dtype."""
        each = zip(self.mean, self.prior, self.variance, self.root.variance, strict=True)
        return tuple(
            max(GIVEN, grain) * u.abs()
            + torch.where(v0 > 0, FIXED * (u0.abs() + v0.sqrt()), 0.0)
            + torch.where(v <= LEFT * v0, WITHIN * v.sqrt(), 0.0)
            for u, u0, v, v0 in each
        )

    def tightened(self, limits: Sequence[Limits]) -> list[Limits]:
        """Limits, with what points of no variance imply for others that rise or fall."""
        each = zip(limits, self.variance, placed(self.rows, self.mean), strict=True)
        return [one.given(v == 0, u) for one, v, u in each]


def placed(rows: Sequence[Rows], u: Fields) -> Fields:
    """`u` with values that are known exactly in their places, to the last digit."""
    found = list(u)
    for one in rows:
        if isinstance(one.map, Select):
            own = one.map.apply(found[one.first])
            own = torch.where(one.noise_variance == 0, one.value, own)
            found[one.first] = one.map.put(found[one.first], own)
    return tuple(found)


def _own_parts(root: Independent | Correlated) -> int:
    """How many first axes number the parts of the prior."""
    if isinstance(root, Independent):
        return shared_axes(root.shapes)
    return len(root.shapes[0]) - root.dims[0]


def _covariances(way: Any, variance: Fields, before: Fields, lead: int) -> Any:  # (parts, N, N)
    """The covariance of each part; exactly 0 at points that keep no variance."""
    shapes = [v.shape for v in variance]
    sizes = _sizes(shapes, lead)
    count, basis = sum(sizes), _units(sizes, shapes, lead, variance[0].device)
    product = zip(way.times(basis), variance, strict=True)
    found = _flat(tuple(x.expand(count, *v.shape) for x, v in product), lead).movedim(0, -2)
    own, most = (_flat(tuple(v[None] for v in each), lead)[0] for each in (variance, before))
    free = own > LEFT * most
    found = torch.where(free[:, :, None] & free[:, None, :], found, 0.0)
    found.diagonal(dim1=-2, dim2=-1).copy_(torch.where(free, own, 0.0))
    return ((found + found.mT) / 2).cpu().numpy()


def draws_of(
    given: Given,
    limits: Sequence[Limits],
    grain: float,
    n: int,
    generator: torch.Generator | None,
) -> tuple[Fields, list[Limits], int]:
    """`n` draws of each field and the point as the last; the limits with what fixed points imply;
    and how many axes number the parts. grain: of the numbers that bounds are rounded to."""
    shapes = given.shapes
    pairs = zip(shapes, limits, strict=True)
    lead = min([given.lead, *(len(shape) + axis for shape, one in pairs for axis, _ in one.slopes)])
    sizes = _sizes(shapes, lead)
    if sum(sizes) > MOST_POINTS:
        raise InputError(
            f"`laws`: these tie {sum(sizes)} points to each other, and inequalities beside such "
            f"laws are solved for up to {MOST_POINTS}. Ways out: laws and inequalities at each "
            "time by itself, a field of independent points with one exact law, or a coarser grid."
        )
    y = given.draws(n, generator)
    flat = _flat(y, lead).cpu().numpy()  # (n + 1, parts, N)
    low, high = _ends(limits, shapes, lead)
    differences = _differences(limits, [shape[lead:] for shape in shapes])
    found = np.empty_like(flat)
    doubt = _flat(tuple(x[None] for x in given.near(grain)), lead)[0].cpu().numpy()
    for part, matrix in enumerate(given.covariances(lead)):
        rows, least = _inequalities(low[part], high[part], differences)
        try:
            root = partial(given.root_of, part, lead)
            u = Programme(matrix, rows, least, doubt[part], root).solve(flat[:, part])
        except InfeasibleError as error:
            raise InfeasibleError(_why(given, limits, lead, part) or str(error)) from None
        std = np.sqrt(np.diag(matrix))
        near = np.where(std > 0, ROUNDING * (np.abs(flat[:, part]) + std), 0.0)
        for end in (low[part], high[part]):
            u = np.where(np.abs(u - end) <= near, end, u)
        found[:, part] = u
    moved, tight = _as_fields(found, y[0].device, sizes, shapes), given.tightened(limits)
    return _held(given, tight, moved, lead, max(UNMET, grain)), tight, lead


def _flat(fields: Fields, lead: int) -> Tensor:  # (n, *shape) each to (n, parts, N)
    first = fields[0].shape
    parts = math.prod(first[1 : 1 + lead])
    return torch.cat([x.reshape(first[0], parts, -1) for x in fields], -1)


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


def _held(given: Given, limits: Sequence[Limits], u: Fields, lead: int, unmet: float) -> Fields:
    """Exactly within the limits, with the rounding taken off exact rows."""
    exact = [r.over(given.shapes, lead) for r in given.rows if any_of(r.noise_variance == 0)]
    pairs = zip(given.prior, given.root.variance, strict=True)
    nothing = tuple(NOTHING * (m.abs() + v.sqrt()) for m, v in pairs)
    face = None
    for inside in INSIDE:
        u = tuple(one.holding(x) for one, x in zip(limits, u, strict=True))
        off = _off(exact, u, nothing, lead)
        if not bool((off > SETTLED).any()):
            return u
        face = face or _Face(given, limits, exact, lead)
        u = face.settled(u, off > SETTLED, inside)
    u = tuple(one.holding(x) for one, x in zip(limits, u, strict=True))
    off = _off(exact, u, nothing, lead)
    if not (worst := float(off.max())) <= unmet:
        part = int(off.amax(0).argmax())
        raise InfeasibleError(
            _why(given, limits, lead, part)
            or f"the exact laws are off by {worst:.2g} of their terms within the inequalities. "
            "Ways out: widen the `bounds`, correct the values of the laws, or give laws `noise`."
        )
    return u


def _why(given: Given, limits: Sequence[Limits], lead: int, part: int) -> str | None:
    """What is out of reach in one part."""
    exact = [r.over(given.shapes, lead) for r in given.rows if any_of(r.noise_variance == 0)]
    if not exact:
        return None
    rows, value, noise = (x[part] for x in _dense(exact, given.shapes, lead))
    names = []
    for one in exact:
        numbers = torch.arange(math.prod(size := one.row_shape(given.shapes)))
        own = numbers.reshape(math.prod(size[:lead]), -1)[part]
        names += [one.name([int(x) for x in torch.unravel_index(i, size)]) for i in own]
    mean = _flat(tuple(u[None] for u in given.prior), lead)[0, part].cpu().numpy()
    low, high = (x[part] for x in _ends(limits, given.shapes, lead))
    pairs = _differences(limits, [shape[lead:] for shape in given.shapes])
    at = (noise == 0) & (np.abs(rows).max(-1) > 0)
    some = rows[at], value[at], low, high, pairs, [names[i] for i in np.flatnonzero(at)]
    return unreachable(Part(mean, given.prior_covariance(part, lead), *some))


def _off(exact: Sequence[Rows], u: Fields, nothing: Fields, lead: int) -> Tensor:  # (n, parts)
    """The most that an exact row of each part misses, of its terms and of `nothing`."""
    parts = math.prod(u[0].shape[1 : 1 + lead])
    found = u[0].new_zeros(len(u[0]), parts, 1)
    for miss, size in misses(exact, u, nothing):
        share = (miss / size.clamp_min(1e-300)).reshape(len(found), parts, -1)
        found = torch.cat([found, share], -1).amax(-1, keepdim=True)
    return found[..., 0]


def _dense(rows: Sequence[Rows], shapes: Sequence[torch.Size], lead: int) -> tuple[Any, Any, Any]:
    """G (parts, K, N), b and the variance of its noise (parts, K)."""
    sizes = _sizes(shapes, lead)
    count, found = sum(sizes), []
    basis = _units(sizes, shapes, lead, rows[0].value.device)
    for one in rows:
        shape = one.row_shape(shapes)
        parts = math.prod(shape[:lead])
        matrix = one.apply(basis).expand(count, *shape).reshape(count, parts, -1).movedim(0, -1)
        ends = (x.expand(shape).reshape(parts, -1) for x in (one.value, one.noise_variance))
        found.append([x.cpu().numpy() for x in (matrix, *ends)])
    matrices, values, noises = zip(*found, strict=True)
    return np.concatenate(matrices, 1), np.concatenate(values, 1), np.concatenate(noises, 1)


class _Face:
    """Where exact rows are settled: points at a bound stay there, points that are equal stay so."""

    def __init__(
        self, given: Given, limits: Sequence[Limits], exact: Sequence[Rows], lead: int
    ) -> None:
        self.shapes, self.lead, self.sizes = given.shapes, lead, _sizes(given.shapes, lead)
        self.pairs = _differences(limits, [shape[lead:] for shape in given.shapes])
        self.low, self.high = _ends(limits, given.shapes, lead)
        pairs = zip(given.variance, given.root.variance, strict=True)  # exact rows fix some points
        left = tuple(torch.maximum(v, LEFT * before)[None] for v, before in pairs)
        self.variance = _flat(left, lead)[0].cpu().numpy()
        rows, value, noise = _dense(exact, given.shapes, lead)
        self.rows, self.value = rows * (noise == 0)[..., None], value * (noise == 0)

    def settled(self, u: Fields, wrong: Tensor, inside: float) -> Fields:
        flat = _flat(u, self.lead).cpu().numpy().copy()
        for i, part in wrong.nonzero().tolist():
            flat[i, part] = settled_on_face(
                flat[i, part],
                (self.rows[part], self.value[part]),
                self.variance[part],
                (self.low[part], self.high[part]),
                self.pairs,
                inside,
            )
        return _as_fields(flat, u[0].device, self.sizes, self.shapes)


def _as_fields(
    flat: Any, device: torch.device, sizes: Sequence[int], shapes: Sequence[torch.Size]
) -> Fields:
    pieces = torch.from_numpy(flat).to(device).split(list(sizes), -1)
    return tuple(x.reshape(len(flat), *shape) for x, shape in zip(pieces, shapes, strict=True))


def _ends(limits: Sequence[Limits], shapes: Sequence[torch.Size], lead: int) -> list[Any]:
    """Bounds, (parts, N) each."""
    found = []
    for ends in ([one.low for one in limits], [one.high for one in limits]):
        wide = tuple(x.expand(s)[None] for x, s in zip(ends, shapes, strict=True))
        found.append(_flat(wide, lead)[0].cpu().numpy())
    return found


def _sizes(shapes: Sequence[torch.Size], lead: int) -> list[int]:
    return [math.prod(shape[lead:]) for shape in shapes]


def _units(
    sizes: Sequence[int], shapes: Sequence[torch.Size], lead: int, device: torch.device
) -> Fields:  # (N, *shape) each
    """Every point of a part, at all parts at once."""
    count = sum(sizes)
    eye = torch.eye(count, dtype=torch.float64, device=device).split(list(sizes), -1)
    return tuple(
        one.reshape(count, *[1] * lead, *shape[lead:]).expand(count, *shape)
        for one, shape in zip(eye, shapes, strict=True)
    )
