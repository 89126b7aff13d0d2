"""Fixers: time of a step beside a copy of its arrays, and drift over many steps.

`python benchmarks/fixers.py` on a CPU, with OMP_NUM_THREADS=2 as two cores; `--gpu` on a GPU;
`--drift STEPS` for the drift. Freed memory is kept by the allocator on both sides.
"""

import argparse
import os
import sys
import time

KEEP = {"MALLOC_MMAP_THRESHOLD_": str(2**40), "MALLOC_TRIM_THRESHOLD_": str(2**40)}
if __name__ == "__main__" and os.environ.get("MALLOC_TRIM_THRESHOLD_") is None:
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEP})

import torch

from probconserv.weather import Fixer, Grid, Levels

STEP = 21600.0  # s
FLUXES = {"evaporation": 2.2e-5}  # kg m-2 s-1; what falls: the budget asks for no other state


def earth(levels: int, rows: int, columns: int) -> tuple[Grid, Levels]:
    s = torch.linspace(0, 1, levels + 1, dtype=torch.float64)
    half = Levels.hybrid(2e4 * s * (1 - s) + 100 * (1 - s), s**2)
    return Grid.regular(torch.linspace(90, -90, rows), torch.arange(columns) * 360 / columns), half


def air(grid: Grid, levels: Levels, members: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(members, *shape, *grid.shape, generator=rng, dtype=torch.float64)

    height = (levels.nominal / 1e5)[:, None, None]
    found = {
        "surface_pressure": 1e5 + 1000 * noise(),
        "temperature": 200 + 90 * height + 5 * noise(levels.count),
        "specific_humidity": 0.015 * height**3 * (1 + 0.5 * noise(levels.count)).clamp(0.0),
        "precipitation": (3e-5 * noise()).clamp(0.0) + 1e-5,
    }
    return {name: x.to(dtype) for name, x in found.items()}


def leaky(state: dict[str, torch.Tensor], rng: torch.Generator) -> dict[str, torch.Tensor]:
    """A step of a model that loses air and gains water and heat, with negative values."""

    def noise(name: str) -> torch.Tensor:
        x = state[name]
        return torch.randn(x.shape, generator=rng, dtype=x.dtype, device=x.device)

    return {
        "surface_pressure": state["surface_pressure"] - 2 + 20 * noise("surface_pressure"),
        "temperature": state["temperature"] + 0.01 + 0.3 * noise("temperature"),
        "specific_humidity": state["specific_humidity"] * (1.001 + 0.1 * noise("temperature"))
        - 1e-8,
        "precipitation": state["precipitation"] * (1 + 0.3 * noise("precipitation")) - 1e-8,
    }


def best(jobs: dict[str, object], rounds: int, device: str) -> dict[str, float]:
    """The shortest time of each job, in ms, all jobs in turn."""
    found = dict.fromkeys(jobs, float("inf"))
    for _ in range(rounds):
        for name, job in jobs.items():
            torch.cuda.synchronize() if device == "cuda" else None
            start = time.perf_counter()
            job()  # type: ignore[operator]
            torch.cuda.synchronize() if device == "cuda" else None
            found[name] = min(found[name], 1e3 * (time.perf_counter() - start))
    return found


def speed(device: str, rounds: int, compiles: bool) -> None:
    grid, levels = earth(13, 181, 360)
    print("| 10 members of 13 x 181 x 360 | copy, ms | step / copy | with ledger | compiled |")
    print("|---|---|---|---|---|")
    for dtype in (torch.float32, torch.float64):
        before = {name: x.to(device) for name, x in air(grid, levels, 10, dtype).items()}
        rng = torch.Generator(device).manual_seed(1)
        after = leaky(before, rng)
        jobs = {}
        for name in NAMES if compiles else NAMES[:2]:
            fixer = Fixer(grid, levels, ledger=name == "ledger").to(device)
            called = torch.compile(fixer, fullgraph=True) if name == "compiled" else fixer
            jobs[name] = step(called, before, after)
        jobs["copy"] = lambda: [x.clone() for x in after.values()]  # noqa: B023
        with torch.no_grad():
            best(jobs, 3, device)
            found = best(jobs, rounds, device)
        shown = [f"{found[n] / found['copy']:.1f}" if n in found else "-" for n in NAMES]
        print(f"| {dtype} | {found['copy']:.3f} | {' | '.join(shown)} |")


NAMES = ("step", "ledger", "compiled")


def step(fixer, before, after):  # type: ignore[no-untyped-def]
    return lambda: fixer(before, after, STEP, FLUXES)


def drift(steps: int) -> None:
    """The totals of a rollout less what the budget says, relative to it."""
    grid, levels = earth(5, 7, 12)
    print("| state | law | largest, first half | largest, second half | at the end | negative |")
    print("|---|---|---|---|---|---|")
    for dtype in (torch.float64, torch.float32):
        start = air(grid, levels, 2, dtype)
        rate = grid.mean(start["precipitation"])  # what falls, about
        fixer, state = Fixer(grid, levels), start
        rng, rows, negative = torch.Generator().manual_seed(1), [], 0
        with torch.no_grad():
            for _ in range(steps):
                near = {name: 0.5 * x + 0.5 * start[name] for name, x in state.items()}
                state = fixer(state, leaky(near, rng), STEP, {"evaporation": rate})
                found, targets = fixer.totals(state), fixer.targets()
                rows.append([float(((found[n] - t) / t).abs().max()) for n, t in targets.items()])
                values = (state["specific_humidity"], state["precipitation"])
                negative += sum(int((x < 0).sum()) for x in values)
        halves = [
            list(zip(*half, strict=True)) for half in (rows[: steps // 2], rows[steps // 2 :])
        ]
        for i, law in enumerate(targets):
            ends = [max(half[i]) for half in halves] + [rows[-1][i]]
            print(f"| {dtype} | {law} | {' | '.join(f'{x:.1e}' for x in ends)} | {negative} |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--drift", type=int, default=0)
    given = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    if given.drift:
        drift(given.drift)
    else:
        device = "cuda" if given.gpu else "cpu"
        speed(device, given.rounds, given.compile or given.gpu)


if __name__ == "__main__":
    main()
