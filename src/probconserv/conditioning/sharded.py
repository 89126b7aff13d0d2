"""Fields in shards on several processes, given laws: each solves for the points that it holds.

What rows say of points on several processes is added up (`laws/sharded.py`); then all of these
solve the same small system. Looks at values that decide what is done next are at rows, which are
the same there, or agree over the processes: all go the same way, raise the same error and warn
alike.
"""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar, cast

import torch
from torch import Tensor

from ..fields.gaussian import Diagonal, Field, random_normals
from ..fields.low_rank import LowRank
from ..fields.mixture import Mixture
from ..fields.sharded import ShardNormals
from ..fields.state import State, as_field
from ..laws.law import Law
from ..laws.sharded import cut
from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError
from ..support.shards import Groups, Shards, agreed, generator_of, is_sharded, same_seed, spread
from ..support.tree import Node
from .audit import warn_of_move
from .posterior import FieldPosterior, Posterior, Solved
from .sharded_solve import (
    OWN_PART,
    ShardLayout,
    by_points,
    check_sharded,
    layouts_of,
    lead_of,
    solved_here,
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
    if isinstance(field, Mixture):
        return lies_in_shards(field.components)
    return isinstance(field, tuple | list) and any(map(is_sharded, field))


def check_whole(name: str, field: Any) -> None:
    """Most of what looks at fields takes whole tensors."""
    if lies_in_shards(field):
        raise InputError(
            f"`{name}` is in shards (DTensor), which only `condition` and `project` take. Build it "
            "of whole tensors, `.full_tensor()`."
        )


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
        if self.sources:
            x = _Tied.apply(x, *self.sources)  # type: ignore[no-untyped-call]
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
            _refuse("`interval` of an ensemble, as `quantile`,")
        found = self._local.agreed(lambda: self._own._quantiles(*shares))
        return [self._sharded(x) for x in found]

    def marginal_log_prob(self, u: ArrayLike) -> Tensor:
        if not is_sharded(u) or cast(Tensor, u).shape != self.shape:
            raise InputError("`u` must be a DTensor in the shape of the field.")
        own, here = self._own, self._shards.part(u)
        return self._sharded(self._local.agreed(lambda: own.marginal_log_prob(here.to(own.dtype))))

    def log_prob(self, u: ArrayLike) -> Tensor:
        _refuse("`log_prob`")

    def _draw(self, normals: Any) -> Tensor:
        _refuse("`sample_with`")

    def covariance(self) -> Tensor:
        _refuse("`covariance`")

    def to(self, device: torch.device | str) -> NoReturn:
        _refuse("`to`")

    def save(self, path: Any) -> NoReturn:
        _refuse("`save`")

    def _at(self, index: tuple[Any, ...]) -> NoReturn:
        _refuse("`index`")


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
        _refuse("`to`")

    def save(self, path: Any) -> NoReturn:
        _refuse("`save`")

    def _at(self, index: tuple[Any, ...]) -> NoReturn:
        _refuse("`index`")


def _refuse(what: str) -> NoReturn:
    raise InputError(
        f"{what} is not for posteriors in shards (DTensor). Gather what you need, as in "
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
    if isinstance(field, Mixture):
        raise InputError(f"`field` is a mixture of fields in shards (DTensor). {OWN_PART}")
    before: tuple[Law, ...] = ()
    if isinstance(field, ShardedPosterior) and len(field._solved.mean) > 1:
        raise InputError("`field` is one of a state: condition the state instead.")
    if isinstance(field, ShardedPosterior | ShardedStatePosterior):
        field, before = field.prior, field._given
    else:
        field = field if isinstance(field, State) else as_field(field)
        field = field._map(Tensor.clone)
    given = (*before, *laws)
    shards = layouts_of(field)
    shapes = [one.shape for one in shards]
    rows = tuple(law.to(field.device).on(field.names, shapes) for law in given)
    layout = ShardLayout(shards, lead_of(field, rows, shapes))
    rows = tuple(by_points(one, layout) for one in rows)
    check_sharded(field, rows, layout)
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
        found, far = solved_here(
            prior, tuple(cut(one, shards, layout.lead) for one in rows), layout
        )
    except Exception as error:  # of whatever kind: the others must not wait
        problem = error
    (far,) = agreed(problem, [far], layout.mesh_groups, prior.parts[0].mean)
    warn_of_move(far)
    local = LocalSolved(cast(Solved, found), prior, layout, tuple(sources))
    if isinstance(field, State):
        return ShardedStatePosterior(field, given, local)
    return ShardedPosterior(field, given, local, 0)


def _rebuilt(field: Any, parts: tuple[Field, ...]) -> Any:
    """The field or state of what this process holds."""
    if not isinstance(field, State):
        return parts[0]
    found = State.__new__(State)
    found.__dict__.update({**field.__dict__, "parts": parts})
    return found
