"""A boundary flux that nobody measured: `python benchmarks/boundary_flux.py [--functions 50]`.

The porous medium and Stefan problems of the paper, predicted by the trained networks. The budget of
the whole is conditioned on, with the flux through the left end known; unknown, with a prior that is
smooth in time; and unknown, with times that are independent. Prints the
table of docs/learn/cells.md.

The prior of the flux is what one would know before: the mean and twice the spread over the
parameters of the training range. Its length of correlation, in the root of time, is the one with
the highest evidence on validation functions.
"""

import argparse
import warnings

import torch
from torch import Tensor

import probconserv as pc
from probconserv.data import Functions, draw
from probconserv.problems import PorousMedium, Problem, Stefan

TIMES, POINTS, SAMPLES = 41, 201, 50
LENGTHS = (0.1, 0.2, 0.4, 0.8, 1.6)
CASES = (PorousMedium(m=3.0), Stefan(u_star=0.6))


def inflow(problem: Problem, t: Tensor) -> Tensor:
    """The flux through the left end, averaged over the intervals; the right end is closed."""
    return problem[..., None].total(t).diff(dim=-1) / t.diff()


def flux_prior(problem: Problem, t: Tensor, length: float | None) -> pc.Dense:
    """length: of correlation; None for times that are independent."""
    low, high = problem.train_range
    spread = torch.linspace(low, high, 64, dtype=torch.float64)
    curves = inflow(type(problem)(**{problem.parameter: spread}), t)
    std = 2 * curves.std(0)
    middle = ((t[1:] + t[:-1]) / 2).sqrt()
    apart = middle[:, None] - middle
    kernel = (
        torch.eye(len(std)).double() if length is None else (-((apart / length) ** 2) / 2).exp()
    )
    return pc.Dense(curves.mean(0), std[:, None] * kernel * std)


def predicted(problem: Problem, functions: Functions, t: Tensor, x: Tensor) -> list[pc.LowRank]:
    """The network's field of each function: its samples move all times together."""
    rng = torch.Generator().manual_seed(0)
    parts = pc.models.load(problem.name).predict(tuple(functions.context), (t, x), SAMPLES, rng)
    mean, rest = parts.mean.double(), parts.variance.double().mean(0)
    moves = (mean - mean.mean(0)) / SAMPLES**0.5
    return [
        pc.LowRank(mean[:, i].mean(0), moves[:, i], rest[i], event_dims=2) for i in range(len(rest))
    ]


def given(problem: Problem, u: pc.fields.Field, t: Tensor, x: Tensor, flux: Tensor | pc.Dense):
    """One function's field given the budget of the whole, and its start."""
    start, noise = pc.initial(problem.initial(x), of="u"), rule_noise(problem, t, x)
    if isinstance(flux, Tensor):
        return pc.condition(pc.State(u=u), start, pc.budget(x, t, inflow=flux, noise=noise))
    law = pc.budget(x, t, inflow="inflow", noise=noise)
    return pc.condition(pc.State(u=u, inflow=flux), start, law)


def rule_noise(problem: Problem, t: Tensor, x: Tensor) -> Tensor:
    """What the trapezoid rule makes of the budget, over the training range."""
    low, high = problem.train_range
    many = type(problem)(**{problem.parameter: torch.linspace(low, high, 64, dtype=torch.float64)})
    law = pc.budget(x, t, inflow=inflow(many, t))
    return law.residual(many.on_grid(t, x)).square().mean(0).sqrt()


def scores(field: pc.fields.Field, truth: Tensor, first: int) -> list[float]:
    """LL, MSE and coverage of 90 % intervals, from entry `first` on."""
    field, truth = pc.Diagonal(field.mean[first:], field.variance[first:]), truth[first:]
    low, high = field.interval(0.9)
    inside = ((low <= truth) & (truth <= high)).double()
    values = field.marginal_log_prob(truth), (field.mean - truth) ** 2, inside
    return [float(v.mean()) for v in values]


def table(problem: Problem, count: int) -> None:
    t, x = problem.grid(TIMES, POINTS)
    truth, flux = problem.on_grid(t, x), inflow(problem, t)
    validation = predicted(problem, draw(problem, "validation", 8, (10, 10)), t, x)
    evidence = {
        length: sum(
            float(given(problem, validation[i], t, x, flux_prior(problem, t, length)).log_evidence)
            for i in range(8)
        )
        for length in LENGTHS
    }
    length = max(evidence, key=evidence.__getitem__)
    field = predicted(problem, draw(problem, "test", count, (10, 10)), t, x)
    print(f"\n{problem.title}, {problem.parameter} = {float(getattr(problem, problem.parameter))}")
    print(f"length {length} of {evidence}\n")
    print(
        "| boundary flux | LL | MSE | inside 90 % | flux RMSE | flux inside 90 % |\n"
        + "|---" * 6
        + "|"
    )
    ways = {
        "no law": None,
        "known": flux,
        "unknown, smooth in time": flux_prior(problem, t, length),
        "unknown, independent times": flux_prior(problem, t, None),
    }
    for name, way in ways.items():
        rows = []
        for i in range(count):
            post = None if way is None else given(problem, field[i], t, x, way)
            own = scores(field[i] if post is None else post["u"], truth, 1)
            other = [float("nan")] * 3
            if post is not None and "inflow" in post.names:
                other = scores(post["inflow"], flux, 0)
            rows.append([*own, *other[1:]])
        ll, mse, inside, error, covered = torch.tensor(rows).double().mean(0).tolist()
        print(
            f"| {name} | {ll:.3f} | {mse:.2e} | {inside:.1%} | {error**0.5:.3f} | {covered:.1%} |",
            flush=True,
        )
    before = flux_prior(problem, t, length)
    print(f"\nflux before: RMSE {float((before.mean - flux).square().mean().sqrt()):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--functions", type=int, default=50)
    count = parser.parse_args().functions
    warnings.simplefilter("ignore", pc.ImplausibleWarning)
    for problem in CASES:
        table(problem, count)


if __name__ == "__main__":
    main()
