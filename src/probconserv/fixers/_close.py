"""One step of all members: sums over columns, the solve, the update, in parts that fit a cache."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from .._air import HEAT_CAPACITY, VAPORIZATION
from ._columns import Air, Columns, Prior, content, held, moved, prior, sums
from ._levels import Layers, Levels
from ._solve import Goal, Point, Surface, newton
from ._std import Error, taken

BLOCK = 2**20  # values of a field that a CPU works on at a time
ROUNDS = 25  # in which points join or leave those at zero
TRACED_ROUNDS = 2  # where values cannot be looked at
LEAST = (1.0, 1e-3, 1.0)  # kg m-2 and J m-2: totals below these are not told from rounding


class Precision(NamedTuple):
    """How closely budgets are met, as shares of the totals."""

    steps: int  # of Newton's method in a round
    enough: float  # at which rounds end
    tolerance: float  # at which they do if they bring no more


FINE, COARSE = Precision(5, 1e-13, 1e-11), Precision(3, 1e-7, 1e-6)  # of float64, of less


@dataclass(frozen=True, eq=False)
class Task:
    """What is to be closed; grids have one axis here."""

    air: Air
    rain: Tensor  # (batch, N)
    levels: Levels
    errors: Mapping[str, Error]
    goal: Goal
    duration: float
    audited: bool  # whether totals are looked at until they hold
    tallied: bool  # whether the ledger asks for maps and profiles

    @property
    def precision(self) -> Precision:
        """That of the part of the state with the fewest digits."""
        for x in (self.air.pressure, self.air.temperature, self.air.vapour, self.rain):
            if x.dtype != torch.float64:
                return COARSE
        return FINE

    def of(self, members: slice) -> "Task":
        return replace(
            self,
            air=self.air.of(members),
            rain=self.rain[members],
            errors={name: each.of(members) for name, each in self.errors.items()},
            goal=replace(self.goal, target=self.goal.target[members]),
        )


@dataclass(eq=False)
class Tally:
    """What moved on levels, in the order temperature, humidity; added up block by block."""

    shares: Tensor  # (K,) of the air, that levels hold
    weights: Tensor
    maps: Tensor  # (2, N), mean over the column, summed over members
    profiles: Tensor  # (batch, 2, K)

    def add(self, columns: slice | None, warmer: Tensor, wetter: Tensor) -> None:
        for i, each in enumerate((warmer, wetter)):
            taken(self.maps[i], columns).add_((self.shares.to(each.dtype) @ each).sum(0))
            self.profiles[:, i] += each @ taken(self.weights, columns).to(each.dtype)


@dataclass(frozen=True, eq=False)
class Closed:
    """What comes back."""

    pressure: Tensor  # (batch, N), in the dtype of the input, as all of these
    rain: Tensor
    vapour: Tensor  # (batch, K, N)
    temperature: Tensor
    started: Tensor  # (batch, 3), totals of the air before and after, float64
    totals: Tensor
    missing: Tensor  # (batch, 3), with the precipitation
    tally: Tally | None


def goal_of(weights: Tensor, active: Tensor) -> Goal:
    """The goal of a fixer, on the device of the weights, without its target."""
    new = weights.new_tensor
    shares = new([[-1.0, 1.0, VAPORIZATION], [0.0, 0.0, HEAT_CAPACITY]])
    return Goal(weights, new([]), active, shares, new([0.0, 1.0, 0.0]), new(LEAST))


def close(task: Task) -> Closed:
    """The state that closes the budgets."""
    air = task.air
    widths = (x for e in task.errors.values() for x in (e.floor, e.scale) if x is not None)
    if _is_whole(air, task.rain, task.goal.target, *widths):
        return _closed(task, None)
    out = torch.empty_like(air.vapour), torch.empty_like(air.temperature)
    each = max(1, BLOCK // air.vapour[0].numel())
    found = [_closed(task.of(m), (out[0][m], out[1][m])) for m in parts(len(air.vapour), each)]
    names = ("pressure", "rain", "started", "totals", "missing")
    joined = {name: torch.cat([getattr(c, name) for c in found]) for name in names}
    tally = None
    tallies = [c.tally for c in found if c.tally is not None]
    if tallies:
        profiles = torch.cat([t.profiles for t in tallies])
        maps = torch.stack([t.maps for t in tallies]).sum(0)
        tally = replace(tallies[0], maps=maps, profiles=profiles)
    return Closed(vapour=out[0], temperature=out[1], tally=tally, **joined)


def _is_whole(air: Air, *others: Tensor) -> bool:
    """Whether all is done at once; a CPU without gradients to keep goes part by part."""
    if torch.compiler.is_compiling() or air.vapour.device.type != "cpu":
        return True
    every = (air.pressure, air.temperature, air.vapour, air.water, air.energy, *others)
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in every)


def parts(length: int, size: int) -> Iterator[slice]:
    for begin in range(0, length, size):
        yield slice(begin, min(begin + size, length))


def _closed(task: Task, out: tuple[Tensor, Tensor] | None) -> Closed:
    pressure, goal = task.air.pressure.double(), task.goal
    layers, rain = task.levels.layers(pressure), task.rain.double().clamp_min(0.0)
    surface = Surface(
        pressure,
        task.errors["surface_pressure"].variance(pressure),
        rain,
        task.errors["precipitation"].variance(rain),
        task.duration,
    )
    point: Point | None = None
    precision, last = task.precision, math.inf
    blocks = list(_blocks(task, layers, out is None))
    for number in range(ROUNDS if task.audited else TRACED_ROUNDS):
        columns = _gathered(blocks, point)
        if number == 0:
            started = content(columns.held, pressure) @ goal.weights
        point = newton(columns, layers, surface, goal, point, precision.steps)
        if task.audited or number + 1 == TRACED_ROUNDS:
            closed = _updated(task, blocks, point, started, out)
            if task.audited:
                worst = float(relative(closed, goal).max())
                settled = worst <= precision.tolerance and worst > last / 2
                if settled or not worst > precision.enough:  # NaN, or all is well
                    break
                last = worst
    return closed


def relative(closed: Closed, goal: Goal) -> Tensor:
    """How much of the totals is missing, (batch, 3)."""
    scale = torch.maximum(goal.target.abs(), goal.least)
    return (closed.missing / scale).detach().abs()


@dataclass(frozen=True, eq=False)
class Block:
    """A part of the columns; None stands for all."""

    columns: slice | None
    air: Air
    layers: Layers
    prior: Prior


def _blocks(task: Task, layers: Layers, whole: bool) -> Iterator[Block]:
    if whole:
        yield Block(None, task.air, layers, prior(task.air, task.errors))
        return
    batch, levels, columns = task.air.vapour.shape
    for c in parts(columns, max(1, BLOCK // (batch * levels))):
        air = task.air.of(slice(None), c)
        errors = {name: each.of(slice(None), c) for name, each in task.errors.items()}
        yield Block(c, air, layers.at(c), prior(air, errors))


def _gathered(blocks: Sequence[Block], point: Point | None) -> Columns:
    moves = [None if point is None else point.move.at(each.columns) for each in blocks]
    pairs = zip(blocks, moves, strict=True)
    found = [sums(each.air, each.layers, each.prior, move) for each, move in pairs]
    if len(found) == 1:
        return found[0]
    joined = [[getattr(x, name) for x in found] for name in ("held", "vapour_gain", "heat_gain")]
    return Columns(*(x[0] if x[0].shape[-1] == 1 else torch.cat(x, -1) for x in joined))


def _updated(
    task: Task,
    blocks: Sequence[Block],
    point: Point,
    started: Tensor,
    out: tuple[Tensor, Tensor] | None,
) -> Closed:
    goal, dtype = task.goal, task.air.pressure.dtype
    pressure, rain = point.pressure.to(dtype), point.rain.to(task.rain.dtype)
    totals, tally = torch.zeros_like(goal.target), _tally(task)
    for each in blocks:
        c, air = each.columns, each.air
        into = None if out is None else (out[0][..., c], out[1][..., c])
        vapour, temperature = moved(each.prior, each.layers, point.move.at(c), into)
        if task.audited:
            columns = held(air, each.layers, vapour, temperature)
            own = content(columns, taken(pressure, c).double())
            totals = totals + own @ taken(goal.weights, c)
        if tally is not None:
            tally.add(c, temperature - air.temperature, vapour - air.vapour)
    if out is not None:
        vapour, temperature = out
    fallen = task.duration * (rain.double() @ goal.weights)
    missing = (goal.target - totals - fallen[:, None] * goal.rain) * goal.active
    return Closed(pressure, rain, vapour, temperature, started, totals, missing, tally)


def _tally(task: Task) -> Tally | None:
    if not task.tallied:
        return None
    batch, count, columns = task.air.vapour.shape
    w = task.goal.weights
    maps, profiles = w.new_zeros(2, columns), w.new_zeros(batch, 2, count)
    return Tally(task.levels.shares, w, maps, profiles)


def totals_of(air: Air, levels: Levels, weights: Tensor) -> Tensor:
    """Dry air, water and energy of a state, means over the sphere, (batch, 3), float64."""
    if _is_whole(air):
        pressure = air.pressure.double()
        columns = held(air, levels.layers(pressure), air.vapour, air.temperature)
        return content(columns, pressure) @ weights
    batch, count, size = air.vapour.shape
    found = torch.zeros(batch, 3, dtype=torch.float64, device=weights.device)
    for m in parts(batch, 1):
        for c in parts(size, max(1, BLOCK // count)):
            own = air.of(m, c)
            pressure = own.pressure.double()
            columns = held(own, levels.layers(pressure), own.vapour, own.temperature)
            found[m] += content(columns, pressure) @ weights[c]
    return found
