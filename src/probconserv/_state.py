"""Several fields at once, under names; and the covariance of any fields, as the engine takes it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Self, TypeAlias, overload

import torch
from torch import Tensor

from . import _checks as check
from ._checks import ArrayLike
from ._convert import Prediction, as_field
from ._covariances import Correlated, Independent, shared_axes
from ._dense import Dense
from ._errors import InputError
from ._fields import Diagonal, Field, LowRank
from ._tree import Kept

Index: TypeAlias = int | slice | tuple[int | slice, ...]


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
    >>> post = pc.condition(state, pc.cells([1.0, 1.0], 2.0, of="u"))
    >>> post["u"].mean
    tensor([0.5000, 1.5000], dtype=torch.float64)
    """

    shared: bool = False

    parts: tuple[Field, ...]

    def __init__(self, **fields: Prediction) -> None:
        if not fields:
            raise InputError("`fields`: a state needs at least one, as in State(u=field).")
        self.names = tuple(fields)
        self.parts = tuple(as_field(field) for field in fields.values())
        for name, field in zip(self.names, self.parts, strict=True):
            if not isinstance(field, Diagonal | LowRank | Dense):
                raise InputError(
                    f"`{name}` is a {type(field).__name__}; a state is made of Diagonal, LowRank "
                    "and Dense fields."
                )
            check.same_device(name, field.device, f"`{self.names[0]}`", self.parts[0].device)

    @classmethod
    def from_samples(
        cls,
        samples: Mapping[str, ArrayLike],
        variance: Mapping[str, ArrayLike] | None = None,
        axes: int = 0,
        shrinkage: float | None = None,
    ) -> "State":
        """A state whose fields are moved together, as the samples move them.

        Parameters
        ----------
        samples : dict of arrays
            By name, ``(S, *batch, *own axes)`` each, with the same samples on axis 0.
        variance : dict of floats or arrays
            By name, what the samples leave out; 0 where it is not given.
        axes : int
            How many axes after that of the samples are a batch, independent entries.
        shrinkage : float
            As in `LowRank.from_samples`.

        Returns
        -------
        State
            Its fields are `LowRank`, and share their directions.

        Raises
        ------
        InputError
            If the fields do not share axis 0 and the batch axes, or `axes` leaves a field none.

        Examples
        --------
        >>> state = State.from_samples({"u": [[0.0, 1.0], [2.0, 1.0]], "flux": [[1.0], [3.0]]})
        >>> state["flux"].variance
        tensor([2.], dtype=torch.float64)
        """
        if not isinstance(samples, Mapping) or not samples:
            raise InputError("`samples` must be arrays by the names of their fields.")
        if variance is not None and not isinstance(variance, Mapping):
            raise InputError("`variance` must be variances by the names of their fields.")
        own = variance or {}
        for name in own:
            check.choice("variance", name, samples)
        fields = {}
        for name, given in samples.items():
            array = check.as_tensor(f"samples[{name!r}]", given)
            dims = array.ndim - 1 - check.whole("axes", axes)
            if dims < 1:
                raise InputError(f"`axes` leaves no axis of `{name}`, of shape {array.shape}.")
            fields[name] = LowRank.from_samples(array, own.get(name, 0.0), dims, shrinkage)
        if shared_axes([field.factor.shape for field in fields.values()]) <= axes:
            raise InputError(
                f"`samples` must have the same samples on axis 0 and the same {axes} axes after it "
                "in every field."
            )
        return cls(**fields)._with(shared=True)

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

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={field!r}" for name, field in self.fields.items())
        return f"{type(self).__name__}({inner})"


def covariance_of(prior: Field | State) -> Independent | Correlated:
    """The covariance of a field or a state, in float64."""
    fields = prior.parts
    tied = [field for field in fields if not isinstance(field, Diagonal)]
    if not tied:
        return Independent(tuple([field.variance.double() for field in fields]))
    lead = min(len(field.shape) - field.event_dims for field in tied)
    lead = min(lead, shared_axes([field.shape for field in fields]))
    each = [_covariance_of_one(field).joined(lead) for field in fields]
    if len(each) == 1:
        return each[0]
    own = [one.directions[0] for one in each]
    directions = own if prior.shared else [_padded(own, i) for i in range(len(own))]
    rests = [
        f.new_zeros(()).expand(f.shape[1:]) if one.rest is None else one.rest.variance[0]
        for f, one in zip(own, each, strict=True)
    ]
    rest = None if all(one.rest is None for one in each) else Independent(tuple(rests))
    dims, rounding = zip(*((one.dims[0], one._rounding[0]) for one in each), strict=True)
    return Correlated(tuple(directions), rest, dims, rounding)


def _covariance_of_one(field: Field) -> Correlated:
    mean, eps = field.mean.detach().double(), torch.finfo(torch.float64).eps
    rest, share, at_points = None, 16 * eps, mean.new_zeros(()).expand(mean.shape)
    if isinstance(field, LowRank):
        directions, rest = field.factor.double(), field.rest.double()
        rest = None if field.bare or not check.any_of(rest) else rest
        if field.rounding:
            share, at_points = share + 2 * field.rounding, 2 * field.rounding * mean.abs()
    elif isinstance(field, Dense):
        root, share = field._root, 2 * math.sqrt(eps)
        directions = root.movedim(-1, 0).reshape(root.shape[-1], *field.shape)
    else:
        directions, rest = mean[None][:0], field.variance.double()
    own = None if rest is None else Independent((rest,))
    return Correlated((directions,), own, (field.event_dims,), ((share, at_points),))


def _padded(own: Sequence[Tensor], at: int) -> Tensor:
    """Directions of one field among those of all: 0 for those of the others."""
    shape = own[at].shape[1:]
    return torch.cat([f if i == at else f.new_zeros(len(f), *shape) for i, f in enumerate(own)])
