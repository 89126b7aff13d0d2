"""A published checkpoint, evaluated as the published experiments did and as one should.

python weights/published.py stefan_anp.pt stefan_anp.safetensors
python benchmarks/published.py stefan_anp.safetensors stefan_test.npz
"""

import sys

import numpy as np
import torch

import probconserv as pc
from probconserv.experiments.paper import EXPERIMENTS, METHODS, PROTOCOLS
from probconserv.models import open_weights

checkpoint, contexts = sys.argv[1:]
network = open_weights(checkpoint)
with np.load(contexts) as file:
    chosen = np.isclose(file["u_star"], 0.6)
    (t, x), u = np.moveaxis(file["context_tx"][chosen], -1, 0), file["context_u"][chosen, :, 0]

experiment = EXPERIMENTS["stefan"]
problem, time = experiment.problem(0.6), experiment.time
grid = problem.grid()[1]
truth, law = problem.on_grid([time], grid), pc.integral(grid, problem.total([time]))
print(
    "| Stefan, u* = 0.6 | CE | LL | MSE | published LL | published MSE |\n|---|---|---|---|---|---|"
)
for name, protocol in PROTOCOLS.items():
    generator = torch.Generator().manual_seed(0)
    parts = protocol.predict(network)((t, x, u), ([time], grid), 100, generator)
    for method, (model, update) in METHODS.items():
        if model == "anp":
            scores = pc.evaluate(protocol.mix(update(parts, law, grid)), truth, law).mean()[0]
            paper = experiment.paper(0.6, method)
            theirs = [f"{paper[m][0]:.3g}" if paper else "-" for m in ("LL", "MSE")]
            ours = f"{scores.CE:.2e} | {scores.LL:.2f} | {scores.MSE:.2e}"
            print(f"| {method}, protocol {name} | {ours} | {theirs[0]} | {theirs[1]} |")
