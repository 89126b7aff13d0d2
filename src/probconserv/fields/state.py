"""Predictions as fields, fields under names, and their covariance as the engine takes it."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn, Self, TypeAlias, overload

import torch
from torch import Tensor

from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError
from ..support.tree import Kept
from .covariances import Correlated, Independent, expanded, shared_axes
from .dense import Dense
from .gaussian import Diagonal, Field
from .low_rank import LowRank

Distributed: TypeAlias = (
    tuple[ArrayLike, ArrayLike] | list[ArrayLike] | torch.distributions.Distribution
)
Prediction: TypeAlias = Field | Distributed
Index: TypeAlias = int | slice | tuple[int | slice, ...]


def as_field(prediction: Prediction) -> Field:
    """A field from a field, a distribution, or a pair (mean, variance).

    Parameters
    ----------
    prediction : Field, tuple, list or distribution
        A field; a pair of arrays; of `torch.distributions` a Normal, an Independent of it, a
        MultivariateNormal or a LowRankMultivariateNormal; a GPyTorch MultivariateNormal.

    Returns
    -------
    Field
        The field itself where one was given.

    Raises
    ------
    InputError
        If it is something else.

    Examples
    --------
    >>> as_field(torch.distributions.Normal(torch.zeros(2, 3), 2.0)).variance[0, 0]
    tensor(4.)
    """
    if isinstance(prediction, Field):
        return prediction
    if isinstance(prediction, tuple | list) and len(prediction) == 2:
        return Diagonal(*prediction)
    kinds = torch.distributions
    if isinstance(prediction, kinds.Independent):
        return as_field(prediction.base_dist)
    if isinstance(prediction, kinds.Normal):
        return Diagonal(prediction.mean, prediction.variance)
    if isinstance(prediction, kinds.LowRankMultivariateNormal):
        factor = prediction.cov_factor.expand(*prediction.loc.shape, -1).movedim(-1, 0)
        return LowRank(prediction.loc, factor, prediction.cov_diag)
    if isinstance(prediction, kinds.MultivariateNormal):  # those of GPyTorch are such
        if prediction.loc.shape != prediction.mean.shape:
            raise InputError(
                "a GPyTorch multitask prediction is not supported: give one task at a time."
            )
        return Dense(prediction.loc, prediction.covariance_matrix)
    raise InputError(
        f"`prediction` of type {type(prediction).__name__} is not a field. Give a pair (mean, "
        "variance), a Normal, Independent, MultivariateNormal or LowRankMultivariateNormal of "
        "torch.distributions, a GPyTorch MultivariateNormal, or build Diagonal, LowRank or Dense. "
        "For members of an ensemble: Ensemble(members)."
    )


def _part(name: str, prediction: Prediction) -> Field:
    try:
        return as_field(prediction)
    except InputError as error:
        raise InputError(f"`{name}`: {error}") from None


class State(Kept):
    """Several named fields, which may differ in shape, independent of each other or moved together.

    `state["u"]` is a field, `state[i]` the state of one batch entry.

    Parameters
    ----------
    **fields : Field, or what `as_field` takes
        One for each name. They share their first axes.

    Attributes
    ----------
    names : tuple of str
        The names of the fields.
    parts : tuple of Field
        The fields, in the order of their names.
    shared : bool
        Whether the directions of its low-rank fields are the same.

    Raises
    ------
    InputError
        If there is no field, or one is not a `Diagonal`, `LowRank` or `Dense`.

    Examples
    --------
    >>> import probconserv as pc
    >>> state = State(u=Diagonal([0.0, 1.0], 1.0), flux=Diagonal([0.0, 0.0, 0.0], 0.1))
    >>> post = pc.condition(state, pc.weighted_sum([1.0, 1.0], 2.0, of="u"))
    >>> post["u"].mean
    tensor([0.5000, 1.5000], dtype=torch.float64)
    """

    shared: bool = False

    parts: tuple[Field, ...]

    def __init__(self, **fields: Prediction) -> None:
        if not fields:
            raise InputError("`fields`: a state needs at least one, as in State(u=field).")
        self.names = tuple(fields)
        self.parts = tuple(_part(name, field) for name, field in fields.items())
        for name, field in zip(self.names, self.parts, strict=True):
            if not isinstance(field, Diagonal | LowRank | Dense):
                raise InputError(
                    f"`{name}` is a {field.noun}; a state is made of Diagonal, LowRank "
                    "and Dense fields."
                )
            check.same_device(name, field.device, f"`{self.names[0]}`", self.parts[0].device)

    @property
    def fields(self) -> dict[str, Field]:
        """The fields by name."""
        return dict(zip(self.names, self.parts, strict=True))

    def keys(self) -> tuple[str, ...]:
        """The names of the fields."""
        return self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    @overload
    def __getitem__(self, key: str) -> Field: ...
    @overload
    def __getitem__(self, key: Index) -> Self: ...
    def __getitem__(self, key: str | Index) -> Field | Self:
        if isinstance(key, str):
            check.choice("name", key, self.names)
            return self.parts[self.names.index(key)]
        for field in self.parts:
            index = check.index(key, field.shape, self._free)
        return self._at(index)

    @property
    def _free(self) -> int:
        """How many first axes are independent in every field."""
        return min(len(field.shape) - field.event_dims for field in self.parts)

    @property
    def device(self) -> torch.device:
        """The device that the fields are on."""
        return self.parts[0].device

    if not TYPE_CHECKING:  # which knows what a state has

        def __getattr__(self, name: str) -> NoReturn:
            """Says where what a field has is found."""
            text = f"a {self.noun} of several fields has no {name!r}"
            known = {} if name[0] == "_" else self.fields
            for one, field in known.items():
                if name in vars(field) or hasattr(type(field), name):
                    text += f": a field of it has, as in state[{one!r}].{name}"
                    break
            raise AttributeError(f"{text}.", name=name, obj=self)

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={field!r}" for name, field in self.fields.items())
        return f"{self.noun}({inner})"


def rebuilt(prior: Field | State, parts: tuple[Field, ...]) -> Field | State:
    """A field or a state with other parts."""
    return prior._with(parts=parts) if isinstance(prior, State) else parts[0]


def covariance_of(prior: Field | State) -> Independent | Correlated:
    """The covariance of a field or a state, in float64."""
    fields = prior.parts
    tied = [field for field in fields if not isinstance(field, Diagonal)]
    if not tied:
        return Independent(tuple([field.variance.double() for field in fields]))
    lead = min(len(field.shape) - field.event_dims for field in tied)
    lead = min(lead, shared_axes([field.shape for field in fields]))
    own, rests, rounding = zip(*map(_directions_of, fields), strict=True)
    dims = tuple(len(field.shape) - lead for field in fields)
    own = tuple(map(expanded, own, [field.event_dims for field in fields], dims))
    if len(own) > 1 and not prior.shared:
        own = tuple(_padded(own, number) for number in range(len(own)))
    rest = None
    if any(d is not None for d in rests):
        pairs = zip(own, rests, strict=True)
        rest = Independent(tuple(torch.zeros_like(f[0]) if d is None else d for f, d in pairs))
    return Correlated(own, rest, dims, rounding)


def _directions_of(field: Field) -> tuple[Tensor, Tensor | None, tuple[float, Tensor]]:
    """F, D or None for 0, and the rounding of F, as `Correlated` takes them."""
    mean, eps = field.mean.detach().double(), torch.finfo(torch.float64).eps
    share, at_points = 16 * eps, mean.new_zeros(()).expand(mean.shape)
    if isinstance(field, LowRank):
        rest = field.rest.double()
        if field.rounding:
            share, at_points = share + 2 * field.rounding, 2 * field.rounding * mean.abs()
        none = field.bare or not check.any_of(rest)
        factor = field.factor.double().expand(-1, *field.shape)  # entries may share it
        return factor, None if none else rest, (share, at_points)
    if isinstance(field, Dense):
        shared = field._over_event(field._root.movedim(-1, 0), 1)  # by entries of a batch, maybe
        return shared.expand(-1, *field.shape), None, (2 * math.sqrt(eps), at_points)
    return mean[None][:0], field.variance.double(), (share, at_points)


def _padded(own: Sequence[Tensor], at: int) -> Tensor:
    """Directions of one field among those of all: 0 for those of the others."""
    shape = own[at].shape[1:]
    return torch.cat([f if i == at else f.new_zeros(len(f), *shape) for i, f in enumerate(own)])
