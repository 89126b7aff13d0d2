"""Training on a GPU: python benchmarks/training.py [PROBLEM] [--train STEPS].

Times a step of both recipes' batch (250 functions, 100 context and 100 target points) as `train`
takes it, data included, against a plain eager step of the same network on a batch that is ready.
With --train, both train the network for so many steps, and their validation LL is compared.
"""

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from probconserv.problems import find
from probconserv.training import RECIPES, train
from probconserv.training._graph import Graphed
from probconserv.training._run import Run
from probconserv.training._team import Team

STEPS = 50
device = torch.device("cuda")


def ours(problem, penalty=0.0):
    run = new_run(problem, penalty)
    run.loss_of = torch.compile(run._loss_of)
    return Graphed(run.advance)


def plain(run, precision="high", batch=None):
    """A step without graph, compilation or 16-bit attention."""
    run.network.attend_in_float16(False)
    if batch is not None:
        run.batches = lambda step: batch
    run.loss_of = run._loss_of

    def step():
        torch.set_float32_matmul_precision(precision)
        return run.advance()

    return step


def new_run(problem, penalty=0.0, recipe=RECIPES["modern"]):
    names = {"problem": problem.name, "model": "anp", "recipe": "modern", "seed": 0}
    folder = Path(tempfile.mkdtemp())
    return Run(problem, names, replace(recipe, penalty=penalty), folder, device, Team(), {}, None)


def milliseconds(step):
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / STEPS * 1e3


def compare_steps(problem):
    ready = new_run(problem)
    batch = ready.batches(torch.zeros((), dtype=torch.int64, device=device))
    sides = {
        "plain eager, float32": plain(new_run(problem), "highest", batch),
        "plain eager, TF32": plain(new_run(problem), "high", batch),
        "train, ANP": ours(problem),
        "train, SoftC-ANP": ours(problem, penalty=1.0),
    }
    for step in sides.values():
        for _ in range(5):  # compile, capture
            step()
    times = {name: [] for name in sides}
    for _ in range(5):
        for name, step in sides.items():
            times[name].append(milliseconds(step))
    reference = median(times["plain eager, TF32"])
    print("| step | ms | plain eager TF32 / this |\n|---|---|---|")
    for name, values in times.items():
        print(f"| {name} | {median(values):.2f} | {reference / median(values):.2f} |")


def compare_trainings(problem, steps):
    start = time.perf_counter()
    network = train(problem, Path(tempfile.mkdtemp()), device="cuda", steps=steps)
    fast = time.perf_counter() - start
    run = new_run(problem, recipe=replace(RECIPES["modern"], steps=steps))
    step, start = plain(run), time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    slow = time.perf_counter() - start
    torch.set_float32_matmul_precision("highest")  # as `train` validates
    ll = run.validate()
    print(f"train: {fast:.0f} s, validation LL {network.card['validation_ll']:.3f}")
    print(f"plain eager, with the same stream: {slow:.0f} s, validation LL {ll:.3f}")


if __name__ == "__main__":
    arguments = [a for a in sys.argv[1:] if not a.startswith("--")]
    steps = int(arguments.pop()) if "--train" in sys.argv else 0
    problem = find(arguments[0] if arguments else "stefan")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {problem.name}")
    compare_steps(problem)
    if steps:
        compare_trainings(problem, steps)
