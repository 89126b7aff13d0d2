"""A gas tube torn apart: its totals are kept, and neither density nor pressure falls below 0."""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import probconserv as pc

CELLS, DRAWS, TIME, GAMMA = 64, 20, 0.15, 1.4
FLOOR = 1e-3  # of density and pressure
x = (torch.arange(CELLS, dtype=torch.float64) + 0.5) / CELLS


def pressure(gas: dict[str, Tensor]) -> Tensor:
    """(gamma - 1) (E - m^2 / (2 rho))."""
    return (GAMMA - 1) * (gas["E"] - gas["m"].square() / gas["rho"] / 2)


def exact() -> dict[str, Tensor]:
    """Gas of density 1 and pressure 0.4 that leaves the middle at speeds of -2 and 2 (Toro's 123).

    A rarefaction runs to each side, and next to nothing is left between them.
    """
    sound, away, share = (0.4 * GAMMA) ** 0.5, 2.0, (GAMMA - 1) / 2
    speed = ((x - 0.5).abs() / TIME).clamp(max=away + sound)
    now = (sound + share * (speed - away)) / (1 + share)  # of sound, in a rarefaction
    now = now.clamp_min(sound - share * away)  # and in the middle, where the gas is at rest
    u = (speed - now).clamp_min(0) * (x - 0.5).sign()
    rho = (now / sound) ** (1 / share)
    return {"rho": rho, "m": rho * u, "E": rho * now**2 / GAMMA / (GAMMA - 1) + rho * u**2 / 2}


# The surrogate: the truth with errors of which it knows the size.
truth, std, generator = exact(), 0.02, torch.Generator().manual_seed(0)
before = {
    name: u + std * torch.randn(CELLS, generator=generator, dtype=u.dtype)
    for name, u in truth.items()
}
gas = pc.State(**{name: pc.Diagonal(u, std=std) for name, u in before.items()})

cell = torch.full((CELLS,), 1 / CELLS)  # the length of the tube is 1
totals = [pc.weighted_sum(cell, u.mean(), of=name) for name, u in truth.items()]
positive = pc.at_least(pc.nonlinear(pressure, FLOOR)), pc.bounds(FLOOR, of="rho")
given = pc.condition(gas, *totals)
post = pc.condition(gas, *totals, *positive, draws=DRAWS, generator=generator)
states = {
    "no law": before,
    "totals": {name: given[name].mean for name in truth},
    "totals, positive": {name: post[name].point for name in truth},
}
for name, state in states.items():
    off = max(abs(float(law.residual(state[of]))) for law, of in zip(totals, state, strict=True))
    rmse = [float((state[of] - truth[of]).square().mean().sqrt()) for of in truth]
    print(
        f"{name:<17} {int((pressure(state) < 0).sum()):2} cells of negative pressure, "
        f"totals off by {off:.0e}, RMSE of rho, m, E " + " ".join(f"{each:.4f}" for each in rmse)
    )
drawn = pressure({name: post[name].draws for name in truth})
print(f"{DRAWS} draws: pressure at least {drawn.min():.4f}, density {post['rho'].draws.min():.4f}")

_, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
styles = {
    "no law": ("#E69F00", "-", "o"),
    "totals": ("#808080", "-.", "^"),
    "totals, positive": ("#5C3D99", "--", "s"),
}
for axes, read in ((left, lambda gas: gas["rho"]), (right, pressure)):
    axes.plot(x, read(truth), "k:", label="truth", zorder=3)
    for name, (colour, line, shape) in styles.items():
        seen = read(states[name])
        axes.plot(x, seen, line, color=colour, marker=shape, markersize=3, label=name)
    draws = read({name: post[name].draws for name in truth})
    low, high = draws.quantile(0.05, 0), draws.quantile(0.95, 0)
    axes.fill_between(x, low, high, color="#5C3D99", alpha=0.25, linewidth=0, label="90 %")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(xlabel="x (dimensionless)", xlim=(0.2, 0.8))
left.set(ylabel="density (dimensionless)", ylim=(-0.06, 0.3))
right.set(ylabel="pressure (dimensionless)", ylim=(-0.06, 0.1))
left.set_title(f"t = {TIME:g}")
left.legend(fontsize=8)
Path("out").mkdir(exist_ok=True)
plt.savefig("out/euler_tube.png", dpi=130)
