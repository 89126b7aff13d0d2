"""Fields known by draws: what inequalities leave, and what laws that are not linear leave."""

from typing import NoReturn, Self

import torch
from torch import Tensor

from ..fields.ensemble import Ensemble
from ..fields.gaussian import Field, Normals
from ..fields.state import State
from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import DegenerateError, InputError
from ..support.gradients import as_if
from ..support.tree import Kept

CHUNK = 1 << 22  # numbers that are sorted at a time


class Draws(Kept):
    """A field or a state known by draws: what `condition` returns where there are inequalities.

    It is a field or a state again. `Draws(array)` makes a field, whose mean, variance, intervals
    and scores are those of the draws.

    Parameters
    ----------
    draws : array, shape (n, ..., T, M)
        At least two on axis 0.
    event_dims : int
        How many last axes a draw moves together.
    point : array, shape (..., T, M)
        A field of its own that stands for all of them, such as the most probable one.

    Raises
    ------
    InputError
        If there are fewer than two draws, or `point` has another shape than a draw.

    Examples
    --------
    >>> Draws([[0.0, 1.0], [0.0, 3.0]]).interval(0.5)
    (tensor([0., 1.], dtype=torch.float64), tensor([0., 3.], dtype=torch.float64))
    """

    redrawn: int = 0  # how many did not get to laws that are not linear, and were drawn again

    def __new__(
        cls, draws: ArrayLike, event_dims: int = 1, point: ArrayLike | None = None
    ) -> "FieldDraws":
        return object.__new__(FieldDraws)  # which reads the arguments


class FieldDraws(Draws, Field, noun="Draws"):
    """A field known by draws: mean, variance, intervals and scores are those of the draws.

    Attributes
    ----------
    draws : Tensor, shape (n, ..., T, M)
        The draws.
    point : Tensor, shape (..., T, M)
        A field that stands for all of them, or None.
    laws : tuple of str
        The names of the laws and inequalities that `condition` was given.
    redrawn : int
        How many draws did not get to laws that are not linear, and were drawn again.
    """

    stacked = ("draws",)
    laws: tuple[str, ...] = ()

    def __new__(cls, *args: object, **named: object) -> Self:
        return object.__new__(cls)

    def __init__(
        self, draws: ArrayLike, event_dims: int = 1, point: ArrayLike | None = None
    ) -> None:
        self.draws = check.tensor("draws", draws)
        if self.draws.ndim < 2 or len(self.draws) < 2:
            raise InputError(
                "`draws` must have at least two draws on axis 0 and the field on the axes after "
                f"it, got shape {tuple(self.draws.shape)}."
            )
        self.event_dims = check.event_dims(event_dims, self.draws.ndim - 1)
        self.point = None if point is None else check.tensor("point", point, self.draws, "draws")
        if self.point is not None and self.point.shape != self.draws.shape[1:]:
            raise InputError(
                f"`point` must have the shape of a draw, {tuple(self.draws.shape[1:])}; got "
                f"{tuple(self.point.shape)}."
            )
        self._mean = self.draws.double().mean(0).to(self.draws.dtype)

    @classmethod
    def _unchecked(
        cls, draws: Tensor, event_dims: int, point: Tensor | None, mean: Tensor | None = None
    ) -> Self:
        """mean: where the plain average obeys what every draw obeys up to rounding only."""
        field = cls.__new__(cls)
        field.draws, field.event_dims, field.point = draws, event_dims, point
        field._mean = draws.double().mean(0).to(draws.dtype) if mean is None else mean
        return field

    @property
    def shape(self) -> torch.Size:
        return self.draws.shape[1:]

    @property
    def dtype(self) -> torch.dtype:
        return self.draws.dtype

    @property
    def device(self) -> torch.device:
        return self.draws.device

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """The mean of the draws at each point."""
        return self._mean.clone()

    @property
    def variance(self) -> Tensor:  # type: ignore[override]
        """The variance of the draws at each point."""
        return self.draws.double().var(0).to(self.dtype)

    def covariance_times(self, v: ArrayLike) -> Tensor:
        batch_dims = len(self.shape) - self.event_dims
        return Ensemble(self.draws, batch_dims=batch_dims).covariance_times(v)

    def _quantiles(self, *shares: float) -> list[Tensor]:
        """Linear between the sorted draws; n of them cut the probability into n + 1 equal shares.

        So a central interval holds a new draw as often as it says, however few draws there are.
        """
        count = len(self.draws)
        places = (torch.tensor(shares, dtype=torch.float64) * (count + 1) - 1).clamp(0, count - 1)
        found: list[list[Tensor]] = [[] for _ in shares]
        flat = self.draws.flatten(1)
        for part in flat.split(max(1, CHUNK // len(flat)), 1):
            ordered = part.sort(0).values
            for place, kept in zip(places.tolist(), found, strict=True):
                low = int(place)
                high = min(low + 1, len(flat) - 1)
                kept.append(torch.lerp(ordered[low], ordered[high], place - low))
        return [torch.cat(parts).reshape(self.shape) for parts in found]

    def crps(self, u: ArrayLike) -> Tensor:
        """The continuous ranked probability score of each point, without the bias of few draws.

        Parameters
        ----------
        u : array
            The truth, in a shape that broadcasts to the field.

        Returns
        -------
        Tensor, shape (..., T, M)
            In units of u; lower is better.
        """
        u, n = self._values(u), len(self.draws)
        order = torch.arange(1 - n, n, 2, dtype=torch.float64, device=self.device)
        found, flat, truth = [], self.draws.flatten(1), u.flatten()
        for start in range(0, flat.shape[1], step := max(1, CHUNK // n)):
            part = flat[:, start : start + step].double()
            near = (part - truth[start : start + step]).abs().mean(0)
            apart = order @ part.sort(0).values / (n * (n - 1))  # E |U - U'| / 2
            found.append(near - apart)
        return torch.cat(found).reshape(self.shape).to(self.dtype)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Some of the draws, picked at random with replacement, on a new axis 0.

        Parameters
        ----------
        n : int
            How many.
        generator : torch.Generator
            The source of the random numbers.

        Returns
        -------
        Tensor, shape (n, ..., T, M)
            The draws that were picked.
        """
        return self.draws[picked(len(self.draws), n, generator, self.device)]

    def marginal_log_prob(self, u: ArrayLike) -> NoReturn:
        """Raises `DegenerateError`: a field known by draws has no density."""
        raise DegenerateError(NO_DENSITY)

    def log_prob(self, u: ArrayLike) -> NoReturn:
        """Raises `DegenerateError`: a field known by draws has no density."""
        raise DegenerateError(NO_DENSITY)

    def _draw(self, normals: Normals) -> NoReturn:
        raise InputError("`normals`: the draws are there already. Use `draws` or `sample`.")

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {len(self.draws)} draws)"


NO_DENSITY = (
    "a field known by draws has no density. Score it with `crps`, `interval` or `evaluate`, or "
    "take Diagonal(field.mean, field.variance) for that of a normal at each point."
)


class StateDraws(Draws, State, noun="Draws"):
    """Several fields known by joint draws: `post["u"]` is one of them, a `Draws`.

    `condition` makes it, of a `State` with inequalities.

    Attributes
    ----------
    names : tuple of str
        The names of the fields.
    parts : tuple of Draws
        The fields, in the order of their names.
    redrawn : int
        How many draws did not get to laws that are not linear, and were drawn again.

    Examples
    --------
    >>> import probconserv as pc
    >>> state = pc.State(rain=([0.1, 0.2], 1.0), snow=([0.1], 1.0))
    >>> post = pc.condition(state, pc.bounds(low=0.0, of="rain"), draws=10)
    >>> bool((post["rain"].draws >= 0).all())
    True
    """

    parts: tuple[FieldDraws, ...]

    def __new__(cls, *args: object, **named: object) -> Self:
        return object.__new__(cls)

    def __init__(self, names: tuple[str, ...], parts: tuple[FieldDraws, ...]) -> None:
        self.names, self.parts = names, parts

    @property
    def laws(self) -> tuple[str, ...]:
        """The names of the laws and inequalities that `condition` was given."""
        return self.parts[0].laws

    @property
    def point(self) -> dict[str, Tensor | None]:
        """The field that stands for all draws, by name."""
        return {name: part.point for name, part in zip(self.names, self.parts, strict=True)}

    def sample(self, n: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Some of the joint draws, picked at random with replacement.

        Parameters
        ----------
        n : int
            How many.
        generator : torch.Generator
            The source of the random numbers.

        Returns
        -------
        dict of Tensor
            By name, with the draws on a new axis 0. The same draws are picked in every field.
        """
        at = picked(len(self.parts[0].draws), n, generator, self.device)
        return {name: part.draws[at] for name, part in zip(self.names, self.parts, strict=True)}


def mean_of(draws: Tensor, axis: int = 0) -> Tensor:
    """Their mean, also where the sum of all is too large a number."""
    mean = draws.mean(axis)
    return mean if bool(mean.isfinite().all()) else (draws / draws.shape[axis]).sum(axis)


def between(mean: Tensor, of: Tensor) -> Tensor:
    """A mean of draws, exact where all are equal."""
    of = of.detach().double()
    return as_if(mean.detach().clamp(of.amin(0), of.amax(0)), mean)


def picked(count: int, n: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """`n` numbers below `count`, at random."""
    check.generator(generator)
    own = device if generator is None else generator.device
    found = torch.randint(count, (check.samples(n),), generator=generator, device=own)
    return found.to(device)
