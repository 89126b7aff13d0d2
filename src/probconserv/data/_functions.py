"""Functions to learn from: exact solutions at random points, fixed sets and endless streams.

Random numbers are a function of their address, the same on every device, in any order: SplitMix64
by counter, number i of a key is mix(key + (i + 1) G). Nothing is kept between calls, so a batch can
be made anywhere, alone, compiled or inside a CUDA graph.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from ..problems import ClosedForm
from ..support import checks as check
from ..support.errors import InputError


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


GAMMA = _signed(0x9E3779B97F4A7C15)
INVERSE = _signed(pow(0x9E3779B97F4A7C15, -1, 1 << 64))
FIRST, SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def uniform(
    address: tuple[int | Tensor, ...], shape: tuple[int, ...], device: torch.device | str
) -> Tensor:
    """Numbers in [0, 1), float64, on the device; other addresses give unrelated numbers."""
    key = torch.zeros((), dtype=torch.int64, device=device)
    for word in address:
        key = _mix(key + GAMMA) ^ word
    return _logical_shift(words(_mix(key), shape), 11).double() * 2.0**-53


def normal(
    address: tuple[int | Tensor, ...], shape: tuple[int, ...], device: torch.device | str
) -> Tensor:
    """Standard normal numbers, float64, by Box and Muller's formula."""
    first, second = uniform(address, (2, *shape), device)
    return (-2 * (1 - first).log()).sqrt() * (2 * torch.pi * second).cos()


def words(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """64 random bits each, as signed integers."""
    counter = torch.arange(1, 1 + torch.Size(shape).numel(), device=key.device)
    # key + counter * GAMMA, in an order that Inductor does not fold into one index too large for it
    return _mix((key * INVERSE + counter) * GAMMA).reshape(shape)


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _logical_shift(z, 30)) * FIRST
    z = (z ^ _logical_shift(z, 27)) * SECOND
    return z ^ _logical_shift(z, 31)


def _logical_shift(z: Tensor, by: int) -> Tensor:
    return (z >> by) & ((1 << (64 - by)) - 1)


SHUFFLE = 5  # the seed of orders, beside those of `_functions`


class Indexed(Protocol):
    """What can be shuffled: of a length, and indexed by a tensor of whole numbers."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: Any) -> Any: ...


Data = TypeVar("Data", bound=Indexed)


@dataclass(frozen=True, eq=False)
class Shuffled(Generic[Data]):
    """Batches of a fixed set, in a new order every epoch: `shuffled(step)` is `n` of its functions.

    The order is a function of (seed, epoch); what does not fill a batch waits for the next epoch.

    Parameters
    ----------
    functions : Functions, Grids, Tensor or anything with a length and an index
        The fixed set.
    n : int
        How many make a batch.
    seed : int
        Another number gives other orders.

    Raises
    ------
    InputError
        If `n` is more than there are functions.

    Examples
    --------
    >>> Shuffled(torch.arange(6), n=3)(step=1)
    tensor([5, 4, 0])
    """

    functions: Data
    n: int = 250
    seed: int = 0

    def __post_init__(self) -> None:
        if not (isinstance(self.n, Integral) and 0 < self.n <= len(self.functions)):
            raise InputError(
                f"`n` must be a whole number from 1 to the {len(self.functions)} functions there "
                f"are, got {self.n}."
            )

    def __call__(self, step: int | Tensor) -> Data:
        device = getattr(self.functions, "device", "cpu")
        batches = len(self.functions) // self.n
        epoch, batch = step // batches, step % batches
        order = uniform((SHUFFLE, self.seed, epoch), (len(self.functions),), device).argsort()
        within = batch * self.n + torch.arange(self.n, device=device)
        chosen: Data = self.functions[order[within]]
        return chosen


Split: TypeAlias = Literal["train", "validation", "test"]
SEEDS: dict[Split, int] = {"train": 1, "validation": 2, "test": 3}
DECADES = 5  # from the width of the domain down to the least distance of targets near a front
STREAM = 4  # the seed of streams, which therefore never meet a fixed set

EquationSource: TypeAlias = type[ClosedForm] | ClosedForm
Layout: TypeAlias = int | tuple[int, int]
Product: TypeAlias = Callable[[Tensor, tuple[int, int]], tuple[Tensor, Tensor]]


class Points(NamedTuple):
    """Where functions were looked at, and what was seen.

    Attributes
    ----------
    t : Tensor, shape (n, N)
        The times.
    x : Tensor, shape (n, N)
        The places.
    u : Tensor, shape (n, N)
        The values there.
    """

    t: Tensor
    x: Tensor
    u: Tensor


@dataclass(frozen=True, eq=False)
class Functions:
    """n solutions, known at context points and asked for at target points.

    `functions[i]` are some of them; `len(functions)` is n.

    Parameters
    ----------
    problem : ClosedForm or None
        With n parameters; None for functions that are not of an equation.
    context : Points, shape (n, N_D)
        What a model is shown.
    target : Points, shape (n, N)
        What it is asked for.
    numbers : Tensor, shape (n, c)
        What else is known of each function, where there is no problem.
    """

    problem: ClosedForm | None
    context: Points
    target: Points
    numbers: Tensor | None = None

    def __len__(self) -> int:
        return len(self.context.t)

    def __getitem__(self, index: int | slice | Tensor) -> "Functions":
        which = [index] if isinstance(index, int) else index
        return self._changed(lambda a: a[which])

    def to(self, device_or_dtype: torch.device | str | torch.dtype) -> "Functions":
        """The same, moved or converted.

        Parameters
        ----------
        device_or_dtype : device or dtype
            Such as "cuda" or `torch.float32`.

        Returns
        -------
        Functions
            With problem, context and target moved.
        """
        return self._changed(lambda a: a.to(device_or_dtype))

    def _changed(self, change: Callable[[Any], Any]) -> "Functions":
        context, target = (Points(*map(change, p)) for p in (self.context, self.target))
        problem, numbers = (None if a is None else change(a) for a in (self.problem, self.numbers))
        return Functions(problem, context, target, numbers)

    @property
    def parameters(self) -> Tensor | None:  # (n, c)
        """What tells functions apart, (n, c): the parameter of the problem, or `numbers`."""
        if self.problem is None:
            return self.numbers
        return self.problem._parameters()[self.problem.parameter][:, None]

    @property
    def equation(self) -> ClosedForm:
        """The problem of functions that have one."""
        if self.problem is None:
            raise InputError("These functions do not come from an equation.")
        return self.problem

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.context.u.device


def draw(
    problem: EquationSource,
    split: Split,
    n: int = 10_000,
    context: Layout = 100,
    target: Layout = 100,
    seed: int = 0,
) -> Functions:
    """A fixed set of n functions, float64, on the CPU; `.to(device)` moves it.

    Parameters
    ----------
    problem : ClosedForm, or a class of these
        A class draws parameters from its training range, an instance keeps its own.
    split : {"train", "validation", "test"}
        Sets of different splits share no random number.
    n : int
        How many functions. Function i does not depend on n.
    context, target : int or tuple of two int
        How many points. A number scatters them uniformly over space and time; a pair (times,
        places) takes the product of random times and places.
    seed : int
        Another number gives another set.

    Returns
    -------
    Functions
        Their parameters, context points and target points.

    Raises
    ------
    InputError
        If the problem has no closed form, or a number of points is not positive.

    Examples
    --------
    >>> from probconserv.problems import Stefan
    >>> draw(Stefan, "train", n=1000).context.u.shape
    torch.Size([1000, 100])
    >>> draw(Stefan(u_star=0.6), "test", n=50, context=(10, 10)).problem.u_star.unique()
    tensor([0.6000], dtype=torch.float64)
    """
    check.choice("split", split, SEEDS)
    sampler = _Sampler(problem, n, context, target, "cpu")
    return sampler((SEEDS[split], check.whole("seed", seed)))


@dataclass(frozen=True, eq=False)
class Stream:
    """Fresh functions for every training step: `stream(step)` is a batch of n `Functions`.

    A batch is a function of (seed, step), so that a resumed run continues the stream. It is
    computed on the device in float64, from nothing but these two numbers, and then converted.
    `step` may be an int64 tensor on the device, for compiled loops and CUDA graphs.

    Parameters
    ----------
    problem, n, context, target, seed : as in `draw`
    device : torch.device or str
        Where batches are made.
    dtype : torch.dtype
        What they are converted to.
    near : float
        The share of scattered targets that lie near the front, evenly in the logarithm of their
        distance from it.

    Raises
    ------
    InputError
        If `near` is not from 0 to 1, or is given with targets that are not scattered.

    Examples
    --------
    >>> from probconserv.problems import Stefan
    >>> Stream(Stefan, n=250)(step=7).target.u.dtype
    torch.float32
    """

    problem: EquationSource
    n: int = 250
    context: Layout = 100
    target: Layout = 100
    seed: int = 0
    device: torch.device | str = "cpu"
    dtype: torch.dtype = torch.float32
    near: float = 0.0
    _sampler: "_Sampler" = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check.whole("seed", self.seed)
        if not isinstance(self.dtype, torch.dtype) or not self.dtype.is_floating_point:
            raise InputError(
                f"`dtype` must be a floating-point type, such as torch.float32; got {self.dtype}."
            )
        if check.between("near", self.near, 0, 1) and isinstance(self.target, tuple):
            raise InputError(
                "`near` is for scattered targets: `target` must be a number of points where it is "
                f"not 0; got {self.near} and {self.target}."
            )
        layouts, device = (self.context, self.target), check.place("device", self.device)
        sampler = _Sampler(self.problem, self.n, *layouts, device, self.near)
        object.__setattr__(self, "_sampler", sampler)

    def __call__(self, step: int | Tensor) -> Functions:
        return self._sampler((STREAM, self.seed, _number(step))).to(self.dtype)


class _Sampler:
    """Functions of an address, on one device."""

    def __init__(
        self,
        problem: EquationSource,
        n: int,
        context: Layout,
        target: Layout,
        device: torch.device | str,
        near: float = 0.0,
    ) -> None:
        self.near = near
        self.n, self.context, self.target, self.device = check.samples(n), context, target, device
        self.sizes = [1, _size("context", context), _size("target", target)]
        self.family: type[ClosedForm] = problem if isinstance(problem, type) else type(problem)
        if not issubclass(self.family, ClosedForm):
            raise InputError(
                "`problem` must be a problem with a closed form, as a class or an instance; got "
                f"{problem!r}. `probconserv.problems.find` gives the class of a name."
            )
        self.family._check_parameters()
        self.family._check_facts("train_range", "domain", "time_range")
        self.constants = self.family._constants()
        self.given = None if isinstance(problem, type) else self._given(problem)

    def _given(self, problem: ClosedForm) -> ClosedForm:
        for name, parameter in problem._parameters().items():
            check.broadcasts(name, parameter, (self.n,), "a set")
        problem = problem.to(torch.float64).to(self.device)
        return problem._with({k: p.expand(self.n) for k, p in problem._parameters().items()})

    def __call__(self, address: tuple[int | Tensor, ...]) -> Functions:
        numbers = uniform(address, (self.n, sum(self.sizes)), self.device)
        first, known, asked = numbers.split(self.sizes, dim=1)
        problem = self.given or self._drawn(first[:, 0])
        context = self._points(problem, self.context, known, _strata)
        target = self._points(problem, self.target, asked, _sorted, self.near)
        return Functions(problem, context, target)

    def _drawn(self, numbers: Tensor) -> ClosedForm:
        parameter = _scaled(numbers, self.family.train_range)
        others = {k: torch.full_like(parameter, c) for k, c in self.constants.items()}
        return self.family._with({self.family.parameter: parameter, **others})

    def _points(
        self,
        problem: ClosedForm,
        layout: Layout,
        numbers: Tensor,
        product: Product,
        near: float = 0.0,
    ) -> Points:
        t, x = product(numbers, layout) if isinstance(layout, tuple) else numbers.chunk(2, dim=1)
        t = _scaled(t, problem.time_range)
        if near:
            some = round(near * x.shape[1])
            x = torch.cat([_near_front(problem, t[:, :some], x[:, :some]), x[:, some:]], dim=1)
        x = _scaled(x, problem.domain)
        return Points(t, x, problem[:, None]._solution(t, x))


def _number(step: int | Tensor) -> int | Tensor:
    if not isinstance(step, Tensor):
        return check.whole("step", step)
    if step.ndim or step.is_floating_point():
        raise InputError(f"`step` must be one whole number, got {step.dtype} {tuple(step.shape)}.")
    return step


def _size(name: str, layout: Layout) -> int:
    """How many random numbers it takes."""
    counts = layout if isinstance(layout, tuple) else (layout, layout)
    if len(counts) != 2 or not all(isinstance(c, Integral) and c > 0 for c in counts):
        raise InputError(
            f"`{name}` must be a positive number of scattered points or a pair (times, places), "
            f"got {layout!r}."
        )
    return sum(counts)


def _scaled(numbers: Tensor, ends: tuple[float, float]) -> Tensor:
    return ends[0] + (ends[1] - ends[0]) * numbers


def _near_front(problem: ClosedForm, t: Tensor, numbers: Tensor) -> Tensor:
    """Places on both sides of the front, from 0 to 1 over the domain; unmoved where not inside."""
    left, right = problem.domain
    front = (problem[:, None]._front(t) - left) / (right - left)
    side = 2 * numbers - 1
    place = front + side.sign() * 10.0 ** (-DECADES * side.abs())
    return torch.where((place >= 0) & (place <= 1), place, numbers)


def _sorted(numbers: Tensor, layout: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Uniform times and places, each sorted, and their product."""
    t, x = numbers.split(layout, dim=1)
    return _product(t.sort(dim=1).values, x.sort(dim=1).values)


def _strata(numbers: Tensor, layout: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """One time in each of equal parts of the time range, uniform sorted places, their product."""
    t, x = numbers.split(layout, dim=1)
    t = (torch.arange(layout[0], device=t.device) + t) / layout[0]
    return _product(t, x.sort(dim=1).values)


def _product(t: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    t, x = torch.broadcast_tensors(t[:, :, None], x[:, None, :])
    return t.flatten(1), x.flatten(1)
