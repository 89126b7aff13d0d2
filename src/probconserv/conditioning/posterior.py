"""What `condition` returns: fields given laws, solved once."""

import math
from typing import Any, Self, cast, overload

import torch
from torch import Tensor

from ..fields.covariances import Correlated, Fields, Independent
from ..fields.gaussian import Field, Normals, check_determined, random_normals
from ..fields.low_rank import LowRank
from ..fields.state import Index, State
from ..laws.law import Rows
from ..solvers.estimate import Estimate
from ..solvers.factor import multipliers
from ..solvers.joint import Joint
from ..solvers.shrinkage import shrunk
from ..solvers.stages import minus, summed
from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import DegenerateError, InputError
from ..support.tree import Kept, Node, once
from .audit import exact_rows_hold
from .predictive import given_laws
from .unmeasured import Eliminated, Way

SETTLING = 3  # times that rounding is taken off the exact rows of members
MOST_ROWS = 4096  # of one part, given which members are weighed by a matrix


class Solved(Node):
    """Fields given laws, in float64: what the posterior of a field or a state answers from."""

    def __init__(
        self,
        laws: tuple[Rows, ...],
        mean: Fields,
        way: Way,
        residuals: tuple[Tensor, ...],
        dims: tuple[int, ...],
    ) -> None:
        """residuals: of every stage. dims: last axes of each field that are tied."""
        self.laws, self.mean, self.way, self.dims = laws, mean, way, dims
        self.residuals = residuals

    @property
    def differentiable(self) -> bool:
        return any(x.requires_grad for x in (*self.mean, *self.residuals))

    @property
    def lead(self) -> int:
        return self.mean[0].ndim - self.dims[0]

    @property
    def free(self) -> int:
        """How many first axes can be indexed: `initial` speaks of one entry of its axis."""
        shapes = [m.shape for m in self.mean]
        points = (r.places(shapes) for r in self.laws if r.map.is_points)
        return min([self.lead, *points])

    @property
    def undetermined(self) -> Fields | None:
        """Where the variance is infinite; None where it is so nowhere."""
        way = self.way
        return way.undetermined if isinstance(way, Eliminated) else None

    @property
    def makes_variance(self) -> bool:
        """Whether `variance` is new at every call, so that nobody else holds it."""
        return self.way.makes_variance

    @property
    def has_estimated(self) -> bool:
        """Whether a variance was asked for, and estimated."""
        return self.way.has_estimated

    @property
    def estimate(self) -> tuple[Estimate, ...] | None:
        """How the variance of each field was estimated; None where it is exact."""
        return self.way.estimate

    @property
    def is_iterative(self) -> bool:
        """Whether every draw takes the time of a solve."""
        return self.way.is_iterative

    def members(self) -> Tensor | None:
        """Members, where there is a faster way than that of the engine."""
        return None

    def handed(self, found: Tensor, dtype: torch.dtype) -> Tensor:
        """A copy for a caller, in the dtype of the field."""
        if found.dtype == dtype:
            return found.clone(memory_format=torch.contiguous_format)  # faster than `to`
        return found.to(dtype, memory_format=torch.contiguous_format)

    @property
    def variance(self) -> Fields:
        return self.way.variance if self.makes_variance else self._variance

    @once
    def _variance(self) -> Fields:
        return self.way.variance

    @once
    def square(self) -> Tensor:  # (*lead)
        """(G mu - b)^T S^-1 (G mu - b)."""
        return self.way.square(self.residuals, self.lead)

    @property
    def log_evidence(self) -> Tensor:
        return -0.5 * (self.square + self.way.log_norm(self.lead))

    def draw(self, normals: Normals) -> Fields:
        about = self.way.draw(normals)
        draws = tuple(m + x for m, x in zip(self.mean, about, strict=True))
        return draws if self.way.is_simple else self.way.settle(draws)

    def log_likelihood(self, u: Fields) -> Tensor:  # (*lead)
        """log N(b; G u, sigma^2) of all laws."""
        total: Any = 0.0
        for rows, noise in ((r, r.noise_variance) for r in self.laws):
            if check.concrete(noise) and bool((noise == 0).any()):
                raise DegenerateError(
                    f"`{rows.label}` holds exactly (noise 0), so the field lies on a plane and has "
                    "no joint density. Use `marginal_log_prob`, or give the law noise > 0."
                )
            terms = rows.residual(u) ** 2 / noise + (2 * math.pi * noise).log()
            terms = rows.at_all(terms, self.mean[rows.first].ndim, self.lead)
            total = total - 0.5 * summed(terms, self.lead)
        return total


class Posterior(Kept):
    """A field or a state given laws: what `condition` returns where the result is Gaussian.

    It is a field or a state again, as the prior was, and is indexed, moved, detached, sampled and
    saved without being solved again.

    Attributes
    ----------
    prior : Field or State
        What it was before the laws.

    Examples
    --------
    >>> import probconserv as pc
    >>> state = pc.State(rain=([1.0, 1.0], 1.0), snow=([0.0], 1.0))
    >>> post = pc.condition(state, pc.weighted_sum([1.0, 1.0], 3.0, of="rain"))
    >>> isinstance(post, pc.Posterior), isinstance(post["rain"], pc.Posterior)
    (True, True)
    >>> post.laws
    ('weighted_sum of rain',)
    """

    prior: Field | State
    _solved: Solved

    @property
    def laws(self) -> tuple[str, ...]:
        """The names of the laws that hold."""
        return tuple(rows.label for rows in self._solved.laws)

    @property
    def log_evidence(self) -> Tensor:
        """log N(b; G mu, G Sigma G^T + sigma^2), one value for each independent part."""
        return self._solved.log_evidence


class FieldPosterior(Posterior, Field, noun="Posterior"):
    """The `Posterior` of a field, solved in float64; results come in the dtype of the prior.

    Half precision comes back as float32. `condition` makes it.

    Attributes
    ----------
    prior : Field
        The field before the laws.

    Examples
    --------
    >>> import probconserv as pc
    >>> post = pc.condition(pc.Diagonal([[1.0, 1.0]], 1.0), pc.weighted_sum([1.0, 1.0], 3.0))
    >>> post
    Posterior(shape=(1, 2), event_dims=1, torch.float64, given weighted_sum)
    >>> post.variance
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """

    prior: Field

    def __init__(
        self, prior: Field, solved: Solved, number: int = 0, state: State | None = None
    ) -> None:
        """state: of which `prior` is field `number`."""
        self.prior, self._solved, self._number, self._state = prior, solved, number, state

    @property
    def event_dims(self) -> int:  # type: ignore[override]
        """How many last axes are correlated."""
        return self._solved.dims[self._number]

    @property
    def shape(self) -> torch.Size:
        return self._solved.mean[self._number].shape

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the prior, float32 for half precision."""
        return self.prior.dtype if self.prior.dtype.itemsize >= 4 else torch.float32

    @property
    def device(self) -> torch.device:
        return self._solved.mean[0].device

    @property
    def _free(self) -> int:
        return self._solved.free

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """The mean of each point, which obeys exact laws."""
        return self._solved.handed(self._solved.mean[self._number], self.dtype)

    @property
    def point(self) -> Tensor:
        """The most probable field: the mean."""
        return self.mean

    @property
    def variance(self) -> Tensor:  # type: ignore[override]
        """The variance of each point; see `variance_estimate` for whether it is exact."""
        found = self._solved.variance[self._number]
        new = self._solved.makes_variance
        if new:
            return found.to(self.dtype).contiguous()
        return self._solved.handed(found, self.dtype)

    def _quantiles(self, *shares: float) -> list[Tensor]:
        if not made_of_members(self):
            return super()._quantiles(*shares)
        found = given_laws(self._state or self.prior, self._number, self._solved)
        return found.quantiles(self.mean, shares)

    @property
    def variance_estimate(self) -> Estimate | None:
        """How many solves `variance` was estimated from and how well; None where it is exact.

        Laws for every cell of a large mesh have no exact variance: it would take too long.
        """
        each = self._solved.estimate
        return None if each is None else each[self._number]

    def _moments(self) -> tuple[Tensor, Tensor]:
        solved = self._solved
        return solved.mean[self._number].double(), solved.variance[self._number].double()

    @property
    def undetermined(self) -> Tensor:
        """Where nothing is known: points of infinite variance that no law determines."""
        found = self._solved.undetermined
        if found is None:
            return torch.zeros(self.shape, dtype=torch.bool, device=self.device)
        return found[self._number].clone()

    @property
    def infinite(self) -> bool:
        return self._solved.undetermined is not None and bool(self.undetermined.any())

    @property
    def log_evidence(self) -> Tensor:
        """log N(b; G mu, G Sigma G^T + sigma^2), one value for each independent part.

        With points of infinite variance it is that of the rows combined so that they read none of
        them, with orthonormal coefficients: what the laws say of the other points.
        """
        return self._solved.log_evidence.to(self.dtype)

    def covariance_times(self, v: ArrayLike) -> Tensor:
        v = self._factor_of(v).double()
        more = v.shape[: v.ndim - len(self.shape)]
        fields = [v.new_zeros(()).expand(*more, *m.shape) for m in self._solved.mean]
        fields[self._number] = v
        way = self._solved.way
        found = way.settle(way.times(tuple(fields)), value=False)  # exact rows of it are 0
        return found[self._number].to(self.dtype).contiguous()

    def _draw(self, normals: Normals) -> Tensor:
        check_determined(self, "draws")
        return self._solved.draw(normals)[self._number].contiguous()

    def log_prob(self, u: ArrayLike) -> Tensor:
        """The log of the joint density at `u`, by Bayes: log p(u) + log p(b | u) - log p(b)."""
        u, solved = self._values(u), self._solved
        if len(solved.mean) > 1:
            raise DegenerateError(
                "the density of one field of a state is not known by itself. Use "
                "`marginal_log_prob`."
            )
        if solved.undetermined is not None:
            raise DegenerateError(
                "some points of the prior have infinite variance, so it has no density to start "
                "from. Use `marginal_log_prob`."
            )
        likelihood = solved.log_likelihood((u.double(),))
        prior = shrunk(self.prior, solved.laws)
        if prior.dtype != torch.float64:
            prior = prior._map(lambda t: t.double() if t.is_floating_point() else t)
        before = prior.log_prob(u)
        return (summed(before, solved.lead) + likelihood - solved.log_evidence).to(self.dtype)

    def members(self) -> Tensor:  # (S, *shape)
        """The members of an `Ensemble`, moved so that each obeys exact laws.

        Each is moved by its own residual; with noise the deviations from the mean shrink as the
        covariance does, without random numbers. They do not hold the part of the variance that
        `shrinkage` took as independent, and spread less than `variance` says: for intervals use
        `interval`.
        """
        if (quick := self._solved.members()) is not None:
            return quick
        return self._moved_members()[self._number].to(self.dtype)

    def _moved_members(self) -> Fields:
        """Of all fields of the state that this one is of."""
        return moved_members(members_of_prior(self._state or self.prior), self._solved)

    def __repr__(self) -> str:
        about = ", variance estimated" if self._solved.has_estimated else ""
        return f"{super().__repr__()[:-1]}, given {', '.join(self.laws)}{about})"


def moved_members(u: Fields, solved: Solved) -> Fields:
    """Members of fields, each moved so that it obeys exact laws."""
    laws, way = solved.laws, cast(Any, solved.way)
    if all(rows.exact for rows in laws):
        moved, _ = way.run(u)
    else:
        way, moved = _weighed(laws, way.root, u)
    for _ in range(SETTLING):
        if check.concrete(*moved) and exact_rows_hold(laws, moved):
            break
        moved = way.settle(moved, value=True)
    return cast(Fields, moved)


def members_of_prior(prior: Field | State) -> Fields:
    """The members that a field was made from, or all fields of a state together, in float64."""
    parts = prior.parts
    made = all(isinstance(field, LowRank) and field.count for field in parts)
    if not made or (len(parts) > 1 and not prior.shared):
        raise InputError(
            "`members` are those of an ensemble: condition `Ensemble(members)`, of a state "
            "`Ensemble` of a dict of members. For other fields, `sample` gives draws that obey."
        )
    return tuple(
        field.mean.double() + math.sqrt(len(field.factor) - 1) * field.factor.double()
        for field in cast(Any, parts)
    )


def made_of_members(field: Field) -> bool:
    """Whether a field, or the prior of a posterior, has the covariance of members."""
    prior = field.prior if isinstance(field, FieldPosterior) else field
    return isinstance(prior, LowRank) and prior.count > 0


def _weighed(
    laws: tuple[Rows, ...], root: Independent | Correlated, u: Fields
) -> tuple[Joint, Fields]:
    """Members moved to laws with noise, and the stage that settles the exact ones among them."""
    count = sum(math.prod(rows.row_shape(root.shapes)[root.lead :]) for rows in laws)
    if count > MOST_ROWS:
        raise InputError(
            f"`members` given `noise` takes a matrix of all rows that go together, for up to "
            f"{MOST_ROWS} of them; these laws have {count}. Use `sample`, or let the ensemble tie "
            "fewer axes (`batch_dims`)."
        )
    joint = Joint(laws, root, root, root.lead)
    matrix = joint.gram(root) + joint.noise.diag_embed()
    r = joint.residual(u).movedim(0, -2)  # (*lead, S, K)
    along = multipliers(matrix, joint.factor, joint.noise, r, joint.factor.solve)
    return joint, minus(u, root.times(joint.adjoint(along.movedim(-2, 0))))


class StatePosterior(Posterior, State, noun="Posterior"):
    """The `Posterior` of a state: `post["u"]` is that of a field, `post[i]` of one batch entry.

    `condition` makes it.

    Attributes
    ----------
    names : tuple of str
        The names of the fields.
    parts : tuple of Posterior
        The fields, in the order of their names.
    prior : State
        The state before the laws.

    Examples
    --------
    >>> import probconserv as pc
    >>> state = pc.State(rain=([1.0, 1.0], 1.0), snow=([0.0], 1.0))
    >>> total = pc.linear({"rain": [[1.0, 1.0]], "snow": [[1.0]]}, 5.0)
    >>> pc.condition(state, total).sample(4)["snow"].shape
    torch.Size([4, 1])
    """

    kind: type[FieldPosterior] = FieldPosterior  # of its fields
    prior: State

    def __init__(self, prior: State, solved: Solved) -> None:
        self.names, self.prior, self._solved = prior.names, prior, solved

    @property
    def parts(self) -> tuple[FieldPosterior, ...]:  # type: ignore[override]
        """The fields, in the order of their names."""
        numbered = enumerate(self.prior.parts)
        return tuple(self.kind(field, self._solved, i, self.prior) for i, field in numbered)

    @overload
    def __getitem__(self, key: str) -> FieldPosterior: ...
    @overload
    def __getitem__(self, key: Index) -> Self: ...
    def __getitem__(self, key: str | Index) -> Field | Self:
        return super().__getitem__(key)

    @property
    def _free(self) -> int:
        return self._solved.free

    @property
    def point(self) -> dict[str, Tensor]:
        """The most probable state, by name."""
        return {name: part.point for name, part in zip(self.names, self.parts, strict=True)}

    def members(self) -> dict[str, Tensor]:
        """The members of an `Ensemble` of several fields, each moved to the laws, by name."""
        moved = self.parts[0]._moved_members()
        return {n: u.to(p.dtype) for n, p, u in zip(self.names, self.parts, moved, strict=True)}

    def sample(self, n: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Joint draws of all fields, each of which obeys exact laws.

        Parameters
        ----------
        n : int
            How many.
        generator : torch.Generator
            The source of the random numbers.

        Returns
        -------
        dict of Tensor
            By name, with the draws on a new axis 0.
        """
        for part in self.parts:
            check_determined(part, "draws")
        draws = self._solved.draw(random_normals(n, generator, self.device))
        found = zip(self.names, self.parts, draws, strict=True)
        return {name: u.to(part.dtype).contiguous() for name, part, u in found}
