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
from ..fields.dense import Dense
from ..fields.gaussian import Diagonal, Field
from ..fields.low_rank import LowRank
from ..fields.state import Prediction, State
from ..laws.law import Law
from ..laws.nonlinear import NonlinearLaw
from ..support import checks as check
from ..support.errors import ImplausibleWarning, InputError, ProbConservError
from .comparison import Difference, difference_of
from .held_out import HeldOut, as_given, check_laws, dims_of
from .scales import SCALES, scored_with
from .ways import Way, has_value, is_exact, is_posterior, names_of

Goal: TypeAlias = Literal["CRPS", "LL", "RMSE"]
Scores: TypeAlias = NDArray[np.float64]  # (candidates, scales, n), lower is better
GOALS = ("CRPS", "LL", "RMSE")
COMMON, NOISES = (0.5, 0.95), (0.5, 1.0, 2.0)
FEW, FEW_DRAWS = (0.25, 0.5, 1.0, 2.0, 4.0), (0.5, 1.0, 2.0)  # where each is a solve of its own
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
    withdrawn : Way or None
        What was chosen first, and then not taken: chosen without each fold it did worse than no law
        on that fold, by more than a standard error. `honest` is its score.
    """

    way: Way
    honest: Difference
    spread: Difference
    scores: dict[str, float]
    failed: dict[str, str]
    withdrawn: Way | None = None

    @property
    def verdict(self) -> str:
        """What was chosen and what it is worth, in words."""
        if self.withdrawn is not None:
            return (
                f"no law: `{self.withdrawn}` did best on all {self.honest.count} functions, but "
                "chosen without some of them it did worse than no law on these."
            )
        if self.way.how == "none" and self.way.scale == 1:
            return (
                f"no law: of {len(self.scores)} ways none is better by more than a standard error "
                f"over {self.honest.count} functions."
            )
        text = str(replace(self.honest, way=str(self.way)))
        if self.way.how != "none" and self.way.scale != 1:
            text += f" Against no law with its own best variance, {self.spread.change}."
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
    standard error over functions; so is another variance. On these functions its mean score is
    never worse than that of no law, and `Choice.honest` says what it is worth on others. Where that
    is worse than no law by more than a standard error, no law is chosen.

    Parameters
    ----------
    prediction : Field, State, or what `as_field` takes, shape (n, ..., T, M)
        What a model predicts of n functions, which are axis 0.
    truth : array; of a state a dict of arrays
        What came true, in a shape that broadcasts to the prediction.
    *laws : Law, NonlinearLaw or Inequality
        Those that may be used, with values for each function.
    score : {"CRPS", "LL", "RMSE"}
        What is made as good as can be. With "RMSE" the variance stays. With "LL" no way is chosen
        that leaves a point no variance.
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
    check.generator(generator)
    check_laws(laws)
    given: Any = as_given(prediction)
    data = HeldOut(given, truth, where, dims_of(given, laws, None), "prediction")
    rng = torch.Generator(given.device).manual_seed(0) if generator is None else generator
    n = next(iter(data.parts.values())).shape[0]
    if not check.is_whole(folds) or folds < 2 or n < 2 * folds:
        raise InputError(
            f"`folds` must be at least 2, with two functions in each; got {folds!r:.20} for {n} "
            "functions. Give more functions, ten for five folds, or fewer folds."
        )
    judged = _Judge(given, data, tuple(laws), score, rng)
    cards = usual_candidates(given, laws, draws) if ways is None else _checked(ways)
    rows, kept, failed = [], [], {}
    for card in cards:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ImplausibleWarning)  # the scores say it
                rows.append(judged.row(card))
            kept.append(card)
        except ProbConservError as error:
            if not kept or (ways is not None and isinstance(error, InputError)):
                raise
            failed[str(card)] = str(error)
    with np.errstate(invalid="ignore", over="ignore"):  # what overflows is not chosen
        table = np.stack(rows)
        return _choice(kept, np.where(np.isnan(table), np.inf, table), failed, score, folds, rng)


def _checked(ways: Any) -> list[Way]:
    if not isinstance(ways, list | tuple) or not all(isinstance(way, Way) for way in ways):
        raise InputError("`ways` must be a list of `Way`, to which `scale` is found.")
    return [Way("none"), *ways]


def usual_candidates(
    prediction: Field | State, laws: Sequence[AnyLaw], draws: int = 100
) -> list[Way]:
    """No law, then those with laws."""
    names = names_of(laws)
    subsets: list[tuple[str, ...]] = [(name,) for name in names]
    subsets += [tuple(names)] * (len(names) > 1)
    by_name = dict(zip(names, laws, strict=True))
    independent = all(isinstance(field, Diagonal) for field in prediction.parts)
    cards, posterior = [Way("none")], is_posterior(prediction)
    for subset in reversed(subsets):
        own = [by_name[name] for name in subset]
        valued = any(has_value(law) for law in own)
        cards.append(Way(laws=subset))
        if posterior:
            continue
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
    chosen, plain = np.empty(n), np.empty(n)
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
    scales = (1.0,) if table.shape[1] == 1 else SCALES
    way = replace(cards[number], scale=cards[number].scale * scales[scale])
    withdrawn = way if honest.gain < -honest.error else None
    means = dict(zip(map(str, cards), table.mean(-1).min(1).tolist(), strict=True))
    return Choice(
        way if withdrawn is None else Way("none"), honest, spread, means, failed, withdrawn
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


class _Judge:
    """Scores of cards on held-out data."""

    def __init__(
        self, given: Any, data: HeldOut, laws: tuple[AnyLaw, ...], goal: str, rng: torch.Generator
    ) -> None:
        self.given, self.data, self.laws, self.goal, self.rng = given, data, laws, goal, rng
        self.units: list[float] = [1.0] * len(data.parts)
        if len(data.parts) > 1 and goal != "LL":  # those of the prediction as it is
            each = self._of_parts(given, (1.0,))
            self.units = [float(x.mean()) or 1.0 for x in each]

    def row(self, card: Way) -> NDArray[np.float64]:
        """With each scale of the standard deviations, (scales, n); infinite where not tried."""
        after = card(self.given, *self.laws, generator=self.rng)
        if self.goal == "RMSE" or self._scales_alike(card, after):
            scales = (1.0,) if self.goal == "RMSE" else SCALES
            return self._total(after, scales)
        found = np.full((len(SCALES), self._total(after, (1.0,)).shape[1]), math.inf)
        draws = any(isinstance(part, FieldDraws) for part in after.parts)
        few = FEW_DRAWS if draws else FEW
        for scale in (1.0,) if is_posterior(self.given) else few:
            one = replace(card, scale=card.scale * scale)
            made = after if scale == 1 else one(self.given, *self.laws, generator=self.rng)
            found[SCALES.index(scale)] = self._total(made, (1.0,))[0]
        return found

    def _scales_alike(self, card: Way, after: Any) -> bool:
        """Whether a prior with k times the standard deviations gives a result with k times them.

        So it is of Gaussian priors and of laws whose noise is none, or goes by the prior.
        """
        gaussian = all(isinstance(part, Diagonal | LowRank | Dense) for part in self.given.parts)
        own = card.chosen(self.laws) if card.how == "condition" else []
        exact = all(isinstance(law, Law | NonlinearLaw) and is_exact(law) for law in own)
        return gaussian and exact and not card.inflated

    def _total(self, after: Any, scales: tuple[float, ...]) -> NDArray[np.float64]:
        pairs = zip(self._of_parts(after, scales), self.units, strict=True)
        total: Any = sum(x / unit for x, unit in pairs)
        scores: NDArray[np.float64] = total.cpu().numpy()
        return scores

    def _of_parts(self, after: Any, scales: tuple[float, ...]) -> list[Tensor]:
        return [scored_with(*pair, self.goal, scales) for pair in self.data.beside(after)]
