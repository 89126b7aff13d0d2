"""What `compare` and `select` cost beside predicting: `python benchmarks/compare.py`.

200 functions of 3 times and 100 places, predicted by six Fourier neural operators; two laws. The
best of five rounds in turn.
"""

import time
import warnings

import torch

import probconserv as pc
from probconserv.diagnostics import Way
from probconserv.experiments.operators import CASES, load_ensemble

FUNCTIONS = 200


def main() -> None:
    warnings.simplefilter("ignore", pc.ImplausibleWarning)
    torch.set_num_threads(1)
    case, network = CASES["heat"], load_ensemble("heat")
    _, data = case.functions("in", "test", FUNCTIONS)
    t, x = data.axes
    at = [2, 9, 19]

    def predicted() -> pc.Diagonal:
        members = network.predict(data.inputs, (t[at], x))
        return pc.Diagonal(members.mean.mean(0), members.variance.mean(0) + members.mean.var(0))

    prior, truth = predicted(), data.targets[:, at]
    half = torch.zeros(len(x), dtype=torch.float64)
    half[: len(x) // 2] = 1.0
    laws = pc.integral(x, data.totals[:, at]), pc.weighted_sum(half, (truth * half).sum(-1))
    ways = {"project": Way("project"), "condition": Way(), "inflate": Way(inflated=True)}
    ways |= {f"condition on {name}": Way(laws=(name,)) for name in ("integral", "weighted_sum")}
    jobs = {
        "predict": predicted,
        "compare, five ways": lambda: pc.compare(prior, truth, *laws, ways=ways),
        "the same, without the energy score": lambda: pc.compare(
            prior, truth, *laws, ways=ways, samples=1
        ),
        "select, 28 candidates": lambda: pc.select(prior, truth, *laws),
    }
    best = dict.fromkeys(jobs, float("inf"))
    for _ in range(5):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            best[name] = min(best[name], time.perf_counter() - start)
    print("| work | ms | / predicting |\n|---|---|---|")
    for name, seconds in best.items():
        print(f"| {name} | {1000 * seconds:.0f} | {seconds / best['predict']:.2f} |")


if __name__ == "__main__":
    main()
