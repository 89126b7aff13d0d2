"""Vortices on a square: networks predict their steps, energy and enstrophy are kept at each."""

from pathlib import Path

import torch
from vortices.model import CELLS, drawn, energy, enstrophy, load, predicted, solved
from vortices.report import line, picture

import probconserv as pc
from probconserv import figures

TEST, STEPS = 3_000_000, 50  # the seed of fields that no network saw
networks, truth = load(), solved(drawn(TEST, 8), STEPS)  # (8, 51, 32, 32)
start = truth[:, 0]


def invariants(w: torch.Tensor) -> torch.Tensor:
    """Energy and enstrophy of fields (..., 32, 32): (..., 2)."""
    return torch.stack([energy(w), enstrophy(w)], -1)


average = torch.full((1, CELLS, CELLS), 1 / CELLS**2, dtype=torch.float64)
mean = pc.linear(average, [0.0])
kept = pc.nonlinear(invariants, invariants(start), batch_dims=1)
runs = {"no law": start[:, None], "mean": start[:, None], "mean, E and Z": start[:, None]}
for name, laws in zip(runs, ((), (mean,), (mean, kept)), strict=True):
    for _ in range(STEPS):
        before = pc.Diagonal(*predicted(networks, runs[name][:, -1]))
        after = pc.condition(before, *laws).point if laws else before.mean
        runs[name] = torch.cat([runs[name], after[:, None]], 1)

print(f"{STEPS} steps of 8 fields; worst drift of the mean, of E and of Z after the last")
for name, w in {"truth": truth, **runs}.items():
    print(line(name, w, truth))
Path("out").mkdir(exist_ok=True)
figures.save(picture(truth, runs["no law"], runs["mean, E and Z"]), "out/vortex.png")
