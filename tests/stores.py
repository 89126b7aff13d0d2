"""Small stores of every format, for the tests that read and write them."""

from pathlib import Path

import numpy as np
import xarray as xr

FORMATS = ("netcdf4", "netcdf3", "zarr2", "zarr3")


def small() -> xr.Dataset:
    """A packed and a plain field, with times, labels, missing values and zeros."""
    rng = np.random.default_rng(7)
    u = rng.normal(size=(6, 5, 4)).astype(np.float32)
    u[0, 0, 0], u[1, 1, 1] = 0.0, np.nan
    p = (64 * rng.normal(size=(6, 4))).round() / 64
    p[2, 3] = np.nan
    dataset = xr.Dataset(
        {"u": (("t", "y", "x"), u, {"units": "K"}), "p": (("t", "x"), p, {"units": "Pa"})},
        {
            "t": ("t", np.arange(6.0), {"units": "days since 2000-01-01"}),
            "x": ("x", np.linspace(0, 1, 4), {"units": "m"}),
            "station": ("y", ["a", "b", "c", "d", "e"]),
        },
        {"title": "small"},
    )
    dataset["p"].encoding = {"dtype": "i2", "scale_factor": 1 / 64, "_FillValue": -9999}
    return xr.decode_cf(dataset)


def store(folder: Path, format: str, dataset: xr.Dataset | None = None) -> Path:
    """The dataset in a file of that format, written by xarray itself, in chunks where it can."""
    dataset = small() if dataset is None else dataset
    path = folder / f"{format}.{'zarr' if 'zarr' in format else 'nc'}"
    if format == "netcdf4":
        chunks = {"u": {"chunksizes": (2, 5, 4), "zlib": True, "complevel": 3}}
        dataset.to_netcdf(path, engine="netcdf4", encoding=chunks, unlimited_dims=["t"])
    elif format == "netcdf3":
        dataset.to_netcdf(path, engine="netcdf4", format="NETCDF3_64BIT", unlimited_dims=["t"])
    else:
        plain = dataset.drop_vars("station", errors="ignore")  # texts have no format in Zarr 3
        chunks = {"u": {"chunks": (2, 5, 4)}} if "u" in dataset else {}
        plain.to_zarr(path, zarr_format=int(format[-1]), encoding=chunks, consolidated=False)
    return path
