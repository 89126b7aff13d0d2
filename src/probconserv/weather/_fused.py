"""Budgets closed on a GPU by the kernels of `solvers/kernels/columns.py`, in few passes.

They take states without clouds, winds and a surface of their own, on levels that are not cut, and
make as many rounds as nearly always do; the rest is for `close`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from ._close import Changes, Closed, Closing
from ._grid import AIR, SHARES
from ._kernels import has_kernels, tiled
from ._solve import RAIN, inverse_of

CONTENTS, RESPONSES, MOVED, MOST = 4, 9, 4, 3  # numbers of a programme


def is_fused(task: Closing) -> bool:
    """Whether the kernels take this."""
    air = task.air
    if task.levels.cut or air.water is not None or air.energy is not None:
        return False
    widths = [x for error in task.errors.values() for x in error.tensors if x is not None]
    every = air.vapour, air.temperature, air.pressure, task.rain, task.target
    return has_kernels(*every, *widths, *task.before.values())


def close_fused(task: Closing, rounds: int) -> Closed:
    """The state that closes the budgets, by so many rounds of Newton's method and the last move."""
    fields = {
        "specific_humidity": task.air.vapour,
        "temperature": task.air.temperature,
        "surface_pressure": task.air.pressure,
        "precipitation": task.rain,
    }
    moves = Moves.of(fields, task)
    of_laws, of_pairs = _shares(task.weights.device)
    sums = moves.contents_and_responses()
    rained, scale = sums[:, 3], task.scale()
    inverse = inverse_of((sums[:, CONTENTS:] @ of_pairs).unflatten(1, (3, 3)), task.laws)
    missing = asked = task.target - sums[:, :CONTENTS] @ of_laws
    multipliers = inverse.bmm(missing[..., None])[..., 0]
    for _ in range(rounds):
        missing = task.target - moves.contents(multipliers) @ of_laws
        multipliers = torch.baddbmm(multipliers[..., None], inverse, missing[..., None])[..., 0]
    new = tuple(torch.empty_like(x) for x in moves.fields)
    parts, profiles, maps = moves.write(multipliers, new, task.recorded)
    sums, most = parts.sum(1), parts[..., -MOST:].amax(1)
    changes = None
    if task.recorded:
        means = sums[:, CONTENTS:-MOST]
        changes = Changes(means, maps.mean(0), profiles.sum((0, 1)) / len(means))
    left = task.target - sums[:, :CONTENTS] @ of_laws
    worst = (torch.stack([left, missing]) / scale).abs().amax((1, 2))
    vapour, temperature, pressure, rain = new
    return Closed(
        pressure,
        rain,
        vapour,
        temperature,
        rained=rained,
        fallen=sums[:, 3],
        asked=asked,
        missing=left,
        far=most[:, 0],
        ends=(-most[:, 2], most[:, 1]),
        worst=worst,
        changes=changes,
    )


@cache
def _shares(device: torch.device) -> tuple[Tensor, Tensor]:
    """Of what kernels add up in the laws, (4, 3), and in pairs of them, (9, 9)."""
    of_laws = torch.tensor((AIR, *SHARES[:2], RAIN), dtype=torch.float64)
    products = of_laws[:, None, :, None] * of_laws[:, None]  # (4, 4, 3, 3)
    pairs = [products[i, j] + (i != j) * products[j, i] for i in range(3) for j in range(i, 3)]
    pairs += [products[i, i] for i in (3, 1, 2)]
    return of_laws.to(device), torch.stack(pairs).flatten(1).to(device)


@dataclass(frozen=True, eq=False)
class Moves:
    """What the kernels read of a state."""

    fields: tuple[Tensor, ...]  # vapour, temperature (batch, K, N), pressure, rain (batch, N)
    constants: tuple[Tensor, ...]
    widths: tuple[Tensor, ...]
    strides: tuple[int, ...]
    kinds: Mapping[str, int]
    shares: Tensor
    air: Tensor  # (K,), the share of each layer

    @classmethod
    def of(cls, fields: Mapping[str, Tensor], task: Closing) -> "Moves":
        weights, errors = task.weights, task.all_errors()
        layers = task.levels.layers(task.air.pressure)
        widths: list[Tensor] = []
        strides: list[int] = []
        kinds = []
        for name, x in fields.items():
            given = [each for each in errors[name].tensors if each is not None]
            kinds.append(2 if len(given) == 2 else int(errors[name].known is None))
            for each in given if name != "specific_humidity" else (given * 2)[:2]:
                widths.append(each)
                strides.extend(each.expand(x.shape).stride())
        seconds = torch.full((), task.duration, dtype=weights.dtype, device=weights.device)
        return cls(
            tuple(x.contiguous() for x in fields.values()),
            (weights, layers.lines, layers.moving, layers.air, seconds),
            tuple(widths),
            tuple(strides),
            {"Q": kinds[0], "R": kinds[3]},
            layers.shares,
            task.levels.shares,
        )

    def contents_and_responses(self) -> Tensor:
        """Of air, vapour, heat and rain, and of what multipliers move, (batch, 13)."""
        return self._by_kernel(0, self.shares, self.fields).sum(1)

    def contents(self, multipliers: Tensor) -> Tensor:
        """Of what would be moved so, (batch, 4)."""
        return self._by_kernel(1, multipliers, self.fields)[..., :CONTENTS].sum(1)

    def write(
        self, multipliers: Tensor, new: tuple[Tensor, ...], recorded: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Moves; contents, changes and largest numbers, by part, and what is recorded."""
        batch, levels, size = self.fields[0].shape
        if not recorded:
            return self._by_kernel(2, multipliers, new), self.shares, self.shares
        profiles = self.shares.new_empty(batch, tiled(levels, size)[1], 2, levels)
        maps = self.shares.new_empty(batch, 4, size)
        return self._by_kernel(3, multipliers, new, profiles, maps), profiles, maps

    def _by_kernel(
        self, do: int, multipliers: Tensor, new: tuple[Tensor, ...], *recorded: Tensor
    ) -> Tensor:
        from ..solvers.kernels.columns import column_sums

        batch, levels, size = self.fields[0].shape
        tile, parts = tiled(levels, size)
        numbers = CONTENTS + (MOVED + MOST if do else RESPONSES)
        found = self.shares.new_empty(batch, parts, numbers)
        column_sums[(parts, batch)](
            *self.fields, *self.constants, *self.widths, *self.strides, multipliers, self.shares,
            *new, found, self.air, *(recorded or (found, found)), levels, size, DO=do,
            **self.kinds, **tile,
        )  # fmt: skip
        return found
