"""A melting front: 20 surrogate runs lose mass, one call of `condition` gives it back."""

from pathlib import Path

import matplotlib.pyplot as plt
import torch

import probconserv as pc
from probconserv.problems import Stefan

t = torch.linspace(0.002, 0.1, 50, dtype=torch.float64)
x = torch.linspace(0, 1, 201, dtype=torch.float64)
truth = Stefan(u_star=0.6)
u_stars = 0.65 + 0.04 * torch.randn(20, generator=torch.Generator().manual_seed(1))
members = Stefan(u_stars.double()).on_grid(t, x)  # (20, 50, 201): they melt too little

prior = pc.Ensemble(members, 1e-4, batch_dims=1)
law = pc.integral(x, truth.total(t))
post = pc.condition(prior, law)

_, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
left.plot(x, truth.solution(t[24], x), "k:", label="truth")
for field, name, colour, line in (
    (prior, "prior", "#C98500", "--"),
    (post, "posterior", "#5C3D99", "-"),
):
    left.plot(x, field.mean[24], line, color=colour, label=f"{name} and its 90 % interval")
    left.fill_between(x, *(end[24] for end in field.interval(0.9)), color=colour, alpha=0.2)
    right.plot(t, law.residual(field), line, color=colour, label=name)
    print(f"{name:>9}: total off by {law.residual(field).abs().max():.1e}")
left.set(xlabel="x", ylabel="u", xlim=(0, 0.6), title=f"A melting front at t = {t[24]:.3f}")
right.set(xlabel="t", ylabel="total of u less the true total", title="Mass made or lost")
left.legend(), right.legend()
Path("out").mkdir(exist_ok=True)
plt.savefig("out/stefan.png", dpi=150)
