"""Fields in shards over space: two processes with twice the points, beside one with its own.

Weak scaling: each process has as many points as the one. Three jobs take turns: the one process
alone; two that each condition a field of their own, which share the machine and no more; two that
condition one field in shards. The slower of two counts. Gloo, a thread each. Ratios of medians; two
apart beside one is the machine's part. Where others use the machine, look at processor time, the
least of all repeats: of two in shards beside two apart.

    python benchmarks/shards.py [times points repeats]
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed.tensor
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.multiprocessing import start_processes

import probconserv as pc


def laws(points: int, times: int) -> dict[str, list[pc.laws.Law]]:
    """One total at each time; and with two more."""
    x = torch.linspace(0, 1, points)
    total = pc.integral(x, torch.full((times,), 0.501))  # within two of its standard deviations
    labels = torch.arange(points) * 2 // points  # two halves
    return {
        "a total": [total],
        "and two regions": [total, pc.regions(labels, [points / 4] * 2, noise=1e3)],
    }


def once(work: Callable[[], object], ranks: int, rank: int) -> list[float]:
    """Seconds of the slower of the first `ranks` processes, by the clock and of the processor."""
    dist.barrier()
    start = time.perf_counter(), time.process_time()
    if rank < ranks:
        work()
    taken = time.perf_counter() - start[0], time.process_time() - start[1]
    found = torch.tensor(taken if rank < ranks else (0.0, 0.0))
    dist.all_reduce(found, dist.ReduceOp.MAX)
    slowest: list[float] = found.tolist()
    return slowest


def solved(mean: Tensor, variance: Tensor, given: list[pc.laws.Law], both: bool) -> object:
    """The mean, and if `both` the variance."""
    post = pc.condition((mean, variance), *given)
    return post.mean, post.variance if both else None


def run(rank: int, path: str, times: int, points: int, repeats: int) -> None:
    """One of two processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    made = torch.Generator().manual_seed(rank)
    mean = torch.rand(times, points, generator=made, dtype=torch.float64)
    variance = torch.rand(times, points, generator=made, dtype=torch.float64) + 0.1
    cut = [DTensor.from_local(t, mesh, [Shard(1)], run_check=False) for t in (mean, variance)]
    own, whole = laws(points, times), laws(2 * points, times)
    for name in own:
        for both in (False, True):
            jobs: list[tuple[Callable[[], object], int]] = [
                (lambda n=name, b=both: solved(mean, variance, own[n], b), 1),
                (lambda n=name, b=both: solved(mean, variance, own[n], b), 2),
                (lambda n=name, b=both: solved(cut[0], cut[1], whole[n], b), 2),
            ]
            each: list[list[list[float]]] = [[], [], []]
            for _ in range(repeats + 1):
                for (work, ranks), kept in zip(jobs, each, strict=True):
                    kept.append(once(work, ranks, rank))
            one, apart, shards = (statistics.median(x for x, _ in kept[1:]) for kept in each)
            _, busy_apart, busy_shards = (min(x for _, x in kept[1:]) for kept in each)
            what = "mean and variance" if both else "mean"
            if rank == 0:
                print(f"| {name}, {what} | {1e3 * one:.0f} | {apart / one:.2f} | ", end="")
                print(f"{shards / one:.2f} | {busy_shards / busy_apart:.2f} |", flush=True)
    dist.destroy_process_group()


def main() -> None:
    """Prints a table."""
    times, points, repeats = map(int, sys.argv[1:] or (16, 1 << 18, 9))
    os.environ["OMP_NUM_THREADS"] = "1"
    print(f"{times} times, {points} points of each process, load {os.getloadavg()[0]:.1f}\n")
    print(
        "| laws | one, ms | two apart / one | two in shards / one | in shards / apart, processor |"
    )
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        given = f"{folder}/store", times, points, repeats
        start_processes(run, given, nprocs=2, start_method="fork")


if __name__ == "__main__":
    main()
