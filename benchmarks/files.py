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
from pathlib import Path

import dask.array as da
import numpy as np
import torch
import xarray as xr
from timing import seconds

import probconserv as pc
from probconserv.labelled import Law, enforce, enforce_file

GRID = ("time", "lat", "lon")
LAW = Law("u", ("lat", "lon"), total="total", measure="area")
CHUNKS = {"whole": (8, 721, 1440), "split": (64, 361, 360)}  # of the store; 33 MB in float32


def in_memory() -> None:
    torch.set_num_threads(os.cpu_count() or 1)
    rng = np.random.default_rng(0)
    print(
        "| 240 x 181 x 360 points | enforce / core | enforce / uniform correction |\n|---|---|---|"
    )
    for dtype in (np.float64, np.float32):
        u = rng.normal(10, 1, (240, 181, 360)).astype(dtype)
        std = rng.uniform(0.5, 1.5, u.shape).astype(dtype)
        area = np.tile(np.cos(np.linspace(-1.5, 1.5, 181))[:, None], 360)
        total = float((u[0] * area).sum(dtype=float))
        field = {"u": (GRID, u), "std": (GRID, std), "area": (GRID[1:], area)}
        dataset = xr.Dataset(field).assign(total=total)

        def ours(dataset: xr.Dataset = dataset) -> object:
            return enforce(dataset, LAW, std="std")

        def core(u=u, std=std, area=area, total=total) -> object:
            field = pc.Diagonal(torch.from_numpy(u), torch.from_numpy(std) ** 2)
            after = pc.condition(field, pc.cells(torch.from_numpy(area), total))
            return after.mean, after.std

        def uniform(u=u, area=area, total=total) -> object:
            missing = total - (u * area).sum((1, 2))
            return u + (missing / area.sum())[:, None, None]

        a, b, c = seconds(ours, core, uniform)
        print(f"| {np.dtype(dtype).name} | {a / b:.2f} | {a / c:.2f} |", flush=True)


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
