"""What an equation knows: its parameter, domain, solution, total, front and fluxes."""

import dataclasses
import math
from collections.abc import Mapping
from inspect import get_annotations
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    Self,
    TypeAlias,
    TypeVar,
    cast,
    dataclass_transform,
)

import numpy as np
import torch
from torch import Tensor

from ..support import checks as check
from ..support.checks import ArrayLike, broadcast_shapes, concrete
from ..support.errors import InputError

Difficulty: TypeAlias = Literal["easy", "medium", "hard"]
NODES, WEIGHTS = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(4))


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """An equation on an interval, with initial and boundary values, for one or many parameters.

    The fields of a subclass are its parameters, numbers or tensors of any shape. They, t and the
    places broadcast elementwise; `problem[index]` indexes the parameters, so that n of them and T
    times make `problem[:, None].total(t)`.

    Attributes
    ----------
    name : str
        In the command line and in files.
    title : str
        For people.
    equation : str
        The formula.
    parameter : str
        The field that varies.
    train_range : tuple of float
        Where that parameter is drawn from in training.
    allowed : tuple of float
        The formulas hold for parameters strictly between these.
    domain : tuple of float
        The ends of x.
    time_range : tuple of float
        The times that networks are trained and tested on.
    difficulty : {"easy", "medium", "hard"}
        How hard it is to learn.
    example : tuple of float
        A parameter and a time that show it, for pictures.
    periodic : bool
        Whether it is periodic.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    equation: ClassVar[str]
    parameter: ClassVar[str]
    train_range: ClassVar[tuple[float, float]]
    allowed: ClassVar[tuple[float, float]] = (0.0, math.inf)
    domain: ClassVar[tuple[float, float]]
    time_range: ClassVar[tuple[float, float]]
    difficulty: ClassVar[Difficulty]
    example: ClassVar[tuple[float, float]]
    periodic: ClassVar[bool] = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        cls._check_parameters()
        return object.__new__(cls)

    def __post_init__(self) -> None:
        like, of = None, ""
        for name, value in self._parameters().items():
            parameter = check.tensor(name, value)
            object.__setattr__(self, name, parameter)
            if parameter.ndim and like is not None:
                check.same_kind(name, parameter, f"`{of}`", like)
                broadcast(name, parameter, of, like)
            elif parameter.ndim:
                like, of = parameter, name
        strictly_between(self.parameter, getattr(self, self.parameter), *self.allowed)

    def __getitem__(self, index: Any) -> Self:
        """The problem with indexed parameters, broadcast to one shape; numbers stay as they are."""
        shape = self.shape
        return self._with(
            {k: p.expand(shape)[index] if p.ndim else p for k, p in self._parameters().items()}
        )

    __iter__ = None  # numbers have no end

    @property
    def shape(self) -> torch.Size:
        """The shape of the parameters together."""
        return broadcast_shapes(*(p.shape for p in self._parameters().values()))

    def to(self, device_or_dtype: torch.device | str | torch.dtype) -> Self:
        """The problem with its parameters moved or converted.

        Parameters
        ----------
        device_or_dtype : device or dtype
            Such as "cuda" or `torch.float32`.

        Returns
        -------
        Problem
            Of the same class.
        """
        return self._with({n: p.to(device_or_dtype) for n, p in self._parameters().items()})

    @property
    def differentiable(self) -> bool:
        """Whether a parameter has gradients."""
        return any(p.requires_grad for p in self._parameters().values())

    def _parameters(self) -> dict[str, Tensor]:
        """The fields that are parameters."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    @classmethod
    def _check_parameters(cls) -> None:
        """The class has what `parametric` makes of its parameters, and one of them varies."""
        if "__dataclass_fields__" not in vars(cls) and get_annotations(cls):
            raise InputError(f"{cls.__name__} has parameters of its own: put @parametric above it.")
        names, given = [f.name for f in dataclasses.fields(cls)], getattr(cls, "parameter", None)
        if given not in names:
            raise InputError(
                f"`parameter` of {cls.__name__} must be the name of one of its parameters, "
                f"{' or '.join(names) or 'of which it has none'}; got {given!r}."
            )

    @classmethod
    def _check_facts(cls, *facts: str) -> None:
        for fact in facts:
            if not hasattr(cls, fact):
                raise InputError(
                    f"{cls.__name__} must say its `{fact}`, an attribute of the class."
                )

    def _unwritten(self, method: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} must write the method `{method}`.")

    @classmethod
    def _constants(cls) -> dict[str, float]:
        """The other parameters and their defaults."""
        others = {f.name: f.default for f in dataclasses.fields(cls) if f.name != cls.parameter}
        for name, default in others.items():
            if not isinstance(default, int | float):
                raise InputError(f"`{name}` of {cls.__name__} must have a number as default.")
        return cast(dict[str, float], others)

    @classmethod
    def _with(cls, fields: Mapping[str, Tensor]) -> Self:
        """The problem with these fields, which are known to be right."""
        problem = object.__new__(cls)
        for name, value in fields.items():
            object.__setattr__(problem, name, value)
        return problem

    def _ready(self, **given: ArrayLike) -> tuple[Self, list[Tensor]]:
        """The problem, and t >= 0 and places inside the domain as tensors, all of one kind.

        Numbers take the dtype and device of what is not a number.
        """
        like, of = next(((p, name) for name, p in self._parameters().items() if p.ndim), (None, ""))
        for name, value in given.items():
            if not isinstance(value, bool | int | float):
                given[name] = found = check.tensor(name, value, like, of)
                like, of = (found, name) if like is None else (like, of)
        tensors = [check.tensor(name, value, like) for name, value in given.items()]
        for name, found in zip(given, tensors, strict=True):
            if name == "t":
                check.finite("t", found, 0.0, "The equation starts at t = 0.")
            else:
                inside(name, found, *self.domain, f"the domain of {self.name}")
        limits = [(0.0, None) if name == "t" else self.domain for name in given]
        values = [v.clamp(*ends) for ends, v in zip(limits, tensors, strict=True)]  # rounding
        return self._like(tensors[0]), values

    def _elementwise(self, **given: ArrayLike) -> tuple[Self, list[Tensor], torch.Size]:
        """As `_ready`, and the shape that all of it and the parameters broadcast to."""
        problem, values = self._ready(**given)
        shapes = [tuple(v.shape) for v in values]
        try:
            return problem, values, broadcast_shapes(self.shape, *shapes)
        except RuntimeError:
            said = ", ".join(f"`{n}` {shape}" for n, shape in zip(given, shapes, strict=True))
            raise InputError(
                f"{said} and the parameters {tuple(self.shape)} must broadcast: these are shapes, "
                "and all is elementwise. For every pair of them add axes of size 1, such as "
                "t[:, None] or problem[:, None]."
            ) from None

    def _like(self, tensor: Tensor) -> Self:
        """The problem with parameters that are numbers of the kind of `tensor`."""
        return self._with(
            {name: p if p.ndim else p.to(tensor) for name, p in self._parameters().items()}
        )

    def initial(self, x: ArrayLike) -> Tensor:
        """u(0, x), the initial condition."""
        problem, (x,), shape = self._elementwise(x=x)
        return problem._initial(x).expand(shape)

    def boundary(self, t: ArrayLike) -> tuple[Tensor, Tensor]:
        """u at the left and at the right end of the domain."""
        problem, (t,), shape = self._elementwise(t=t)
        left, right = problem._boundary(t)
        return left.expand(shape), right.expand(shape)

    def _initial(self, x: Tensor) -> Tensor:
        raise self._unwritten("_initial")

    def _boundary(self, t: Tensor) -> tuple[Tensor, Tensor]:
        raise self._unwritten("_boundary")


class Parameter:
    """The type of a parameter: it is given as a number or an array and read as a tensor.

    For type checkers only; `Problem` converts it.
    """

    if TYPE_CHECKING:

        def __get__(self, problem: object, owner: type | None = None) -> Tensor: ...
        def __set__(self, problem: object, value: ArrayLike) -> None: ...


def default(number: float) -> Parameter:
    """A parameter that need not be given, with this number as default.

    Parameters
    ----------
    number : float
        The default.

    Returns
    -------
    Parameter
        For an annotated attribute of a class under `parametric`.
    """
    return cast(Parameter, dataclasses.field(default=number))


Equation = TypeVar("Equation", bound=type[Problem])


@dataclass_transform(frozen_default=True, eq_default=False)
def parametric(equation: Equation) -> Equation:
    """The class with its annotated attributes as parameters: `dataclass(frozen=True, eq=False)`.

    Parameters
    ----------
    equation : class
        A subclass of `Problem`.

    Returns
    -------
    class
        The same, as a dataclass.

    Examples
    --------
    >>> @parametric
    ... class Heat(Problem):
    ...     k: Parameter
    ...     width: Parameter = default(1.0)
    ...     parameter, train_range = "k", (1.0, 2.0)
    >>> Heat(k=1.5).shape
    torch.Size([])
    """
    return cast(Equation, dataclasses.dataclass(frozen=True, eq=False)(equation))


class ClosedForm(Problem):
    """A problem whose solution is a formula.

    A subclass writes `_solution`, `_total`, `_initial`, `_boundary`, `_inflow`, `_outflow`,
    `_flux`, `_residual` and, where there is a front, `_front`; arguments are checked before those
    are called. The formulas hold for every t >= 0, also after the front has left the domain and
    past `time_range`, which is where the paper trains and tests.
    """

    order: ClassVar[int] = 2  # of the highest derivative in x

    def solution(self, t: ArrayLike, x: ArrayLike) -> Tensor:
        """u(t, x), elementwise.

        At a jump the left state holds (x <= front), at t = 0 the initial condition.

        Parameters
        ----------
        t : float or array
            The times, not negative.
        x : float or array
            The places, inside the domain.

        Returns
        -------
        Tensor
            In the shape that t, x and the parameters broadcast to.

        Raises
        ------
        InputError
            If t is negative or x outside of the domain, or shapes do not broadcast.
        """
        problem, (t, x), _ = self._elementwise(t=t, x=x)
        return problem._solution(t, x)

    def on_grid(self, t: ArrayLike, x: ArrayLike) -> Tensor:
        """u on a grid of times and points.

        Parameters
        ----------
        t : array, shape (..., T)
            The times, not negative.
        x : array, shape (..., M)
            The points, inside the domain.

        Returns
        -------
        Tensor, shape (..., T, M)
            For parameters of shape (...).

        Raises
        ------
        InputError
            If `t` or `x` is a single number.
        """
        problem, (t, x) = self._ready(t=t, x=x)
        if not (t.ndim and x.ndim):
            raise InputError(
                f"`t` and `x` must be axes of a grid, got shapes {tuple(t.shape)} and "
                f"{tuple(x.shape)}. Use `solution` for single points."
            )
        return problem[..., None, None].solution(t[..., :, None], x[..., None, :])

    def total(self, t: ArrayLike) -> Tensor:
        """The integral of u(t, .) over the domain: the b(t) of the conservation law."""
        problem, (t,), shape = self._elementwise(t=t)
        return problem._total(t).expand(shape)

    def inflow(self, t: ArrayLike) -> Tensor:
        """The flux through the left end, counted to the right."""
        problem, (t,), shape = self._elementwise(t=t)
        return problem._inflow(t).expand(shape)

    def outflow(self, t: ArrayLike) -> Tensor:
        """The flux through the right end, counted to the right."""
        problem, (t,), shape = self._elementwise(t=t)
        return problem._outflow(t).expand(shape)

    def front(self, t: ArrayLike) -> Tensor:
        """Where the front is; NaN where there is none, or none yet, or it has left the domain."""
        problem, (t,), shape = self._elementwise(t=t)
        front = problem._front(t).expand(shape)
        inside = (front >= self.domain[0]) & (front <= self.domain[1])
        return torch.where(inside, front, torch.nan)

    def flux(self, u: Tensor, u_x: Tensor) -> Tensor:
        """F(u, u_x), so that u_t + F_x = 0.

        Parameters
        ----------
        u, u_x : Tensor
            The solution and its slope in x.

        Returns
        -------
        Tensor
            In the shape that both broadcast to.
        """
        u = check.as_tensor("u", u)
        return self._like(u)._flux(u, u_x)

    def residual(self, u: Tensor, u_t: Tensor, u_x: Tensor, u_xx: Tensor) -> Tensor:
        """u_t + F_x from given derivatives: 0 where u is smooth and solves the equation.

        Parameters
        ----------
        u, u_t, u_x, u_xx : Tensor
            The solution and its derivatives in t and x.

        Returns
        -------
        Tensor
            In the shape that all broadcast to.
        """
        u = check.as_tensor("u", u)
        return self._like(u)._residual(u, u_t, u_x, u_xx)

    @classmethod
    def grid(
        cls,
        times: int = 201,
        points: int = 201,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Evenly spaced times and points with both ends: the paper's test grid.

        Parameters
        ----------
        times, points : int
            How many, T and M.
        dtype : torch.dtype
            The dtype of both.
        device : torch.device or str
            The device of both.

        Returns
        -------
        tuple of two Tensor
            t, of shape (T,), and x, of shape (M,).
        """
        counts = check.samples(times, "times"), check.samples(points, "points")
        t = torch.linspace(*cls.time_range, counts[0], dtype=dtype, device=device)
        x = torch.linspace(*cls.domain, counts[1], dtype=dtype, device=device)
        return t, x

    def _front(self, t: Tensor) -> Tensor:
        return torch.full_like(t, torch.nan)

    def _solution(self, t: Tensor, x: Tensor) -> Tensor:
        raise self._unwritten("_solution")

    def _total(self, t: Tensor) -> Tensor:
        raise self._unwritten("_total")

    def _inflow(self, t: Tensor) -> Tensor:
        raise self._unwritten("_inflow")

    def _outflow(self, t: Tensor) -> Tensor:
        raise self._unwritten("_outflow")

    def _flux(self, u: Tensor, u_x: Tensor) -> Tensor:
        raise self._unwritten("_flux")

    def _residual(self, u: Tensor, u_t: Tensor, u_x: Tensor, u_xx: Tensor) -> Tensor:
        raise self._unwritten("_residual")


class Diffusive(Problem):
    """A problem whose flux is -k(u, x) u_x.

    A subclass writes `_conductivity` and `_boundary`, which gives the values held at the ends (not
    used where `periodic`); `_initial` where it is not 0; and `_mean_conductivity` where k jumps in
    u.
    """

    def conductivity(self, u: Tensor, x: Tensor) -> Tensor:
        """k(u, x), which is not negative.

        Parameters
        ----------
        u, x : Tensor
            Values and places, which broadcast.

        Returns
        -------
        Tensor
            In the shape of both.
        """
        return self._like(u)._conductivity(u, x)

    def _initial(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def _conductivity(self, u: Tensor, x: Tensor) -> Tensor:
        raise self._unwritten("_conductivity")

    def _mean_conductivity(self, left: Tensor, right: Tensor, x: Tensor) -> Tensor:
        """The mean of k(., x) between two values of u."""
        shape = (-1, *[1] * max(left.ndim, x.ndim))
        nodes, weights = NODES.to(left).reshape(shape), WEIGHTS.to(left).reshape(shape)
        u = left + (nodes + 1) / 2 * (right - left)
        return (weights / 2 * self._conductivity(u, x)).sum(0)


class StepConductivity(Diffusive):
    """A problem with k = k_max where u >= u_star, else k_min."""

    u_star: Parameter
    k_min: Parameter
    k_max: Parameter

    equation = "u_t = (k(u) u_x)_x"
    parameter = "u_star"
    allowed = (0.0, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        strictly_between("k_max", self.k_max, 0.0, math.inf)
        check.finite("k_min", self.k_min, 0.0, "It is a conductivity.")

    def _conductivity(self, u: Tensor, x: Tensor | None = None) -> Tensor:
        return torch.where(u >= self.u_star, self.k_max, self.k_min)

    def _mean_conductivity(self, left: Tensor, right: Tensor, x: Tensor) -> Tensor:
        apart, at = left != right, self.u_star
        above = (right - at).clamp(min=0) - (left - at).clamp(min=0)
        inside = above / torch.where(apart, right - left, 1)
        share = torch.where(apart, inside, (left >= at).to(left))
        return self.k_min + (self.k_max - self.k_min) * share


def strictly_between(name: str, x: Tensor, low: float, high: float) -> None:
    if not concrete(x):
        return
    outside = ~((x > low) & (x < high))
    if outside.any():
        rule = f"> {low:g}" if high == math.inf else f"strictly between {low:g} and {high:g}"
        raise InputError(f"`{name}` must be {rule}; got {float(x[outside][0]):.6g}.")


def inside(name: str, x: Tensor, low: float, high: float, what: str) -> None:
    """low <= x <= high, up to the rounding of a computed grid."""
    if not (x.numel() and concrete(x)):
        return
    slack = 8 * torch.finfo(x.dtype).eps * max(abs(low), abs(high))
    for end in x.detach().aminmax():
        if not low - slack <= end <= high + slack:
            raise InputError(
                f"`{name}` must lie inside {what}, from {low:g} to {high:g}; got {end:.6g}."
            )


def broadcast(name: str, x: Tensor, other_name: str, other: Tensor) -> None:
    try:
        broadcast_shapes(x.shape, other.shape)
    except RuntimeError:
        raise InputError(
            f"`{name}` of shape {tuple(x.shape)} does not broadcast with `{other_name}` of shape "
            f"{tuple(other.shape)}."
        ) from None
