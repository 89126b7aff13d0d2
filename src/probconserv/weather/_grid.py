"""Grid: what share of the sphere each cell of a grid covers."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError
from ..support.sphere import half_way, zone_heights

POLE = 90.0
NEAR_POLE = 1e-3  # degrees; centres of float32 are not exact


class Grid:
    """The cells of a horizontal grid of any shape, with the share of the sphere that each covers.

    Parameters
    ----------
    areas : array, shape ``(*grid)``
        Of the cells, in any unit: all that counts is their share of the sum.
    lat, lon : array
        Centres in degrees, where they are the two axes of the grid; for the labels of the ledger.

    Raises
    ------
    InputError
        If an area is negative or not finite, or all are 0, or `lat` and `lon` are not the axes.

    Examples
    --------
    >>> Grid([[1.0, 1.0, 2.0]]).areas
    tensor([[0.2500, 0.2500, 0.5000]], dtype=torch.float64)
    """

    def __init__(
        self, areas: ArrayLike, lat: ArrayLike | None = None, lon: ArrayLike | None = None
    ) -> None:
        found = check.wide("areas", areas, 0.0, "Cells cover an area.")
        total = float(found.sum())
        if not found.ndim or not total > 0:
            raise InputError("`areas` must have an axis and a sum above 0; got none that counts.")
        self.areas = found / total  # (*grid)
        axes = [tuple(np.shape(x)) for x in (lat, lon) if x is not None]
        if axes and (len(axes) < 2 or axes != [(n,) for n in self.shape]):
            raise InputError(
                f"`lat` and `lon` must be the two axes of the grid of shape {self.shape}; got the "
                f"shapes {', '.join(map(str, axes))}. Leave them out for other grids."
            )
        self.lat, self.lon = lat, lon

    @property
    def shape(self) -> tuple[int, ...]:
        """The axes of the grid."""
        return tuple(self.areas.shape)

    @classmethod
    def regular(cls, lat: ArrayLike, lon: ArrayLike) -> "Grid":
        """The grid of all latitudes and longitudes, with cells between the midpoints.

        The first and the last row end at the poles. A row on a pole is a cap around it.

        Parameters
        ----------
        lat : array, shape ``(Y,)``
            Centres in degrees, from pole to pole, in either order.
        lon : array, shape ``(X,)``
            Centres in degrees, once around the globe.

        Returns
        -------
        Grid
            Of shape ``(Y, X)``.

        Raises
        ------
        InputError
            If the axes are not in order, or do not cover the globe.

        Examples
        --------
        >>> grid = Grid.regular([90, 0, -90], [0, 90, 180, 270])
        >>> [round(float(share), 4) for share in grid.areas.sum(1)]  # 45 degrees end the caps
        [0.1464, 0.7071, 0.1464]
        """
        y, x = _axis("lat", lat), _axis("lon", lon)
        return cls(_zones(y)[:, None] * _widths(x), y, x)

    @classmethod
    def gaussian(cls, rows: int, columns: int) -> "Grid":
        """The grid of Gaussian latitudes, with the weights of Gaussian quadrature as areas.

        Parameters
        ----------
        rows, columns : int
            How many latitudes and longitudes.

        Returns
        -------
        Grid
            Of shape ``(rows, columns)``, from the north to the south.

        Examples
        --------
        >>> Grid.gaussian(32, 64).shape
        (32, 64)
        """
        rows, columns = check.samples(rows, "rows"), check.samples(columns, "columns")
        nodes, weights = np.polynomial.legendre.leggauss(rows)
        y = np.degrees(np.arcsin(nodes))[::-1].copy()
        x = np.arange(columns) * (360 / columns)
        return cls(np.repeat(weights[::-1, None], columns, 1), y, x)

    @classmethod
    def healpix(cls, nside: int, faces: bool = False) -> "Grid":
        """The HEALPix grid: cells of equal area in any order.

        Parameters
        ----------
        nside : int
            Cells along the side of one of the 12 faces.
        faces : bool
            Whether the axes are face, row and column; else one axis.

        Returns
        -------
        Grid
            Of shape ``(12 nside^2,)`` or ``(12, nside, nside)``.

        Examples
        --------
        >>> Grid.healpix(8).shape, Grid.healpix(8, faces=True).shape
        ((768,), (12, 8, 8))
        """
        n = check.samples(nside, "nside")
        return cls(torch.ones((12, n, n) if faces else (12 * n * n,)))

    def mean(self, field: Tensor) -> Tensor:
        """The mean over the sphere, in float64.

        Parameters
        ----------
        field : Tensor, shape ``(..., *grid)``

        Returns
        -------
        Tensor, shape ``(...)``
        """
        lead = field.ndim - len(self.shape)
        if lead < 0 or tuple(field.shape[lead:]) != self.shape:
            raise InputError(
                f"`field` has the shape {tuple(field.shape)}; its last axes must be those of the "
                f"grid, {self.shape}."
            )
        return field.double().flatten(lead) @ self.areas.flatten().to(field.device)

    def __repr__(self) -> str:
        return f"Grid({' x '.join(map(str, self.shape))})"


def _axis(name: str, given: ArrayLike) -> NDArray[np.float64]:
    axis = check.wide(name, given).numpy()
    steps = np.diff(axis)
    if axis.ndim != 1 or len(axis) < 2 or not (np.all(steps > 0) or np.all(steps < 0)):
        raise InputError(f"`{name}` must be one axis of centres that rise or fall.")
    return axis


def _zones(lat: NDArray[np.float64]) -> NDArray[np.float64]:
    """The share of the sphere between the edges of each row."""
    cells = half_way(lat)
    ends = cells[0, 0], cells[-1, 1]
    most = float(np.abs(lat).max())
    if most > POLE + NEAR_POLE or min(map(abs, ends)) < POLE - NEAR_POLE or ends[0] * ends[1] > 0:
        raise InputError(
            f"`lat` must be centres in degrees from pole to pole; the cells of {lat[0]:g} to "
            f"{lat[-1]:g} end at {ends[0]:g} and {ends[1]:g}. For Gaussian latitudes use "
            "`Grid.gaussian`, for anything else `Grid(areas)`."
        )
    cells[0, 0], cells[-1, 1] = np.copysign(POLE, ends)
    return zone_heights(cells)


def _widths(lon: NDArray[np.float64]) -> NDArray[np.float64]:
    """Half of the way to both neighbours, around the globe."""
    gaps = np.abs(np.diff(lon))
    last = 360 - gaps.sum()
    if not 0 < last < 2 * gaps.max():
        raise InputError(
            f"`lon` must go once around the globe, in degrees; {lon[0]:g} to {lon[-1]:g} leaves "
            f"a gap of {last:g}. For anything else use `Grid(areas)`."
        )
    gaps = np.append(gaps, last)
    return (gaps + np.roll(gaps, 1)) / 2
