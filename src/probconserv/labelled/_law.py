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

    Where a number is meant, it may be a name in the dataset or a DataArray as well.

    Parameters
    ----------
    variables : str, or dict of numbers
        A name, or names with factors, ``{"temperature": "heat_capacity", "ice": -3.3e5}``: the sum
        of factor times variable.
    over : str or sequence of str
        Dimensions to sum over. Every index of the others (a time, a level) has its own total.
    total : float, str or DataArray
        What the sum is; "initial" is what the field has at its earliest time (each member and each
        run of a forecast what it has itself).
    inflow, outflow : float, str, DataArray, or a sequence of these
        Rates that add to and take from the total: point values, linear between times, or means or
        sums within time bounds, as `cell_methods` say; per second, or per unit of times that have
        no unit. Rates with dimensions in `over` are densities, summed where the field counts.
    measure : float, str or DataArray
        Cell areas or volumes; found by bounds, `cell_measures` or coordinates if not given.
    where : str or DataArray
        Which points count; the others stay as they are.
    regions : str or DataArray
        A number for each point: each region has a total of its own.
    noise : float, str or DataArray
        The standard deviation of the total; 0 is exact.
    time : str
        The dimension of time, if attributes, units or names do not tell.
    name : str
        For the report.
    average : float, str or DataArray
        Instead of `total`: the mean over the cells that are not missing. `noise` is then the
        standard deviation of that mean.
    assume_units : dict of str
        Units of variables instead of those in the dataset, ``{"T": "kg"}``.
    fraction : float, str or DataArray
        The part of each cell that counts, 0 to 1 or per cent (a land fraction).
    radius : float
        The radius of the globe in metres. If it is not given, that of the grid mapping; without
        one 6371229, as weather models have it (`Mesh.sphere` has 6371000).
    fixed : float, str or DataArray
        What counts in the sum and is not moved, per cell size as the variables are.
    held : sequence of str
        Variables that weights, factors or `fixed` were made of.
    remarks : sequence of str
        Lines for the report.
    linear : pair of float, str or DataArray
        The range of the one variable in which its factor holds, as least and most; the report warns
        of values that the update moved out of it.

    Raises
    ------
    InputError
        If `variables` or `over` name nothing, or `total` and `average` are both given.

    Examples
    --------
    >>> print(Law({"rain": 1.0, "snow": 0.9}, ("lat", "lon"), total=5.0))
    rain + snow: the sum of rain + 0.9 snow over lat, lon is 5
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
    linear: Sequence[Given] = ()

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
        if self.linear and (len(self.factors) > 1 or len(self.linear) != 2):
            raise InputError("`linear` is a pair, the least and the most, for one variable.")
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
        """The factor of each variable, by name."""
        return {self.variables: 1.0} if isinstance(self.variables, str) else self.variables

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimensions to sum over."""
        return (self.over,) if isinstance(self.over, str) else tuple(self.over)

    @property
    def label(self) -> str:
        """What the report calls it: `name`, or its variables."""
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
