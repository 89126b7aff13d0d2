"""Step 2 on a GPU against copying its arrays, in one run: `python benchmarks/gpu.py`.

A copy is that of mean and variance, or of the members. All checks are on, and mean and variance are
read. Each figure is the median of runs that end with a wait, as CUDA events see them.
"""

import statistics
import warnings
from collections.abc import Callable

import torch

import probconserv as pc

X = torch.linspace(0, 1, 201, device="cuda", dtype=torch.float64)
DTYPES = torch.float32, torch.float64


def milliseconds(job: Callable[[], object], repeats: int = 30) -> float:
    for _ in range(5):
        job()
    times = []
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(repeats):
        torch.cuda.synchronize()
        start.record()
        job()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def in_a_row(job: Callable[[], object], repeats: int = 30) -> float:
    """One after the other, without a wait between them."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        job()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / repeats


def arrays(job: Callable[[], object], size: int) -> float:
    """Memory beyond the inputs at its peak, in arrays of so many bytes."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = job()
    torch.cuda.synchronize()
    del kept
    return (torch.cuda.max_memory_allocated() - before) / size


def waits(job: Callable[[], object]) -> int:
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        job()
    torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(each.message) for each in said)


def row(
    name: str, copy: float, job: Callable[[], object], size: int, compiled: bool = False
) -> None:
    for _ in range(3):
        job()
    alone, together = milliseconds(job, 20), in_a_row(job, 20)
    text = f"| {name} | {alone:.3f} | {alone / copy:.1f} | {together / copy:.1f} "
    text += f"| {arrays(job, size):.2f} | {waits(job)} |"
    if compiled:
        fast = torch.compile(job, fullgraph=True)
        fast()
        text += f" {milliseconds(fast, 20) / copy:.1f} | {waits(fast)} |"
    print(text, flush=True)


def read(field: object, *laws: object) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    def job() -> tuple[torch.Tensor, torch.Tensor]:
        post = pc.condition(field() if callable(field) else field, *laws)
        return post.mean, post.variance

    return job


def random(*shape: int, dtype: torch.dtype = torch.float64, low: float = 0.0) -> torch.Tensor:
    rng = torch.Generator("cuda").manual_seed(0)
    return torch.rand(shape, generator=rng, device="cuda", dtype=dtype) + low


def main() -> None:
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}\n")
    print("| work | ms | copies | copies, in a row | arrays | waits | compiled | waits |")
    print("|---|---|---|---|---|---|---|---|")
    short, total = pc.integral(X, 0.5 + X / 20), random(721, 1440)
    total = pc.weighted_sum(total / total.sum(), 0.5)
    numbers = torch.arange(721)[:, None] * 16 // 721 * 16 + torch.arange(1440) * 16 // 1440
    regions = pc.regions(numbers.cuda(), torch.full((256,), 2027.8).cuda(), 1.0)
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        for shape, law in (((200, 201, 201), short), ((10, 13, 721, 1440), total)):
            mean, variance = random(*shape, dtype=dtype), random(*shape, dtype=dtype, low=0.01)
            size = mean.numel() * mean.element_size()
            copy = milliseconds(lambda m=mean, v=variance: (m.clone(), v.clone()))
            print(f"| {name}, {' x '.join(map(str, shape))}: a copy | {copy:.4f} |")
            row("a total for each place", copy, read((mean, variance), law), size, True)
            row(
                "the same, as `Diagonal`",
                copy,
                read(lambda m=mean, v=variance: pc.Diagonal(m, v), law),
                size,
            )
        row("256 regions", copy, read((mean, variance), regions), size)
        others = [
            pc.weighted_sum(random(721, 1440) * total.map.weights.roll(i), 0.25) for i in range(7)
        ]
        row("two totals", copy, read((mean, variance), total, others[0]), size)
        row("eight totals", copy, read((mean, variance), total, *others), size)
        del mean, variance
        members = random(721, 1440, dtype=dtype) + 0.3 * random(20, 721, 1440, dtype=dtype)
        members -= (total.map.weights * members.mean(0)).sum() - 0.5  # near the total
        copy = milliseconds(members.clone)
        size = members.numel() * members.element_size()
        print(f"| {name}, 20 x 721 x 1440 members: a copy | {copy:.4f} |")
        row("the mean", copy, lambda m=members: pc.condition(pc.Ensemble(m), total).mean, size)
        row(
            "`members()`",
            copy,
            lambda m=members: pc.condition(pc.Ensemble(m), total).members(),
            size,
        )
    mean, variance = random(1, 1, 201), random(1, 1, 201, low=0.1)
    row("one field of 201 points", 1.0, read((mean, variance), pc.integral(X, 0.5)), 201 * 8)
    mean, variance = (random(1000, 1000, 1000, dtype=torch.float32, low=0.1) for _ in range(2))
    copy = milliseconds(lambda: (mean.clone(), variance.clone()), 5)
    edges = torch.linspace(0, 1, 1000)
    row(
        "10^9 points, float32",
        copy,
        read((mean, variance), pc.integral((edges, edges), 0.5)),
        4 * 10**9,
    )


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pc.ImplausibleWarning)
        main()
