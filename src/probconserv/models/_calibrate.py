"""Standard deviations that errors on held-out functions have confirmed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import Tensor

from ..fields.gaussian import Diagonal, Field
from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError

BINS = 16
FEWEST = 10  # points of a bin, or functions: fewer do not tell where 90 % of them lie
EXACT = 1e-9  # of a standard deviation: a smaller error is rounding
LEVEL = 0.9
LEAST = 0.3  # of a factor: what rare large errors need, where most are tiny
WIDTH = math.sqrt(2) * float(torch.special.erfinv(torch.tensor(LEVEL, dtype=torch.float64)))


@dataclass(frozen=True, eq=False)
class Calibration:
    """By how much to scale the standard deviation of an ensemble, given how far members disagree.

    Let r be the spread of the members' means over the standard deviation that they state. Inside
    the range of training r is small, and the mean of the members errs less than they state; outside
    it is large, and they all err alike. So the factor is a function of r: on functions held out,
    the one with which 90 % intervals hold 90 % of the points with that r.

    Parameters
    ----------
    ratio : Tensor, shape (B,)
        Values of r, none less than the one before.
    factor : Tensor, shape (B,)
        The factor of the standard deviation at each. Between them it is interpolated in log r;
        beyond the ends it stays the same.

    Examples
    --------
    >>> components = Diagonal([[0.0], [2.0]], [[1.0], [1.0]])  # two members, r = 1
    >>> Calibration(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.5]))(components).mean
    tensor([[0.5000],
            [1.5000]], dtype=torch.float64)
    """

    ratio: Tensor
    factor: Tensor

    @classmethod
    def fit(cls, *held_out: tuple[Diagonal, ArrayLike]) -> "Calibration":
        """The calibration that held-out functions ask for.

        Parameters
        ----------
        *held_out : tuples of Diagonal and array
            Members on axis 0 of the field, and the truth. Sets count alike for each point: give
            one of the range of training, and one from beyond it if there is one.

        Returns
        -------
        Calibration
            Its factors do not fall as r grows, and are at least 0.3.

        Raises
        ------
        InputError
            If a field has fewer than two members, or no variance, or a truth is of another shape.
        """
        _check_tuples(held_out, "components", "truth")
        ratios, errors = [], []
        for components, truth in held_out:
            ratio, std = _disagreement(components)
            u = _truth(truth, std)
            ratios.append(ratio.flatten())
            errors.append(((u - components.mean.mean(0)).abs() / std).flatten())
        count = sum(map(len, ratios))
        if count < FEWEST:
            raise InputError(f"`held_out` must have {FEWEST} points or more, got {count}.")
        ratio, error = torch.cat(ratios), torch.cat(errors)
        parts = ratio.argsort().tensor_split(min(BINS, count // FEWEST))
        middle, needed = _needed([(ratio[part], error[part]) for part in parts])
        return cls(middle, needed.cummax(0).values.clamp_min(LEAST))

    def __post_init__(self) -> None:
        _set_table(self, "ratio", "factor")

    def __call__(self, components: Diagonal) -> Diagonal:
        """The members with spread and standard deviations scaled, about the same mean.

        Parameters
        ----------
        components : Diagonal, members on axis 0
            What a network predicts.

        Returns
        -------
        Diagonal
            Of the same shape.
        """
        ratio, _ = _disagreement(components)
        factor = _interpolated(self.ratio, self.factor, ratio)
        mean = components.mean.mean(0)
        return Diagonal(mean + factor * (components.mean - mean), factor**2 * components.variance)


@dataclass(frozen=True, eq=False)
class Widths:
    """By how much to scale the standard deviations of what comes out, after laws and shape.

    A law and a shape make the mean better, by an amount that no standard deviation before them
    tells. On functions held out, the factor is the one with which 90 % intervals of what comes out
    hold 90 % of the points: first of points with a like standard deviation, then, of what is left,
    of functions whose members disagree as much. Points where the mean is exactly right, such as
    those on a bound, say nothing of a width and do not count.

    Parameters
    ----------
    std : Tensor, shape (B,)
        Standard deviations, none less than the one before.
    std_factor : Tensor, shape (B,)
        The factor there; interpolated as in `Calibration`.
    apart : Tensor, shape (C,)
        The disagreement of members, r of `Calibration`, as the geometric mean over a function.
    apart_factor : Tensor, shape (C,)
        The factor there.

    Examples
    --------
    >>> components = Diagonal([[[0.0]], [[2.0]]], 1.0)  # two members, one function of one point
    >>> widths = Widths([0.1, 1.0], [0.5, 1.5], [1.0], [2.0])
    >>> widths(Diagonal([[1.0]], 1.0), components).std  # 1.5 x 2
    tensor([[3.]], dtype=torch.float64)
    """

    std: Tensor
    std_factor: Tensor
    apart: Tensor
    apart_factor: Tensor

    @classmethod
    def fit(cls, *held_out: tuple[Field, ArrayLike, Diagonal]) -> "Widths":
        """The widths that held-out functions ask for.

        Parameters
        ----------
        *held_out : tuples of Field, array and Diagonal
            What comes out, with functions on axis 0; the truth; and the members that it was made
            from, as the network gives them, on an axis before.

        Returns
        -------
        Widths
            Its factors are at least 0.3 each.

        Raises
        ------
        InputError
            If shapes do not fit, or fewer than 10 points are not exactly right.
        """
        _check_tuples(held_out, "field", "truth", "components")
        functions = [row for each in held_out for row in _functions(*each)]
        count = sum(len(std) for _, std, _ in functions)
        if count < FEWEST:
            raise InputError(
                f"`held_out` must have {FEWEST} points or more that are not exactly right, got "
                f"{count}."
            )
        std, error = (torch.cat([row[i] for row in functions]) for i in (1, 2))
        parts = std.argsort().tensor_split(min(BINS, count // FEWEST))
        known, factor = _needed([(std[part], error[part]) for part in parts])
        factor = factor.clamp_min(LEAST)
        functions = sorted(functions, key=lambda row: float(row[0]))
        apart = []
        for group in _split(functions):
            left = torch.cat([error / _interpolated(known, factor, std) for _, std, error in group])
            apart.append((torch.stack([each for each, _, _ in group]), left))
        at, last = _needed(apart)
        return cls(known, factor, at, last.clamp_min(LEAST))

    def __post_init__(self) -> None:
        _set_table(self, "std", "std_factor")
        _set_table(self, "apart", "apart_factor")

    def __call__(self, field: Field, components: Diagonal) -> Diagonal:
        """What comes out, with its standard deviations scaled.

        Parameters
        ----------
        field : Field, functions on axis 0
            After laws and shape.
        components : Diagonal, members on an axis before
            What it was made from, as the network gives it.

        Returns
        -------
        Diagonal
            About the same mean. Points are independent: it is for intervals and scores.
        """
        std = field.std
        factor = _interpolated(self.std, self.std_factor, std)
        apart = _interpolated(self.apart, self.apart_factor, _apart(components, field))
        return Diagonal(field.mean, (std * factor * apart) ** 2)


Function: TypeAlias = tuple[Tensor, Tensor, Tensor]  # r, and std and error of its points


def _functions(field: Field, truth: ArrayLike, components: Diagonal) -> list[Function]:
    """Of each function; errors in standard deviations, without the points exactly right."""
    std, apart = field.std, _apart(components, field)
    error = (_truth(truth, std) - field.mean).abs()
    told = (std > 0) & (error > EXACT * std)
    return [
        (r.flatten()[0], s[i], e[i] / s[i])
        for r, s, e, i in zip(apart, std, error, told, strict=True)
    ]


def _split(functions: list[Function]) -> list[list[Function]]:
    """Parts in order, each of functions and points enough."""
    count = max(1, min(BINS, len(functions) // FEWEST))
    ends = [round(i * len(functions) / count) for i in range(count + 1)]
    parts = [functions[a:b] for a, b in pairwise(ends)]
    enough = all(sum(len(std) for _, std, _ in part) >= FEWEST for part in parts)
    return parts if enough else [functions]


def _check_tuples(held_out: Sequence[object], *names: str) -> None:
    for each in held_out:
        if not (isinstance(each, tuple) and len(each) == len(names)):
            raise InputError(
                f"`held_out` must be tuples ({', '.join(names)}), got {type(each).__name__}."
            )


def _truth(truth: ArrayLike, std: Tensor) -> Tensor:
    u = check.tensor("truth", truth, like=std, of="the field")
    if u.shape != std.shape:
        raise InputError(
            f"`truth` must have the shape of the field without its members, {tuple(std.shape)}; "
            f"got {tuple(u.shape)}."
        )
    return u


def _needed(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The middle of each part, and the factor with which 90 % intervals hold 90 % of its errors."""
    middle = torch.stack([place.median() for place, _ in parts])
    widest = [error.kthvalue(math.ceil(LEVEL * len(error))).values for _, error in parts]
    return middle, torch.stack(widest) / WIDTH


def _set_table(owner: object, name: str, factor: str) -> None:
    """Both as tensors, checked."""
    for each in (name, factor):
        object.__setattr__(owner, each, check.tensor(each, getattr(owner, each)))
    x, y = getattr(owner, name), getattr(owner, factor)
    alike = x.ndim == 1 and x.shape == y.shape
    ordered = alike and len(x) and x[0] > 0 and (x.diff() >= 0).all()
    if not (ordered and (y >= 0).all()):
        raise InputError(
            f"`{name}` must be positive and not decrease, with a `{factor}` of 0 or more for each; "
            f"got {x} and {y}."
        )


def _interpolated(known: Tensor, factor: Tensor, x: Tensor) -> Tensor:
    """The factor at x, linear in log x, that of an end beyond it."""
    known, factor = known.to(x).log(), factor.to(x)
    place = x.log().clamp(known[0], known[-1])
    right = torch.searchsorted(known, place.contiguous()).clamp(1, len(known) - 1)
    width = (known[right] - known[right - 1]).clamp_min(1e-12)
    share = (place - known[right - 1]) / width
    return factor[right - 1] + share * (factor[right] - factor[right - 1])


def _apart(components: Diagonal, field: Field) -> Tensor:
    """The geometric mean of r over each function, (n, 1, ...)."""
    ratio, _ = _disagreement(components)
    if ratio.shape != field.shape:
        raise InputError(
            f"`components` must be members of the field's shape {tuple(field.shape)}, on an axis "
            f"before; got {tuple(components.shape)}."
        )
    axes = tuple(range(1, ratio.ndim))
    return ratio.log().mean(axes, keepdim=True).exp() if axes else ratio


def _disagreement(components: Diagonal) -> tuple[Tensor, Tensor]:
    """r, and the standard deviation of the members as one `Mixture`, at each point."""
    if not isinstance(components, Diagonal):
        raise InputError(
            "`components` must be a Diagonal with members on axis 0, such as what `predict` of an "
            f"FNO gives; got {type(components).__name__}."
        )
    if components.mean.ndim < 2 or len(components.mean) < 2:
        raise InputError("`components` must have at least two members, on axis 0.")
    stated, spread = components.variance.mean(0), components.mean.var(0, correction=0)
    if not bool((stated > 0).all()):
        raise InputError("`components` must state a variance at each point: r compares with it.")
    return (spread / stated).sqrt().clamp_min(1e-6), (stated + spread).sqrt()
