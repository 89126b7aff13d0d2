"""`ablate`: networks, updates and sigma_G, each against each, on the same functions."""

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from ...data import Functions, draw
from ...diagnostics.fronts import front_position
from ...diagnostics.metrics import evaluate
from ...diagnostics.noise import quadrature_noise
from ...fields.gaussian import Diagonal, Field
from ...fields.mixture import Mixture
from ...laws.sums import integral
from ...models._load import Model, RecipeName, find_weights, load
from ...models._predictor import Predictor
from ...support import checks as check
from ...support.complete_files import sole_writer
from ...support.errors import InputError, surprises_expected
from .._runs import Found, Job, Record, as_csv, at_least_one, run, written
from ._experiments import EXPERIMENTS, ONLY_EXACT, UPDATES, Experiment
from ._reproduce import CONTEXT

AblationSplit: TypeAlias = Literal["test", "validation"]
NetworkName: TypeAlias = Literal["paper", "modern", "emulator"]
NETWORKS: dict[NetworkName, tuple[Model, RecipeName]] = {
    "paper": ("anp", "paper"),
    "modern": ("anp", "modern"),
    "emulator": ("emulator", "modern"),
}
DRAWS = 50  # of each function's front
NUMBERS = 1 << 23  # of the components at once: 64 MB
METRICS = ("CE", "LL", "MSE", "CRPS", "coverage_50", "coverage_90", "coverage_99")


@dataclass(frozen=True)
class Trial:
    """How the records of an ablation are made."""

    split: AblationSplit = "test"  # or validation: parameters from all over the training range
    n: int = 50  # functions
    samples: int = 100  # of the latent
    times: int = 21  # at which the law is known, beside that of the evaluation
    draws: int = DRAWS


@torch.no_grad()
def records(
    experiment: Experiment,
    value: float | None,
    name: NetworkName,
    trial: Trial,
    device: torch.device,
) -> list[Record]:
    """One for each update of a network, exact and with noise; without a value parameters vary."""
    model, recipe = NETWORKS[name]
    network = load(experiment.name, model, recipe).to(device)
    problem = experiment.problem if value is None else experiment.at(value)
    test = draw(problem, trial.split, trial.n, CONTEXT)
    setting = _AblationSetting(experiment, test, trial, device)
    rows: dict[tuple[str, str], list[Part]] = {}
    for part in setting.chunks():
        for update, noise, row in setting.rows(network, part):
            rows.setdefault((update, noise), []).append(row)
    where = {"problem": experiment.name, "parameter": value, "time": experiment.time}
    made = {"network": name, **dataclasses.asdict(trial)}
    return [
        where | {"update": update, "noise": noise} | made | setting.scores(each)
        for (update, noise), each in rows.items()
    ]


# Some functions at the evaluation time: mean and variance (n, M), and the posterior mean of the
# position of the front (n,), NaN where there is none.
Part: TypeAlias = tuple[Tensor, Tensor, Tensor]


class _AblationSetting:
    """Truth and law of the functions at all times; the evaluation is at one of them."""

    def __init__(
        self, experiment: Experiment, test: Functions, trial: Trial, device: torch.device
    ) -> None:
        self.experiment, self.test, self.trial, self.device = experiment, test, trial, device
        problem = test.equation.to(device)
        even, self.x = problem.grid(trial.times, device=device)
        at = torch.tensor([experiment.time], dtype=torch.float64, device=device)
        self.t = torch.cat([even, at]).unique()
        self.row = int((self.t - experiment.time).abs().argmin())
        self.total = problem[:, None].total(self.t)  # (n, T)
        self.truth = problem.on_grid(at, self.x)  # (n, 1, M)
        self.front = problem.front(at)  # (n,)
        ahead = problem.solution(at, self.front.nan_to_num(0.0))
        self.level = ahead / 2  # half of the jump

    def chunks(self) -> Iterator[slice]:
        each = self.trial.samples * len(self.t) * len(self.x)
        step = max(1, NUMBERS // each)
        return (slice(i, i + step) for i in range(0, self.trial.n, step))

    def rows(self, network: Predictor, part: slice) -> Iterator[tuple[str, str, Part]]:
        """Every update with every noise, of some of the functions."""
        generator = torch.Generator().manual_seed(0)
        context = tuple(self.test[part].context)
        parts = network.predict(context, (self.t, self.x), self.trial.samples, generator)
        noise = quadrature_noise(Mixture(parts), self.x)
        laws = {
            "exact": integral(self.x, self.total[part]),
            "quadrature": integral(self.x, self.total[part], noise=noise),
        }
        for update, apply in UPDATES.items():
            for name, law in laws.items():
                if update not in ONLY_EXACT or name == "exact":
                    yield update, name, self._row(apply(parts, law, self.x), part)

    def _row(self, field: Field, part: slice) -> Part:
        mean, variance = field.mean[:, self.row], field.variance[:, self.row]
        front = torch.full_like(mean[:, 0], torch.nan)
        if self.experiment.fronts:
            generator = torch.Generator(self.device).manual_seed(2)
            level, draws = self.level[part, None], self.trial.draws
            found = front_position(
                field, self.x, level, "crossing", samples=draws, generator=generator
            )
            front = found.mean[:, self.row]
        return mean, variance, front

    def scores(self, rows: list[Part]) -> Record:
        mean, variance, front = map(torch.cat, zip(*rows, strict=True))
        field = Diagonal(mean[:, None], variance[:, None])
        law = integral(self.x, self.total[:, [self.row]])
        generator = torch.Generator(self.device).manual_seed(1)
        summary = evaluate(field, self.truth, law, samples=1, generator=generator).summary()
        chosen = {key: summary[key] for name in METRICS for key in (name, f"{name}_se")}
        return chosen | _front_error((front - self.front).abs())


def _front_error(error: Tensor) -> Record:
    """Mean and standard error over the functions that have a front."""
    there = error[~error.isnan()]
    if len(there) < 2:
        return {"front_error": None, "front_error_se": None}
    error = there.std() / math.sqrt(len(there))
    return {"front_error": float(there.mean()), "front_error_se": float(error)}


@surprises_expected()
def ablate(
    problems: Sequence[str] = tuple(EXPERIMENTS),
    out: str | Path | None = None,
    networks: Sequence[NetworkName] = tuple(NETWORKS),
    split: AblationSplit = "test",
    device: str = "auto",
    n: int = 50,
    samples: int = 100,
    times: int = 21,
    fresh: bool = False,
    report: Callable[[str], None] | None = None,
) -> list[Record]:
    """Scores at the evaluation time of every update of every network, exact and with noise.

    Parameters
    ----------
    problems : sequence of str
        Their names.
    out : str or Path
        A folder that keeps what is finished.
    networks : sequence of str
        paper, modern (the ANPs of these recipes) and emulator.
    split : {"test", "validation"}
        test: at the parameters of the tables. validation: with parameters from the training range,
        to choose by.
    device : str
        auto, cpu or cuda.
    n : int
        How many functions.
    samples : int
        How many samples of the latent.
    times : int
        At which b is known, evenly over the time range; joint updates use them all.
    fresh : bool
        True computes again what `out` holds.
    report : callable
        Called with the name of each cell that is begun.

    Returns
    -------
    list of dict
        A record for each problem, parameter, network, update and noise.

    Raises
    ------
    InputError
        If a name is unknown, a number is less than 2, or weights are not here.
    """
    for name in problems:
        check.choice("problems", name, EXPERIMENTS)
    for name in networks:
        check.choice("networks", name, NETWORKS)
    check.choice("split", split, get_args(AblationSplit))
    for name, count in {"n": n, "samples": samples, "times": times}.items():
        if check.samples(count, name) < 2:
            raise InputError(f"`{name}` must be at least 2, got {count}.")
    for name, network in product(problems, networks):
        _find(name, network)  # before any work is done
    trial, place = Trial(split, n, samples, times), check.device(device)
    jobs = [
        partial(_job, name, value, network, trial, place)
        for name in dict.fromkeys(problems)
        for value in (EXPERIMENTS[name].values if split == "test" else (None,))
        for network in dict.fromkeys(networks)
    ]
    return [one for found in run(jobs, out, fresh, report) for one in found.notes["records"]]


def _find(problem: str, network: NetworkName) -> None:
    try:
        find_weights(problem, *NETWORKS[network])
    except InputError as error:
        raise InputError(f"`networks` has {network}; leave it out, or get it. {error}") from None


def _job(
    problem: str, value: float | None, network: NetworkName, trial: Trial, place: torch.device
) -> Job:
    """Of use only to the same weights and trial."""
    parts = [problem, *([] if value is None else [f"{value:g}"]), network]
    model, recipe = NETWORKS[network]
    card = load(problem, model, recipe).card
    made_by = {"value": value, "trial": dataclasses.asdict(trial), "card": card}

    def compute() -> Found:
        found = records(EXPERIMENTS[problem], value, network, trial, place)
        return Found({}, {"records": found})

    return Job(" ".join(parts), "-".join([*parts, trial.split]), made_by, compute)


def write_ablation(found: Sequence[Record], out: str | Path) -> list[Path]:
    """Writes the records as ablation.json and ablation.csv.

    Parameters
    ----------
    found : sequence of dict
        The records of `ablate`.
    out : str or Path
        The folder.

    Returns
    -------
    list of Path
        Both files.

    Raises
    ------
    InputError
        If there is no record.
    """
    at_least_one("found", found, "record", "ablate")
    texts = {
        "ablation.json": json.dumps({"schema": 1, "records": list(found)}, indent=1) + "\n",
        "ablation.csv": as_csv(found),
    }
    with sole_writer(Path(out)):
        return written(Path(out), texts)


def update_name(record: Record) -> str:
    """The name of an update in tables: with its noise, if it has some.

    Parameters
    ----------
    record : dict
        One of those of `ablate`.

    Returns
    -------
    str
        `update` of the record, and whether it has noise.

    Examples
    --------
    >>> update_name({"update": "ProbConserv", "noise": "quadrature"})
    'ProbConserv, with noise'
    """
    return record["update"] + (", with noise" if record["noise"] == "quadrature" else "")
