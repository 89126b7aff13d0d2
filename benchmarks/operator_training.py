"""Training a Fourier neural operator: python benchmarks/operator_training.py [STEPS].

Times a step as `train` takes it (batch included; on a GPU compiled and one CUDA graph) against a
plain eager loop with the same network, loss and batches in float32, then the whole training of
STEPS steps: 4,800 on a GPU, 20 on a CPU.
"""

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from probconserv.data import Grids, Shuffled
from probconserv.diagnostics.metrics import crps
from probconserv.problems import PorousMedium
from probconserv.training import KINDS, RECIPES, train
from probconserv.training._machine import Graphed, Team
from probconserv.training._run import Run
from probconserv.training._source import source_of

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_gpu = device.type == "cuda"
SIZES = {"width": 32, "modes": [0, 12], "members": 1}
CHANGES = {"batch": 20, "times": None}
STEPS, ROUNDS = (50, 5) if on_gpu else (3, 3)


def ours(data):
    kind, recipe = KINDS["fno"], RECIPES["modern"]
    plan = replace(recipe, **{**kind.recipes["modern"], **CHANGES})
    source, names = source_of(data, None, plan, 0), {"recipe": "modern", "seed": 0}
    folder = Path(tempfile.mkdtemp())
    run = Run(kind, source, names, plan, folder, device, Team(), SIZES, None)
    run.loss_of = torch.compile(run.task.loss) if on_gpu else run.task.loss
    return run.network, Graphed(run.advance) if on_gpu else run.advance


def plain(data, network):
    """What a script would do, with batches made as ours are."""
    batches = Shuffled(data.to(torch.float32).to(device), 20)
    axes, spread = [a.to(device, torch.float32) for a in data.axes], float(data.targets.std())
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    done = torch.zeros((), dtype=torch.int64, device=device)

    def step():
        batch = batches(done)
        mean, std = network(batch.inputs, axes)
        loss = (std * crps((batch.fields - mean) / std)).mean() / spread
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done.add_(1)
        return loss

    return step


def milliseconds(step):
    if on_gpu:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    if on_gpu:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / STEPS * 1e3


def compare_steps(data):
    _, fast = ours(data)
    network, _ = ours(data)
    sides = {"plain eager, float32": plain(data, network), "train": fast}
    for step in sides.values():
        for _ in range(5):  # compile, capture
            step()
    times = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, step in sides.items():
            times[name].append(milliseconds(step))
    reference = median(times["plain eager, float32"])
    print("| step | ms | plain eager / this |\n|---|---|---|")
    for name, values in times.items():
        print(f"| {name} | {median(values):.3f} | {reference / median(values):.2f} |")


if __name__ == "__main__":
    name = torch.cuda.get_device_name() if on_gpu else "CPU"
    print(f"{name}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 4800 if on_gpu else 20
    data = Grids.of_problem(PorousMedium, *PorousMedium.grid(20, 101), n=400)
    compare_steps(data)
    start = time.perf_counter()
    out = Path(tempfile.mkdtemp())
    network = train(data, out, "fno", device=str(device), sizes=SIZES, steps=steps, **CHANGES)
    took, score = time.perf_counter() - start, network.card["validation_crps"]
    print(f"{steps} steps of train: {took:.1f} s, validation CRPS {score:.3g}")
