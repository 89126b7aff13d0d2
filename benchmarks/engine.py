"""What the engine costs beside plain torch: `OMP_NUM_THREADS=2 python benchmarks/engine.py`.

    --old FOLDER   a checkout of an older version, which the row with smoothness compares with

Prints a Markdown table. Both sides of a ratio run in turn, their medians are compared, and their
results must agree. Rows whose functions the installed version does not have are left out. The cost
of 16 M points is in step2.py, of files in files.py, of a GPU in gpu.py. Run it on an idle
machine: two threads that wait for a busy core change every row; the load is printed.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from timing import seconds
from torch import Tensor

import probconserv as pc

Job = Callable[[], object]
Moments = tuple[Tensor, Tensor]
M = 201
RHO = 0.9
rng = torch.Generator().manual_seed(0)
x = torch.linspace(0, 1, M, dtype=torch.float64)


def random_field(*shape: int) -> Moments:
    mean = torch.randn(shape, generator=rng, dtype=torch.float64)
    return mean, torch.rand(shape, generator=rng, dtype=torch.float64) + 0.1


def step2(field: object, *laws: object) -> Moments:
    post = pc.condition(field, *laws)
    return post.mean, post.variance


def hundred(job: Job) -> Job:
    """The job as in a loop of its own: in turn with others, microseconds go by cold caches."""
    return lambda: [job() for _ in range(100)]


def report(what: str, measured: str, asked: str = "", goal: str = "") -> None:
    print(f"| {what} | {measured} | {asked} | {goal} |", flush=True)


def one_field() -> None:
    mean, variance = random_field(1, M)
    total = torch.trapezoid(mean, x) + 0.01  # what the field can be moved to without a warning
    weights = torch.full_like(x, 1 / (M - 1))  # g
    weights[[0, -1]] /= 2  # trapezoid
    column = weights[:, None]
    field, law = pc.Diagonal(mean, variance), pc.integral(x, total)

    def formula() -> Moments:
        moved = variance * weights  # Sigma g
        gain = moved / (moved @ column)
        return mean + gain * (total - mean @ column), variance - gain * moved

    def built() -> Moments:
        return step2((mean, variance), pc.integral(x, total))

    torch.testing.assert_close(built(), formula())
    jobs = formula, built, lambda: step2(field, law)
    plain, whole, ready = seconds(*(hundred(job) for job in jobs), repeats=30)
    report("201 points, integral / the formula", f"{whole / plain:.1f}", "<= 12", "10")
    report("the same, field and law ready / the formula", f"{ready / plain:.1f}")


def smooth_field() -> None:
    mean, variance = random_field(1, M)
    second = torch.eye(M, dtype=torch.float64).diff(n=2, dim=0) * (M - 1)  # B, (M - 2, M)
    s0, s1, s2 = variance[0].sqrt().unfold(0, M - 2, 1)
    noise = s0**2 + 4 * s1**2 + s2**2 - 4 * RHO * s1 * (s0 + s2) + 2 * RHO**2 * s0 * s2
    noise = noise * (M - 1) ** 2

    def dense() -> Moments:
        cross = second * variance  # B Sigma
        root = torch.linalg.cholesky(cross @ second.T + noise.diag())
        both = torch.cat([cross, second @ mean.T], 1)
        white = torch.linalg.solve_triangular(root, both, upper=False)
        moved = white[:, -1:].T @ white[:, :-1]
        return mean - moved, variance - white[:, :-1].square().sum(0)

    def built() -> Moments:
        return step2((mean, variance), pc.smoothness(x, variance, rho=RHO))

    torch.testing.assert_close(built(), dense())
    plain, ours = seconds(hundred(dense), hundred(built), repeats=9)
    report("201 points, smoothness / the dense formula", f"{ours / plain:.2f}", "<= 1.5", "1")


def regions() -> None:
    """At each time a total for each of 16 x 16 blocks of 2 x 2 columns with 3 levels."""
    mean, variance = random_field(24, 32, 32, 3)
    total = torch.randn(24, 256, generator=rng, dtype=torch.float64)
    row = torch.arange(32) // 2
    labels = (16 * row[:, None] + row)[..., None].expand(32, 32, 3).contiguous()
    blocks, inside = (24, 16, 2, 16, 2, 3), (2, 4, 5)

    def reshaped() -> Moments:
        u, v = mean.reshape(blocks), variance.reshape(blocks)
        gain = v / v.sum(inside, keepdim=True)
        gap = total.reshape(24, 16, 1, 16, 1, 1) - u.sum(inside, keepdim=True)
        return (u + gain * gap).reshape(mean.shape), (v - gain * v).reshape(mean.shape)

    def built() -> Moments:
        return step2((mean, variance), pc.regions(labels, total))

    torch.testing.assert_close(built(), reshaped())
    plain, ours = seconds(reshaped, built, repeats=30)
    report("256 regions of 24 x 32 x 32 x 3 points", f"{ours * 1e3:.1f} ms", "<= 30 ms", "6 ms")
    report("the same / by reshaping", f"{ours / plain:.1f}")


def mixture_interval() -> None:
    mean, variance = random_field(100, M, M)
    mixture = pc.Mixture(pc.Diagonal(mean, variance))
    for end, below in zip(mixture.interval(0.9), (0.05, 0.95), strict=True):
        reached = torch.special.ndtr((end - mean) / variance.sqrt()).mean(0)
        torch.testing.assert_close(reached, torch.full_like(reached, below))
    (took,) = seconds(lambda: mixture.interval(0.9), repeats=3)
    report("Mixture.interval(0.9), 100 x 201 x 201", f"{took:.2f} s", "<= 2 s", "0.5 s")


def sparse_rows(count: int, points: int, each: int) -> Tensor:
    """Rows that read a few points each."""
    rows = torch.arange(count).repeat_interleave(each)
    columns = torch.randint(points, rows.shape, generator=rng)
    values = torch.randn(len(rows), generator=rng, dtype=torch.float64)
    return torch.sparse_coo_tensor(torch.stack([rows, columns]), values, (count, points)).coalesce()


def sparse_laws() -> None:
    """Many sparse rows on the same points, beside dense NumPy where memory allows it."""
    for count, points, each, times in ((401, 20_000, 50, 12), (762, 2282, 4, 4)):
        mean, variance = random_field(times, points)
        matrix = sparse_rows(count, points, each)
        field, law = pc.Diagonal(mean, variance), pc.linear(matrix, 0.0, noise=0.1)
        full = matrix.to_dense()

        def dense(full: Tensor = full, mean: Tensor = mean, variance: Tensor = variance) -> Moments:
            each = []
            for u, d in zip(mean, variance, strict=True):
                cross = full * d
                noise = 0.01 * torch.eye(len(full), dtype=torch.float64)
                root = torch.linalg.cholesky(cross @ full.T + noise)
                both = torch.cat([cross, (full @ u)[:, None]], 1)
                white = torch.linalg.solve_triangular(root, both, upper=False)
                move = white[:, -1] @ white[:, :-1]
                each.append((u - move, d - white[:, :-1].square().sum(0)))
            means, variances = zip(*each, strict=True)
            return torch.stack(means), torch.stack(variances)

        def ours(field: object = field, law: object = law) -> Moments:
            return step2(field, law)

        torch.testing.assert_close(ours(), dense())
        plain, took = seconds(dense, ours, repeats=3)
        what = f"{count} sparse rows on {points} points, {times} times"
        report(what, f"{took:.2f} s", "<= 0.3 s" if count == 762 else "")
        report("the same / dense matrices", f"{took / plain:.2f}")


def redundant_regions() -> None:
    """200 regions and their total; 1,000 regions and 1,000 others."""
    mean, variance = random_field(4, 360, 720)
    blocks = torch.arange(360)[:, None] // 36 * 20 + torch.arange(720) // 36
    total = mean.sum((1, 2)) + 1
    parts = torch.zeros(4, 200, dtype=torch.float64).index_add(1, blocks.flatten(), mean.flatten(1))
    laws = pc.regions(blocks, parts + 1 / 200), pc.weighted_sum(torch.ones(360, 720), total)
    field = pc.Diagonal(mean, variance)
    (took,) = seconds(lambda: step2(field, *laws), repeats=3)
    report("200 regions and their total, 4 x 360 x 720", f"{took:.2f} s", "<= 1 s")
    first, other = torch.arange(259_200) // 260, torch.randint(1000, (259_200,), generator=rng)
    u, d = random_field(1, 259_200)
    zero = torch.zeros(1, 1000, dtype=torch.float64)
    sums = [zero.index_add(1, labels, u + 0.01) for labels in (first, other)]
    laws = pc.regions(first, sums[0]), pc.regions(other, sums[1])
    field = pc.Diagonal(u, d)
    jobs = lambda: pc.condition(field, *laws).mean, lambda: step2(field, *laws)
    alone, both = seconds(*jobs, repeats=2)
    report("two exact laws of 1,000 regions each, mean", f"{alone:.2f} s", "<= 2 s")
    report("the same with the variance", f"{both:.2f} s", "<= 4 s")


def shared_covariance() -> None:
    """A hierarchy of 1,051 series at 12 times that share a full covariance."""
    below = torch.zeros(51, 1000, dtype=torch.float64)
    below[0], below[1:] = 1, torch.eye(50, dtype=torch.float64).repeat_interleave(20, 1)
    rows = torch.cat([torch.eye(51, dtype=torch.float64), -below], 1)
    root = torch.randn(1051, 1200, generator=rng, dtype=torch.float64)
    covariance, mean = root @ root.T / 1200, random_field(12, 1051)[0]

    def one_factor() -> Moments:
        torch.linalg.cholesky(covariance)  # of the prior: whether it is one
        cross = rows @ covariance
        factor = torch.linalg.cholesky(cross @ rows.T)
        gain = torch.cholesky_solve(cross, factor)
        variance = covariance.diagonal() - (cross * gain).sum(0)
        return mean - (mean @ rows.T) @ gain, variance.expand(12, -1)

    def ours() -> Moments:
        return step2(pc.Dense(mean, covariance), pc.linear(rows.to_sparse(), 0.0))

    torch.testing.assert_close(ours(), one_factor())
    plain, took = seconds(one_factor, ours, repeats=5)
    report("1,051 series, one covariance for 12 times / one factor", f"{took / plain:.1f}", "<= 3")


def many_smooth_fields() -> float:
    """Seconds for smoothness with an integral on 20 x 201 x 201 points."""
    mean, variance = random_field(20, M, M)
    total = torch.rand(M, generator=rng, dtype=torch.float64)

    def built() -> Moments:
        laws = pc.integral(x, total), pc.smoothness(x, variance, rho=RHO)
        return step2((mean, variance), *laws)

    return seconds(built, repeats=9)[0]


def against_old(checkout: Path) -> None:
    """Processes of the old and the present version in turn."""
    source = checkout.resolve() / "src"

    def process(environment: dict[str, str]) -> float:
        command = [sys.executable, __file__, "--child"]
        return float(subprocess.check_output(command, env={**os.environ, **environment}))

    runs = [(process({"PYTHONPATH": str(source)}), process({})) for _ in range(5)]
    old, new = map(statistics.median, zip(*runs, strict=True))
    report("smoothness + integral, 20 x 201 x 201, old / now", f"{old / new:.2f}", ">= 3", "5")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--old", type=Path)
    parser.add_argument("--child", action="store_true", help="for a process of `against_old`")
    given = parser.parse_args()
    if given.old and not (given.old / "src" / "probconserv").is_dir():
        parser.error(f"--old: there is no src/probconserv in {given.old}")
    if given.child:
        print(many_smooth_fields())
        return
    print(f"probconserv {pc.__version__}, torch {torch.__version__}, ", end="")
    print(f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}\n")
    print("| figure | measured | asked for | goal |\n|---|---|---|---|")
    one_field()
    smooth_field()
    if given.old:
        against_old(given.old)
    if hasattr(pc, "regions"):
        regions()
    sparse_laws()
    redundant_regions()
    shared_covariance()
    mixture_interval()


if __name__ == "__main__":
    main()
