"""Standard deviations that errors on held-out functions have confirmed."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import _checks as check
from .._checks import ArrayLike
from .._errors import InputError
from .._fields import Diagonal

BINS = 16
FEWEST = 10  # points of a bin: fewer do not tell where 90 % of them lie
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
        ratios, errors = [], []
        for components, truth in held_out:
            ratio, std = _disagreement(components)
            u = check.tensor("truth", truth, like=std, of="the field")
            if u.shape != std.shape:
                raise InputError(
                    "`truth` must have the shape of the field without its members, "
                    f"{tuple(std.shape)}; got {tuple(u.shape)}."
                )
            ratios.append(ratio.flatten())
            errors.append(((u - components.mean.mean(0)).abs() / std).flatten())
        count = sum(map(len, ratios))
        if count < FEWEST:
            raise InputError(f"`held_out` must have {FEWEST} points or more, got {count}.")
        ratio, error = torch.cat(ratios), torch.cat(errors)
        parts = ratio.argsort().tensor_split(min(BINS, count // FEWEST))
        middle = torch.stack([ratio[part].median() for part in parts])
        needed = torch.stack([error[part].quantile(LEVEL) for part in parts]) / WIDTH
        return cls(middle, needed.cummax(0).values.clamp_min(LEAST))

    def __post_init__(self) -> None:
        for name in ("ratio", "factor"):
            object.__setattr__(self, name, check.tensor(name, getattr(self, name)))
        alike = self.ratio.ndim == 1 and self.ratio.shape == self.factor.shape
        ordered = alike and len(self.ratio) and self.ratio[0] > 0 and (self.ratio.diff() >= 0).all()
        if not (ordered and (self.factor >= 0).all()):
            raise InputError(
                "`ratio` must be positive and not decrease, with a `factor` of 0 or more for each; "
                f"got {self.ratio} and {self.factor}."
            )

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
        factor = self._at(ratio)
        mean = components.mean.mean(0)
        return Diagonal(mean + factor * (components.mean - mean), factor**2 * components.variance)

    def _at(self, ratio: Tensor) -> Tensor:
        known, factor = self.ratio.to(ratio).log(), self.factor.to(ratio)
        place = ratio.log().clamp(known[0], known[-1])
        right = torch.searchsorted(known, place.contiguous()).clamp(1, len(known) - 1)
        width = (known[right] - known[right - 1]).clamp_min(1e-12)
        share = (place - known[right - 1]) / width
        return factor[right - 1] + share * (factor[right] - factor[right - 1])


def _disagreement(components: Diagonal) -> tuple[Tensor, Tensor]:
    """r, and the standard deviation of the members as one `Mixture`, at each point."""
    if components.mean.ndim < 2 or len(components.mean) < 2:
        raise InputError("`components` must have at least two members, on axis 0.")
    stated, spread = components.variance.mean(0), components.mean.var(0, correction=0)
    if not bool((stated > 0).all()):
        raise InputError("`components` must state a variance at each point: r compares with it.")
    return (spread / stated).sqrt().clamp_min(1e-6), (stated + spread).sqrt()
