"""Whether the totals of a budget are plausible.

Where the field has standard deviations they say so. Where it has none, three things are compared:
how far the totals move the field with its own standard deviation over points and times, the totals
with those of a field of one sign, and their changes in time with those of the field, for each flux.
All is NumPy.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from ..diagnostics.causes import (
    ALIKE,
    FULL,
    LARGE,
    LEVEL,
    Comparison,
    row_limit,
    units_of,
    wrong_by,
)
from ..support.errors import FAR
from ..support.tolerances import CLOSES, SINGLE
from ._graph import Array, BlockRows, Sums, quiet

if TYPE_CHECKING:
    from ._report import Budget

# usual for values that are missing, with either sign; small ones may be values of a field
SMALL_MARKS = 999.0, 9999.0, 32767.0, 32768.0, 99999.0, 999999.0
MARKS = 1e15, 1e20, 9.999e20, 1e30, 9.99e33, 1e34, 1e35, 1e36, 9.96921e36, 1e37, 3.4028235e38
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


def with_spread(parts: Iterable[Sums]) -> dict[str, Array]:
    """The sums of a variable in one, with what totals change by if all points move by its own std.

    That is its standard deviation over all points of all rows, times included.
    """
    found = {name: x for sums in parts for name, x in sums.items()}
    if "own" in found:
        size, mean, square = found["own"].reshape(-1, 3).sum(0)
        variance = square / (size or 1.0) - (mean / (size or 1.0)) ** 2
        found["own"] = found["size"] * np.sqrt(max(0.0, variance))
    return found


def marks(u: Array) -> Array:  # (I, P) to (I)
    """How many values look like a mark for missing ones: all others are ten times smaller."""
    found, largest = np.zeros(len(u)), np.maximum(u.max(-1), -u.min(-1))
    known = np.isclose(largest[:, None], (*SMALL_MARKS, *MARKS), rtol=SINGLE)
    for index in np.flatnonzero(known.any(-1)):
        size = np.abs(u[index])
        is_mark = size > largest[index] / 10
        same = (size[is_mark] == largest[index]).all()
        if same and not (is_mark.all() and known[index, : len(SMALL_MARKS)].any()):
            found[index] = is_mark.sum()
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


@dataclass(frozen=True)
class Verdict:
    """What the standard deviations say of the totals of a budget, or else the field itself."""

    answer: str | None  # as in `Diagnosis.answer`; None where nothing is known
    said: str
    beyond: tuple[str, ...] = ()  # what is not allowed, whatever the correlations
    wrong: Comparison | None = None  # of totals whose causes are looked for
    kind: str = "total"

    @cached_property
    def text(self) -> str:
        """The answer in words."""
        if self.wrong is None:
            return self.said
        with np.errstate(all="ignore"):
            causes = [cause for cause in self.wrong.causes() if cause.kind != "rows"]
        said = "; or ".join(cause.in_words(f"the {self.kind}", "the field") for cause in causes)
        why = said or f"the {self.kind}s are wrong (by no factor, shift or constant)"
        return f"{self.said}: the standard deviations are too small, or {why}"


@quiet
def judged(budget: "Budget") -> Verdict:
    """What members do not explain may be shared errors here, as for independent points."""
    kind, wide = "average" if budget.is_average else "total", _by_time(budget)
    if not budget.knows_std:
        return _by_itself(budget, kind, wide)
    together = _compared(budget, budget.spread, FULL, wide)
    wrong = together.wrong
    if wrong.any():
        beyond = (
            f"{int(wrong.sum())} of {wrong.size} {kind}s are more than 5 "
            "standard deviations off, whatever the correlations"
        )
        return Verdict("does not agree", beyond, (beyond,), together, kind)
    said = f"the {kind}s are plausible for a field with these standard deviations"
    stated = _compared(budget, budget.assumed, _stated_limit(budget), wide)
    wrong, rho, members = stated.wrong, budget.correlation, budget.members
    if not wrong.any():
        return Verdict("agrees", f"{said} and a correlation of {rho:g}" if rho else said)
    less = f"the {members} members tell all" if members > 1 else "points are independent"
    less, more = (f"their correlation is {rho:g}", "more of ") if rho else (less, "")
    own, full = (float(np.abs(rows.z).max()) for rows in (stated, together))
    text = (
        f"{said} only if points share {more}their errors: {int(wrong.sum())} of "
        f"{wrong.size} are off by up to {own:.1f} standard deviations if {less}, by up to "
        f"{full:.1f} if all points err together"
    )
    return Verdict("agrees if shared", text)


def _stated_limit(budget: "Budget") -> float:
    """For the correlation of the update, or as the members' totals spread, which estimate it."""
    variance, noise = budget.assumed**2, budget.noise**2
    share = (variance / (variance + noise).where(variance > 0, 1.0)).max()
    members = None if budget.members == 1 else budget.members
    return float(min(row_limit(budget.terms.size, members, float(share), LEVEL), FAR))


def _compared(budget: "Budget", spread: xr.DataArray, limit: float, wide: "Wide") -> Comparison:
    """The totals beside what the field has, with that std of the field."""
    of_mean = 1 / budget.members if budget.members > 1 else 0.0
    std = np.hypot(math.sqrt(1 + of_mean) * wide(spread), wide(budget.noise))
    value = wide(budget.total.where(budget.size > 0, budget.before))
    timed = budget.time is not None and bool((value != value[..., :1]).any())
    slack = CLOSES * wide(budget.scale)
    return Comparison(wide(budget.before), value, std, slack, timed, limit)


def _by_itself(budget: "Budget", kind: str, wide: "Wide") -> Verdict:
    """What a field without standard deviations says of the totals."""
    if budget.own is None:
        return Verdict(None, f"no `std` or members: nothing says whether the {kind}s are plausible")
    given = (budget.total, budget.before, budget.own, budget.terms)
    total, before, own, terms = (wide(array.where(budget.size > 0, 0.0)) for array in given)
    gains = {name: wide(gain) for name, gain in budget.gains.items()}
    guard = Guard(kind, total, before, own, terms, gains, not budget.is_celsius)
    if guard.reason:
        return Verdict("does not agree", guard.reason, (guard.reason,))
    return Verdict(
        None,
        f"no `std` or members; the {kind}s move the field by at most "
        f"{guard.most:.2g} of its own standard deviation over points and times",
    )


Wide = Callable[[xr.DataArray], Array]


def _by_time(budget: "Budget") -> Wide:
    """What brings arrays of rows, averaged over members, to (..., times) in the order of time."""
    time, like = budget.time, budget.terms
    dims = [dim for dim in like.dims if dim != time] + ([] if time is None else [time])
    sizes = {dim: like.sizes[dim] for dim in dims}
    order = like[time].values.argsort(kind="stable") if time in like.coords else slice(None)

    def wide(array: xr.DataArray) -> Array:
        mean = array.variable.mean(set(array.dims) - sizes.keys())
        values = np.array(mean.set_dims(sizes).transpose(*dims).values, dtype=float)
        return values[..., None] if time is None else values[..., order]

    return wide


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
