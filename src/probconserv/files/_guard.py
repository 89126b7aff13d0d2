"""Totals beside what the field says of itself: for fields without standard deviations.

Three things are compared: how far the totals move the field with its own standard deviation over
points and times, the totals with those of a field of one sign, and their changes in time with those
of the field, for each flux. All is NumPy.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from ..diagnostics.causes import ALIKE, LARGE, units_of, wrong_by
from ..support.tolerances import CLOSES
from ._graph import Array, BlockRows, Sums

if TYPE_CHECKING:
    from ._report import Budget

SAMPLE = 1 << 13  # points of an index that are enough to tell how far values spread
STEPS = (3, 7, 13, 31, 61, 127, 251, 509, 1021, 2039)
LEAST = 0.01  # of the sum of |u|: fields that are nearly constant may move so far
FEW, CLEARLY = 0.02, 3.0  # of the rows: so few may move by less than so many standard deviations
TIMES = 3.0  # a factor up to which totals may differ
CLEAR, ROUGH = 300.0, 0.25  # a factor so large is that of units it is so near to
ONE_SIGN = 0.99  # of the sum of |u|: a total so large is that of a field of one sign
MANY = 10.0  # times the changes of the field: so large are no others
SOME = 0.1  # of the field's own standard deviation: smaller moves do no harm
ENOUGH = 5  # changes in time, which say more than that they are constant
LEFT = 0.25, 0.02  # of a gap that a cause may leave: where changes vary, where they are constant
NEAR = 0.5, 0.05  # how far from -1 a factor may be that is a wrong sign: in the same two cases


def with_spread(sums: Sums) -> dict[str, Array]:
    """The sums of a variable, with what totals change by if all points move by its own std.

    That is its standard deviation over all points of all rows, times included.
    """
    found = dict(sums)
    if "own" in found:
        size, mean, square = found["own"].reshape(-1, 3).sum(0)
        variance = square / (size or 1.0) - (mean / (size or 1.0)) ** 2
        found["own"] = found["size"] * np.sqrt(max(0.0, variance))
    return found


def own_moments(rows: BlockRows, u: Array) -> dict[str, Array]:  # (I, P) to (I, 3)
    """Of a block the sums of weights, and of these times u and u^2; of large ones at some points.

    The points are so far apart, in the order of the file, that few axes have a length to match.
    """
    step = max((each for each in STEPS if each * SAMPLE <= u.shape[-1]), default=1)
    some = u[:, ::step].astype(float)
    weights: Any = sum(np.abs(law.weights[:, ::step]) for law in rows.laws)
    powers = (np.ones_like(some), some, some**2)
    return {"own": np.stack([(weights * each).sum(-1) for each in powers], -1)}


@dataclass(frozen=True, eq=False)
class Guard:
    """The totals of a budget, and what the field says of them; all arrays are (..., times)."""

    kind: str  # total or average
    stated: Array
    found: Array
    own: Array  # what totals change by if all points move by the field's own std
    terms: Array  # sums of |u|; 0 where there are no data
    gains: Mapping[str, Array]  # of each flux, since the first time
    has_zero: bool  # whether the unit has a zero of its own, unlike degC

    @classmethod
    def of(cls, budget: "Budget", kind: str, has_zero: bool) -> "Guard | None":
        """None where the field was not asked."""
        if budget.own is None:
            return None
        time, like = budget.time, budget.terms
        dims = sorted(map(str, like.dims), key=lambda dim: dim == time)
        sizes = {dim: like.sizes[dim] for dim in dims}
        there, order = budget.size > 0, np.arange(1 if time is None else sizes[time])
        if time is not None and time in like.coords:
            order = np.argsort(like[time].values, kind="stable")

        def wide(array: xr.DataArray) -> Array:
            values = array.variable.set_dims({**sizes}).transpose(*dims).values
            return np.asarray(values[..., order] if time is not None else values[..., None])

        gains = {name: wide(gain) for name, gain in budget.gains.items()}
        given = (budget.total, budget.before, budget.own, budget.terms)
        stated, found, own, terms = (wide(array.where(there, 0.0)) for array in given)
        return cls(kind, stated, found, own, terms, gains, has_zero)

    @cached_property
    def gap(self) -> Array:
        return np.abs(self.found - self.stated)

    @property
    def closes(self) -> bool:
        return bool((self.gap <= CLOSES * np.maximum(self.terms, np.abs(self.stated))).all())

    @cached_property
    def reason(self) -> str:
        """What is implausible, with its cause where one is known; empty where nothing is."""
        if self.closes:
            return ""
        ways = (self._changes, self._totals) if self.gains else (self._totals, self._changes)
        said = [*self._moves(), *(ways[0]() or ways[1]())]
        return ": ".join(said)

    @property
    def most(self) -> float:
        """How far the totals move the field, in its own standard deviations."""
        moves = np.divide(self.gap, self.own, out=np.zeros_like(self.gap), where=self.own > 0)
        return float(moves.max(initial=0.0))

    def _moves(self) -> Iterator[str]:
        """Of totals that move the field by more than it varies by itself."""
        known = self.own > CLOSES * self.terms  # else it is the same everywhere
        far = known & (self.gap > np.maximum(self.own, LEAST * self.terms))
        clear = far.sum() > FEW * far.size or (far & (self.gap > CLEARLY * self.own)).any()
        if clear:
            yield (
                f"{int(far.sum())} of {far.size} {self.kind}s move the field by more than its own "
                f"standard deviation over points and times, by up to {self.most:.3g} times that"
            )

    def _totals(self) -> list[str]:
        """Of totals of a field of one sign that are many times its own, or of another sign."""
        found, stated = self.found[self.terms > 0], self.stated[self.terms > 0]
        whole = np.abs(found.sum())
        if not self.has_zero or not whole or whole < ONE_SIGN * self.terms.sum():
            return []
        ratio = _median(stated / np.where(found == 0, np.nan, found), np.abs(found))
        if 1 / TIMES <= ratio <= TIMES:
            return []
        if ratio < 0:
            return [f"the {self.kind} has another sign than that of the field"]
        what = f"the {self.kind}"
        if ratio == 0:
            return [f"{what} is 0, that of the field is not"]
        clear = max(ratio, 1 / ratio) > CLEAR
        return [wrong_by(what, ratio, "the field", ROUGH if clear else ALIKE)]

    def _changes(self) -> list[str]:
        """Of changes in time that the field has with another sign or factor, or not at all."""
        stated, found = np.diff(self.stated), np.diff(self.found)
        whole = (self.terms > 0).all(-1)
        missing = (found - stated)[whole]
        if not stated[whole].any():
            return []
        fluxes = {name: np.diff(gain)[whole] for name, gain in self.gains.items()}
        together = " and ".join(fluxes)
        if len(fluxes) != 1:
            name = f"the sum of {together}" if together else f"the {self.kind}, in time,"
            fluxes[name] = stated[whole]
        said = (_wrong(name, flux, missing) for name, flux in fluxes.items())
        best = min(filter(None, said), default=None)
        if best is not None:
            return [best[1]]
        ours, theirs = (_range(each[whole]) for each in (self.stated, self.found))
        if not together or ours <= MANY * theirs or not (self.gap > SOME * self.own).any():
            return []
        by = f"{ours / theirs:.3g} times what the field does" if theirs else "not in the field"
        return [f"what {together} bring is {by}, check units and signs"]


def _wrong(name: str, flux: Array, missing: Array) -> tuple[float, str] | None:
    """What is wrong about a flux if a factor of it explains what is missing, and what is left."""
    varies = flux.shape[-1] >= ENOUGH
    apart = flux - flux.mean(-1, keepdims=True)
    varies = varies and _size(apart) > SOME * _size(flux)
    if varies:
        flux, missing = apart, missing - missing.mean(-1, keepdims=True)
    if not flux.any() or not missing.any():
        return None
    factor = 1 + float((flux * missing).sum() / np.square(flux).sum())
    rest = _size(missing - (factor - 1) * flux)
    share = rest / min(_size(missing), abs(factor) * _size(flux) or np.inf)
    if share > LEFT[not varies]:
        return None
    if abs(factor + 1) <= NEAR[not varies]:
        return share, f"{name} fits the field with the other sign: check its sign"
    if factor <= 0 or 1 / TIMES <= factor <= TIMES:
        return None
    known = units_of(factor) and not 1 / LARGE < factor < LARGE
    if not (varies or known):
        return None
    return share, wrong_by(name, 1 / factor, "the field")


def _size(x: Array) -> float:
    return float(np.sqrt(np.square(x).sum()))


def _range(x: Array) -> float:
    """The largest change since the first time."""
    return float(np.abs(x - x[..., :1]).max(initial=0.0))


def _median(x: Array, weights: Array) -> float:
    """Of the entries that are there, by weight."""
    x, weights = x[~np.isnan(x)], weights[~np.isnan(x)]
    order = np.argsort(x)
    heights: Any = np.cumsum(weights[order])
    return float(x[order][np.searchsorted(heights, heights[-1] / 2)])
