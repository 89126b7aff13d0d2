"""Fields given laws that are not linear, or inequalities: what their posteriors answer from."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ...fields.blocks import root_of
from ...fields.covariances import Fields
from ...fields.gaussian import Field, Normals
from ...fields.state import State, covariance_of
from ...laws.inequalities import Limits, sloping_axes
from ...laws.law import Rows
from ...laws.nonlinear import Curved
from ...solvers.engine import free_axes, solve
from ...solvers.shrinkage import shrinks, shrunk
from ...support.compiling import uncompiled
from ...support.errors import InputError, warn_implausible
from ...support.tolerances import HOLDS
from ...support.tree import once
from ..posterior import Solved
from ..recentred import WIDER, loosened, stand_in, until_they_stay
from ..unmeasured import Eliminated, Way, finite
from .bounded import Bounded
from .gauss_newton import Failure
from .layout import at_bounds
from .linearised import MOST_DENSE, NonlinearProblem, joined
from .parts import AT_ONCE, in_chunks, learned, refused, stayed
from .refused import Names
from .within import Within

SINGLE_EPS = torch.finfo(torch.float32).eps  # results of half precision are single
QUICK = 2  # rounds in which unmeasured points mostly settle
SHARE, FEW = 10, 3  # at most one of so many draws is drawn again, and so often any solution


class NonlinearSolved(Solved):
    """Fields given linear laws and others, in float64: what the posteriors answer from.

    `mean` is a most probable state. All else but draws is that of the Gaussian about it, with all
    laws as they are there, which is solved when it is first asked for.
    """

    def __init__(
        self,
        prior: Field | State,
        rows: tuple[Rows, ...],
        curved: tuple[Curved, ...],
        limits: Sequence[Limits] = (),
    ) -> None:
        self.curved, self.before = curved, tuple(field.mean.double() for field in prior.parts)
        shapes = [u.shape for u in self.before]
        if any(map(shrinks, prior.parts)):
            prior = shrunk(prior, (*rows, *self._near(self.before)))
        root = covariance_of(prior)
        tied = [
            root.lead,
            *(each.places(shapes) for each in curved),
            *(sloping_axes(limits, shapes) if limits else ()),
        ]
        ends = list(zip(limits, shapes, strict=bool(limits)))
        self.low = tuple(one.low.expand(shape) for one, shape in ends)
        self.high = tuple(one.high.expand(shape) for one, shape in ends)
        self.slopes = tuple(one.slopes for one in limits)
        self.straight = tuple(one.straight_through for one in limits)
        lead = min(free_axes(rows, shapes), *tied)
        self.asked = root.joined(lead)  # of which variances may be infinite
        self.root: Any = self.asked
        self.dims = tuple(len(shape) - lead for shape in shapes)  # last axes that are tied
        self.rows = tuple(each.over(shapes, lead) for each in rows)
        self.open = tuple(v == torch.inf for v in self.asked.variance)
        self.is_measured = not any(bool(at.any()) for at in self.open)
        self.eps = max(torch.finfo(field.dtype).eps for field in prior.parts)
        if self.is_linear:
            self.mean = tuple(u[-1] for u in self._within().draws(0, None))
            return
        problem, found = self._found(Names("solution", shapes[0][:lead]))
        pairs = zip(problem.fields(found), shapes, strict=True)
        self.mean = tuple(u.reshape(s) for u, s in pairs)

    def _found(self, names: Names) -> tuple[NonlinearProblem, Tensor]:
        """The problem, and the most probable fields, (P, N)."""
        before, open_ = self._vector(self.before), self._vector(self.open)
        near: list[Tensor] | None = None
        moves: list[Tensor] = []

        def solve(mean: Tensor) -> tuple[tuple[NonlinearProblem, Tensor], Tensor, Tensor]:
            nonlocal near
            means = self._apart(mean)
            self.root = self._stand_in(means, moves[QUICK:])
            problem = self._problem(means)
            u, failed = in_chunks(problem, near)
            if failed:
                raise refused(failed, names)
            moves.append((u - mean.detach()).square())
            near = [u, problem.mean, problem.value]
            return (problem, u), u, problem.variance

        (problem, u), last = until_they_stay(solve, before, open_)
        if not (torch.is_grad_enabled() and problem.learns):
            return problem, u
        problem.mean = before
        return problem, learned(problem, u, last, open_)

    def _stand_in(self, u: Fields, moves: Sequence[Tensor]) -> Any:
        """The covariance with finite variances, for laws as they are at u.

        moves: squares of what points moved by, where they need more rounds than most: those that
        laws and bounds determine only together.
        """
        if self.is_measured:
            return self.asked
        shapes = [x.shape for x in u]
        lead = len(shapes[0]) - self.dims[0]
        count = sum(math.prod(law.row_shape(shapes)[lead:]) for law in self.stated)
        if count > MOST_DENSE:
            raise InputError(
                f"`laws`: these have {count} rows in a part. Beside points of infinite variance "
                f"laws that are not linear, and points without draws, take up to {MOST_DENSE}. "
                "Ways out: laws at each time by itself, or a finite variance."
            )
        with torch.no_grad():
            near = [each for each in self._near(u) if bool(each.apply(u).isfinite().all())]
        root = stand_in((*self.rows, *near), self.asked).root
        for move in moves:
            wide = self._apart(WIDER * move)
            root = finite(self.asked, tuple(map(torch.maximum, root.variance, wide)))
        return root

    def _at_open(self, u: Fields, others: Fields) -> Fields:
        """`u` at points of infinite variance, and `others` elsewhere."""
        each = zip(self.open, u, others, strict=True)
        return tuple(torch.where(at, x, y) for at, x, y in each)

    def _vector(self, fields: Fields) -> Tensor:  # (P, N)
        sizes = self.before[0].shape[: self.before[0].ndim - self.dims[0]]
        return joined([_flat(u, 0, sizes) for u in fields])

    def _apart(self, u: Tensor) -> Fields:
        """The inverse."""
        return self._as_fields(u, self.before)

    @property
    def lead(self) -> int:
        return self.before[0].ndim - self.dims[0]

    @property
    def limits(self) -> tuple[Limits, ...]:
        """Of each field; none where there are no inequalities."""
        four = self.low, self.high, self.slopes, self.straight
        return tuple(Limits(*each) for each in zip(*four, strict=True))

    @property
    def is_linear(self) -> bool:
        """Whether all laws are linear, beside inequalities of points and their order alone."""
        others = self.curved or any(rows.side for rows in self.rows)
        return bool(self.low) and self.is_measured and not others

    def _within(self) -> Within:
        """The same, where all laws are linear."""
        grain = 4 * min(self.eps, SINGLE_EPS)
        return Within(self.rows, self.before, self.root, self.limits, 16 * self.eps, grain)

    @property
    def stated(self) -> tuple[Any, ...]:
        """The laws as they were stated."""
        return (*self.rows, *self.curved)

    @property
    def free(self) -> int:
        return self.lead

    def _problem(self, mean: Fields, noise: list[Tensor] | None = None) -> NonlinearProblem:
        """The problem with one axis of parts. noise: of each law, beside draws as `mean`."""
        sizes = mean[0].shape[: mean[0].ndim - self.dims[0]]

        def flat(t: Tensor, before: int | None) -> Tensor:
            if before is None:
                return t
            return _flat(t if noise is None else t.unsqueeze(before), before, sizes)

        laws: tuple[Any, ...] = tuple(each._change(flat) for each in self.stated)
        for law, add in zip(laws, noise or [], strict=noise is not None):
            law.value = law.value + _flat(add, 0, sizes)
        count = len(self.rows)
        means = tuple(_flat(u, 0, sizes) for u in mean)
        given = means, self.root._change(flat), laws[:count], laws[count:]
        problem = self._bounded(mean, sizes, given) if self.low else NonlinearProblem(*given)
        if not self.is_measured:
            each = zip(self.open, mean, strict=True)
            open_ = joined([_flat(at.expand(u.shape), 0, sizes) for at, u in each])
            problem.variance = torch.where(open_, problem.variance / WIDER, problem.variance)
        return problem

    def _bounded(self, mean: Fields, sizes: Sequence[int], given: tuple[Any, ...]) -> Bounded:
        others = [one.of_gradients for one in self.limits] if any(self.straight) else []
        back = [tuple(getattr(one, name) for one in others) for name in ("low", "high")]
        ends = [
            joined([_flat(x.expand(u.shape), 0, sizes) for x, u in zip(end, mean, strict=True)])
            for end in (self.low, self.high, *filter(None, back))
        ]
        return Bounded(*given, low=ends[0], high=ends[1], slopes=self.slopes, back=tuple(ends[2:]))

    @property
    def differentiable(self) -> bool:
        return any(u.requires_grad for u in self.mean)

    def _near(self, u: Fields) -> list[Rows]:
        """The laws that are not linear, as they are at u."""
        found = [each.linearised(u, each.count <= MOST_DENSE) for each in self.curved]
        for rows, each in zip(found, self.curved, strict=True):
            rows.side = each.side
        return found

    @once
    def _gaussian(self) -> tuple[tuple[Rows, ...], Way, tuple[Tensor, ...]]:
        """All laws as they are at the mean, how they are solved, and the residuals of the prior."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.differentiable):
            near = (*self.rows, *self._near(self.mean))
            laws = [each for each in near if not each.side]
            limits = [_held(each, self.mean) for each in near if each.side]
            sizes = [x.abs() + v.sqrt() for x, v in zip(self.mean, self.root.variance, strict=True)]
            ends = list(zip(self.low, self.high, self.slopes, strict=True))
            limits += at_bounds(self.mean, ends, sizes, self.lead)
            if self.is_measured:
                way: Way = solve((*laws, *limits), self.root)
            else:
                left = stand_in(laws, self.asked).undetermined
                limits = [loosened(each, left) for each in limits]
                way = Eliminated((*laws, *limits), self.asked)
            return (*laws, *limits), way, tuple(way.run(self.before)[1])

    @property
    def laws(self) -> tuple[Rows, ...]:  # type: ignore[override]
        return self._gaussian[0]

    @property
    def way(self) -> Way:  # type: ignore[override]
        return self._gaussian[1]

    @property
    def residuals(self) -> tuple[Tensor, ...]:  # type: ignore[override]
        return self._gaussian[2]

    def draw(self, normals: Normals) -> Fields:
        """Draws of the prior, each moved to the laws."""
        return self.drawn(normals)[0]

    @uncompiled
    def drawn(self, normals: Normals) -> tuple[Fields, int]:
        """The same, and how many of them were drawn again, as the first did not get to the laws."""
        y, noise = self._unmoved(normals)
        if self.is_linear:
            return self._within().moved(y, noise), 0
        names = self._names("draw", y)
        found = torch.empty(math.prod(names.sizes), sum(map(math.prod, self._own)), **_like(y[0]))
        left, again = torch.arange(len(found), device=found.device), torch.zeros(names.sizes)
        while len(left):
            found[left], failed = self._moved(y, noise, left)
            left = torch.tensor(sorted(failed), dtype=torch.int64, device=found.device)
            again.view(-1)[left.cpu()] += 1
            if failed:
                if _too_many(again):
                    raise refused(failed, names)
                y, noise = self._replaced(y, noise, left, names, normals, failed)
        count = int((again > 0).sum())
        if count:
            warn_implausible(
                f"{count} of {len(found)} draws did not get to the laws and were drawn again: the "
                "draws leave out the part of the spread where laws are bent too much. Ways out: "
                "give the laws `noise`, or the prior less variance."
            )
        return self._with_gradients(y, noise, found), count

    @uncompiled
    def moved(self, y: Fields, noun: str) -> Fields:
        """Fields moved to the laws; noun: what errors call them."""
        noise = [x.new_zeros(()).expand(len(y[0]), *n) for n, x in self._rows_of()]
        if self.is_linear:
            return self._within().moved(y, noise)
        names = self._names(noun, y)
        every = torch.arange(math.prod(names.sizes), device=y[0].device)
        found, failed = self._moved(y, noise, every)
        if failed:
            raise refused(failed, names)
        return self._with_gradients(y, noise, found)

    def _names(self, noun: str, y: Fields) -> Names:
        return Names(noun, y[0].shape[: y[0].ndim - self.dims[0]])

    @property
    def _own(self) -> list[torch.Size]:
        """The shape of each field in a part."""
        return [u.shape[u.ndim - n :] for u, n in zip(self.before, self.dims, strict=True)]

    def _rows_of(self) -> list[tuple[tuple[int, ...], Tensor]]:
        """The shape of the rows of each law, and the variance of their noise."""
        shapes = [u.shape for u in self.before]
        return [(tuple(law.row_shape(shapes)), law.noise_variance) for law in self.stated]

    def _unmoved(self, normals: Normals) -> tuple[Fields, list[Tensor]]:
        """Draws of the prior, and of the noise of each law."""
        about = self.root.draw(normals)
        mean = self._at_open(self.mean, tuple(map(torch.add, self.before, about)))
        return mean, [root_of(v).expand(n) * normals(*n) for n, v in self._rows_of()]

    def _replaced(
        self,
        y: Fields,
        noise: list[Tensor],
        left: Tensor,
        names: Names,
        normals: Normals,
        failed: dict[int, Failure],
    ) -> tuple[Fields, list[Tensor]]:
        """New draws in place of those parts of them that `left` numbers."""
        try:
            fresh = self._unmoved(normals)
        except IndexError:  # the numbers were given, and are used up
            raise refused(failed, names) from None
        parts = torch.zeros(math.prod(names.sizes), dtype=torch.bool, device=left.device)
        parts[left] = True
        parts = parts.reshape(names.sizes)

        def put(new: Tensor, old: Tensor) -> Tensor:
            return torch.where(
                parts.reshape(*names.sizes, *[1] * (old.ndim - parts.ndim)), new, old
            )

        fields = tuple(map(put, fresh[0], y))
        return fields, list(map(put, fresh[1], noise))

    @torch.no_grad()
    def _moved(
        self, y: Fields, noise: list[Tensor], left: Tensor
    ) -> tuple[Tensor, dict[int, Failure]]:  # (P, N)
        """Draws moved to the laws, those parts that `left` numbers; and which got not there."""
        plain, open_ = self._problem(self._at_open(self.mean, self.before)), self._vector(self.open)
        known = self._problem(self.mean).mean, plain.mean, plain.value
        found, failed = [plain.mean[:0]], dict[int, Failure]()
        for problem, at in self._chunks(y, noise, left):
            start = [x[at % len(plain.mean)] for x in known]
            u, wrong = stayed(problem, start, open_[at % len(open_)])
            found.append(u)
            failed |= {int(at[i]): each for i, each in wrong.items()}
        return torch.cat(found), failed

    def _with_gradients(self, y: Fields, noise: list[Tensor], found: Tensor) -> Fields:
        """What draws were moved to, as fields."""
        if torch.is_grad_enabled() and self._problem(self.before).learns:
            every = torch.arange(len(found), device=found.device)
            chunks = self._chunks(y, noise, every)
            open_ = self._vector(self.open)
            each = [learned(p, found[at], found[at], open_[at % len(open_)]) for p, at in chunks]
            found = torch.cat(each) if each else found
        return self._as_fields(found, y)

    def _as_fields(self, found: Tensor, y: Fields) -> Fields:
        """(P, N) as fields in the shapes of y."""
        sizes = [math.prod(own) for own in self._own]
        pairs = zip(found.split(sizes, -1), y, strict=True)
        return tuple(u.reshape(x.shape) for u, x in pairs)

    def _chunks(
        self, y: Fields, noise: list[Tensor], left: Tensor
    ) -> Iterator[tuple[NonlinearProblem, Tensor]]:
        """Problems of some draws at a time: those parts that `left` numbers, and their numbers."""
        parts = math.prod(self.before[0].shape[: self.lead])
        some = max(1, AT_ONCE // max(1, sum(u.numel() for u in self.before)))
        for start in range(0, len(y[0]), some):
            first, last = start * parts, (start + some) * parts
            at = left[(left >= first) & (left < last)]
            if len(at):
                own = ([x[start : start + some] for x in each] for each in (y, noise))
                mean, add = own
                problem = self._problem(tuple(mean), add)
                yield problem if len(at) == len(problem.mean) else problem.some(at - first), at


def _like(x: Tensor) -> dict[str, Any]:
    return {"dtype": x.dtype, "device": x.device}


def _too_many(again: Tensor) -> bool:
    """again: how often each draw of each solution was drawn again, (n, *lead)."""
    each = again.sum(0)
    few = max(1, again.numel() / SHARE)
    return bool(each.sum() > few) or bool((each > max(FEW, len(again) / SHARE)).any())


def _held(rows: Rows, u: Fields) -> Rows:
    """Of rows with one side those that are at it."""
    terms = rows.entrywise(1).apply(tuple(x.abs() for x in u)) + rows.value.abs()
    at = (rows.residual(u).abs() <= HOLDS * terms).double()
    present = at if rows.present is None else at * rows.present
    value = (rows.value * at).detach()
    return Rows(rows.label, rows.maps, value, torch.zeros_like(value), present, True)


def _flat(t: Tensor, before: int, sizes: Sequence[int]) -> Tensor:
    """With the axes of these sizes, of which any may be 1, as one."""
    front, rest = t.shape[:before], t.shape[before + len(sizes) :]
    return t.expand((*front, *sizes, *rest)).reshape(*front, math.prod(sizes), *rest)
