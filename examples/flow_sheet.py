"""A flow sheet of 30 streams: what is measured is made to balance, and no fraction is negative."""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import probconserv as pc

UNITS, OUT, DRAWS = 12, 12, 50  # OUT: where feeds come from and products go to
PARTS = "water", "ethanol", "acetone", "trace"
ENDS = [(i, i + 1) for i in range(UNITS - 1)]  # a train of units, from stream to stream
ENDS += [(OUT, 0), (OUT, 4), (OUT, 8), (3, OUT), (6, OUT), (9, OUT), (11, OUT)]
ENDS += [(2, 0), (5, 1), (7, 4), (10, 8), (1, 5), (4, 9), (11, 6), (3, 10), (8, 2), (6, 3)]
ENDS += [(9, 7), (10, 5)]  # recycles and by-passes
network = torch.zeros(UNITS + 1, len(ENDS), dtype=torch.float64)
for stream, (start, end) in enumerate(ENDS):
    network[start, stream], network[end, stream] = -1.0, 1.0
network = network[:UNITS]  # of units and streams: what comes in less what goes out
generator = torch.Generator().manual_seed(0)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def truth() -> tuple[Tensor, Tensor]:
    """Flows (30) and fractions (30, 4) of streams in balance."""
    rough = torch.tensor([6.0, 3.0, 0.8, 0.05]) * torch.exp(0.5 * noise(len(ENDS), len(PARTS)))
    prior = pc.Diagonal(rough.mT, rough.mT.square())  # (4, 30): each component by itself
    balanced = pc.linear(network, torch.zeros(UNITS))
    amounts = pc.condition(prior, balanced, pc.bounds(low=0.005), draws=0).point.mT
    return amounts.sum(-1), amounts / amounts.sum(-1, keepdim=True)


def amounts(sheet: dict[str, Tensor]) -> Tensor:
    """Of each component in each stream, mol/s."""
    return sheet["flow"][:, None] * sheet["fraction"]


flow, fraction = truth()
std = {"flow": 0.05 * flow, "fraction": 0.01 + 0 * fraction}
measured = {
    "flow": flow + std["flow"] * noise(len(ENDS)),
    "fraction": fraction + std["fraction"] * noise(len(ENDS), len(PARTS)),
}
sheet = pc.State(**{name: pc.Diagonal(u, std=std[name]) for name, u in measured.items()})
laws = (
    pc.nonlinear(lambda s: network @ amounts(s), 0.0, label="balances"),
    pc.nonlinear(lambda s: s["fraction"].sum(-1), 1.0, label="sums of fractions"),
)
within = pc.bounds(0.0, 1.0, of="fraction"), pc.bounds(low=0.0, of="flow")
balanced = pc.condition(sheet, *laws)
post = pc.condition(sheet, *laws, *within, draws=DRAWS, generator=generator)
states = {  # the most probable flows and fractions, and the field that intervals are of
    "measured": (measured, sheet),
    "balances": (balanced.point, balanced),
    "balances, in [0, 1]": ({name: post[name].point for name in std}, post),
}
for name, (point, _) in states.items():
    off, sums = (float(law.residual(point).abs().max()) for law in laws)
    rmse = float((point["flow"] / flow - 1).square().mean().sqrt())
    trace = float((point["fraction"] - fraction)[:, -1].square().mean().sqrt())
    away = sum(float(((point[of] - measured[of]) / std[of]).square().sum()) for of in std) / 2
    print(f"{name:<20} {int((point['fraction'] < 0).sum())} negative fractions,", end=" ")
    print(f"balances off by {off:.0e} mol/s, sums by {sums:.0e},")
    print(f"{'':<20} RMSE of flows {rmse:.2%}, of the trace {trace:.2%}; objective {away:.7f}")

_, (top, bottom) = plt.subplots(2, 1, figsize=(9.5, 6), sharex=True, layout="constrained")
numbers = torch.arange(len(ENDS)) + 1
styles = ("#E69F00", "o"), ("#808080", "^"), ("#5C3D99", "s")
for place, ((name, (point, field)), (colour, shape)) in enumerate(
    zip(states.items(), styles, strict=True)
):
    where = numbers + 0.25 * (place - 1)
    for axes, of, column in ((top, "flow", ...), (bottom, "fraction", (..., -1))):
        middle, *ends = (100 * x[column] for x in (point[of], *field[of].interval(0.9)))
        if axes is top:
            middle, *ends = (x / flow - 100 for x in (middle, *ends))
        axes.vlines(where, *ends, color=colour, linewidth=1)
        axes.plot(where, middle, shape, color=colour, markersize=4, label=name)
bottom.plot(numbers, 100 * fraction[:, -1], "k_", markersize=12, label="truth")
for axes in (top, bottom):
    axes.axhline(0, color="black", linewidth=0.8)
top.set(ylabel="error of the flow (%)", title="90 % intervals of 30 streams")
bottom.set(xlabel="stream", ylabel=f"{PARTS[-1]} (mol %)", xlim=(0.3, len(ENDS) + 0.7))
bottom.set_ylim(-2.6, 6.4)
bottom.legend(fontsize=8, ncols=2)
Path("out").mkdir(exist_ok=True)
plt.savefig("out/flow_sheet.png", dpi=110)
