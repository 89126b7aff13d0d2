"""The thickness of cells along the vertical, by formula terms or between pressures.

A level lies at constant + slope * surface, where surface is the surface pressure or the orography.
Arrays of positions hold both numbers on their first axis. A cell lies between two half levels of
the same form; pressure differences over g are the mass of air per area.

Half levels are the first of these that are there: the bounds of the terms, as formula terms of the
bounds of the levels or the terms themselves name them; terms of a coordinate of the same kind with
one entry more.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import xarray as xr
from dask.base import compute

from ..air.contents import GRAVITY
from ..support.errors import InputError
from ..support.sphere import Array
from ..support.tolerances import SINGLE
from ._attributes import factor, in_unit, pairs, setting
from ._conventions import ways_to_weigh
from ._grid import FileGrid
from ._law import match
from ._sizes import ends_of, numbers

Terms = Mapping[str, xr.DataArray]
Units = Mapping[str, str]  # of terms, the surface last; empty for mere numbers
Position = Callable[..., tuple[Array, Array]]  # constant and slope from all terms but the surface

MASS = f"mass of air per area (dp / g, g = {GRAVITY} m s-2)"
WAY_OUT = "Give the volumes of cells as `measure`, or their thickness for a sum over levels alone."
FORMULAS: dict[str, list[tuple[Units, Position]]] = {  # by standard name
    "atmosphere_hybrid_sigma_pressure_coordinate": [
        ({"ap": "Pa", "b": "", "ps": "Pa"}, lambda ap, b: (ap, b)),
        ({"a": "", "b": "", "p0": "Pa", "ps": "Pa"}, lambda a, b, p0: (a * p0, b)),
    ],
    "atmosphere_hybrid_height_coordinate": [
        ({"a": "m", "b": "", "orog": "m"}, lambda a, b: (a, b)),
    ],
}
KINDS = {"Pa": (1 / GRAVITY, MASS, "kg m-2"), "m": (1.0, "heights", "m")}  # by the unit of levels


@dataclass(frozen=True, eq=False)
class FileLayers:
    """The cells of a column: each is constant + slope * surface thick."""

    constant: xr.DataArray
    slope: xr.DataArray
    surface: xr.DataArray  # surface pressure in Pa, or orography in m
    units: str
    where: str  # in words
    reach: tuple[xr.DataArray, ...] = ()  # of the surface: the ends of the cell it is in, if cut

    @property
    def thickness(self) -> xr.DataArray:
        return self.constant + self.slope * self.surface


@dataclass(frozen=True, eq=False)
class FileLevels:
    """A coordinate whose levels lie where a formula of its terms says."""

    grid: FileGrid
    coordinate: xr.DataArray
    terms: Terms  # the surface last
    units: Units
    position: Position

    def ends(self) -> tuple[Array, str]:  # (2, n, 2)
        """Where every cell ends, constant and slope, and in words how it is known."""
        halves, values, size = self._terms_of_half_levels(), [], self.coordinate.size
        if not halves:
            raise InputError(
                f"{self.coordinate.name!r} has no half levels. Add the bounds of its terms "
                f"({', '.join(list(self.terms)[:-1])}). {WAY_OUT}"
            )
        for key, term in list(self.terms.items())[:-1]:
            found = halves.get(key, term)
            told = found if setting(found, "units") else term
            by = factor(told, self.units[key]) if self.units[key] else 1.0
            found = found.transpose(*self.coordinate.dims, ..., missing_dims="ignore")
            values.append(by * numbers(found, found))
        ends = np.stack(self.position(*values))
        if ends.ndim == 2:  # half levels, each the end of two cells
            ends = np.stack([ends[:, :-1], ends[:, 1:]], -1)
        words = " and ".join(str(term.name) for term in halves.values())
        if ends.shape != (2, size, 2):
            raise InputError(
                f"{words} must hold two ends for each of the {size} levels of "
                f"{self.coordinate.name!r}, got {ends.shape[1:]}. {WAY_OUT}"
            )
        return ends, words

    def _terms_of_half_levels(self) -> Terms:
        """The bounds of the terms, or the terms of a coordinate like this with one entry more."""
        dataset, bounds = self.grid.dataset, self.grid.bounds(self.coordinate)
        own = {k: t for k, t in self.terms.items() if self.coordinate.dims == t.dims}
        named = {} if bounds is None else pairs(bounds, "formula_terms")
        choices = [{key: named.get(key) or setting(term, "bounds") for key, term in own.items()}]
        for other in dataset.coords.values():
            alike = other.attrs.get("standard_name") == self.coordinate.attrs["standard_name"]
            if alike and other.shape == (self.coordinate.size + 1,):
                choices.append(pairs(other, "formula_terms"))
        for names in choices:
            found = {key: dataset[names[key]] for key in own if names.get(key) in dataset.variables}
            if len(found) == len(own):
                return found
        return {}


def _levels(grid: FileGrid, dim: str) -> FileLevels | None:
    """The coordinate along a dimension that has formula terms; None where there is none."""
    for coordinate in grid.coordinates:
        kind, names = str(coordinate.attrs.get("standard_name")), pairs(coordinate, "formula_terms")
        by_name = kind.startswith(("atmosphere_", "ocean_")) and "_coordinate" in kind
        if coordinate.dims == (dim,) and (names or by_name):
            break
    else:
        return None
    if kind not in FORMULAS:
        raise InputError(
            f"the levels of {coordinate.name!r} follow the formula of the standard name {kind}, "
            f"which is not known here; known are {', '.join(FORMULAS)}. "
            f"{ways_to_weigh(grid.dataset, grid.data, [dim], dim) or WAY_OUT}"
        )
    here = {key: name for key, name in names.items() if name in grid.dataset.variables}
    for units, position in FORMULAS[kind]:
        if set(units) <= set(here):
            terms = {key: grid.dataset[here[key]] for key in units}
            return FileLevels(grid, coordinate, terms, units, position)
    lost = [f"{key}: {name}" for key, name in names.items() if key not in here]
    raise InputError(
        f"`formula_terms` of {coordinate.name!r} must name "
        f"{' or '.join(str(tuple(units)) for units, _ in FORMULAS[kind])}, it names {tuple(here)}"
        f"{f'; not in the dataset are {lost}' if lost else ''}. Add what lacks from the file that "
        f"has it. {WAY_OUT}"
    )


def formula_layers(grid: FileGrid, dim: str) -> FileLayers | None:
    """The cells along a dimension whose coordinate has formula terms; None for any other."""
    levels = _levels(grid, dim)
    if levels is None:
        return None
    last, unit = list(levels.units.items())[-1]
    match(levels.terms[last], grid.data, f"formula_terms of {levels.coordinate.name}")
    surface = in_order(in_unit(levels.terms[last], unit), grid.data)
    lowest, highest, missing = extremes(surface)
    ends, half_levels = levels.ends()
    steps = np.diff(ends, axis=-1)[..., 0]
    steps = steps * np.sign(steps[0] + steps[1] * highest)
    for at in (lowest, highest):  # thickness is linear in the surface: its extremes tell all
        thickness = steps[0] + steps[1] * at
        k = int(np.argmin(thickness))
        if not thickness[k] > 0:
            raise InputError(
                f"cell number {k} of {levels.coordinate.name!r} would be {thickness[k]:.6g} {unit} "
                f"thick where {surface.name!r} is {at:.6g}. Are its formula terms, their bounds "
                "and `units` right?"
            )
    by, what, size_unit = KINDS[unit]
    wide = [in_order(xr.DataArray(by * step, dims=dim), grid.data, surface) for step in steps]
    constant, slope = wide
    names = ", ".join(str(term.name) for term in levels.terms.values())
    where = f"{what} from {names}; half levels: {half_levels}; cells from "
    where += _reach(ends, highest, unit, surface.name)
    if missing:
        where += f"; {missing} places without {surface.name} do not count"
        constant, surface = constant * surface.notnull(), surface.fillna(0.0)
    return FileLayers(constant, slope, surface, size_unit, where)


def _reach(ends: Array, surface: float, unit: str, name: object) -> str:
    """From where to where the cells reach, and whether they touch."""
    at = ends[0] + ends[1] * surface
    low, high = (ends.reshape(2, -1)[:, int(i)] for i in (at.argmin(), at.argmax()))
    apart = abs(np.abs(np.diff(at)).sum() - np.ptp(at)) > SINGLE * np.abs(at).max()

    def text(constant: float, slope: float) -> str:
        if abs(slope - 1) < SINGLE and abs(constant) < 1e-3:
            return "the surface"
        part = f" + {slope:.4g} {name}" if abs(slope) > SINGLE else ""
        return f"{round(constant, 3) + 0.0:.6g} {unit}{part}"

    said = f"{text(*low)} to {text(*high)}"
    return f"{said}, with gaps or overlaps between them" if apart else said


def pressure_layers(grid: FileGrid, coordinate: xr.DataArray, surface: str | None) -> FileLayers:
    """Cells between pressures, cut at the surface pressure of that name where there is one."""
    dim, bounds, data = str(coordinate.dims[0]), grid.bounds(coordinate), grid.data
    by = factor(coordinate, "Pa")
    ends = np.sort(ends_of(coordinate, bounds)[0], -1) * by
    where = f"{MASS} between the pressures of {coordinate.name}, "
    where += "half way between levels" if bounds is None else f"from {bounds.name}"
    if surface is None:
        where += f", from {ends.min():g} to {ends.max():g} Pa: no surface pressure to cut them at"
        thickness = xr.DataArray((ends[:, 1] - ends[:, 0]) / GRAVITY, dims=dim)
        return FileLayers(thickness, 0 * thickness, xr.DataArray(0.0), "kg m-2", where)
    ps = in_order(in_unit(grid.dataset[surface], "Pa"), data)
    _, highest, missing = extremes(ps)
    if not coordinate.max() * by / 2 <= highest < np.inf:
        raise InputError(
            f"{ps.name!r} reaches {highest:.6g} Pa at most, and {coordinate.name!r} has levels far "
            "below that surface. Are the `units` of both right?"
        )
    where += f", from {ends.min():g} Pa to the surface ({ps.name}), linear while that stays in its"
    where += f" cell; {missing} places without {ps.name} do not count" if missing else " cell"
    ps = ps.fillna(0.0) if missing else ps
    reaching = np.where(ends == ends.max(), np.inf, ends)  # the lowest ends at the surface
    top, bottom = (in_order(xr.DataArray(end, dims=dim), data, ps) for end in reaching.T)
    slope = ((top < ps) & (bottom >= ps)) / GRAVITY
    constant = (xr.where(bottom < ps, bottom, 0.0) - xr.where(top < ps, top, 0.0)) / GRAVITY
    reach = tuple(end.where(slope > 0, 0.0).sum(dim) for end in (top, bottom))
    return FileLayers(constant, slope, ps, "kg m-2", where, reach)


def extremes(surface: xr.DataArray) -> tuple[float, float, int]:
    """The smallest and the largest value, and how many are missing, computed now."""
    found = compute(surface.min(), surface.max(), surface.isnull().sum())
    lowest, highest, missing = (each.item() for each in found)
    return lowest, highest, missing


def in_order(
    array: xr.DataArray, data: xr.DataArray, surface: xr.DataArray | None = None
) -> xr.DataArray:
    """In the order and the blocks of the data, so that products have them too, at no extra cost.

    Where a surface is given, the axes that it has in front of those of the array are added.
    """
    here = max(data.dims.index(dim) for dim in array.dims) if array.dims else 0
    front = [] if surface is None else [d for d in data.dims[:here] if d in surface.dims]
    wide = array.expand_dims({dim: data.sizes[dim] for dim in front if dim not in array.dims})
    wide = wide.transpose(*(dim for dim in data.dims if dim in wide.dims))
    return wide if data.chunks is None else wide.chunk({d: data.chunksizes[d] for d in wide.dims})
