"""Does a law help? Ways to use laws, scored on held-out data beside no law."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..conditioning.condition import AnyLaw
from ..conditioning.draws import FieldDraws
from ..fields.gaussian import Field
from ..fields.state import Prediction, State, as_field
from ..support import checks as check
from ..support.errors import ImplausibleWarning, InputError, ProbConservError
from ..support.tolerances import TINY
from .comparison import SHARES, Comparison, Numbers, combined
from .metrics import Scores, evaluate
from .ways import Way, names_of, usual_ways

Use: TypeAlias = Way | Callable[..., Any]  # (prediction, *laws) -> field
Score: TypeAlias = Callable[..., Any]  # (field, truth) -> a number for each function
OWN = ("RMSE", "CRPS", "LL", "energy", *SHARES)
PAIRS = 10  # of draws, for the energy score


@torch.no_grad()
def compare(
    prediction: Prediction | State,
    truth: Any,
    *laws: AnyLaw,
    ways: Mapping[str, Use] | None = None,
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
    where : array of bool; of a state a dict of arrays
        True where a point counts.
    scores : dict of callable
        More scores, lower is better: each gets the field and the truth, and returns a number for
        each function (and time).
    space_dims : int
        How many last axes are space. If it is not given, as many as the laws read.
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
    given: Any = prediction if isinstance(prediction, State) else as_field(prediction)
    dims = _space_dims(laws) if space_dims is None else space_dims
    for name, field in zip(given.names, given.parts, strict=True):
        if len(field.shape) < dims + 2:
            raise InputError(
                f"`prediction`{f' of {name}' if name else ''} must have axes of functions, times "
                f"and space, (n, T, ...) before {dims} of space; got {tuple(field.shape)}. With "
                "one time give it an axis of length 1."
            )
    check.generator(generator)
    tried: Mapping[str, Use] = usual_ways(given, laws, draws) if ways is None else ways
    tried = {"no law": Way("none"), **tried}
    base: Any = None
    found: dict[str, dict[str, Numbers]] = {}
    moves: dict[str, Numbers] = {}
    failed: dict[str, str] = {}
    notes: dict[str, str] = {}
    judged = _Judge(truth, where, laws, dims, samples, scores or {})
    for name, way in tried.items():
        rng = torch.Generator(given.device).manual_seed(0) if generator is None else generator
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always", ImplausibleWarning)
                after = _used(name, way, given, laws, rng)
                found[name] = judged.scores(after, rng)
        except ProbConservError as error:
            if name == "no law" or isinstance(error, InputError):
                raise
            failed[name] = str(error)
            continue
        base = after if base is None else base
        moves[name] = judged.moves(base, after)
        _tell(name, said, notes)
    scored = combined(found, given.names, OWN) if isinstance(given, State) else found
    return Comparison(scored, moves, failed, notes)


def _tell(name: str, said: list[warnings.WarningMessage], notes: dict[str, str]) -> None:
    """Keeps what the library says of a way, and gives all other warnings again."""
    for each in said:
        if issubclass(each.category, ImplausibleWarning):
            notes.setdefault(name, str(each.message))
        else:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def _space_dims(laws: tuple[AnyLaw, ...]) -> int:
    return max((getattr(law, "space_dims", 1) for law in laws), default=1)


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
        truth: Any,
        where: Any,
        laws: tuple[AnyLaw, ...],
        dims: int,
        samples: int,
        more: Mapping[str, Score],
    ) -> None:
        self.truth, self.where, self.dims, self.samples = truth, where, dims, samples
        self.laws, self.more = dict(zip(names_of(laws), laws, strict=True)), more

    def scores(self, after: Field | State, rng: torch.Generator) -> dict[str, Numbers]:
        """Each (n, T)."""
        costly = any(isinstance(part, FieldDraws) for part in after.parts)
        how: Any = {"samples": None if costly else self.samples, "generator": rng}
        each = evaluate(after, self.truth, space_dims=self.dims, where=self.where, **how)
        found: dict[str, Numbers] = {}
        for field, scored in (each if isinstance(each, dict) else {"": each}).items():
            for score, x in _numbers_of(scored).items():
                found[f"{field}: {score}" if field else score] = x
        shape = next(iter(found.values())).shape
        for name, law in self.laws.items():
            missed = _missed(law, after)
            if missed is not None:
                found[f"CE {name}"] = _over_rows(missed, shape)
        for name, own in self.more.items():
            found[name] = self._own(name, own(after, self.truth), shape)
        return found

    def _own(self, name: str, given: Any, shape: tuple[int, ...]) -> Numbers:
        x = check.as_tensor(f"scores[{name!r}]", given).double().cpu().numpy()
        x = x[:, None] if x.ndim == 1 and len(x) == shape[0] else x
        if x.ndim != 2 or x.shape[0] != shape[0] or x.shape[1] not in (1, shape[1]):
            raise InputError(
                f"`scores`: {name!r} must return a number for each of {shape[0]} functions, or "
                f"for each function and time, {shape}; got shape {x.shape}."
            )
        return np.broadcast_to(x, shape).copy()

    def moves(self, base: Field | State, after: Field | State) -> Numbers:
        """Move times error, the squared move and the squared error, (3, n, T), of all fields."""
        total: Any = 0.0
        for name, before, one in zip(base.names, base.parts, after.parts, strict=True):
            mean, spread = (x.double() for x in (before.mean, before.std))
            u = check.tensor("truth", self._of(self.truth, name), like=before.mean).double()
            move, error = one.mean.double() - mean, u - mean
            unit = spread.square().mean().clamp_min(TINY) if len(base.parts) > 1 else 1.0
            counts = torch.as_tensor(True) if self.where is None else self._counts(name, mean)
            pairs = torch.stack([move * error, move * move, error * error + 0 * move]) / unit
            pairs = torch.where(counts, pairs, 0.0)
            total = total + pairs.flatten(-self.dims).sum(-1).flatten(2).reshape(
                3, mean.shape[0], -1, mean.shape[-self.dims - 1]
            ).sum(2)
        found: Numbers = total.cpu().numpy()
        return found

    def _of(self, given: Any, name: str) -> Any:
        return given[name] if name else given

    def _counts(self, name: str, like: Tensor) -> Tensor:
        own = self.where.get(name) if name else self.where
        return check.mask(torch.tensor(True) if own is None else own).to(like.device)


def _numbers_of(scored: Scores) -> dict[str, Numbers]:
    each = {name: getattr(scored, "MSE" if name == "RMSE" else name) for name in OWN}
    each["RMSE"] = each["RMSE"].sqrt()
    return {name: _at_times(x) for name, x in each.items()}


def _at_times(x: Tensor) -> Numbers:
    """(n, ..., T) to (n, T)."""
    x = x.double()
    x = x.reshape(x.shape[0], -1, x.shape[-1]).mean(1)
    found: Numbers = x.cpu().numpy()
    return found


def _missed(law: Any, after: Field | State) -> Tensor | None:
    """What the mean misses of a law; None of inequalities on points."""
    own = getattr(law, "law", law)
    if not hasattr(own, "residual"):
        return None
    found: Tensor = own.residual(after if isinstance(after, State) else after.mean)
    side = getattr(law, "side", 0)
    return (found * side).clamp_max(0) * side if side else found


def _over_rows(missed: Tensor, shape: tuple[int, ...]) -> Numbers:
    """The size of what rows miss, (n, T); the same for all times where rows are not of times."""
    x = missed.double().abs()
    if tuple(x.shape[:2]) == shape:
        x = x.reshape(*shape, -1).mean(-1)
    elif x.ndim and x.shape[0] == shape[0]:
        x = x.reshape(shape[0], -1).mean(1, keepdim=True).expand(shape)
    else:
        x = x.mean().expand(shape)
    found: Numbers = x.cpu().numpy().copy()
    return found
