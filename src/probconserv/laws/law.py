"""A law: a map, a value, a noise, and names for its rows; nothing of how it is solved.

`sums.py` makes laws. A law learns the shapes of its fields in `on`, which gives `Rows`.
"""

import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..fields.blocks import root_of
from ..fields.covariances import Fields
from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError
from ..support.tolerances import EPS
from ..support.tree import Node
from .maps import Map, Select, Sum, widened
from .quadrature import Rule

Times: TypeAlias = Sequence[int] | slice | np.ndarray | Tensor  # indices, a slice, or booleans


class Rows(Node):
    """A law on fields of known shapes: G u = value up to noise, in float64.

    Rows at times of which the law does not speak are there with G, value and noise 0: nothing can
    move them, and nothing needs to.
    """

    rounding = EPS  # of the values when they were given, as a share
    side = 0  # 1 where rows are at least their values, -1 at most

    def __init__(
        self,
        label: str,
        maps: tuple[Map | None, ...],
        value: Tensor,
        noise_variance: Tensor,
        present: Tensor | None,
        exact: bool = False,
    ) -> None:
        """exact: whether all rows are known to have no noise, without a look at it."""
        self.label, self.maps, self.present, self.exact = label, maps, present, exact
        self.value, self.noise_variance = value, noise_variance  # (*places, *rows), full size or 1
        self.first = 0
        while maps[self.first] is None:
            self.first += 1

    @property
    def map(self) -> Any:
        """The map of the first field that the law reads."""
        return self.maps[self.first]

    def apply(self, fields: Sequence[Tensor | None]) -> Tensor:
        """G u; a field that is None counts as 0."""
        total: Any = None
        for m, u in zip(self.maps, fields, strict=True):
            if m is not None and u is not None:
                total = m.apply(u) if total is None else total + m.apply(u)
        return total if self.present is None else total * self.present

    def adjoint(self, v: Tensor) -> Fields:
        v = v if self.present is None else v * self.present
        return tuple(None if m is None else m.adjoint(v) for m in self.maps)

    def entrywise(self, power: int) -> "Rows":
        maps = tuple([None if m is None else m.entrywise(power) for m in self.maps])
        return Rows(self.label, maps, self.value, self.noise_variance, self.present, self.exact)

    def alike(
        self, maps: tuple[Map | None, ...], value: Tensor, noise: Tensor, present: Tensor | None
    ) -> "Rows":
        """Rows of the same law."""
        found = Rows(self.label, maps, value, noise, present, self.exact)
        found.side = self.side
        return found

    def residual(self, fields: Sequence[Tensor | None]) -> Tensor:
        return self.apply(fields) - self.value

    def row_shape(self, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        return self.map.row_shape(shapes[self.first])

    def is_sparse(self, shapes: Sequence[Sequence[int]]) -> bool:
        """Whether all its maps say which entries are not 0."""
        pairs = zip(self.maps, shapes, strict=True)
        return all(m is None or m.nonzeros(shape) is not None for m, shape in pairs)

    def places(self, shapes: Sequence[Sequence[int]]) -> int:
        """How many axes come before those that a row reads."""
        return len(shapes[self.first]) - self.map.dims

    def over(self, shapes: Sequence[Sequence[int]], lead: int) -> "Rows":
        """The same rows; those of a `Select` along one of the first `lead` axes at all of it."""
        if not isinstance(self.map, Select) or self.places(shapes) >= lead:
            return self
        value = self.value.expand(self.row_shape(shapes))
        there = self.map.adjoint(torch.ones_like(value))
        maps = tuple(None if m is None else Sum(there, 0) for m in self.maps)
        noise = self.map.adjoint(self.noise_variance.expand(value.shape))
        return self.alike(maps, self.map.adjoint(value), noise, None)

    def at_all(self, terms: Tensor, ndim: int, lead: int) -> Tensor:
        """Numbers for each row; of a `Select` along one of the first `lead` axes at all of it.

        ndim: of the field.
        """
        along = isinstance(self.map, Select) and ndim + self.map.axis < lead
        return self.map.adjoint(terms) if along else terms

    def name(self, index: Sequence[int]) -> str:
        """A row in words, `index` into apply(u)."""
        names, index = self.map.row_names, [int(i) for i in index]
        lead = len(index) - len(names)
        words = [str(index[:lead])] if lead else []
        if isinstance(self.map, Select) and not isinstance(self.map.entries, int):
            index[lead] = self.map.entries[index[lead]]  # 0 or -1: an end
        words += [f"{name} {i}" for name, i in zip(names, index[lead:], strict=True)]
        return f"`{self.label}`" + (f" at {', '.join(words)}" if words else "")


class Law:
    """What is known of a field: G u = value, each row up to `noise`, a standard deviation.

    `integral`, `weighted_sum` and the like make laws. A law knows nothing of how it is solved.

    Parameters
    ----------
    label : str
        What errors and tables call it.
    maps : dict of maps
        G, by the name of the field that each map reads; "" is the only field there is.
    value, noise_variance : Tensor
        One for each row of `apply`, or numbers; a variance of 0 is exact.
    times : sequence of int or bool, or slice
        Where the law holds, if not at every time.
    quadrature : tuple of Tensor and str
        x and rule of an integral over one axis.
    """

    kind = "linear"
    rounding = EPS  # of the values when they were given, as a share
    _there: tuple[torch.device, tuple[Any, ...], "Law"] | None = None  # as it was moved last

    def __init__(
        self,
        label: str,
        maps: Mapping[str, Map],
        value: Tensor,
        noise_variance: Tensor,
        times: Times | None = None,
        quadrature: tuple[Tensor, Rule] | None = None,
    ) -> None:
        self.label, self.maps, self.value = label, dict(maps), value
        self.noise_variance = noise_variance
        self.times, self.quadrature = as_times(times), quadrature
        one = noise_variance.ndim == 0 and check.in_numpy(noise_variance)
        self.exact = one and noise_variance.item() == 0

    @property
    def noise(self) -> Tensor:
        """The standard deviation of each row, 0 where it is exact."""
        return root_of(self.noise_variance)

    @property
    def map(self) -> Map:
        """The map of the first field that the law reads."""
        return next(iter(self.maps.values()))

    @property
    def space_dims(self) -> int:
        """How many last axes of its field are space to the law."""
        return len(self.row_names) if self.is_initial else self.map.dims

    @property
    def is_initial(self) -> bool:
        """Whether it speaks of one time only."""
        return isinstance(self.map, Select) and isinstance(self.map.entries, int)

    @property
    def row_names(self) -> tuple[str, ...]:
        """The names of the axes that number the rows of one place, such as "region"."""
        return self.map.row_names

    def apply(self, u: Any) -> Tensor:
        """G u, in float64.

        Parameters
        ----------
        u : array, Field, or a dict of these
            The mean of a field is taken. By name for a law of several fields.

        Returns
        -------
        Tensor, shape (..., T) or (..., T, rows)
            One number for each row.
        """
        return self._read(u, lambda m, u: m.apply(u))

    def magnitude(self, u: Any) -> Tensor:
        """The size of the terms of each row: `apply`, with all signs of G and u taken off.

        Parameters
        ----------
        u : as in `apply`

        Returns
        -------
        Tensor
            In the shape of `apply`.
        """
        return self._read(u, lambda m, u: m.entrywise(1).apply(u.abs()))

    def squares(self, u: Any) -> Tensor:
        """The squares of G's entries times u: the variance of G u, if u are variances of points.

        Parameters
        ----------
        u : as in `apply`

        Returns
        -------
        Tensor
            In the shape of `apply`.
        """
        return self._read(u, lambda m, u: m.entrywise(2).apply(u))

    def residual(self, u: Any) -> Tensor:
        """G u - b of arrays, or of the mean of fields; 0 where the law holds.

        Parameters
        ----------
        u : as in `apply`

        Returns
        -------
        Tensor
            In the shape of `apply`.
        """
        rows = self.apply(u)
        self._check_values(rows.shape)
        return rows - self.value.to(rows.device)

    def adjoint(self, v: ArrayLike, shape: Sequence[int]) -> Tensor:
        """G^T v in float64, for a law of one field.

        Parameters
        ----------
        v : array, shape (..., T) or (..., T, rows)
            As `apply` returns it.
        shape : sequence of int
            The shape of the field.

        Returns
        -------
        Tensor
            In the shape of the field, with the axes of `v` before it.

        Raises
        ------
        InputError
            If the law reads several fields, or `v` does not end in the rows.
        """
        if len(self.maps) > 1:
            raise InputError(f"`{self.label}` reads several fields: it has no one adjoint.")
        v, shape = check.tensor("v", v).double(), check.shape("shape", shape)
        law = self.to(v.device)
        m = law._on(law.map, shape)
        wanted = self._at_chosen(m.row_shape(shape), shape)
        if v.shape[max(v.ndim - len(wanted), 0) :] != wanted:
            raise InputError(f"`v` must end in the rows, {wanted}, but has shape {tuple(v.shape)}.")
        return m.adjoint(law._spread(v, shape))

    def on(self, names: Sequence[str], shapes: Sequence[Sequence[int]]) -> Rows:
        """The rows of the law on fields of known shapes, with value and noise.

        Parameters
        ----------
        names : sequence of str
            The names of the fields of a state; ("",) for a field alone.
        shapes : sequence of shapes
            One for each field.

        Returns
        -------
        Rows
            What the solvers read.

        Raises
        ------
        InputError
            If the law speaks of a field that is not there, or does not fit its shape.
        """
        own, by_name = self._named(names), dict(zip(names, shapes, strict=True))
        maps = [self._on(own[n], by_name[n]) if n in own else None for n in names]
        rows, *others = (m.row_shape(by_name[n]) for n, m in zip(names, maps, strict=True) if m)
        for other in others:
            if other != rows:
                raise InputError(
                    f"`{self.label}` adds rows of different shapes, {rows} and {other}: its fields "
                    "must agree in all axes before those that it reads."
                )
        shape = by_name[next(iter(own))]
        self._check_values(self._at_chosen(rows, shape))
        value, noise, present = self.value, self.noise_variance, None
        if self.times is not None:
            count = len(self._chosen(shape)), *[1] * len(self.row_names)
            three = value, noise, value.new_ones(count)
            value, noise, present = (widened(self._spread(v, shape), len(rows)) for v in three)
        value, noise = widened(value, len(rows)), widened(noise, len(rows))
        laid = Rows(self.label_on(names), tuple(maps), value, noise, present, self.exact)
        laid.rounding = self.rounding
        return laid

    def label_on(self, names: Sequence[str]) -> str:
        """What it is called among the fields of a state."""
        return self.label if names == ("",) else f"{self.label} of {', '.join(self._named(names))}"

    def to(self, device: torch.device | str) -> "Law":
        """The same law on another device."""
        if isinstance(device, torch.device) and device == self.value.device:
            return self
        place = check.place("device", device)
        if same_place(self.value.device, place):
            return self
        there, made = self._there, self.made_of()
        if there is not None and there[0] == place and made == there[1]:
            return there[2]
        moved = self._moved(place)
        self._there = None if made is None else (place, made, moved)
        return moved

    def made_of(self) -> tuple[Any, ...] | None:
        """What tells whether it is still the same; None where it may change unseen.

        Its tensors, and how often each was changed in place.
        """
        tensors = [self.value, self.noise_variance]
        for m in self.maps.values():
            tensors += m.tensors
        if any(t.requires_grad or t.is_inference() for t in tensors):
            return None
        own = self.times if not isinstance(self.times, slice) else repr(self.times)
        return (self.label, own, *map(id, tensors), *[t._version for t in tensors])

    def __getstate__(self) -> dict[str, Any]:
        """What a copy has: not what was moved before, which only saves time."""
        return {name: value for name, value in vars(self).items() if name != "_there"}

    def _moved(self, place: torch.device) -> "Law":
        maps = {name: m._map(lambda t: t.to(place)) for name, m in self.maps.items()}
        moved = copy.copy(self)  # with what was seen of the noise before it was there
        moved.maps, moved.value = maps, self.value.to(place)
        moved.noise_variance = self.noise_variance.to(place)
        return moved

    def at_times(self, rows: Tensor, shape: Sequence[int]) -> Tensor:
        """Those rows, of rows at every time, that are at the chosen times.

        Parameters
        ----------
        rows : Tensor, shape (..., T) or (..., T, rows)
            A number for each row at every time.
        shape : sequence of int
            The shape of the field.

        Returns
        -------
        Tensor
            `rows` itself where the law holds at every time.
        """
        if self.times is None:
            return rows
        return rows.index_select(-1 - len(self.row_names), self._chosen(shape, rows.device))

    def _named(self, names: Sequence[str]) -> dict[str, Map]:
        """Its maps, by the names of a state's fields."""
        own = self.maps
        if len(own) == len(names) == 1 and ("" in own or names[0] == ""):
            return {names[0]: self.map}
        if not set(own) <= set(names):
            said = ", ".join(repr(n) for n in own if n not in names)
            raise InputError(
                f"`of`: the law `{self.label}` speaks of {said}, but the fields are "
                f"{', '.join(repr(n) for n in names)}. Say which one it reads with `of`."
            )
        return own

    def _read(self, u: Any, by: Callable[[Map, Tensor], Tensor]) -> Tensor:
        named = isinstance(u, Mapping) or hasattr(u, "fields")
        if not named and len(self.maps) > 1:
            raise InputError(
                f"`u`: `{self.label}` reads {', '.join(self.maps)}; give them by name."
            )
        arrays = {name: array_of(each) for name, each in dict(u if named else {"": u}).items()}
        total: Any = 0.0
        for name in self.maps:
            if name not in arrays and len(arrays) > 1:
                raise InputError(f"`{self.label}` reads {name!r}; given are {', '.join(arrays)}.")
            one = arrays[name] if name in arrays else next(iter(arrays.values()))
            arrays[name] = one
            total = total + by(self._on(self.to(one.device).maps[name], one.shape), one)
        return self.at_times(total, arrays[next(iter(self.maps))].shape)

    def _on(self, m: Map, shape: Sequence[int]) -> Map:
        try:
            return m.on(shape)
        except InputError as error:
            raise InputError(f"`{self.label}`: {error}") from None

    def _check_values(self, wanted: Sequence[int]) -> None:
        """Value and noise have one entry per row, or broadcast."""
        for name, t in (("value", self.value), ("noise", self.noise_variance)):
            if t.ndim:
                check.broadcasts(name, t, wanted, f"the rows of `{self.label}`")

    def _at_chosen(self, rows: tuple[int, ...], shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of rows at every time, as that of those at the chosen times."""
        if self.times is None:
            return rows
        inner = len(self.row_names)
        return (*rows[: -1 - inner], len(self._chosen(shape)), *rows[len(rows) - inner :])

    def _spread(self, v: Tensor, shape: Sequence[int]) -> Tensor:
        """Entries at the chosen times, as entries at every time, 0 where no row is."""
        if self.times is None:
            return v
        index, inner = self._chosen(shape, v.device), [1] * len(self.row_names)
        v = v.expand(check.broadcast_shapes(v.shape, (len(index), *inner)))
        size = list(v.shape)
        size[-1 - len(inner)] = shape[-1 - self.map.dims]
        return v.new_zeros(size).index_copy(-1 - len(inner), index, v)

    def _chosen(self, shape: Sequence[int], device: torch.device | None = None) -> Tensor:
        """The indices of the chosen times."""
        if len(shape) <= self.map.dims:
            raise InputError(
                f"`times` of `{self.label}` needs an axis of time; the field has none."
            )
        count, times = shape[-1 - self.map.dims], self.times
        fits = True
        if isinstance(times, slice) or times is None:
            index = list(range(count))[times or slice(None)]
        elif times and isinstance(times[0], bool):
            index, fits = [i for i, here in enumerate(times) if here], len(times) == count
        else:
            index = [i + count if i < 0 else i for i in times]
        if not fits or any(not 0 <= i < count for i in index):
            raise InputError(f"`times` of `{self.label}` does not fit {count} times.")
        if len(set(index)) < len(index):
            raise InputError(f"`times` of `{self.label}` must name each time at most once.")
        return torch.tensor(index, dtype=torch.int64, device=device)

    def __repr__(self) -> str:
        read = ", ".join(repr(n) for n in self.maps if n)
        variance = self.noise_variance
        noise = float(variance.max()) ** 0.5 if variance.numel() else 0.0
        return (
            f"Law({self.label}{' of ' * bool(read)}{read}, over the last {self.space_dims} axes, "
            f"value {tuple(self.value.shape)}, noise up to {noise:g})"
        )


def array_of(u: Any) -> Tensor:
    """An array, or the mean of a field, in float64."""
    field = hasattr(u, "covariance_times") and not isinstance(u, type)
    return check.as_tensor("u", check.plain("u", u.mean if field else u)).double()


def as_times(times: Times | None) -> slice | tuple[int | bool, ...] | None:
    """A slice, or whole numbers, or a truth value for each time."""
    if isinstance(times, slice):
        if not all(isinstance(i, int | None) for i in (times.start, times.stop, times.step)):
            raise InputError(f"`times` must be a slice of whole numbers, got {times}.")
        return times
    if times is None:
        return None
    try:
        times = times.to_dense() if isinstance(times, Tensor) else times
        listed = times.tolist() if isinstance(times, Tensor | np.ndarray) else list(times)
        found = tuple(i if isinstance(i, bool) else operator.index(i) for i in listed)
    except TypeError:
        found = (True, 0)
    if len({isinstance(i, bool) for i in found}) > 1:
        raise InputError("`times` must be indices, a slice or booleans that choose times.")
    return found


def same_place(one: torch.device, other: torch.device) -> bool:
    """Whether two devices are the same; cuda is whichever GPU it is."""
    return one.type == other.type and (other.index is None or one.index == other.index)


def check_laws(laws: Sequence[Any]) -> None:
    if not laws:
        raise InputError("`laws`: at least one is needed, such as `integral(x, total)`.")
    for law in laws:
        if isinstance(law, list | tuple):
            raise InputError("`laws`: give them one by one, as in `condition(prior, *laws)`.")
        check_law(law, "laws")


def check_law(law: Any, name: str = "law") -> None:
    if not isinstance(law, Law):
        kind = "linear law" if hasattr(law, "label") else "law"  # one of another kind was given
        raise InputError(
            f"`{name}` must be a {kind} such as `integral(x, total)`; got {type(law).__name__}."
        )
