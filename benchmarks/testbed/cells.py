"""Cells of the study: predictions of a model on 320 functions, the truth, and laws that hold of it.

A cell is an equation, a model, a range and a horizon. The first 20 functions are what a user has,
the next 100 are for widths, the last 200 say what is true.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from equations import EQUATIONS
from laws import refined
from networks import ARCHITECTURES
from predictions import read
from torch import Tensor

import probconserv as pc

FUNCTIONS = 320
GIVEN, CALIBRATE, JUDGED = slice(0, 20), slice(20, 120), slice(120, 320)
HORIZONS = 1, 10, 60  # steps
USELESS = 1.0  # times the spread of the truth: a prediction further off is left out


@dataclass(frozen=True)
class Cell:
    """`prior`, `truth` and `laws` take a slice of the functions."""

    source: str
    equation: str
    model: str
    where: str  # "in" or "beyond"
    horizon: str
    prior: Callable[[slice], Any]
    truth: Callable[[slice], Any]
    laws: Callable[[slice], list[Any]]

    @property
    def key(self) -> str:
        return f"{self.source} {self.equation} {self.model} {self.where} {self.horizon}"


def square(u: Tensor) -> Tensor:
    return u.square().mean()


def weights(space: tuple[int, ...]) -> Tensor:
    return torch.full(space, 1 / np.prod(space), dtype=torch.float64)


def mass(start: Tensor, space: tuple[int, ...]) -> Any:
    """mean(u) is that of the start; all values are (n, 1)."""
    law = pc.weighted_sum(weights(space), start.mean(tuple(range(2, start.ndim))))
    law.label = "mass"
    return law


def energy(start: Tensor) -> Any:
    value = start.square().mean(tuple(range(2, start.ndim)))
    return pc.nonlinear(square, value, batch_dims=2, label="energy")


def between(start: Tensor) -> Any:
    """The extremes of the start, between grid points too, and a thousandth of their distance."""
    space = tuple(range(2, start.ndim))
    fine = torch.from_numpy(refined(start.numpy(), space))
    low, high = (f(space, keepdim=True) for f in (fine.amin, fine.amax))
    return pc.bounds(low - 1e-3 * (high - low), high + 1e-3 * (high - low))


def rolled_out(folder: Path) -> Iterator[Cell]:
    """Rollouts of ensembles of five networks that make one step at a time."""
    for name in EQUATIONS:
        for model in ARCHITECTURES:
            if not list(folder.glob(f"{name}-{model}.safetensors")):
                continue
            run = read(folder, name, model)
            for key, where in (("test", "in"), ("beyond", "beyond")):
                members, truth = (
                    torch.from_numpy(x[key]).double() for x in (run.members, run.truth)
                )
                start = torch.from_numpy(run.start[key]).double()
                for i, steps in enumerate(run.horizons.tolist()):
                    if steps not in HORIZONS:
                        continue
                    yield _rollout(name, model, where, steps, members[:, :, i], truth[:, i], start)


def _rollout(
    name: str, model: str, where: str, steps: int, members: Tensor, truth: Tensor, start: Tensor
) -> Cell:
    """members (5, n, channels, *space), truth and start (n, channels, *space)."""
    several = truth.shape[1] > 1

    def field(part: slice) -> Any:
        if several:
            parts = {c: members[:, part, i : i + 1] for i, c in enumerate("uv")}
            return pc.Ensemble(parts, batch_dims=2)
        return pc.Ensemble(members[:, part], batch_dims=2)

    def known(part: slice) -> Any:
        return {c: truth[part, i : i + 1] for i, c in enumerate("uv")} if several else truth[part]

    def laws(part: slice) -> list[Any]:
        return _laws_of(name, steps, start[part])

    return Cell("rollouts", name, model, where, str(steps), field, known, laws)


def _laws_of(name: str, steps: int, start: Tensor) -> list[Any]:
    equation, space = EQUATIONS[name], tuple(start.shape[2:])
    if name == "gray_scott":
        found = [pc.bounds(0.0, 1.0, of=c) for c in "uv"]
        return found + [_fed(equation, start)] * (steps == 1)
    if name == "fisher":
        return [pc.bounds(0.0, 1.0)] + [_grown(equation, start)] * (steps == 1)
    found = [mass(start, space)]
    if name in ("advection", "kdv"):
        found.append(energy(start))
    if name in ("burgers", "advection_diffusion_2d", "navier_stokes_2d"):
        found.append(pc.at_most(energy(start)))
    if name in ("advection", "burgers", "advection_diffusion_2d", "navier_stokes_2d"):
        found.append(between(start))
    return found


def _grown(equation: Any, start: Tensor) -> Any:
    """Fisher's budget over a step, by the trapezoid rule in time."""
    half = equation.dt / 2 * equation.coefficients["reactivity"]

    def gained(u: Tensor) -> Tensor:
        return u.mean() - half * (u - u.square()).mean()

    value = start.mean(-1) + half * (start - start.square()).mean(-1)
    return pc.nonlinear(gained, value, batch_dims=2, label="source")


def _fed(equation: Any, start: Tensor) -> Any:
    """The budget of u + v of Gray and Scott over a step, by the trapezoid rule in time."""
    half = equation.dt / 2
    feed, kill = (half * equation.coefficients[name] for name in ("feed_rate", "kill_rate"))

    def gained(state: dict[str, Tensor]) -> Tensor:
        u, v = state["u"].mean(), state["v"].mean()
        return (1 + feed) * (u + v) + kill * v

    u, v = start[:, :1].mean(-1), start[:, 1:].mean(-1)
    value = (1 - feed) * (u + v) - kill * v + 2 * feed
    return pc.nonlinear(gained, value, batch_dims=2, label="source")


def operators() -> Iterator[Cell]:
    """Six networks of whole solutions, inside the range of training and in three beyond it."""
    from probconserv.experiments.operators import CASES, load_ensemble
    from probconserv.experiments.operators._benchmark import moments, shape_of

    for name, case in CASES.items():
        network = load_ensemble(name)
        for where in ("in", "near", "other side", "far"):
            problem, grids = case.functions(where, "test", FUNCTIONS)
            t, x = grids.axes
            parts = [
                network.predict(grids.inputs[i : i + 40], (t, x)) for i in range(0, FUNCTIONS, 40)
            ]
            both = [moments(p) for p in parts]
            mean, variance = (
                torch.cat([getattr(f, k) for f in both]) for k in ("mean", "variance")
            )
            shapes = shape_of(case, problem, grids)
            for i in (2, 9, 19):
                yield _operator(name, where, i, (mean, variance), grids, shapes)


def _operator(
    name: str, where: str, i: int, moments: tuple[Tensor, Tensor], grids: Any, shapes: Any
) -> Cell:
    at = slice(i, i + 1)

    def laws(part: slice) -> list[Any]:
        found = [pc.integral(grids.axes[1], grids.totals[part, at])]
        for one in shapes:
            if one.label == "bounds":
                ends = (
                    e.expand(FUNCTIONS, -1, -1) if e.ndim == 3 else e for e in (one.low, one.high)
                )
                low, high = (
                    e[part, at] if e.ndim == 3 and e.shape[1] > 1 else e[part] if e.ndim == 3 else e
                    for e in ends
                )
                one = pc.bounds(low, high)
            found.append(one)
        return found

    def field(part: slice) -> Any:
        return pc.Diagonal(*(x[part, at] for x in moments))

    known = grids.targets
    distance = "in" if where == "in" else "beyond"
    label = f"{grids.axes[0][i]:.2f}" + (f" {where}" if distance == "beyond" else "")
    return Cell("operators", name, "fno", distance, label, field, lambda p: known[p, at], laws)


def of_the_paper(samples: int = 20) -> Iterator[Cell]:
    """The shipped neural processes: a mixture of what latent samples predict."""
    from probconserv.data import draw
    from probconserv.experiments.paper import EXPERIMENTS

    for name, experiment in EXPERIMENTS.items():
        network = pc.models.load(name)
        for value in experiment.values:
            problem, t = experiment.at(value), [experiment.time]
            x = problem.grid()[1]
            seen = tuple(draw(problem, "test", n=FUNCTIONS, context=(10, 10)).context)
            rng = torch.Generator().manual_seed(0)
            parts = [
                network.predict(tuple(c[i : i + 20] for c in seen), (t, x), samples, rng)
                for i in range(0, FUNCTIONS, 20)
            ]
            mean, variance = (
                torch.cat([getattr(p, k) for p in parts], 1).double() for k in ("mean", "variance")
            )
            truth = problem.on_grid(t, x).double().expand(FUNCTIONS, 1, -1)
            law = pc.integral(x, problem.total(t))
            yield _process(name, value, (mean, variance), truth, law)


def _process(
    name: str, value: float, parts: tuple[Tensor, Tensor], truth: Tensor, law: Any
) -> Cell:
    def field(part: slice) -> Any:
        return pc.Mixture(pc.Diagonal(*(x[:, part] for x in parts)))

    return Cell(
        "paper", name, "anp", "in", f"{value:g}", field, lambda p: truth[p], lambda p: [law]
    )
