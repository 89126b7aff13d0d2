"""Intervals of a width that held-out functions ask for, whatever the field and its laws."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import betaincinv
from torch import Tensor

from ..fields.gaussian import Field, check_level
from ..fields.state import Prediction, State, as_field
from ..support import checks as check
from ..support.errors import InputError
from ..support.json_files import keep, kept
from ..support.tolerances import CERTAIN
from .comparison import Groups, groups_of
from .held_out import HeldOut, Part, as_given, as_known


@dataclass(frozen=True)
class Conformal:
    """Factors for the half widths of intervals. `conformal` makes it.

    For a new function exchangeable with the n that it was made of, a point picked at random lies
    inside with probability at least `level`, over the choice of all n + 1 functions. Other
    functions, such as those outside the range of these, have no such promise. Nor has each single
    set of n functions: see `realised`.

    Attributes
    ----------
    level : float
        The probability.
    factors : dict of float
        By group, or by field and group of a state; infinite where there are too few functions.
    counts : dict of int
        How many functions each group had.
    """

    level: float
    factors: Mapping[str, float]
    counts: Mapping[str, int]
    by_time: bool = False

    @property
    def needed(self) -> int:
        """How many functions a finite width takes."""
        return fewest(self.level)

    def realised(self, group: str = "all") -> tuple[float, float]:
        """The range in which the share inside lies for nine of ten sets of as many functions.

        Of one number for each function; of many points of each function it is narrower.

        Parameters
        ----------
        group : str
            One of `factors`.

        Returns
        -------
        tuple of two floats
            The 5 % and the 95 % point; (1, 1) where the width is infinite.
        """
        check.choice("group", group, self.counts)
        n = self.counts[group]
        k = math.ceil(self.level * (n + 1) * (1 - CERTAIN))
        if k > n:
            return 1.0, 1.0
        low, high = (float(betaincinv(k, n + 1 - k, p)) for p in (0.05, 0.95))
        return low, high

    @property
    def statement(self) -> str:
        """What the widths promise, in words."""
        lines = []
        for name, factor in self.factors.items():
            n = self.counts[name]
            where = "" if name == "all" else f" ({name})"
            if math.isinf(factor):
                lines.append(
                    f"{n} functions{where} allow no {self.level:.0%} interval: it takes at least "
                    f"{self.needed}."
                )
                continue
            low, high = self.realised(name)
            lines.append(
                f"half widths x {factor:.3g}{where}: a point of a function like these {n} lies "
                f"inside with probability {self.level:.0%} or more; from one set of {n} functions "
                f"to another the share is some {low:.0%} to {high:.0%}."
            )
        return "\n".join(lines)

    def interval(self, field: Prediction | State, by: Groups = None) -> Any:
        """The interval of each point of a new field, made as the old ones were.

        Parameters
        ----------
        field : Field, State, or what `as_field` takes, shape (n, T, M)
            What `condition` or a `Way` returned.
        by : array of labels
            The groups, if `conformal` was given labels; times are known by themselves.

        Returns
        -------
        tuple of two Tensor; of a state a dict of them
            The lower and the upper end. They know nothing of bounds: clamp them where values have
            some.
        """
        if isinstance(field, State):
            return {name: self._ends(part, f"{name}: ", by) for name, part in field.fields.items()}
        return self._ends(as_field(field), "", by)

    def _ends(self, field: Field, prefix: str, by: Groups) -> tuple[Tensor, Tensor]:
        if len(field.shape) < 3:
            raise InputError(
                "`field` must have axes of functions, times and space, (n, T, ...); got "
                f"{tuple(field.shape)}."
            )
        shape = field.shape[0], field.shape[1]
        factor = torch.ones(shape, dtype=torch.float64)
        groups = groups_of("time" if self.by_time else by, shape)
        own = [name for name in self.factors if name.startswith(prefix)]
        if self.by_time and (by is not None or len(own) != len(groups)):
            raise InputError(
                f"`field` must have the {len(own)} times that the factors are of, and `by` is not "
                f"for them; got {len(groups)} times."
            )
        for name, there in groups.items():
            check.choice("by", f"{prefix}{name}", self.factors)
            factor[torch.from_numpy(there.copy())] = self.factors[f"{prefix}{name}"]
        factor = factor.to(field.device)[(..., *[None] * (len(field.shape) - 2))]
        middle, low, high = _middle_and_ends(field, self.level)
        ends = middle - _times(factor, middle - low), middle + _times(factor, high - middle)
        return ends[0].to(field.dtype), ends[1].to(field.dtype)

    def save(self, path: str | Path) -> None:
        """Keeps it as JSON, which `Conformal.load` reads.

        Parameters
        ----------
        path : str or Path
            The file.
        """
        factors = {k: x if math.isfinite(x) else None for k, x in self.factors.items()}
        keep(path, "factors", {**asdict(self), "factors": factors})

    @classmethod
    def load(cls, path: str | Path) -> "Conformal":
        """What `save` kept.

        Parameters
        ----------
        path : str or Path
            The file.

        Returns
        -------
        Conformal
            The same.

        Raises
        ------
        InputError
            If the file is none of these.
        """

        def made(words: dict[str, Any]) -> "Conformal":
            given = words.pop("factors").items()
            factors = {k: math.inf if x is None else float(x) for k, x in given}
            return cls(factors=factors, **words)

        return kept(path, "factors", made)


@torch.no_grad()
def conformal(
    field: Prediction | State,
    truth: Any,
    level: float = 0.9,
    *,
    by: Groups = None,
    where: Any = None,
) -> Conformal:
    """Factors that make intervals hold their probability, from held-out functions.

    What an interval misses is measured in its own half widths, from the median. The factor is the
    quantile of these numbers over all points, with the same weight for each function and one
    function more, infinitely far off::

        smallest q with (1 / (n + 1)) sum_i (share of points of function i within q) >= level

    Parameters
    ----------
    field : Field, State, or what `as_field` takes, shape (n, T, M)
        Whatever will be used: a prediction, or what laws made of it. n functions are axis 0.
    truth : array; of a state a dict of arrays
        What came true.
    level : float
        The probability, between 0 and 1.
    by : "time", or an array of labels
        Factors for each time, or for groups as in `Comparison.difference`: the promise then holds
        in each.
    where : array of bool; of a state a dict of arrays
        True where a point counts.

    Returns
    -------
    Conformal
        Infinite where n < level / (1 - level): a 90 % interval takes 9 functions.

    Raises
    ------
    InputError
        If the field has no axis of functions before time and space, or `truth` does not fit.

    Examples
    --------
    >>> rng = torch.Generator().manual_seed(0)
    >>> truth = torch.randn(50, 1, 20, generator=rng, dtype=torch.float64)
    >>> found = conformal((torch.zeros_like(truth), 0.25), truth)  # half of the true std
    >>> round(found.factors["all"], 1)
    2.1
    """
    given = as_given(field)
    p = check_level(level)
    shapes = [len(part.shape) for part in given.parts]
    dims = {name: max(n - 2, 1) for name, n in zip(given.names, shapes, strict=True)}
    data = HeldOut(given, truth, where, dims, "field")
    factors: dict[str, float] = {}
    counts: dict[str, int] = {}
    for one, part in data.beside(given):
        misses = _misses(one, part, p).flatten(2).cpu()  # (n, T, points)
        there = part.counts.flatten(2).cpu()
        for group, counted in groups_of(by, part.shape).items():
            used = there & torch.from_numpy(counted.copy())[..., None]
            each = [m[t].numpy() for m, t in zip(misses, used, strict=True) if bool(t.any())]
            key = f"{part.name}: {group}" if part.name else group
            factors[key], counts[key] = _quantile(each, p), len(each)
    return Conformal(p, factors, counts, isinstance(by, str))


def fewest(level: float) -> int:
    """How many functions an interval of this probability takes."""
    return math.ceil(level / (1 - level) * (1 - CERTAIN))


def _middle_and_ends(field: Field, level: float) -> tuple[Tensor, Tensor, Tensor]:
    """The median, which lies within every central interval, as a mean need not, and the ends."""
    low, high = (x.double() for x in field.interval(level))
    return field.quantile(0.5).double(), low, high


def _misses(field: Field, part: Part, level: float) -> Tensor:
    """How far the truth lies from the median, in half widths of its side."""
    u = part.truth.double()
    middle, low, high = _middle_and_ends(field, level)
    away = u - middle
    half = torch.where(away > 0, high - middle, middle - low)
    known = as_known(part.truth, away, part.dims)
    return torch.where((away == 0) | (known & (half == 0)), 0.0, away.abs() / half)


def _times(factor: Tensor, half: Tensor) -> Tensor:
    return torch.where(half == 0, 0.0, factor * half)


def _quantile(each: list[Any], level: float) -> float:
    """Of points of n functions with weight 1 / (n + 1) for each function, and one at infinity."""
    n = len(each)
    if n < fewest(level):
        return math.inf
    values = np.concatenate(each)
    weights = np.concatenate([np.full(len(x), 1 / (len(x) * (n + 1))) for x in each])
    order = np.argsort(values)
    reached = np.searchsorted(weights[order].cumsum(), level * (1 - CERTAIN))
    return float(values[order][reached]) if reached < len(values) else math.inf
