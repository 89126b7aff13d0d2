"""The experiments as data: equations, parameters, times, methods, and what was published."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from ...conditioning.condition import condition, project
from ...fields.ensemble import Ensemble
from ...fields.gaussian import Diagonal, Field
from ...fields.low_rank import LowRank
from ...fields.mixture import Mixture
from ...laws.law import Law
from ...laws.sums import smoothness
from ...models.anp import AttentiveNeuralProcess
from ...problems import ClosedForm, find
from .._runs import Record

PUBLISHED: dict[str, Any] = json.loads(Path(__file__).with_name("published.json").read_text())


@dataclass(frozen=True)
class Experiment:
    """One table of the paper.

    Parameters
    ----------
    name : str
        The name of the problem.
    values : tuple of float
        The values of its parameter, at test time.
    published : dict
        The paper's numbers.
    fronts : bool
        Whether the position of the front is a task.

    Examples
    --------
    >>> EXPERIMENTS["stefan"].values, EXPERIMENTS["stefan"].time
    ((0.6, 0.5), 0.05)
    """

    name: str
    values: tuple[float, ...]
    published: dict[str, Any] = field(repr=False)
    fronts: bool = False

    @property
    def problem(self) -> type[ClosedForm]:
        """The class of the problem."""
        return cast(type[ClosedForm], find(self.name))

    def at(self, value: float) -> ClosedForm:
        """The problem with that parameter."""
        return self.problem(**{self.problem.parameter: value})

    @property
    def time(self) -> float:
        """The time of the evaluation."""
        return self.published["time"]

    @property
    def warning(self) -> str:
        """Why the published numbers should not be trusted; empty if they can be."""
        return self.published.get("warning", "")

    def paper(self, value: float, method: str) -> dict[str, tuple[float, float]]:
        """Published CE, LL and MSE with their standard errors; empty where there are none.

        Parameters
        ----------
        value : float
            The value of the parameter.
        method : str
            One of `METHODS`.

        Returns
        -------
        dict of tuples
            By the name of the score, its average and standard error.
        """
        return self.published["values"].get(f"{value:g}", {}).get(method, {})


EXPERIMENTS = {
    name: Experiment(name, values, PUBLISHED[name], fronts=name in ("stefan", "advection"))
    for name, values in {
        "diffusion": (1.0, 5.0),
        "pme": (1.0, 3.0, 6.0),
        "stefan": (0.6, 0.5),  # 0.5 lies outside the training range
        "advection": (1.0, 3.0),
        "burgers": (1.0, 3.0),  # figures only in the paper: these numbers are the first
    }.items()
}


SWEEP = Path(__file__).with_name("sweep.json")


def sweep() -> list[Record]:
    """The sweep of lambda, the penalty of SoftC-ANP: results of networks that are not shipped.

    `python weights/sweep.py RUN ...` makes them.

    Returns
    -------
    list of dict
        A record for each penalty (0 is the ANP), parameter and protocol.
    """
    return json.loads(SWEEP.read_text())["records"]


RHO = 0.9  # of the artificial diffusion, as published
FLOOR = 1e-8  # of the published variances

ProtocolName: TypeAlias = Literal["ours", "paper"]
Predict: TypeAlias = Callable[..., Diagonal]


class Method(NamedTuple):
    """The network that a method takes, and what it makes of the components."""

    model: Literal["anp", "softc"]
    update: Callable[[Diagonal, Law, Tensor], Field]


METHODS = {
    "ANP": Method("anp", lambda parts, law, x: parts),
    "SoftC-ANP": Method("softc", lambda parts, law, x: parts),
    "HardC-ANP": Method("anp", lambda parts, law, x: project(parts, law)),
    "ProbConserv-ANP": Method("anp", lambda parts, law, x: condition(parts, law)),
    "ProbConserv-ANP (w/diff)": Method(
        "anp", lambda parts, law, x: condition(parts, law, smoothness(x, parts.variance, RHO))
    ),
}


class Protocol(NamedTuple):
    """How components are predicted, and how the updated ones are put together."""

    predict: Callable[[AttentiveNeuralProcess], Predict]
    mix: Callable[[Field], Field]
    share: int  # of the latent samples one in so many is used over time


def _published_mix(parts: Field) -> Diagonal:
    """Total moments with n - 1 below the spread, and a floor below each variance."""
    between = parts.mean.var(0) if len(parts.mean) > 1 else torch.zeros_like(parts.mean[0])
    return Diagonal(parts.mean.mean(0), parts.variance.clamp(min=FLOOR).mean(0) + between)


PROTOCOLS: dict[ProtocolName, Protocol] = {
    "ours": Protocol(lambda network: network.predict, Mixture, share=5),
    "paper": Protocol(lambda network: network.predict_with_dropout, _published_mix, share=20),
}


Update: TypeAlias = Callable[[Diagonal, Law, Tensor], Field]  # components, law, x

UPDATES: dict[str, Update] = {
    "none": lambda parts, law, x: Mixture(parts),
    "HardC": lambda parts, law, x: Mixture(project(parts, law)),
    "ProbConserv": lambda parts, law, x: Mixture(condition(parts, law)),
    "ProbConserv (w/diff)": lambda parts, law, x: Mixture(
        condition(parts, law, smoothness(x, parts.variance, RHO))
    ),
    "mixture, per time": lambda parts, law, x: condition(Mixture(parts, event_dims=1), law),
    "mixture, joint": lambda parts, law, x: condition(Mixture(parts), law),
    "low rank, per time": lambda parts, law, x: condition(_low_rank(parts, 1), law),
    "low rank, joint": lambda parts, law, x: condition(_low_rank(parts, 2), law),
}
ONLY_EXACT = {"none", "HardC"}  # there is no noise for them to weigh


def _low_rank(parts: Diagonal, event_dims: int) -> LowRank:
    """The spread between components as shared directions, beside the average variance of each."""
    batch_dims = parts.mean.ndim - 1 - event_dims
    return Ensemble(parts.mean, parts.variance.mean(0), batch_dims=batch_dims, shrinkage=0.0)
