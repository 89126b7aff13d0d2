"""Budgets closed on a GPU by the kernels of `solvers/kernels/columns.py`, in few passes.

They take states without clouds, winds and a surface of their own, on levels that are not cut, and
make as many rounds as nearly always do; the rest is for `close`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from ._close import Closed, Closing
from ._grid import AIR, SHARES, Layers
from ._kernels import has_kernels, tiled
from ._solve import inverse_of
from ._std import Error

RAIN = (0.0, 1.0, 0.0)  # of precipitation in each law
CONTENTS, RESPONSES, MOST = 4, 9, 3  # numbers of a programme


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
    layers = task.levels.layers(task.air.pressure)
    moves = Moves.of(fields, task.weights, layers, task.all_errors(), task.duration)
    of_laws, of_pairs = _shares(task.weights.device)
    sums = moves.sums(0, layers.shares, moves.fields).sum(1)
    rained, scale = sums[:, 3], task.scale()
    inverse = inverse_of((sums[:, CONTENTS:] @ of_pairs).unflatten(1, (3, 3)), task.laws)
    missing = asked = task.target - sums[:, :CONTENTS] @ of_laws
    multipliers = inverse.bmm(missing[..., None])[..., 0]
    for _ in range(rounds):
        sums = moves.sums(1, multipliers, moves.fields).sum(1)
        missing = task.target - sums[:, :CONTENTS] @ of_laws
        multipliers = torch.baddbmm(multipliers[..., None], inverse, missing[..., None])[..., 0]
    new = tuple(torch.empty_like(x) for x in moves.fields)
    parts = moves.sums(2, multipliers, new)
    sums, most = parts[..., :CONTENTS].sum(1), parts[..., CONTENTS:].amax(1)
    left = task.target - sums @ of_laws
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
        ends=(-most[:, 2].max(), most[:, 1].max()),
        worst=worst,
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

    @classmethod
    def of(
        cls,
        fields: Mapping[str, Tensor],
        weights: Tensor,
        layers: Layers,
        errors: Mapping[str, Error],
        duration: float,
    ) -> "Moves":
        widths: list[Tensor] = []
        strides: list[int] = []
        kinds = []
        for name, x in fields.items():
            given = [each for each in errors[name].tensors if each is not None]
            kinds.append(2 if len(given) == 2 else int(errors[name].known is None))
            for each in given if name != "specific_humidity" else (given * 2)[:2]:
                widths.append(each)
                strides.extend(each.expand(x.shape).stride())
        seconds = torch.full((), duration, dtype=weights.dtype, device=weights.device)
        return cls(
            tuple(x.contiguous() for x in fields.values()),
            (weights, layers.lines, layers.moving, layers.air, seconds),
            tuple(widths),
            tuple(strides),
            {"Q": kinds[0], "R": kinds[3]},
            layers.shares,
        )

    def sums(self, do: int, multipliers: Tensor, out: tuple[Tensor, ...]) -> Tensor:
        """As the kernel says: contents, and responses or the largest; (batch, parts, 13 or 7)."""
        from ..solvers.kernels.columns import column_sums

        batch, levels, size = self.fields[0].shape
        tile, parts = tiled(levels, size)
        numbers = CONTENTS + (MOST if do else RESPONSES)
        found = self.shares.new_empty(batch, parts, numbers)
        column_sums[(parts, batch)](
            *self.fields, *self.constants, *self.widths, *self.strides, multipliers, self.shares,
            *out, found, levels, size, DO=do, **self.kinds, **tile,
        )  # fmt: skip
        return found
