"""What a network learns from, and what is held out to judge it."""

from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..data import Grids
from ..data._functions import uniform
from ..models._trained import Axis, ranges_of
from ..problems import PROBLEMS, ClosedForm
from ..support import checks as check
from ..support.errors import InputError
from ._recipes import Recipe

GridStream: TypeAlias = Callable[[Tensor], Grids]
TrainingData: TypeAlias = type[ClosedForm] | str | Grids | GridStream
PARAMETERS = 13  # a seed of its own: what a user draws to test by is not what was learned
TIMES, FUNCTIONS = 20, 1000  # of the grid of an equation, where the recipe has no number


@dataclass(frozen=True)
class Source:
    """An equation, or functions on a grid with some held out, or a stream of these."""

    name: str
    equation: type[ClosedForm] | None = None
    grids: Grids | None = None  # those to learn from, or the first batch of a stream
    held_out: Grids | None = None
    stream: GridStream | None = None

    def describe(self) -> dict[str, Any]:
        """For the card."""
        if self.equation is not None:
            return {"ranges": ranges_of(self.equation)}
        learned, held_out = self.require_grids()
        judged = held_out.describe()
        seen = [learned] if self.stream is None else [learned, held_out]  # of a stream: a part
        said: dict[str, Any] = {"data": learned.describe()}
        said["ranges"] = {name: _ends(axis) for name, axis in learned.coordinates.items()}
        said["ranges"]["u"] = _ends(*(grids.fields for grids in seen))
        channels = zip(*(grids.inputs.unbind(1) for grids in seen), strict=True)
        said["input_ranges"] = [_ends(*each) for each in channels]
        said["axes"] = {n: list(astuple(Axis.of(x))) for n, x in learned.coordinates.items()}
        said["data"] |= {"held_out": judged["count"], "held_out_digest": judged["digest"]}
        if self.stream is not None:
            said["data"] |= {"count": None, "digest": None}
        return said

    def on_grids(self, recipe: Recipe, seed: int) -> "Source":
        """The same on grids: of an equation, exact solutions on an even one."""
        if self.equation is None:
            return self
        learned = recipe.functions or FUNCTIONS
        grid = self.equation.grid(TIMES, recipe.points)
        low, high = self.equation.train_range
        numbers = uniform((PARAMETERS, seed), (learned + recipe.validation,), "cpu")
        drawn = self.equation(**{self.equation.parameter: low + (high - low) * numbers})
        both = Grids.of_problem(drawn, *grid)
        return Source(self.name, None, both[:learned], both[learned:])

    def require_grids(self) -> tuple[Grids, Grids]:
        assert self.grids is not None
        assert self.held_out is not None
        return self.grids, self.held_out


def _ends(*values: Tensor) -> list[float]:
    """The least and the most of all."""
    return [min(float(v.min()) for v in values), max(float(v.max()) for v in values)]


def source_of(
    data: TrainingData,
    held_out: Grids | None,
    recipe: Recipe,
    seed: int,
    device: torch.device | str = "cpu",
) -> Source:
    if held_out is not None and not isinstance(held_out, Grids):
        raise InputError(f"`held_out` must be Grids, got {type(held_out).__name__}.")
    if held_out is not None and not len(held_out):
        raise InputError("`held_out` must hold a function or more to judge by, got none.")
    if isinstance(data, Grids):
        return _of_grids(data, held_out, recipe, seed)
    if isinstance(data, str) or (isinstance(data, type) and issubclass(data, ClosedForm)):
        family = _family(data)
        if held_out is not None:
            raise InputError(f"`held_out` is for data on grids; {family.name} draws its own.")
        return Source(family.name, family)
    if isinstance(data, type) or not callable(data):
        raise InputError(
            "`data` must be the class of a problem with a closed form, or its name, Grids, or a "
            f"function from a step to Grids; got {data!r}."
        )
    if held_out is None:
        raise InputError("`held_out` must be given with a stream: Grids to judge the network by.")
    first = data(torch.zeros((), dtype=torch.int64, device=device))
    if not isinstance(first, Grids) or not len(first):
        raise InputError(f"`data` must give Grids for a step, got {first!r:.80}.")
    _check_alike(first, held_out)
    return Source(held_out.name, None, first, held_out, data)


def _of_grids(data: Grids, held_out: Grids | None, recipe: Recipe, seed: int) -> Source:
    if held_out is not None:
        _check_alike(data, held_out)
        return Source(data.name, None, data, held_out)
    count = min(recipe.validation, len(data) // 10) or 1
    if count >= len(data):
        raise InputError(f"`data` must hold two functions or more, one to judge by; got {data!r}.")
    share = count / len(data)
    judged, learned = data.split(share, 1 - share, seed=seed)
    return Source(data.name, None, learned, judged)


def _check_alike(data: Grids, held_out: Grids) -> None:
    same = (
        data.inputs.shape[1:] == held_out.inputs.shape[1:]
        and data.fields.shape[1:] == held_out.fields.shape[1:]
        and list(data.coordinates) == list(held_out.coordinates)
        and all(
            torch.equal(a.double().cpu(), b.double().cpu())
            for a, b in zip(data.axes, held_out.axes, strict=True)
        )
    )
    if not same:
        raise InputError(f"`held_out` must be on the grid of `data`, {data!r}; got {held_out!r}.")
    if (data.law is None) != (held_out.law is None):
        raise InputError("`held_out` must have a `law` as `data` has: both are judged given it.")
    if not torch.equal(data.weights.cpu(), held_out.weights.cpu()):
        raise InputError("`held_out` must have the `rule` of `data`: their totals add up alike.")


def _family(data: type[ClosedForm] | str) -> type[ClosedForm]:
    if isinstance(data, type):
        data._check_parameters()
        data._check_facts("name", "train_range", "domain", "time_range")
        return data
    closed = {name: p for name, p in PROBLEMS.items() if issubclass(p, ClosedForm)}
    if data in PROBLEMS and data not in closed:
        raise InputError(f"{data} has no closed form to train on.")
    check.choice("data", data, closed)
    return closed[data]
