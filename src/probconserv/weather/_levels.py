"""Levels: how much air lies in each layer of a column, and sums over these.

The mass of a layer is constant + slope * surface pressure, and so is what a column holds: that is
all that the laws read of a state.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..air import contents
from ..air.constants import GRAVITY
from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError

USUAL = 1e5  # Pa, the surface pressure at which levels are described
HIGHEST_GROUND = 2e4  # Pa, below which no surface pressure is
SHARES = tuple(  # of vapour, heat, other water and other energy
    contents.SHARES[name]
    for name in ("specific_humidity", "temperature", "cloud_liquid", "surface_geopotential")
)


@dataclass(frozen=True, eq=False)
class Layers:
    """The masses of the layers of columns, kg m-2, as lines in the surface pressure."""

    lines: Tensor  # (2, K, 1), constant and slope; (2, batch, K, N) where each column has its own
    moving: Tensor  # (2, 1 or batch, K, 1 or N), by the air of levels: thickness does not count
    air: Tensor  # (2, 1), constant and slope of the mass of a column
    shares: Tensor  # (4, 3), `SHARES`
    low: Tensor | None = None  # (batch, N), surface pressures between which the lines hold
    high: Tensor | None = None
    first: Tensor | None = None  # (4, 6, K), lines times shares, where all columns have the same
    second: Tensor | None = None  # (3, K), the products of both lines as powers of the pressure

    def at(self, columns: slice) -> "Layers":
        if self.low is None or self.high is None:
            return self
        every = (self.lines, self.moving, self.low, self.high)
        lines, moving, low, high = (x[..., columns] for x in every)
        return Layers(lines, moving, self.air, self.shares, low, high)

    def mass(self, pressure: Tensor) -> Tensor:
        """Of each layer, (batch, K, N)."""
        return torch.addcmul(self.lines[0], self.lines[1], pressure.unsqueeze(-2))

    def held(self, vapour: Tensor, others: Sequence[Tensor | None]) -> Tensor:
        """What columns hold of each law: constant and slope, (batch, 2, 3, N), float64.

        The fields are in the order of `SHARES`; others than vapour, (batch, K, N), may have axes
        of 1.
        """
        found = self._added(None, 0, vapour.double())
        for number, field in enumerate(others, 1):
            if field is not None:
                found = self._added(found, number, field.double().expand(vapour.shape))
        found = found.unflatten(1, (2, 3))
        found[:, :, 0].add_(self.air)
        return found

    def _added(self, found: Tensor | None, number: int, field: Tensor) -> Tensor:
        if self.first is None:
            sums = (self.lines * field).sum(-2).movedim(0, 1)  # (batch, 2, N)
            own = (sums[:, :, None] * self.shares[number][:, None]).flatten(1, 2)
            return own if found is None else found + own
        weights = self.first[number].expand(len(field), -1, -1)
        return weights.bmm(field) if found is None else found.baddbmm_(weights, field)

    def powers(self, variance: Tensor) -> Tensor:
        """Sums of variance * mass * mass as powers of the pressure, (batch or 1, 3, N or 1)."""
        variance = variance.expand(-1, self.lines.shape[-2], -1)
        if self.second is not None:
            return self.second.to(variance.dtype) @ variance
        (a, b), (by_a, by_b) = self.lines, self.moving
        return torch.stack([(x * variance).sum(-2) for x in (a * by_a, 2 * a * by_b, b * by_b)], 1)

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
        moved._straight = moved._lines()
        return moved

    def _lines(self) -> Layers:
        """Layers of which none is cut."""
        lines = contents.mass(torch.stack([self.a.diff(), self.b.diff()])[..., None])
        moving = (lines / (self.count * self.shares)[:, None])[:, None]
        shares = lines.new_tensor(SHARES)
        first = (lines[:, None] * shares[:, None, :, None, None]).flatten(1, 2)[..., 0]
        (a, b), (by_a, by_b) = lines[..., 0], moving[:, 0, :, 0]
        second = torch.stack([a * by_a, 2 * a * by_b, b * by_b])
        return Layers(lines, moving, lines.sum(-2), shares, first=first, second=second)

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
        thickness = (self.a + self.b * USUAL).diff()
        return thickness / thickness.sum()

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
