"""Areas and arcs on a sphere of radius 1, from corners and edges in degrees; NumPy only."""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

GAUSSIAN = 0.3  # a Gaussian grid's last edge is 0.27 cells short of the pole


def polygon_areas(latitude: Array, longitude: Array) -> Array:  # (..., n), (..., n) -> (...)
    """The area of each polygon whose corners are joined by great circles, in either order.

    The signed triangles (a, b, c) of a fan from the first corner are added up, each with
    tan(area / 2) = a . (b - a) x (c - a) / (1 + a.b + b.c + c.a), which holds at the poles and
    across the date line; corners that coincide add nothing.
    """
    corners = _vectors(latitude, longitude)
    first = corners[..., 0, :]
    total = np.zeros(first.shape[:-1])
    for i in range(1, corners.shape[-2] - 1):
        total += _triangle(first, corners[..., i, :], corners[..., i + 1, :])
    return np.abs(total)


def _vectors(latitude: Array, longitude: Array) -> Array:  # (...), (...) -> (..., 3)
    lat, lon = np.radians(latitude), np.radians(longitude)
    return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=-1)


def _triangle(a: Array, b: Array, c: Array) -> Array:  # (..., 3) x 3 -> (...)
    volume = _dot(a, np.cross(b - a, c - a))  # differences first: small cells keep their digits
    return 2 * np.arctan2(volume, 1 + _dot(a, b) + _dot(b, c) + _dot(c, a))


def _dot(a: Array, b: Array) -> Array:
    return np.einsum("...i,...i->...", a, b)


def zone_heights(bounds: Array) -> Array:  # (n, 2) -> (n,)
    """sin(north) - sin(south) of each zone of latitude, its area over 2 pi; cut at the poles."""
    south, north = np.radians(np.clip(np.sort(bounds, axis=-1), -90, 90)).T
    return 2 * np.cos((south + north) / 2) * np.sin((north - south) / 2)


def arcs(bounds: Array, centres: Array) -> Array:  # (n, 2), (n,) -> (n,)
    """Width in radians of each cell of longitude; 179 to -179 is 2 degrees where 180 is inside."""
    low, high = np.sort(bounds, axis=-1).T
    width = high - low
    inside = sum((low < c) & (c < high) for c in (centres - 360, centres, centres + 360))
    rest = 360 - width
    around = (inside == 0) & (rest > 0) & (rest < width)
    return np.radians(np.where(around, rest, width))


def half_way(centres: Array) -> Array:  # (n,) -> (n, 2)
    """Bounds half way between the centres; the end cells reach as far out as they reach in."""
    middle = (centres[1:] + centres[:-1]) / 2
    first, last = 2 * centres[0] - middle[0], 2 * centres[-1] - middle[-1]
    edges = np.concatenate([[first], middle, [last]])
    return np.stack([edges[:-1], edges[1:]], axis=-1)


def latitude_bounds(centres: Array) -> Array:  # (n,) -> (n, 2)
    """Half way between the centres, and to the pole where the last cell ends close to it."""
    bounds = np.clip(half_way(centres), -90, 90)
    for end, inner in (((0, 0), 1), ((-1, 1), -2)):
        reach = GAUSSIAN * abs(centres[inner] - centres[end[0]])
        if 90 - abs(bounds[end]) <= reach:
            bounds[end] = np.copysign(90, bounds[end])
    return bounds


def longitude_bounds(centres: Array) -> Array:  # (n,) -> (n, 2)
    """Half way between the centres, also across the seam where the grid goes around the globe."""
    bounds = half_way(centres)
    steps = np.diff(centres)
    gap = 360 - abs(centres[-1] - centres[0])
    if 0 < gap <= 1.01 * np.abs(steps).max():
        half = np.copysign(gap / 2, steps[0])
        bounds[0, 0], bounds[-1, 1] = centres[0] - half, centres[-1] + half
    return bounds
