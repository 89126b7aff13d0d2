"""One field, one law: the total is known, and each point moves as far as it is unsure."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import probconserv as pc

x = np.linspace(0, 1, 25)
truth = np.exp(-((x - 0.5) ** 2) / 0.04)
mean = truth - 0.25 * x  # the model: right on the left, too low on the right
std = 0.01 + 0.2 * x  # and it knows where it is unsure
law = pc.integral(x, value=float(np.trapezoid(truth, x)))

prior = pc.Diagonal(mean[None], std[None] ** 2)  # (1, 25): one time, 25 points
post = pc.condition(prior, law)
moved = (post.mean - prior.mean)[0]

_, (top, bottom) = plt.subplots(
    2, 1, figsize=(8, 5.6), sharex=True, height_ratios=[3, 2], layout="constrained"
)
for field, name, colour, shape in (
    (prior, "before", "#C98500", "o"),
    (post, "after", "#5C3D99", "s"),
):
    half = 1.645 * field.std[0]
    label = f"{name}, total {float(law.apply(field.mean)):.3f}"
    top.errorbar(
        x, field.mean[0].numpy(), half.numpy(), fmt=shape, color=colour, markersize=4, label=label
    )
top.plot(x, truth, "k:", label=f"truth, total {float(law.value):.3f}")
top.set(ylabel="u, with 90 % intervals", title="A law moves a field where it is unsure")
top.legend()
bottom.bar(x, moved.numpy(), width=0.025, color="#5C3D99", label="how far each point moves")
bottom.plot(x, std**2 * float(moved[-2] / std[-2] ** 2), "k--", label="its variance, scaled")
bottom.set(xlabel="x (dimensionless)", ylabel="change of u")
bottom.legend()
print(f"off by {float(law.residual(mean)):.3f} before, {float(law.residual(post.mean)):.0e} after")
Path("out").mkdir(exist_ok=True)
plt.savefig("out/one_update.png", dpi=110)
