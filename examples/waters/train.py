"""Trains the networks of examples/shallow_water.py: four, alike but for their starts.

    python examples/waters/train.py --device cuda

About two minutes on a GPU for all four, side by side: first one step at a time, then several in a
row. Each update is recorded once as a CUDA graph and then replayed.
"""

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from model import CELLS, MEMBERS, WEIGHTS, drawn, energy, load, save, solved, stepped, untrained
from torch import Tensor

from probconserv.models import FNO

LENGTH = 50  # steps of a rollout
CHUNK = 256  # rollouts that the solver makes together
HELD_OUT = 10**6  # seeds of waters from here on are not trained on
HORIZONS = 1, 2, 4, 6  # steps in a row that are trained, one after the other


def rollouts(seed: int, n: int, device: str) -> Tensor:
    """(n, 51, 3, 32, 32) in float32."""
    parts = [drawn(seed + i, min(CHUNK, n - i), device) for i in range(0, n, CHUNK)]
    return torch.cat([solved(part, LENGTH).float() for part in parts])


class Trainer:
    """Updates of the networks from data (n, 51, 3, 32, 32)."""

    def __init__(self, networks: FNO, data: Tensor, batch: int) -> None:
        self.networks, self.data, self.batch = networks, data, batch
        self.axes = (torch.arange(CELLS, dtype=data.dtype, device=data.device),) * 2
        self.rate, self.loss = data.new_tensor(0.0), data.new_zeros(MEMBERS)
        self.optimizer = torch.optim.AdamW(
            networks.parameters(), lr=self.rate, weight_decay=1e-6, capturable=data.is_cuda
        )

    def update(self, horizon: int) -> None:
        """From random times of random rollouts, others for each member."""
        shape, device = (MEMBERS, self.batch), self.data.device
        field = torch.randint(len(self.data), shape, device=device)
        first = torch.randint(LENGTH + 1 - horizon, shape, device=device)
        scale, losses = self.networks.target_spread.reshape(-1, 1, 1), []
        now = self.data[field, first]
        for i in range(1, horizon + 1):
            now = now + self.networks(now, self.axes)[0]
            off = (now - self.data[field, first + i]) / scale
            losses.append(off.square().mean((1, 2, 3, 4)))
        loss = torch.stack(losses).mean(0)  # of each member
        self.optimizer.zero_grad()
        loss.sum().backward()
        torch.nn.utils.clip_grad_norm_(self.networks.parameters(), 1.0)
        self.optimizer.step()
        self.loss.copy_(loss.detach())

    def recorded(self, horizon: int) -> Callable[[], None]:
        """`update` as one call of the GPU."""
        if not self.data.is_cuda:
            return lambda: self.update(horizon)
        self.rate.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(3):
                self.update(horizon)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.update(horizon)
        return graph.replay

    def train(self, horizon: int, updates: int, rate: float) -> None:
        """The rate rises for a twentieth of the updates, then falls to 0."""
        update, start = self.recorded(horizon), time.time()
        for i in range(updates):
            share = i / updates
            self.rate.fill_(rate * min(20 * share, (1 + math.cos(math.pi * share)) / 2))
            update()
            if (i + 1) % max(updates // 5, 1) == 0:
                shown = " ".join(f"{each:.2e}" for each in self.loss.tolist())
                print(
                    f"{horizon} in a row, {i + 1}: {shown}, {time.time() - start:.0f} s", flush=True
                )


@torch.no_grad()
def report(networks: FNO, truth: Tensor) -> None:
    """RMSE and drift of rollouts of every member by itself."""
    state, start = truth[:, 0].expand(MEMBERS, -1, -1, -1, -1), truth[:, 0].mean((-2, -1))
    for step in range(1, LENGTH + 1):
        state = stepped(networks, state)
        if step in (1, 10, 25, 50):
            off = (state - truth[:, step]).square().mean((1, 2, 3, 4)).sqrt()
            together = (state.mean(0) - truth[:, step]).square().mean().sqrt()
            means = (state.mean((-2, -1)) - start).abs().amax((0, 1))
            drift = (energy(state) / energy(truth[:, 0]) - 1).abs().max()
            shown = [" ".join(f"{v:.1e}" for v in each.tolist()) for each in (off, means)]
            print(
                f"step {step:2}: RMSE {shown[0]}, of their mean {together:.1e}, worst drift of the "
                f"means {shown[1]}, of energy {drift:.1e}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    parser.add_argument("--updates", type=int, nargs=4, default=(24_000, 5_000, 2_500, 1_500))
    parser.add_argument("--rates", type=float, nargs=4, default=(4e-3, 1e-3, 1e-3, 1e-3))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--waters", type=int, default=3072)
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    torch.manual_seed(0)
    start = time.time()
    data = rollouts(0, given.waters, given.device)
    truth = rollouts(HELD_OUT, min(given.waters, 64), given.device)
    print(f"{len(data)} waters to train on, {time.time() - start:.0f} s", flush=True)
    networks = untrained().to(given.device)
    change = data[:, 1:] - data[:, :-1]
    axis = torch.arange(CELLS)
    networks.set_scales(data.flatten(0, 1), change.flatten(0, 1), (axis, axis))
    networks.target_middle.zero_()  # without a drift
    trainer = Trainer(networks, data, given.batch)
    for plan in zip(HORIZONS, given.updates, given.rates, strict=True):
        trainer.train(*plan)
    save(networks, given.out)
    report(load(given.out), truth.double().cpu())


if __name__ == "__main__":
    main()
