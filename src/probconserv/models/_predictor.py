"""What networks with a latent have in common: prediction on a grid, in chunks."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .. import _checks as check
from .._checks import ArrayLike
from .._fields import Diagonal
from .._progress import track
from ._attention import Attention
from ._context import Context, alone, read_context, read_grid

ROWS = 1 << 13  # of the decoder at once: so few that a CPU keeps them in its cache
ON_GPU = 32  # times as many: a hundred megabytes for each layer


class Predictor(nn.Module, ABC):
    """A network whose prediction is a mixture over z ~ p(z | context) of independent normals."""

    def __init__(self, sizes: dict[str, int], min_std: float) -> None:
        super().__init__()
        self.card: dict[str, Any] = {}  # how it was trained, where known
        self.sizes, self.min_std = sizes, min_std

    @abstractmethod
    def draws(
        self,
        known: Tensor,  # (n, N, inputs)
        u: Tensor,  # (n, N)
        mask: Tensor | None,  # (n, N)
        samples: int,
        generator: torch.Generator | None,
    ) -> Tensor:
        """z given the context, (samples, n, ...)."""

    @abstractmethod
    def common(self, known: Tensor, u: Tensor, asked: Tensor, mask: Tensor | None = None) -> Tensor:
        """What the decoder needs beside z: all that depends on context and places alone."""

    @abstractmethod
    def decode(self, common: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, (..., n, M)."""

    @torch.no_grad()
    def predict(
        self,
        context: Context | list[Context],
        grid: Sequence[ArrayLike],
        samples: int = 100,
        generator: torch.Generator | None = None,
    ) -> Diagonal:
        """The prediction on a grid: a `Diagonal` with a component for each sample of z on axis 0.

        context: coordinates and values (t, x, u), like `Points` of `probconserv.data`, each (n, N)
        or, for one function, (N,); or a list of such tuples with different N. grid: one axis for
        each coordinate, (T,) and (M,). The field is float64, (samples, n, T, M), without n for one
        function. `Mixture(field)` is the prediction.
        """
        known, u, mask = self._points(context)
        places, shape = self._places(grid)
        n, rows = len(u), rows_at_once(u.device)
        step = max(1, rows // n)
        check.samples(samples, "samples")
        moments = torch.empty(2, samples, n, len(places), dtype=torch.float64, device=u.device)
        with self.mode(training=False):
            z = self.draws(known, u, mask, samples, generator)
            for i in track(range(0, len(places), step), "Predicting"):
                here = places[i : i + step].expand(n, -1, -1)
                common = self.common(known, u, here, mask)
                width = max(1, rows // (n * here.shape[1]))
                for part in (slice(j, j + width) for j in range(0, samples, width)):
                    mean, std = self.decode(common, z[part])
                    moments[0, part, :, i : i + step] = mean
                    moments[1, part, :, i : i + step] = std.double() ** 2
        return field_of(moments, shape, context)

    def attend_in_float16(self, on: bool) -> None:
        """Whether attention is computed in float16, for fused kernels on a GPU."""
        for module in self.modules():
            if isinstance(module, Attention):
                module.in_float16 = on

    @contextmanager
    def mode(self, training: bool) -> Iterator[None]:
        """Train or eval mode for a while."""
        before = self.training
        self.train(training)
        try:
            yield
        finally:
            self.train(before)

    def _points(self, context: Context | list[Context]) -> tuple[Tensor, Tensor, Tensor | None]:
        return read_context(context, self.sizes["inputs"], next(self.parameters()))

    def _places(self, grid: Sequence[ArrayLike]) -> tuple[Tensor, tuple[int, ...]]:
        return read_grid(grid, self.sizes["inputs"], next(self.parameters()))


def rows_at_once(device: torch.device) -> int:
    return ROWS * ON_GPU if device.type == "cuda" else ROWS


def field_of(moments: Tensor, shape: tuple[int, ...], context: Context | list[Context]) -> Diagonal:
    mean, variance = moments.unflatten(-1, shape)
    if alone(context):
        mean, variance = mean[:, 0], variance[:, 0]
    return Diagonal(mean, variance)
