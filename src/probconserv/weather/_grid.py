"""Where the cells of an atmosphere lie: shares of the sphere, layers of a column, sums over these.

The mass of a layer is constant + slope * surface pressure, and so is what a column holds: that is
all that the laws read of a state.
"""

import copy
import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..air import contents
from ..air.contents import GRAVITY
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


USUAL = 1e5  # Pa, the surface pressure at which levels are described
HIGHEST_GROUND = 2e4  # Pa, below which no surface pressure is
WIDENED = 2**22  # values of a field that a GPU takes to float64 at a time
AIR = (1.0, 0.0, 0.0)  # of a kilogram of air without all of these, in each law
SHARES = tuple(  # of vapour, heat, other water and other energy
    contents.SHARES[name]
    for name in ("specific_humidity", "temperature", "cloud_liquid", "surface_geopotential")
)


Line: TypeAlias = tuple[Tensor, Tensor]  # constant and slope in the surface pressure, (batch, N)


@dataclass(frozen=True, eq=False)
class Layers:
    """The masses of the layers of columns, kg m-2, as lines in the surface pressure."""

    lines: Tensor  # (2, K, 1), constant and slope; (2, batch, K, N) where each column has its own
    moving: Tensor  # (2, 1 or batch, K, 1 or N), by the air of levels: thickness does not count
    air: Tensor  # (2, 1), constant and slope of the mass of a column
    shares: Tensor  # (5, 3), of air and `SHARES`
    low: Tensor | None = None  # (batch, N), surface pressures between which the lines hold
    high: Tensor | None = None
    first: Tensor | None = None  # (2, K), lines, where all columns have the same
    second: Tensor | None = None  # (3, K), the products of both lines as powers of the pressure

    def mass(self, pressure: Tensor) -> Tensor:
        """Of each layer, (batch, K, N)."""
        return torch.addcmul(self.lines[0], self.lines[1], pressure.unsqueeze(-2))

    def held(self, field: Tensor) -> Line:
        """What columns hold of a field (batch, K, N) per kilogram of air, in float64."""
        if self.first is None or torch.compiler.is_compiling():  # which fuses it
            constant, slope = ((line * field).sum(-2) for line in self.lines)
            return constant, slope
        one = len(field) if field.is_cpu else max(1, WIDENED // field[0].numel())
        found = [self.first.expand(len(x), -1, -1).bmm(x.double()) for x in field.split(one)]
        constant, slope = (found[0] if len(found) == 1 else torch.cat(found)).unbind(1)
        return constant, slope

    def powers(self, variance: Tensor) -> tuple[Tensor, ...]:
        """Sums of variance * mass * mass as powers of the pressure, (batch or 1, N or 1) each."""
        variance = variance.expand(-1, self.lines.shape[-2], -1)
        if self.second is not None and not torch.compiler.is_compiling():
            return (self.second.to(variance.dtype) @ variance).unbind(1)
        if self.second is not None:
            return tuple((x[:, None].to(variance.dtype) * variance).sum(-2) for x in self.second)
        (a, b), (by_a, by_b) = self.lines, self.moving
        return tuple((x * variance).sum(-2) for x in (a * by_a, 2 * a * by_b, b * by_b))

    def raised(
        self,
        values: Tensor,
        variance: Tensor,
        pressure: Tensor,
        by: Tensor,
        out: Tensor | None = None,
    ) -> Tensor:
        """values + variance * mass * by, in the dtype of the values."""
        dtype, even = values.dtype, variance.shape[-1] == 1
        constant, slope = (self.moving * (by * variance if even else by)).to(dtype)
        mass = torch.addcmul(constant, slope, pressure.to(dtype).unsqueeze(-2))
        if even:
            return torch.add(values, mass, out=out)
        return torch.addcmul(values, variance, mass, out=out)


class Levels:
    """The layers of a column of air, from the top down; `hybrid` and `pressure` make it.

    Parameters
    ----------
    a, b : array, shape ``(K + 1,)``
        The half levels lie at a + b * surface pressure; a in Pa.
    cut : bool
        Whether levels below the surface end at the surface.

    Raises
    ------
    InputError
        If the half levels do not go from the top down.
    """

    def __init__(self, a: ArrayLike, b: ArrayLike, cut: bool = False) -> None:
        self.a, self.b, self.cut = check.wide("a", a), check.wide("b", b), cut
        if self.a.ndim != 1 or self.a.shape != self.b.shape or len(self.a) < 2:
            raise InputError(
                "`a` and `b` must be two axes of one length, K + 1 half levels around K "
                "layers; got "
                f"{tuple(self.a.shape)} and {tuple(self.b.shape)}."
            )
        steps = (self.a + self.b * USUAL).diff()
        if bool((steps <= 0).any()):
            order = "upside down" if bool((steps < 0).all()) else "not in order"
            raise InputError(
                f"`a` and `b`: the levels are {order}. Half levels go from the top of the "
                f"atmosphere down to the surface; at a surface pressure of {USUAL:g} Pa these lie "
                f"at {[round(float(p)) for p in self.a + self.b * USUAL]} Pa. Flip them, and the "
                "fields with them."
            )
        if float(self.b.min()) < 0 or float(self.b.max()) > 1:
            raise InputError(
                "`b` must be a share of the surface pressure, from 0 to 1; got "
                f"{float(self.b.min()):g} to {float(self.b.max()):g}. `a` comes first, in Pa."
            )
        thickness = (self.a + self.b * USUAL).diff()
        self._shares = thickness / thickness.sum()
        self._straight = self._lines()
        self._holds = self._limits()

    @classmethod
    def hybrid(cls, a: ArrayLike, b: ArrayLike) -> "Levels":
        """Hybrid sigma-pressure levels: half levels at a + b * surface pressure.

        Parameters
        ----------
        a, b : array, shape ``(K + 1,)``
            Of the half levels around K layers, from the top down; `a` in Pa, `b` from 0 to 1.

        Returns
        -------
        Levels

        Examples
        --------
        >>> levels = Levels.hybrid([100.0, 5000.0, 0.0], [0.0, 0.3, 1.0])
        >>> levels.thickness(torch.tensor([[1e5]])).round().tolist()
        [[[34900.0], [65000.0]]]
        """
        return cls(a, b)

    @classmethod
    def pressure(cls, edges: ArrayLike) -> "Levels":
        """Layers between constant pressures, cut where the surface is.

        The lowest layer that holds air ends at the surface, and the last layer reaches down to
        it wherever it is. A correction of the surface pressure stops at the edge of a layer.

        Parameters
        ----------
        edges : array, shape ``(K + 1,)``
            Of the layers in Pa, from the top down.

        Returns
        -------
        Levels

        Examples
        --------
        >>> levels = Levels.pressure([1e3, 5e4, 8.5e4, 1e5])
        >>> levels.thickness(torch.tensor([[1.02e5, 6e4]])).mT.round().tolist()
        [[[49000.0, 35000.0, 17000.0], [49000.0, 10000.0, 0.0]]]
        """
        found = check.wide("edges", edges)
        levels = cls(found, torch.zeros_like(found), cut=True)
        if float(found[-1]) < HIGHEST_GROUND:
            raise InputError(
                f"`edges` must be in Pa and reach down to the ground; they end at {found[-1]:g}. "
                "Multiply hPa by 100."
            )
        return levels

    def to(self, device: torch.device | str) -> "Levels":
        """The same levels on another device."""
        moved = copy.copy(self)
        moved.a, moved.b = self.a.to(device), self.b.to(device)
        moved._shares = self._shares.to(device)
        moved._straight = moved._lines()
        return moved

    def _lines(self) -> Layers:
        """Layers of which none is cut."""
        lines = contents.mass(torch.stack([self.a.diff(), self.b.diff()])[..., None])
        moving = (lines / (self.count * self.shares)[:, None])[:, None]
        shares = lines.new_tensor((AIR, *SHARES))
        (a, b), (by_a, by_b) = lines[..., 0], moving[:, 0, :, 0]
        second = torch.stack([a * by_a, 2 * a * by_b, b * by_b])
        return Layers(lines, moving, lines.sum(-2), shares, first=lines[..., 0], second=second)

    def _limits(self) -> tuple[float, float]:
        """The surface pressures between which each layer holds air."""
        if self.cut:
            return math.nextafter(float(self.a[0]), math.inf), math.inf
        steps = list(zip(self.a.diff().tolist(), self.b.diff().tolist(), strict=True))
        low = max((-a / b for a, b in steps if b > 0), default=-math.inf)
        return low, min((-a / b for a, b in steps if b < 0), default=math.inf)

    def check(self, said: str, low: float, high: float) -> None:
        """Refuses surface pressures at which a layer would have a negative thickness.

        Parameters
        ----------
        said : str
            What they are called.
        low, high : float
            The lowest and the highest, Pa.

        Raises
        ------
        InputError
            If a layer does not hold air at one of them.
        """
        least, most = self._holds
        if least <= low and high <= most:
            return
        half = self.a + self.b * (low if low < least else high)
        place = "the top of the levels" if self.cut else f"layer {int(half.diff().argmin())}"
        raise InputError(
            f"`{said}` goes from {low:.6g} to {high:.6g} Pa, where {place} has a negative pressure "
            "thickness. Check `a` and `b` of the levels, and the units of the pressure."
        )

    @property
    def count(self) -> int:
        """K, the number of layers."""
        return len(self.a) - 1

    @property
    def nominal(self) -> Tensor:
        """The pressure in the middle of each layer at a surface pressure of 1000 hPa, (K,)."""
        half = self.a + self.b * USUAL
        return (half[1:] + half[:-1]) / 2

    @property
    def shares(self) -> Tensor:
        """Of the air that each layer holds, at a surface pressure of 1000 hPa, (K,)."""
        return self._shares

    def thickness(self, surface_pressure: Tensor) -> Tensor:
        """The pressure difference across each layer, Pa, in float64.

        Parameters
        ----------
        surface_pressure : Tensor, shape ``(batch, *grid)``
            In Pa.

        Returns
        -------
        Tensor, shape ``(batch, K, *grid)``
        """
        flat = surface_pressure.double().flatten(1)
        dp = GRAVITY * self.to(flat.device).layers(flat).mass(flat)
        return dp.unflatten(-1, surface_pressure.shape[1:])

    def layers(self, pressure: Tensor) -> Layers:
        """The masses of layers as straight lines in the surface pressure, around (batch, N)."""
        if not self.cut:
            return self._straight
        a = self.a
        surface = (a[1:-1] < pressure.detach()[..., None]).sum(-1)  # the layer that it is in
        number = torch.arange(self.count, device=a.device)[:, None]
        ends, above = number == surface[:, None], number < surface[:, None]
        fixed = torch.where(above, a.diff()[:, None], torch.where(ends, -a[:-1, None], 0.0))
        lines = contents.mass(torch.stack([fixed, ends.to(a.dtype)]))
        moving = lines / (self.count * self.shares)[:, None]
        air = contents.mass(torch.stack([-a[:1], torch.ones_like(a[:1])]))
        most = torch.cat([a[1:-1], a.new_full((1,), torch.inf)])
        return Layers(lines, moving, air, self._straight.shares, a[surface], most[surface])
