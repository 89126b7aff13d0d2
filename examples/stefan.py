"""A melting front: 20 surrogate runs lose mass, one call of `condition` gives it back."""

from math import erf, exp, pi, sqrt
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import probconserv as pc

t = torch.linspace(0.002, 0.1, 50, dtype=torch.float64)[:, None]
x = torch.linspace(0, 1, 201, dtype=torch.float64)


def stefan(u_star):
    """The exact solution (T, M), which jumps from u_star to 0 at its front, and its total (T,)."""
    low, high = 0.0, 3.0
    for _ in range(60):  # the front is at 2 a sqrt(t)
        a = (low + high) / 2
        less = u_star * erf(a) * a * exp(a * a) < (1 - u_star) / sqrt(pi)
        low, high = (a, high) if less else (low, a)
    c = (1 - u_star) / erf(a)
    u = (1 - c * torch.erf(x / (2 * t.sqrt()))) * (x <= 2 * a * t.sqrt())
    return u, 2 * c * (t[:, 0] / pi).sqrt()


truth, total = stefan(0.6)
u_stars = 0.65 + 0.04 * torch.randn(20, generator=torch.Generator().manual_seed(1))
members = torch.stack([stefan(float(u_star))[0] for u_star in u_stars])  # they melt too little
prior = pc.LowRank.from_samples(members, variance=1e-4)
law = pc.integral(x, total)
post = pc.condition(prior, law)

_, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
left.plot(x, truth[24], "k:", label="truth")
for field, name, style in ((prior, "prior", "C1--"), (post, "posterior", "C0-")):
    left.plot(x, field.mean[24], style, label=f"{name} and its 90 % interval")
    left.fill_between(x, *(end[24] for end in field.interval(0.9)), color=style[:2], alpha=0.2)
    right.plot(t, law.residual(field), style, label=name)
    print(f"{name:>9}: total off by {law.residual(field).abs().max():.1e}")
left.set(xlabel="x", ylabel="u", xlim=(0, 0.6), title=f"A melting front at t = {float(t[24]):.3f}")
right.set(xlabel="t", ylabel="total of u less the true total", title="Mass made or lost")
left.legend(), right.legend()
Path("out").mkdir(exist_ok=True)
plt.savefig("out/stefan.png", dpi=150)
