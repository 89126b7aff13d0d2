"""`reproduce`: each problem and parameter; numbers for the tables, curves for the figures."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from ...conditioning.condition import condition
from ...data import Functions, draw
from ...diagnostics.fronts import FrontPosition, front_position, needs_no_draws
from ...diagnostics.metrics import evaluate
from ...fields.gaussian import Diagonal, Field
from ...laws.law import Law
from ...laws.sums import integral
from ...models._load import RecipeName, find_weights, load, shipped
from ...models.anp import AttentiveNeuralProcess
from ...support import checks as check
from ...support.errors import InputError, surprises_expected
from ...training import RECIPES
from .._runs import Found, Job, Record, run
from ._experiments import EXPERIMENTS, METHODS, PROTOCOLS, Experiment, ProtocolName

FORMAT = 1  # of the kept cells
MODELS: tuple[Literal["anp", "softc"], ...] = ("anp", "softc")
FrontRule: TypeAlias = Literal["point", "crossing"]  # of a front
Networks: TypeAlias = dict[str, AttentiveNeuralProcess]  # by model: anp, softc

CONTEXT = (10, 10)  # as the published experiments, and ours, were trained
PRECISIONS = [10.0**power for power in range(1, 13)] + [math.inf]
DRAWS = 200  # of each function's front, where its distribution is not exact


@dataclass(frozen=True)
class Plan:
    """How the records of a run are made."""

    recipe: RecipeName
    protocol: ProtocolName
    n: int  # test functions
    samples: int  # of the latent
    times: int = 41  # of the figures over time
    at_most: int = 5  # functions of the MSE over time

    @property
    def functions_over_time(self) -> int:
        return min(self.at_most, self.n)

    @property
    def samples_over_time(self) -> int:
        """Of the latent, for the figures over time."""
        return max(self.samples // PROTOCOLS[self.protocol].share, 1)


@dataclass(frozen=True, eq=False)
class Cell:
    """What came out for one problem and parameter.

    Attributes
    ----------
    experiment : Experiment
        The problem, its parameters and time.
    value : float
        The value of the parameter.
    plan : Plan
        How the records were made.
    records : list of dict
        One for each method.
    fronts : sequence of dict
        One for each method and rule.
    curves : dict of Tensor
        By KIND/METHOD, to draw.
    """

    experiment: Experiment
    value: float
    plan: Plan
    records: list[Record]
    fronts: Sequence[Record] = ()
    curves: dict[str, Tensor] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its files."""
        made = f"{self.plan.recipe}-{self.plan.protocol}"
        return f"{self.experiment.name}-{self.value:g}-{made}"

    def of_methods(self, kind: str) -> dict[str, Tensor]:
        """The curves of one kind by method, in the order of the tables."""
        named = {name: self.curves.get(f"{kind}/{name}") for name in METHODS}
        return {name: curve for name, curve in named.items() if curve is not None}


def tables(experiment: Experiment, value: float, networks: Networks, plan: Plan) -> Cell:
    """The records alone."""
    return Cell(experiment, value, plan, _Setting(experiment, value, networks, plan).records())


def whole(experiment: Experiment, value: float, networks: Networks, plan: Plan) -> Cell:
    """The records, and what the figures need."""
    setting = _Setting(experiment, value, networks, plan)
    curves = dict(setting.profiles()) | dict(setting.precisions()) | dict(setting.over_time())
    fronts = []
    if experiment.fronts:
        for name, rule, level, front in setting.fronts():
            curves[f"{rule}/positions/{name}"] = front.positions
            curves[f"{rule}/probabilities/{name}"] = front.probabilities
            fronts.append(setting.front_record(name, rule, level, front))
    curves = {name: curve.cpu() for name, curve in curves.items()}
    return Cell(experiment, value, plan, setting.records(), fronts, curves)


class _Setting:
    """Truth, law and predictions at the evaluation time, and each method's field there."""

    def __init__(
        self, experiment: Experiment, value: float, networks: Networks, plan: Plan
    ) -> None:
        self.experiment, self.value, self.plan, self.networks = experiment, value, plan, networks
        self.problem, self.protocol = experiment.at(value), PROTOCOLS[plan.protocol]
        self.device = next(network.decoder.place.weight.device for network in networks.values())
        self.x = self.problem.grid(device=self.device)[1]
        self.test = draw(self.problem, "test", plan.n, CONTEXT)
        t = torch.tensor([experiment.time], dtype=torch.float64, device=self.device)
        self.truth, self.law = self.problem.on_grid(t, self.x), self._law(t)
        self.parts = self._predicted(self.test, t, plan.samples)
        self.fields = {
            name: self.protocol.mix(updated)
            for name, updated in self._updated(self.parts, self.law)
        }

    def records(self) -> list[Record]:
        return [
            self._where(name)
            | {key: getattr(self.plan, key) for key in ("recipe", "protocol", "n", "samples")}
            | evaluate(field, self.truth, self.law, generator=self._generator(1)).summary()
            for name, field in self.fields.items()
        ]

    def profiles(self) -> Iterator[tuple[str, Tensor]]:
        """Of the first function at the evaluation time, (M,) each."""
        yield "x", self.x
        yield "truth", self.truth[0]
        for name, field in self.fields.items():
            yield f"mean/{name}", field.mean[0, 0]
            yield f"variance/{name}", field.variance[0, 0]

    def precisions(self) -> Iterator[tuple[str, Tensor]]:
        """CE^2, LL and MSE of ProbConserv-ANP against 1 / sigma_G^2: mean and standard error."""
        yield "precision", torch.tensor(PRECISIONS, dtype=torch.float64)
        rows: dict[str, list[Tensor]] = {}
        for precision in PRECISIONS:
            law = integral(self.x, self.law.value, noise=precision**-0.5)
            field = self.protocol.mix(condition(self.parts["anp"], law))
            scores = evaluate(field, self.truth, law, samples=1, generator=self._generator(1))
            squared = dataclasses.replace(scores, CE=scores.CE**2)
            mean, error = squared.mean()[0], squared.standard_error()[0]
            for name in ("CE", "LL", "MSE"):
                pair = torch.stack([getattr(mean, name), getattr(error, name)])
                rows.setdefault(name, []).append(pair)
        for name, pairs in rows.items():
            yield f"precision/{name}", torch.stack(pairs, dim=1)  # (2, P)

    def over_time(self) -> Iterator[tuple[str, Tensor]]:
        """The first function's mean (T, M), and the MSE over some functions (T,)."""
        t = self.problem.grid(self.plan.times, device=self.device)[0]
        truth, law = self.problem.on_grid(t, self.x), self._law(t)
        yield from (("t", t), ("total", law.value))
        errors: dict[str, list[Tensor]] = {}
        for i in range(self.plan.functions_over_time):
            parts = self._predicted(self.test[i : i + 1], t, self.plan.samples_over_time)
            for name, updated in self._updated(parts, law):
                mean = updated.mean.mean(0)[0]  # over the latent, of the only function
                errors.setdefault(name, []).append(((mean - truth) ** 2).mean(-1))
                if not i:
                    yield f"mean over time/{name}", mean
        for name, each in errors.items():
            yield f"MSE over time/{name}", torch.stack(each).mean(0)

    def fronts(self) -> Iterator[tuple[str, FrontRule, float, FrontPosition]]:
        """Each method's front over all functions: at level 0 as published, and at half the jump."""
        front = self.problem.front(self.experiment.time)
        jump = float(self.problem.solution(self.experiment.time, front))
        levels: dict[FrontRule, float] = {"point": 0.0, "crossing": jump / 2}
        for name, field in self.fields.items():
            for rule, level in levels.items():
                draws = None if needs_no_draws(field, rule) else DRAWS
                found = front_position(
                    field, self.x, level, rule, samples=draws, generator=self._generator(2)
                )
                yield name, rule, level, _pooled(found)

    def front_record(
        self, name: str, rule: FrontRule, level: float, front: FrontPosition
    ) -> Record:
        return self._where(name) | {
            "rule": rule,
            "level": level,
            "true": float(self.problem.front(self.experiment.time)),
            "mean": float(front.mean),
            "std": float(front.std),
            "none": float(front.none),
        }

    def _law(self, t: Tensor) -> Law:
        return integral(self.x, self.problem.total(t))

    def _predicted(self, test: Functions, t: Tensor, samples: int) -> dict[str, Diagonal]:
        """The components of each model."""
        return {
            model: self.protocol.predict(network)(
                tuple(test.context), (t, self.x), samples, torch.Generator().manual_seed(0)
            )
            for model, network in self.networks.items()
        }

    def _updated(self, parts: dict[str, Diagonal], law: Law) -> Iterator[tuple[str, Field]]:
        """The components of each method whose model is there."""
        for name, method in METHODS.items():
            if method.model in parts:
                yield name, method.update(parts[method.model], law, self.x)

    def _where(self, method: str) -> Record:
        return {
            "problem": self.experiment.name,
            "parameter": self.value,
            "time": self.experiment.time,
            "method": method,
        }

    def _generator(self, seed: int) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(seed)


def _pooled(front: FrontPosition) -> FrontPosition:
    """Over all functions at once, (K,)."""
    cases = front.positions[0].numel()
    return FrontPosition(front.positions.flatten(), front.probabilities.flatten() / cases)


@surprises_expected()
def reproduce(
    problems: Sequence[str] = tuple(EXPERIMENTS),
    out: str | Path | None = None,
    protocol: ProtocolName = "ours",
    recipe: RecipeName = "modern",
    device: str = "auto",
    n: int = 50,
    samples: int = 100,
    figures: bool = True,
    fresh: bool = False,
    report: Callable[[str], None] | None = None,
) -> list[Cell]:
    """The cells of the tables, one for each problem and parameter.

    Parameters
    ----------
    problems : sequence of str
        Their names.
    out : str or Path
        A folder that keeps every finished cell, for a run that was stopped or is repeated.
    protocol : {"ours", "paper"}
        paper leaves dropout on and mixes as published.
    recipe : {"modern", "paper"}
        The recipe of the weights.
    device : str
        auto, cpu or cuda, where figures over time have more times and functions.
    n : int
        How many test functions, at least 2.
    samples : int
        How many samples of the latent.
    figures : bool
        Whether to compute what they need.
    fresh : bool
        True computes again what `out` holds.
    report : callable
        Called with the name of each cell that is begun.

    Returns
    -------
    list of Cell
        For `write`.

    Raises
    ------
    InputError
        If a name is unknown, or weights are not here.
    """
    for name in problems:
        check.choice("problems", name, EXPERIMENTS)
    check.choice("protocol", protocol, PROTOCOLS)
    check.choice("recipe", recipe, RECIPES)
    check.samples(samples, "samples")
    if check.samples(n) < 2:
        raise InputError(f"`n` must be at least 2, for a standard error; got {n}.")
    place = check.device(device)
    for name in problems:
        find_weights(name, "anp", recipe)  # before any work is done
    plan = Plan(recipe, protocol, n, samples)
    if place.type == "cuda":
        plan = dataclasses.replace(plan, times=201, at_most=50)
    todo = [(name, value) for name in dict.fromkeys(problems) for value in EXPERIMENTS[name].values]
    blank = [Cell(EXPERIMENTS[name], value, plan, []) for name, value in todo]
    jobs = [partial(_job, cell, place, figures) for cell in blank]
    return [
        dataclasses.replace(cell, curves=found.curves if figures else {}, **found.notes)
        for cell, found in zip(blank, run(jobs, out, fresh, report), strict=True)
    ]


def _job(cell: Cell, place: torch.device, figures: bool) -> Job:
    """Of use only to the same weights and plan."""
    networks = _networks(cell.experiment.name, cell.plan.recipe, place)

    def compute() -> Found:
        make = whole if figures else tables
        made = make(cell.experiment, cell.value, networks, cell.plan)
        return Found(made.curves, {"records": made.records, "fronts": [*made.fronts]})

    cards = {model: network.card for model, network in networks.items()}
    made_by = {"format": FORMAT, "plan": dataclasses.asdict(cell.plan), "cards": cards}
    title = f"{cell.experiment.name} {cell.value:g}"
    return Job(title, cell.name, made_by, compute, with_curves=figures)


def _networks(name: str, recipe: RecipeName, device: torch.device) -> Networks:
    """By model; SoftC where its weights are there."""
    models = [model for model in MODELS if f"{name}-{model}-{recipe}" in shipped()]
    return {model: load(name, model, recipe).to(device) for model in models}
