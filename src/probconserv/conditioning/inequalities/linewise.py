"""Independent points given inequalities, where one number for each row of one law decides.

Draws are made in pieces that stay in the cache. Asked as `Within` is, which does all else.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...fields.blocks import root_of
from ...fields.covariances import Fields, Independent, shared_axes
from ...laws.inequalities import Limits, sloping_axes
from ...laws.law import Rows
from ...solvers.engine import solve
from ...support.errors import InfeasibleError
from ...support.tolerances import HOLDS, TINY
from ...support.values import span, unravelled
from ..audit import check_met
from ..loop.refused import WAYS
from ..loop.within import Layout, placed
from .clipped import Clipped
from .isotonic import Rising

CHUNK = 1 << 17  # numbers that are worked on at a time
CHUNK_CUDA = 1 << 24


class Linewise:
    """Independent points given one law whose rows share no point, and values at single points."""

    @staticmethod
    def suits(rows: Sequence[Rows], shapes: Sequence[torch.Size], limits: Sequence[Limits]) -> bool:
        """Whether one number for each row decides."""
        laws = [each for each in rows if not each.map.is_points]
        if len(laws) > 1 or not all(len(one.slopes) < 2 and one.level for one in limits):
            return False
        lead = _lead(laws, shapes, limits)
        alone = all(math.prod(each.row_shape(shapes)[lead:]) == 1 for each in laws)
        pairs = [pair for each in laws for pair in zip(each.maps, limits, strict=True)]
        return all(m is None or (m.is_disjoint and (alone or not one.slopes)) for m, one in pairs)

    def __init__(
        self,
        rows: tuple[Rows, ...],
        prior: Fields,
        root: Independent,
        limits: Sequence[Limits],
        slack: float,
        grain: float,
    ) -> None:
        """grain: of the numbers that bounds are rounded to."""
        points = tuple(each for each in rows if each.map.is_points)
        self.laws = [each for each in rows if each not in points]
        self.mean, variance, self.grain = prior, root.variance, grain
        if points:
            way = solve(points, root)
            mean, variance = way.run(prior)[0], way.variance
            check_met(points, mean, prior, root, slack)
            self.mean = placed(points, mean)
        self.variance = tuple(torch.where(v > TINY, v, 0.0) for v in variance)
        self.lead = _lead(self.laws, root.shapes, limits)
        self.layout = Layout(tuple(root.shapes), self.lead)
        given = zip(limits, self.variance, self.mean, strict=True)
        self.limits = [self._narrowed(one, v == 0, u) for one, v, u in given]
        self._lay_out()

    @torch.no_grad()
    def _narrowed(self, one: Limits, fixed: Tensor, u: Tensor) -> Limits:
        """The limits beside points of no variance, which must be where they are."""
        found, near = one.given(fixed, u), max(HOLDS, self.grain) * u.abs()
        out = fixed & ((u < found.low - near) | (u > found.high + near))
        if bool(out.any()):
            at = tuple(unravelled(int(out.int().argmax()), out.shape))
            raise InfeasibleError(
                f"`bounds`, `monotone`: the point of no variance at {list(at)} is "
                f"{float(u[at]):.10g} and cannot be moved, but the nearest that they allow is "
                f"{float(u.clamp(found.low, found.high)[at]):.10g}. Ways out: give it variance, "
                "correct the value, or bound the others alone."
            )
        return found

    @torch.no_grad()
    def _lay_out(self) -> None:
        """Parts side by side, (P, E): mean, variance, weights, bounds; (P, R): value and
        noise; and the row of each point, (E,)."""
        layout, mean = self.layout, self.mean
        self.order, self.lines = self._in_lines()
        weights: Sequence[Any] = [torch.zeros_like(u) for u in mean]
        self.value = self.noise = mean[0].new_zeros(layout.parts, 1)
        self.labels: Tensor | None = None
        for law in self.laws:  # there is one at most
            shape, none = law.row_shape(layout.shapes), mean[0].new_zeros(())
            found = law.adjoint(mean[0].new_ones(shape))
            weights = [none if x is None else x for x in found]
            value = self._reachable(law, weights)
            self.value, self.noise = (layout.of_rows(law, x) for x in (value, law.noise_variance))
            if (count := self.value.shape[-1]) > 1:
                numbers = torch.arange(count, device=none.device)
                numbers = numbers.reshape(shape[self.lead :]).expand(shape)
                maps: tuple[Any, ...] = law.maps
                labels = [none.long() if m is None else m.at_points(numbers) for m in maps]
                self.labels = self._flat(labels)[0]
        low, high = ([getattr(one, name) for one in self.limits] for name in ("low", "high"))
        self.start = self._flat(mean)
        self.parts = [*map(self._flat, (self.variance, weights, low, high))]

    def _in_lines(self) -> tuple[Any, list[tuple[int, int]]]:
        """The points of a part, those of a line side by side; how many, in lines of how many."""
        order, lines = [], list[tuple[int, int]]()
        for one, shape in zip(self.limits, self.layout.shapes, strict=True):
            numbers = torch.arange(math.prod(shape[self.lead :])).reshape(shape[self.lead :])
            for axis, sign in one.slopes:
                numbers = numbers.movedim(axis, -1).flip([-1] * (sign < 0))
            order.append(sum(n for n, _ in lines) + numbers.flatten())
            lines.append((numbers.numel(), numbers.shape[-1] if one.slopes else 1))
        sloping = any(one.slopes for one in self.limits)
        return (torch.cat(order) if sloping else slice(None)), lines * sloping

    def _flat(self, fields: Sequence[Tensor]) -> Tensor:  # (P, E)
        return self.layout.flat(tuple(fields))[..., self.order]

    def _reachable(self, law: Rows, weights: Sequence[Tensor]) -> Tensor:
        """The values of exact rows, to rounding, as bounds let them be."""
        ends, size = [], law.value.abs()
        for sides in (("low", "high"), ("high", "low")):
            u = []
            for g, one, shape in zip(weights, self.limits, self.layout.shapes, strict=True):
                least, most = (getattr(one, side) for side in sides)
                u.append(torch.where(g == 0, 0.0, torch.where(g > 0, least, most)).expand(shape))
            ends.append(law.apply(u))
            size = size.maximum(law.entrywise(1).apply([x.abs() for x in u]).nan_to_num(posinf=0))
        held = torch.where(law.noise_variance == 0, law.value.clamp(*ends), law.value)
        out = (held - law.value).abs() > max(HOLDS, self.grain) * size
        if bool(out.any()):
            at = tuple(unravelled(int(out.int().argmax()), out.shape))
            reach = span(float(ends[0][at]), float(ends[1][at]), digits=10)
            raise InfeasibleError(
                f"{law.name(at)} is {float(law.value.expand(out.shape)[at]):.10g}, but within the "
                f"inequalities it can only be {reach}. {WAYS}"
            )
        return held

    @torch.no_grad()
    def draws(self, n: int, generator: torch.Generator | None) -> Fields:  # (n + 1, *shape) each
        """`n` draws of each field and the point as the last, exactly within the limits."""
        found = self.start.new_empty(n + 1, *self.start.shape)
        randn = partial(torch.randn, generator=generator, dtype=found.dtype, device=found.device)
        for normals, first, end in ((randn, 0, n), (found.new_zeros, n, n + 1)):
            for some, places in self._pieces(first, end):
                u = self._some(places, some.stop - some.start, normals)
                found[some, places][..., self.order] = u.to(found.device).movedim(1, 0)
        return self.layout.fields(found)

    def _pieces(self, first: int, end: int) -> Iterator[tuple[slice, slice]]:
        """Draws and places that are worked on together."""
        places, points = self.start.shape
        most = (CHUNK_CUDA if self.start.is_cuda else CHUNK) // max(points, 1)
        draws = max(1, min(end - first, most))
        for place in range(0, places, step := max(1, most // draws)):
            for start in range(first, end, draws):
                yield slice(start, min(start + draws, end)), slice(place, place + step)

    def _some(self, places: slice, n: int, normals: Callable[..., Tensor]) -> Tensor:  # (k, n, E)
        """Draws of some places."""
        rows = (self.start, *self.parts, self.value, self.noise)
        mean, *own, value, noise = (t[places, None] for t in rows)
        y = torch.addcmul(mean, root_of(own[0]), normals(len(mean), n, mean.shape[-1]))
        target = value.expand(-1, n, -1)
        if bool((noise > 0).any()):
            target = target - root_of(noise) * normals(*target.shape)
        given, labels = (y, *own, target, noise), self.labels
        problem: Clipped
        if self.lines:  # on the CPU, where SciPy is
            labels = None if labels is None else labels.cpu()
            problem = Rising(*[t.cpu() for t in given], labels=labels, lines=self.lines)
        else:
            problem = Clipped(*given, labels=labels)
        if not self.laws:
            return problem.values(problem.noise)
        u, miss = problem.solved(problem.start())
        if not bool((miss <= HOLDS).all()):
            raise InfeasibleError(
                f"`{self.laws[0].label}` cannot be met within the inequalities: a row is off by "
                f"{float(miss.nan_to_num(torch.inf).max()):.2g} of its terms. {WAYS}"
            )
        return u


def _lead(laws: Sequence[Rows], shapes: Sequence[torch.Size], limits: Sequence[Limits]) -> int:
    """How many first axes number the parts."""
    tied = [each.places(shapes) for each in laws]
    return min([shared_axes(shapes), *tied, *sloping_axes(limits, shapes)])
