"""The finite-volume solver against closed forms: errors in L1 and the orders observed."""

import numpy as np
import torch

from probconserv.problems import Diffusion, PorousMedium, Stefan, simulate

CASES = {
    "diffusion, k = 1": (Diffusion(1.0), 0.5),
    "porous medium, m = 1": (PorousMedium(1.0), 0.5),
    "porous medium, m = 3": (PorousMedium(3.0), 0.5),
    "porous medium, m = 6": (PorousMedium(6.0), 0.5),
    "Stefan, u* = 0.6": (Stefan(0.6), 0.05),
    "Stefan, u* = 0.6, k_min = 0.3": (Stefan(0.6, k_min=0.3), 0.05),
}
CELLS = [50, 64, 80, 100, 125, 160, 200, 250, 320, 400]
PARTS = (torch.arange(400, dtype=torch.float64) + 0.5) / 400

print("| problem | 50 cells | 100 | 200 | 400 | order | balance |")
print("|---|---|---|---|---|---|---|")
for name, (problem, t) in CASES.items():
    errors, imbalance = [], 0.0
    for cells in CELLS:
        run = simulate(problem, [t], cells)
        points = run.edges[:-1, None] + run.edges.diff()[:, None] * PARTS
        exact = problem.solution(t, points).mean(-1)  # cell averages
        errors.append(float((run.u[0] - exact).abs().mean()))
        mass = (run.u * run.edges.diff()).sum(-1)
        imbalance = max(imbalance, float((mass - run.total).abs().max()))
    order = -np.polyfit(np.log(CELLS), np.log(errors), 1)[0]
    shown = " | ".join(f"{errors[CELLS.index(m)]:.1e}" for m in (50, 100, 200, 400))
    print(f"| {name} | {shown} | {order:.2f} | {imbalance:.0e} |")
