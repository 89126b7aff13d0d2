"""What networks with a latent have in common: contexts, grids, prediction in chunks."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from ..fields.gaussian import Diagonal
from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError
from ..support.progress import track
from ._trained import Trained, ranges_on, warn_outside

Context: TypeAlias = Sequence[ArrayLike]  # (t, x, u): coordinates and values, (n, N) or (N,) each


def read_context(
    context: Context | list[Context], inputs: int, like: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Coordinates (n, N, inputs), values (n, N), and where points are missing (n, N)."""
    if isinstance(context, list) and not all(isinstance(c, tuple) and c for c in context):
        raise InputError(
            "`context` as a list must hold one tuple (t, x, u) for each function; for one set "
            "of arrays give a tuple."
        )
    if not isinstance(context, list | tuple | Tensor | np.ndarray):
        raise InputError(
            "`context` must be a tuple of arrays (t, x, u), such as the `context` of functions of "
            f"`probconserv.data`; got {type(context).__name__}."
        )
    if not len(context):
        raise InputError("`context` must hold at least one function.")
    sets = [_stacked(one, like) for one in (context if isinstance(context, list) else [context])]
    for one in sets:
        if one.shape[-1] != inputs + 1:
            raise InputError(
                f"`context` must hold {inputs} coordinates and the values, "
                f"{inputs + 1} arrays in all; got {one.shape[-1]}."
            )
    if not isinstance(context, list):
        every = sets[0] if sets[0].ndim == 3 else sets[0][None]
        return every[..., :-1], every[..., -1], None
    padded = nn.utils.rnn.pad_sequence(sets, batch_first=True)
    counts = torch.tensor([len(one) for one in sets], device=like.device)
    mask = torch.arange(padded.shape[1], device=like.device) >= counts[:, None]
    return padded[..., :-1], padded[..., -1], mask


def read_grid(
    grid: Sequence[ArrayLike], inputs: int, like: Tensor
) -> tuple[Tensor, tuple[int, ...]]:
    """The points of a grid, (T * M, inputs), and its shape."""
    axes = grid if isinstance(grid, list | tuple | Tensor | np.ndarray) else None
    if axes is None or len(axes) != inputs:
        raise InputError(
            f"`grid` must have one axis for each of the {inputs} coordinates, got "
            f"{type(grid).__name__ if axes is None else len(axes)}."
        )
    axes = [check.tensor(f"grid[{i}]", axis).to(like) for i, axis in enumerate(grid)]
    for i, axis in enumerate(axes):
        if axis.ndim != 1 or not len(axis):
            raise InputError(f"`grid[{i}]` must be one axis, got shape {tuple(axis.shape)}.")
    mesh = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
    return mesh.flatten(0, -2), tuple(mesh.shape[:-1])


def alone(context: Context | list[Context]) -> bool:
    """Whether it is one function, whose field has no axis n."""
    return not isinstance(context, list) and check.as_tensor("context", context[-1]).ndim == 1


def _stacked(context: Context, like: Tensor) -> Tensor:
    """One context as (n, N, inputs + 1) or (N, inputs + 1), converted to the model's kind."""
    arrays = [check.tensor(f"context[{i}]", a).to(like) for i, a in enumerate(context)]
    shapes = {tuple(a.shape) for a in arrays}
    if len(shapes) != 1 or arrays[0].ndim not in (1, 2) or not arrays[0].numel():
        raise InputError(
            "`context` must hold arrays of one shape, (n, N) or (N,), with at least one point; got "
            f"shapes {', '.join(map(str, sorted(shapes))) or 'of nothing'}."
        )
    for i, array in enumerate(arrays):
        check.finite(f"context[{i}]", array)  # in the model's kind, where large numbers are not
    return torch.stack(arrays, dim=-1)


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
