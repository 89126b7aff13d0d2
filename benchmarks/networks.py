"""What `quadrature_noise` and `diagnose` say of the trained ANPs: `python benchmarks/networks.py`.

Prints, for docs/learn/honest.md, the error of the trapezoid rule beside its estimate, in units of
dx, and what `diagnose` answers to right totals. Validation functions 16 to 31, with parameters of
the whole training range; the others were used to choose the formula. Ten minutes on two cores.
"""

from collections import Counter

import torch

import probconserv as pc
from probconserv.data import draw
from probconserv.experiments.paper import EXPERIMENTS
from probconserv.problems import find

FUNCTIONS, TIMES, EVERY, SAMPLES = slice(16, 32), 31, 3, 16


def root_mean_square(values: torch.Tensor) -> float:
    return float(values.square().mean().sqrt())


answers: Counter[str] = Counter()
print("| | true error, RMS | estimate, RMS | true / estimate, RMS |\n|---|---|---|---|")
for name in EXPERIMENTS:
    functions, (t, x) = (
        draw(find(name), "validation", 32, (10, 10), 1)[FUNCTIONS],
        find(name).grid(TIMES),
    )
    t, dx = t[1:], float(x[1] - x[0])
    total = functions.problem[:, None].total(t)
    error = pc.integral(x, total).residual(functions.problem.on_grid(t, x)) / dx
    estimates = []
    for recipe in ("modern", "paper"):
        rng = torch.Generator().manual_seed(0)
        parts = pc.models.load(name, "anp", recipe).predict(
            tuple(functions.context), (t, x), SAMPLES, rng
        )
        prior = pc.Mixture(parts).gaussian()
        estimates.append(pc.diagnostics.quadrature_noise(prior, x) / dx)
        for i in range(len(functions)):
            rows = pc.Diagonal(prior.mean[i, ::EVERY], prior.variance[i, ::EVERY])
            answers[pc.diagnose(rows, pc.integral(x, total[i, ::EVERY])).answer] += 1
    sizes = ", ".join(f"{root_mean_square(e):.3f}" for e in estimates)
    ratios = ", ".join(f"{root_mean_square(error / e):.2f}" for e in estimates)
    print(f"| {name} | {root_mean_square(error):.3f} | {sizes} | {ratios} |", flush=True)
print(f"right totals of {TIMES // EVERY} times each: {dict(answers)}")
