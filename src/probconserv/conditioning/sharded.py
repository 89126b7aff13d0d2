"""Fields in shards on several processes, given laws: each solves for the points that it holds.

What rows say of points on several processes is added up (`laws/sharded.py`); then all of these
solve the same small system. Looks at values that decide what is done next are at rows, which are
the same there, or agree over the processes: all go the same way, raise the same error and warn
alike.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar, cast

import torch
from torch import Tensor

from ..fields.covariances import Correlated, Independent
from ..fields.gaussian import Diagonal, Field, LowRank, random_normals
from ..fields.sharded import ShardNormals, spread_covariance
from ..fields.state import State, as_field, covariance_of
from ..laws.law import Law, Rows
from ..laws.maps import Known
from ..laws.sharded import cut
from ..solvers.engine import free_axes, solve
from ..solvers.shrinkage import shrunk
from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import FAR, InfeasibleError, InputError
from ..support.shards import (
    Groups,
    Shards,
    agreed,
    generator_of,
    groups_of,
    is_sharded,
    most_over,
    once,
    same_seed,
    shards_of,
    size_of,
    spread,
)
from ..support.tree import Node
from .audit import NOT_WEIGHED, check_met, check_weighed, largest_move, settled, warn_of_move
from .posterior import FieldPosterior, Posterior, Solved
from .unmeasured import eliminated

MOST_NUMBERS = 1 << 27  # rows times points of a process: 1 GiB
OWN_PART = (
    "Condition what each process holds, `.to_local()`, where no law ties shards together; or the "
    "whole, `.full_tensor()`."
)
Found = TypeVar("Found")


def lies_in_shards(field: Any) -> bool:
    """Whether a field, a state, or a pair of arrays is made of DTensors."""
    if isinstance(field, ShardedPosterior | ShardedStatePosterior):
        return True
    if isinstance(field, Diagonal | LowRank):
        return is_sharded(field.mean)
    if isinstance(field, State) and not isinstance(field, Posterior):
        return any(map(lies_in_shards, field.parts))
    return isinstance(field, tuple | list) and any(map(is_sharded, field))


class ShardLayout(Node):
    """How the fields lie on a mesh of devices, and how many first axes number the parts."""

    def __init__(self, shards: Sequence[Shards], lead: int) -> None:
        self.shards, self.lead = shards, lead

    @property
    def mesh_groups(self) -> Groups:
        return groups_of(self.shards[0].mesh)

    @property
    def active(self) -> Groups:
        """Over which some field is sharded: these processes have different parts."""
        pairs = enumerate(zip(*(one.axes for one in self.shards), strict=True))
        return tuple(self.mesh_groups[i] for i, axes in pairs if any(a is not None for a in axes))

    @property
    def tied(self) -> Groups:
        """Over which the points of one part are sharded, of any field."""
        own = {id(g): g for one in self.shards for g in one.groups(self.lead)}
        return tuple(own.values())

    def copied(self, shards: Shards) -> Groups:
        """Over which other tensors are sharded, and this one is repeated."""
        own = shards.groups()
        return tuple(group for group in self.active if not any(group is g for g in own))

    def whole(self, shards: Shards, x: Tensor) -> Tensor:
        """The DTensor of what is here."""
        return shards.whole(once(x, self.copied(shards)))


class _Tied(torch.autograd.Function):
    """As it is; others get a gradient of 0, so that all processes add up the same gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *others: Tensor) -> Tensor:
        ctx.save_for_backward(*others)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, ...]:
        return g, *map(torch.zeros_like, ctx.saved_tensors)


class LocalSolved(Node):
    """What one process has of fields given laws."""

    def __init__(
        self, solved: Solved, prior: Any, layout: ShardLayout, sources: tuple[Tensor, ...]
    ) -> None:
        """sources: tensors of which all processes have the same, and add up the gradients."""
        self.solved, self.prior, self.layout, self.sources = solved, prior, layout, sources

    def part(self, number: int) -> FieldPosterior:
        state = self.prior if isinstance(self.prior, State) else None
        return FieldPosterior(self.prior.parts[number], self.solved, number, state)

    def whole(self, x: Tensor, shards: Shards) -> Tensor:
        x = _Tied.apply(x, *self.sources) if self.sources else x  # type: ignore[no-untyped-call]
        return self.layout.whole(shards, x)

    def agreed(self, work: Callable[[], Found]) -> Found:
        """Work that may fail on some processes: then all raise the same error."""
        problem, found = None, None
        try:
            found = work()
        except Exception as error:
            problem = error
        agreed(problem, (), self.layout.mesh_groups, self.solved.mean[0])
        return cast(Found, found)

    def draws(self, n: int, generator: torch.Generator | None) -> tuple[Tensor, ...]:
        check.samples(n)
        check.generator(generator)
        layout, like = self.layout, self.solved.mean[0]
        seed = same_seed(generator, layout.mesh_groups, like)
        if layout.tied:
            normals: Any = ShardNormals(n, seed, layout.shards, layout.lead, like)
        else:
            own = generator_of(seed, layout.shards[0].place(), like=like)
            normals = random_normals(n, own, like.device)
        parts = [self.part(i) for i in range(len(self.solved.mean))]
        if len(parts) == 1:
            return (parts[0]._draw(normals).to(parts[0].dtype),)
        drawn = self.solved.draw(normals)
        return tuple(u.to(part.dtype) for u, part in zip(drawn, parts, strict=True))


class ShardedPosterior(Posterior, Field, noun="Posterior"):
    """The `Posterior` of a field in shards: what it gives lies on the processes as its prior does.

    Every process must ask for the same, in the same order. `condition` makes it.
    """

    prior: Field

    def __init__(
        self, prior: Field, given: tuple[Law, ...], local: LocalSolved, number: int
    ) -> None:
        self.prior, self._given, self._local, self._number = prior, given, local, number

    @property
    def _solved(self) -> Solved:  # type: ignore[override]
        return self._local.solved

    @property
    def _own(self) -> FieldPosterior:
        return self._local.part(self._number)

    @property
    def _shards(self) -> Shards:
        return self._local.layout.shards[self._number]

    def _sharded(self, x: Tensor) -> Tensor:
        return self._local.whole(x, self._shards)

    @property
    def event_dims(self) -> int:  # type: ignore[override]
        """How many last axes are correlated."""
        return self._own.event_dims

    @property
    def shape(self) -> torch.Size:
        return self.prior.shape

    @property
    def dtype(self) -> torch.dtype:
        return self._own.dtype

    @property
    def device(self) -> torch.device:
        return self._own.device

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """The mean of each point, which obeys exact laws."""
        return self._sharded(self._own.mean)

    @property
    def point(self) -> Tensor:
        """The most probable field: the mean."""
        return self.mean

    @property
    def variance(self) -> Tensor:  # type: ignore[override]
        """The variance of each point."""
        return self._sharded(self._own.variance)

    @property
    def std(self) -> Tensor:
        return self._sharded(self._own.std)

    @property
    def log_evidence(self) -> Tensor:
        """log N(b; G mu, G Sigma G^T + sigma^2), one value for each independent part."""
        return self._local.whole(self._own.log_evidence, self._shards.before(self._solved.lead))

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Joint draws, on a new axis 0.

        The generator of the first process counts; the numbers hang on how many processes there are.
        """
        draws = self._local.agreed(lambda: self._local.draws(n, generator))
        return self._sharded(draws[self._number])

    def members(self) -> Tensor:  # (S, *shape)
        """The members of an `Ensemble`, moved so that each obeys exact laws."""
        return self._sharded(self._local.agreed(lambda: self._own.members()))

    def covariance_times(self, v: ArrayLike) -> Tensor:
        more = len(getattr(v, "shape", ())) - len(self.shape)
        if not is_sharded(v) or more < 0:
            raise InputError("`v` must be a DTensor in the shape of the field.")
        shards = self._shards
        return self._sharded(self._own.covariance_times(shards.part(v, more)))

    def _quantiles(self, *shares: float) -> list[Tensor]:
        if self._local.layout.tied and isinstance(self.prior, LowRank) and self.prior.count:
            _refuse("interval` of an ensemble, or `quantile")
        found = self._local.agreed(lambda: self._own._quantiles(*shares))
        return [self._sharded(x) for x in found]

    def marginal_log_prob(self, u: ArrayLike) -> Tensor:
        if not is_sharded(u) or cast(Tensor, u).shape != self.shape:
            raise InputError("`u` must be a DTensor in the shape of the field.")
        own, here = self._own, self._shards.part(u)
        return self._sharded(self._local.agreed(lambda: own.marginal_log_prob(here.to(own.dtype))))

    def log_prob(self, u: ArrayLike) -> Tensor:
        _refuse("log_prob")

    def _draw(self, normals: Any) -> Tensor:
        _refuse("sample_with")

    def covariance(self) -> Tensor:
        _refuse("covariance")

    def to(self, device: torch.device | str) -> NoReturn:
        _refuse("to")

    def save(self, path: Any) -> NoReturn:
        _refuse("save")

    def _at(self, index: tuple[Any, ...]) -> NoReturn:
        _refuse("index")


class ShardedStatePosterior(Posterior, State, noun="Posterior"):
    """The `Posterior` of a state in shards; `condition` makes it."""

    prior: State

    def __init__(self, prior: State, given: tuple[Law, ...], local: LocalSolved) -> None:
        self.names, self.prior, self._given, self._local = prior.names, prior, given, local

    @property
    def _solved(self) -> Solved:  # type: ignore[override]
        return self._local.solved

    @property
    def parts(self) -> tuple[ShardedPosterior, ...]:  # type: ignore[override]
        """The fields, in the order of their names."""
        pairs = enumerate(self.prior.parts)
        return tuple(ShardedPosterior(f, self._given, self._local, i) for i, f in pairs)

    @property
    def log_evidence(self) -> Tensor:
        return self.parts[0].log_evidence

    def sample(self, n: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Joint draws of all fields, each of which obeys exact laws."""
        draws = self._local.agreed(lambda: self._local.draws(n, generator))
        found = zip(self.names, self.parts, draws, strict=True)
        return {name: part._sharded(u) for name, part, u in found}

    def to(self, device: torch.device | str) -> NoReturn:
        _refuse("to")

    def save(self, path: Any) -> NoReturn:
        _refuse("save")

    def _at(self, index: tuple[Any, ...]) -> NoReturn:
        _refuse("index")


def _refuse(what: str) -> NoReturn:
    raise InputError(
        f"`{what}` is not for posteriors in shards (DTensor). Gather what you need, as in "
        "`post.mean.full_tensor()`, or condition a field of whole tensors."
    )


def condition_sharded(
    field: Any, laws: Sequence[Law], others: Sequence[Any]
) -> ShardedPosterior | ShardedStatePosterior:
    """Fields in shards given linear laws. others: laws of other kinds, which are refused."""
    if others:
        raise InputError(
            "`laws`: fields in shards (DTensor) take linear laws, not inequalities or laws that "
            f"are not linear. {OWN_PART}"
        )
    before: tuple[Law, ...] = ()
    if isinstance(field, ShardedPosterior) and len(field._solved.mean) > 1:
        raise InputError("`field` is one of a state: condition the state instead.")
    if isinstance(field, ShardedPosterior | ShardedStatePosterior):
        field, before = field.prior, field._given
    else:
        field = field if isinstance(field, State) else as_field(field)
        field = field._map(Tensor.clone)
    given = (*before, *laws)
    shards = _shards_of(field)
    shapes = [one.shape for one in shards]
    rows = tuple(law.to(field.device).on(field.names, shapes) for law in given)
    layout = ShardLayout(shards, _lead(field, rows, shapes))
    rows = tuple(_by_points(one, layout) for one in rows)
    _check(field, rows, layout)
    sources: list[Tensor] = []

    def common(t: Tensor, groups: Groups) -> Tensor:
        found = spread(t, groups)
        sources.extend([found] * (found is not t))
        return found

    def here(number: int, part: Field) -> Field:
        one = shards[number]
        copied = layout.copied(one)
        return part._change(lambda t, more: common(one.part(t, more or 0), copied))

    prior = _rebuilt(field, tuple(here(i, part) for i, part in enumerate(field.parts)))
    rows = tuple(one._map(lambda t: common(t, layout.active)) for one in rows)
    problem, found, far = None, None, 0.0
    try:
        found, far = _solved(prior, tuple(cut(one, shards, layout.lead) for one in rows), layout)
    except Exception as error:  # of whatever kind: the others must not wait
        problem = error
    (far,) = agreed(problem, [far], layout.mesh_groups, prior.parts[0].mean)
    warn_of_move(far)
    local = LocalSolved(cast(Solved, found), prior, layout, tuple(sources))
    if isinstance(field, State):
        return ShardedStatePosterior(field, given, local)
    return ShardedPosterior(field, given, local, 0)


def _shards_of(field: Field | State) -> list[Shards]:
    found = []
    for name, part in zip(field.names, field.parts, strict=True):
        what = f"`{name}`" if name else "`field`"
        if not isinstance(part, Diagonal | LowRank):
            raise InputError(
                f"{what} is a {part.noun}; in shards (DTensor) fields are Diagonal or LowRank. "
                f"{OWN_PART}"
            )
        if not is_sharded(part.mean):
            raise InputError(
                f"{what} is made of plain tensors, but others of DTensors. Use `distribute_tensor` "
                "for its mean and variance, on the same mesh; Replicate() is as good as Shard(i)."
            )
        found.append(shards_of(name or "mean", part.mean))
        if found[-1].mesh != found[0].mesh:
            raise InputError(f"{what} lies on another mesh of devices than the first field.")
    return found


def _lead(field: Any, rows: Sequence[Rows], shapes: Sequence[Sequence[int]]) -> int:
    """How many first axes number parts that neither laws nor directions tie together."""
    tied = [len(f.shape) - f.event_dims for f in field.parts if isinstance(f, LowRank)]
    return min([*tied, free_axes(rows, shapes)])


def _by_points(rows: Rows, layout: ShardLayout) -> Rows:
    """Values at the ends of an axis, or at one entry of it, as values at all of its points.

    Where that axis is sharded, and numbers parts: then each process has its own points.
    """
    shapes, lead = [one.shape for one in layout.shards], layout.lead
    places = rows.places(shapes)
    cut = {axis for axis in layout.shards[rows.first].axes if axis is not None and axis >= places}
    if not rows.map.is_points or places >= lead or not (cut or layout.tied):
        return rows
    found = rows.over(shapes, lead)
    maps = tuple(None if m is None else Known(m.weights) for m in cast(Any, found.maps))
    return found._with(maps=maps, rounding=rows.rounding)


def _check(field: Any, rows: Sequence[Rows], layout: ShardLayout) -> None:
    """What cannot be done in shards is refused; all processes see the same."""
    first, *others = [one.before(layout.lead).axes for one in layout.shards]
    if any(axes != first for axes in others):
        raise InputError(
            "`field`: the fields of a state must be sharded alike along the axes of batch and time "
            "that they share. Use .redistribute(placements=[...])."
        )
    if not layout.tied:
        return
    if any(part.infinite for part in field.parts):
        raise InputError(
            "`variance` is infinite at some points, and laws or directions tie points on several "
            f"processes. Shard the axes of batch or time instead. {OWN_PART}"
        )
    shapes = [one.shape for one in layout.shards]
    alone = len(rows) == 1 and all(m is None or m.is_disjoint for m in rows[0].maps)
    count = sum(math.prod(one.row_shape(shapes)[layout.lead :]) for one in rows)
    parts = max(map(math.prod, shapes)) // size_of(layout.active)
    if not alone and count * max(count, parts) > MOST_NUMBERS:
        raise InputError(
            f"`laws` have {count} rows for points on several processes, too many for a dense matrix "
            f"beside {parts} points. Shard the axes of batch or time instead, or give fewer rows."
        )


def _rebuilt(field: Any, parts: tuple[Field, ...]) -> Any:
    """The field or state of what this process holds."""
    if not isinstance(field, State):
        return parts[0]
    found = State.__new__(State)
    found.__dict__.update({**field.__dict__, "parts": parts})
    return found


def _solved(prior: Any, rows: tuple[Rows, ...], layout: ShardLayout) -> tuple[Solved, float]:
    """Fields given laws; and how far they move, in standard deviations, if that may be far."""
    prior = shrunk(prior, rows)
    means = tuple(field.mean.double() for field in prior.parts)
    covariance: Independent | Correlated = covariance_of(prior)
    if layout.tied:
        own = isinstance(covariance, Correlated) and covariance.rest is not None
        rest = bool(most_over([own], layout.tied, means[0])[0])
        covariance = spread_covariance(covariance, layout.shards, layout.lead, rest)
    slack = 16 * max(
        [torch.finfo(field.dtype).eps for field in prior.parts] + [one.rounding for one in rows]
    )
    endless = any(field.infinite for field in prior.parts)
    way: Any = (eliminated if endless else solve)(rows, covariance, slack)
    mean, residuals = way.run(means)
    mean, holds = settled(way, mean, rows)
    dims = tuple(u.ndim - way.lead for u in means)
    found = Solved(rows, mean, way, tuple(residuals), dims)
    with torch.no_grad():
        return found, _looked_at(found, prior.parts, holds, slack, layout.tied)


def _looked_at(
    found: Solved, prior: Sequence[Field], holds: bool, slack: float, tied: Groups
) -> float:
    """Refuses what the laws and the prior do not allow, as `condition` does."""
    way: Any = found.way
    before = tuple(field.mean.double() for field in prior)
    square = None if way.is_banded or way.is_iterative else found.square
    near = square is not None and (not square.numel() or float(square.max()) <= FAR**2)
    if near and holds and way.is_simple and all(rows.exact for rows in found.laws):
        return 0.0
    if not holds:
        before = way.sizes(before) if hasattr(way, "sizes") else before
        check_met(found.laws, found.mean, before, way.root, slack)
    wrong = not all(math.isfinite(x.sum()) or bool(x.isfinite().all()) for x in found.mean)
    if most_over([wrong], tied, found.mean[0])[0]:
        raise InfeasibleError(NOT_WEIGHED)
    check_weighed(found.laws, found.mean, way, found.residuals)
    return 0.0 if near else largest_move(found.mean, prior)
