"""Gaussian fields u(t, x): mean, variance, covariance times something, a sample.

Axes are `(*batch, T, M)`: the last `event_dims` axes are correlated, all before them independent.
`event_dims` is 0 for a `Diagonal` field, 1 where each time stands by itself, 2 where time and
space are joint; with two axes of space (..., T, X, Y) it is 2 and 3.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import DegenerateError, InputError
from ..support.tree import Change, Kept
from .blocks import blocks, root_of

SQUARE_IT = "Standard deviations must be squared first: variances are stored here."
ONE_OF_BOTH = "`variance` or `std`: give exactly one of the two, got {}."
UNMEASURED = (
    "is for points that nobody measured, which only `Diagonal` has: give those a field of their "
    "own, State(known=field, unknown=Diagonal(mean, math.inf)), or a finite variance."
)
Normals = Callable[..., Tensor]  # standard normal numbers, (n, *shape)


class Field(Kept):
    """A Gaussian field: what Step 1 gives and what `condition` returns.

    Tensors are not copied, NumPy arrays are. `field[i]` is the field of one batch entry. This is
    the base class; use `Diagonal`, `LowRank` or `Dense`.

    Attributes
    ----------
    mean : Tensor, shape (..., T, M)
        The mean.
    variance : Tensor, shape (..., T, M)
        The variance of each point by itself.
    event_dims : int
        How many last axes are correlated; all before them are independent.
    """

    event_dims: int
    mean: Tensor
    variance: Tensor
    _unseen: tuple[Tensor, ...]  # what it was given on a GPU, until somebody reads it
    names = ("",)  # as a state has them
    shared = False
    shrinkage: float | None = 0.0  # of members to independent points; None: found by `condition`

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What is made of that which nobody looked at yet."""
            if name not in ("mean", "variance", "factor", "rest") or not self.is_unseen:
                raise AttributeError(f"{self.noun!r} has no attribute {name!r}")
            self._look()
            return getattr(self, name)

    @property
    def is_unseen(self) -> bool:
        """Whether nobody looked at the values that it was given: a GPU is waited for once."""
        return "_unseen" in self.__dict__

    def _look(self) -> None:
        """Checks what was given, and takes it."""

    def _change(self, change: Change) -> Self:
        if self.is_unseen:
            self._look()
        return super()._change(change)

    def _whole(self) -> Self:
        if self.is_unseen:
            self._look()
        return self

    def __getstate__(self) -> dict[str, Any]:
        return self._whole().__dict__

    @abstractmethod
    def covariance_times(self, v: ArrayLike) -> Tensor:  # (*more, *shape) -> (*more, *shape)
        """The covariance applied to `v`, over the event axes of each independent part.

        Parameters
        ----------
        v : array, shape (..., T, M)
            In the shape of the field, with any axes before it.

        Returns
        -------
        Tensor
            In the shape of `v`.
        """

    @abstractmethod
    def log_prob(self, u: ArrayLike) -> Tensor:
        """The log of the joint density at `u`, one value for each independent part.

        Parameters
        ----------
        u : array
            In a shape that broadcasts to the field.

        Returns
        -------
        Tensor
            In the shape of the axes before the last `event_dims`.

        Raises
        ------
        DegenerateError
            If the field has no density: some direction has no variance.
        """

    @abstractmethod
    def _draw(self, normals: Normals) -> Tensor:
        """Joint draws made of standard normal numbers."""

    @property
    def normals_per_draw(self) -> int:
        """How many standard normal numbers a draw is made of: see `sample_with`.

        Compiled code may take more of them for a posterior than other code: read it there.
        """
        count = 0

        def none(*shape: int) -> Tensor:
            nonlocal count
            count += math.prod(shape)
            return torch.zeros(0, *shape, dtype=torch.float64, device=self.device)

        self._draw(none)
        return count

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Joint draws, on a new axis 0.

        Parameters
        ----------
        n : int
            How many.
        generator : torch.Generator
            The source of the random numbers.

        Returns
        -------
        Tensor, shape (n, ..., T, M)
            The draws.
        """
        return self._draw(random_normals(n, generator, self.device)).to(self.dtype)

    def sample_with(self, normals: ArrayLike) -> Tensor:
        """Draws made of given standard normal numbers: the same numbers give the same draws.

        Parameters
        ----------
        normals : array, shape (n, normals_per_draw)
            The numbers.

        Returns
        -------
        Tensor, shape (n, ..., T, M)
            The draws.
        """
        given = check.as_tensor("normals", normals).double()
        if given.ndim != 2 or given.shape[1] != self.normals_per_draw:
            raise InputError(
                f"`normals` must have shape (n, {self.normals_per_draw}), got {tuple(given.shape)}."
            )
        used = 0

        def next_(*shape: int) -> Tensor:
            nonlocal used
            size = math.prod(shape)
            used += size
            if used > given.shape[1]:
                raise IndexError("`normals` are used up")  # who draws again looks for this
            return given[:, used - size : used].reshape(len(given), *shape)

        return self._draw(next_).to(self.dtype)

    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance in float64, not rounded to the dtype of the field."""
        return self.mean.double(), self.variance.double()

    def _with_mean(self, mean: Tensor) -> Self:
        """The same field about another mean."""
        if not isinstance(self, Diagonal) and "mean" not in self.__dict__:  # it is computed
            raise InputError(f"`project` takes a field before `condition`, not a {self.noun}.")
        return self._with(mean=mean)

    @property
    def infinite(self) -> bool:
        """Whether some variance is infinite."""
        return False

    @property
    def parts(self) -> tuple["Field", ...]:
        """The field alone, as a state has several."""
        return (self,)

    @property
    def shape(self) -> torch.Size:
        """The shape of the mean, (..., T, M)."""
        return self.mean.shape

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of mean and variance."""
        return self._unseen[0].dtype if self.is_unseen else self.mean.dtype

    @property
    def device(self) -> torch.device:
        """The device that the tensors are on."""
        return self._unseen[0].device if self.is_unseen else self.mean.device

    @property
    def std(self) -> Tensor:
        """The standard deviation of each point."""
        return root_of(self.variance)

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        """The two ends of the central interval that holds each point with probability `level`.

        Of an `Ensemble`, and of that field given laws, it is wider than `std` says: so few members
        know neither their mean nor their variance exactly.

        Parameters
        ----------
        level : float
            Between 0 and 1.

        Returns
        -------
        tuple of two Tensor, shape (..., T, M)
            The lower and the upper end.
        """
        tail = (1 - check_level(level)) / 2
        low, high = self._quantiles(tail, 1 - tail)
        return low, high

    def quantile(self, p: float) -> Tensor:
        """The value that each point stays below with probability `p`.

        Parameters
        ----------
        p : float
            Between 0 and 1.

        Returns
        -------
        Tensor, shape (..., T, M)
            One value for each point.
        """
        return self._quantiles(check_level(p, "p"))[0]

    def _quantiles(self, *shares: float) -> list[Tensor]:
        """The values that each point stays below with these probabilities."""
        mean, std = self.mean, self.std
        each = (mean + std * standard_quantile(p, mean) for p in shares)
        if not self.infinite:
            return list(each)
        return [torch.where(x.isnan(), mean, x) for x in each]  # of 0 times infinity, in the middle

    def covariance(self) -> Tensor:
        """The dense covariance over the event axes, ``(*batch, *event, *event)``; large.

        A `Diagonal` field gives the matrix over its last axis.
        """
        dims = max(self.event_dims, 1)
        event = self.shape[-dims:]
        size = math.prod(event)
        basis = torch.eye(size, dtype=self.dtype, device=self.device)
        basis = basis.reshape(size, *[1] * (len(self.shape) - dims), *event).expand(
            size, *self.shape
        )
        rows = blocks(self.covariance_times(basis), self.shape, dims)
        return rows.reshape(*self.shape[:-dims], *event, *event)

    def marginal_log_prob(self, u: ArrayLike) -> Tensor:
        """The log density at `u` of each point; its mean is the LL of the paper's tables.

        Parameters
        ----------
        u : array
            In a shape that broadcasts to the field.

        Returns
        -------
        Tensor, shape (..., T, M)
            One value for each point.

        Raises
        ------
        DegenerateError
            If a point has no variance.
        """
        check_determined(self, "a density")
        u, variance = self._values(u), self.variance
        if check.concrete(variance) and bool((variance == 0).any()):
            raise DegenerateError(
                "some points have zero variance, so their density is not finite. Score the others, "
                "or condition with `noise` > 0."
            )
        return -0.5 * ((u - self.mean) ** 2 / variance + (2 * math.pi * variance).log())

    def __getitem__(self, index: Any) -> Self:
        """The field of some batch entries: whole numbers and slices, for independent axes."""
        return self._at(check.index(index, self.shape, self._free))

    def __iter__(self) -> Iterator[Self]:
        """The fields of the entries of the first axis."""
        return (self[i] for i in range(self.shape[0]))

    @property
    def _free(self) -> int:
        """How many first axes are independent, so that they can be indexed."""
        return len(self.shape) - self.event_dims

    def _values(self, u: ArrayLike) -> Tensor:
        u = check.tensor("u", u, like=self.mean, of="mean")
        check.broadcasts("u", u, self.shape, "the field")
        return u.expand(self.shape)

    def _factor_of(self, v: ArrayLike) -> Tensor:
        """What a covariance is to be multiplied with, in the dtype and the shape of the field."""
        v = check.as_tensor("v", v).to(self.device, self.dtype)
        try:
            return v.expand(check.broadcast_shapes(v.shape, self.shape))
        except RuntimeError:
            shapes = f"{tuple(v.shape)} does not fit the field of shape {tuple(self.shape)}"
            raise InputError(f"`v` of shape {shapes}.") from None

    def __repr__(self) -> str:
        about = f", {endless(self)} of infinite variance" if self.infinite else ""
        axes = f"shape={tuple(self.shape)}, event_dims={self.event_dims}"
        return f"{self.noun}({axes}, {self.dtype}{about})"


class Diagonal(Field):
    """A field of independent points, u ~ N(mean, variance): what most networks give.

    Give the variance or the standard deviation, by its name: no check can tell one from the other.

    Parameters
    ----------
    mean : array, shape (..., T, M)
        The mean.
    variance : float or array
        The variance of each point, in a shape that broadcasts to the mean. It is infinite where
        nothing is known, such as what nobody measured: the mean there is only a place to start.
    std : float or array
        The standard deviation of each point, in place of `variance`.

    Raises
    ------
    InputError
        If a mean is not finite, a variance is negative, or not exactly one of `variance` and `std`
        is given.

    Examples
    --------
    >>> Diagonal([[0.0, 1.0]], [[1.0, 4.0]]).std
    tensor([[1., 2.]], dtype=torch.float64)
    >>> Diagonal([[0.0, 1.0]], std=[[1.0, 2.0]]).variance
    tensor([[1., 4.]], dtype=torch.float64)
    """

    event_dims = 0
    _endless = False  # whether a variance was seen to be infinite

    def __init__(
        self, mean: ArrayLike, variance: ArrayLike | None = None, *, std: ArrayLike | None = None
    ) -> None:
        if std is not None:
            self.mean, given = _squared(mean, variance, std)
        elif variance is not None:
            self.mean, given = check.alike(mean=mean, variance=variance)
        else:
            raise InputError(ONE_OF_BOTH.format("neither"))
        self.variance = expanded_to(given, self.mean)
        if may_wait(self.mean) and may_wait(given):
            self._unseen = self.mean, given
            del self.mean, self.variance
        elif check.moments(self.mean, given, SQUARE_IT):
            self._endless = True

    def _look(self) -> None:
        mean, variance = self._unseen
        self._endless = check.moments(mean, variance, SQUARE_IT)
        self.seen()

    def _with_mean(self, mean: Tensor) -> Self:
        field = self._unchecked(mean, self.variance)
        field._endless = self._endless
        return field

    def seen(self) -> None:
        """Mean and variance are fine."""
        if self.is_unseen:
            mean, variance = self.__dict__.pop("_unseen")
            self.mean, self.variance = mean, expanded_to(variance, mean)

    @property
    def infinite(self) -> bool:
        variance = self.variance  # which looks
        return self._endless and check.any_of(variance == math.inf)

    def covariance_times(self, v: ArrayLike) -> Tensor:
        v = self._factor_of(v)
        found = self.variance * v
        return torch.where(v == 0, 0.0, found) if self.infinite else found

    def _draw(self, normals: Normals) -> Tensor:
        check_determined(self, "draws")
        check.plain("mean", self.mean)
        return torch.addcmul(
            self.mean.double(), self.variance.double().sqrt(), normals(*self.shape)
        )

    def log_prob(self, u: ArrayLike) -> Tensor:
        """As `marginal_log_prob`: every point is a part of its own."""
        return self.marginal_log_prob(u)

    @classmethod
    def _unchecked(cls, mean: Tensor, variance: Tensor) -> Self:
        field = cls.__new__(cls)
        field.mean, field.variance = mean, variance
        return field


def random_normals(
    n: int, generator: torch.Generator | None, device: torch.device | str
) -> Normals:
    """Standard normal numbers of any shape, for `n` draws on axis 0."""
    count, kind = check.samples(n), torch.float64
    check.generator(generator)
    return lambda *shape: torch.randn(
        (count, *shape), generator=generator, dtype=kind, device=device
    )


def endless(field: Field) -> str:
    """How many points have infinite variance."""
    count = check.count(field.variance == math.inf)
    return f"{count} point{'s' * (count != 1)}"


def check_determined(field: Field, what: str) -> None:
    """Points of infinite variance have no draws and no density."""
    if field.infinite:
        raise DegenerateError(
            f"the field has {endless(field)} of infinite variance: nobody measured them, and no "
            f"law determines them. They have a mean and an interval, but not {what}. Add laws that "
            "read them, or give them a variance."
        )


DETERMINE_THEM = "Add laws that determine them, or give them a finite variance."


def check_measured(
    fields: Sequence[Field], name: str, what: str, instead: str = DETERMINE_THEM
) -> None:
    """Infinite variances are for linear laws."""
    if any(field.infinite for field in fields):
        raise InputError(f"`{name}` has points of infinite variance, which {what}. {instead}")


def check_level(level: float, name: str = "level") -> float:
    if not isinstance(level, Real) or not 0 < level < 1:
        raise InputError(f"`{name}` must lie between 0 and 1, for example 0.9; got {level!r}.")
    return float(level)


def standard_quantile(p: float, like: Tensor) -> Tensor:
    """The quantile of a standard normal number."""
    return torch.special.ndtri(torch.tensor(p, dtype=torch.float64)).to(like)


def may_wait(x: Tensor) -> bool:
    """Whether a look at values can wait for what is done with them, because a GPU has them."""
    return x.is_cuda and type(x) is Tensor and check.concrete(x)


def _squared(mean: ArrayLike, variance: ArrayLike | None, std: ArrayLike) -> tuple[Tensor, Tensor]:
    """The mean, and the variance that a standard deviation stands for."""
    if variance is not None:
        raise InputError(ONE_OF_BOTH.format("both"))
    found, given = check.alike(mean=mean, std=std)
    finite = given.masked_fill(given == math.inf, 0.0)  # infinite where nobody measured
    check.finite("std", finite, 0)
    check.broadcasts("std", given, found.shape, "the mean")
    square = given.square()
    lost = (square.isinf() | (square == 0)) & (finite > 0)
    if check.concrete(lost) and check.any_of(lost):
        least, _ = check.ends("std", given.masked_fill(~lost, math.inf))
        raise InputError(
            f"`std` of {least:.3g} has a square that {given.dtype} does not hold. Give it in "
            "float64, or in another unit."
        )
    return found, square


def expanded_to(variance: Tensor, mean: Tensor) -> Tensor:
    if variance.shape == mean.shape:
        return variance
    check.broadcasts("variance", variance, mean.shape, "the mean")
    return variance.expand(mean.shape)
