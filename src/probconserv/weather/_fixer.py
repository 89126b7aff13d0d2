"""Fixer: a module for a rollout that closes the budgets of air, water and energy of each step."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..air.contents import LAWS
from ..solvers.sweeps import has_kernels
from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InfeasibleError, InputError, ProbConservError, warn_implausible
from ..support.shards import once
from ._close import Closed, Closing, close, totals_of
from ._doubts import Doubts
from ._fused import Constants, close_fused, is_fused, numbers_of
from ._grid import Grid, Levels
from ._ledger import Ledger
from ._solve import Laws
from ._split import WHOLE, Split
from ._state import (
    COUNTED,
    Look,
    air_of,
    check_pair,
    check_state,
    inflow_of,
    joined,
    judge_ends,
    judged,
    largest,
    like,
    look_at,
    parts_of,
    split_of,
    tensors,
)
from ._std import CHANGED, MOVED, Error, by_variable, given, of_members, smallest, usual

State = Mapping[str, Tensor]
TARGETS = ("rollout", "step")


class Fixer(nn.Module):
    """Closes the global budgets of dry air, water and energy of each step of a rollout, jointly.

    Surface pressure, humidity, temperature and precipitation are moved to the most probable values
    that close all budgets: the squares of the changes over their variances, weighted by area, have
    the smallest sum. Humidity and precipitation do not become negative. Each member of the batch
    has budgets of its own. Sums and the solve are in float64, the state keeps its dtype.

    The budgets, as means over the sphere, with dp the pressure thickness of a layer::

        dry air   sum dp (1 - q - clouds) / g                  stays as it was
        water     sum dp (q + clouds) / g                      gains evaporation - precipitation
        energy    sum dp (cp T + L q - Lf ice + phi + k) / g   gains top + surface

    phi is the geopotential of the surface and k the kinetic energy, where the state has them; cp is
    that of dry air. A flux that is not given is 0. In training gradients flow through the state and
    the fluxes; totals of earlier steps are constants. Under `torch.compile` nothing is checked and
    the ledger records nothing. States may be DTensors, in shards of the batch or of the grid; all
    processes then call alike, and totals are whole on each.

    Parameters
    ----------
    grid : Grid
        The cells of the globe.
    levels : Levels
        The layers of a column, from the top down.
    std : dict, optional
        How wrong a step may be, by variable: a number, or an array with the axes ``(level,)``,
        ``(*grid)``, ``(level, *grid)`` or with the batch before these. A correction is proportional
        to its square, whatever the area of the cell and the thickness of the layer. What is not
        named errs in proportion to what the step changes: temperature as the root mean square of
        the change of its level; humidity as that share of itself; surface pressure as the change
        of the cell and of the globe; precipitation as the root of itself times 2.5e-5 kg m-2 s-1,
        so that it is changed by a factor.
    laws : sequence of str
        Which budgets are closed, of "dry_air", "water" and "energy".
    targets : str
        "rollout": the budget adds up from the first step on, so that nothing drifts. "step": every
        call closes the budget from `before` to `after`, as in training on pairs.
    ledger : bool
        Whether the corrections are recorded.

    Raises
    ------
    InputError
        If an argument breaks its rule.

    Examples
    --------
    >>> grid, levels = Grid.healpix(2), Levels.hybrid([0.0, 1e4, 0.0], [0.0, 0.2, 1.0])
    >>> air = {"surface_pressure": torch.full((1, 48), 1e5), "precipitation": torch.zeros(1, 48)}
    >>> air["temperature"] = torch.full((1, 2, 48), 260.0)
    >>> air["specific_humidity"] = torch.full((1, 2, 48), 0.004)
    >>> leaky = air | {"surface_pressure": air["surface_pressure"] - 10}
    >>> fixer = Fixer(grid, levels)
    >>> fixed = fixer(air, leaky, dt=21600.0)
    >>> off = fixer.totals(fixed)["dry_air"] - fixer.totals(air)["dry_air"]
    >>> bool(off.abs() < 1e-3)  # the rounding of float32
    True
    """

    _target: Tensor
    _carry: Tensor
    _steps: Tensor
    _weights: Tensor
    _active: Tensor

    def __init__(
        self,
        grid: Grid,
        levels: Levels,
        std: Mapping[str, ArrayLike] | None = None,
        laws: Sequence[str] = LAWS,
        targets: str = "rollout",
        ledger: bool = True,
    ) -> None:
        super().__init__()
        for name, x, kind in (("grid", grid, Grid), ("levels", levels, Levels)):
            if not isinstance(x, kind):
                raise InputError(f"`{name}` must be a {kind.__name__}; got {type(x).__name__}.")
        one = isinstance(laws, str) or not isinstance(laws, Iterable)
        self.laws: tuple[str, ...] = (laws,) if one else tuple(laws)  # type: ignore[assignment]
        for law in self.laws:
            check.choice("laws", law, LAWS)
        check.choice("targets", targets, TARGETS)
        self.grid, self.levels, self.std = grid, levels, by_variable("std", std)
        self._from_step = targets == "step"
        self._keeps_ledger = ledger
        self._doubts = Doubts("water" in self.laws)
        self.register_buffer("_weights", grid.areas.flatten(), persistent=False)
        active = torch.tensor([float(law in self.laws) for law in LAWS], dtype=torch.float64)
        self.register_buffer("_active", active, persistent=False)
        for name in ("_target", "_carry"):
            self.register_buffer(name, torch.zeros(0, 3, dtype=torch.float64))
        self.register_buffer("_steps", torch.zeros((), dtype=torch.int64))
        self.ledger = Ledger(grid, levels)
        self._place()

    def _place(self) -> None:
        """What steps share, on the device of the fixer."""
        device = self._weights.device
        self._levels = self.levels.to(device)
        self._laws = Laws.of(self._active)
        self._usual = usual(self._levels)
        self._least = smallest(self._usual)
        self._constants = Constants(self._levels, self._least)
        self._has_kernels = has_kernels(self._weights)
        self._last_gain: tuple[Any, Tensor] = None, self._weights
        self._seen: dict[str, Any] = {}
        self._own = given(self.std, self.levels.count, self.grid.shape, device)

    @property
    def steps(self) -> int:
        """How many steps were fixed since the last `reset`."""
        return int(self._steps)

    def reset(self) -> None:
        """Forgets the running totals and the ledger: the next call starts a rollout."""
        self._target, self._carry = (x.new_zeros(0, 3) for x in (self._target, self._carry))
        self._steps = torch.zeros_like(self._steps)
        self.ledger = Ledger(self.grid, self.levels)

    def totals(self, state: Any) -> dict[str, Tensor]:
        """Dry air and water (kg m-2) and energy (J m-2), as means over the sphere.

        Parameters
        ----------
        state : dict of Tensor, or xarray.Dataset
            As in a call.

        Returns
        -------
        dict of Tensor, shape ``(batch,)``
            By the names of the laws of this fixer, float64.
        """
        state = tensors(state, self.grid.shape)
        check_state("state", state, self.laws, self.levels, self.grid.shape)
        split = Split.of("state['surface_pressure']", state["surface_pressure"])
        state = parts_of("state", state, split, self.levels)
        split.agree([state])
        self._follow(state["surface_pressure"])
        found = totals_of(air_of(state), self._levels, split.cells(self._weights), split)
        found = once(split.gathered(found), split.every)
        every = dict(zip(LAWS, found.unbind(-1), strict=True))
        return {law: every[law] for law in self.laws}

    def targets(self) -> dict[str, Tensor]:
        """What the budgets say that the totals of the last fixed state are.

        Returns
        -------
        dict of Tensor, shape ``(batch,)``
            By the names of the laws, float64; empty before the first step.
        """
        found = (self._target + self._carry).unbind(-1)
        every = dict(zip(LAWS, found, strict=True))
        return {law: every[law] for law in self.laws} if len(self._target) else {}

    def forward(
        self,
        before: Any,
        after: Any,
        dt: float,
        fluxes: Mapping[str, Any] | None = None,
        std: Mapping[str, ArrayLike] | None = None,
        members: int | None = None,
    ) -> Any:
        """The state after a step, moved so that the budgets close.

        Parameters
        ----------
        before, after : dict of Tensor, or xarray.Dataset
            The state before and after the step. "surface_pressure" Pa and "precipitation"
            kg m-2 s-1, a mean over the step, with the axes ``(batch, *grid)``; "temperature" K and
            "specific_humidity" kg/kg with ``(batch, level, *grid)``. Counted and not moved, where
            they are there: "cloud_liquid" and "cloud_ice" kg/kg, "eastward_wind" and
            "northward_wind" m/s, "surface_geopotential" m2 s-2, also as ``(*grid)``. Anything
            else is handed through. Totals of `before` are read at the first step, and at each by
            `targets` "step"; what the step changes, where errors are taken from it.
        dt : float
            The length of the step, s.
        fluxes : dict, optional
            "evaporation" kg m-2 s-1, "top_energy" and "surface_energy" W m-2, all into the air;
            the last includes the latent heat of the evaporation. Each is a number, ``(batch,)``
            global means, or ``(batch, *grid)``; what is not there is 0.
        std : dict, optional
            As for the fixer, for this step.
        members : int, optional
            So many consecutive entries of the batch are members of one ensemble, whose spread is
            the standard deviation of what `std` does not name.

        Returns
        -------
        dict of Tensor, or xarray.Dataset
            A new state; the inputs are as they were.

        Raises
        ------
        InputError
            If a state is incomplete, has other shapes or units, or levels in another order.
        InfeasibleError
            If no state without negative values closes the budgets. The fixer is as it was.

        Warns
        -----
        ImplausibleWarning
            Each once in the life of a fixer: if a point is moved by more than 10 of its standard
            deviations, if the mean precipitation is changed by more than a factor of 3, or if
            precipitation or `dt` look like other units.
        """
        if not check.concrete():
            return self._advanced(before, after, dt, fluxes, std, members)
        try:
            old, new = (tensors(each, self.grid.shape) for each in (before, after))
            fixed = self._advanced(old, new, dt, fluxes, std, members)
        except ProbConservError as error:
            raise type(error)(f"step {self.steps + 1}: {error}") from error
        return like(after, fixed, self.grid.shape)

    def _advanced(
        self,
        before: State,
        after: State,
        dt: float,
        fluxes: Mapping[str, Any] | None,
        std: Mapping[str, ArrayLike] | None,
        members: int | None,
    ) -> dict[str, Tensor]:
        audited, given = check.concrete(), after
        self._check("after", after, self.grid.shape)
        seconds = _duration(dt, audited)
        split, before, after = split_of(before, after, fluxes, members, self.levels)
        air = air_of(after)
        self._follow(air.pressure)
        weights = split.cells(self._weights)
        base, carry, looks = self._base(before, after, weights, audited, split)
        gain, of_fluxes = self._gain(fluxes, seconds, len(air.pressure), weights, audited, split)
        rain = after["precipitation"] if "precipitation" in after else 0 * air.pressure
        task = Closing(
            air,
            rain.flatten(1),
            self._levels,
            *self._errors(before, after, std, members, weights, split),
            weights,
            (base, carry, gain),
            self._laws,
            seconds,
            audited,
            self._keeps_ledger,
            split,
        )
        if audited:
            closed = self._closed(task, after, [*looks, *of_fluxes])
        elif self._has_kernels and torch.compiler.is_compiling() and is_fused(task, after):
            constants = self._constants.of(seconds)
            closed, _ = close_fused(task, constants, task.precision.traced - 1)
        else:
            closed = close(task, task.precision.traced)
        fixed = _fixed(after, closed)
        running = closed.running or _added(base, carry, gain, closed.fallen, self._laws.rain)
        self._target, self._carry = map(split.gathered, running)
        self._steps = self._steps + 1
        if audited and self._keeps_ledger:
            with torch.no_grad():
                self.ledger.record(after, fixed, task, closed, running)
        return joined(given, fixed, split, self.levels)

    def _closed(self, task: Closing, after: State, looks: Sequence[Look]) -> Closed:
        """The state that closes the budgets, after a look at what refuses it or gives warnings.

        A GPU is waited for once, where its first rounds do.
        """
        whole = task.split is WHOLE
        fused = self._fused(task, after, looks) if whole and is_fused(task, after) else None
        if fused is not None:
            return fused
        looks = [look_at("after", after, self.levels, task.split), *looks]
        rounds = (None,) if task.air.pressure.is_cpu else (task.precision.blind, None)
        for blind in rounds:
            closed = close(task, blind)
            assert closed.worst is not None
            low, high = closed.ends
            ends = task.split.lowest(low), task.split.highest(high)
            own = [closed.worst, *ends, *self._doubts.looks(task, closed, task.budget[-1])]
            (worst, last), (lowest,), (highest,), *others = judged(looks, own, task.split)
            if blind is None or task.precision.ends(worst, last):
                break
        self._judge(closed, task, worst, lowest, highest, others)
        return closed

    def _fused(self, task: Closing, after: State, looks: Sequence[Look]) -> Closed | None:
        """By kernels; None where their rounds do not do."""
        constants = self._constants.of(task.duration)
        closed, rows = close_fused(task, constants, task.precision.blind - 1)
        table, *others = judged(looks, [rows, *self._doubts.first_looks(task)])
        found = numbers_of(table)
        judge_ends("after", self.levels, found["looks"])
        worst, last = map(largest, found["worst"])
        if not task.precision.ends(worst, last):
            return None
        high, low = map(largest, found["ends"])
        numbers = [found[name][0] for name in ("far", "rained", "fallen", "gain")]
        self._judge(closed, task, worst, -low, high, [*numbers, *others])
        return closed

    def _judge(
        self,
        closed: Closed,
        task: Closing,
        worst: float,
        low: float,
        high: float,
        others: Sequence[Sequence[float]],
    ) -> None:
        """Refuses totals that do not hold and layers turned over; warns of doubts."""
        _judge(worst, closed, task)
        self.levels.check("surface_pressure, corrected,", low, high)
        for text in self._doubts.judge(others, task, closed):
            warn_implausible(f"step {self.steps + 1}: {text}")

    def _gain(
        self,
        fluxes: Mapping[str, Any] | None,
        seconds: float,
        batch: int,
        weights: Tensor,
        audited: bool,
        split: Split,
    ) -> tuple[Tensor, list[Look]]:
        """What flows in; that of the same numbers as in the last step is kept."""
        given = {} if fluxes is None else fluxes
        plain = audited and isinstance(given, Mapping)
        plain = plain and all(type(x) in (int, float) for x in given.values())
        key = (batch, seconds, *given.items()) if plain else None
        if plain and key == self._last_gain[0]:
            return self._last_gain[1], []
        grid = split.grid(self.grid.shape)
        found, looks = inflow_of(fluxes, seconds, batch, grid, weights, split)
        if plain:
            self._last_gain = key, found
        return found, looks

    def _check(self, what: str, state: State, grid: tuple[int, ...]) -> None:
        """Names and shapes; the same as in an earlier step are well."""
        seen = None
        if check.concrete() and type(state) is dict:
            kinds = [
                (n, type(x), getattr(x, "shape", 0), getattr(x, "dtype", 0))
                for n, x in state.items()
            ]
            seen = (what, grid, *kinds)
        if seen is None or seen != self._seen.get(what):
            check_state(what, state, self.laws, self.levels, grid)
            self._seen[what] = seen

    def _base(
        self, before: State, after: State, weights: Tensor, audited: bool, split: Split
    ) -> tuple[Tensor, Tensor, list[Look]]:
        """The totals that the step starts from, and what their rounding left over."""
        batch = split.batch(len(after["surface_pressure"]))
        if len(self._target) and not self._from_step:
            if len(self._target) != batch:
                raise InputError(
                    f"`after` has {batch} members and the rollout {len(self._target)}. Call "
                    "`reset` before another rollout."
                )
            return split.own(self._target), split.own(self._carry), []
        self._check("before", before, split.grid(self.grid.shape))
        looks = [look_at("before", before, self.levels, split)] if audited else []
        for name in COUNTED:
            if (name in before) != (name in after):
                raise InputError(
                    f"`before` and `after` must both have {name!r}, or none: it counts in totals."
                )
        with torch.no_grad():
            base = totals_of(air_of(before), self._levels, weights, split)
        if len(base) != len(after["surface_pressure"]):
            raise InputError(f"`before` has {len(base)} members and `after` {batch}.")
        return base, torch.zeros_like(base), looks

    def _errors(
        self,
        before: State,
        after: State,
        std: Mapping[str, ArrayLike] | None,
        members: int | None,
        weights: Tensor,
        split: Split,
    ) -> tuple[dict[str, Error], dict[str, Tensor]]:
        """Errors by variable, and the state before where they are those of the change."""
        axes, batch = len(self.grid.shape), split.batch(len(after["surface_pressure"]))
        own = self._own | given(std, self.levels.count, self.grid.shape, weights.device)
        for name, error in own.items():
            if error.known is not None and len(error.known) not in (1, batch):
                raise InputError(
                    f"`std[{name!r}]` is for {len(error.known)} members and the batch has {batch}."
                )
        if split is not WHOLE:
            own = {name: error.here(split) for name, error in own.items()}
        if members is None:
            changed = [n for n in CHANGED if n in after and n not in own]
            check_pair(changed, before, after)
            return self._least | own, {n: before[n].flatten(-axes) for n in changed}
        if check.whole("members", members) < 2 or batch % members:
            raise InputError(
                f"`members` must be 2 or more and divide the batch of {batch}; got {members}."
            )
        flat = {name: after[name].flatten(-axes) for name in MOVED if name in after}
        return self._usual | of_members(flat, members, weights, self._usual, split) | own, {}

    def _apply(self, fn: Any, recurse: bool = True) -> "Fixer":
        """Moves to another device; running totals stay in float64 whatever the model becomes."""
        kept = {name: x for name, x in self.named_buffers() if x.dtype == torch.float64}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, x in kept.items():
            setattr(self, name, x.to(getattr(self, name).device))
        self._place()
        return self

    def _follow(self, x: Tensor) -> None:
        """Goes to the device of the state."""
        if x.device != self._weights.device:
            self.to(x.device)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        for name in ("_target", "_carry"):  # whatever the size of the batch was
            found = state_dict.get(prefix + name)
            if found is not None:
                setattr(self, name, getattr(self, name).new_zeros(found.shape))
        super()._load_from_state_dict(state_dict, prefix, *args)


def _duration(dt: Any, audited: bool) -> float:
    if not audited:
        return dt
    try:
        seconds = float(dt)
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InputError(f"`dt` must be the seconds of a step, a number above 0; got {dt!r}.")
    return seconds


def _fixed(after: State, closed: Closed) -> dict[str, Tensor]:
    new = {
        "surface_pressure": closed.pressure,
        "temperature": closed.temperature,
        "specific_humidity": closed.vapour,
        "precipitation": closed.rain,
    }
    return {
        name: new[name].to(x.dtype).reshape(x.shape) if name in new else x
        for name, x in after.items()
    }


def _added(
    total: Tensor, carry: Tensor, gain: Tensor, fallen: Tensor, rain: Tensor
) -> tuple[Tensor, Tensor]:
    """With a change, the smaller, and with what their sum lost in rounding."""
    x = torch.addcmul(gain.detach(), fallen.detach()[:, None], rain, value=-1)
    found = total + x
    return found, carry + (x - (found - total))


def _check_change(task: Closing) -> None:
    """Errors are finite; those of members and of `std` are known to be."""
    for name, error in task.all_errors().items():
        finite = all(bool(x.isfinite().all()) for x in error.tensors if x is not None)
        if task.split.any(not finite):
            raise InputError(
                f"`before[{name!r}]` must be finite: errors are taken from what a step changes."
            )


def _judge(worst: float, closed: Closed, task: Closing) -> None:
    """Refuses totals that do not hold."""
    if not worst <= task.precision.tolerance:  # NaN is not
        _check_change(task)
        numbers = (closed.missing, task.target, task.scale())
        missing, targets, scale = (task.split.gathered(x.detach()) for x in numbers)
        wrong = ~((missing / scale).abs() <= task.precision.tolerance)
        negative = (targets < 0) & wrong  # the reason, where there is one
        blamed = negative if bool(negative.any()) else wrong
        member, law = (int(i) for i in blamed.nonzero()[0])
        target = float(targets[member, law])
        raise InfeasibleError(
            f"no state closes the budget of {LAWS[law]} of member {member}: it asks for "
            f"{target:.9g}, and {float(missing[member, law]):.3g} is missing "
            f"({'J' if law == 2 else 'kg'} m-2). Humidity and precipitation cannot become "
            "negative, and what has a `std` of 0 cannot move. Check `fluxes`, `dt` and `std`."
        )
