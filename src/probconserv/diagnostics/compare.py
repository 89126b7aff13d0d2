"""Does a law help? Ways to use laws, scored on held-out data beside no law."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..conditioning.condition import AnyLaw
from ..conditioning.draws import FieldDraws
from ..fields.gaussian import Field
from ..fields.state import Prediction, State, as_field
from ..laws.nonlinear import NonlinearLaw
from ..support import checks as check
from ..support.errors import ImplausibleWarning, InputError, ProbConservError
from ..support.tolerances import TINY
from . import scales
from .comparison import SHARES, Comparison, Numbers, combined
from .held_out import HeldOut, as_given, check_laws, dims_of
from .metrics import Scores, _scored
from .ways import Way, names_of, usual_ways

Use: TypeAlias = Way | Callable[..., Any]  # (prediction, *laws) -> field
Score: TypeAlias = Callable[..., Any]  # (field, truth) -> a number for each function
OWN = ("RMSE", "CRPS", "LL", "energy", *SHARES)
NO_LAW = "no law"
PAIRS = 10  # of draws, for the energy score


@torch.no_grad()
def compare(
    prediction: Prediction | State,
    truth: Any,
    *laws: AnyLaw,
    ways: Mapping[str, Use] | None = None,
    calibrated: bool = False,
    where: Any = None,
    scores: Mapping[str, Score] | None = None,
    space_dims: int | None = None,
    samples: int = PAIRS,
    draws: int = 100,
    generator: torch.Generator | None = None,
) -> Comparison:
    """Whether laws help, on predictions whose truth is known: each way beside no law.

    For every function, score and way the difference to no law is taken, and its mean over functions
    has a standard error. Use data that the model was not trained on, from where it will be used:
    a law that helps in one range may harm in another.

    Parameters
    ----------
    prediction : Field, State, or what `as_field` takes, shape (n, ..., T, M)
        What a model predicts of n functions, which are axis 0. With no axis of time give it one of
        length 1.
    truth : array; of a state a dict of arrays
        What came true, in a shape that broadcasts to the prediction.
    *laws : Law, NonlinearLaw or Inequality
        Those to be judged, with values for each function.
    ways : dict of Way or callable
        What is tried, by names; a callable gets the prediction and the laws, and returns a field.
        If it is not given: no law, `project`, `condition` on each law alone and on all, after
        `inflate`, and with another covariance where the prediction has several.
    calibrated : bool
        Whether `condition` on all laws is tried too after the standard deviations of each function
        were multiplied by what the CRPS of the other functions asks for; and that without a law.
    where : array of bool; of a state a dict of arrays
        True where a point counts.
    scores : dict of callable
        More scores, lower is better: each gets the field and the truth, and returns a number for
        each function (and time).
    space_dims : int
        How many last axes are space. If it is not given, as many as linear laws read, else all but
        functions and time.
    samples : int
        How many pairs of draws the energy score is computed from.
    draws : int
        How many draws `condition` makes, where there are inequalities.
    generator : torch.Generator
        The source of the random numbers. If it is not given, one with seed 0.

    Returns
    -------
    Comparison
        `verdict` says it in words, `table` and `difference` in numbers, by time or by groups.

    Raises
    ------
    InputError
        If the prediction has no axis of functions before time and space, `truth` does not fit, or
        a way or score returns something else than a field or numbers of its shape.

    Examples
    --------
    >>> import probconserv as pc
    >>> rng = torch.Generator().manual_seed(0)
    >>> truth = torch.rand(20, 1, 5, generator=rng, dtype=torch.float64)
    >>> lost = 0.3 * torch.rand(20, 1, 1, generator=rng, dtype=torch.float64)
    >>> law = pc.weighted_sum(torch.ones(5), truth.sum(-1))
    >>> compare((truth - lost, 0.04 + 0 * truth), truth, law).difference("condition").answer
    'helps'
    """
    given: Any = as_given(prediction)
    check_laws(laws)
    check.generator(generator)
    data = HeldOut(given, truth, where, dims_of(given, laws, space_dims), "prediction")
    tried = _tried(given, laws, draws, ways)
    if not isinstance(calibrated, bool):
        raise InputError(f"`calibrated` must be True or False; got {calibrated!r:.40}.")
    priors: dict[str, Any] = {}
    if calibrated:
        own_ways = {"calibrate": Way("none"), "calibrate and condition": Way(draws=draws)}
        priors = dict.fromkeys(own_ways, scales.calibrated(given, data))
        tried |= own_ways
    judged = _Judge(data, truth, laws, check.samples(samples, "samples"), _more(scores))
    base: Any = None
    found: dict[str, dict[str, Numbers]] = {}
    moves: dict[str, Numbers] = {}
    failed: dict[str, str] = {}
    notes: dict[str, str] = {}
    for name, way in tried.items():
        rng = torch.Generator(given.device).manual_seed(0) if generator is None else generator
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always", ImplausibleWarning)
                after = _used(name, way, priors.get(name, given), laws, rng)
                found[name] = judged.scores(after, rng)
        except ProbConservError as error:
            own = ways is not None and isinstance(error, InputError)  # the caller's, to mend
            if base is None or own:
                raise
            failed[name] = str(error)
            continue
        base = after if base is None else base
        moves[name] = judged.moves(base, after)
        _tell(name, said, notes)
    several = isinstance(given, State)
    return Comparison(combined(found, given.names, OWN) if several else found, moves, failed, notes)


def _tried(
    given: Any, laws: Sequence[AnyLaw], draws: int, ways: Mapping[str, Use] | None
) -> dict[str, Use]:
    """No law, then the others."""
    if ways is None:
        return {**usual_ways(given, laws, draws)}
    if not isinstance(ways, Mapping):
        raise InputError(f"`ways` must be ways by their names, a dict; got {type(ways).__name__}.")
    if NO_LAW in ways:
        raise InputError(f"`ways`: {NO_LAW!r} is what all are compared with; take another name.")
    return {NO_LAW: Way("none"), **ways}


def _more(scores: Mapping[str, Score] | None) -> Mapping[str, Score]:
    given = {} if scores is None else scores
    if not isinstance(given, Mapping) or not all(map(callable, given.values())):
        raise InputError("`scores` must be functions of the field and the truth, by their names.")
    for name in given:
        if name in OWN or name.startswith("CE "):
            raise InputError(f"`scores`: {name!r} is there already; take another name.")
    return given


def _tell(name: str, said: list[warnings.WarningMessage], notes: dict[str, str]) -> None:
    """Keeps what the library says of a way, and gives all other warnings again."""
    for each in said:
        if issubclass(each.category, ImplausibleWarning):
            notes.setdefault(name, str(each.message))
        else:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def _used(
    name: str, way: Use, given: Field | State, laws: tuple[AnyLaw, ...], rng: torch.Generator
) -> Field | State:
    if isinstance(way, Way):
        return way(given, *laws, generator=rng)
    if not callable(way):
        raise InputError(
            f"`ways`: {name!r} must be a `Way` or a function of a prediction and laws; got "
            f"{type(way).__name__}."
        )
    after = way(given, *laws)
    after = after if isinstance(after, State) else as_field(after)
    if after.names != given.names or [p.shape for p in after.parts] != [
        p.shape for p in given.parts
    ]:
        raise InputError(
            f"`ways`: what {name!r} returns must have the fields and shapes of the prediction, "
            f"{given!r}; got {after!r}."
        )
    return after


class _Judge:
    """Scores of fields against one truth."""

    def __init__(
        self,
        data: HeldOut,
        truth: Any,
        laws: Sequence[AnyLaw],
        samples: int,
        more: Mapping[str, Score],
    ) -> None:
        self.data, self.truth, self.samples, self.more = data, truth, samples, more
        self.laws = dict(zip(names_of(laws), laws, strict=True))
        shapes = [part.shape for part in data.parts.values()]
        times = {shape[1] for shape in shapes}
        self.shape = shapes[0][0], times.pop() if len(times) == 1 else 1

    def scores(self, after: Field | State, rng: torch.Generator) -> dict[str, Numbers]:
        """Each (n, T); of a state whose fields have other times, the means over these."""
        found: dict[str, Numbers] = {}
        for field, part in self.data.beside(after):
            samples = None if isinstance(field, FieldDraws) else self.samples
            each = _scored(
                field, part.truth, part.counts, None, samples, rng, part.dims, refuses=False
            )
            for name, x in _numbers_of(each).items():
                found[f"{part.name}: {name}" if part.name else name] = self._at_times(x)
        for name, law in self.laws.items():
            missed = self._missed(law, after)
            if missed is not None:
                found[f"CE {name}"] = missed
        for name, own in self.more.items():
            found[name] = self._own(name, own(after, self.truth))
        return found

    def _at_times(self, x: Tensor) -> Numbers:  # (n, ..., T) to (n, T)
        x = x.double().reshape(x.shape[0], -1, x.shape[-1]).mean(1)
        x = x if x.shape[1] == self.shape[1] else x.nanmean(1, keepdim=True)
        found: Numbers = x.cpu().numpy()
        return found

    def _own(self, name: str, given: Any) -> Numbers:
        n, times = self.shape
        x = check.as_tensor(f"scores[{name!r}]", given).double().cpu().numpy()
        x = x[:, None] if x.ndim == 1 and len(x) == n else x
        if x.ndim != 2 or x.shape[0] != n or x.shape[1] not in (1, times) or np.isinf(x).any():
            raise InputError(
                f"`scores`: {name!r} must return a number for each of {n} functions, or for each "
                f"function and time, {self.shape}, finite or NaN where none is known; got shape "
                f"{x.shape}."
            )
        return np.broadcast_to(x, self.shape).copy()

    def moves(self, base: Field | State, after: Field | State) -> Numbers:
        """Move times error, the squared move and the squared error, (3, n, T), of all fields."""
        total: Any = 0.0
        several = len(base.parts) > 1
        for before, (one, part) in zip(base.parts, self.data.beside(after), strict=True):
            mean, spread = (x.double() for x in (before.mean, before.std))
            move, error = one.mean.double() - mean, part.truth.double() - mean
            unit = spread.square().mean().clamp_min(TINY) if several else 1.0
            pairs = torch.stack([move * error, move * move, error * error]) / unit
            pairs = torch.where(part.counts, pairs, 0.0).flatten(-part.dims).sum(-1)
            pairs = pairs.reshape(3, part.shape[0], -1, part.shape[1]).sum(2)
            same = part.shape[1] == self.shape[1]
            total = total + (pairs if same else pairs.sum(-1, keepdim=True))
        found: Numbers = total.cpu().numpy()
        return found

    def _missed(self, law: Any, after: Field | State) -> Numbers | None:
        """The size of what the mean misses, (n, T); None of inequalities on points.

        The same at all times where rows are not of times, NaN at times of which a law says nothing.
        """
        own, side = getattr(law, "law", law), getattr(law, "side", 0)
        if not hasattr(own, "residual"):
            return None
        x = own.residual(after if isinstance(after, State) else after.mean).double()
        x = ((x * side).clamp_max(0) if side else x).abs()
        n, times = self.shape
        name = next((n for n in getattr(own, "maps", {}) if n in self.data.parts), None)
        part = self.data.parts[name] if name is not None else next(iter(self.data.parts.values()))
        lead = part.truth.ndim - part.dims - 1  # axes before that of time
        if x.ndim < lead or x.shape[0] != n:
            return np.full(self.shape, float(x.mean()))
        x = x.flatten(0, lead - 1).reshape(n, -1, *x.shape[lead:]).mean(1) if lead > 1 else x
        if x.ndim < 2 or not _has_times(own, lead, part.dims):
            return _wide(x.reshape(n, -1).mean(1, keepdim=True), self.shape)
        x = x.reshape(n, x.shape[1], -1).mean(-1)
        if getattr(own, "times", None) is not None:
            chosen = own._chosen(part.truth.shape)
            x = x.new_full((n, part.shape[1]), math.nan).index_copy(1, chosen, x)
        return _wide(x if x.shape[1] == times else x.nanmean(1, keepdim=True), self.shape)


def _has_times(law: Any, lead: int, dims: int) -> bool:
    """Whether the axis of rows after the first `lead` is that of time."""
    if isinstance(law, NonlinearLaw):
        return law.batch_dims > lead
    return not law.is_initial and not law.map.reads_time and law.space_dims <= dims


def _wide(x: Tensor, shape: tuple[int, int]) -> Numbers:
    found: Numbers = x.expand(shape).cpu().numpy().copy()
    return found


def _numbers_of(each: Scores) -> dict[str, Tensor]:
    found = {name: getattr(each, "MSE" if name == "RMSE" else name) for name in OWN}
    return {**found, "RMSE": found["RMSE"].sqrt()}
