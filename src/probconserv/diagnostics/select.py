"""The way to use laws that held-out data ask for, and what it is worth on other data."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..conditioning.condition import AnyLaw
from ..conditioning.draws import FieldDraws
from ..fields.gaussian import Diagonal, Field
from ..fields.state import Prediction, State, as_field
from ..laws.inequalities import Inequality
from ..support import checks as check
from ..support.errors import ImplausibleWarning, InputError, ProbConservError
from .comparison import Difference, difference_of
from .metrics import crps
from .ways import Way, has_value, is_exact, names_of

Goal: TypeAlias = Literal["CRPS", "LL", "RMSE"]
Scores: TypeAlias = NDArray[np.float64]  # (candidates, scales, n), lower is better
GOALS = ("CRPS", "LL", "RMSE")
SCALES = tuple(2.0 ** (k / 4) for k in range(-12, 17))  # of standard deviations
COMMON, NOISES = (0.5, 0.95), (0.5, 1.0, 2.0)
ERRORS = 1.0  # standard errors by which a way must be better than a simpler one


@dataclass(frozen=True, eq=False)
class Choice:
    """A way to use laws, and what it gains where it was not chosen. `select` makes it.

    Attributes
    ----------
    way : Way
        The card: call it with new predictions and laws, or keep it in a file.
    honest : Difference
        The score of the choice beside no law, on functions that had no part in it: chosen again
        without each fold, and scored on that fold.
    spread : Difference
        The same beside no law with its variance chosen as well: what the law itself brings.
    scores : dict of float
        The mean score of each candidate with its best scale, by what it says. Lower is better; LL
        is there with its sign changed.
    failed : dict of str
        The candidates that ended in an error, and what it said.
    """

    way: Way
    honest: Difference
    spread: Difference
    scores: dict[str, float]
    failed: dict[str, str]

    @property
    def verdict(self) -> str:
        """What was chosen and what it is worth, in words."""
        if self.way.how == "none" and self.way.scale == 1:
            return (
                f"no law: of {len(self.scores)} ways none is better by more than a standard error "
                f"over {self.honest.count} functions."
            )
        text = str(replace(self.honest, way=str(self.way)))
        if self.way.how != "none" and self.way.scale != 1:
            text += f" Beside no law with another variance too, {self.spread.change}."
        return text

    def __repr__(self) -> str:
        return f"Choice({self.way})\n{self.verdict}"


@torch.no_grad()
def select(
    prediction: Prediction | State,
    truth: Any,
    *laws: AnyLaw,
    score: Goal = "CRPS",
    ways: Sequence[Way] | None = None,
    where: Any = None,
    folds: int = 5,
    draws: int = 100,
    generator: torch.Generator | None = None,
) -> Choice:
    """The way to use laws, and the variance, that held-out data ask for.

    Candidates are no law, and `project` and `condition` on each law and on all, with errors that
    points share and with laws that have noise. Each may have its standard deviations multiplied by
    a number. A candidate with a law is taken only if it is better than no law by more than a
    standard error over functions; so is another variance. So the choice is never worse than no law
    on the data that it was made of, and `Choice.honest` says what it is worth on others.

    Parameters
    ----------
    prediction : Field, State, or what `as_field` takes, shape (n, ..., T, M)
        What a model predicts of n functions, which are axis 0.
    truth : array; of a state a dict of arrays
        What came true, in a shape that broadcasts to the prediction.
    *laws : Law, NonlinearLaw or Inequality
        Those that may be used, with values for each function.
    score : {"CRPS", "LL", "RMSE"}
        What is made as good as can be. With "RMSE" the variance stays.
    ways : sequence of Way
        The candidates, in place of the usual ones. No law is always one, and `scale` is found.
    where : array of bool; of a state a dict of arrays
        True where a point counts.
    folds : int
        Of how many parts one is left out at a time for `honest`.
    draws : int
        How many draws `condition` makes, where there are inequalities.
    generator : torch.Generator
        The source of draws, where there are inequalities, and of the folds. If it is not given,
        one with seed 0.

    Returns
    -------
    Choice
        `way` is the card.

    Raises
    ------
    InputError
        If there are fewer than two functions for each fold, or `compare` would refuse.

    Examples
    --------
    >>> import probconserv as pc
    >>> rng = torch.Generator().manual_seed(0)
    >>> truth = torch.rand(20, 1, 5, generator=rng, dtype=torch.float64)
    >>> lost = 0.3 * torch.rand(20, 1, 1, generator=rng, dtype=torch.float64)
    >>> noise = 0.02 * torch.randn(20, 1, 5, generator=rng, dtype=torch.float64)
    >>> law = pc.weighted_sum(torch.ones(5), truth.sum(-1))
    >>> choice = select((truth - lost + noise, 0.04 + 0 * truth), truth, law)
    >>> choice.way.how, choice.honest.answer
    ('condition', 'helps')
    """
    check.choice("score", score, GOALS)
    given: Any = prediction if isinstance(prediction, State) else as_field(prediction)
    rng = generator or torch.Generator(given.device).manual_seed(0)
    check.generator(rng)
    n = given.parts[0].shape[0] if given.parts[0].shape else 0
    if not check.is_whole(folds) or folds < 2 or n < 2 * folds:
        raise InputError(
            f"`folds` must be at least 2, with two functions in each; got {folds!r:.20} for {n} "
            "functions."
        )
    cards = usual_candidates(given, laws, draws) if ways is None else [Way("none"), *ways]
    scores, kept, failed = [], [], {}
    for card in cards:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ImplausibleWarning)  # the scores say it
                after = card(given, *laws, generator=rng)
        except ProbConservError as error:
            if card.how == "none" or isinstance(error, InputError):
                raise
            failed[str(card)] = str(error)
            continue
        scores.append(_scores(given, after, truth, where, score))
        kept.append(card)
    table: Scores = np.stack(scores)
    if score == "RMSE":
        table = table[:, [SCALES.index(1.0)]]
    return _choice(kept, table, failed, score, folds, rng)


def usual_candidates(
    prediction: Field | State, laws: Sequence[AnyLaw], draws: int = 100
) -> list[Way]:
    """No law, then those with laws."""
    names = names_of(laws)
    subsets: list[tuple[str, ...]] = [(name,) for name in names]
    subsets += [tuple(names)] * (len(names) > 1)
    by_name = dict(zip(names, laws, strict=True))
    independent = all(isinstance(field, Diagonal) for field in prediction.parts)
    cards = [Way("none")]
    for subset in reversed(subsets):
        own = [by_name[name] for name in subset]
        valued = any(has_value(law) for law in own)
        cards.append(Way(laws=subset))
        if any(isinstance(law, Inequality) for law in own):  # draws have no other scale afterwards
            cards += [Way(laws=subset, scale=scale) for scale in (0.5, 2.0)]
        cards += [Way("project", laws=subset)] * all(is_exact(law) for law in own)
        if not independent:
            cards.append(Way(laws=subset, points="independent"))
        if not valued:
            continue
        cards += [Way(laws=subset, common=c) for c in COMMON if independent]
        cards += [Way(laws=subset, noise=noise) for noise in NOISES]
        cards += [Way(laws=subset, noise=1.0, common=COMMON[-1])] * independent
        cards += [Way(laws=subset, inflated=True)]
    return [replace(card, draws=draws) for card in cards]


def _choice(
    cards: list[Way],
    table: Scores,
    failed: dict[str, str],
    score: str,
    folds: int,
    rng: torch.Generator,
) -> Choice:
    n = table.shape[-1]
    order = torch.randperm(n, generator=rng, device=rng.device).tolist()
    chosen, plain, own = (np.empty(n) for _ in range(3))
    for fold in range(folds):
        out = order[fold::folds]
        rest = np.setdiff1d(np.arange(n), out)
        best, base = _best(table[:, :, rest])
        chosen[out], plain[out] = table[best][out], table[base][out]
    unit = _unit(table)
    own = table[0, unit]
    sign = -1 if score == "LL" else 1
    honest = difference_of("chosen", score, "all", sign * own, sign * chosen)
    spread = difference_of("chosen", score, "all", sign * plain, sign * chosen)
    (number, scale), base = _best(table)
    if honest.gain < -honest.error:  # folds disagree so much that the choice cannot be trusted
        number, scale = 0, unit
    scales = (1.0,) if table.shape[1] == 1 else SCALES
    way = replace(cards[number], scale=cards[number].scale * scales[scale])
    means = table.mean(-1).min(1)
    return Choice(
        way, honest, spread, dict(zip(map(str, cards), means.tolist(), strict=True)), failed
    )


def _unit(table: Scores) -> int:
    return 0 if table.shape[1] == 1 else SCALES.index(1.0)


def _best(table: Scores) -> tuple[tuple[int, int], tuple[int, int]]:
    """The candidate and its scale; and the same without a law."""
    unit = _unit(table)
    base = 0, int(table[0].mean(-1).argmin())
    if not _is_better(table[base], table[0, unit]):
        base = 0, unit
    if len(table) == 1:
        return base, base
    means = table[1:].mean(-1)
    number, scale = np.unravel_index(int(means.argmin()), means.shape)
    found = int(number) + 1, int(scale)
    return (found if _is_better(table[found], table[base]) else base), base


def _is_better(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    """Whether it is better by more than a standard error of the paired difference."""
    gains = other - one
    if not np.isfinite(gains).all():
        return bool(np.isfinite(one).all())
    return bool(gains.mean() > ERRORS * gains.std(ddof=1) / math.sqrt(len(gains)))


def _scores(base: Any, after: Any, truth: Any, where: Any, goal: str) -> NDArray[np.float64]:
    """Of each function with each scale, (scales, n); of a state in units of its spreads."""
    total: Any = 0.0
    for name, before, part in zip(base.names, base.parts, after.parts, strict=True):
        u = check.tensor("truth", truth[name] if name else truth, like=before.mean, of="the field")
        check.broadcasts("truth", u, before.shape, "the field")
        own = where.get(name) if name and where is not None else where
        counts = check.mask(torch.tensor(True) if own is None else own).to(u.device)
        counts = counts.expand(before.shape).double().flatten(1)
        unit = before.std.double().square().mean().sqrt() if name and goal != "LL" else 1.0
        found = _of_field(part, u.expand(before.shape), counts, goal)
        total = total + found / unit
    scores: NDArray[np.float64] = total.cpu().numpy()
    return scores


def _of_field(field: Field, u: Tensor, counts: Tensor, goal: str) -> Tensor:
    def average(x: Tensor) -> Tensor:
        return (torch.where(counts > 0, x.flatten(1), 0.0)).sum(1) / counts.sum(1)

    away = u.double() - field.mean.double()
    if goal == "RMSE":
        return average(away.square()).sqrt().expand(len(SCALES), -1)
    if isinstance(field, FieldDraws):  # another scale would be another solve
        if goal == "LL":
            raise InputError("`score`: draws within inequalities have no density; use CRPS.")
        found = torch.full((len(SCALES), len(u)), math.inf, dtype=torch.float64, device=u.device)
        found[SCALES.index(1.0)] = average(field.crps(u).double())
        return found
    std = field.std.double()
    each = []
    for scale in SCALES:
        wide, moves = scale * std, std > 0
        z = away / torch.where(moves, wide, 1.0)
        if goal == "CRPS":
            each.append(average(torch.where(moves, wide * crps(z), away.abs())))
        else:
            density = z.square() / 2 + torch.where(moves, wide, 1.0).log()
            each.append(average(torch.where(moves, density, 0.0)) + math.log(2 * math.pi) / 2)
    return torch.stack(each)
