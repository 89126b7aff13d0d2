"""What inequalities and nonlinear laws cost: `OMP_NUM_THREADS=1 python benchmarks/loop.py`.

The point is the most probable field, without draws. SLSQP of SciPy and Gauss-Newton by hand solve
the same problems. The two sides of a ratio run in turn; the best of all repeats counts. Prints a
Markdown table.
"""

import contextlib
import io
import os
import runpy
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

import probconserv as pc

EXAMPLES, REPEATS = Path(__file__).parents[1] / "examples", 7
rng = torch.Generator().manual_seed(0)
Row = tuple[str, str, str]  # what, measured, asked for


def best(*jobs: Callable[[], object], repeats: int = REPEATS) -> list[float]:
    """Least seconds of the processor that each job takes, all jobs in turn: others may share it."""
    times: list[list[float]] = [[] for _ in jobs]
    for _ in range(repeats + 1):
        for job, kept in zip(jobs, times, strict=True):
            start = time.process_time()
            job()
            kept.append(time.process_time() - start)
    return [min(kept[1:]) for kept in times]


def example(name: str) -> dict[str, Any]:
    """What the script of an example leaves behind."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        os.chdir(folder)
        try:
            return runpy.run_path(str(EXAMPLES / f"{name}.py"))
        finally:
            os.chdir(before)


def air() -> Iterator[Row]:
    given = example("humid_air")
    positive = pc.bounds(low=0.0, of="q")

    def point() -> dict[str, Tensor]:
        return pc.condition(given["air"], given["known"], positive, draws=0).point

    u, (seconds,) = point(), best(point)
    off = float((given["budgets"](u) / given["budgets"](given["truth"]) - 1).abs().max())
    below = int((u["q"] < 0).sum())
    said = f"{seconds:.3f} s; {below} negative, budgets off by {off:.0e}"
    yield "5 x 12 x 24 atmosphere, three budgets, q >= 0: the point", said, "0.5 s; none, 1e-12"


def flow_sheet() -> Iterator[Row]:
    given = example("flow_sheet")
    sheet, laws, within, measured, std = (
        given[name] for name in ("sheet", "laws", "within", "measured", "std")
    )

    def point() -> dict[str, Tensor]:
        return pc.condition(sheet, *laws, *within, draws=0).point

    u, (seconds,) = point(), best(point)
    far = sum(float(((u[of] - measured[of]) / std[of]).square().sum()) for of in std) / 2
    start = time.process_time()
    other = by_slsqp(given["network"].numpy(), measured, std)
    took = time.process_time() - start
    said = f"{far:.7f} in {seconds:.3f} s; SLSQP {other:.7f} in {took:.1f} s"
    yield "flow sheet of 30 streams, fractions >= 0: objective", said, "1e-6 of SLSQP's; 0.5 s"


def by_slsqp(network: Any, measured: dict[str, Tensor], std: dict[str, Tensor]) -> float:
    """The objective that SciPy finds, with exact Jacobians."""
    mean, size = (np.concatenate([t[of].numpy().ravel() for of in t]) for t in (measured, std))
    units, streams = network.shape
    parts = len(mean) // streams - 1

    def split(z: Any) -> tuple[Any, Any]:
        return z[:streams], z[streams:].reshape(streams, parts)

    def laws(z: Any) -> Any:
        flow, fraction = split(z)
        return np.r_[(network @ (flow[:, None] * fraction)).ravel(), fraction.sum(-1) - 1]

    def jacobian(z: Any) -> Any:
        flow, fraction = split(z)
        rows = np.zeros((units, parts, len(z)))
        sums = np.zeros((streams, len(z)))
        for part in range(parts):
            rows[:, part, :streams] = network * fraction[:, part]
            rows[:, part, streams + part :: parts] = network * flow
        for stream in range(streams):
            sums[stream, streams + parts * stream :][:parts] = 1
        return np.concatenate([rows.reshape(-1, len(z)), sums])

    most = np.where(np.arange(len(mean)) < streams, np.inf, 1.0)
    found = minimize(
        lambda z: 0.5 * (((z - mean) / size) ** 2).sum(),
        np.clip(mean, 0, most),
        jac=lambda z: (z - mean) / size**2,
        bounds=list(zip(0 * mean, most, strict=True)),
        constraints=[{"type": "eq", "fun": laws, "jac": jacobian}],
        method="SLSQP",
        options={"ftol": 1e-13, "maxiter": 1000},
    )
    return float(found.fun)


def energy_and_mass() -> Iterator[Row]:
    mean = torch.randn(32, 32, generator=rng, dtype=torch.float64)
    variance = 0.001 + 0.01 * torch.rand(32, 32, generator=rng, dtype=torch.float64)
    noise = torch.randn(32, 32, generator=rng, dtype=torch.float64)
    value = sums(mean + variance.sqrt() * noise)
    field, flat = pc.Diagonal(mean, variance), variance.flatten()
    mass = pc.weighted_sum(torch.ones(32, 32), value[0], space_dims=2)
    energy = pc.nonlinear(lambda u: u.square().sum(), value[1])

    def ours() -> Tensor:
        return pc.condition(field, mass, energy).point

    def by_hand(steps: int = 4) -> Tensor:
        u = mean
        for _ in range(steps):
            rows = torch.func.jacrev(sums)(u).flatten(1)
            gram = (rows * flat) @ rows.mT
            r = sums(u) - value + rows @ (mean - u).flatten()
            multiplier = torch.cholesky_solve(r[:, None], torch.linalg.cholesky(gram))
            u = mean - (flat * (rows.mT @ multiplier)[:, 0]).reshape(32, 32)
        return u

    torch.testing.assert_close(ours(), by_hand(), atol=1e-7, rtol=0)
    first, second = best(ours, by_hand, repeats=60)
    said = f"{first / second:.1f} ({1e3 * first:.1f} ms)"
    yield "energy and mass, 32 x 32 / four steps of Gauss-Newton by hand", said, "6"


def sums(u: Tensor) -> Tensor:
    return torch.stack([u.sum(), u.square().sum()])


def draws() -> Iterator[Row]:
    x = torch.linspace(0, 1, 201, dtype=torch.float64)
    t = torch.linspace(0.2, 0.8, 201, dtype=torch.float64)[:, None]
    fronts = torch.sigmoid((x - t) / 0.05)
    std = 0.02 + 0.2 * torch.rand(201, 201, generator=rng, dtype=torch.float64)
    noise = torch.randn(201, 201, generator=rng, dtype=torch.float64)
    prior, law = (
        pc.Diagonal(fronts + std * noise, std=std),
        pc.integral(x, torch.trapezoid(fronts, x)),
    )

    def within(inequality: pc.laws.Inequality) -> Callable[[], object]:
        return lambda: pc.condition(prior, law, inequality, draws=100, generator=rng)

    jobs = within(pc.bounds(low=0.0)), within(pc.monotone())
    plain, *found = best(lambda: pc.condition(prior, law).sample(100, rng), *jobs, repeats=4)
    for name, seconds, asked in zip(("bounds", "monotone"), found, ("1.5", "15"), strict=True):
        yield f"{name} with one sum, 100 draws / 100 without", f"{seconds / plain:.2f}", asked


def ensembles() -> Iterator[Row]:
    for side, asked in ((64, "0.3 s"), (256, "3 s")):
        shape = side, side
        mean = torch.rand(shape, generator=rng, dtype=torch.float64) - 0.3
        members = 0.2 * torch.randn(20, *shape, generator=rng, dtype=torch.float64)
        field = pc.LowRank(mean, members, torch.full(shape, 0.01), event_dims=2)
        total = pc.weighted_sum(torch.full(shape, side**-2), 0.3, space_dims=2)
        seconds = points(field, total)
        name = f"20 members and a rest, {side} x {side}, a total, bounds: the point"
        yield name, f"{seconds:.2f} s", asked


def two_totals() -> Iterator[Row]:
    n = 10**6
    mean = torch.rand(n, generator=rng, dtype=torch.float64) - 0.3
    field = pc.Diagonal(mean, 0.01 + torch.rand(n, generator=rng, dtype=torch.float64))
    x, true = torch.linspace(0, 1, n, dtype=torch.float64), mean.clamp_min(0)
    totals = [pc.weighted_sum(w, 0.95 * (w * true).sum()) for w in (torch.ones(n) / n, x / n)]
    seconds = points(field, *totals)
    yield "10^6 independent points, two totals, bounds: the point", f"{seconds:.2f} s", "3 s"


def points(field: Any, *laws: Any) -> float:
    return best(lambda: pc.condition(field, *laws, pc.bounds(low=0.0), draws=0), repeats=2)[0]


def main() -> None:
    print("| | measured | asked for |\n|---|---|---|")
    for rows in (air, flow_sheet, energy_and_mass, draws, ensembles, two_totals):
        for row in rows():
            print("| " + " | ".join(row) + " |", flush=True)
    load, threads = os.getloadavg()[0], torch.get_num_threads()
    print(f"\nLoad {load:.1f} at the end, {threads} threads, torch {torch.__version__}.")


if __name__ == "__main__":
    main()
