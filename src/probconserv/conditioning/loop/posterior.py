"""Fields given laws of which some are not linear: a most probable state, and draws about it."""

import math
from abc import abstractmethod
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from ...fields.covariances import Fields
from ...fields.gaussian import Field, random_normals
from ...support import checks as check
from ...support.checks import ArrayLike
from ...support.errors import DegenerateError, InputError
from ..draws import FieldDraws, StateDraws, between, mean_of
from ..posterior import FieldPosterior, StatePosterior, members_of_prior
from ..recentred import check_draws
from .importance import Weighted, weighted
from .solved import NonlinearSolved


class LinearisationError(NamedTuple):
    """How far draws are from the Gaussian about the point: root mean squares over all points.

    Attributes
    ----------
    mean : float
        The mean of the draws less the point, in standard deviations.
    std : float
        The standard deviation of the draws over that of the Gaussian, less 1.
    chance : tuple of float
        What so many draws would give for the two where there is no error.
    """

    mean: float
    std: float
    chance: tuple[float, float]


class KeptAsDraws:
    """What is kept in a file as draws: a file cannot hold the function of a law."""

    _solved: "NonlinearSolved"

    @property
    def laws(self) -> tuple[str, ...]:
        """The names of the laws and inequalities that hold."""
        solved, side = self._solved, {0: "", 1: " at least", -1: " at most"}
        bounded = any(bool(end.isfinite().any()) for end in (*solved.low, *solved.high))
        names = ["bounds"] * bounded + ["monotone"] * any(solved.slopes)
        return (*(law.label + side[law.side] for law in solved.stated), *names)

    @property
    def log_evidence(self) -> Tensor:
        """log N(b; G mu, G Sigma G^T + sigma^2) with G as it is at the point."""
        if self._solved.low:
            raise DegenerateError(
                "`log_evidence`: what inequalities leave has none in closed form. That of the "
                "laws is `condition(prior, *laws).log_evidence`, without inequalities."
            )
        return super().log_evidence  # type: ignore[misc]

    @abstractmethod
    def from_draws(
        self, n: int, generator: torch.Generator | None = None
    ) -> FieldDraws | StateDraws: ...

    def weighted(self, n: int, generator: torch.Generator | None = None) -> Weighted:
        """Draws with weights: together they are the prior given that f(u) = value.

        Those of `sample` are not, where laws curve within the spread of the prior: each is the
        nearest field to one of the prior. The weights see the part of the laws that faces the
        point. They have no gradients.

        Parameters
        ----------
        n : int
            How many draws, at least two.
        generator : torch.Generator
            The source of the random numbers.

        Returns
        -------
        Weighted
            Draws, their log weights, and how many of them still count. For a field,
            ``Mixture(Diagonal(draws, 0.0), log_weights.exp())`` has their mean and intervals.

        Raises
        ------
        InputError
            If there are inequalities, or more than 1,024 rows in a part.
        InfeasibleError
            If no draw gets to the laws.

        Warns
        -----
        ImplausibleWarning
            If fewer than a tenth of the draws still count.

        Examples
        --------
        >>> import probconserv as pc
        >>> length = pc.nonlinear(lambda u: u.square().sum(), 25.0)
        >>> post = pc.condition(pc.Diagonal([3.0, 3.9], 0.1), length)
        >>> found = post.weighted(100, torch.Generator().manual_seed(0))
        >>> bool(found.effective_sample_size > 90)
        True
        """
        normals = random_normals(_at_least_two(n), generator, self._solved.before[0].device)
        draws, weights, left = weighted(self._solved, normals)
        return Weighted(self._shown(draws), weights, left)

    @abstractmethod
    def _shown(self, draws: Fields) -> Tensor | dict[str, Tensor]:
        """Draws as `sample` gives them."""

    def save(
        self, path: str | Path, n: int = 1000, generator: torch.Generator | None = None
    ) -> None:
        """Keeps draws in a file, which `Draws.load` reads.

        Parameters
        ----------
        path : str or Path
            The file.
        n : int
            How many draws.
        generator : torch.Generator
            The source of the random numbers.
        """
        with torch.no_grad():
            self.from_draws(n, generator).save(path)


class NonlinearPosterior(KeptAsDraws, FieldPosterior, noun="Posterior"):
    """A field given laws of which some are not linear, or given inequalities, without draws.

    `point` (and `mean`) is a most probable field that obeys. `variance` and `interval` are
    those of the Gaussian about it. `sample` moves draws of the prior to the laws, each by its own
    steps, so that every draw obeys. `linearisation_error` compares the two. `condition` makes it.

    Attributes
    ----------
    prior : Field
        The field before the laws.

    Examples
    --------
    >>> import probconserv as pc
    >>> length = pc.nonlinear(lambda u: u.square().sum(), 25.0)
    >>> post = pc.condition(pc.Diagonal([3.0, 3.9], 0.01), length)
    >>> draws = post.sample(3)
    >>> bool((draws.square().sum(-1) - 25.0).abs().max() < 1e-9)
    True
    """

    _solved: NonlinearSolved

    def _quantiles(self, *shares: float) -> list[Tensor]:
        """Those of the Gaussian about the point, moved to the bounds."""
        solved, own = self._solved, self._number
        if not solved.low:
            return super()._quantiles(*shares)
        found = Field._quantiles(self, *shares)  # of members too: what is held is no law
        return [x.double().clamp(solved.low[own], solved.high[own]).to(x.dtype) for x in found]

    def from_draws(self, n: int, generator: torch.Generator | None = None) -> FieldDraws:
        """The field known by draws: mean, variance, intervals and scores are theirs.

        Parameters
        ----------
        n : int
            How many draws, at least two.
        generator : torch.Generator
            The source of the random numbers.

        Returns
        -------
        Draws
            With the same `point`.
        """
        check_draws(self._solved.undetermined or ())
        normals = random_normals(_at_least_two(n), generator, self.device)
        draws, redrawn = self._solved.drawn(normals)
        found = self._known_by(draws[self._number])
        found.redrawn = redrawn
        return found

    def _known_by(self, draws: Tensor) -> FieldDraws:
        """Draws in float64; where all are at a bound so is their mean, to the last digit."""
        own = draws.to(self.dtype)
        mean = between(mean_of(draws), own).to(self.dtype)
        found = FieldDraws._unchecked(own, self.event_dims, self.point, mean)
        found.laws = self.laws
        return found

    @torch.no_grad()
    def linearisation_error(
        self, n: int = 100, generator: torch.Generator | None = None
    ) -> LinearisationError:
        """How far draws are from the Gaussian about the point.

        Parameters
        ----------
        n : int
            How many draws, at least two.
        generator : torch.Generator
            The source of the random numbers.

        Returns
        -------
        LinearisationError
            The difference of means and of standard deviations.
        """
        draws, std = self.from_draws(n, generator), self.std.double()
        moves = std > 0
        shift = ((draws.mean - self.point).double() / std)[moves]
        ratio = (draws.std.double() / std)[moves] - 1
        if not len(shift):
            return LinearisationError(0.0, 0.0, (0.0, 0.0))
        mean, spread = (float(x.square().mean().sqrt()) for x in (shift, ratio))
        return LinearisationError(mean, spread, (1 / math.sqrt(n), 1 / math.sqrt(2 * (n - 1))))

    def log_prob(self, u: ArrayLike) -> NoReturn:
        """Raises `DegenerateError`: this field has no density in closed form."""
        raise DegenerateError(NO_DENSITY)

    def members(self) -> Tensor:  # (S, *shape)
        """The members of an `Ensemble`, each moved by its own steps to the nearest that obeys.

        They spread less than `variance` says where `shrinkage` took part of it as independent.
        """
        return self._moved_members()[self._number].to(self.dtype)

    def _moved_members(self) -> Fields:
        u, solved = members_of_prior(self._state or self.prior), self._solved
        for law in solved.stated:
            if bool((law.noise_variance > 0).any()):
                raise InputError(
                    f"`members` given laws that are not linear, or inequalities, need laws without "
                    f"noise, but `{law.label}` has some. Use `sample`, or leave out `noise`."
                )
        return solved.moved(u, "member")

    def _shown(self, draws: Fields) -> Tensor:
        return draws[self._number].to(self.dtype).contiguous()

    def __repr__(self) -> str:
        return f"{Field.__repr__(self)[:-1]}, given {', '.join(self.laws)})"


NO_DENSITY = (
    "a field given inequalities, or a law that is not linear, has no density in closed form. Use "
    "`marginal_log_prob`, that of the Gaussian about the point, or score draws: `from_draws`."
)


class NonlinearStatePosterior(KeptAsDraws, StatePosterior, noun="Posterior"):
    """A state given such laws or inequalities: `post["u"]` is a field.

    Attributes
    ----------
    names : tuple of str
        The names of the fields.
    prior : State
        The state before the laws.
    """

    kind = NonlinearPosterior
    parts: tuple[NonlinearPosterior, ...]
    _solved: NonlinearSolved

    def _shown(self, draws: Fields) -> dict[str, Tensor]:
        each = zip(self.parts, draws, strict=True)
        shown = [u.to(part.dtype).contiguous() for part, u in each]
        return dict(zip(self.names, shown, strict=True))

    def from_draws(self, n: int, generator: torch.Generator | None = None) -> StateDraws:
        """The state known by joint draws.

        Parameters
        ----------
        n : int
            How many draws, at least two.
        generator : torch.Generator
            The source of the random numbers.

        Returns
        -------
        Draws
            With the same `point`.
        """
        check_draws(self._solved.undetermined or ())
        normals = random_normals(_at_least_two(n), generator, self.device)
        draws, redrawn = self._solved.drawn(normals)
        pairs = zip(self.parts, draws, strict=True)
        parts = tuple(part._known_by(u) for part, u in pairs)
        found = StateDraws(self.names, parts)
        for each in (found, *parts):
            each.redrawn = redrawn
        return found


def _at_least_two(n: int) -> int:
    if check.samples(n) < 2:
        raise InputError("`n` must be at least 2: one draw has no variance.")
    return n
