"""How good a predicted field is: conservation, accuracy, calibration."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from . import _checks as check
from ._checks import ArrayLike
from ._draws import Draws
from ._errors import DegenerateError, InputError
from ._fields import Field
from ._laws import Law, check_law
from ._nonlinear.law import NonlinearLaw
from ._state import Prediction, as_field

LEVELS = (0.5, 0.9, 0.99)
EXACT = 1e-12  # a conservation error below this is none
KNOWN = 64  # roundings of the largest value of a time: a known value as close is right


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of a field, (..., T) each: averages over space.

    All but CE and `energy` are those of the normal with the field's mean and variance at each
    point, as in the paper; a mixture is scored by its total mean and variance. CRPS and coverage
    of a field known by draws are those of its draws. LL is NaN at times at which a point has no
    variance, such as an initial time that is known. `evaluate` makes it; `scores[i]` are those of
    some functions or times.

    Attributes
    ----------
    CE : Tensor
        The conservation error G mu - b; NaN where no law was given.
    LL : Tensor
        The log density.
    MSE : Tensor
        The mean squared error.
    CRPS : Tensor
        The continuous ranked probability score, in units of u; lower is better.
    energy : Tensor
        The energy score, with U and U' two independent draws and the norm the root mean square over
        space: the mean distance of U to the truth, less half of that of U to U'.
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


@torch.no_grad()
def evaluate(
    field: Prediction,
    truth: ArrayLike,
    law: Law | NonlinearLaw | None = None,
    samples: int = 100,
    generator: torch.Generator | None = None,
    space_dims: int | None = None,
) -> Scores:
    """The scores of a field against the truth.

    Parameters
    ----------
    field : Field, shape (..., T, M), or what `as_field` takes
        Any that `condition` takes or returns.
    truth : array
        u, in a shape that broadcasts to the field.
    law : Law or NonlinearLaw
        Its error is CE; the field need not have been conditioned on it.
    samples : int
        How many pairs of draws the energy score is computed from.
    generator : torch.Generator
        The source of the random numbers.
    space_dims : int
        How many last axes are space. If it is not given, as many as a linear law reads, else 1.

    Returns
    -------
    Scores
        One number for each time and batch entry.

    Raises
    ------
    DegenerateError
        If points without variance, where LL is infinite, are at every time; not for a field known
        by draws.
    InputError
        If `truth` does not broadcast to the field, or `space_dims` leaves no axis of time.

    Examples
    --------
    >>> from probconserv import Diagonal, integral
    >>> law = integral([0.0, 1.0, 2.0], 2.0)
    >>> scores = evaluate(Diagonal([[1.0, 1.5, 1.0]], 0.25), [[1.0, 1.0, 1.0]], law)
    >>> scores.CE, scores.MSE
    (tensor([0.5000], dtype=torch.float64), tensor([0.0833], dtype=torch.float64))
    """
    field = as_field(field)
    if law is not None and not isinstance(law, NonlinearLaw):
        check_law(law)
    if space_dims is None:
        space_dims = law.space_dims if isinstance(law, Law) else 1
    if not check.is_whole(space_dims) or not 0 < space_dims < len(field.shape):
        raise InputError(
            f"`space_dims` must leave an axis of time before it, so be from 1 to "
            f"{len(field.shape) - 1} for a field of shape {tuple(field.shape)}; got "
            f"{space_dims!r:.40}."
        )
    u = check.tensor("truth", truth, like=field.mean, of="the field")
    check.broadcasts("truth", u, field.shape, "the field")
    kind, space = torch.promote_types(u.dtype, torch.float32), tuple(range(-space_dims, 0))
    u, mean, std = (t.to(kind) for t in (u.expand(field.shape), field.mean, field.std))
    moves = std > 0
    spread = moves.all(space)
    if not isinstance(field, Draws) and moves.numel() and not bool(spread.any()):
        raise DegenerateError(
            "the field has points without variance at every time, where LL is infinite. Score a "
            "field with variance everywhere at some time, or leave those points out."
        )
    away = u - mean
    rounding = KNOWN * torch.finfo(field.dtype).eps * u.abs().amax(space, keepdim=True)
    near = away.abs() <= rounding  # of a point that is known
    z = torch.where(moves, away / torch.where(moves, std, 1.0), torch.where(near, 0.0, torch.inf))
    density = (-(z**2) / 2 - std.log() - math.log(2 * math.pi) / 2).mean(space)
    own = torch.where(moves, std * crps(z), away.abs())
    return Scores(
        CE=torch.full_like(density, torch.nan) if law is None else law.residual(mean),
        LL=torch.where(spread, density, torch.nan),
        MSE=((u - mean) ** 2).mean(space),
        CRPS=(field.crps(u.to(field.dtype)) if isinstance(field, Draws) else own).mean(space),
        energy=_energy(field, u, check.samples(samples, "samples"), generator, space),
        **{
            f"coverage_{level * 100:g}": _coverage(field, u, z, level).mean(space)
            for level in LEVELS
        },
    )


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
        return max(abs(row["CE"]), row["CE_se"]) < EXACT
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


def _coverage(field: Field, u: Tensor, z: Tensor, level: float) -> Tensor:
    if isinstance(field, Draws):
        low, high = field.interval(level)
        return ((low <= u) & (u <= high)).to(u)
    reach = torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64))
    return (z.abs() <= float(reach)).to(z)


def _energy(
    field: Field,
    u: Tensor,
    samples: int,
    generator: torch.Generator | None,
    space: tuple[int, ...],
) -> Tensor:
    """From independent pairs of samples, one pair at a time."""
    known = field.draws if isinstance(field, Draws) else None  # pairs that are not the same draw
    count = samples if known is None else min(samples, len(known) // 2)

    def apart(one: Tensor, other: Tensor) -> Tensor:
        return ((one - other) ** 2).mean(space).sqrt()

    total = torch.zeros_like(apart(u, u))
    for i in range(count):
        pair = field.sample(2, generator) if known is None else known[2 * i : 2 * i + 2]
        one, other = pair.to(u)
        total += (apart(one, u) + apart(other, u) - apart(one, other)) / 2
    return total / count
