"""Is b right? What a prior expects of G u, beside b, row by row; and a prior that b fits.

Two distances decide: G mu - b in the standard deviations that the prior states for G u, and in
those of points that are fully correlated, sum_j |g_j| s_j. No covariance with these spreads makes
G u less certain. A prior of independent points says nothing of errors that neighbours share, though
most models have them: where the right b is often 10 stated standard deviations off, the second
distance says whether shared errors would explain it.
"""

import copy
import math
from collections.abc import Sequence
from typing import TypeVar, overload

import torch
from torch import Tensor

from . import _checks as check
from ._audit import largest_move
from ._blocks import root_of
from ._causes import Cause, Comparison
from ._condition import laid_on, solved
from ._dense import Dense
from ._diagnosis import Answer, Diagnosis
from ._draws import StateDraws
from ._errors import FAR, InputError
from ._fields import Diagonal, Field, LowRank
from ._laws import Law, Rows, check_laws
from ._limits import FULL, LEVEL, joint_limit, row_limit
from ._maps import Matrix, Select
from ._mixture import Mixture
from ._noise import quadrature_noise
from ._posterior import Posterior, StatePosterior
from ._rowwise import UNMET
from ._solvers.covariances import Correlated, Independent, expanded, shared_axes
from ._solvers.stages import summed
from ._state import Prediction, State, as_field, covariance_of, rebuilt

Prior = TypeVar("Prior", Diagonal, LowRank, Dense, Mixture, State)
SEVERAL = 1.01  # times larger is the std of a row whose points can share errors, if they do
GAIN = 3.0  # times smaller a misfit that no row shows, with a cause that is worth a word
SHOWN = ("value", "residual", "std", "std_full", "z_own", "z_full", "quadrature_share")


@torch.no_grad()
def diagnose(prior: Prediction | State, *laws: Law) -> Diagnosis:
    """Whether b of the laws is right, judged by what a prior expects.

    `Diagnosis.verdict` is the answer in words, `Diagnosis.table` has the rows. If the prior is
    right, about one answer in 200 at most is a false "does not agree".

    Parameters
    ----------
    prior : Field, State, or what `as_field` takes
        Any field or state before `condition`. A mixture is judged by its mean and covariance.
    *laws : Law
        One or more. The rows of several stand one after the other.

    Returns
    -------
    Diagnosis
        b and the prior side by side, and what would explain a difference.

    Raises
    ------
    InputError
        If there is no law, or a mean or variance of the prior is not finite.

    Examples
    --------
    >>> import probconserv as pc
    >>> x, t = torch.linspace(0, 1, 5).double(), torch.linspace(1, 2, 6).double()
    >>> prior = pc.Diagonal(t[:, None] * (1 + x), 0.0001)
    >>> print(diagnose(prior, pc.integral(x, 1500 * t)).verdict)  # in grams, not in kilograms
    b does not agree with the prior in 6 of 6 rows: b is about 1000 times what the prior says, \
check its units (kg and g, km and m).
    """
    check_laws(laws)
    if isinstance(prior, StatePosterior | StateDraws):
        raise InputError("`prior` must be a state before `condition`: judge all laws at once.")
    prior = prior if isinstance(prior, State) else as_field(prior)
    given = prior if isinstance(prior, State) else _plain(prior)
    stated, members = _stated(given)
    joint = solved(given, laws, audit=False)
    move, found = largest_move(joint.mean, given.parts), _by_law(stated, laws, joint.way.lead)
    testable = members is None or check.any_of(joint.way.count(joint.lead) < members - 1)
    if testable and (members or any(check.any_of(rows["added"]) for rows in found)):
        pairs = zip(laws, found, strict=True)
        joint = solved(stated, [_noisier(law, rows["added"]) for law, rows in pairs], audit=False)
    rows = {name: _side_by_side([each[name] for each in found]) for name in found[0]}
    rank = joint.way.count(joint.lead)
    level = LEVEL / 2 if check.any_of(rank > 1) else LEVEL
    limit = row_limit(rows["residual"].numel(), members, rows["estimated"], level)
    pairs = zip(laws, found, strict=True)
    loose = [_reads_independent(law, prior, each["residual"]) for law, each in pairs]
    beyond, sharing, wrong = judged(rows, limit, _side_by_side(loose))
    jointly = check.any_of((joint.square > joint_limit(rank, members, level)) & (rank > 1))
    shared = check.any_of(sharing) and move <= FULL  # some field obeys, all of it within `FULL`
    far = move > FAR or check.any_of(rows["z_own"].abs() > FAR)
    answer = _answer(
        wrong=check.any_of(wrong) or (jointly and not shared),
        doubtful=check.any_of(beyond) or jointly or far,
    )
    causes: tuple[Cause, ...] = ()
    if len(laws) == 1 and answer != "agrees":
        timed = not laws[0].is_initial and not laws[0].row_names and limit.ndim > 0
        causes = compared(rows, limit, sharing, timed).causes(1 if check.any_of(wrong) else GAIN)
    return Diagnosis(
        answer=answer,
        **{name: rows[name] for name in SHOWN},
        limit=limit,
        wrong=wrong,
        causes=causes,
        mahalanobis=joint.square,
        degrees_of_freedom=rank,
        largest_move=move,
        members=members,
    )


def _answer(wrong: bool, doubtful: bool) -> Answer:
    """wrong: whether nothing explains b. doubtful: whether the prior as it is stated does not."""
    if wrong:
        return "does not agree"
    return "agrees if shared" if doubtful else "agrees"


def judged(
    rows: dict[str, Tensor], limit: Tensor, independent: Tensor | bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Of each row: is it beyond what is stated, could points share errors, does it not agree?

    independent: whether the prior says nothing of shared errors.
    """
    miss, slack = rows["residual"].abs(), rows["slack"]
    beyond = miss > limit * rows["std"] + slack
    sharing = (rows["std_full"] > SEVERAL * rows["std"]) & independent
    return beyond, sharing, beyond & ~(sharing & (miss <= FULL * rows["std_full"] + slack))


def compared(rows: dict[str, Tensor], limit: Tensor, sharing: Tensor, timed: bool) -> Comparison:
    """Where causes are sought: with errors as far shared as the answer allows for."""
    std = torch.where(sharing, rows["std_full"], rows["std"])
    total, limit = rows["value"] + rows["residual"], torch.where(sharing, FULL, limit)
    return Comparison(total, rows["value"], std, rows["slack"], timed, limit)


def _stated(prior: Field | State) -> tuple[Field | State, int | None]:
    """What a prior expects of a new solution, and how many members say so; None if it is known.

    The mean of N members has 1 / N of their variance, and no part of that is chance.
    """
    counts = [_members_of(field) for field in prior.parts]
    if not any(counts):
        return prior, None
    parts = tuple(
        field._with(factor=field.factor * math.sqrt(1 + 1 / count), shrinkage=0.0)
        if count and isinstance(field, LowRank)
        else field
        for field, count in zip(prior.parts, counts, strict=True)
    )
    return rebuilt(prior, parts), min(filter(None, counts))


def _members_of(field: Field) -> int | None:
    made = isinstance(field, LowRank) and field.rounding  # by `from_samples`
    return len(field.factor) if isinstance(field, LowRank) and made else None


def _reads_independent(law: Law, prior: Field | State, rows: Tensor) -> Tensor:
    """Whether each of these rows of a law reads a field that says nothing of shared errors."""
    fields = dict(zip(prior.names, prior.parts, strict=True))
    found = any(_is_independent(fields[name]) for name in law._named(prior.names))
    return torch.full_like(rows, found, dtype=torch.bool)


def _is_independent(field: Field) -> bool:
    """Whether a field takes errors of points as independent, which those of models are not."""
    if isinstance(field, Mixture):
        return _is_independent(field.components)
    return isinstance(field.prior if isinstance(field, Posterior) else field, Diagonal)


def _points(prior: Field | State) -> dict[str, Diagonal]:
    """The fields by name, taken as independent."""
    points = {}
    for name, field in zip(prior.names, prior.parts, strict=True):
        mean, variance = field._moments()
        check.finite("mean of the prior", mean)
        check.finite("variance of the prior", variance)
        points[name] = Diagonal._unchecked(mean, variance.clamp_min(0))
    return points


def _by_law(prior: Field | State, laws: Sequence[Law], lead: int) -> list[dict[str, Tensor]]:
    """What `by_row` says of each law. lead: how many first axes number parts that no row joins."""
    points, rounding = _points(prior), rounding_of(prior.parts)
    covariance = covariance_of(prior).joined(lead)
    return [by_row(law.to(prior.device), points, covariance, rounding) for law in laws]


def rounding_of(fields: Sequence[Field]) -> float:
    """What rounding may make of a row, as a share of its terms."""
    return max(UNMET, *(100 * torch.finfo(field.dtype).eps for field in fields))


def by_row(
    law: Law, points: dict[str, Diagonal], covariance: Independent | Correlated, rounding: float
) -> dict[str, Tensor]:
    """What the prior expects of each row of one law.

    points: the fields by name, taken as independent. covariance: with parts that no row joins, as
    `solve` has it. rounding: as `rounding_of` says.
    """
    spread = {name: field.std for name, field in points.items()}
    total, residual = law.apply(points), law.residual(points)
    noise, rule = law.noise_variance, _variance_of_rule(law, points, residual)
    beyond = (rule - noise).clamp_min(0)  # NaN where the rule is not known
    added = beyond.nan_to_num(0)
    along, alone = _own_variances(law, tuple(points), covariance)
    own = along + alone + noise + added
    full = law.magnitude(spread) ** 2 + noise + added
    value = law.value.expand(total.shape)
    slack = rounding * (law.magnitude(points) + value.abs())
    std, std_full, there = own.sqrt(), full.sqrt(), own > 0
    return {
        "value": value,
        "residual": residual,
        "std": std,
        "std_full": std_full,
        "z_own": Comparison(total, value, std, slack, False).z,
        "z_full": Comparison(total, value, std_full, slack, False).z,
        "quadrature_share": torch.where(there, beyond / own, 0 * beyond),
        "estimated": torch.where(there, along / own, 0.0),
        "added": added,
        "slack": slack,
    }


def _noisier(law: Law, variance: Tensor) -> Law:
    """The law with more noise."""
    other = copy.copy(law)
    other.noise_variance, other.exact = law.noise_variance.to(variance) + variance, False
    return other


def _variance_of_rule(law: Law, points: dict[str, Diagonal], residual: Tensor) -> Tensor:
    """Of the quadrature's error, for each row; NaN where the law does not say its rule."""
    if law.quadrature is None:
        return torch.full_like(residual, torch.nan)
    (name,) = law._named(tuple(points))
    x, rule = law.quadrature
    noise = quadrature_noise(points[name], x.to(points[name].mean), rule)
    return law.at_times(noise, points[name].shape) ** 2


def _own_variances(
    law: Law, names: Sequence[str], covariance: Independent | Correlated
) -> tuple[Tensor, Tensor]:
    """The diagonal of G Sigma G^T, one entry per row: of the directions, and of the rest."""
    if isinstance(covariance, Independent):
        alone = law.squares(dict(zip(names, covariance.variance, strict=True)))
        return torch.zeros_like(alone), alone
    shared = law.apply(dict(zip(names, covariance.directions, strict=True))).square().sum(0)
    if covariance.rest is None:
        return shared, torch.zeros_like(shared)
    return shared, _own_variances(law, names, covariance.rest)[1]


def _side_by_side(each: list[Tensor]) -> Tensor:
    return each[0] if len(each) == 1 else torch.cat([t.flatten() for t in each])


def _plain(field: Field) -> Field:
    """A Diagonal, LowRank or Dense field with the same mean and covariance."""
    if isinstance(field, Diagonal | LowRank | Dense):
        return field
    parts = field.components if isinstance(field, Mixture) else None
    if isinstance(field, Mixture) and isinstance(parts, Diagonal | LowRank):
        mean, weights = field._moments()[0], field._wide(field.log_weights.exp())
        directions, own = weights.sqrt() * (parts.mean - mean), parts.variance
        if isinstance(parts, LowRank):
            each = expanded(parts.factor.double(), parts.event_dims, field.event_dims)
            each, own = (weights.sqrt() * each).flatten(0, 1), parts.rest
            directions = torch.cat([directions, each])
        return LowRank(mean, directions, (weights * own).sum(0), field.event_dims)
    mean, dims = field.mean.double(), max(field.event_dims, 1)
    return Dense(mean, field.covariance().double(), dims)


@overload
def plausible(prior: Prior, *laws: Law) -> Prior: ...
@overload
def plausible(prior: Prediction, *laws: Law) -> Field: ...
def plausible(prior: Prediction | State, *laws: Law) -> Field | State:
    """The prior with its variance widened, for each solution, until b is no surprise.

    The variance is multiplied by::

        k = max(1, mean over rows of (G mu - b)^2 / ((sum_j |g_j| s_j)^2 + sigma^2))

    sum_j abs(g_j) s_j is the standard deviation of G u if all points err together, so k is above 1
    only where no covariance with the same spreads explains b. That is the case where a network is
    sure and wrong, outside of what it was trained on. `condition` the result.

    Parameters
    ----------
    prior : Field, State, or what `as_field` takes
        Any before `condition`, (..., T, space). Each entry of the batch is a solution; all its
        times share one k.
    *laws : Law
        Those that will be conditioned on.

    Returns
    -------
    Field or State
        Of the same kind, about the same mean.

    Raises
    ------
    InputError
        If there is no law, or `prior` is a posterior.

    Examples
    --------
    >>> import probconserv as pc
    >>> prior = pc.Diagonal([[1.0, 1.0]], 0.25)  # a total of 2, give or take 1
    >>> plausible(prior, pc.cells([1.0, 1.0], 4.0)).std  # b is 4
    tensor([[1., 1.]], dtype=torch.float64)
    """
    check_laws(laws)
    given = prior if isinstance(prior, State) else as_field(prior)
    factor = _factor(given, laws)
    return rebuilt(given, tuple(_scaled(field, factor) for field in given.parts))


def _factor(prior: Field | State, laws: Sequence[Law]) -> Tensor:
    """k, (*batch)."""
    means, variances = zip(*(field._moments() for field in prior.parts), strict=True)
    stds, shapes = tuple(map(root_of, variances)), [mean.shape for mean in means]
    rows = laid_on(prior, laws)
    batch = min(shared_axes(shapes), *(_batch_axes(each, shapes) for each in rows))
    total = count = means[0].new_zeros(())
    for each in rows:
        spread = each.entrywise(1).apply(stds).square() + each.noise_variance
        there = spread > 0
        miss = each.residual(means).square() / torch.where(there, spread, 1.0)
        total = total + summed(torch.where(there, miss, 0.0), batch)
        count = count + summed(there.double(), batch)
    return (total / count.clamp_min(1)).clamp_min(1)


def _batch_axes(rows: Rows, shapes: Sequence[Sequence[int]]) -> int:
    """How many axes come before time; a matrix that reads several axes reads time as well.

    So does a budget, whose rows are intervals.
    """
    m = rows.map
    if m.row_names[:1] == ("interval",):
        return rows.places(shapes)
    timed = isinstance(m, Select) and isinstance(m.entries, int)
    timed = timed or (isinstance(m, Matrix) and m.dims > 1)
    return max(rows.places(shapes) - (not timed), 0)


def _scaled(field: Field, factor: Tensor) -> Field:
    """The field with its covariance times a factor (*batch)."""

    def wide(t: Tensor, before: int = 0) -> Tensor:
        return factor[(..., *[None] * (t.ndim - before - factor.ndim))].to(t.dtype)

    if isinstance(field, Mixture):
        return field._with(components=_scaled(field.components, factor[None]))
    if isinstance(field, Diagonal):
        return field._with(variance=field.variance * wide(field.variance))
    if isinstance(field, LowRank):
        directions = field.factor * wide(field.factor, 1).sqrt()
        return field._with(factor=directions, rest=field.rest * wide(field.rest))
    if isinstance(field, Dense):
        matrix = field.covariance()
        return Dense(field.mean, matrix * wide(matrix), field.event_dims)
    raise InputError("`prior` must be a field before `condition`.")
