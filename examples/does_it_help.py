"""Does a law help? The same network and laws, where the network was trained and beyond."""

import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import probconserv as pc
from probconserv.experiments.operators import CASES, load_ensemble

warnings.simplefilter("ignore", pc.ImplausibleWarning)  # of parameters beyond the training
FUNCTIONS, TIMES = 20, slice(3, None, 4)  # held out, of each range
case, network = CASES["pme"], load_ensemble("pme")  # six networks of the porous medium, m in (2, 3)


def held_out(where: str, split: str):
    """What the networks predict of functions whose truth is known, the truth, and the laws."""
    problem, data = case.functions(where, split, FUNCTIONS)
    t, x = data.axes
    members = network.predict(data.inputs, (t[TIMES], x))
    prior = pc.Diagonal(members.mean.mean(0), members.variance.mean(0) + members.mean.var(0))
    left = problem[:, None, None].solution(t[TIMES, None], x[:1])  # the largest value
    laws = pc.integral(x, data.totals[:, TIMES]), pc.bounds(0.0, left)
    return prior, data.targets[:, TIMES], laws


figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for axes, where, title in zip(
    panels, ("in", "far"), ("m in (2, 3), as in training", "m in (5, 6)"), strict=True
):
    prior, truth, laws = held_out(where, "validation")
    found = pc.compare(prior, truth, *laws)
    print(f"\n{title}\n{found.verdict}\n{found.table()}")
    choice = pc.select(prior, truth, *laws)
    print(choice.verdict)
    for row, way in enumerate(found.ways[1:]):
        one = found.difference(way)
        low, high = (100 * end / one.base for end in one.interval)
        colour = {"helps": "#5C3D99", "harms": "#C98500"}.get(one.answer, "#808080")
        axes.plot([low, high], [row, row], color=colour, linewidth=2)
        marker = {"helps": "o", "harms": "s"}.get(one.answer, "D")
        axes.plot(100 * one.gain / one.base, row, marker, color=colour)
        axes.annotate(one.answer, (1.02, row), xycoords=("axes fraction", "data"), va="center")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(found.ways) - 1), found.ways[1:])
    axes.set(title=title, xlabel="CRPS gained over no law (%)")
    axes.invert_yaxis()

    # What was chosen, on functions that had no part in it.
    prior, truth, laws = held_out(where, "test")
    field = choice.way(prior, *laws)
    scores = [
        float(pc.evaluate(f, truth, samples=1, generator=torch.Generator()).CRPS.mean())
        for f in (prior, field)
    ]
    print(
        f"on {FUNCTIONS} other functions: CRPS {scores[0]:.2e}, with the chosen way {scores[1]:.2e}"
    )

out = Path("out")
out.mkdir(exist_ok=True)
plt.savefig(out / "does_it_help.png", dpi=150)
