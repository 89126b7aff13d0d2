"""Fields given laws of which some are not linear: what their posteriors answer from."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from ...fields.blocks import root_of
from ...fields.covariances import Fields
from ...fields.gaussian import Field, Normals
from ...fields.state import State, covariance_of
from ...laws.inequalities import Limits, sloping_axes
from ...laws.law import Rows
from ...laws.maps import Map, Matrix, Sum
from ...laws.nonlinear import Curved
from ...solvers.engine import Chain, free_axes, solve
from ...solvers.shared import Shared
from ...solvers.shrinkage import shrinks, shrunk
from ...support import checks as check
from ...support.errors import ProbConservError, warn_implausible
from ...support.tolerances import HOLDS
from ...support.tree import once
from ..posterior import Solved
from .bounded import Bounded
from .gauss_newton import PART, Failure, along_the_way, most_probable, with_gradient
from .kinks import across_kinks, kinked_with_gradient
from .linearised import MOST_DENSE, NonlinearProblem, joined
from .within import rows_that_rise

Work = TypeVar("Work", bound=Callable[..., Any])
SOON = 20  # steps, after which kinks are looked for
STAGES = (4, 16)  # on the way to draws that do not get to the laws at once
AT_ONCE = 1 << 24  # numbers of Jacobians that are held together
SHARE, FEW = 10, 3  # at most one of so many draws is drawn again, and so often any solution


def uncompiled(work: Work) -> Work:
    """`torch.compile` stops at such work, which looks at values, and goes on after it."""

    @wraps(work)
    def whole(*args: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            outside: Any = torch.compiler.disable(work)
            return outside(*args)
        return work(*args)

    return cast(Work, whole)


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
        self.back: tuple[tuple[Tensor, ...], ...] = ()  # low and high on the way back, if others
        if any(one.straight_through for one in limits):
            back = [(one.of_gradients, shape) for one, shape in ends]
            self.back = (
                tuple(one.low.expand(shape) for one, shape in back),
                tuple(one.high.expand(shape) for one, shape in back),
            )
        self.slopes = tuple(one.slopes for one in limits)
        lead = min(free_axes(rows, shapes), *tied)
        self.root = root.joined(lead)
        self.dims = tuple(len(shape) - lead for shape in shapes)  # last axes that are tied
        self.rows = tuple(each.over(shapes, lead) for each in rows)
        problem = self._problem(self.before)
        found, kinked, failed = _in_chunks(problem)
        if failed:
            raise _refused(failed, Names("solution", shapes[0][:lead]))
        across = _across(problem, found, kinked)
        if torch.is_grad_enabled() and problem.learns:
            found = _with_gradient(problem, found, kinked)
        self.places = tuple(
            tuple(u.reshape(s) for u, s in zip(problem.fields(place), shapes, strict=True))
            for place in across.unbind(1)
        )  # where the laws have more slopes that hold at the point
        pairs = zip(problem.fields(found), shapes, strict=True)
        self.mean = tuple(u.reshape(s) for u, s in pairs)

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
        if not self.low:
            return NonlinearProblem(*given)
        ends = [
            joined([_flat(x.expand(u.shape), 0, sizes) for x, u in zip(end, mean, strict=True)])
            for end in (self.low, self.high, *self.back)
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

    def _at_bounds(self, u: Fields) -> list[Rows]:
        """What is at a bound, as exact rows."""
        found = []
        for i, (x, low, high) in enumerate(zip(u, self.low, self.high, strict=bool(self.low))):
            there, own = ((x == low) | (x == high)).double(), x.shape[self.lead :]
            maps: list[tuple[str, Map, Tensor, Tensor | None]] = []
            maps.append(("bounds", Sum(there, 0), there * x.detach(), None))
            if self.slopes[i]:
                rising = Matrix(rows_that_rise(self.slopes[i : i + 1], [own]).to(x.device), own)
                size = rising.entrywise(1).apply(x.abs() + self.root.variance[i].sqrt())
                tied = rising.apply(x).abs() <= HOLDS * size
                level = tied.double()
                maps.append(("monotone", rising, torch.zeros_like(level), level))
            for label, one, value, present in maps:
                each = tuple(one if i == j else None for j in range(len(u)))
                found.append(Rows(label, each, value, torch.zeros_like(value), present, True))
        return found

    @once
    def _gaussian(self) -> tuple[tuple[Rows, ...], Chain | Shared, tuple[Tensor, ...]]:
        """All laws as they are at the mean, how they are solved, and the residuals of the prior."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.differentiable):
            slopes = [each for u in self.places for each in self._near(u)]
            near = (*self.rows, *self._near(self.mean), *slopes)
            known = [_held(each, self.mean) for each in near]
            rows = (*known, *self._at_bounds(self.mean))
            way = solve(rows, self.root)
            return rows, way, tuple(way.run(self.before)[1])

    @property
    def laws(self) -> tuple[Rows, ...]:  # type: ignore[override]
        return self._gaussian[0]

    @property
    def way(self) -> Chain | Shared:  # type: ignore[override]
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
        names = self._names("draw", y)
        found = torch.empty(math.prod(names.sizes), sum(map(math.prod, self._own)), **_like(y[0]))
        kinked = torch.zeros(len(found), dtype=torch.bool, device=found.device)
        left, again = torch.arange(len(found), device=found.device), torch.zeros(names.sizes)
        while len(left):
            found[left], kinked[left], failed = self._moved(y, noise, left)
            left = torch.tensor(sorted(failed), dtype=torch.int64, device=found.device)
            again.view(-1)[left.cpu()] += 1
            if failed:
                if _too_many(again):
                    raise _refused(failed, names)
                y, noise = self._replaced(y, noise, left, names, normals, failed)
        count = int((again > 0).sum())
        if count:
            warn_implausible(
                f"{count} of {len(found)} draws did not get to the laws and were drawn again: the "
                "draws leave out the part of the spread where laws are bent too much. Ways out: "
                "give the laws `noise`, or the prior less variance."
            )
        return self._with_gradients(y, noise, found, kinked), count

    @uncompiled
    def moved(self, y: Fields, noun: str) -> Fields:
        """Fields moved to the laws; noun: what errors call them."""
        noise = [x.new_zeros(()).expand(len(y[0]), *n) for n, x in self._rows_of()]
        names = self._names(noun, y)
        every = torch.arange(math.prod(names.sizes), device=y[0].device)
        found, kinked, failed = self._moved(y, noise, every)
        if failed:
            raise _refused(failed, names)
        return self._with_gradients(y, noise, found, kinked)

    def _names(self, noun: str, y: Fields) -> "Names":
        return Names(noun, y[0].shape[: y[0].ndim - self.dims[0]])

    @property
    def _own(self) -> list[torch.Size]:
        """The shape of each field in a part."""
        return [u.shape[self.lead :] for u in self.before]

    def _rows_of(self) -> list[tuple[tuple[int, ...], Tensor]]:
        """The shape of the rows of each law, and the variance of their noise."""
        shapes = [u.shape for u in self.before]
        return [(tuple(law.row_shape(shapes)), law.noise_variance) for law in self.stated]

    def _unmoved(self, normals: Normals) -> tuple[Fields, list[Tensor]]:
        """Draws of the prior, and of the noise of each law."""
        about = self.root.draw(normals)
        mean = tuple(m + x for m, x in zip(self.before, about, strict=True))
        return mean, [root_of(v).expand(n) * normals(*n) for n, v in self._rows_of()]

    def _replaced(
        self,
        y: Fields,
        noise: list[Tensor],
        left: Tensor,
        names: "Names",
        normals: Normals,
        failed: dict[int, Failure],
    ) -> tuple[Fields, list[Tensor]]:
        """New draws in place of those parts of them that `left` numbers."""
        try:
            fresh = self._unmoved(normals)
        except IndexError:  # the numbers were given, and are used up
            raise _refused(failed, names) from None
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
    ) -> tuple[Tensor, Tensor, dict[int, Failure]]:  # (P, N), (P,)
        """Draws moved to the laws, those parts that `left` numbers; which of them are on kinks, and
        which got not there."""
        plain = self._problem(self.before)
        known = self._problem(self.mean).mean, plain.mean, plain.value
        found, on, failed = [plain.mean[:0]], [left[:0] > 0], dict[int, Failure]()
        for problem, at in self._chunks(y, noise, left):
            start = [x[at % len(plain.mean)] for x in known]
            u, kinked, wrong = _in_chunks(problem, start)
            found.append(u)
            on.append(kinked)
            failed |= {int(at[i]): each for i, each in wrong.items()}
        return torch.cat(found), torch.cat(on), failed

    def _with_gradients(
        self, y: Fields, noise: list[Tensor], found: Tensor, kinked: Tensor
    ) -> Fields:
        """What draws were moved to, as fields."""
        if torch.is_grad_enabled() and self._problem(self.before).learns:
            every = torch.arange(len(found), device=found.device)
            chunks = self._chunks(y, noise, every)
            each = [_with_gradient(p, found[at], kinked[at]) for p, at in chunks]
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
    """Rows of a law; of rows with one side those that are at it."""
    if not rows.side:
        return rows
    terms = rows.entrywise(1).apply(tuple(x.abs() for x in u)) + rows.value.abs()
    at = (rows.residual(u).abs() <= HOLDS * terms).double()
    present = at if rows.present is None else at * rows.present
    value = (rows.value * at).detach()
    return Rows(rows.label, rows.maps, value, torch.zeros_like(value), present, True)


@dataclass(frozen=True)
class Names:
    """What errors call the parts of a problem."""

    noun: str
    sizes: Sequence[int]  # of the axes that number parts; of draws the first is that of draws

    def __call__(self, part: int) -> str:
        index = check.unravelled(part, self.sizes)
        if self.noun == "solution":
            return f"solution {index[0] if len(index) == 1 else index or 0}"
        return f"{self.noun} {index[0]}" + f" of solution {index[1:]}" * (len(index) > 1)


def _in_chunks(
    problem: NonlinearProblem, start: Sequence[Tensor] | None = None
) -> tuple[Tensor, Tensor, dict[int, Failure]]:  # (P, N), (P,)
    """The most probable fields, as many parts at a time as there is room for; which of them lie on
    kinks of the laws, and which failed.

    start: fields that obey the laws, with the mean and the values that they belong to.
    """
    size = problem.mean.shape[1] * (sum(problem.counts) if problem.is_dense else 1)
    parts = torch.arange(len(problem.mean), device=problem.mean.device)
    found, failed, on = [], dict[int, Failure](), torch.zeros_like(parts, dtype=torch.bool)
    for each in parts.split(max(1, AT_ONCE // max(1, size))):
        some = problem if len(each) == len(parts) else problem.some(each)
        near = None if start is None else start[0][each]
        u, wrong = most_probable(some, near, SOON)
        if wrong:
            at = torch.tensor(sorted(wrong), device=parts.device)
            own = None if near is None else near[at]
            u[at], on[each[at]], left = _with_patience(some.some(at), own)
            wrong = {int(at[i]): failure for i, failure in left.items()}
        for stages in STAGES:
            if wrong and start is not None:
                at = torch.tensor(sorted(wrong), device=parts.device)
                near, mean, value = (x[each[at]] for x in start)
                u[at], left = along_the_way(some.some(at), mean, value, near, stages)
                wrong = {int(at[i]): failure for i, failure in left.items()}
        failed |= {int(each[i]): failure for i, failure in wrong.items()}
        found.append(u)
    return torch.cat(found) if len(found) != 1 else found[0], on, failed


def _with_patience(
    problem: NonlinearProblem, near: Tensor | None
) -> tuple[Tensor, Tensor, dict[int, Failure]]:  # (P, N), (P,)
    """As `_in_chunks`, of parts that take many steps, or that end on kinks."""
    across = across_kinks(problem)
    left = (~across.solved).nonzero()[:, 0]
    if not len(left):
        return across.u, across.solved, {}
    u, wrong = most_probable(problem.some(left), near if near is None else near[left])
    found = across.u.index_copy(0, left, u)
    return found, across.solved, {int(left[i]): failure for i, failure in wrong.items()}


def _across(problem: NonlinearProblem, u: Tensor, kinked: Tensor) -> Tensor:  # (P, C, N)
    """Places of the other slopes that hold where a part is on kinks; its own u elsewhere."""
    if not bool(kinked.any()):
        return u[:, None][:, :0]
    places = across_kinks(problem.some(kinked.nonzero()[:, 0])).places
    found = u[:, None].repeat(1, places.shape[1], 1)
    found[kinked] = places
    return found


def _with_gradient(problem: NonlinearProblem, u: Tensor, kinked: Tensor) -> Tensor:
    if not bool(kinked.any()):
        return with_gradient(problem, u)
    smooth, on = ((kinked == each).nonzero()[:, 0] for each in (False, True))
    some = problem.some(on)
    found = u.index_copy(0, on, kinked_with_gradient(some, across_kinks(some)))
    return found.index_copy(0, smooth, with_gradient(problem.some(smooth), u[smooth]))


def _refused(failed: dict[int, Failure], names: Names) -> ProbConservError:
    kind, text = failed[first := min(failed)]
    said = text.replace(PART, names(first))
    others = len(failed) - 1
    if others:
        count = math.prod(names.sizes)
        said += f" {others} other{'s' * (others > 1)} of {count} did not get there either."
    if names.noun == "draw":
        said += " `point`, `variance` and `interval` need no draws."
    return kind(said)


def _flat(t: Tensor, before: int, sizes: Sequence[int]) -> Tensor:
    """With the axes of these sizes, of which any may be 1, as one."""
    front, rest = t.shape[:before], t.shape[before + len(sizes) :]
    return t.expand((*front, *sizes, *rest)).reshape(*front, math.prod(sizes), *rest)
