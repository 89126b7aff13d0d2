"""The truth of forecasts: the entries of a file at their places and times, in their unit."""

import numpy as np
import xarray as xr

from ..support.errors import InputError
from ._attributes import (
    Array,
    conversion,
    decoded,
    entry,
    holds_dates,
    scale,
    seconds,
    shown,
    units,
)
from ._conventions import LONGITUDE, angle
from ._law import find, match, same_places
from ._time import is_lead

GIVE = "Give the truth at the places and times of the forecasts."


def truth_of(
    truth: xr.Dataset | xr.DataArray, like: xr.DataArray, member: str | None
) -> tuple[xr.Variable, tuple[str, ...]]:
    """What came true of a variable, along its dimensions but that of members; and remarks.

    Entries are found by coordinates. Where the truth lacks the dimension of lead times, they are
    those at the start of each forecast plus its lead time.
    """
    if not isinstance(truth, xr.Dataset | xr.DataArray):
        raise InputError(f"`truth` must be a dataset or an array; got {type(truth).__name__}.")
    if member is not None:
        like = like.isel({member: 0}, drop=True)
    found = truth if isinstance(truth, xr.DataArray) else find(truth, str(like.name), "truth")
    found = _at_valid_times(decoded(found), like)
    one = [dim for dim, n in found.sizes.items() if dim not in like.dims and n == 1]
    found = found.squeeze(one, drop=True)
    for dim in [dim for dim in like.dims if dim not in found.dims]:
        raise InputError(f"`truth` of `{like.name}` has no dimension {dim!r}. {GIVE}")
    for dim in [str(dim) for dim in like.dims if dim in found.coords and dim in like.coords]:
        entries = _entries(like[dim], found[dim], f"`{like.name}` has")
        found = found if entries is None else found.isel({dim: entries})
    match(found, like, "truth")
    own, wanted = found.attrs.get("units"), like.attrs.get("units")
    how = conversion(f"truth {like.name}", own, wanted, f"`{like.name}`")
    values = found.variable.astype(float)
    return values if how.factor == 1 else values * how.factor, how.remarks


def _at_valid_times(found: xr.DataArray, like: xr.DataArray) -> xr.DataArray:
    """The truth along starts and lead times, where it has one axis of dates for both."""
    leads = [str(d) for d in like.dims if d not in found.dims and d in like.coords]
    leads = [dim for dim in leads if is_lead(like, dim)]
    starts, dates = (
        [str(d) for d in each.dims if d in each.coords and holds_dates(each[d])]
        for each in (like, found)
    )
    if (len(leads), len(starts), len(dates)) != (1, 1, 1):
        return found
    (lead,), (start,), (times,) = leads, starts, dates
    factor = scale(like[lead], "s") if like[lead].dtype.kind in "iuf" else None
    passed = np.rint(1000 * seconds(like[lead], None, factor or 1.0)).astype("timedelta64[ms]")
    begun = like[start].values[:, None]
    valid = begun + (passed.astype(object) if begun.dtype.kind == "O" else passed)
    moments = xr.DataArray(valid.ravel(), dims=times, name=times)
    entries = _entries(moments, found[times], f"a forecast of `{like.name}` needs")
    entries = np.arange(valid.size) if entries is None else entries
    at = {times: xr.Variable((start, lead), entries.reshape(valid.shape))}
    picked = found.drop_vars(times).isel(at)
    return picked.assign_coords({dim: like[dim] for dim in (start, lead)})


def _entries(ours: xr.DataArray, theirs: xr.DataArray, what: str) -> Array | None:
    """Where the truth has each of our places; None: one by one."""
    wanted, known = ours.values, theirs.values
    if wanted.shape == known.shape and same_places(wanted, known).all():
        return None
    if {wanted.dtype.kind, known.dtype.kind} <= set("iuf"):
        order = np.argsort(known)
        _check_once(theirs, np.diff(known[order]) == 0, order)
        half = (known[order][1:] + known[order][:-1]) / 2
        found = order[np.searchsorted(half, wanted)]
        there = same_places(known[found], wanted)
    else:
        index = theirs.to_index()
        _check_once(theirs, index.duplicated(), np.arange(known.size))
        found = index.get_indexer(ours.to_index())
        there = found >= 0
    if not there.all():
        first, last = shown(known.min()), f"{shown(known.max())} {units(theirs)}".rstrip()
        turned = " Longitudes may count from elsewhere: sort them anew, assign_coords and sortby."
        raise InputError(
            f"`truth` has no {shown(wanted[~there][0])} along {theirs.name}, which {what}: it goes "
            f"from {first} to {last}, {known.size} entries. {GIVE}"
            + turned
            * (angle(ours) == LONGITUDE)
        )
    return found


def _check_once(theirs: xr.DataArray, again: Array, order: Array) -> None:
    """Whether each entry stands once; again: which of them, in that order, do not."""
    if again.any():
        name = entry(theirs, theirs.values[order[np.argmax(again)]])
        raise InputError(f"`truth` has {name} twice along {theirs.name}. Drop one.")
