"""A law of labelled data: which sums of which variables are known; what it names, in a dataset."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from ..support.errors import InputError
from ..support.tolerances import STEP, STORED
from ._attributes import decoded, words_of
from ._conventions import LONGITUDE, angle
from ._methods import check_stated

STORES = (".nc", ".nc4", ".cdf", ".zarr")  # how files end
Given = float | str | xr.DataArray  # a number, a name in the dataset, or an array


def find(dataset: xr.Dataset, name: str, argument: str) -> xr.DataArray:
    """The variable or coordinate of that name."""
    if isinstance(name, str) and name in dataset.variables:
        return dataset[name]
    known = [*dataset.variables, *(["initial"] if argument in ("total", "average") else [])]
    way = nearest(name, known)
    if ":" in str(name) or str(name).endswith(STORES):
        way = (
            "FILE:VARIABLE is for `enforce_file`, `check_file` and the command line, with a FILE "
            f"that ends in {', '.join(STORES)}."
        )
    raise InputError(f"`{argument}`: no variable {name!r} here. {way}")


def nearest(name: object, names: Iterable[Hashable]) -> str:
    """The choices, the likely one first, as the end of a message."""
    known = [str(each) for each in names]
    close = get_close_matches(str(name), known, 1)
    close = close or [each for each in known if name and each.startswith(str(name))]
    return f"Did you mean {close[0]!r}?" if close else f"There are: {', '.join(known) or 'none'}."


def taken(dataset: xr.Dataset, given: Given, argument: str) -> xr.DataArray:
    """The variable of that name, the array or the number that is given."""
    if isinstance(given, xr.DataArray):
        return given
    if isinstance(given, str):
        return find(dataset, given, argument)
    if isinstance(given, np.ndarray) and not given.ndim:
        given = given.item()
    if isinstance(given, bool) or not isinstance(given, Real) or not np.isfinite(given):
        raise InputError(
            f"`{argument}` must be a finite number, a name in the dataset or an array with "
            f"named axes; got {given!r:.60}."
        )
    return xr.DataArray(float(given))


def array(dataset: xr.Dataset, given: Given, argument: str, like: xr.DataArray) -> xr.DataArray:
    """Numbers, whose axes and coordinates are among those of `like`."""
    found = taken(dataset, given, argument)
    match(found, like, argument)
    check_numbers(found, argument)
    return found


def check_numbers(found: xr.DataArray, argument: str) -> None:
    if found.dtype.kind not in "biuf":
        raise InputError(f"`{argument}` must hold real numbers, got {found.dtype}. Convert it.")


def match(
    found: xr.DataArray, like: xr.DataArray, argument: str, extra: Sequence[str] = ()
) -> None:
    """Refuse axes that `like` does not have and coordinates that differ from its own.

    The coordinates of the axes are compared, and latitudes and longitudes of each cell where both
    have them, by the rule of `same_places`.
    """
    own = [dim for dim in found.dims if dim not in extra]
    for dim in own:
        if dim not in like.dims:
            way = nearest(dim, like.dims)
            raise InputError(
                f"`{argument}` has a dimension {dim!r}, which `{like.name}` has not. {way}"
            )
        if found.sizes[dim] != like.sizes[dim]:
            sizes = f"{found.sizes[dim]} entries along {dim!r}, `{like.name}` has {like.sizes[dim]}"
            raise InputError(f"`{argument}` has {sizes}. Give one for each.")
    angles = [
        name for name in found.coords if name not in own and found[name].dims and angle(found[name])
    ]
    first = dict.fromkeys(extra, 0)  # WRF has its latitudes at every time
    one, other = (each.isel(first, missing_dims="ignore") for each in (found, like))
    for name in (*own, *angles):
        if difference := _difference(one, other, name):
            word = "along" if name in own else "in"
            raise InputError(f"`{argument}` and `{like.name}` differ {word} {name!r}.{difference}")


def same_places(ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which entries of two coordinates are equal, up to the rounding with which files store them.

    Numbers may differ by 2^-23 of the largest (float32 holds no more), or by 1e-4 of the smallest
    step (where they are in no order: the usual step) where that is more, and never by more than a
    quarter of it. On a grid of 1 degree that is 1e-4 degrees, on one of 0.1 degrees 4e-5. Whole
    numbers, dates and text are equal or not.
    """
    kinds = {ours.dtype.kind, theirs.dtype.kind}
    if not kinds <= set("iuf") or "f" not in kinds:
        return np.asarray(ours == theirs, bool)
    theirs = theirs.astype(np.float64)
    steps = [np.diff(theirs, axis=axis) for axis in range(theirs.ndim)]
    if theirs.ndim == 1 and len(set(np.sign(steps[0]))) == 1:
        step = np.abs(steps[0]).min()
    else:
        step = max((np.nanmedian(np.abs(each)) for each in steps if each.size), default=0.0)
    slack = STORED * np.nanmax(np.abs(theirs), initial=0.0)
    slack = min(max(slack, STEP * step), step / 4) if step > 0 else slack
    return np.isclose(ours, theirs, rtol=0, atol=slack, equal_nan=True)


def _difference(found: xr.DataArray, like: xr.DataArray, name: Hashable) -> str:
    """The first entry of a coordinate that differs, in words; empty where none does."""
    if name not in found.coords or name not in like.coords:
        return ""
    one, other = (decoded(each)[name].variable for each in (found, like))
    if set(one.dims) != set(other.dims) or one.equals(other):
        return ""
    ours, theirs = one.values, other.transpose(*one.dims).values
    differ = np.argwhere(~same_places(ours, theirs))
    if not differ.size:
        return ""
    at = tuple(map(int, differ[0]))
    number = at[0] if len(at) == 1 else at
    said = f" The first entry that differs is number {number}: {ours[at]} instead of {theirs[at]}."
    if angle(like[name]) == LONGITUDE:
        said += f" If they count from elsewhere: assign_coords({name}={name} % 360), then sortby."
    return said


INITIAL = "initial"
Recipe = Callable[..., "FileLaw"]  # makes a law of what it finds in a dataset


@dataclass(frozen=True, eq=False)
class FileLaw:
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
        Cell areas or volumes; found by bounds, `cell_measures` or coordinates if not given. A str
        may be arithmetic of variables and global attributes: "e1t*e2t", "DX*DY/MAPFAC_M**2".
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
        Units of variables instead of those in the dataset, ``{"T": "kg"}``. Of a rate that is a
        number or an array without a name, ``{"inflow": "kg s-1"}``.
    fraction : float, str or DataArray
        The part of each cell that counts, 0 to 1 or per cent (a land fraction).
    radius : float
        The radius of the globe in metres. If it is not given, that of the grid mapping; without
        one 6371229, as weather models have it.
    fixed : float, str or DataArray
        What counts in the sum and is not moved, per cell size as the variables are.
    held : sequence of str
        Variables that weights, factors or `fixed` were made of.
    remarks : sequence of str
        Lines for the report.
    linear : pair of float, str or DataArray
        The range of the one variable in which its factor holds, as least and most; the report warns
        of values that the update moved out of it.
    assume_method : dict of str
        What rates are in time, instead of what the dataset says: point, mean, sum, or running (a
        total since the start of the run), ``{"tp": "sum"}``. The interval of a mean or a sum ends
        at the time, begins at it or is centred there: "sum:end", "mean:start", "mean:middle".

    Raises
    ------
    InputError
        If `variables` or `over` name nothing, or `total` and `average` are both given.

    Examples
    --------
    >>> print(FileLaw({"rain": 1.0, "snow": 0.9}, ("lat", "lon"), total=5.0))
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
    assume_method: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.variables, str | Mapping) or not self.variables:
            raise InputError(
                "`variables` of a law must be a name, or names with factors as in "
                f"{{'rain': 1.0, 'snow': 0.9}}; got {self.variables!r}."
            )
        if not self.over or not (isinstance(self.over, str) or _are_texts(self.over)):
            raise InputError(f"`over` must name the dimensions to sum over; got {self.over!r}.")
        if len(set(self.dims)) < len(self.dims):
            raise InputError(f"`over` names a dimension twice: {', '.join(self.dims)}.")
        if not isinstance(self.assume_units, Mapping):
            units = self.assume_units
            raise InputError(f"`assume_units` must be units by name, {{'T': 'kg'}}; got {units!r}.")
        check_stated(self.assume_method)
        if self.linear and (len(self.factors) > 1 or len(self.linear) != 2):
            raise InputError("`linear` is a pair, the least and the most, for one variable.")
        if self.regions is not None and not isinstance(self.regions, str | xr.DataArray):
            raise InputError(f"`regions` must be a name or an array; got {self.regions!r}.")
        texts = {"name": [self.name or ""], "held": self.held, "remarks": self.remarks}
        for key in [key for key, given in texts.items() if not _are_texts(given)]:
            raise InputError(f"`{key}` of a law must be text; got {getattr(self, key)!r}.")
        if self.average is not None and not (isinstance(self.total, str) and self.total == INITIAL):
            raise InputError("`average` and `total` are two ways to say what is known: give one.")
        if self.average is not None and len(self.factors) > 1:
            raise InputError(f"`average` is for one variable, not for {self.label}: give `total`.")

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
            f"{in_words(factor)} {name}".removeprefix("1 ") for name, factor in self.factors.items()
        ]
        terms += [in_words(self.fixed)] if isinstance(self.fixed, xr.DataArray | str) else []
        total = [in_words(self.total), *(f"+ {in_words(rate)}" for rate in listed(self.inflow))]
        total += [f"- {in_words(rate)}" for rate in listed(self.outflow)]
        law = f"{self.label}: the sum of {' + '.join(terms)} over {', '.join(self.dims)} is "
        measure = [] if self.measure is None else [f"weights: {in_words(self.measure)}"]
        return "\n  ".join([law + " ".join(total), *measure, *self.remarks])


def listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]


def in_words(given: Given) -> str:
    """A number, a name, or what an array says of itself."""
    if isinstance(given, xr.DataArray):
        return str(given.name or given.attrs.get("description", "an array"))
    return f"{given:g}" if isinstance(given, float) else str(given)


def _are_texts(given: Any) -> bool:
    several = isinstance(given, Sequence) and not isinstance(given, str)
    return several and all(isinstance(each, str) for each in given)


def assumed(dataset: xr.Dataset, laws: Iterable[FileLaw]) -> xr.Dataset:
    """The dataset with the units that laws assume; the one given is not changed."""
    units: dict[str, str] = {}
    for law in laws:
        apart = {  # rates in no dataset: arrays by name, numbers by that of the argument
            str(getattr(rate, "name", None) or side)
            for side in ("inflow", "outflow")
            for rate in listed(getattr(law, side))
            if not isinstance(rate, str)
        }
        for name, unit in law.assume_units.items():
            if name not in apart:
                find(dataset, name, "assume_units")
            said = isinstance(unit, str) and words_of(unit) is not None
            if not said or units.setdefault(name, unit) != unit:
                raise InputError(
                    f"`assume_units` of `{name}` must be one unit in all laws; got {unit!r}."
                )
    dataset = dataset.copy()
    for name in units.keys() & dataset.variables.keys():
        dataset[name].attrs["units"] = units[str(name)]
    return dataset
