"""Fields within inequalities, beside linear laws of any kind: the loop on fields of known shapes.

A draw of the fields, and of the noise of the laws, is moved to the nearest fields that obey. The
point is the mean, moved in the same way.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ...fields.blocks import root_of
from ...fields.covariances import Correlated, Fields, Independent
from ...fields.gaussian import Normals, random_normals
from ...laws.inequalities import Limits, sloping_axes
from ...laws.law import Rows
from ...support.errors import InfeasibleError
from ...support.tolerances import CONVERGED, EPS, ROUNDED, SETTLED, TINY, UNREACHED
from ...support.values import unravelled
from ..audit import check_met
from ..recentred import GRADIENTS, WIDER, check_draws, learning, stand_in, until_they_stay
from .given import Given, Prior, is_thin, precision_of
from .gradient import nearest_with_gradient
from .layout import Layout, pairs_that_rise, reading_of
from .nearest import nearest
from .programme import Nearest, Programme, Start, in_units, terms_of
from .refused import FIXED, OFF, out_of_reach, refusal

AT_ONCE = 1 << 24  # numbers of rows and directions that are held together
TRIES = 6  # at taking rounding off exact rows


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
        self.stands = stand_in(rows, root)
        check_draws(self.stands.undetermined)
        root = self.stands.root
        shapes = tuple(root.shapes)
        tied = [each.places(shapes) for each in rows]
        lead = min([root.lead, *tied, *sloping_axes(limits, shapes)])
        self.limits, self.grain, self.lead = limits, grain, lead
        self.layout = Layout(shapes, lead)
        self.laws = tuple(each.over(shapes, lead) for each in rows)
        self.mean, self.root = prior, root.joined(lead)
        own = [shape[lead:] for shape in shapes]
        pairs = pairs_that_rise([one.slopes for one in limits], own).to(prior[0].device)
        self.rising = len(pairs)
        rest, directions = self._of_all()
        few = 0 if directions is None else directions.shape[1]
        moved = None if directions is None else (directions != 0).any(1)
        thin = moved is not None and bool((is_thin(rest, directions) & moved).any())
        reading, self.work = reading_of(self.laws, self.layout, pairs, few, thin)
        self.prior = Prior(rest, directions, reading)  # of all parts, or one for all
        self.open = self.layout.flat(self.stands.open)
        self.low, self.high = (self._ends(limits, name) for name in ("low", "high"))
        self.back: tuple[Tensor, ...] = ()  # on the way back, where that is straight through bounds
        if any(one.straight_through for one in limits):
            left = [one.of_gradients for one in limits]
            self.back = tuple(self._ends(left, name) for name in ("low", "high"))
        self._start(rows, slack)

    def _of_all(self) -> tuple[Tensor, Tensor | None]:
        """D and F of all parts, or one that all share."""
        layout, root = self.layout, self.root
        directions, own = None, root if isinstance(root, Independent) else root.rest
        if isinstance(root, Correlated):
            directions = layout.flat(root.directions, 1).movedim(0, 1)
        rest = self.mean[0].new_zeros(1, sum(layout.sizes))
        return rest if own is None else layout.flat(own.variance), directions

    def _ends(self, limits: Sequence[Limits], name: str) -> Tensor:
        each = zip(limits, self.layout.shapes, strict=True)
        return self.layout.flat(tuple(getattr(one, name).expand(s) for one, s in each))

    @torch.no_grad()
    def _start(self, rows: tuple[Rows, ...], slack: float) -> None:
        """Looks at exact laws alone; what these fix narrows the limits of what rises or falls."""
        y, noise = self._drawn(None)
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
        normals = random_normals(n, generator, self.mean[0].device) if n else None
        return self._all_moved(*self._drawn(normals))

    def moved(self, y: Fields, noise: Sequence[Tensor]) -> Fields:  # (n, *shape) each
        """Fields moved to the laws, with this noise of each law, and within the limits."""
        pairs = zip(self.laws, noise, strict=True)
        own = [self.layout.of_rows(law, x, 1) for law, x in pairs]
        return self._all_moved(self.layout.flat(y, 1), own)

    def _all_moved(self, y: Tensor, noise: Sequence[Tensor]) -> Fields:
        """Some draws of some parts at a time."""
        found = []
        for parts in self._chunks(len(y)):
            each = []
            for some in torch.arange(len(y), device=y.device).split(max(1, AT_ONCE // self.work)):
                one = some[:, None]
                given = parts, y[one, parts], [x[one, parts] for x in noise]
                each.append(self._moved(given).unflatten(0, (len(some), len(parts))))
            found.append(torch.cat(each))
        return self.layout.fields(torch.cat(found, 1) if found else y)

    def _drawn(self, normals: Normals | None) -> tuple[Tensor, list[Tensor]]:
        """Draws of the fields before the laws, (n + 1, parts, N), and of the noise of each law."""
        layout, mean, noise = self.layout, self.layout.flat(self.mean)[None], []
        stds = [root_of(r.noise_variance).expand(r.row_shape(layout.shapes)) for r in self.laws]
        y = mean
        if normals is not None:
            about = torch.where(self.open, 0.0, layout.flat(self.root.draw(normals), 1))
            y = torch.cat([mean + about, mean])
        for rows, std in zip(self.laws, stds, strict=True):
            drawn = torch.zeros_like(std)[None]
            if normals is not None:
                drawn = torch.cat([std * normals(*std.shape), drawn])
            noise.append(layout.of_rows(rows, drawn, 1))
        return y, noise

    def _chunks(self, n: int) -> Iterator[Tensor]:
        """Parts that are worked on together."""
        each = self.work * n
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

        prior = self.prior.with_parts(each)
        before = mean.shape[-1] + self.rising
        values, precisions = [mean.new_zeros(len(mean), before)], [mean.new_zeros(1, before)]
        for law, add in zip(self.laws, noise, strict=True):
            values.append((layout.of_rows(law, law.value)[parts] + add).flatten(0, 1))
            precisions.append(each(precision_of(layout.of_rows(law, law.noise_variance))))
        value, precision = torch.cat(values, -1), _beside(precisions)
        precision = torch.where(precision.isinf(), precision, 0.0) if exact_only else precision
        count = value.shape[-1] - before
        free = mean.new_full((1, count), torch.inf)
        rise = mean.new_zeros(1, self.rising)
        least, most = ends or (self.low, self.high)
        low = _beside([each(least), rise, -free])
        high = _beside([each(most), torch.full_like(rise, torch.inf), free])
        return in_units(prior, mean, value, precision, low, high)

    @torch.no_grad()
    def _nearest(self, problem: Programme, parts: Tensor) -> tuple[Nearest, Tensor, Tensor]:
        """The nearest fields, the means about which unmeasured points stay, and standard
        deviations as laws leave them."""
        open_, variance = self._open(problem, parts), problem.prior.variance
        left = torch.where(open_, variance / WIDER, variance)
        plain = problem.detached().narrowed(left.sqrt())

        def solve(mean: Tensor) -> tuple[Nearest, Tensor, Tensor]:
            found = nearest(plain._replace(mean=mean))
            if not bool(found.solved.all()):
                at = int((~found.solved).int().argmax())
                raise InfeasibleError(self._refused(plain, found, at, parts))
            return found, found.u, left

        found, last = until_they_stay(solve, plain.mean, open_)
        return found, last, left.sqrt()

    def _open(self, problem: Programme, parts: Tensor) -> Tensor:
        """Where nobody measured, in draws of some parts."""
        return self.open[parts].repeat(len(problem.mean) // len(parts), 1)

    def _with_gradient(
        self, problem: Programme, u: Tensor, at: Nearest, last: Tensor, parts: Tensor
    ) -> Tensor:
        open_ = self._open(problem, parts)
        mean = learning(problem.mean, last, open_)
        for _ in range(GRADIENTS if bool(open_.any()) else 1):
            own = problem._replace(mean=mean)
            u = nearest_with_gradient(own, u.detach(), at.active, at.force)
            mean = torch.where(open_, u, problem.mean)
        return u

    def _moved(self, given: tuple[Tensor, Tensor, Sequence[Tensor]]) -> Tensor:
        """The nearest fields of some parts, draws and noise, with their gradient."""
        (problem, _), parts = self._problem(*given), given[0]
        at, last, std = self._nearest(problem, parts)
        u = self._settled(problem.detached(), at, parts, std)
        if not problem.learns:
            return u
        if self.back:
            problem, _ = self._problem(*given, ends=self.back)
            at, last, _ = self._nearest(problem, parts)
        return self._with_gradient(problem, u, at, last, parts)

    @torch.no_grad()
    def _settled(self, problem: Programme, found: Nearest, parts: Tensor, std: Tensor) -> Tensor:
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
            tied = (at <= 0) & (torch.arange(at.shape[-1], device=at.device) < self.rising)
            held = torch.cat([(u <= ends[0]) | (u >= ends[1]) | pinned, tied], -1) | exact
            step = Given(prior, torch.where(held, torch.inf, 0.0)).at(torch.zeros_like(u), miss)[0]
            u = u + torch.where(off[:, None] > SETTLED, step, 0.0)
        u = self._held(u, parts)
        spread = terms_of(prior, problem.mean.abs() + std)
        off = (miss.abs() / torch.maximum(terms, spread).clamp_min(TINY)).amax(-1)
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
