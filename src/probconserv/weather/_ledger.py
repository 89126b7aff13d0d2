"""Ledger: what was corrected, where, and how much, over a rollout."""

from collections.abc import Mapping
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..air.contents import LAWS
from ..support.errors import InputError
from ..support.extras import missing
from ._close import Changes, Closed, Closing
from ._grid import Grid, Levels
from ._solve import RAIN
from ._split import Split
from ._std import MOVED, ON_LEVELS


class Step(NamedTuple):
    """Numbers of a step, of which rows are made when they are asked for; see `Closed`."""

    seconds: float
    asked_of: Tensor  # (batch, 3), totals with the precipitation of the step
    asked: Tensor
    missing: Tensor
    rained: Tensor  # (batch,)
    fallen: Tensor
    target: Tensor  # (batch, 3)
    carry: Tensor
    correction: Tensor  # (batch, 4)

    def rows(self) -> dict[str, Tensor]:
        rain = self.target.new_tensor(RAIN)
        before = self.asked_of - self.asked - self.rained.reshape(-1, 1) * rain
        now = self.asked_of - self.missing - self.fallen.reshape(-1, 1) * rain
        rows = {"total_before": before, "total": now, "target": self.target + self.carry}
        return {**rows, "correction": self.correction}


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
        self._steps: list[Step] = []
        self._maps: dict[Split, Tensor] = {}  # (4, N), of the columns that are here
        self._profiles: Tensor | None = None  # (2, K)

    def __len__(self) -> int:
        return len(self._steps)

    def record(
        self,
        after: Mapping[str, Tensor],
        fixed: Mapping[str, Tensor],
        task: Closing,
        closed: Closed,
        running: tuple[Tensor, Tensor],
    ) -> None:
        """Adds a step; the fixer calls it.

        Parameters
        ----------
        after, fixed : dict of Tensor
            The state as the model made it, and corrected.
        task, closed : Closing and Closed
            What was asked, and what the solve found.
        running : two Tensor, shape ``(batch, 3)``
            What the totals should be, and what is lost of that in rounding.
        """
        found = closed.changes or _changes(after, fixed, task)
        split, rain = task.split, (closed.rained, closed.fallen)
        numbers = (closed.target, closed.asked, closed.missing, *rain, *running, found.means)
        kept = (split.gathered(x.detach() if x.requires_grad else x) for x in numbers)
        self._steps.append(Step(task.duration, *kept))
        self._maps[split] = found.maps + self._maps[split] if split in self._maps else found.maps
        more = found.profiles
        self._profiles = more if self._profiles is None else self._profiles + more

    def to_xarray(self) -> Any:
        """The ledger as an `xarray.Dataset`. Of states in shards all processes call this together.

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
        if self._profiles is None:
            raise InputError("`ledger`: nothing is recorded yet; call the fixer first.")
        every = [each.rows() for each in self._steps]
        rows = {name: torch.stack([r[name] for r in every]).cpu().numpy() for name in every[0]}
        axes = ("step", "member")
        data: dict[str, Any] = {
            name: ((*axes, "variable" if name == "correction" else "law"), each)
            for name, each in rows.items()
        }
        maps = reduce(torch.add, [split.joined(x) for split, x in self._maps.items()])
        count = len(self.grid.shape)
        cells = ["cell"] if count == 1 else [f"cell_{i}" for i in range(count)]
        on_grid = cells if self.grid.lat is None else ["lat", "lon"]
        data["map"] = (
            ("variable", *on_grid),
            maps.cpu().unflatten(-1, self.grid.shape).numpy(),
        )
        data["profile"] = (("on_levels", "level"), self._profiles.cpu().numpy())
        time = torch.tensor([x.seconds for x in self._steps], dtype=torch.float64).cumsum(0).numpy()
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


def _changes(after: Mapping[str, Tensor], fixed: Mapping[str, Tensor], task: Closing) -> Changes:
    w, shares, split = task.weights, task.levels.shares, task.split
    batch, size = len(task.air.pressure), len(w)
    means, maps = dict.fromkeys(MOVED, w.new_zeros(batch)), dict.fromkeys(MOVED, w.new_zeros(size))
    profiles = dict.fromkeys(ON_LEVELS, torch.zeros_like(shares))
    for name in [name for name in MOVED if name in after]:
        if name in ON_LEVELS:
            moved = (fixed[name] - after[name]).flatten(2)  # (batch, K, N)
            profile = split.total(moved @ w.to(moved.dtype)).double()
            column, means[name] = shares.to(moved.dtype) @ moved, profile @ shares
            profiles[name] = split.gathered(profile).mean(0)
        else:
            column = fixed[name].double().flatten(1) - after[name].double().flatten(1)
            means[name] = split.total(column @ w)
        maps[name] = split.share(column.double().mean(0))
    found = (torch.stack([*each.values()]) for each in (means, maps, profiles))
    of_members, *others = found
    return Changes(of_members.mT, *others)
