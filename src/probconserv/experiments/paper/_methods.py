"""The methods that the tables compare, from the components that a network predicts."""

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from ...conditioning.condition import condition, project
from ...fields.gaussian import Diagonal, Field
from ...fields.mixture import Mixture
from ...laws.law import Law
from ...laws.sums import smoothness
from ...models.anp import AttentiveNeuralProcess

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
