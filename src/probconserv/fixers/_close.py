"""One step of all members: sums over columns, the solve, the update, in parts that fit a cache."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ._columns import Air, Columns, content, held, moved, sums
from ._levels import Layers, Levels
from ._solve import Goal, Point, Surface, newton
from ._std import Error

BLOCK = 2**17  # values of a field that a CPU works on at a time
ROUNDS = 25  # in which points join or leave those at zero
TRACED_ROUNDS = 2  # where values cannot be looked at
ALL = slice(None)
TOLERANCE = 1e-13, 1e-11  # of the totals: for float64, and for what is rounded to fewer digits
LEAST = (1.0, 1e-3, 1.0)  # kg m-2 and J m-2: totals below these are not told from rounding


@dataclass(frozen=True, eq=False)
class Task:
    """What is to be closed; grids have one axis here."""

    air: Air
    rain: Tensor  # (batch, N)
    levels: Levels
    errors: Mapping[str, Error]
    goal: Goal
    duration: float

    def of(self, members: slice) -> "Task":
        return replace(
            self,
            air=self.air.of(members),
            rain=self.rain[members],
            errors={name: each.at(members, ALL) for name, each in self.errors.items()},
            goal=replace(self.goal, target=self.goal.target[members]),
        )


@dataclass(frozen=True, eq=False)
class Closed:
    """What comes back."""

    pressure: Tensor  # (batch, N) float64
    rain: Tensor
    vapour: Tensor  # (batch, K, N) in the dtype of the input
    temperature: Tensor
    missing: Tensor  # (batch, 3), of the totals before they are rounded to that dtype


def close(task: Task, audited: bool) -> Closed:
    """The state that closes the budgets; audited: its totals are looked at until they hold."""
    air = task.air
    whole = air.vapour.is_cuda or torch.is_grad_enabled() or not audited
    if whole:
        return _closed(task, audited, None)
    out = torch.empty_like(air.vapour), torch.empty_like(air.temperature)
    each = max(1, BLOCK // air.vapour[0].numel())
    found = [
        _closed(task.of(m), audited, (out[0][m], out[1][m])) for m in parts(len(air.vapour), each)
    ]
    names = ("pressure", "rain", "missing")
    joined = {name: torch.cat([getattr(c, name) for c in found]) for name in names}
    return Closed(vapour=out[0], temperature=out[1], **joined)


def parts(length: int, size: int) -> Iterator[slice]:
    for begin in range(0, length, size):
        yield slice(begin, min(begin + size, length))


def _closed(task: Task, audited: bool, out: tuple[Tensor, Tensor] | None) -> Closed:
    pressure, goal = task.air.pressure.double(), task.goal
    layers, rain = task.levels.layers(pressure), task.rain.double()
    variances = [
        task.errors[name].variance(x)
        for name, x in (("surface_pressure", pressure), ("precipitation", rain))
    ]
    surface = Surface(pressure, variances[0], rain, variances[1], task.duration)
    point = None
    for number in range(ROUNDS if audited else TRACED_ROUNDS):
        point = newton(_gathered(task, layers, point), layers, surface, goal, point)
        if audited or number + 1 == TRACED_ROUNDS:
            vapour, temperature, totals = _updated(task, layers, point, out)
            fallen = task.duration * (point.rain @ goal.weights)
            totals = torch.stack([totals[:, 0], totals[:, 1] + fallen, totals[:, 2]], -1)
            missing = (goal.target - totals) * goal.active
            if audited and not bool(off(missing, goal, vapour.dtype).any()):
                break
    return Closed(point.pressure, point.rain, vapour, temperature, missing)


def off(missing: Tensor, goal: Goal, dtype: torch.dtype) -> Tensor:
    """Which totals do not hold; those that are NaN do not."""
    tolerance = TOLERANCE[dtype != torch.float64]
    scale = torch.maximum(goal.target.abs(), goal.target.new_tensor(LEAST))
    return ~(missing.detach().abs() <= tolerance * scale)


def _blocks(task: Task, whole: bool) -> Iterator[slice]:
    batch, levels, columns = task.air.vapour.shape
    return parts(columns, columns if whole else max(1, BLOCK // (batch * levels)))


def _gathered(task: Task, layers: Layers, point: Point | None) -> Columns:
    whole = task.air.vapour.is_cuda or torch.is_grad_enabled() or torch.compiler.is_compiling()
    found = []
    for c in _blocks(task, whole):
        errors = {name: each.at(ALL, c) for name, each in task.errors.items()}
        move = None if point is None else point.move.at(ALL, c)
        found.append(sums(task.air.at(ALL, c), layers.at(c), errors, move))
    if len(found) == 1:
        return found[0]
    joined = [[getattr(x, name) for x in found] for name in ("held", "vapour_gain", "heat_gain")]
    return Columns(*(x[0] if x[0].shape[-1] == 1 else torch.cat(x, -1) for x in joined))


def _updated(
    task: Task, layers: Layers, point: Point, out: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Humidity, temperature and the totals of the air, (batch, 3)."""
    totals = torch.zeros_like(task.goal.target)
    for c in _blocks(task, out is None):
        errors = {name: each.at(ALL, c) for name, each in task.errors.items()}
        air, own = task.air.at(ALL, c), layers.at(c)
        vapour, temperature = moved(air, own, errors, point.move.at(ALL, c))
        columns = content(held(air, own, vapour, temperature), point.pressure[:, c])
        totals = totals + columns @ task.goal.weights[c]
        if out is not None:
            out[0][..., c], out[1][..., c] = vapour, temperature
    if out is not None:
        return *out, totals
    return vapour.to(task.air.vapour.dtype), temperature.to(task.air.temperature.dtype), totals


def totals_of(air: Air, levels: Levels, weights: Tensor) -> Tensor:
    """Dry air, water and energy of a state, global means, (batch, 3), float64."""
    found = []
    batch, count, columns = air.vapour.shape
    whole = air.vapour.is_cuda or torch.is_grad_enabled() or torch.compiler.is_compiling()
    for m in parts(batch, batch if whole else 1):
        total: Tensor | float = 0.0
        for c in parts(columns, columns if whole else max(1, BLOCK // count)):
            own = air.at(m, c)
            layers = levels.layers(own.pressure)
            columns_held = held(own, layers, own.vapour, own.temperature)
            total = total + content(columns_held, own.pressure) @ weights[c]
        found.append(total)
    return torch.cat(found)
