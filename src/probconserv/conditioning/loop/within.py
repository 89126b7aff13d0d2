"""Fields within inequalities, beside linear laws of any kind: the loop on fields of known shapes.

A draw of the fields, and of the noise of the laws, is moved to the nearest fields that obey. The
point is the mean, moved in the same way.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...fields.blocks import root_of
from ...fields.covariances import Correlated, Fields, Independent
from ...fields.gaussian import random_normals
from ...laws.inequalities import Limits, sloping_axes
from ...laws.law import Rows
from ...support.errors import InfeasibleError, InputError
from ...support.tolerances import CONVERGED, EPS, ROUNDED, SETTLED, TINY, UNREACHED
from ...support.values import unravelled
from ..audit import check_met
from .given import Given, Prior, precision_of
from .gradient import nearest_with_gradient
from .nearest import nearest
from .programme import Nearest, Programme, Start, in_units, terms_of
from .refused import FIXED, OFF, out_of_reach, refusal

AT_ONCE = 1 << 24  # numbers of rows and directions that are held together
MOST_ROWS, MOST = 2500, 1 << 27  # rows and directions of one part; times its points
TRIES = 6  # at taking rounding off exact rows


@dataclass(frozen=True)
class Layout:
    """Fields as vectors: for each part the points of all fields side by side."""

    shapes: tuple[torch.Size, ...]
    lead: int  # how many first axes number the parts

    @property
    def sizes(self) -> list[int]:
        return [math.prod(shape[self.lead :]) for shape in self.shapes]

    @property
    def parts(self) -> int:
        return math.prod(self.shapes[0][: self.lead])

    def flat(self, fields: Fields, more: int = 0) -> Tensor:  # (*more, *shape) to (*more, parts, N)
        triples = zip(fields, self.shapes, self.sizes, strict=True)
        each = [
            x.expand((*x.shape[:more], *shape)).reshape(*x.shape[:more], self.parts, n)
            for x, shape, n in triples
        ]
        return torch.cat(each, -1)

    def fields(self, flat: Tensor) -> Fields:  # (*more, parts, N)
        pairs = zip(flat.split(self.sizes, -1), self.shapes, strict=True)
        return tuple(x.reshape(*flat.shape[:-2], *shape) for x, shape in pairs)

    def matrix(self, rows: Rows) -> Tensor:  # (parts, K, N)
        """The rows of a law."""
        shape = rows.row_shape(self.shapes)
        count = math.prod(shape[self.lead :])
        eye = torch.eye(count, dtype=torch.float64, device=rows.value.device)
        wide = eye.reshape(count, *[1] * self.lead, *shape[self.lead :]).expand((count, *shape))
        found = [
            eye.new_zeros(()).expand((count, *n)) if x is None else x
            for x, n in zip(rows.adjoint(wide), self.shapes, strict=True)
        ]
        return self.flat(tuple(found), 1).movedim(0, 1)

    def of_rows(self, rows: Rows, x: Tensor, more: int = 0) -> Tensor:  # to (*more, parts, K)
        shape = rows.row_shape(self.shapes)
        count = math.prod(shape[self.lead :])
        return x.expand((*x.shape[:more], *shape)).reshape(*x.shape[:more], self.parts, count)


def rows_that_rise(
    slopes: Sequence[Sequence[tuple[int, int]]], shapes: Sequence[Sequence[int]]
) -> Tensor:  # (K, N)
    """Differences of neighbours that must not be negative, of the points of a part.

    slopes: of each field, (axis, sign). shapes: of each field in one part.
    """
    each = [(shape, axis) for own, shape in zip(slopes, shapes, strict=True) for axis, _ in own]
    count = sum(math.prod(shape) // shape[axis] * (shape[axis] - 1) for shape, axis in each)
    check_size(sum(map(math.prod, shapes)), count)
    pairs, start = [torch.zeros(0, 2, dtype=torch.int64)], 0
    for own, shape in zip(slopes, shapes, strict=True):
        numbers = start + torch.arange(math.prod(shape)).reshape(shape)
        for axis, sign in own:
            last = numbers.shape[axis] - 1
            ends = numbers.narrow(axis, 0, last), numbers.narrow(axis, 1, last)
            pairs.append(torch.stack([x.flatten() for x in ends[::sign]], -1))
        start += math.prod(shape)
    at = torch.cat(pairs)
    found = torch.zeros(len(at), start, dtype=torch.float64)
    signs = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    return found.scatter_(1, at, signs.expand(at.shape))


def check_size(points: int, width: int) -> None:
    """width: rows and directions of a part."""
    if width > MOST_ROWS or width * points > MOST:
        raise InputError(
            f"`laws`: these tie {points} points to each other, by {width} rows and directions. "
            f"Inequalities beside them are solved for up to {MOST_ROWS} of these, and {MOST} as "
            "the product of the two. Ways out: laws and inequalities at each time by itself, a "
            "field of independent points with one exact law, or a coarser grid."
        )


class Within:
    """Fields given laws, and the limits that draws of them are moved to."""

    def __init__(
        self,
        rows: tuple[Rows, ...],
        prior: Fields,
        root: Independent | Correlated,
        limits: Sequence[Limits],
        slack: float,
        grain: float,
    ) -> None:
        """grain: of the numbers that bounds are rounded to."""
        shapes = tuple(root.shapes)
        tied = [each.places(shapes) for each in rows]
        lead = min([root.lead, *tied, *sloping_axes(limits, shapes)])
        self.limits, self.grain, self.lead = limits, grain, lead
        self.layout = Layout(shapes, lead)
        self.laws = tuple(each.over(shapes, lead) for each in rows)
        self.mean, self.root = prior, root.joined(lead)
        own = [shape[lead:] for shape in shapes]
        self.rising = rows_that_rise([one.slopes for one in limits], own).to(prior[0].device)
        self.width = self._width()
        check_size(sum(self.layout.sizes), self.width)
        self._parts = self._of_all()
        self.low, self.high = (self._ends(limits, name) for name in ("low", "high"))
        self.back: tuple[Tensor, ...] = ()  # on the way back, where that is straight through bounds
        if any(one.straight_through for one in limits):
            left = [one.of_gradients for one in limits]
            self.back = tuple(self._ends(left, name) for name in ("low", "high"))
        self._start(rows, slack)

    def _width(self) -> int:
        """Rows and directions of a part."""
        shapes = self.layout.shapes
        counts = [math.prod(each.row_shape(shapes)[self.lead :]) for each in self.laws]
        directions = 0 if isinstance(self.root, Independent) else len(self.root.directions[0])
        return max(1, len(self.rising) + sum(counts) + directions)

    def _of_all(self) -> tuple[Tensor, Tensor | None, Tensor]:
        """D, F and J of all parts, or one that all share."""
        layout, root = self.layout, self.root
        matrices = [layout.matrix(rows) for rows in self.laws]
        rising = self.rising.expand(max([1, *map(len, matrices)]), -1, -1)
        directions, own = None, root if isinstance(root, Independent) else root.rest
        if isinstance(root, Correlated):
            directions = layout.flat(root.directions, 1).movedim(0, 1)
        rest = self.rising.new_zeros(1, sum(layout.sizes))
        rest = rest if own is None else layout.flat(own.variance)
        return rest, directions, torch.cat([rising, *matrices], 1)

    def _ends(self, limits: Sequence[Limits], name: str) -> Tensor:
        each = zip(limits, self.layout.shapes, strict=True)
        return self.layout.flat(tuple(getattr(one, name).expand(s) for one, s in each))

    @torch.no_grad()
    def _start(self, rows: tuple[Rows, ...], slack: float) -> None:
        """Looks at exact laws alone; what these fix narrows the limits of what rises or falls."""
        y, noise = self._drawn(0, None)
        u = torch.empty_like(y[0])
        wrong: InfeasibleError | None = None
        for parts in self._chunks(1):
            some = [x[:, parts] for x in noise]
            problem, start = self._problem(parts, y[:, parts], some, exact_only=True)
            u[parts] = start.u
            near = max(CONVERGED, self.grain) * (start.u.abs().amax(-1, keepdim=True) + EPS)
            broken = (start.broken - near).amax(-1)
            if bool((broken > 0).any()):
                at = int(broken.argmax())
                part = int(parts[at % len(parts)])
                ends, names = (self.low[part], self.high[part]), self._names(part)
                wrong = InfeasibleError(
                    out_of_reach(problem, at, ends, names)
                    or FIXED.format(most=float(start.broken[at].max()))
                )
        fields = self.layout.fields(u)
        if rows:
            check_met(rows, fields, self.mean, self.root, slack)
        if wrong is not None:
            raise wrong
        each = zip(self.limits, _known(rows, self.root), placed(rows, fields), strict=True)
        self.limits = [one.given(at, x) for one, at, x in each]
        self.tight = [self._ends(self.limits, name) for name in ("low", "high")]

    def draws(self, n: int, generator: torch.Generator | None) -> Fields:  # (n + 1, *shape) each
        """`n` draws of each field and the point as the last, exactly within the limits."""
        y, noise = self._drawn(n, generator)
        found = []
        for parts in self._chunks(n + 1):
            given = parts, y[:, parts], [x[:, parts] for x in noise]
            problem, _ = self._problem(*given)
            at = self._nearest(problem, parts)
            u = self._settled(problem.detached(), at, parts)
            if problem.learns:
                if self.back:
                    problem, _ = self._problem(*given, ends=self.back)
                    at = self._nearest(problem, parts)
                u = nearest_with_gradient(problem, u, at.active, at.force)
            found.append(u.unflatten(0, (n + 1, len(parts))))
        return self.layout.fields(torch.cat(found, 1) if found else y)

    def _drawn(self, n: int, generator: torch.Generator | None) -> tuple[Tensor, list[Tensor]]:
        """Draws of the fields before the laws, (n + 1, parts, N), and of the noise of each law."""
        layout, mean, noise = self.layout, self.layout.flat(self.mean)[None], []
        stds = [root_of(r.noise_variance).expand(r.row_shape(layout.shapes)) for r in self.laws]
        if not n:
            return mean, [
                layout.of_rows(r, torch.zeros_like(x)[None], 1)
                for r, x in zip(self.laws, stds, strict=True)
            ]
        normals = random_normals(n, generator, mean.device)
        y = torch.cat([mean + layout.flat(self.root.draw(normals), 1), mean])
        for rows, std in zip(self.laws, stds, strict=True):
            drawn = torch.cat([std * normals(*std.shape), torch.zeros_like(std)[None]])
            noise.append(layout.of_rows(rows, drawn, 1))
        return y, noise

    def _chunks(self, n: int) -> Iterator[Tensor]:
        """Parts that are worked on together."""
        each = self.width * sum(self.layout.sizes) * n
        numbers = torch.arange(self.layout.parts, device=self.mean[0].device)
        yield from numbers.split(max(1, AT_ONCE // max(1, each))) if len(numbers) else ()

    def _problem(
        self,
        parts: Tensor,
        y: Tensor,
        noise: Sequence[Tensor],
        exact_only: bool = False,
        ends: tuple[Tensor, ...] = (),
    ) -> tuple[Programme, Start]:
        """The programme of draws of some parts, of which there are draws times parts. ends: other
        bounds."""
        layout, draws, mean = self.layout, len(y), y.flatten(0, 1)

        def each(t: Tensor) -> Tensor:  # (parts, ...) to (draws parts, ...), or one for all
            t = t if len(t) == 1 else t[parts]
            return t if len(t) == 1 else t.repeat(draws, *[1] * (t.ndim - 1))

        rest, directions, rows = self._parts
        prior = Prior(each(rest), None if directions is None else each(directions), each(rows))
        before = mean.shape[-1] + len(self.rising)
        values, precisions = [mean.new_zeros(len(mean), before)], [mean.new_zeros(1, before)]
        for law, add in zip(self.laws, noise, strict=True):
            values.append((layout.of_rows(law, law.value)[parts] + add).flatten(0, 1))
            precisions.append(each(precision_of(layout.of_rows(law, law.noise_variance))))
        value, precision = torch.cat(values, -1), _beside(precisions)
        precision = torch.where(precision.isinf(), precision, 0.0) if exact_only else precision
        count = value.shape[-1] - before
        free = mean.new_full((1, count), torch.inf)
        rise = mean.new_zeros(1, len(self.rising))
        least, most = ends or (self.low, self.high)
        low = _beside([each(least), rise, -free])
        high = _beside([each(most), torch.full_like(rise, torch.inf), free])
        return in_units(prior, mean, value, precision, low, high)

    def _nearest(self, problem: Programme, parts: Tensor) -> Nearest:
        found = nearest(plain := problem.detached())
        if not bool(found.solved.all()):
            at = int((~found.solved).int().argmax())
            raise InfeasibleError(self._refused(plain, found, at, parts))
        return found

    @torch.no_grad()
    def _settled(self, problem: Programme, found: Nearest, parts: Tensor) -> Tensor:
        """Points at their bounds, and the rounding taken off exact rows by the others."""
        prior, points = problem.prior, problem.mean.shape[-1]
        active, low, high = (x[:, :points] for x in (found.active, problem.low, problem.high))
        u = torch.where(active > 0, low, torch.where(active < 0, high, found.u))
        exact = problem.precision.isinf().expand(len(u), -1).clone()
        u = torch.where(exact[:, :points], problem.value[:, :points], u)
        pinned, exact[:, :points] = exact[:, :points].clone(), False
        size = ROUNDED * (problem.mean.abs() + prior.variance.sqrt())
        off = problem.mean.new_zeros(len(u))
        for _ in range(TRIES):
            u = self._held(u, parts)
            miss = torch.where(exact, problem.value - prior.read(u), 0.0)
            terms = terms_of(prior, u.abs() + size) + problem.value.abs()
            off = (miss.abs() / terms.clamp_min(TINY)).amax(-1)
            if not bool((off > SETTLED).any()):
                return u
            ends = [x[parts].repeat(len(u) // len(parts), 1) for x in self.tight]
            at = prior.read(u)[:, points:]
            tied = (at <= 0) & (torch.arange(at.shape[-1], device=at.device) < len(self.rising))
            held = torch.cat([(u <= ends[0]) | (u >= ends[1]) | pinned, tied], -1) | exact
            step = Given(prior, torch.where(held, torch.inf, 0.0)).at(torch.zeros_like(u), miss)[0]
            u = u + torch.where(off[:, None] > SETTLED, step, 0.0)
        u = self._held(u, parts)
        if (worst := float(off.max())) > max(UNREACHED, self.grain):
            raise InfeasibleError(OFF.format(worst=worst))
        return u

    def _held(self, u: Tensor, parts: Tensor) -> Tensor:
        """Exactly within the limits."""
        found, count = [], len(self.layout.sizes)
        ends = [x[parts].split(self.layout.sizes, -1) for x in self.tight]
        for i, (x, shape) in enumerate(
            zip(u.split(self.layout.sizes, -1), self.layout.shapes, strict=True)
        ):
            own = shape[self.lead :]
            low, high = (end[i].unflatten(-1, own) if own else end[i][:, 0] for end in ends)
            part = Limits(low, high, self.limits[i].slopes)
            whole = x.reshape(-1, len(parts), *own)
            found.append(part.holding(whole).reshape(len(u), -1))
        assert len(found) == count
        return torch.cat(found, -1)

    def _refused(self, problem: Programme, found: Nearest, at: int, parts: Tensor) -> str:
        """Why a part did not get there."""
        part = int(parts[at % len(parts)])
        ends = self.low[part], self.high[part]
        return refusal(problem, found, at, ends, self._names(part))

    def _names(self, part: int) -> list[str]:
        """Of the rows of laws in one part."""
        names = []
        for law in self.laws:
            size = law.row_shape(self.layout.shapes)
            numbers = torch.arange(math.prod(size)).reshape(self.layout.parts, -1)[part]
            names += [law.name(unravelled(i, size)) for i in numbers.tolist()]
        return names


def _known(rows: Sequence[Rows], root: Independent | Correlated) -> list[Tensor]:
    """Points whose value is known to the last digit: of no variance, or read by an exact row."""
    found = [v == 0 for v in root.variance]
    for one in rows:
        if one.map.is_points:
            exact = (one.noise_variance == 0).double().expand(one.row_shape(root.shapes))
            found[one.first] = found[one.first] | (one.map.adjoint(exact) > 0)
    return found


def placed(rows: Sequence[Rows], u: Fields) -> Fields:
    """`u` with values that are known exactly in their places, to the last digit."""
    found = list(u)
    for one in rows:
        if one.map.is_points:
            own = one.map.apply(found[one.first])
            own = torch.where(one.noise_variance == 0, one.value, own)
            found[one.first] = one.map.put(found[one.first], own)
    return tuple(found)


def _beside(each: Sequence[Tensor]) -> Tensor:
    """Side by side, (P or 1, n) each."""
    wide = max(map(len, each))
    return torch.cat([x.expand(wide, -1) for x in each], -1)
