"""A finite-volume solver that knows how far it may be off: a law for every cell is all it needs.

A pulse moves to the right through 201 cells, at 201 times. The prior knows nothing of it. The laws
are where it starts, what passes both ends, and the budget of each cell with the flux c u. The error
of that scheme is its noise: the same law on cells three times as wide, at every other time, shows
how large it is. Writes out/finite_volumes.png.
"""

import math
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import avg_pool2d

import probconserv as pc

CELLS, TIMES, SPEED, WIDTH = 201, 201, 1.0, 0.1
LASTS = WIDTH / SPEED  # how long the pulse stays at a place, and so does the error of the scheme
edges = torch.linspace(0, 1, CELLS + 1, dtype=torch.float64)
t = torch.linspace(0, 0.4, TIMES, dtype=torch.float64)


def pulse(t, x):
    z = (x - 0.3 - SPEED * t[:, None]) / WIDTH
    return torch.exp(-z.square() / 2) / (WIDTH * math.sqrt(2 * math.pi)), torch.special.ndtr(z)


def budgets(t, edges, noise=0.0):
    """The law of each cell, with the fluxes through both ends known."""
    ends = torch.zeros(len(t), len(edges)).double()
    ends[:, [0, -1]] = SPEED * pulse(t, edges[[0, -1]])[0]
    how = {"velocity": SPEED, "scheme": "centred", "noise": noise}
    return pc.cell_budgets(pc.Mesh(x=edges), t, fluxes=ends, **how)


def solved(noise):
    nothing = pc.Diagonal(torch.zeros(TIMES, CELLS).double(), 1e6)
    return pc.condition(nothing, pc.initial(truth[0]), budgets(t, edges, noise))


truth = pulse(t, edges)[1].diff() / edges.diff()  # averages over the cells
first = solved(noise=0.0)
wide = first.mean.reshape(TIMES, -1, 3).mean(-1)[::2]
error = budgets(t[::2], edges[::3]).residual(wide).abs()  # of one wide cell in two steps
error = avg_pool2d(error[None].square(), 5, stride=1, padding=2)[0].sqrt()  # nearby
error = error.repeat_interleave(2, 0).repeat_interleave(3, 1) / (3 * 2)  # of one cell in one step
post = solved(noise=error / 4 * math.sqrt(LASTS / float(t[1])))  # half the step, a quarter of it

low, high = post.interval(0.9)
inside = ((low <= truth) & (truth <= high))[1:].double().mean()
rmse = (post.mean - truth)[1:].square().mean().sqrt()
print(f"RMSE {rmse:.1e} of a pulse of height {truth.max():.1f}; {inside:.1%} inside 90 % intervals")

middle = (edges[1:] + edges[:-1]) / 2
_, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
for k, color in ((0, "#C98500"), (100, "#5F6B00"), (200, "#5C3D99")):
    left.plot(middle, post.mean[k], color, label=f"t = {t[k]:.1f}")
    left.plot(middle, truth[k], "k:", label="truth" if k == 200 else None)
right.plot(middle, (post.mean - truth)[-1], "k:", label="error of the mean at t = 0.4")
right.fill_between(
    middle, (low - post.mean)[-1], (high - post.mean)[-1], color="#5C3D99", alpha=0.3
)
right.set(xlabel="x", ylabel="u", title="The error, and the 90 % interval")
left.set(xlabel="x", ylabel="u", title="A pulse, solved by conditioning")
left.legend(), right.legend()
Path("out").mkdir(exist_ok=True)
plt.savefig("out/finite_volumes.png", dpi=150)
