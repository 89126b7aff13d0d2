"""Trains the networks of examples/vortex.py: three, alike but for their starts.

    python examples/vortices/train.py --device cuda --out examples/vortices

A few minutes on a GPU for all three, side by side. Needs torch, numpy and safetensors alone.
"""

import argparse
import time
from pathlib import Path

import torch
from model import CELLS, FOLDER, MEMBERS, Networks, drawn, energy, enstrophy, save, solved
from torch import Tensor

LENGTH = 50  # steps of a rollout
CHUNK = 64  # fields that the solver moves together
HELD_OUT = 10**6  # seeds of fields from here on are not trained on
HORIZONS = (1, 2, 4, 8)  # steps in a row that are trained: each for a quarter of the time


def rollouts(seed: int, n: int, device: str) -> Tensor:
    """(n, 51, 32, 32) in float32."""
    parts = [solved(drawn(seed + i, min(CHUNK, n - i), device), LENGTH) for i in range(0, n, CHUNK)]
    return torch.cat([part.float() for part in parts])


def windows(data: Tensor, batch: int, length: int) -> Tensor:
    """Steps in a row of random fields, others for each member, (members, batch, length, 32, 32)."""
    shape = (MEMBERS, batch, 1)
    field = torch.randint(len(data), shape, device=data.device)
    first = torch.randint(data.shape[1] - length + 1, shape, device=data.device)
    return moved(data[field, first + torch.arange(length, device=data.device)])


def moved(w: Tensor) -> Tensor:
    """Shifted, turned, reflected or not, at random: the equation is the same.

    A reflection turns left into right, so that w changes its sign.
    """
    shifts, turns, reflected = (
        torch.randint(CELLS, (2,)),
        torch.randint(4, ()),
        torch.rand(()) < 0.5,
    )
    w = w.roll(shifts.tolist(), (-2, -1)).rot90(int(turns), (-2, -1))
    return -w.mT if reflected else w


def train(networks: Networks, data: Tensor, steps: int, batch: int, rate: float) -> None:
    optimizer = torch.optim.AdamW(networks.parameters(), lr=rate, weight_decay=1e-5)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, steps, pct_start=0.1)
    start = time.time()
    for step in range(steps):
        horizon = HORIZONS[len(HORIZONS) * step // steps]
        now, *later = windows(data, batch, horizon + 1).unbind(2)
        losses = []  # of each member
        for after in later:
            now = networks(now)
            losses.append(((now - after) / networks.scale).square().mean((1, 2, 3)))
        loss = torch.stack(losses).mean(0)
        optimizer.zero_grad()
        loss.sum().backward()
        torch.nn.utils.clip_grad_norm_(networks.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % max(steps // 40, 1) == 0:
            shown = " ".join(f"{each:.2e}" for each in loss.tolist())
            print(
                f"step {step + 1}, horizon {horizon}: {shown}, {time.time() - start:.0f} s",
                flush=True,
            )


@torch.no_grad()
def report(networks: Networks, truth: Tensor) -> None:
    """RMSE and drift of rollouts: of every member by itself, and of the mean of all."""
    alone = together = truth[:, 0].expand(MEMBERS, -1, -1, -1)
    for step in range(1, LENGTH + 1):
        alone, each = networks(alone), networks(together)
        together = each.mean(0).expand_as(each)
        if step in (1, 10, 25, 50):
            names = [*(f"member {i}" for i in range(MEMBERS)), "mean"]
            for name, w in zip(names, [*alone, together[0]], strict=True):
                off = (w - truth[:, step]).square().mean().sqrt()
                drift = [(f(w) / f(truth[:, 0]) - 1).abs() for f in (energy, enstrophy)]
                shown = ", ".join(f"{d.mean():.1e} (worst {d.max():.1e})" for d in drift)
                print(
                    f"step {step:2}, {name:<8}: RMSE {off:.5f}, drift of E, Z {shown}", flush=True
                )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--steps", type=int, default=12_000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--fields", type=int, default=2048)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--modes", type=int, default=10)
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    torch.manual_seed(0)
    start = time.time()
    data = rollouts(0, given.fields, given.device)
    truth = rollouts(HELD_OUT, min(given.fields, 64), given.device)
    print(f"{len(data)} fields to train on, {time.time() - start:.0f} s", flush=True)
    networks = Networks(width=given.width, modes=given.modes).to(given.device)
    networks.scale.fill_(float((data[:, 1:] - data[:, :-1]).square().mean().sqrt()))
    train(networks, data, given.steps, given.batch, given.rate)
    given.out.mkdir(parents=True, exist_ok=True)
    save(networks, given.out)
    report(networks, truth)


if __name__ == "__main__":
    main()
