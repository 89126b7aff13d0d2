"""The weight of every cell in a sum: given, named by the file, or found from the coordinates."""

import math
import re
from collections import Counter
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from .. import _checks as check
from .._errors import InputError
from . import _units
from ._coordinates import setting
from ._lengths import Factor, describe, from_coordinates, split_angles
from ._time import decoded, tells_time

EARTH = 6_371_229.0  # metres
SMALL = 1 << 28  # bytes of weights that are held in memory; larger ones stay lazy


def cell_measure(
    dataset: xr.Dataset,
    variable: str,
    over: tuple[str, ...],
    given: str | float | xr.DataArray | None = None,
    radius: float = EARTH,
) -> xr.DataArray:
    """Gives the weight of every cell of `variable` in a sum over the dimensions `over`.

    The total is `(dataset[variable] * weights).sum(over)`. The weights are those `given`, or those
    that the variable's `cell_measures` names, or areas on a sphere from latitudes and longitudes
    times lengths along every other dimension, from bounds where a coordinate has them and half
    way between the centres where not. `units` and `description` are attributes of the result.

    Args:
        dataset: holds the variable, its coordinates and their bounds; it is not changed.
        variable: name of the field.
        over: names of the dimensions to sum over.
        given: a number for all cells (1: plain sums), a name in the dataset, or an array, with
            missing values where a cell does not count; a dimension of `over` that it lacks is
            found from the coordinates.
        radius: of the sphere, in metres.

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
    _positive("radius", radius)
    factor, remark = _first(dataset, data, given, over)
    factors = [factor] if factor else []
    if not (factor and factor.weights.ndim == 0):
        rest = _rest(dataset, data, over, factor)
        factors += from_coordinates(dataset, variable, rest, radius)
    weights = _product(factors, data)
    weights.attrs["description"] = describe(factors, radius) + remark
    unit = _units.product(*(factor.units for factor in factors))
    if unit is not None:
        weights.attrs["units"] = unit
    return weights


def _dimensions(data: xr.DataArray, over: tuple[str, ...]) -> tuple[str, ...]:
    over = (over,) if isinstance(over, str) else tuple(over)
    if not over:
        raise InputError(
            f"`over` must name at least one dimension of {data.name!r}: {_list(data.dims)}."
        )
    for dim in over:
        check.choice("over", dim, [str(name) for name in data.dims])
    twice = [dim for dim, n in Counter(over).items() if n > 1]
    if twice:
        raise InputError(f"`over` must name each dimension once, got {twice[0]!r} twice.")
    return over


def _list(dims: tuple[Any, ...]) -> str:
    return ", ".join(map(str, dims)) or "it has none"


def _positive(name: str, number: Any) -> None:
    real = isinstance(number, Real) and not isinstance(number, bool)
    if not (real and 0 < number < math.inf):
        raise InputError(f"`{name}` must be a positive finite number, got {number!r}.")


def _first(
    dataset: xr.Dataset, data: xr.DataArray, given: Any, over: tuple[str, ...]
) -> tuple[Factor | None, str]:
    """The weights that nobody has to compute, and a remark on those that are missing."""
    if given is None:
        return _named_by_file(dataset, data, over)
    if isinstance(given, str):
        check.choice("measure", given, [str(name) for name in dataset.variables])
        return _as_factor(dataset[given], data, "measure", f"the variable {given}"), ""
    if isinstance(given, xr.DataArray):
        what = "the array given" if given.name is None else f"the array {given.name} given"
        return _as_factor(given, data, "measure", what), ""
    if not isinstance(given, Real):
        raise InputError(
            "`measure` must be a number, the name of a variable, or a DataArray, got "
            f"{type(given).__name__}. Label an array: xr.DataArray(values, dims={data.dims})."
        )
    _positive("measure", given)
    weights = xr.DataArray(np.float64(given))
    plain = given == 1
    text = "plain sums: every cell has the weight 1" if plain else f"{given:g} for every cell"
    return Factor(weights, "1" if plain else None, text), ""


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
        elif _applies(kind, dataset[name], over):
            where = f"cell_measures of {data.name}"
            return _as_factor(dataset[name], data, where, f"the {kind} {name}"), remark
    return None, remark


def _applies(kind: str, measure: xr.DataArray, over: tuple[str, ...]) -> bool:
    dims = {dim for dim in measure.dims if not (dim in measure.coords and tells_time(measure[dim]))}
    return dims <= set(over) if kind == "volume" else bool(dims & set(over))


def _as_factor(measure: xr.DataArray, data: xr.DataArray, where: str, text: str) -> Factor:
    extra = [dim for dim in measure.dims if dim not in data.dims]
    if extra:
        raise InputError(
            f"`{where}` has the dimension {extra[0]!r}, which {data.name!r} does not have; it may "
            f"have {_list(data.dims)}. Sum, select or rename that dimension."
        )
    for dim in measure.dims:
        _same_places(where, measure, data, str(dim))
    weights = xr.DataArray(measure.variable.astype(np.float64), name=measure.name)
    lazy = weights.nbytes > SMALL and weights.chunks is not None
    weights = xr.apply_ufunc(
        _checked,
        weights if lazy else weights.compute(),
        kwargs={"where": where},
        dask="parallelized",
        output_dtypes=[np.float64],
    )
    if not lazy and not weights.values.any():
        raise InputError(f"`{where}` must have a cell that counts; all its weights are 0 or NaN.")
    return Factor(weights, str(measure.attrs.get("units", "")).strip() or None, text)


def _checked(weights: npt.NDArray[np.float64], where: str) -> npt.NDArray[np.float64]:
    """The weights with 0 for missing ones; an error for those that no cell can have."""
    wrong = (weights < 0) | np.isinf(weights)
    if wrong.any():
        raise InputError(
            f"`{where}` must be finite and not negative, got {weights[wrong][0]:.6g}. A cell that "
            "does not count has the weight 0 or NaN."
        )
    return np.nan_to_num(weights)


def _same_places(where: str, measure: xr.DataArray, data: xr.DataArray, dim: str) -> None:
    """Nothing is aligned in silence: the weights lie where the data lie, entry by entry."""
    sizes = measure.sizes[dim], data.sizes[dim]
    if sizes[0] != sizes[1]:
        raise InputError(
            f"`{where}` has {sizes[0]} entries along {dim!r} but {data.name!r} has {sizes[1]}. "
            "Give it on the same grid."
        )
    if dim not in measure.coords or dim not in data.coords:
        return
    theirs, ours = measure[dim].values, data[dim].values
    differ = _differ(theirs, ours)
    if differ.any():
        i = int(np.flatnonzero(differ)[0])
        raise InputError(
            f"`{where}` and {data.name!r} differ along {dim!r}: entry {i} is {theirs[i]} and "
            f"{ours[i]}. Put both on the same coordinates, in the same order."
        )


def _differ(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Entries that differ by more than the rounding of a stored coordinate."""
    if not (a.dtype.kind in "iuf" and b.dtype.kind in "iuf"):
        return np.asarray(a != b)
    a, b = a.astype(np.float64), b.astype(np.float64)
    spacing = np.abs(np.diff(b)).min() if b.size > 1 else np.abs(b).max(initial=0) * 1e-3
    return np.asarray(~(np.abs(a - b) <= 1e-3 * spacing))


def _rest(
    dataset: xr.Dataset, data: xr.DataArray, over: tuple[str, ...], factor: Factor | None
) -> list[str]:
    """The dimensions of `over` that the measure lacks."""
    if factor is None:
        return list(over)
    has = {str(dim) for dim in factor.weights.dims}
    rest = [dim for dim in over if dim not in has]
    split = split_angles(dataset, str(data.name), has, rest)
    if split:
        raise InputError(
            f"`measure` is {factor.where}, which lacks {split[0]!r}, and half of an area cannot be "
            "found. Give it with both dimensions of the areas, for example as "
            f"measure * xr.ones_like(dataset[{split[0]!r}])."
        )
    return rest


def _product(factors: list[Factor], data: xr.DataArray) -> xr.DataArray:
    """All factors multiplied, in the order of the dimensions of the data and on its coordinates."""
    arrays = [factor.weights.drop_vars(list(factor.weights.coords)) for factor in factors]
    dims = [dim for dim in data.dims if any(dim in array.dims for array in arrays)]
    if data.chunks is not None and 8 * math.prod(data.sizes[dim] for dim in dims) > SMALL:
        arrays = [a.chunk({d: data.chunksizes[d] for d in a.dims}) for a in arrays]
    product = math.prod(arrays[1:], start=arrays[0]).transpose(*dims)
    coords = {dim: data.coords[dim].variable for dim in dims if dim in data.coords}
    return xr.DataArray(product.variable, coords, name="cell_measure")
