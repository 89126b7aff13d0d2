"""Members of an ensemble, as a field or as a state."""

from collections.abc import Mapping
from typing import overload

from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError
from ..support.shards import is_sharded, shards_of
from .covariances import shared_axes
from .gaussian import may_wait
from .low_rank import LowRank
from .state import State


@overload
def Ensemble(
    members: Mapping[str, ArrayLike],
    variance: Mapping[str, ArrayLike] | None = None,
    *,
    batch_dims: int = 0,
    shrinkage: float | None = None,
) -> State: ...
@overload
def Ensemble(
    members: ArrayLike,
    variance: ArrayLike = 0.0,
    *,
    batch_dims: int = 0,
    shrinkage: float | None = None,
) -> LowRank: ...
def Ensemble(
    members: ArrayLike | Mapping[str, ArrayLike],
    variance: ArrayLike | Mapping[str, ArrayLike] | None = None,
    *,
    batch_dims: int = 0,
    shrinkage: float | None = None,
) -> LowRank | State:
    """The field with the mean and the covariance of members, plus `variance` at each point.

    A function: it gives a `LowRank`, of a dict a `State`. How the members differ says which points
    err together: all points of all times, unless `batch_dims` says that entries of the first axes
    are independent. Intervals, before and after laws, are those of Student's t for so many members.

    Parameters
    ----------
    members : array, shape (S, ..., T, M), or a dict of arrays
        Members or draws on axis 0, at least two. A dict by names is a state of several fields, with
        the same members in each.
    variance : float or array, or a dict of these
        What the members leave out, such as the average of the predicted variances; 0 if it is not
        given.
    batch_dims : int
        How many axes after that of the members stand for independent entries. 0: a member moves all
        axes together, those of time too. 1 for (S, T, M) or (S, T, Y, X): each time by itself. 1
        for (S, batch, T, M): each entry of the batch by itself; 2: each of its times too.
    shrinkage : float
        The share, from 0 to 1, of the members' variance that is taken as independent from point to
        point, because a few members say little about distant points. If it is not given,
        `condition` finds it: larger, the fewer members there are for each total. That share then
        has one correlation between any two points, as large as the spread of the members' totals
        shows.

    Returns
    -------
    LowRank or State
        One direction for each member; `count` is how many there are. Of a dict a `State` of such
        fields, which share their directions.

    Raises
    ------
    InputError
        If there are fewer than two members, `batch_dims` leaves no axis, or the fields of a dict do
        not share the axes of members and batch.

    Examples
    --------
    >>> Ensemble([[0.0, 1.0], [2.0, 1.0]]).mean
    tensor([1., 1.], dtype=torch.float64)
    >>> Ensemble({"u": [[0.0, 1.0], [2.0, 1.0]], "flux": [[1.0], [3.0]]})["flux"].variance
    tensor([2.], dtype=torch.float64)
    """
    if not isinstance(members, Mapping):
        if isinstance(variance, Mapping):
            raise InputError("`variance` by names goes with `members` by names.")
        own = 0.0 if variance is None else variance
        return _of_one("members", members, own, batch_dims, shrinkage)
    if not members:
        raise InputError("`members` must be arrays, or arrays by the names of their fields.")
    if variance is not None and not isinstance(variance, Mapping):
        raise InputError("`variance` must be variances by the names of their fields.")
    rest = variance or {}
    for name in rest:
        check.choice("variance", name, members)
    fields = {
        name: _of_one(f"members[{name!r}]", given, rest.get(name, 0.0), batch_dims, shrinkage)
        for name, given in members.items()
    }
    if shared_axes([field.factor.shape for field in fields.values()]) <= batch_dims:
        raise InputError(
            f"`members` must have the same members on axis 0 and the same {batch_dims} axes after "
            "it in every field."
        )
    return State(**fields)._with(shared=True)


def _of_one(
    name: str, members: ArrayLike, variance: ArrayLike, batch_dims: int, shrinkage: float | None
) -> LowRank:
    rest = variance
    if isinstance(variance, float | int):  # stays a number: a GPU would be waited for
        (given,) = check.alike(**{name: members})
    else:
        given, rest = check.alike(**{name: members, "variance": variance})
    if is_sharded(given) and 0 in shards_of(name, given).axes:
        raise InputError(
            f"`{name}` is sharded along axis 0, that of the members: each process needs all at "
            "its points. Use .redistribute(placements=[...]) with Shard of another axis."
        )
    if not may_wait(given):
        check.finite(name, given)
    if given.ndim < 2 or given.shape[0] < 2:
        raise InputError(
            f"`{name}` must have at least two members on axis 0 and the field on the axes after "
            f"it, got shape {tuple(given.shape)}."
        )
    dims = given.ndim - 1 - check.whole("batch_dims", batch_dims)
    if not 0 < dims < given.ndim:
        raise InputError(
            f"`batch_dims` must leave the last axis of `{name}`, of shape {tuple(given.shape)}, to "
            f"move together; got {batch_dims}."
        )
    if shrinkage is not None:
        shrinkage = check.between("shrinkage", shrinkage, 0, 1)
    return LowRank._of_members(given, rest, dims, shrinkage)
