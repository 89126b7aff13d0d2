# mypy: disable-error-code="overload-overlap"
r"""Step 2 of the paper: a Gaussian field, given that a law holds, is a Gaussian field.

    u ~ N(mu, Sigma),   b = G u + sigma eps,   S = G Sigma G^T + sigma^2 I

    mean        mu - Sigma G^T S^-1 (G mu - b)
    covariance  Sigma - Sigma G^T S^-1 G Sigma
    sample      y - Sigma G^T S^-1 (G y + sigma eps - b),  y a draw of the field before

A noise sigma of 0 needs no special case. `solvers` has the ways to solve with S; `engine.py` there
picks one.
"""

import warnings
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, TypeVar, cast, overload

import torch
from torch import Tensor

from ..fields.dense import Dense
from ..fields.gaussian import Diagonal, Field, check_measured, random_normals
from ..fields.low_rank import LowRank
from ..fields.mixture import Mixture
from ..fields.state import Distributed, Prediction, State, as_field, covariance_of, rebuilt
from ..laws.inequalities import Inequality, OneSided, limits_of
from ..laws.law import Law, Rows, check_laws
from ..laws.nonlinear import Curved, NonlinearLaw
from ..solvers.engine import solve
from ..solvers.joint import Joint
from ..solvers.shared import Shared
from ..solvers.shrinkage import shrunk
from ..solvers.stages import summed
from ..support import checks as check
from ..support.errors import DegenerateError, ImplausibleWarning, InputError
from .audit import (
    check_met,
    check_weighed,
    plainly_fine,
    settled,
    slack_of,
    warn_if_collapsed,
    warn_if_far,
)
from .draws import Draws, FieldDraws, StateDraws, between
from .few_passes import in_few_passes
from .inequalities.constrained import (
    NOT_TRUNCATED,
    any_truncated,
    condition_within,
    dtype_of,
    mixture_within,
    nearest_within,
)
from .loop.posterior import NonlinearPosterior, NonlinearStatePosterior
from .loop.solved import NonlinearSolved
from .posterior import FieldPosterior, Posterior, Solved, StatePosterior
from .sharded import condition_sharded, lies_in_shards
from .swept import Swept
from .unmeasured import Eliminated, eliminated

Moved = TypeVar("Moved", Diagonal, LowRank, Dense, Mixture)
Single: TypeAlias = Diagonal | LowRank | Dense | FieldPosterior | Distributed
AnyLaw: TypeAlias = Law | NonlinearLaw | Inequality
Generator: TypeAlias = torch.Generator | None


@overload
def condition(field: Mixture, *laws: Law | NonlinearLaw) -> Mixture: ...
@overload
def condition(field: State, *laws: Law) -> StatePosterior: ...
@overload
def condition(field: Single, *laws: Law) -> FieldPosterior: ...
@overload
def condition(field: Field, *laws: Law) -> FieldPosterior | Mixture: ...
@overload
def condition(field: State, *laws: Law | NonlinearLaw) -> NonlinearStatePosterior: ...
@overload
def condition(field: Prediction, *laws: Law | NonlinearLaw) -> NonlinearPosterior: ...
@overload
def condition(field: State, *laws: AnyLaw, draws: Literal[0]) -> NonlinearStatePosterior: ...
@overload
def condition(field: Prediction, *laws: AnyLaw, draws: Literal[0]) -> NonlinearPosterior: ...
@overload
def condition(
    field: State, *laws: AnyLaw, draws: int = 100, generator: Generator = None
) -> StateDraws: ...
@overload
def condition(
    field: Prediction, *laws: AnyLaw, draws: int = 100, generator: Generator = None
) -> FieldDraws: ...
def condition(
    field: Prediction | State, *laws: AnyLaw, draws: int = 100, generator: Generator = None
) -> FieldPosterior | StatePosterior | Mixture | FieldDraws | StateDraws:
    """The field given that the laws hold, with the axes it had: Eq. (8) of the paper.

    The prior is N(mu, Sigma) and the laws say G u = b up to noise sigma. With
    S = G Sigma G^T + sigma^2 I::

        mean        mu - Sigma G^T S^-1 (G mu - b)
        covariance  Sigma - Sigma G^T S^-1 G Sigma

    Parameters
    ----------
    field : Field, State, or what `as_field` takes
        The prior. In a `Mixture` every component is conditioned, and its weight is multiplied by
        its evidence (of laws that are not linear, that of their tangents at the component's point).
        A posterior is conditioned again with all laws on its prior, so that two steps
        are the same as one.
    *laws : Law, NonlinearLaw or Inequality
        One or more, in any order. Those made by `nonlinear` need not be linear. With `bounds` or
        `monotone` among them the result is known by draws.
    draws : int
        How many draws, if there are inequalities; at least 2. 0: none now; what comes back is a
        `Posterior` about the most probable field that obeys, with what is at a bound held there.
    generator : torch.Generator
        The source of their random numbers.

    Returns
    -------
    Posterior
        Of a field a field, of a `State` a state; of a `Mixture` a `Mixture`. If a law is not
        linear, its draws each obey, and the rest is Gaussian about the most probable field. With
        inequalities a `Draws`: each draw of the prior and of the noise is moved to the nearest
        field, in the norm of Sigma^-1, that obeys the laws and the inequalities. `point` is the
        mean, moved in the same way; for a mixture, it is the weighted mean of the points of its
        components.

    Raises
    ------
    InfeasibleError
        If exact rows contradict each other or the inequalities, or nothing is left to move.
    InputError
        If a law does not fit the field, or the kinds of field and laws do not go together.

    Warns
    -----
    ImplausibleWarning
        If a point moves by more than 10 of its standard deviations. If of a mixture fewer than 2
        components, or than a tenth of them, still count (`Mixture.effective_sample_size`) and more
        did before; of two components, if one is left with less than about 5 %.

    Examples
    --------
    >>> import probconserv as pc
    >>> prior = pc.Diagonal([[0.0, 1.0, 1.0]], 1.0)
    >>> law = pc.integral([0.0, 1.0, 2.0], 2.0)
    >>> post = pc.condition(prior, law)
    >>> post.mean
    tensor([[0.1667, 1.3333, 1.1667]], dtype=torch.float64)
    >>> law.residual(post)
    tensor([0.], dtype=torch.float64)
    """
    quick = in_few_passes(field, laws)
    if quick is not None:
        check.generator(generator)
        return quick
    linear, curved, inequalities = _kinds(laws)
    if lies_in_shards(field):
        return cast(Any, condition_sharded(field, linear, (*curved, *inequalities)))
    if torch.compiler.is_dynamo_compiling() and (curved or inequalities or _looks(field)):
        outside: Any = torch.compiler.disable(condition)  # of what is compiled
        return outside(field, *laws, draws=draws, generator=generator)
    check.generator(generator)
    field = field if isinstance(field, State) else as_field(field)
    sided = any(one.side for one in inequalities)
    point_only = check.is_whole(draws) and draws == 0
    if inequalities and not curved and not sided and not point_only:
        return _condition_within(field, linear, inequalities, draws, generator)
    if isinstance(field, Mixture) and not inequalities:
        return _condition_mixture(field, (*linear, *for_each(curved)))
    if isinstance(field, Mixture) and not point_only:
        given = for_each(curved), for_each(inequalities)
        return _mixture_curved(field, linear, *given, draws, generator)
    if inequalities and not point_only:
        _check_draws(draws)
    prior, rows, known = _given(field)
    if curved or known or inequalities:
        rows = (*rows, *laid_on(prior, linear))
        found_ = _condition_curved(prior, rows, known, curved, inequalities)
        return found_.from_draws(draws, generator) if inequalities and not point_only else found_
    found = solved(prior, linear, rows)
    return (
        StatePosterior(prior, found) if isinstance(prior, State) else FieldPosterior(prior, found)
    )


def _kinds(
    laws: Sequence[Any],
) -> tuple[tuple[Law, ...], tuple[NonlinearLaw, ...], tuple[Inequality, ...]]:
    """Linear laws, those that are not, and inequalities."""
    found: dict[str, list[Any]] = {"linear": [], "nonlinear": [], "inequality": []}
    for law in laws:
        found[getattr(law, "kind", "linear")].append(law)
    linear, curved, inequalities = map(tuple, found.values())
    if linear or not laws:
        check_laws(linear)
    return linear, curved, inequalities


def _looks(field: Any) -> bool:
    """Whether a field was given laws that are not linear, which are met by looking at values."""
    field = field.components if isinstance(field, Mixture) else field
    return isinstance(field, NonlinearPosterior | NonlinearStatePosterior)


def _given(field: Field | State) -> tuple[Any, tuple[Rows, ...], tuple[Curved, ...]]:
    """A field or a state, of its own memory, and the laws that were laid on it before."""
    if isinstance(field, FieldPosterior) and len(field._solved.mean) > 1:
        raise InputError("`field` is one of a state: condition the state instead.")
    if isinstance(field, NonlinearPosterior | NonlinearStatePosterior):
        if field._solved.low:
            raise InputError(AGAIN)
        return field.prior, field._solved.rows, field._solved.curved
    if isinstance(field, Posterior):
        if isinstance(field._solved, Swept):
            field._solved.check_unchanged()
        return field.prior, field._solved.laws, ()
    if isinstance(field, Draws):
        raise InputError(
            "`field` is known by draws, without a covariance. Condition the field before on all "
            "laws at once, or build Ensemble(field.draws)."
        )
    if isinstance(field, Mixture):
        raise InputError(
            "`field`: a mixture takes inequalities with draws. Leave out `draws=0`, or condition "
            "`field.components`."
        )
    compiling = torch.compiler.is_compiling()  # nothing is changed in place there
    return field if compiling else field._map(Tensor.clone), (), ()


def laid_on(prior: Field | State, laws: Sequence[Law]) -> tuple[Rows, ...]:
    """The rows of the laws on the fields of a prior."""
    shapes, device = [field.shape for field in prior.parts], prior.device
    return tuple([law.to(device).on(prior.names, shapes) for law in laws])


def _condition_curved(
    prior: Any,
    rows: tuple[Rows, ...],
    known: tuple[Curved, ...],
    laws: tuple[NonlinearLaw, ...],
    inequalities: tuple[Inequality, ...] = (),
) -> NonlinearPosterior | NonlinearStatePosterior:
    """Laws that are not linear, known before and new, beside the rows of linear ones."""
    if any_truncated(inequalities):
        raise InputError(NOT_TRUNCATED)
    means = tuple(each.mean.double() for each in prior.parts)
    if not check.concrete(*means, *(t for law in laws for t in (law.value, law.noise))):
        raise InputError(
            "`laws` that are not linear are met by steps that look at values: not inside "
            "`torch.func` transforms, nor exported. Give the fields a batch axis instead."
        )
    shapes, dtypes = [u.shape for u in means], [dtype_of(each) for each in prior.parts]
    device = means[0].device
    limits = limits_of(inequalities, prior.names, shapes, dtypes, device) if inequalities else ()
    curved = (*known, *(law.on(prior.names, means) for law in laws))
    for one in (cast(OneSided, one) for one in inequalities if one.side):
        linear = one.law.kind == "linear"
        more: Any = laid_on(prior, [one.law])[0] if linear else one.law.on(prior.names, means)
        more.side = one.side
        if linear:
            rows = (*rows, more)
        else:
            curved = (*curved, more)
    found = NonlinearSolved(prior, rows, curved, limits)
    warn_if_far(None, found.mean, prior.parts)
    kind = NonlinearStatePosterior if isinstance(prior, State) else NonlinearPosterior
    return kind(prior, found)


def for_each(given: Sequence[Any]) -> tuple[Any, ...]:
    """Laws that are not linear and inequalities of each component of a mixture, on axis 0."""
    found = []
    for one in given:
        if isinstance(one, OneSided):
            one = OneSided(for_each([one.law])[0], one.side)
        elif getattr(one, "kind", "") == "nonlinear":
            dims = one.batch_dims + 1
            one = NonlinearLaw(one.function, one.value, one.noise, dims, one.of, one.label)
        found.append(one)
    return tuple(found)


def _mixture_curved(
    field: Mixture,
    linear: tuple[Law, ...],
    curved: tuple[NonlinearLaw, ...],
    inequalities: tuple[Inequality, ...],
    draws: int,
    generator: Generator,
) -> FieldDraws:
    """A mixture given laws, and inequalities of which some or the laws are not linear, as draws.

    Weights are those that the laws give; the inequalities move draws and change no weight.
    """
    _check_draws(draws)
    laws: tuple[Law | NonlinearLaw, ...] = (*linear, *curved)
    mixture = _condition_mixture(field, laws) if laws else field
    prior, rows, known = _given(mixture.components)
    parts: Any = _condition_curved(prior, rows, known, (), inequalities)
    mixture = mixture._with(components=parts)
    picked = cast(NonlinearPosterior, mixture._picked(draws, generator))
    drawn, redrawn = picked._solved.drawn(random_normals(1, generator, field.device))
    found = picked._known_by(drawn[0][0])
    point = between(mixture.mean.double(), mixture.components.mean).to(mixture.dtype)
    found.event_dims, found.point = mixture.event_dims, point
    found.laws, found.redrawn = parts.laws, redrawn
    return found


def _check_draws(draws: int) -> None:
    if check.samples(draws, "draws") < 2:
        raise InputError(f"`draws` must be at least 2, or 0; got {draws}: a variance takes two.")


def _condition_within(
    field: Field | State,
    laws: tuple[Law, ...],
    inequalities: tuple[Inequality, ...],
    draws: int,
    generator: Generator,
) -> FieldDraws | StateDraws:
    """The field given laws and inequalities, as draws."""
    if isinstance(field, Mixture) and _looks(field):
        return _mixture_curved(field, laws, (), inequalities, draws, generator)
    if _looks(field):
        prior, rows, known = _given(field)
        rows = (*rows, *laid_on(prior, laws))
        return _condition_curved(prior, rows, known, (), inequalities).from_draws(draws, generator)
    _check_draws(draws)
    if isinstance(field, Mixture):
        mixture = _condition_mixture(field, laws) if laws else field
        return mixture_within(mixture, inequalities, int(draws), generator)
    prior, rows, _ = _given(field)
    return condition_within(prior, rows, laws, inequalities, int(draws), generator)


AGAIN = (
    "`field` was conditioned within inequalities, with laws that are not linear or without draws. "
    "Condition the field before on all laws and inequalities at once."
)


def solved(
    prior: Field | State, laws: Sequence[Law], before: tuple[Rows, ...] = (), audit: bool = True
) -> Solved:
    """Fields given laws, beside rows that were laid on them before."""
    rows = (*before, *laid_on(prior, laws))
    prior = shrunk(prior, rows)
    fields = prior.parts
    endless = [field for field in fields if field.infinite]
    way = (eliminated if endless else solve)(rows, covariance_of(prior), slack_of(fields, rows))
    means = tuple([field.mean.double() for field in fields])
    mean, residuals = way.run(means)
    looks, holds = audit and check.concrete(*mean), True
    fine = looks and plainly_fine(way, rows, mean, residuals)
    if not fine:
        mean, holds = settled(way, mean, rows)
    dims = tuple([u.ndim - way.lead for u in means])
    found = Solved(rows, mean, way, tuple(residuals), dims)
    if looks and not fine:
        _look_at(found, fields, holds)
    return found


def _look_at(found: Solved, prior: tuple[Field, ...], holds: bool = False) -> None:
    """Refuses what the laws and the prior do not allow. holds: whether exact rows are known to."""
    way = found.way
    if not holds:
        before = tuple(field.mean.double() for field in prior)
        before = way.sizes(before) if isinstance(way, Eliminated) else before
        check_met(found.laws, found.mean, before, way.root, slack_of(prior, found.laws))
    check_weighed(found.laws, found.mean, way, found.residuals)
    costly = way.is_banded or way.is_iterative
    warn_if_far(None if costly else found.square, found.mean, prior)


def audit(post: Posterior) -> None:
    """Checks a posterior that was made in compiled code or inside `torch.vmap`.

    There `condition` cannot look at values, so it neither checks that exact rows hold nor warns.
    Elsewhere it does both itself.

    Parameters
    ----------
    post : Posterior
        What `condition` returned, for linear laws.

    Raises
    ------
    InfeasibleError
        If exact rows do not hold.
    InputError
        If `post` is something else, or one field of a state.

    Warns
    -----
    ImplausibleWarning
        If a point moves by more than 10 of its standard deviations.

    Examples
    --------
    >>> import probconserv as pc
    >>> pc.audit(pc.condition(pc.Diagonal([1.0, 1.0], 1.0), pc.weighted_sum([1.0, 1.0], 2.0)))
    """
    if isinstance(post, Draws):
        raise InputError("`post` is known by draws: each was looked at when it was made.")
    if not isinstance(post, Posterior):
        raise InputError(f"`post` must come from `condition`; got {type(post).__name__}.")
    if lies_in_shards(post):
        raise InputError("`post` is in shards (DTensor): it was looked at when it was made.")
    if isinstance(post, FieldPosterior) and len(post._solved.mean) > 1:
        raise InputError("`post` is one field of a state: audit the state instead.")
    if isinstance(post._solved, NonlinearSolved) and post._solved.low:
        raise InputError("`post` is within inequalities: it was looked at when it was made.")
    _look_at(post._solved, post.prior.parts)


@overload
def project(field: Moved, *laws: AnyLaw) -> Moved: ...
@overload
def project(field: State, *laws: AnyLaw) -> State: ...
@overload
def project(field: Prediction, *laws: AnyLaw) -> Field: ...
def project(field: Prediction | State, *laws: AnyLaw) -> Field | State:
    """The field with its mean moved to the nearest one that obeys the laws: HardC-ANP.

    The mean is `condition` with Sigma = I::

        mu - G^T (G G^T)^-1 (G mu - b)

    The covariance stays as it is, so samples do not conserve.

    Parameters
    ----------
    field : Field, State, or what `as_field` takes
        Any field or state before `condition`. All fields of a state move alike, so their units
        decide which moves most.
    *laws : Law, NonlinearLaw or Inequality
        One or more, without noise. Gradients go through all of them.

    Returns
    -------
    Field or State
        Of the same kind.

    Raises
    ------
    InputError
        If a law has noise.
    InfeasibleError
        As `condition` does.

    Examples
    --------
    >>> import probconserv as pc
    >>> pc.project(pc.Diagonal([1.0, 2.0], 0.1), pc.weighted_sum([1.0, 1.0], 4.0)).mean
    tensor([1.5000, 2.5000], dtype=torch.float64)
    """
    for law in laws:
        noise = getattr(law, "noise", None)
        if noise is not None and check.concrete(noise) and bool((noise > 0).any()):
            raise InputError(
                f"`laws`: `project` takes exact ones, but `{law.label}` has noise. "
                "Use `condition`, which weighs noise against variance."
            )
    field = field if isinstance(field, State) else as_field(field)
    check_measured(
        field.parts,
        "field",
        "`project` does not see: it moves all points alike",
        "Use `condition`, which moves points as their variances say.",
    )
    if isinstance(field, Mixture):
        return field._with(components=project(field.components, *for_each(laws)))
    means = _nearest(field.names, [part.mean for part in field.parts], laws)
    pairs = zip(field.parts, means, strict=True)
    return rebuilt(field, tuple(part._with_mean(mean) for part, mean in pairs))


def _nearest(names: tuple[str, ...], means: list[Tensor], laws: tuple[AnyLaw, ...]) -> list[Tensor]:
    """The nearest fields that obey the laws."""
    linear, curved, inequalities = _kinds(laws)
    if torch.compiler.is_dynamo_compiling() and (curved or inequalities):
        outside: Any = torch.compiler.disable(_nearest)
        return cast(list[Tensor], outside(names, means, laws))
    sided = any(one.side for one in inequalities)
    if inequalities and not curved and not sided:
        return nearest_within(names, means, linear, inequalities)
    units = [Diagonal._unchecked(mean, torch.ones_like(mean)) for mean in means]
    prior: Any = units[0] if names == ("",) else State(**dict(zip(names, units, strict=True)))
    if torch.compiler.is_compiling():  # nothing warns there
        return [part.mean for part in condition(prior, *linear).parts]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImplausibleWarning)
        if curved or sided:
            found = _condition_curved(prior, laid_on(prior, linear), (), curved, inequalities)
            return [part.mean for part in found.parts]
        return [part.mean for part in condition(prior, *linear).parts]


def _condition_mixture(field: Mixture, laws: tuple[Law | NonlinearLaw, ...]) -> Mixture:
    """p(z | b) is proportional to p(z) p(b | z), with what was known before taken off."""
    components = cast(FieldPosterior, condition(cast(Any, field.components), *laws))
    gained = _comparable(components._solved)
    if isinstance(field.components, FieldPosterior):
        known = _comparable(field.components._solved)
        gained = gained - summed(known, gained.ndim)
    missing = field.event_dims - components.event_dims
    if missing < 0:
        raise InputError(
            f"`event_dims`: weights per time ({field.event_dims}) need components whose times are "
            f"independent, but these are joint over {components.event_dims} axes. "
            f"Use Mixture(..., event_dims={components.event_dims})."
        )
    found = field._reweighted(components, summed(gained, gained.ndim - missing))
    warn_if_collapsed(field, found)
    return found


def _comparable(found: Solved) -> Tensor:  # (*lead)
    """The log evidences of components, as densities of the same rows.

    Components may keep different rows of those that follow from each other. Densities of two such
    choices differ by a factor that depends on the rows alone; the first component gives it.
    """
    evidence, chain = found.log_evidence, cast(Any, found.way)
    chain = chain.chain if isinstance(chain, Shared) else chain
    for stage in chain.stages if check.concrete(evidence) and evidence.ndim else ():
        kept = ~stage.dropped
        if not bool((kept != kept[:1]).any()):
            continue
        if not isinstance(stage, Joint) or bool((kept.sum(-1) != kept[:1].sum(-1)).any()):
            raise DegenerateError(
                "some components of the mixture have no variance left for a row of the laws and "
                "others have, so their evidences cannot be compared. Give the components variance, "
                "or the laws `noise` > 0."
            )
        first = (stage.gram(stage.prior) + stage.noise.diag_embed())[:1]
        both = kept[..., None, :] & kept[..., :, None]
        some = torch.where(both, first, 0.0) + (~kept).double().diag_embed()
        root = torch.linalg.cholesky_ex(some).L.diagonal(dim1=-2, dim2=-1)
        size = 2 * root.log().sum(-1)
        evidence = evidence + 0.5 * summed(size - size[:1], evidence.ndim)
    return evidence
