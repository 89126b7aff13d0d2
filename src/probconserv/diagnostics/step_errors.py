"""StepErrors: how wrong one step of a model is, learned from steps whose truth is known.

The error of step k, truth less prediction, is drawn as

    e_k = m + F^T z_k + sqrt(D) w_k,    z_k = sqrt(p) z + sqrt(1 - p) y_k,    w_k likewise
    y_k = c y_{k-1} + sqrt(1 - c^2) fresh numbers

so that e has the mean and the covariance of the residuals at each step, and, h steps apart, the
correlation p + (1 - p) c^h. Errors that last add up like k, others like sqrt(k):

    var(e_1 + ... + e_k) / var(e) = p k^2 + (1 - p) (k + 2 sum_{h < k} (k - h) c^h)
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..fields.covariances import Fields
from ..fields.gaussian import Field, random_normals
from ..fields.low_rank import LowRank
from ..fields.state import State
from ..solvers.shrinkage import MEMBERS_PER_ROW
from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError
from ..support.tolerances import HOLDS
from ..support.tree import Kept

Arrays: TypeAlias = ArrayLike | Mapping[str, ArrayLike]
Step: TypeAlias = Callable[[Any], Any]

RELATIVE = ("no", "field", "point")
DIRECTIONS = 64  # that are kept of the residuals; the rest is independent from point to point
LOOKED_AT = 512  # residuals, rolled ones among them, that directions are found from
LEAST_SIZE = 0.01  # of the root mean square of a field: no point counts as smaller
FADING = torch.linspace(0, 0.995, 200, dtype=torch.float64)  # values of c that are tried
IN_A_ROW = 4  # steps, and trajectories, that tell what lasts from what fades
LEVEL = 0.9  # of the intervals that are looked at


class StepErrors(Kept):
    """How wrong one step of a model is: its errors on steps that it was not trained on.

    `rollout` adds draws of them to its members at every step, and moves members to the laws as
    these errors go together. Errors of consecutive steps say how long errors last: without that,
    intervals beyond the first step are far too narrow. `learned` makes it from a model; `save` and
    `load` keep it in a file.

    Parameters
    ----------
    residuals : array, shape (n, T, ...), or a dict of arrays
        Truth less prediction of T consecutive steps, each from the true state before it, along n
        trajectories; the axes of a state come after. T may be 1: errors then count as independent
        from step to step.
    bias : bool
        Whether the mean of the residuals will be there again at every step. False: errors have the
        mean 0, and the mean of the residuals counts in their spread.
    relative : {"no", "field", "point"}
        What the residuals were divided by: nothing, the root mean square of the predicted field, or
        the size of the prediction at each point.
    periodic : int or sequence of int
        Axes, counted from the last, along which errors are as likely in any other place: residuals
        are rolled along them, so that a few trajectories say more.

    Attributes
    ----------
    names : tuple of str
        The names of the fields; ("",) for a field alone.
    count : int
        How many steps it was learned from.
    persistence : float
        c, the correlation from one step to the next of what fades.
    lasting : float
        p, the share of the variance that stays the same along a trajectory. 0 of less than four
        steps in a row, or of less than four trajectories.
    held_out : tuple of float
        The share of 90 % intervals, learned from all other trajectories, that hold the errors of
        one; and the sums of its errors over all T steps. Far from 0.9: errors are not as they are
        drawn here, or there are few.

    Raises
    ------
    InputError
        If there are fewer than two residuals, one is not finite, or axes do not fit.

    Examples
    --------
    >>> import probconserv as pc
    >>> residuals = torch.randn(50, 10, 8, generator=torch.Generator().manual_seed(0))
    >>> errors = pc.diagnostics.StepErrors(residuals)
    >>> errors.count, errors.persistence < 0.1, errors.lasting < 0.1
    (500, True, True)
    """

    loose = ("bias", "directions", "rest", "extent")

    def __init__(
        self,
        residuals: Arrays,
        *,
        bias: bool = True,
        relative: str = "no",
        periodic: int | Sequence[int] = (),
    ) -> None:
        check.choice("relative", relative, RELATIVE)
        if not isinstance(bias, bool):
            raise InputError(f"`bias` must be True or False, got {bias!r}.")
        self.names, given = parted("residuals", residuals)
        first = given[0].shape
        for x in given:
            check.finite("residuals", x)
            if x.ndim < 3 or x.shape[:2] != first[:2] or math.prod(first[:2]) < 2:
                raise InputError(
                    "`residuals` must have the axes (n, T, ...): at least two steps, along n "
                    "trajectories, the same for all fields, with the axes of a state after them; "
                    f"got shape {tuple(x.shape)}."
                )
        axes, sizes = _rolled_axes(periodic, [r.shape[2:] for r in given])
        self.relative, self.count = relative, math.prod(first[:2])
        r = tuple(x.double() for x in given)
        self.bias = tuple(_level(x.mean((0, 1)), axes) if bias else 0 * x[0, 0] for x in r)
        away = tuple(x - m for x, m in zip(r, self.bias, strict=True))
        free = self.count - bias
        variance = tuple(_level(x.square().sum((0, 1)) / free, axes) for x in away)
        scale = tuple(v.mean().sqrt().clamp_min(torch.finfo(v.dtype).tiny) for v in variance)
        alike = [x / s for x, s in zip(away, scale, strict=True)]
        self.persistence, self.lasting = _correlation(alike, bias)
        self.held_out = _held_out(away, bias, self.growth(first[1]))
        found = _directions(away, scale, free, axes, sizes)
        seen = [f.square().sum(0) for f in found]
        above = [(s / v).nan_to_num(1.0).clamp_min(1) for s, v in zip(seen, variance, strict=True)]
        self.directions = tuple(f / a.sqrt() for f, a in zip(found, above, strict=True))
        left = [v - s / a for v, s, a in zip(variance, seen, above, strict=True)]
        pairs = zip(left, variance, strict=True)
        self.rest = tuple(torch.where(d > HOLDS * v, d, 0.0) for d, v in pairs)
        self.extent: tuple[Tensor, ...] = ()  # the least and the largest number of true states

    @classmethod
    @torch.no_grad()
    def learned(
        cls,
        step: Step,
        truth: Arrays,
        *,
        bias: bool = True,
        relative: str = "no",
        periodic: int | Sequence[int] = (),
    ) -> "StepErrors":
        """The errors that a model makes on trajectories that it was not trained on.

        Parameters
        ----------
        step : callable
            As in `rollout`: it gets states with the axis of the trajectories before them.
        truth : array, shape (n, T + 1, ...), or a dict of arrays
            True states, T + 1 in a row along n trajectories. Two in a row say nothing of how long
            errors last.
        bias, relative, periodic : as in `StepErrors`
            The residuals are divided by what `relative` names.

        Returns
        -------
        StepErrors
            With the range of the true states, outside of which `rollout` takes members for lost.

        Raises
        ------
        InputError
            If `truth` has no two states in a row, or `step` returns other shapes.

        Examples
        --------
        >>> import probconserv as pc
        >>> truth = torch.randn(20, 4, 8, generator=torch.Generator().manual_seed(0))
        >>> errors = pc.diagnostics.StepErrors.learned(lambda u: 0.5 * u, truth)
        >>> errors.count
        60
        """
        check.choice("relative", relative, RELATIVE)
        names, states = parted("truth", truth)
        for u in states:
            check.finite("truth", u)
            if u.ndim < 3 or u.shape[1] < 2 or u.shape[:2] != states[0].shape[:2]:
                raise InputError(
                    "`truth` must have the axes (n, T + 1, ...): at least two states in a row, "
                    "along n trajectories, the same for all fields, with the axes of a state after "
                    f"them; got shape {tuple(u.shape)}."
                )
        residuals = []
        for t in range(states[0].shape[1] - 1):
            after = stepped(step, names, tuple(u[:, t] for u in states))
            sizes = sizes_of(after, relative, [u.ndim - 2 for u in states])
            each = zip(states, after, sizes, strict=True)
            residuals.append([(u[:, t + 1] - x) / s for u, x, s in each])
        stacked = tuple(torch.stack(each, 1) for each in zip(*residuals, strict=True))
        given = together(names, stacked)
        found = cls(given, bias=bias, relative=relative, periodic=periodic)
        found.extent = tuple(torch.stack(u.aminmax()).double() for u in states)
        return found

    @property
    def shapes(self) -> list[torch.Size]:
        """The shape of a state, of each field."""
        return [m.shape for m in self.bias]

    def growth(self, steps: int) -> float:
        """The variance of the sum of the errors of so many steps, over that of one.

        Parameters
        ----------
        steps : int
            How many.

        Returns
        -------
        float
            `steps` where errors do not last; its square where they never change.
        """
        c, k = self.persistence, check.samples(steps, "steps")
        fades = k + 2 * sum((k - h) * c**h for h in range(1, k))
        return self.lasting * k**2 + (1 - self.lasting) * fades

    def _normals(self, lead: Sequence[int], generator: torch.Generator | None = None) -> Fields:
        """Standard normal numbers that errors of states with first axes `lead` are made of."""
        rank = len(self.directions[0])
        shapes = [(rank,), *self.shapes]
        draw = random_normals(1, generator, self.bias[0].device)
        return tuple(draw(*lead, *shape)[0] for shape in shapes)

    def _next(self, numbers: Fields, fresh: Fields) -> Fields:
        """What fades, at the step after that of `numbers`."""
        return _mixed(numbers, fresh, self.persistence)

    def _both(self, lasts: Fields, fades: Fields) -> Fields:
        return _mixed(lasts, fades, math.sqrt(self.lasting))

    def _of(self, numbers: Fields, u: Fields) -> Fields:
        """The errors of predictions u, made of standard normal numbers."""
        z, *own = numbers
        found = []
        each = zip(self.bias, self.directions, self.rest, own, self._sizes(u), strict=True)
        for mean, f, rest, w, size in each:
            shared = torch.tensordot(z, f, 1)
            found.append((mean + shared + rest.sqrt() * w) * size)
        return tuple(found)

    def _about(self, u: Fields, steps: int = 1) -> Field | State:
        """The field or state with means u and the covariance of the errors of so many steps.

        As of an `Ensemble`, some of the variance counts as independent from point to point: less,
        the more residuals there are.
        """
        share, grown = 1 / (1 + (self.count - 1) / MEMBERS_PER_ROW), self.growth(steps)
        parts = {}
        each = zip(self.names, u, self.directions, self.rest, self._sizes(u), strict=True)
        for name, mean, f, rest, size in each:
            shape, ones = f.shape[1:], [1] * (mean.ndim - f.ndim + 1)
            own = (1 - share) * rest + share * (rest + f.square().sum(0))
            factor = (math.sqrt(grown * (1 - share)) * f).reshape(len(f), *ones, *shape)
            variance = (grown * own * size.square()).expand(mean.shape)
            parts[name] = LowRank._unchecked(mean, factor * size, variance, len(shape))
        return parts[""] if "" in parts else State(**parts)._with(shared=True)

    @property
    def _stds(self) -> Fields:
        pairs = zip(self.rest, self.directions, strict=True)
        return tuple((d + f.square().sum(0)).sqrt() for d, f in pairs)

    def _sizes(self, u: Fields) -> list[Tensor]:
        return sizes_of(u, self.relative, [m.ndim for m in self.bias])

    def __repr__(self) -> str:
        shapes = ", ".join(f"{n}{'=' if n else 'shape='}{tuple(s)}" for n, s in self._named())
        says = f"persistence {self.persistence:.2f}, lasting {self.lasting:.2f}"
        return f"StepErrors({shapes}, {self.count} steps, {says})"

    def _named(self) -> list[tuple[str, torch.Size]]:
        return list(zip(self.names, self.shapes, strict=True))


def parted(name: str, given: Any) -> tuple[tuple[str, ...], tuple[Tensor, ...]]:
    """An array, or arrays by the names of fields, as names and tensors."""
    if not isinstance(given, Mapping):
        return ("",), (check.as_tensor(name, given),)
    if not given or "" in given:
        raise InputError(f"`{name}` must be an array, or arrays by the names of their fields.")
    return tuple(given), tuple(check.as_tensor(f"{name}[{key!r}]", x) for key, x in given.items())


def together(names: tuple[str, ...], parts: Sequence[Any]) -> Any:
    """The inverse."""
    return parts[0] if names == ("",) else dict(zip(names, parts, strict=True))


def stepped(step: Step, names: tuple[str, ...], u: Fields) -> Fields:
    """States after a step, as tensors like those before it. They may hold NaN."""
    if not callable(step):
        raise InputError(f"`step` must be a function, got {type(step).__name__}.")
    after = step(together(names, tuple(x.clone() for x in u)))
    keys, found = parted("step(u)", after)
    own = dict(zip(keys, found, strict=True))
    shapes = {name: tuple(x.shape) for name, x in own.items()}
    wanted = {name: tuple(x.shape) for name, x in zip(names, u, strict=True)}
    if shapes != wanted:
        raise InputError(
            f"`step` must return what it gets, {together(names, list(wanted.values()))} here, "
            f"with the axis of members first; it returned {together(keys, list(shapes.values()))}."
        )
    return tuple(own[name].detach().to(x) for name, x in zip(names, u, strict=True))


def sizes_of(u: Fields, relative: str, dims: Sequence[int]) -> list[Tensor]:
    """What errors of predictions are proportional to; dims: last axes that are a state's."""
    if relative == "no":
        return [x.new_ones(()) for x in u]
    pairs = [(x.double(), tuple(range(-n, 0))) for x, n in zip(u, dims, strict=True)]
    rms = [x.square().mean(axes, keepdim=True).sqrt() for x, axes in pairs]
    rms = [torch.where(s > 0, s, 1.0) for s in rms]
    if relative == "field":
        return rms
    return [torch.maximum(x.abs(), LEAST_SIZE * s) for (x, _), s in zip(pairs, rms, strict=True)]


def _rolled_axes(
    periodic: int | Sequence[int], shapes: Sequence[torch.Size]
) -> tuple[tuple[int, ...], list[int]]:
    """The axes that residuals are rolled along, and their sizes."""
    listed: list[Any] = list(periodic) if isinstance(periodic, Sequence) else [periodic]
    found = []
    for axis in listed:
        sizes = {s[axis] for s in shapes if check.is_whole(axis) and -len(s) <= axis < 0}
        fit = check.is_whole(axis) and all(-len(s) <= axis < 0 for s in shapes)
        if not fit or len(sizes) != 1 or listed.count(axis) > 1:
            raise InputError(
                "`periodic` must be axes of a state, counted from the last as -1 is, of the same "
                f"size in all fields of shapes {', '.join(str(tuple(s)) for s in shapes)}; got "
                f"{periodic!r}."
            )
        found.append(sizes.pop())
    return tuple(listed), found


def _level(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Averaged along the axes where any place is as good as another."""
    return x.mean(axes, keepdim=True).expand(x.shape).contiguous() if axes else x


def _directions(
    away: Fields, scale: Fields, free: int, axes: tuple[int, ...], sizes: Sequence[int]
) -> tuple[Tensor, ...]:
    """F of each field, (R, *shape): of few residuals all, of many those that move most."""
    flat = [x.flatten(0, 1) for x in away]
    count, places, wide = len(flat[0]), math.prod(sizes), sum(x[0].numel() for x in flat)
    most = count if wide <= LOOKED_AT else min(count, LOOKED_AT)
    some = torch.linspace(0, count - 1, most, dtype=torch.float64).round().long()
    copies = max(1, min(places, LOOKED_AT // most))
    columns = []
    for x, s in zip(flat, scale, strict=True):
        at = [np.unravel_index(i * places // copies, sizes) for i in range(copies)] if axes else []
        rolled = [torch.roll(x[some], tuple(map(int, by)), axes) for by in at]
        columns.append((torch.cat(rolled or [x[some]]) / s).flatten(1))
    matrix = torch.cat(columns, 1)
    matrix = matrix * math.sqrt(count / free / len(matrix))
    if len(matrix) > max(DIRECTIONS, wide):
        values, vectors = torch.linalg.eigh(matrix.mT @ matrix)
        matrix = (vectors * values.clamp_min(0).sqrt()).mT[-DIRECTIONS:]
    elif len(matrix) > DIRECTIONS:
        vectors = torch.linalg.eigh(matrix @ matrix.mT).eigenvectors
        matrix = vectors[:, -DIRECTIONS:].mT @ matrix
    parts = matrix.split([x[0].numel() for x in flat], 1)
    each = zip(parts, flat, scale, strict=True)
    return tuple((part * s).reshape(-1, *x.shape[1:]) for part, x, s in each)


def _mixed(one: Fields, other: Fields, c: float) -> Fields:
    """Standard normal numbers that have the correlation c with `one`."""
    pairs = zip(one, other, strict=True)
    return tuple(c * x + math.sqrt(1 - c * c) * y for x, y in pairs)


def _correlation(away: Sequence[Tensor], bias: bool) -> tuple[float, float]:
    """c and p. p is 0, unless with it halves of the trajectories say more of the other halves."""
    n, steps = away[0].shape[:2]
    if steps < 2:
        return 0.0, 0.0
    every = _lags(away, bias)
    if min(n, steps) < IN_A_ROW:
        return _fitted(every, False)
    one, other = (_lags([x[i::2] for x in away], bias) for i in range(2))
    missed = [0.0, 0.0]
    for lasts in (False, True):
        for seen, held in ((one, other), (other, one)):
            c, p = _fitted(seen, lasts)
            missed[lasts] += float(_missed(held, torch.tensor(c), torch.tensor(p)))
    return _fitted(every, missed[True] < missed[False])


def _lags(away: Sequence[Tensor], bias: bool) -> Tensor:
    """Correlations of errors h steps apart, h = 1, 2, ...; of one trajectory up to a tenth."""
    n, steps = away[0].shape[:2]
    most = steps - 1 if n > 1 else max(1, steps // 10)
    found = []
    for h in range(most + 1):
        found.append(sum(float((x[:, : steps - h] * x[:, h:]).mean()) for x in away))
    taken = 0.0
    if bias and n > 1:  # by their mean, which was taken off
        taken = sum(float(x.mean(1).square().mean()) for x in away) / (n - 1)
    lags = torch.tensor(found, dtype=torch.float64) + taken
    return lags[1:] / lags[0] if lags[0] > 0 else 0 * lags[1:]


def _fitted(lags: Tensor, lasts: bool) -> tuple[float, float]:
    """c and p of the correlations."""
    h = torch.arange(1, len(lags) + 1)
    fades = FADING[:, None] ** h
    weights = h.flip(0)
    p = (weights * (lags - fades) * (1 - fades)).sum(-1) / (weights * (1 - fades) ** 2).sum(-1)
    p = p.clamp(0, 1) * lasts
    best = int(_missed(lags, FADING, p).argmin())
    return float(FADING[best]), float(p[best])


def _missed(lags: Tensor, c: Tensor, p: Tensor) -> Tensor:
    h = torch.arange(1, len(lags) + 1)
    p = p[..., None]
    return (h.flip(0) * (p + (1 - p) * c[..., None] ** h - lags).square()).sum(-1)


def _held_out(away: Fields, bias: bool, grown: float) -> tuple[float, float]:
    """How often intervals from all other trajectories hold the errors of one, and their sums."""
    n, steps = away[0].shape[:2]
    if n < 3:
        return math.nan, math.nan
    limit = NormalDist().inv_cdf(0.5 + LEVEL / 2)
    held: list[list[Tensor]] = [[], []]
    for x in away:
        own, square = x.mean(1), x.square().sum(1)
        others = bias * (own.sum(0) - own) / (n - 1)
        variance = (square.sum(0) - square) / ((n - 1) * steps) - others.square()
        sure = bias * grown / (steps**2 * (n - 1))  # of their mean
        one = (x - others[:, None]).square() <= limit**2 * (variance * (1 + sure))[:, None]
        every = steps * (own - others)
        total = every.square() <= limit**2 * variance * (grown + steps**2 * sure)
        held[0].append(one.flatten())
        held[1].append(total.flatten())
    first, second = (float(torch.cat(each).double().mean()) for each in held)
    return first, second
