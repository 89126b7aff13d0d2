"""States and fluxes at the door: names, shapes, units, what a law needs; datasets of xarray."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..air.contents import CLOUDS, GROUND, WINDS, energy
from ..support import checks as check
from ..support.errors import InputError
from ..support.shards import is_sharded
from ._grid import HIGHEST_GROUND, Levels
from ._solve import Air
from ._split import WHOLE, Split
from ._std import MOVED, ON_LEVELS, by_variable

State = Mapping[str, Tensor]
NEEDED = {
    "dry_air": ("surface_pressure", "specific_humidity"),
    "water": ("surface_pressure", "specific_humidity", "precipitation"),
    "energy": ("surface_pressure", "specific_humidity", "temperature"),
}
COUNTED = (*CLOUDS, *WINDS, GROUND)
UNITS = {  # and between which values they are physical
    "surface_pressure": ("Pa", HIGHEST_GROUND, 1.3e5),
    "temperature": ("K", 50.0, 500.0),
    "specific_humidity": ("kg/kg", -0.1, 0.2),
    "precipitation": ("kg m-2 s-1", -0.1, 0.1),
    "cloud_liquid": ("kg/kg", -0.1, 0.2),
    "cloud_ice": ("kg/kg", -0.1, 0.2),
    "eastward_wind": ("m/s", -500.0, 500.0),
    "northward_wind": ("m/s", -500.0, 500.0),
    GROUND: ("m2 s-2", -2e4, 2e5),
    "evaporation": ("kg m-2 s-1", -0.1, 0.1),
    "top_energy": ("W m-2", -1e4, 1e4),
    "surface_energy": ("W m-2", -1e4, 1e4),
}
SAME = {  # other ways to write these units
    "Pa": ("Pa", "pascal", "Pascal"),
    "K": ("K", "kelvin", "Kelvin", "degK"),
    "kg/kg": ("kg/kg", "kg kg-1", "kg kg**-1", "1", ""),
    "kg m-2 s-1": ("kg m-2 s-1", "kg m**-2 s**-1", "kg/m2/s", "kg/m^2/s", "mm/s", "mm s-1"),
    "m/s": ("m/s", "m s-1", "m s**-1"),
    "m2 s-2": ("m2 s-2", "m**2 s**-2", "m2/s2", "m^2/s^2"),
}
SURFACE = ("surface_pressure", "precipitation", GROUND)
FLUXES = {"evaporation": 1, "top_energy": 2, "surface_energy": 2}  # and the law they count in


def check_state(
    what: str, state: Any, laws: Sequence[str], levels: Levels, grid: tuple[int, ...]
) -> None:
    """Names and shapes; what needs no look at values."""
    if not isinstance(state, Mapping):
        raise InputError(f"`{what}` must be a dictionary of tensors; got {type(state).__name__}.")
    for law in laws:
        lost = [name for name in NEEDED[law] if name not in state]
        if what != "after" and "precipitation" in lost:
            lost.remove("precipitation")
        if lost:
            raise InputError(
                f"`{what}` has no {' and no '.join(map(repr, lost))}, which the law of {law} "
                f"needs; it has {', '.join(map(repr, state)) or 'nothing'}. Add it, or leave the "
                "law out with `laws`."
            )
    batch = None
    for name in UNITS:  # the surface pressure first
        if name in state:
            batch = _checked(f"{what}[{name!r}]", state[name], name, batch, levels.count, grid)


def _checked(
    said: str, x: Any, name: str, batch: int | None, count: int, grid: tuple[int, ...]
) -> int:
    """The size of the batch, which all variables share."""
    if not isinstance(x, Tensor) or x.dtype not in (torch.float32, torch.float64):
        found = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"`{said}` must be a tensor of float32 or float64; got {found}.")
    own = grid if name in SURFACE else (count, *grid)
    shape = tuple(x.shape)
    if name == GROUND and shape == grid and batch is not None:
        return batch
    if shape[1:] != own or not len(x) or batch not in (None, len(x)):
        axes = "(batch, *grid)" if name in SURFACE else "(batch, level, *grid)"
        asked = ", ".join(map(str, ("batch" if batch is None else batch, *own)))
        raise InputError(
            f"`{said}` has the shape {shape}; it must have the axes {axes}, here ({asked})."
        )
    return len(x)


def check_pair(names: Sequence[str], before: Any, after: State) -> None:
    """What a step changes can be seen."""
    for name in names:
        old = before[name] if isinstance(before, Mapping) and name in before else None
        if not isinstance(old, Tensor) or old.shape != after[name].shape:
            found = tuple(old.shape) if isinstance(old, Tensor) else type(old).__name__
            raise InputError(
                f"`before[{name!r}]` must have the shape of `after`, {tuple(after[name].shape)}; "
                f"got {found}. Errors are taken from what a step changes, or give `std[{name!r}]`."
            )


class Look(NamedTuple):
    """Numbers that are looked at together with those of others, and what refuses them."""

    values: Sequence[Tensor]
    judge: Callable[[Sequence[float]], None]


def looked_at(tensors: Sequence[Tensor]) -> list[list[float]]:
    """The numbers of each; a GPU is waited for once."""
    flat = [x.detach().reshape(-1) for x in tensors]
    if len(flat) == 1 or not flat[0].is_cuda:
        return [x.tolist() for x in flat]
    numbers = iter(torch.cat(flat).tolist())
    return [[*islice(numbers, len(x))] for x in flat]


def judged(
    looks: Sequence[Look], others: Sequence[Tensor], split: Split = WHOLE
) -> list[list[float]]:
    """The numbers of others, once those of the looks refuse nothing on any process."""
    found = looked_at([*chain(*(look.values for look in looks)), *others])
    own = len(found) - len(others)
    found[:own] = split.ends(found[:own])
    for look in looks:
        mine, found = found[: len(look.values)], found[len(look.values) :]
        look.judge([*chain(*mine)])
    return found


def largest(numbers: Sequence[float]) -> float:
    """NaN where one is."""
    return math.nan if any(map(math.isnan, numbers)) else max(numbers)


def judge_ends(what: str, levels: Levels, numbers: Sequence[Sequence[float]]) -> None:
    """Of vapour at the first and last level; then the negative of the lowest and the highest."""
    ends = [largest(x) if i % 2 else -largest(x) for i, x in enumerate(numbers[2:])]
    means = (fmean(x) for x in numbers[:2])
    _check_values(what, MOVED, levels, [*ends, *means])


def look_at(what: str, state: State, levels: Levels, split: Split = WHOLE) -> Look:
    """Finite values in the range of their units, levels from the top down, layers that hold air."""
    names = [name for name in UNITS if name in state]
    ends = [x for name in names for x in state[name].detach().aminmax()]
    first_and_last = state["specific_humidity"].detach()[:, :: max(1, levels.count - 1)]
    means = split.mean(first_and_last.flatten(2).mean((0, 2)))
    return Look([*ends, means[0], means[-1]], partial(_check_values, what, names, levels))


def _check_values(what: str, names: Sequence[str], levels: Levels, found: Sequence[float]) -> None:
    pairs = list(zip(found[::2], found[1::2], strict=True))
    for name, (low, high) in zip(names, pairs, strict=False):
        _check_range(f"{what}[{name!r}]", name, low, high)
    top, bottom = pairs[-1]
    if top > 1e-6 and top > 2 * bottom:
        raise InputError(
            f"`{what}['specific_humidity']` is {top:.2g} kg/kg on average at the first level and "
            f"{bottom:.2g} at the last: the levels are upside down. They go from the top of the "
            "atmosphere down to the surface. Flip them."
        )
    low, high = pairs[names.index("surface_pressure")]
    levels.check(f"{what}['surface_pressure']", low, high)


def check_values(what: str, state: State, levels: Levels) -> None:
    """At once."""
    look = look_at(what, state, levels)
    look.judge([*chain(*looked_at(look.values))])


def _check_ends(said: str, name: str, ends: Sequence[float]) -> None:
    _check_range(said, name, *ends)


def _check_range(said: str, name: str, low: float, high: float) -> None:
    unit, least, most = UNITS[name]
    if math.isnan(low) or math.isnan(high):
        raise InputError(f"`{said}` must be finite; some of its values are NaN.")
    if not least <= low <= high <= most:
        raise InputError(
            f"`{said}` must be in {unit}, from {least:g} to {most:g}; it goes from {low:.4g} to "
            f"{high:.4g}. Convert it; or the step that made it went wrong."
        )


def air_of(state: State) -> Air:
    """The part of a state that laws count, with the axes of the grid as one."""
    pressure = state["surface_pressure"].flatten(1)
    vapour = state["specific_humidity"].flatten(2)
    warm = state.get("temperature")
    clouds = [state[name].flatten(2) for name in CLOUDS if name in state]
    there = {name: state[name].flatten(2) for name in (*WINDS, CLOUDS[1]) if name in state}
    if GROUND in state:
        own = 1 if state[GROUND].ndim == state["surface_pressure"].ndim - 1 else len(pressure)
        there[GROUND] = state[GROUND].reshape(own, 1, -1)
    others = [energy(name, x.double()) for name, x in there.items()]
    return Air(
        pressure,
        torch.zeros_like(vapour) if warm is None else warm.flatten(2),
        vapour,
        sum(clouds[1:], clouds[0]) if clouds else None,
        sum(others[1:], others[0]) if others else None,
    )


def parts_of(what: str, state: State, split: Split, levels: Levels) -> State:
    """What is here of the variables that count, each of which lies as all others."""
    if split is WHOLE:
        refuse_shards(what, state)
        return state
    found = {}
    for name in [name for name in UNITS if name in state]:
        x = state[name]
        rows = None if name in SURFACE else levels.count
        bare = name == GROUND and getattr(x, "ndim", 0) == len(split.grid(()))
        found[name] = split.part(f"{what}[{name!r}]", x, rows, not bare)
    return found


def refuse_shards(what: str, state: Any) -> None:
    """Of a state whose surface pressure is no DTensor."""
    if not check.concrete() or not isinstance(state, Mapping):
        return
    for name in [name for name in UNITS if name in state]:
        check.plain(f"{what}[{name!r}]", state[name])


def split_of(
    before: Any, after: State, fluxes: Mapping[str, Any] | None, members: int | None, levels: Levels
) -> tuple[Split, State, State]:
    """How a state lies on several processes, and what is here of both, as all of them agree."""
    split = Split.of("after['surface_pressure']", after["surface_pressure"])
    if split is WHOLE:
        refuse_shards("before", before)
        refuse_shards("after", after)
        return split, before, after
    if not check.concrete():
        raise InputError(
            "`after` is in shards (DTensor): it is fixed outside of compiled code and of "
            "`torch.func`. Use .full_tensor()."
        )
    if members is not None and split.members:
        raise InputError(
            "`members` is for members that one process holds, and the batch is in shards "
            "(DTensor). Give `std`, or use .full_tensor()."
        )
    if not isinstance(before, Mapping):
        raise InputError(f"`before` must be a dictionary of tensors; got {type(before).__name__}.")
    old, new = (
        parts_of(what, each, split, levels) for what, each in (("before", before), ("after", after))
    )
    maps = {n: x for n, x in by_variable("fluxes", fluxes).items() if is_sharded(x)}
    split.agree([old, new, {n: split.part(f"fluxes[{n!r}]", x) for n, x in maps.items()}])
    return split, old, new


def joined(
    after: State, fixed: dict[str, Tensor], split: Split, levels: Levels
) -> dict[str, Tensor]:
    """The fixed state as it lay on several processes."""
    if split is WHOLE:
        return fixed
    rows = dict.fromkeys(ON_LEVELS, levels.count)
    return {**after, **{n: split.whole(fixed[n], rows.get(n)) for n in MOVED if n in fixed}}


def inflow_of(
    fluxes: Mapping[str, Any] | None,
    seconds: float,
    batch: int,
    grid: tuple[int, ...],
    weights: Tensor,
    split: Split = WHOLE,
) -> tuple[Tensor, list[Look]]:
    """Global means of what flows into each law, (batch, 3), float64; 0 where nothing is said."""
    found = weights.new_zeros(batch, 3)
    looks: list[Look] = []
    for name, value in by_variable("fluxes", fluxes).items():
        check.choice("fluxes", name, tuple(FLUXES))
        if isinstance(value, int | float):
            if check.concrete():
                _check_range(f"fluxes[{name!r}]", name, value, value)
            found[:, FLUXES[name]].add_(seconds * value)
            continue
        t = check.as_tensor(f"fluxes[{name!r}]", value)
        t = split.flux(f"fluxes[{name!r}]", t).to(weights.device, torch.float64)
        if tuple(t.shape) == (batch, *grid):
            t = split.total(t.flatten(1) @ weights)
        elif tuple(t.shape) not in ((), (batch,)):
            raise InputError(
                f"`fluxes[{name!r}]` has the shape {tuple(t.shape)}; it must be a number, global "
                f"means (batch,), or have the axes (batch, *grid), {(batch, *grid)}."
            )
        if check.concrete(t):
            judge = partial(_check_ends, f"fluxes[{name!r}]", name)
            looks.append(Look(t.detach().aminmax(), judge))
        found[:, FLUXES[name]].add_(t, alpha=seconds)
    return found, looks


def is_labelled(state: Any) -> bool:
    return hasattr(state, "data_vars")


def tensors(state: Any, grid: tuple[int, ...]) -> Any:
    """The variables of a dataset that fixers know, as tensors with a batch axis."""
    if not is_labelled(state):
        return state
    return {name: _tensor(name, state[name], grid) for name in UNITS if name in state.data_vars}


def _tensor(name: str, variable: Any, grid: tuple[int, ...]) -> Tensor:
    unit = variable.attrs.get("units")
    if unit is not None and unit not in SAME[UNITS[name][0]]:
        raise InputError(f"`{name}` must be in {UNITS[name][0]}; its units are {unit!r}.")
    own = len(grid) + (name not in SURFACE)
    if variable.ndim not in (own, own + 1):
        raise InputError(
            f"`{name}` has the dimensions {variable.dims}; it must have those of the grid of shape "
            f"{grid} last, {'a level before these, ' if own > len(grid) else ''}and at most one "
            "for members first. Use .transpose."
        )
    values = check.raw(name, variable.values)
    return values if variable.ndim > own or name == GROUND else values[None]


def like(given: Any, fixed: Mapping[str, Tensor], grid: tuple[int, ...]) -> Any:
    """The fixed state, as a dataset where a dataset was given."""
    if not is_labelled(given):
        return fixed
    new = {}
    for name in MOVED:
        if name in fixed:
            old = given[name]
            new[name] = old.copy(data=fixed[name].detach().cpu().numpy().reshape(old.shape))
    return given.assign(new)
