"""Budgets closed on a GPU by the kernels of `solvers/kernels/columns.py`, in few passes.

They take states without clouds, winds and a surface of their own, on levels that are not cut, and
make as many rounds as nearly always do; the rest is for `close`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ._close import Changes, Closed, Closing
from ._kernels import has_kernels, tiled
from ._std import MOVED, Error

RESPONSES, MOVES = 13, 11  # numbers of a programme before the move, and of one that moves
NUMBERS = 32  # of a member


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
    from ..solvers.kernels import multipliers as solve

    at, laws = Launch.of(task), task.laws
    (batch, levels, size), parts = at.shape, at.parts
    rows, room = at.empty(batch, NUMBERS), at.empty(batch, parts, RESPONSES)
    read = task.target.contiguous(), task.levels.layers(task.air.pressure).shares
    at.run(0, rows, room, at.fields)
    solve.first_multipliers[(batch,)](room, rows, read[0], laws.active, read[1], parts)
    room = at.empty(batch, parts, MOVES)
    for _ in range(rounds):
        at.run(1, rows, room, at.fields)
        solve.next_multipliers[(batch,)](room, rows, *read, parts)
    new = tuple(torch.empty_like(x) for x in at.fields)
    changes = None
    if task.recorded:
        maps, profiles = at.empty(batch, len(MOVED), size), at.empty(batch, parts, 2, levels)
        at.run(3, rows, room, new, profiles, maps)
        profile = profiles.sum((0, 1)) / batch
        changes = Changes(rows[:, 23:27], maps.mean(0), profile)
    else:
        at.run(2, rows, room, new)
    solve.last_numbers[(batch,)](room, rows, read[0], laws.least, read[1], parts)
    vapour, temperature, pressure, rain = new
    return Closed(
        pressure,
        rain,
        vapour,
        temperature,
        rained=rows[:, 3],
        fallen=rows[:, 22],
        asked=rows[:, :3],
        missing=rows[:, 19:22],
        far=rows[:, 27],
        ends=(-rows[:, 29], rows[:, 28]),
        worst=rows[:, 30:].amax(0),
        changes=changes,
    )


@dataclass(frozen=True, eq=False)
class Launch:
    """What each launch reads."""

    fields: tuple[Tensor, ...]  # vapour, temperature (batch, K, N), pressure, rain (batch, N)
    read: tuple[Any, ...]  # what follows them
    shares: tuple[Tensor, Tensor]  # of the laws, and of the layers in the air
    tile: dict[str, int]  # and the kinds of errors
    parts: int

    @classmethod
    def of(cls, task: Closing) -> "Launch":
        air, w = task.air, task.weights
        names = "specific_humidity", "temperature", "surface_pressure", "precipitation"
        fields = air.vapour, air.temperature, air.pressure, task.rain
        errors = task.all_errors()
        widths: list[Tensor] = []
        strides: list[int] = []
        for name, x in zip(names, fields, strict=True):
            for width in _widths(errors[name], 1 + (name == names[0])):
                widths.append(width)
                strides.extend(width.expand(x.shape).stride())
        layers = task.levels.layers(air.pressure)
        seconds = torch.full((), task.duration, dtype=w.dtype, device=w.device)
        tile, parts = tiled(*air.vapour.shape[1:])
        tile |= {"Q": _kind(errors[names[0]]), "R": _kind(errors[names[3]])}
        return cls(
            tuple(x.contiguous() for x in fields),
            (w, layers.lines, layers.moving, layers.air, seconds, *widths, *strides),
            (layers.shares, task.levels.shares),
            tile,
            parts,
        )

    @property
    def shape(self) -> torch.Size:
        return self.fields[0].shape

    def empty(self, *shape: int) -> Tensor:
        return self.shares[0].new_empty(shape)

    def run(
        self, do: int, rows: Tensor, room: Tensor, new: tuple[Tensor, ...], *recorded: Tensor
    ) -> None:
        """The kernel; see there what it does."""
        from ..solvers.kernels.columns import column_sums

        batch, levels, size = self.shape
        of_laws, of_air = self.shares
        column_sums[(self.parts, batch)](
            *self.fields, *self.read, rows, of_laws, *new, room, of_air,
            *(recorded or (room, room)), levels, size, DO=do, **self.tile,
        )  # fmt: skip


def _widths(error: Error, count: int) -> Sequence[Tensor]:
    """What makes a variance, as often as the kernel asks for it."""
    given = [x for x in error.tensors if x is not None]
    return (given * 2)[:count]


def _kind(error: Error) -> int:
    """0 known, 1 a scale of the value, 2 a floor and a share of it."""
    return 0 if error.known is not None else 1 if error.scale is not None else 2
