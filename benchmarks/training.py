"""Training on a GPU: python benchmarks/training.py [PROBLEM] [--train STEPS | --last STEPS].

Times a step of both recipes' batch (250 functions, 100 context and 100 target points) as `train`
takes it, data included, against a plain eager step of the same network on a batch that is ready.
With --train, both train the network for so many steps, and their validation LL is compared. With
--last (whole thousands), `train` goes up to so many steps before the end, and both finish from
that checkpoint, where rounding has no time to lead them apart; `train` twice, to see how far it
does.
"""

import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from probconserv.models._network import attend_in_float16
from probconserv.problems import find
from probconserv.training import KINDS, RECIPES, train
from probconserv.training._machine import Graphed, Team
from probconserv.training._run import Run
from probconserv.training._source import Source

STEPS = 50
device = torch.device("cuda")


def ours(problem, penalty=0.0):
    run = new_run(problem, penalty)
    run.loss_of = torch.compile(run.task.loss)
    return Graphed(run.advance)


def plain(run, precision="high", batch=None):
    """A step without graph, compilation or 16-bit attention."""
    attend_in_float16(run.network, False)
    if batch is not None:
        run.task.batches = lambda step: batch
    run.loss_of = run.task.loss

    def step():
        torch.set_float32_matmul_precision(precision)
        return run.advance()

    return step


def new_run(problem, penalty=0.0, recipe=RECIPES["modern"], folder=None):
    names, source = {"recipe": "modern", "seed": 0}, Source(problem.name, problem)
    plan, folder = replace(recipe, penalty=penalty), folder or Path(tempfile.mkdtemp())
    return Run(KINDS["anp"], source, names, plan, folder, device, Team(), {}, None)


def milliseconds(step):
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / STEPS * 1e3


def compare_steps(problem):
    ready = new_run(problem)
    batch = ready.task.batches(torch.zeros((), dtype=torch.int64, device=device))
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
    start = time.perf_counter()
    ll = finish_plainly(new_run(problem, recipe=replace(RECIPES["modern"], steps=steps)))
    slow = time.perf_counter() - start
    print(f"train: {fast:.0f} s, validation LL {network.card['validation_ll']:.3f}")
    print(f"plain eager, with the same stream: {slow:.0f} s, validation LL {ll:.3f}")


def finish_plainly(run):
    """The validation LL after the steps that are left, as plain eager ones."""
    step = plain(run)
    for _ in range(int(run.step), run.recipe.steps):
        step()
    torch.set_float32_matmul_precision("highest")  # as `train` validates
    return run.task.scores()["validation_ll"]


class Enough(Exception):
    pass


def compare_endings(problem, last):
    folder, done = Path(tempfile.mkdtemp()), RECIPES["modern"].steps - last

    def stop(line):
        if line["step"] == done:  # its checkpoint is written
            raise Enough

    try:
        train(problem, folder / "begun", device="cuda", report=stop)
    except Enough:
        print(f"stopped at step {done}", flush=True)
    for name in ("train", "train, again", "plain eager"):
        shutil.copytree(folder / "begun", folder / name)
    for name in ("train", "train, again"):
        network = train(problem, folder / name, device="cuda")
        print(f"{name}: validation LL {network.card['validation_ll']:.4f}", flush=True)
    ll = finish_plainly(new_run(problem, folder=folder / "plain eager"))
    print(f"plain eager: validation LL {ll:.4f}")


if __name__ == "__main__":
    arguments = [a for a in sys.argv[1:] if not a.startswith("--")]
    given = {"--train", "--last"} & set(sys.argv)
    steps = int(arguments.pop()) if given else 0
    problem = find(arguments[0] if arguments else "stefan")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {problem.name}")
    if "--last" in given:
        compare_endings(problem, steps)
    else:
        compare_steps(problem)
        if steps:
            compare_trainings(problem, steps)
