"""Step 2 beside the few lines that a user would write: `python benchmarks/closed_form.py`.

One integral for each row of independent points: 200 x 201 x 201, and 10 x 13 fields of 721 x 1440
on a sphere. By hand the sums are taken in double or in the field's own dtype; both once eagerly and
once compiled. Times in copies of both arrays, in turn, with CUDA events where there is a GPU; the
extra memory in arrays of the field's size, what is handed out included. `--small` is for a CPU.
"""

import argparse
import platform
import statistics
import sys
from collections.abc import Callable
from typing import NamedTuple

import torch
from timing import seconds
from torch import Tensor

import probconserv as pc

Job = Callable[[], tuple[Tensor, Tensor]]
Moments = tuple[Tensor, Tensor]
device = "cuda" if torch.cuda.is_available() else "cpu"


class Work(NamedTuple):
    """Mean and variance, all points of a row in the last axis; weights in double; the totals."""

    mean: Tensor
    variance: Tensor
    law: pc.laws.Law
    w: Tensor
    b: Tensor
    space: tuple[int, ...]

    def fields(self) -> Moments:
        shape = *self.mean.shape[:-1], *self.space
        return self.mean.view(shape), self.variance.view(shape)


def row_of_points(functions: int, times: int, points: int, dtype: torch.dtype) -> Work:
    mean, variance = drawn((functions, times, points), dtype)
    x = torch.linspace(0, 1, points, dtype=torch.float64, device=device)
    w = torch.full_like(x, 1 / (points - 1))
    w[[0, -1]] /= 2  # the trapezoid rule
    b = 0.5 + torch.linspace(0, 0.05, times, dtype=torch.float64, device=device)
    return Work(mean, variance, pc.integral(x, b), w, b, (points,))


def sphere(members: int, levels: int, latitudes: int, longitudes: int, dtype: torch.dtype) -> Work:
    mean, variance = drawn((members, levels, latitudes * longitudes), dtype)
    latitude = torch.linspace(-90, 90, latitudes, dtype=torch.float64, device=device)
    area = torch.cos(torch.deg2rad(latitude)).clamp(min=0) + 1e-4  # the poles count a little
    area = (area / area.sum() / longitudes)[:, None].expand(-1, longitudes).contiguous()
    b = 0.5 + torch.linspace(0, 0.01, levels, dtype=torch.float64, device=device)
    law = pc.weighted_sum(area, b)
    return Work(mean, variance, law, area.flatten(), b, (latitudes, longitudes))


def drawn(shape: tuple[int, ...], dtype: torch.dtype) -> Moments:
    rng = torch.Generator(device).manual_seed(0)
    mean = torch.rand(shape, generator=rng, device=device, dtype=dtype)
    return mean, torch.rand(shape, generator=rng, device=device, dtype=dtype) + 0.1


def in_double(mean: Tensor, variance: Tensor, w: Tensor, b: Tensor) -> Moments:
    """Sums and all else in double, then back."""
    moments = in_own(mean.double(), variance.double(), w, b)
    return moments[0].to(mean.dtype), moments[1].to(mean.dtype)


def in_own(mean: Tensor, variance: Tensor, w: Tensor, b: Tensor) -> Moments:
    """In the dtype of the field."""
    w, b = w.to(mean.dtype), b.to(mean.dtype)
    shared = variance * w  # Sigma G^T
    s = (shared * w).sum(-1, keepdim=True)
    r = (mean * w).sum(-1, keepdim=True) - b[:, None]
    gain = shared / s
    return mean - gain * r, variance - gain * shared


def in_own_by_products(mean: Tensor, variance: Tensor, w: Tensor, b: Tensor) -> Moments:
    """The same with sums as products of a matrix and a vector."""
    w, b = w.to(mean.dtype), b.to(mean.dtype)
    shared = variance * w
    gain = shared / (shared @ w)[..., None]
    return mean - gain * (mean @ w - b)[..., None], variance - gain * shared


def jobs_of(work: Work) -> dict[str, Job]:
    """Each way as a call that returns mean and variance."""
    field, law = work.fields(), work.law

    def step2(mean: Tensor, variance: Tensor) -> Moments:
        post = pc.condition((mean, variance), law)
        return post.mean, post.variance

    torch._dynamo.reset()
    fast = torch.compile(step2, fullgraph=True)
    jobs: dict[str, Job] = {
        "condition": lambda: step2(*field),
        "condition, compiled": lambda: fast(*field),
    }
    own = {"double": in_double, "float32": in_own, "float32, products": in_own_by_products}
    if work.mean.dtype == torch.float64:
        own = {"double": in_own, "double, products": in_own_by_products}
    plain = work.mean, work.variance, work.w, work.b
    for name, formula in own.items():
        quick = torch.compile(formula, fullgraph=True)
        jobs[f"by hand, {name}"] = lambda f=formula: f(*plain)
        jobs[f"by hand, {name}, compiled"] = lambda f=quick: f(*plain)
    return jobs


def milliseconds(jobs: list[Job], repeats: int) -> list[float]:
    """The median of each, all in turn; on a GPU of blocks of ten calls."""
    if device == "cpu":
        return [1e3 * t for t in seconds(*jobs, repeats=repeats)]
    found: list[list[float]] = [[] for _ in jobs]
    for _ in range(repeats + 1):
        for job, kept in zip(jobs, found, strict=True):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            for _ in range(10):
                job()
            end.record()
            torch.cuda.synchronize()
            kept.append(start.elapsed_time(end) / 10)
    return [statistics.median(kept[1:]) for kept in found]


def arrays(job: Job, work: Work) -> str:
    """The most memory beyond the inputs."""
    if device == "cpu":
        return ""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    job()
    torch.cuda.synchronize()
    size = work.mean.numel() * work.mean.element_size()
    return f"{(torch.cuda.max_memory_allocated() - before) / size:.1f}"


def residual(mean: Tensor, work: Work) -> float:
    """What is left of the law, relative to the total; in double, one entry at a time."""
    rows = mean.reshape(-1, *work.mean.shape[-2:])
    off = [float(((row.double() @ work.w - work.b).abs() / work.b).max()) for row in rows]
    return max(off)


def table(name: str, work: Work, repeats: int) -> None:
    field = work.fields()
    jobs = {"copy": lambda: (field[0].clone(), field[1].clone()), **jobs_of(work)}
    for job in jobs.values():  # compiles, and picks kernels
        job()
    times = dict(zip(jobs, milliseconds(list(jobs.values()), repeats), strict=True))
    mean, variance = (t.double() for t in jobs["by hand, double"]())
    for way, job in jobs.items():
        cells = [name, str(work.mean.dtype)[6:], way, f"{times[way]:.3g}"]
        cells += [f"{times[way] / times['copy']:.2f}", arrays(job, work)]
        off = ["", "", ""]
        if way != "copy":
            moved, left = (t.double().view_as(mean) for t in job())
            found = residual(moved, work), (moved - mean).abs().max(), (left - variance).abs().max()
            off = [f"{float(x):.0e}" for x in found]
        print("| " + " | ".join(cells + off) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="sizes for a CPU")
    parser.add_argument("--repeats", type=int, default=30)
    chosen = parser.parse_args()
    where = (
        torch.cuda.get_device_name()
        if device == "cuda"
        else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    print(f"Python {sys.version.split()[0]}, torch {torch.__version__}, {where}\n")
    print(
        "| points | dtype | way | ms | / copy | memory | residual | mean off | variance off |\n"
        f"|{'---|' * 9}"
    )
    for dtype in (torch.float32, torch.float64):
        rows = (5, 201, 203) if chosen.small else (200, 201, 201)
        table(" x ".join(map(str, rows)), row_of_points(*rows, dtype=dtype), chosen.repeats)
        if device == "cuda":
            torch.cuda.empty_cache()
        cells = (2, 3, 91, 180) if chosen.small else (10, 13, 721, 1440)
        table(" x ".join(map(str, cells)), sphere(*cells, dtype=dtype), chosen.repeats)


if __name__ == "__main__":
    main()
