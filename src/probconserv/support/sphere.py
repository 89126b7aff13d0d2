"""Cells on the unit sphere: where they end, and how large they are. Angles are in degrees."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from .tolerances import CIRCLE, THOUSANDTHS

Array = npt.NDArray[np.float64]

FIRST_ZERO = 2.404825557695773  # of the Bessel function J0, near (N + 1/2) times colatitude
MOST_GAUSSIAN = 16_000  # latitudes from pole to pole
GAUSSIAN = 0.3  # a Gaussian grid's last edge is 0.27 cells short of the pole


@dataclass(frozen=True)
class Globe:
    """The sphere that cells lie on."""

    radius: float  # metres
    origin: str = ""

    def __str__(self) -> str:
        return f"on a sphere of {self.radius / 1000:.10g} km{self.origin}"


def half_way(centres: Array) -> Array:  # (n,) -> (n, 2)
    """Ends half way between the centres; the end cells reach as far out as they reach in."""
    middle = (centres[1:] + centres[:-1]) / 2
    first, last = 2 * centres[0] - middle[0], 2 * centres[-1] - middle[-1]
    edges = np.concatenate([[first], middle, [last]])
    return np.stack([edges[:-1], edges[1:]], axis=-1)


def zones(latitudes: Array) -> Array:  # (n,) -> (n, 2)
    """Half way between the latitudes, and to the pole where the last cell ends close to it."""
    ends = np.clip(half_way(latitudes), -90, 90)
    steps = np.abs(np.diff(latitudes))
    for at, step in (((0, 0), steps[0]), ((-1, 1), steps[-1])):
        if 90 - abs(ends[at]) <= GAUSSIAN * step:
            ends[at] = np.copysign(90, ends[at])
    return ends


def sectors(longitudes: Array) -> Array:  # (n,) -> (n, 2)
    """Half way between the longitudes, also across the seam where they go around the globe."""
    ends, steps = half_way(longitudes), np.diff(longitudes)
    gap = 360 - abs(longitudes[-1] - longitudes[0])
    if 0 < gap <= 1.01 * np.abs(steps).max():
        half = np.copysign(gap / 2, steps[0])
        ends[0, 0], ends[-1, 1] = longitudes[0] - half, longitudes[-1] + half
    return ends


def zone_heights(ends: Array) -> Array:  # (n, 2) -> (n,)
    """sin(north) - sin(south) of each zone of latitude, its area over 2 pi; cut at the poles."""
    south, north = np.radians(np.clip(np.sort(ends, axis=-1), -90, 90)).T
    return 2 * np.cos((south + north) / 2) * np.sin((north - south) / 2)


def gaussian(latitudes: Array) -> tuple[Array, int] | None:  # (n,) -> (n,), N
    """Exact zone heights of Gaussian latitudes, and how many there are from pole to pole.

    Latitudes are Gaussian if their sines are roots of a Legendre polynomial P_N: all of them, or
    neighbours. Newton's method goes from each to its root, where the height is 2 / (dP_N/dlat)^2.
    """
    steps, n = np.abs(np.diff(latitudes)), len(latitudes)
    top = np.abs(latitudes).max()
    if n < 2 or top >= 90:
        return None
    count, slack = n, min(THOUSANDTHS, 0.01 * steps.max())  # degrees, of GRIB1
    if abs(90 - np.degrees(FIRST_ZERO / (n + 0.5)) - top) > 0.01 * steps.max():
        middle = np.argsort(np.abs(latitudes[1:] + latitudes[:-1]))[: n // 2]
        wanted = 180 / steps[middle].mean() - 0.5
        count, slack = round(wanted), CIRCLE
        if n < 8 or abs(wanted - count) > 0.3 or not n < count <= MOST_GAUSSIAN:
            return None
    if steps.max() > 1.5 * steps.min():  # a row is missing
        return None
    phi = start = np.radians(latitudes)
    for _ in range(3):
        value, slope = _legendre(count, phi)
        phi = phi - value / slope
        if not np.abs(phi - start).max() <= np.radians(slack):
            return None
    heights = 2 / _legendre(count, phi)[1] ** 2
    return heights * (2 / heights.sum() if count == n else 1), count


def _legendre(n: int, phi: Array) -> tuple[Array, Array]:
    """P_n(sin phi) and its derivative by phi."""
    x, before, value = np.sin(phi), np.ones_like(phi), np.sin(phi)
    for k in range(2, n + 1):
        before, value = value, ((2 * k - 1) * x * value - (k - 1) * before) / k
    return value, n * (before - x * value) / np.cos(phi)


def arcs(ends: Array, centres: Array) -> Array:  # (n, 2), (n,) -> (n,)
    """Width in radians of each cell of longitude; 179 to -179 is 2 degrees where 180 is inside."""
    low, high = np.sort(ends, axis=-1).T
    width = high - low
    inside = sum((low < c) & (c < high) for c in (centres - 360, centres, centres + 360))
    rest = 360 - width
    around = (inside == 0) & (rest > 0) & (rest < width)
    return np.radians(np.where(around, rest, width))


def polygon_areas(latitude: Array, longitude: Array) -> Array:  # (..., n), (..., n) -> (...)
    """The area of each polygon whose corners are joined by great circles, in either order.

    The signed triangles (a, b, c) of a fan from the first corner are added up, each with
    tan(area / 2) = a . (b - a) x (c - a) / (1 + a.b + b.c + c.a), which holds at the poles and
    across the date line; corners that coincide add nothing.
    """
    lat, lon = np.radians(latitude), np.radians(longitude)
    corners = [np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)]
    a, *others = np.moveaxis(np.stack(corners, axis=-1), -2, 0)
    total = np.zeros(a.shape[:-1])
    for b, c in pairwise(others):
        volume = _dot(a, np.cross(b - a, c - a))  # differences first: small cells keep their digits
        total += 2 * np.arctan2(volume, 1 + _dot(a, b) + _dot(b, c) + _dot(c, a))
    return np.abs(total)


def _dot(a: Array, b: Array) -> Array:
    return np.einsum("...i,...i->...", a, b)
