"""Shallow water on a square: networks step it; mass, momentum and energy are kept at each step."""

import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from waters.model import CELLS, MEMBERS, drawn, energy, load, rescaled, solved, spread, stepped
from waters.report import TITLES, further, line, picture, timed

import probconserv as pc
from probconserv import figures

VALIDATION, TEST = 1_000_000, 3_000_000  # seeds of waters that no network saw
WATERS, STEPS, FURTHER = 8, 50, 150  # STEPS: as long as what the networks were trained on
Way = Callable[[Tensor], Tensor]  # from a step of the networks to where the next one starts
networks = load()
edges = torch.linspace(0, 2 * math.pi, CELLS + 1, dtype=torch.float64)
mesh = pc.Mesh(x=edges, y=edges, periodic=("x", "y"))


def ways(start: Tensor) -> dict[str, Way]:
    """Of waters (n, 3, 32, 32): depth h and transports p = h u, q = h v.

    In these variables mass and momentum are integrals, so that energy alone is curved.
    """
    sums = pc.integral(mesh, mesh.integral(start))  # of h, p and q
    kept = pc.nonlinear(energy, energy(start), batch_dims=2)
    return {
        "no law": lambda after: after,
        "mass and momentum": given(sums),
        "all laws": given(sums, kept),
        "shifted, rescaled": lambda after: rescaled(after, start),
    }


def given(*laws: pc.laws.Law | pc.laws.NonlinearLaw) -> Way:
    """Points move the more, the more the members differ there."""
    return lambda after: pc.condition(pc.Diagonal(after, spread(after)), *laws).point


def rollout(way: Way, start: Tensor, steps: int) -> tuple[Tensor, float]:
    """(members, n, steps + 1, 3, 32, 32), and the time of `way` over that of the networks."""
    states, forward, own = [start.expand(MEMBERS, *start.shape)], 0.0, 0.0
    for _ in range(steps):
        after, seconds = timed(stepped, networks, states[-1])
        state, more = timed(way, after)
        states, forward, own = [*states, state], forward + seconds, own + more
    return torch.stack(states, 2), own / forward


truth = torch.cat([solved(drawn(seed, WATERS), STEPS) for seed in (VALIDATION, TEST)])
print(
    f"{STEPS} steps of {WATERS} waters, by {MEMBERS} networks each; cost in forward passes of these"
)
print(TITLES)
runs = {}
for name, way in ways(truth[:, 0]).items():
    runs[name], cost = rollout(way, truth[:, 0], STEPS)
    print(line(name, runs[name], truth, cost))

some = truth[WATERS : WATERS + 4, 0]  # four of the waters for testing go on
far = {name: rollout(way, some, FURTHER)[0] for name, way in ways(some).items()}
for name, run in far.items():
    print(f"{name} after {FURTHER} steps: {further(run)}")
Path("out").mkdir(exist_ok=True)
figures.save(picture(truth, runs, far), "out/shallow_water.png")
