"""Fields given laws as vectors, and the laws linearised at a point: what Gauss-Newton steps on.

All fields of a part are one vector of N numbers; P parts are independent. Few rows are a matrix
(P, K, N); many are rows with products, solved by conjugate gradients.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...fields.blocks import same_once
from ...fields.covariances import Correlated, Fields, Independent
from ...laws.law import Rows
from ...laws.nonlinear import Curved
from ...solvers.factor import Factor
from ...solvers.iterative import Iterative
from ...support.tolerances import CONVERGED, HOLDS, ROUNDED, TINY
from ...support.tree import Node
from .layout import Layout
from .reading import product

MOST_DENSE = 1024  # rows of a part up to which they are a matrix
SMALL = 1e-3  # share of mean and standard deviation below which values count as this much


class Linearisation(NamedTuple):
    """What the laws say at u."""

    u: Tensor  # (P, N)
    misses: Tensor  # f(u) - b, (P, K)
    backs: tuple[Callable[..., Any], ...]  # products with the transposed Jacobian of each law


class NonlinearProblem(Node):
    """Fields given laws; what it is made of has one first axis, of P parts."""

    within = ""  # what fields must obey beside the laws, in words

    def __init__(
        self,
        mean: Fields,
        root: Independent | Correlated,
        linear: tuple[Rows, ...],
        curved: tuple[Curved, ...],
    ) -> None:
        laws: tuple[Any, ...] = (*linear, *curved)
        shapes = root.shapes
        sizes = [tuple(law.row_shape(shapes)) for law in laws]
        pairs = list(zip(laws, sizes, strict=True))
        self.labels = tuple(law.label for law in laws)
        self.counts = tuple(math.prod(size[1:]) for size in sizes)  # rows of a part
        self.shapes, self.curved = tuple(tuple(shape[1:]) for shape in shapes), curved
        self.mean, self.variance = joined(mean), joined(root.variance)  # (P, N)
        self.least = SMALL * (self.mean.abs() + self.variance.sqrt())
        size = self.mean.square() / self.variance.clamp_min(TINY)
        self.size = torch.where(self.variance > TINY, size, 0.0).sum(-1).sqrt()  # (P,)
        none = self.mean[:, :0]  # where there is no law
        self.value = joined([none, *(law.value.expand(size) for law, size in pairs)])  # (P, K)
        self.noise = joined([none, *(_noise(law).expand(size) for law, size in pairs)])
        self.sides = tuple(law.side for law in laws)
        self.is_dense = sum(self.counts) <= MOST_DENSE
        if self.is_dense:
            layout = Layout(tuple(shapes), 1)
            self.directions, self.rest = _parts(root)
            if self.directions is not None and len(self.directions) < len(self.mean):
                self.loose = (*self.loose, "directions")
            self.fixed = _shared([self.mean[:, None, :][:, :0], *map(layout.matrix, linear)])
            if len(self.fixed) < len(self.mean):
                self.loose = (*self.loose, "fixed")
            gram = self.fixed @ self.times(self.fixed).mT
            self.fixed_gram = gram.expand(len(self.mean), -1, -1)
        else:
            self.root, self.linear = root, linear

    @property
    def exact(self) -> Tensor:
        return self.noise == 0

    def fields(self, u: Tensor) -> Fields:  # (P, N)
        parts = u.split([math.prod(shape) for shape in self.shapes], -1)
        return tuple(x.reshape(len(u), *n) for x, n in zip(parts, self.shapes, strict=True))

    def times(self, v: Tensor) -> Tensor:
        """Sigma v, (P, N) or (P, K, N)."""
        if not self.is_dense:
            return joined(self.root.times(self.fields(v)))
        wide = v[:, None] if v.ndim == 2 else v
        total = torch.zeros_like(wide) if self.rest is None else wide * self.rest[:, None]
        if self.directions is not None:
            f = self.directions[0] if len(self.directions) == 1 else self.directions
            total = total + (wide @ f.mT) @ f
        return total[:, 0] if v.ndim == 2 else total

    def sizes(self, u: Tensor) -> Tensor:
        """|u|, and a thousandth of what the prior allows, where u itself is next to nothing."""
        return u.abs() + self.least

    @property
    def learns(self) -> bool:
        """Whether the fields have a gradient: with respect to the prior, a value or a function."""
        tensors = any(t.requires_grad for t in self._tensors())
        return tensors or any(curved.learns for curved in self.curved)

    @property
    def of_gradients(self) -> "NonlinearProblem":
        """The problem that gradients are those of."""
        return self

    def some(self, index: Tensor) -> "NonlinearProblem":
        """The parts that `index` picks."""
        return self._change(lambda t, b: t if b is None else t.index_select(b, index))

    def named(self, row: int) -> str:
        """A row in words."""
        for label, count in zip(self.labels, self.counts, strict=True):
            if row < count:
                return f"`{label}`" + f" at row {row}" * (count > 1)
            row -= count
        raise AssertionError(row)

    def start(self) -> Tensor:  # (P, N)
        """a of the fields that the steps start at: the mean."""
        return torch.zeros_like(self.mean)

    def broken(self, look: Linearisation) -> Tensor:
        """By how much numbers lie outside of inequalities: here there are none, (P, 0)."""
        return look.u[:, :0]

    def is_within(self, look: Linearisation) -> Tensor:  # (P,)
        """Whether u obeys the inequalities on points and their differences."""
        return torch.ones_like(look.u[:, 0], dtype=torch.bool)

    def missed(self, misses: Tensor) -> Tensor:  # (P, K)
        """By how much exact rows miss, and rows with one side lie on the wrong one."""
        found = misses.abs() * self.exact
        if not any(self.sides):
            return found
        side = torch.tensor(self.sides, dtype=misses.dtype, device=misses.device)
        side = side.repeat_interleave(torch.tensor(self.counts, device=misses.device))
        return torch.where(side != 0, (-side * misses).clamp_min(0), found)

    def look(self, u: Tensor) -> Linearisation:
        fields = self.fields(u)
        if not self.is_dense:
            laws: tuple[Any, ...] = (*self.linear, *self.curved)
            return Linearisation(u, joined([law.apply(fields) for law in laws]) - self.value, ())
        pulled = [curved.pulled(fields) for curved in self.curved]
        found = [product(self.fixed, u), *(x for x, _ in pulled)]
        return Linearisation(u, joined(found) - self.value, tuple(back for _, back in pulled))

    def step(self, look: Linearisation) -> "Step":
        return (DenseStep if self.is_dense else LocalStep)(self, look)


class Step(ABC):
    """The laws linearised at u: J u' = b - f(u) + J u."""

    problem: NonlinearProblem
    look: Linearisation

    @abstractmethod
    def along(self, v: Tensor) -> Tensor:  # (P, N) to (P, K)
        """J v."""

    @abstractmethod
    def back(self, v: Tensor) -> Tensor:  # (P, K) to (P, N)
        """J^T v."""

    @abstractmethod
    def solve(self, r: Tensor, close: float = CONVERGED) -> Tensor:
        """S^-1 r with S = J Sigma J^T + noise, where it is not exact to `close` of the terms."""

    @abstractmethod
    def terms(self) -> Tensor:
        """|b| + |J| |u|, (P, K); see `Problem.sizes`."""

    @abstractmethod
    def variance(self) -> Tensor:
        """Of each row, (P, K)."""

    def knowing(self, other: "Step") -> "Step":
        """This one, with what another at the same place has found."""
        return self

    def multiplier(self, close: float = CONVERGED) -> Tensor:
        """Of the full step."""
        away = self.problem.mean - self.look.u
        return self.solve(self.look.misses + self.along(away), close)

    def aimed(self) -> Tensor:  # (P, N)
        """a of the fields after the full step."""
        return -self.back(self.multiplier(HOLDS))

    def solved(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """The multipliers of the full step, and by how much it changes a; refined once.

        The refinement adds to the change itself, so that no digit of u is lost where u is small.
        """
        problem, multiplier = self.problem, self.multiplier()
        change = -self.back(multiplier) - a
        left = self.look.misses + self.along(problem.times(change)) - problem.noise * multiplier
        more = self.solve(left, ROUNDED)
        return multiplier + more, change - self.back(more)

    def refused(self) -> dict[int, str]:
        """Why parts have no field that obeys the linear laws within inequalities: none here."""
        return {}

    @property
    def penalty(self) -> Tensor:  # (P, 1)
        """The weight of what lies outside of inequalities, beside the distance."""
        return torch.zeros_like(self.look.u[:, :1])

    def reached(self, change: Tensor) -> Tensor:
        """u after the full step, which changes a by `change`."""
        return self.look.u + self.problem.times(change)

    @property
    def gave(self) -> Tensor:  # (P,)
        """Parts in which laws had to give way, as they are at u, to inequalities."""
        return torch.zeros_like(self.look.u[:, 0], dtype=torch.bool)

    @property
    def near(self) -> Any:
        """By how much rows may miss that `finished` settles."""
        return 0.0

    def finished(self, parts: Tensor) -> Tensor:
        """u, to the last digit. parts: which have arrived, (P,)."""
        return self.look.u

    def response(self) -> Tensor:
        """The field after the full step, with its gradient."""
        return self.problem.mean - self.problem.times(self.back(self.multiplier(ROUNDED)))

    def bent(self, misses: Tensor) -> Tensor:
        """The change of a that takes off what exact rows still miss, to first order."""
        return -self.back(self.solve(misses * self.problem.exact, ROUNDED))

    @abstractmethod
    def is_finite(self) -> Tensor:  # (P,)
        """Whether J is."""

    def tangent(self, r: Tensor) -> Tensor:
        """a of P r = Sigma a, where P is the covariance that is left."""
        return r - self.back(self.solve(self.along(self.problem.times(r))))

    def curvature(self, multiplier: Tensor, v: Tensor) -> Tensor:
        """W v, W the second derivative of the laws weighed by their multipliers."""
        problem, total = self.problem, torch.zeros_like(v)
        fields, along = problem.fields(self.look.u), problem.fields(v)
        parts = multiplier.split(problem.counts, 1)[len(problem.counts) - len(problem.curved) :]
        for curved, part in zip(problem.curved, parts, strict=True):
            total = total + joined(curved.bent(fields, part, along))
        return total


class DenseStep(Step):
    """Few rows: J is a matrix (P, K, N)."""

    def __init__(self, problem: NonlinearProblem, look: Linearisation) -> None:
        self.problem, self.look = problem, look
        counts = problem.counts[len(problem.counts) - len(problem.curved) :]
        laws = zip(problem.curved, look.backs, counts, strict=True)
        found = [beside(curved.jacobians(back, n, look.u), -1) for curved, back, n in laws]
        self.curved = beside(found, 1) if found else problem.mean[:, None][:, :0]
        spread = problem.times(self.curved)
        across, own = product_of(problem.fixed, spread), spread @ self.curved.mT
        first = torch.cat([problem.fixed_gram, across], -1)
        self.gram = torch.cat([first, torch.cat([across.mT, own], -1)], -2)

    @property
    def rows(self) -> Tensor:  # (P, K, N)
        """J."""
        return torch.cat([self.problem.fixed.expand(len(self.curved), -1, -1), self.curved], 1)

    def along(self, v: Tensor) -> Tensor:
        return torch.cat([product(self.problem.fixed, v), product(self.curved, v)], -1)

    def back(self, v: Tensor) -> Tensor:
        fixed = self.problem.fixed
        first, rest = v.split([fixed.shape[1], self.curved.shape[1]], -1)
        return product(fixed.mT, first) + (rest[:, None] @ self.curved)[:, 0]

    @cached_property
    def factor(self) -> Factor:
        noise = self.problem.noise
        own = self.gram.diagonal(dim1=-2, dim2=-1) + noise
        return Factor(self.gram + noise.diag_embed(), own.detach(), noise)

    def solve(self, r: Tensor, close: float = CONVERGED) -> Tensor:
        return self.factor.solve(r[:, None])[:, 0]

    def terms(self) -> Tensor:
        sizes = self.problem.sizes(self.look.u)
        each = [product(rows.abs(), sizes) for rows in (self.problem.fixed, self.curved)]
        return self.problem.value.abs() + torch.cat(each, -1)

    def is_finite(self) -> Tensor:
        fine = self.gram.isfinite().flatten(1).all(-1)
        return fine if bool(fine.all()) else self.curved.isfinite().flatten(1).all(-1)

    def variance(self) -> Tensor:
        return self.gram.diagonal(dim1=-2, dim2=-1)


class LocalStep(Step):
    """Many rows: products with J, and conjugate gradients."""

    def __init__(self, problem: NonlinearProblem, look: Linearisation) -> None:
        self.problem, self.look = problem, look
        near = [each.linearised(problem.fields(look.u), False) for each in problem.curved]
        self.stage = Iterative((*problem.linear, *near), problem.root, problem.root, 1)
        self.sizes = self.stage._terms(problem.fields(look.u))

    def along(self, v: Tensor) -> Tensor:
        return self.stage.residual(self.problem.fields(v), value=False)

    def back(self, v: Tensor) -> Tensor:
        shapes = [(len(v), *shape) for shape in self.problem.shapes]
        pairs = zip(self.stage.adjoint(v), shapes, strict=True)
        return joined([v.new_zeros(n) if x is None else x for x, n in pairs])

    def solve(self, r: Tensor, close: float = CONVERGED) -> Tensor:
        return self.stage.solve(r, close * self.sizes)

    def terms(self) -> Tensor:
        sizes = self.problem.fields(self.problem.sizes(self.look.u))
        each = [rows.entrywise(1).apply(sizes) for rows in self.stage.rows]
        return self.stage.flat(each) + self.problem.value.abs()

    def variance(self) -> Tensor:
        return self.stage.diagonal

    def is_finite(self) -> Tensor:
        return self.stage.diagonal.isfinite().all(-1)


def _shared(rows: Sequence[Tensor]) -> Tensor:  # (P, K, N), or (1, K, N)
    """Rows side by side; once, where all parts have the same."""
    found = torch.cat(list(rows), 1)
    same = not found.requires_grad and len(found) > 1 and bool((found == found[:1]).all())
    return found[:1] if same else found


def product_of(rows: Tensor, v: Tensor) -> Tensor:  # (P or 1, K, N), (P, M, N) to (P, K, M)
    return rows @ v.mT if len(rows) > 1 else (v @ rows[0].mT).mT


def _noise(law: Any) -> Tensor:
    """The variance of the noise; of rows with one side infinite."""
    found: Tensor = law.noise_variance
    return found if not law.side else torch.full_like(found, torch.inf)


def joined(fields: Sequence[Tensor]) -> Tensor:
    """The fields of each part as one vector, (P, N)."""
    return beside([x.reshape(len(x), math.prod(x.shape[1:])) for x in fields], 1)


def beside(each: Sequence[Tensor], axis: int) -> Tensor:
    """As `torch.cat`, without a copy of one."""
    return each[0] if len(each) == 1 else torch.cat(list(each), axis)


def _parts(root: Independent | Correlated) -> tuple[Tensor | None, Tensor | None]:
    """F (P or 1, R, N) and D (P, N) of a covariance, None for 0."""
    if isinstance(root, Independent):
        return None, joined(root.variance)
    own = root.directions
    once = [same_once(f, 2, 1) for f in own if not f.requires_grad]
    own = tuple(once) if all(f.shape[1] == 1 for f in once) and len(once) == len(own) else own
    shared = torch.stack([joined(each) for each in zip(*own, strict=True)], 1)
    return shared, None if root.rest is None else joined(root.rest.variance)
