"""A tracer on a square: five networks predict a step of it, a law for every cell corrects them."""

from pathlib import Path

from tracers.laws import of_blocks
from tracers.model import CELLS, EDGES, STEP, averages, drawn, flow_of, load, predicted, prior
from tracers.report import TITLES, rmse, row, timed

import probconserv as pc
from probconserv import figures

TEST = 3_000_000  # the seed of tracers that no network saw
FACTORS = {"u": 0.5, "fx": 0.1, "fy": 0.1}  # of the members' variance: tracers/tune.py
networks, mesh = load(), pc.Mesh(x=EDGES, y=EDGES, periodic=("x", "y"))
every_cell = pc.cell_budgets(mesh, t=[0.0, STEP], fluxes=("fx", "fy"))
laws = {"none": None, "the total": pc.budget(mesh, t=[0.0, STEP])}
laws |= {f"{n * n} regions": of_blocks(every_cell, CELLS, n) for n in (4, 8, 16)}
laws |= {"every cell": every_cell}
clouds, counts = drawn(TEST, 32)
truth, flow = averages(clouds, counts, steps=20), flow_of(clouds)  # (32, 21, 32, 32), (32, 3)
start = truth[:, 0]

# One step: what the members say, and the same given a law.
runs = [timed(lambda: predicted(networks, start, flow)) for _ in range(5)]
members, forward = min(runs, key=lambda run: run[1])
before = prior(members, start, FACTORS)
print(f"One step of 32 tracers; a forward pass of the networks takes {1e3 * forward:.0f} ms")
print(TITLES)
for name, law in laws.items():
    post, took = timed(lambda law=law: pc.condition(before, law) if law else before)
    print(row(name, post, truth[:, 1:2], every_cell, took, forward))

# Without uncertainties: what the fluxes alone make of u, and its mean with the members' own.
inflow = -STEP * mesh.divergence((before["fx"].mean, before["fy"].mean)) / mesh.volumes
alone, own = start + inflow[:, 0], before["u"].mean[:, 1]
print(f"fluxes alone {rmse(alone, truth[:, 1]):.5f}")
print(f"mean of both {rmse((alone + own) / 2, truth[:, 1]):.5f}")

# Twenty steps, each from the mean of the one before.
last = {}
for name in ("none", "the total", "every cell"):
    u = start
    for _ in range(20):
        state = prior(predicted(networks, u, flow), u, FACTORS)
        last[name] = pc.condition(state, laws[name]) if laws[name] else state
        u = last[name]["u"].mean[:, 1]
    lost = (mesh.integral(u) / mesh.integral(start) - 1).abs().max()
    print(f"20 steps, {name:<10}: RMSE {rmse(u, truth[:, 20]):.4f}, mass off by {lost:.0e} of it")

# The tracer whose error without a law is the median of all.
i = int((last["none"]["u"].mean[:, 1] - truth[:, 20]).square().mean((1, 2)).median(0).indices)
states, names = (last["none"][i], last["every cell"][i]), ("without the law", "with the law")
edges = {"x (dimensionless)": EDGES, "y (dimensionless)": EDGES}
picture = figures.maps_figure(edges, *states, every_cell, truth[i, 20], names=names)
Path("out").mkdir(exist_ok=True)
figures.save(picture, "out/tracer.png")
