"""How a state lies on several processes (DTensor): what is here, and sums over all of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from ..support.checks import plain
from ..support.errors import InputError
from ..support.shards import (
    Groups,
    Shards,
    agreed,
    is_sharded,
    largest_over,
    most_over,
    shards_of,
    spread,
    summed_over,
)


@dataclass(frozen=True)
class Split:
    """Columns and members of a state on the processes of a mesh; by default all are here."""

    columns: Groups = ()  # of the processes that hold other columns
    members: Groups = ()
    over: Shards | None = None  # of a map, (batch, *grid)

    @classmethod
    def of(cls, said: str, pressure: Tensor) -> "Split":
        if not is_sharded(pressure):
            return WHOLE
        over = shards_of(said, pressure)
        return cls(over.groups(1), over.groups(0, 1), over)

    def __deepcopy__(self, memo: Any) -> "Split":
        return self  # process groups cannot be copied, and it does not change

    @property
    def every(self) -> Groups:
        return self.columns + self.members

    def grid(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the grid that is here."""
        return whole if self.over is None else self.over.local_shape[1:]

    def batch(self, here: int) -> int:
        """How many members there are in all."""
        return here if self.over is None else self.over.shape[0]

    def total(self, x: Tensor) -> Tensor:
        """A sum over columns, of all columns."""
        return summed_over(x, self.columns)

    def mean(self, x: Tensor) -> Tensor:
        """A mean of what is here, of all columns and members."""
        if self.over is None:
            return x
        share = math.prod(self.over.local_shape) / math.prod(self.over.shape)
        return summed_over(x * share, self.every)

    def share(self, x: Tensor) -> Tensor:
        """What a mean of the members that are here adds to that of all."""
        return x if self.over is None else x * (self.over.blocks[0][1] / self.over.shape[0])

    def highest(self, x: Tensor) -> Tensor:
        """The largest, of all columns and members; NaN where one is."""
        return largest_over(x, self.every)

    def lowest(self, x: Tensor) -> Tensor:
        """The smallest, likewise."""
        return -largest_over(-x, self.every) if self.every else x

    def furthest(self, x: Tensor) -> Tensor:
        """The largest, of all columns."""
        return largest_over(x, self.columns)

    def ends(self, numbers: Sequence[Sequence[float]]) -> list[list[float]]:
        """Pairs of the lowest and the highest number, of all columns and members; NaN likewise."""
        if self.over is None:
            return [[*x] for x in numbers]
        flat = [*chain(*numbers)]
        signed = [x if i % 2 else -x for i, x in enumerate(flat)]
        bad = [float(math.isnan(x)) for x in flat]
        known = [-math.inf if math.isnan(x) else x for x in signed]
        found = most_over([*known, *bad], self.every, self.like)
        low_high = zip(found, found[len(flat) :], strict=False)
        each = iter(math.nan if b else x if i % 2 else -x for i, (x, b) in enumerate(low_high))
        return [[next(each) for _ in x] for x in numbers]

    def any(self, here: bool) -> bool:
        """Whether it is so on some process."""
        return here if self.over is None else bool(most_over([here], self.every, self.like)[0])

    def own(self, x: Tensor) -> Tensor:
        """Of a number for each member, those of the members that are here."""
        return x if self.over is None else x.narrow(0, *self.over.blocks[0])

    def cut(self, x: Tensor) -> Tensor:
        """What is here of a tensor (batch or 1, ..., N or 1)."""
        if self.over is None:
            return x
        x = self.own(x) if len(x) > 1 else x
        if x.shape[-1] == 1:
            return x
        grid = self.over.shape[1:]
        x = x.unflatten(-1, grid)
        for axis, block in enumerate(self.over.blocks[1:]):
            x = x.narrow(axis - len(grid), *block)
        return x.flatten(-len(grid))

    def cells(self, x: Tensor) -> Tensor:
        """Of a number for each column, those of the columns that are here."""
        return x if self.over is None else self.cut(x[None])[0]

    def gathered(self, x: Tensor) -> Tensor:
        """Numbers for each member, of all members, on all processes."""
        if not self.members or self.over is None:
            return x
        start, count = self.over.blocks[0]
        found = x.new_zeros(self.over.shape[0], *x.shape[1:])
        found[start : start + count] = x
        return summed_over(found, self.members)

    def joined(self, maps: Tensor) -> Tensor:
        """Maps of columns, (..., N), on all processes, added up over members."""
        if self.over is None:
            return maps
        grid = self.over.shape[1:]
        found = maps.new_zeros(*maps.shape[:-1], *grid)
        here = found
        for axis, block in enumerate(self.over.blocks[1:]):
            here = here.narrow(axis - len(grid), *block)
        here.copy_(maps.unflatten(-1, self.grid(grid)))
        return summed_over(found.flatten(-len(grid)), self.every)

    def flux(self, said: str, x: Tensor) -> Tensor:
        """What is here of a flux: a number, global means (batch,), or a map as a DTensor."""
        if self.over is None:
            found: Tensor = plain(said, x)
            return found
        if is_sharded(x):
            return self.part(said, x)
        if x.ndim == 0:
            return spread(x, self.every)
        if tuple(x.shape) != self.over.shape[:1]:
            raise InputError(
                f"`{said}` is a plain tensor of the shape {tuple(x.shape)}, but the state is in "
                f"shards (DTensor): it must be a number, global means ({self.over.shape[0]},), or "
                "a DTensor with the axes (batch, *grid) that lies as the surface pressure does."
            )
        return self.own(spread(x, self.every))

    def part(self, said: str, x: Any, levels: int | None = None, batch: bool = True) -> Tensor:
        """What is here of a field, which must lie as the surface pressure does."""
        over = self._like(levels, batch)
        if not is_sharded(x):
            raise InputError(
                f"`{said}` is a plain tensor, but the state is in shards (DTensor): all of it "
                "must be. Use distribute_tensor; or .full_tensor() of the others."
            )
        if tuple(x.shape) != over.shape:
            raise InputError(f"`{said}` has the shape {tuple(x.shape)}; it must have {over.shape}.")
        found = shards_of(said, x)
        if found.mesh != over.mesh or found.axes != over.axes:
            raise InputError(
                f"`{said}` has the placements {x.placements}, other than those of the surface "
                "pressure: a state lies on one mesh, in shards of the batch or of the grid and "
                "never of levels, all alike. Use .redistribute(...), or .full_tensor()."
            )
        here: Tensor = x.to_local()
        return here

    def whole(self, x: Tensor, levels: int | None = None) -> Tensor:
        """The DTensor of which this is here."""
        return self._like(levels).whole(x)

    def agree(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Every process has a part, as `torch.chunk` cuts it, or all raise alike."""
        if self.over is None:
            return
        problem, local = None, self.over.local_shape
        if 0 in local:
            problem = InputError(
                f"`after` leaves a process without columns or members: (batch, *grid) is "
                f"{self.over.shape}. Use fewer processes, or .full_tensor()."
            )
        for x in chain(*(state.values() for state in states)):
            lead = x.shape[0] if x.ndim > len(local) - 1 else local[0]
            if (lead, *x.shape[x.ndim - len(local) + 1 :]) != local:
                problem = problem or InputError(
                    "`after` or `before` does not lie on its processes as `distribute_tensor` "
                    "would cut it: shards are as `torch.chunk` makes them."
                )
        agreed(problem, [], self.every, self.like)

    @property
    def like(self) -> Tensor:
        """A tensor on the kind of device of the mesh."""
        assert self.over is not None
        return torch.empty(0, device=self.over.mesh.device_type)

    def _like(self, levels: int | None, batch: bool = True) -> Shards:
        """Of a field with levels, or without the batch."""
        over = self.over
        assert over is not None
        if levels is not None:
            axes = tuple(a if a is None or a == 0 else a + 1 for a in over.axes)
            return replace(over, axes=axes, shape=(over.shape[0], levels, *over.shape[1:]))
        if not batch:
            axes = tuple(None if not a else a - 1 for a in over.axes)
            return replace(over, axes=axes, shape=over.shape[1:])
        return over


WHOLE = Split()
