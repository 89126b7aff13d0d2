"""The fixer as a correction of ACE, the package `fme`, which is imported only when it is used."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..air.contents import LAWS, geopotential
from ..support.errors import InputError
from ._fixer import Fixer
from ._grid import Grid, Levels

LATENT_HEAT = 2.5e6  # J/kg, with which ACE turns the latent heat flux into evaporation
LATENT_HEAT_OF_FREEZING = 3.34e5  # J/kg, of snow in its surface energy flux

SURFACE: dict[str, tuple[str, ...]] = {  # names of ACE, its own models first
    "surface_pressure": ("PRESsfc", "PS"),
    "precipitation": ("PRATEsfc", "surface_precipitation_rate", "PRECT"),
}
LEVELS: dict[str, tuple[str, ...]] = {
    "temperature": ("air_temperature_", "T_"),
    "specific_humidity": ("specific_total_water_", "STW_"),
}
LATENT_FLUX = ("LHTFLsfc", "LHFLX")
INTO_TOP: dict[tuple[str, ...], float] = {  # W m-2, each with its sign
    ("DSWRFtoa", "SOLIN"): 1.0,
    ("USWRFtoa", "top_of_atmos_upward_shortwave_flux", "FSUTOA"): -1.0,
    ("ULWRFtoa", "FLUT"): -1.0,
}
FROM_SURFACE: dict[tuple[str, ...], float] = {
    ("DSWRFsfc", "FSDS"): -1.0,
    ("USWRFsfc", "surface_upward_shortwave_flux", "FSUS"): 1.0,
    ("DLWRFsfc", "FLDS"): -1.0,
    ("ULWRFsfc", "surface_upward_longwave_flux", "FLUS"): 1.0,
    ("SHTFLsfc", "SHFLX"): 1.0,
    LATENT_FLUX: 1.0,
}
HEIGHT, GEOPOTENTIAL = ("HGTsfc",), ("PHIS",)  # m; m2 s-2, of E3SM
FROZEN = ("total_frozen_precipitation_rate",)
FROZEN_PARTS = ("ICEsfc", "GRAUPELsfc", "SNOWsfc")  # which add up to it, kg m-2 s-1 each
ROUNDING = 1e-6  # of the largest area: the cosine of a pole is a little below 0


class AceCorrection:
    """Closes dry air, water and energy after each step of ACE; a `Correction` of `fme`.

    ACE calls it with what the step began with, what the network made of it, and the forcing. The
    running totals of the rollout travel in the state that ACE hands from step to step, in its one
    field, `global_dry_air_mass`, with the shape (samples, 1, 6): dry air, water and energy, and
    what rounding took from each. Total water counts as vapour. The ground is as high as `HGTsfc`
    says, or `PHIS`, a geopotential; frozen precipitation is `total_frozen_precipitation_rate`, or
    what there is of `ICEsfc`, `GRAUPELsfc` and `SNOWsfc`.

    Parameters
    ----------
    fixer : Fixer
        For the grid and the levels of the model.
    dt : float
        The length of a step, in seconds.
    """

    def __init__(self, fixer: Fixer, dt: float) -> None:
        self.fixer, self.dt, self._steps = fixer, dt, 0

    def __call__(
        self,
        input_data: Mapping[str, Tensor],
        gen_data: Mapping[str, Tensor],
        forcing_data: Mapping[str, Tensor],
        corrector_state: Any,
    ) -> tuple[dict[str, Tensor], Any]:
        """Return the fields that the fixer changed, and the state for the next step.

        Parameters
        ----------
        input_data, gen_data, forcing_data : dict of Tensor
            Under the names of ACE, in physical units, (sample, lat, lon) each.
        corrector_state : CorrectorState or None
            What the last step returned; None begins a rollout.

        Returns
        -------
        modified : dict of Tensor
            Surface pressure, precipitation, temperature and total water of every level.
        corrector_state : CorrectorState
            With the running totals.

        Raises
        ------
        InputError
            If a field is missing, or the state is that of another correction.
        """
        ground = _ground(forcing_data)
        before, after = _state(input_data) | ground, _state(gen_data) | ground
        self._resume(corrector_state)
        fixed = self.fixer(before, after, self.dt, fluxes=_fluxes({**forcing_data, **gen_data}))
        return _named(gen_data, fixed), self._state_after(corrector_state)

    def _resume(self, corrector_state: Any) -> None:
        self.fixer.reset()
        totals = getattr(corrector_state, "global_dry_air_mass", None)
        if totals is None:
            self._steps = 0
            return
        if totals.shape[1:] != (1, 6):
            raise InputError(
                f"`corrector_state` carries {tuple(totals.shape)} numbers and not (samples, 1, 6): "
                "it was made by another correction. Leave `conserve_dry_air` out where this runs."
            )
        target, carry = totals[:, 0].double().chunk(2, -1)
        steps = torch.tensor(self._steps)
        self.fixer.load_state_dict({"_target": target, "_carry": carry, "_steps": steps})

    def _state_after(self, corrector_state: Any) -> Any:
        held = self.fixer.state_dict()
        self._steps += 1
        totals = torch.cat([held["_target"], held["_carry"]], -1)[:, None]
        if corrector_state is None:
            from fme.core.corrector.state import CorrectorState

            return CorrectorState(global_dry_air_mass=totals)
        return dataclasses.replace(corrector_state, global_dry_air_mass=totals)


def register(name: str = "probconserv") -> type:
    """Add the fixer to the correctors of ACE, so that a configuration can name it.

    In the configuration of a step: ``corrector: {type: probconserv, config: {std: {...}}}``.

    Parameters
    ----------
    name : str
        The type under which configurations find it.

    Returns
    -------
    type
        The class of its configuration, with the fields `laws` and `std`.

    Raises
    ------
    ModuleNotFoundError
        If `fme` is not installed.
    """
    from fme.core.corrector.registry import CorrectionSequence, CorrectorConfigABC
    from fme.core.registry.corrector import CorrectorSelector

    @CorrectorSelector.register(name)
    @dataclasses.dataclass
    class FixerConfig(CorrectorConfigABC):  # type: ignore[misc]  # untyped there
        """Configuration of the fixer, as of `Fixer`."""

        laws: list[str] = dataclasses.field(default_factory=lambda: list(LAWS))
        std: dict[str, float | list[float]] = dataclasses.field(default_factory=dict)

        @classmethod
        def remove_deprecated_keys(cls, state: Mapping[str, Any]) -> dict[str, Any]:
            return dict(state)

        def _get_corrector(self, dataset_info: Any) -> Any:
            grid, levels = _places(dataset_info)
            fixer = Fixer(grid, levels, std=self.std, laws=tuple(self.laws), ledger=False)
            seconds = dataset_info.timestep.total_seconds()
            return CorrectionSequence([AceCorrection(fixer, seconds)])

    return FixerConfig


def _places(dataset_info: Any) -> tuple[Grid, Levels]:
    where = dataset_info.horizontal_coordinates
    found = where.area_weights  # None where all are equal, as those of HEALPix
    areas = torch.ones((), dtype=torch.float64) if found is None else found.double().cpu()
    vertical = dataset_info.atmosphere_vertical_coordinate
    if vertical is None:
        raise InputError("`dataset_info` has no vertical coordinate; the fixer needs ak and bk.")
    levels = Levels.hybrid(vertical.get_ak().double().cpu(), vertical.get_bk().double().cpu())
    negligible = areas.abs() <= ROUNDING * areas.max()  # what is negative beyond that is refused
    return Grid(areas.where(~negligible, areas.clamp_min(0.0)).expand(where.shape)), levels


def _found(data: Mapping[str, Tensor], names: tuple[str, ...]) -> Tensor | None:
    return next((data[name] for name in names if name in data), None)


def _field(data: Mapping[str, Tensor], names: tuple[str, ...]) -> Tensor:
    found = _found(data, names)
    if found is None:
        raise InputError(f"`gen_data` or `forcing_data` must hold {' or '.join(names)}.")
    return found


def _level_names(data: Mapping[str, Tensor], prefixes: tuple[str, ...]) -> list[str]:
    """Those of one variable, from level 0, the top, on."""
    for prefix in prefixes:
        numbers = [re.fullmatch(re.escape(prefix) + r"(\d+)", name) for name in data]
        if found := [match for match in numbers if match]:
            return [match[0] for match in sorted(found, key=lambda match: int(match[1]))]
    raise InputError(f"`gen_data` must hold a field for each level: {prefixes[0]}0 and so on.")


def _state(data: Mapping[str, Tensor]) -> dict[str, Tensor]:
    state = {}
    for name, known in LEVELS.items():
        state[name] = torch.stack([data[level] for level in _level_names(data, known)], 1)
    for name, known in SURFACE.items():
        found = _found(data, known)
        if found is not None:
            state[name] = found
    return state


def _named(data: Mapping[str, Tensor], fixed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    named: dict[str, Tensor] = {}
    for name, known in LEVELS.items():
        named |= dict(zip(_level_names(data, known), fixed[name].unbind(1), strict=True))
    for name, known in SURFACE.items():
        named |= {other: fixed[name] for other in known if other in data}
    return named


def _ground(data: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The geopotential of the surface, where ACE has it; below the sea it counts as 0, as there."""
    height, found = _found(data, HEIGHT), _found(data, GEOPOTENTIAL)
    if height is not None:
        found = geopotential(height)
    return {} if found is None else {"surface_geopotential": found.clamp(min=0)}


def _frozen(data: Mapping[str, Tensor]) -> Tensor | float:
    """Precipitation that falls frozen, kg m-2 s-1."""
    whole = _found(data, FROZEN)
    parts = [data[name] for name in FROZEN_PARTS if name in data]
    return whole if whole is not None else torch.stack(parts).sum(0) if parts else 0.0


def _fluxes(data: Mapping[str, Tensor]) -> dict[str, Tensor]:
    surface = _sum(data, FROM_SURFACE) + LATENT_HEAT_OF_FREEZING * _frozen(data)
    return {
        "evaporation": _field(data, LATENT_FLUX) / LATENT_HEAT,
        "top_energy": _sum(data, INTO_TOP),
        "surface_energy": surface,
    }


def _sum(data: Mapping[str, Tensor], terms: Mapping[tuple[str, ...], float]) -> Tensor:
    return torch.stack([sign * _field(data, names) for names, sign in terms.items()]).sum(0)
