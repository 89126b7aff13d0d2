"""A melting front outside the training range: with mass alone, and with mass and shape."""

from pathlib import Path

import matplotlib.pyplot as plt
import torch

import probconserv as pc
from probconserv.data import draw
from probconserv.problems import Stefan

problem, t = Stefan(u_star=0.5), torch.tensor([0.05], dtype=torch.float64)  # trained on 0.55 to 0.7
x = problem.grid()[1]
test = draw(problem, "test", 1, (10, 10))
parts = pc.models.load("stefan").predict(
    tuple(test.context), (t, x), 50, torch.Generator().manual_seed(0)
)
prior = pc.Mixture(parts).gaussian()  # (1, 1, 201): what the network says

mass = pc.integral(x, problem.total(t))
falls, within = pc.monotone(decreasing=True), pc.bounds(low=0.0, high=1.0)
fields = {
    "the network": prior,
    "with mass": pc.condition(prior, mass),
    "with mass, falls, bounds": pc.condition(
        prior, mass, falls, within, draws=1000, generator=torch.Generator().manual_seed(1)
    ),
}
truth = problem.on_grid(t, x)
_, panels = plt.subplots(1, 3, figsize=(11, 3.6), sharey=True, layout="constrained")
for (name, field), axes in zip(fields.items(), panels, strict=True):
    low, high = (end[0, 0] for end in field.interval(0.9))
    axes.plot(x, truth[0], "k:", label="truth", zorder=3)
    axes.plot(x, field.mean[0, 0], color="#0072B2", label="mean")
    axes.fill_between(x, low, high, color="#0072B2", alpha=0.25, linewidth=0, label="90 %")
    axes.set(xlabel="x (dimensionless)", title=name, xlim=(0, 0.6))
    off = float(mass.residual(field.mean).abs().max())
    error = float((field.mean - truth).square().mean())
    print(f"{name:<25} total off by {off:.0e}, MSE {error:.1e}, least {float(low.min()):.2f}")
panels[0].set_ylabel("u (dimensionless)")
panels[0].legend()
Path("out").mkdir(exist_ok=True)
plt.savefig("out/falling_front.png", dpi=150)
