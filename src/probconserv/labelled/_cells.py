"""The weight of every cell in a sum: given, named by the file, or found from the coordinates."""

import math
import re
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from .. import _values as check
from .._errors import InputError
from . import _units
from ._coordinates import (
    cell_methods,
    coordinates_of,
    globe_of,
    is_horizontal,
    positive,
    setting,
)
from ._lengths import Factor, area_dims, describe, from_coordinates
from ._lookup import Given, array, match
from ._time import decoded, tells_time

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
        A number for all cells (1: plain sums), a name in the dataset, or an array, with missing
        values where a cell does not count; a dimension of `over` that it lacks is found from the
        coordinates.
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
    check.choice("variable", variable, [str(name) for name in dataset.data_vars])
    dataset = decoded(dataset)
    data = dataset[variable]
    over = _dimensions(data, over)
    globe = globe_of(dataset, data, radius)
    if not isinstance(given, Real):
        _refuse_sums(dataset, data, over)
    factor, missing = (
        _named_by_file(dataset, data, over) if given is None else (_given(dataset, data, given), "")
    )
    kind = _area_type(dataset, data, over)
    named = dataset[str(factor.weights.name)] if factor and given is None else None
    of_kind = named is not None and f"where {kind}" in setting(named, "cell_methods")
    part, remark = _fraction(dataset, data, kind, fraction, given is not None or of_kind)
    factors = [factor] if factor else []
    if not (factor and factor.weights.ndim == 0):
        rest = _rest(dataset, data, over, factor)
        factors += from_coordinates(dataset, variable, rest, globe)
    factors += [part] if part else []
    weights = _product(factors, data)
    weights.attrs["description"] = describe(factors, globe) + missing + remark
    unit = _units.product(*(factor.units for factor in factors))
    if unit is not None:
        weights.attrs["units"] = unit
    return weights


def _dimensions(data: xr.DataArray, over: tuple[str, ...]) -> tuple[str, ...]:
    over = (over,) if isinstance(over, str) else tuple(over)
    for dim in over:
        check.choice("over", dim, [str(name) for name in data.dims])
    if not over or len(set(over)) < len(over):
        raise InputError(
            f"`over` must name dimensions of {data.name!r}, each once: "
            f"{', '.join(map(str, data.dims)) or 'it has none'}; got {', '.join(over) or 'none'}."
        )
    return over


def _refuse_sums(dataset: xr.Dataset, data: xr.DataArray, over: tuple[str, ...]) -> None:
    """Values that are amounts of their cells are not to be multiplied by sizes."""
    coordinates = coordinates_of(dataset, str(data.name))
    flat = ("area",) if any(is_horizontal(dim, coordinates) for dim in over) else ()
    if any(method == "sum" for method, _ in cell_methods(data, *over, *flat)):
        raise InputError(
            f"the values of {data.name!r} are sums over their cells already (cell_methods "
            f"{setting(data, 'cell_methods')!r}), not to be weighed by the sizes of cells. "
            "`measure=1` means plain sums; correct `cell_methods` if they are means."
        )


def _given(dataset: xr.Dataset, data: xr.DataArray, given: Given) -> Factor:
    found = array(dataset, given, "measure", data)
    if isinstance(given, str | xr.DataArray):
        name = f" {found.name}" if found.name else ""
        text = f"the variable{name}" if isinstance(given, str) else f"the array{name} given"
        text = text if name else str(found.attrs.get("description", text))
        return _factor(found, data, "measure", text)
    positive("measure", given)
    plain = given == 1
    text = "plain sums: every cell has the weight 1" if plain else f"{given:g} for every cell"
    return Factor(found, "1" if plain else None, text)


def _named_by_file(
    dataset: xr.Dataset, data: xr.DataArray, over: tuple[str, ...]
) -> tuple[Factor | None, str]:
    """The volume that `cell_measures` names where all of it is summed over, else the area."""
    named = dict(re.findall(r"(\w+):\s*(\S+)", setting(data, "cell_measures")))
    remark = ""
    for kind in ("volume", "area"):
        name = named.get(kind)
        if name is None:
            continue
        if name not in dataset.variables:
            remark += f"; cell_measures names {kind}: {name}, which is not in the dataset"
            continue
        its, where = dataset[name], f"cell_measures of {data.name}"
        dims = {dim for dim in its.dims if not (dim in its.coords and tells_time(its[dim]))}
        if dims <= set(over) if kind == "volume" else dims & set(over):
            match(its, data, where)
            return _factor(its, data, where, f"the {kind} {name}"), remark
    return None, remark


def _fraction(
    dataset: xr.Dataset, data: xr.DataArray, kind: str | None, given: Any, measured: bool
) -> tuple[Factor | None, str]:
    """The part of each cell that the field is a mean over, and a remark."""
    if given is None and kind is None:
        return None, ""
    if given is None and measured:
        return None, f"; taken for the areas of {kind}, which the means of {data.name} are over"
    given = _found(dataset, data, kind) if given is None else given
    found = array(dataset, given, "fraction", data)
    percent = str(found.attrs.get("units")).strip() in ("%", "percent")
    parts = (found / 100 if percent else found).assign_attrs(units="1")
    name = found.name or (f"{found:g}" if not found.ndim else "given")
    text = f"the fraction {name}" + " in per cent" * percent
    return _factor(parts, data, "fraction", text, 1.0), ""


def _area_type(dataset: xr.Dataset, data: xr.DataArray, over: tuple[str, ...]) -> str | None:
    """What the field is a mean over by its cell_methods, such as land; None for whole cells."""
    pattern = r"((?:\w+: *)+)\w+ +where +(\w+)(?: +over +(\w+))?"
    coordinates = coordinates_of(dataset, str(data.name))
    flat = [dim for dim in over if is_horizontal(dim, coordinates)]
    for names, kind, base in re.findall(pattern, setting(data, "cell_methods")):
        on_area = set(re.findall(r"\w+", names)) & {"area", *flat}
        if flat and on_area and (base or kind) != "all_area_types":
            return str(base or kind)
    return None


def _found(dataset: xr.Dataset, data: xr.DataArray, kind: str | None) -> str:
    """The variable that is the fraction of this kind by its standard_name."""
    name = f"{kind}_area_fraction"
    there = [n for n, v in dataset.variables.items() if v.attrs.get("standard_name") == name]
    if len(there) != 1:
        raise InputError(
            f"the values of {data.name!r} are means over the {kind} of each cell (cell_methods "
            f"{setting(data, 'cell_methods')!r}), and {len(there) or 'no'} variables have the "
            f"standard_name {name}. Give the part of each cell that is {kind} as `fraction` "
            f"(1: all of it), or its area as `measure`."
        )
    return str(there[0])


def _factor(
    measure: xr.DataArray, data: xr.DataArray, where: str, text: str, most: float = LARGEST
) -> Factor:
    """Weights from 0 to `most`, with 0 for missing ones and a word on those."""
    unit = str(measure.attrs.get("units", "")).strip() or None
    weights = xr.DataArray(measure.variable.astype(np.float64), name=measure.name)
    if weights.nbytes > SMALL and weights.chunks is not None:
        lazy = weights.data.map_blocks(_usable, where=where, most=most)
        return Factor(weights.copy(data=lazy), unit, text)
    weights = weights.compute()
    missing = weights.isnull().variable
    if missing.any():
        first = data.variable.isel({dim: 0 for dim in data.dims if dim not in weights.dims})
        lost = int((first.notnull() & missing).sum())
        text += f" (missing in {lost} cells with values of {data.name})" * (lost > 0)
    weights = weights.copy(data=_usable(weights.values, where, most))
    if not weights.any():
        raise InputError(f"`{where}` must have a cell that counts; all its weights are 0 or NaN.")
    return Factor(weights, unit, text)


def _usable(weights: npt.NDArray[np.float64], where: str, most: float) -> npt.NDArray[np.float64]:
    """The weights with 0 for missing ones; an error for those that no cell can have."""
    slack = 1e-6 if most == 1 else 0.0  # of fractions in float32
    wrong = (weights < -slack) | (weights > most + slack)
    if wrong.any():
        fraction = "lie between 0 and 1, or 0 and 100 with the `units` %"
        raise InputError(
            f"`{where}` must {fraction if most == 1 else 'be finite and not negative'}, got "
            f"{weights[wrong][0]:.6g}. A cell that does not count has the weight 0 or NaN."
        )
    return np.clip(np.nan_to_num(weights), 0, most)


def _rest(
    dataset: xr.Dataset, data: xr.DataArray, over: tuple[str, ...], factor: Factor | None
) -> list[str]:
    """The dimensions of `over` that the measure lacks."""
    has = [] if factor is None else [str(dim) for dim in factor.weights.dims]
    rest = [dim for dim in over if dim not in has]
    areas = area_dims(dataset, str(data.name), [*has, *rest])
    split = [dim for dim in rest if dim in areas]
    if factor and split and set(has) & set(areas):
        raise InputError(
            f"`measure` is {factor.where}, which lacks {split[0]!r}, and half of an area cannot be "
            "found. Give it with both dimensions of the areas, for example as "
            f"measure * xr.ones_like(dataset[{split[0]!r}])."
        )
    return rest


def _product(factors: list[Factor], data: xr.DataArray) -> xr.DataArray:
    """All factors multiplied, in the order of the dimensions of the data and on its coordinates."""
    arrays = [factor.weights.drop_vars(list(factor.weights.coords)) for factor in factors]
    arrays.sort(key=lambda array: -array.ndim)  # so that the product lies in memory as the data do
    dims = [dim for dim in data.dims if any(dim in array.dims for array in arrays)]
    if data.chunks is not None and 8 * math.prod(data.sizes[dim] for dim in dims) > SMALL:
        arrays = [a.chunk({d: data.chunksizes[d] for d in a.dims}) for a in arrays]
    product = math.prod(arrays[1:], start=arrays[0]).transpose(*dims)
    coords = {dim: data.coords[dim].variable for dim in dims if dim in data.coords}
    return xr.DataArray(product.variable, coords, name="cell_measure")
