"""Ledger: what was corrected, where, and how much, over a rollout."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..air.contents import LAWS
from ..support.errors import InputError
from ..support.extras import missing
from ._close import Closed
from ._grid import Grid, Levels
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
        closed: Closed,
        target: Tensor,
        seconds: float,
    ) -> None:
        """Adds a step; the fixer calls it.

        Parameters
        ----------
        after, fixed : dict of Tensor
            The state as the model made it, and corrected.
        closed : Closed
            What the solve found.
        target : Tensor, shape ``(batch, 3)``
            What the totals should be.
        seconds : float
            The length of the step.
        """
        tally = closed.tally
        if tally is None:
            return
        w, shares, profiles = tally.weights, tally.shares, tally.profiles
        batch = len(target)
        maps = dict(zip(ON_LEVELS, tally.maps / batch, strict=True))
        means = dict(zip(ON_LEVELS, (profiles @ shares).unbind(-1), strict=True))
        for name in set(MOVED) - set(ON_LEVELS):
            if name in after:
                moved = fixed[name].double().flatten(1) - after[name].double().flatten(1)
                maps[name], means[name] = moved.mean(0), moved @ w
        self._add(self._maps, maps)
        self._add(self._profiles, {"": profiles.mean(0)})
        every = torch.stack([means.get(name, w.new_zeros(batch)) for name in MOVED], -1)
        rows = {"total_before": tally.started, "total": tally.totals, "target": target}
        for name, row in (rows | {"correction": every}).items():
            self._rows.setdefault(name, []).append(row.detach())
        self._seconds.append(seconds)

    @staticmethod
    def _add(kept: dict[str, Tensor], more: dict[str, Tensor]) -> None:
        for name, each in more.items():
            kept[name] = kept[name] + each if name in kept else each

    def to_xarray(self) -> Any:
        """The ledger as an `xarray.Dataset`.

        Returns
        -------
        xarray.Dataset
            ``total_before``, ``total`` and ``target`` of each step, member and law: means over
            the sphere, of the state as the model made it (what is negative counts as 0),
            corrected, and as the budget says. ``correction`` of each step, member and variable: its
            mean over the air. ``map`` and ``profile``: corrections added up over all steps, mean
            over members; maps of what is on levels are means over the column.

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
        on_grid = (
            ("lat", "lon")
            if self.grid.lat is not None
            else tuple(
                f"cell_{i}" if len(self.grid.shape) > 1 else "cell"
                for i in range(len(self.grid.shape))
            )
        )
        maps = [self._maps.get(n, torch.zeros(self.grid.areas.numel())) for n in MOVED]
        whole = torch.stack([x.double().cpu() for x in maps]).unflatten(-1, self.grid.shape)
        data["map"] = (("variable", *on_grid), whole.numpy())
        data["profile"] = (("on_levels", "level"), self._profiles[""].cpu().numpy())
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
