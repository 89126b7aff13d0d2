"""What every cell weighs: its size, and the fraction of it that counts.

Each fact is taken from the first of these that is there:

cell size  the measure given; the volume or the area that `cell_measures` name; for dimensions that
           these lack, formula terms of levels, then coordinates
globe      the radius given; that of the grid mapping; 6371.229 km
fraction   the one given; by the standard name of what `cell_methods` are means over
"""

import math
import re
from collections.abc import Hashable, Sequence
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from ..support import values as check
from ..support.errors import InputError
from ..support.sphere import Globe
from ..support.tolerances import SINGLE
from ._arithmetic import calculated, is_arithmetic
from ._attributes import cell_methods, decoded, pairs, product, scale, setting, units
from ._grid import SHAPE, FileGrid, check_true, with_angles
from ._law import STORES, FileLaw, Given, array, match, taken
from ._repeated import ONCE, counted_once
from ._sizes import AxisSizes, cell_sizes, describe, face_areas
from ._time import tells_time
from ._vertical import formula_layers

SMALL = 1 << 28  # bytes of weights that are held in memory; larger ones stay lazy
OCEAN = re.compile(r"\b(e[12][tuvf]|areacello|volcello|nav_lat|pm)\b")  # in what it has
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
    grid = FileGrid(with_angles(decoded(dataset), variable), variable)
    over = FileLaw(variable, over).dims
    for dim in over:
        check.choice("over", dim, map(str, grid.data.dims))
    globe = globe_of(grid, radius)
    kind = _area_type(grid, over, given)
    measure, remark = _measure(grid, over, given)
    has = [] if measure is None else [str(dim) for dim in measure.weights.dims]
    factors = [measure] if measure else []
    if has or not measure:  # more than a number for all cells
        rest = _rest(grid, over, measure, has)
        faces = None if grid.horizontal(has) else face_areas(grid, rest, globe)
        rest = [dim for dim in rest if not faces or dim not in faces.weights.dims]
        layers = {dim: found for dim in rest if (found := formula_layers(grid, dim))}
        sized = [dim for dim in rest if dim not in layers]
        check_true(grid, sized)
        factors += [faces] if faces else []
        factors += cell_sizes(grid, sized, globe)
        factors += [AxisSizes(each.thickness, each.units, each.where) for each in layers.values()]
    of_kind = measure and f"where {kind}" in setting(measure.weights, "cell_methods")
    if kind and fraction is None and (of_kind or given is not None):
        remark += f"; taken for the areas of {kind}, which the means of {variable} are over"
    elif kind or fraction is not None:
        factors.append(_fraction(grid, kind, fraction))
    weights = _product(factors, grid.data)
    once = ONCE if measure and ONCE.items() <= measure.weights.attrs.items() else {}
    if not once and (has or not measure):  # weights that come from here have it done
        weights, copies = counted_once(grid, over, weights)
        once = ONCE if copies else {}
        remark += copies + (_doubts(grid, over, weights, measure.where) if measure else "")
    unit = product(*(factor.units for factor in factors))
    said = {"description": describe(factors, globe) + remark}
    return weights.assign_attrs({**once, **said, **({} if unit is None else {"units": unit})})


def _doubts(grid: FileGrid, over: tuple[str, ...], weights: xr.DataArray, measure: str) -> str:
    """A word on cells of an ocean that count and look like copies or land, in two entries of time.

    Where places are not known, the last columns of NEMO may be the first again; on land it may
    have 0.
    """
    flat = [dim for dim in grid.horizontal(over) if dim in weights.dims]
    ocean = OCEAN.search(" ".join([measure, *map(str, grid.data.coords)]))
    if not ocean or len(flat) != 2:  # values of others are not read for this
        return ""
    lost = grid.places is None and all(grid.along(dim) is None for dim in flat)

    def at(array: xr.DataArray, end: int) -> Any:
        one = array.isel({dim: end for dim in array.dims if dim not in flat})
        return one.transpose(*flat).values

    counted, values = at(weights, 0) > 0, np.stack([at(grid.data, end) for end in (0, -1)])
    said = ""
    for axis, dim in enumerate(flat):
        if not lost or counted.shape[axis] < 4:
            continue
        first, last = (values.take(ends, axis + 1) for ends in ([0, 1], [-2, -1]))
        both = counted.take([0, 1], axis) & counted.take([-2, -1], axis) & np.isfinite(first[0])
        if (first == last)[:, both].all() and len(np.unique(first[:, both])) > 2:
            said += (
                f"; the last two entries along {dim} have the values of the first two: if they are"
                " the same cells (a halo), they count twice, unless `where` leaves them out"
            )
    share = 100 * ((values == 0).all(0) & counted).sum() / max(1, counted.sum())
    if 1 < share < 100 and np.isfinite(values[:, counted]).all():
        said += (
            f"; {share:.3g} % of the values are 0 and none is missing: if that is land, it counts"
            " as water, unless `where` leaves it out"
        )
    return said


def globe_of(grid: FileGrid, radius: float | None) -> Globe:
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


def _area_type(grid: FileGrid, over: tuple[str, ...], given: Any) -> str | None:
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


def _measure(
    grid: FileGrid, over: tuple[str, ...], given: Given | None
) -> tuple[AxisSizes | None, str]:
    """The measure given, else what `cell_measures` names; and a remark on what is not there.

    A volume that is named counts where all of its dimensions are summed over.
    """
    if given is not None:
        own = isinstance(given, str) and (given in grid.dataset.variables or given.endswith(STORES))
        if is_arithmetic(given) and not own:
            given = calculated(grid.dataset, str(given))
        found, remark = for_all(taken(grid.dataset, given, "measure"), grid.data, over)
        found = array(grid.dataset, found, "measure", grid.data)
        if isinstance(given, Real):
            check.positive("measure", float(given))
            plain = AxisSizes(found, "1", "plain sums: every cell has the weight 1")
            return plain if given == 1 else AxisSizes(found, None, f"{given:g} for every cell"), ""
        text = str(found.attrs.get("description", "the array given"))
        text = f"the array {found.name} given" if found.name else text
        text = f"the variable {given}" if isinstance(given, str) else text
        thick = [unit for unit in ("m", "Pa") if scale(found, unit) is not None]
        if thick and len(set(found.dims) & set(over)) > 1:
            text += f" (in {units(found)}, as a thickness: areas do not count)"
        if any(scale(found, unit) is not None for unit in ("m-2", "m-3")):
            why = f"`measure` is in {units(found)!r}, the inverse of a size: {text}"
            raise InputError(f"{why}. Divide by it, as in 1/(pm*pn).")
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


def for_all(
    found: xr.DataArray, data: xr.DataArray, over: tuple[str, ...]
) -> tuple[xr.DataArray, str]:
    """Without axes of one entry that the data lack or have more of, such as time; and a remark."""
    one = [dim for dim in found.dims if found.sizes[dim] == 1 != data.sizes.get(dim)]
    one = [dim for dim in one if dim not in over]
    remark = "".join(f"; its one {dim} taken for all" for dim in one if dim in data.dims)
    return found.squeeze(one, drop=True), remark


def _fraction(grid: FileGrid, kind: str | None, given: Given | None) -> AxisSizes:
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
) -> AxisSizes:
    """Weights from 0 to `most`, with 0 for missing ones and a word on those."""
    unit = units(measure) or None
    weights = xr.DataArray(measure.variable.astype(np.float64), name=measure.name)
    if weights.nbytes > SMALL and weights.chunks is not None:
        lazy = weights.data.map_blocks(
            _usable, where=where, most=most, text=text, dims=weights.dims, meta=np.empty(0)
        )
        return AxisSizes(weights.copy(data=lazy), unit, text)
    weights = weights.compute()
    missing = weights.isnull().variable
    if missing.any():
        first = data.variable.isel({dim: 0 for dim in data.dims if dim not in weights.dims})
        lost = int((first.notnull() & missing).sum())
        text += f" (missing in {lost} cells with values of {data.name})" * (lost > 0)
    weights = weights.copy(data=_usable(weights.values, where, most, text, weights.dims))
    if not weights.any():
        raise InputError(f"`{where}` must have a cell that counts; all its weights are 0 or NaN.")
    return AxisSizes(weights, unit, text)


def _usable(
    weights: npt.NDArray[np.float64],
    where: str,
    most: float,
    text: str,
    dims: Sequence[Hashable],
    block_info: Any = None,  # from dask: where the block begins
) -> npt.NDArray[np.float64]:
    """The weights with 0 for missing ones; an error for those that no cell can have."""
    slack = SINGLE if most == 1 else 0.0  # of fractions in float32
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


def _rest(
    grid: FileGrid, over: tuple[str, ...], factor: AxisSizes | None, has: list[str]
) -> list[str]:
    """The dimensions of `over` that the measure lacks; half of an area is refused."""
    rest = [dim for dim in over if dim not in has]
    areas = grid.area_dims([*has, *rest])
    split = [dim for dim in rest if dim in areas]
    if factor and split and set(has) & set(areas):
        raise InputError(
            f"`measure` is {factor.where} and lacks {split[0]!r}: half of an area cannot be found. "
            f"Give both, as in measure * xr.ones_like(dataset[{split[0]!r}])."
        )
    return rest


def _product(factors: list[AxisSizes], data: xr.DataArray) -> xr.DataArray:
    """All factors multiplied, in the order of the dimensions of the data and on its coordinates."""
    arrays = [factor.weights.drop_vars(list(factor.weights.coords)) for factor in factors]
    arrays.sort(key=lambda array: -array.ndim)  # so that the product lies in memory as the data do
    dims = [dim for dim in data.dims if any(dim in array.dims for array in arrays)]
    if data.chunks is not None and 8 * math.prod(data.sizes[dim] for dim in dims) > SMALL:
        arrays = [a.chunk({d: data.chunksizes[d] for d in a.dims}) for a in arrays]
    weights = math.prod(arrays[1:], start=arrays[0]).transpose(*dims)
    coords = {dim: data.coords[dim].variable for dim in dims if dim in data.coords}
    return xr.DataArray(weights.variable, coords, name="cell_measure")
