"""A law of labelled data: which sums of which variables are known."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import xarray as xr

from .._errors import InputError
from ._lookup import Given

INITIAL = "initial"
Recipe = Callable[..., "Law"]  # makes a law of what it finds in a dataset


@dataclass(frozen=True, eq=False)
class Law:
    """The sum of `variables` times cell sizes over the dimensions `over` is `total`.

    variables: a name, or names with factors ({"temperature": "heat_capacity", "ice": -3.3e5}): the
    sum of factor times variable, each factor a number, a name or a DataArray. over: dimensions to
    sum over; every index of the others (a time, a level) has a total of its own. total: a number, a
    name in the dataset, a DataArray, or "initial", what the field has at its first time (each
    member what it has itself). inflow, outflow: rates that add to and take from the total, names or
    DataArrays, linear between times; per second if times are dates, else per unit of time; those
    with dimensions in `over` are densities and summed with the cell sizes. measure: cell areas or
    volumes; found by bounds, cell_measures or coordinates if not given. where: which points count,
    the others stay as they are; regions: a number for each point, whose regions have a total each.
    noise: standard deviation of the total, 0 is exact. time: the dimension, if its name or
    coordinate does not tell. name: for the report. average: instead of `total` the mean over the
    cells, the sum divided by the sizes of the cells that are not missing; as `total` it is a
    number, a name, a DataArray or "initial"; `noise` is then that of the mean. assume_units: units
    of variables instead of those in the dataset, as in {"T": "kg"}. fraction: the part of each cell
    that counts (a land fraction, 0 to 1 or per cent). radius: of the globe in metres, if not as its
    grid mapping says or 6371229. fixed: what counts in the sum beside the variables and is not
    moved, per cell size as they are. held: variables that weights, factors or `fixed` were made
    of; remarks: lines for the report.
    """

    variables: str | Mapping[str, Given]
    over: str | Sequence[str]
    total: Given = INITIAL
    inflow: Given | Sequence[Given] = ()
    outflow: Given | Sequence[Given] = ()
    measure: Given | None = None
    where: str | xr.DataArray | None = None
    regions: str | xr.DataArray | None = None
    noise: Given = 0.0
    time: str | None = None
    name: str | None = None
    average: Given | None = None
    assume_units: Mapping[str, str] = field(default_factory=dict)
    fraction: Given | None = None
    radius: float | None = None
    fixed: Given = 0.0
    held: Sequence[str] = ()
    remarks: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.variables, str | Mapping) or not self.variables:
            raise InputError(
                "`variables` of a law must be a name, or names with factors as in "
                f"{{'rain': 1.0, 'snow': 0.9}}; got {self.variables!r}."
            )
        named = isinstance(self.over, Sequence) and all(isinstance(dim, str) for dim in self.over)
        if not named or not self.over:
            raise InputError(f"`over` must name the dimensions to sum over; got {self.over!r}.")
        if len(set(self.dims)) < len(self.dims):
            raise InputError(f"`over` names a dimension twice: {', '.join(self.dims)}.")
        if not isinstance(self.assume_units, Mapping):
            raise InputError(
                f"`assume_units` must be units by name as in {{'T': 'kg'}}; got "
                f"{self.assume_units!r}."
            )
        self._check_average()

    def _check_average(self) -> None:
        if self.average is None:
            return
        if not isinstance(self.total, str) or self.total != INITIAL:
            raise InputError("`average` and `total` are two ways to say what is known: give one.")
        if len(self.factors) > 1:
            raise InputError(
                f"`average` is for one variable, not for {self.label}: give `total` for a sum."
            )

    @property
    def factors(self) -> Mapping[str, Given]:
        return {self.variables: 1.0} if isinstance(self.variables, str) else self.variables

    @property
    def dims(self) -> tuple[str, ...]:
        return (self.over,) if isinstance(self.over, str) else tuple(self.over)

    @property
    def label(self) -> str:
        return self.name or " + ".join(self.factors)

    def __str__(self) -> str:
        terms = [
            f"{_text(factor)} {name}".removeprefix("1 ") for name, factor in self.factors.items()
        ]
        terms += [_text(self.fixed)] if isinstance(self.fixed, xr.DataArray | str) else []
        total = [_text(self.total), *(f"+ {_text(rate)}" for rate in listed(self.inflow))]
        total += [f"- {_text(rate)}" for rate in listed(self.outflow)]
        law = f"{self.label}: the sum of {' + '.join(terms)} over {', '.join(self.dims)} is "
        measure = [] if self.measure is None else [f"weights: {_text(self.measure)}"]
        return "\n  ".join([law + " ".join(total), *measure, *self.remarks])


def listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]


def _text(given: Given) -> str:
    """A number, a name, or what an array says of itself."""
    if isinstance(given, xr.DataArray):
        return str(given.name or given.attrs.get("description", "an array"))
    return f"{given:g}" if isinstance(given, float) else str(given)
