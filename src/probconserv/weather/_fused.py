"""Budgets closed on a GPU by the kernels of `solvers/kernels/columns.py`, in few passes.

They take states without clouds, winds and a surface of their own, on levels that are not cut, and
make as many rounds as nearly always do; the rest is for `close`.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ..air.contents import HEAT_CAPACITY, VAPORIZATION
from ..support import checks as check
from ._close import Changes, Closed, Closing
from ._grid import Levels
from ._std import MOVED, Errors

NAMES = "specific_humidity", "temperature", "surface_pressure", "precipitation"
TILE, NARROW = 512, 16  # values of a field, and least columns, that a programme works on
LANE = 128  # of these for each warp
PART, ROW = 32, 64  # numbers of a programme, and of a member
ROWS = {"asked": 3, "rained": 1, "solved": 12, "before": 3, "missing": 3, "fallen": 1, "means": 4}
ROWS |= {"far": 1, "ends": 2, "worst": 2, "looks": 10, "gain": 1, "target": 3, "free": 18}


@cache
def has_triton(device: int) -> bool:
    """Whether Triton is there, as it is with torch for Linux and CUDA, and knows this GPU."""
    known = torch.cuda.get_device_capability(device) >= (7, 0)
    return known and importlib.util.find_spec("triton") is not None


def is_there(x: Tensor) -> bool:
    """Whether `x` is on the GPU that is used now, and Triton is there."""
    if not x.is_cuda or x.device.index != torch.cuda.current_device():
        return False
    return has_triton(x.device.index)


class Constants:
    """What the kernels read of levels, errors that go by the change, and the length of a step."""

    def __init__(self, levels: Levels, least: Errors) -> None:
        self.levels, self.least = levels, least
        self._kept: dict[float, Tensor] = {}

    def of(self, seconds: float) -> Tensor:
        """See the kernels; those of the last length are kept."""
        if seconds not in self._kept:
            x, least = self.levels.layers(self.levels.a), self.least
            first = least["specific_humidity"].floor, least["temperature"].known, x.air
            last = least["surface_pressure"].known, least["precipitation"].scale
            plain = (x.air.new_full((1,), y) for y in (VAPORIZATION, HEAT_CAPACITY, seconds))
            latent, capacity, time = plain
            parts = x.lines, x.moving, self.levels.shares, *first, latent, capacity, *last, time
            self._kept = {seconds: torch.cat([y.flatten() for y in parts if y is not None])}
        return self._kept[seconds]


def is_fused(task: Closing, after: Mapping[str, Tensor]) -> bool:
    """Whether the kernels take this: values without gradients to keep."""
    air = task.air
    if not is_there(air.vapour) or task.levels.cut:
        return False
    if air.water is not None or air.energy is not None or any(name not in after for name in MOVED):
        return False
    given = [error for name, error in task.errors.items() if name not in task.before]
    widths = [x for error in given for x in (error.known, error.scale)]
    kept = [x for x in widths if x is not None]
    if len(kept) < len(given):
        return False
    every = air.vapour, air.temperature, air.pressure, task.rain, *task.budget, *kept
    every = (*every, *task.before.values())
    if torch.is_grad_enabled() and any(x.requires_grad for x in every):
        return False
    return check.concrete(*every)


def close_fused(task: Closing, constants: Tensor, rounds: int) -> tuple[Closed, Tensor]:
    """The state that closes the budgets, by so many rounds of Newton's method and the last move.

    And all numbers of members: see the kernels, and `numbers_of`.
    """
    from ..solvers.kernels import columns as on_columns
    from ..solvers.kernels import multipliers as solve

    air, w, (base, carry, gain) = task.air, task.weights, (x.contiguous() for x in task.budget)
    fields = tuple(x.contiguous() for x in (air.vapour, air.temperature, air.pressure, task.rain))
    batch, levels, size = fields[0].shape
    tile, parts = tiled(levels, size)
    grid = parts, batch
    widths, kinds = _widths(task, fields)
    squares = constants
    if any(not kinds[kind] for kind in "QTP"):
        old = [
            task.before.get(name, x).contiguous()
            for name, x in zip(NAMES, fields[:3], strict=False)
        ]
        sums = w.new_empty(batch, parts, 3 * levels + 1)
        on_columns.change_sums[grid](*fields[:3], *old, w, sums, levels, size, **tile)
        squares = sums.sum(1)
    rows, room = w.new_empty(batch, ROW), w.new_empty(batch, parts, PART)
    read = *fields, w, constants, squares, *widths, rows, room

    def run(do: int, new: Sequence[Tensor], profiles: Tensor = room, maps: Tensor = room) -> None:
        on_columns.columns[grid](*read, profiles, maps, *new, levels, size, DO=do, **kinds, **tile)

    run(0, fields)
    own = base, carry, gain
    solve.first[(batch,)](room, *own, task.laws.active, constants, rows, parts, levels)
    for _ in range(rounds):
        run(1, fields)
        solve.following[(batch,)](room, constants, rows, parts, levels)
    new = [torch.empty_like(x) for x in fields]
    if task.recorded:
        profiles, maps = w.new_empty(batch * parts, 2, levels), w.new_empty(batch, 4, size)
        run(3, new, profiles, maps)
    else:
        run(2, new)
    budget = w.new_empty(2, batch, 3)
    solve.last[(batch,)](room, *own, task.laws.least, constants, rows, budget, parts, levels)
    found = dict(zip(ROWS, rows.split([*ROWS.values()], 1), strict=True))
    changes = None
    if task.recorded:
        changes = Changes(found["means"], maps.sum(0), profiles.sum(0))
    vapour, temperature, pressure, rain = new
    same = ("rained", "fallen", "asked", "missing", "target", "far")
    named: dict[str, Any] = {name: found[name] for name in same}
    named |= {"changes": changes, "running": (budget[0], budget[1])}
    return Closed(pressure, rain, vapour, temperature, **named), rows


def _widths(task: Closing, fields: Sequence[Tensor]) -> tuple[list[Tensor], dict[str, int]]:
    """Variances that are given, and of which kind they are: see the kernels."""
    widths, kinds = [], {}
    for kind, name, x in zip("QTPR", NAMES, fields, strict=True):
        error, width = task.errors[name], task.weights
        kinds[kind] = 0
        if name in task.before:
            width = task.before[name]
        elif error.known is not None:
            width = error.known.expand(-1, *x.shape[1:])
            kinds[kind] = 1 if width.shape[0] == 1 else 2
        elif error.scale is not None and error.scale.numel() > 1:
            kinds[kind], width = 3, error.scale
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
