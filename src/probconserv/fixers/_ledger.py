"""Ledger: what was corrected, where, and how much, over a rollout."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .._errors import InputError
from .._extras import missing
from ._close import BLOCK, parts
from ._columns import LAWS, Air, content, held
from ._grid import Grid
from ._levels import USUAL, Levels
from ._state import air_of
from ._std import MOVED, ON_LEVELS


class Ledger:
    """What a fixer corrected: a series of global numbers, and sums over all steps for each place.

    It grows by a few numbers for each step and member; maps and profiles are sums.

    Parameters
    ----------
    grid : Grid
        Of the fixer.
    levels : Levels
        Of the fixer.
    """

    def __init__(self, grid: Grid, levels: Levels) -> None:
        self.grid, self.levels = grid, levels
        self._rows: dict[str, list[Tensor]] = {}
        self._maps: dict[str, Tensor] = {}
        self._profiles: dict[str, Tensor] = {}
        self._seconds: list[float] = []

    def __len__(self) -> int:
        return len(self._seconds)

    def record(
        self,
        after: Mapping[str, Tensor],
        fixed: Mapping[str, Tensor],
        target: Tensor,
        change: Tensor,
        seconds: float,
    ) -> None:
        """Adds a step; the fixer calls it.

        Parameters
        ----------
        after, fixed : dict of Tensor
            The state as the model made it, and corrected.
        target, change : Tensor, shape ``(batch, 3)``
            What the totals should be, and what came in during the step.
        seconds : float
            The length of the step.
        """
        old = air_of(after)
        new = replace(
            old,
            pressure=fixed["surface_pressure"].flatten(1),
            vapour=fixed["specific_humidity"].flatten(2),
            temperature=fixed["temperature"].flatten(2) if "temperature" in fixed else old.vapour,
        )
        w = self.grid.areas.flatten().to(old.pressure.device)
        if "temperature" not in fixed:
            new = replace(new, temperature=old.temperature)
        totals, maps, profiles = self._moves(old, new, w)
        means = {name: each @ self._shares.to(w.device) for name, each in profiles.items()}
        for name in set(MOVED) - set(ON_LEVELS):
            if name in after:
                moved = fixed[name].double().flatten(1) - after[name].double().flatten(1)
                maps[name], means[name] = moved.mean(0), moved @ w
        self._add(self._maps, maps)
        self._add(self._profiles, {name: each.mean(0) for name, each in profiles.items()})
        rows = {"total_before": totals[0], "total": totals[1], "target": target, "inflow": change}
        for name, row in rows.items():
            self._rows.setdefault(name, []).append(row)
        nothing = w.new_zeros(len(target))
        found = torch.stack([means.get(name, nothing) for name in MOVED], -1)
        self._rows.setdefault("correction", []).append(found)
        self._seconds.append(seconds)

    def _moves(
        self, old: Air, new: Air, w: Tensor
    ) -> tuple[tuple[Tensor, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """Totals before and after, (batch, 3); maps (N,) and profiles (batch, K) of what moved."""
        shares = self._shares.to(w.device)
        batch, count, columns = old.vapour.shape
        totals = w.new_zeros(batch, 3), w.new_zeros(batch, 3)
        maps = {name: w.new_zeros(columns) for name in ON_LEVELS}
        profiles = {name: w.new_zeros(batch, count) for name in ON_LEVELS}
        whole = old.vapour.is_cuda
        for m in parts(batch, batch if whole else 1):
            for c in parts(columns, columns if whole else max(1, BLOCK // count)):
                pair = old.at(m, c), new.at(m, c)
                for total, air in zip(totals, pair, strict=True):
                    layers = self.levels.layers(air.pressure)
                    column = held(air, layers, air.vapour, air.temperature)
                    total[m] += content(column, air.pressure) @ w[c]
                moved = {
                    "temperature": pair[1].temperature - pair[0].temperature,
                    "specific_humidity": pair[1].vapour - pair[0].vapour,
                }
                for name, each in moved.items():
                    maps[name][c] += (shares @ each).sum(0) / batch
                    profiles[name][m] += each @ w[c]
        return totals, maps, profiles

    @property
    def _shares(self) -> Tensor:
        """Of the air that each level holds, at a usual surface pressure."""
        half = self.levels.a + self.levels.b * USUAL
        return half.diff() / half.diff().sum()

    @staticmethod
    def _add(kept: dict[str, Tensor], more: dict[str, Tensor]) -> None:
        for name, each in more.items():
            kept[name] = kept[name] + each if name in kept else each

    def to_xarray(self) -> Any:
        """The ledger as an `xarray.Dataset`.

        Returns
        -------
        xarray.Dataset
            ``total_before``, ``total``, ``target`` and ``inflow`` of each step, member and law:
            means over the sphere, of the state as the model made it, corrected, as the budget
            says, and what came in. ``correction`` of each step, member and variable: its mean over
            the air. ``map`` and ``profile``: corrections added up over all steps, mean over
            members; maps of what is on levels are means over the column.

        Raises
        ------
        InputError
            If nothing is recorded yet.
        """
        try:
            import xarray
        except ImportError as error:
            raise ImportError(missing("xarray", "files"), name="xarray") from error
        if not self._seconds:
            raise InputError("`ledger`: nothing is recorded yet; call the fixer first.")
        rows = {name: torch.stack(each).cpu().numpy() for name, each in self._rows.items()}
        axes = ("step", "member")
        data: dict[str, Any] = {
            name: ((*axes, "variable" if name == "correction" else "law"), each)
            for name, each in rows.items()
        }
        on_grid = ("lat", "lon") if self.grid.lat is not None else tuple(
            f"cell_{i}" if len(self.grid.shape) > 1 else "cell"
            for i in range(len(self.grid.shape))
        )
        maps = [self._maps.get(n, torch.zeros(self.grid.areas.numel())) for n in MOVED]
        whole = torch.stack([x.double().cpu() for x in maps]).unflatten(-1, self.grid.shape)
        data["map"] = (("variable", *on_grid), whole.numpy())
        profiles = torch.stack([self._profiles[name].cpu() for name in ON_LEVELS])
        data["profile"] = (("on_levels", "level"), profiles.numpy())
        time = torch.tensor(self._seconds, dtype=torch.float64).cumsum(0).numpy()
        coords: dict[str, Any] = {
            "step": range(1, len(time) + 1),
            "time": ("step", time, {"units": "s"}),
            "law": list(LAWS),
            "variable": list(MOVED),
            "on_levels": list(ON_LEVELS),
            "pressure": ("level", self.levels.nominal.numpy(), {"units": "Pa"}),
        }
        if self.grid.lat is not None and self.grid.lon is not None:
            coords |= {"lat": self.grid.lat, "lon": self.grid.lon}
        return xarray.Dataset(data, coords)
