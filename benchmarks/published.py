"""A published checkpoint, evaluated as the published experiments did and as one should.

python benchmarks/published.py stefan_anp.pt stefan_test.npz
"""

import sys

import numpy as np
import torch

import probconserv as pc
from probconserv.models import AttentiveNeuralProcess
from probconserv.problems import Stefan

checkpoint, contexts = sys.argv[1:]
network = AttentiveNeuralProcess.from_published(torch.load(checkpoint, weights_only=True))
with np.load(contexts) as file:
    chosen = np.isclose(file["u_star"], 0.6)
    (t, x), u = np.moveaxis(file["context_tx"][chosen], -1, 0), file["context_u"][chosen, :, 0]

problem, time, grid = Stefan(0.6), 0.05, Stefan.grid()[1]
truth, law = problem.solution(time, grid), pc.integral(grid, float(problem.total(time)))
print("| Stefan, u* = 0.6 | CE | LL | MSE |\n|---|---|---|---|")
for dropout, predict in (("on", network.predict_with_dropout), ("off", network.predict)):
    parts = predict((t, x, u), ([time], grid), 100, torch.Generator().manual_seed(0))
    fields = {
        "ANP": pc.Mixture(parts),
        "HardC-ANP": pc.Mixture(pc.project(parts, law)),
        "ProbConserv-ANP": pc.Mixture(pc.condition(parts, law)),
    }
    for name, mixture in fields.items():
        field = mixture.gaussian()
        ll = float(field.marginal_log_prob(truth).mean())
        ce, mse = float(law.residual(field).mean()), float(((field.mean - truth) ** 2).mean())
        print(f"| {name}, dropout {dropout} | {ce:.2e} | {ll:.2f} | {mse:.2e} |")
