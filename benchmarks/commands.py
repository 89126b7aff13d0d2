"""The command line on files: times relative to cdo and to the same correction in plain xarray.

    python benchmarks/commands.py FOLDER     makes 3 GB of files in FOLDER, and removes them

Every job runs in a process of its own, from start to exit, imports included; sides take turns, and
the median of three rounds counts. cdo is left out where it is not installed.
"""

import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import netCDF4
import numpy as np
import xarray as xr

ROUNDS = 3
UNIFORM = """
import sys, numpy as np, xarray as xr
source, target = sys.argv[1:]
u = xr.open_dataset(source, chunks={"time": 20}) if source.endswith(".nc") else xr.open_zarr(source)
weights = np.cos(np.deg2rad(u.lat))
weights = weights / (weights.sum() * u.sizes["lon"])
mean = (u.u * weights).sum(("lat", "lon"), dtype="f8")
u["u"] = (u.u - (mean - mean[0])).astype("f4")
u.to_netcdf(target) if target.endswith(".nc") else u.to_zarr(target)
"""


def make(path: Path, **sizes: int) -> None:
    """Noise around 10 kg m-2 on a grid of latitudes and longitudes."""
    rng, (first, *rest) = np.random.default_rng(0), sizes
    with netCDF4.Dataset(path, "w") as file:
        for name, size in sizes.items():
            file.createDimension(name, size)
            axis = file.createVariable(name, "f8", (name,))
            axis[:] = np.linspace(-89, 89, size) if name == "lat" else np.arange(size) * 0.5
        file["time"].units = "days since 2000-01-01"
        u = file.createVariable("u", "f4", tuple(sizes))
        u.units = "kg m-2"
        for index in range(sizes[first]):
            u[index] = rng.normal(10, 1, [sizes[name] for name in rest])


def run(command: list[str], target: Path) -> tuple[float, float]:
    """Seconds and peak memory in GB."""
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 1):  # 1: the law does not hold, of `check`
        raise SystemExit(f"{' '.join(command)} failed")
    taken = time.perf_counter() - start
    shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
    return taken, used.ru_maxrss * 1024 / 1e9


def compare(title: str, target: Path, **sides: list[str]) -> None:
    """A row for each side: seconds, the last side's time over it, peak memory."""
    rounds = [[run(command, target) for command in sides.values()] for _ in range(ROUNDS)]
    times = [statistics.median(each[n][0] for each in rounds) for n in range(len(sides))]
    for number, (name, taken) in enumerate(zip(sides, times, strict=True)):
        memory = max(each[number][1] for each in rounds)
        ratio = f"{times[-1] / taken:.2f}"
        print(f"| {title} | {name} | {taken:.2f} | {ratio} | {memory:.2f} |", flush=True)


def main(folder: Path) -> None:
    command = str(Path(sys.executable).with_name("probconserv"))
    field, ensemble, small = (folder / name for name in ("field.nc", "members.nc", "small.nc"))
    make(field, time=1200, lat=361, lon=720)
    make(ensemble, number=20, time=60, lat=181, lon=360)
    make(small, time=4, lat=36, lon=72)
    store, out = folder / "field.zarr", folder / "out.nc"
    xr.open_dataset(field, chunks={"time": 20}).to_zarr(store)
    law = ["--mean", "u", "--over", "lat", "lon"]

    def enforce(source: Path, target: Path, *how: str) -> list[str]:
        return [command, "enforce", str(source), *law, *how, "-o", str(target)]

    def uniform(source: Path, target: Path) -> list[str]:
        return [sys.executable, "-c", UNIFORM, str(source), str(target)]

    cdo = {"cdo": ["cdo", "-s", "mulc,1.0001", str(field), str(out)]} if shutil.which("cdo") else {}
    print("| files | job | seconds | enforce / it | peak memory, GB |\n|---|---|---|---|---|")
    compare(
        "1.25 GB NetCDF",
        out,
        **cdo,
        xarray=uniform(field, out),
        enforce=enforce(field, out, "--how", "uniform"),
    )
    zarr = folder / "out.zarr"
    compare(
        "1.25 GB Zarr",
        zarr,
        xarray=uniform(store, zarr),
        enforce=enforce(store, zarr, "--how", "uniform"),
    )
    compare("20 members, 313 MB", out, enforce=enforce(ensemble, out, "--member", "number"))
    compare("small", out, check=[command, "check", str(small), *law])
    compare("none", out, help=[command, "--help"])
    for path in (field, ensemble, small):
        path.unlink()
    shutil.rmtree(store)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
