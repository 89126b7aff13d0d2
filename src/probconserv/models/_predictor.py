"""What networks with a latent have in common: prediction on a grid, in chunks."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from ..fields.gaussian import Diagonal
from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.progress import track
from ._context import Context, alone, read_context, read_grid
from ._ranges import ranges_on, warn_outside
from ._trained import Trained

ROWS = 1 << 13  # of the decoder at once: so few that a CPU keeps them in its cache
ON_GPU = 32  # times as many: a hundred megabytes for each layer


class Predictor(Trained, ABC):
    """A network whose prediction is a mixture over z ~ p(z | context) of independent normals."""

    @abstractmethod
    def draws(
        self,
        known: Tensor,  # (n, N, inputs)
        u: Tensor,  # (n, N)
        mask: Tensor | None,  # (n, N)
        samples: int,
        generator: torch.Generator | None,
    ) -> Tensor:
        """z given the context.

        Parameters
        ----------
        known : Tensor, shape (n, N, inputs)
            Where u is known.
        u : Tensor, shape (n, N)
            The values there.
        mask : Tensor of bool, shape (n, N)
            True where a point is missing.
        samples : int
            How many.
        generator : torch.Generator
            The source of the random numbers.

        Returns
        -------
        Tensor, shape (samples, n, ...)
            The draws.
        """

    def given(self, known: Tensor, u: Tensor, numbers: Tensor | None, samples: int = 1) -> Tensor:
        """z in training, where the numbers that tell functions apart are known too.

        Parameters
        ----------
        known : Tensor, shape (n, N, inputs)
            Where u is known.
        u : Tensor, shape (n, N)
            The values there.
        numbers : Tensor, shape (n, c)
            Those of each function.
        samples : int
            How many.

        Returns
        -------
        Tensor, shape (samples, n, size of z)
            Drawn, always the same; an emulator's z are the numbers, once.
        """
        return self.draws(known, u, None, samples, torch.Generator().manual_seed(0))

    @abstractmethod
    def common(self, known: Tensor, u: Tensor, asked: Tensor, mask: Tensor | None = None) -> Tensor:
        """What the decoder needs beside z: all that depends on context and places alone.

        Parameters
        ----------
        known : Tensor, shape (n, N, inputs)
            Where u is known.
        u : Tensor, shape (n, N)
            The values there.
        asked : Tensor, shape (n, M, inputs)
            The places.
        mask : Tensor of bool, shape (n, N)
            True where a point is missing.

        Returns
        -------
        Tensor, shape (n, M, width)
            For `decode`.
        """

    @abstractmethod
    def decode(self, common: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation at the places.

        Parameters
        ----------
        common : Tensor, shape (n, M, width)
            What `common` returned.
        z : Tensor, shape (..., n, size of z)
            The latent.

        Returns
        -------
        tuple of two Tensor, shape (..., n, M)
            Mean and standard deviation.
        """

    @torch.no_grad()
    def predict(
        self,
        context: Context | list[Context],
        grid: Sequence[ArrayLike],
        samples: int = 100,
        generator: torch.Generator | None = None,
    ) -> Diagonal:
        """The prediction on a grid, with a component for each sample of z on axis 0.

        `Mixture(field)` is the prediction as one field.

        Parameters
        ----------
        context : tuple of arrays, or a list of such tuples
            Coordinates and values (t, x, u), like `Points` of `probconserv.data`, each (n, N) or,
            for one function, (N,). A list may hold functions with different N.
        grid : sequence of arrays
            One axis for each coordinate, (T,) and (M,).
        samples : int
            How many components.
        generator : torch.Generator
            The source of the random numbers.

        Returns
        -------
        Diagonal, shape (samples, n, T, M)
            In float64, without n for one function.

        Raises
        ------
        InputError
            If context or grid do not have the coordinates of the network.
        """
        (known, u, mask), (places, shape) = self._read(context, grid, samples, generator)
        n, rows = len(u), rows_at_once(u.device)
        step = max(1, rows // n)
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

    @contextmanager
    def mode(self, training: bool) -> Iterator[None]:
        """A context in which the network is in train or eval mode."""
        before = self.training
        self.train(training)
        try:
            yield
        finally:
            self.train(before)

    def _read(
        self,
        context: Context | list[Context],
        grid: Sequence[ArrayLike],
        samples: int,
        generator: torch.Generator | None,
    ) -> tuple[tuple[Tensor, Tensor, Tensor | None], tuple[Tensor, tuple[int, ...]]]:
        check.samples(samples, "samples")
        check.generator(generator)
        inputs, like = self.sizes["inputs"], next(self.parameters())
        known, u, mask = read_context(context, inputs, like)
        places, shape = read_grid(grid, inputs, like)
        seen = slice(None) if mask is None else ~mask
        arrays = [*known[seen].flatten(0, -2).T, u[seen]]
        warn_outside(ranges_on(self.card), {"context": arrays, "grid": list(places.T)})
        return (known, u, mask), (places, shape)


def rows_at_once(device: torch.device) -> int:
    return ROWS * ON_GPU if device.type == "cuda" else ROWS


def field_of(moments: Tensor, shape: tuple[int, ...], context: Context | list[Context]) -> Diagonal:
    mean, variance = moments.unflatten(-1, shape)
    if alone(context):
        mean, variance = mean[:, 0], variance[:, 0]
    check.finite("variance", variance)  # of a network it is never meant to be infinite
    return Diagonal(mean, variance)
