"""What each verb costs, in copies of the prior's arrays: `python benchmarks/verbs.py [functions]`.

It looks for cliffs: a combination that costs hundreds of copies more than its neighbours. Each row
is the median of three calls after a first one. By default one function of 201 x 201 points.
"""

import os
import sys
import warnings

import torch
from timing import seconds

import probconserv as pc

FUNCTIONS = int(sys.argv[1]) if len(sys.argv) > 1 else 1
M = 201
rng = torch.Generator().manual_seed(0)
x = torch.linspace(0, 1, M, dtype=torch.float64)
mean = 0.1 * torch.randn(FUNCTIONS, M, M, generator=rng, dtype=torch.float64)
variance = 0.1 + torch.rand(FUNCTIONS, M, M, generator=rng, dtype=torch.float64)
noise = torch.randn(20, FUNCTIONS, M, M, generator=rng, dtype=torch.float64)
total = torch.trapezoid(mean, x) + 0.01
points, members = pc.Diagonal(mean, variance), pc.Ensemble(mean + 0.3 * noise, batch_dims=2)
mass, ends, start = pc.integral(x, total), pc.boundary(0.0, 0.0), pc.initial(mean[:, 0])
later = pc.integral(x, total[:, 1:], times=slice(1, None))
smooth = pc.smoothness(x, variance, rho=0.9)
LAWS = {
    "integral": (mass,),
    "integral, known ends": (mass, ends),
    "integral, known start": (later, start),
    "integral and another": (mass, pc.weighted_sum(x / M, 0.0)),
    "10 regions": (pc.regions(torch.arange(M) // 21, torch.zeros(10)),),
    "smoothness": (smooth,),
    "smoothness, integral": (smooth, mass),
    "smoothness, integral, known ends": (smooth, mass, ends),
    "smoothness, known start": (pc.smoothness(x, variance, 0.9, times=slice(1, None)), start),
}
VERBS = {
    "mean": lambda field, laws: pc.condition(field, *laws).mean,
    "variance": lambda field, laws: pc.condition(field, *laws).variance,
    "a draw": lambda field, laws: pc.condition(field, *laws).sample(1, rng),
    "evidence": lambda field, laws: pc.condition(field, *laws).log_evidence,
    "diagnose": lambda field, laws: pc.diagnose(field, *laws),
    "members()": lambda field, laws: pc.condition(field, *laws).members(),
}


def row(field: pc.fields.Field, name: str) -> list[str]:
    verbs = [verb for verb in VERBS if verb != "members()" or field is members]
    jobs = [lambda verb=verb: VERBS[verb](field, LAWS[name]) for verb in verbs]
    clone, *times = seconds(lambda: field._map(torch.Tensor.clone), *jobs, repeats=3)
    return [f"{time / clone:.0f}" for time in times] + [""] * (len(VERBS) - len(verbs))


def main() -> None:
    warnings.simplefilter("ignore", pc.ImplausibleWarning)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, ", end="")
    print(f"load {os.getloadavg()[0]:.1f}\n\n| field, laws | {' | '.join(VERBS)} |")
    print("|---" * (1 + len(VERBS)) + "|")
    for kind, field in {"independent points": points, "20 members": members}.items():
        for name in LAWS:
            print(f"| {kind}, {name} | {' | '.join(row(field, name))} |", flush=True)


if __name__ == "__main__":
    main()
