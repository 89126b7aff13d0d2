"""The thickness of cells along the vertical, from the formula terms of their coordinate.

A level lies at constant + slope * surface, where surface is the surface pressure or the orography:
a p0 + b ps or ap + b ps (hybrid sigma-pressure), ptop + sigma (ps - ptop) (sigma) and a + b orog
(hybrid height). Arrays `levels` hold both numbers on their first axis. A cell lies between two half
levels of the same form; pressure differences over g are the mass of air per area.
"""

import re
from dataclasses import dataclass

import numpy as np
import xarray as xr
from dask.base import compute

from .._air import GRAVITY
from .._errors import InputError
from ._coordinates import Array, bounds_of, coordinates_of, numbers, setting, units
from ._units import conversion

MASS = f"mass of air per area (dp / g, g = {GRAVITY} m s-2)"
WAY_OUT = "Give the thickness of the cells as `measure`."
HYBRID, SIGMA, HEIGHT = (
    f"atmosphere_{name}_coordinate" for name in ("hybrid_sigma_pressure", "sigma", "hybrid_height")
)
TERMS = {
    HYBRID: (("ap", "b", "ps"), ("a", "b", "p0", "ps")),
    SIGMA: (("sigma", "ptop", "ps"),),
    HEIGHT: (("a", "b", "orog"),),
}
GROUND = np.array([[0.0], [1.0]])  # constant and slope of the surface itself
FROM_ZERO = ("depth", "height", "air_pressure", "sea_water_pressure")


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
class Formula:
    """A coordinate with formula terms, and their names in the dataset."""

    dataset: xr.Dataset
    coordinate: xr.DataArray
    kind: str
    names: dict[str, str]

    @classmethod
    def of(cls, dataset: xr.Dataset, coordinate: xr.DataArray) -> "Formula":
        kind, terms = str(coordinate.attrs.get("standard_name")), _terms(coordinate)
        if kind not in TERMS:
            raise InputError(
                f"the levels of {coordinate.name!r} follow the formula of the standard name {kind},"
                f" which is not known here; known are {', '.join(TERMS)}. {WAY_OUT}"
            )
        for needed in TERMS[kind]:
            if set(needed) <= set(terms):
                return cls(dataset, coordinate, kind, {key: terms[key] for key in needed})
        raise InputError(
            f"`formula_terms` of {coordinate.name!r} must name {' or '.join(map(str, TERMS[kind]))}"
            f", it names {tuple(terms)}. Complete it. {WAY_OUT}"
        )

    @property
    def unit(self) -> str:
        return "m" if self.kind == HEIGHT else "Pa"

    @property
    def of_levels(self) -> list[str]:
        return [key for key in self.names if key in ("a", "ap", "b", "sigma")]

    @property
    def without_units(self) -> list[str]:
        """Terms that should say their unit and do not."""
        return [key for key in self._sized if not units(self.term(key))]

    @property
    def _sized(self) -> list[str]:
        plain = ("b", "sigma") if self.kind == HEIGHT else ("a", "b", "sigma")
        return [key for key in self.names if key not in plain]

    def term(self, key: str) -> xr.DataArray:
        name = self.names[key]
        if name not in self.dataset.variables:
            raise InputError(
                f"`formula_terms` of {self.coordinate.name!r} names {key}: {name}, which is not in "
                f"the dataset. Add {name!r} from the file that has it. {WAY_OUT}"
            )
        return self.dataset[name]

    def surface(self, data: xr.DataArray) -> xr.DataArray:
        """Surface pressure in Pa, or orography in m, without coordinates."""
        found = self.term("orog" if self.kind == HEIGHT else "ps")
        if extra := [dim for dim in found.dims if dim not in data.dims]:
            raise InputError(
                f"{found.name!r}, which gives the thickness along {self.coordinate.name!r}, has the"
                f" dimension {extra[0]!r}, which {data.name!r} has not. Select or average it."
            )
        return in_unit(found, self.unit)

    def levels(self, others: dict[str, str]) -> Array:  # (2, ...)
        """Constant and slope, of the levels or of others by the names of their terms."""

        def values(key: str) -> Array:
            found = self.dataset[others[key]] if key in others else self.term(key)
            found = found.transpose(*self.coordinate.dims, ..., missing_dims="ignore")
            known = key in self._sized and key not in self.without_units
            return numbers(found, found) * (factor(self.term(key), self.unit) if known else 1.0)

        if self.kind == SIGMA:
            sigma = values("sigma")
            return np.stack([(1 - sigma) * values("ptop"), sigma])
        constant = values("ap" if "ap" in self.names else "a")
        return np.stack([constant * values("p0") if "p0" in self.names else constant, values("b")])


def layers_of(dataset: xr.Dataset, variable: str, dim: str) -> Layers | None:
    """The cells along a dimension whose coordinate has formula terms; None for any other."""
    data = dataset[variable]
    along = [c for c in coordinates_of(dataset, variable) if c.dims == (dim,) and _is_parametric(c)]
    if not along:
        return None
    formula = Formula.of(dataset, along[0])
    surface = formula.surface(data)
    lowest, highest, missing = extremes(surface)
    reference = lowest if formula.kind == HEIGHT else highest
    ends, half_levels = _half_levels(formula, reference)
    turned = np.diff(_at(ends, reference), axis=-1) < 0
    ends = np.where(turned, ends[..., ::-1], ends)  # the smaller pressure or height first
    _check_thickness(formula, ends, surface, lowest, highest)
    steps = np.diff(ends, axis=-1)[..., 0] / (1.0 if formula.kind == HEIGHT else GRAVITY)
    surface = in_order(surface, data)
    constant, slope = (in_order(xr.DataArray(each, dims=dim), data, surface) for each in steps)
    what = "heights" if formula.kind == HEIGHT else MASS
    where = f"{what} from {', '.join(formula.names.values())}; half levels: {half_levels}; "
    where += f"cells from {_reach(ends, reference, formula.unit, surface.name)}"
    if bare := [formula.names[key] for key in formula.without_units]:
        where += f"; {' and '.join(bare)} taken to be in {formula.unit}"
    if missing:
        where += f"; {missing} places without {surface.name} do not count"
        constant, surface = constant * surface.notnull(), surface.fillna(0.0)
    return Layers(constant, slope, surface, "m" if formula.kind == HEIGHT else "kg m-2", where)


def _is_parametric(coordinate: xr.DataArray) -> bool:
    """Whether its levels lie at what a formula says, not at its values."""
    name = str(coordinate.attrs.get("standard_name"))
    by_name = name.startswith(("atmosphere_", "ocean_")) and "_coordinate" in name
    return by_name or bool(_terms(coordinate))


def _terms(array: xr.DataArray) -> dict[str, str]:
    return dict(re.findall(r"(\w+):\s*(\S+)", setting(array, "formula_terms")))


def in_unit(array: xr.DataArray, wanted: str) -> xr.DataArray:
    """The array in that unit, as float64 without coordinates."""
    by, values = factor(array, wanted), array.variable.astype(np.float64)
    return xr.DataArray(values if by == 1 else by * values, name=array.name)


def factor(array: xr.DataArray, wanted: str) -> float:
    """What leads from the unit of an array to another; an error where nothing does."""
    found = scale(units(array), wanted)
    if found is None:
        raise InputError(
            f"{array.name!r} must be in {wanted}, up to a factor between units; its `units` are "
            f"{array.attrs.get('units', 'missing')!r}. Set or convert them."
        )
    return found


def scale(unit: str, wanted: str) -> float | None:
    """The factor from one unit to another; None where there is none."""
    try:
        return conversion("it", unit, wanted, "that").factor if unit else None
    except InputError:
        return None


def extremes(surface: xr.DataArray) -> tuple[float, float, int]:
    """The smallest and the largest value, and how many are missing, computed now."""
    found = compute(surface.min(), surface.max(), surface.isnull().sum())
    lowest, highest, missing = (each.item() for each in found)
    if not (np.isfinite(lowest) and np.isfinite(highest)):
        raise InputError(f"{surface.name!r} must be finite; it has {lowest} and {highest}.")
    return lowest, highest, missing


def _at(levels: Array, surface: float) -> Array:
    return levels[0] + levels[1] * surface


def _half_levels(formula: Formula, reference: float) -> tuple[Array, str]:  # (2, n, 2)
    """Where every cell ends, and in words how that is known."""
    count = formula.coordinate.size
    if names := _bounds(formula) or _interfaces(formula):
        ends = formula.levels(names)
        ends = _pairs(ends) if ends.ndim == 2 else ends
        if ends.shape != (2, count, 2):
            raise InputError(
                f"{' and '.join(names.values())} must hold two ends for each of the {count} levels "
                f"of {formula.coordinate.name!r}, got {ends.shape[1:]}. {WAY_OUT}"
            )
        return ends, " and ".join(names.values())
    levels = formula.levels({})
    order = np.argsort(_at(levels, reference))
    edges, words = _assumed(formula, levels[:, order], reference)
    return _pairs(edges)[:, np.argsort(order)], f"assumed {words}"


def _bounds(formula: Formula) -> dict[str, str]:
    """The names of the bounds of the terms; empty where one has none."""
    bounds = bounds_of(formula.dataset, formula.coordinate)
    named = {} if bounds is None else _terms(bounds)
    found = {
        key: named.get(key) or setting(formula.term(key), "bounds") for key in formula.of_levels
    }
    return found if all(name in formula.dataset.variables for name in found.values()) else {}


def _interfaces(formula: Formula) -> dict[str, str]:
    """The terms of a coordinate of half levels: of the same kind, with one entry more."""
    for name in formula.dataset.coords:
        other = formula.dataset[name]
        alike = other.attrs.get("standard_name") == formula.kind
        if alike and other.shape == (formula.coordinate.size + 1,):
            terms = _terms(other)
            return {key: terms[key] for key in formula.of_levels if key in terms}
    return {}


def _pairs(edges: Array) -> Array:  # (2, n + 1) -> (2, n, 2)
    return np.stack([edges[:, :-1], edges[:, 1:]], -1)


def _assumed(formula: Formula, levels: Array, reference: float) -> tuple[Array, str]:  # (2, n + 1)
    """Half levels that nobody gave, for levels in the order of their pressure or height."""
    means = None if formula.kind == HEIGHT else _means(levels, reference)
    if means is not None:
        return means, "such that each level is the mean of its two, from the surface up"
    if levels.shape[1] < 2:
        raise InputError(f"{formula.coordinate.name!r} has one level and no bounds. {WAY_OUT}")
    middle = (levels[:, 1:] + levels[:, :-1]) / 2
    if formula.kind == HEIGHT:
        first, last, end = GROUND, 2 * levels[:, -1:] - middle[:, -1:], "the ground"
    else:
        top = levels[0, 0] / (1 - levels[1, 0]) if formula.kind == SIGMA else 0.0  # ptop
        first, last, end = np.array([[top], [0.0]]), GROUND, "the surface"
    edges = np.concatenate([first, middle, last], 1)
    at, out = _at(levels, reference), _at(edges, reference)
    for centre, outer, inner in ((at[0], out[0], out[1]), (at[-1], out[-1], out[-2])):
        reach = abs(outer - centre)
        if reach > 3 * abs(centre - inner) and reach > 0.02 * at[-1]:  # levels are missing
            raise InputError(
                f"{formula.coordinate.name!r} has no half levels, and its outermost level at "
                f"{centre:.6g} {formula.unit} is too far from {outer:.6g} {formula.unit} to be the "
                f"last of the column. Add the bounds of its terms. {WAY_OUT}"
            )
    return edges, f"half way between the levels, and at {end}"


def _means(levels: Array, surface: float) -> Array | None:  # (2, n + 1)
    """The half levels of which the levels are the means, from the surface up; None if not so."""
    edges = [GROUND[:, 0]]
    for level in levels.T[::-1]:
        edges.append(2 * level - edges[-1])
    found = np.stack(edges[::-1], 1)
    down = (np.diff(_at(found, surface)) > 0).all() and (np.diff(found[1]) > -1e-4).all()
    top = abs(found[1, 0]) < 1e-4 and found[0, 0] > -1e-5 * surface
    return found if down and top else None


def _check_thickness(formula: Formula, ends: Array, surface: xr.DataArray, *at: float) -> None:
    """Thickness is linear in the surface, so that its extremes tell all."""
    for each in at:
        thickness = np.diff(_at(ends, each), axis=-1)[:, 0]
        if not (thickness > 0).all():
            k = int(np.argmin(thickness))
            raise InputError(
                f"cell number {k} of {formula.coordinate.name!r} would be {thickness[k]:.6g} "
                f"{formula.unit} thick where {surface.name!r} is {each:.6g}. Are "
                "its formula terms, their bounds and `units` right?"
            )


def _reach(ends: Array, reference: float, unit: str, surface: object) -> str:
    """From where to where the cells reach, and whether they touch."""
    low, high = np.moveaxis(ends[:, np.argsort(_at(ends, reference)[:, 0])], -1, 0)
    apart = np.abs(_at(low, reference)[1:] - _at(high, reference)[:-1])
    gaps = (apart > 1e-6 * np.abs(_at(high, reference)).max()).any()

    def text(constant: float, slope: float) -> str:
        if abs(slope - 1) < 1e-6 and abs(constant) < 1e-3:
            return "the surface"
        part = f" + {slope:.4g} {surface}" if abs(slope) > 1e-6 else ""
        return f"{round(constant, 3) + 0.0:.6g} {unit}{part}"

    said = f"{text(*low[:, 0])} to {text(*high[:, -1])}"
    return f"{said}, with gaps or overlaps between them" if gaps else said


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


def is_pressure(coordinate: xr.DataArray) -> bool:
    return scale(units(coordinate), "Pa") is not None


def cut_at_zero(coordinate: xr.DataArray, ends: Array) -> Array:  # (n, 2)
    """Ends of cells, none beyond zero depth, zero pressure or the ground."""
    name, positive = coordinate.attrs.get("standard_name"), setting(coordinate, "positive")
    from_zero = {name, coordinate.name} & set(FROM_ZERO) or is_pressure(coordinate)
    if (from_zero or positive == "down") and (coordinate.values >= 0).all():
        return np.maximum(ends, 0.0)
    if (from_zero or positive) and (coordinate.values <= 0).all():
        return np.minimum(ends, 0.0)
    return ends


def check_pressure(coordinate: xr.DataArray, bounds: Array) -> None:
    """Refuse an edge of negative pressure."""
    if is_pressure(coordinate) and (bounds < 0).any():
        raise InputError(
            f"a cell of {coordinate.name!r} ends at the pressure {bounds.min():.6g}, which cannot "
            "be negative. Correct its bounds."
        )
