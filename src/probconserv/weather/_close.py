"""One step of all members: sums over columns, the solve, the update, in parts that fit a cache."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._grid import Levels
from ._solve import Air, Block, Columns, Laws, Solver, totals
from ._split import WHOLE, Split
from ._std import CHANGED, Error, of_change

BLOCK = 2**20  # values of a field that a CPU works on at a time
ROUNDS = 25  # of Newton's method
FAST = 1e-2  # of what was missing: a round that leaves less keeps its matrix for the next


class Precision(NamedTuple):
    """How closely budgets are met, as shares of the totals."""

    enough: float  # at which rounds end
    tolerance: float  # at which they do if they bring no more
    traced: int  # how many rounds there are where values cannot be looked at
    blind: int  # how many nearly always do: a GPU makes these before it is waited for

    def ends(self, worst: float, last: float) -> bool:
        """Whether rounds end with this share of the totals missing, and that before."""
        settled = worst <= self.tolerance and worst > last / 2
        return settled or not worst > self.enough  # NaN, or all is well


FINE, COARSE = Precision(5e-15, 1e-11, 3, 3), Precision(4e-8, 1e-6, 2, 1)  # of float64, of less


@dataclass(frozen=True, eq=False)
class Closing:
    """What is to be closed; grids have one axis here."""

    air: Air
    rain: Tensor  # (batch, N)
    levels: Levels
    errors: Mapping[str, Error]  # as given, or those that changes are not below
    before: Mapping[str, Tensor]  # the state before, where errors are those of the change
    weights: Tensor  # (N,) shares of the sphere
    budget: tuple[Tensor, ...]  # (batch, 3) each, that add up to the target
    laws: Laws
    duration: float
    audited: bool  # whether totals are looked at until they hold
    recorded: bool  # whether what is changed is asked for, of all four variables
    split: Split  # whether other processes hold other columns and members; no default: torch 2.11
    # does not compile one that is an object

    @property
    def target(self) -> Tensor:
        """Totals, (batch, 3); that of water has the precipitation of the step in it."""
        return reduce(torch.add, self.budget)

    @property
    def precision(self) -> Precision:
        """That of the part of the state with the fewest digits."""
        for x in (self.air.pressure, self.air.temperature, self.air.vapour, self.rain):
            if x.dtype != torch.float64:
                return COARSE
        return FINE

    def scale(self) -> Tensor:
        """Of the totals, beside which what is missing is small or not."""
        return torch.maximum(self.target.detach().abs(), self.laws.least)

    def all_errors(self) -> dict[str, Error]:
        """Those of the change too."""
        values = (self.air.pressure, self.air.temperature, self.air.vapour)
        after = dict(zip(CHANGED, values, strict=True))
        found = of_change(self.before, after, self.weights, self.errors, self.split)
        return {**self.errors, **found}

    def of(self, members: slice) -> "Closing":
        return replace(
            self,
            air=self.air.of(members),
            rain=self.rain[members],
            errors={name: each.of(members) for name, each in self.errors.items()},
            before={name: x[members] for name, x in self.before.items()},
            budget=tuple(x[members] for x in self.budget),
        )


class Changes(NamedTuple):
    """What a correction moves, by variable; on levels the mean over the air of a column."""

    means: Tensor  # (batch, 4), over the sphere
    maps: Tensor  # (4, N), the mean of all members
    profiles: Tensor  # (2, K), of what is on levels, likewise


@dataclass(frozen=True, eq=False)
class Closed:
    """What comes back."""

    pressure: Tensor  # (batch, N), in the dtype of the input, as all of these
    rain: Tensor
    vapour: Tensor  # (batch, K, N)
    temperature: Tensor
    rained: Tensor  # (batch,) or (batch, 1), precipitation of the step as it was, float64
    fallen: Tensor  # (batch,), as it is
    asked: Tensor  # (batch, 3), what the laws ask for beyond what the state holds
    missing: Tensor  # (batch, 3), what of that is left
    target: Tensor  # (batch, 3)
    far: Tensor  # (batch,), about the square of the largest move in standard deviations
    ends: tuple[Tensor, ...] = ()  # the lowest and the highest surface pressure
    worst: Tensor | None = None  # (2,), missing as a share of the totals: last, and before that
    changes: Changes | None = None  # and running totals, where they are found on the way
    running: tuple[Tensor, Tensor] | None = None


def close(task: Closing, rounds: int | None = None) -> Closed:
    """The state that closes the budgets, by so many rounds, or until they hold."""
    if len(task.budget) > 1 and not torch.compiler.is_compiling():
        task = replace(task, budget=(task.target,))
    air = task.air
    widths = (x for error in task.errors.values() for x in error.tensors)
    if _is_whole(air, task.rain, *task.budget, *widths, *task.before.values()):
        return _closed(task, rounds, None)
    out = torch.empty_like(air.vapour), torch.empty_like(air.temperature)
    each = max(1, BLOCK // air.vapour[0].numel())
    each = each if task.split is WHOLE else len(air.vapour)  # processes add up in step
    found = [
        _closed(task.of(m), rounds, (out[0][m], out[1][m])) for m in parts(len(air.vapour), each)
    ]
    names = ("pressure", "rain", "rained", "fallen", "asked", "missing", "target", "far")
    joined: dict[str, Any] = {name: torch.cat([getattr(c, name) for c in found]) for name in names}
    worst = torch.stack([c.worst for c in found if c.worst is not None]).amax(0)
    ends = joined["pressure"].aminmax()
    return Closed(vapour=out[0], temperature=out[1], ends=ends, worst=worst, **joined)


def _is_whole(air: Air, *others: Tensor | None) -> bool:
    """Whether all is done at once; a CPU without gradients to keep goes part by part."""
    if torch.compiler.is_compiling() or air.vapour.device.type != "cpu":
        return True
    every = (air.pressure, air.temperature, air.vapour, air.water, air.energy, *others)
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in every)


def parts(length: int, size: int) -> Iterator[slice]:
    for begin in range(0, length, size):
        yield slice(begin, min(begin + size, length))


def _closed(task: Closing, rounds: int | None, out: tuple[Tensor, Tensor] | None) -> Closed:
    blocks = list(_blocks(task, out is None))
    into = [
        None if out is None else (out[0][..., b.columns], out[1][..., b.columns]) for b in blocks
    ]
    columns = [each.start for each in blocks]
    missing = started = _missing(task, blocks, columns)
    scale, solver, multipliers, last = task.scale(), None, None, 1.0
    worst = before = torch.ones_like(scale[0, 0])
    for number in range(ROUNDS if rounds is None else rounds):
        if solver is None:
            solver = Solver.of(blocks, columns, task.laws, task.duration, task.split)
        step = solver.step(missing)
        multipliers = step if multipliers is None else multipliers + step
        near = [b.pressure(at.held, multipliers) for b, at in zip(blocks, columns, strict=True)]
        if number == 0 and (task.audited or task.precision is FINE):  # or the next round does it
            multipliers = multipliers + solver.step(solver.bent(step, near))
        columns = [
            each.moved(p, multipliers, task.duration, o)
            for each, p, o in zip(blocks, near, into, strict=True)
        ]
        missing = _missing(task, blocks, columns)
        share = missing.detach() / scale
        worst, before = task.split.highest(torch.linalg.vector_norm(share, torch.inf)), worst
        if rounds is not None:
            continue
        found = float(worst)
        if task.precision.ends(found, last):
            break
        solver, last = solver if found < FAST * last else None, found
    pressure, rain = (
        x[0] if len(x) == 1 else torch.cat(x, -1)
        for x in ([c.pressure for c in columns], [c.rain for c in columns])
    )
    vapour, temperature = out or (columns[0].vapour, columns[0].temperature)
    rained, fallen = (
        task.duration * task.split.total(x.double() @ task.weights)
        for x in (task.rain.clamp_min(0.0), rain)
    )
    far = task.target[:, 0]
    if task.audited:
        far = task.split.furthest(_furthest(blocks, columns, multipliers))
    moved = pressure, rain, vapour, temperature
    ends, shares = pressure.detach().aminmax(), torch.stack([worst, before])
    return Closed(*moved, rained, fallen, started, missing, task.target, far, ends, shares)


def _furthest(
    blocks: Sequence[Block], columns: Sequence[Columns], multipliers: Tensor | None
) -> Tensor:
    assert multipliers is not None
    each = [b.furthest(at, multipliers) for b, at in zip(blocks, columns, strict=True)]
    return torch.stack(each).amax(0)


def _blocks(task: Closing, whole: bool) -> Iterator[Block]:
    air, w, every = task.air, task.weights, task.all_errors()
    if whole:
        yield Block.of(None, air, task.levels.layers(air.pressure), w, task.rain, every)
        return
    batch, levels, columns = air.vapour.shape
    for c in parts(columns, max(1, BLOCK // (batch * levels))):
        own = air.of(slice(None), c)
        errors = {name: each.of(slice(None), c) for name, each in every.items()}
        yield Block.of(c, own, task.levels.layers(own.pressure), w[c], task.rain[:, c], errors)


def _missing(task: Closing, blocks: Sequence[Block], columns: Sequence[Columns]) -> Tensor:
    """What the laws ask for less what is there, (batch, 3)."""
    pairs = zip(blocks, columns, strict=True)
    found = reduce(torch.add, [b.totals(at, task.duration) for b, at in pairs])
    return task.target - task.split.total(found)


def totals_of(air: Air, levels: Levels, weights: Tensor, split: Split = WHOLE) -> Tensor:
    """Dry air, water and energy of a state, means over the sphere, (batch, 3), float64."""
    if _is_whole(air):
        return split.total(_totals_of(air, levels, weights))
    batch, count, size = air.vapour.shape
    found = torch.zeros(batch, 3, dtype=torch.float64, device=weights.device)
    for m in parts(batch, 1):
        for c in parts(size, max(1, BLOCK // count)):
            found[m] += _totals_of(air.of(m, c), levels, weights[c])
    return split.total(found)


def _totals_of(air: Air, levels: Levels, weights: Tensor) -> Tensor:
    layers = levels.layers(air.pressure)
    held = air.counted(layers) | {1: layers.held(air.vapour), 2: layers.held(air.temperature)}
    return totals(held, air.pressure, weights, layers.shares)
