"""What a nonlinear law costs beside a network: `OMP_NUM_THREADS=2 python benchmarks/nonlinear.py`.

24 fields of vorticity on 32 x 32 points are to keep their energy and enstrophy. The yardstick is a
forward pass of a Fourier neural operator (4 layers, 12 modes, width 32, float32, not trained) on
the same fields. Both run in turn; the best of each counts. Use an idle machine.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from cells import Spectral
from torch import Tensor, nn

import probconserv as pc

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from vortices.model import CELLS, drawn, energy, enstrophy, solved

FIELDS, REPEATS = 24, 15


def invariants(w: Tensor) -> Tensor:
    """Energy and enstrophy of fields (..., 32, 32): (..., 2)."""
    return torch.stack([energy(w), enstrophy(w)], -1)


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [Spectral(width=32, modes=12) for _ in range(4)]
    return nn.Sequential(nn.Conv2d(1, 32, 1), *layers, nn.Conv2d(32, 1, 1))


def best(*jobs: Callable[[], object]) -> list[float]:
    """Least seconds of each job, all jobs in turn."""
    times: list[list[float]] = [[] for _ in jobs]
    for _ in range(REPEATS):
        for job, kept in zip(jobs, times, strict=True):
            start = time.perf_counter()
            job()
            kept.append(time.perf_counter() - start)
    return [min(kept) for kept in times]


def main() -> None:
    w = solved(drawn(seed=5, n=FIELDS), steps=0)[:, 0]  # (24, 32, 32)
    generator = torch.Generator().manual_seed(0)
    variance = 1e-4 * (0.1 + torch.rand(w.shape, generator=generator, dtype=w.dtype))
    noise = torch.randn(w.shape, generator=generator, dtype=w.dtype)
    field = pc.Diagonal(w + variance.sqrt() * noise, variance)
    law = pc.nonlinear(invariants, invariants(w), batch_dims=1)
    fno, inputs = network(), w[:, None].float()

    @torch.no_grad()
    def forward() -> Tensor:
        return fno(inputs)

    def point() -> Tensor:
        return pc.condition(field, law).point

    off = (invariants(point()) / invariants(w) - 1).abs().max()
    ours, theirs = best(point, forward)
    print(f"load {os.getloadavg()[0]:.1f}, threads {torch.get_num_threads()}")
    print(f"{FIELDS} fields of {CELLS} x {CELLS}, E and Z off by at most {off:.0e} of them")
    print(f"law {1e3 * ours:.1f} ms, forward {1e3 * theirs:.1f} ms, ratio {ours / theirs:.2f}")


if __name__ == "__main__":
    main()
