"""Held-out data: fields of functions on axis 0, the truth, and the points that count."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..conditioning.condition import AnyLaw
from ..fields.gaussian import Field
from ..fields.state import State, as_field
from ..laws.inequalities import Inequality
from ..laws.law import Law
from ..laws.nonlinear import NonlinearLaw
from ..support import checks as check
from ..support.errors import InputError
from .metrics import KNOWN, _by_name


class Part(NamedTuple):
    """One field of a prediction, shape (n, ..., T, *space)."""

    name: str  # "" of a field alone
    dims: int  # axes of space
    truth: Tensor  # in the shape of the field
    counts: Tensor  # the same, bool
    shape: tuple[int, int]  # functions and times


class HeldOut:
    """What fields are compared with: `parts` by name."""

    def __init__(
        self, given: Field | State, truth: Any, where: Any, dims: dict[str, int], what: str
    ) -> None:
        several = isinstance(given, State)
        if min(len(part.shape) for part in given.parts) > 1 and given._free < 1:
            raise InputError(
                f"`{what}`: its errors tie the functions on axis 0 together, so that none is held "
                "out. Say which axes stand for independent entries, as in Ensemble(members, "
                "batch_dims=1) for (members, functions, times, points), or batch_dims=2 for each "
                "time by itself."
            )
        truths = _by_name("truth", truth, given.names) if several else {"": truth}
        some: Any = {"": where}
        if several:
            some = _by_name("where", {} if where is None else where, given.names, every=False)
        self.parts: dict[str, Part] = {}
        for name, field in zip(given.names, given.parts, strict=True):
            own, shape = dims[name], tuple(field.shape)
            if len(shape) < own + 2 or not shape[0]:
                raise InputError(
                    f"`{what}`{f' of {name}' if name else ''} must have axes of functions, times "
                    f"and space, (n, T, ...), the last {own} of which are space; got {shape}. With "
                    "one time give it an axis of length 1, and say `space_dims` if they are others."
                )
            u = check.tensor("truth", truths[name], like=field.mean, of="the field")
            check.broadcasts("truth", u, shape, "the field")
            counts = check.mask(True if some.get(name) is None else some[name]).to(field.device)
            check.broadcasts("where", counts, shape, "the field")
            counts = counts.expand(shape)
            if not bool(counts.flatten(1).any(1).all()):
                raise InputError("`where`: of some function no point counts. Leave it out.")
            times = shape[len(shape) - own - 1]
            self.parts[name] = Part(name, own, u.expand(shape), counts, (shape[0], times))

    def beside(self, after: Field | State) -> Iterator[tuple[Field, Part]]:
        """Fields of the same shapes, each with its truth."""
        return zip(after.parts, self.parts.values(), strict=True)


def as_known(u: Tensor, away: Tensor, dims: int) -> Tensor:
    """Which points are right up to the rounding of the largest value of their time."""
    space = tuple(range(-dims, 0))
    return away.abs() <= KNOWN * torch.finfo(u.dtype).eps * u.abs().amax(space, keepdim=True)


def dims_of(given: Field | State, laws: Sequence[AnyLaw], asked: int | None) -> dict[str, int]:
    """How many last axes of each field are space: as linear laws read, or all but two.

    Laws that read time as well say nothing of it.
    """
    if asked is not None and (not check.is_whole(asked) or asked < 1):
        raise InputError(f"`space_dims` must be a whole number above 0; got {asked!r:.40}.")
    found = {}
    for name, field in zip(given.names, given.parts, strict=True):
        axes, read = len(field.shape), []
        for law in laws:
            own = getattr(law, "law", law)
            if isinstance(own, Law) and (name in own.maps or "" in own.maps or not name):
                read.append(own.space_dims)
        read = [dims for dims in read if 0 < dims < axes - 1]
        found[name] = asked or max(read, default=max(axes - 2, 1))
    return found


def check_laws(laws: Sequence[Any]) -> None:
    """Laws, each an argument of its own."""
    for law in laws:
        if not isinstance(law, Law | NonlinearLaw | Inequality):
            raise InputError(
                "`laws` must be laws such as `integral(x, total)`, each an argument of its own, "
                f"compare(prediction, truth, law, other); got {type(law).__name__}."
            )


def as_given(prediction: Any) -> Field | State:
    return prediction if isinstance(prediction, State) else as_field(prediction)
