"""Independent points given inequalities, where one number for each row of one law decides.

Fields that a law ties are laid side by side as (P, E), P places of E points each, and worked on in
pieces that stay in the cache: draws, their rows, the mean over the draws.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...fields.blocks import root_of
from ...laws.inequalities import Limits, carried
from ...laws.law import Rows
from ...support.errors import InfeasibleError
from ...support.rowwise import root_of_falling
from ...support.tolerances import TINY
from ...support.values import span, unravelled
from ..draws import mean_of
from ..loop.refused import WAYS
from .clipped import Clipped, taken_fields
from .isotonic import Rising, RisingLineByLine

CHUNK = 1 << 17  # numbers that are worked on at a time
CHUNK_CUDA = 1 << 24
MET = 1e-12  # of its terms: how far a row may be off
ROUNDED = 1e-14  # of its terms: a total beyond its range by less is at its end
AGAIN = 8  # tries at a row whose rounding shows; each takes off most of what the last one left
AT_END = 1e-15  # of its terms: a row that is as close to the least it can be is there
ROUNDING = 1e-12  # of a point: how far a fixed value may be out of bounds by rounding

Normals = Callable[[Tensor], Tensor]  # standard normal numbers, (k, n, E) for (k, 1, E)
Found = tuple[Tensor, Tensor, Tensor]  # draws (n, *shape), their mean, and the point


def suits(rows: Sequence[Rows], limits: Sequence[Limits]) -> bool:
    """Whether one number for each row decides; rows: those that tie points."""
    if len(rows) > 1 or any(len(one.slopes) > 1 for one in limits):
        return False
    if any(one.slopes and not one.level for one in limits):
        return False
    if not rows:
        return True
    maps = [(m, one) for m, one in zip(rows[0].maps, limits, strict=True) if m is not None]
    if not any(one.slopes for _, one in maps):
        return all(m.is_disjoint for m, _ in maps)
    (m, one), *others = maps
    one_sum = m.is_disjoint and not m.rows_of_place
    return not others and one_sum and -one.slopes[0][0] <= m.dims


@dataclass(frozen=True)
class LineLayout:
    """How a field is laid out as (P, E): the axis along which it rises comes last."""

    shape: torch.Size
    dims: int  # last axes that are one place
    axis: int = -1
    sign: int = 1  # -1: of falling values the negative ones, which rise

    def flat(self, x: Tensor) -> Tensor:  # (*more, *shape) to (*more, P, E)
        more, start = x.shape[: x.ndim - len(self.shape)], len(self.shape) - self.dims
        sizes = math.prod(self.shape[:start]), math.prod(self.shape[start:])
        return (x.movedim(self.axis, -1) if self.shape else x).reshape(*more, *sizes)

    def back(self, x: Tensor) -> Tensor:
        sizes = list(self.shape)
        if not sizes:
            return x[..., 0, 0]
        sizes.append(sizes.pop(self.axis))
        return x.reshape(*x.shape[:-2], *sizes).movedim(-1, self.axis)


class OneField(NamedTuple):
    """Independent points of a field, and what limits them."""

    mean: Tensor
    variance: Tensor
    size: Tensor  # of the numbers that values fixed by laws come from, 0 where there are none
    limits: Limits
    dtype: torch.dtype


def draws_of(
    rows: Sequence[Rows], fields: Sequence[OneField], n: int, generator: torch.Generator | None
) -> list[Found]:
    """`n` draws of each field, their mean and the point, exactly within the limits."""
    law = rows[0] if rows else None
    tied = [] if law is None else [i for i, m in enumerate(law.maps) if m is not None]
    found: dict[int, Found] = {}
    for group in (tied, *([i] for i in range(len(fields)) if i not in tied)):
        if group:
            own = Group(law if group is tied else None, group, [fields[i] for i in group])
            found |= zip(group, own.draws(n, generator), strict=True)
    return [found[i] for i in range(len(fields))]


class Group:
    """Fields side by side, tied by one law or by none."""

    def __init__(self, law: Rows | None, numbers: list[int], fields: list[OneField]) -> None:
        """numbers: of the fields, among those of the law."""
        mean, variance, sizes, self.limits, self.dtypes = zip(*fields, strict=True)
        self.law = law
        self.grain = 4 * max(torch.finfo(dtype).eps for dtype in self.dtypes)  # bounds are rounded
        maps = [None if law is None else law.maps[i] for i in numbers]
        each = zip(mean, maps, self.limits, strict=True)
        self.layouts = [_layout(m.shape, g, one) for m, g, one in each]
        self.mean, own = self._side(mean), self._side(variance, signed=False)
        self.variance = torch.where(own > TINY, own, 0.0)
        self.std = root_of(self.variance)
        self.slope = self.limits[0].slopes if len(fields) == 1 else ()
        self.low, self.high = self._ends("low", "high"), self._ends("high", "low")
        self._fix(self._side(sizes, signed=False))
        self.weights: Tensor | None = None
        self.labels: Tensor | None = None
        if law is not None:
            self._read(law, maps)

    def _side(self, given: Sequence[Tensor], signed: bool = True) -> Tensor:  # (P, E)
        pairs = zip(self.layouts, given, strict=True)
        flat = [a.flat(x.expand(a.shape)) * (a.sign if signed else 1) for a, x in pairs]
        return flat[0] if len(flat) == 1 else torch.cat(flat, -1)

    def _ends(self, name: str, falling: str) -> Tensor:
        """Bounds, (1, 1) or (P, E). falling: the name of those that falling values have instead."""
        sign = self.layouts[0].sign if len(self.limits) == 1 else 1
        ends = [getattr(one, falling if sign < 0 else name) for one in self.limits]
        if len(ends) == 1 and self.limits[0].one_range:
            return sign * ends[0].reshape(1, 1)
        return self._side(ends)

    def _fix(self, sizes: Tensor) -> None:
        """Points of no variance stay, and must be where the inequalities let them."""
        fixed = self.variance == 0
        if not bool(fixed.any()):
            return
        share = max(ROUNDING, self.grain)
        near = share * self.mean.abs() + ROUNDING * sizes
        low, high = self.low - share * self.low.abs(), self.high + share * self.high.abs()
        out = fixed & ((self.mean < low - near) | (self.mean > high + near))
        if bool(out.any()):
            at = _first(out)
            ends = [t.expand(out.shape)[at] for t in (self.low, self.high)]
            raise InfeasibleError(
                f"`bounds`: a point of no variance, {list(at)} of (place, point), is "
                f"{float(self.mean[at]):.10g} and cannot be moved, but must be {_span(*ends)}. "
                "Ways out: give it variance, correct the value, or bound the others alone."
            )
        self.mean = torch.where(fixed, self.mean.clamp(self.low, self.high), self.mean)
        if self.slope:
            self._fix_rising(fixed, near)

    def _fix_rising(self, fixed: Tensor, near: Tensor) -> None:
        length = self.layouts[0].shape[self.layouts[0].axis]
        shape, each = self.mean.shape, (self.low, self.high, fixed, self.mean)
        low, high, fixed, mean = (t.expand(shape).reshape(-1, length) for t in each)
        highest = torch.where(fixed, mean, -torch.inf).cummax(-1).values
        falls = fixed & (mean < highest - near.reshape(-1, length))
        if bool(falls.any()):
            line, at = _first(falls)
            raise InfeasibleError(
                f"`monotone`: points of no variance are in the wrong order: point {at} of line "
                f"{line} is {float(mean[line, at]):.6g}, beside {float(highest[line, at]):.6g} "
                "before it (signs changed where values fall). Give one of them variance, or "
                "correct it."
            )
        mean = torch.where(fixed, highest, mean)
        low, high = (torch.where(fixed, mean, end) for end in (low, high))
        low, high = carried(low, high, ((-1, 1),))
        self.mean, self.low, self.high = (t.reshape(shape) for t in (mean, low, high))

    def _read(self, law: Rows, maps: Sequence[Any]) -> None:
        """The rows of the law: weights (1, E) or (P, E), value and noise (P, R)."""
        weights = []
        for m, layout in zip(maps, self.layouts, strict=True):
            alone = m.weights.ndim == m.dims
            shape = layout.shape[len(layout.shape) - m.dims :] if alone else layout.shape
            own = LineLayout(torch.Size(shape), m.dims, layout.axis)
            weights.append(own.flat(m.weights.expand(shape)) * layout.sign)
            if m.rows_of_place:
                labels = m.labels.flatten()
                self.labels = labels if self.labels is None else torch.cat([self.labels, labels])
        places = max(len(w) for w in weights)
        self.weights = torch.cat([w.expand(places, -1) for w in weights], -1)
        count = len(self.mean)
        rows = law.row_shape([torch.Size(())] * law.first + [self.layouts[0].shape])
        width = math.prod(rows[len(rows) - len(law.map.row_names) :])
        if law.present is not None:
            present = law.present.expand(rows).reshape(count, width)
            self.weights = self.weights * present[:, :1]
        self.value = law.value.expand(rows).reshape(count, width)
        self.noise = law.noise_variance.expand(rows).reshape(count, width)
        self._check_reach(law, rows)

    def _check_reach(self, law: Rows, shape: Sequence[int]) -> None:
        """The bounds let every exact row have its value."""
        g = self.weights
        assert g is not None
        fixed = self.variance == 0
        least = torch.where(g > 0, self.low, self.high)
        most = torch.where(g > 0, self.high, self.low)
        ends, sizes = [], []
        for end in (least, most):
            terms = torch.where(g == 0, 0.0, g * torch.where(fixed, self.mean, end))
            ends.append(self._sum(terms))
            sizes.append(self._sum(terms.abs()))
        exact, value = self.noise == 0, self.value
        self.value = torch.where(exact, value.clamp(*ends), value)
        beyond = (value - self.value).abs()
        size = torch.where(value < ends[0], sizes[0], sizes[1])
        short = beyond > MET * value.abs() + max(ROUNDED, self.grain) * size
        short = short & (beyond > 0)
        if bool(short.any()):
            at = _first(short)
            index = unravelled(int(short.int().argmax()), shape)
            raise InfeasibleError(
                f"{law.name(index)} is {float(value[at]):.10g}, but within "
                f"the inequalities it can only be {_span(ends[0][at], ends[1][at])}. {WAYS}"
            )
        for points_at, total in zip((least, most), ends, strict=True):
            self._snap(points_at, total)

    def _snap(self, points_at: Tensor, total: Tensor) -> None:
        """Where a row has its least or its largest value, all points are at their bounds."""
        close = (self.value - total).abs() <= AT_END * (self.value.abs() + total.abs())
        there = (self.noise == 0) & total.isfinite() & close
        there = there if self.labels is None else there[:, self.labels]
        snapped = there & (self.weights != 0) & (self.variance > 0)
        if bool(snapped.any()) and not self.slope:
            ends = (torch.where(snapped, points_at, t) for t in (self.low, self.high))
            self.low, self.high = ends

    def _sum(self, x: Tensor) -> Tensor:  # (P, E) to (P, R)
        if self.labels is None:
            return x.sum(-1, keepdim=True)
        return x.new_zeros(len(x), self.value.shape[-1]).index_add_(-1, self.labels, x)

    def draws(self, n: int, generator: torch.Generator | None) -> list[Found]:
        places, points = self.mean.shape
        sizes = [math.prod(a.shape[len(a.shape) - a.dims :]) for a in self.layouts]
        new = self.mean.new_empty
        out = [new(n, places, e, dtype=dtype) for e, dtype in zip(sizes, self.dtypes, strict=True)]
        mean, point = torch.zeros_like(self.mean), torch.zeros_like(self.mean)
        most = CHUNK_CUDA if self.mean.is_cuda else CHUNK
        at_once = max(1, min(n + 1, most // max(points, 1)))
        step = max(1, most // (at_once * max(points, 1)))
        for start in range(0, places, step):
            rows = slice(start, start + step)
            for first in range(0, n + 1, at_once):  # the last is the point
                count = min(at_once, n + 1 - first)
                last = first + count == n + 1
                u = self._some(rows, partial(_normals, count, last, generator))
                if last:
                    point[rows], count = u[:, -1], count - 1
                for piece, kept in zip(u[:, :count].split(sizes, -1), out, strict=True):
                    kept[first : first + count, rows] = piece.movedim(1, 0)
                if count:
                    mean[rows] += mean_of(u[:, :count], 1) * (count / n)
        mean = torch.where(self.variance == 0, point, mean).clamp(self.low, self.high)
        return self._results(out, mean, point, sizes)

    def _some(self, rows: slice, normals: Normals) -> Tensor:  # (k, n, E)
        """Draws of some places."""
        problem = self._problem(rows, normals)
        if self.weights is None:
            return problem.values(problem.noise).to(self.mean.device)
        u, miss = problem.finished(root_of_falling(problem, problem.start()))
        wrong = ~(miss <= MET).all(-1)
        if bool(wrong.any()):
            u, miss = self._again(problem, wrong, u, miss)
        if not bool((miss <= MET).all()):
            assert self.law is not None
            raise InfeasibleError(
                f"`{self.law.label}` cannot be met within the inequalities: a row is off by "
                f"{float(miss.nan_to_num(torch.inf).max()):.2g} of its terms. {WAYS}"
            )
        return u.to(self.mean.device)

    def _problem(self, rows: slice, normals: Normals) -> Clipped:
        """What is to be solved, at draws of the prior; on the CPU where SciPy works on it."""
        mean, variance = self.mean[rows, None], self.variance[rows, None]
        y = normals(mean)
        y = torch.addcmul(mean, self.std[rows, None], y, out=y)
        low, high = (t[:, None] if len(t) == 1 else t[rows, None] for t in (self.low, self.high))
        weights = target = noise = y.new_zeros(len(y), 1, 1)
        if self.weights is not None:
            weights = self.weights[:, None] if len(self.weights) == 1 else self.weights[rows, None]
            noise, target = self.noise[rows, None], self.value[rows, None]
            if bool((noise > 0).any()):
                target = target - root_of(noise) * normals(target)
        target = target.expand(*y.shape[:2], -1)
        given: dict[str, Any] = {"y": y, "move": variance * weights, "weights": weights}
        given |= {"low": low, "high": high, "target": target, "noise": noise}
        if self.slope:
            given["weight"] = torch.where(variance > 0, 1 / variance, 0.0)
            near = {name: t.cpu() for name, t in given.items()}
            return Rising(**near, length=self.layouts[0].shape[self.layouts[0].axis])
        none = {name: None for name in ("low", "high") if _no_bound(given[name])}
        return Clipped(**(given | none), labels=self.labels)

    def _again(
        self, problem: Clipped, wrong: Tensor, u: Tensor, miss: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Rows whose rounding shows: each line alone, and from where the last root left them."""
        at = wrong.flatten().nonzero()[:, 0]
        given = taken_fields(problem, at)
        start: Tensor | None = None
        for _ in range(AGAIN):
            some = RisingLineByLine(**given) if self.slope else Clipped(**given)
            start = some.start() if start is None else torch.zeros_like(start)
            mu = root_of_falling(some, start)
            new, off = some.finished(mu)
            if bool((off <= MET).all()):
                break
            given["y"] = some.y - some.move * some.spread(mu)
            given["target"] = some.target + some.noise * mu

        def put(old: Tensor, one: Tensor) -> Tensor:
            return old.flatten(0, 1).index_copy(0, at, one[:, 0]).reshape(old.shape)

        return put(u, new), put(miss, off)

    def _results(
        self, out: list[Tensor], mean: Tensor, point: Tensor, sizes: list[int]
    ) -> list[Found]:
        found = []
        each = mean.split(sizes, -1), point.split(sizes, -1)
        pieces = zip(self.layouts, self.limits, self.dtypes, out, *each, strict=True)
        for layout, limits, dtype, draws, average, one in pieces:
            for t in (draws, average, one):
                _ = t.neg_().add_(0.0) if layout.sign < 0 else t  # 0, not -0
            draws, average, one = (layout.back(t) for t in (draws, average, one))
            found.append((draws, limits.holding(average).to(dtype), one.to(dtype)))
        return found


def _layout(shape: torch.Size, m: Any, limits: Limits) -> LineLayout:
    axis, sign = limits.slopes[0] if limits.slopes else (-1, 1)
    dims = m.dims if m is not None else min(len(shape), max(1, -axis))
    return LineLayout(shape, dims, axis, sign)


def _normals(n: int, ends: bool, generator: torch.Generator | None, like: Tensor) -> Tensor:
    """(k, n, E) for (k, 1, E); ends: whether the last are not a draw but the point, so that 0."""
    shape = len(like), n, like.shape[-1]
    if ends and n == 1:  # of nothing but the point nothing is drawn
        return torch.zeros(shape, dtype=torch.float64, device=like.device)
    z = torch.randn(shape, generator=generator, dtype=torch.float64, device=like.device)
    if ends:
        z[:, -1] = 0
    return z


def _no_bound(end: Tensor) -> bool:
    return end.numel() == 1 and bool(end.isinf())


def _first(where: Tensor) -> tuple[int, ...]:
    return tuple(unravelled(int(where.int().argmax()), where.shape))


def _span(low: Tensor, high: Tensor) -> str:
    return span(float(low), float(high), digits=10)
