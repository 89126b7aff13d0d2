"""Trains the networks of examples/tracer.py: five, alike but for their seeds.

    python examples/tracers/train.py

About five minutes for each on one core; seeds given as arguments train only those.
"""

import sys
import time

import torch
from model import CELLS, FOLDER, STEP, Network, averages, drawn, flow_of, fluxes
from safetensors.torch import save_file
from torch import Tensor

SEEDS, STEPS, BATCH, RATE = range(5), 1500, 16, 4e-3
TRACERS, CHUNK = 2048, 64
HELD_OUT = 10**6  # seeds of tracers from here on are not trained on


def examples(seed: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """u (n, 32, 32), the flow (n, 3), and what to predict of it (n, 3, 32, 32), in float32."""
    parts = []
    for start in range(0, n, CHUNK):
        clouds, counts = drawn(seed + start, CHUNK)
        u = averages(clouds, counts)
        parts.append((u[:, 0], flow_of(clouds), torch.cat([u[:, 1:], *fluxes(clouds, counts)], 1)))
    u, flow, target = (torch.cat(part)[:n].float() for part in zip(*parts, strict=True))
    return u, flow, target


def moved(u: Tensor, flow: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Moved around the square, x and y exchanged or not: the equation is the same."""
    by = torch.randint(CELLS, (2,)).tolist()
    u, target = u.roll(by, (-2, -1)), target.roll(by, (-2, -1))
    if torch.rand(()) < 0.5:
        return u, flow, target
    return u.mT, flow[:, [1, 0, 2]], target.mT[:, [0, 2, 1]]


def inflow(predicted: Tensor) -> Tensor:
    """What the fluxes bring into each cell in a step, per size, (n, 32, 32)."""
    _, fx, fy = predicted.unbind(1)
    return STEP * CELLS * (fx - fx.roll(-1, -2) + fy - fy.roll(-1, -1))


def trained(seed: int, data: tuple[Tensor, Tensor, Tensor]) -> Network:
    torch.manual_seed(seed)
    network, (u, _, target) = Network(), data
    change = torch.cat([target[:, :1] - u[:, None], target[:, 1:]], 1)
    network.scale.copy_(change.std((0, 2, 3))[:, None, None])
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, STEPS)
    start = time.time()
    for step in range(1, STEPS + 1):
        chosen = torch.randint(len(u), (BATCH,))
        now, flow, after = moved(*(part[chosen] for part in data))
        error = network(now, flow) - after
        own, made = error / network.scale, inflow(error) / network.scale[0]
        loss = own.square().mean() + made.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 250 == 0:
            took = time.time() - start
            print(f"network {seed}, step {step}: loss {loss:.2e}, {took:.0f} s", flush=True)
    return network


def main() -> None:
    data, (u, flow, target) = examples(0, TRACERS), examples(HELD_OUT, CHUNK)
    for seed in map(int, sys.argv[1:] or SEEDS):
        network = trained(seed, data)
        with torch.no_grad():
            off = (network(u, flow) - target).square().mean((0, 2, 3)).sqrt()
        print(f"network {seed}: RMSE of u, fx, fy:", *(f"{e:.4f}" for e in off), flush=True)
        save_file(network.state_dict(), FOLDER / f"{seed}.safetensors")


if __name__ == "__main__":
    main()
