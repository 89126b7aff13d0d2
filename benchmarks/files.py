"""Labelled data: what `enforce` costs in memory, and from store to store beyond it.

    python benchmarks/files.py                   ratios for a dataset in memory
    python benchmarks/files.py --store 10 FOLDER   a Zarr store of 10 GB, made in FOLDER

Ratios within one run. The sides in memory run in turn, with the memory allocator as it is; each
job on the store runs in a process of its own, whose peak memory is given, twice below 10 GB.
"""

import os
import shutil
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import dask.array as da
import numpy as np
import torch
import xarray as xr
from timing import seconds

import probconserv as pc
from probconserv.files import FileLaw, enforce, enforce_file

GRID = ("time", "lat", "lon")
LAW = FileLaw("u", ("lat", "lon"), total="total", measure="area")
CHUNKS = {"whole": (8, 721, 1440), "split": (64, 361, 360)}  # of the store; 33 MB in float32


def in_memory() -> None:
    torch.set_num_threads(os.cpu_count() or 1)
    sides = "core", "uniform correction", "plain xarray", "plain xarray, both lazy"
    print(f"| 240 x 181 x 360 points, enforce / | {' | '.join(sides)} |")
    print("|---" * (1 + len(sides)) + "|")
    for dtype in (np.float64, np.float32):
        ratios = " | ".join(f"{ratio:.2f}" for ratio in against(noise(dtype)))
        print(f"| {np.dtype(dtype).name} | {ratios} |", flush=True)


def against(dataset: xr.Dataset) -> list[float]:
    """Time of `enforce` over that of each side."""
    lazy = dataset.chunk(time=24)
    xr.testing.assert_allclose(ours(dataset), plain(dataset))
    us, *others = seconds(*(partial(side, dataset) for side in (ours, core, uniform, plain)))
    lazily, other = seconds(lambda: ours(lazy).compute(), lambda: plain(lazy).compute())
    return [*(us / other for other in others), lazily / other]


def noise(dtype: type) -> xr.Dataset:
    """A mean with its standard deviation, and the total of its first time."""
    rng = np.random.default_rng(0)
    u = rng.normal(10, 1, (240, 181, 360)).astype(dtype)
    std = rng.uniform(0.5, 1.5, u.shape).astype(dtype)
    area = np.tile(np.cos(np.linspace(-1.5, 1.5, 181))[:, None], 360)
    field = {"u": (GRID, u), "std": (GRID, std), "area": (GRID[1:], area)}
    return xr.Dataset(field).assign(total=float((u[0] * area).sum(dtype=float)))


def ours(dataset: xr.Dataset) -> xr.Dataset:
    return enforce(dataset, LAW, std="std")


def plain(dataset: xr.Dataset) -> xr.Dataset:
    """The same as `enforce` in eight lines of xarray, without its checks and its report."""
    u, area, variance = dataset["u"], dataset["area"], dataset["std"] ** 2
    missing = dataset["total"] - xr.dot(u, area, dim=GRID[1:])
    moved = variance * area
    gain = moved / xr.dot(moved, area, dim=GRID[1:])
    mean = u + gain * missing
    std = np.sqrt(variance - gain * moved)
    return dataset.assign(u=mean.astype(u.dtype), std=std.astype(u.dtype))


def core(dataset: xr.Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    u, std, area = (torch.from_numpy(dataset[name].values) for name in ("u", "std", "area"))
    after = pc.condition(pc.Diagonal(u, std**2), pc.weighted_sum(area, float(dataset["total"])))
    return after.mean, after.std


def uniform(dataset: xr.Dataset) -> np.ndarray:
    u, area, total = (dataset[name].values for name in ("u", "area", "total"))
    missing = total - (u * area).sum((1, 2))
    return u + (missing / area.sum())[:, None, None]


def make(path: Path, gigabytes: float, chunks: tuple[int, ...]) -> None:
    """A mean and a standard deviation of noise, which no codec makes smaller."""
    times = round(gigabytes * 1e9 / (2 * 4 * 721 * 1440) / chunks[0]) * chunks[0]
    rng = da.random.default_rng(0)
    shape = (times, 721, 1440)
    lat = np.linspace(-90, 90, 721)
    xr.Dataset(
        {
            "u": (GRID, rng.standard_normal(shape, chunks=chunks, dtype=np.float32) + 10),
            "std": (GRID, rng.random(shape, chunks=chunks, dtype=np.float32) + np.float32(0.5)),
            "area": (GRID[1:], np.tile(np.cos(np.radians(lat))[:, None], 1440)),
            "total": ("time", np.full(times, 6.6e6)),
        }
    ).to_zarr(path, mode="w")


def copy(source: Path, target: Path) -> None:
    xr.open_zarr(source).to_zarr(target)


def conserve(source: Path, target: Path) -> None:
    report = enforce_file(source, target, LAW, std="std")
    assert report.closes(after=True), str(report)


JOBS = {"copy": copy, "conserve": conserve}


def apart(job: str, source: Path, target: Path) -> tuple[float, float]:
    """Seconds and peak memory in GB of a job in a process of its own, from start to exit."""
    command = [sys.executable, __file__, "--job", job, str(source), str(target)]
    start = time.perf_counter()
    child = subprocess.Popen(command)
    _, status, used = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{job} failed")
    taken = time.perf_counter() - start
    shutil.rmtree(target)
    return taken, used.ru_maxrss * 1024 / 1e9


def store(gigabytes: float, folder: Path) -> None:
    print("| store | job | seconds | speed / copy | peak memory, GB |\n|---|---|---|---|---|")
    for name, chunks in CHUNKS.items():
        source = folder / f"{name}.zarr"
        make(source, gigabytes, chunks)
        size = sum(file.stat().st_size for file in source.rglob("*") if file.is_file()) / 1e9
        rounds = 2 if gigabytes < 10 else 1
        runs = [[apart(job, source, folder / "out.zarr") for job in JOBS] for _ in range(rounds)]
        copied = statistics.mean(run[0][0] for run in runs)
        for number, job in enumerate(JOBS):
            took = statistics.mean(run[number][0] for run in runs)
            memory = max(run[number][1] for run in runs)
            row = f"{size:.1f} GB in chunks {chunks}", job, f"{took:.0f}", f"{copied / took:.2f}"
            print(f"| {' | '.join(row)} | {memory:.2f} |", flush=True)
        shutil.rmtree(source)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--job", job, source, target]:
            JOBS[job](Path(source), Path(target))
        case ["--store", gigabytes, folder]:
            store(float(gigabytes), Path(folder))
        case _:
            in_memory()
