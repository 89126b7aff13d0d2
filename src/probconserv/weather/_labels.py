"""States as labelled datasets of xarray, which is imported by whoever makes them."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..support import checks as check
from ..support.errors import InputError
from ._state import GROUND, SURFACE, UNITS
from ._std import MOVED

SAME = {  # other ways to write these units
    "Pa": ("Pa", "pascal", "Pascal"),
    "K": ("K", "kelvin", "Kelvin", "degK"),
    "kg/kg": ("kg/kg", "kg kg-1", "kg kg**-1", "1", ""),
    "kg m-2 s-1": ("kg m-2 s-1", "kg m**-2 s**-1", "kg/m2/s", "kg/m^2/s", "mm/s", "mm s-1"),
    "m/s": ("m/s", "m s-1", "m s**-1"),
    "m2 s-2": ("m2 s-2", "m**2 s**-2", "m2/s2", "m^2/s^2"),
}


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
