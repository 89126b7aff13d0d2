"""The file of examples/heat_budget.py: fluxes of the cells, and how far a month may be off."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xarray as xr

FLUXES = {"shortwave": "FSR", "longwave": "FUL", "latent": "FLH", "sensible": "FSH", "net": "FDH"}
COUNTS = {"shortwave": "KFUL", "longwave": "KFUL", "latent": "KFLH", "sensible": "KFSH"}
FEW = 10  # reports, where the file has a count of 1: its other counts are 25 and more


@dataclass(frozen=True)
class Sea:
    """What is known of the cells that have all twelve months."""

    flux: dict[str, np.ndarray]  # (12, cells), W m-2; the parts and net
    sigma: dict[str, float]  # standard deviation of one report of a part
    sampling: dict[str, np.ndarray]  # (12, cells), variance by the number of reports
    share: np.ndarray  # (12, cells), of a month of a cell in the mean over the sea and the year
    closeness: np.ndarray  # (cells, cells), cosine of the angle between two cells; -1 to itself
    is_sea: np.ndarray  # (lat, lon)
    edges: tuple[np.ndarray, np.ndarray]  # of longitude and latitude

    def on_map(self, x: np.ndarray) -> np.ndarray:  # (cells) -> (lat, lon)
        """Values of the cells on the grid of the file, land missing."""
        grid = np.full(self.is_sea.shape, np.nan)
        grid[self.is_sea] = x
        return grid


def read() -> Sea:
    """The climatology that lies beside this script."""
    file = xr.load_dataset(Path(__file__).parent / "esku_heat_budget.nc", decode_times=False)
    file = file.where(file["FDH"].notnull().all("TIME"))
    is_sea = file["FDH"][0].notnull().values
    row, column = np.nonzero(is_sea)
    number = {k: 10 ** file[key] for k, key in COUNTS.items()}  # the file has logarithms
    sigma = {k: spread(file[FLUXES[k]], n) for k, n in number.items()}
    variance = {k: sigma[k] ** 2 / n.where(n > 1, FEW) for k, n in number.items()}
    lat, lon = np.deg2rad(file["ESKUY"].values[row]), np.deg2rad(file["ESKUX"].values[column])
    places = np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)])
    closeness = (places.T @ places).round(9)  # equal ones stay equal
    np.fill_diagonal(closeness, -1)
    areas = np.diff(np.sin(np.deg2rad(file["ESKUYedges"].values)))[row]
    return Sea(
        flux={k: file[key].values[:, is_sea] for k, key in FLUXES.items()},
        sigma=sigma,
        sampling={k: v.values[:, is_sea] for k, v in variance.items()},
        share=np.tile(areas / areas.sum() / 12, (12, 1)),
        closeness=closeness,
        is_sea=is_sea,
        edges=(np.append(file["ESKUX"] - 2.5, file["ESKUX"][-1] + 2.5), file["ESKUYedges"].values),
    )


def spread(x: xr.DataArray, n: xr.DataArray) -> float:
    """Standard deviation of one report: months stray from a smooth year, more so where n is small.

    With P what a smooth year (mean, year, half-year) leaves of twelve months, (P x)^2 is expected
    to be P^2 sigma^2 / n, entry by entry, plus what a latitude and month have in common.
    """
    apart = np.arange(12) - np.arange(12)[:, None]
    waves = [np.cos(2 * np.pi * k * apart / 12) for k in (1, 2)]
    left = np.eye(12) - (1 + 2 * sum(waves)) / 12  # P
    rare = x.copy(data=np.tensordot(left**2, (1 / n).where(n > 1), 1))
    rare = rare - rare.mean("ESKUX")
    strays = x.copy(data=np.tensordot(left, x, 1) ** 2)
    return max(float((rare * strays).sum() / (rare**2).sum()), 0.0) ** 0.5
