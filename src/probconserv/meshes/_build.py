"""The cells and faces of a mesh, from edges or from lists, with the checks of what is given."""

import math
from collections.abc import Mapping, Sequence, Set
from numbers import Real
from typing import NamedTuple

from torch import Tensor

from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError
from ..support.tolerances import STEP
from ._faces import AxisFaces, Faces, ListedFaces


class Parts(NamedTuple):
    axes: tuple[str, ...]
    periodic: tuple[str, ...]
    volumes: Tensor  # (*cells)
    faces: tuple[Faces, ...]  # one for each array of fluxes
    widths: tuple[Tensor, ...]  # of the cells along each axis, where they make up the mesh


def rectilinear(edges: Mapping[str, ArrayLike], periodic: str | Sequence[str] | Set[str]) -> Parts:
    axes, n = tuple(edges), len(edges)
    if not 1 <= n <= 3:
        raise InputError(
            f"`Mesh` takes the edges of 1 to 3 axes, as in Mesh(x=edges); got {n}"
            f"{': ' * bool(n)}{', '.join(axes)}. Use Mesh.unstructured for other cells."
        )
    names = (periodic,) if isinstance(periodic, str) else periodic
    if not isinstance(names, Sequence | Set):
        raise InputError(f"`periodic` must be names of axes, such as ('x',); got {periodic!r:.60}.")
    for name in names:
        check.choice("periodic", name, axes)
    found = [check.axis(name, given)[0] for name, given in edges.items()]
    for name, x in zip(axes, found, strict=True):
        check.same_device(name, x.device, f"`{axes[0]}`", found[0].device)
    widths = [x.diff() for x in found]
    along = [w.reshape([-1 if i == j else 1 for j in range(n)]) for i, w in enumerate(widths)]
    cells, one = tuple(map(len, widths)), along[0].new_ones([1] * n)
    faces = tuple(
        AxisFaces(
            cells, i - n, math.prod(along[:i] + along[i + 1 :], start=one), w / 2, name in names
        )
        for i, (name, w) in enumerate(zip(axes, along, strict=True))
    )
    volumes = math.prod(along, start=one)
    return Parts(axes, tuple(a for a in axes if a in names), volumes, faces, tuple(widths))


def sphere(lat_edges: ArrayLike, lon_edges: ArrayLike, radius: float) -> Parts:
    lat, lon = check.wide("lat_edges", lat_edges), check.wide("lon_edges", lon_edges)
    north, east = _grows("lat_edges", lat), _grows("lon_edges", lon)
    check.same_device("lon_edges", lon.device, "`lat_edges`", lat.device)
    if not float(lat.detach().abs().max()) <= 90:
        raise InputError(
            "`lat_edges` must lie between -90 and 90 degrees; they reach from "
            f"{lat[0]:.6g} to {lat[-1]:.6g}. Cut the outermost cells at the poles."
        )
    around = float((lon[-1] - lon[0]).detach().abs())
    if around > 360 + STEP:
        raise InputError(
            f"`lon_edges` must span at most 360 degrees; they span {around:.6g}. Leave out the "
            "cells that come twice."
        )
    if not isinstance(radius, Real) or not 0 < float(radius) < 1e150:
        raise InputError(f"`radius` must be a positive number below 1e150, got {radius!r}.")
    closed = around >= 360 - STEP
    height, width = lat.diff().abs().deg2rad()[:, None], lon.diff().abs().deg2rad()
    level = ((lat[1:] + lat[:-1]) / 2).deg2rad().cos()[:, None]  # cosine at the centres
    cosine = lat.deg2rad().cos().masked_fill(lat.abs() == 90, 0.0)[:, None]
    cells, R = (len(height), len(width)), float(radius)
    # sin a - sin b as a product: small cells keep their digits
    volumes = R**2 * 2 * level * (height / 2).sin() * width
    rows = AxisFaces(cells, -2, R * cosine * width, R * height / 2, False, north)
    columns = AxisFaces(cells, -1, R * height, R * level * width / 2, closed, east)
    return Parts(("lat", "lon"), ("lon",) * closed, volumes, (rows, columns), ())


def _grows(name: str, edges: Tensor) -> bool:
    """Whether edges increase; otherwise they decrease all the way."""
    if edges.ndim != 1 or len(edges) < 2 or not bool(edges[0] > edges[-1]):
        check.increasing(name, edges)
        return True
    if bool((edges.diff() >= 0).any()):
        raise InputError(
            f"`{name}` must increase or decrease all the way; they go from {edges[0]:.6g} to "
            f"{edges[-1]:.6g} with a turn or a repeated edge. Sort them; past the seam of the "
            "longitudes add 360."
        )
    return False


def unstructured(
    volumes: ArrayLike, neighbours: ArrayLike, face_sizes: ArrayLike, distances: ArrayLike | None
) -> Parts:
    sizes = check.wide("volumes", volumes)
    if sizes.ndim != 1 or not len(sizes):
        raise InputError(f"`volumes` must be one for each cell, got shape {tuple(sizes.shape)}.")
    _positive("volumes", sizes)
    pairs = _neighbours(neighbours, len(sizes)).to(sizes.device)
    areas = _per_face("face_sizes", face_sizes, sizes, len(pairs))
    check.finite(
        "face_sizes", areas, 0.0, "The order of the two cells says which way a face looks."
    )
    between = None
    if distances is not None:
        between = _per_face("distances", distances, sizes, len(pairs))
        check.finite("distances", between)
        _positive("distances", between)
    return Parts(("cell",), (), sizes, (ListedFaces(len(sizes), pairs, areas, between),), ())


def _positive(name: str, x: Tensor) -> None:
    if x.numel() and not float(x.detach().min()) > 0:
        raise InputError(
            f"`{name}` must be positive; entry {int(x.argmin())} is {float(x.min()):.6g}. Leave "
            "out what has no extent."
        )


def _per_face(name: str, given: ArrayLike, like: Tensor, faces: int) -> Tensor:
    found = check.as_tensor(name, given, like, "volumes")
    check.broadcasts(name, found, (faces,), "the faces in `neighbours`")
    return found.expand(faces)


def _neighbours(given: ArrayLike, cells: int) -> Tensor:  # -> (F, 2)
    found = check.integers("neighbours", given, "of shape (faces, 2)")
    if found.ndim != 2 or found.shape[-1] != 2:
        raise InputError(f"`neighbours` must have shape (faces, 2), got {tuple(found.shape)}.")
    first, second = found.unbind(-1)
    rules = {
        f"be cells from 0 to {cells - 1}, or -1 for the outside": (
            (found < -1) | (found >= cells)
        ).any(-1),
        "have a cell on one side at least, not -1 on both": (first == -1) & (second == -1),
        "be two different cells": first == second,
    }
    for rule, broken in rules.items():
        if bool(broken.any()):
            i = int(broken.nonzero()[0])
            raise InputError(f"`neighbours` must {rule}; face {i} has {found[i].tolist()}.")
    return found
