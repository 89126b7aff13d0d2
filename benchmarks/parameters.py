"""A parameter that nobody knows: `python benchmarks/parameters.py [--recipe paper] [PROBLEM ...]`.

The total b(t) of the paper's problems depends on the parameter of the equation. Here that parameter
is a field of the state, and the law is total(u) = b(t; parameter) at 40 times, exactly. Prints the
table of docs/learn/nonlinear.md: about a minute for each parameter, most of it prediction.

The field holds a number without limits: log m, log beta, logit u*. Its prior has the mean and the
spread of the training range, or three times that spread.

The networks' errors are independent but for their latent samples, so their totals are much too
sure. Three remedies: the covariance of u times one number for each function, so that the law is no
surprise ("k of the law"); times one number for all, from validation functions; and the errors of
their totals as further directions of u.
"""

import argparse
import time
import warnings
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

import probconserv as pc
from probconserv.data import Functions, draw
from probconserv.experiments.paper import EXPERIMENTS
from probconserv.problems import Advection, ClosedForm

TIMES, POINTS, SAMPLES, DRAWS = 41, 201, 50, 200
VALIDATION, FEW = 16, 8  # functions, and samples of each
LINKS = {  # from any number to a parameter, and back
    "m": (torch.exp, torch.log),
    "beta": (torch.exp, torch.log),
    "u_star": (torch.sigmoid, torch.logit),
}


class Case(NamedTuple):
    """A problem with its true parameter, on a grid."""

    problem: ClosedForm
    t: Tensor  # (T,), without t = 0
    x: Tensor
    weights: Tensor  # of the trapezoid rule

    def prior(self, n: int, wider: float = 1.0) -> pc.Diagonal:  # (n, 1)
        """What is known of the parameter of each function before."""
        ends = torch.tensor(self.problem.train_range, dtype=torch.float64)
        many = LINKS[self.problem.parameter][1](torch.linspace(*ends.tolist(), 64).double())
        return pc.Diagonal(many.mean().expand(n, 1), (wider * many.std()) ** 2)

    def parameter(self, z: Tensor) -> Tensor:
        return LINKS[self.problem.parameter][0](z)

    def total(self, z: Tensor) -> Tensor:
        """b(t) for the number z, (1,) to (T,).

        That of advection, min(1/2 + beta t, 1), has a kink, which misleads derivatives: it is
        rounded by the width of a cell.
        """
        if isinstance(self.problem, Advection):
            left = 0.5 - self.parameter(z) * self.t
            return 1 - softplus(left, beta=1 / float(self.x[1] - self.x[0]))
        return type(self.problem)(**{self.problem.parameter: self.parameter(z)}).total(self.t)

    def law(self) -> pc.laws.NonlinearLaw:
        return pc.nonlinear(lambda s: s["u"] @ self.weights - self.total(s["z"]), 0.0, batch_dims=1)

    def law_of_totals(self) -> pc.laws.NonlinearLaw:
        return pc.nonlinear(lambda s: s["totals"] - self.total(s["z"]), 0.0, batch_dims=1)


def case_of(problem: ClosedForm) -> Case:
    t, x = problem.grid(TIMES, POINTS)
    weights = torch.full_like(x, float(x[1] - x[0]))
    weights[[0, -1]] /= 2
    return Case(problem, t[1:], x, weights)


def predicted(case: Case, functions: Functions, recipe: str, samples: int) -> tuple[Tensor, Tensor]:
    """Means (S, n, T, M) of the samples, and the variance that they leave out."""
    network = pc.models.load(case.problem.name, "anp", recipe)
    rng = torch.Generator().manual_seed(0)
    parts = network.predict(tuple(functions.context), (case.t, case.x), samples, rng)
    return parts.mean, parts.variance.mean(0)


def field_of(means: Tensor, rest: Tensor) -> pc.LowRank:
    """Samples move all times together."""
    about = (means - means.mean(0)) / len(means) ** 0.5
    return pc.LowRank(means.mean(0), about, rest, event_dims=2)


def totals_of(u: pc.LowRank, weights: Tensor) -> pc.Dense:  # (n, T)
    """The totals of all times, which is all that the law reads of u."""
    moves = (u.factor @ weights).movedim(0, -1)  # (n, T, S)
    own = (u.rest @ weights.square()).diag_embed()
    return pc.Dense(u.mean @ weights, moves @ moves.mT + own)


def surprise(u: pc.LowRank, b: Tensor, weights: Tensor) -> Tensor:  # (n,)
    """The mean square of what the totals miss, in their standard deviations."""
    totals = totals_of(u, weights)
    miss = (totals.mean - b)[..., None]
    return (miss.mT @ torch.linalg.solve(totals.covariance(), miss))[:, 0, 0] / b.shape[-1]


def widened(u: pc.LowRank, k: Tensor) -> pc.LowRank:
    k = k.clamp_min(1).reshape(-1, 1, 1)
    return pc.LowRank(u.mean, u.factor * k.sqrt(), u.rest * k, event_dims=2)


def with_errors(u: pc.LowRank, errors: Tensor, weights: Tensor) -> pc.LowRank:
    """errors (V, T): of totals. Each is one more direction, spread over x as an update would."""
    share = u.variance / (u.variance @ weights)[..., None]
    more = errors[:, None, :, None] * share / len(errors) ** 0.5
    return pc.LowRank(u.mean, torch.cat([u.factor, more]), u.rest, event_dims=2)


def on_validation(case: Case, recipe: str) -> tuple[Tensor, Tensor]:
    """The surprise of true totals, and how far the means are from them: (1,) and (V, T)."""
    functions = draw(type(case.problem), "validation", VALIDATION, (10, 10))
    u = field_of(*predicted(case, functions, recipe, FEW))
    b = functions.problem[:, None].total(case.t)
    return surprise(u, b, case.weights).mean()[None], u.mean @ case.weights - b


def scores_of_u(field: pc.fields.Field, truth: Tensor, at: int) -> list[float]:
    """LL, MSE and coverage of 90 % intervals at the time of the paper."""
    mean, variance = field.mean[:, at], field.variance[:, at]
    z = (truth[at] - mean).square() / variance
    ll = -(z + variance.log() + torch.log(torch.tensor(2 * torch.pi))) / 2
    return [float(v.double().mean()) for v in (ll, (mean - truth[at]).square(), z < 1.645**2)]


def scores_of_parameter(case: Case, z: pc.fields.Field) -> list[float]:
    """Mean error, half the length of the 90 % interval, and how often the truth is inside it."""
    truth = getattr(case.problem, case.problem.parameter)
    low, high = map(case.parameter, z.interval(0.9))
    inside = ((low <= truth) & (truth <= high)).double()
    middle = case.parameter(z.mean)
    return [float(v.mean()) for v in ((middle - truth).abs(), (high - low) / 2, inside)]


def alone(case: Case, u: pc.LowRank, prior: pc.Diagonal) -> pc.fields.Field:
    """z given the law, from the totals of u, which are all that it reads."""
    state = pc.State(totals=totals_of(u, case.weights), z=prior)
    return pc.condition(state, case.law_of_totals())["z"]


def covered_by_draws(case: Case, u: pc.LowRank, prior: pc.Diagonal) -> float:
    rng = torch.Generator().manual_seed(0)
    try:
        return scores_of_parameter(case, alone(case, u, prior).from_draws(DRAWS, rng))[2]
    except pc.errors.InfeasibleError as error:
        print(error)
        return float("nan")


def to_the_law(case: Case, u: pc.LowRank, prior: pc.Diagonal) -> pc.LowRank:
    """u with its covariance times k, so that the law is no surprise at the likeliest z."""
    b = torch.stack([case.total(z) for z in alone(case, u, prior).mean])
    return widened(u, surprise(u, b, case.weights))


def row(name: str, *numbers: float) -> None:
    ll, mse, inside, *rest = numbers
    text = [f"{ll:.2f}", f"{mse:.2e}", f"{inside:.0%}"]
    if rest:
        error, half, covered, *drawn = rest
        text += [f"{error:.2g}", f"{half:.2g}", f"{covered:.0%}"] + [f"{v:.0%}" for v in drawn]
    print(f"| {name} | " + " | ".join(text + [""] * (7 - len(text))) + " |", flush=True)


def table(problem: ClosedForm, count: int, recipe: str) -> None:
    case, start = case_of(problem), time.perf_counter()
    truth, b = problem.on_grid(case.t, case.x), problem.total(case.t)
    at = int((case.t - EXPERIMENTS[problem.name].time).abs().argmin())
    u = field_of(*predicted(case, draw(problem, "test", count, (10, 10)), recipe, SAMPLES))
    k, errors = on_validation(case, recipe)
    value, wider = float(getattr(problem, problem.parameter)), 1.0
    if not problem.train_range[0] <= value <= problem.train_range[1]:
        wider = 3.0
    prior, more = case.prior(count, wider), with_errors(u, errors, case.weights)
    print(f"\n{problem.title}, {problem.parameter} = {value:g}, recipe {recipe}, {count} functions")
    print(f"prior {wider:g} times the training range; k of validation {float(k):.0f}\n")
    print("| | LL | MSE | u in 90 % | error | half of 90 % | in it | by draws |")
    print("|---" * 8 + "|")
    row("no law", *scores_of_u(u, truth, at), *scores_of_parameter(case, prior))
    row("b(t) known", *scores_of_u(pc.condition(u, pc.integral(case.x, b)), truth, at))
    ways = {
        "unknown": (u, prior),
        "k of the law": (to_the_law(case, u, prior), prior),
        "k of validation": (widened(u, k), prior),
        "errors of validation": (more, prior),
        "errors of validation, k of the law": (to_the_law(case, more, prior), prior),
    }
    if wider > 1:
        ways["unknown, prior of the training range"] = u, case.prior(count)
    for name, (field, about) in ways.items():
        post = pc.condition(pc.State(u=field, z=about), case.law())
        found = scores_of_u(post["u"], truth, at) + scores_of_parameter(case, post["z"])
        row(name, *found, covered_by_draws(case, field, about))
    print(f"\n{time.perf_counter() - start:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("problems", nargs="*", default=["pme", "stefan", "advection"])
    parser.add_argument("--functions", type=int, default=10)
    parser.add_argument("--recipe", choices=["modern", "paper"], default="modern")
    args = parser.parse_args()
    warnings.simplefilter("ignore", pc.ImplausibleWarning)
    for name in args.problems:
        for value in EXPERIMENTS[name].values:
            table(EXPERIMENTS[name].at(value), args.functions, args.recipe)


if __name__ == "__main__":
    main()
