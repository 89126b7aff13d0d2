"""Fields given laws of which some are not linear: a most probable state, and draws about it."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from ...fields.blocks import root_of
from ...fields.covariances import Fields
from ...fields.gaussian import Field, Normals
from ...fields.state import State, covariance_of
from ...laws.inequalities import Limits, sloping_axes
from ...laws.law import Rows
from ...laws.maps import Known, Map, Matrix
from ...laws.nonlinear import Curved
from ...solvers.engine import Chain, free_axes, solve
from ...solvers.shared import Shared
from ...solvers.shrinkage import shrinks, shrunk
from ...support import checks as check
from ...support.checks import ArrayLike
from ...support.errors import DegenerateError, InputError, ProbConservError
from ...support.tolerances import HOLDS
from ...support.tree import once
from ..draws import FieldDraws, StateDraws
from ..posterior import FieldPosterior, Solved, StatePosterior
from .bounded import Bounded
from .gauss_newton import PART, Failure, along_the_way, most_probable, with_gradient
from .layout import pairs_that_rise, rows_that_rise
from .linearised import MOST_DENSE, NonlinearProblem, joined
from .within import Within

STAGES = (4, 16)  # on the way to draws that do not get to the laws at once
SINGLE_EPS = torch.finfo(torch.float32).eps  # results of half precision are single
AT_ONCE = 1 << 24  # numbers of Jacobians that are held together


class LinearisationError(NamedTuple):
    """How far draws are from the Gaussian about the point: root mean squares over all points.

    Attributes
    ----------
    mean : float
        The mean of the draws less the point, in standard deviations.
    std : float
        The standard deviation of the draws over that of the Gaussian, less 1.
    chance : tuple of float
        What so many draws would give for the two where there is no error.
    """

    mean: float
    std: float
    chance: tuple[float, float]


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
        lead = min(free_axes(rows, shapes), *tied)
        self.root = root.joined(lead)
        self.dims = tuple(len(shape) - lead for shape in shapes)  # last axes that are tied
        self.rows = tuple(each.over(shapes, lead) for each in rows)
        self.eps = max(torch.finfo(field.dtype).eps for field in prior.parts)
        if self.is_linear:
            self.mean = tuple(u[-1] for u in self._within().draws(None))
            return
        problem = self._problem(self.before)
        found = _in_chunks(problem, Names("solution", shapes[0][:lead]))
        if torch.is_grad_enabled() and problem.learns:
            found = with_gradient(problem, found)
        pairs = zip(problem.fields(found), shapes, strict=True)
        self.mean = tuple(u.reshape(s) for u, s in pairs)

    @property
    def is_linear(self) -> bool:
        """Whether all laws are, within inequalities of points and their order."""
        return bool(self.low) and not self.curved and not any(rows.side for rows in self.rows)

    def _within(self) -> Within:
        """The same fields, laws and inequalities, where all laws are linear."""
        ends = zip(self.low, self.high, self.slopes, strict=True)
        limits = [Limits(low, high, slopes) for low, high, slopes in ends]
        grain = 4 * min(self.eps, SINGLE_EPS)
        return Within(self.rows, self.before, self.root, limits, 16 * self.eps, grain)

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
            for end in (self.low, self.high)
        ]
        return Bounded(*given, low=ends[0], high=ends[1], slopes=self.slopes)

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
            maps.append(("bounds", Known(there), there * x.detach(), None))
            if self.slopes[i]:
                rising = Matrix(_rising(self.slopes[i : i + 1], own).to(x.device), own)
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
            known = [_held(each, self.mean) for each in (*self.rows, *self._near(self.mean))]
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

    @torch.no_grad()
    def draw(self, normals: Normals) -> Fields:
        """Draws of the prior, each moved to the laws; without gradients."""
        if self.is_linear:
            return tuple(u[:-1] for u in self._within().draws(normals))
        about = self.root.draw(normals)
        mean = tuple(m + x for m, x in zip(self.before, about, strict=True))
        rows = [law.row_shape([u.shape for u in self.before]) for law in self.stated]
        pairs = zip(self.stated, rows, strict=True)
        noise = [root_of(law.noise_variance).expand(n) * normals(*n) for law, n in pairs]
        some = max(1, AT_ONCE // max(1, sum(u.numel() for u in self.before)))
        found = [tuple(u[:0] for u in mean)]
        plain = self._problem(self.before)
        known = self._problem(self.mean).mean, plain.mean, plain.value
        for start in range(0, len(mean[0]), some):
            y, add = ([x[start : start + some] for x in each] for each in (mean, noise))
            problem, near = self._problem(tuple(y), add), [x.repeat(len(y[0]), 1) for x in known]
            names = Names("draw", y[0].shape[: y[0].ndim - self.dims[0]], start)
            u = problem.fields(_in_chunks(problem, names, near))
            found.append(tuple(x.reshape(m.shape) for x, m in zip(u, y, strict=True)))
        return tuple(torch.cat(each) for each in zip(*found, strict=True))


def _rising(slopes: Sequence[Any], shape: Sequence[int]) -> Tensor:
    return rows_that_rise(pairs_that_rise(slopes, [shape]), math.prod(shape))


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
    first: int = 0  # of the draws

    def __call__(self, part: int) -> str:
        index = check.unravelled(part, self.sizes)
        if self.noun == "solution":
            return f"solution {index[0] if len(index) == 1 else index or 0}"
        return f"draw {index[0] + self.first}" + f" of solution {index[1:]}" * (len(index) > 1)


def _in_chunks(
    problem: NonlinearProblem, names: Names, start: Sequence[Tensor] | None = None
) -> Tensor:  # (P, N)
    """The most probable fields, as many parts at a time as there is room for.

    start: fields that obey the laws, with the mean and the values that they belong to.
    """
    size = problem.mean.shape[1] * (sum(problem.counts) if problem.is_dense else 1)
    parts = torch.arange(len(problem.mean), device=problem.mean.device)
    found, failed = [], dict[int, Failure]()
    for each in parts.split(max(1, AT_ONCE // max(1, size))):
        some = problem if len(each) == len(parts) else problem.some(each)
        u, wrong = most_probable(some, None if start is None else start[0][each])
        for stages in STAGES:
            if wrong and start is not None:
                at = torch.tensor(sorted(wrong), device=parts.device)
                near, mean, value = (x[each[at]] for x in start)
                u[at], left = along_the_way(some.some(at), mean, value, near, stages)
                wrong = {int(at[i]): failure for i, failure in left.items()}
        failed |= {int(each[i]): failure for i, failure in wrong.items()}
        found.append(u)
    if failed:
        raise _refused(failed, names)
    return torch.cat(found) if len(found) != 1 else found[0]


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


class KeptAsDraws:
    """What is kept in a file as draws: a file cannot hold the function of a law."""

    _solved: "NonlinearSolved"

    @property
    def laws(self) -> tuple[str, ...]:
        """The names of the laws that hold."""
        return tuple(law.label for law in self._solved.stated)

    @abstractmethod
    def from_draws(
        self, n: int, generator: torch.Generator | None = None
    ) -> FieldDraws | StateDraws: ...

    def save(
        self, path: str | Path, n: int = 1000, generator: torch.Generator | None = None
    ) -> None:
        """Keeps draws in a file, which `Draws.load` reads.

        Parameters
        ----------
        path : str or Path
            The file.
        n : int
            How many draws.
        generator : torch.Generator
            The source of the random numbers.
        """
        self.from_draws(n, generator).save(path)


class NonlinearPosterior(KeptAsDraws, FieldPosterior, noun="Posterior"):
    """A field given laws of which some are not linear.

    `point` (and `mean`) is a most probable field that obeys the laws. `variance` and `interval` are
    those of the Gaussian about it. `sample` moves draws of the prior to the laws, each by its own
    steps, so that every draw obeys. `linearisation_error` compares the two. `condition` makes it.

    Attributes
    ----------
    prior : Field
        The field before the laws.

    Examples
    --------
    >>> import probconserv as pc
    >>> length = pc.nonlinear(lambda u: u.square().sum(), 25.0)
    >>> post = pc.condition(pc.Diagonal([3.0, 3.9], 0.01), length)
    >>> draws = post.sample(3)
    >>> bool((draws.square().sum(-1) - 25.0).abs().max() < 1e-9)
    True
    """

    _solved: NonlinearSolved

    def from_draws(self, n: int, generator: torch.Generator | None = None) -> FieldDraws:
        """The field known by draws: mean, variance, intervals and scores are theirs.

        Parameters
        ----------
        n : int
            How many draws, at least two.
        generator : torch.Generator
            The source of the random numbers.

        Returns
        -------
        Draws
            With the same `point`.
        """
        draws = self.sample(_at_least_two(n), generator)
        return FieldDraws._unchecked(draws, self.event_dims, self.point)

    def linearisation_error(
        self, n: int = 100, generator: torch.Generator | None = None
    ) -> LinearisationError:
        """How far draws are from the Gaussian about the point.

        Parameters
        ----------
        n : int
            How many draws, at least two.
        generator : torch.Generator
            The source of the random numbers.

        Returns
        -------
        LinearisationError
            The difference of means and of standard deviations.
        """
        draws, std = self.from_draws(n, generator), self.std.double()
        moves = std > 0
        shift = ((draws.mean - self.point).double() / std)[moves]
        ratio = (draws.std.double() / std)[moves] - 1
        if not len(shift):
            return LinearisationError(0.0, 0.0, (0.0, 0.0))
        mean, spread = (float(x.square().mean().sqrt()) for x in (shift, ratio))
        return LinearisationError(mean, spread, (1 / math.sqrt(n), 1 / math.sqrt(2 * (n - 1))))

    def log_prob(self, u: ArrayLike) -> NoReturn:
        """Raises `DegenerateError`: this field has no density in closed form."""
        raise DegenerateError(NO_DENSITY)

    def members(self) -> NoReturn:
        """Raises `InputError`: members need laws that are linear."""
        raise InputError("`members` needs laws that are linear. Use `sample` or `from_draws`.")

    def __repr__(self) -> str:
        return f"{Field.__repr__(self)[:-1]}, given {', '.join(self.laws)})"


NO_DENSITY = (
    "a field given a law that is not linear has no density in closed form. Use "
    "`marginal_log_prob`, that of the Gaussian about the point, or score draws: `from_draws`."
)


class NonlinearStatePosterior(KeptAsDraws, StatePosterior, noun="Posterior"):
    """A state given laws of which some are not linear: `post["u"]` is a field.

    Attributes
    ----------
    names : tuple of str
        The names of the fields.
    prior : State
        The state before the laws.
    """

    kind = NonlinearPosterior
    _solved: NonlinearSolved

    def from_draws(self, n: int, generator: torch.Generator | None = None) -> StateDraws:
        """The state known by joint draws.

        Parameters
        ----------
        n : int
            How many draws, at least two.
        generator : torch.Generator
            The source of the random numbers.

        Returns
        -------
        Draws
            With the same `point`.
        """
        draws = self.sample(_at_least_two(n), generator).values()
        pairs = zip(self.parts, draws, strict=True)
        parts = tuple(FieldDraws._unchecked(u, part.event_dims, part.point) for part, u in pairs)
        return StateDraws(self.names, parts)


def _at_least_two(n: int) -> int:
    if check.samples(n) < 2:
        raise InputError("`n` must be at least 2: one draw has no variance.")
    return n
