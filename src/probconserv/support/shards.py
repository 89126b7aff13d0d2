"""Tensors in shards on several processes (DTensor): which part is here, and sums over processes.

torch.distributed.tensor takes seconds to import: who has a DTensor has imported it.
"""

import hashlib
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .errors import InputError, ProbConservError
from .gradients import as_if

Groups: TypeAlias = tuple[Any, ...]  # process groups, one for each axis of the mesh of devices
Block: TypeAlias = tuple[int, int]  # of an axis: where it starts, and how many entries it has


def is_sharded(x: object) -> bool:
    """Whether it is a DTensor."""
    if type(x) is Tensor:
        return False
    module: Any = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


@dataclass(frozen=True)
class Shards:
    """How a tensor lies on a mesh of devices.

    mesh: a DeviceMesh. axes: for each of its axes the axis of the tensor that it shards, None where
    it repeats the tensor. shape: of the whole tensor.
    """

    mesh: Any
    axes: tuple[int | None, ...]
    shape: tuple[int, ...]

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The part of each axis of the tensor that is here, as `torch.chunk` cuts it."""
        found = [(0, size) for size in self.shape]
        for number, axis in enumerate(self.axes):
            if axis is not None:
                start, size = found[axis]
                each = -(-size // self.mesh.size(number))
                first = min(self.mesh.get_local_rank(number) * each, size)
                found[axis] = start + first, min(each, size - first)
        return tuple(found)

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Of the part that is here."""
        return tuple(size for _, size in self.blocks)

    def groups(self, first: int = 0, stop: int = sys.maxsize) -> Groups:
        """The process groups over which the axes from `first` to before `stop` are sharded."""
        some = enumerate(self.axes)
        return tuple(self.mesh.get_group(i) for i, a in some if a is not None and first <= a < stop)

    def place(self) -> tuple[int, ...]:
        """Which of the parts is here; the same for processes that hold the same part."""
        pairs = enumerate(self.axes)
        return tuple(0 if a is None else self.mesh.get_local_rank(i) for i, a in pairs)

    def before(self, stop: int) -> "Shards":
        """Of a tensor with the first axes alone."""
        axes = tuple(None if a is None or a >= stop else a for a in self.axes)
        return Shards(self.mesh, axes, self.shape[:stop])

    def part(self, x: Any, more: int = 0) -> Tensor:
        """What is here of a DTensor, laid out in this way; more: its axes before these."""
        cut = self._placements(more)
        found: Tensor = (x if x.placements == cut else x.redistribute(placements=cut)).to_local()
        return found.contiguous()

    def whole(self, x: Tensor) -> Tensor:
        """The DTensor of which `x` is what is here; it may have axes before these."""
        more = x.ndim - len(self.shape)
        shape = torch.Size((*x.shape[:more], *self.shape))
        stride = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
        kind: Any = sys.modules["torch.distributed.tensor"].DTensor
        cut = self._placements(more)
        found: Tensor = kind.from_local(
            x.contiguous(), self.mesh, cut, run_check=False, shape=shape, stride=stride
        )
        return found

    def _placements(self, more: int) -> tuple[Any, ...]:
        module: Any = sys.modules["torch.distributed.tensor"]
        kinds = module.Shard, module.Replicate
        return tuple(kinds[1]() if a is None else kinds[0](a + more) for a in self.axes)


def shards_of(name: str, x: Any) -> Shards:
    """How a DTensor lies on its mesh; an error for what is no plain shard."""
    module: Any = sys.modules["torch.distributed.tensor"]
    for placement in x.placements:
        if type(placement) not in (module.Shard, module.Replicate):
            raise InputError(
                f"`{name}` has the placement {placement}; it must be Shard or Replicate along each "
                "axis of the mesh. Use .redistribute(placements=[...])."
            )
    if x.device_mesh.get_coordinate() is None:
        raise InputError(f"`{name}` lies on a mesh of devices that this process is not part of.")
    axes = tuple(p.dim if type(p) is module.Shard else None for p in x.placements)
    axes = tuple(None if a is None else a % x.ndim for a in axes)
    return Shards(x.device_mesh, axes, tuple(x.shape))


def ends_of(name: str, x: Any) -> tuple[float, float]:
    """The least and the largest number of a DTensor, on all its processes; NaN where one is."""
    over = shards_of(name, x)
    here = x.detach().to_local()
    low, high = map(float, here.aminmax()) if here.numel() else (math.inf, -math.inf)
    other = here.shape != over.local_shape
    sizes = [*x.shape, *(-n for n in x.shape)]
    found = most_over([other, math.isnan(low), -low, high, *sizes], groups_of(over.mesh), here)
    other, bad, low, high, *sizes = found
    if other or sizes[: x.ndim] != [-n for n in sizes[x.ndim :]]:
        raise InputError(
            f"`{name}` does not lie on its processes as `distribute_tensor` would cut it. Give "
            "`DTensor.from_local` the `shape` and `stride` of the whole, and shards as "
            "`torch.chunk` makes them."
        )
    return (math.nan, math.nan) if bad else (-low, high)


def replicated(given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of which some are DTensors: numbers are made such, other plain tensors refused."""
    first, like = next((name, x) for name, x in given.items() if is_sharded(x))
    over, found = shards_of(first, like), {}
    for name, x in given.items():
        if not is_sharded(x) and x.ndim:
            raise InputError(
                f"`{name}` is a plain tensor, but `{first}` is a DTensor. Use "
                f"distribute_tensor({name}, {first}.device_mesh, {first}.placements)."
            )
        if not is_sharded(x):
            x = Shards(over.mesh, (None,) * len(over.axes), ()).whole(x.to(like.device))
        elif shards_of(name, x).mesh != over.mesh:
            raise InputError(f"`{name}` and `{first}` lie on different meshes of devices.")
        found[name] = x
    return found


def count_of(x: Any) -> int:
    """How many entries of a DTensor are true, on all its processes."""
    over = shards_of("x", x)
    count = x.to_local().sum()
    return int(_reduced(count, over.groups()))


def groups_of(mesh: Any) -> Groups:
    """The process groups of all axes of a mesh."""
    return tuple(mesh.get_group(i) for i in range(mesh.ndim))


def joined(each: Sequence[Groups]) -> Groups:
    """Each group that is in some of them, once."""
    return tuple({id(group): group for groups in each for group in groups}.values())


def size_of(groups: Groups) -> int:
    """How many processes there are in all groups together."""
    return math.prod(group.size() for group in groups)


def summed_over(x: Tensor, groups: Groups) -> Tensor:
    """The sum of what the processes have, on all of them, with its gradient."""
    found: Tensor = _Summed.apply(x, groups) if groups else x  # type: ignore[no-untyped-call]
    return found


def most_over(numbers: Sequence[float], groups: Groups, like: Tensor) -> list[float]:
    """The largest of each number over the processes; like: a tensor on their kind of device."""
    found = torch.tensor(numbers, dtype=torch.float64, device=like.device)
    return _reduced(found, groups, "MAX").tolist()


def largest_over(x: Tensor, groups: Groups) -> Tensor:
    """The largest of each number over the processes, without a gradient; NaN where one is."""
    if not groups:
        return x
    x = x.detach()
    bad = x.isnan()
    pair = torch.stack([x.where(~bad, -math.inf), bad.to(x.dtype)])
    found, failed = _reduced(pair, groups, "MAX")
    return found.where(failed == 0, math.nan)


def spread(x: Tensor, groups: Groups) -> Tensor:
    """A tensor that all processes hold, of which each makes something else: gradients add up."""
    if not groups or not x.requires_grad:
        return x
    found: Tensor = _Spread.apply(x, groups)  # type: ignore[no-untyped-call]
    return found


def once(x: Tensor, groups: Groups) -> Tensor:
    """A tensor that all processes have made alike: its gradient counts once."""
    return as_if(x, x / size_of(groups)) if groups and x.requires_grad else x


def agreed(
    problem: Exception | None, numbers: Sequence[float], groups: Groups, like: Tensor
) -> Any:
    """`most_over`; where some process has a problem, all raise that of the first."""
    failed, *found = most_over([float(problem is not None), *numbers], groups, like)
    if not failed:
        return found
    said = None if problem is None else _packed(problem)
    for group in groups:
        each: list[Any] = [None] * group.size()
        torch.distributed.all_gather_object(each, said, group=group)
        said = next((one for one in each if one is not None), None)
    kind, text = said  # type: ignore[misc]
    raise kind(text) from problem


def _packed(problem: Exception) -> tuple[type[Exception], str]:
    if isinstance(problem, ProbConservError):
        return type(problem), str(problem)
    return RuntimeError, f"a process failed: {type(problem).__name__}: {problem}"


def generator_of(seed: int, *place: object, like: Tensor) -> torch.Generator:
    """Random numbers of their own for each place."""
    words = hashlib.sha256(repr((seed, *place)).encode()).digest()
    return torch.Generator(like.device).manual_seed(int.from_bytes(words[:8], "big") >> 1)


def same_seed(generator: torch.Generator | None, groups: Groups, like: Tensor) -> int:
    """A number from the generator of the first process of the mesh, on all of them."""
    own = torch.empty((), dtype=torch.int64, device=like.device)
    own = own.random_(generator=generator)
    for group in groups:
        torch.distributed.broadcast(own, group=group, group_src=0)
    return int(own)


def _reduced(x: Tensor, groups: Groups, how: str = "SUM") -> Tensor:
    found = x.detach().clone(memory_format=torch.contiguous_format)
    for group in groups:
        torch.distributed.all_reduce(found, getattr(torch.distributed.ReduceOp, how), group=group)
    return found


class _Summed(torch.autograd.Function):
    """A sum over processes, which all of them go on with: so do gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: Groups) -> Tensor:
        ctx.groups = groups
        return _reduced(x, groups)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return summed_over(g, ctx.groups), None


class _Spread(torch.autograd.Function):
    """As it is; gradients are added up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: Groups) -> Tensor:
        ctx.groups = groups
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return summed_over(g, ctx.groups), None
