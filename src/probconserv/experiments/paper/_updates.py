"""Ways to bring a law to the components that a network predicts: the paper's, and better ones."""

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor

from ...conditioning.condition import condition, project
from ...fields.ensemble import Ensemble
from ...fields.gaussian import Diagonal, Field, LowRank
from ...fields.mixture import Mixture
from ...laws.law import Law
from ...laws.sums import smoothness
from ._methods import RHO

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
