"""Areas of the faces of an unstructured mesh (UGRID), from the coordinates of their nodes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from ..support.errors import InputError
from ..support.sphere import Globe, polygon_areas
from ..support.tolerances import SINGLE
from ._attributes import product, scale, setting, units
from ._coordinates import BLOCK, LATITUDE, LONGITUDE, AxisSizes, FileGrid, angle, numbers, plane
from ._metrics import AREAS

Array = npt.NDArray[Any]


def face_areas(grid: FileGrid, over: list[str], globe: Globe) -> AxisSizes | None:
    """The areas of the faces that a variable lies on; None where these are not summed over."""
    name = setting(grid.data, "mesh")
    if not name or not grid.horizontal(over):
        return None
    if name not in grid.dataset.variables:
        raise _unknown(grid, "there is no variable of that name to say what it is made of")
    if (location := setting(grid.data, "location")) != "face":
        raise _unknown(grid, f"`location` is {location or 'missing'!r}, and only faces have areas")
    faces, *_ = _named(grid, "face_node_connectivity")
    along = [str(dim) for dim in faces.dims if dim in grid.data.dims]
    if faces.ndim != 2 or len(along) != 1:
        rule = "must have the dimension of the faces and one of their nodes"
        raise _unknown(grid, f"{faces.name!r} {rule}, got {faces.dims}")
    if along[0] not in over:
        return None
    nodes = _named(grid, "node_coordinates")
    corners = _corners(grid, faces.transpose(along[0], ...), nodes[0].size)
    areas, unit, words = _areas(grid, nodes, corners, globe)
    empty = int((areas == 0).sum())
    where = f"areas of the faces of {name} from {' and '.join(str(each.name) for each in nodes)}"
    where += f", {words}" + f" ({empty} faces without an area count as 0)" * (empty > 0)
    return AxisSizes(xr.DataArray(areas, dims=along[0]), unit, where)


def _unknown(grid: FileGrid, why: str) -> InputError:
    mesh = setting(grid.data, "mesh")
    return InputError(f"the mesh {mesh!r} of {grid.name!r} (UGRID) gives no areas: {why}. {AREAS}")


def _named(grid: FileGrid, key: str) -> list[xr.DataArray]:
    """The variables that the mesh names in an attribute."""
    names = setting(grid.dataset[setting(grid.data, "mesh")], key).split()
    lost = [name for name in names if name not in grid.dataset.variables]
    if lost or not names:
        raise _unknown(grid, f"its `{key}` {f'{lost[0]!r} is not there' if lost else 'is missing'}")
    return [grid.dataset[name] for name in names]


def _corners(grid: FileGrid, faces: xr.DataArray, nodes: int) -> Array:  # (F, n), -1 for none
    """The nodes of every face, counted from 0."""
    start, fill = int(faces.attrs.get("start_index", 0)), faces.attrs.get("_FillValue")
    given = faces.values.astype(np.float64)
    there = np.isfinite(given) & (given != (np.nan if fill is None else fill)) & (given >= start)
    found = np.where(there, given - start, -1).astype(np.int64)
    first = found[there].min(initial=nodes)
    if found.max(initial=-1) >= nodes or ("start_index" not in faces.attrs and first == 1):
        raise _unknown(
            grid,
            f"{faces.name!r} has nodes {first + start} to {found.max() + start}, and there are "
            f"{nodes} of them, counted from {start}. Correct its `start_index`",
        )
    return found


def _areas(
    grid: FileGrid, nodes: list[xr.DataArray], corners: Array, globe: Globe
) -> tuple[Array, str, str]:
    """The area of every face, its unit and how it was found: on the sphere or in a plane."""
    kinds = {angle(each): numbers(each, each) for each in nodes}
    if {LATITUDE, LONGITUDE} <= set(kinds):
        parts = _by_block(polygon_areas, kinds[LATITUDE], kinds[LONGITUDE], corners)
        if (share := parts.sum() / (4 * np.pi)) > 1 + SINGLE:
            raise _unknown(grid, f"its faces cover {share:.6g} times the globe")
        return globe.radius**2 * parts, "m2", f"joined by great circles {globe}"
    if len(nodes) != 2 or any(scale(each, "m") is None for each in nodes):
        said = ", ".join(f"{each.name} in {units(each) or 'no units'!r}" for each in nodes)
        raise _unknown(grid, f"its nodes must lie in degrees or in lengths, got {said}")
    x, y = (numbers(each, each) for each in nodes)
    unit = product(units(nodes[0]), units(nodes[1]))
    return _by_block(_plane_areas, y, x, corners), str(unit), plane(nodes[0], grid, True)


def _by_block(area: Callable[[Array, Array], Array], y: Array, x: Array, corners: Array) -> Array:
    """The areas of polygons, some faces at a time; a corner that is missing is the first again."""
    found = np.empty(len(corners))
    for start in range(0, len(corners), BLOCK):
        block = slice(start, start + BLOCK)
        at = np.where(corners[block] < 0, corners[block, :1], corners[block])
        found[block] = area(y[at], x[at])
    return found


def _plane_areas(y: Array, x: Array) -> Array:  # (F, n) -> (F,)
    """Half the sum of the cross products of neighbouring corners, seen from the first."""
    y, x = y - y[:, :1], x - x[:, :1]
    return np.abs((x[:, :-1] * y[:, 1:] - x[:, 1:] * y[:, :-1]).sum(axis=-1)) / 2
