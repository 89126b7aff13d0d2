"""What training through Step 2 brings: `python benchmarks/through.py [NETWORK ...]`.

A trained ANP (stefan-modern, advection-modern, pme-modern, stefan-paper) is trained for 200 steps
of 16 functions more: by its own loss, through Step 2 by LL or CRPS, or by the LL of the same rows
without Step 2. All are scored after Step 2 on 100 validation functions that no training saw, at
four times. Prints the table of docs/howto/train_through.md as CSV.
"""

import sys
import tempfile
import warnings

import torch
from torch import Tensor

import probconserv as pc
from probconserv.data import draw
from probconserv.diagnostics.metrics import crps
from probconserv.models import open_weights
from probconserv.models._load import find_weights
from probconserv.problems import find
from probconserv.training import _points, train

FUNCTIONS, SEED, SAMPLES, TIMES = 100, 7, 16, (0.2, 0.4, 0.6, 0.8)  # of the time range
NETWORKS = "stefan-modern", "advection-modern", "pme-modern", "stefan-paper"
WAYS = {
    "none": None,
    "plain": {},
    "rows without Step 2": {"through": "ll"},
    "ll": {"through": "ll"},
    "crps": {"through": "crps"},
}


def scores(network: pc.models.AttentiveNeuralProcess, problem: type) -> Tensor:
    """LL, MSE, CRPS and the share within 90 % of each function after Step 2, (4, n)."""
    functions = draw(problem, "validation", FUNCTIONS, (10, 10), 1, seed=SEED)
    start, end = problem.time_range
    t = start + (end - start) * torch.tensor(TIMES, dtype=torch.float64)
    x, rng = problem.grid()[1], torch.Generator().manual_seed(0)
    parts = network.predict(tuple(functions.context), (t, x), SAMPLES, rng)
    law = pc.integral(x, functions.problem[:, None].total(t))
    field = pc.Mixture(pc.condition(parts, law)).gaussian()
    truth = functions.problem.on_grid(t, x)
    score = (truth - field.mean) / field.std
    each = (
        field.marginal_log_prob(truth),
        (truth - field.mean) ** 2,
        field.std * crps(score),
        100.0 * (score.abs() < 1.6449).double(),
    )
    return torch.stack([values.flatten(1).mean(1) for values in each])


def tuned(name: str, recipe: str, way: str) -> pc.models.AttentiveNeuralProcess:
    path, changes = find_weights(name, "anp", recipe), WAYS[way]
    if changes is None:
        return open_weights(path)
    rate = 1e-4 if recipe == "paper" else 3e-5
    conditioned = _points.condition
    if way == "rows without Step 2":
        _points.condition = lambda field, law: field
    try:
        with tempfile.TemporaryDirectory() as out:
            return train(
                name, out, "anp", "modern", "cpu", start=path, steps=200, batch=16, rows=2,
                samples=4, learning_rate=rate, validation=10, beta=0.0, plain=0.0, **changes,
            )  # fmt: skip
    finally:
        _points.condition = conditioned


def entry(values: Tensor, before: Tensor, unit: float, digits: int) -> str:
    text = f"{float(values.mean()) / unit:.{digits}f}"
    if values is before:
        return text
    change = (values - before) / unit
    error = float(change.std()) / len(change) ** 0.5
    return f'"{text} ({float(change.mean()):+.{digits}f}, {error:.{digits}f})"'


warnings.simplefilter("ignore", pc.ImplausibleWarning)
print('network,fine-tuning,LL,"MSE, 1e-4","CRPS, 1e-3",% in 90 %')
for network in sys.argv[1:] or NETWORKS:
    name, recipe = network.split("-")
    before = scores(tuned(name, recipe, "none"), find(name))
    for way in WAYS:
        after = before if way == "none" else scores(tuned(name, recipe, way), find(name))
        cells = zip(after, before, (1, 1e-4, 1e-3, 1), (3, 2, 2, 1), strict=True)
        row = [entry(a, a if way == "none" else b, unit, digits) for a, b, unit, digits in cells]
        print(",".join([f'"{name}, {recipe}"', way, *row]), flush=True)
