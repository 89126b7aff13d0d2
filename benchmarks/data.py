"""Seconds to draw 10,000 functions with 100 context and 100 target points, and one stream batch."""

import time

import torch

from probconserv.data import Stream, draw
from probconserv.problems import PROBLEMS, ClosedForm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEP = torch.zeros((), dtype=torch.int64, device=DEVICE)


def seconds(work, repeats):
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def arrays(functions):
    return (*functions.context, *functions.target)


print(f"| problem | scattered, s | 10 x 10, s | batch of 250 on {DEVICE}, ms | compiled, ms |")
print("|---|---|---|---|---|")
for problem in (p for p in PROBLEMS.values() if issubclass(p, ClosedForm)):
    scattered = seconds(lambda p=problem: draw(p, "train"), 3)
    product = seconds(lambda p=problem: draw(p, "train", context=(10, 10), target=(10, 10)), 3)
    stream = Stream(problem, device=DEVICE)
    compiled = torch.compile(lambda i, s=stream: arrays(s(i)), fullgraph=True)
    eager, fast = (1e3 * seconds(lambda f=f: f(STEP), 50) for f in (stream, compiled))
    print(f"| {problem.name} | {scattered:.2f} | {product:.2f} | {eager:.2f} | {fast:.2f} |")
