"""The thickness of cells along the vertical, by formula terms or between pressures.

A level lies at constant + slope * surface, where surface is the surface pressure or the orography.
Arrays of positions hold both numbers on their first axis. A cell lies between two half levels of
the same form; pressure differences over g are the mass of air per area.

Half levels are the first of these that are there: the bounds of the terms, as formula terms of the
bounds of the levels or the terms themselves name them; terms of a coordinate of the same kind with
one entry more; half levels of which the levels are the means; half way between the levels.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import xarray as xr
from dask.base import compute

from .._air import GRAVITY
from .._errors import InputError
from .._sphere import Array
from ._attributes import factor, in_unit, pairs, setting, units
from ._coordinates import Grid, ends_of, numbers
from ._law import match

Terms = Mapping[str, xr.DataArray]
Position = Callable[..., tuple[Array, Array]]  # constant and slope from all terms but the surface

MASS = f"mass of air per area (dp / g, g = {GRAVITY} m s-2)"
WAY_OUT = "Give the thickness of the cells as `measure`."
FORMULAS: dict[str, dict[tuple[str, ...], Position]] = {  # by standard name and terms
    "atmosphere_hybrid_sigma_pressure_coordinate": {
        ("ap", "b", "ps"): lambda ap, b: (ap, b),
        ("a", "b", "p0", "ps"): lambda a, b, p0: (a * p0, b),
    },
    "atmosphere_sigma_coordinate": {
        ("sigma", "ptop", "ps"): lambda sigma, ptop: ((1 - sigma) * ptop, sigma),
    },
    "atmosphere_hybrid_height_coordinate": {("a", "b", "orog"): lambda a, b: (a, b)},
}
KINDS = {  # by the unit of levels: what 1 of it weighs, what that is, in which unit, the lower end
    "Pa": (1 / GRAVITY, MASS, "kg m-2", "surface"),
    "m": (1.0, "heights", "m", "ground"),
}
OF_LEVELS = ("a", "ap", "b", "sigma")  # terms with one number for each level
GROUND = np.array([[0.0], [1.0]])  # constant and slope of the surface itself


@dataclass(frozen=True, eq=False)
class Layers:
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
class Levels:
    """A coordinate whose levels lie where a formula of its terms says."""

    grid: Grid
    coordinate: xr.DataArray
    terms: Terms  # the surface last
    position: Position

    @property
    def unit(self) -> str:
        return "m" if "orog" in self.terms else "Pa"

    @cached_property
    def surface(self) -> xr.DataArray:
        found = list(self.terms.values())[-1]
        match(found, self.grid.data, f"formula_terms of {self.coordinate.name}")
        return in_unit(found, self.unit)

    @cached_property
    def range(self) -> tuple[float, float, int]:
        """The extremes of the surface, and how many values are missing."""
        return extremes(self.surface)

    def at(self, positions: Array, surface: float | None = None) -> Array:
        """Pressures or heights; where the column is thickest, if no surface is given."""
        thickest = self.range[0] if self.unit == "m" else self.range[1]
        return positions[0] + positions[1] * (thickest if surface is None else surface)

    @property
    def factors(self) -> dict[str, float]:
        """To `unit`, of the terms that should have one; 1 where they have none."""
        plain = {"b", "sigma", "a" if "p0" in self.terms else ""}
        sized = {key: term for key, term in self.terms.items() if key not in plain}
        return {k: factor(each, self.unit) if units(each) else 1.0 for k, each in sized.items()}

    def positions(self, others: Terms) -> Array:  # (2, ...)
        """Constant and slope, of the levels or of others by their terms."""
        values = {}
        for key, term in list(self.terms.items())[:-1]:
            found = others.get(key, term)
            found = found.transpose(*self.coordinate.dims, ..., missing_dims="ignore")
            values[key] = numbers(found, found) * self.factors.get(key, 1.0)
        return np.stack(self.position(**values))

    @cached_property
    def half_levels(self) -> tuple[Array, str]:  # (2, n, 2)
        """Where every cell ends, the smaller pressure or height first; in words how it is known."""
        terms = self._terms_of_half_levels()
        if terms:
            words = " and ".join(str(term.name) for term in terms.values())
            ends = self.positions(terms)
            ends = _neighbours(ends) if ends.ndim == 2 else ends
        else:
            levels = self.positions({})
            upward = np.argsort(self.at(levels) * (1 if self.unit == "m" else -1))
            edges, words = self._assumed(levels[:, upward])
            ends = _neighbours(edges)[:, np.argsort(upward)]
        if ends.shape != (2, self.coordinate.size, 2):
            raise InputError(
                f"{words} must hold two ends for each of the {self.coordinate.size} levels of "
                f"{self.coordinate.name!r}, got {ends.shape[1:]}. {WAY_OUT}"
            )
        turned = np.diff(self.at(ends), axis=-1) < 0
        return np.where(turned, ends[..., ::-1], ends), words

    def _terms_of_half_levels(self) -> Terms:
        """The bounds of the terms, or the terms of a coordinate like this with one entry more."""
        dataset, own = self.grid.dataset, {k: t for k, t in self.terms.items() if k in OF_LEVELS}
        bounds = self.grid.bounds(self.coordinate)
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

    def _assumed(self, levels: Array) -> tuple[Array, str]:  # (2, n) -> (2, n + 1)
        """Half levels that nobody gave, for levels from the ground up."""
        means = None if self.unit == "m" else self._means(levels)
        if means is not None:
            return means, "assumed such that each level is the mean of its two, from the surface up"
        if levels.shape[1] < 2:
            raise InputError(f"{self.coordinate.name!r} has one level and no bounds. {WAY_OUT}")
        middle = (levels[:, 1:] + levels[:, :-1]) / 2
        constant, slope = levels[:, -1]
        top = np.array([[constant / (1 - slope) if "ptop" in self.terms else 0.0], [0.0]])  # ptop
        if self.unit == "m":
            top = 2 * levels[:, -1:] - middle[:, -1:]
        edges = np.concatenate([GROUND, middle, top], 1)
        at, out = self.at(levels), self.at(edges)
        for centre, outer, inner in ((at[0], out[0], out[1]), (at[-1], out[-1], out[-2])):
            reach = abs(outer - centre)
            if reach > 3 * abs(centre - inner) and reach > 0.02 * at.max():  # levels are missing
                raise InputError(
                    f"{self.coordinate.name!r} has no half levels, and its outermost level at "
                    f"{centre:.6g} {self.unit} is too far from {outer:.6g} {self.unit} to be the "
                    f"last of the column. Add the bounds of its terms. {WAY_OUT}"
                )
        return edges, f"assumed half way between the levels, and at the {KINDS[self.unit][3]}"

    def _means(self, levels: Array) -> Array | None:  # (2, n) -> (2, n + 1)
        """The half levels of which the levels are the means, from the surface up; None if not."""
        edges = [GROUND[:, 0]]
        for level in levels.T:
            edges.append(2 * level - edges[-1])
        found = np.stack(edges, 1)
        up = (np.diff(self.at(found)) < 0).all() and (np.diff(found[1]) < 1e-4).all()
        top = abs(found[1, -1]) < 1e-4 and found[0, -1] > -1e-5 * self.range[1]
        return found if up and top else None

    def check_thickness(self) -> None:
        """Thickness is linear in the surface, so that its extremes tell all."""
        for surface in self.range[:2]:
            thickness = np.diff(self.at(self.half_levels[0], surface), axis=-1)[:, 0]
            k = int(np.argmin(thickness))
            if not thickness[k] > 0:
                raise InputError(
                    f"cell number {k} of {self.coordinate.name!r} would be {thickness[k]:.6g} "
                    f"{self.unit} thick where {self.surface.name!r} is {surface:.6g}. Are its "
                    "formula terms, their bounds and `units` right?"
                )

    def reach(self) -> str:
        """From where to where the cells reach, and whether they touch."""
        ends = self.half_levels[0]
        low, high = np.moveaxis(ends[:, np.argsort(self.at(ends)[:, 0])], -1, 0)
        apart = np.abs(self.at(low)[1:] - self.at(high)[:-1])
        gaps = (apart > 1e-6 * np.abs(self.at(high)).max()).any()

        def text(constant: float, slope: float) -> str:
            if abs(slope - 1) < 1e-6 and abs(constant) < 1e-3:
                return "the surface"
            part = f" + {slope:.4g} {self.surface.name}" if abs(slope) > 1e-6 else ""
            return f"{round(constant, 3) + 0.0:.6g} {self.unit}{part}"

        said = f"{text(*low[:, 0])} to {text(*high[:, -1])}"
        return f"{said}, with gaps or overlaps between them" if gaps else said


def _neighbours(edges: Array) -> Array:  # (2, n + 1) -> (2, n, 2)
    return np.stack([edges[:, :-1], edges[:, 1:]], -1)


def levels_of(grid: Grid, dim: str) -> Levels | None:
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
            f"which is not known here; known are {', '.join(FORMULAS)}. {WAY_OUT}"
        )
    here = {key: name for key, name in names.items() if name in grid.dataset.variables}
    for needed, position in FORMULAS[kind].items():
        if set(needed) <= set(here):
            terms = {key: grid.dataset[here[key]] for key in needed}
            return Levels(grid, coordinate, terms, position)
    lost = [f"{key}: {name}" for key, name in names.items() if key not in here]
    raise InputError(
        f"`formula_terms` of {coordinate.name!r} must name {' or '.join(map(str, FORMULAS[kind]))}"
        f", it names {tuple(here)}{f'; not in the dataset are {lost}' if lost else ''}. Add what "
        f"lacks from the file that has it. {WAY_OUT}"
    )


def formula_layers(grid: Grid, dim: str) -> Layers | None:
    """The cells along a dimension whose coordinate has formula terms; None for any other."""
    levels = levels_of(grid, dim)
    if levels is None:
        return None
    by, what, unit, _ = KINDS[levels.unit]
    surface, missing = in_order(levels.surface, grid.data), levels.range[2]
    levels.check_thickness()
    ends, half_levels = levels.half_levels
    steps = [xr.DataArray(step, dims=dim) for step in by * np.diff(ends, axis=-1)[..., 0]]
    constant, slope = (in_order(step, grid.data, surface) for step in steps)
    names = ", ".join(str(term.name) for term in levels.terms.values())
    where = f"{what} from {names}; half levels: {half_levels}; cells from {levels.reach()}"
    bare = [str(levels.terms[k].name) for k in levels.factors if not units(levels.terms[k])]
    where += f"; {' and '.join(bare)} taken to be in {levels.unit}" if bare else ""
    if missing:
        where += f"; {missing} places without {surface.name} do not count"
        constant, surface = constant * surface.notnull(), surface.fillna(0.0)
    return Layers(constant, slope, surface, unit, where)


def pressure_layers(grid: Grid, coordinate: xr.DataArray, surface: str | None) -> Layers:
    """Cells between pressures, cut at the surface pressure of that name where there is one."""
    dim, bounds, data = str(coordinate.dims[0]), grid.bounds(coordinate), grid.data
    by = factor(coordinate, "Pa")
    ends = np.sort(ends_of(coordinate, bounds)[0], -1) * by
    where = f"{MASS} between the pressures of {coordinate.name}, "
    where += "half way between levels" if bounds is None else f"from {bounds.name}"
    if surface is None:
        where += f", from {ends.min():g} to {ends.max():g} Pa: no surface pressure to cut them at"
        thickness = xr.DataArray((ends[:, 1] - ends[:, 0]) / GRAVITY, dims=dim)
        return Layers(thickness, 0 * thickness, xr.DataArray(0.0), "kg m-2", where)
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
    return Layers(constant, slope, ps, "kg m-2", where, reach)


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
