"""Tubes of gas torn apart, by five small networks: totals, and a pressure that is not negative.

    python benchmarks/testbed/euler.py

Trains for some seconds on 40 tubes, and scores 200 others: CRPS beside no law, and the least
pressure of any mean.
"""

import warnings
from itertools import pairwise

import torch
from torch import Tensor

import probconserv as pc

CELLS, GAMMA, TIME, FLOOR = 64, 1.4, 0.15, 1e-4
MEMBERS, WIDTH, STEPS = 5, 48, 1500
X = (torch.arange(CELLS, dtype=torch.float64) + 0.5) / CELLS
NAMES = "rho", "m", "E"


def pressure(gas: dict[str, Tensor]) -> Tensor:
    return (GAMMA - 1) * (gas["E"] - gas["m"].square() / gas["rho"] / 2)


def exact(away: Tensor, at_rest: Tensor) -> Tensor:
    """Density, momentum and energy, (n, 3, CELLS), of gas that leaves the middle at +-away."""
    sound, share = (at_rest * GAMMA).sqrt()[:, None], (GAMMA - 1) / 2
    away = away[:, None]
    speed = torch.minimum((X - 0.5).abs() / TIME, away + sound)
    now = torch.minimum((sound + share * (speed - away)) / (1 + share), sound)
    now = torch.maximum(now, sound - share * away)
    u = (speed - now).clamp_min(0) * (X - 0.5).sign()
    rho = (now / sound) ** (1 / share)
    return torch.stack([rho, rho * u, rho * now**2 / GAMMA / (GAMMA - 1) + rho * u**2 / 2], 1)


def drawn(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Speeds and pressures, and the gas that they lead to."""
    rng = torch.Generator().manual_seed(seed)
    numbers = torch.rand(n, 2, generator=rng, dtype=torch.float64)
    return numbers, exact(1.8 + 0.4 * numbers[:, 0], 0.3 + 0.2 * numbers[:, 1])


def trained() -> list[Tensor]:
    """The layers of all members, each of which sees other errors of observation."""
    rng = torch.Generator().manual_seed(1)
    sizes = (2, WIDTH, WIDTH, 3 * CELLS)
    layers = [
        (torch.randn(MEMBERS, a + 1, b, generator=rng, dtype=torch.float64) / a**0.5)
        for a, b in pairwise(sizes)
    ]
    numbers, gas = drawn(40, 2)
    noise = torch.randn(MEMBERS, *gas.shape, generator=rng, dtype=torch.float64)
    seen = (gas + 0.02 * noise).flatten(2)
    parameters = [layer.requires_grad_() for layer in layers]
    adam = torch.optim.Adam(parameters, 3e-3)
    for _ in range(STEPS):
        adam.zero_grad()
        (predicted(parameters, numbers).flatten(2) - seen).square().mean().backward()
        adam.step()
    return [layer.detach() for layer in parameters]


def predicted(layers: list[Tensor], numbers: Tensor) -> Tensor:  # (members, n, 3, CELLS)
    h = (2 * numbers - 1).expand(MEMBERS, -1, -1)
    for i, layer in enumerate(layers):
        h = torch.cat([h, torch.ones_like(h[..., :1])], -1) @ layer
        h = h.tanh() if i < len(layers) - 1 else h
    return h.unflatten(-1, (3, CELLS))


def main() -> None:
    warnings.simplefilter("ignore", pc.ImplausibleWarning)
    numbers, gas = drawn(200, 3)
    members = predicted(trained(), numbers)
    state = pc.Ensemble({k: members[:, :, i, None] for i, k in enumerate(NAMES)}, batch_dims=2)
    truth = {k: gas[:, i, None] for i, k in enumerate(NAMES)}
    width = torch.full((CELLS,), 1 / CELLS, dtype=torch.float64)
    totals = [pc.weighted_sum(width, u.mean(-1), of=k) for k, u in truth.items()]
    floor = pc.nonlinear(pressure, FLOOR, batch_dims=2, label="pressure")
    positive = pc.at_least(floor), pc.bounds(FLOOR, of="rho")
    kept: dict[str, dict[str, Tensor]] = {}

    def made(name, *laws):  # type: ignore[no-untyped-def]
        def way(prior, *_):  # type: ignore[no-untyped-def]
            post = pc.condition(prior, *laws, draws=0)  # about the most probable field
            kept[name] = {k: post[k].mean for k in NAMES}
            return post

        return way

    both = made("totals, positive", *totals, *positive)
    ways = {"totals": made("totals", *totals), "totals, positive": both}
    found = pc.compare(state, truth, *totals, *positive, ways=ways, samples=2)
    print(found.verdict)
    print(found.table())
    kept["no law"] = {k: members[:, :, i, None] for i, k in enumerate(NAMES)}
    print("least pressure of the truth:", float(pressure(truth).min()))
    for name, u in kept.items():
        least = float(pressure(u).min()), float(u["rho"].min())
        print(f"{name}: least pressure {least[0]:.4f}, density {least[1]:.4f}")


if __name__ == "__main__":
    main()
