"""What the page knows of each equation beside its network: the truth, and first observations."""

from itertools import product
from typing import Any, cast

import torch
from graphs import CAUSES, DRAWS, METHODS, POINTS, SAMPLES, TIMES, X, times
from torch import Tensor

from probconserv.diagnostics.causes import FULL, LEVEL, NEARLY_AS_GOOD, row_limit
from probconserv.diagnostics.diagnosis import LEAST_SHARE
from probconserv.diagnostics.fronts import RULES
from probconserv.experiments.paper._experiments import EXPERIMENTS
from probconserv.figures._fields import OTHERS, PAPER, SIGMAS
from probconserv.problems import ClosedForm, find
from probconserv.support.errors import FAR

SEEN = (1, 5, 9, 13, 17), (8, 25, 42, 58, 75, 92)  # times and points of the first observations
LEVELS = {"pme": 0.1}  # of u at the front; elsewhere half of the jump
FINE = 10_001  # points for the true front
DIGITS = 9


def facts_of(equations: tuple[str, ...]) -> dict[str, Any]:
    """Everything that is not a network, as JSON."""
    others = iter(OTHERS)
    styles = {name: PAPER.get(name) or next(others) for name in METHODS}
    return {
        "sizes": {"times": TIMES, "points": POINTS, "samples": SAMPLES, "draws": DRAWS},
        "sigmas": SIGMAS,
        "x": _numbers(X),
        "limits": {
            "far": FAR,
            "alike": NEARLY_AS_GOOD,
            "much": LEAST_SHARE,
            "wrong": FULL,
            "stated": float(row_limit(TIMES, None, torch.zeros(()), LEVEL)),
        },
        "causes": CAUSES,
        "methods": [
            {"name": name, "title": method.title, "exact": method.exact, "colour": styles[name][0]}
            for name, method in METHODS.items()
        ],
        "equations": {name: _equation(name) for name in equations},
    }


def _equation(name: str) -> dict[str, Any]:
    problem, experiment = find(name), EXPERIMENTS[name]
    shown = int((times(name) - experiment.time).abs().argmin())
    return {
        "title": problem.title,
        "equation": problem.equation,
        "parameter": problem.parameter,
        "times": _numbers(times(name)),
        "shown": shown,
        "number": experiment.values.index(problem.example[0]),
        "cases": [_case(name, value) for value in experiment.values],
    }


def _case(name: str, value: float) -> dict[str, Any]:
    """One parameter: the true solution, its totals and fronts."""
    problem = cast(ClosedForm, EXPERIMENTS[name].at(value))
    t = times(name)
    front = problem.front(t)
    ahead = problem.solution(t, front.nan_to_num(0.0))
    level = LEVELS.get(name) or float(ahead[~front.isnan()].median()) / 2
    fine = torch.linspace(0.0, 1.0, FINE, dtype=torch.float64)
    front = RULES["crossing"](problem.on_grid(t, fine), fine, torch.tensor(level).double())
    return {
        "value": value,
        "trained": problem.train_range[0] <= value <= problem.train_range[1],
        "truth": [_numbers(row) for row in problem.on_grid(t, X)],
        "total": _numbers(problem.total(t)),
        "front": [None if f != f else f for f in _numbers(front)],
        "level": round(level, DIGITS),
        "observations": [*product(*SEEN)],
    }


def _numbers(values: Tensor) -> list[float]:
    return [round(v, DIGITS) for v in values.tolist()]
