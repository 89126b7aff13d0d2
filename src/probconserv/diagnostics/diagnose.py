"""Is b right? What a prior expects of G u, beside b, row by row.

Two distances decide: G mu - b in the standard deviations that the prior states for G u, and in
those of points that are fully correlated, sum_j |g_j| s_j. No covariance with these spreads makes
G u less certain. A prior of independent points says nothing of errors that neighbours share, though
most models have them: where the right b is often 10 stated standard deviations off, the second
distance says whether shared errors would explain it.
"""

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..conditioning.audit import largest_move
from ..conditioning.condition import AnyLaw, laid_on, solved
from ..conditioning.draws import Draws
from ..conditioning.posterior import FieldPosterior, Posterior, Solved
from ..conditioning.sharded import check_whole
from ..conditioning.unmeasured import Eliminated
from ..fields.covariances import Correlated, Fields, Independent
from ..fields.gaussian import Diagonal, Field
from ..fields.low_rank import LowRank, members_of
from ..fields.mixture import Mixture
from ..fields.state import Prediction, State, as_field, covariance_of, rebuilt
from ..laws.law import Law, Rows, check_laws
from ..support import checks as check
from ..support.errors import FAR, InputError
from ..support.tolerances import UNMET
from .causes import FULL, LEVEL, Cause, Comparison, joint_limit, row_limit
from .diagnosis import Answer, Diagnosis
from .noise import quadrature_noise
from .tangents import Seen, as_seen, plain

SEVERAL = 1.01  # times larger is the std of a row whose points can share errors, if they do
GAIN = 3.0  # times smaller a misfit that no row shows, with a cause that is worth a word
SHOWN = (
    *("value", "residual", "std", "std_full", "z_own", "z_full"),
    *("quadrature_share", "curvature"),
)


@torch.no_grad()
def diagnose(prior: Prediction | State, *laws: AnyLaw) -> Diagnosis:
    """Whether b of the laws is right, judged by what a prior expects.

    Points of infinite variance expect nothing. Rows that read some are combined until they read
    none, and the rows that are left are judged, in their order: fewer by the number of rows that
    it takes to find those points.

    Of a law that is not linear the prior expects what 200 draws of it give: their mean stands for
    G mu, and its spread is that of the law's tangent at the mean and of what the draws add to it.
    A limit of a law (`at_least`, `at_most`) is judged like the law where the prior expects it
    broken, and has z = 0 elsewhere. `bounds` and `monotone` state no b: the laws are judged as
    without them.

    `Diagnosis.verdict` is the answer in words, `Diagnosis.table` has the rows. If the prior is
    right, about one answer in 200 is a false "does not agree"; fewer for `Diagonal`.

    Parameters
    ----------
    prior : Field, State, or what `as_field` takes
        Any field or state before `condition`. A mixture is judged by its mean and covariance.
    *laws : Law, NonlinearLaw or Inequality
        Those that will be conditioned on. The rows of several stand one after the other.

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
    if isinstance(prior, State) and isinstance(prior, Posterior | Draws):
        raise InputError("`prior` must be a state before `condition`: judge all laws at once.")
    prior = prior if isinstance(prior, State) else as_field(prior)
    check_whole("prior", prior)
    given = prior if isinstance(prior, State) else plain(prior)
    if any(field.infinite for field in given.parts):
        return diagnose(*_combined(given, laws))
    stated, members = _stated(given)
    seen, unjudged = as_seen(stated, laws)
    joint = _jointly(given, seen, [one.added for one in seen])
    move, found = largest_move(joint.mean, given.parts), _by_law(stated, seen, joint.way.lead)
    testable = members is None or check.any_of(joint.way.count(joint.lead) < members - 1)
    if testable and (members or any(check.any_of(rows["added"]) for rows in found)):
        pairs = zip(seen, found, strict=True)
        more = [rows["added"] if one.added is None else one.added for one, rows in pairs]
        joint = _jointly(stated, seen, more)
    rows = {name: _side_by_side([each[name] for each in found]) for name in found[0]}
    rank = joint.way.count(joint.lead)
    level = LEVEL / 2 if check.any_of(rank > 1) else LEVEL
    limit = row_limit(rows["residual"].numel(), members, rows["estimated"], level)
    pairs = zip(seen, found, strict=True)
    loose = [_reads_independent(one.law, prior, each["residual"]) for one, each in pairs]
    beyond, sharing, wrong = judged(rows, limit, _side_by_side(loose))
    jointly = check.any_of((joint.square > joint_limit(rank, members, level)) & (rank > 1))
    shared = check.any_of(sharing) and move <= FULL  # some field obeys, all of it within `FULL`
    far = move > FAR or check.any_of(rows["z_own"].abs() > FAR)
    answer = _answer(
        wrong=check.any_of(wrong) or (jointly and not shared),
        doubtful=check.any_of(beyond) or jointly or far,
    )
    causes: tuple[Cause, ...] = ()
    if len(seen) == 1 and answer != "agrees":
        timed = seen[0].timed and limit.ndim > 0
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
        curved=tuple(one.law.label for one in seen if one.is_curved),
        unjudged=unjudged,
    )


def _jointly(prior: Field | State, seen: Sequence[Seen], added: Sequence[Tensor | None]) -> Solved:
    """The prior given all laws, with more noise, and limits where the prior breaks them."""
    pairs = zip(seen, added, strict=True)
    laws = [one.law if more is None else _noisier(one.law, more) for one, more in pairs]
    means = tuple(field._moments()[0].double() for field in prior.parts)
    pairs_ = zip(laid_on(prior, laws), seen, strict=True)
    rows = tuple(_broken(each, one, means) if one.side else each for each, one in pairs_)
    return solved(prior, (), rows, audit=False)


def _broken(rows: Rows, one: Seen, means: Fields) -> Rows:
    """Those rows of a limit that the means break; the others are not there."""
    at = (one.beyond(rows.residual(means)) != 0).double()
    present = at if rows.present is None else at * rows.present
    value, noise = rows.value * at, rows.noise_variance * at
    return Rows(rows.label, rows.maps, value, noise, present, rows.exact)


def _combined(prior: Field | State, laws: Sequence[AnyLaw]) -> tuple[Field, Law]:
    """What laws say of the points that were measured: these, side by side, and a law of them."""
    linear = [law for law in laws if isinstance(law, Law)]
    if len(linear) < len(laws):
        raise InputError(
            "`laws`: with points of infinite variance only linear laws can be judged, which are "
            "combined until they read none. Give these points a finite variance."
        )
    check_laws(linear)
    if members_of(prior.parts):
        raise InputError(
            "`prior` has members beside points of infinite variance: a limit for so few members "
            "is not known of combined rows. Give these points a finite variance."
        )
    way = solved(prior, linear, audit=False).way
    assert isinstance(way, Eliminated)
    mean, rows = way.means(tuple(field.mean.double() for field in prior.parts)), way.rows
    if not check.any_of(rows.map.matrix != 0):
        raise InputError(
            "`laws`: it takes all rows to find the points of infinite variance, so nothing is left "
            "to judge. Give laws that read them more than once, or these points a variance."
        )
    law = Law(rows.label, {"": rows.map}, rows.value, rows.noise_variance)
    if isinstance(way.prior, Independent):
        return Diagonal(mean, way.prior.variance[0]), law
    (factor,), rest = way.prior.directions, way.prior.rest
    return LowRank(mean, factor, 0.0 if rest is None else rest.variance[0]), law


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
    miss, slack = rows["miss"].abs(), rows["slack"]
    beyond = miss > limit * rows["std"] + slack
    sharing = (rows["std_full"] > SEVERAL * rows["std"]) & independent
    return beyond, sharing, beyond & ~(sharing & (miss <= FULL * rows["std_full"] + slack))


def compared(rows: dict[str, Tensor], limit: Tensor, sharing: Tensor, timed: bool) -> Comparison:
    """Where causes are sought: with errors as far shared as the answer allows for."""
    std = torch.where(sharing, rows["std_full"], rows["std"])
    total, limit = rows["value"] + rows["miss"], torch.where(sharing, FULL, limit)
    return Comparison(total, rows["value"], std, rows["slack"], timed, limit)


def _stated(prior: Field | State) -> tuple[Field | State, int | None]:
    """What a prior expects of a new solution, and how many members say so; None if it is known.

    The mean of N members has 1 / N of their variance, and no part of that is chance.
    """
    parts = tuple(
        field._with(factor=field.factor * math.sqrt(1 + 1 / field.count), shrinkage=0.0)
        if isinstance(field, LowRank) and field.count
        else field
        for field in prior.parts
    )
    return rebuilt(prior, parts), members_of(prior.parts)


def _reads_independent(law: Law, prior: Field | State, rows: Tensor) -> Tensor:
    """Whether each of these rows of a law reads a field that says nothing of shared errors."""
    fields = dict(zip(prior.names, prior.parts, strict=True))
    found = any(_is_independent(fields[name]) for name in law._named(prior.names))
    return torch.full_like(rows, found, dtype=torch.bool)


def _is_independent(field: Field) -> bool:
    """Whether a field takes errors of points as independent, which those of models are not."""
    if isinstance(field, Mixture):
        return _is_independent(field.components)
    return isinstance(field.prior if isinstance(field, FieldPosterior) else field, Diagonal)


def _points(prior: Field | State) -> dict[str, Diagonal]:
    """The fields by name, taken as independent."""
    points = {}
    for name, field in zip(prior.names, prior.parts, strict=True):
        mean, variance = field._moments()
        check.finite("mean of the prior", mean)
        check.finite("variance of the prior", variance)
        points[name] = Diagonal._unchecked(mean, variance.clamp_min(0))
    return points


def _by_law(prior: Field | State, seen: Sequence[Seen], lead: int) -> list[dict[str, Tensor]]:
    """What `by_row` says of each law. lead: how many first axes number parts that no row joins."""
    points, rounding = _points(prior), rounding_of(prior.parts)
    covariance = covariance_of(prior).joined(lead)
    return [by_row(one, prior.device, points, covariance, rounding) for one in seen]


def rounding_of(fields: Sequence[Field]) -> float:
    """What rounding may make of a row, as a share of its terms."""
    return max(UNMET, *(100 * torch.finfo(field.dtype).eps for field in fields))


def by_row(
    one: Seen,
    device: torch.device,
    points: dict[str, Diagonal],
    covariance: Independent | Correlated,
    rounding: float,
) -> dict[str, Tensor]:
    """What the prior expects of each row of one law.

    points: the fields by name, taken as independent. covariance: with parts that no row joins, as
    `solve` has it. rounding: as `rounding_of` says.
    """
    law = one.law.to(device)
    spread = {name: field.std for name, field in points.items()}
    residual, noise = law.residual(points), law.noise_variance
    value, miss = one.value.to(device).expand(residual.shape), one.beyond(residual)
    if one.added is None:
        beyond = (_variance_of_rule(law, points, residual) - noise).clamp_min(0)
        added = beyond.nan_to_num(0)  # where the rule is not known
    else:
        beyond, added = torch.zeros_like(residual), one.added
    along, alone = _own_variances(law, tuple(points), covariance)
    own = along + alone + noise + added
    full = law.magnitude(spread) ** 2 + noise + added
    slack = rounding * (law.magnitude(points) + value.abs())
    std, std_full, there = own.sqrt(), full.sqrt(), own > 0
    found = {
        "value": value,
        "residual": residual,
        "miss": miss,
        "std": std,
        "std_full": std_full,
        "z_own": Comparison(value + miss, value, std, slack, False).z,
        "z_full": Comparison(value + miss, value, std_full, slack, False).z,
        "quadrature_share": torch.where(there, beyond / own, 0 * beyond),
        "curvature": torch.where(there & (std > 0), one.bent / std, 0.0),
        "estimated": torch.where(there, along / own, 0.0),
        "added": added,
        "slack": slack,
    }
    return {name: one.shaped(t) for name, t in found.items()}


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
