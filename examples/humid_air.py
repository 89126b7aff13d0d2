"""Air whose dry mass, water and energy are known, and whose humidity is not negative."""

import math
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import probconserv as pc
from probconserv.air import contents

LEVELS, LATITUDES, LONGITUDES, RADIUS = 5, 12, 24, 6.371e6  # RADIUS: m
edges = torch.linspace(-90, 90, LATITUDES + 1, dtype=torch.float64)
lat = (edges[1:] + edges[:-1])[:, None].deg2rad() / 2
lon = 2 * math.pi * torch.arange(LONGITUDES, dtype=torch.float64) / LONGITUDES
area = 2 * math.pi * RADIUS**2 / LONGITUDES * edges.deg2rad().sin().diff()[:, None]  # m2
sigma = torch.tensor([0, 0.1, 0.3, 0.55, 0.8, 1], dtype=torch.float64)  # p / surface p of edges
thick, middle = sigma.diff()[:, None, None], ((sigma[1:] + sigma[:-1]) / 2)[:, None, None]

# A made-up state of the air: surface pressure (Pa), temperature (K) and humidity (kg/kg).
truth = {
    "p": 1e5 + 1e3 * (2 * lat).sin() * (3 * lon).cos(),
    "T": 210 + 80 * middle * lat.cos() + 10 * lat.cos() * (2 * lon).cos(),
    "q": 0.02 * middle**3 * lat.cos() ** 4 * (1 + 0.8 * (3 * lon).cos()),
}


def budgets(air: dict[str, Tensor]) -> Tensor:
    """Dry air and water, kg, and energy, J. All three are products of pressure and a share."""
    mass = contents.mass(air["p"] * thick) * area
    heat = contents.energy("temperature", air["T"])
    heat = heat + contents.energy("specific_humidity", air["q"])
    return torch.stack([(mass * x).sum() for x in (contents.dry(air["q"]), air["q"], heat)])


# The prediction: right but for errors of which it knows the size.
generator = torch.Generator().manual_seed(2)
std = {"p": 150.0 + 0 * truth["p"], "T": 1.0 + 0 * truth["T"], "q": 2e-4 + 0.05 * truth["q"]}
noise = {
    name: torch.randn(u.shape, generator=generator, dtype=u.dtype) for name, u in truth.items()
}
before = {name: u + std[name] * noise[name] for name, u in truth.items()}
air = pc.State(**{name: pc.Diagonal(u, std=std[name]) for name, u in before.items()})

known = pc.nonlinear(budgets, budgets(truth), label="budgets")
states = {
    "no law": before,
    "negative set to 0": before | {"q": before["q"].clamp_min(0)},
    "budgets": pc.condition(air, known).point,
    "budgets, positive": pc.condition(air, known, pc.bounds(low=0.0, of="q"), draws=0).point,
}
for name, state in states.items():
    off = (budgets(state) / budgets(truth) - 1).abs()
    rmse = (state["q"] - truth["q"]).square().mean().sqrt()
    each = ", ".join(f"{x:.0e}" for x in off.tolist())
    print(f"{name:<18} {int((state['q'] < 0).sum()):3} negative, RMSE of q {1e6 * rmse:.0f} mg/kg,")
    print(f"{'':<18} dry air, water and energy off by {each}")

# Humidity around a circle of latitude, and what the budgets are off by.
level, row, east = 2, 2, lon.rad2deg()
_, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8), width_ratios=(3, 2), layout="constrained")
styles = {  # colour, line, marker, and hatch of the bars
    "no law": ("#E69F00", "-", "o", ""),
    "negative set to 0": ("#56B4E9", "", "", "///"),
    "budgets": ("#808080", "-.", "^", ""),
    "budgets, positive": ("#5C3D99", "--", "s", "..."),
}
left.plot(east, 1e3 * truth["q"][level, row], "k:", label="truth", zorder=3)
for place, (name, (colour, line, shape, hatch)) in enumerate(styles.items()):
    if line:
        q = 1e3 * states[name]["q"][level, row]
        left.plot(east, q, line, color=colour, marker=shape, markersize=4, label=name)
    off = (budgets(states[name]) / budgets(truth) - 1).abs().clamp_min(1e-17).numpy()
    places, look = torch.arange(3).numpy() + 0.2 * (place - 1.5), {"color": colour, "hatch": hatch}
    right.bar(places, off, 0.18, label=name, edgecolor="black", linewidth=0.5, **look)
left.axhline(0, color="black", linewidth=0.8)
left.set(xlabel="longitude (degrees east)", ylabel="specific humidity (g/kg)", xlim=(0, 345))
left.set_title(f"{-lat[row, 0].rad2deg():g} degrees south, layer {level + 1} of {LEVELS}")
left.legend(fontsize=8)
right.set(yscale="log", ylim=(1e-17, 1e4), ylabel="relative error", title="global budgets")
right.set_yticks([10.0**n for n in range(-16, 1, 4)])
right.set_xticks(range(3), ["dry air", "water", "energy"])
right.legend(fontsize=8, ncols=2, loc="upper center")
Path("out").mkdir(exist_ok=True)
plt.savefig("out/humid_air.png", dpi=130)
