"""The layer against adding a constant, forward and backward: `python benchmarks/layer.py`.

Both take a mean and a variance of (200, 201, 201) points and give two such arrays, and both call
`.backward` with the same two gradients. On a GPU times are of CUDA events, the median over 50 calls
that take turns with those of the constant; without one, of the clock on the CPU, over 5. Rows are
eager, eager with `checks=False`, and compiled. `--points B T M` takes other sizes.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

import probconserv as pc

Pair = tuple[Tensor, Tensor]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def milliseconds(*jobs: Callable[[], object], repeats: int) -> list[float]:
    """The median of each job, all jobs in turn."""
    kept: list[list[float]] = [[] for _ in jobs]
    for number in range(repeats + 3):
        for job, times in zip(jobs, kept, strict=True):
            found = once(job)
            times += [found] * (number >= 3)
    return [statistics.median(times) for times in kept]


def once(job: Callable[[], object]) -> float:
    if DEVICE == "cpu":
        start = time.perf_counter()
        job()
        return 1e3 * (time.perf_counter() - start)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    job()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def both_ways(module: Callable[[Pair], Pair], mean: Tensor, variance: Tensor) -> Callable[[], None]:
    """Forward and backward, to leaves of its own."""
    leaves = mean.clone().requires_grad_(), variance.clone().requires_grad_()
    back = torch.ones_like(mean), torch.ones_like(variance)

    def job() -> None:
        for leaf in leaves:
            leaf.grad = None
        torch.autograd.backward(module(leaves), back)

    return job


def plus_one(pair: Pair) -> Pair:
    return pair[0] + 1.0, pair[1] + 1.0


def forward(module: Callable[[Pair], Pair], pair: Pair) -> Callable[[], object]:
    def job() -> object:
        with torch.no_grad():
            return module(pair)

    return job


def layer_rows(points: tuple[int, int, int] = (200, 201, 201)) -> None:
    """Prints a row for each dtype and way: milliseconds, and how many times adding a constant."""
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else f"CPU, {torch.get_num_threads()}"
    print(f"torch {torch.__version__}, {name}; {points}\n")
    print("| dtype | way | forward, ms | / constant | forward and backward, ms | / constant |")
    print("|---|---|---|---|---|---|")
    x = torch.linspace(0, 1, points[-1], dtype=torch.float64)
    law = pc.integral(x, 0.5 + torch.linspace(0, 0.05, points[1]))
    rng = torch.Generator(DEVICE).manual_seed(0)
    for dtype in (torch.float32, torch.float64):
        pair = torch.rand(2, *points, generator=rng, device=DEVICE, dtype=dtype).unbind()
        eager = pc.ConstraintLayer(law).to(DEVICE)
        blind = pc.ConstraintLayer(law, checks=False).to(DEVICE)
        ways = {
            "eager": (eager, plus_one),
            "eager, checks=False": (blind, plus_one),
            "compiled": (torch.compile(eager, fullgraph=True), torch.compile(plus_one)),
        }
        for way, (module, constant) in ways.items():
            torch._dynamo.reset()
            found = row(module, constant, pair)
            print(f"| {str(dtype)[6:]} | {way} | {found} |", flush=True)


def row(module: Callable[[Pair], Pair], constant: Callable[[Pair], Pair], pair: Pair) -> str:
    repeats = 50 if DEVICE == "cuda" else 5
    one, other = milliseconds(forward(module, pair), forward(constant, pair), repeats=repeats)
    jobs = both_ways(module, *pair), both_ways(constant, *pair)
    both, its = milliseconds(*jobs, repeats=repeats)
    return f"{one:.3f} | {one / other:.1f} | {both:.3f} | {both / its:.1f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, nargs=3, default=(200, 201, 201))
    layer_rows(tuple(parser.parse_args().points))
