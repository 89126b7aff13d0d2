"""The thickness of cells along the vertical, by formula terms or between pressures.

A level lies at constant + slope * surface, where surface is the surface pressure or the orography.
Arrays of positions hold both numbers on their first axis. A cell lies between two half levels of
the same form; pressure differences over g are the mass of air per area.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import xarray as xr
from dask.base import compute

from .._air import GRAVITY
from .._errors import InputError
from ._coordinates import Array, Grid, ends_of, numbers, pairs, scale, setting, units
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
    """A coordinate with formula terms."""

    coordinate: xr.DataArray
    terms: Terms  # the surface last
    position: Position

    @property
    def unit(self) -> str:
        return "m" if "orog" in self.terms else "Pa"

    @property
    def surface(self) -> xr.DataArray:
        return list(self.terms.values())[-1]

    @property
    def sized(self) -> list[str]:
        """Terms that have a unit, or should have."""
        plain = {"b", "sigma", "a" if "p0" in self.terms else ""}
        return [key for key in self.terms if key not in plain]

    def positions(self, others: Terms) -> Array:  # (2, ...)
        """Constant and slope, of the levels or of others by their terms."""
        values = {}
        for key, term in list(self.terms.items())[:-1]:
            found = others.get(key, term)
            found = found.transpose(*self.coordinate.dims, ..., missing_dims="ignore")
            by = factor(term, self.unit) if key in self.sized and units(term) else 1.0
            values[key] = numbers(found, found) * by
        return np.stack(self.position(**values))


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
    needed = next((terms for terms in FORMULAS[kind] if set(terms) <= set(names)), None)
    if needed is None:
        raise InputError(
            f"`formula_terms` of {coordinate.name!r} must name "
            f"{' or '.join(map(str, FORMULAS[kind]))}, it names {tuple(names)}. {WAY_OUT}"
        )
    for key in needed:
        if names[key] not in grid.dataset.variables:
            raise InputError(
                f"`formula_terms` of {coordinate.name!r} names {key}: {names[key]}, which is not in"
                f" the dataset. Add it from the file that has it. {WAY_OUT}"
            )
    terms = {key: grid.dataset[names[key]] for key in needed}
    return Levels(coordinate, terms, FORMULAS[kind][needed])


def formula_layers(grid: Grid, dim: str) -> Layers | None:
    """The cells along a dimension whose coordinate has formula terms; None for any other."""
    levels = levels_of(grid, dim)
    if levels is None:
        return None
    height, surface = levels.unit == "m", in_unit(levels.surface, levels.unit)
    match(levels.surface, grid.data, f"formula_terms of {levels.coordinate.name}")
    lowest, highest, missing = extremes(surface)
    reference = lowest if height else highest
    ends, half_levels = _half_levels(grid, levels, reference)
    turned = np.diff(_at(ends, reference), axis=-1) < 0
    ends = np.where(turned, ends[..., ::-1], ends)  # the smaller pressure or height first
    _check_thickness(levels, ends, lowest, highest)
    steps = np.diff(ends, axis=-1)[..., 0] / (1.0 if height else GRAVITY)
    surface = in_order(surface, grid.data)
    constant, slope = (in_order(xr.DataArray(x, dims=dim), grid.data, surface) for x in steps)
    names = ", ".join(str(term.name) for term in levels.terms.values())
    where = f"{'heights' if height else MASS} from {names}; half levels: {half_levels}; "
    where += f"cells from {_reach(ends, reference, levels)}"
    if bare := [
        str(levels.terms[key].name) for key in levels.sized if not units(levels.terms[key])
    ]:
        where += f"; {' and '.join(bare)} taken to be in {levels.unit}"
    if missing:
        where += f"; {missing} places without {surface.name} do not count"
        constant, surface = constant * surface.notnull(), surface.fillna(0.0)
    return Layers(constant, slope, surface, "m" if height else "kg m-2", where)


def _at(positions: Array, surface: float) -> Array:
    return positions[0] + positions[1] * surface


def _half_levels(grid: Grid, levels: Levels, reference: float) -> tuple[Array, str]:  # (2, n, 2)
    """Where every cell ends, and in words how that is known."""
    if terms := _terms_of_half_levels(grid, levels):
        ends, names = levels.positions(terms), [str(term.name) for term in terms.values()]
        ends = _neighbours(ends) if ends.ndim == 2 else ends
        if ends.shape != (2, levels.coordinate.size, 2):
            raise InputError(
                f"{' and '.join(names)} must hold two ends for each of the "
                f"{levels.coordinate.size} levels of {levels.coordinate.name!r}, got "
                f"{ends.shape[1:]}. {WAY_OUT}"
            )
        return ends, " and ".join(names)
    at = levels.positions({})
    order = np.argsort(_at(at, reference))
    edges, words = _assumed(levels, at[:, order], reference)
    return _neighbours(edges)[:, np.argsort(order)], f"assumed {words}"


def _terms_of_half_levels(grid: Grid, levels: Levels) -> Terms:
    """The bounds of the terms, or the terms of a coordinate like this one with one entry more."""
    own = {key: term for key, term in levels.terms.items() if key in OF_LEVELS}
    bounds = grid.bounds(levels.coordinate)
    named = {} if bounds is None else pairs(bounds, "formula_terms")
    names = {key: named.get(key) or setting(term, "bounds") for key, term in own.items()}
    for other in grid.dataset.coords.values():
        alike = other.attrs.get("standard_name") == levels.coordinate.attrs["standard_name"]
        if alike and other.shape == (levels.coordinate.size + 1,) and not all(names.values()):
            names = {key: name for key, name in pairs(other, "formula_terms").items() if key in own}
    found = {key: grid.dataset[n] for key, n in names.items() if n in grid.dataset.variables}
    return found if len(found) == len(own) else {}


def _neighbours(edges: Array) -> Array:  # (2, n + 1) -> (2, n, 2)
    return np.stack([edges[:, :-1], edges[:, 1:]], -1)


def _assumed(levels: Levels, at: Array, reference: float) -> tuple[Array, str]:  # (2, n + 1)
    """Half levels that nobody gave, for levels in the order of their pressure or height."""
    height = levels.unit == "m"
    means = None if height else _means(at, reference)
    if means is not None:
        return means, "such that each level is the mean of its two, from the surface up"
    if at.shape[1] < 2:
        raise InputError(f"{levels.coordinate.name!r} has one level and no bounds. {WAY_OUT}")
    middle = (at[:, 1:] + at[:, :-1]) / 2
    if height:
        ends = GROUND, 2 * at[:, -1:] - middle[:, -1:]
    else:
        top = at[0, 0] / (1 - at[1, 0]) if "ptop" in levels.terms else 0.0  # ptop
        ends = np.array([[top], [0.0]]), GROUND
    edges = np.concatenate([ends[0], middle, ends[1]], 1)
    centres, out = _at(at, reference), _at(edges, reference)
    for centre, outer, inner in ((centres[0], *out[:2]), (centres[-1], *out[:-3:-1])):
        reach = abs(outer - centre)
        if reach > 3 * abs(centre - inner) and reach > 0.02 * centres[-1]:  # levels are missing
            raise InputError(
                f"{levels.coordinate.name!r} has no half levels, and its outermost level at "
                f"{centre:.6g} {levels.unit} is too far from {outer:.6g} {levels.unit} to be the "
                f"last of the column. Add the bounds of its terms. {WAY_OUT}"
            )
    return edges, f"half way between the levels, and at the {'ground' if height else 'surface'}"


def _means(at: Array, surface: float) -> Array | None:  # (2, n + 1)
    """The half levels of which the levels are the means, from the surface up; None if not so."""
    edges = [GROUND[:, 0]]
    for level in at.T[::-1]:
        edges.append(2 * level - edges[-1])
    found = np.stack(edges[::-1], 1)
    down = (np.diff(_at(found, surface)) > 0).all() and (np.diff(found[1]) > -1e-4).all()
    top = abs(found[1, 0]) < 1e-4 and found[0, 0] > -1e-5 * surface
    return found if down and top else None


def _check_thickness(levels: Levels, ends: Array, *surfaces: float) -> None:
    """Thickness is linear in the surface, so that its extremes tell all."""
    for surface in surfaces:
        thickness = np.diff(_at(ends, surface), axis=-1)[:, 0]
        k = int(np.argmin(thickness))
        if not thickness[k] > 0:
            raise InputError(
                f"cell number {k} of {levels.coordinate.name!r} would be {thickness[k]:.6g} "
                f"{levels.unit} thick where {levels.surface.name!r} is {surface:.6g}. Are its "
                "formula terms, their bounds and `units` right?"
            )


def _reach(ends: Array, reference: float, levels: Levels) -> str:
    """From where to where the cells reach, and whether they touch."""
    low, high = np.moveaxis(ends[:, np.argsort(_at(ends, reference)[:, 0])], -1, 0)
    apart = np.abs(_at(low, reference)[1:] - _at(high, reference)[:-1])
    gaps = (apart > 1e-6 * np.abs(_at(high, reference)).max()).any()

    def text(constant: float, slope: float) -> str:
        if abs(slope - 1) < 1e-6 and abs(constant) < 1e-3:
            return "the surface"
        part = f" + {slope:.4g} {levels.surface.name}" if abs(slope) > 1e-6 else ""
        return f"{round(constant, 3) + 0.0:.6g} {levels.unit}{part}"

    said = f"{text(*low[:, 0])} to {text(*high[:, -1])}"
    return f"{said}, with gaps or overlaps between them" if gaps else said


def pressure_layers(grid: Grid, coordinate: xr.DataArray, surface: str | None) -> Layers:
    """Cells between pressures, cut at the surface pressure of that name where there is one."""
    (dim,), bounds, data = coordinate.dims, grid.bounds(coordinate), grid.data
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
    if highest < coordinate.max() * by / 2:
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


def factor(array: xr.DataArray, wanted: str) -> float:
    """What leads from the unit of an array to another; an error where nothing does."""
    found = scale(units(array), wanted)
    if found is None:
        raise InputError(
            f"{array.name!r} must be in {wanted}, up to a factor between units; its `units` are "
            f"{array.attrs.get('units', 'missing')!r}. Set or convert them."
        )
    return found


def in_unit(array: xr.DataArray, wanted: str) -> xr.DataArray:
    """The array in that unit, as float64 without coordinates."""
    by, values = factor(array, wanted), array.variable.astype(np.float64)
    return xr.DataArray(values if by == 1 else by * values, name=array.name)


def extremes(surface: xr.DataArray) -> tuple[float, float, int]:
    """The smallest and the largest value, and how many are missing, computed now."""
    found = compute(surface.min(), surface.max(), surface.isnull().sum())
    lowest, highest, missing = (each.item() for each in found)
    if not (np.isfinite(lowest) and np.isfinite(highest)):
        raise InputError(f"{surface.name!r} must be finite; it has {lowest} and {highest}.")
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
