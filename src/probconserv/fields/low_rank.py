"""LowRank: a field moved by a few shared directions, as members of an ensemble give."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import DegenerateError, InputError
from ..support.slices import IN_CACHE, may_overwrite
from .blocks import LatentPosterior, blocks, root_of, unblocks
from .gaussian import SQUARE_IT, UNMEASURED, Diagonal, Field, Normals, expanded_to, may_wait
from .student import Predictive, predictive


class LowRank(Field):
    """A field moved by a few shared directions, as ensembles, MC dropout and latent samples give.

    With z_k and eps independent standard normal numbers, eps one for each point::

        u = mean + sum_k factor_k z_k + sqrt(variance) eps

    Parameters
    ----------
    mean : array, shape (..., T, M)
        The mean.
    factor : array, shape (rank, ..., T, M)
        The directions.
    variance : float or array
        The variance of the independent rest; broadcasts to the mean.
    event_dims : int
        How many last axes share each z.

    Raises
    ------
    InputError
        If `factor` is not shaped as the mean, with the rank axis first.

    Examples
    --------
    >>> LowRank([0.0, 0.0], factor=[[1.0, 1.0]], variance=0.5).covariance()
    tensor([[1.5000, 1.0000],
            [1.0000, 1.5000]], dtype=torch.float64)
    """

    stacked = ("factor",)
    rounding: float = 0.0  # of the factor, as a share of the mean that it was taken from
    count: int = 0  # of the members that it was made from; 0: its covariance is known
    _version: int | None = None  # how often these had been changed in place

    def __init__(
        self, mean: ArrayLike, factor: ArrayLike, variance: ArrayLike = 0.0, event_dims: int = 1
    ) -> None:
        self.mean, self.factor, rest = check.alike(mean=mean, factor=factor, variance=variance)
        if self.factor.shape[1:] != self.mean.shape:
            swapped = self.mean.ndim and rest.shape[1:] == self.mean.shape
            raise InputError(
                f"`factor` must have shape (rank, *mean.shape), that is (rank, "
                f"{', '.join(map(str, self.mean.shape))}); got {tuple(self.factor.shape)}. "
                + ("It and `variance` are swapped." if swapped else "The rank axis comes first.")
            )
        if check.moments(self.mean, rest, SQUARE_IT):
            raise InputError(f"`variance` is infinite, which {UNMEASURED}")
        check.finite("factor", self.factor)
        self.event_dims = check.event_dims(event_dims, self.mean.ndim)
        self.rest = expanded_to(rest, self.mean)
        # no rest, whatever is traced
        self.bare = isinstance(variance, float | int) and variance == 0

    @classmethod
    def _of_members(
        cls, members: Tensor, rest: ArrayLike, event_dims: int, shrinkage: float | None
    ) -> "LowRank":
        """Made of them now, or when it is first read."""
        field = cls.__new__(cls)
        field.event_dims, field.shrinkage = event_dims, shrinkage
        bare = isinstance(rest, float | int) and rest == 0
        field.count, field.rounding = len(members), torch.finfo(members.dtype).eps
        field.bare = bare
        if bare and may_wait(members) and not members.is_inference():
            field._unseen, field._version = (members,), members._version
        else:
            field._take(members, rest)
        return field

    @classmethod
    def _unchecked(cls, mean: Tensor, factor: Tensor, rest: Tensor, event_dims: int) -> "LowRank":
        """factor: with sizes of 1 where entries of a batch share it."""
        field = cls.__new__(cls)
        field.mean, field.factor, field.rest = mean, factor, rest
        field.event_dims, field.bare = event_dims, False
        return field

    def _look(self) -> None:
        (members,) = self._unseen
        if self._version != members._version:
            raise InputError(
                "`members` were changed in place after `Ensemble` took them, before it was used. "
                "Give it a clone: `Ensemble(members.clone())`."
            )
        self._take(members, 0.0)
        del self._unseen

    def _take(self, members: Tensor, variance: ArrayLike) -> None:
        check.finite("members", members)
        scale = math.sqrt(len(members) - 1)
        small = type(members) is not Tensor or members.numel() < IN_CACHE
        if small or not may_overwrite(members):
            wide = members.double()
            mean = wide.mean(0)
            self.factor = ((wide - mean) / scale).to(members.dtype)
        else:  # one by one: no copy of all in float64
            mean, self.factor = members.mean(0, dtype=torch.float64), torch.empty_like(members)
            for member, own in zip(members, self.factor, strict=True):
                own.copy_((member.double() - mean) / scale)
        self.mean, rest = check.alike(mean=mean.to(members.dtype), variance=variance)
        if check.moments(self.mean, rest, SQUARE_IT):
            raise InputError(f"`variance` is infinite, which {UNMEASURED}")
        self.rest = expanded_to(rest, self.mean)

    @classmethod
    def correlated(
        cls, mean: ArrayLike, variance: ArrayLike, *, correlation: float, event_dims: int = 1
    ) -> "LowRank":
        """A field whose points all have the same correlation with each other.

        Parameters
        ----------
        mean, variance : as in `Diagonal`
        correlation : float
            Between any two points that share their first axes, from 0 to 1.
        event_dims : as in `LowRank`

        Returns
        -------
        LowRank
            With one direction.

        Examples
        --------
        >>> LowRank.correlated([0.0, 0.0], [1.0, 4.0], correlation=0.25).covariance()
        tensor([[1.0000, 0.5000],
                [0.5000, 4.0000]], dtype=torch.float64)
        """
        share = check.between("correlation", correlation, 0, 1)
        points = Diagonal(mean, variance)
        if points.infinite:
            raise InputError(f"`variance` is infinite, which {UNMEASURED}")
        factor = math.sqrt(share) * root_of(points.variance)[None]
        return cls(points.mean, factor, (1 - share) * points.variance, event_dims)

    @property
    def variance(self) -> Tensor:  # type: ignore[override]
        """The variance of each point: that of the directions and of the rest."""
        return self.rest + self.factor.square().sum(0)

    def _predictive(self) -> Predictive:
        """What a value drawn as the members are may be."""
        own = self.factor.double().square().sum(0)
        return predictive(self.rest.double(), (own * (1 + 1 / self.count), self.count - 1))

    def _quantiles(self, *shares: float) -> list[Tensor]:
        if not self.count:
            return super()._quantiles(*shares)
        return self._predictive().quantiles(self.mean, shares)

    def covariance_times(self, v: ArrayLike) -> Tensor:
        v = self._factor_of(v)
        factor = blocks(self.factor, self.shape, self.event_dims)
        inner = blocks(v, self.shape, self.event_dims) @ factor.mT
        return self.rest * v + unblocks(inner @ factor, v.shape)

    def _draw(self, normals: Normals) -> Tensor:
        check.plain("mean", self.mean)
        z = normals(*self.shape[: -self.event_dims], len(self.factor))
        factor = blocks(self.factor.double(), self.shape, self.event_dims)
        shared = unblocks(z.movedim(0, -2) @ factor, (len(z), *self.shape))
        return shared + Diagonal._unchecked(self.mean, self.rest)._draw(normals)

    def log_prob(self, u: ArrayLike) -> Tensor:
        if check.concrete(self.mean) and bool((self.rest == 0).any()):
            raise DegenerateError(
                "the field has points with no variance of their own, so it has no joint density "
                "here. Give `variance` > 0, or use `marginal_log_prob`."
            )
        own = self.rest.double()
        apart = (self._values(u).double() - self.mean)[None] / own.sqrt()
        latent = LatentPosterior(blocks(self.factor / own.sqrt(), self.shape, self.event_dims))
        square = latent.square(blocks(apart, self.shape, self.event_dims))
        alone = (2 * math.pi * own).log().flatten(-self.event_dims).sum(-1)
        return (-0.5 * (square + latent.log_det + alone)).to(self.dtype)


def members_of(fields: Sequence[Field]) -> int | None:
    """How many members fields are made of, the fewest; None if their covariances are known."""
    made = (field.count for field in fields if isinstance(field, LowRank) and field.count)
    return min(made, default=None)
