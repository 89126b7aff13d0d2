"""Networks that know nothing of this library, trained on a melting front and made to conserve."""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import nn

import probconserv as pc
from probconserv.data import draw
from probconserv.problems import Stefan

# A hundred noisy observations of one solution, scattered over time and space.
truth, rng = Stefan(u_star=0.6), torch.Generator().manual_seed(0)
t_seen, x_seen, u_seen = (a[0] for a in draw(truth, "test", n=1, context=100).context)
u_seen = u_seen + 0.05 * torch.randn(100, generator=rng, dtype=torch.float64)


# The model: plain PyTorch. Put yours here.
def inputs(t, x):
    """Both coordinates at each place, from -1 to 1: (..., 2)."""
    return torch.stack(torch.broadcast_tensors(20 * t - 1, 2 * x - 1), dim=-1)


def trained(seed):
    """A network trained on observations drawn again with replacement, so that members differ."""
    torch.manual_seed(seed)
    layers = nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
    network = nn.Sequential(*layers, nn.Flatten(-2)).double()  # (..., M, 2) -> (..., M)
    again = torch.randint(100, (100,))
    places, u = inputs(t_seen, x_seen)[again], u_seen[again]
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(500):
        optimizer.zero_grad()
        nn.functional.mse_loss(network(places), u).backward()
        optimizer.step()
    return network


networks = [trained(seed) for seed in range(8)]

# Step 1: what they predict on a grid, as one Gaussian field.
t, x = torch.linspace(0.005, 0.1, 20, dtype=torch.float64), Stefan.grid()[1]
places = inputs(t[:, None], x)
members = torch.stack([network(places).detach() for network in networks])
prior = pc.Ensemble(members, batch_dims=1)  # (20, 201)

# Step 2: the total that the physics implies.
law = pc.integral(x, truth.total(t))
post = pc.condition(prior, law)

# What it did; the profiles are drawn at the time at which the mass was off most.
u, now = truth.on_grid(t, x), law.residual(prior).abs().argmax()
_, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
for i, member in enumerate(members):
    name = None if i else "members"
    left.plot(x, member[now], "0.6", lw=0.8, label=name)
    right.plot(t, law.residual(member), "0.6", lw=0.8, label=name)
for field, name, colour, line, panel in (
    (prior, "before", "#C98500", "--", left),
    (post, "after", "#5C3D99", "-", middle),
):
    off, rmse = law.residual(field).abs().max(), (field.mean - u).square().mean().sqrt()
    print(f"{name:>6}: mass off by at most {off:.1e}, root mean square error {rmse:.4f}")
    low, high = (end[now] for end in field.interval(0.9))
    panel.fill_between(x, low, high, color=colour, alpha=0.25, label="90 % interval")
    panel.plot(x, field.mean[now], line, color=colour, lw=2, label=f"mean {name}")
    panel.plot(x, u[now], "k:", lw=2, label="truth")
    panel.set(xlabel="x (dimensionless)", ylim=(-0.3, 1.4), title=f"{name}, t = {t[now]:.3f}")
    right.plot(t, law.residual(field), line, color=colour, lw=2, label=name)
left.set(ylabel="u (dimensionless)")
right.set(xlabel="t (dimensionless)", ylabel="total of u less the true total")
right.set(title="mass made or lost")
for panel in (left, middle, right):
    panel.legend()
Path("out").mkdir(exist_ok=True)
plt.savefig("out/foreign_network.png", dpi=150)
