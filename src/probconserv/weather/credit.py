"""The fixer as a post-block of CREDIT, `miles-credit`, which is imported only when it is used."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..support.errors import InputError
from ._fixer import Fixer
from ._grid import Grid, Levels
from ._std import MOVED as STATE
from ._std import ON_LEVELS

Terms = Mapping[str, float]  # variables of CREDIT and what they are multiplied by


class CreditFixer:
    """Closes dry air, water and energy in a batch of CREDIT; `ConservationFixer` is its post-block.

    The step begins with `batch["x_physical"]` and ends with `batch["y_processed"]`, both
    ``{source: {variable: tensor}}`` in physical units, (batch, level, time, lat, lon) each.
    Put it after the inverse scaling. A step that begins with the surface pressure of the last
    result goes on with that rollout; any other begins a new one.

    Parameters
    ----------
    fixer : Fixer
        For the grid and the levels of the model.
    variables : dict of str
        The variable of CREDIT for each name of the state, such as
        ``{"surface_pressure": "era5/prognostic/2d/SP"}``.
    seconds : float
        The length of a step.
    fluxes : dict of dict of float
        For `evaporation`, `top_energy` and `surface_energy` the variables that add up to it, and
        what each is multiplied by. They are looked up in the result, then in the input.
    precipitation_factor : float
        What the precipitation of CREDIT is multiplied by for kg m-2 s-1: 1000 / seconds for metres.
    """

    def __init__(
        self,
        fixer: Fixer,
        variables: Mapping[str, str],
        seconds: float,
        fluxes: Mapping[str, Terms] | None = None,
        precipitation_factor: float = 1.0,
    ) -> None:
        if missing := [name for name in STATE if name not in variables]:
            raise InputError(f"`variables` must name {', '.join(STATE)}; got none for {missing}.")
        self.fixer, self.variables, self.seconds = fixer, dict(variables), seconds
        self.fluxes, self.factor = dict(fluxes or {}), precipitation_factor
        self._last: Tensor | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch with the four variables of its result replaced.

        Parameters
        ----------
        batch : dict
            With `x_physical` and `y_processed`. Neither its dicts nor its tensors are changed.

        Returns
        -------
        dict
            A new one.

        Raises
        ------
        InputError
            If a variable is missing, or the result has several times.
        """
        before, after = self._state(batch["x_physical"], -1), self._state(batch["y_processed"], 0)
        after["precipitation"] = after["precipitation"] * self.factor
        before.pop("precipitation", None)
        if self._last is None or not _same(self._last, before["surface_pressure"]):
            self.fixer.reset()
        fluxes = {name: self._sum(terms, batch) for name, terms in self.fluxes.items()}
        fixed = self.fixer(before, after, self.seconds, fluxes=fluxes)
        self._last = fixed["surface_pressure"].detach()
        results = {source: dict(held) for source, held in batch["y_processed"].items()}
        for name in STATE:
            value = fixed[name] / self.factor if name == "precipitation" else fixed[name]
            shown = value if value.dim() == 4 else value.unsqueeze(1)
            key = self.variables[name]
            results[_source(key)][key] = shown.unsqueeze(2)
        return {**batch, "y_processed": results}

    def _state(self, held: Mapping[str, Mapping[str, Tensor]], time: int) -> dict[str, Tensor]:
        state = {}
        for name, key in self.variables.items():
            found = held.get(_source(key), {}).get(key)
            if found is None and (time == 0 or name != "precipitation"):
                raise InputError(f"`batch` must hold {key!r}, which is the {name}.")
            if found is not None:
                field = _at(found, time, key)
                state[name] = field if name in ON_LEVELS else field.squeeze(1)
        return state

    def _sum(self, terms: Terms, batch: Mapping[str, Any]) -> Tensor:
        total: Any = 0.0
        for key, factor in terms.items():
            found = batch["y_processed"].get(_source(key), {}).get(key)
            time = 0 if found is not None else -1
            if found is None:
                found = batch["x_physical"].get(_source(key), {}).get(key)
            if found is None:
                raise InputError(f"`batch` must hold {key!r}, which `fluxes` names.")
            total = total + factor * _at(found, time, key).squeeze(1)
        return torch.as_tensor(total)


def __getattr__(name: str) -> Any:
    """`ConservationFixer`, made when it is first asked for: its base class is CREDIT's."""
    if name == "ConservationFixer":
        return _block()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@functools.cache
def _block() -> type:
    from credit.postblock.base import BasePostblock

    class ConservationFixer(BasePostblock):  # type: ignore[misc]  # untyped there
        """A `CreditFixer` with a grid and levels from a file, as a configuration describes it.

        Parameters
        ----------
        statics : str
            A NetCDF file or Zarr store with latitudes, longitudes and the half levels.
        latitude, longitude, a, b : str
            Names in it; `a` in Pa.
        areas : str
            The name of the areas in it, where the latitudes are not evenly spaced.
        laws, std
            Of `Fixer`.
        variables, seconds, fluxes, precipitation_factor
            Of `CreditFixer`.
        """

        def __init__(
            self,
            statics: str,
            latitude: str = "latitude",
            longitude: str = "longitude",
            a: str = "hyai",
            b: str = "hybi",
            areas: str | None = None,
            laws: Sequence[str] = ("dry_air", "water", "energy"),
            std: Mapping[str, Any] | None = None,
            **options: Any,
        ) -> None:
            super().__init__()
            grid, levels = _places(statics, (latitude, longitude), (a, b), areas)
            fixer = Fixer(grid, levels, std=std, laws=tuple(laws), ledger=False)
            self.fix = CreditFixer(fixer, **options)

        def forward(self, batch: dict[str, Any]) -> dict[str, Any]:
            """The batch with its result fixed."""
            return self.fix(batch)

    ConservationFixer.__module__ = __name__
    return ConservationFixer


def _places(
    statics: str, axes: tuple[str, str], half: tuple[str, str], areas: str | None
) -> tuple[Grid, Levels]:
    import xarray

    opened = xarray.open_zarr if statics.rstrip("/").endswith(".zarr") else xarray.open_dataset
    with opened(statics) as held:
        levels = Levels.hybrid(held[half[0]].values, held[half[1]].values)
        if areas is not None:
            return Grid(held[areas].values), levels
        lat, lon = (held[name].values for name in axes)
    if lat.ndim == 2:
        lat, lon = lat[:, 0], lon[0]
    return Grid.regular(lat, lon), levels


def _source(key: str) -> str:
    return key.split("/")[0]


def _at(found: Tensor, time: int, key: str) -> Tensor:
    """The field at one time, (batch, level, lat, lon)."""
    if found.dim() != 5:
        raise InputError(f"{key!r} must be (batch, level, time, lat, lon); got {found.shape}.")
    if time == 0 and found.shape[2] != 1:
        raise InputError(f"{key!r} must have one time in the result; got {found.shape[2]}.")
    return found[:, :, time]


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other.to(one))
