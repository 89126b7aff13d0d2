"""What is not plausible of a step: how far it is moved, how much rain, in which units.

Each is said once in the life of a fixer. Values are looked at together with those that are anyway.
"""

import math
from collections.abc import Sequence
from itertools import chain
from statistics import fmean

from torch import Tensor

from ..conditioning.audit import largest_move
from ..fields.gaussian import Diagonal
from ..support.errors import FAR
from ..support.shards import most_over
from ._close import Closed, Closing
from ._split import WHOLE
from ._std import MOVED

USUAL = 3e-5  # kg m-2 s-1, precipitation in the mean over the Earth; evaporation is as much
PLAUSIBLE = 3.0  # times more, or less, than usual
NEAR = 2.0  # times more or less: a unit explains it
LITTLE = 1e-6  # kg m-2 s-1: how much less is changed does not matter
SHORTEST = 60.0  # s: steps of emulators are longer, and no number of hours is
FASTEST = 2e-3  # K s-1, root mean square over the globe: twenty times that of weather
RATES = {  # precipitation in other units, and what makes kg m-2 s-1 of them
    "m s-1": 1e3,
    "mm h-1": 1 / 3600,
    "mm day-1": 1 / 86400,
    "m h-1": 1e3 / 3600,
    "m day-1": 1e3 / 86400,
}
AMOUNTS = {"metres in each step": 1e3, "kg m-2, or mm, in each step": 1.0}  # likewise, times dt
HINT = "Check the units, `dt` and `fluxes`"


class Doubts:
    """The warnings of a fixer, each given once.

    Parameters
    ----------
    wet : bool
        Whether precipitation counts: the law of water is closed.
    """

    def __init__(self, wet: bool) -> None:
        self.wet, self.begun = wet, False
        self.said: set[str] = set()

    def looks(self, task: Closing, closed: Closed, gain: Tensor) -> list[Tensor]:
        """Numbers, float64, for `judge`."""
        found = (closed.far, closed.rained, closed.fallen, gain[:, 1])
        return [task.split.gathered(x.detach()) for x in found] + self.first_looks(task)

    def first_looks(self, task: Closing) -> list[Tensor]:
        """Those that are made once."""
        return [] if self.begun else [_warming(task)]

    def judge(self, numbers: Sequence[Sequence[float]], task: Closing, closed: Closed) -> list[str]:
        """What these numbers say that was not said before, in words."""
        far, *amounts = numbers[:4]
        before, after, evaporated = ([x / task.duration for x in each] for each in amounts)
        changes = [
            math.log((x + LITTLE) / (y + LITTLE)) for x, y in zip(after, before, strict=True)
        ]
        change = max(map(abs, changes))
        self.begun = True
        doubts = {"dt": of_duration(task.duration, *chain(*numbers[4:]))}
        if self.wet:
            doubts["unit"] = of_unit(fmean(before), fmean(evaporated), task.duration)
            member = [*map(abs, changes)].index(change)
            far_off = change > math.log(PLAUSIBLE)
            doubts["rain"] = _of_rain(before[member], after[member]) if far_off else ""
        if max(far) > FAR**2 and "far" not in self.said:
            doubts["far"] = _of_moves(task, closed)
        new = {name: text for name, text in doubts.items() if text and name not in self.said}
        self.said |= set(new)
        return list(new.values())


def _warming(task: Closing) -> Tensor:
    """How fast the temperature changes, K s-1; 0 where it is not known."""
    old = task.before.get("temperature")
    if old is None:
        return task.weights.new_zeros(())
    change = task.split.mean((task.air.temperature - old).detach().square().mean())
    return change.double().sqrt() / task.duration


def of_duration(seconds: float, warming: float = 0.0) -> str:
    """Of a step that is short, or in which the air changes too fast, K s-1."""
    if seconds >= SHORTEST and warming <= FASTEST:
        return ""
    fast = f", in which the temperature changes by {seconds * warming:.2g} K" if warming else ""
    return (
        f"`dt` is {seconds:g} s{fast}. Is it in minutes, hours or days? Multiply it by 60, 3600 or "
        "86400."
    )


def of_unit(rain: float, evaporated: float, seconds: float) -> str:
    """Of precipitation that would be usual in another unit; evaporation, if given, is as much."""
    known = USUAL / PLAUSIBLE <= evaporated <= USUAL * PLAUSIBLE
    usual = evaporated if known else USUAL
    if rain == 0 or usual / PLAUSIBLE <= rain <= usual * PLAUSIBLE:
        return ""
    factors = {unit: factor / seconds for unit, factor in AMOUNTS.items()} | RATES
    off = {unit: abs(math.log(rain * factor / usual)) for unit, factor in factors.items()}
    unit = min(off, key=lambda each: off[each])
    if off[unit] > math.log(NEAR):
        return ""
    return (
        f"`after['precipitation']` is {rain:.2g} in the mean over the globe, and must be in "
        f"kg m-2 s-1, where {'evaporation is' if known else 'usual is'} {usual:.2g}. It looks like "
        f"{unit}: multiply it by {factors[unit]:.4g}."
    )


def _of_rain(before: float, after: float) -> str:
    """Of the member whose precipitation is changed the most."""
    return (
        f"the budget of water changes precipitation from {before:.2g} to {after:.2g} kg m-2 s-1 in "
        f"the mean over the globe. {HINT}, evaporation above all."
    )


def _of_moves(task: Closing, closed: Closed) -> str:
    """Of the variable that is moved the furthest, if that is far."""
    old = dict(zip(MOVED, (task.air.pressure, task.air.temperature), strict=False))
    old |= {"specific_humidity": task.air.vapour.clamp_min(0.0)}
    old |= {"precipitation": task.rain.clamp_min(0.0)}
    new = dict(zip(MOVED, (closed.pressure, closed.temperature), strict=False))
    new |= {"specific_humidity": closed.vapour, "precipitation": closed.rain}
    errors, far = task.all_errors(), {}
    for name in MOVED:
        x = old[name].detach().double()
        prior = Diagonal._unchecked(x, errors[name].variance(x).double().expand_as(x))
        far[name] = largest_move((new[name].detach().double(),), (prior,))
    if task.split is not WHOLE:
        most = most_over([*far.values()], task.split.every, task.split.like)
        far = dict(zip(far, most, strict=True))
    worst = max(far, key=lambda name: far[name])
    if far[worst] <= FAR:
        return ""
    asked = task.split.gathered(closed.asked.detach())
    dry, water, energy = asked[int(task.split.gathered(closed.far).argmax())].tolist()
    return (
        f"the budgets move {worst} at a point by {far[worst]:.3g} of its standard deviations. Dry "
        f"air was off by {dry:.3g} and water by {water:.3g} kg m-2, energy by {energy:.3g} J m-2. "
        f"{HINT}; or errors are larger than they are taken to be: give `std`."
    )
