"""Laws that are not linear: any differentiable function of the fields has a known value.

`nonlinear` makes them. On fields of known shapes a law is `Curved`, which linearises itself at a
point: few rows as a dense matrix, many as products with the Jacobian.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..fields.covariances import Fields
from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError, ProbConservError
from ..support.tree import Change, Node, once
from .law import Rows, array_of
from .maps import Map, Matrix, widened
from .sums import NOISE_HINT

Function = Callable[[Any], Any]
FEW = 8  # rows up to which a loop over them is faster
AT_ONCE = 1 << 22  # numbers of rows that are computed together
PROBES = 16  # products with random signs that sizes of rows are taken from


class NonlinearLaw:
    """What is known of fields: function(u) = value, each row up to `noise`; `nonlinear` makes it.

    Parameters
    ----------
    function : callable
        From one solution to rows, as in `nonlinear`.
    value, noise : Tensor
        What it gives and the standard deviation of that; they broadcast to ``(*batch, *rows)``.
    batch_dims : int
        How many first axes number solutions.
    of : str
        The name of the field that the function gets; "" for all by name.
    label : str
        What errors call it.
    """

    kind = "nonlinear"

    def __init__(
        self, function: Function, value: Tensor, noise: Tensor, batch_dims: int, of: str, label: str
    ) -> None:
        self.function, self.value, self.noise = function, value, noise
        self.batch_dims, self.of, self.label = batch_dims, of, label

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As always; with words for `pickle`, which keeps a function by its name alone."""
        named = getattr(self.function, "__qualname__", "")
        if "<" in named and not _kept_whole():
            raise InputError(
                f"`function` of `{self.label}` is {named.rpartition('.')[2]}, made where it is "
                "used, which `pickle` cannot keep: DataLoader workers, `torch.save` and spawned "
                "processes need a function that stands in a module by its own name, with `def`."
            )
        return super().__reduce_ex__(protocol)

    def apply(self, u: Any) -> Tensor:
        """function(u), in float64.

        Parameters
        ----------
        u : array, Field, or a dict of these
            The mean of a field is taken. By name where the function reads several.

        Returns
        -------
        Tensor, shape ``(*batch, *rows)``
            What the function gives for each solution.
        """
        found, curved = self._found(u)
        return found.reshape((*found.shape[:-1], *curved.tail))

    def residual(self, u: Any) -> Tensor:
        """function(u) - value; 0 where the law holds.

        Parameters
        ----------
        u : as in `apply`

        Returns
        -------
        Tensor
            In the shape of `apply`.
        """
        found, curved = self._found(u)
        return (found - curved.value).reshape((*found.shape[:-1], *curved.tail))

    def _found(self, u: Any) -> tuple[Tensor, "Curved"]:
        named = isinstance(u, Mapping) or hasattr(u, "fields")
        arrays = {name: array_of(each) for name, each in dict(u if named else {"": u}).items()}
        fields = tuple(arrays.values())
        curved = self.on(tuple(arrays), fields)
        return curved.apply(fields), curved

    def on(self, names: tuple[str, ...], fields: Sequence[Tensor]) -> "Curved":
        """The law on fields like these, on which the function is tried.

        Parameters
        ----------
        names : tuple of str
            The names of the fields of a state; ("",) for a field alone.
        fields : sequence of Tensor
            One for each name.

        Returns
        -------
        Curved
            What the solvers read.

        Raises
        ------
        InputError
            If the function does not give rows that `value` and `noise` broadcast to.
        """
        if self.of and names != ("",):
            check.choice("of", self.of, names)
        if not fields:
            raise InputError(f"`u`: `{self.label}` reads fields, and there is none.")
        lead = self.batch_dims
        for name, u in zip(names, fields, strict=True):
            if u.ndim < lead or u.shape[:lead] != fields[0].shape[:lead]:
                raise InputError(
                    f"`batch_dims` of `{self.label}` is {lead}, but the field {name!r} has the "
                    f"shape {tuple(u.shape)}: all fields share their first {lead} axes."
                )
        return Curved(self, names, fields)

    def __repr__(self) -> str:
        noise = float(self.noise.max()) if self.noise.numel() else 0.0
        return f"NonlinearLaw({self.label}, value {tuple(self.value.shape)}, noise up to {noise:g})"


def _kept_whole() -> bool:
    """Whether who asks copies in memory, or keeps functions with their code."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] in ("copy", "cloudpickle", "dill"):
            return True
        frame = frame.f_back
    return False


def nonlinear(
    function: Function,
    value: ArrayLike,
    noise: ArrayLike = 0.0,
    batch_dims: int = 0,
    of: str = "",
    label: str = "",
) -> NonlinearLaw:
    """A law: function(u) = value, for any differentiable function of the fields.

    Parameters
    ----------
    function : callable
        From one solution to rows. It gets a float64 tensor; for a state it gets all fields by name,
        unless `of` names one. It returns a tensor, or a tuple of numbers. It is made of torch
        operations that have a gradient, and is mapped over the batch by `torch.vmap`.
    value : float or array
        What the function gives, in a shape that broadcasts to ``(*batch, *rows)``.
    noise : float or array
        The standard deviation, one number or one for each row; 0 is exact.
    batch_dims : int
        How many first axes number solutions: the function sees the axes after these.
    of : str
        The name of the field, in a state of several.
    label : str
        What errors call it; the name of the function if it is not given.

    Returns
    -------
    NonlinearLaw
        For `condition` and `project`, beside other laws.

    Raises
    ------
    InputError
        If `function` cannot be called, or `batch_dims` is negative.

    Examples
    --------
    >>> import probconserv as pc
    >>> energy = nonlinear(lambda u: u.square().sum(), 25.0)
    >>> point = pc.condition(pc.Diagonal([3.0, 3.9], 1.0), energy).point
    >>> round(float(point.square().sum()), 9)
    25.0
    """
    if not callable(function):
        raise InputError(
            "`function` must be a function from one solution to rows, such as "
            f"lambda u: u.square().sum(); got {type(function).__name__}."
        )
    given = check.name("label", label) or getattr(function, "__name__", "")
    named = given if given and given != "<lambda>" else "nonlinear"
    sigma = check.wide("noise", noise, 0, NOISE_HINT)
    dims = check.whole("batch_dims", batch_dims)
    if dims < 0:
        raise InputError(f"`batch_dims` must not be negative, got {dims}.")
    b = check.wide("value", value)
    return NonlinearLaw(function, b, sigma, dims, check.name("of", of), named)


def _in_rows(t: Tensor, lead: int, tail: tuple[int, ...]) -> Tensor:
    """Of a value that broadcasts to (*batch, *rows): (*batch, K), where axes of 1 may stay."""
    t = widened(t, lead + len(tail))
    batch = tuple(t.shape[:lead])
    return t.expand(batch + tail).reshape(*batch, math.prod(tail))


class Curved(Node):
    """A law that is not linear on fields of known shapes: K rows for each solution, in float64."""

    side = 0  # 1 where rows are at least their values, -1 at most

    def __init__(self, law: NonlinearLaw, names: tuple[str, ...], fields: Sequence[Tensor]) -> None:
        """Tries the function on fields like these."""
        lead, place = law.batch_dims, fields[0].device
        self.label, self.function, self.names = law.label, law.function, names
        self.alone = names.index(law.of) if law.of in names else None  # the field that it gets
        self.alone = 0 if names == ("",) else self.alone  # None: all by name
        self.dims = tuple(u.ndim - lead for u in fields)  # axes of one solution, of each field
        found = self._rows([u.detach() for u in self._flat(fields)[1]])
        self.tail = tail = tuple(found.shape[1:])  # the shape of the rows of one solution
        self.learns = found.requires_grad  # whether the function has parameters with gradients
        if not math.prod(tail):
            raise InputError(f"`function` of `{self.label}` must return a row, got shape {tail}.")
        for name, t in (("value", law.value), ("noise", law.noise)):
            wanted = (*fields[0].shape[:lead], *tail)
            check.broadcasts(name, t, wanted, f"the rows of `{self.label}`")
        self.value, self.noise_variance = (  # (*batch, K)
            _in_rows(t.to(place), lead, tail) for t in (law.value, law.noise.square())
        )

    @property
    def count(self) -> int:
        """K, the rows of one solution."""
        return self.value.shape[-1]

    def places(self, shapes: Sequence[Sequence[int]]) -> int:
        return len(shapes[0]) - self.dims[0]

    def row_shape(self, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        return (*shapes[0][: self.places(shapes)], self.count)

    def apply(self, fields: Sequence[Tensor]) -> Tensor:
        """f(u), (*lead, *own) of each field to (*lead, K)."""
        lead, flat = self._flat(fields)
        found = self._mapped(*flat)
        return found.reshape(*lead, found.shape[1])

    def linearised(self, fields: Fields, dense: bool) -> Rows:
        """The rows J u' = value - f(u) + J u. dense: whether J is computed as a matrix."""
        lead, flat = self._flat(fields)
        if dense:
            found, back = self.pulled(tuple(flat))
            pairs = zip(self.jacobians(back, self.count, flat[0]), flat, strict=True)
            maps: list[Map] = [
                Matrix(j.reshape(*lead, *j.shape[1:]), tuple(x.shape[1:])) for j, x in pairs
            ]
        else:
            found = self._mapped(*flat)
            maps = [Jacobian(self, fields, i) for i in range(len(fields))]
        found = found.reshape(*lead, self.count)
        rows = Rows(self.label, tuple(maps), self.value, self.noise_variance, None)
        rows.value = self.value - found + rows.apply(fields)
        return rows

    def pulled(self, fields: Fields) -> tuple[Tensor, Callable[[Tensor], Fields]]:
        """f(u) of each part, (P, K), and products with J^T, from (K,) or (P, K) to fields."""
        lead, flat = self._flat(fields)
        found, back = torch.func.vjp(self._mapped, *flat)[:2]
        size = (len(fields[0]), math.prod(lead[1:]) * found.shape[1])

        def products(v: Tensor) -> Fields:
            whole = v.expand(size).reshape(found.shape)
            with self._asked(flat):
                every = back(whole)
            return tuple(x.reshape(u.shape) for x, u in zip(every, fields, strict=True))

        return found.reshape(size), products

    def jacobians(self, back: Callable[[Tensor], Fields], count: int, like: Tensor) -> Fields:
        """J of each field, (P, K, E), from products with J^T; count: K. like: one of the fields."""
        units = torch.eye(count, dtype=like.dtype, device=like.device)
        if count < FEW:
            each = zip(*(back(unit) for unit in units), strict=True)
            found = tuple(rows[0][:, None] if count == 1 else torch.stack(rows, 1) for rows in each)
        else:
            some = max(1, AT_ONCE // max(1, like.numel()))
            every = torch.vmap(back, chunk_size=some)(units)
            found = tuple(x.movedim(0, 1) for x in every)
        return tuple(x.reshape(*x.shape[:2], math.prod(x.shape[2:])) for x in found)

    def bent(self, fields: Fields, multiplier: Tensor, v: Fields) -> Fields:
        """The second derivative of multiplier f, (P, K), times v."""
        flat, along = self._flat(fields)[1], self._flat(v)[1]

        def slope(*at: Tensor) -> tuple[Tensor, ...]:
            found, back = torch.func.vjp(self._mapped, *at)[:2]
            return tuple(back(multiplier.reshape(found.shape)))

        with self._asked(flat):  # the derivative of a slope is its own transpose
            found = torch.func.vjp(slope, *flat)[1](tuple(along))
        return tuple(x.reshape(u.shape) for x, u in zip(found, fields, strict=True))

    def _flat(self, fields: Sequence[Tensor]) -> tuple[torch.Size, list[Tensor]]:
        """The axes before those of a solution as one."""
        lead = fields[0].shape[: fields[0].ndim - self.dims[0]]
        return lead, [
            u.reshape(math.prod(lead), *u.shape[u.ndim - n :])
            for u, n in zip(fields, self.dims, strict=True)
        ]

    def _mapped(self, *flat: Tensor) -> Tensor:
        """f of many solutions, (P, K)."""
        found = self._rows(flat)
        return found.reshape(len(found), math.prod(found.shape[1:]))

    def _rows(self, flat: Sequence[Tensor]) -> Tensor:
        """The same in the shape that the function returns, (P, *tail)."""
        own = [u.clone() for u in flat]  # what a function changes in place is its own
        with self._asked(flat):
            return torch.vmap(self._one)(*own)

    @contextmanager
    def _asked(self, flat: Sequence[Tensor]) -> Iterator[None]:
        """Words for what a user's function raises, which may be anything."""
        try:
            yield
        except ProbConservError:
            raise
        except Exception as error:
            sizes = " and ".join(str(tuple(u.shape[1:])) for u in flat)
            given = "all fields by name" if self.alone is None else "a tensor"
            raise InputError(
                f"`function` of `{self.label}` failed on {given}, of shape {sizes}: "
                f"{type(error).__name__}: {error}. It must be made of torch operations that "
                "`torch.vmap` maps over a batch, without changes in place; `batch_dims` says how "
                "many first axes it does not see, and `of` which field of a state it gets."
            ) from error

    def _one(self, *fields: Tensor) -> Tensor:
        named = dict(zip(self.names, fields, strict=True))
        found = self.function(named if self.alone is None else fields[self.alone])
        if isinstance(found, tuple | list) and all(isinstance(x, Tensor) for x in found):
            found = torch.stack(tuple(found))
        if not isinstance(found, Tensor) or found.dtype != torch.float64:
            said = found.dtype if isinstance(found, Tensor) else type(found).__name__
            raise InputError(
                f"`function` of `{self.label}` must return a float64 tensor, which it is given, or "
                f"a tuple of such numbers; got {said}."
            )
        return found


class Jacobian(Map):
    """J of one field at a point, by products: many rows, each of which reads few points."""

    is_local = True

    def __init__(self, curved: Curved, at: Fields, number: int) -> None:
        self.curved, self.at, self.number = curved, at, number
        self.dims, self.row_names = curved.dims[number], ("row",)
        self.differentiable = curved.learns or any(u.requires_grad for u in at)

    def _change(self, change: Change) -> "Jacobian":
        at = tuple(change(u, 0) for u in self.at)
        return Jacobian(self.curved._change(change), at, self.number)

    @once
    def _products(self) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        """J times something, and J^T times something: the second is linear, the first its own."""

        def rows(own: Tensor) -> Tensor:
            return self.curved.apply(
                [own if i == self.number else u for i, u in enumerate(self.at)]
            )

        found, back = torch.func.vjp(rows, self.at[self.number])[:2]
        forward = torch.func.vjp(lambda v: back(v)[0], torch.zeros_like(found))[1]
        return lambda u: forward(u)[0], lambda v: back(v)[0]

    def apply(self, u: Tensor) -> Tensor:
        return self._each(u, self.at[self.number].shape, self._products[0])

    def adjoint(self, v: Tensor) -> Tensor:
        lead = self.at[self.number].shape[: self.at[self.number].ndim - self.dims]
        return self._each(v, (*lead, self.curved.count), self._products[1])

    def _each(self, x: Tensor, shape: Sequence[int], work: Callable[[Tensor], Tensor]) -> Tensor:
        """Work on arrays of `shape`, done on a stack of them."""
        more = tuple(x.shape[: max(0, x.ndim - len(shape))])
        x = x.expand(*more, *shape)
        if not more:
            return work(x)
        found = torch.vmap(work)(x.reshape(-1, *shape))
        return found.reshape(*more, *found.shape[1:])

    def entrywise(self, power: int) -> "Map":
        return Sizes(self, power)

    def on(self, shape: Sequence[int]) -> "Jacobian":
        return self

    def row_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (*super().row_shape(shape), self.curved.count)


class Sizes(Map):
    """About |J| or J^2 entry by entry, from products of J with random signs.

    The mean square of J (z x) over signs z is J^2 x^2. Its root stands for |J| |x|, which it does
    not exceed but by chance.
    """

    def __init__(self, of: Jacobian, power: int) -> None:
        self.of, self.power, self.dims, self.row_names = of, power, of.dims, of.row_names

    def apply(self, u: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(PROBES)
        size, total = u.sqrt() if self.power == 2 else u, torch.zeros((), dtype=u.dtype)
        for _ in range(PROBES):
            signs = torch.randint(2, size.shape, generator=generator, dtype=torch.int8)
            total = total.to(u.device) + self.of.apply(size * (2 * signs.to(u.device) - 1)).square()
        return total / PROBES if self.power == 2 else (total / PROBES).sqrt()

    def adjoint(self, v: Tensor) -> Tensor:
        raise NotImplementedError("sizes of rows need no transpose")

    def entrywise(self, power: int) -> "Map":
        raise NotImplementedError("sizes have no sizes")

    def on(self, shape: Sequence[int]) -> "Sizes":
        return self

    def row_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return self.of.row_shape(shape)
