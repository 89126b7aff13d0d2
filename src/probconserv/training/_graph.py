"""A piece of GPU work captured once and replayed."""

from collections.abc import Callable

import torch
from torch import Tensor


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
