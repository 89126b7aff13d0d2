"""A tracer that stays positive: networks step it, its total is kept, and no cell is negative."""

from pathlib import Path

import matplotlib.pyplot as plt
from tracers.model import EDGES, averages, drawn, flow_of, load, predicted, prior

import probconserv as pc

TEST, STEPS = 3_000_000, 20  # the seed of tracers that no network saw
FACTORS = {"u": 0.5, "fx": 0.1, "fy": 0.1}  # of the members' variance: tracers/tune.py
networks, mesh = load(), pc.Mesh(x=EDGES, y=EDGES, periodic=("x", "y"))
clouds, counts = drawn(TEST, 16)
truth, flow = averages(clouds, counts, steps=STEPS), flow_of(clouds)  # (16, 21, 32, 32), (16, 3)
total = pc.integral(mesh, mesh.integral(truth[:, 0]))
laws = {"no law": (), "the total": (total,), "the total, positive": (total, pc.bounds(low=0.0))}

last = {}
for name, given in laws.items():
    u = truth[:, 0]
    for _ in range(STEPS):
        after = prior(predicted(networks, u, flow), u, FACTORS)["u"][:, 1]
        u = pc.condition(after, *given, draws=2).point if given else after.mean
    lost = (mesh.integral(u) / mesh.integral(truth[:, 0]) - 1).abs().max()
    rmse, negative = (u - truth[:, -1]).square().mean().sqrt(), (u < 0).double().mean()
    last[name] = u
    print(f"{name:<20} RMSE {rmse:.4f}, mass off by {lost:.0e}, {negative:.1%} of cells below 0")

# The tracer with the lowest cell, along the line of cells through it.
worst = last["the total"].flatten(1).amin(1).argmin()
row = last["the total"][worst].amin(1).argmin()
y = (EDGES[1:] + EDGES[:-1]) / 2
_, axes = plt.subplots(figsize=(8, 3.8), layout="constrained")
axes.plot(y, truth[worst, -1, row], "k:", label="truth", zorder=3)
styles = ("#C98500", "-"), ("#808080", "-."), ("#5C3D99", "--")
for (name, u), (colour, line) in zip(last.items(), styles, strict=True):
    axes.plot(y, u[worst, row], line, color=colour, label=name)
axes.set(xlabel="y (dimensionless)", ylabel="tracer (dimensionless)")
axes.set_title(f"A line of cells after {STEPS} steps")
axes.legend()
Path("out").mkdir(exist_ok=True)
plt.savefig("out/positive_tracer.png", dpi=150)
