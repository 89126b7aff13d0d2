"""A fixer's step on a GPU beside a copy of the state's arrays: `python benchmarks/fixers_gpu.py`.

Times by CUDA events, each after a wait, in turn; medians. `--profile` lists the kernels of a step.
"""

import argparse
import statistics
import warnings

import torch
from fixers import FLUXES, STEP, air, earth, leaky

from probconserv.weather import Fixer, _fused


def milliseconds(jobs: dict[str, object], rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in jobs}
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(rounds):
        for name, job in jobs.items():
            torch.cuda.synchronize()
            start.record()
            job()  # type: ignore[operator]
            end.record()
            torch.cuda.synchronize()
            times[name].append(start.elapsed_time(end))
    return {name: statistics.median(each) for name, each in times.items()}


def waits(job) -> int:  # type: ignore[no-untyped-def]
    """How often the GPU is waited for."""
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        job()
    torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(each.message) for each in said)


def peak(job, size: int) -> float:  # type: ignore[no-untyped-def]
    """Memory beyond what was there, in arrays of one field on levels; the new state is two."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    there = torch.cuda.memory_allocated()
    job()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - there) / size


def without_kernels(job):  # type: ignore[no-untyped-def]
    def called():  # type: ignore[no-untyped-def]
        there, _fused.has_kernels = _fused.has_kernels, lambda x: False
        try:
            return job()
        finally:
            _fused.has_kernels = there

    return called


def profile(job) -> None:  # type: ignore[no-untyped-def]
    kinds = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds) as found:
        for _ in range(10):
            job()
        torch.cuda.synchronize()
    table = found.key_averages()
    for order, rows in (("self_cuda_time_total", 30), ("self_cpu_time_total", 15)):
        print(table.table(sort_by=order, row_limit=rows, max_name_column_width=70))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--double", action="store_true")
    given = parser.parse_args()
    dtype = torch.float64 if given.double else torch.float32
    grid, levels = earth(13, 181, 360)
    before = {name: x.to("cuda") for name, x in air(grid, levels, 10, dtype).items()}
    after = leaky(before, torch.Generator("cuda").manual_seed(1))
    size = after["temperature"].nbytes
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {dtype}\n")
    jobs = {"copy": lambda: [x.clone() for x in after.values()]}
    for ledger in (True, False):
        shown = "with ledger" if ledger else "without ledger"
        for name in KINDS[: 2 if ledger else 4]:
            jobs[f"{name}, {shown}"], _ = step_of(name, grid, levels, before, after, ledger)
    with torch.no_grad():
        for name, job in list(jobs.items()):
            try:
                job()
            except Exception as error:
                print(f"{name}: {type(error).__name__}: {str(error)[:2000]}\n")
                del jobs[name]
        milliseconds(jobs, 5)
        found = milliseconds(jobs, given.rounds)
        back_to_back = copies_in_a_row(jobs["copy"])
        print(f"copy: {found['copy']:.4f} ms; in a row {back_to_back:.4f} ms\n")
        print("| step | ms | copies | waits | peak, fields on levels |\n|---|---|---|---|---|")
        for name, job in jobs.items():
            row = f"{found[name]:.3f} | {found[name] / found['copy']:.1f} | {waits(job)}"
            print(f"| {name} | {row} | {peak(job, size):.2f} |")
        compare(grid, levels, before, after)
        if given.profile:
            for name in [name for name in jobs if "without" in name]:
                print(f"\n{name}, ten steps\n")
                profile(jobs[name])


KINDS = ("kernels", "torch", "compiled", "compiled torch")


def step_of(name, grid, levels, before, after, ledger=True):  # type: ignore[no-untyped-def]
    """A step by kernels or torch, eagerly or compiled, and its fixer."""
    fixer = Fixer(grid, levels, ledger=ledger).to(after["temperature"].device)
    called = torch.compile(fixer, fullgraph=True) if "compiled" in name else fixer
    if "torch" in name:
        fixer._has_kernels = False

    def job():  # type: ignore[no-untyped-def]
        return called(before, after, STEP, FLUXES)

    return (without_kernels(job) if name == "torch" else job), fixer


def copies_in_a_row(job) -> float:  # type: ignore[no-untyped-def]
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(50):
        job()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 50


def compare(grid, levels, before, after) -> None:  # type: ignore[no-untyped-def]
    """What kernels, torch and compiled code make of one step, and of what is on the CPU."""
    made = {}
    for name in (*KINDS, "cpu"):
        device = "cpu" if name == "cpu" else "cuda"
        old, new = ({n: x.to(device) for n, x in each.items()} for each in (before, after))
        job, fixer = step_of(name, grid, levels, old, new)
        try:
            made[name] = job()
        except Exception as error:
            print(f"\n{name}: {type(error).__name__}: {str(error)[:2000]}")
            continue
        off = [
            float(((fixer.totals(made[name])[n] - t) / t).abs().max())
            for n, t in fixer.targets().items()
        ]
        print(f"\n{name}: totals less targets, relative: {', '.join(f'{x:.1e}' for x in off)}")
    print(
        "\n| largest difference, in units of the last place of float32 | "
        + " | ".join(after)
        + " |\n|---|"
        + "---|" * len(after)
    )
    for name in [name for name in made if name != "torch"]:
        shown = []
        for n, x in made["torch"].items():
            unit = torch.finfo(torch.float32).eps * x.double().abs().amax()
            gap = (made[name][n].double().to(x.device) - x.double()).abs().max() / unit
            moved = (x.double() - after[n].double()).abs().max() / unit
            shown.append(f"{float(gap):.2g} of {float(moved):.3g}")
        print(f"| {name} beside torch | {' | '.join(shown)} |")


if __name__ == "__main__":
    main()
