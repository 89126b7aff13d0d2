"""What every point of a law weighs: cell sizes, fractions, factors; and to which row it belongs.

Each fact is taken from the first of these that is there:

cell size  the measure given; the volume or the area that `cell_measures` name; for dimensions that
           these lack, formula terms of levels, then coordinates
globe      the radius given; that of the grid mapping; 6371.229 km
fraction   the one given; by the standard name of what `cell_methods` are means over
unit       of the law: the first of its variables that has one; the others are converted
"""

import math
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from .. import _values as check
from .._errors import InputError
from .._sphere import Globe
from ._arithmetic import calculated, is_arithmetic
from ._attributes import cell_methods, conversion, decoded, pairs, product, scale, setting, units
from ._coordinates import SHAPE, Factor, Grid, cell_sizes, describe
from ._faces import face_areas
from ._law import STORES, Given, Law, array, find, in_words, match, nearest, taken
from ._positions import check_true, with_angles
from ._repeated import counted_once
from ._time import tells_time
from ._vertical import formula_layers

SMALL = 1 << 28  # bytes of weights that are held in memory; larger ones stay lazy
LARGEST = float(np.finfo(np.float64).max)


def cell_measure(
    dataset: xr.Dataset,
    variable: str,
    over: tuple[str, ...],
    given: Given | None = None,
    radius: float | None = None,
    fraction: Given | None = None,
) -> xr.DataArray:
    """The weight of every cell of `variable` in a sum over the dimensions `over`.

    The total is `(dataset[variable] * weights).sum(over)`. The weights are those `given`, or those
    that the variable's `cell_measures` names, or areas on a sphere from latitudes and longitudes
    times lengths along every other dimension, from bounds where a coordinate has them and half
    way between the centres where not.

    Parameters
    ----------
    dataset : xarray.Dataset
        What holds the variable, its coordinates and their bounds; it is not changed.
    variable : str
        The name of the field.
    over : tuple of str
        The dimensions to sum over.
    given : float, str or DataArray
        A number for all cells (1: plain sums), a name in the dataset, arithmetic such as
        "e1t*e2t", or an array, with missing values where a cell does not count; a dimension of
        `over` that it lacks is found from the coordinates.
    radius : float
        The radius of the sphere, in metres; that of the grid mapping or 6371229 if not given.
    fraction : float, str or DataArray
        The part of each cell that counts, 0 to 1 or per cent: a name, an array, or 1. It is looked
        for where `cell_methods` say "area: mean where land" or the like.

    Returns
    -------
    xarray.DataArray
        The weights, with `units` and `description` as attributes.

    Raises
    ------
    InputError
        If the sizes cannot be found, or do not fit the variable.

    Examples
    --------
    >>> lat, lon = xr.Variable("lat", [-45.0, 45.0]), xr.Variable("lon", [0.0, 120.0, 240.0])
    >>> field = xr.DataArray(np.ones((2, 3)), {"lat": lat, "lon": lon}, ("lat", "lon"), "u")
    >>> weights = cell_measure(field.to_dataset(), "u", ("lat", "lon"), radius=1.0)
    >>> round(float((field * weights).sum() / np.pi), 12), weights.units
    (4.0, 'm2')
    """
    check.choice(
        "variable", variable, [str(n) for n in dataset.variables if n not in dataset.indexes]
    )
    grid = Grid(with_angles(decoded(dataset), variable), variable)
    over = Law(variable, over).dims
    for dim in over:
        check.choice("over", dim, map(str, grid.data.dims))
    globe = globe_of(grid, radius)
    kind = _area_type(grid, over, given)
    measure, remark = _measure(grid, over, given)
    factors = [measure] if measure else []
    if not (measure and measure.weights.ndim == 0):
        rest = _rest(grid, over, measure)
        faces = face_areas(grid, rest, globe) if not _is_flat(grid, measure) else None
        factors += [faces] if faces else []
        rest = [dim for dim in rest if not faces or dim not in faces.weights.dims]
        layers = {dim: found for dim in rest if (found := formula_layers(grid, dim))}
        sized = [dim for dim in rest if dim not in layers]
        check_true(grid, sized)
        factors += cell_sizes(grid, sized, globe)
        factors += [Factor(each.thickness, each.units, each.where) for each in layers.values()]
    of_kind = measure and f"where {kind}" in setting(measure.weights, "cell_methods")
    if kind and fraction is None and (of_kind or given is not None):
        remark += f"; taken for the areas of {kind}, which the means of {variable} are over"
    elif kind or fraction is not None:
        factors.append(_fraction(grid, kind, fraction))
    weights = _product(factors, grid.data)
    if not (measure and measure.weights.ndim == 0):
        weights, copies = counted_once(grid, over, weights)
        remark += copies
    weights.attrs["description"] = describe(factors, globe) + remark
    unit = product(*(factor.units for factor in factors))
    return weights if unit is None else weights.assign_attrs(units=unit)


def globe_of(grid: Grid, radius: float | None) -> Globe:
    """The sphere of the radius given, else that of the grid mapping, else one of 6371.229 km.

    An ellipsoid becomes the sphere of the same area.
    """
    if radius is not None:
        return Globe(check.positive("radius", radius), " (as given)")
    mapping = next((each for each in grid.mappings if set(SHAPE[:2]) & set(each.attrs)), None)
    if mapping is None:
        return Globe(check.EARTH)
    said = {key: mapping.attrs[key] for key in SHAPE if key in mapping.attrs}
    try:
        radius, a, b, f = (float(np.squeeze(said.get(key, 0))) for key in SHAPE)
    except (TypeError, ValueError):
        radius = a = b = f = math.nan
    a, b = (radius, radius) if radius else (a, b or (a - a / f if f else a))
    if not 1e5 < b <= a < math.inf:
        raise InputError(
            f"the grid mapping {mapping.name!r} must give the size of its globe in metres, got "
            f"{said}. Give `radius`."
        )
    if a == b:
        return Globe(a, f" (grid mapping {mapping.name})")
    e = math.sqrt(1 - (b / a) ** 2)
    same = math.sqrt((a**2 + b**2 * math.atanh(e) / e) / 2)
    return Globe(same, f" (the area of the ellipsoid of {mapping.name})")


def _area_type(grid: Grid, over: tuple[str, ...], given: Any) -> str | None:
    """What the field is a mean over by its cell_methods, such as land; None for whole cells.

    Values that are sums over their cells are refused, unless they are to be weighed by a number.
    """
    flat = grid.horizontal(over)
    area = ["area", *flat] if flat else []
    if not isinstance(given, Real) and "sum" in dict(cell_methods(grid.data, *over, *area)):
        raise InputError(
            f"the values of {grid.name!r} are sums over their cells already (cell_methods "
            f"{setting(grid.data, 'cell_methods')!r}), not to be weighed by the sizes of cells. "
            "`measure=1` means plain sums; correct `cell_methods` if they are means."
        )
    for _, qualifier in cell_methods(grid.data, *area):
        found = re.match(r"where\s+(\w+)(?:\s+over\s+(\w+))?", qualifier)
        kind = (found[2] or found[1]) if found else "all_area_types"
        if kind != "all_area_types":
            return kind
    return None


def _measure(grid: Grid, over: tuple[str, ...], given: Given | None) -> tuple[Factor | None, str]:
    """The measure given, else what `cell_measures` names; and a remark on what is not there.

    A volume that is named counts where all of its dimensions are summed over.
    """
    if given is not None:
        own = isinstance(given, str) and (given in grid.dataset.variables or given.endswith(STORES))
        if is_arithmetic(given) and not own:
            given = calculated(grid.dataset, str(given))
        found, remark = _for_all(taken(grid.dataset, given, "measure"), grid.data, over)
        found = array(grid.dataset, found, "measure", grid.data)
        if isinstance(given, Real):
            check.positive("measure", float(given))
            plain = Factor(found, "1", "plain sums: every cell has the weight 1")
            return plain if given == 1 else Factor(found, None, f"{given:g} for every cell"), ""
        text = str(found.attrs.get("description", "the array given"))
        text = f"the array {found.name} given" if found.name else text
        text = f"the variable {given}" if isinstance(given, str) else text
        thick = [unit for unit in ("m", "Pa") if scale(found, unit) is not None]
        if thick and len(set(found.dims) & set(over)) > 1:
            text += f" (in {units(found)}, as a thickness: areas do not count)"
        return _factor(found, grid.data, "measure", text), remark
    names, remark = pairs(grid.data, "cell_measures"), ""
    for kind in [kind for kind in ("volume", "area") if kind in names]:
        if names[kind] not in grid.dataset.variables:
            remark += f"; cell_measures names {kind}: {names[kind]}, which is not in the dataset"
            continue
        its = grid.dataset[names[kind]]
        dims = {dim for dim in its.dims if not (dim in its.coords and tells_time(its[dim]))}
        if dims <= set(over) if kind == "volume" else dims & set(over):
            where = f"cell_measures of {grid.name}"
            match(its, grid.data, where)
            return _factor(its, grid.data, where, f"the {kind} {its.name}"), remark
    return None, remark


def _for_all(
    found: xr.DataArray, data: xr.DataArray, over: tuple[str, ...]
) -> tuple[xr.DataArray, str]:
    """Without axes of one entry that the data lack or have more of, such as time; and a remark."""
    one = [dim for dim in found.dims if found.sizes[dim] == 1 != data.sizes.get(dim)]
    one = [dim for dim in one if dim not in over]
    remark = "".join(f"; its one {dim} taken for all" for dim in one if dim in data.dims)
    return found.squeeze(one, drop=True), remark


def _fraction(grid: Grid, kind: str | None, given: Given | None) -> Factor:
    """The part of each cell that counts, given or by the standard_name of its kind."""
    if given is None:
        wanted = f"{kind}_area_fraction"
        there = grid.dataset.cf.standard_names.get(wanted, [])
        if len(there) != 1:
            raise InputError(
                f"the values of {grid.name!r} are means over the {kind} of each cell by their "
                f"cell_methods, and {len(there) or 'no'} variables have the standard_name {wanted}."
                f" Give the part of each cell that is {kind} as `fraction` (1: all of it), or its "
                "area as `measure`."
            )
        given = there[0]
    parts = array(grid.dataset, given, "fraction", grid.data)
    percent = units(parts) in ("%", "percent")
    name = parts.name or (f"{parts:g}" if not parts.ndim else "given")
    parts = (parts / 100 if percent else parts).assign_attrs(units="1")
    text = f"the fraction {name} in per cent" if percent else f"the fraction {name}"
    return _factor(parts, grid.data, "fraction", text, 1.0)


def _factor(
    measure: xr.DataArray, data: xr.DataArray, where: str, text: str, most: float = LARGEST
) -> Factor:
    """Weights from 0 to `most`, with 0 for missing ones and a word on those."""
    unit = units(measure) or None
    weights = xr.DataArray(measure.variable.astype(np.float64), name=measure.name)
    if weights.nbytes > SMALL and weights.chunks is not None:
        lazy = weights.data.map_blocks(
            _usable, where=where, most=most, text=text, dims=weights.dims, meta=np.empty(0)
        )
        return Factor(weights.copy(data=lazy), unit, text)
    weights = weights.compute()
    missing = weights.isnull().variable
    if missing.any():
        first = data.variable.isel({dim: 0 for dim in data.dims if dim not in weights.dims})
        lost = int((first.notnull() & missing).sum())
        text += f" (missing in {lost} cells with values of {data.name})" * (lost > 0)
    weights = weights.copy(data=_usable(weights.values, where, most, text, weights.dims))
    if not weights.any():
        raise InputError(f"`{where}` must have a cell that counts; all its weights are 0 or NaN.")
    return Factor(weights, unit, text)


def _usable(
    weights: npt.NDArray[np.float64],
    where: str,
    most: float,
    text: str,
    dims: Sequence[Hashable],
    block_info: Any = None,  # from dask: where the block begins
) -> npt.NDArray[np.float64]:
    """The weights with 0 for missing ones; an error for those that no cell can have."""
    slack = 1e-6 if most == 1 else 0.0  # of fractions in float32
    wrong = (weights < -slack) | (weights > most + slack)
    if wrong.any():
        first = tuple(np.argwhere(wrong)[0])
        starts = [start for start, _ in block_info[0]["array-location"]] if block_info else 0
        numbers = zip(dims, np.add(first, starts), strict=True)
        cell = ", ".join(f"{dim} number {i}" for dim, i in numbers)
        fraction = "lie between 0 and 1, or 0 and 100 with the `units` %"
        raise InputError(
            f"`{where}` must {fraction if most == 1 else 'be finite and not negative'}, got "
            f"{weights[first]:.6g}{f' at {cell}' if cell else ''}: {text.split(';')[0]}"
            f"{', maybe a division by 0' if np.isinf(weights[first]) else ''}. "
            "A cell that does not count has the weight 0 or NaN."
        )
    return np.clip(np.nan_to_num(weights), 0, most)


def _is_flat(grid: Grid, factor: Factor | None) -> bool:
    """Whether the measure has a dimension along the globe, as areas have."""
    dims = [] if factor is None else [str(dim) for dim in factor.weights.dims]
    return bool(grid.horizontal(dims))


def _rest(grid: Grid, over: tuple[str, ...], factor: Factor | None) -> list[str]:
    """The dimensions of `over` that the measure lacks."""
    has = [] if factor is None else [str(dim) for dim in factor.weights.dims]
    rest = [dim for dim in over if dim not in has]
    areas = grid.area_dims([*has, *rest])
    split = [dim for dim in rest if dim in areas]
    if factor and split and set(has) & set(areas):
        raise InputError(
            f"`measure` is {factor.where} and lacks {split[0]!r}: half of an area cannot be found. "
            f"Give both, as in measure * xr.ones_like(dataset[{split[0]!r}])."
        )
    return rest


def _product(factors: list[Factor], data: xr.DataArray) -> xr.DataArray:
    """All factors multiplied, in the order of the dimensions of the data and on its coordinates."""
    arrays = [factor.weights.drop_vars(list(factor.weights.coords)) for factor in factors]
    arrays.sort(key=lambda array: -array.ndim)  # so that the product lies in memory as the data do
    dims = [dim for dim in data.dims if any(dim in array.dims for array in arrays)]
    if data.chunks is not None and 8 * math.prod(data.sizes[dim] for dim in dims) > SMALL:
        arrays = [a.chunk({d: data.chunksizes[d] for d in a.dims}) for a in arrays]
    weights = math.prod(arrays[1:], start=arrays[0]).transpose(*dims)
    coords = {dim: data.coords[dim].variable for dim in dims if dim in data.coords}
    return xr.DataArray(weights.variable, coords, name="cell_measure")


REGION = "region"


@dataclass(frozen=True, eq=False)
class Points:
    """What a law sums; arrays are without coordinates, which were compared before."""

    fields: Mapping[str, xr.DataArray]
    weights: Mapping[str, xr.Variable]  # of each: cell size times factor, 0 where left out
    cells: xr.Variable  # cell sizes of the first, 0 where left out
    regions: xr.Variable | None  # number of the region of each point, from 0
    rows: Mapping[str, int]  # the axes of the rows and their sizes, REGION last if there are any
    coords: Mapping[str, xr.DataArray]  # of the rows
    unit: str | None  # of the total
    mean_unit: str | None  # of the mean over the cells
    measure: str  # in words
    remarks: tuple[str, ...] = ()  # for the report: what was found, assumed or converted

    @property
    def first(self) -> xr.DataArray:
        return next(iter(self.fields.values()))


@dataclass(frozen=True, eq=False)
class Term:
    """One variable of a law."""

    cells: xr.Variable  # cell sizes, 0 where the law does not count a point
    weights: xr.Variable  # and times the factor, 0 where that is missing
    mean_unit: str | None  # of the variable times its factor
    unit: str | None  # and times the cell size
    measure: str


def points(dataset: xr.Dataset, law: Law, member: str | None) -> Points:
    """The law's points in this dataset; `member` is the dimension of an ensemble, if any."""
    fields = {name: _field(dataset, name) for name in law.factors}
    rows = _rows(fields, law, member)
    first = next(iter(fields.values()))
    coords = {dim: first[dim] for dim in rows if dim in first.coords}
    one = {member: 0} if member else {}  # a law asks the same of all members
    like = {name: f.isel(one, drop=True, missing_dims="ignore") for name, f in fields.items()}
    regions, names = _regions(dataset, law, like, rows)
    terms = {name: _term(dataset, law, field, regions, member) for name, field in like.items()}
    unit = next((term.unit for term in terms.values() if term.unit), None)
    weights, said = {}, [f"units of {name} assumed: {u}" for name, u in law.assume_units.items()]
    for name, term in terms.items():
        called = name if term.unit else f"{name} times its factor"
        found = conversion(called, term.unit, unit, f"the rest of {law.label}")
        weights[name] = term.weights if found.factor == 1 else term.weights * found.factor
        said += found.remarks
    if law.where is not None:
        said.append(f"points count where {in_words(law.where)} is not 0")
    if law.regions is not None:
        said.append(f"regions: {len(names)} of {in_words(law.regions)}")
        rows[REGION] = len(names)
        coords[REGION] = xr.DataArray(names, dims=REGION, name=REGION)
    main = next(iter(terms.values()))
    return Points(
        fields=fields,
        weights=weights,
        cells=main.cells,
        regions=None if regions is None else regions.clip(0),
        rows=rows,
        coords=coords,
        unit=unit,
        mean_unit=main.mean_unit,
        measure=main.measure,
        remarks=tuple(said),
    )


def _term(
    dataset: xr.Dataset,
    law: Law,
    field: xr.DataArray,
    regions: xr.Variable | None,
    member: str | None,
) -> Term:
    over = tuple(dim for dim in law.dims if dim in field.dims)
    sizes = cell_measure(dataset, str(field.name), over, law.measure, law.radius, law.fraction)
    given = law.factors[str(field.name)]
    for what, each in (("measure", sizes), (f"factor of {field.name}", given)):
        if member and member in getattr(each, "dims", ()):
            raise InputError(
                f"`{what}` changes along {member!r} ({getattr(each, 'description', 'as given')}). "
                "It must be the same for all members: give that of one surface pressure or one "
                "grid, or `std` or `how` instead of `member`, which makes each a field of its own."
            )
    factor = array(dataset, given, f"factor of {field.name}", field)
    cells = sizes.variable
    if law.where is not None:
        mask, longer = _for_all(taken(dataset, law.where, "where"), field, law.dims)
        mask = array(dataset, law.where if longer else mask, "where", field)
        cells = cells * (mask.variable.fillna(0) != 0)
    if regions is not None:
        cells = cells * (regions >= 0)
    if factor.dims:
        cells = cells * factor.variable.notnull()
    its = factor.attrs.get("units")
    if isinstance(given, int | float):  # a plain number: only 1 and -1 leave the unit of the field
        its = "1" if abs(given) == 1 else None
    mean_unit = product(field.attrs.get("units"), its)
    unit = product(mean_unit, sizes.attrs.get("units"))
    by = factor.variable.astype(float).fillna(0.0)
    weights = cells * by if by.dims or by != 1 else cells
    return Term(cells, weights, mean_unit, unit, sizes.attrs["description"])


def _field(dataset: xr.Dataset, name: str) -> xr.DataArray:
    field = find(dataset, name, "variables")
    if field.dtype.kind != "f":
        raise InputError(
            f"`{name}` holds {field.dtype}, not floats. Decode packed integers, or convert it."
        )
    for dim, size in field.sizes.items():
        if not size:
            raise InputError(f"`{name}` is empty: it has no entries along {dim!r}.")
    return field


def _rows(fields: Mapping[str, xr.DataArray], law: Law, member: str | None) -> dict[str, int]:
    """Axes that are not summed over, the same for all variables of the law."""
    known = {str(dim) for field in fields.values() for dim in field.dims}
    for dim in law.dims:
        if dim == member:
            raise InputError(f"`over` names {dim!r}, the members: each keeps a total of its own.")
        if dim not in known:
            raise InputError(
                f"`over`: {law.label} has no dimension {dim!r}. {nearest(dim, sorted(known))}"
            )
    left = {
        name: {str(d): n for d, n in field.sizes.items() if d not in law.dims and d != member}
        for name, field in fields.items()
    }
    (name, rows), *others = left.items()
    for other, theirs in others:
        if theirs != rows:
            raise InputError(
                f"the variables of a law must have the same dimensions beside `over`: `{name}` has "
                f"{rows or 'none'}, `{other}` has {theirs or 'none'}."
            )
    return rows


def _regions(
    dataset: xr.Dataset, law: Law, fields: Mapping[str, xr.DataArray], rows: Mapping[str, int]
) -> tuple[xr.Variable | None, np.ndarray]:
    """The number of each point's region, -1 for none; and what the regions are called."""
    if law.regions is None:
        return None, np.empty(0)
    found = taken(dataset, law.regions, "regions")
    for field in fields.values():
        match(found, field, "regions")
    if REGION in rows:
        raise InputError(
            f"`regions` make an axis {REGION!r}: rename the one that is there already."
        )
    for dim in found.dims:
        if dim in rows:
            raise InputError(f"`regions` change along {dim!r}, which `over` does not name.")
    fill = found.encoding.get("_FillValue", found.attrs.get("_FillValue"))
    present = found.notnull().values & (True if fill is None else found.values != fill)
    if not present.any():
        raise InputError("`regions` has no region: every point is missing.")
    names, codes = np.unique(found.values[present], return_inverse=True)
    numbers = np.full(found.shape, -1)
    numbers[present] = codes
    return xr.Variable(found.dims, numbers), names
