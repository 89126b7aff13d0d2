"""What "falls in x" and bounds bring beside mass: `python benchmarks/shapes.py [--functions 30]`.

The paper's problems, predicted by both trained networks at the paper's times. Each component of the
latent is updated with the total alone, and with the total, values that fall in x, and bounds: 0 and
the value at the left end. Prints the table of docs/learn/inequalities.md. The front, where
there is one, is the crossing of half of its jump in each draw.
"""

import argparse

import torch
from torch import Tensor

import probconserv as pc
from probconserv.data import draw
from probconserv.experiments.paper import EXPERIMENTS
from probconserv.problems import ClosedForm

SAMPLES, DRAWS, CONTEXT = 50, 4, (10, 10)  # of the latent, of each component
CASES = {"pme": (3.0, 6.0), "stefan": (0.6, 0.5), "advection": (1.0, 3.0), "burgers": (1.0, 3.0)}


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pooled(parts: pc.fields.Field) -> pc.fields.Field:
    """Draws of all components, as those of one field."""
    draws = parts.draws if isinstance(parts, pc.Draws) else parts.sample(DRAWS, rng(1))
    return pc.Draws(draws.flatten(0, 1))


def fronts(field: pc.fields.Field, problem: ClosedForm, t: float, x: Tensor) -> tuple[float, float]:
    """The mean error of the front, and the share of functions in whose 90 % interval it lies."""
    true = problem.front(t)
    level = float(problem.solution(t, true)) / 2
    found = pc.diagnostics.front_position(
        field, x, level, "crossing", samples=500, generator=rng(2)
    )
    low, high = found.interval(0.9)
    inside = (low <= true) & (true <= high)
    return float((found.mean - true).abs().nanmean()), float(inside.double().mean())


def row(name: str, field: pc.fields.Field, truth: Tensor, front: tuple[float, float] | None) -> str:
    scores = pc.evaluate(field, truth, samples=50).mean()
    cells = [f"{float(scores.MSE):.2e}", f"{float(scores.CRPS):.2e}"]
    cells.append(f"{float(scores.coverage_90):.0%}")
    cells += [f"{front[0]:.3f}", f"{front[1]:.0%}"] if front else ["", ""]
    return f"| {name} | " + " | ".join(cells) + " |"


def table(name: str, value: float, recipe: str, count: int) -> None:
    experiment = EXPERIMENTS[name]
    problem, t = experiment.at(value), torch.tensor([experiment.time], dtype=torch.float64)
    x, test = problem.grid()[1], draw(experiment.at(value), "test", count, CONTEXT)
    network = pc.models.load(name, recipe=recipe)
    parts = network.predict(tuple(test.context), (t, x), SAMPLES, rng(0))
    parts = pc.Diagonal(parts.mean.double(), parts.variance.double())
    truth, mass = problem.on_grid(t, x), pc.integral(x, problem.total(t))
    shape = pc.monotone(decreasing=True), pc.bounds(0.0, float(problem.boundary(t)[0]))
    fields = {
        "none": pooled(parts),
        "mass": pooled(pc.condition(parts, mass)),
        "mass, falls, bounds": pooled(
            pc.condition(parts, mass, *shape, draws=DRAWS, generator=rng(1))
        ),
    }
    for law, field in fields.items():
        front = fronts(field, problem, experiment.time, x) if experiment.fronts else None
        print(row(f"{name} {value:g} | {recipe} | {law}", field, truth, front), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--functions", type=int, default=30)
    count = parser.parse_args().functions
    titles = "|", "network", "law", "MSE", "CRPS", "inside 90 %", "front off by", "inside 90 %"
    print(" | ".join(titles) + " |\n" + "|---" * len(titles) + "|")
    for name, values in CASES.items():
        for value in values:
            for recipe in ("paper", "modern"):
                table(name, value, recipe, count)


if __name__ == "__main__":
    main()
