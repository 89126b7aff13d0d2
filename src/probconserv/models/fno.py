"""The Fourier neural operator: from functions or numbers on a grid to fields on it."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..data._grids import spread_of
from ..fields.gaussian import Diagonal
from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError
from ._trained import ROUNDING, Axis, Trained, axes_on, beyond, beyond_inputs, check_axis, warn_of

Matrices = list[tuple[Tensor, Tensor]]  # for each axis, to frequencies and back


class _Transforms:
    """Discrete Fourier transforms along the last axes.

    Of the last axis the frequencies 0 to m - 1 are kept, of the others -(m - 1) to m - 1: the rest
    of a real function follows from these. A frequency is a pair, real part and imaginary part.
    """

    def __init__(self, modes: Sequence[int]) -> None:
        self.modes = tuple(modes)
        self.size = math.prod([*(2 * m - 1 for m in self.modes[:-1]), self.modes[-1]])

    def matrices(self, shape: Sequence[int], like: Tensor) -> Matrices:
        """Those of a grid: (2 n, 2 k) there and (2 k, 2 n) back; n for 2 n of the last axis."""
        found = []
        for i, (n, m) in enumerate(zip(shape, self.modes, strict=True)):
            last = i == len(self.modes) - 1
            k = torch.arange(0 if last else 1 - m, m, device=like.device)
            angle = (torch.arange(n, device=like.device)[:, None] * k % n).to(like)
            angle = angle * (2 * math.pi / n)
            cos, sin = angle.cos(), angle.sin()  # (n, k)
            if last:
                weight = torch.where(k == 0, 1.0, 2.0).to(like) / n
                there = torch.stack([cos, -sin], dim=-1).flatten(1)
                back = torch.stack([cos * weight, -sin * weight], dim=-1).flatten(1).mT
            else:
                there = _rotations(cos, -sin)
                back = _rotations(cos.mT, sin.mT) / n
            found.append((there, back))
        return found

    def there(self, h: Tensor, matrices: Matrices) -> Tensor:
        """(K, n, C, *shape) to (K, n, C, size, 2)."""
        axes = len(matrices)
        h = (h @ matrices[-1][0]).unflatten(-1, (-1, 2))
        for i in reversed(range(axes - 1)):
            h = h.movedim(3 + i, -2)  # beside its pairs
            h = (h.flatten(-2) @ matrices[i][0]).unflatten(-1, (-1, 2))
        return h.flatten(3, -2)

    def back(self, h: Tensor, matrices: Matrices) -> Tensor:
        """(K, n, C, size, 2) to (K, n, C, *shape)."""
        axes = len(matrices)
        counts = [self.modes[-1], *(2 * m - 1 for m in reversed(self.modes[:-1]))]
        h = h.unflatten(3, counts)
        for i in range(axes - 1):
            h = (h.flatten(-2) @ matrices[i][1]).unflatten(-1, (-1, 2)).movedim(-2, 3 + i)
        return h.flatten(-2) @ matrices[-1][1]


class _MixChannels(nn.Module):
    """A mix of the channels at each point, one for each network: (K or 1, n, C, *shape)."""

    def __init__(self, networks: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(networks, outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(networks, outputs).uniform_(-bound, bound))

    def forward(self, h: Tensor) -> Tensor:
        mixed = self.weight[:, None] @ h.flatten(3) + self.bias[:, None, :, None]
        return mixed.unflatten(3, h.shape[3:])


class _MixModes(nn.Module):
    """A mix of the channels of each frequency, one for each network: (K, n, C, size, 2)."""

    def __init__(self, networks: int, size: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(networks, size, width, width, 2) / width)

    def forward(self, h: Tensor) -> Tensor:
        real, imaginary = self.weight.unbind(-1)  # (K, size, in, out)
        weight = torch.cat(
            [torch.cat([real, imaginary], dim=-1), torch.cat([-imaginary, real], dim=-1)], dim=-2
        )
        h = h.permute(0, 3, 1, 4, 2).flatten(-2)  # (K, size, n, 2 C)
        return (h @ weight).unflatten(-1, (2, -1)).permute(0, 2, 4, 1, 3)


def _rotations(cos: Tensor, sin: Tensor) -> Tensor:
    """Of pairs by angles: (n, k) each to (2 n, 2 k)."""
    pairs = torch.stack(
        [torch.stack([cos, sin], dim=-1), torch.stack([-sin, cos], dim=-1)], dim=1
    )  # (n, 2, k, 2)
    return pairs.flatten(2).flatten(0, 1)


AT_ONCE = 2**22  # values of the widest layer in one call of `predict`: 16 MiB, reused, are fast
START = -4.0  # of the raw standard deviation: 0.018 of the targets' spread


class FNO(Trained):
    """A Fourier neural operator in one to three dimensions, or several of them side by side.

    Each layer keeps the lowest frequencies of its channels, mixes the channels of each frequency,
    and adds a mix of the channels at each point. It reads its inputs, the coordinates of the axes
    that are not periodic, and its inputs times the coordinates of axes without frequencies. Where
    the input is a parameter and the axis is time, that product carries a solution beyond the range
    of training.

    Parameters
    ----------
    inputs : int
        How many input channels, functions on the grid or numbers.
    modes : sequence of int
        How many frequencies of each axis, from 0 on; of three axes at most. 0 stands for an axis
        along which nothing is mixed, such as a time that is only a coordinate.
    fields : int
        How many fields it predicts.
    width, layers : int
        Channels inside, and how many layers.
    members : int
        Independent networks, trained side by side.
    heads : int
        Last layers of each network; `apart` is what pushes them apart.
    variance : bool
        Whether it predicts a variance beside each mean.
    periodic : sequence of bool
        Which axes are periodic; none if not given.
    padding : float
        The share of points that are added to an axis that is not periodic.
    min_std : float
        The least standard deviation, in units of the targets' spread.

    Raises
    ------
    InputError
        If there are not one to three axes with frequencies, or a size is not positive.

    Examples
    --------
    >>> network = FNO(inputs=1, modes=(0, 4), width=8, members=3)  # t is a coordinate, x is not
    >>> t, x = torch.linspace(0, 1, 5), torch.linspace(0, 1, 20)
    >>> network.predict([[0.6], [0.7]], (t, x))
    Diagonal(shape=(3, 2, 5, 20), event_dims=0, torch.float64)
    """

    models = ("fno",)
    input_middle: Tensor
    input_spread: Tensor
    target_middle: Tensor
    target_spread: Tensor
    axis_middle: Tensor
    axis_spread: Tensor

    def __init__(
        self,
        inputs: int,
        modes: Sequence[int],
        fields: int = 1,
        width: int = 32,
        layers: int = 4,
        members: int = 1,
        heads: int = 1,
        variance: bool = True,
        periodic: Sequence[bool] | None = None,
        padding: float = 0.08,
        min_std: float = 1e-5,
    ) -> None:
        modes, sides = _read_axes(modes, periodic)
        padding = check.between("padding", padding, 0, 10)
        counts = {"inputs": inputs, "fields": fields, "width": width, "layers": layers}
        counts |= {"members": members, "heads": heads}
        sizes: dict[str, Any] = {name: check.samples(n, name) for name, n in counts.items()}
        sizes |= {"modes": list(modes), "variance": bool(variance), "padding": padding}
        super().__init__(sizes | {"periodic": list(sides)}, min_std)
        self.periodic = sides
        self.pointwise = [i for i, m in enumerate(modes) if m == 0]
        self.transforms = _Transforms([m for m in modes if m])
        bent = [not p for p, m in zip(self.periodic, modes, strict=True) if m]
        self.padded = [padding if b else 0.0 for b in bent]
        self.times = [i for i in self.pointwise if not self.periodic[i]]
        channels = inputs + self.periodic.count(False) + inputs * len(self.times)
        self.lift = _MixChannels(members, channels, width)
        self.spectral = nn.ModuleList(
            _MixModes(members, self.transforms.size, width) for _ in range(layers)
        )
        self.local = nn.ModuleList(_MixChannels(members, width, width) for _ in range(layers))
        self.hidden = _MixChannels(members, width, 2 * width * heads)
        self.last = _MixChannels(members * heads, 2 * width, fields * (1 + variance))
        for name, size in (("input", inputs), ("target", fields), ("axis", len(modes))):
            self.register_buffer(f"{name}_middle", torch.zeros(size))
            self.register_buffer(f"{name}_spread", torch.ones(size))

    def set_scales(self, inputs: Tensor, targets: Tensor, coordinates: Sequence[Tensor]) -> None:
        """Sets the units in which the network sees what it reads and gives, from training data.

        Parameters
        ----------
        inputs : Tensor, shape (n, inputs) or (n, inputs, ...)
            What it reads.
        targets : Tensor, shape (n, fields, ...)
            What it is to give.
        coordinates : sequence of Tensor
            One axis of the grid each.

        Raises
        ------
        InputError
            If an axis has too few points for its frequencies.
        """
        _check_points(coordinates, self.sizes["modes"])
        rows = [("input", a) for a in inputs.movedim(1, 0)]
        rows += [("target", a) for a in targets.movedim(1, 0)]
        found: dict[str, list[tuple[float, float]]] = {"input": [], "target": [], "axis": []}
        for name, a in rows:
            found[name].append((float(a.double().mean()), spread_of(a)))
        for axis in coordinates:
            low, high = float(axis.min()), float(axis.max())
            found["axis"].append(((low + high) / 2, (high - low) / 2 or 1.0))
        for name, pairs in found.items():
            table = torch.tensor(pairs, dtype=torch.float64)
            getattr(self, f"{name}_middle").copy_(table[:, 0])
            getattr(self, f"{name}_spread").copy_(table[:, 1])

    def forward(
        self, inputs: Tensor, coordinates: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """Mean and standard deviation of every member and head.

        Parameters
        ----------
        inputs : Tensor, shape (n, inputs), (n, inputs, ...) or (members, n, inputs, ...)
            Numbers, the same on the whole grid, or functions on it; others for each member, as
            where each goes on from its own last step.
        coordinates : sequence of Tensor
            One axis of the grid each; (n, points) for an axis without frequencies whose points
            differ from function to function.

        Returns
        -------
        tuple of two Tensor, shape (members x heads, n, fields, ...)
            The second is None for a network without variances.
        """
        grid = [axis.shape[-1] for axis in coordinates]
        own = inputs.ndim == 3 + len(grid)  # inputs of its own for each member
        h = self._channels(inputs.flatten(0, 1) if own else inputs, coordinates)  # (n, C, *grid)
        ahead = [2 + i for i in self.pointwise]
        h = h.movedim(ahead, list(range(1, 1 + len(ahead))))  # (n, *pointwise, C, *spectral)
        rows, h = h.shape[: 1 + len(ahead)], h.flatten(0, len(ahead))
        h = h.unflatten(0, (self.sizes["members"], -1)) if own else h[None]
        h = self._network(h)  # (S, rows, fields * (1 or 2), *spectral)
        h = h.unflatten(1, (-1, *rows[1:]))
        h = h.movedim(list(range(2, 2 + len(ahead))), [3 + i for i in self.pointwise])
        h = h.unflatten(2, (self.sizes["fields"], -1))
        scale = self.target_spread.reshape(-1, *[1] * len(grid))
        mean = self.target_middle.reshape(scale.shape) + scale * h[:, :, :, 0]
        if not self.sizes["variance"]:
            return mean, None
        return mean, scale * (F.softplus(h[:, :, :, 1] + START) + self.min_std)

    def _channels(self, inputs: Tensor, coordinates: Sequence[Tensor]) -> Tensor:
        """Inputs, coordinates of axes that are not periodic, and products, (n, C, *grid)."""
        grid = [axis.shape[-1] for axis in coordinates]
        after = [1] * len(grid)
        given = inputs if inputs.ndim > 2 else inputs.reshape(*inputs.shape, *after)
        middle, spread = (a.reshape(-1, *after) for a in (self.input_middle, self.input_spread))
        given = ((given - middle) / spread).expand(len(inputs), -1, *grid)
        places = {
            i: ((axis - self.axis_middle[i]) / self.axis_spread[i]).reshape(
                -1 if axis.ndim == 2 else 1, *[1] * (i + 1), grid[i], *[1] * (len(grid) - 1 - i)
            )
            for i, axis in enumerate(coordinates)
            if not self.periodic[i]
        }
        coordinates = [place.expand(len(inputs), 1, *grid) for place in places.values()]
        return torch.cat([given, *coordinates, *(given * places[i] for i in self.times)], dim=1)

    def _network(self, h: Tensor) -> Tensor:  # (members or 1, rows, C, *spectral)
        shape = h.shape[3:]
        h = self.lift(h)
        extra = [math.ceil(p * n) for p, n in zip(self.padded, shape, strict=True)]
        h = F.pad(h, [size for added in reversed(extra) for size in (0, added)])
        matrices = self.transforms.matrices(h.shape[3:], h)
        for i, (spectral, local) in enumerate(zip(self.spectral, self.local, strict=True)):
            mixed = spectral(self.transforms.there(h, matrices))
            h = self.transforms.back(mixed, matrices) + local(h)
            h = F.gelu(h) if i < len(self.local) - 1 else h
        for axis, n in enumerate(shape):
            h = h.narrow(3 + axis, 0, n)
        h = F.gelu(self.hidden(h))
        heads = self.sizes["heads"]
        h = h.unflatten(2, (heads, -1)).movedim(2, 1).flatten(0, 1)  # one row for each head
        return self.last(h)

    @torch.no_grad()
    def predict(
        self,
        inputs: ArrayLike,
        coordinates: Sequence[ArrayLike],
    ) -> Diagonal:
        """What each member predicts, in float64; of `Mixture` or `Ensemble` it is one field.

        Parameters
        ----------
        inputs : array, shape (n, inputs), (n, inputs, ...) or (members, n, inputs, ...)
            As in `forward`.
        coordinates : sequence of arrays
            One axis of the grid each, in the units of training. An axis with frequencies covers
            the range of training with evenly spaced points, as many as you like; of an axis
            without, any points may be asked for.

        Returns
        -------
        Diagonal, shape (members x heads, n, ...)
            The grid last; (members x heads, n, fields, ...) for several fields.

        Raises
        ------
        InputError
            If the inputs or the coordinates are not those of the network, or an axis with
            frequencies is not that of training: uneven, or of another range.

        Warns
        -----
        ImplausibleWarning
            If inputs, or an axis without frequencies, go beyond what the network was trained on.
        """
        given, axes = self._read(inputs, coordinates)
        means, variances = self._moments(given, axes)
        check.finite("variances", variances)  # of a network they are never meant to be infinite
        if self.sizes["fields"] == 1:
            means, variances = means.squeeze(2), variances.squeeze(2)
        return Diagonal(means, variances)

    def _moments(self, given: Tensor, axes: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Means and variances of members and heads, float64, a few functions at a time."""
        sizes = self.sizes
        points = math.prod(len(axis) for axis in axes)
        each = sizes["members"] * sizes["heads"] * 2 * sizes["width"] * points
        functions = int(given.ndim == 3 + len(axes))  # their axis
        parts = [self(part, axes) for part in given.split(max(1, AT_ONCE // each), functions)]
        means = torch.cat([mean.double() for mean, _ in parts], 1)
        if not sizes["variance"]:
            return means, torch.zeros_like(means)
        return means, torch.cat([std.double() ** 2 for _, std in parts], 1)

    def apart(self) -> Tensor:
        """How alike the heads of each network are: the mean squared cosine between their weights.

        It is 0 for heads at right angles, and for one head.
        """
        heads = self.sizes["heads"]
        if heads == 1:
            return self.last.weight.new_zeros(())
        parts = self.hidden.weight.unflatten(1, (heads, -1)).flatten(2)  # (members, heads, ...)
        parts = F.normalize(parts, dim=-1)
        cosines = parts @ parts.mT - torch.eye(heads, device=parts.device, dtype=parts.dtype)
        return (cosines**2).sum((-2, -1)).mean() / (heads * (heads - 1))

    def _read(
        self, inputs: ArrayLike, coordinates: Sequence[ArrayLike]
    ) -> tuple[Tensor, list[Tensor]]:
        like = self.last.weight
        modes, channels = self.sizes["modes"], self.sizes["inputs"]
        if not isinstance(coordinates, Iterable):
            raise InputError(
                f"`coordinates` must be {len(modes)} axes of numbers, got "
                f"{type(coordinates).__name__}."
            )
        given_axes = [check.tensor(f"coordinates[{i}]", a) for i, a in enumerate(coordinates)]
        axes = [axis.to(like) for axis in given_axes]
        if len(axes) != len(modes) or any(a.ndim != 1 for a in axes):
            raise InputError(
                f"`coordinates` must be {len(modes)} axes of numbers, got shapes "
                f"{[tuple(a.shape) for a in axes]}."
            )
        _check_points(axes, modes)
        given = check.tensor("inputs", inputs).to(like)
        check.finite("inputs", given)  # in the network's kind, where large numbers are not
        grid = tuple(len(a) for a in axes)
        members = self.sizes["members"]
        own = given.ndim == 3 + len(grid) and len(given) == members
        shape = given.shape[own:]
        fits = len(shape) in (2, 2 + len(grid)) and all(
            a in (1, b) for a, b in zip(shape[2:], grid, strict=False)
        )
        if not fits or shape[1] != channels:
            raise InputError(
                f"`inputs` must be (n, {channels}), (n, {channels}, *{grid}) or ({members}, n, "
                f"{channels}, *{grid}), got {tuple(given.shape)}."
            )
        self._compare(given, given_axes, 2 if own else 1)
        return given, axes

    def _compare(self, inputs: Tensor, axes: Sequence[Tensor], channel: int) -> None:
        """Refuses axes, and warns of inputs and times, that are not those of training."""
        if not check.concrete(inputs, *axes):
            return
        said = beyond_inputs(self.card, inputs, channel)
        for i, (name, trained) in enumerate(axes_on(self.card).items()):
            if self.sizes["modes"][i]:
                check_axis(i, name, trained, Axis.of(axes[i]), self.periodic[i])
            elif not self.periodic[i]:
                ends = trained.first, trained.last
                said.append(beyond(name, ends, f"`coordinates[{i}]`", axes[i], ROUNDING))
        warn_of([*filter(None, said)])


def _read_axes(
    modes: Sequence[int], periodic: Sequence[bool] | None
) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Both with an entry for each axis, as plain numbers."""
    try:
        counts = tuple(check.whole("modes", m) for m in modes)
    except TypeError:
        counts = ()
    mixed = len(counts) - counts.count(0)
    if not (1 <= len(counts) <= 4 and 1 <= mixed <= 3 and min(counts) >= 0):
        raise InputError(
            "`modes` must be a number for each of one to four axes, at least one and at most three "
            f"of them more than 0, such as (0, 12); got {modes!r}."
        )
    try:
        sides = (False,) * len(counts) if periodic is None else tuple(map(bool, periodic))
    except TypeError:
        sides = ()
    if len(sides) != len(counts):
        raise InputError(
            f"`periodic` must have an entry for each of the {len(counts)} axes, got {periodic!r}."
        )
    return counts, sides


def _check_points(axes: Sequence[Tensor], modes: Sequence[int]) -> None:
    """An axis with frequencies has points enough for them, in order."""
    for i, (axis, m) in enumerate(zip(axes, modes, strict=True)):
        if len(axis) < 2 * m:
            raise InputError(
                f"`coordinates[{i}]` must have at least {2 * m} points for its {m} frequencies "
                f"(`modes`), got {len(axis)}."
            )
        if m:
            check.increasing(f"coordinates[{i}]", axis)
