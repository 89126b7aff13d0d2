"""What a field may not exceed: bounds, limits of laws, and values that only rise or only fall."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError
from ..support.gradients import as_if

if TYPE_CHECKING:
    from .law import Law
    from .nonlinear import NonlinearLaw


class Inequality:
    """What holds of a field beside laws: `bounds`, `monotone`, `at_least` and `at_most` make it.

    Parameters
    ----------
    label : str
        What errors call it.
    of : str
        The name of the field, in a state of several.
    """

    kind = "inequality"
    side = 0  # 1 where the rows of a law are at least its values, -1 at most
    truncated = False  # whether what lies outside is impossible

    def __init__(self, label: str, of: str) -> None:
        self.label, self.of = label, check.name("of", of)

    def number(self, names: Sequence[str]) -> int:
        """The place, among `names`, of the field that it speaks of."""
        if len(names) == 1 and (self.of == "" or names[0] == ""):
            return 0
        if self.of not in names:
            raise InputError(
                f"`of`: `{self.label}` speaks of {self.of!r}, but the fields are "
                f"{', '.join(map(repr, names))}. Say which one it limits with `of`."
            )
        return names.index(self.of)

    def __repr__(self) -> str:
        return f"Inequality({self.label}{f' of {self.of!r}' if self.of else ''})"


class Bounds(Inequality):
    """low <= u <= high; None stands for no bound."""

    def __init__(
        self,
        low: Tensor | None,
        high: Tensor | None,
        of: str,
        truncated: bool = False,
        straight_through: bool = False,
    ) -> None:
        super().__init__("bounds", of)
        self.low, self.high, self.truncated = low, high, truncated
        self.straight_through = straight_through


class Monotone(Inequality):
    """u rises along an axis, or falls."""

    def __init__(self, decreasing: bool, axis: int, of: str) -> None:
        super().__init__("monotone", of)
        self.decreasing, self.axis = decreasing, axis


def bounds(
    low: ArrayLike | None = None,
    high: ArrayLike | None = None,
    truncated: bool = False,
    of: str = "",
    gradient: Literal["exact", "straight_through"] = "exact",
) -> Inequality:
    """An inequality: no value lies below `low` or above `high`.

    Parameters
    ----------
    low, high : float or array
        One of them or both, in shapes that broadcast to the field. Infinite ones are no bound.
    truncated : bool
        True: what lies outside is impossible, so that no value is exactly at a bound: the Gaussian
        cut off there. For a `Diagonal` field and one law, `integral` or `weighted_sum`. False: a
        draw that lies outside is moved to the bounds, and values at a bound are common.
    of : str
        The name of the field, in a state of several.
    gradient : {"exact", "straight_through"}
        "exact": a value at its bound follows the bound, and nothing else. "straight_through": on
        the way back the field has no bounds, so that values at them learn too. If one `bounds` of
        a field says so, it is so for all of them.

    Returns
    -------
    Inequality
        For `condition` and `project`. Gradients go through `low` and `high`.

    Raises
    ------
    InputError
        If neither bound is given, one is NaN, or `gradient` is another word.

    Examples
    --------
    >>> import probconserv as pc
    >>> prior = pc.Diagonal([0.1, 0.2, 1.0], [0.5, 0.5, 0.5])
    >>> near = pc.project(prior, pc.bounds(low=0.0), pc.weighted_sum([1.0, 1.0, 1.0], 0.7))
    >>> near.mean
    tensor([0.0000, 0.0000, 0.7000], dtype=torch.float64)
    """
    given = {"low": low, "high": high}
    ends = {name: _end(name, x) for name, x in given.items() if x is not None}
    if not ends:
        raise InputError("`low`, `high`: `bounds` needs one of them or both.")
    if not isinstance(truncated, bool):
        raise InputError(f"`truncated` must be True or False, got {truncated!r}.")
    check.choice("gradient", gradient, ("exact", "straight_through"))
    passes = gradient == "straight_through"
    if passes and truncated:
        raise InputError(
            "`gradient`: no value is at a `truncated` bound, so there is nothing to go straight "
            "through. Leave out one of the two."
        )
    return Bounds(ends.get("low"), ends.get("high"), of, truncated, passes)


def monotone(decreasing: bool = False, axis: int = -1, of: str = "") -> Inequality:
    """An inequality: values nowhere fall along an axis, or nowhere rise.

    Parameters
    ----------
    decreasing : bool
        True if they nowhere rise.
    axis : int
        An axis of the field; negative ones count from the last.
    of : str
        The name of the field, in a state of several.

    Returns
    -------
    Inequality
        For `condition` and `project`.

    Raises
    ------
    InputError
        If `decreasing` is not a bool or `axis` not a whole number.

    Examples
    --------
    >>> import probconserv as pc
    >>> pc.project(pc.Diagonal([0.0, 2.0, 1.0], 1.0), pc.monotone()).mean
    tensor([0.0000, 1.5000, 1.5000], dtype=torch.float64)
    """
    if not isinstance(decreasing, bool):
        raise InputError(f"`decreasing` must be True or False, got {decreasing!r}.")
    return Monotone(decreasing, check.whole("axis", axis), of)


class OneSided(Inequality):
    """The rows of a law are at least its value, or at most."""

    def __init__(self, law: Any, side: int) -> None:
        """side: 1 at least, -1 at most."""
        super().__init__(law.label, "")
        self.law, self.side = law, side


def at_least(law: "Law | NonlinearLaw") -> Inequality:
    """An inequality: each row of a law is its value or more.

    Parameters
    ----------
    law : Law or NonlinearLaw
        Such as `integral`, `regions` or `nonlinear`, without noise.

    Returns
    -------
    Inequality
        For `condition` and `project`. Rows hold to 1e-12 of their terms.

    Raises
    ------
    InputError
        If `law` is no law, or has noise.

    Examples
    --------
    >>> import probconserv as pc
    >>> prior = pc.Diagonal([0.0, 1.0, 1.0], 1.0)
    >>> pc.project(prior, at_least(pc.weighted_sum([1.0, 1.0, 1.0], 5.0))).mean
    tensor([1., 2., 2.], dtype=torch.float64)
    """
    return _one_sided(law, 1)


def at_most(law: "Law | NonlinearLaw") -> Inequality:
    """An inequality: each row of a law is its value or less.

    Parameters
    ----------
    law : Law or NonlinearLaw
        Such as `integral`, `regions` or `nonlinear`, without noise.

    Returns
    -------
    Inequality
        For `condition` and `project`. Rows hold to 1e-12 of their terms.

    Raises
    ------
    InputError
        If `law` is no law, or has noise.

    Examples
    --------
    >>> import probconserv as pc
    >>> energy = pc.nonlinear(lambda u: u.square().sum(), 25.0)
    >>> pc.project(pc.Diagonal([6.0, 8.0], 1.0), at_most(energy)).mean.round(decimals=9)
    tensor([3., 4.], dtype=torch.float64)
    """
    return _one_sided(law, -1)


def _one_sided(law: Any, side: int) -> OneSided:
    if getattr(law, "kind", "") not in ("linear", "nonlinear"):
        raise InputError(
            "`law` must be a law, such as `integral` or `nonlinear` make; got "
            f"{type(law).__name__}."
        )
    if bool((law.noise > 0).any()):
        raise InputError(
            f"`law`: `{law.label}` has noise, and a limit has none. Leave out `noise`."
        )
    return OneSided(law, side)


def _end(name: str, given: ArrayLike) -> Tensor:
    found = check.as_tensor(name, given)
    if bool(found.isnan().any()):
        raise InputError(
            f"`{name}` must not be NaN. Give an infinite number where there is no bound."
        )
    return found.to(torch.float64, copy=True)


@dataclass(frozen=True)
class Limits:
    """All inequalities of one field: bounds that broadcast to it, and (axis, sign) of `monotone`.

    low, high: (*shape) or sizes of 1, infinite where there is none. Axes count from the last;
    sign is 1 where values rise. straight_through: gradients are those without the bounds.
    """

    low: Tensor
    high: Tensor
    slopes: tuple[tuple[int, int], ...] = ()
    straight_through: bool = False

    @property
    def one_range(self) -> bool:
        """Whether the bounds are the same at all points."""
        return self.low.numel() == 1 and self.high.numel() == 1

    @property
    def level(self) -> bool:
        """Whether the bounds are the same along each axis of `slopes`."""
        ends = [end for end in (self.low, self.high) if end.ndim]
        firsts = [(end, end.narrow(axis, 0, 1)) for end in ends for axis, _ in self.slopes]
        return all(bool((end == first).all()) for end, first in firsts)

    @property
    def of_gradients(self) -> "Limits":
        """What they are on the way back of gradients."""
        if not self.straight_through:
            return self
        none = torch.full_like(self.low, torch.inf)
        return replace(self, low=-none, high=none)

    def holding(self, u: Tensor) -> Tensor:
        """`u`, which obeys up to rounding, exactly within the limits; a gradient stays that of
        `u`."""
        return as_if(self._holding(u), u)

    @torch.no_grad()
    def _holding(self, u: Tensor) -> Tensor:
        u = torch.clamp(u, self.low, self.high) if self.slopes else u
        for axis, sign in self.slopes:
            u = u.cummax(axis).values if sign > 0 else u.cummin(axis).values
        return torch.clamp(u, self.low, self.high)

    def given(self, fixed: Tensor, value: Tensor) -> "Limits":
        """The limits beside points that are fixed, which obey up to rounding."""
        if not bool(fixed.any()):
            return self
        value = value.clamp(self.low, self.high)
        low, high = (torch.where(fixed, value, end) for end in (self.low, self.high))
        low, high = carried(low, high, self.slopes)
        return replace(self, low=low, high=torch.maximum(low, high))


def sloping_axes(limits: Sequence[Limits], shapes: Sequence[torch.Size]) -> list[int]:
    """The axes along which values rise or fall, counted from the first."""
    pairs = zip(limits, shapes, strict=True)
    return [len(shape) + axis for one, shape in pairs for axis, _ in one.slopes]


def limits_of(
    given: Sequence[Inequality],
    names: Sequence[str],
    shapes: Sequence[torch.Size],
    dtypes: Sequence[torch.dtype],
    device: torch.device,
) -> tuple[Limits, ...]:
    """The limits of each field, its bounds rounded inward to its dtype."""
    none = torch.full((), torch.inf, dtype=torch.float64, device=device)
    found = [Limits(-none, none) for _ in names]
    for one in given:
        if isinstance(one, OneSided):
            continue
        i = one.number(names)
        if isinstance(one, Monotone):
            axis = _axis(one, shapes[i])
            slope = axis, -1 if one.decreasing else 1
            if slope not in found[i].slopes:
                found[i] = replace(found[i], slopes=(*found[i].slopes, slope))
            continue
        assert isinstance(one, Bounds)
        for name, end in (("low", one.low), ("high", one.high)):
            if end is not None:
                check.broadcasts(name, end, shapes[i], "the field")
        low, high = (None if t is None else t.to(device) for t in (one.low, one.high))
        low = found[i].low if low is None else torch.maximum(found[i].low, low)
        high = found[i].high if high is None else torch.minimum(found[i].high, high)
        passes = found[i].straight_through or one.straight_through
        found[i] = replace(found[i], low=low, high=high, straight_through=passes)
    for each in found:
        if each.straight_through and (each.low.requires_grad or each.high.requires_grad):
            raise InputError(LEFT_OUT)
    triples = zip(found, dtypes, shapes, strict=True)
    return tuple(_tightened(_inward(one, dtype), shape) for one, dtype, shape in triples)


LEFT_OUT = (
    "`gradient`: 'straight_through' leaves bounds out on the way back, but `low` or `high` asks "
    "for a gradient. Take 'exact', or detach them."
)


def _axis(one: Monotone, shape: torch.Size) -> int:
    if not -len(shape) <= one.axis < len(shape):
        raise InputError(
            f"`axis` of `monotone` is {one.axis}, but the field has {len(shape)} axes, "
            f"{tuple(shape)}."
        )
    return one.axis if one.axis < 0 else one.axis - len(shape)


def _tightened(one: Limits, shape: torch.Size) -> Limits:
    """Bounds that rise along with the values, so that clipping to them keeps the order."""
    if not one.slopes or one.one_range:
        return one
    low, high = carried(one.low.expand(shape), one.high.expand(shape), one.slopes)
    _check_order(low, high, "`monotone` carries `bounds` along its axis, and there ")
    return replace(one, low=low, high=high)


def carried(low: Tensor, high: Tensor, slopes: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Bounds that rise or fall along with the values."""
    for axis, sign in slopes:
        ahead, back = (axis,) * (sign < 0), (axis,) * (sign > 0)
        low = low.flip(ahead).cummax(axis).values.flip(ahead)
        high = high.flip(back).cummin(axis).values.flip(back)
    return low, high


def _check_order(low: Tensor, high: Tensor, why: str = "") -> None:
    if bool((cross := low > high).any()):
        index = check.unravelled(int(cross.int().argmax()), cross.shape)
        at = f" at {index}" if index else ""
        ends = [float(end.detach()[tuple(index)]) for end in (low, high)]
        said = [f"{end:.6g}" for end in ends]
        if said[0] == said[1]:  # they differ by rounding
            said = [f"{end:.17g}" for end in ends]
        raise InputError(
            f"{why}`low` must not be above `high`, but{at} they are {said[0]} and {said[1]}. All "
            "`bounds` of one field hold together."
        )


def _inward(one: Limits, dtype: torch.dtype) -> Limits:
    """With bounds that numbers of `dtype` can meet; an error where they cross."""
    low, high = torch.broadcast_tensors(one.low, one.high)
    _check_order(low, high)
    if bool((low == torch.inf).any() or (high == -torch.inf).any()):
        raise InputError("`low` must not be inf, nor `high` -inf: no value could be there.")
    if dtype == torch.float64:
        return one
    low_in, high_in = _rounded_up(low, dtype), -_rounded_up(-high, dtype)
    between = low_in <= high_in  # no number of this dtype lies in a range that is too narrow
    low_in = torch.where(between, low_in, low.to(dtype).double())
    high_in = torch.where(between, high_in, high.to(dtype).double())
    if bool((low_in == torch.inf).any() or (high_in == -torch.inf).any()):
        raise InputError(f"`low`, `high`: no number of {dtype} is large enough. Use float64.")
    return replace(one, low=low_in, high=high_in)


def _rounded_up(x: Tensor, dtype: torch.dtype) -> Tensor:
    near = x.detach().to(dtype)
    up = torch.nextafter(near, torch.full_like(near, torch.inf))
    return as_if(torch.where(near.double() < x, up, near).double(), x)
