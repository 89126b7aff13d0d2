"""Budgets closed on a GPU by the kernels of `solvers/kernels/columns.py`, in few passes.

They take states without clouds, winds and a surface of their own, on levels that are not cut, and
make as many rounds as nearly always do; the rest is for `close`.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ..air.contents import HEAT_CAPACITY, VAPORIZATION
from ..solvers.sweeps import has_kernels
from ..support import checks as check
from ._close import Changes, Closed, Closing
from ._grid import Levels
from ._std import LEAST_SHARE, MOVED, TINY, Errors

NAMES = "specific_humidity", "temperature", "surface_pressure", "precipitation"
TILE, NARROW = 512, 16  # values of a field, and least columns, that a programme works on
LANE = 128  # of these for each warp
PART, ROW = 32, 48  # numbers of a programme, and of a member
ROWS = {"asked": 3, "rained": 1, "solved": 12, "before": 3, "missing": 3, "fallen": 1, "means": 4}
ROWS |= {"far": 1, "ends": 2, "worst": 2, "looks": 10, "gain": 1, "target": 3, "free": 2}


class Constants:
    """What the kernels read of levels, errors that go by the change, and the length of a step."""

    def __init__(self, levels: Levels, least: Errors) -> None:
        self.levels, self.least = levels, least
        self._kept: dict[float, Tensor] = {}

    def of(self, seconds: float) -> Tensor:
        """See the kernels; those of the last length are kept."""
        if torch.compiler.is_compiling():
            return self._made(seconds)
        if seconds not in self._kept:
            self._kept = {seconds: self._made(seconds)}
        return self._kept[seconds]

    def _made(self, seconds: float) -> Tensor:
        x, least = self.levels.layers(self.levels.a), self.least
        first = least["specific_humidity"].floor, least["temperature"].known, x.air
        last = least["surface_pressure"].known, least["precipitation"].scale
        plain = VAPORIZATION, HEAT_CAPACITY, seconds, TINY, LEAST_SHARE**2
        heats, ends = ([x.air.new_full((1,), y) for y in some] for some in (plain[:2], plain[2:]))
        parts = x.lines, x.moving, self.levels.shares, *first, *heats, *last, *ends
        return torch.cat([y.flatten() for y in parts if y is not None])


def is_fused(task: Closing, after: Mapping[str, Tensor]) -> bool:
    """Whether the kernels take this: values without gradients to keep."""
    air = task.air
    if task.levels.cut or air.water is not None or air.energy is not None:
        return False
    given = [error for name, error in task.errors.items() if name not in task.before]
    widths = [x for error in given for x in (error.known, error.scale)]
    kept = [x for x in widths if x is not None]
    if len(kept) < len(given) or any(name not in after for name in MOVED):
        return False
    every = air.vapour, air.temperature, air.pressure, task.rain, *task.budget, *kept
    every = (*every, *task.before.values())
    if torch.is_grad_enabled() and any(x.requires_grad for x in every):
        return False
    if torch.compiler.is_compiling():
        return not torch.compiler.is_exporting()
    return has_kernels(air.vapour) and check.concrete(*every)


def close_fused(task: Closing, constants: Tensor, rounds: int) -> tuple[Closed, Tensor]:
    """The state that closes the budgets, by so many rounds of Newton's method and the last move.

    And all numbers of members: see the kernels, and `numbers_of`.
    """
    air = task.air
    fields = [x.contiguous() for x in (air.vapour, air.temperature, air.pressure, task.rain)]
    widths, kinds = _widths(task, fields)
    old = []
    if any(not kind for kind in kinds[:3]):
        pairs = zip(NAMES, fields[:3], strict=False)
        old = [task.before.get(name, x).contiguous() for name, x in pairs]
    every = [task.weights, constants, task.laws.active, task.laws.least]
    own = [x.contiguous() for x in task.budget]
    if torch.compiler.is_compiling():
        found = _traced(fields, old, widths, own, every, kinds, rounds)
    else:
        found = _launched(fields, old, widths, own, every, kinds, rounds, task.recorded)
    vapour, temperature, pressure, rain, rows, budget, *changes = found
    numbers = dict(zip(ROWS, rows.split([*ROWS.values()], 1), strict=True))
    same = ("rained", "fallen", "asked", "missing", "target", "far")
    named: dict[str, Any] = {name: numbers[name] for name in same}
    named["running"] = budget[0], budget[1]
    named["changes"] = Changes(numbers["means"], *changes) if changes else None
    return Closed(pressure, rain, vapour, temperature, **named), rows


def _launched(
    fields: Sequence[Tensor],
    old: Sequence[Tensor],
    widths: Sequence[Tensor],
    own: Sequence[Tensor],
    every: Sequence[Tensor],
    kinds: Sequence[int],
    rounds: int,
    recorded: bool,
) -> list[Tensor]:
    """The new fields, the rows of members, running totals; maps and profiles of what is changed."""
    from ..solvers.kernels import columns as on_columns
    from ..solvers.kernels import multipliers as solve

    w, constants, active, least = every
    batch, levels, size = fields[0].shape
    tile, parts = tiled(levels, size)
    grid, squares = (parts, batch), constants
    if old:
        sums = w.new_empty(batch, parts, 3 * levels + 1)
        on_columns.change_sums[grid](*fields[:3], *old, w, sums, levels, size, **tile)
        squares = sums.sum(1)
    rows, room = w.new_empty(batch, ROW), w.new_empty(batch, parts, PART)
    read = *fields, w, constants, squares, *widths, rows, room
    how = tile | dict(zip("QTPR", kinds, strict=True))

    def run(do: int, new: Sequence[Tensor], profiles: Tensor = room, maps: Tensor = room) -> None:
        on_columns.columns[grid](*read, profiles, maps, *new, levels, size, DO=do, **how)

    run(0, fields)
    solve.first[(batch,)](room, *own, active, constants, rows, parts, levels)
    for _ in range(rounds):
        run(1, fields)
        solve.following[(batch,)](room, constants, rows, parts, levels)
    new, changes = [torch.empty_like(x) for x in fields], []
    if recorded:
        profiles, maps = w.new_empty(batch * parts, 2, levels), w.new_empty(batch, 4, size)
        run(3, new, profiles, maps)
        changes = [maps.sum(0), profiles.sum(0)]
    else:
        run(2, new)
    budget = w.new_empty(2, batch, 3)
    solve.last[(batch,)](room, *own, least, constants, rows, budget, parts, levels)
    return [*new, rows, budget, *changes]


@torch.library.custom_op("probconserv::closed_columns", mutates_args=())
def _traced(
    fields: Sequence[Tensor],
    old: Sequence[Tensor],
    widths: Sequence[Tensor],
    own: Sequence[Tensor],
    every: Sequence[Tensor],
    kinds: Sequence[int],
    rounds: int,
) -> list[Tensor]:
    """In a compiled graph."""
    with torch.cuda.device_of(fields[0]):
        return _launched(fields, old, widths, own, every, kinds, rounds, False)


@_traced.register_fake
def _(
    fields: Sequence[Tensor],
    old: Sequence[Tensor],
    widths: Sequence[Tensor],
    own: Sequence[Tensor],
    every: Sequence[Tensor],
    kinds: Sequence[int],
    rounds: int,
) -> list[Tensor]:
    batch = own[0].shape[0]
    rows, budget = own[0].new_empty(batch, ROW), own[0].new_empty(2, batch, 3)
    return [*(torch.empty_like(x) for x in fields), rows, budget]


def _widths(task: Closing, fields: Sequence[Tensor]) -> tuple[list[Tensor], list[int]]:
    """Variances that are given, and of which kind they are: see the kernels."""
    widths, kinds = [], []
    for name, x in zip(NAMES, fields, strict=True):
        error, width, kind = task.errors[name], task.weights, 0
        if name in task.before:
            width = task.before[name]
        elif error.known is not None:
            width = error.known.expand(-1, *x.shape[1:])
            kind = 1 if width.shape[0] == 1 else 2
        elif error.scale is not None and error.scale.numel() > 1:
            kind, width = 3, error.scale
        kinds.append(kind)
        widths.append(width.contiguous())
    return widths, kinds


def numbers_of(rows: list[float]) -> dict[str, list[list[float]]]:
    """What is looked at, by name: for each number those of all members."""
    columns = (rows[i::ROW] for i in range(ROW))
    return {name: [*islice(columns, count)] for name, count in ROWS.items()}


def tiled(levels: int, columns: int) -> tuple[dict[str, int], int]:
    """How a programme cuts its tile, and how many tiles there are."""
    padded = 1 << max(levels - 1, 0).bit_length()
    block = max(NARROW, TILE // padded)
    warps = min(max(4, padded * block // LANE), 16)
    return {"LEVELS": padded, "BLOCK": block, "num_warps": warps}, -(-columns // block)
