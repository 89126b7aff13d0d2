"""Arrays of a labelled dataset, by names: what `Grids` is made of."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..support import checks as check
from ..support.errors import InputError
from ..support.extras import missing

Names = str | Sequence[str]
TIME = "t", "time"  # what an axis of time is called


def open_dataset(path: Path) -> Any:
    """The dataset of a Zarr store or a NetCDF file."""
    try:
        import xarray
    except ImportError as error:
        raise ImportError(missing("xarray", "files")) from error
    if not path.exists():
        raise InputError(f"`path` {path} does not exist.")
    try:
        if path.is_dir():
            return xarray.open_zarr(path, consolidated=False, chunks=None)
        return xarray.open_dataset(path)
    except (ValueError, OSError) as error:  # of a folder or file that is no dataset
        reason = str(error).splitlines()[0][:120]
        raise InputError(f"`path` {path} is no Zarr store or NetCDF file: {reason}") from None


def arrays_of(
    dataset: Any, inputs: Names, targets: Names, sample: str, totals: Names | None
) -> tuple[NDArray[Any], NDArray[Any], dict[str, NDArray[Any]], NDArray[Any] | None]:
    """Inputs, targets, coordinates and totals."""
    if not hasattr(dataset, "data_vars"):
        raise InputError(
            f"`dataset` must be an xarray.Dataset, got {type(dataset).__name__}. `Grids.open` "
            "reads a file."
        )
    asked = _variables(dataset, "targets", targets)
    dims = [str(d) for d in asked[0].dims]
    if sample not in dims:
        raise InputError(
            f"`sample` must be a dimension of {asked[0].name}, which has {', '.join(dims)}; got "
            f"{sample!r}."
        )
    grid = sorted((d for d in dims if d != sample), key=lambda d: d not in TIME)  # time first
    dataset = dataset.isel({d: slice(None, None, -1) for d in grid if _falls(dataset, d)})
    asked, known = _variables(dataset, "targets", targets), _variables(dataset, "inputs", inputs)
    for v in asked:
        if not {sample, *grid} <= set(v.dims):
            raise InputError(
                f"`targets` must all be on {', '.join([sample, *grid])}; {v.name} is on "
                f"{', '.join(map(str, v.dims))}."
            )
    size = asked[0].sizes[sample]
    numbers = all(set(v.dims) <= {sample} for v in known)
    shaped = [_array(v, "inputs", sample, [] if numbers else grid, size) for v in known]
    shape = np.broadcast_shapes(*(a.shape for a in shaped))
    given = np.stack([np.broadcast_to(a, shape) for a in shaped], axis=1)
    fields = np.stack([_array(v, "targets", sample, grid, size) for v in asked], axis=1)
    sums = None
    if totals is not None:
        each = _variables(dataset, "totals", totals)
        if len(each) != len(asked):
            raise InputError(
                f"`totals` must name one variable for each of the {len(asked)} targets, got "
                f"{len(each)}."
            )
        sums = np.stack([_array(v, "totals", sample, grid[:-1], size) for v in each], axis=1)
        sums = np.broadcast_to(sums, fields.shape[:-1])
    if len(asked) == 1:
        fields, sums = fields[:, 0], None if sums is None else sums[:, 0]
    return given, fields, {name: _coordinate(dataset, name) for name in grid}, sums


def values_of(dataset: Any, names: Names, sample: str) -> NDArray[Any]:
    """Variables that have a dimension of samples, first, and any others; several side by side."""
    each = _variables(dataset, "totals", names)
    for v in each:
        if sample not in v.dims:
            raise InputError(f"`totals` {v.name} must have the dimension {sample!r}, the samples.")
    values = [np.asarray(v.transpose(sample, ...).values) for v in each]
    if len({v.shape for v in values}) > 1:
        raise InputError("`totals` must be variables on the same dimensions.")
    return values[0] if len(values) == 1 else np.stack(values, axis=1)


def _variables(dataset: Any, argument: str, names: Names) -> list[Any]:
    listed = [names] if isinstance(names, str) else list(names or [])
    if not listed:
        raise InputError(f"`{argument}` must name a variable or more.")
    for name in listed:
        check.choice(argument, name, map(str, dataset.variables))
    return [dataset[name] for name in listed]


def _falls(dataset: Any, name: str) -> bool:
    """Whether a coordinate decreases, as latitudes often do."""
    return name in dataset.indexes and bool(dataset.indexes[name].is_monotonic_decreasing)


def _array(variable: Any, argument: str, sample: str, grid: list[str], size: int) -> NDArray[Any]:
    """(n, *grid), with size 1 along axes that it does not have; the same for all without sample."""
    extra = [str(d) for d in variable.dims if d not in (sample, *grid)]
    if extra:
        raise InputError(
            f"`{argument}` {variable.name} has the dimension {extra[0]}, which is neither `sample` "
            f"nor one of the grid, {', '.join(grid) or 'none'}."
        )
    order = [d for d in (sample, *grid) if d in variable.dims]
    values = np.asarray(variable.transpose(*order).values)
    shape = [variable.sizes.get(d, 1) for d in (sample, *grid)]
    return np.broadcast_to(values.reshape(shape), (size, *shape[1:]))


def _coordinate(dataset: Any, name: str) -> NDArray[Any]:
    if name not in dataset.coords:
        raise InputError(f"The dimension {name} has no coordinate. Add one with assign_coords.")
    values = np.asarray(dataset[name].values)
    if values.dtype == object:  # dates of other calendars
        values = (values - values[0]).astype("timedelta64[us]")
    if values.dtype.kind == "M":
        values = values - values[0]
    return values / np.timedelta64(1, "s") if values.dtype.kind == "m" else values
