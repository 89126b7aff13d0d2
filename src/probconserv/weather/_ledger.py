"""Ledger: what was corrected, where, and how much, over a rollout."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..air.contents import LAWS
from ..support.errors import InputError
from ..support.extras import missing
from ._close import Closed, Closing
from ._grid import Grid, Levels
from ._kernels import has_kernels, level_changes
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
        task: Closing,
        closed: Closed,
        target: Tensor,
    ) -> None:
        """Adds a step; the fixer calls it.

        Parameters
        ----------
        after, fixed : dict of Tensor
            The state as the model made it, and corrected.
        task, closed : Closing and Closed
            What was asked, and what the solve found.
        target : Tensor, shape ``(batch, 3)``
            What the totals should be.
        """
        w, shares = task.weights, task.levels.shares
        means = dict.fromkeys(MOVED, w.new_zeros(len(target)))
        for name in [name for name in MOVED if name in after]:
            flat = task.weights.numel()
            new, old = (x[name].reshape(len(target), -1, flat) for x in (fixed, after))
            share = shares if name in ON_LEVELS else torch.ones_like(shares[:1])
            profiles, column = _changes(new, old, w, share)
            _add(self._maps, name, column)
            means[name] = profiles @ share
            if name in ON_LEVELS:
                _add(self._profiles, name, profiles.mean(0))
        fallen = closed.rained, closed.fallen
        before, now = (
            task.target - lost - fell[:, None] * task.laws.rain
            for lost, fell in zip((closed.asked, closed.missing), fallen, strict=True)
        )
        rows = {"total_before": before, "total": now, "target": target}
        rows["correction"] = torch.stack([*means.values()], -1)
        for name, row in rows.items():
            self._rows.setdefault(name, []).append(row.detach())
        self._seconds.append(task.duration)

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
        count = len(self.grid.shape)
        cells = ["cell"] if count == 1 else [f"cell_{i}" for i in range(count)]
        on_grid = cells if self.grid.lat is None else ["lat", "lon"]
        maps = [self._maps.get(n, torch.zeros(self.grid.areas.numel())) for n in MOVED]
        whole = torch.stack([x.double().cpu() for x in maps]).unflatten(-1, self.grid.shape)
        data["map"] = (("variable", *on_grid), whole.numpy())
        each = [self._profiles.get(n, torch.zeros(self.levels.count)).double() for n in ON_LEVELS]
        data["profile"] = (("on_levels", "level"), torch.stack([x.cpu() for x in each]).numpy())
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


def _changes(new: Tensor, old: Tensor, w: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Means of each level, (batch, K), and of the members' columns, (N,), in float64."""
    if has_kernels(new, old):
        return level_changes(new, old, w, shares)
    dtype = new.dtype if len(shares) > 1 else w.dtype
    moved = new.to(dtype) - old.to(dtype)  # (batch, K, N)
    return (moved @ w.to(dtype)).double(), (shares.to(dtype) @ moved).double().mean(0)


def _add(kept: dict[str, Tensor], name: str, more: Tensor) -> None:
    kept[name] = kept[name] + more if name in kept else more
