"""What networks that can be trained and opened again have in common: card, file, ranges, axes."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias

import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ..problems import PROBLEMS, ClosedForm
from ..support.complete_files import complete
from ..support.errors import InputError, warn_implausible
from ..support.values import between


def write(path: Path, tensors: dict[str, Tensor], notes: dict[str, Any]) -> None:
    on_cpu = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    with complete(path) as part:
        try:
            save_file(on_cpu, part, metadata={"notes": json.dumps(notes)})
        except safetensors.SafetensorError as error:
            raise OSError(f"{path} could not be written: {error}") from None


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safetensors.safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            notes = json.loads((file.metadata() or {}).get("notes", "{}"))
    except (safetensors.SafetensorError, json.JSONDecodeError, OSError) as error:
        raise InputError(f"{path} is not a file that this library wrote: {error}") from None
    if not isinstance(notes, dict):
        raise InputError(f"{path} is not a file that this library wrote: its notes are no table.")
    return tensors, notes


CLASSES: "dict[str, type[Trained]]" = {}  # by the name of a model on a card


class Trained(nn.Module):
    """A network that its card says how to build.

    A subclass names its `models`: what cards call the networks of this class.
    """

    models: ClassVar[tuple[str, ...]] = ()

    def __init__(self, sizes: dict[str, Any], min_std: float) -> None:
        super().__init__()
        self.card: dict[str, Any] = {}  # how it was trained, where known
        self.sizes, self.min_std = sizes, between("min_std", min_std, 0, sys.float_info.max)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        CLASSES.update(dict.fromkeys(cls.models, cls))

    @classmethod
    def from_card(cls, card: dict[str, Any]) -> Self:
        """The network of a card, with weights of no use yet."""
        network: Self = cls(**card["sizes"], min_std=card["min_std"])
        return network


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


Ranges: TypeAlias = Mapping[str, Sequence[float]]  # of each coordinate, and of u last: low and high
ROUNDING = 0.01  # of a range is nothing to speak of
INFERRED = 0.05  # nor is this for a parameter: draws end short of its range, fits are not exact
NOISE = 0.1  # nor this for u, which may be measured
DIGITS = torch.finfo(torch.float32).eps  # of a number: what networks read has no more
PARAMETERS, TIMES, POINTS = 9, 21, 101  # of the solutions whose values are looked at


def ranges_of(equation: type[ClosedForm]) -> Ranges:
    """Those of times, places and values in training."""
    low, high = equation.train_range
    inside = (torch.arange(PARAMETERS, dtype=torch.float64) + 0.5) / PARAMETERS
    solutions = equation(**{equation.parameter: low + (high - low) * inside})
    u = solutions.on_grid(*equation.grid(TIMES, POINTS))
    return {"t": equation.time_range, "x": equation.domain, "u": (float(u.min()), float(u.max()))}


def ranges_on(card: Mapping[str, Any]) -> Ranges:
    """Those of the network of a card; none where the card does not tell."""
    problem = PROBLEMS.get(str(card.get("problem")))
    if "ranges" in card or "data" in card:
        found = card.get("ranges", {}).items()
        return {name: (float(low), float(high)) for name, (low, high) in found}
    if problem is None or not issubclass(problem, ClosedForm):
        return {}
    return ranges_of(problem)  # of cards that were written before they had ranges


def inputs_on(card: Mapping[str, Any]) -> Sequence[Sequence[float]]:
    """The ranges of the inputs of a network on grids, channel by channel; none as above."""
    return [(float(low), float(high)) for low, high in card.get("input_ranges", [])]


def beyond_inputs(card: Mapping[str, Any], inputs: Tensor, channel: int) -> list[str]:
    """Words for each channel of inputs, along that axis, that goes beyond its range."""
    share = INFERRED if inputs.ndim == 2 else NOISE  # numbers; functions, which may be measured
    found = zip(inputs_on(card), inputs.unbind(channel), strict=False)
    return [
        beyond(f"input {i}", ends, f"`inputs[:, {i}]`", values, share)
        for i, (ends, values) in enumerate(found)
    ]


def warn_outside(ranges: Ranges, given: Mapping[str, Sequence[Tensor]]) -> None:
    """Warns of arguments, each with its coordinates and u in order, that go beyond the ranges."""
    said = [
        beyond(name, ends, f"`{argument}[{i}]`", values, NOISE if name == "u" else ROUNDING)
        for argument, arrays in given.items()
        for i, ((name, ends), values) in enumerate(zip(ranges.items(), arrays, strict=False))
    ]
    warn_of([*filter(None, said)])


def warn_of(said: Sequence[str]) -> None:
    if said:
        warn_implausible(
            f"The network was trained on {'; on '.join(said)}. What it predicts from that is a "
            "guess. Check the units, keep to the range, or train a network on a wider one."
        )


def beyond(name: str, ends: Sequence[float], what: str, given: Tensor, share: float) -> str:
    """The range and what was given, in words, where that goes beyond it by a share of it."""
    (low, high), least, most = ends, float(given.min()), float(given.max())
    slack = share * (high - low) + DIGITS * max(abs(low), abs(high))
    if low - slack <= least and most <= high + slack:
        return ""
    found = f"is {least:.4g}" if least == most else f"goes from {least:.4g} to {most:.4g}"
    return f"{name} from {low:.4g} to {high:.4g}, and {what} {found}"
