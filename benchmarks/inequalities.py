"""What inequalities cost: `python benchmarks/inequalities.py [functions]`, 10 of them if not said.

Draws of fields of 201 x 201 points with a known integral at each time, values that may not be
negative or that rise, beside draws of the same fields with the integral alone; normal numbers
included on both sides. Then how the draws score: coverage of intervals of 90 %, and CRPS beside
that of the plain update, and what gradients cost. Prints Markdown tables.
"""

import math
import sys
import time

import torch
from timing import seconds
from torch import Tensor

import probconserv as pc
from probconserv.diagnostics import crps

POINTS, TIMES, DRAWS = 201, 201, 100
x = torch.linspace(0.0, 1.0, POINTS, dtype=torch.float64)
rng = torch.Generator().manual_seed(0)


def fields(functions: int) -> tuple[pc.Diagonal, Tensor]:
    """Fronts that move, with noise; a third of the values is near 0."""
    t = torch.linspace(0.2, 0.8, TIMES, dtype=torch.float64)[:, None]
    fronts = torch.sigmoid((x - t) / 0.05).expand(functions, -1, -1)
    size = torch.rand(functions, TIMES, POINTS, generator=rng, dtype=torch.float64)
    variance = (0.02 + 0.2 * size).square()
    noise = torch.randn(variance.shape, generator=rng, dtype=torch.float64)
    mean = fronts + variance.sqrt() * noise
    return pc.Diagonal(mean, variance), torch.trapezoid(fronts, x)


def times(functions: int, repeats: int) -> None:
    prior, mass = fields(functions)
    law = pc.integral(x, mass)

    def plain() -> None:
        pc.condition(prior, law).sample(DRAWS, rng)

    def within(*inequalities: pc.laws.Inequality) -> None:
        pc.condition(prior, law, *inequalities, draws=DRAWS, generator=rng)

    jobs = {
        "not negative": lambda: within(pc.bounds(low=0.0)),
        "from 0 to 1": lambda: within(pc.bounds(0.0, 1.0)),
        "rising": lambda: within(pc.monotone()),
        "rising from 0 to 1": lambda: within(pc.bounds(0.0, 1.0), pc.monotone()),
    }
    base, *found = seconds(plain, *jobs.values(), repeats=repeats)
    size = f"{functions} x {TIMES} x {POINTS}"
    print(f"| {DRAWS} draws of {size}, given the mass | / draws without |")
    print("|---|---|")
    for name, each in zip(jobs, found, strict=True):
        print(f"| {name} | {each / base:.2f} |")
    print(f"\nDraws without inequalities take {base:.2f} s.\n")


def gradients(times: int = 64, side: int = 64, members: int = 20) -> None:
    """Backward of the point within bounds / one `condition` without them, the least of 20."""
    shape, low = (times, POINTS), torch.zeros((), dtype=torch.float64, requires_grad=True)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=rng, dtype=torch.float64)

    mean, rest = normal(*shape), 0.1 + normal(*shape).square()
    total = torch.full(shape[:1], 0.5, dtype=torch.float64)
    image, factor = normal(side, side) + 0.2, 0.3 * normal(members, side, side)
    weights = torch.full((side, side), side**-2.0, dtype=torch.float64)
    law, whole = pc.integral(x, total), pc.weighted_sum(weights, 0.3)
    energy = pc.nonlinear(lambda u: (u + 0.1 * u**2).mean(), 2 * total, batch_dims=1)

    def ensemble(mean: Tensor, factor: Tensor) -> pc.LowRank:
        return pc.LowRank(mean, factor, 0.01, event_dims=2)

    jobs = {
        f"{times} x {POINTS}, integral, project": (pc.Diagonal, (mean, rest), law, None),
        f"{times} x {POINTS}, integral, draws": (pc.Diagonal, (mean, rest), law, 2),
        f"{side} x {side}, {members} members, total": (ensemble, (image, factor), whole, 2),
        f"{times} x {POINTS}, nonlinear": (pc.Diagonal, (mean, rest), energy, 0),
    }
    print("| field and law | backward of the point, ms | / `condition` without bounds |")
    print("|---|---|---|")
    for name, (field, given, one, draws) in jobs.items():
        given = [t.clone().requires_grad_() for t in given]
        plain, back = [], []
        for _ in range(20):
            start = time.perf_counter()
            pc.condition(field(*(t.detach() for t in given)), one).mean.sum()
            plain.append(time.perf_counter() - start)
            prior, limit = field(*given), pc.bounds(low)
            if draws is None:
                u = pc.project(prior, one, limit).mean
            else:
                u = pc.condition(prior, one, limit, draws=draws, generator=rng).point
            start = time.perf_counter()
            torch.autograd.grad(u.sum(), [given[0], low])
            back.append(time.perf_counter() - start)
        print(f"| {name} | {1e3 * min(back):.2f} | {min(back) / min(plain):.1f} |")


def scores(functions: int = 2) -> None:
    """The truth is a draw of the prior, or 0 where that is negative."""
    mean = torch.randn(functions, TIMES, POINTS, generator=rng, dtype=torch.float64)
    prior = pc.Diagonal(mean, torch.ones_like(mean))
    truth = prior.sample(1, rng)[0].clamp_min(0)
    law = pc.integral(x, torch.trapezoid(truth, x))
    plain = pc.condition(prior, law)
    post = pc.condition(prior, law, pc.bounds(low=0.0), draws=DRAWS, generator=rng)
    assert isinstance(post, pc.Draws)
    low, high = post.interval(0.9)
    inside, zero = (low <= truth) & (truth <= high), truth == 0
    at_0, above = inside[zero].double().mean(), inside[~zero].double().mean()
    ours = post.crps(truth).mean()
    before = (plain.std * crps((truth - plain.mean) / plain.std)).mean()
    cut = pc.bounds(low=0.0, truncated=True)
    some, of_some = pc.Diagonal(mean[0, :50], 1.0), pc.integral(x, law.value[0, :50])
    truncated = pc.condition(some, of_some, cut, draws=DRAWS, generator=rng)
    other = truncated.crps(truth[0, :50]).mean() / post[0].crps(truth[0])[:50].mean()
    print("| score | |")
    print("|---|---|")
    print(f"| truth at 0 | {100 * zero.double().mean():.1f} % |")
    print(f"| in the interval of 90 %, truth above 0 | {100 * above:.1f} % |")
    print(f"| in the interval of 90 %, truth at 0 | {100 * at_0:.1f} % |")
    print(f"| CRPS / that of the plain update | {ours / before:.3f} |")
    print(f"| CRPS of truncated bounds / that | {float(other):.3f} |")


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    times(count, repeats=max(1, math.ceil(10 / count)))
    gradients()
    scores()
