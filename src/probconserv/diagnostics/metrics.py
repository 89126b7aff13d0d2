"""How good a predicted field is: conservation, accuracy, calibration."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, overload

import torch
from torch import Tensor

from ..conditioning.condition import AnyLaw
from ..conditioning.draws import FieldDraws
from ..conditioning.loop.posterior import NonlinearPosterior
from ..conditioning.posterior import FieldPosterior, made_of_members
from ..conditioning.sharded import check_whole
from ..fields.gaussian import Field, check_measured
from ..fields.mixture import Mixture
from ..fields.state import Prediction, State, as_field
from ..laws.inequalities import OneSided
from ..laws.law import Law
from ..laws.nonlinear import NonlinearLaw
from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import DegenerateError, InputError
from ..support.tolerances import HOLDS

LEVELS = (0.5, 0.9, 0.99)
PAIRS = 100  # of draws, for the energy score
KNOWN = 64  # roundings of the largest value of a time: a known value as close is right


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of a field, (..., T) each: averages over space.

    All but CE and `energy` are those of the normal with the field's mean and variance at each
    point, as in the paper; a mixture is scored by its total mean and variance. CRPS and coverage
    of a field known by draws are those of its draws. Coverage of a field made from members
    (`Ensemble`) is that of its `interval`. LL is NaN at times at which a point has no
    variance, such as an initial time that is known. `evaluate` makes it; `scores[i]` are those of
    some functions or times.

    Attributes
    ----------
    CE : Tensor
        The conservation error G mu - b, of the mean; of a limit by how much the mean breaks it.
        The mean of draws does not obey laws that are not linear, though each draw does. NaN where
        no law was given.
    LL : Tensor
        The log density.
    MSE : Tensor
        The mean squared error.
    CRPS : Tensor
        The continuous ranked probability score, in units of u; lower is better.
    energy : Tensor
        The energy score, with U and U' two independent draws and the norm the root mean square over
        space: the mean distance of U to the truth, less half of that of U to U'. NaN where draws
        are costly and were not asked for.
    coverage_50, coverage_90, coverage_99 : Tensor
        The share of points inside the central interval of that probability.
    """

    CE: Tensor
    LL: Tensor
    MSE: Tensor
    CRPS: Tensor
    energy: Tensor
    coverage_50: Tensor
    coverage_90: Tensor
    coverage_99: Tensor

    def mean(self) -> "Scores":
        """The average over functions, which are axis 0."""
        return self._over_functions(lambda score: score.mean(0))

    def standard_error(self) -> "Scores":
        """The standard error of `mean`: their standard deviation divided by sqrt(n)."""
        return self._over_functions(lambda score: score.std(0) / math.sqrt(len(score)))

    def summary(self) -> dict[str, float]:
        """At a single time, the average of each score as NAME and its standard error as NAME_se."""
        if self.LL.ndim != 2 or self.LL.shape[-1] != 1 or self.CE.shape != self.LL.shape:
            raise InputError(
                f"these scores have shape {tuple(self.LL.shape)} and a CE of shape "
                f"{tuple(self.CE.shape)}, but a summary is of n functions at one time, (n, 1). "
                "Choose one time, scores[:, i : i + 1], and a law with one row for each time."
            )
        mean, error, numbers = self.mean(), self.standard_error(), {}
        for entry in fields(self):
            numbers[entry.name] = float(getattr(mean, entry.name))
            numbers[f"{entry.name}_se"] = float(getattr(error, entry.name))
        return numbers

    def __getitem__(self, index: Any) -> "Scores":
        return self._map(lambda score: score[index])

    def _over_functions(self, change: Callable[[Tensor], Tensor]) -> "Scores":
        if self.LL.ndim < 2 or len(self.LL) < 2:
            raise InputError(
                "these scores have no axis of at least two functions before that of time: they "
                f"have shape {tuple(self.LL.shape)}."
            )
        return self._map(change)

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Scores":
        return Scores(**{f.name: change(getattr(self, f.name)) for f in fields(self)})


@overload
def evaluate(
    field: State,
    truth: Mapping[str, ArrayLike],
    law: AnyLaw | None = None,
    samples: int | None = None,
    generator: torch.Generator | None = None,
    space_dims: int | None = None,
    where: Mapping[str, ArrayLike] | None = None,
) -> dict[str, Scores]: ...
@overload
def evaluate(
    field: Prediction,
    truth: ArrayLike,
    law: AnyLaw | None = None,
    samples: int | None = None,
    generator: torch.Generator | None = None,
    space_dims: int | None = None,
    where: ArrayLike | None = None,
) -> Scores: ...
@torch.no_grad()
def evaluate(
    field: Prediction | State,
    truth: Any,
    law: AnyLaw | None = None,
    samples: int | None = None,
    generator: torch.Generator | None = None,
    space_dims: int | None = None,
    where: Any = None,
) -> Scores | dict[str, Scores]:
    """The scores of a field against the truth; of a state, those of each of its fields.

    Parameters
    ----------
    field : Field, shape (..., T, M), or what `as_field` takes; or State
        Any that `condition` takes or returns.
    truth : array; of a state a dict of arrays
        u, in a shape that broadcasts to the field.
    law : Law, NonlinearLaw, or a limit of one
        Its error is CE; the field need not have been conditioned on it.
    samples : int
        How many pairs of draws the energy score is computed from. If it is not given, 100, but none
        where every draw is a solve of its own (laws that are not linear, many laws of cells): the
        energy score is then NaN. A field known by draws uses all pairs of them.
    generator : torch.Generator
        The source of the random numbers.
    space_dims : int
        How many last axes are space. If it is not given, as many as a linear law reads, else 1.
    where : array of bool; of a state a dict of arrays
        True where a point counts, in a shape that broadcasts to the field. The others, such as
        land, are in no score but CE.

    Returns
    -------
    Scores
        One number for each time and batch entry; of a state a dict of them, by name.

    Raises
    ------
    DegenerateError
        If points that count and have no variance, where LL is infinite, are at every time; not for
        a field known by draws, nor for a point within inequalities, where LL is NaN.
    InputError
        If `truth` or `where` does not broadcast to the field, no point counts at some time, or
        `space_dims` leaves no axis of time.

    Examples
    --------
    >>> from probconserv import Diagonal, integral
    >>> law = integral([0.0, 1.0, 2.0], 2.0)
    >>> scores = evaluate(Diagonal([[1.0, 1.5, 1.0]], 0.25), [[1.0, 1.0, 1.0]], law)
    >>> scores.CE, scores.MSE
    (tensor([0.5000], dtype=torch.float64), tensor([0.0833], dtype=torch.float64))
    """
    one = law.law if isinstance(law, OneSided) else law
    if one is not None and not isinstance(one, Law | NonlinearLaw):
        raise InputError(
            "`law` must be a law such as `integral(x, total)`, or a limit of one (`at_least`, "
            f"`at_most`); got {type(law).__name__}."
        )
    if space_dims is None:
        space_dims = getattr(one, "space_dims", 1)  # one that is not linear has no such axes
    how = None if samples is None else check.samples(samples, "samples"), generator, space_dims
    check_whole("field", field)
    if not isinstance(field, State):
        field = as_field(field)
        missed = None if law is None else _missed(law, field.mean)
        return _scored(field, truth, where, missed, *how)
    truths = _by_name("truth", truth, field.names)
    counting = {} if where is None else _by_name("where", where, field.names, every=False)
    missed = None if law is None else _missed(law, field)
    return {
        name: _scored(part, truths[name], counting.get(name), missed, *how)
        for name, part in field.fields.items()
    }


def _missed(law: Any, u: Any) -> Tensor:
    """G u - b; of a limit how far u lies outside."""
    if not isinstance(law, OneSided):
        found: Tensor = law.residual(u)
        return found
    return (law.law.residual(u) * law.side).clamp_max(0) * law.side


def _by_name(
    name: str, given: Any, names: Sequence[str], every: bool = True
) -> Mapping[str, ArrayLike]:
    if not isinstance(given, Mapping) or (every and set(given) != set(names)):
        raise InputError(
            f"`{name}` of a state must be arrays by the names of its fields, {', '.join(names)}; "
            f"got {sorted(given) if isinstance(given, Mapping) else type(given).__name__}."
        )
    for each in given:
        check.choice(name, each, names)
    return given


def _scored(
    field: Field,
    truth: ArrayLike,
    where: ArrayLike | None,
    missed: Tensor | None,
    samples: int | None,
    generator: torch.Generator | None,
    space_dims: int,
    refuses: bool = True,
) -> Scores:
    """The scores of one field; missed: its conservation error.

    refuses: a field without variance at every time; else its LL is NaN.
    """
    check_measured((field,), "field", "no truth can score")
    if not check.is_whole(space_dims) or not 0 < space_dims < len(field.shape):
        raise InputError(
            f"`space_dims` must leave an axis of time before it, so be from 1 to "
            f"{len(field.shape) - 1} for a field of shape {tuple(field.shape)}; got "
            f"{space_dims!r:.40}."
        )
    u = check.tensor("truth", truth, like=field.mean, of="the field")
    check.broadcasts("truth", u, field.shape, "the field")
    space = tuple(range(-space_dims, 0))
    average = _Average(where, field, space)
    kind = torch.promote_types(u.dtype, torch.float32)
    u, mean, std = (t.to(kind) for t in (u.expand(field.shape), field.mean, field.std))
    moves = std > 0
    spread = average.all(moves)
    held = isinstance(field, FieldDraws) or _is_within(field)
    if refuses and not held and moves.numel() and not bool(spread.any()):
        raise DegenerateError(
            "the field has points without variance at every time, where LL is infinite. Score a "
            "field with variance everywhere at some time, or leave those points out with `where`."
        )
    away = u - mean
    rounding = KNOWN * torch.finfo(field.dtype).eps * u.abs().amax(space, keepdim=True)
    near = away.abs() <= rounding  # of a point that is known
    z = torch.where(moves, away / torch.where(moves, std, 1.0), torch.where(near, 0.0, torch.inf))
    density = average(-(z**2) / 2 - std.log() - math.log(2 * math.pi) / 2)
    own = torch.where(moves, std * crps(z), away.abs())
    inside = _coverage(field, u, z, near & ~moves)
    return Scores(
        CE=torch.full_like(density, torch.nan) if missed is None else missed,
        LL=torch.where(spread, density, torch.nan),
        MSE=average((u - mean) ** 2),
        CRPS=average(field.crps(u.to(field.dtype)) if isinstance(field, FieldDraws) else own),
        energy=_energy(field, u, samples, generator, average),
        **{f"coverage_{100 * p:g}": average(x) for p, x in zip(LEVELS, inside, strict=True)},
    )


class _Average:
    """The mean over the points of space that count."""

    def __init__(self, where: ArrayLike | None, field: Field, space: tuple[int, ...]) -> None:
        self.space = space
        counts = check.mask(torch.tensor(True) if where is None else where)
        check.broadcasts("where", counts, field.shape, "the field")
        self.counts = counts.to(field.device).expand(field.shape)
        self.number = self.counts.sum(space)
        if bool((self.number == 0).any()):
            raise InputError("`where`: at some time or batch entry no point counts.")

    def __call__(self, x: Tensor) -> Tensor:
        return torch.where(self.counts, x, 0.0).sum(self.space) / self.number

    def points(self, x: Tensor) -> Tensor:  # (..., *space) to (..., points)
        """Numbers whose squares add up to the mean square of x."""
        x = torch.where(self.counts, x, 0.0).flatten(-len(self.space))
        return x / self.number[..., None].to(x).sqrt()

    def all(self, x: Tensor) -> Tensor:
        return (x | ~self.counts).all(self.space)


def table(scores: Mapping[str, Scores]) -> str:
    """The scores of several methods at one time as a table in Markdown, as in the paper.

    Every number is the average over functions with its standard error; `best` says which are bold.

    Parameters
    ----------
    scores : dict of Scores
        By the name of the method, (n, 1) each: n functions at one time.

    Returns
    -------
    str
        A row for each method, a column for each score.

    Raises
    ------
    InputError
        If scores are not of at least two functions at one time.

    Examples
    --------
    >>> scores = evaluate(([[[0.0, 1.0]], [[1.0, 2.0]]], 0.25), [[0.0, 1.5]])
    >>> print(table({"a method": scores})[:34])
    |  | CE | LL | MSE | CRPS | energy
    """
    rows = {name: each.summary() for name, each in scores.items()}
    names = [entry.name for entry in fields(Scores)]
    lines = ["| " + " | ".join(["", *names]) + " |", "|---" * (len(names) + 1) + "|"]
    for name, row in rows.items():
        cells = []
        for metric in names:
            text = f"{row[metric]:.4g} ({row[f'{metric}_se']:.1g})"
            cells.append(f"**{text}**" if best(row, [*rows.values()], metric) else text)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def best(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], metric: str) -> bool:
    """Whether a number is bold, by the paper's rule: within a standard error of the best average.

    A conservation error is best when there is none in any function. Coverage has no best.

    Parameters
    ----------
    row : dict of float
        The `summary` of one method.
    rows : sequence of dicts
        Those of all methods, among them this one.
    metric : str
        The score that is compared.

    Returns
    -------
    bool
        True if the number is bold.

    Examples
    --------
    >>> one, other = {"MSE": 0.10, "MSE_se": 0.02}, {"MSE": 0.11, "MSE_se": 0.02}
    >>> best(other, [one, other], "MSE")
    True
    """
    if metric == "CE":
        return max(abs(row["CE"]), row["CE_se"]) < HOLDS
    if metric.startswith("coverage"):
        return False
    sign = -1 if metric == "LL" else 1
    first = min(rows, key=lambda other: sign * other[metric])
    return abs(row[metric] - first[metric]) <= first[f"{metric}_se"]


def crps(z: Tensor) -> Tensor:
    """The CRPS of a standard normal distribution, at z.

    Parameters
    ----------
    z : Tensor
        Truth less mean, in standard deviations.

    Returns
    -------
    Tensor
        In units of the standard deviation, in the shape of `z`.

    Examples
    --------
    >>> crps(torch.zeros(1, dtype=torch.float64))
    tensor([0.2337], dtype=torch.float64)
    """
    density = (-(z**2) / 2).exp() / math.sqrt(2 * math.pi)
    return z * (2 * torch.special.ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi)


def _coverage(field: Field, u: Tensor, z: Tensor, known: Tensor) -> list[Tensor]:
    """Whether each point is inside, for each level. known: points that are right up to rounding."""
    if not isinstance(field, FieldDraws) and not made_of_members(field):
        ends = torch.special.ndtri((1 + torch.tensor(LEVELS, dtype=torch.float64)) / 2)
        return [(z.abs() <= end).to(z) for end in ends.tolist()]
    tails = [(1 - level) / 2 for level in LEVELS]
    found = field._quantiles(*tails, *(1 - tail for tail in tails))
    pairs = zip(found[: len(tails)], found[len(tails) :], strict=True)
    return [(known | ((low <= u) & (u <= high))).to(u) for low, high in pairs]


def _energy(
    field: Field,
    u: Tensor,
    samples: int | None,
    generator: torch.Generator | None,
    average: _Average,
) -> Tensor:
    """From independent pairs of samples, one pair at a time; from all pairs of known draws."""
    if isinstance(field, FieldDraws):
        return _energy_of_draws(field.draws, u, average)
    if samples is None and _draws_are_solves(field):
        return torch.full_like(average(u), torch.nan)

    def apart(one: Tensor, other: Tensor) -> Tensor:
        return average((one - other) ** 2).sqrt()

    count, total = samples or PAIRS, torch.zeros_like(apart(u, u))
    for _ in range(count):
        one, other = field.sample(2, generator).to(u)
        total += (apart(one, u) + apart(other, u) - apart(one, other)) / 2
    return total / count


def _energy_of_draws(draws: Tensor, u: Tensor, average: _Average) -> Tensor:
    """The mean distance to the truth, less half of that between any two draws."""
    n, lead = len(draws), u.ndim - len(average.space)
    if not u.numel():
        return average(u)
    about = draws.double().mean(0)  # what is small loses fewer digits
    truth = average.points(u.double() - about).flatten(0, lead - 1)  # (parts, points)
    parts = average.points(draws - about).flatten(1, lead).movedim(0, 1)  # (parts, n, points)
    near = [(x - y).norm(dim=-1).mean() for x, y in zip(parts, truth, strict=True)]
    apart = [torch.cdist(x, x).fill_diagonal_(0).sum() / (n * (n - 1)) for x in parts]
    return (torch.stack(near) - torch.stack(apart) / 2).reshape(u.shape[:lead]).to(u)


def _is_within(field: Field) -> bool:
    """Whether values may be held at bounds."""
    return isinstance(field, NonlinearPosterior) and bool(field._solved.low)


def _draws_are_solves(field: Field) -> bool:
    """Whether every draw takes the time of a solve."""
    if isinstance(field, Mixture):
        return _draws_are_solves(field.components)
    return isinstance(field, NonlinearPosterior) or (
        isinstance(field, FieldPosterior) and field._solved.is_iterative
    )
