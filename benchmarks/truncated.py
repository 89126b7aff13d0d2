"""Points within bounds given their sum: errors and times. Prints Markdown tables.

    python benchmarks/truncated.py           errors, times, what is left of a chain's start
    python benchmarks/truncated.py --long    also 20,000 draws of 201 points (a minute)

Errors are those of the expansion of `_truncated.py`, in standard deviations of the point, against
Fourier transforms (tests/truncation.py), which are exact but for 1e-6 where points are few.
"""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]

import numpy as np
import torch
from test_truncated import arrays, soft, zeros
from timing import seconds
from truncation import by_fourier

from probconserv.conditioning.inequalities.truncated import _move_pairs, tilted

FIELDS = {"near 0 in places": soft, "0 at 60 % of the points": zeros}


def fine(size: int) -> dict[str, float]:
    """Fourier transforms of few points decay slowly."""
    if size > 50:
        return {"frequencies": 200, "reach": 10.0, "nodes": 200}
    return {"frequencies": 4000, "reach": 100.0, "nodes": 400}


def errors() -> None:
    print("| points | field | error of mean | of std | ms | ms, without bounds |")
    print("|---|---|---|---|---|---|")
    for size in (201, 50, 20, 10, 5):
        for name, field in FIELDS.items():
            off, spread = [], []
            for seed in range(1 if size > 50 else 4):
                given = field(size, seed)
                mean, variance = by_fourier(*arrays(given), **fine(size))
                found, std = tilted(*given), np.sqrt(variance)
                off.append(np.abs((found.mean.numpy() - mean) / std).max())
                spread.append(np.abs(found.variance.numpy() ** 0.5 / std - 1).max())
            given = field(size)
            free = [*given[:2], given[2] - torch.inf, *given[3:]]
            times = seconds(lambda g=given: tilted(*g), lambda g=free: tilted(*g), repeats=21)
            print(
                f"| {size} | {name} | {max(off):.5f} | {max(spread):.5f} "
                f"| {1e3 * times[0]:.2f} | {1e3 * times[1]:.2f} |"
            )


def wide(size: int) -> list[torch.Tensor]:
    """Standard deviations over two orders of magnitude: the slowest to mix."""
    given = soft(size)
    given[1] = 10 ** (-4 * torch.linspace(0, 1, size, dtype=torch.float64))
    return given


def mixing(draws: int = 2000) -> None:
    print("\n| points | field | sweeps | largest correlation with the start | noise of that |")
    print("|---|---|---|---|---|")
    fields = FIELDS | {"std from 0.01 to 1": wide}
    for size in (201, 5):
        for name, field in fields.items():
            found = tilted(*field(size))
            generator = torch.Generator().manual_seed(0)
            u = found.draw(draws, generator)
            start = (u - u.mean(0)) / u.std(0)
            for sweep in range(1, 33):
                order = torch.randperm(size, generator=generator)
                half = size // 2
                pairs = order[:half], order[half : 2 * half]
                _move_pairs(u, found._points, *pairs, generator)
                if sweep in (8, 16, 32):
                    now = (u - u.mean(0)) / u.std(0)
                    left = float((start * now).mean(0).max())
                    print(f"| {size} | {name} | {sweep} | {left:.3f} | {3 / draws**0.5:.3f} |")


def long(draws: int = 20_000) -> None:
    print("\n| field | draws | error of the mean of draws | of std | 3 / sqrt(draws) |")
    print("|---|---|---|---|---|")
    for name, field in FIELDS.items():
        found, generator = tilted(*field(201)), torch.Generator().manual_seed(1)
        u = torch.cat([found.draw(1000, generator) for _ in range(draws // 1000)])
        off = ((u.mean(0) - found.mean) / u.std(0)).abs().max()
        spread = (found.variance.sqrt() / u.std(0) - 1).abs().max()
        print(f"| {name} | {draws} | {off:.4f} | {spread:.4f} | {3 / draws**0.5:.4f} |")


if __name__ == "__main__":
    torch.set_num_threads(1)
    errors()
    mixing()
    if "--long" in sys.argv[1:]:
        long()
