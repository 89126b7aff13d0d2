"""The axes of a grid that a network was trained on, and axes that are not those."""

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

from torch import Tensor

from ..support.errors import InputError

UNEVEN = 0.1  # of a step: an axis whose steps differ by more is not evenly spaced


@dataclass(frozen=True)
class Axis:
    """Where the points of an axis lie.

    Parameters
    ----------
    points : int
        How many.
    first, last : float
        Its ends.
    shortest, longest : float
        Its steps; 0 for one point.
    """

    points: int
    first: float
    last: float
    shortest: float
    longest: float

    @classmethod
    def of(cls, coordinates: Tensor) -> "Axis":
        """That of coordinates which increase."""
        x = coordinates.detach().double()
        steps = x.diff() if len(x) > 1 else x.new_zeros(1)
        return cls(len(x), float(x[0]), float(x[-1]), float(steps.min()), float(steps.max()))

    @property
    def even(self) -> bool:
        return self.longest - self.shortest <= UNEVEN * self.longest

    @property
    def period(self) -> float:
        """The length of a periodic axis, which ends where the next point would be."""
        return (self.last - self.first) * self.points / max(self.points - 1, 1)

    def __str__(self) -> str:
        ends = f"{self.points} points from {self.first:.6g} to {self.last:.6g}"
        return ends if self.even else f"{ends}, steps of {self.shortest:.3g} to {self.longest:.3g}"

    def same(self, other: "Axis") -> bool:
        """Whether it has the same points, as far as its ends and steps tell."""
        near = UNEVEN * other.shortest
        pairs = zip(astuple(self), astuple(other), strict=True)
        return all(abs(mine - its) <= near for mine, its in pairs) and self.points == other.points


def axes_on(card: Mapping[str, Any]) -> dict[str, Axis]:
    """Those of the network of a card, by name; none where the card does not tell."""
    return {
        str(name): Axis(int(points), *map(float, numbers))
        for name, (points, *numbers) in card.get("axes", {}).items()
    }


def check_axis(number: int, name: str, trained: Axis, given: Axis, periodic: bool) -> None:
    """Refuses an axis along which frequencies would not be those of training."""
    what = f"`coordinates[{number}]`"
    said = f"the axis {name} of training, {trained}"
    if not trained.even:
        if not given.same(trained):
            raise InputError(
                f"{what} must be {said}, since that is not evenly spaced; got {given}. Predict on "
                "the axis of training, and interpolate."
            )
    elif not given.even:
        raise InputError(
            f"{what} must be evenly spaced, as is {said}; got {given}. Predict on an even axis, "
            "and interpolate."
        )
    elif not (_same_period if periodic else _same_ends)(trained, given):
        covers = f"one period of {trained.period:.6g}, as does" if periodic else "the range of"
        raise InputError(
            f"{what} must cover {covers} {said}; got {given}. Predict on the whole axis and take "
            "the part that you need, or train a network on this axis."
        )


def _same_ends(trained: Axis, given: Axis) -> bool:
    """Within half a step: the first cell centre of a finer grid lies closer to the boundary."""
    near = (0.5 + UNEVEN) * max(trained.longest, given.longest)
    return abs(given.first - trained.first) <= near and abs(given.last - trained.last) <= near


def _same_period(trained: Axis, given: Axis) -> bool:
    return abs(given.period - trained.period) <= UNEVEN * max(trained.longest, given.longest)
