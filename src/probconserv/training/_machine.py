"""How steps run: as one CUDA graph, or on several processes, as torchrun starts them."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ..support.errors import InputError


class Graphed:
    """Work captured in a CUDA graph after a few calls, which warm up what it compiles."""

    def __init__(self, work: Callable[[], Tensor], warm_up: int = 3) -> None:
        self.work, self.left = work, warm_up
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> Tensor:
        if self.left:
            self.left -= 1
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                value = self.work()
            torch.cuda.current_stream().wait_stream(side)
            return value
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.value = self.work()
        self.graph.replay()
        return self.value


@dataclass(frozen=True)
class Team:
    """This process among `size`; the first one writes files and shows progress."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, batch: int) -> slice:
        """Which functions of a batch are for this process."""
        if batch % self.size:
            raise InputError(
                f"`batch` must be a multiple of the {self.size} processes, got {batch}."
            )
        return slice(self.rank, None, self.size)

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Each tensor becomes its mean over the processes, in place."""
        if self.size == 1:
            return
        flat = torch.cat([t.flatten() for t in tensors])
        dist.all_reduce(flat)
        parts = (flat / self.size).split([t.numel() for t in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


def mean_of_team(values: Tensor) -> Tensor:
    """The mean of values over all processes, which have as many each."""
    mean = values.mean()
    dist.all_reduce(mean)
    return mean / dist.get_world_size()


@contextmanager
def team(device: torch.device) -> Iterator[Team]:
    """The processes that torchrun started, or a team already at work, or this one alone."""
    started = dist.is_available() and dist.is_torchelastic_launched() and not dist.is_initialized()
    if started:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        together = dist.is_available() and dist.is_initialized()
        yield Team(dist.get_rank(), dist.get_world_size()) if together else Team()
    finally:
        if started:
            dist.destroy_process_group()


def local_rank() -> int:
    """Which of a machine's GPUs is for this process."""
    return int(os.environ.get("LOCAL_RANK", 0))
