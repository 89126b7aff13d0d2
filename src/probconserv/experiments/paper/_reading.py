"""Whether a network reads its observations: what it explains over the range of its parameter."""

from dataclasses import dataclass

import torch

from ...conditioning.condition import condition
from ...data import draw
from ...fields.mixture import Mixture
from ...laws.sums import integral
from ...models._predictor import Predictor
from ...support.errors import surprises_expected
from ._cell import CONTEXT
from ._experiments import Experiment


@dataclass(frozen=True)
class Reading:
    """How predictions follow the truth over functions of the whole training range.

    Attributes
    ----------
    share : float
        The explained share, ``1 - MSE / MSE of the mean field``: 0 for the best constant, 1 for the
        truth.
    slope : float
        Of predicted on true totals; NaN where these do not vary.
    mse : float
        Of the network.
    mse_after : float
        After the paper's update with the true total.
    """

    share: float
    slope: float
    mse: float
    mse_after: float


@surprises_expected()
def reading(network: Predictor, experiment: Experiment, n: int = 24, samples: int = 100) -> Reading:
    """What a network explains of validation functions at the time of the tables.

    Parameters
    ----------
    network : AttentiveNeuralProcess or Emulator
        What is judged.
    experiment : Experiment
        One of `EXPERIMENTS`.
    n : int
        How many functions, with parameters evenly over the training range and its ends.
    samples : int
        Of the latent.

    Returns
    -------
    Reading
        The same each time.
    """
    parameters = torch.linspace(*experiment.problem.train_range, n, dtype=torch.float64)
    problem = experiment.problem(**{experiment.problem.parameter: parameters})
    seen = draw(problem, "validation", n, CONTEXT, 1).context
    t, x = torch.tensor([experiment.time], dtype=torch.float64), experiment.problem.grid()[1]
    truth, total = problem.on_grid(t, x), problem[:, None].total(t)
    generator = torch.Generator().manual_seed(0)
    parts = network.predict(tuple(seen), (t, x), samples=samples, generator=generator)
    law = integral(x, total)
    mean, after = Mixture(parts).mean, Mixture(condition(parts, law)).mean
    mse, still = (float((u - truth).square().mean()) for u in (mean, truth.mean(0)))
    predicted, true = law.apply(mean).flatten(), total.flatten()
    apart = true - true.mean()
    slope = (apart * predicted).sum() / (apart**2).sum()
    mse_after = float((after - truth).square().mean())
    return Reading(1 - mse / still, float(slope), mse, mse_after)
