"""The equation as a law for every cell: `python benchmarks/equation_law.py [--functions 2]`.

Burgers' equation u_t + (u^2/2)_x = 0, predicted by the network at 41 times and 51 points. In
the rectangle between two times and two points what is gained is what flows in, by the trapezoid
rule along every side,

    dx (mean of u after - before) + dt (mean of f(u) on the right - on the left) = 0 + noise

one row for each of 2000 rectangles. It is exact up to second order where u is smooth, and off by
about dx times the jump at a shock. The noise is one number: that with the lowest MSE on validation
functions. Prints a table of docs/learn/nonlinear.md, and what it cost.
"""

import argparse
import time
import warnings

import torch
from torch import Tensor

import probconserv as pc
from probconserv.data import Functions, draw
from probconserv.problems import Burgers

TIMES, POINTS, SAMPLES = 41, 51, 50
NOISES = (1e-2, 3e-3)
T, X = Burgers.grid(TIMES, POINTS)


def gained(u: Tensor) -> Tensor:  # (T, M) to (T - 1, M - 1)
    """What each rectangle gains and does not get through its sides."""
    dt, dx = float(T[1] - T[0]), float(X[1] - X[0])
    inside, flux = (u[:, 1:] + u[:, :-1]) / 2, (u.square() / 2).diff(dim=1)
    return dx * inside.diff(dim=0) + dt * (flux[1:] + flux[:-1]) / 2


def predicted(functions: Functions) -> pc.LowRank:
    rng = torch.Generator().manual_seed(0)
    parts = pc.models.load("burgers").predict(tuple(functions.context), (T, X), SAMPLES, rng)
    mean = parts.mean.mean(0)
    about = (parts.mean - mean) / SAMPLES**0.5
    return pc.LowRank(mean, about, parts.variance.mean(0), event_dims=2)


def scores(field: pc.fields.Field, truth: Tensor) -> list[float]:
    """MSE, LL, CRPS and coverage of 90 % intervals over all times but the first."""
    about = pc.Diagonal(field.mean[:, 1:], field.variance[:, 1:])
    found = pc.evaluate(about, truth[:, 1:], samples=1)
    return [float(v.mean()) for v in (found.MSE, found.LL, found.CRPS, found.coverage_90)]


def given(u: pc.LowRank, noise: float) -> tuple[pc.fields.Field, float]:
    """u given the equation, and the seconds that the most probable u took."""
    start = time.perf_counter()
    post = pc.condition(u, pc.nonlinear(gained, 0.0, noise=noise, batch_dims=1))
    return post, time.perf_counter() - start


def tuned(functions: Functions) -> float:
    """The noise with the lowest MSE."""
    truth, u = functions.problem.on_grid(T, X), predicted(functions)
    print(f"no law: MSE {float((u.mean - truth).square().mean()):.2e}")
    found = {}
    for noise in NOISES:
        post, seconds = given(u, noise)
        found[noise] = float((post.mean - truth).square().mean())
        print(f"noise {noise:g}: MSE {found[noise]:.2e}, {seconds:.0f} s", flush=True)
    return min(found, key=found.__getitem__)


def table(title: str, functions: Functions, noise: float) -> None:
    truth, u = functions.problem.on_grid(T, X), predicted(functions)
    post, point = given(u, noise)
    start = time.perf_counter()
    numbers = scores(post, truth)
    print(f"\n| {title} | MSE | LL | CRPS | inside 90 % |\n" + "|---" * 5 + "|")
    for name, found in (("no law", scores(u, truth)), (f"noise {noise:g}", numbers)):
        mse, ll, crps, inside = found
        print(f"| {name} | {mse:.2e} | {ll:.2f} | {crps:.2e} | {inside:.1%} |")
    print(f"\npoint {point:.0f} s, variance {time.perf_counter() - start:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--functions", type=int, default=2)
    parser.add_argument("--noise", type=float)
    args = parser.parse_args()
    warnings.simplefilter("ignore", pc.ImplausibleWarning)
    noise = args.noise or tuned(draw(Burgers, "validation", args.functions, (10, 10)))
    for a in (1.0, 3.0):
        table(f"a = {a:g}", draw(Burgers(a=a), "test", args.functions, (10, 10)), noise)


if __name__ == "__main__":
    main()
